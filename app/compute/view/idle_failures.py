"""Idle failures tell an error of the moment from one that lasts, for a view whose inputs rest.

    failures = IdleFailures("delays", clock)
    failures.lasts(error)     True once there was nothing but errors for some seconds
    failures.end()            it could follow its inputs

An idle view follows its inputs by appends without rows. One of them that fails is no reason to
start the view anew: the next look, a moment later, tries again. But while the inputs rest nothing
else would ever tell that the output is gone: the view would be called late, and only the log would
know why.

A store that does not answer, or a full disk, never lasts in this sense: no start is better than the
next look, and a hundred views that start at once when the store is back would keep it from all.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Final

from shardline.datasource.clock import Clock
from shardline.datasource.errors import Determinate, Indeterminate, ShardError

__all__ = ["IdleFailures"]

_log = logging.getLogger(__name__)

_PATIENCE_MS: Final = 10_000.0
"""How long nothing but errors are taken for errors of the moment."""


@dataclass(slots=True)
class IdleFailures:
    """The failures of one view since it could follow its inputs. Calls must not overlap.

    Attributes:
        view: Its name.
        clock: Measures how long they last.
    """

    view: str
    clock: Clock
    _since_ms: float | None = None

    def lasts(self, error: ShardError) -> bool:
        """Note a failure; True if there was no success for so long that it has to be told."""
        context = {"view": self.view, "error": str(error)}
        _log.info("an idle view could not follow its inputs", extra={"context": context})
        if isinstance(error, Determinate | Indeterminate):
            return False
        now_ms = self.clock.elapsed_ms()
        if self._since_ms is None:
            self._since_ms = now_ms
        return now_ms - self._since_ms >= _PATIENCE_MS

    def end(self) -> None:
        """Note a success."""
        self._since_ms = None

"""Freezing: with `onMissingPart=freeze`, a stream stops before a part that it cannot read.

Every part of a range is read and checked before the range is published, once in each run. At the
first one that is missing or damaged the frontier stays: nothing at its time or later is emitted,
however good it is, and the query waits, alive, until the blob is back.

(Materialize freezes a `shard_source` in the same place, for ever: the operator reports the error
and holds its capability. Here it looks again, and goes on when it can.)

Runs in the planner process of one query run.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from shardline.datasource.clock import Clock
from shardline.datasource.errors import MissingBlob, ShardError
from shardline.datasource.shard.batch import Part
from shardline.datasource.shard.plan import PlannedPart

__all__ = ["Freezer", "Frozen"]

_log = logging.getLogger(__name__)

_LOOK_AGAIN_MS: Final = 500
"""Pause between two looks at a part that could not be read: a person puts it back."""

_CHECKS_AT_ONCE: Final = 4
"""Parts that are checked side by side; each is streamed, so this bounds requests, not memory."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """Why a stream stands still.

    Attributes:
        part: Key of the part that cannot be read.
        reason: What is wrong with it.
        since_ms: When that was first seen by this run (ms since the epoch).
    """

    part: str
    reason: str
    since_ms: int

    def json(self) -> dict[str, Any]:
        """As it stands in the progress of the query."""
        return {"part": self.part, "reason": self.reason, "since_ms": self.since_ms}


@dataclass(slots=True)
class Freezer:
    """What one run of a stream knows of the parts that it is about to read.

    Attributes:
        verify: What is wrong with a part, all of its bytes considered; None if nothing is.
        tell: Makes the status visible: in words, or empty when the stream goes on.
        clock: For pauses and for the time out.
        who: The stream, in words.
        timeout_ms: How long it may stand still; None is for ever.
    """

    verify: Callable[[Part], ShardError | None]
    tell: Callable[[str], None]
    clock: Clock
    who: str
    timeout_ms: int | None
    frozen: Frozen | None = None
    _good: set[str] = field(default_factory=set)
    _bad: dict[str, str] = field(default_factory=dict)
    _looked_ms: float = float("-inf")

    def unreadable(self, planned: Iterable[PlannedPart]) -> dict[str, str]:
        """Which of the parts cannot be read now, by key, and why.

        Good parts are checked once, bad ones again after a pause.
        """
        blobs = {p.part.key: p.part for p in planned if p.part.inline is None}
        due = self.clock.elapsed_ms() - self._looked_ms >= _LOOK_AGAIN_MS
        todo = [
            part
            for key, part in blobs.items()
            if key not in self._good and (due or key not in self._bad)
        ]
        if todo:
            self._looked_ms = self.clock.elapsed_ms()
            self._check(todo)
        return {key: self._bad[key] for key in blobs if key in self._bad}

    def stand(self, bad: dict[str, str]) -> None:
        """Note that the stream stands still before one of `bad`.

        Raises:
            MissingBlob: It has done so for longer than it may.
        """
        key = min(bad)
        if self.frozen is None or self.frozen.part != key:
            self.frozen = Frozen(key, bad[key], self.clock.now_ms())
            _log.warning("%s stands still: part '%s': %s", self.who, key, bad[key])
            self.tell(f"frozen since {self.frozen.since_ms} at part '{key}'")
        frozen_ms = self.clock.now_ms() - self.frozen.since_ms
        if self.timeout_ms is not None and frozen_ms >= self.timeout_ms:
            raise MissingBlob(
                f"{self.who} has stood still for {frozen_ms} ms: {bad[key]}",
                code="FREEZE_TIMEOUT",
                hint="restore the part and start the query again; nothing was skipped",
            )

    def move(self) -> None:
        """Note that the stream can go on."""
        if self.frozen is not None:
            _log.warning("%s goes on: part '%s' can be read", self.who, self.frozen.part)
            self.frozen = None
            self.tell("")

    def wait(self, planned: Sequence[PlannedPart]) -> None:
        """Wait until all of the parts can be read: their range has been published already.

        Raises:
            MissingBlob: That took longer than the stream may stand still.
        """
        while bad := self.unreadable(planned):
            self.stand(bad)
            self.clock.wait(threading.Event(), _LOOK_AGAIN_MS)
        self.move()

    def _check(self, parts: Sequence[Part]) -> None:
        with ThreadPoolExecutor(min(_CHECKS_AT_ONCE, len(parts))) as pool:
            for part, error in zip(parts, pool.map(self.verify, parts), strict=True):
                if error is None:
                    self._good.add(part.key)
                    self._bad.pop(part.key, None)
                else:
                    self._bad[part.key] = error.detail

"""Stops a stream before a part that it cannot read, with `onMissingPart=freeze`.

A part that is skipped is data that is lost without a trace, and a part that fails its micro-batch
ends the query. So every part of a range is read and checked before the range is published, once in
each run. At the first time of a part that is missing or damaged the frontier stays: nothing at that
time or later is emitted, however good it is, and the query waits, alive, until the blob is back.

(Materialize freezes a `shard_source` in the same place, for ever: the operator reports the error
and holds its capability. Here it looks again, and goes on when it can.)

Invariants:
    A range is published only when each of its parts was read in full by this run.
    A range that an earlier run published waits for its parts; it is never planned without them.

Runs in the planner process of one query run.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from shardline.datasource.clock import Clock
from shardline.datasource.errors import MissingBlob, ShardError
from shardline.datasource.shard.batch import Part
from shardline.datasource.shard.plan import PlannedPart

__all__ = ["Freezer", "Frozen"]

_log = logging.getLogger(__name__)

_RECHECK_MS: Final = 500
"""Pause between two checks of an unreadable part (ms): a person restores it, so no hurry."""

_CHECKS_AT_ONCE: Final = 4
"""Parts that are checked side by side; each is streamed, so this bounds requests, not memory."""


_GOOD_MAX: Final = 10_000
"""Good parts that are remembered: a megabyte or two of keys, the parts of many micro-batches."""


@dataclass(frozen=True, slots=True)
class Frozen:
    """The reason why a stream stands still.

    Attributes:
        part: Key of the part that cannot be read.
        reason: The error of its check.
        since_ms: When this run first saw it (ms since the epoch).
    """

    part: str
    reason: str
    since_ms: int

    def json(self) -> dict[str, Any]:
        """The value of `frozen` in the query's progress."""
        return {"part": self.part, "reason": self.reason, "since_ms": self.since_ms}


@dataclass(slots=True)
class Freezer:
    """The checks of one run of a stream: which parts are good, and which one it stands before.

    Attributes:
        verify: Reads all bytes of a part and returns the error found; None if the part is good.
        tell: Publishes the status, in words; empty when the stream goes on.
        clock: For pauses and for the timeout.
        who: The stream, in words, for errors and logs.
        timeout_ms: How long it may stand still; None is for ever.
        has_target: True for a run that ends, and must not do so as if it had read everything.
        frozen: The part that it stands before; None while it moves.
    """

    verify: Callable[[Part], ShardError | None]
    tell: Callable[[str], None]
    clock: Clock
    who: str
    timeout_ms: int | None
    has_target: bool = False
    frozen: Frozen | None = None
    _good: OrderedDict[str, None] = field(default_factory=OrderedDict)
    _bad: dict[str, str] = field(default_factory=dict)
    _looked_ms: float = float("-inf")

    def find_unreadable(self, planned: Iterable[PlannedPart]) -> dict[str, str]:
        """Check parts; the reasons, by key, why some of them cannot be read now.

        Good parts are checked once per run, or once more if very many others came in between; bad
        ones again after a pause.
        """
        # Inline parts are in the state: there is no blob that could be missing.
        blobs = {p.part.key: p.part for p in planned if p.part.inline is None}
        due = self.clock.elapsed_ms() - self._looked_ms >= _RECHECK_MS
        # The pause is for bad parts only. A part that was never checked is checked at once, or a
        # range that holds it would be published unchecked.
        todo = [
            part
            for key, part in blobs.items()
            if key not in self._good and (due or key not in self._bad)
        ]
        if todo:
            # Only a check of the bad parts counts: where new parts come faster than the pause, it
            # would never be over, and a part that was restored would never be found.
            if due:
                self._looked_ms = self.clock.elapsed_ms()
            self._check(todo)
        self._forget_oldest(blobs.keys())
        return {key: self._bad[key] for key in blobs if key in self._bad}

    def record_frozen(self, bad: dict[str, str]) -> None:
        """Record that the stream stands still before the parts in `bad`, and publish that.

        Args:
            bad: Reasons by key; not empty.

        Raises:
            MissingBlob: It has stood still for `timeout_ms`, or the run has a target.
        """
        # Any choice that is the same at each call: the status, and with it a record of the shard's
        # log, changes only when the part does.
        key = min(bad)
        # `since_ms` starts again with another part: the timeout is for the repair of one part.
        if self.frozen is None or self.frozen.part != key:
            self.frozen = Frozen(key, bad[key], self.clock.now_ms())
            _log.warning("%s stands still: part '%s': %s", self.who, key, bad[key])
            self.tell(f"frozen since {self.frozen.since_ms} at part '{key}'")
        if self.has_target:
            raise MissingBlob(
                f"{self.who} cannot reach its target: {bad[key]}",
                hint="restore the part and start the query again; nothing was skipped",
            )
        frozen_ms = self.clock.now_ms() - self.frozen.since_ms
        if self.timeout_ms is not None and frozen_ms >= self.timeout_ms:
            raise MissingBlob(
                f"{self.who} has stood still for {frozen_ms} ms: {bad[key]}",
                code="FREEZE_TIMEOUT",
                hint="restore the part and start the query again; nothing was skipped",
            )

    def move(self) -> None:
        """Record that the stream goes on, and publish that if it stood still."""
        if self.frozen is not None:
            _log.warning("%s goes on: part '%s' can be read", self.who, self.frozen.part)
            self.frozen = None
            self.tell("")

    def wait(self, planned: Sequence[PlannedPart]) -> None:
        """Block until all parts of a published range can be read.

        Raises:
            MissingBlob: That took longer than `timeout_ms`, or the run has a target: whoever waits
                for its end would wait for ever.
        """
        # Blocks instead of returning a shorter range: the end is in Spark's offset log, and a plan
        # without the part would be committed as if it had been read.
        while bad := self.find_unreadable(planned):
            self.record_frozen(bad)
            self.clock.wait(threading.Event(), _RECHECK_MS)
        self.move()

    def _forget_oldest(self, used: Collection[str]) -> None:
        """Forget good parts that were asked about longest ago: a run may last for years.

        A range is asked about when its end is chosen, and once more or more often when it is
        planned, with the next one in between at most. So nothing that is forgotten is checked
        again, unless a query stands or fails over and over.
        """
        for key in used:
            if key in self._good:
                self._good.move_to_end(key)
        while len(self._good) > max(_GOOD_MAX, 2 * len(used)):
            self._good.popitem(last=False)

    def _check(self, parts: Sequence[Part]) -> None:
        with ThreadPoolExecutor(min(_CHECKS_AT_ONCE, len(parts))) as pool:
            for part, error in zip(parts, pool.map(self.verify, parts), strict=True):
                # Good parts are not checked again in this run: blobs never change, and checking
                # them at each look would read a backlog over and over.
                if error is None:
                    self._good[part.key] = None
                    self._bad.pop(part.key, None)
                else:
                    self._bad[part.key] = error.detail

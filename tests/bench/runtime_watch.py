"""Finds when rows become readable: uppers looked at from outside, and the rows' own stamps.

    with Watch(client, clock, names) as watch:      a thread that looks, with a client of its own
        …
    freshness(stamps, watch.passed("view"), …)      how long each row took

A row of a source is readable in a view's shard from the first look at which the shard's upper is
beyond the row's time: from then on the contents at that time can be read, by anybody. So one look
at the uppers tells it of all rows, and what is measured is not burdened by reading them. Nor by the
looks: in a folder of this machine only shards are asked for whose log has changed since. To ask for
a hundred of them forty times a second took a quarter of what the driver's Python did.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.compute as pc

from shardline.datasource.client import ShardClient
from shardline.datasource.clock import Clock
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.types.schema import TS

__all__ = ["LOOK_MS", "Looks", "Watch", "freshness", "stamps_of", "unreadable"]

LOOK_MS: Final = 25.0
"""Between two looks: the most that a look is late by."""

_GRAIN_MS: Final = 50.0
"""A folder that has changed so lately may change again and still have the same time."""

_SAMPLE: Final = 50_000
"""Rows whose stamps count: each n-th of what was read, for all times alike."""

_LOOKS_MAX: Final = 200_000
"""Looks at which an upper had moved that are kept of one shard."""

_PATIENCE_MS: Final = 30_000
"""How far a shard may be beyond the end of a window without a row that was made after it."""

Looks = Sequence[tuple[int, int]]
"""The upper of a shard and when it was first seen (ms since the epoch), both ascending."""


class Watch:
    """Looks at the uppers of shards all the time."""

    def __init__(self, client: ShardClient, clock: Clock, names: Sequence[str]) -> None:
        """Watch `names`; shards that are not there yet have upper 0.

        Args:
            client: Of this watch alone, so that nobody else's look is seen.
            clock: Says when a look was.
            names: The shards.
        """
        self._client, self._clock, self._names = client, clock, list(names)
        self._looks: dict[str, list[tuple[int, int]]] = {name: [] for name in names}
        self._missing = set(names)
        self._looked_ms: dict[str, int] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def __enter__(self) -> Self:
        """Begin to look."""
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Look no more."""
        self.stop()

    def stop(self) -> None:
        """Look no more; may be repeated."""
        self._ended.set()
        self._thread.join()

    def passed(self, name: str) -> Looks:
        """What was seen of a shard."""
        return list(self._looks[name])

    def least(self) -> int:
        """How far all of the shards are."""
        return min((looks[-1][0] if looks else 0 for looks in self._looks.values()), default=0)

    def until(self, time: int, patience_ms: float) -> bool:
        """Wait until all uppers are beyond `time`; False if it takes longer than `patience_ms`."""
        deadline = self._clock.elapsed_ms() + patience_ms
        while self.least() <= time:
            if self._clock.elapsed_ms() > deadline or self._clock.wait(self._ended, LOOK_MS):
                return False
        return True

    def _run(self) -> None:
        while not self._clock.wait(self._ended, LOOK_MS):
            self.look()

    def look(self) -> None:
        """Look once at every shard."""
        for name in self._names:
            if name in self._missing and not self._there(name):
                continue
            if not self._may_have_moved(name):
                continue
            upper = self._client.readable(name)[0].upper.time
            looks = self._looks[name]
            if upper and (not looks or upper > looks[-1][0]) and len(looks) < _LOOKS_MAX:
                looks.append((upper, self._clock.now_ms()))

    def _may_have_moved(self, name: str) -> bool:
        """False if nothing was written into a shard's log since it was looked at."""
        looked_ms, now_ms = self._looked_ms.get(name), self._clock.now_ms()
        place = urlsplit(self._client.location.url)
        if looked_ms is not None and place.scheme == "file":
            log = Path(unquote(place.path), self._client.machine(name).directory, "log")
            if log.stat().st_mtime_ns / 1e6 <= looked_ms - _GRAIN_MS:
                return False
        # Before its state is read: what is written meanwhile is later.
        self._looked_ms[name] = now_ms
        return True

    def _there(self, name: str) -> bool:
        try:
            there = self._client.exists(name)
        except InvalidUsage:
            return False
        if there:
            self._missing.discard(name)
        return there


def stamps_of(
    client: ShardClient, shard: str, column: str, first: int, last: int
) -> Mapping[int, Sequence[int]]:
    """The stamps of rows made from `first` to `last`, both ms since the epoch, by the rows' time.

    Waits for the first row that was made later, since rows come in the order in which they are
    made; if none comes, until the shard is far beyond `last`.

    Args:
        client: Of the location.
        shard: The rows'.
        column: That with the stamps: a timestamp.
        first: Inclusive.
        last: Exclusive.
    """
    found: dict[int, list[int]] = {}
    with client.reader(shard, purpose="bench") as reader:
        for step in reader.listen(first):
            table = step.updates
            newest = _collect(found, table, column, first, last) if table.num_rows else None
            if newest is not None and newest >= last:
                break
            if step.upper.time is None or step.upper.time > last + _PATIENCE_MS:
                break
    total = sum(map(len, found.values()))
    every = max(total // _SAMPLE, 1)
    return {time: sorted(stamps)[::every] for time, stamps in found.items()}


def _collect(
    found: dict[int, list[int]], table: pa.Table, column: str, first: int, last: int
) -> int | None:
    """Add the stamps of `table`; its greatest."""
    made = pc.cast(pc.cast(table.column(column), pa.timestamp("ms", "UTC"), safe=False), pa.int64())
    for time, stamp in zip(table.column(TS).to_pylist(), made.to_pylist(), strict=True):
        if first <= stamp < last:
            found.setdefault(time, []).append(stamp)
    newest: int | None = pc.max(made).as_py()
    return newest


def freshness(stamps: Mapping[int, Sequence[int]], looks: Looks, ended_ms: int) -> list[float]:
    """Milliseconds that each row took from its making until it was readable.

    Args:
        stamps: When rows were made, by their time.
        looks: At the shard.
        ended_ms: When looking ended: a row that was not readable by then took at least that long.
    """
    uppers = [upper for upper, _ in looks]
    took: list[float] = []
    for time, made in stamps.items():
        place = bisect_right(uppers, time)
        seen = looks[place][1] if place < len(looks) else ended_ms
        took += [float(seen - stamp) for stamp in made]
    return took


def unreadable(stamps: Mapping[int, Sequence[int]], looks: Looks) -> int:
    """How many rows were not readable when looking ended: `freshness` has too little for them."""
    reached = max((upper for upper, _ in looks), default=0)
    return sum(len(made) for time, made in stamps.items() if time >= reached)

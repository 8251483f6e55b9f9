"""Stores histories in a shard of the location, so that they survive a restart.

All histories are rows of one shard, `_introspection`: the relation, the time, and the row as JSON.
The shard follows memory: each round appends the difference, so a row that is older than its
retention, or for which memory has no room, is retracted, and compaction frees its bytes.

A row that is older than its retention is kept while it says what still holds, see `histories`. Rows
that were loaded are retracted by a later round only, when the sink is sure to have seen them.

A round without news moves the shard's upper on all the same: by it the next start knows when this
application was last heard of, and that it has run through a night in which nothing happened.

A round that fails loses nothing: the next one appends what is missing by then. If another runtime
has written meanwhile, the shard's upper shows it, and its rows are loaded.

The commands of the lane are not among them: its own shard has them (`lane_history`).

A process that follows another one has histories of its own, which are not stored. When it takes
over, they begin anew (`location_histories`), and the shard is loaded again.

Invariants:
    Nothing is written before writing is allowed, nor after another runtime has taken over.
    Reading and writing happen on a thread of their own: the sink never waits for a store.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Final, TypeAlias

import msgspec
import pyarrow as pa

from shardline.app.introspection.events import Remembered
from shardline.app.introspection.facts import RUN_HISTORY, Facts
from shardline.app.introspection.histories import Entry
from shardline.app.introspection.sink import Sink
from shardline.datasource.background import PeriodicThread
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Fenced
from shardline.datasource.frontier import Frontier
from shardline.datasource.schema import DIFF, ShardSchema
from shardline.datasource.state import Appended

__all__ = ["HISTORY_SHARD", "HistoryKeeper"]

HISTORY_SHARD: Final = "_introspection"

_COLUMNS: Final = pa.schema(
    [("relation", pa.string()), ("at_ms", pa.int64()), ("row", pa.string())]
)
_INTERVAL_MS: Final = 60_000
_STOP_MS: Final = 10_000.0

_Entry: TypeAlias = tuple[str, int, str]
"""A row of the shard."""

_Noted: TypeAlias = list[tuple[str, list[Entry]]]
"""Rows in memory, by name of their history."""


class HistoryKeeper:
    """Stores a sink's histories in a shard, and loads them."""

    def __init__(
        self,
        sink: Sink,
        client: ShardClient,
        *,
        writes: threading.Event,
        check_fence: Callable[[], None],
        interval_ms: int = _INTERVAL_MS,
    ) -> None:
        """Read and write nothing yet.

        Args:
            sink: Has the histories.
            client: Of the location.
            writes: Set once writing is allowed.
            check_fence: Raises `Fenced` when another runtime has taken over.
            interval_ms: Time between two rounds: a crash loses at most so much of a history.
        """
        self._sink = sink
        self._client = client
        self._writes = writes
        self._check_fence = check_fence
        self._interval_ms = interval_ms
        self._held: set[_Entry] = set()
        self._unconfirmed: set[_Entry] = set()
        self._upper: Frontier | None = None
        self._since_ms = 0
        self._loaded = False
        self._thread = PeriodicThread(
            "introspection-history",
            self._round,
            client.clock,
            retry_ms=interval_ms,
            last=self._last_round,
            # It is not known what the shard has: the next round loads it.
            on_error=lambda _: self._forget_upper(),
        )

    def start(self) -> None:
        """Load the rows of earlier runs, then store new ones every interval; call once."""
        self._thread.start()

    def stop(self) -> None:
        """Make a last round and end."""
        self._thread.stop(_STOP_MS)

    def load(self) -> None:
        """Put the rows of the shard into the sink, if the shard exists."""
        self._held = set()
        if not self._client.exists(HISTORY_SHARD):
            return
        with self._client.reader(HISTORY_SHARD, purpose="introspection") as reader:
            state = reader.machine.state()
            if not state.upper.time:
                return
            held = reader.snapshot(state.upper.time - 1)
        self._upper = state.upper
        self._held = set(zip(*(column.to_pylist() for column in held.columns), strict=True))
        by_name: dict[str, list[tuple[int, tuple[object, ...]]]] = {}
        for relation, at_ms, row in sorted(self._held):
            by_name.setdefault(relation, []).append((at_ms, _tuples(msgspec.json.decode(row))))
        for relation, rows in by_name.items():
            self._sink.put(Remembered(relation=relation, rows=tuple(rows)))
        self._unconfirmed = self._held

    def flush(self) -> None:
        """Make one round: append rows that the shard lacks, and retract those that are too old.

        Raises:
            Fenced: Another runtime has taken over.
            ShardError: The store did not take it.
        """
        if not self._writes.is_set():
            return
        # Read once: rows of before a take-over must not be taken for those since.
        since_ms, noted = self._sink.read(_list_rows)
        if since_ms is None:
            # Writing is allowed a moment before the sink hears of the take-over.
            return
        self._check_fence()
        client = self._client
        state = client.create(
            HISTORY_SHARD,
            ShardSchema.from_arrow(_COLUMNS),
            comment="histories of the runtime's introspection relations",
            retain_ms=0,
        )
        took_over = since_ms != self._since_ms
        if took_over or self._upper is None or state.upper != self._upper:
            self._upper = state.upper
            # Somebody else has written, or memory has begun anew: load those rows first, or the
            # difference below would retract them as rows that are too old.
            self.load()
            if took_over:
                self._note_end(before_ms=since_ms)
            self._since_ms = since_ms
        else:
            self._unconfirmed = set()
        self._append(_encode(noted) | self._unconfirmed | self._recent())

    def _recent(self) -> set[_Entry]:
        """Rows of the shard that are neither too old nor more than memory has room for."""
        now_ms = self._client.clock.now_ms()
        since = self._sink.read(lambda facts, _: _kept_since(facts, now_ms))
        return {entry for entry in self._held if entry[1] >= since.get(entry[0], now_ms)}

    def _append(self, wanted: set[_Entry]) -> None:
        more, gone = wanted - self._held, self._held - wanted
        lower = self._upper
        if lower is None or lower.time is None:
            return
        # Half of the interval, so that each round moves it: if every other one did, two minutes
        # would lie between two signs of life, which are taken for a gap (`histories.gaps`).
        is_recent = self._client.clock.now_ms() < lower.time + self._interval_ms // 2
        if not (more or gone) and is_recent:
            return
        entries = [*sorted(more), *sorted(gone)]
        columns: list[list[object]] = [[entry[at] for entry in entries] for at in range(3)]
        diffs = [1] * len(more) + [-1] * len(gone)
        table = pa.table(
            [
                *(pa.array(c, f.type) for c, f in zip(columns, _COLUMNS, strict=True)),
                pa.array(diffs, pa.int64()),
            ],
            names=[*_COLUMNS.names, DIFF],
        )
        upper = Frontier(max(lower.time, self._client.clock.now_ms()) + 1)
        outcome = self._client.writer(HISTORY_SHARD).compare_and_append(table, lower, upper)
        # Refused because of another writer: the next round loads the shard again.
        self._upper = upper if isinstance(outcome, Appended) else None
        self._held = wanted

    def _round(self) -> float | None:
        try:
            self.flush() if self._loaded else self._load_first()
        except Fenced:
            return None
        return self._interval_ms

    def _load_first(self) -> None:
        """Load, and note when the application before was last heard of: then it wrote."""
        self.load()
        self._note_end()
        self._loaded = True

    def _note_end(self, before_ms: int | None = None) -> None:
        if self._upper is None or self._upper.time is None:
            return
        at_ms = self._upper.time - 1
        # A holder may have written once more while it was replaced: then there is no gap, and an
        # end behind the start would be one until the next start.
        if before_ms is None or at_ms < before_ms:
            self._sink.put(Remembered(relation=RUN_HISTORY, rows=((at_ms, ("end", ())),)))

    def _last_round(self) -> None:
        with contextlib.suppress(Fenced):
            self.flush()

    def _forget_upper(self) -> None:
        self._upper = None


def _list_rows(facts: Facts, _now_ms: int) -> tuple[int | None, _Noted]:
    """Only list them: this is done under the lock, and to encode them takes long."""
    return facts.histories_since_ms, [(h.name, list(h.rows)) for h in facts.stored_histories()]


def _kept_since(facts: Facts, now_ms: int) -> dict[str, int]:
    """From when on all rows are kept, by name of a history.

    Those that memory has removed because there were too many are not kept either. Their number is
    bounded by the retention and the rate alone, and each round goes through what the shard has.
    """
    return {
        history.name: max(now_ms - history.retain_ms, history.horizon_ms or 0)
        for history in facts.stored_histories()
    }


def _encode(noted: _Noted) -> set[_Entry]:
    return {
        (name, at_ms, msgspec.json.encode(row).decode())
        for name, rows in noted
        for at_ms, row in rows
    }


def _tuples(value: object) -> tuple[object, ...]:
    """A decoded row with tuples for lists, as it was before: JSON has lists only."""
    assert isinstance(value, list), value
    return tuple(_tuples(item) if isinstance(item, list) else item for item in value)

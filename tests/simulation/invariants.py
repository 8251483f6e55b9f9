"""Checks what must be true after every record of a log, at every deletion, and at the end.

The observer stands beside the store and sees each object come and go. It replays every record, on
its own, into the states that the shard had; no client sees more than some of them.

    each record     the state is sound; upper and since do not go back; since is not beyond any
                    holder; each new part is there; each append is one that was asked for, once; a
                    batch that takes the place of others means the same
    each deletion   nobody who holds a state needs the part; every state that is held can be rebuilt
    the end         see `settled`
"""

from __future__ import annotations

import io
from collections import Counter
from typing import TYPE_CHECKING, Final

import pyarrow.parquet as pq

from shardline.datasource.frontier import Frontier
from shardline.datasource.parts.part_file import decode_inline
from shardline.datasource.shard.codec import apply_diff, decode_record
from shardline.datasource.shard.state import (
    ShardState,
    Writer,
    check_invariants,
    holders_since,
    is_tombstone,
)
from shardline.datasource.stores.entry import decode_entry, entry_key, entry_seqno
from shardline.datasource.types.schema import ShardSchema
from simulation.model import Model, Row
from simulation.scheduler import Violation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardline.datasource.shard.batch import Batch, Part

__all__ = ["Observed", "Observer"]

_URL: Final = "memory://simulation"


class Observed:
    """What was seen of one shard's log."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.state: ShardState | None = None
        self.models: dict[str, Model] = {}
        self.live: set[str] = set()
        self.dropped: dict[str, int] = {}
        self.merges = 0

    @property
    def model(self) -> Model:
        """Of the shard that has the name now."""
        assert self.state is not None
        return self.models[self.state.shard]

    def held(self) -> set[str]:
        """Parts that only older states name, which somebody holds."""
        assert self.state is not None
        least = min((seqno for _, seqno in _seqno_holds(self.state)), default=self.state.seqno)
        return {key for key, dropped in self.dropped.items() if least < dropped}


class Observer:
    """Checks every change of the store's objects."""

    def __init__(self, objects: Mapping[str, tuple[bytes, int]]) -> None:
        self._objects = objects
        self.shards: dict[str, Observed] = {}
        self.modelled = {"a"}

    # -- records ---------------------------------------------------------------------------------

    def created(self, key: str, value: bytes) -> None:
        name, _, rest = key.partition("/")
        if not rest.startswith("log/"):
            return
        shard = self.shards.setdefault(name, Observed(name))
        seqno = entry_seqno(key)
        old = shard.state
        head = 0 if old is None else old.seqno
        if seqno <= head:
            return  # a stalled writer put a deleted record back: whoever believes it is found out
        if seqno != head + 1:
            raise Violation("log", f"record {seqno} of '{name}' follows {head}")
        record = decode_record(decode_entry(_URL, key, value)[1], key)
        new = record.state if record.state is not None else None
        if new is None:
            assert old is not None
            new = apply_diff(old, record)
        if new.seqno != seqno:
            raise Violation("log", f"record {seqno} of '{name}' makes state {new.seqno}")
        self._check(shard, old, new)
        shard.state = new

    def _check(self, shard: Observed, old: ShardState | None, new: ShardState) -> None:
        try:
            check_invariants(new)
        except AssertionError as error:
            raise Violation("state", repr(error)) from error
        same = old is not None and old.shard == new.shard
        before, after = _parts(old), _parts(new)
        for key in before.keys() - after.keys():
            shard.dropped[key] = new.seqno
        for key, part in after.items():
            if key not in before and part.inline is None and key not in self._objects:
                raise Violation("blobs", f"state {new.seqno} names {key}, which is not there")
        for seqno, rollup in new.rollups.items():
            known = old is not None and seqno in old.rollups
            if not known and rollup.key not in self._objects:
                raise Violation(
                    "blobs", f"state {new.seqno} names {rollup.key}, which is not there"
                )
        shard.live = {key for key, part in after.items() if part.inline is None}
        model = shard.models.setdefault(new.shard, Model(new.shard))
        if old is None or not same or is_tombstone(new):
            return
        _check_frontiers(old, new)
        if shard.name not in self.modelled:
            return
        self._check_appends(model, old, new)
        self._check_merges(shard, model, old, new)

    def _check_appends(self, model: Model, old: ShardState, new: ShardState) -> None:
        """Every append of the record is one that somebody asked for, in the order of uppers."""
        found = [
            (Frontier(entry.upper), writer, entry.last)
            for writer, entry in new.writers.items()
            if _has_appended(old.writers.get(writer), entry)
        ]
        lower = old.upper
        for upper, writer, sequence in sorted(found):
            if lower.time is None:
                raise Violation("upper", f"'{writer}' appended to a finished shard")
            at = (lower.time, max(upper, lower).time)
            model.commit(writer, sequence, *at)
            lower = max(upper, lower)
        if lower != new.upper:
            raise Violation("upper", f"it went from {old.upper} to {new.upper} without an append")

    def _check_merges(
        self, shard: Observed, model: Model, old: ShardState, new: ShardState
    ) -> None:
        """Batches that are new and lie before the old upper mean what was there."""
        known = set(map(id, old.trace.batches))
        for batch in new.trace.batches:
            upper = batch.desc.upper_frontier
            if id(batch) in known or batch in old.trace.batches or upper > old.upper:
                continue
            shard.merges += 1
            since = batch.desc.since
            assert since is not None
            found = self.contents(new, batch)
            last = since if upper.time is None else min(since, upper.time - 1)
            wanted = model.changes(batch.desc.lower, upper.time, last)
            if found != wanted:
                raise Violation("merge", f"{batch.desc}: {_difference(found, wanted)}")

    def contents(self, state: ShardState, batch: Batch) -> Counter[tuple[Row, int]]:
        """The updates of a batch as its parts say, read without the code under test."""
        total = Counter[tuple[Row, int]]()
        for part in batch.parts:
            if part.inline is not None:
                schema = ShardSchema.parse(state.schemas[part.schema])
                table = decode_inline(part, schema)
            else:
                table = pq.read_table(io.BytesIO(self._objects[part.key][0]))
            columns = {name: table.column(name).to_pylist() for name in table.schema.names}
            times = columns.get("_ts", [part.ts] * table.num_rows)
            rows = zip(columns["id"], columns["v"], strict=True)
            for row, time, diff in zip(rows, times, columns["_diff"], strict=True):
                if batch.desc.covers(time):
                    total[row, time] += diff
        return Counter({key: count for key, count in total.items() if count})

    # -- deletions -------------------------------------------------------------------------------

    def deleted(self, key: str, value: bytes) -> None:
        del value
        name, _, rest = key.partition("/")
        shard = self.shards.get(name)
        if shard is None or shard.state is None:
            return
        if rest.startswith("part/"):
            self._check_part(shard, shard.state, key)
        elif rest.startswith(("log/", "rollup/")):
            self._check_rebuildable(shard.state, name, key)

    def _check_part(self, shard: Observed, state: ShardState, key: str) -> None:
        if key in shard.live:
            raise Violation("deleted", f"{key} is part of the newest state {state.seqno}")
        dropped = shard.dropped.get(key)
        if dropped is None:
            return
        for holder, seqno in _seqno_holds(state):
            if seqno < dropped:
                raise Violation(
                    "deleted", f"{key}, dropped by state {dropped}, is held by {holder} at {seqno}"
                )

    def _check_rebuildable(self, state: ShardState, name: str, deleted: str) -> None:
        """Without `deleted`, the newest state and all held ones can still be made."""
        objects = self._objects
        held = {seqno for _, seqno in _seqno_holds(state)} | {state.seqno}
        wholes = {
            seqno
            for seqno, rollup in state.rollups.items()
            if rollup.key in objects and rollup.key != deleted
        }
        base = entry_key(f"{name}/log/", state.base)
        if base in objects and base != deleted:
            wholes.add(state.base)
        newest = state.rollup
        if newest is not None and newest[0] not in wholes:
            raise Violation("deleted", f"{deleted} is the newest rollup of '{name}'")
        for seqno in held:
            start = max((whole for whole in wholes if whole <= seqno), default=0)
            needed = [entry_key(f"{name}/log/", n) for n in range(start + 1, seqno + 1)]
            if not start or deleted in needed or any(key not in objects for key in needed):
                raise Violation("deleted", f"state {seqno} of '{name}' needs {deleted}")


def _check_frontiers(old: ShardState, new: ShardState) -> None:
    if new.upper < old.upper:
        raise Violation("upper", f"it went back from {old.upper} to {new.upper}")
    if new.since < old.since:
        raise Violation("since", f"it went back from {old.since} to {new.since}")
    held = holders_since(new)
    if held is not None and held < new.since:
        raise Violation("since", f"it is {new.since}, and somebody holds {held}")


def _has_appended(old: Writer | None, new: Writer) -> bool:
    if old is None:
        return new.last >= 0
    return (old.last, old.upper) != (new.last, new.upper)


def _parts(state: ShardState | None) -> dict[str, Part]:
    if state is None:
        return {}
    return {part.key: part for batch in state.trace.batches for part in batch.parts}


def _seqno_holds(state: ShardState) -> list[tuple[str, int]]:
    leased = [(name, reader.seqno) for name, reader in state.leased.items()]
    return leased + [
        (name, reader.seqno) for name, reader in state.critical.items() if reader.seqno is not None
    ]


def _difference(found: Counter[tuple[Row, int]], wanted: Counter[tuple[Row, int]]) -> str:
    keys = [key for key in found.keys() | wanted.keys() if found[key] != wanted[key]]
    some = [f"{key}: {found[key]}, not {wanted[key]}" for key in sorted(keys, key=repr)[:4]]
    return "; ".join(some)

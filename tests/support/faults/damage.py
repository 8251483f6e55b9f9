"""A location to be damaged, and the tools to do it: objects changed by hand, records forged.

`Lake` has one shard with a bit of everything (`orders`) and one beside it (`other`), on any store.
Everything that damages goes to the bare objects; a forged record is well-formed and says something
wrong, as a bug of a writer would.
"""

from __future__ import annotations

import dataclasses
import struct
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from shardline.datasource.frontier import Frontier
from shardline.datasource.inspect.fsck import check_location
from shardline.datasource.shard.codec import Record, diff, encode_record
from shardline.datasource.shard.commands.readers import expire_critical, expire_leased, pin_critical
from shardline.datasource.shard.state import ShardState
from shardline.datasource.stores.entry import encode_entry, entry_key
from shardline.datasource.stores.shard_names import shard_directory
from support.models.shards import SETTINGS, World, schema_of, table

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardline.datasource.inspect.fsck import Finding, FsckReport
    from shardline.datasource.shard.batch import Batch, Part
    from shardline.datasource.stores.objects import Objects

__all__ = ["OTHER", "SHARD", "Lake"]

SHARD: Final = "orders"
OTHER: Final = "other"

_SETTINGS: Final = dataclasses.replace(
    SETTINGS, part_buffer_bytes=512, row_group_rows=8, inline_part_bytes=400, rollup_every=8
)
_HOUR_MS: Final = 3_600_000
_TOKEN: Final = b"\1" * 16


class Lake:
    """A location with two shards, in which everything is as it must be.

    `orders` has been collected and truncated, has rollups, a floor, a run of several parts, parts
    in the state, retractions, a durable and an anonymous writer, a lease, and a hold that pins an
    older state whose parts have been merged since.
    """

    def __init__(self, world: World) -> None:
        """The lake in the store of `world`, where it must have been made."""
        self.world = world
        self.client = world.client(_SETTINGS)

    @classmethod
    def filled(cls, world: World) -> Lake:
        """A lake, made in the empty store of `world`."""
        lake = cls(world)
        for name in (SHARD, OTHER):
            lake.client.create(name, schema_of(), key=["id"])
        lake._fill_other()
        lake._fill()
        return lake

    def _fill_other(self) -> None:
        for number in range(4):
            self.world.clock.advance(5)
            self.client.writer(OTHER, "elsewhere").append_now(some(number, 30), sequence=number)

    def _fill(self) -> None:
        client, clock = self.client, self.world.clock
        hold = client.hold(SHARD, "report", purpose="the monthly report")
        writer = client.writer(SHARD, "loader")
        for number in range(10):
            clock.advance(10)
            writer.append_now(some(number, 3 + 5 * (number % 4)))
        # History is let go, so that there is garbage, and a floor.
        hold.downgrade(client.state(SHARD).upper)
        client.compact(SHARD, force=True)
        for _ in range(2):
            client.collect_garbage(SHARD)
            clock.advance(2 * _HOUR_MS)
        for number in range(10, 14):
            writer.append_now(some(number, 12))
            clock.advance(10)
        hold = client.hold(SHARD, "report", purpose="the monthly report")
        self._pin(hold.epoch)
        hold.downgrade(Frontier((client.state(SHARD).upper.time or 1) - 1))
        client.compact(SHARD, force=True)
        client.reader(SHARD, purpose="somebody at a terminal")
        client.writer(SHARD).append_now(some(14, 2))
        writer.append_now(retracted(14))
        for number in range(15, 19):
            clock.advance(10)
            writer.append_now(some(number, 20))
        writer.append_now(some(19, 1))

    def expire_readers(self) -> None:
        """Let go of everything that is held."""
        machine = self.client.machine(SHARD)
        for reader in machine.state().leased:
            machine.apply(partial(expire_leased, reader=reader))
        machine.apply(partial(expire_critical, reader="report"))

    def _pin(self, epoch: str) -> None:
        machine = self.client.machine(SHARD)
        seqno = machine.state().seqno
        machine.apply(partial(pin_critical, reader="report", epoch=epoch, seqno=seqno))

    # --- looking ---------------------------------------------------------------------------------

    @property
    def objects(self) -> Objects:
        """The bare store."""
        return self.world.objects()

    @property
    def state(self) -> ShardState:
        """Of `orders`, as a fresh client reads it."""
        return self.world.client(_SETTINGS).machine(SHARD).state()

    def check(self, *, shard: str | None = None, deep: bool = True) -> FsckReport:
        return check_location(self.objects, self.world.clock, shard=shard, deep=deep)

    def findings(self, *, deep: bool = True) -> list[Finding]:
        report = self.check(deep=deep)
        return [*report.findings, *(f for shard in report.shards for f in shard.findings)]

    def batches(self) -> list[Batch]:
        return list(self.state.trace.batches)

    def part(self, number: int = 0) -> Part:
        """A part in a blob, the `number`-th."""
        return [p for b in self.batches() for p in b.parts if p.inline is None][number]

    def inline(self) -> Part:
        """A part in the state."""
        return next(p for b in self.batches() for p in b.parts if p.inline is not None)

    def held_part(self) -> str:
        """Key of a part that only the pinned state names."""
        live = {p.key for b in self.batches() for p in b.parts}
        return next(
            entry.key for entry in self.objects.entries(f"{SHARD}/part/") if entry.key not in live
        )

    # --- changing objects ------------------------------------------------------------------------

    def record_key(self, seqno: int, shard: str = SHARD) -> str:
        return entry_key(f"{shard}/log/", seqno)

    def get(self, key: str) -> bytes:
        data = self.objects.get(key)
        assert data is not None, key
        return data

    def delete(self, key: str) -> None:
        assert self.objects.delete(key), key

    def cut(self, key: str, count: int = 1) -> None:
        self.objects.put(key, self.get(key)[:-count])

    def flip(self, key: str, at: int) -> None:
        """Flip one bit of the byte at `at`, counted from the end if negative."""
        data = bytearray(self.get(key))
        data[at] ^= 4
        self.objects.put(key, bytes(data))

    def swap(self, one: str, two: str) -> None:
        first, second = self.get(one), self.get(two)
        self.objects.put(one, second)
        self.objects.put(two, first)

    # --- forging ---------------------------------------------------------------------------------

    def put_record(self, record: Record, at: int | None = None, shard: str = SHARD) -> None:
        """Store a record with a right checksum, at its own place or another one."""
        key = self.record_key(record.seqno if at is None else at, shard)
        self.objects.put(key, encode_entry(key, _TOKEN, encode_record(record)))

    def put_floor(self, number: int, value: int) -> None:
        key = entry_key(f"{SHARD}/floor/", number)
        self.objects.put(key, encode_entry(key, _TOKEN, struct.pack(">Q", value)))

    def forge(self, change: Callable[[ShardState], ShardState], shard: str = SHARD) -> ShardState:
        """Append a record that makes `change` of the state; the state it makes."""
        old = self.world.client(_SETTINGS).machine(shard).state()
        new = msgspec.structs.replace(
            change(old), seqno=old.seqno + 1, walltime_ms=old.walltime_ms + 1
        )
        record = Record(
            seqno=new.seqno,
            token="0" * 32,
            walltime_ms=new.walltime_ms,
            version=new.version,
            rollup=new.rollup,
            base=new.base,
            diff=diff(old, new),
        )
        self.put_record(record, shard=shard_directory(shard))
        return new

    def forge_state(self, **changes: Any) -> ShardState:
        return self.forge(lambda state: msgspec.structs.replace(state, **changes))

    def forge_trace(self, **changes: Any) -> ShardState:
        return self.forge(
            lambda state: msgspec.structs.replace(
                state, trace=msgspec.structs.replace(state.trace, **changes)
            )
        )

    def forge_part(self, part: Part, **changes: Any) -> None:
        """Describe `part` otherwise."""
        new = msgspec.structs.replace(part, **changes)
        batches = tuple(
            msgspec.structs.replace(
                batch,
                runs=tuple(
                    msgspec.structs.replace(
                        run, parts=tuple(new if p.key == part.key else p for p in run.parts)
                    )
                    for run in batch.runs
                ),
            )
            if any(p.key == part.key for p in batch.parts)
            else batch
            for batch in self.batches()
        )
        self.forge_trace(batches=batches)


def some(number: int, count: int) -> pa.Table:
    """Rows that compress badly enough to make blobs."""
    return table(*((j, f"{number} of {j * 7919 % 1000}" * 3) for j in range(count)))


def retracted(number: int) -> pa.Table:
    """The first row of `some(number, …)`, taken back."""
    rows = some(number, 1)
    return rows.append_column("_diff", pa.array([-1], pa.int64()))

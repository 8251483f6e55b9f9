"""Finds what is left in a store, and makes stores on which something happens in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

from typing_extensions import override

from support.models.shards import SETTINGS, Mortal, World, rows, schema_of, table

if TYPE_CHECKING:
    from collections import Counter

    from shardline.datasource.client import ShardClient
    from shardline.datasource.settings import ShardSettings
    from shardline.datasource.shard.state import ShardState
    from shardline.datasource.stores.objects import CreateOutcome, Objects

__all__ = [
    "BLOBS",
    "FOREIGN",
    "HOUR_MS",
    "LEAKS",
    "SHARD",
    "Overtaken",
    "contents",
    "filled",
    "litter",
    "log_seqnos",
    "named",
    "stored",
]

SHARD: Final = "orders"

BLOBS: Final = replace(SETTINGS, inline_part_bytes=0, compact_inline_bytes=0)
"""Every append is a blob of its own, and nobody merges unasked."""

HOUR_MS: Final = 3_600_000

LEAKS: Final = (
    f"{SHARD}/part/p0.parquet",
    f"{SHARD}/part/tjob/_temporary/0/task_1/part-00001.parquet",
    f"{SHARD}/part/tjob/part-00000-x.c000.zstd.parquet",
    f"{SHARD}/rollup/{900:016x}-abc",
)
"""A part, a Spark job's files, one of them in the middle of it, and a whole state not recorded."""

FOREIGN: Final = (f"{SHARD}/rollup/notes.txt", f"{SHARD}/notes/part", "other.txt")
"""What somebody else put there."""

T = TypeVar("T")


def filled(
    world: World, settings: ShardSettings = BLOBS, *, appends: int = 4, rows_each: int = 1
) -> ShardClient:
    """A client of a shard with so many appends, of rows `(number, x)`, `(number, y)` and so on."""
    client = world.client(settings)
    client.create(SHARD, schema_of())
    writer = client.writer(SHARD)
    for number in range(appends):
        writer.append_now(table(*((number, "xyz"[i]) for i in range(rows_each))))
    return client


def litter(world: World) -> None:
    """Leave everything that crashes leave, 5 bytes each, and what is foreign."""
    for key in (*LEAKS, *FOREIGN):
        world.objects().put(key, b"12345")


def stored(objects: Objects, *kinds: str) -> set[str]:
    """Keys of the shard's objects of these kinds: `part`, `rollup`, `log`, `floor`."""
    return {e.key for kind in kinds for e in objects.entries(f"{SHARD}/{kind}/")}


def log_seqnos(objects: Objects) -> list[int]:
    """Numbers of the records that are there."""
    return sorted(2**63 - 1 - int(key.rpartition("/")[2], 16) for key in stored(objects, "log"))


def named(*states: ShardState) -> set[str]:
    """Keys of the parts that the states name."""
    parts = (part for s in states for batch in s.trace.batches for part in batch.parts)
    return {part.key for part in parts if part.inline is None}


def contents(world: World) -> Counter[tuple[object, ...]]:
    """What a process that has seen nothing reads."""
    with world.client().reader(SHARD) as reader:
        return rows(reader.snapshot())


class Overtaken(Mortal):
    """A store on which something else happens, once, in the middle of a process's work.

    Args:
        act: What happens. Sets `act` again to have it happen again.
        at: Right before the operation of this number; None for never.
        create: Right before an object whose key contains this is created; empty for never.
    """

    def __init__(
        self, inner: Objects, act: Callable[[], None], at: int | None = None, create: str = ""
    ) -> None:
        super().__init__(inner)
        self.act: Callable[[], None] | None = act
        self._before, self._create = at, create

    def _meanwhile(self) -> None:
        if self.act is not None:
            act, self.act = self.act, None
            act()

    @override
    def _run(self, name: str, operation: Callable[[], T], unknown: Callable[[], T]) -> T:
        if self.count == self._before:
            self._meanwhile()
        return super()._run(name, operation, unknown)

    @override
    def create(self, key: str, value: bytes) -> CreateOutcome:
        if self._create and self._create in key:
            self._meanwhile()
        return super().create(key, value)

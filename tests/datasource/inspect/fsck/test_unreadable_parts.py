"""Fsck goes on past parts that their store does not give back, and shards that it may not read."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from typing_extensions import override

from shardline.datasource.errors import Determinate, InvalidUsage
from shardline.datasource.inspect.fsck import check_location
from shardline.datasource.stores.metered import Metered
from shardline.datasource.stores.shard_names import shard_directory
from shardline.datasource.transactions.rows import TRANSACTIONS
from support.faults.damage import SHARD
from support.models.shards import TINY, World, schema_of, table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardline.datasource.stores.location import BlobEntry
    from shardline.datasource.stores.objects import Objects


class Guarded(Metered):
    """A store that refuses to read parts, as a disk does after a restore by another user."""

    code = "ACCESS_DENIED"

    @override
    def open(
        self, key: str, size_bytes: int | None = None, via: Objects | None = None
    ) -> pa.NativeFile | None:
        if "/part/" in key:
            raise InvalidUsage(f"cannot open '{key}'", code=self.code, hint="check the owner")
        return super().open(key, size_bytes, via)


def write_parts(world: World, count: int) -> None:
    """Make the shard, with one row in each of so many parts."""
    client = world.client(replace(TINY, inline_part_bytes=0))
    client.create(SHARD, schema_of())
    for number in range(count):
        client.writer(SHARD).append_now(table((number, "a")))


def test_a_part_that_may_not_be_read_is_no_damage(world: World) -> None:
    """What there is nobody can say who may not look: no advice to write the shard anew."""
    write_parts(world, 1)
    store = Guarded(world.objects(), world.clock)
    with pytest.raises(InvalidUsage, match=r"ACCESS_DENIED.*check the owner"):
        check_location(store, world.clock, shard=SHARD, deep=True)
    report = check_location(store, world.clock, deep=True)
    assert [(one.code, one.subject) for one in report.findings] == [("SHARD_NOT_CHECKED", SHARD)]
    assert "check the owner" in report.findings[0].detail
    assert report.shards == ()


class Closed(Metered):
    """A store that does not list a directory, such as one that another user has restored."""

    directory = ""

    @override
    def entries(
        self, prefix: str, start_after: str = "", limit: int | None = None
    ) -> Iterator[BlobEntry]:
        if prefix.startswith(f"{self.directory}/"):
            raise InvalidUsage(f"cannot list '{prefix}'", code="ACCESS_DENIED", hint="chown")
        return super().entries(prefix, start_after, limit)


def test_a_directory_that_may_not_be_listed_does_not_end_the_check(world: World) -> None:
    """All others are checked: also by rows that are for it, and for those that are lost."""
    client = world.client(TINY)
    for name in (SHARD, "lost", "other"):
        client.create(name, schema_of())
    client.transactions().register(SHARD, "lost", "other")
    objects = world.objects()
    objects.delete_many([entry.key for entry in objects.entries("lost/")])
    store = Closed(objects, world.clock)

    def check() -> dict[str, list[tuple[str, str]]]:
        report = check_location(store, world.clock)
        found = {one.shard: [(f.code, f.subject) for f in one.findings] for one in report.shards}
        return found | {"": [(one.code, one.subject) for one in report.findings]}

    store.directory = SHARD
    missing = [("REGISTERED_SHARD_MISSING", "lost")]
    assert check() == {"": [("SHARD_NOT_CHECKED", SHARD)], TRANSACTIONS: missing, "other": []}
    store.directory = shard_directory(TRANSACTIONS)
    unknown = [("SHARD_NOT_CHECKED", name) for name in (TRANSACTIONS, SHARD, "other")]
    assert check() == {"": unknown, SHARD: [], "other": []}
    store.directory = "lost+found"
    objects.put("lost+found/x", b"x")
    assert check()[""] == [("FOREIGN_DIRECTORY", "lost+found")]


def test_parts_in_an_archive_are_findings(world: World) -> None:
    """A lifecycle rule has moved them: each is named, with what its store says to do."""
    write_parts(world, 2)
    store = Guarded(world.objects(), world.clock)
    store.code = "OBJECT_ARCHIVED"
    [checked] = check_location(store, world.clock, deep=True).shards
    assert [one.code for one in checked.findings] == ["PART_UNREADABLE"] * 2
    assert "check the owner" in checked.findings[0].detail


class Failing(Metered):
    """A disk on which reads of parts fail with errno `number`."""

    number = 0

    @override
    def open(
        self, key: str, size_bytes: int | None = None, via: Objects | None = None
    ) -> pa.NativeFile | None:
        return pa.PythonFile(self, "r") if "/part/" in key else super().open(key, size_bytes, via)

    closed = False

    def seek(self, *_: int) -> int:
        return 0

    def tell(self) -> int:
        return 0

    def read(self, _size: int = -1) -> bytes:
        raise OSError(self.number, os.strerror(self.number))

    def close(self) -> None:
        """Nothing is open."""


def test_a_part_that_a_disk_cannot_read_back_does_not_end_the_check(world: World) -> None:
    """All parts behind it are checked as well; what is no part's trouble is the store's error."""
    write_parts(world, 2)
    store = Failing(world.objects(), world.clock)
    store.number = errno.EIO
    [checked] = check_location(store, world.clock, deep=True).shards
    assert [one.code for one in checked.findings] == ["PART_UNREADABLE"] * 2
    assert "Input/output error" in checked.findings[0].detail
    store.number = errno.ESTALE
    with pytest.raises(Determinate, match=r"cannot read part 'orders/part/.*Stale file"):
        check_location(store, world.clock, deep=True)

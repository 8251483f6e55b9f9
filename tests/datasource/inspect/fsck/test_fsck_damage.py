"""Fsck finds every kind of damage, each under its own code, on memory and on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from shardline.datasource.errors import Corrupt
from shardline.datasource.inspect.fsck import KINDS, check_location
from shardline.datasource.stores.file import FileObjects
from shardline.datasource.stores.metered import Metered
from shardline.datasource.transactions.rows import TRANSACTIONS
from support.fakes.clock import SeededIds
from support.faults.damage import OTHER, SHARD, Lake
from support.faults.damaged_parts import DAMAGES
from support.faults.damages import commits_blob, part_of_a_transaction_that_waits
from support.models.shards import World
from support.profiles import some_of

if TYPE_CHECKING:
    from pathlib import Path

    import pyarrow as pa

    from shardline.datasource.stores.objects import Objects
    from support.faults.damages import Damage


@pytest.fixture(scope="module")
def healthy() -> Iterator[Lake]:
    """A lake to be copied: making one takes longer than looking at it."""
    world = World()
    yield Lake.filled(world)
    world.close()


@pytest.fixture(params=["memory", "disk"])
def lake(request: pytest.FixtureRequest, healthy: Lake, tmp_path: Path) -> Iterator[Lake]:
    """A copy to be damaged."""
    ids = SeededIds(1)

    def on_disk(_: World) -> Objects:
        return FileObjects(str(tmp_path), ids)

    world = World(objects=on_disk if request.param == "disk" else None)
    for entry in healthy.objects.entries(""):
        if request.param == "memory":
            world.objects().put(entry.key, healthy.get(entry.key))
        else:
            path = tmp_path / entry.key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(healthy.get(entry.key))
    world.clock.advance(healthy.world.clock.elapsed_ms())
    yield Lake(world)
    world.close()


def test_a_healthy_location_has_no_findings(healthy: Lake) -> None:
    """Everything was looked at, and nothing is wrong: what damages are compared with."""
    orders = healthy.check(shard=SHARD).shards[0]
    assert orders.findings == ()
    state = healthy.state
    assert (orders.shard, orders.seqno) == (SHARD, state.seqno)
    assert (orders.records, orders.rollups) == (state.seqno - 15, 3), "from the rollup at 16 on"
    blobs = list(healthy.objects.entries(f"{SHARD}/part/"))
    assert orders.parts > len(blobs), "those inside the state are parts, too"
    assert orders.size_bytes > sum(blob.size_bytes for blob in blobs)
    assert orders.unreferenced == 0
    assert healthy.findings() == []


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("lake", "case"),
    some_of(
        product(["memory", "disk"], DAMAGES),
        [*product(["memory"], DAMAGES), *product(["disk"], DAMAGES[::24])],
    ),
    ids=lambda one: getattr(one, "name", one),
    indirect=["lake"],
)
def test_every_kind_of_damage_is_found(lake: Lake, case: Damage) -> None:
    """Under its own codes and no other, with an object and a hint; rows only by a deep look."""
    case.plant(lake)
    found = lake.findings()
    assert {finding.code for finding in found} == case.codes
    for finding in found:
        assert finding.hint
        assert finding.subject
        assert finding.detail
    shallow = {finding.code for finding in lake.findings(deep=False)}
    assert shallow == (set() if case.deep else case.codes)


@pytest.mark.parametrize("deep", [True, False])
def test_a_shard_that_nobody_can_open_is_not_whole(lake: Lake, deep: bool) -> None:
    """Checked alone, and by a shallow look, which reads the rows that are not applied, too."""
    key = commits_blob(lake)
    lake.flip(key, 100)
    with pytest.raises(Corrupt, match=key):
        lake.world.client().reader(OTHER).snapshot()
    [alone] = lake.check(shard=OTHER, deep=deep).shards
    assert [(f.code, f.subject) for f in alone.findings] == [("TXNS_UNREADABLE", TRANSACTIONS)]
    shards = {shard.shard: shard.findings for shard in lake.check(deep=deep).shards}
    assert shards[OTHER] == alone.findings
    assert [f.code for f in shards[TRANSACTIONS]] == ["PART_CHECKSUM"] * deep
    assert shards[SHARD] == ()


class Collecting(Metered):
    """A store on which a part is merged and collected right before it is read."""

    def __init__(self, lake: Lake, key: str, shard: str) -> None:
        super().__init__(lake.objects, lake.world.clock)
        self._lake = lake
        self._key = key
        self._shard = shard

    @override
    def open(
        self, key: str, size_bytes: int | None = None, via: Objects | None = None
    ) -> pa.NativeFile | None:
        if key == self._key and self._lake.objects.get(key) is not None:
            client = self._lake.client
            if self._shard == OTHER:
                client.transactions().register(OTHER)  # applies what waits
            client.compact(self._shard, force=True)
            client.collect_garbage(self._shard)
        return super().open(key, size_bytes, via)


def committed_blob(lake: Lake, commit: Callable[[Lake], object]) -> str:
    """The blob of the other shard that `commit` leaves for somebody to apply."""
    before = {entry.key for entry in lake.objects.entries(f"{OTHER}/part/")}
    commit(lake)
    [key] = (e.key for e in lake.objects.entries(f"{OTHER}/part/") if e.key not in before)
    return key


def test_rows_are_read_again_if_their_parts_are_collected(lake: Lake) -> None:
    """What the transactions shard says now counts: a part that it has no more is no damage."""
    lost = committed_blob(lake, commits_blob)
    [key] = (entry.key for entry in lake.objects.entries("%5Ftransactions/part/"))
    lake.delete(lost)
    store = Collecting(lake, key, TRANSACTIONS)
    report = check_location(store, lake.world.clock, shard=OTHER, deep=False)
    assert lake.objects.get(key) is None
    assert [(f.code, f.subject) for f in report.shards[0].findings] == [("TXNS_PART_MISSING", lost)]


def test_a_part_that_is_applied_merged_and_collected_meanwhile_is_not_missing(lake: Lake) -> None:
    """Right before it is read: it was there when the row was, and the row has been applied."""
    key = committed_blob(lake, part_of_a_transaction_that_waits)
    report = check_location(Collecting(lake, key, OTHER), lake.world.clock, shard=OTHER)
    assert lake.objects.get(key) is None
    assert report.is_clean


def test_there_is_a_damage_for_every_code() -> None:
    """Whoever adds a code plants it here; the catch-all, and a refusal, are found elsewhere."""
    planted = {code for case in DAMAGES for code in case.codes}
    assert planted == set(KINDS) - {"STATE_INVARIANT", "SHARD_NOT_CHECKED"}
    assert len(DAMAGES) >= 60

"""The admin's verbs: plans that touch nothing, and deeds that do what the plan said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pytest

from shardline.app.admin.lifetime import Finalise, SetRetention
from shardline.app.admin.plans import (
    CompactPlan,
    ExpirePlan,
    FinalisePlan,
    GcPlan,
    Outcome,
    RetentionPlan,
    SweepPlan,
)
from shardline.app.admin.readers import ExpireReaders
from shardline.app.admin.sentences import describe_plan
from shardline.app.admin.upkeep import CollectGarbage, Compact, Sweep
from shardline.app.admin.verb import carry_out
from shardline.datasource.errors import InvalidUsage, LeaseExpired
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard.codec import CODE_VERSION
from shardline.datasource.shard.commands.orphan_sweep import write_barrier
from shardline.datasource.shard.commands.readers import pin_critical
from shardline.datasource.stores.metered import Metered
from support.faults.damage import Lake
from support.models.shards import SETTINGS, World, rows, schema_of, table

if TYPE_CHECKING:
    from shardline.datasource.client import ShardClient

_HOUR_MS = 3_600_000
SHARD = "orders"


def big(number: int) -> pa.Table:
    """Rows that make a blob."""
    return table(*((i, f"{number} of {i * 7919 % 1000}" * 9) for i in range(60)))


@pytest.fixture
def busy(world: World) -> ShardClient:
    """A shard of five parts, with a lease, a hold, garbage to come, and a leaked blob."""
    client = world.client(SETTINGS)
    client.create(SHARD, schema_of(), key=["id"])
    client.hold(SHARD, "report", purpose="the monthly report")
    writer = client.writer(SHARD, "loader")
    for number in range(5):
        world.clock.advance(10)
        writer.append_now(big(number))
    client.reader(SHARD, purpose="somebody", lease_ms=40 * _HOUR_MS)
    client.location.blob.set(f"{SHARD}/part/p{'0' * 32}.parquet", b"never appended")
    world.clock.advance(30 * _HOUR_MS)
    return client


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def lease_of(client: ShardClient) -> str:
    [name] = client.state(SHARD).leased
    return name


Act = Callable[["ShardClient", bool], "Outcome"]

EVERY: dict[str, Act] = {
    "expire-reader": lambda c, commit: carry_out(
        ExpireReaders(SHARD, ("report",)), c, commit=commit
    ),
    "compact": lambda c, commit: carry_out(Compact(SHARD, True), c, commit=commit),
    "gc": lambda c, commit: carry_out(CollectGarbage(SHARD), c, commit=commit),
    "sweep": lambda c, commit: carry_out(Sweep(SHARD), c, commit=commit),
    "sweep --orphans": lambda c, commit: carry_out(Sweep(None), c, commit=commit),
    "set-retention": lambda c, commit: carry_out(SetRetention(SHARD, 5), c, commit=commit),
    "finalise": lambda c, commit: carry_out(
        Finalise(SHARD, (*c.state(SHARD).leased, *c.state(SHARD).critical)), c, commit=commit
    ),
}
"""Every mutating verb, in a shard where it has something to do."""


def prepared(busy: ShardClient, verb: str) -> None:
    """Make sure that there is something to do for `verb`."""
    if verb == "gc":
        carry_out(ExpireReaders(SHARD, (lease_of(busy),)), busy, commit=True)
        busy.compact(SHARD, force=True)
    if verb == "sweep --orphans":
        busy.location.blob.set(f"lost/part/p{'0' * 32}.parquet", b"of a shard without a log")
        busy.clock.advance(30 * _HOUR_MS)  # type: ignore[attr-defined]


@pytest.mark.parametrize("verb", EVERY)
def test_a_dry_run_writes_nothing_and_a_commit_does(
    world: World, busy: ShardClient, verb: str
) -> None:
    """Seen by a store that counts: without `commit` no create, put or delete of anything."""
    prepared(busy, verb)
    writes = {"create", "put", "delete"}

    def written(commit: bool) -> set[str]:
        store = Metered(world.objects(), world.clock)
        outcome = EVERY[verb](world.client(SETTINGS, objects=store), commit)
        assert outcome.todo
        assert outcome.committed == commit
        assert bool(outcome.result) == commit
        return {one.operation for one in store.statistics().operations if one.calls} & writes

    before = {e.key: world.objects().get(e.key) for e in world.objects().entries("")}
    assert written(commit=False) == set()
    assert {e.key: world.objects().get(e.key) for e in world.objects().entries("")} == before
    assert written(commit=True) != set()
    assert EVERY["sweep --orphans"](busy, False).todo is False


@pytest.fixture(scope="module")
def newer() -> Iterator[Lake]:
    """Shards of which one is of newer code; nobody changes any of it."""
    world = World()
    lake = Lake.filled(world)
    lake.forge_state(version=(CODE_VERSION[0], CODE_VERSION[1] + 1))
    yield lake
    world.close()


@pytest.mark.parametrize("verb", [verb for verb in EVERY if verb != "sweep --orphans"])
@pytest.mark.parametrize("commit", [False, True])
def test_a_shard_of_newer_code_is_refused(newer: Lake, verb: str, commit: bool) -> None:
    """Also one minor version ahead, which can be read: and also by a dry run."""
    before = {e.key: newer.objects.get(e.key) for e in newer.objects.entries("")}
    with pytest.raises(InvalidUsage, match=r"NEWER_VERSION.*nothing was changed"):
        EVERY[verb](newer.world.client(SETTINGS), commit)
    assert {e.key: newer.objects.get(e.key) for e in newer.objects.entries("")} == before


# --- expire-reader -------------------------------------------------------------------------------


def test_expiring_says_what_it_frees_and_what_it_breaks(busy: ShardClient, world: World) -> None:
    """The lease keeps the parts from before the merge: without it they are garbage."""
    before = sum(part.size_bytes for b in busy.state(SHARD).trace.batches for part in b.parts)
    busy.compact(SHARD, force=True)
    name = lease_of(busy)
    outcome = carry_out(ExpireReaders(SHARD, (name,)), busy, commit=False)
    plan = outcome.plan
    assert isinstance(plan, ExpirePlan)
    [reader] = plan.readers
    assert (reader.kind, reader.owner, reader.overdue) == ("lease", "somebody", False)
    assert reader.silent_ms == 30 * _HOUR_MS
    assert "[LEASE_EXPIRED]" in reader.breaks
    assert plan.freed.size_bytes >= before, "the five parts, and the records before"
    assert plan.since_after == plan.since, "the hold still stands at the beginning"
    carry_out(ExpireReaders(SHARD, (name,)), busy, commit=True)
    assert carry_out(CollectGarbage(SHARD), busy, commit=False).todo
    assert busy.collect_garbage(SHARD) == 5
    assert name not in busy.state(SHARD).leased
    assert world.clock.now_ms() > 0


def test_since_can_move_only_if_somebody_is_left_to_move_it(busy: ShardClient) -> None:
    """Expiring everybody leaves it where it is; a policy moves it."""
    name = lease_of(busy)
    everybody = carry_out(ExpireReaders(SHARD, (name, "report")), busy, commit=False).plan
    assert isinstance(everybody, ExpirePlan)
    assert everybody.since_after is None
    busy.set_retention(SHARD, 25)
    with_policy = carry_out(ExpireReaders(SHARD, (name, "report")), busy, commit=False).plan
    assert isinstance(with_policy, ExpirePlan)
    upper = busy.state(SHARD).upper.time or 0
    assert with_policy.since_after == upper - 1 - 25


def test_an_expired_hold_gives_its_owner_the_error_that_was_named(busy: ShardClient) -> None:
    """The hold's owner and the lease's reader fail as the plan says."""
    hold = busy.hold(SHARD, "mine")
    reader = busy.reader(SHARD)
    names = ["mine", reader.lease.reader]
    plan = carry_out(ExpireReaders(SHARD, tuple(names)), busy, commit=True).plan
    assert isinstance(plan, ExpirePlan)
    said = {one.name: one.breaks for one in plan.readers}
    with pytest.raises(LeaseExpired) as lost_hold:
        hold.downgrade(Frontier(10))
    assert f"[{lost_hold.value.code}]" in said["mine"]
    with pytest.raises(LeaseExpired) as lost_lease:
        reader.snapshot()
    assert f"[{lost_lease.value.code}]" in said[reader.lease.reader]
    reader.close()


def test_a_pinned_hold_is_told_apart(busy: ShardClient) -> None:
    """In the middle of its first snapshot a query needs a new checkpoint."""
    hold = busy.hold(SHARD, "mine")
    machine = busy.machine(SHARD)
    seqno = machine.state().seqno
    machine.apply(partial(pin_critical, reader="mine", epoch=hold.epoch, seqno=seqno))
    plan = carry_out(ExpireReaders(SHARD, ("mine",)), busy, commit=False).plan
    assert isinstance(plan, ExpirePlan)
    assert plan.readers[0].seqno == seqno
    assert "[SEQNO_GONE]" in plan.readers[0].breaks


def test_a_reader_that_is_none_is_refused_with_the_nearest(busy: ShardClient) -> None:
    """Also beside one that is there: all or none."""
    with pytest.raises(InvalidUsage, match=r"READER_NOT_FOUND.*did you mean 'report'"):
        carry_out(ExpireReaders(SHARD, ("report", "reprot")), busy, commit=True)
    assert "report" in busy.state(SHARD).critical


# --- maintenance ---------------------------------------------------------------------------------


def test_a_forced_merge_leaves_one_batch(busy: ShardClient) -> None:
    """The plan names all of them, and the contents stay."""
    with busy.reader(SHARD) as reader:
        before = rows(reader.snapshot())
    plan = carry_out(Compact(SHARD, True), busy, commit=False).plan
    assert isinstance(plan, CompactPlan)
    [step] = plan.merges
    assert (step.batches, step.parts, step.rows) == (5, 5, 300)
    outcome = carry_out(Compact(SHARD, True), busy, commit=True)
    assert outcome.result == "1 merge; 1 batch now"
    with busy.reader(SHARD) as reader:
        assert rows(reader.snapshot()) == before
    assert not carry_out(Compact(SHARD, True), busy, commit=False).todo


def test_merges_that_are_due_are_planned_as_they_are_made(world: World) -> None:
    """A plan of merges that follow from each other has as many as are then applied."""
    client = world.client(replace(SETTINGS, compact_inline_bytes=0))
    client.create(SHARD, schema_of(), key=["id"])
    for number, count in enumerate([60] * 4 + [4] * 4 + [60] * 3 + [4] * 5):
        world.clock.advance(10)
        some = big(number).slice(0, count)
        client.writer(SHARD, "loader").append_now(some, sequence=number)
    lazy = world.client(replace(SETTINGS, compact_factor=4, compact_inline_bytes=0))
    plan = carry_out(Compact(SHARD, False), lazy, commit=False).plan
    assert isinstance(plan, CompactPlan)
    assert len(plan.merges) > 1
    merged = lazy.compact(SHARD)
    assert merged == len(plan.merges)


def test_garbage_is_what_collection_deletes(busy: ShardClient) -> None:
    """Held by the lease at first; then garbage; then gone."""
    busy.compact(SHARD, force=True)
    held = carry_out(CollectGarbage(SHARD), busy, commit=False)
    assert isinstance(held.plan, GcPlan)
    assert held.plan.held.count >= 5
    carry_out(ExpireReaders(SHARD, (lease_of(busy),)), busy, commit=True)
    outcome = carry_out(CollectGarbage(SHARD), busy, commit=True)
    assert isinstance(outcome.plan, GcPlan)
    assert outcome.plan.garbage.count >= 5
    assert outcome.result.startswith("deleted 5 blobs")


def test_a_sweep_takes_what_was_never_appended(busy: ShardClient) -> None:
    """Named in the plan by its key, and gone after the deed."""
    leaked = f"{SHARD}/part/p{'0' * 32}.parquet"
    plan = carry_out(Sweep(SHARD), busy, commit=False).plan
    assert isinstance(plan, SweepPlan)
    assert (plan.keys, plan.parts.count) == ((leaked,), 1)
    carry_out(Sweep(SHARD), busy, commit=True)
    assert busy.location.blob.get(leaked) is None
    assert not carry_out(Sweep(SHARD), busy, commit=False).todo


def test_sweep_says_that_it_lets_a_shard_be_written_again(world: World) -> None:
    """There is something to do then, though there is nothing to delete."""
    client = world.client(SETTINGS)
    client.create(SHARD, schema_of())
    ahead_ms = world.clock.now_ms() + 1000
    client.machine(SHARD).apply(partial(write_barrier, begun_before_ms=ahead_ms))
    found = carry_out(Sweep(SHARD), client, commit=False)
    assert found.todo
    assert isinstance(found.plan, SweepPlan)
    assert "can be written again" in describe_plan(found.plan)[-1]
    carry_out(Sweep(SHARD), client, commit=True)
    assert not carry_out(Sweep(SHARD), client, commit=False).todo


def test_sweep_says_nothing_of_the_kind_of_a_shard_that_was_dropped(world: World) -> None:
    """No part comes into it any more, and nothing would be done."""
    client = world.client(SETTINGS)
    client.create(SHARD, schema_of())
    ahead_ms = world.clock.now_ms() + 1000
    client.machine(SHARD).apply(partial(write_barrier, begun_before_ms=ahead_ms))
    client.drop(SHARD)
    assert not carry_out(Sweep(SHARD), client, commit=False).todo


# --- the shard -----------------------------------------------------------------------------------


def test_a_shard_that_is_read_is_not_dropped(busy: ShardClient) -> None:
    """The plan names who is in the way; named as `despite`, they are cut off."""
    name = lease_of(busy)
    plan = carry_out(Finalise(SHARD, ("report",)), busy, commit=False).plan
    assert isinstance(plan, FinalisePlan)
    assert (plan.in_the_way, plan.cut_off, plan.rows) == ((name,), ("report",), 300)
    with pytest.raises(InvalidUsage, match="SHARD_IN_USE"):
        carry_out(Finalise(SHARD, ("report",)), busy, commit=True)
    assert carry_out(Finalise(SHARD, ("report", name)), busy, commit=True).committed
    assert not busy.exists(SHARD)
    assert not carry_out(Finalise(SHARD, ()), busy, commit=False).todo


def test_a_policy_says_how_far_history_goes(busy: ShardClient) -> None:
    """Where readers hold more, it stays; without them it moves."""
    plan = carry_out(SetRetention(SHARD, 25), busy, commit=False).plan
    assert isinstance(plan, RetentionPlan)
    assert (plan.before_ms, plan.after_ms, plan.since, plan.since_after) == (None, 25, 0, 0)
    carry_out(ExpireReaders(SHARD, ("report", lease_of(busy))), busy, commit=True)
    plan = carry_out(SetRetention(SHARD, 25), busy, commit=True).plan
    assert isinstance(plan, RetentionPlan)
    assert plan.since_after == (busy.state(SHARD).upper.time or 0) - 26
    assert busy.state(SHARD).retain_ms == 25
    assert not carry_out(SetRetention(SHARD, 25), busy, commit=False).todo


@pytest.fixture
def registered(world: World) -> ShardClient:
    """Two shards that are written through transactions, and a leaked blob in one of them."""
    client = world.client(SETTINGS)
    for name in (SHARD, "lines"):
        client.create(name, schema_of(), key=["id"])
    with client.transaction() as transaction:
        transaction.append(SHARD, big(1))
        transaction.append("lines", big(2))
    client.location.blob.set(f"{SHARD}/part/p{'0' * 32}.parquet", b"never appended")
    world.clock.advance(30 * _HOUR_MS)
    return client


def test_a_sweep_of_a_registered_shard_is_planned_without_a_record(
    world: World, registered: ShardClient
) -> None:
    """To delete, it writes into the transactions shard first; to plan, it only looks."""
    before = {e.key: world.objects().get(e.key) for e in world.objects().entries("")}
    outcome = carry_out(Sweep(SHARD), registered, commit=False)
    assert {e.key: world.objects().get(e.key) for e in world.objects().entries("")} == before
    assert isinstance(outcome.plan, SweepPlan)
    assert outcome.plan.parts.count == 1
    assert carry_out(Sweep(SHARD), registered, commit=True).result.startswith("deleted 1 blob ")
    with registered.reader(SHARD) as reader:
        assert reader.snapshot().num_rows == 60


def test_a_registered_shard_is_not_dropped(registered: ShardClient) -> None:
    """The plan says by whom it has to be forgotten first; a transactions shard is its own."""
    txns = registered.transactions().name
    plan = carry_out(Finalise(SHARD, ()), registered, commit=False).plan
    assert isinstance(plan, FinalisePlan)
    assert plan.registered == txns
    with pytest.raises(InvalidUsage, match="SHARD_REGISTERED"):
        carry_out(Finalise(SHARD, ()), registered, commit=True)
    assert registered.exists(SHARD)
    own = carry_out(Finalise(txns, ()), registered, commit=False).plan
    assert isinstance(own, FinalisePlan)
    assert own.registered is None


def test_outcomes_survive_json(busy: ShardClient) -> None:
    """Programs read them by names that stay."""
    for act in EVERY.values():
        text = msgspec.json.encode(act(busy, False))
        said = msgspec.json.decode(text)
        assert set(said) == {
            "verb", "location", "shard", "todo", "committed", "result", "plan",
        }  # fmt: skip
        assert msgspec.json.decode(text, type=Outcome).plan is not None

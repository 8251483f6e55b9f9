"""Garbage collection: what goes, what stays, and that it may stop anywhere."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import msgspec
import pytest

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage, MissingBlob, ShardError
from shardline.datasource.inspect.fsck import check_location
from shardline.datasource.overwrite import overwrite
from shardline.datasource.shard.commands.garbage_collection import give_up_states, note_cleaned
from shardline.datasource.shard.commands.readers import pin_critical
from shardline.datasource.shard.commands.rollups import add_rollup, oldest_whole
from shardline.datasource.shard.state import RollupRef
from shardline.datasource.shard.state_history import state_at
from shardline.datasource.stores.faulty import Fault, Faulty
from support.faults.leftovers import (
    BLOBS,
    HOUR_MS,
    SHARD,
    Overtaken,
    contents,
    log_seqnos,
    named,
    stored,
)
from support.faults.leftovers import filled as grown
from support.models.shards import (
    SETTINGS,
    Crash,
    Effect,
    Mortal,
    World,
    dangling,
    schema_of,
    table,
)
from support.profiles import some_of
from support.strategies.commands import advance, first_state


def filled(world: World, rollup_every: int = 128, appends: int = 6) -> ShardClient:
    """Two rows in each append."""
    return grown(world, replace(BLOBS, rollup_every=rollup_every), appends=appends, rows_each=2)


def merged(client: ShardClient) -> None:
    assert client.compact(SHARD, force=True) == 1


def overwritten(client: ShardClient) -> None:
    """Replaced, so that what was there cancels in the next merge."""
    writer = client.writer(SHARD, "etl")
    staged = writer.stager().stage([table((9, "z"))])
    overwrite(writer, staged, sequence=100, attempt="t")
    assert client.compact(SHARD, force=True) == 1


def flushed(client: ShardClient) -> None:
    """Inline parts become a blob, and that one is merged away again."""
    small = replace(SETTINGS, inline_state_bytes=500, compact_inline_bytes=0)
    for number in range(3):
        inline = ShardClient(client.location, small, client.clock, client.ids)
        inline.writer(SHARD).append_now(table((number, "inline")))
    assert client.compact(SHARD, force=True) == 1


def dropped(client: ShardClient) -> None:
    client.drop(SHARD)


def made_again(client: ShardClient) -> None:
    client.drop(SHARD)
    client.create(SHARD, schema_of())


def written_again(client: ShardClient) -> None:
    made_again(client)
    client.writer(SHARD).append_now(table((1, "new")))


DEEDS = [merged, overwritten, flushed, dropped, written_again]


@pytest.mark.parametrize("rollup_every", [3, 128])
@pytest.mark.parametrize("deed", DEEDS)
def test_without_holds_only_the_newest_state_is_left(
    world: World, deed: Callable[[ShardClient], None], rollup_every: int
) -> None:
    """Its parts, one rollup to read it from, and the records after that; nothing else."""
    client = filled(world, rollup_every)
    deed(client)
    objects = world.objects()
    machine = world.client().machine(SHARD)
    needed = 0
    for _ in range(3):
        client.collect_garbage(SHARD)
        needed = needed or oldest_whole(machine.state())
        world.clock.advance(HOUR_MS)
    state = machine.state()
    assert stored(objects, "part") == named(state)
    assert dangling(machine) == []
    assert stored(objects, "rollup") == {ref.key for ref in state.rollups.values()}
    assert sum(seqno <= oldest_whole(state) for seqno in state.rollups) <= 1
    assert log_seqnos(objects) == list(range(log_seqnos(objects)[0], state.seqno + 1))
    assert log_seqnos(objects)[0] >= needed


def test_a_dropped_shard_leaves_one_record(world: World) -> None:
    """Its tombstone, so that late writers are told; no part, no rollup."""
    client = filled(world, rollup_every=3)
    client.drop(SHARD)
    world.clock.advance(HOUR_MS)
    client.drop(SHARD)
    objects = world.objects()
    assert stored(objects, "part") == stored(objects, "rollup") == set()
    assert len(stored(objects, "log")) == 1
    with pytest.raises(InvalidUsage, match="SHARD_DROPPED"):
        world.client().state(SHARD)


def test_a_collection_without_garbage_writes_nothing(world: World) -> None:
    """An idle shard is not kept busy by its collector."""
    client = filled(world)
    client.compact(SHARD, force=True)
    assert client.collect_garbage(SHARD) == 6
    before = client.machine(SHARD).state()
    assert [client.collect_garbage(SHARD) for _ in range(3)] == [0, 0, 0]
    assert client.machine(SHARD).state() == before


def test_staged_parts_are_not_garbage(world: World) -> None:
    """What is written and not appended yet is nobody's, and may be appended afterwards."""
    client = filled(world)
    writer = client.writer(SHARD)
    staged = writer.stager().stage([table((7, "late"))])
    client.compact(SHARD, force=True)
    client.collect_garbage(SHARD)
    writer.commit(staged)
    assert contents(world)[(7, "late")] == 1


# --- holds ---------------------------------------------------------------------------------------


def test_a_lease_keeps_every_state_from_its_seqno_on(world: World) -> None:
    """Whatever is merged and collected; once it lets go, only the newest state is left."""
    client = filled(world, rollup_every=3)
    with client.reader(SHARD) as reader:
        machine = client.machine(SHARD)
        seen = [machine.state()]
        for number in range(8):
            client.writer(SHARD).append_now(table((number, "z")))
            seen.append(machine.state())
            client.compact(SHARD, force=True)
            seen.append(machine.state())
            client.collect_garbage(SHARD)
            reader.lease.renew()
            world.clock.advance(HOUR_MS // 8)
        assert stored(world.objects(), "part") >= named(*seen)
        cold = world.client().machine(SHARD)
        assert [state_at(cold, state.seqno) for state in seen] == seen
        reader.lease.downgrade(reader.lease.since, seen[-2].seqno)
        client.collect_garbage(SHARD)
        assert stored(world.objects(), "part") == named(*seen[-2:])
    client.collect_garbage(SHARD)
    assert stored(world.objects(), "part") == named(machine.state())


def test_a_lease_that_is_over_keeps_nothing(world: World) -> None:
    """Also when nobody has committed since, so that the state still names it."""
    client = filled(world)
    client.reader(SHARD, lease_ms=1000)
    client.compact(SHARD, force=True)
    assert client.collect_garbage(SHARD) == 0
    world.clock.advance(1001)
    assert client.collect_garbage(SHARD) == 6


def test_a_hold_taken_while_a_collection_runs_keeps_what_it_found(world: World) -> None:
    """The collector asks the state again before it deletes: a pin that was first is respected."""
    client = filled(world)
    hold = client.hold(SHARD, "query:1")
    before = client.machine(SHARD).state()
    client.compact(SHARD, force=True)
    store = Faulty(world.objects(), clock=world.clock, ids=world.ids)
    original = store.create

    def create(key: str, value: bytes) -> object:
        pin = partial(pin_critical, reader="query:1", epoch=hold.epoch, seqno=before.seqno)
        world.client().machine(SHARD).apply(pin)
        return original(key, value)

    store.create = create  # type: ignore[method-assign,assignment]
    assert world.client(BLOBS, store).collect_garbage(SHARD) == 0
    assert dangling(world.client().machine(SHARD), before) == []


# --- rollups and the log -------------------------------------------------------------------------


def test_the_log_is_truncated_to_the_oldest_rollup_that_is_needed(world: World) -> None:
    """Two passes, a grace apart: the first announces how far, the second deletes."""
    client = filled(world, rollup_every=4, appends=30)
    newest = client.machine(SHARD).state()
    client.collect_garbage(SHARD)
    assert log_seqnos(world.objects())[0] == 1
    world.clock.advance(HOUR_MS)
    client.collect_garbage(SHARD)
    assert newest.rollup is not None
    assert log_seqnos(world.objects())[0] == newest.rollup[0]
    assert len(contents(world)) == 60


def test_a_rollup_that_comes_too_late_is_refused_and_deleted(world: World) -> None:
    """A process that stalled while writing one cannot bring an old state back."""
    client = filled(world, rollup_every=4, appends=20)
    old = state_at(client.machine(SHARD), 5)
    client.collect_garbage(SHARD)
    assert not client.machine(SHARD).write_rollup(old)
    state = client.machine(SHARD).state()
    assert stored(world.objects(), "rollup") == {ref.key for ref in state.rollups.values()}


def test_a_rollup_that_is_recorded_late_leaves_none_that_is_named_and_gone(world: World) -> None:
    """It makes the one before it needless: that is forgotten before it is deleted."""
    client = filled(world)
    machine = client.machine(SHARD)
    assert machine.write_rollup(machine.state())
    for number in (7, 8):
        client.writer(SHARD).append_now(table((number, "x")))
    slow = machine.state()
    client.writer(SHARD).append_now(table((9, "x")))
    merged(client)
    client.collect_garbage(SHARD)
    assert machine.write_rollup(slow)
    assert min(machine.state().rollups) < oldest_whole(machine.state()) == slow.seqno
    client.collect_garbage(SHARD)

    names = {ref.key for ref in client.state(SHARD).rollups.values()}
    assert stored(world.objects(), "rollup") == names
    (checked,) = check_location(world.objects(), world.clock, shard=SHARD).shards
    assert checked.findings == ()
    seqno = client.state(SHARD).seqno
    client.collect_garbage(SHARD)
    assert client.state(SHARD).seqno == seqno, "nothing is left to be noted"


def test_a_rollup_that_was_never_recorded_goes_away(world: World) -> None:
    """Its writer died in between; nobody can record it any more once it is older than needed."""
    client = filled(world, rollup_every=4, appends=20)
    orphan = f"{SHARD}/rollup/{3:016x}-abc"
    foreign = f"{SHARD}/rollup/notes.txt"
    for key in (orphan, foreign):
        world.objects().put(key, b"x")
    client.collect_garbage(SHARD)
    assert orphan not in stored(world.objects(), "rollup")
    assert foreign in stored(world.objects(), "rollup")


def test_a_hole_in_the_log_stops_the_collector(world: World) -> None:
    """What was dropped there is not known: nothing after it is deleted, and the error says so."""
    client = filled(world, appends=12)
    client.compact(SHARD, force=True)
    objects = world.objects()
    keys = sorted(stored(objects, "log"))[::-1]
    objects.delete(keys[5])
    with pytest.raises(MissingBlob, match=r"MISSING_STATE.*record 6"):
        client.collect_garbage(SHARD)
    assert dangling(client.machine(SHARD)) == []


# --- stopped anywhere ----------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("lasts", [None, 1], ids=["killed", "failed"])
@pytest.mark.parametrize(
    ("deed", "effect", "late"),
    some_of(
        [
            (deed, effect, effect == "late")
            for deed in (overwritten, made_again)
            for effect in ("none", "done", "late")
        ],
        [(overwritten, "late", True), (made_again, "none", False), (made_again, "done", False)],
    ),
)
def test_stopped_anywhere_the_next_collection_finishes(
    deed: Callable[[ShardClient], None], effect: Effect, late: bool, lasts: int | None
) -> None:
    """At every store operation, also when that one takes effect after the next collection."""
    for at in itertools.count():
        world = World()
        client = filled(world, rollup_every=4, appends=4)
        kept = client.machine(SHARD).state()
        if deed is overwritten:
            deed(client)
            held = client.reader(SHARD)
            client.compact(SHARD, force=True)
            kept = client.machine(SHARD).state()
            held.close()
        store = Mortal(world.objects(), at, effect, lasts=lasts)
        try:
            dying = world.client(replace(BLOBS, rollup_every=4), store)
            if deed is overwritten:
                dying.collect_garbage(SHARD)
            else:
                deed(dying)
        except (Crash, ShardError):
            assert store.failed
        if not late:
            store.deliver()
        if deed is not overwritten:
            world.client().drop(SHARD)
        second = world.client()
        second.collect_garbage(SHARD)
        store.deliver()
        second.collect_garbage(SHARD)
        state = world.client().machine(SHARD).state()
        if deed is overwritten:
            assert named(state) == named(kept)
        assert stored(world.objects(), "part") == named(state), store.failed
        assert dangling(world.client().machine(SHARD)) == []
        world.close()
        if not store.failed:
            assert at > 5
            return


def collected_twice(world: World) -> None:
    """By another process, with the log truncated in between."""
    rival = world.client()
    rival.collect_garbage(SHARD)
    world.clock.advance(HOUR_MS)
    rival.collect_garbage(SHARD)


@pytest.mark.slow
def test_two_collectors_side_by_side_are_harmless() -> None:
    """One overtakes the other at every store operation; nothing that is needed goes."""
    patient = replace(BLOBS, commit_timeout_ms=10 * HOUR_MS)
    for at in itertools.count():
        world = World()
        client = filled(world, rollup_every=4, appends=9)
        client.compact(SHARD, force=True)
        store = Overtaken(world.objects(), partial(collected_twice, world), at)
        world.client(patient, store).collect_garbage(SHARD)
        machine = world.client().machine(SHARD)
        assert stored(world.objects(), "part") == named(machine.state())
        assert dangling(machine) == []
        assert len(contents(world)) == 18
        world.close()
        if store.count <= at:
            assert at > 8
            return


def test_an_outage_while_deleting_is_told_and_made_up_for(world: World) -> None:
    """The marks do not move past what is not deleted."""
    client = filled(world)
    client.compact(SHARD, force=True)
    store = Faulty(world.objects(), clock=world.clock, ids=world.ids)
    store.fail("delete", *[Fault.BEFORE] * 50)
    with pytest.raises(ShardError):
        world.client(BLOBS, store).collect_garbage(SHARD)
    state = client.machine(SHARD).state()
    assert state.gc_seqno > state.cleaned_seqno == 0
    assert client.collect_garbage(SHARD) == 6


# --- the commands --------------------------------------------------------------------------------


def test_marks_move_forward_only_and_not_beyond_each_other() -> None:
    """States are given up as far as asked and no hold needs them; cleaned as far as given up."""
    state = msgspec.structs.replace(first_state(), seqno=10)
    state = advance(state, partial(note_cleaned, seqno=5), 1)
    assert state.cleaned_seqno == 0
    state = advance(state, partial(give_up_states, seqno=7), 1)
    state = advance(state, partial(note_cleaned, seqno=9), 1)
    assert (state.gc_seqno, state.cleaned_seqno) == (7, 7)
    assert give_up_states(state, 1, seqno=3).state is None
    assert note_cleaned(state, 1, seqno=3).state is None
    far = give_up_states(state, 1, seqno=99)
    assert far.result == state.seqno


def test_rollups_older_than_needed_are_forgotten() -> None:
    """The newest one at or before the cleaned seqno stays: all later states are made from it."""
    state = msgspec.structs.replace(first_state(), seqno=40)
    for seqno in (5, 12, 20, 33):
        add = partial(add_rollup, seqno=seqno, rollup=RollupRef(str(seqno), 1))
        state = advance(state, add, 1)
    state = advance(state, partial(give_up_states, seqno=21), 1)
    assert sorted(state.rollups) == [5, 12, 20, 33]
    state = advance(state, partial(note_cleaned, seqno=21), 1)
    assert sorted(state.rollups) == [20, 33]
    late = add_rollup(state, 1, seqno=19, rollup=RollupRef("19", 1))
    assert (late.state, late.result) == (None, False)

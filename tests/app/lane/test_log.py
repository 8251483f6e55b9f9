"""The durable order: on memory and on disk, with lost answers, rivals, and processes that die."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa
import pytest

from shardline.app.lane.commands import (
    LANE,
    CreateDataflow,
    DropDataflow,
    Opened,
    Submission,
    UpdateConfiguration,
)
from shardline.app.lane.holder import describe_process, find_follower
from shardline.app.lane.log import LANE_SHARD, LaneLog, read_lane
from shardline.app.lane.settings import LaneSettings
from shardline.app.lane.state import EMPTY_STATE, LaneState, apply
from shardline.app.protocol.objects import SourceDescription, SubscribeDescription
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import (
    Corrupt,
    Determinate,
    Fenced,
    Indeterminate,
    InvalidUsage,
    LeaseExpired,
)
from shardline.datasource.frontier import Frontier
from support.models.shards import Crash, Mortal, World
from support.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardline.app.lane.order_protocol import Takeover

SMALL = LaneSettings(snapshot_every=8, keep_records=10, lease_ms=10_000)


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def opened(
    world: World, name: str = "a", how: Takeover = "if-free", client: ShardClient | None = None
) -> LaneLog:
    holder = describe_process(name, world.clock, world.ids)
    return LaneLog.open(client or world.client(), holder, SMALL, how=how)


def make(log: LaneLog, number: int, producer: str = "storage") -> None:
    source = SourceDescription(name=f"s{number % 5}", format=f"f{number}")
    log.append([Submission(producer, number, CreateDataflow(description=source))])


def test_what_was_appended_is_read_by_whoever_comes_next(world: World) -> None:
    """Positions are gap-free from 0, and another process folds the same state."""
    log = opened(world)
    for number in range(1, 6):
        make(log, number)
    state, records = read_lane(world.client())
    assert [r.index for r in records] == list(range(6))
    assert isinstance(records[0].command, Opened)
    assert [(r.producer, r.sequence) for r in records[1:]] == [("storage", n) for n in range(1, 6)]
    assert state == log.state
    folded = EMPTY_STATE
    for record in records:
        folded = apply(folded, record)
    assert folded == state


def test_a_group_is_one_append(world: World) -> None:
    """Many commands at once get consecutive positions by one append, and the merge it makes due."""
    log = opened(world)
    before = world.client().state(LANE_SHARD).seqno
    log.append([Submission("p", n, DropDataflow(f"o{n}")) for n in range(1, 50)])
    assert world.client().state(LANE_SHARD).seqno <= before + 2
    assert [log.position("p", n) for n in (1, 49)] == [1, 49]


def test_a_repeated_number_has_no_effect(world: World) -> None:
    """The first of two commands with one number counts, in one group and across restarts."""
    log = opened(world)
    one, two = UpdateConfiguration({"k": "1"}), UpdateConfiguration({"k": "2"})
    log.append([Submission("p", 7, one), Submission("p", 7, two)])
    log.close()
    again = opened(world, "b")
    again.append([Submission("p", 7, two)])
    assert again.state.settings == {"k": "1"}
    assert again.position("p", 7) == 1


def test_the_past_is_bounded(world: World) -> None:
    """Old rows are taken back, a state stays, and reading gives what the whole order gives."""
    log = opened(world)
    whole = {r.index: r for r in log.records()}
    for number in range(1, 101):
        make(log, number)
        whole |= {r.index: r for r in log.records()}
    state, records = read_lane(world.client())
    assert len(records) <= SMALL.keep_records + SMALL.snapshot_every
    with world.client().reader(LANE_SHARD) as reader:
        kinds = reader.snapshot().column("kind").to_pylist()
    assert kinds.count("snapshot") == 1
    folded = EMPTY_STATE
    for _, record in sorted(whole.items()):
        # A recorded state has a position, and changes nothing.
        folded = apply(_at(folded, record.index), record)
    assert _at(folded, state.next_index) == state == log.state


def _at(state: LaneState, index: int) -> LaneState:
    return msgspec.structs.replace(state, next_index=index)


def test_a_holder_that_lives_is_not_replaced(world: World) -> None:
    """The second one is told who holds the lane, where, and how to take over."""
    opened(world, "nightly")
    with pytest.raises(InvalidUsage, match="LOCATION_HELD") as refused:
        opened(world, "other")
    assert f"'nightly' on {os.uname().nodename}, process {os.getpid()}" in str(refused.value)
    hint = refused.value.hint
    assert "--take-over" in hint
    # `run` in the folder of one that runs asks that one, and comes here if it cannot.
    assert "earlier version" in hint


def test_a_holder_that_let_go_is_replaced_at_once(world: World) -> None:
    """After `close` nobody has to wait for a lease."""
    opened(world, "a").close()
    assert opened(world, "b").state.epoch == 2


def test_a_silent_holder_is_replaced_after_its_lease(world: World) -> None:
    """No heartbeat for longer than the lease is taken for death; the same minute is not."""
    opened(world, "a")
    world.clock.advance(SMALL.lease_ms - 1)
    with pytest.raises(InvalidUsage, match="LOCATION_HELD"):
        opened(world, "b")
    world.clock.advance(2)
    assert opened(world, "b").state.epoch == 2


def test_a_take_over_fences(world: World) -> None:
    """The former holder can neither append nor pass the fence, and adds nothing."""
    first = opened(world, "a")
    make(first, 1)
    first.check_fence()
    second = opened(world, "b", "by-force")
    told = r"RUNTIME_FENCED.* taken over \S+: the upper of its lane is \["
    with pytest.raises(Fenced, match=told):
        first.check_fence()
    with pytest.raises(Fenced, match="RUNTIME_FENCED"):
        make(first, 2)
    make(second, 3)
    second.check_fence()
    assert [r.producer for r in read_lane(world.client())[1]] == [LANE, "storage", LANE, "storage"]


def test_a_fence_is_found_by_an_append_alone(world: World) -> None:
    """Without any look before, the append of a fenced holder is refused."""
    first = opened(world, "a")
    opened(world, "b", "by-force")
    with pytest.raises(Fenced):
        make(first, 1)


def test_a_follower_sees_and_takes_over(world: World) -> None:
    """A follower folds what the holder adds, and its take-over keeps its epochs unique."""
    first = opened(world, "a")
    follower = LaneLog(world.client(), describe_process("b", world.clock, world.ids), SMALL)
    for number in range(1, 40):
        make(first, number)
    follower.poll()
    assert follower.state == first.state
    follower.check_fence()
    follower.take_over("by-force", {"s0": 40})
    assert follower.state.objects["s0"].epoch == 41
    with pytest.raises(Fenced):
        make(first, 41)


def followers(world: World) -> list[str]:
    """Those that others see by the lane's shard."""
    leased = world.client().state(LANE_SHARD).leased.values()
    return [name for one in leased if (name := find_follower(one.purpose)) is not None]


def test_a_follower_is_seen_while_it_follows(world: World) -> None:
    """From its first poll on; by one lease, until it takes over or ends; a lost one comes again."""
    opened(world, "a")
    made = [
        LaneLog(world.client(), describe_process(name, world.clock, world.ids), SMALL)
        for name in "bc"
    ]
    assert followers(world) == []
    for _ in range(3):
        for follower in made:
            follower.poll()
    names = sorted(followers(world))
    assert [name.split()[0] for name in names] == ["b", "c"]
    assert all(name.endswith(f", process {os.getpid()}") for name in names)
    ends, takes = made
    heartbeat = ends._heartbeat
    assert heartbeat is not None
    ends.close()
    ends.poll()
    assert len(followers(world)) == 1, "what comes after its end does not show it again"
    heartbeat = takes._heartbeat
    assert heartbeat is not None
    heartbeat._renewer.lost = LeaseExpired("gone")
    takes.poll()
    assert takes._heartbeat is not heartbeat
    takes.take_over("by-force", {})
    takes.append([])
    assert len([name for name in followers(world) if name.startswith("c")]) == 1, "the lost one"
    assert takes.role == "holder"


def test_a_follower_follows_unseen_if_it_must(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that lets it read and nothing else."""

    def refuse(*_: object, **__: object) -> None:
        raise Determinate("not allowed")

    first = opened(world, "a")
    follower = LaneLog(world.client(), describe_process("b", world.clock, world.ids), SMALL)
    make(first, 1)
    monkeypatch.setattr("shardline.app.lane.log.HolderHeartbeat", refuse)
    follower.poll()
    assert follower.state == first.state
    assert followers(world) == []


def test_a_lost_lease_is_taken_again(world: World) -> None:
    """A holder whose lease went says anew that it lives, and is not replaced."""
    log = opened(world, "a")
    heartbeat = log._heartbeat
    assert heartbeat is not None
    world.clock.advance(SMALL.lease_ms + 1)
    make(log, 1)
    with pytest.raises(LeaseExpired, match="gone") as gone:
        heartbeat.beat()
    # The thread of the heartbeats waits by the real clock, so it is said in its place.
    heartbeat._renewer.lost = gone.value
    log.renew_lease()
    with pytest.raises(InvalidUsage, match="LOCATION_HELD"):
        opened(world, "b")


def test_heartbeats_let_the_past_go(world: World) -> None:
    """A beat moves the lane's hold along: what was taken back can be compacted and collected."""
    log = opened(world, "a")
    for number in range(1, 50):
        make(log, number)
    heartbeat = log._heartbeat
    assert heartbeat is not None
    heartbeat.beat()
    state = world.client().state(LANE_SHARD)
    (reader,) = state.leased.values()
    assert reader.since == log.state.next_index - 1
    assert state.since.time == reader.since


@pytest.mark.parametrize("effect", ["none", "done"])
@pytest.mark.parametrize(
    "lasts", [1, *(pytest.param(n, marks=pytest.mark.exhaustive) for n in (30, 300))]
)
def test_lost_answers_lose_and_repeat_nothing(effect: str, lasts: int) -> None:
    """Wherever the store stops answering: each number is in the order at most once, as it was."""
    for at in range(0, 24, 3):
        world = World()
        log = opened(world)
        store = Mortal(world.objects(), None, effect, lasts=lasts)  # type: ignore[arg-type]
        log.close()
        flaky = opened(world, "b", client=world.client(objects=store))
        store._at = store.count + at
        told: list[int] = []
        for number in range(1, 20):
            try:
                make(flaky, number)
            except (Determinate, Indeterminate):
                continue
            told.append(number)
        world.clock.advance(1_000_000)
        while True:
            try:
                make(flaky, 20)
                break
            except (Determinate, Indeterminate):
                world.clock.advance(1_000)
        state, records = read_lane(world.client())
        numbers = [r.sequence for r in records if r.producer == "storage"]
        assert sorted(set(numbers)) == numbers
        kept = [n for n in told if n >= numbers[0]]
        assert set(kept) <= set(numbers), (at, told, numbers)
        assert state == flaky.state
        world.close()


@pytest.mark.exhaustive
def test_a_crash_at_any_moment_leaves_an_order(world: World) -> None:
    """Killed at any request: the next runtime opens, and what was acknowledged is there."""
    for at in range(0, 60, 2):
        world = World()
        opened(world).close()
        store = Mortal(world.objects(), at)
        told = 0
        try:
            log = opened(world, "b", client=world.client(objects=store))
            for number in range(1, 20):
                make(log, number)
                told = number
        except Crash:
            pass
        next_one = opened(world, "c", "by-force")
        assert next_one.state.producers.get("storage", 0) >= told
        assert read_lane(world.client())[0] == next_one.state
        world.close()


# -- what can be read -----------------------------------------------------------------------------

ENDLESS = SubscribeDescription(name="t0", on="flights", up_to=2**64 - 1)


def write_row(log: LaneLog, world: World, command: object) -> None:
    """Add a row to the order as no runtime of this version would."""
    index = log.state.next_index
    written = {
        "index": [index],
        "producer": ["compute"],
        "sequence": [1],
        "epoch": [1],
        "at_ms": [0],
        "kind": ["create_dataflow"],
        "command": [json.dumps(command)],
        "_ts": [index],
        "_diff": [1],
    }
    world.client().writer(LANE_SHARD).compare_and_append(
        pa.table(written), Frontier(index), Frontier(index + 1)
    )


def test_what_could_not_be_read_again_is_not_recorded(world: World) -> None:
    """Nothing of its append is durable: the order goes on, and the next runtime opens."""
    log = opened(world)
    fine = Submission("storage", 1, DropDataflow("a"))
    creation = CreateDataflow(description=ENDLESS, as_of=5)
    with pytest.raises(InvalidUsage, match=r"NOT_RECORDABLE.*create_dataflow.*up_to"):
        log.append([fine, Submission("compute", 1, creation)])
    assert read_lane(world.client())[0] == log.state
    make(log, 1)
    log.close()
    assert opened(world, "b").state.producers["storage"] == 1


def test_an_end_later_than_any_time_is_read_as_none(world: World) -> None:
    """Former versions have recorded such ends, and did not start again."""
    log = opened(world)
    description = {"type": "subscribe", "name": "t0", "on": "flights", "up_to": 2**64 - 1}
    command = {"type": "create_dataflow", "description": description, "as_of": 5}
    write_row(log, world, command)
    (made,) = [r.command for r in read_lane(world.client())[1] if r.producer == "compute"]
    assert isinstance(made, CreateDataflow)
    assert made.description == SubscribeDescription(name="t0", on="flights", up_to=2**63 - 1)
    # It was of the runtime that is gone.
    assert opened(world, "b", "by-force").state.objects["t0"].life == "dropping"


def test_a_record_that_cannot_be_read_is_named(world: World) -> None:
    """By its position, what it is, and whose."""
    write_row(opened(world), world, {"type": "make_coffee"})
    with pytest.raises(Corrupt, match=r"LANE_RECORD.* 1 .*'create_dataflow' of compute.*coffee"):
        read_lane(world.client())
    with pytest.raises(Corrupt, match="newer version"):
        opened(world, "b", "by-force")


def test_a_lane_that_is_taken_is_not_reported_as_not_taken() -> None:
    """Both runtimes would be down: the former one is fenced. At each moment of an outage."""
    taken = 0
    for at in range(40):
        world = World()
        opened(world)
        store = Mortal(world.objects(), at, "none", lasts=1_000)
        with suppress(Determinate, Indeterminate):
            log = opened(world, "b", "by-force", world.client(objects=store))
            assert log.role == "holder"
            taken += 1
            log.close()
            continue
        holder = read_lane(world.client())[0].holder
        assert holder is not None
        assert holder.application == "a", at
        world.close()
    assert taken


# -- processes -----------------------------------------------------------------------------------


def worker(url: str, name: str, count: int, how: Takeover = "if-free") -> subprocess.Popen[str]:
    asked = json.dumps({"url": url, "name": name, "how": how, "count": count})
    return subprocess.Popen(
        [sys.executable, "-m", "support.processes.lane_worker", asked],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])},
    )


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.process
def test_the_death_of_a_holder_is_noticed_at_once(tmp_path: Path) -> None:
    """A holder of this machine that is killed is replaced without waiting for its lease."""
    url = str(tmp_path / "shards")
    victim = worker(url, "victim", -1)
    assert line(victim) == "held"
    client = ShardClient.open(url)
    heir = describe_process("heir", client.clock, client.ids)
    with pytest.raises(InvalidUsage, match=f"process {victim.pid}"):
        LaneLog.open(client, heir)
    victim.send_signal(signal.SIGKILL)
    # Not waited for yet: a zombie holds nothing.
    assert line(victim) == ""
    log = LaneLog.open(client, heir)
    assert log.state.epoch == 2
    log.close()
    victim.wait()
    assert victim.stdout is not None
    victim.stdout.close()


@pytest.mark.process
def test_of_two_processes_one_holds_the_lane(tmp_path: Path) -> None:
    """Two that start at once: one gets it, or both one after the other by force; never both."""
    url = str(tmp_path / "shards")
    ShardClient.open(url)
    racers = [worker(url, f"racer{i}", 30, "by-force") for i in range(2)]
    said = [racer.communicate()[0].split() for racer in racers]
    state, records = read_lane(ShardClient.open(url))
    assert all(words[0] == "held" for words in said)
    positions = [int(word) for words in said for word in words if word.isdigit()]
    assert len(positions) == len(set(positions))
    by_place = {r.index: r.producer for r in records}
    for i, words in enumerate(said):
        assert all(by_place[int(w)] == f"racer{i}" for w in words if w.isdigit())
    assert state.epoch == 2
    # After the second `Opened` there is nothing of the first one.
    last = max(r.index for r in records if isinstance(r.command, Opened))
    assert len({r.producer for r in records if r.index > last}) <= 1

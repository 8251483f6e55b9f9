"""A follower is read as far as its leader is, and shows the same at each time, for ever."""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.followers import follow, may_lag
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard.machine import Machine
from shardline.datasource.state import Appended, is_tombstone
from support.fakes.engine import Checkpoint, Query, options_of
from support.models.shards import World, rows, schema_of, table, updates

if TYPE_CHECKING:
    from shardline.datasource.client import ShardClient
    from shardline.datasource.shard.state import ShardState
    from shardline.datasource.write import WriteHandle

FOLLOWER, LEADER = "notes", "pages"


class Writer:
    """The one writer of both shards, which appends to the follower first."""

    def __init__(self, client: ShardClient) -> None:
        """Make both shards, where they are not there, and settle the follower's upper at 1."""
        for name in (FOLLOWER, LEADER):
            client.create(name, schema_of(), times_by="a test")
        follow(client, FOLLOWER, LEADER)
        self.leader = client.writer(LEADER)
        self.follower = self._handle(client)

    def _handle(self, client: ShardClient) -> WriteHandle:
        handle = client.writer(FOLLOWER)
        handle.writes_leader = True
        return handle

    def move(self, upper: int) -> None:
        """Move the leader alone."""
        outcome = self.leader.compare_and_append(None, self.leader.upper(), Frontier(upper))
        assert isinstance(outcome, Appended)

    def note(self, at: int, text: str) -> None:
        """A row of the follower at a time that the leader has not passed."""
        row = updates((at, text, at, 1))
        self.follower.compare_and_append(row, self.follower.upper(), Frontier(at + 1))


@pytest.fixture
def client(world: World) -> ShardClient:
    return world.client()


@pytest.fixture
def writer(client: ShardClient) -> Writer:
    return Writer(client)


def test_readers_go_by_the_leader(world: World, client: ShardClient, writer: Writer) -> None:
    """Of a client that has seen neither, and of one that has; the shard itself stays as it was."""
    writer.note(1, "a")
    writer.move(10)
    own = client.state(FOLLOWER)
    assert own.upper == Frontier(2)
    for reader in (client, world.client()):
        assert [state.upper for state in reader.readable(FOLLOWER, LEADER)] == [Frontier(10)] * 2
        with reader.reader(FOLLOWER) as handle:
            assert rows(handle.snapshot(9)) == rows(table((1, "a")))
            assert rows(handle.snapshot()) == rows(table((1, "a")))
    writer.move(12)
    assert reader.readable(FOLLOWER)[0].upper == Frontier(12)
    assert client.state(FOLLOWER).upper == own.upper
    writer.note(12, "b")
    assert client.readable(FOLLOWER)[0].upper == Frontier(13), "ahead of its leader by itself"


def test_a_stream_of_a_follower_comes_along_and_loses_nothing(
    world: World, client: ShardClient, writer: Writer
) -> None:
    """Its frontier is that of the leader, also for the run that goes on after a restart."""
    checkpoint = Checkpoint()
    options = options_of(shards=f"{FOLLOWER},{LEADER}")
    writer.note(1, "a")
    writer.move(5)
    Query(world.client(), checkpoint, options).drain()
    assert checkpoint.frontier() == 5
    writer.note(7, "b")
    writer.move(20)
    Query(world.client(), checkpoint, options).drain()
    assert checkpoint.frontier() == 20
    assert client.state(FOLLOWER).upper == Frontier(8)
    found = [row for batch in checkpoint.sink.values() for row in batch]
    assert len(found) == 2, found


def test_nobody_else_appends_to_a_follower(client: ShardClient, writer: Writer) -> None:
    """They would have to know the leader's upper to choose a time, and it moves meanwhile."""
    foreign = client.writer(FOLLOWER)
    for attempt in (
        lambda: foreign.append_now(table((1, "x"))),
        lambda: foreign.compare_and_append(None, Frontier(0), Frontier(5)),
        lambda: client.transactions().register(FOLLOWER),
    ):
        with pytest.raises(InvalidUsage, match=r"SHARD_FOLLOWS.*'notes' follows 'pages'"):
            attempt()
    writer.note(1, "a")
    assert client.state(FOLLOWER).upper == Frontier(2)


def test_a_registered_shard_follows_nobody(client: ShardClient) -> None:
    """It has the upper of its transactions shard."""
    for name in (FOLLOWER, LEADER):
        client.create(name, schema_of())
    client.transactions().register(FOLLOWER)
    follow(client, FOLLOWER, LEADER)
    assert client.state(FOLLOWER).leader is None
    assert not may_lag(client, FOLLOWER, LEADER)


def test_a_leaders_own_upper_counts(client: ShardClient, writer: Writer) -> None:
    """That of its transactions shard moves without the writer of both."""
    writer.move(3)
    client.transactions().register(LEADER)
    client.transactions().advance(50)
    follower, leader = client.readable(FOLLOWER, LEADER)
    assert leader.upper > follower.upper == client.state(LEADER).upper


def test_what_takes_the_leaders_name_leads_nobody(client: ShardClient, writer: Writer) -> None:
    """Neither does a leader that is gone: nobody says more of the follower than it does itself."""
    writer.note(1, "a")
    writer.move(10)
    client.drop(LEADER)
    assert client.readable(FOLLOWER)[0].upper == Frontier(2)
    client.create(LEADER, schema_of())
    client.writer(LEADER).compare_and_append(None, Frontier(0), Frontier(30))
    assert client.readable(FOLLOWER)[0].upper == Frontier(2)
    follow(client, FOLLOWER, LEADER)
    assert client.readable(FOLLOWER)[0].upper == Frontier(30)


@pytest.mark.parametrize("is_known", [False, True])
@pytest.mark.parametrize("look", range(4))
def test_what_is_shown_of_a_time_stays(
    world: World, writer: Writer, monkeypatch: pytest.MonkeyPatch, look: int, is_known: bool
) -> None:
    """The writer adds a row and moves on between any two looks of a reader at the store."""
    writer.move(5)
    reader = world.client()
    if is_known:
        reader.readable(FOLLOWER, LEADER)
    looks = [0]
    given = Machine.refresh

    def refresh(machine: Machine) -> ShardState | None:
        mine = reader.machine(machine.name) is machine
        if mine and looks[0] == look:
            looks[0] += 1
            writer.note(5, "late")
            writer.move(9)
        looks[0] += mine
        return given(machine)

    with monkeypatch.context() as patched:
        patched.setattr(Machine, "refresh", refresh)
        [state] = reader.readable(FOLLOWER)
    has_row = any(not batch.is_empty for batch in state.trace.batches)
    assert has_row or not state.upper.is_beyond(5), "a time was shown without its row"


def test_history_is_let_go_beyond_the_upper_that_a_follower_has_by_itself(
    client: ShardClient, writer: Writer
) -> None:
    """What comes later is at its own time; what was there is compacted, and stays readable."""
    for at in (1, 2, 3):
        writer.note(at, "a")
    client.set_retention(FOLLOWER, None)
    hold = client.hold(FOLLOWER, "sink", since=0)
    writer.move(20)
    hold.downgrade(Frontier(15))
    assert client.state(FOLLOWER).since > client.state(FOLLOWER).upper
    client.compact(FOLLOWER, force=True)
    with client.reader(FOLLOWER) as handle:
        assert rows(handle.snapshot(15)) == rows(table((1, "a"), (2, "a"), (3, "a")))
        writer.note(22, "b")
        writer.move(30)
        assert rows(handle.snapshot(21)) == rows(table((1, "a"), (2, "a"), (3, "a")))
        assert (22, "b") in rows(handle.snapshot(22))
        (step,) = handle.listen(20, until=Frontier(30))
        assert rows(step.updates.select(["id", "v"])) == rows(table((22, "b")))
    client.compact(FOLLOWER, force=True)
    with client.reader(FOLLOWER) as handle:
        assert handle.snapshot(29).num_rows == 4


def test_a_leader_is_looked_at_once_for_itself_and_its_follower(
    client: ShardClient, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step of a view asks for both."""
    writer.move(5)
    looks: list[str] = []
    given = Machine.refresh

    def refresh(machine: Machine) -> ShardState | None:
        if machine is client.machine(machine.name):
            looks.append(machine.name)
        return given(machine)

    monkeypatch.setattr(Machine, "refresh", refresh)
    assert [one.upper for one in client.readable(LEADER, FOLLOWER)] == [Frontier(5)] * 2
    assert looks == [LEADER, FOLLOWER]


def test_an_earlier_state_is_no_further_than_it_was_seen(
    client: ShardClient, writer: Writer
) -> None:
    """A state that a plan is pinned to has the upper that was seen with it or a later one."""
    views = client.shard_views
    writer.note(1, "a")
    before = client.state(FOLLOWER)
    assert views.extended_to_known_upper(before).upper == Frontier(2), "nothing is known yet"
    writer.move(10)
    client.readable(FOLLOWER)
    assert views.extended_to_known_upper(before).upper == Frontier(10)
    writer.note(12, "b")
    writer.move(20)
    client.readable(FOLLOWER)
    assert views.extended_to_known_upper(before).upper == Frontier(2), "it lacks what came at 12"


def test_one_look_shows_what_is_known_of_the_leader(
    world: World, client: ShardClient, writer: Writer
) -> None:
    """The leader's state is of before the look, so it is never too far for the follower's."""
    reader = world.client()
    assert reader.look("nothing") is None
    writer.move(4)
    reader.readable(FOLLOWER)
    writer.note(4, "a")
    writer.move(9)
    state = reader.look(FOLLOWER)
    assert state is not None
    assert (state.upper, state.trace.inline_bytes > 0) == (Frontier(5), True)
    reader.readable(LEADER)
    state = reader.look(FOLLOWER)
    assert state is not None
    assert state.upper == Frontier(9)
    client.drop(FOLLOWER)
    state = reader.look(FOLLOWER)
    assert state is not None
    assert is_tombstone(state)


STEPS = ("note", "move", "move", "hold", "compact", "collect", "read", "stream")


def check_a_time(client: ShardClient, chance: random.Random, said: list[tuple[int, str]]) -> None:
    """Read the follower at a time that is settled now, and compare with what was said by then."""
    [state] = client.readable(FOLLOWER)
    upper, since = state.upper.time or 0, state.since.time or 0
    if since < upper:
        time = chance.randint(since, upper - 1)
        with client.reader(FOLLOWER, since=time) as handle:
            found = rows(handle.snapshot(time))
        assert found == Counter(one for one in said if one[0] <= time)


@pytest.mark.parametrize("seed", range(20))
def test_readers_are_shown_what_the_writer_has_said(world: World, seed: int) -> None:
    """At each time that was settled when they looked, whatever is done to both shards meanwhile."""
    chance = random.Random(seed)
    writer, said, at = Writer(world.client()), list[tuple[int, str]](), 1
    hold = world.client().hold(FOLLOWER, "sink", since=0)
    kept = world.client()
    checkpoint = Checkpoint()
    for _ in range(40):
        match chance.choice(
            ("note", "move", "move", "hold", "compact", "collect", "read", "stream")
        ):
            case "note":
                at += chance.randint(0, 3)
                writer.note(at, f"{at}")
                said.append((at, f"{at}"))
                at += 1
            case "move":
                at += chance.randint(1, 5)
                writer.move(at)
            case "hold":
                hold.downgrade(Frontier(chance.randint(hold.since.time or 0, at - 1)))
            case "compact":
                world.client().compact(FOLLOWER, force=True)
            case "collect":
                world.client().collect_garbage(FOLLOWER)
            case "read":
                for client in (kept, world.client()):
                    check_a_time(client, chance, said)
            case "stream":
                Query(world.client(), checkpoint, options_of(shard=FOLLOWER)).drain()
    writer.move(at + 1)
    Query(world.client(), checkpoint, options_of(shard=FOLLOWER)).drain()
    came = Counter((row[0], row[1]) for batch in checkpoint.sink.values() for row in batch)
    assert came == Counter(said)

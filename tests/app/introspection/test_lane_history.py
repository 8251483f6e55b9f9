"""The lane as of an earlier moment is what it was then, as far as its records are still kept."""

from __future__ import annotations

import pytest

from shardline.app.introspection.events import Following, LaneOpened, Recorded, TakenOver
from shardline.app.introspection.feeds import RuntimeFeeds
from shardline.app.lane.commands import (
    Holder,
    HolderLease,
    LaneCommand,
    Opened,
    PauseDataflow,
    Record,
    Submission,
    UseProject,
)
from shardline.app.lane.holder import describe_process
from shardline.app.lane.log import LaneLog
from shardline.app.lane.settings import LaneSettings
from shardline.app.lane.state import LaneState
from shardline.app.protocol.project_identity import ProjectIdentity
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage
from support.fakes.clock import ManualClock
from support.fakes.introspection import World

KEPT = 1_000
"""So many commands the relation has, as its description says."""


def process(host: str, pid: int, since_ms: int) -> Holder:
    return Holder(
        token=host, host=host, boot="b", pid=pid, started=1, application="a", since_ms=since_ms
    )


HOST_A = process("host-a", 4711, 5_000)
HOST_B = process("host-b", 812, 9_000)


def recorded(index: int, at_ms: int, name: str = "delays") -> Recorded:
    return Recorded(
        index=index,
        producer="project",
        at_ms=at_ms,
        kind="pause_dataflow",
        object_id=name,
        command="{}",
        says="Paused",
    )


def indexes(world: World, as_of: int | None = None) -> list[object]:
    return [row["index"] for row in world.relations.rows("command_history", as_of=as_of)]


def refusal(world: World, at_ms: int, name: str = "command_history") -> InvalidUsage:
    with pytest.raises(InvalidUsage) as caught:
        world.relations.rows(name, as_of=at_ms)
    return caught.value


def test_a_moment_has_the_commands_of_then() -> None:
    """All of their columns; and so it stays, whatever is asked for later."""
    world = World()
    world.tell(LaneOpened(objects=(), at_ms=world.clock.now_ms()))
    seen: dict[int, list[dict[str, object]]] = {world.clock.now_ms(): []}
    for index in range(6):
        world.clock.advance(1_500)
        # Two at a time: an append records a group at one moment.
        for number in (2 * index, 2 * index + 1):
            world.tell(recorded(number, world.clock.now_ms(), f"view{number}"))
        seen[world.clock.now_ms()] = world.relations.rows("command_history")
        world.clock.advance(700)
        seen[world.clock.now_ms()] = world.relations.rows("command_history")
    assert [len(rows) for rows in seen.values()] == [0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12]
    for at_ms, rows in seen.items():
        assert world.relations.rows("command_history", as_of=at_ms) == rows, at_ms
    last = max(seen)
    (one,) = world.relations.rows("command_history", object="view3", as_of=last)
    assert (one["index"], one["says"], one["producer"]) == (3, "Paused", "project")
    assert refusal(world, last + 1).code == "NOT_YET"


def test_a_moment_before_what_is_kept_is_refused_with_the_first_that_is() -> None:
    """Records from the beginning of the order on have been cut; those that are left begin later."""
    world = World()
    cut = world.clock.now_ms() - 60_000
    # Histories reach back further: an application ran, only its commands are not kept any more.
    world.tell(LaneOpened(objects=(), at_ms=cut - 3_600_000))
    for index in range(500, 503):
        world.tell(recorded(index, cut + 1_000 * (index - 500)))
    error = refusal(world, cut - 1)
    assert (error.code, error.hint) == (
        "BEFORE_HISTORY",
        f"as_of={cut} is the first moment that is known",
    )
    assert indexes(world, cut) == [500]
    assert indexes(world, cut + 1_500) == [500, 501]


def test_before_the_first_command_there_was_none() -> None:
    """As long as the lane's first record is kept it is known that nothing was before it."""
    world = World()
    began = world.clock.now_ms()
    world.tell(LaneOpened(objects=(), at_ms=began))
    world.clock.advance(5_000)
    world.tell(recorded(0, world.clock.now_ms()))
    assert indexes(world, began + 4_999) == []
    assert indexes(world, began + 5_000) == [0]
    assert refusal(world, began - 1).code == "BEFORE_HISTORY"


def test_the_newest_thousand_are_kept() -> None:
    """In memory few more; a moment behind them is refused, and the one that is named answers."""
    world = World()
    began = world.clock.now_ms()
    world.tell(LaneOpened(objects=(), at_ms=began))
    many = 2 * KEPT + 345
    most = 0
    for index in range(many):
        world.clock.advance(10)
        world.tell(recorded(index, world.clock.now_ms()))
        most = max(most, world.sink.read(lambda facts, _: len(facts.commands.rows)))
    assert most <= KEPT * 1.1 + 1
    newest = list(range(many - KEPT, many))
    assert indexes(world) == newest
    assert indexes(world, world.clock.now_ms()) == newest
    error = refusal(world, began + 10)
    assert error.code == "BEFORE_HISTORY"
    first = int(error.hint.partition("=")[2].partition(" ")[0])
    found = indexes(world, first)
    assert found
    assert found[-1] == (first - began) // 10 - 1, "those of until then"


def test_a_clock_that_goes_back_makes_no_hole_in_the_order() -> None:
    """Another runtime has taken the location, and its clock is behind: an order has a beginning."""
    world = World()
    at = world.clock.now_ms() - 10_000
    world.tell(*(recorded(i, at + late) for i, late in enumerate([0, 4_000, 1_000, 5_000])))
    assert indexes(world) == [0, 1, 2, 3]
    assert indexes(world, at + 2_000) == [0]
    assert indexes(world, at + 4_000) == [0, 1, 2]
    assert indexes(world, at + 5_000) == [0, 1, 2, 3]


def test_records_that_were_not_heard_of_are_not_made_up() -> None:
    """A follower that has slept comes back behind a cut: before it, nothing certain is known.

    A state of the lane takes a position, and is no command: one that is left out is no loss.
    """
    world = World()
    at = world.clock.now_ms() - 10_000
    world.tell(recorded(0, at), recorded(2, at + 1_000), recorded(4_000, at + 2_000))
    assert indexes(world) == [0, 2, 4_000], "the present shows what it has"
    error = refusal(world, at + 1_500)
    assert (error.code, error.hint.partition(" ")[0]) == ("BEFORE_HISTORY", f"as_of={at + 2_000}")
    world = World(ManualClock(world.clock.now_ms()))
    world.tell(recorded(0, at), recorded(2, at + 1_000))
    assert indexes(world, at + 500) == [0]


def test_a_take_over_does_not_take_the_lane_away() -> None:
    """Other histories of a follower are its own; the order is the location's, whoever reads it."""
    world = World()
    at = world.clock.now_ms()
    world.tell(Following(), recorded(0, at), LaneOpened(objects=(), at_ms=at))
    world.clock.advance(90_000)
    world.tell(recorded(1, at + 90_000), TakenOver(objects=(), at_ms=at + 90_000))
    assert indexes(world) == [0, 1]
    assert indexes(world, at + 30_000) == [0]
    assert refusal(world, at + 30_000, "verdicts").code == "BEFORE_HISTORY"


def test_after_a_restart_the_past_is_what_the_log_has() -> None:
    """The lane's own shard keeps its records: the next process answers as the one before."""
    clock = ManualClock()
    client = ShardClient.open("memory://lane-history", clock=clock)
    holder = describe_process("a", clock, client.ids)
    settings = LaneSettings(snapshot_every=8, keep_records=10)
    log = LaneLog.open(client, holder, settings)
    first = RuntimeFeeds(client, clock)
    first.found(log.state, log.records())
    moments = [clock.now_ms()]
    for number in range(40):
        clock.advance(1_000)
        begin = log.state.next_index
        log.append([Submission("test", number, PauseDataflow(f"view{number}"))])
        for record in log.records(begin):
            first.on_record(record, log.state)
        moments.append(clock.now_ms())
    first.sink.step()
    log.close()

    second = RuntimeFeeds(client, clock)
    again = LaneLog(client, holder, settings)
    second.found(again.state, again.records())
    second.sink.step()
    kept = [one.index for one in again.records()]
    assert 10 <= len(kept) < 20
    known = next(one.at_ms for one in again.records())
    assert moments[0] < known < moments[-10]
    for at_ms in moments:
        if at_ms < known:
            with pytest.raises(InvalidUsage, match="BEFORE_HISTORY"):
                second.relations.rows("command_history", as_of=at_ms)
            continue
        before = first.relations.rows("command_history", as_of=at_ms)
        after = second.relations.rows("command_history", as_of=at_ms)
        assert after == [row for row in before if row["index"] in kept] != []
    first.stop()
    second.stop()


def test_who_held_the_location_is_known_by_the_commands() -> None:
    """A take-over is a command; nothing else of the process that is asked is of that time."""
    clock = ManualClock()
    feeds = RuntimeFeeds(ShardClient.open("memory://holders", clock=clock), clock)
    told: list[LaneCommand] = [
        Opened(HOST_A),
        UseProject(ProjectIdentity(name="flights", folder="/srv/flights")),
        PauseDataflow("delays"),
        Opened(HOST_B),
        HolderLease(HOST_B),
    ]
    began = clock.now_ms()
    for index, command in enumerate(told):
        record = Record(
            index=index, producer="lane", sequence=index, epoch=1, at_ms=clock.now_ms(),
            command=command,
        )  # fmt: skip
        feeds.on_record(record, LaneState())
        clock.advance(1_000)
    feeds.sink.step()

    def known(at_ms: int) -> tuple[object, ...]:
        (row,) = feeds.relations.rows("location", as_of=at_ms)
        wanted = ("holder", "held_since", "project")
        assert {value for name, value in row.items() if name not in wanted} == {None}
        return tuple(row[name] for name in wanted)

    at_a = ("a on host-a, process 4711", "1970-01-01T00:00:05.000Z")
    assert known(began) == (*at_a, None)
    assert known(began + 2_500) == (*at_a, "flights")
    at_b = ("a on host-b, process 812", "1970-01-01T00:00:09.000Z", "flights")
    assert known(began + 3_000) == known(began + 4_500) == at_b
    with pytest.raises(InvalidUsage, match="the history of relation 'location' begins at"):
        feeds.relations.rows("location", as_of=began - 100_000)
    feeds.stop()


def test_a_holder_whose_take_over_is_cut_is_not_known() -> None:
    """No row: half of one would look like a location that nobody holds."""
    world = World()
    at = world.clock.now_ms()
    world.tell(recorded(700, at))
    assert indexes(world, at) == [700]
    assert world.relations.rows("location", as_of=at) == []

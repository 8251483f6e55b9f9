"""Histories on a location."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from shardline.app.execution.observations import Failed
from shardline.app.introspection.events import (
    Dropped,
    Following,
    LaneOpened,
    Maintenance,
    Phase,
    Polled,
    Recorded,
    TakenOver,
)
from shardline.app.introspection.facts import MAINTENANCE_MAX
from shardline.app.introspection.histories import gaps
from shardline.app.introspection.history import HISTORY_SHARD, HistoryKeeper
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Determinate, Fenced, InvalidUsage
from support.fakes.introspection import DELAYS, FLIGHTS, OUT, World
from support.waiting import wait_until

if TYPE_CHECKING:
    from shardline.datasource.clock import Clock
    from shardline.datasource.read import ReadHandle


class Place:
    """A location in memory, with worlds that come and go."""

    def __init__(self, name: str) -> None:
        self.url = f"memory://{name}"
        self.world = World()
        self.open()

    def open(self) -> None:
        """Another process at the same location."""
        clock = self.world.clock
        self.world = World(clock)
        self.client = ShardClient.open(self.url, clock=clock)
        self.writes = threading.Event()
        self.writes.set()
        self.fenced = False
        self.keeper = self.make_keeper()

    def make_keeper(self) -> HistoryKeeper:
        return HistoryKeeper(
            self.world.sink, self.client, writes=self.writes, check_fence=self.check
        )

    def check(self) -> None:
        if self.fenced:
            raise Fenced("another one has it")

    def kept(self) -> int:
        """Rows that the shard holds."""
        if not self.client.exists(HISTORY_SHARD):
            return 0
        state = self.client.state(HISTORY_SHARD)
        return sum(p.diff_sum for batch in state.trace.batches for p in batch.parts)

    def remembered(self) -> int:
        """Rows of the histories in memory."""
        return self.world.sink.read(lambda facts, _: sum(len(h.rows) for h in facts.histories()))


@pytest.fixture
def place(request: pytest.FixtureRequest) -> Place:
    return Place(request.node.name)


def test_histories_survive_a_restart(place: Place) -> None:
    """The next process has the rows of the one before, and goes on after them."""
    place.world.run(DELAYS)
    place.keeper.flush()
    before = place.world.rows("status_history")
    assert len(before) == 2
    place.open()
    place.keeper.load()
    place.world.tell()
    assert place.world.rows("status_history") == before
    place.world.clock.advance(1000)
    place.world.run(DELAYS, epoch=2)
    place.keeper.flush()
    rows = place.world.rows("status_history")
    assert rows[:2] == before
    assert [row["status"] for row in rows] == ["created", "running"] * 2
    assert place.kept() == place.remembered() > 4


def test_commands_are_not_stored_a_second_time(place: Place) -> None:
    """The lane's own shard has them; a history of theirs would be retracted with each take-over."""
    place.world.run(DELAYS)
    place.keeper.flush()
    stored = place.kept()
    command = Recorded(index=0, producer="p", at_ms=1, kind="pause_dataflow", object_id="delays")
    place.world.tell(command)
    place.keeper.flush()
    assert len(place.world.rows("command_history")) == 1
    assert place.kept() == stored


def test_a_round_without_news_writes_nothing(place: Place) -> None:
    """An idle runtime does not grow its history."""
    place.world.run(DELAYS)
    place.keeper.flush()
    seqno, kept = place.client.state(HISTORY_SHARD).seqno, place.kept()
    place.keeper.flush()
    assert place.client.state(HISTORY_SHARD).seqno == seqno
    place.world.clock.advance(60_000)
    place.keeper.flush()
    assert place.kept() == kept, "only its upper has moved"


def test_a_night_in_which_nothing_has_happened_is_none_without_an_application(
    place: Place,
) -> None:
    """An object that is stalled all the time has no news, and was stalled at each hour."""
    clock = place.world.clock
    began = clock.now_ms()
    place.world.tell(LaneOpened(objects=(), at_ms=began))
    place.world.run(DELAYS)
    place.world.tell(
        Failed(id="delays", epoch=1, error="no route to host", hint=""),
        Phase(id="delays", epoch=1, phase="suspended", at_ms=began),
    )
    place.keeper.flush()
    for _ in range(10):
        clock.advance(60_000)
        place.world.tell()
        place.keeper.flush()
    place.open()
    place.world.tell(LaneOpened(objects=("delays",), at_ms=clock.now_ms()))
    place.keeper._load_first()
    place.world.run(DELAYS, epoch=2)
    assert place.world.sink.read(lambda facts, _: gaps(facts.runs)) == []
    at = began + 5 * 60_000
    (then,) = place.world.relations.rows("verdicts", as_of=at, where={"object_id": "delays"})
    assert then["verdict"] == "stalled"


def test_rows_that_have_been_kept_long_enough_are_retracted(place: Place) -> None:
    """The shard holds what memory holds: of an object that is there, what still holds."""
    place.world.run(DELAYS)
    place.keeper.flush()
    assert place.kept() == place.remembered() == 4
    place.world.clock.advance(31 * 24 * 3_600_000)
    place.world.tell()
    place.keeper.flush()
    still = 2  # from when to when the process stood still
    assert place.kept() == place.remembered() == 3 + still, "status, definition and verdict"
    place.world.tell(Dropped(id="delays", at_ms=place.world.clock.now_ms()))
    place.world.clock.advance(31 * 24 * 3_600_000)
    place.world.tell()
    place.keeper.flush()
    assert place.kept() == place.remembered() == still + 1, "and until when the time before"


def test_rows_that_memory_has_no_room_for_are_retracted(place: Place) -> None:
    """A shard that is maintained each minute has more rows in a month than anybody looks at."""
    world, clock = place.world, place.world.clock

    def maintain(rounds: int) -> None:
        for _ in range(rounds):
            clock.advance(1)
            world.sink.put(Maintenance(shard="delays", at_ms=clock.now_ms(), took_ms=1, merges=1))
        clock.advance(60_000)
        world.tell()
        place.keeper.flush()

    began = clock.now_ms()
    world.tell(LaneOpened(objects=(), at_ms=began))
    for rounds in (MAINTENANCE_MAX, 500, 500):
        maintain(rounds)
        assert place.kept() == place.remembered() == MAINTENANCE_MAX + 1, "and the start"
    place.open()
    place.keeper.load()
    place.world.tell()
    assert place.remembered() == MAINTENANCE_MAX + 1
    with pytest.raises(InvalidUsage, match="BEFORE_HISTORY"):
        place.world.relations.rows("maintenance", as_of=began + 1)


def test_what_holds_is_not_retracted_before_it_was_seen(place: Place) -> None:
    """A row that is older than its retention, in a process that has just loaded it."""
    place.world.run(DELAYS)
    place.keeper.flush()
    place.world.clock.advance(31 * 24 * 3_600_000)
    place.open()
    place.keeper.flush()
    assert place.kept() == 4, "loaded by this round, and not yet applied by the sink"
    place.world.tell()
    place.world.clock.advance(60_000)
    place.world.tell()
    place.keeper.flush()
    assert place.kept() == place.remembered() == 3


def test_rows_of_another_runtime_are_taken_in(place: Place) -> None:
    """Two that write one after the other, as in a hand-over, lose nothing of each other."""
    place.world.run(DELAYS)
    first_world, first = place.world, place.keeper
    first.flush()
    place.open()
    place.world.run(FLIGHTS)
    place.keeper.flush()
    place.world.tell()
    names = {row["object_id"] for row in place.world.rows("status_history")}
    assert names == {"delays", "flights"}
    first.flush()
    first_world.tell()
    assert {r["object_id"] for r in first_world.rows("status_history")} == names
    assert {r["object_id"] for r in first_world.rows("verdict_history")} == names
    assert place.kept() == 8


def test_nothing_is_written_before_it_is_allowed(place: Place) -> None:
    """A runtime that only reads reads histories too."""
    place.writes.clear()
    place.world.run(DELAYS)
    place.keeper.flush()
    assert not place.client.exists(HISTORY_SHARD)
    place.writes.set()
    place.keeper.flush()
    assert place.kept() == place.remembered() == 4


class Promoted:
    """A holder that has worked until it was replaced, and the follower that has replaced it."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.clock = place.world.clock
        place.world.run(DELAYS)
        place.world.run(OUT)
        self.live(place.world)
        place.keeper.flush()
        self.holder, self.holders_keeper = place.world, place.keeper
        place.open()
        place.writes.clear()
        self.keeper, self.follower = place.keeper, place.world
        self.follower.tell(Following())
        self.follower.tell(LaneOpened(objects=("delays", "out"), at_ms=self.clock.now_ms()))
        self.keeper.load()
        installed = [self.follower.run(DELAYS), self.follower.installed(OUT)]
        self.follower.tell(*installed)
        for _ in range(3):
            self.live(self.holder, self.follower)
        self.keeper.flush()

    def live(self, *worlds: World) -> None:
        """A minute goes by in which the output of a view moves."""
        for _ in range(2):
            self.clock.advance(30_000)
            now = self.clock.now_ms()
            for world in worlds:
                world.tell(Polled(id="delays", since=0, upper=now - 1_000))

    def stored(self) -> dict[tuple[str, int, str], int]:
        """Rows of the shard, with how often each is there."""
        with self.place.client.reader(HISTORY_SHARD, purpose="a test") as reader:
            upper = reader.machine.state().upper.time
            assert upper is not None
            rows = reader.snapshot(upper - 1)
        return Counter(zip(*(column.to_pylist() for column in rows.columns), strict=True))

    def take_over(self) -> int:
        """Let the follower be the holder; returns since when."""
        at_ms = self.clock.now_ms()
        self.place.writes.set()
        self.keeper.flush()  # before its sink has heard of it
        self.follower.tell(TakenOver(objects=("delays", "out"), at_ms=at_ms))
        return at_ms


@pytest.mark.parametrize("lived", [True, False])
def test_a_follower_that_takes_over_adds_nothing_to_the_past(place: Place, lived: bool) -> None:
    """The holder has stored more meanwhile, or has died at once: its rows stay, and they alone."""
    both = Promoted(place)
    if lived:
        both.holders_keeper.flush()
    before = both.stored()
    both.live(both.follower)
    at_ms = both.take_over()
    assert both.stored() == before
    for _ in range(3):
        both.keeper.flush()
        both.live(both.follower)
    after = both.stored()
    assert max(after.values()) == 1
    gone = before.keys() - after.keys()
    assert gone == set(), "lasting rows, and those of the last day, stay"
    ended = {row for row in after.keys() - before.keys() if "end" in row[2]}
    assert [name for name, *_ in ended] == ["run_history"]
    # The minute in which it took over began before.
    first = dict.fromkeys(("status_history", "run_history", "verdict_history"), at_ms)
    first |= {"definition_history": at_ms, "wallclock_lag_history": at_ms - at_ms % 60_000}
    more = after.keys() - before.keys() - ended
    assert {name for name, *_ in more} == first.keys()
    assert [row for row in more if row[1] < first[row[0]]] == []


def test_who_looks_back_after_a_take_over_sees_what_the_holder_has_seen(place: Place) -> None:
    """Of a sink that has run all night a follower says that it was starting."""
    both = Promoted(place)
    then = both.clock.now_ms() - 45_000
    names = ("verdicts", "objects", "wallclock_lag", "object_dependencies")
    seen = {name: both.holder.relations.rows(name, as_of=then) for name in names}
    assert all(seen.values())
    both.holders_keeper.flush()
    both.clock.advance(3_600_000)
    at_ms = both.take_over()
    both.keeper.flush()
    both.live(both.follower)
    for name in names:
        assert both.follower.relations.rows(name, as_of=then) == seen[name], name
    statuses = {row["object_id"]: row for row in both.follower.rows("status_history")}
    assert {str(row["status"]) for row in statuses.values()} == {"created", "running"}
    now = both.follower.relations.rows("objects", as_of=both.clock.now_ms())
    assert {row["id"]: row["status"] for row in now} == {"delays": "running", "out": "created"}
    with pytest.raises(InvalidUsage, match="NOT_RECORDED"):
        both.follower.relations.rows("verdicts", as_of=at_ms - 1_800_000)


def test_who_takes_over_knows_the_rounds_that_the_holder_did_last(place: Place) -> None:
    """And not those that there were when it began to follow."""

    def rounds(world: World) -> dict[str, tuple[str, ...]]:
        return world.sink.read(lambda facts, _: {n: r.failed for n, r in facts.rounds.items()})

    def maintain(world: World, *failed: str) -> None:
        now = world.clock.now_ms()
        world.tell(Maintenance(shard="delays", at_ms=now, took_ms=1, merges=1, failed=failed))

    maintain(place.world, "sweep")
    promoted = Promoted(place)
    assert rounds(promoted.follower) == {"delays": ("sweep",)}
    maintain(promoted.holder)
    promoted.holders_keeper.flush()
    promoted.take_over()
    promoted.keeper.flush()
    promoted.follower.tell()
    assert rounds(promoted.follower) == {"delays": ()}


def test_a_process_that_starts_after_a_take_over_finds_one_history(place: Place) -> None:
    """With the gap in which nobody held the location."""
    both = Promoted(place)
    both.clock.advance(3_600_000)
    at_ms = both.take_over()
    both.keeper.flush()
    both.live(both.follower)
    both.keeper.flush()
    place.open()
    place.keeper.load()
    place.world.tell()
    runs = place.world.sink.read(lambda facts, _: list(facts.runs.rows))
    assert [row[0] for _, row in runs] == ["end", "start"]
    assert runs[1] == (at_ms, ("start", ("delays", "out")))
    found = place.world.sink.read(lambda facts, _: gaps(facts.runs))
    assert found == [(runs[0][0], at_ms)]


def test_nothing_is_written_after_a_take_over(place: Place) -> None:
    """The fence is asked before each round."""
    place.world.run(DELAYS)
    place.fenced = True
    with pytest.raises(Fenced):
        place.keeper.flush()
    assert not place.client.exists(HISTORY_SHARD)


class Woken:
    """A clock on which every pause lasts until somebody ends it."""

    def __init__(self, clock: Clock) -> None:
        self.now_ms, self.elapsed_ms = clock.now_ms, clock.elapsed_ms
        self._pauses: Counter[threading.Event] = Counter()

    def wait(self, signal: threading.Event, timeout_ms: float) -> bool:
        del timeout_ms
        self._pauses[signal] += 1
        return signal.wait(30)

    def pauses(self, keeper: HistoryKeeper) -> int:
        """How many pauses there were between its rounds."""
        return self._pauses[keeper._thread.wake]


def test_the_thread_survives_errors_and_keeps_all_at_its_end(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What earlier processes kept is loaded once the store answers, and what is new is added."""
    place.world.run(DELAYS)
    place.keeper.flush()
    place.open()
    place.client.clock = clock = Woken(place.world.clock)
    reader, failures = place.client.reader, [RuntimeError("a bug"), Determinate("no answer")]

    def failing(*args: Any, **options: Any) -> ReadHandle:
        if failures:
            raise failures.pop()
        return reader(*args, **options)

    monkeypatch.setattr(place.client, "reader", failing)
    keeper = place.make_keeper()
    keeper.start()
    for rounds in (1, 2, 3):
        wait_until("a round is over", lambda rounds=rounds: clock.pauses(keeper) == rounds, 30)  # type: ignore[misc]
        keeper._thread.wake.set()
    wait_until("they are loaded", lambda: clock.pauses(keeper) == 4, 30)
    assert [r.levelname for r in caplog.records] == ["WARNING", "ERROR"]
    place.world.tell()
    assert (place.kept(), place.remembered()) == (4, 5), "and when the one before was last heard of"
    place.world.clock.advance(1000)
    place.world.run(DELAYS, epoch=2)
    keeper.stop()
    assert place.kept() == place.remembered() >= 5


def test_the_thread_ends_after_a_take_over(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    """That is no error, also at the end of the runtime."""
    place.fenced = True
    place.world.run(DELAYS)
    place.client.clock = clock = Woken(place.world.clock)
    keepers = [place.make_keeper(), place.make_keeper()]
    for keeper in keepers:
        keeper.start()
    wait_until("both have loaded", lambda: all(clock.pauses(one) for one in keepers), 30)
    keepers[0]._thread.wake.set()
    wait_until("it has ended", lambda: not keepers[0]._thread.is_running, 30)
    keepers[1].stop()
    assert place.kept() == 0
    assert caplog.records == []


def test_rows_are_encoded_while_the_sink_goes_on(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A day of many objects takes a quarter of a second, once a minute."""
    place.world.run(DELAYS)
    encode = msgspec.json.encode
    locked = []

    def spy(value: Any) -> bytes:
        locked.append(place.world.sink._lock.locked())
        return encode(value)

    monkeypatch.setattr("shardline.app.introspection.history.msgspec.json.encode", spy)
    place.keeper.flush()
    assert not any(locked)
    assert len(locked) >= place.kept() > 0

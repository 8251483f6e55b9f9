"""The commit of a source, without Spark: failures between its steps, ticks, two incarnations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardline.app.execution.stopped import Stopped
from shardline.app.storage.commit import StagedMicroBatch, Timeline
from shardline.app.storage.errors import ERRORS, open_errors, retract_errors, settle_time
from shardline.app.storage.reclock import EMPTY_SNAPSHOT, SourceFile
from shardline.app.storage.repair import REPAIR, Repair, bad_rows, repair_errors
from shardline.app.storage.resume import PlannedMicroBatch
from shardline.datasource.errors import Determinate, Fenced, InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard.commands.append import Appended
from shardline.datasource.types.schema import ShardSchema
from support.fakes.source_world import ROWS, World
from support.profiles import examples


class Crash(Exception):
    """The process is gone."""


STEPS = ("nothing", "bind", "errors", "skipped", "rows")


def crashing(timeline: Timeline, step: str) -> None:
    """Let `timeline` end right after a step of its next commit."""
    followers = {
        "errors": timeline._errors,
        "skipped": timeline._skipped,
        "rows": timeline._rows,
    }

    armed = [True]

    def after(real: Any, wanted: Any) -> Any:
        def run(*args: Any, **named: Any) -> Any:
            found = real(*args, **named)
            if armed and (wanted is None or args[0] is wanted):
                armed.clear()
                raise Crash
            return found

        return run

    changing: Any = timeline
    if step == "bind":
        changing._bind = after(timeline._bind, None)
    elif step != "nothing":
        changing._append = after(timeline._append, followers[step])
        changing._append_errors = after(timeline._append_errors, None if step == "errors" else "")
        changing._advance_upper = after(timeline._advance_upper, followers[step])


@pytest.mark.slow
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(STEPS), st.integers(0, 2500), st.booleans()), max_size=6
    )
)
@examples()
def test_everything_once_whatever_fails(steps: list[tuple[str, int, bool]]) -> None:
    """Micro-batches with crashes between any steps, and ticks of those that are gone."""
    world = World()
    timeline = world.timeline()
    gone: list[Timeline] = []
    for number, (step, passed_ms, ticks) in enumerate(steps):
        crashing(timeline, step)
        try:
            world.commit(timeline, number)
            assert step in {"nothing", "errors"}, "errors that are none have no step any more"
        except Crash:
            gone.append(timeline)
            timeline = world.timeline()
            world.clock.advance(passed_ms)
            for old in gone if ticks else []:
                old.tick(world.clock.now_ms())
            world.commit(timeline, number)
        world.clock.advance(passed_ms)
        for each in (*gone, timeline) if ticks else ():
            each.tick(world.clock.now_ms())
        rows, errors, progress = world.uppers()
        assert rows <= errors <= progress
        assert timeline.committed
    assert world.contents("in", "number") == Counter(range(len(steps)))
    assert world.contents("in_errors", "raw") == Counter(map(str, range(1, len(steps), 2)))
    if steps:
        noted = world.contents("in_skipped", "raw")
        assert noted == Counter(f"s{number}" for number in range(len(steps)))


@pytest.mark.parametrize("batches", [1, 2, 3])
def test_a_shard_that_is_gone_is_not_gone_on_with(batches: int) -> None:
    """Only the last micro-batch is run again, and the rows of those before it are nowhere else."""
    world = World()
    timeline = world.timeline()
    for number in range(batches):
        world.commit(timeline, number)
        world.clock.advance(1000)
    world.client.drop("in")
    world.client.create("in", ShardSchema.from_arrow(ROWS), first_time="former-upper")
    if batches == 1:
        again = world.timeline()
        world.commit(again, 0)
        assert again.tick(world.clock.now_ms())
        assert world.contents("in", "number") == Counter([0])
        return
    with pytest.raises(InvalidUsage, match="'in' lacks rows") as refused:
        world.timeline()
    assert refused.value.code == "SHARD_BEHIND"


def test_bindings_that_move_during_a_start_are_no_gap() -> None:
    """Another incarnation may commit between the look at the rows and that at the bindings."""
    world = World()
    timeline = world.timeline()
    world.commit(timeline, 0)
    read = Timeline._read_bindings

    def after_two_more(other: Timeline) -> None:
        if not other.bound.upper:
            for number in (1, 2):
                world.commit(timeline, number)
        read(other)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Timeline, "_read_bindings", after_two_more)
        assert world.timeline().committed


@pytest.mark.parametrize("step", STEPS[1:])
def test_what_is_found_to_be_committed_has_its_errors_and_notes(step: str) -> None:
    """The next incarnation does not run it again: whatever was missing would be lost for good."""
    world = World()
    timeline = world.timeline()
    world.commit(timeline, 0)
    crashing(timeline, step)
    with pytest.raises(Crash):
        world.commit(timeline, 1)
    done = world.timeline().is_committed(1, PlannedMicroBatch("o1", frozenset()))
    assert done == (step == "rows")
    if done:
        assert world.contents("in_errors", "raw") == {"1": 1}
        assert world.contents("in_skipped", "raw") == {"s0": 1, "s1": 1}


def test_a_source_that_is_made_again_begins_behind_the_dropped_one() -> None:
    """Its shard does: rows of an earlier time could not be read. Also if the clock went back."""
    world = World()
    timeline = world.timeline()
    world.commit(timeline, 0)
    before, _, _ = world.uppers()
    for name in ("in", "in_errors", "in_skipped", "in_progress"):
        world.client.drop(name)
    world.client.create("in", ShardSchema.from_arrow(ROWS), first_time="former-upper")
    open_errors(world.client, "in")
    world.clock.advance(-500)
    timeline = world.timeline()
    world.commit(timeline, 0)
    state = world.client.state("in")
    assert state.since == Frontier(before)
    assert timeline.upper - 1 >= before
    assert world.contents("in", "number") == Counter([0])


def test_nothing_ticks_past_a_binding_without_rows() -> None:
    """Neither the incarnation that was interrupted, nor the next one, nor one before both."""
    world = World()
    first = world.timeline()
    world.commit(first, 0)
    second = world.timeline()
    crashing(second, "bind")
    with pytest.raises(Crash):
        world.commit(second, 1)
    before = world.uppers()
    world.clock.advance(60_000)
    assert [each.tick(world.clock.now_ms()) for each in (first, second, world.timeline())] == [
        False
    ] * 3
    assert world.uppers() == before


SHARDS = {"bind": "in_errors", "errors": "in_skipped", "skipped": "in"}
"""By the step after which a micro-batch is interrupted: the shard that it appends to next."""


@pytest.mark.parametrize("step", SHARDS)
def test_an_append_of_somebody_else_is_not_taken_for_the_micro_batch(step: str) -> None:
    """Its time has passed in a shard that does not have it: that is told, and nothing is skipped.

    Neither with the rows of another append, nor where one has only moved the upper.
    """
    for rows in (1, 0):
        world = World()
        world.commit(world.timeline(), 0)
        first = world.timeline()
        crashing(first, step)
        with pytest.raises(Crash):
            world.commit(first, 1)
        somebody_else_appends(world, SHARDS[step], first.bound.last.time + 1, rows)  # type: ignore[union-attr]
        before = world.uppers()
        for _ in range(2):
            again = world.timeline()
            assert not again.committed
            assert not again.is_committed(1, PlannedMicroBatch("o1", frozenset()))
            world.clock.advance(60_000)
            assert not again.tick(world.clock.now_ms())
            with pytest.raises(InvalidUsage, match=rf"FOREIGN_APPEND.*'{SHARDS[step]}'"):
                world.commit(again, 1)
        assert 1 not in world.contents("in", "number")
        assert world.uppers() == before


def test_an_append_of_somebody_else_while_a_micro_batch_commits() -> None:
    """Between the look at the upper and the append, which is then refused."""
    world = World()
    timeline = world.timeline()
    world.commit(timeline, 0)
    real = world.staged("in", pa.table({"number": [1]}, ROWS))

    class Late:
        def append(self, *place: Any, **how: Any) -> Any:
            somebody_else_appends(world, "in", how["at"] + 1, 1)
            return real.append(*place, **how)

    late: Any = Late()
    with pytest.raises(InvalidUsage, match=r"FOREIGN_APPEND.*'in'"):
        timeline.commit(1, PlannedMicroBatch("o1", frozenset()), StagedMicroBatch(late))
    assert not timeline.committed


def somebody_else_appends(world: World, shard: str, upper: int, rows: int) -> None:
    """Append as any program may that knows of shards, and not of sources."""
    schema = ROWS if shard == "in" else ERRORS
    row = {"number": 99} if shard == "in" else {"error": "none of its own"}
    writer = world.client.writer(shard)
    writer.writes_leader = True  # or only errors were safe from them
    lower = writer.upper()
    table = pa.Table.from_pylist([row], schema) if rows else None
    done = writer.compare_and_append(table, lower, Frontier(max(upper, (lower.time or 0) + 1)))
    assert isinstance(done, Appended)


def test_an_empty_snapshot_has_no_append_of_its_own() -> None:
    """It has nothing that could be lost: the upper alone tells that it is committed."""
    world = World()
    world.timeline().commit_nothing(PlannedMicroBatch("", frozenset()))
    assert world.timeline().committed
    world.commit(world.timeline(), 0)
    assert world.timeline().committed


def test_a_shard_that_a_micro_batch_has_nothing_for_is_passed_in_its_name() -> None:
    """Run again under another definition it may have something: that is not somebody else's time.

    As it is with onBadRow, which says in which shard a bad row is.
    """
    world = World()
    timeline = world.timeline()
    crashing(timeline, "errors")
    with pytest.raises(Crash):
        world.commit(timeline, 0)
    again = world.timeline()
    error = pa.Table.from_pylist([{"error": "bad", "raw": "0"}], ERRORS)
    again.commit(
        0,
        PlannedMicroBatch("o0", frozenset()),
        StagedMicroBatch(
            world.staged("in", pa.table({"number": [0]}, ROWS)), world.staged("in_errors", error)
        ),
    )
    assert world.timeline().committed


def test_ticks_follow_the_clock() -> None:
    """The time of the last whole interval is readable in all three shards; never one ahead."""
    world = World()
    timeline = world.timeline()
    assert not timeline.tick(world.clock.now_ms()), (
        "nothing is bound: nobody may see an empty source"
    )
    timeline.commit_nothing(PlannedMicroBatch("", frozenset()))
    world.clock.advance(5_500)
    assert timeline.tick(world.clock.now_ms())
    assert world.uppers() == [1_005_001] * 3
    assert timeline.bound.last is not None
    assert timeline.bound.last.number == EMPTY_SNAPSHOT


def test_a_tick_goes_no_further_than_the_time_it_is_given() -> None:
    """What the clock has passed since that time, the source was not asked about."""
    world = World()
    timeline = world.timeline()
    timeline.commit_nothing(PlannedMicroBatch("", frozenset()))
    world.clock.advance(5_500)
    asked_ms = world.clock.now_ms()
    world.clock.advance(60_000)
    assert timeline.tick(asked_ms)
    assert world.uppers() == [1_005_001] * 3


def test_nothing_ticks_far_beyond_the_begin_of_a_micro_batch_that_is_not_committed() -> None:
    """It has rows from before; five intervals are for one that is quick. Its commit ends that."""
    world = World()
    timeline = world.timeline()
    world.commit(timeline, 0)
    world.clock.advance(10_000)
    timeline.begin()
    begun_ms = world.clock.now_ms()
    seen = []
    for _ in range(8):
        world.clock.advance(1_000)
        timeline.tick(world.clock.now_ms())
        seen.append(world.uppers()[0] - begun_ms - 1)
    assert seen == [1_000, 2_000, 3_000, 4_000, 5_000, 5_000, 5_000, 5_000]
    world.clock.advance(3_600_000)
    timeline.tick(world.clock.now_ms())
    assert world.uppers() == [begun_ms + 5_001] * 3
    world.commit(timeline, 1)
    assert world.uppers() == [world.clock.now_ms() + 1] * 3, "its own time is that of its commit"
    world.clock.advance(60_000)
    timeline.tick(world.clock.now_ms())
    assert world.uppers() == [world.clock.now_ms() + 1] * 3


def test_another_one_was_faster() -> None:
    """Whoever bound first is right: the same micro-batch is taken over, another one is refused."""
    world = World()
    one, other = world.timeline(), world.timeline()
    world.commit(one, 0)
    world.commit(other, 0)
    world.commit(one, 1)
    with pytest.raises(Determinate, match="BOUND_OTHERWISE"):
        other.commit(
            1,
            PlannedMicroBatch("elsewhere", frozenset()),
            StagedMicroBatch(world.staged("in", pa.table({"number": [9]}, ROWS))),
        )
    assert world.contents("in", "number") == {0: 1, 1: 1}


def test_the_same_offset_of_other_files() -> None:
    """Two checkpoints number their files on their own: equal offsets may mean different rows."""
    world = World()
    one, other = world.timeline(), world.timeline()
    a, b = SourceFile("0", "a"), SourceFile("0", "b")
    rows = StagedMicroBatch(world.staged("in", pa.table({"number": [0]}, ROWS)))
    one.commit(0, PlannedMicroBatch("o", frozenset({a})), rows)
    for number, offset, files in ((0, "o", {b}), (0, "o", {a, b}), (1, "p", {b})):
        with pytest.raises(Determinate, match="BOUND_OTHERWISE"):
            other.is_committed(number, PlannedMicroBatch(offset, frozenset(files))) or other.commit(
                number,
                PlannedMicroBatch(offset, frozenset(files)),
                StagedMicroBatch(world.staged("in", pa.table({"number": [9]}, ROWS))),
            )
    assert world.contents("in", "number") == {0: 1}


@pytest.mark.parametrize("why", ["stopped", "fenced"])
def test_nothing_after_the_end(why: str) -> None:
    """A stopped or fenced incarnation appends nothing, neither rows nor ticks."""
    world = World()
    timeline = world.timeline()
    world.commit(timeline, 0)
    before = world.uppers()
    world.clock.advance(10_000)
    if why == "stopped":
        timeline.stop()
        assert not timeline.tick(world.clock.now_ms())
        with pytest.raises(Stopped):
            world.commit(timeline, 1)
    else:
        world.fenced = True
        with pytest.raises(Fenced):
            timeline.tick(world.clock.now_ms())
        with pytest.raises(Fenced):
            world.commit(timeline, 1)
    assert world.uppers() == before


def test_errors_that_change_while_a_micro_batch_is_staged() -> None:
    """What was retracted by hand meanwhile is not retracted again."""
    world = World()
    timeline = world.timeline()
    world.commit(timeline, 0)
    world.commit(timeline, 1)
    row = {"error": "bad", "raw": "1", "_diff": -1}
    schema = ERRORS.append(pa.field("_diff", pa.int64(), nullable=False))
    again = world.staged("in_errors", pa.Table.from_pylist([row], schema))
    live = timeline.refresh_live_errors()
    assert retract_errors(world.client, "in") == 1
    rows = world.staged("in", pa.table({"number": [2]}, ROWS))
    with pytest.raises(Determinate, match="ERRORS_CHANGED"):
        timeline.commit(
            2, PlannedMicroBatch("o2", frozenset()), StagedMicroBatch(rows, again, live)
        )
    assert not world.contents("in_errors", "raw")


def test_errors_that_are_retracted_at_the_last_moment() -> None:
    """Between the look at the errors and the append: the append is refused, and nothing is doubled.

    The retraction has taken its time before the micro-batch was bound, so the time is its own.
    """
    world = World()
    timeline = world.timeline()
    world.commit(timeline, 0)
    world.commit(timeline, 1)
    row = {"error": "bad", "raw": "1", "_diff": -1}
    schema = ERRORS.append(pa.field("_diff", pa.int64(), nullable=False))
    retraction = pa.Table.from_pylist([row], schema)
    again = world.staged("in_errors", retraction)
    live = timeline.refresh_live_errors()
    writer = world.client.writer("in_errors")
    writer.writes_leader = True

    class Late:
        def append(self, *place: Any, **how: Any) -> Any:
            lower = writer.upper().time or 0
            done = writer.compare_and_append(retraction, Frontier(lower), Frontier(lower + 1))
            assert isinstance(done, Appended)
            return again.append(*place, **how)

    rows = world.staged("in", pa.table({"number": [2]}, ROWS))
    late: Any = Late()
    with pytest.raises(Determinate, match="ERRORS_CHANGED"):
        timeline.commit(2, PlannedMicroBatch("o2", frozenset()), StagedMicroBatch(rows, late, live))
    assert not world.contents("in_errors", "raw")


class Shown:
    """The errors that readers were shown, as changes before the upper that they saw."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._upper, self._changes = 0, Counter[tuple[str, int, int]]()
        world.client.hold("in_errors", "a test", since=0)

    def check(self) -> None:
        """Look again: what was shown is as it was."""
        rows, errors, _ = self._world.uppers()
        found = Counter[tuple[str, int, int]]()
        if errors:
            with self._world.client.reader("in_errors", since=0) as reader:
                for step in reader.listen(0, until=Frontier(errors)):
                    for row in step.updates.to_pylist():
                        found[row["raw"], row["_ts"], row["_diff"]] += 1
        before = Counter({one: n for one, n in found.items() if one[1] < self._upper})
        assert before == self._changes
        self._upper = min(rows, errors)
        self._changes = Counter({one: n for one, n in found.items() if one[1] < self._upper})


class Source:
    """A source of which readers are shown errors, whoever takes them away and however slowly."""

    def __init__(self) -> None:
        self.world = World()
        self._timeline, self._shown = self.world.timeline(), Shown(self.world)
        self._number, self._repairs = -1, 0
        self.commit()

    def check(self) -> None:
        self._shown.check()

    def commit(self) -> None:
        self._number += 1
        self.world.commit(self._timeline, self._number)

    def crash(self) -> None:
        """A micro-batch is bound, and run again by the next incarnation."""
        self._number += 1
        crashing(self._timeline, "bind")
        with pytest.raises(Crash):
            self.world.commit(self._timeline, self._number)
        self.restart()
        self.world.commit(self._timeline, self._number)

    def restart(self) -> None:
        self._timeline = self.world.timeline()

    def tick(self) -> None:
        self.world.clock.advance(1500)
        self._timeline.tick(self.world.clock.now_ms())

    def retract(self) -> None:
        retract_errors(self.world.client, "in")

    def repair(self) -> None:
        self._repairs += 1
        client, as_of = self.world.client, bad_rows(self.world.client, "in").as_of
        what = Repair("retract", as_of)
        repair_errors(client, "in", what, writer=REPAIR, number=self._repairs)

    def slowly(self, taken_away: Callable[[], None], *meanwhile: Callable[[], None]) -> None:
        """The source goes on right after somebody has taken a time for his retraction."""
        left = list(meanwhile)

        def settled(*given: Any) -> bool:
            done = settle_time(*given)
            while done and left:
                left.pop(0)()
                self.check()
            return done

        with pytest.MonkeyPatch.context() as patched:
            for module in ("errors", "repair"):
                patched.setattr(f"shardline.app.storage.{module}.settle_time", settled)
            taken_away()

    def do(self, what: str) -> None:
        taken = self.retract if what.startswith("retract") else self.repair
        match what:
            case "retract beside ticks" | "repair beside ticks":
                self.slowly(taken, self.tick, self.tick, self.tick)
            case "retract beside commits" | "repair beside commits":
                self.slowly(taken, self.commit, self.tick)
            case _:
                getattr(self, what)()
        self.check()


DOINGS = (
    *("commit", "crash", "restart", "retract", "repair", "tick", "tick"),
    *(f"{one} beside {other}" for one in ("retract", "repair") for other in ("ticks", "commits")),
)


@pytest.mark.slow
@given(doings=st.lists(st.sampled_from(DOINGS), max_size=12))
@example(["commit", "tick", "tick", "retract beside ticks"])
@example(["commit", "tick", "tick", "repair beside ticks"])
@example(["commit", "tick", "tick", "retract beside commits"])
@example(["commit", "tick", "tick", "repair beside commits"])
@examples()
def test_errors_that_were_shown_stay(doings: list[str]) -> None:
    """Whoever retracts them, and however far the source has gone without a word on errors."""
    source = Source()
    for doing in doings:
        source.do(doing)
    source.retract()
    source.check()
    assert not source.world.contents("in_errors", "raw")


def test_a_source_that_rests_writes_two_records_in_an_interval() -> None:
    """One of its bindings and one of its rows: its errors follow these."""
    world = World()
    timeline = world.timeline()
    world.commit(timeline, 0)
    before = [world.client.state(name).seqno for name in ("in", "in_errors", "in_progress")]
    for _ in range(3):
        world.clock.advance(1000)
        assert timeline.tick(world.clock.now_ms())
    after = [world.client.state(name).seqno for name in ("in", "in_errors", "in_progress")]
    assert [b - a for a, b in zip(before, after, strict=True)] == [3, 0, 3]
    assert len(set(world.uppers())) == 1
    world.commit(timeline, 1)
    errors = world.client.state("in_errors").seqno
    world.commit(timeline, 2)
    assert world.client.state("in_errors").seqno == errors, "it has none"
    again = world.timeline()
    world.clock.advance(5000)
    assert again.tick(world.clock.now_ms())
    assert world.client.state("in_errors").upper == world.client.state("in").upper, "once"

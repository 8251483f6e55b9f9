"""States of views are killed, dropped, written to by others and left behind: contents stay right.

Whatever happens to a state between two steps, or in the middle of one, the view's contents are
those of plain Spark at every time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import pyarrow as pa
import pytest
from typing_extensions import override

from shardline.app.compute.view import group_steps
from shardline.app.compute.view.found_rows import FoundRows
from shardline.app.compute.view.group_steps import GroupSteps
from shardline.app.compute.view.kept_jobs import RESULT_ROWS_MAX
from shardline.app.compute.view.output import ViewSink
from shardline.app.compute.view.shared_changes import changes_of
from shardline.app.compute.view.state_shard import StateShard
from shardline.app.compute.view.step_changes import StepChanges
from shardline.app.compute.view.step_costs import StepCosts
from shardline.app.execution.observations import Measured, Stepped
from shardline.app.protocol.objects import state_shards
from shardline.datasource.errors import MissingBlob
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard.commands.append import Appended
from shardline.datasource.spark_native.leases import LEASE_KEEPER
from shardline.datasource.spark_native.time_interval import Interval
from support.profiles import one_of, some_of
from support.spark.view_world import ORDERS, START, Killed, SteppedView, ViewWorld, World
from support.spark.views import Following, Row, contents

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from shardline.datasource.client import ShardClient

pytestmark = pytest.mark.spark

# ruff: noqa: S608 - queries are put together here

QUERIES: Final = {
    "groups": "SELECT who, count(*) AS n, sum(price) AS total FROM orders GROUP BY who",
    "joined": (
        "SELECT p.city, c.n FROM people p JOIN "
        "(SELECT who, count(*) AS n FROM orders GROUP BY who) c ON c.who = p.name"
    ),
    "nested": (
        "SELECT n, count(*) AS groups FROM "
        "(SELECT who, count(*) AS n FROM orders GROUP BY who) GROUP BY n"
    ),
    "results": (
        "SELECT p.city, c.kg FROM people p JOIN "
        "(SELECT who, sum(weight) AS kg FROM orders GROUP BY who) c ON c.who = p.name"
    ),
    "of_results": (
        "SELECT kg, count(*) AS groups FROM "
        "(SELECT who, sum(weight) AS kg FROM orders GROUP BY who) GROUP BY kg"
    ),
}
CUTS: Final = (START, START + 1, 20, 22, 35, 50)
"""Ends of steps: the second begins with the first contents, and the last ones have changes."""

TIMES: Final = (10, 12, 20, 23, 40, 43, 49)


class Turns(StepCosts):
    """Every other step is run anew, so that states are left behind."""

    def __init__(self) -> None:
        super().__init__()
        self._asked = 0

    @override
    def follows(self, times: int, rows: int, changed: int) -> bool:
        self._asked += 1
        return self._asked % 2 == 0


class Behind(StepCosts):
    """The query run anew is the cheaper way for one time, and no longer."""

    def __init__(self) -> None:
        super().__init__()
        self.times: list[int] = []

    @override
    def follows(self, times: int, rows: int, changed: int) -> bool:
        self.times.append(times)
        return len(self.times) > 1


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(spark, tmp_path_factory.mktemp("states"))
    yield made
    made.close()


class Followed(SteppedView):
    """A view, its states, and what plain Spark says of it."""

    def states(self) -> list[str]:
        client = self.world.bench.client
        return [name for name in state_shards(self.name) if client.exists(name)]

    def steps(self) -> list[Measured]:
        """What was reported of each step after the first contents."""
        seen = [o for o in self.world.bench.seen if isinstance(o, Measured) and o.id == self.name]
        return seen[1:]

    def ways(self) -> set[str]:
        return {
            name for one in self.steps() for name in one.added if name.startswith("evaluations_")
        }

    def check(self) -> None:
        for time in TIMES:
            found = contents(self.world.bench.client, self.name, time)
            assert found == self.world.by_spark(self.query, time), time


def follow(
    world: World,
    name: str,
    query: str,
    disturb: Callable[[Followed], None],
    costs: StepCosts | None = None,
    *,
    from_start: bool = False,
) -> Followed:
    """Keep a view, disturbed before each step; before the first one, too, if `from_start`."""
    found = Followed(world, name, query, Following() if costs is None else costs)
    for lower, upper in itertools.pairwise(CUTS):
        if lower != START or from_start:
            disturb(found)
        found.step(lower, upper)
    found.check()
    return found


def drop_states(found: Followed) -> None:
    for name in found.states():
        found.world.bench.client.drop(name, despite_holders=_holders(found, name))


def _holders(found: Followed, name: str) -> list[str]:
    state = found.world.bench.client.state(name)
    return [*state.leased, *state.critical]


def write_to_states(found: Followed) -> None:
    """Somebody else takes all rows out of them."""
    client = found.world.bench.client
    for name in found.states():
        state = client.state(name)
        upper = state.upper.time
        assert upper is not None
        with client.reader(name, purpose="test") as reader:
            rows = reader.snapshot(upper - 1)
        # There may be none: states are there from the first contents on.
        gone = rows.append_column("_ts", pa.array([upper] * rows.num_rows, pa.int64()))
        gone = gone.append_column("_diff", pa.array([-1] * rows.num_rows, pa.int64()))
        outcome = client.writer(name).compare_and_append(gone, Frontier(upper), Frontier(upper + 1))
        assert isinstance(outcome, Appended)


@pytest.mark.parametrize(
    ("disturb", "query"),
    one_of(8, itertools.product([drop_states, write_to_states], QUERIES)),
    ids=lambda one: getattr(one, "__name__", one),
)
def test_a_state_that_is_lost_is_made_anew(
    world: World, query: str, disturb: Callable[[Followed], None]
) -> None:
    """Dropped, or written to by others: it is not used, and the view follows all the same.

    Where ties decide what is in it, a step is run anew, so that all is of one choice.
    """
    found = follow(world, f"{disturb.__name__}_{query}", QUERIES[query], disturb)
    assert ("evaluations_incremental" in found.ways()) == ("results" not in query)


@pytest.mark.parametrize("query", some_of(QUERIES, {"nested"}))
def test_a_state_that_was_left_behind_is_brought_up_to_its_inputs(world: World, query: str) -> None:
    """Steps that run the query anew do not touch it."""
    found = follow(world, f"behind_{query}", QUERIES[query], lambda _: None, Turns())
    assert found.ways() >= {"evaluations_incremental", "evaluations_recompute"}
    for one in found.steps():
        assert {"step_ms", "rows_looked_up"} <= set(one.now)
    assert any(one.now["rows_looked_up"] for one in found.steps())


def test_a_view_that_is_behind_is_not_run_anew_at_each_time_that_it_lacks(world: World) -> None:
    """The way is asked for after each, and the rest of the micro-batch is followed in one step."""
    costs = Behind()
    found = Followed(world, "behind", QUERIES["groups"], costs)
    found.step(START, START + 1)
    found.step(START + 1, CUTS[-1])
    found.check()
    taken = [one for one in world.bench.told(Stepped) if one.id == "behind"][1:]
    assert [one.way for one in taken] == ["recompute", "incremental"]
    assert taken[-1].upper == CUTS[-1]
    # Of two changes; of the one that is left, before its step and in it.
    assert costs.times == [2, 1, 1]


def test_a_query_is_run_anew_where_something_changes_and_nowhere_else(world: World) -> None:
    """Also where a part spans several times, so that these are read from its rows."""
    query = "SELECT who, day, rank() OVER (ORDER BY who, day) AS place FROM visits"
    found = Followed(world, "anew", query, Following())
    found.step(START, START + 1)
    found.step(START + 1, CUTS[-1])
    found.check()
    changes = {time for time, _, _ in world.inputs["visits"].history if time > START}
    taken = [one for one in world.bench.told(Stepped) if one.id == "anew"]
    assert [one.way for one in taken] == ["recompute"] * (1 + len(changes))


def test_changes_of_states_take_no_room_of_those_of_inputs(world: World) -> None:
    """Only inputs are read by several views."""
    found = follow(world, "sharing", QUERIES["nested"], lambda _: None)
    client = world.bench.client
    states = {client.state(name).shard for name in found.states()}
    read = {shard for shard, _, _, _ in changes_of(client)._reads}
    assert client.state("orders").shard in read
    assert states
    assert not read & states


@pytest.mark.parametrize("query", some_of(QUERIES, {"joined"}))
def test_a_state_may_forget_what_it_was_before_a_step(
    world: World, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the middle of it: its changes cannot be told apart any more, and the step is run anew."""
    forgotten: list[str] = []
    add = StepChanges.add

    def forget_first(self: StepChanges, name: str, *args: Any) -> None:
        add(self, name, *args)
        if name in world.inputs:
            return
        LEASE_KEEPER.beat()
        for shard in found.states():
            upper = world.bench.client.state(shard).upper.time
            if upper:
                forget_before(world.bench.client, shard, upper - 1)
                forgotten.append(shard)

    found = Followed(world, f"forgets_{query}", QUERIES[query], Following())
    for lower, upper in itertools.pairwise(CUTS):
        found.step(lower, upper)
        if upper == 22:
            monkeypatch.setattr(StepChanges, "add", forget_first)
    found.check()
    assert forgotten
    assert "evaluations_recompute" in found.ways()


def forget_before(client: ShardClient, shard: str, time: int) -> None:
    """Let history before a time be gone, as maintenance does some minutes later."""
    client.set_retention(shard, None)
    hold = client.hold(shard, "test")
    hold.downgrade(Frontier(time))
    hold.expire()
    assert client.state(shard).since == Frontier(time)


KILLS: Final = {
    "before a state is written": (StateShard, "append", False),
    "after a state is written": (StateShard, "append", True),
    "before the output is written": (ViewSink, "append", False),
    "after the output is written": (ViewSink, "append", True),
    "before a state is made": (StateShard, "make_anew", False),
    "after a state is made": (StateShard, "make_anew", True),
}


@pytest.mark.parametrize(
    ("query", "kill"),
    some_of(
        itertools.product(["joined", "nested", "results", "of_results"], KILLS),
        [("joined", "before a state is written"), ("of_results", "before the output is written")],
    ),
)
def test_a_step_that_is_killed_is_taken_once(
    world: World, query: str, kill: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of its appends was the last one: the first in one step, the second in the next."""
    cls, name, after = KILLS[kill]
    given: Callable[..., Any] = getattr(cls, name)
    left = [0]
    kills: list[str] = []

    def wrapped(*args: Any, **more: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and not after:
            kills.append(name)
            raise Killed
        outcome = given(*args, **more)
        if left[0] == 0:
            kills.append(name)
            raise Killed
        return outcome

    monkeypatch.setattr(cls, name, wrapped)
    turns = itertools.cycle([1, 2])

    def arm(_: Followed) -> None:
        left[0] = next(turns)

    # States are made with the first contents.
    called = f"killed_{query}_{list(KILLS).index(kill)}"
    found = follow(world, called, QUERIES[query], arm, from_start=name == "make_anew")
    assert kills
    assert "evaluations_incremental" in found.ways()


def test_another_definition_does_not_use_them(world: World) -> None:
    """Of the same name and columns, over other rows."""
    found = Followed(world, "changed", QUERIES["groups"], Following())
    for lower, upper in itertools.pairwise(CUTS[:5]):
        found.step(lower, upper)
    assert found.states()
    query = QUERIES["groups"].replace("FROM orders", "FROM orders WHERE price > 9")
    found = Followed(world, "changed", query, Following())
    for lower, upper in itertools.pairwise(CUTS[4:]):
        found.step(lower, upper)
    for time in (t for t in TIMES if t >= CUTS[4]):
        assert contents(world.bench.client, "changed", time) == world.by_spark(query, time), time


def test_a_count_below_nothing_is_never_shown(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state that cannot be right is dropped, and the view recomputed."""
    dropped: list[str] = []
    given = StateShard.drop

    def drop(state: StateShard) -> None:
        dropped.append(state.name)
        given(state)

    monkeypatch.setattr(StateShard, "drop", drop)

    def forge(found: Followed) -> None:
        """Take all groups away, under the state's own writer."""
        client = found.world.bench.client
        for name in found.states():
            state = client.state(name)
            upper = state.upper.time
            assert upper is not None
            [writer] = [w for w, mine in state.writers.items() if mine.upper == upper]
            with client.reader(name, purpose="test") as reader:
                rows = reader.snapshot(upper - 1)
            gone = rows.append_column("_ts", [[upper] * rows.num_rows])
            gone = gone.append_column("_diff", [[-1] * rows.num_rows])
            outcome = client.writer(name, writer).compare_and_append(
                gone, Frontier(upper), Frontier(upper + 1), sequence=upper + 1
            )
            assert isinstance(outcome, Appended)
            dropped.clear()

    found = Followed(world, "forged", QUERIES["groups"], Following())
    for lower, upper in itertools.pairwise(CUTS[:5]):
        found.step(lower, upper)
    assert found.states()
    forge(found)
    # Rows go at 40 that the state does not know of.
    found.step(35, 50)
    assert "forged_state_1" in dropped
    assert contents(world.bench.client, "forged", 49) == world.by_spark(QUERIES["groups"], 49)


GROUPS: Final = "(SELECT who, count(*) AS n, sum(price) AS total FROM orders GROUP BY who)"
ABOVE: Final = {
    "limit": f"SELECT who, total FROM {GROUPS} ORDER BY total DESC, who LIMIT 2",
    "offset": f"SELECT who, n FROM {GROUPS} WHERE n > 1 ORDER BY n, who LIMIT 2 OFFSET 1",
    "window": f"SELECT who, row_number() OVER (ORDER BY n, who) AS place FROM {GROUPS}",
    "global": f"SELECT median(n) AS middle, max_by(who, (total, who)) AS most FROM {GROUPS}",
    "rows": "SELECT o.id, p.city FROM orders o JOIN people p ON o.who = p.name "
    "ORDER BY o.price DESC, o.id, p.city LIMIT 3",
    "places": "SELECT id, price + 1 AS more FROM (SELECT id, price FROM "
    "(SELECT o.id, o.price, p.city FROM orders o JOIN people p ON o.who = p.name "
    "ORDER BY o.price, p.city, o.id LIMIT 5) "
    "WHERE city IS NOT NULL ORDER BY price DESC, id LIMIT 2)",
    "copies": "SELECT p.city FROM orders o JOIN people p ON o.who = p.name "
    "ORDER BY p.city LIMIT 3 OFFSET 1",
    "rows_and_groups": f"SELECT upper(p.city) AS city, c.n FROM {GROUPS} c, people p "
    "WHERE c.who = p.name ORDER BY p.city, p.name LIMIT 2",
    "two": f"SELECT a.who, b.who AS other FROM {GROUPS} a LEFT JOIN {GROUPS} b ON a.n < b.n "
    "ORDER BY a.who, b.who LIMIT 3",
}
"""Queries with operators above states that do not follow changes."""


@pytest.mark.parametrize("name", some_of(ABOVE, {"rows_and_groups"}))
def test_what_reads_groups_alone_is_run_anew_over_them(world: World, name: str) -> None:
    """At each time, and not over the inputs."""
    query = ABOVE[name]
    kept = world.kept(f"above_{name}", query)
    assert kept.strategy == "incremental"
    ways = world.follow(kept, partial(world.by_spark, query))
    assert ways == {"recompute", "incremental"}


@pytest.mark.parametrize("kill", some_of(KILLS, {"before the output is written"}))
def test_a_step_over_groups_that_is_killed_is_taken_once(
    world: World, kill: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States are ahead of the output by several times of changes."""
    cls, name, after = KILLS[kill]
    given: Callable[..., Any] = getattr(cls, name)
    armed: list[bool] = []

    def wrapped(*args: Any, **more: Any) -> Any:
        if not armed:
            return given(*args, **more)
        if not after:
            armed.clear()
            raise Killed
        given(*args, **more)
        armed.clear()
        raise Killed

    monkeypatch.setattr(cls, name, wrapped)
    turns = itertools.cycle([False, True])

    def arm(_: Followed) -> None:
        if next(turns):
            armed.append(True)

    place = list(KILLS).index(kill)
    found = follow(world, f"above_killed_{place}", ABOVE["limit"], arm)
    # A step whose last append was its end has reported nothing; states are made by no other way.
    assert found.states()


PART: Final = (20, 30, 40)
"""Times of changes in one part, of which a state of the shard tells the first one alone."""


@pytest.fixture(scope="module")
def one_part(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> ViewWorld:
    """An input whose changes after the first rows are one part."""
    made = ViewWorld(spark, tmp_path_factory.mktemp("part"), (START + 1, 50), (START, *PART, 49))
    found = made.inputs["orders"] = made.bench.input("orders", ORDERS)

    def row(who: str, price: int) -> Row:
        return (price, who, price, None, None, None)

    found.push(START, (row("ada", 5), 1), (row("bob", 6), 1), (row("cyd", 7), 1))
    found.append([(time, row("bob", 100 * time), 1) for time in PART], 50)
    return made


@pytest.mark.parametrize(
    "query", one_of(2, [QUERIES["groups"], ABOVE["limit"]]), ids=["groups", "above"]
)
def test_a_step_that_ends_early_leaves_no_time_of_a_part_behind(
    one_part: ViewWorld, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends where a state was left by a kill, or at the next time where what is above is run."""
    name = "early" if query == ABOVE["limit"] else "killed"
    found = Followed(one_part, name, query, Following())
    given = StateShard.append

    def append(*args: Any, **more: Any) -> bool:
        given(*args, **more)
        raise Killed

    for interval in (Interval(START, START + 1, starts=True), Interval(START + 1, 25)):
        with monkeypatch.context() as patched:
            patched.setattr(StateShard, "append", append)
            with pytest.raises(Killed):
                found.view.advance(one_part.session, interval)
        found.start()
        if interval.starts:
            found.step(START, START + 1)
    found.step(START + 1, 50)
    for time in (START, *PART, 49):
        right = one_part.by_spark(query, time)
        assert contents(one_part.bench.client, name, time) == right, time
    assert found.ways() == {"evaluations_incremental"}


LOST: Final = {
    "found by key": (QUERIES["joined"], FoundRows, "rows"),
    "read whole": (ABOVE["limit"], StateShard, "contents"),
}


@pytest.mark.parametrize("name", some_of(LOST, {"found by key"}))
def test_a_state_with_a_lost_part_is_made_anew(
    world: World, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where only what is above reads it: its rows are in the inputs."""
    query, cls, reads = LOST[name]
    armed: list[bool] = []
    lost: list[bool] = []
    given: Callable[..., Any] = getattr(cls, reads)

    def read(*args: Any, **more: Any) -> Any:
        if armed:
            armed.clear()
            lost.append(True)
            raise MissingBlob("part 'x' is not there", code="BLOB_DELETED")
        return given(*args, **more)

    monkeypatch.setattr(cls, reads, read)
    follow(world, f"lost_{reads}", query, lambda _: armed.append(True))
    assert lost


def test_rows_that_cannot_be_counted_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their frame would stay in Spark's cache, and hold the parts that it is of, for ever."""
    cached = mock.Mock()
    cached.rows.count.side_effect = ArithmeticError
    monkeypatch.setattr(group_steps, "cache_frame", lambda _: cached)
    states = mock.Mock(_moved_rows=RESULT_ROWS_MAX + 1)
    with pytest.raises(ArithmeticError):
        GroupSteps._moved(states, mock.Mock(), mock.Mock(), mock.Mock(), mock.Mock())
    cached.release.assert_called_once()

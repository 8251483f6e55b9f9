"""States, outputs and look-ups are damaged on purpose, in a right form: a self-check finds it.

Without one the contents would be wrong from there on, which is shown, too. Expected contents are
those of plain Spark.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from msgspec.structs import replace

from shardline.app.compute.index.shard_lookups import ShardLookups
from shardline.app.compute.view import output_change, state_check
from shardline.app.compute.view.kept_plan import plan_of
from shardline.app.compute.view.maintained_view import View
from shardline.app.compute.view.self_check import SelfCheck, asked_by
from shardline.app.execution.observations import Doubted, Measured, Stepped
from shardline.app.introspection.apply import apply
from shardline.app.introspection.facts import Facts
from shardline.app.introspection.relations.view_steps import VIEW_STEPS
from shardline.app.protocol.objects import state_shards
from shardline.app.sql.normal_form import normal_form
from shardline.app.sql.query_tree import query_tree
from shardline.datasource.frames import analyse_query
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard.commands.append import Appended
from shardline.datasource.spark_native.time_interval import Interval
from support.profiles import some_of
from support.spark.view_world import START, World
from support.spark.views import Following, contents, no_fence

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

# ruff: noqa: S608 - queries are put together here

GROUPS: Final = "SELECT who, count(*) AS n, sum(price) AS total FROM orders GROUP BY who"
QUERIES: Final = {
    "groups": GROUPS,
    "limit": f"SELECT who, total FROM ({GROUPS}) ORDER BY total DESC, who LIMIT 2",
    "average": "SELECT who, avg(price) AS mean FROM orders GROUP BY who",
    "all": "SELECT count(*) AS n, sum(price) AS total FROM orders",
    "nested": f"SELECT n, count(*) AS groups, sum(total) AS total FROM ({GROUPS}) GROUP BY n",
}
"""Of `limit` and `average` rows do not decide the results: only their states can be compared."""

CUTS: Final = (START, START + 1, 20, 22, 35, 50)
"""Ends of steps; inputs change at 10, at 20 and a little after it, and at 40."""


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(spark, tmp_path_factory.mktemp("checked"))
    yield made
    made.close()


class Checked:
    """A view of which one step in so many is checked."""

    def __init__(self, world: World, name: str, query: str, every: int = 1) -> None:
        self.world, self.name, self.query = world, name, query
        bench = world.bench
        description = replace(world.kept(name, query), strategy="incremental")
        host = dataclasses.replace(bench.host, self_check_every=every)
        self.view = View(host, bench.incarnation(name, START), description, no_fence, Following())

    def step(self, lower: int, upper: int) -> None:
        self.view.advance(self.world.session, Interval(lower, upper, starts=lower == START))

    def follow(self, *cuts: int) -> None:
        for lower, upper in itertools.pairwise(cuts):
            self.step(lower, upper)

    def doubts(self) -> list[tuple[str, str]]:
        seen = self.world.bench.seen
        return [(o.finding, o.shard) for o in seen if isinstance(o, Doubted) and o.id == self.name]

    def count(self, name: str) -> int:
        seen = [o for o in self.world.bench.seen if isinstance(o, Measured) and o.id == self.name]
        return int(sum(one.added.get(name, 0) for one in seen))

    def is_right(self, time: int) -> bool:
        found = contents(self.world.bench.client, self.name, time)
        return bool(found == self.world.by_spark(self.query, time))


def damage(checked: Checked, name: str, change: Callable[[pa.Table], pa.Table]) -> None:
    """Put other rows into a shard, under its own writer, as a fault of ours would."""
    client = checked.world.bench.client
    state = client.state(name)
    upper = state.upper.time
    assert upper is not None
    [writer] = [w for w, mine in state.writers.items() if mine.upper == upper]
    with client.reader(name, purpose="test") as reader:
        rows = reader.snapshot(upper - 1)
    updates = [with_diff(rows, upper, -1), with_diff(change(rows), upper, 1)]
    outcome = client.writer(name, writer).compare_and_append(
        pa.concat_tables(updates), Frontier(upper), Frontier(upper + 1), sequence=upper + 1
    )
    assert isinstance(outcome, Appended)


def with_diff(rows: pa.Table, time: int, diff: int) -> pa.Table:
    given = rows.append_column("_ts", pa.array([time] * rows.num_rows, pa.int64()))
    return given.append_column("_diff", pa.array([diff] * rows.num_rows, pa.int64()))


def larger(column: str) -> Callable[[pa.Table], pa.Table]:
    """A thousand more in a column."""

    def change(rows: pa.Table) -> pa.Table:
        place = rows.column_names.index(column)
        field = rows.schema.field(place)
        more = pc.add(rows.column(place), pa.scalar(1000)).cast(field.type)
        return rows.set_column(place, field, more)

    return change


def added_up(checked: Checked, name: str) -> str:
    """The column of a state in which a function adds up."""
    columns = checked.world.bench.client.state(name)
    names = [one for one in _columns(columns) if one[0] not in "kn_"]
    return names[-1]


def _columns(state: Any) -> list[str]:
    from shardline.datasource.types.schema import ShardSchema

    return list(ShardSchema.parse(state.schemas[state.schema_id]).names)


@pytest.mark.parametrize("query", some_of(QUERIES, {"nested"}))
def test_a_damaged_state_is_found_and_the_view_is_right(
    world: World, query: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right in form, and wrong in a value: dropped, counted, and nothing wrong is shown."""
    choose_with(monkeypatch, "k1")
    checked = Checked(world, f"checked_{query}", QUERIES[query])
    checked.follow(*CUTS[:5])
    assert checked.doubts() == []
    shard = state_shards(checked.name)[0]
    damage(checked, shard, larger(added_up(checked, shard)))
    checked.follow(*CUTS[4:])
    assert all(checked.is_right(time) for time in (10, 20, 22, 34, 40, 49))
    assert checked.doubts() == [("audit", shard)]
    assert checked.count("self_check_findings") == 1
    assert checked.count("self_checks") > 1
    reasons = [
        o.reason for o in world.bench.seen if isinstance(o, Stepped) and o.id == checked.name
    ]
    assert "a self-check has found a difference" in reasons


RIGHT: Final = {
    "join": "SELECT o.id, p.city FROM orders o JOIN people p ON o.who = p.name",
    "outer": "SELECT o.id, p.city FROM orders o LEFT JOIN people p ON o.who = p.name",
    "groups": "SELECT p.city, count(*) AS n, min(o.price) AS least FROM orders o "
    "JOIN people p ON o.who = p.name GROUP BY p.city",
    "floats": "SELECT who, sum(weight) AS kg, count(DISTINCT price) AS n FROM orders GROUP BY who",
    "window": "SELECT id, who, rank() OVER (PARTITION BY who ORDER BY price) AS r FROM orders",
    "subquery": "SELECT id, price FROM orders WHERE price > (SELECT avg(price) FROM orders)",
    "value": "SELECT name, (SELECT count(*) FROM orders o WHERE o.who = p.name) AS n FROM people p",
    "union": "SELECT weight, cost, who FROM orders UNION ALL SELECT -0.0D, 1.5BD, name FROM people",
    "distinct": "SELECT DISTINCT who, tags FROM orders",
    "names": "SELECT id AS `a.id`, named_struct('id', price) AS a FROM orders",
}


@pytest.mark.parametrize("query", some_of(RIGHT, {"floats", "names", "value"}))
def test_what_is_right_is_never_doubted(world: World, query: str) -> None:
    """Each step is checked, over NULLs, NaN, -0.0, and rows that are there several times."""
    checked = Checked(world, f"right_{query}", RIGHT[query])
    checked.follow(*CUTS)
    assert checked.doubts() == []
    assert checked.count("self_checks_unfinished") == 0
    assert (checked.count("self_checks") > 0) == (query != "floats")
    assert all(checked.is_right(time) for time in (10, 20, 22, 34, 40, 49))


def test_a_check_that_fails_harms_no_step(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is counted as one that could not be made, and the view goes on by its changes."""

    def fail(*_: Any) -> str:
        raise RuntimeError("a defect of the check")

    monkeypatch.setattr(state_check, "difference", fail)
    monkeypatch.setattr(output_change, "difference", fail)
    checked = Checked(world, "unfinished", GROUPS)
    checked.follow(*CUTS)
    assert checked.doubts() == []
    assert checked.count("self_checks") == 0
    assert checked.count("self_checks_unfinished") > 0
    assert checked.count("evaluations_incremental") > 0
    assert checked.is_right(49)


@pytest.mark.night
def test_without_a_check_it_would_be_shown(world: World) -> None:
    """The same damage, and no step is checked: the test above is about something."""
    checked = Checked(world, "unchecked", GROUPS, every=0)
    checked.follow(*CUTS[:5])
    shard = state_shards(checked.name)[0]
    damage(checked, shard, larger(added_up(checked, shard)))
    checked.follow(*CUTS[4:])
    assert not checked.is_right(49)
    assert checked.doubts() == []
    assert checked.count("self_checks") == 0


def test_a_stale_look_up_is_found(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of an input that a cache lacks are missing in a join, of which no state tells."""
    query = "SELECT o.id, p.city FROM orders o JOIN people p ON o.who = p.name"
    given = ShardLookups.rows
    lost: list[int] = []

    def rows(*args: Any, **more: Any) -> pa.Table | None:
        found = given(*args, **more)
        if found is not None and found.num_rows:
            lost.append(found.num_rows)
            return found.slice(0, 0)
        return found

    choose_with(monkeypatch, "who")
    checked = Checked(world, "stale", query)
    checked.follow(*CUTS[:5])
    assert checked.doubts() == []
    monkeypatch.setattr(ShardLookups, "rows", rows)
    checked.follow(*CUTS[4:])
    assert lost
    assert checked.doubts() == [("audit", "stale")]
    assert all(checked.is_right(time) for time in (10, 20, 22, 34, 40, 49))


def choose_with(monkeypatch: pytest.MonkeyPatch, column: str) -> None:
    """Checks take a changed row that has a value in a column, if there is one."""

    def choose(_: SelfCheck, rows: pa.Table) -> dict[str, Any]:
        found: list[dict[str, Any]] = rows.to_pylist()
        return next((row for row in found if row.get(column) is not None), found[0])

    monkeypatch.setattr(SelfCheck, "choose", choose)


def test_a_damaged_output_is_put_right(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the key is touched: what the output should hold is what the query says."""
    query = "SELECT who, count(*) AS n FROM orders GROUP BY who"
    choose_with(monkeypatch, "who")
    checked = Checked(world, "shown", query)
    checked.follow(*CUTS[:5])
    damage(checked, "shown", larger("n"))
    checked.follow(*CUTS[4:])
    assert checked.is_right(49)
    assert checked.doubts() == [("audit", "shown")]


@pytest.mark.night
def test_a_count_below_nothing_is_counted(world: World) -> None:
    """A state that lacks its groups: their rows go, and are fewer than none."""
    checked = Checked(world, "below", GROUPS, every=0)
    checked.follow(*CUTS[:5])
    shard = state_shards(checked.name)[0]
    damage(checked, shard, lambda rows: rows.slice(0, 0))
    checked.follow(*CUTS[4:])
    assert checked.doubts() == [("negative count", shard)]
    assert checked.count("self_check_findings") == 1
    assert checked.is_right(49)


@pytest.mark.night
def test_a_foreign_writer_is_counted(world: World) -> None:
    """A state that somebody else has written to is made anew."""
    checked = Checked(world, "foreign", GROUPS, every=0)
    checked.follow(*CUTS[:5])
    shard = state_shards(checked.name)[0]
    client = world.bench.client
    upper = client.state(shard).upper.time
    assert upper is not None
    with client.reader(shard, purpose="test") as reader:
        rows = with_diff(reader.snapshot(upper - 1), upper, -1)
    outcome = client.writer(shard).compare_and_append(rows, Frontier(upper), Frontier(upper + 1))
    assert isinstance(outcome, Appended)
    checked.follow(*CUTS[4:])
    assert checked.doubts() == [("foreign writer", shard)]
    assert checked.is_right(49)


def test_a_finding_is_in_the_relation(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the view, what is wrong, and the rows that differ."""
    choose_with(monkeypatch, "k1")
    checked = Checked(world, "noted", GROUPS)
    checked.follow(*CUTS[:5])
    shard = state_shards(checked.name)[0]
    damage(checked, shard, larger(added_up(checked, shard)))
    checked.follow(*CUTS[4:])
    (doubt,) = [o for o in world.bench.seen if isinstance(o, Doubted) and o.id == "noted"]
    facts = Facts()
    facts.self_checks.add(doubt.at_ms, (doubt.id, doubt.finding, doubt.shard, doubt.detail))
    _, relation = VIEW_STEPS
    ((_, view, finding, of, detail),) = relation.rows(facts, doubt.at_ms)
    assert (view, finding, of) == ("noted", "audit", shard)
    assert str(detail).startswith("where {'k1': ")
    apply(facts, doubt, doubt.at_ms)
    assert facts.received.foreign == 1  # of an object that nobody has installed


KEYS: Final = {
    "SELECT who, price * 2 AS twice FROM orders": [{"who": "who"}],
    "SELECT who AS w, count(*) AS n, max(price) AS most FROM orders GROUP BY who": [{"w": "who"}],
    "SELECT o.id, p.city, o.price + 1 AS x FROM orders o JOIN people p ON o.who = p.name": [
        {"id": "id"},
        {"city": "city"},
    ],
    "SELECT a.id, b.id AS other FROM orders a JOIN orders b ON a.who = b.who": [
        {"id": "id"},
        {"other": "id"},
    ],
    "SELECT who FROM orders UNION ALL SELECT name FROM people": [{"who": "who"}, {"who": "name"}],
    "SELECT id, who, rank() OVER (PARTITION BY who ORDER BY price) AS r FROM orders": [
        {"who": "who"}
    ],
    "SELECT count(*) AS n FROM orders": [],
    "SELECT who, sum(weight) AS kg FROM orders GROUP BY who": None,
    "SELECT id FROM orders ORDER BY id LIMIT 3": None,
    "SELECT who, row_number() OVER (PARTITION BY who ORDER BY price) AS r FROM orders": None,
}
"""Columns of a query and of the inputs that a check asks by; none of results that two right answers
may differ in."""


@pytest.mark.parametrize("query", KEYS)
def test_a_check_asks_by_columns_that_reach_the_inputs(world: World, query: str) -> None:
    """A filter by them is taken down; what is computed is compared, and not asked by."""
    session = world.session
    schema = {
        "orders": "id BIGINT, who STRING, price INT, weight DOUBLE",
        "people": "name STRING, city STRING",
    }
    empty = {name: session.createDataFrame([], ddl) for name, ddl in schema.items()}
    tree = query_tree(normal_form(session, plan_of(analyse_query(session, query, empty))))
    names = [str(one.name()) for one in tree.output]
    found = asked_by(session, tree)
    named = [{names[place]: name for place, name in one.columns.items()} for one in found or ()]
    assert (None if found is None else named) == KEYS[query]

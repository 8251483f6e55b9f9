"""States outlive a change of the definition elsewhere, and never one of what they are of."""

from __future__ import annotations

import itertools
import logging
from typing import TYPE_CHECKING, Any, Final

import pytest

from shardline.app.compute.view import state_identity
from shardline.app.compute.view.change_plan import ChangePlan
from shardline.app.compute.view.found_rows import FoundRows
from shardline.app.compute.view.state_identity import StateNames
from shardline.app.compute.view.state_shard import StateShard
from shardline.app.compute.view.view_columns import with_times
from shardline.app.protocol.objects import state_shards
from shardline.app.sql.query_tree import QueryNode, query_tree
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frames import plan_identity
from shardline.datasource.spark_native.time_interval import Interval
from support.spark.view_world import START, Killed, SteppedView, World
from support.spark.views import Following, contents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from shardline.app.compute.view.state_step import StateStep

pytestmark = pytest.mark.spark

# ruff: noqa: S608 - queries are put together here

COUNTS: Final = "SELECT who, count(*) AS n, sum(price) AS total FROM orders GROUP BY who"

CHANGES: Final = {
    # The definition before, and after; for each state afterwards if it is the one before.
    "having": (COUNTS, f"{COUNTS} HAVING count(*) > 1", [True]),
    "above": (COUNTS, f"SELECT upper(who) AS who, n, total + 1 AS total FROM ({COUNTS})", [True]),
    "joined": (
        COUNTS,
        f"SELECT c.who, c.n, c.total FROM people p JOIN ({COUNTS}) c ON c.who = p.name",
        [True],
    ),
    "nested": (
        f"SELECT n, count(*) AS groups FROM ({COUNTS}) GROUP BY n",
        f"SELECT n, count(*) AS groups FROM ({COUNTS}) WHERE n > 1 GROUP BY n",
        [True, False],
    ),
    "beside": (
        f"SELECT n, count(*) AS groups FROM ({COUNTS}) GROUP BY n",
        f"SELECT n, count(*) AS groups FROM ({COUNTS}) GROUP BY n HAVING n <> 2",
        [True, True],
    ),
    "gone": (
        f"SELECT n, count(*) AS groups FROM ({COUNTS}) GROUP BY n",
        f"SELECT n, total AS groups FROM ({COUNTS})",
        [True],
    ),
    "below": (COUNTS, COUNTS.replace("FROM orders", "FROM orders WHERE price > 9"), [False]),
    "key": (
        COUNTS,
        COUNTS.replace("who", "upper(who)").replace("r(who)", "r(who) who", 1),
        [False],
    ),
}

CUTS: Final = {
    # Ends of steps before the change and after it; inputs change at 23 and at 40.
    "before": ((START, START + 1, 20), (22, 35, 50)),
    "then": ((START, START + 1, 22, 40), (41, 45, 50)),
}
"""Inputs change after the new definition has begun; or at the very time at which it begins, which
states of the one before have not reached."""

TIMES: Final = (40, 43, 49)


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    made = World(spark, tmp_path_factory.mktemp("identity"))
    yield made
    made.close()


def shards_of(world: World, view: str) -> list[str]:
    """The ids of the shards of a view's states."""
    client = world.bench.client
    return [client.state(name).shard for name in state_shards(view) if client.exists(name)]


@pytest.mark.parametrize(
    ("change", "moment"),
    [*((change, "before") for change in CHANGES), ("joined", "then"), ("nested", "then")],
)
def test_a_state_outlives_a_change_elsewhere(
    world: World, change: str, moment: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It follows what has changed since its last step, and is not made of the inputs again."""
    before, after, kept = CHANGES[change]
    cuts, later = CUTS[moment]
    name = f"{change}_{moment}"
    view = SteppedView(world, name, before, Following())
    for lower, upper in itertools.pairwise(cuts):
        view.step(lower, upper)
    there = shards_of(world, name)

    view = SteppedView(world, name, after, Following())
    with caplog.at_level(logging.INFO, "shardline"):
        view.view.advance(world.session, Interval(cuts[-1], later[0], starts=True))
    now = shards_of(world, name)
    assert [one in there for one in now] == kept
    anew = [one for one in caplog.messages if one == "a view's state is made from its inputs"]
    assert len(anew) == kept.count(False)
    for lower, upper in itertools.pairwise(later):
        view.step(lower, upper)
    assert shards_of(world, name) == now
    assert world.steps(name)["incremental"] >= 1
    for time in TIMES:
        found = contents(world.bench.client, name, time)
        assert found == world.by_spark(after, time), time


def test_a_definition_without_states_leaves_none(world: World) -> None:
    view = SteppedView(world, "linear", COUNTS, Following())
    view.step(START, START + 1)
    assert shards_of(world, "linear")
    after = "SELECT who, id AS n, id AS total FROM orders"
    view = SteppedView(world, "linear", after, Following())
    view.view.advance(world.session, Interval(START + 1, 20, starts=True))
    assert not shards_of(world, "linear")
    assert contents(world.bench.client, "linear", 19) == world.by_spark(after, 19)


def test_states_of_a_definition_without_contents_go(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has made its first state, and no rows of the second, when it ends and is replaced."""
    nested = CHANGES["gone"][0]
    for name, after, left in (("fewer", COUNTS, 1), ("none", "SELECT who, id AS n FROM orders", 0)):
        view = SteppedView(world, name, nested, Following())
        with monkeypatch.context() as patched:
            patched.setattr(StateShard, "append", _killed_at_the_second(StateShard.append))
            with pytest.raises(Killed):
                view.view.advance(world.session, Interval(START, START + 1, starts=True))
        assert len(shards_of(world, name)) == 2
        SteppedView(world, name, after, Following()).step(START, START + 1)
        assert len(shards_of(world, name)) == left
        assert contents(world.bench.client, name, START) == world.by_spark(after, START)


def _killed_at_the_second(given: Callable[..., bool]) -> Callable[..., bool]:
    calls = itertools.count(1)

    def append(*args: Any, **more: Any) -> bool:
        if next(calls) == 2:
            raise Killed
        return given(*args, **more)

    return append


def test_inputs_may_forget_what_a_state_has_to_follow(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing holds what they were before the first time of the new definition's stream."""
    before, after, _ = CHANGES["having"]
    view = SteppedView(world, "forgotten", before, Following())
    view.step(START, START + 1)
    given, gone = FoundRows.find, iter([True])

    def find(self: FoundRows, step: StateStep, *args: Any) -> Any:
        if next(gone, False):
            raise InvalidUsage("orders", code="HISTORY_GONE", hint="read later")
        return given(self, step, *args)

    monkeypatch.setattr(FoundRows, "find", find)
    view = SteppedView(world, "forgotten", after, Following())
    view.view.advance(world.session, Interval(24, 35, starts=True))
    assert not next(gone, False)
    view.step(35, 50)
    for time in (24, 34, 40, 49):
        assert contents(world.bench.client, "forgotten", time) == world.by_spark(after, time)


# --- names -------------------------------------------------------------------------------------


class Inputs:
    """Inputs `a` and `b` of some columns."""

    columns = "k INT, n BIGINT, m BIGINT, s STRING, d DECIMAL(10, 2), t TIMESTAMP, x DOUBLE"

    def __init__(self, **ids: str) -> None:
        self.shards_by_name = {"a": "1", "b": "2"} | ids
        self.determinants: tuple[str, ...] = ()


def names(spark: SparkSession, query: str, inputs: Inputs | None = None) -> tuple[str, ...]:
    found: Any = Inputs() if inputs is None else inputs
    schema = spark.createDataFrame([], Inputs.columns).schema
    plan = ChangePlan(spark, query, dict.fromkeys(found.shards_by_name, with_times(schema)))
    return StateNames(spark, "view:x", found).of(plan)


def test_names_tell_of_what_states_are_made(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inputs by their shards, settings, other states by what these are of, and how rows add up."""
    query = "SELECT k, count(*) FROM a JOIN b USING (k) GROUP BY k"
    [own] = names(spark, query)
    assert own.startswith("state:")
    assert names(spark, query) == (own,)
    others = [names(spark, query, Inputs(a="3")), names(spark, query, Inputs(a="2", b="1"))]
    settings = Inputs()
    settings.determinants = ("spark.sql.session.timeZone=Asia/Tokyo",)
    others.append(names(spark, query, settings))
    monkeypatch.setattr(state_identity, "_FORM", 2)
    others.append(names(spark, query))
    assert len({own, *itertools.chain(*others)}) == 5


def test_columns_that_nobody_reads_do_not_count(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An input may get some at any time; to have another type is to be another column."""
    query = (
        "SELECT x.k, x.n, count(*) FROM a x JOIN a y ON x.k = y.n WHERE y.n > 0 GROUP BY x.k, x.n"
    )
    known = names(spark, query)
    found = []
    for columns in (f"{Inputs.columns}, more INT", Inputs.columns.replace("n BIGINT", "n INT")):
        monkeypatch.setattr(Inputs, "columns", columns)
        found.append(names(spark, query) == known)
    assert found == [True, False]
    assert names(spark, query.replace("x.n", "y.n")) != names(spark, query)


def test_a_state_above_is_named_by_the_one_below(spark: SparkSession) -> None:
    """However many others the query has before it; and if there is nothing in between."""
    distinct = "SELECT s, count(DISTINCT n) FROM a GROUP BY s"
    both = [*names(spark, distinct), *names(spark, distinct.replace("FROM a", "FROM b"))]
    assert len(set(both)) == 4
    below = "SELECT k, count(*) AS c FROM a GROUP BY k"
    above = f"SELECT c, count(*) FROM ({below}) GROUP BY c"
    low, high = names(spark, above)
    others = [
        names(spark, above.replace("FROM a", f"FROM {one}")) for one in ("b", "a WHERE n > 0")
    ]
    assert len({low, high, *itertools.chain(*others)}) == 6
    first = "SELECT s, max(n) AS m FROM b GROUP BY s"
    more = f"SELECT * FROM ({first}) x JOIN ({above}) y ON x.m = y.c"
    assert names(spark, more)[1:] == (low, high)


def test_equal_states_of_one_query_are_two(spark: SparkSession) -> None:
    one = "SELECT k, count(*) AS c FROM a GROUP BY k"
    found = names(spark, f"SELECT x.c FROM ({one}) x JOIN ({one}) y ON x.k = y.k + 1")
    assert found[1] == f"{found[0]}:1"


def test_what_a_limit_lets_through_is_of_the_definition(spark: SparkSession) -> None:
    """As are states above it."""
    query = "SELECT k, count(*) FROM (SELECT k FROM a ORDER BY n LIMIT 3) GROUP BY k"
    found = names(spark, query)
    assert all(name.startswith("view:x:") for name in found)


# --- texts of plans ----------------------------------------------------------------------------

DIFFERENT: Final = (
    "n > 5",
    "n >= 5",
    "5 > n",
    "n > '5'",
    "n = hash(5)",
    "n = hash(5L)",
    "n = hash(5S)",
    "n > 5L AND true",
    "k > 5",
    "n > 5 OR k > 5",
    "n <=> 5",
    "s = '5'",
    "s = '5 '",
    "s = '5' COLLATE UTF8_LCASE",
    "s LIKE '5'",
    "s LIKE '5' ESCAPE '!'",
    "s LIKE ANY ('5', '6')",
    "s LIKE ANY ('5', '7')",
    "s LIKE ANY (CAST(X'FF' AS STRING))",
    "s LIKE ANY (CAST(X'FE' AS STRING))",
    "exists(array(n, k), y -> y > 5)",
    "exists(array(n, k), y -> y > k)",
    "exists(array(n, k), y -> n > 5)",
    "forall(array(n, k), y -> y > 5)",
    "s IN ('a', 'b')",
    "s IN ('a, b')",
    "d > 1.5",
    "d > 1.50",
    "d > 1.5D",
    "x > 0D",
    "x > -0D",
    "t > TIMESTAMP '2026-01-01 00:00:00'",
    "t > DATE '2026-01-01'",
    "t > NULL",
    "CAST(s AS INT) > 5",
    "TRY_CAST(s AS INT) > 5",
    "s = X'35'",
    "date_trunc('DAY', t) = t",
    "date_trunc('MONTH', t) = t",
)


def plan_text(spark: SparkSession, query: str) -> str | None:
    frame = spark.sql(query)
    plan = frame._jdf.queryExecution().analyzed()
    found = leaves_of(query_tree(plan))
    return plan_identity(spark, plan, {leaf.numbers[0]: leaf.input for leaf in found})


def leaves_of(node: QueryNode) -> list[QueryNode]:
    below = [leaf for child in node.children for leaf in leaves_of(child)]
    return [node, *below] if node.input in ("a", "b") else below


@pytest.fixture
def tables(spark: SparkSession) -> Iterator[SparkSession]:
    session = spark.newSession()
    for name in ("a", "b"):
        session.createDataFrame([], Inputs.columns).createOrReplaceTempView(name)
    yield session
    session.catalog.clearCache()


def test_texts_differ_where_plans_do(tables: SparkSession) -> None:
    conditions = [plan_text(tables, f"SELECT * FROM a WHERE {one}") for one in DIFFERENT]
    joins = [
        plan_text(tables, f"SELECT {columns} FROM {one} {kind} JOIN {two} ON a.k = b.k")
        for columns in ("a.k, b.n", "b.k, a.n")
        for one, two in (("a", "b"), ("b", "a"))
        for kind in ("", "LEFT", "FULL")
    ]
    # Which column of an input it is, where nothing else tells.
    columns = [plan_text(tables, f"SELECT k FROM a WHERE {one} > 5") for one in ("n", "m")]
    found = conditions + joins + columns
    assert None not in found
    assert len(set(found)) == len(found)


def test_texts_do_not_depend_on_numbers(tables: SparkSession) -> None:
    query = "SELECT k, x.n + 1 AS m FROM a x JOIN (SELECT k, max(n) n FROM b GROUP BY k) USING (k)"
    assert plan_text(tables, query) == plan_text(tables, query)
    assert plan_text(tables, query) == plan_text(tables, query.replace(" FROM", "\n  FROM"))


def test_texts_do_not_depend_on_names_that_a_query_gives(tables: SparkSession) -> None:
    """Those of tables, columns and parameters; a column of an input is known by its name."""
    query = (
        "SELECT o.s, exists(array(o.n), y -> y > v) AS e "
        "FROM a AS o JOIN (SELECT k, s, n * 2 AS v FROM b) p ON o.k = p.k"
    )
    renamed = (
        "SELECT a.S, exists(array(a.n), one -> one > twice) AS found "
        "FROM a JOIN (SELECT K, s, n * 2 AS twice FROM b) q ON a.k = q.k"
    )
    known = plan_text(tables, query)
    assert known is not None
    assert plan_text(tables, renamed) == known
    for one, other in (("o.s", "p.s"), ("n * 2", "k * 2L"), ("o.k = p", "o.n = p")):
        assert plan_text(tables, query.replace(one, other)) not in (None, known), other


def test_what_is_not_told_whole_has_no_text(tables: SparkSession) -> None:
    """Functions of users, frames with rows, subqueries in expressions, other tables."""
    tables.udf.register("own", lambda n: n, "BIGINT")
    tables.createDataFrame([(1,)], "k INT").createOrReplaceTempView("rows")
    for query in (
        "SELECT own(n) FROM a",
        "SELECT * FROM a WHERE n > (SELECT max(n) FROM b)",
        "SELECT * FROM rows",
    ):
        assert plan_text(tables, query) is None, query
    frame: DataFrame = tables.createDataFrame([(1,)], "k INT")
    analysed = frame._jdf.queryExecution().analyzed()
    assert plan_identity(tables, analysed, {}) is None

"""A plan over changes is made once, and each step gives it rows; it follows its inputs' columns.

That contents are right at every time is shown by `test_view_oracle` and `test_view_stars`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest
from pyspark.errors import ArithmeticException, NumberFormatException

from shardline.app.compute.view import change_plan
from shardline.app.compute.view.change_plan import ChangePlan, NotIncremental, StepPlan
from shardline.app.compute.view.change_query import ChangeQuery
from shardline.app.compute.view.kept_plan import Leaf
from shardline.app.compute.view.look_up import KeySource
from shardline.app.compute.view.touched_keys import OUTPUT
from shardline.app.protocol.objects import ViewDescription
from shardline.app.sql.safe_expressions import cannot_fail
from shardline.datasource.errors import Indeterminate
from shardline.datasource.types.schema import DIFF, TS
from support.profiles import one_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

HIDDEN = f"{TS} BIGINT NOT NULL, {DIFF} BIGINT NOT NULL"


def changes(spark: SparkSession, columns: str, *rows: tuple[object, ...]) -> DataFrame:
    return spark.createDataFrame(list(rows), f"{columns}, {HIDDEN}")


def rows_of(frame: DataFrame) -> list[tuple[object, ...]]:
    return sorted(tuple(row) for row in frame.collect())


def contents(spark: SparkSession, columns: str, *rows: tuple[object, ...]) -> DataFrame:
    return spark.createDataFrame(list(rows), columns)


def taken_over(
    session: SparkSession,
    step: StepPlan,
    given: Mapping[str, DataFrame],
    there: Mapping[str, DataFrame],
) -> DataFrame:
    """A step's change, where each look-up finds all rows of its input."""
    found = {one.leaf: there[one.leaf.name] for one in step.look_ups}
    return step.over(session, given, there, found)


def needs(step: StepPlan) -> dict[str, set[tuple[str, ...]]]:
    """The keys by which a step looks rows up, by input; none of an input that it reads whole."""
    keys: dict[str, set[tuple[str, ...]]] = {name: set() for name in step.before}
    for one in step.look_ups:
        keys.setdefault(one.leaf.name, set()).add(one.key)
    return keys


def test_each_step_has_its_own_rows(spark: SparkSession) -> None:
    """Of two inputs, one of them read twice; with the time and diff of each row."""
    columns = "a BIGINT"
    query = "SELECT a FROM t UNION ALL SELECT -a FROM t WHERE a > 1 UNION ALL SELECT a * 10 FROM u"
    first = {"t": changes(spark, columns, (1, 5, 1), (2, 6, -1)), "u": changes(spark, columns)}
    second = {"t": changes(spark, columns, (3, 7, 2)), "u": changes(spark, columns, (4, 8, -3))}
    plan = ChangePlan(spark, query, {name: frame.schema for name, frame in first.items()})
    step = plan.step({"t", "u"})
    assert not step.before
    assert rows_of(step.over(spark, first, {})) == [(-2, 6, -1), (1, 5, 1), (2, 6, -1)]
    assert rows_of(step.over(spark, second, {})) == [(-3, 7, 2), (3, 7, 2), (40, 8, -3)]
    assert not spark.catalog.listTables()


def test_plans_that_were_used_last_are_kept(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are as many as sets of inputs that can change together: not all are kept."""
    monkeypatch.setattr(change_plan, "_STEPS_MAX", 2)
    frames = {name: changes(spark, "a BIGINT", (1, 5, 1)) for name in ("t", "u")}
    query = "SELECT a FROM t UNION ALL SELECT -a FROM u"
    plan = ChangePlan(spark, query, {name: frame.schema for name, frame in frames.items()})
    both, first = plan.step({"t", "u"}), plan.step({"t"})
    assert plan.step({"u", "t"}) is both
    assert rows_of(plan.step({"u"}).over(spark, {"u": frames["u"]}, {})) == [(-1, 5, 1)]
    assert plan.step({"t", "u"}) is both
    assert plan.step({"t"}) is not first


def test_an_error_of_the_store_refuses_no_later_step(spark: SparkSession) -> None:
    """Sizes of inputs are asked for while a step is planned; the query itself can be followed."""
    frames = {name: changes(spark, "a BIGINT", (1, 5, 1)) for name in ("t", "u")}
    left = [1]

    def rows_for_each_key(_name: str, _key: object) -> float:
        if left[0]:
            left[0] -= 1
            raise Indeterminate("the store did not answer")
        return 1.0

    query = "SELECT t.a FROM t JOIN u ON t.a = u.a"
    given = {name: frame.schema for name, frame in frames.items()}
    plan = ChangePlan(spark, query, given, rows_for_each_key)
    with pytest.raises(Indeterminate):
        plan.step({"t"})
    assert needs(plan.step({"t"})) == {"u": {("a",)}}


def test_a_step_says_nothing_to_sparks_parser(spark: SparkSession) -> None:
    """The text is read when the plan is made: another view of its name makes no difference."""
    frame = changes(spark, "a BIGINT", (1, 5, 1))
    plan = ChangePlan(spark, "SELECT a + 1 AS b FROM t", {"t": frame.schema})
    spark.sql("SELECT 'another' AS a").createOrReplaceTempView("t")
    try:
        assert rows_of(plan.step({"t"}).over(spark, {"t": frame}, {})) == [(2, 5, 1)]
    finally:
        spark.catalog.dropTempView("t")


def test_inputs_with_other_columns_get_a_plan_of_their_own(spark: SparkSession) -> None:
    """A column that is new, wider, or null for the first time."""
    query = "SELECT a FROM t"
    view = ViewDescription(
        name="v", query=query, inputs=("t",), schema="a BIGINT", strategy="linear"
    )
    asked = ChangeQuery(view, spark.createDataFrame([], "a BIGINT").schema)
    for columns, row in {
        "a BIGINT NOT NULL": (1, 5, 1),
        "a BIGINT": (None, 5, 1),
        "a BIGINT, b STRING": (2, "new", 5, 1),
        "b STRING, a BIGINT": ("before", 3, 5, 1),
    }.items():
        given = {"t": changes(spark, columns, row)}
        assert asked.plan(spark, {"t": given["t"].schema}) is not None, columns
        step = asked.step({"t"})
        assert step is not None, columns
        value = row[columns.split(", ").index(next(c for c in columns.split(", ") if c[0] == "a"))]
        assert rows_of(step.over(spark, given, {})) == [(value, 5, 1)]
    assert asked.plan(spark, {"t": changes(spark, "a INT").schema}) is None, "another type"
    assert asked.plan(spark, {"t": changes(spark, "a BIGINT").schema}) is None, "doubted once"


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("SELECT a, rand() AS r FROM t", "not deterministic"),
        (
            "SELECT sum(DISTINCT CAST(a AS DOUBLE)) AS n FROM t",
            r"an aggregate \(sum\(DISTINCT\)\)",
        ),
        ("SELECT sum(CAST(a AS DOUBLE)) AS n FROM t", r"an aggregate \(sum of DOUBLE\)"),
        ("SELECT l.a FROM t l FULL JOIN t r ON l.a < r.a", "a full outer join of two inputs"),
        ("SELECT l.a FROM t l JOIN (SELECT median(a) AS a FROM t) r ON l.a = r.a", "percentile"),
        ("SELECT a FROM t WHERE a > (SELECT a FROM t)", "a scalar subquery"),
        ("SELECT a FROM t WHERE EXISTS (SELECT a FROM t)", "a subquery in EXISTS"),
        (
            (
                "SELECT l.a FROM t l JOIN t r ON l.a = r.a AND EXISTS (SELECT 1 FROM t x "
                "WHERE x.a = r.a AND EXISTS (SELECT 1 FROM t y WHERE y.a = x.a))"
            ),
            "a subquery with outer columns",
        ),
        ("SELECT a FROM t WHERE a IN (SELECT first(a) FROM t)", r"an aggregate \(first\)"),
        ("SELECT a FROM t LIMIT 1", "LIMIT"),
        ("SELECT 1 AS a", "rows that come from no input"),
    ],
)
def test_a_query_that_needs_more_than_changes_is_refused(
    spark: SparkSession, query: str, reason: str
) -> None:
    """When the plan is made, with the reason."""
    with pytest.raises(NotIncremental, match=reason):
        ChangePlan(spark, query, {"t": changes(spark, "a BIGINT").schema})


JOINED = "SELECT t.k, a, b, c FROM t JOIN u ON t.k = u.k JOIN v ON u.k = v.k WHERE a < b"


def test_a_pair_that_changes_on_both_sides_counts_once(spark: SparkSession) -> None:
    """At the later of its times, with the product of its diffs; what was there counts, too."""
    given = {
        "t": changes(spark, "k INT, a INT", (1, 10, 5, 1), (2, 20, 6, -1)),
        "u": changes(spark, "k INT, b INT", (1, 11, 7, 2), (2, 21, 6, -1)),
        "v": changes(spark, "k INT, c INT"),
    }
    there = {
        "t": contents(spark, "k INT, a INT", (2, 20), (2, 20)),
        "u": contents(spark, "k INT, b INT", (2, 21)),
        "v": contents(spark, "k INT, c INT", (1, 12), (2, 22), (2, 23)),
    }
    plan = ChangePlan(spark, JOINED, {name: frame.schema for name, frame in given.items()})
    # (1, 10) and (1, 11) are both new. Both pairs of (2, 20) and (2, 21) go with (2, 21): the row
    # that goes from `t` takes one of them, and is not to be taken twice.
    both = plan.step({"t", "u"})
    assert needs(both) == {"t": {("k",)}, "u": {("k",)}, "v": {("k",)}}
    found = Counter[tuple[object, ...]]()
    for *row, diff in rows_of(taken_over(spark, both, given, there)):
        found[tuple(row)] += int(str(diff))
    expected = {(1, 10, 11, 12, 7): 2, (2, 20, 21, 22, 6): -2, (2, 20, 21, 23, 6): -2}
    assert {row: diff for row, diff in found.items() if diff} == expected
    one = plan.step({"v"})
    assert needs(one) == {"t": {("k",)}, "u": {("k",)}}
    given["v"] = changes(spark, "k INT, c INT", (2, 24, 9, 3))
    assert rows_of(taken_over(spark, one, given, there)) == [(2, 20, 21, 24, 9, 3)] * 2


def test_diffs_whose_product_does_not_fit_are_an_error(spark: SparkSession) -> None:
    """Also in a session whose own arithmetic wraps around."""
    session = spark.newSession()
    session.conf.set("spark.sql.ansi.enabled", "false")
    given = {
        name: session.createDataFrame([(1, 5, 2**40)], f"k INT, {HIDDEN}") for name in ("t", "u")
    }
    there = {name: session.createDataFrame([], "k INT") for name in ("t", "u")}
    query = "SELECT t.k FROM t JOIN u ON t.k = u.k"
    active = spark.createDataFrame([], "k INT").sparkSession
    plan = ChangePlan(session, query, {name: frame.schema for name, frame in given.items()})
    assert type(spark).getActiveSession() is active, "PySpark has one for all threads"
    with pytest.raises(ArithmeticException, match="OVERFLOW"):
        taken_over(session, plan.step({"t", "u"}), given, there).collect()


@pytest.mark.parametrize(
    ("join", "linear_in"),
    [("LEFT JOIN", "t"), ("LEFT SEMI JOIN", "t"), ("LEFT ANTI JOIN", "t"), ("RIGHT JOIN", "u")],
)
def test_an_outer_join_follows_changes_of_one_side(
    spark: SparkSession, join: str, linear_in: str
) -> None:
    """Without a key. Where the other one changes, it has to be recomputed."""
    columns = {name: changes(spark, "k INT").schema for name in ("t", "u")}
    plan = ChangePlan(spark, f"SELECT * FROM t {join} u ON t.k < u.k", columns)  # noqa: S608
    other = {"t": "u", "u": "t"}[linear_in]
    assert needs(plan.step({linear_in})) == {other: set()}
    with pytest.raises(NotIncremental, match=r"side of a .* join has changed"):
        plan.step({other})
    with pytest.raises(NotIncremental):
        plan.step({"t", "u"})
    by_key = ChangePlan(spark, f"SELECT * FROM t {join} u ON t.k = u.k", columns)  # noqa: S608
    assert needs(by_key.step({linear_in})) == {other: {("k",)}}
    assert set(needs(by_key.step({other}))) == {"t", "u"}
    assert not needs(plan.step(set()))


INPUTS = {
    "t": "a INT, b BIGINT, s STRING, x DOUBLE, c STRING COLLATE UNICODE_CI",
    "u": "a BIGINT, b BIGINT, s STRING, x DOUBLE, c STRING COLLATE UNICODE_CI",
    "v": "a INT, s STRING",
}
UNION = "(SELECT a, b FROM u UNION ALL SELECT a, 1 FROM v)"
PADDED = "(SELECT v.a, u.b FROM v LEFT JOIN u ON u.a = v.a)"
SEMI_JOINED = "(SELECT u.a FROM u LEFT SEMI JOIN v ON v.s = u.s)"
FILTERED = "(SELECT u.a, upper(v.s) AS s FROM u, v WHERE v.s = u.s)"
T_SIDE = "SELECT t.a FROM t JOIN u ON "


OTHER_SIDES = [
    (T_SIDE + "t.a = u.a", {"u": {("a",)}}),  # of two widths
    (T_SIDE + "u.b = t.b AND t.s <=> u.s AND t.a < u.a", {"u": {("b", "s")}}),
    (T_SIDE + "t.x = u.x", {"u": set()}),  # 0.0 and -0.0
    (T_SIDE + "t.c = u.c", {"u": set()}),  # 'a' and 'A'
    (T_SIDE + "t.a = u.s", {"u": set()}),
    (T_SIDE + "t.a + 1 = u.a", {"u": set()}),
    (T_SIDE + "t.a < u.a", {"u": set()}),
    (T_SIDE + "t.a = u.a OR t.b = u.b", {"u": set()}),
    (T_SIDE + "t.a = u.a AND t.a = u.b", {"u": {("a", "b")}}),
    (T_SIDE + "t.a = u.a AND t.b = u.a", {"u": {("a",)}}),
    ("SELECT 1 AS one FROM t, u WHERE t.b = u.b AND u.a > 3", {"u": {("b",)}}),
    (
        "SELECT t.a FROM t JOIN (SELECT a AS y, upper(s) AS s FROM u WHERE b > 1) ON a = y",
        {"u": {("a",)}},
    ),
    (
        T_SIDE.replace("u ON", UNION) + " w ON t.a = w.a",
        {"u": {("a",)}, "v": {("a",)}},
    ),
    (
        T_SIDE.replace("u ON", UNION) + " w ON t.b = w.b",
        {"u": set(), "v": set()},
    ),
    (
        "SELECT t.a FROM t JOIN u ON t.a = u.a JOIN v ON v.s = u.s",
        {"u": {("a",)}, "v": {("s",)}},
    ),
    (
        "SELECT t.a FROM t JOIN u ON t.x = u.x JOIN v ON v.s = u.s",
        {"u": set(), "v": set()},  # all of v is joined with all of u
    ),
    (
        "SELECT t.a FROM t JOIN u ON t.a = u.a JOIN v ON v.s = u.s AND v.a = t.a",
        {"u": {("a",)}, "v": {("a",)}},  # the values of a key come from one side
    ),
    ("SELECT t.a FROM t LEFT JOIN u ON t.a = u.a AND u.b > 2", {"u": {("a",)}}),
    (T_SIDE + "(t.a = u.a AND t.b > 1) OR (u.a = t.a AND u.b > 2)", {"u": {("a",)}}),
    (
        T_SIDE.replace("u ON", SEMI_JOINED) + " w ON t.a = w.a",
        {"u": {("a",)}, "v": {("s",)}},
    ),
    (
        T_SIDE.replace("u ON", FILTERED) + " w ON t.a = w.a",
        {"u": {("a",)}, "v": {("s",)}},  # what connects the two is said above their join
    ),
    ("SELECT a FROM t WHERE s NOT IN (SELECT s FROM u)", {"u": set()}),
    ("SELECT a FROM t WHERE EXISTS (SELECT 1 FROM u WHERE u.a = t.b)", {"u": {("a",)}}),
    (
        T_SIDE.replace("u ON", PADDED) + " w ON t.b = w.b",
        {"u": set(), "v": set()},
    ),
]


@pytest.mark.parametrize(("query", "keys"), one_of(2, OTHER_SIDES))
def test_rows_of_the_other_side_are_looked_up_by_what_must_be_equal(
    spark: SparkSession, query: str, keys: dict[str, set[tuple[str, ...]]]
) -> None:
    """Where only `t` changes; what cannot be told by columns of one form is read whole."""
    columns = {
        name: changes(spark, text).schema for name, text in INPUTS.items() if f" {name}" in query
    }
    assert needs(ChangePlan(spark, query, columns).step({"t"})) == keys


TOUCHED = [
    (
        "SELECT s, max_by(a, b) AS m FROM t GROUP BY s",
        {"t": {("s",)}, OUTPUT: {("s",)}},  # the output by its own name of the column
    ),
    (
        "SELECT s AS who, collect_list(a) AS m FROM t GROUP BY s HAVING count(*) > 1",
        {"t": {("s",)}, OUTPUT: {("who",)}},
    ),
    ("SELECT *, rank() OVER (PARTITION BY s ORDER BY a) AS r FROM t", {"t": {("s",)}}),
    ("SELECT *, rank() OVER (PARTITION BY x ORDER BY a) AS r FROM t", {"t": set()}),
    ("SELECT *, rank() OVER (PARTITION BY x, s ORDER BY a) AS r FROM t", {"t": {("s",)}}),
    (
        "SELECT u.s, median(u.a) AS m FROM t, u WHERE t.a = u.a GROUP BY u.s",
        {"u": {("a",), ("s",)}, "t": {("a",)}},
    ),
    (
        "SELECT u.s, median(u.a) AS m FROM t, u WHERE t.x = u.x GROUP BY u.s",
        {"u": set(), "t": set()},  # keys are of rows that were not looked up
    ),
    ("SELECT u.b FROM u LEFT JOIN t ON u.a = t.a", {"u": {("a",)}, "t": {("a",)}}),
    ("SELECT u.b FROM u FULL JOIN t ON u.s <=> t.s", {"u": {("s",)}, "t": {("s",)}}),
    ("SELECT u.b FROM u WHERE a NOT IN (SELECT b FROM t)", None),
]


@pytest.mark.parametrize(("query", "keys"), one_of(2, TOUCHED))
def test_rows_of_touched_keys_are_looked_up(
    spark: SparkSession, query: str, keys: dict[str, set[tuple[str, ...]]] | None
) -> None:
    """Also those that the view has shown; where the key is a column of one form."""
    columns = {
        name: changes(spark, text).schema for name, text in INPUTS.items() if f" {name}" in query
    }
    plan = ChangePlan(spark, query, columns)
    if keys is None:
        with pytest.raises(NotIncremental):
            plan.step({"t"})
    else:
        assert needs(plan.step({"t"})) == keys


@pytest.mark.parametrize(("rows", "order"), [((9, 1), ["v", "u"]), ((1, 9), ["u", "v"])])
def test_what_has_fewer_rows_of_a_key_is_looked_up_first(
    spark: SparkSession, rows: tuple[int, int], order: list[str]
) -> None:
    """As far as that is known; rows of a filtered input are taken for a tenth."""
    sizes = dict(zip("uv", rows, strict=True))
    columns = {name: changes(spark, text).schema for name, text in INPUTS.items()}
    query = "SELECT t.a FROM t, u, v WHERE t.a = u.a AND t.a = v.a"
    plan = ChangePlan(spark, query, columns, lambda name, _: sizes[name])
    assert [one.leaf.name for one in plan.step({"t"}).look_ups] == order
    filtered = ChangePlan(spark, f"{query} AND {order[1]}.s = 'x'", columns, lambda *_: 1)
    assert [one.leaf.name for one in filtered.step({"t"}).look_ups] == order[::-1]


@pytest.mark.parametrize(
    ("joins", "needs_u"),
    [
        ("JOIN u ON t.a = u.a", True),
        ("LEFT SEMI JOIN u ON t.a = u.a", True),
        ("LEFT JOIN u ON t.a = u.a", False),
        ("LEFT ANTI JOIN u ON t.a = u.a", False),
        ("JOIN (SELECT a FROM u UNION ALL SELECT 1L) u ON t.a = u.a", False),
    ],
)
def test_rows_without_a_partner_give_no_keys(
    spark: SparkSession, joins: str, *, needs_u: bool
) -> None:
    """Where a row comes to nothing without one, and no constant may be it."""
    columns = {name: changes(spark, text).schema for name, text in INPUTS.items()}
    query = f"SELECT t.b FROM (SELECT t.* FROM t {joins}) t JOIN v ON v.s = t.s"  # noqa: S608
    of_u, of_v = ChangePlan(spark, query, columns).step({"t"}).look_ups
    (source,) = of_v.sources
    partners = [match.partners for match in source.matches]
    assert partners == ([(KeySource(of_u.leaf, ("a",)),)] if needs_u else [])


def test_filters_hold_of_changes_and_of_what_is_looked_up(spark: SparkSession) -> None:
    """Inside of a region only what is known below it: its rows are added up before a filter."""
    columns = {name: changes(spark, text).schema for name, text in INPUTS.items()}
    query = "SELECT t.b FROM t JOIN u ON t.a = u.a WHERE t.b > 1 AND u.s = 'x'"
    (of_u,) = ChangePlan(spark, query, columns).step({"t"}).look_ups
    assert [len(of_u.where), len(of_u.sources[0].where)] == [1, 1]
    outer = "SELECT t.b FROM t LEFT JOIN u ON t.a = u.a WHERE t.b > 1"
    step = ChangePlan(spark, outer, columns).step({"u"})
    assert step.look_ups
    assert not any(one.where or one.sources[0].where for one in step.look_ups)


FAILING = {
    "condition": (
        "SELECT t.k FROM t JOIN u ON CAST(t.s AS INT) < u.n JOIN v ON v.k = t.k",
        {"t": [(1, "x")], "u": [], "v": []},
        {"t": [], "u": [(10,)], "v": [(5,)]},
    ),
    "where": (
        "SELECT t.k FROM t, u, v WHERE v.k = t.k AND 10 / u.n > t.k",
        {"t": [(1, "x")], "u": [], "v": []},
        {"t": [], "u": [(0,)], "v": [(1,)]},
    ),
    "side": (
        "WITH t AS (SELECT k, CAST(s AS INT) AS n FROM t) "  # noqa: ISC004
        "SELECT t.k FROM t JOIN u ON t.n < u.n JOIN v ON v.k = t.k",
        {"t": [(1, "x")], "u": [], "v": []},
        {"t": [], "u": [(10,)], "v": [(5,)]},
    ),
}
"""Queries that fail; changes and contents before."""


@pytest.mark.parametrize("name", FAILING)
def test_a_change_fails_where_its_query_fails(spark: SparkSession, name: str) -> None:
    """Joins are not reordered where that would leave out the rows at which the query fails."""
    query, news, before = FAILING[name]
    columns = {"t": "k INT, s STRING", "u": "n INT", "v": "k INT"}
    given = {
        one: changes(spark, columns[one], *((*row, 5, 1) for row in rows))
        for one, rows in news.items()
    }
    there = {one: contents(spark, columns[one], *rows) for one, rows in before.items()}
    plan = ChangePlan(spark, query, {one: frame.schema for one, frame in given.items()})
    for one, kinds in columns.items():
        spark.createDataFrame([*before[one], *news[one]], kinds).createOrReplaceTempView(one)
    try:
        whole = spark.sql(query)
        with pytest.raises((ArithmeticException, NumberFormatException)):
            whole.collect()
    finally:
        for one in columns:
            spark.catalog.dropTempView(one)
    with pytest.raises((ArithmeticException, NumberFormatException)):
        taken_over(spark, plan.step({"t"}), given, there).collect()


SAFE_OVER = (
    "a INT, b INT, s STRING, x DOUBLE, t TIMESTAMP, "
    "p DECIMAL(12, 2), q DECIMAL(12, 2), w DECIMAL(38, 2)"
)


@pytest.mark.parametrize(
    ("expression", "safe"),
    [
        ("a = b AND NOT (s IS NULL OR upper(s) RLIKE 'x')", False),
        ("a = b AND NOT (s IS NULL OR startswith(upper(s), 'X'))", True),
        ("CAST(a AS BIGINT) <=> 3L", True),
        ("CAST(a AS STRING) = s", True),
        ("a = s", False),
        ("a + b > 1", False),
        ("a / 2 > 1", False),
        ("coalesce(s, 'x') IN ('x', 'y')", True),
        ("array(a)[b] = 1", False),
        ("a BETWEEN 1 AND b", True),
        ("a BETWEEN 1 AND b / 2", False),
        ("s LIKE '%x_'", True),
        ("s LIKE s", False),
        ("s LIKE '%x!_' ESCAPE '!'", False),
        ("DATE '2026-01-31' + INTERVAL 1 MONTH > CAST(a AS STRING)", False),
        ("CAST(a AS STRING) > CAST(DATE '2026-01-31' + INTERVAL 1 MONTH AS STRING)", True),
        ("a > 1 / 0", False),
        ("x + x * x > 1e300", True),
        ("x / x > 1", False),
        ("p * (1 - q) > 3.5", True),
        ("p * q * p > 3.5", True),
        ("p * q * p * q > 3.5", False),
        ("p + q - q > 3.5", True),
        ("w + w > 3.5", False),
        ("-a > 1", False),
        ("year(CAST(t AS DATE)) = 2026 AND substring(s, 1, 2) IN ('a', 'b')", True),
        ("CAST(s AS DATE) = DATE '2026-01-01'", False),
        # Microseconds count fewer years than days do, and a zone is before the first of them.
        ("t > CAST(t AS DATE)", False),
        ("date_trunc('HOUR', t) = TIMESTAMP '2026-01-01 12:00:00'", False),
        ("t > CAST(t AS TIMESTAMP_NTZ)", False),
        ("t > DATE '2026-01-01'", True),
    ],
)
def test_what_cannot_fail_is_in_a_list(spark: SparkSession, expression: str, safe: bool) -> None:
    """Everything else may."""
    frame = spark.createDataFrame([], SAFE_OVER).where(expression)
    condition = frame._jdf.queryExecution().analyzed().condition()
    assert cannot_fail(spark, condition) == safe


def test_contents_of_other_columns_do_not_fit(spark: SparkSession) -> None:
    """An input may have been evolved between the two looks at it."""
    columns = {"t": changes(spark, "k INT").schema, "u": changes(spark, "k INT").schema}
    step = ChangePlan(spark, "SELECT t.k FROM t JOIN u USING (k)", columns).step({"t"})
    assert step.fits({"u": contents(spark, "k INT NOT NULL")})
    assert not step.fits({"u": contents(spark, "k BIGINT")})
    assert not step.fits({"u": contents(spark, "k INT, more INT")})


def test_each_term_of_a_join_looks_up_what_it_needs_itself(spark: SparkSession) -> None:
    """By the keys of its own rows: of a change, or of what was found for this very term.

    Were the keys of one term taken from the rows of another, a change of a few rows would find most
    of a large input: the orders of all people that any order was looked up for.
    """
    schema = changes(spark, "k BIGINT, n BIGINT").schema
    query = "SELECT a.n FROM a, b, c WHERE a.k = b.k AND b.n = c.n"
    step = ChangePlan(spark, query, dict.fromkeys("abc", schema)).step("abc")
    found = {one.leaf: one for one in step.look_ups}

    def told(leaf: Leaf) -> str:
        """What a look-up is by: `b by k of a's change`."""
        one = found.get(leaf)
        if one is None:
            return f"{leaf.name}'s change"
        keys = " or ".join(sorted(told(source.leaf) for source in one.sources))
        return f"{leaf.name} by {', '.join(one.key)} of ({keys})"

    assert {told(leaf) for leaf in found} == {
        # The change of `a` first: all of `b`, its change too, and all of `c`.
        "b by k of (a's change)",
        "c by n of (b by k of (a's change) or b's change)",
        # That of `b`: what `a` was, and all of `c`.
        "a by k of (b's change)",
        "c by n of (b's change)",
        # That of `c`: what `b` was, and what `a` was.
        "b by n of (c's change)",
        "a by k of (b by n of (c's change))",
    }


def test_constants_are_keys_that_no_input_has(spark: SparkSession) -> None:
    """What they meet is in no input that was looked up, so it is read whole."""
    schema = changes(spark, "k BIGINT, n BIGINT").schema
    query = (
        "SELECT a.n, c.n AS m FROM a JOIN (SELECT k FROM b UNION ALL SELECT 5L) x ON x.k = a.k "
        "JOIN c ON c.k = x.k"
    )
    step = ChangePlan(spark, query, dict.fromkeys("abc", schema)).step("a")
    assert step.before == {"c"}
    assert [(one.leaf.name, one.key) for one in step.look_ups] == [("b", ("k",))]


@pytest.mark.parametrize(
    ("having", "left_out"),
    [
        ("10 div t.k > 1", False),
        ("count(*) > 10 div sum(t.a)", True),
        ("t.k > 1", True),
    ],
)
def test_only_what_is_said_of_keys_goes_below_an_aggregate(
    spark: SparkSession, having: str, left_out: bool
) -> None:
    """There it would be evaluated before a filter, whose rows must not be left out then."""
    columns = {"t": "k INT, a INT", "u": "k INT"}
    query = "SELECT t.k, count(*) AS n FROM t JOIN u ON t.k = u.k AND t.a > 1 GROUP BY t.k HAVING "
    given = {name: changes(spark, kinds).schema for name, kinds in columns.items()}
    plan = ChangePlan(spark, query + having, given)
    updates = changes(spark, columns["t"], (0, 0, 5, 1)).toArrow()
    assert (plan.concerning("t", updates).num_rows == 0) == left_out


@pytest.mark.parametrize(("condition", "left_out"), [("v.a", False), ("n", True), ("v.k", False)])
def test_filters_are_inferred_of_columns_that_are_equal(
    spark: SparkSession, condition: str, left_out: bool
) -> None:
    """What is said of a key's partner is said of the key, below the aggregate as well."""
    columns = {"t": "k INT, a INT", "u": "k INT", "v": "k INT, a INT"}
    query = (
        "SELECT v.k, n FROM v JOIN (SELECT t.k, count(*) AS n FROM t JOIN u ON t.k = u.k "
        "AND t.a > 1 GROUP BY t.k) g ON v.k = g.k AND v.a = v.k WHERE 10 div "
    )
    given = {name: changes(spark, kinds).schema for name, kinds in columns.items()}
    plan = ChangePlan(spark, f"{query}{condition} > 1", given)
    updates = changes(spark, columns["t"], (0, 0, 5, 1)).toArrow()
    assert (plan.concerning("t", updates).num_rows == 0) == left_out

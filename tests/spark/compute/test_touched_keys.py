"""The rule of touched keys, by its plans alone: rows before a step, its changes, and each time.

That views are right by it, whatever the query, is shown by `test_view_keys` and `test_view_joins`.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import PySparkException

from shardline.app.compute.view.accumulators import NEGATIVE
from shardline.app.compute.view.change_plan import ChangePlan, NotIncremental
from shardline.app.compute.view.correction import correction_frame
from shardline.app.compute.view.touched_keys import OUTPUT
from shardline.datasource.types.schema import DIFF, TS
from support.profiles import one_of, some_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

HIDDEN = f"{TS} BIGINT NOT NULL, {DIFF} BIGINT NOT NULL"
Row = tuple[Any, ...]


class Step:
    """One step of a query, over rows of a few tables.

    Attributes:
        needed: What of before the step it has read.
        changes: The query's change: rows with their time, and diffs.
    """

    def __init__(
        self,
        spark: SparkSession,
        query: str,
        columns: Mapping[str, str],
        before: Mapping[str, Sequence[Row]],
        news: Mapping[str, Sequence[Row]],
        *,
        shown: Sequence[Row] | None = None,
    ) -> None:
        """Take it.

        Args:
            columns: Of each table.
            before: Its rows before the step.
            news: Its changes, each with a time and a diff.
            shown: What the view has shown before; None for what the query says.
        """
        self._spark, self._query = spark, query
        self._columns, self._before, self._news = columns, before, news
        changes = {
            name: spark.createDataFrame(list(news.get(name, [])), f"{kinds}, {HIDDEN}")
            for name, kinds in columns.items()
        }
        plan = ChangePlan(spark, query, {name: one.schema for name, one in changes.items()})
        self._step = step = plan.step(news)
        self.needed = step.before | {one.leaf.name for one in step.look_ups}
        held = self._rows(0) if shown is None else list(shown)
        self._shown = Counter(map(_plain, held))
        there = {
            name: spark.createDataFrame(list(before.get(name, [])), kinds)
            for name, kinds in columns.items()
        }
        there[OUTPUT] = spark.createDataFrame(held, plan.columns)
        self._there, self._news_frames = there, changes
        found = {one.leaf: there[one.leaf.name] for one in step.look_ups}
        contents = {name: there[name] for name in step.before}
        rows = step.over(spark, changes, contents, found).collect()
        self.changes = [tuple(row) for row in rows]

    def number_of_rows(self) -> int:
        """How many rows touched keys have, by its plan."""
        assert self._step.numbers is not None
        counted = self._step.numbers()
        contents = {name: self._there[name] for name in counted.before}
        frame = counted.over(self._spark, self._news_frames, contents)
        return sum(int(number) for (number,) in frame.collect())

    def at(self, time: int) -> Counter[Row]:
        """What the view shows at a time."""
        found = Counter(self._shown)
        for *row, when, diff in self.changes:
            if when <= time:
                found[_plain(row)] += diff
        return Counter({row: copies for row, copies in found.items() if copies})

    def is_right(self) -> bool:
        """True if it shows at each time what the query says."""
        times = {row[-2] for rows in self._news.values() for row in rows}
        return all(self.at(time) == self._asked(time) for time in times)

    def _asked(self, time: int) -> Counter[Row]:
        return Counter(map(_plain, self._rows(time)))

    def _rows(self, time: int) -> list[Row]:
        """What the query says at a time."""
        try:
            for name, kinds in self._columns.items():
                rows = list(self._before.get(name, []))
                news = [row for row in self._news.get(name, []) if row[-2] <= time]
                rows += [tuple(row[:-2]) for row in news for _ in range(row[-1])]
                for row in news:
                    for _ in range(-row[-1]):
                        rows.remove(_same(rows, tuple(row[:-2])))
                self._spark.createDataFrame(rows, kinds).createOrReplaceTempView(name)
            return [tuple(row) for row in self._spark.sql(self._query).collect()]
        finally:
            for name in self._columns:
                self._spark.catalog.dropTempView(name)


def _same(rows: list[Row], wanted: Row) -> Row:
    """The row that a shard takes for `wanted`: -0.0 is not 0.0, and there is one NaN."""
    return next(row for row in rows if repr(row) == repr(wanted))


def _plain(row: Any) -> Row:
    def told(value: Any) -> Any:
        if isinstance(value, float) and (math.isnan(value) or value == 0.0):
            return str(value)
        return tuple(map(told, value)) if isinstance(value, list | tuple) else value

    return tuple(map(told, row))


T = {"t": "k STRING, a INT, x DOUBLE"}
TWICE = {
    "t": [
        ("a", 1, 0.1, 5, 1),
        ("a", 2, 0.2, 7, 2),
        ("a", 5, 0.7, 7, -1),
        ("b", 1, 0.5, 6, 1),
        ("b", 1, 0.5, 7, -1),
        (None, 4, None, 6, 3),
        ("c", 8, 0.25, 7, -1),
    ]
}
"""A key at two times; one that comes and goes; NULL, three times; the last row of one."""

THERE = {"t": [("a", 5, 0.7), ("a", 5, 0.7), ("c", 8, 0.25), ("d", 9, 1.0), ("d", 9, 1.0)]}

DECIDED = {
    "median": "SELECT median(a) AS m, count(DISTINCT a) AS n FROM t GROUP BY k",
    "rank": "SELECT a, rank() OVER (PARTITION BY k ORDER BY a) AS r, "
    "sum(a) OVER (PARTITION BY k ORDER BY a) AS s FROM t",
    "left": "SELECT l.a, r.a AS b FROM t l LEFT JOIN t r ON l.k = r.k AND l.a < r.a",
    "full": "SELECT l.a, r.a AS b FROM t l FULL JOIN t r ON l.k = r.k AND l.a < r.a",
    "anti": "SELECT l.a FROM t l LEFT ANTI JOIN t r ON l.k = r.k AND l.a < r.a",
    "one_above_another": "SELECT m, rank() OVER (PARTITION BY k ORDER BY m) AS r FROM "
    "(SELECT k, a % 2 AS odd, median(a) AS m FROM t GROUP BY k, a % 2)",
    "without_a_common_key": "SELECT rank() OVER (PARTITION BY n ORDER BY m) AS c FROM "
    "(SELECT k, count(DISTINCT a) AS n, median(a) AS m FROM t GROUP BY k)",
}
SHOWN = {
    "floats": "SELECT k AS key, count(DISTINCT a) AS n, round(sum(x), 2) AS s FROM t GROUP BY k",
    "last_row": "SELECT * FROM (SELECT k, a, row_number() OVER (PARTITION BY k ORDER BY a) AS n "
    "FROM t) WHERE n < 3",
    "lag": "SELECT concat(k, '!') AS b, k, a - lag(a) OVER (PARTITION BY k ORDER BY a) AS d FROM t",
    "part_of_the_key": "SELECT k, round(avg(x), 2) AS m FROM t GROUP BY k, a % 2",
    "joined_by_key": "SELECT t.k, t.a, s.x FROM t JOIN "
    "(SELECT k, round(sum(x), 2) AS x FROM t GROUP BY k) s ON t.k = s.k",
    "padded_by_key": "SELECT t.k, s.x FROM (SELECT k FROM t WHERE a < 5) t LEFT JOIN "
    "(SELECT k, round(sum(x), 2) AS x FROM t WHERE a > 3 GROUP BY k) s ON t.k = s.k",
}


@pytest.mark.parametrize("name", some_of(DECIDED, {"rank"}))
def test_what_is_decided_is_evaluated_once_more(spark: SparkSession, name: str) -> None:
    """The key need not be shown, and the view's output is not read."""
    step = Step(spark, DECIDED[name], T, THERE, TWICE)
    assert step.needed == {"t"}
    assert step.is_right(), step.changes


@pytest.mark.parametrize("name", some_of(SHOWN, {"floats"}))
def test_what_is_not_decided_goes_as_it_was_shown(spark: SparkSession, name: str) -> None:
    """Whatever it was: it is not evaluated anew."""
    step = Step(spark, SHOWN[name], T, THERE, TWICE)
    assert OUTPUT in step.needed
    assert step.is_right(), step.changes


TWO = T | {"u": "k STRING, b INT"}
BOTH = TWICE | {"u": [("a", 3, 6, 1), ("d", 4, 5, 1), ("d", 4, 7, -1), (None, 5, 6, 1)]}
"""Keys at times of their own, of which some change on one side only."""

OF_TWO = {
    "full": "SELECT t.a, u.b FROM t FULL JOIN u ON t.k = u.k",
    "groups_of_a_padded_side": "SELECT u.k, median(t.a) AS m FROM t LEFT JOIN u ON t.k = u.k "
    "GROUP BY u.k",
    "groups_of_the_kept_side": "SELECT t.k, median(u.b) AS m FROM t LEFT JOIN u ON t.k = u.k "
    "GROUP BY t.k",
    "ranks_in_sessions": "SELECT k, rank() OVER (PARTITION BY w ORDER BY n) AS r FROM (SELECT k, "
    "session_window(timestamp_seconds(a), '2 seconds') AS w, median(a) AS n FROM t GROUP BY ALL)",
}


@pytest.mark.parametrize("name", some_of(OF_TWO, {"groups_of_a_padded_side"}))
def test_keys_of_both_sides_are_touched(spark: SparkSession, name: str) -> None:
    """A key of a side that is padded is none of what is above: NULL has rows of all keys."""
    there = THERE | {"u": [("c", 7), ("c", 8)]}
    step = Step(spark, OF_TWO[name], TWO, there, BOTH)
    assert step.is_right(), step.changes


def test_a_shown_row_goes_at_the_first_time_of_its_key(spark: SparkSession) -> None:
    """With the bits that it has; other keys stay."""
    shown = [("a", 2, 99.0), ("d", 2, 98.0)]
    query = "SELECT k, count(*) AS n, sum(x) AS s FROM t GROUP BY k"
    step = Step(spark, query, T, THERE, TWICE, shown=shown)
    gone = [row for row in step.changes if row[2] in {98.0, 99.0}]
    assert gone == [("a", 2, 99.0, 5, -1)]


def test_a_row_that_comes_and_goes_in_one_step_is_evaluated_once(spark: SparkSession) -> None:
    """A sum of doubles may come out otherwise; what goes is what came."""
    news = {"t": [("z", place, 0.1 * place, place % 7 + 5, 1) for place in range(200)]}
    step = Step(spark, "SELECT k, sum(x) AS s FROM t GROUP BY k", T, THERE, news)
    for time in range(5, 12):
        assert [copies for row, copies in step.at(time).items() if row[0] == "z"] == [1]


def test_rows_that_stay_as_they_are_make_no_change(spark: SparkSession) -> None:
    """Of a partition of which one row comes."""
    query = "SELECT k, a, row_number() OVER (PARTITION BY k ORDER BY a) AS n FROM t"
    before = {"t": [("a", place, None) for place in range(50)]}
    step = Step(spark, query, T, before, {"t": [("a", 99, None, 5, 1)]})
    assert step.changes == [("a", 99, 51, 5, 1)]


def test_rows_of_touched_keys_are_counted(spark: SparkSession) -> None:
    """As often as their key has times, that before the step among them if it is evaluated."""
    news = TWICE["t"]
    there = [(*row, 0, 1) for row in THERE["t"]]
    times = {(row[0], time) for row in news for time in (0, row[-2])}
    updates = [(time, row) for key, time in times for row in there + news if row[0] == key]
    expected = sum(row[-2] <= time for time, row in updates)
    step = Step(spark, DECIDED["median"], T, THERE, TWICE)
    assert step.number_of_rows() == expected
    both = Step(spark, DECIDED["full"], T, THERE, TWICE)
    assert both.number_of_rows() == 2 * expected


ZEROS = {"t": [("a", 1, 0.0, 6, 1), ("a", 1, -0.0, 7, -1), ("b", 2, math.nan, 6, 2)]}


@pytest.mark.parametrize(
    "query",
    one_of(
        3,
        [
            "SELECT x, median(a) AS m FROM t GROUP BY x",
            "SELECT x, a, rank() OVER (PARTITION BY x ORDER BY a) AS r FROM t",
            "SELECT rank() OVER (PARTITION BY x ORDER BY a) AS r FROM t",
            "SELECT k, sort_array(collect_list(x)) AS l FROM t GROUP BY k",
            "SELECT l.x, r.x AS y FROM t l LEFT JOIN t r ON l.x = r.x AND l.k <> r.k",
        ],
    ),
)
def test_zeros_of_both_signs_are_one_key_and_two_values(spark: SparkSession, query: str) -> None:
    """NaN is one of each."""
    before = {"t": [("a", 1, -0.0), ("c", 1, -0.0), ("b", 5, math.nan)]}
    step = Step(spark, query, T, before, ZEROS)
    assert step.is_right(), step.changes


def test_equal_texts_of_a_collation_are_one_key(spark: SparkSession) -> None:
    """Whichever of them is shown goes."""
    columns = {"t": "k STRING COLLATE UTF8_LCASE, a INT"}
    query = "SELECT k, count(DISTINCT a) AS n FROM t GROUP BY k"
    news = {"t": [("A", 2, 5, 1), ("a", 1, 6, -1)]}
    for shown in ("a", "A"):
        step = Step(spark, query, columns, {"t": [("a", 1)]}, news, shown=[(shown, 1)])
        lowered = Counter[Row]()
        for (key, number), copies in step.at(5).items():
            lowered[key.lower(), number] += copies
        assert lowered == {("a", 2): 1}
        assert list(step.at(6).values()) == [1]


def test_sessions_that_a_row_joins_are_one(spark: SparkSession) -> None:
    """A session is no key: its rows depend on those around it."""
    columns = {"t": "k STRING, s INT"}
    session = "session_window(timestamp_seconds(s), '10 seconds')"
    query = (
        f"SELECT k, unix_seconds({session}.start) AS s, unix_seconds({session}.end) AS e, "  # noqa: S608
        f"count(*) AS n, median(s) AS m FROM t GROUP BY k, {session}"
    )
    before = {"t": [("a", 0), ("a", 15), ("b", 3)]}
    news = {"t": [("a", 8, 5, 1), ("a", 0, 6, -1), ("a", 8, 7, -1)]}
    step = Step(spark, query, columns, before, news)
    assert step.is_right(), step.changes
    assert step.at(5)["a", 0, 25, 3, 8.0] == 1


def test_a_correction_does_not_merge_sessions(spark: SparkSession) -> None:
    """A column of sessions is marked as one for Spark, also where its rows are only compared."""
    session = "session_window(timestamp_seconds(id), '10 seconds') AS w"
    query = f"SELECT {session}, count(*) AS n FROM range(0, 200, 100) GROUP BY w"  # noqa: S608
    wanted = spark.sql(query)
    shown = f"SELECT {session}, count(*) AS n FROM range(5, 6) GROUP BY w"  # noqa: S608
    window = "named_struct('start', w.start, 'end', w.end) AS w"
    held = spark.sql(shown).selectExpr(window, "n", "1L AS _diff")
    found = correction_frame(wanted, held).selectExpr("unix_seconds(w.start)", "n", DIFF)
    assert sorted(map(tuple, found.collect())) == [(0, 1, 1), (5, 1, -1), (100, 1, 1)]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT median(a) AS m FROM t",
        "SELECT a, lag(a) OVER (ORDER BY a) AS l FROM t",
        "SELECT count(*) AS n FROM t GROUP BY session_window(timestamp_seconds(a), '1 second')",
        "SELECT w, max(n) AS n FROM "  # noqa: ISC004
        "(SELECT k, session_window(timestamp_seconds(a), '1 second') AS w, median(a) AS n FROM t "
        "GROUP BY ALL) GROUP BY w",
    ],
)
def test_what_has_no_key_that_tells_is_recomputed(spark: SparkSession, query: str) -> None:
    """No key, or a window of sessions, which is none."""
    schema = spark.createDataFrame([], f"{T['t']}, {HIDDEN}").schema
    with pytest.raises(NotIncremental):
        ChangePlan(spark, query, {"t": schema})


@pytest.mark.parametrize("diff", [-1, 2_000_000])
def test_a_sum_of_diffs_that_cannot_be_is_an_error(spark: SparkSession, diff: int) -> None:
    """Below 0 the rows before the step are not those that it changes; above, they are too many."""
    query = "SELECT k, median(a) AS m FROM t GROUP BY k"
    reason = NEGATIVE if diff < 0 else "too many copies"
    with pytest.raises(PySparkException, match=reason):
        Step(spark, query, T, {"t": []}, {"t": [("a", 1, 0.5, 5, diff)]}, shown=[])

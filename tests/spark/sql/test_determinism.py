"""Queries are refused as views if rows or clocks decide, and not if they only look like it."""

# ruff: noqa: S608 - statements of tests, put together from their own words

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardline.app.project.project import CheckedProject, Project
from shardline.app.protocol.objects import ViewDescription
from shardline.app.sql.determinism import is_clock_text
from shardline.app.sql.problems import InvalidProject

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TABLES = (
    "CREATE SOURCE t USING csv OPTIONS (path 'x') SCHEMA (a INT NOT NULL, s STRING, ts TIMESTAMP);"
)


def check(spark: SparkSession, text: str) -> CheckedProject:
    return Project.parse({"p.sql": text}).check(spark)


def test_what_is_decided_is_taken(spark: SparkSession) -> None:
    """Orders that decide, results without one, and constants that only look like the present."""
    queries = [
        "SELECT array_sort(collect_list(s)) AS x FROM t",
        "SELECT sort_array(collect_set(s)) AS x FROM t",
        "SELECT sort_array(collect_union(array(s))) AS x FROM t",
        "SELECT a, sort_array(collect_list(s) OVER (PARTITION BY a)) AS x FROM t",
        "SELECT a, size(collect_set(s) OVER (PARTITION BY a)) AS x FROM t",
        "SELECT mode(s, true) AS x, approx_count_distinct(s) AS y, percentile(a, 0.5) AS z FROM t",
        "SELECT a, row_number() OVER (PARTITION BY s ORDER BY a + 1) AS x FROM t",
        "SELECT a, first(s) OVER (PARTITION BY s ORDER BY ts DESC) AS x FROM t",
        "SELECT a, sum(a) OVER (PARTITION BY s) AS x, rank() OVER (ORDER BY 1) AS y FROM t",
        "SELECT a, sum(a) OVER (ORDER BY ts ROWS 1 PRECEDING) AS x FROM t",
        "SELECT timestamp(concat('2020-01', '-01')) AS x, a FROM t",
        "SELECT CAST(date_trunc('DAY', TIMESTAMP '2020-01-01') AS DATE) AS x, a FROM t",
        "SELECT a AS select, s AS from FROM t",
        "SELECT parse_json(s):a.b::int AS x FROM t",
        "TABLE t UNION ALL TABLE t",
        "SELECT CAST(x AS TIMESTAMP) AS y, z FROM (SELECT s AS x, '12:30' AS z FROM t)",
        "SELECT CAST(x AS TIMESTAMP) AS y FROM (SELECT '2020-01-01 12:30' AS x, a FROM t)",
        "SELECT to_timestamp(x, 'HH:mm') AS y FROM (SELECT '12:30' AS x, a FROM t)",
        "SELECT to_timestamp('12:30', 'HH:mm') AS y, to_date(concat('no', 'w'), 'MM') AS z FROM t",
        "SELECT a FROM t JOIN VALUES ('12:30', '2020-01-01') AS c (n, x) ON ts > x",
        "SELECT a FROM t WHERE ts > CASE WHEN s = 'now' THEN s ELSE concat(s, ' 12:30') END",
        "SELECT a FROM t WHERE EXISTS (SELECT 1 FROM t AS u WHERE u.a > t.a LIMIT 2 OFFSET 1)",
        "SELECT a FROM t WHERE EXISTS (SELECT first(s) FROM t AS u WHERE u.a > t.a GROUP BY u.s)",
        "SELECT a FROM t WHERE EXISTS (SELECT row_number() OVER (ORDER BY 1) FROM t)",
        "SELECT a FROM t WHERE EXISTS (WITH c AS (TABLE t) SELECT * FROM c LIMIT 1)",
    ]
    text = "".join(f"CREATE MATERIALIZED VIEW v{i} AS {q};" for i, q in enumerate(queries))
    assert len(check(spark, TABLES + text).descriptions) == 1 + len(queries)


def test_rows_that_decide_whether_exists_is_true_must_be_decided(spark: SparkSession) -> None:
    """Of a subquery in EXISTS any row will do, but which rows pass its filters is looked at."""
    numbered = "SELECT a, row_number() OVER (ORDER BY 1) AS r FROM t"
    queries = [
        ("EXISTS (SELECT 1 FROM (SELECT a FROM t LIMIT 1) WHERE a > 1)", "LIMIT or OFFSET"),
        ("EXISTS (SELECT 1 FROM (SELECT a FROM t LIMIT 1) AS x WHERE x.a = t.a)", "LIMIT or"),
        ("EXISTS (SELECT first(a) FROM t HAVING first(a) > 1)", "first() takes"),
        (f"EXISTS (SELECT 1 FROM ({numbered}) WHERE r = 1 AND a > 1)", "row_number() over"),
        ("NOT EXISTS (SELECT mode(a) FROM t GROUP BY s HAVING mode(a) = 1)", "mode() takes"),
    ]
    text = "".join(
        f"CREATE MATERIALIZED VIEW v{i} AS SELECT a FROM t WHERE {condition};"
        for i, (condition, _) in enumerate(queries)
    )
    with pytest.raises(InvalidProject) as caught:
        check(spark, TABLES + text)
    assert [problem.code for problem in caught.value.problems] == ["NOT_DETERMINISTIC"] * 5
    for problem, (_, said) in zip(caught.value.problems, queries, strict=True):
        assert said in problem.message


CLOCK = "SELECT '12:30' AS x, a FROM t"


@pytest.mark.parametrize(
    "query",
    [
        f"SELECT CAST(x AS TIMESTAMP) AS y FROM ({CLOCK})",
        f"SELECT to_timestamp(z) AS y FROM (SELECT x AS z FROM ({CLOCK}) AS u)",
        f"WITH c AS ({CLOCK}) SELECT a FROM c JOIN t USING (a) WHERE t.ts > c.x",
        "SELECT CAST(x AS DATE) AS y FROM (SELECT concat('to', 'day') AS x, a FROM t)",
        f"SELECT a FROM t WHERE ts > (SELECT max(ts) FROM t WHERE ts > (SELECT x FROM ({CLOCK})))",
        f"SELECT t.a, CAST(x AS TIMESTAMP) AS y FROM t LEFT JOIN ({CLOCK}) AS c ON t.a = c.a",
        f"SELECT CAST(x AS TIMESTAMP) AS y FROM (SELECT s AS x, a FROM t UNION ALL {CLOCK})",
        "SELECT a FROM t JOIN VALUES ('am', '06:00'), ('pm', '12:30') AS c (n, x) ON ts > x",
        f"SELECT t.a, y FROM t, LATERAL (SELECT CAST(x AS DATE) AS y FROM ({CLOCK}) WHERE a > t.a)",
        "SELECT CAST(CASE WHEN a > 1 THEN 'now' END AS TIMESTAMP) AS y FROM t",
        "SELECT to_date(if(a > 1, s, coalesce(s, concat('to', 'day')))) AS y FROM t",
        "SELECT a FROM t WHERE ts > nvl(s, '12:30')",
        "SELECT CAST(decode(a, 1, s, 2, '12:30') AS TIMESTAMP) AS y FROM t",
        "SELECT CAST(x AS DATE) AS y FROM (SELECT CASE a WHEN 1 THEN s ELSE 'now' END AS x FROM t)",
        "SELECT nvl(x, s) > ts AS y FROM (SELECT concat('n', 'ow') AS x, s, ts FROM t)",
    ],
)
def test_constants_are_times_under_any_name(spark: SparkSession, query: str) -> None:
    """A text that means a time of today does so as well where a column has it."""
    with pytest.raises(InvalidProject, match=r"'.+' as a date or timestamp means the time at"):
        check(spark, f"{TABLES} CREATE MATERIALIZED VIEW v AS {query}")


def test_an_order_of_rows_changes_what_is_refused(spark: SparkSession) -> None:
    """Spark itself gives two results for the same rows: that is why these are no views."""
    orders = ("id", "199999 - id", "id * 7919 % 200000")
    found = [
        spark.sql(
            "SELECT approx_percentile(v, array(0.1, 0.5), 100) AS p, hll_sketch_agg(v) AS h, "
            "sum(v) AS s, approx_count_distinct(v) AS n "
            f"FROM (SELECT {order} AS v FROM range(0, 200000, 1, 1))"
        ).first()
        for order in orders
    ]
    different = [len({str(row[place]) for row in found if row}) > 1 for place in range(4)]
    assert different == [True, True, False, False]


@pytest.mark.parametrize(
    "text",
    [
        *(
            "today UTC",
            "Tomorrow Europe/Berlin",
            "yesterday+01:00",
            "today",
            "\x01 today \t",
            "now",
        ),
        *("today nowhere", "todayUTC", "now UTC", "2020-01-01", "to day", "\u00a0today"),
    ],
)
def test_what_spark_reads_as_the_present_is_known(spark: SparkSession, text: str) -> None:
    """Whatever is known as such and is none, such as `today nowhere`, is no date either."""
    jvm = spark._jvm
    assert jvm is not None
    utils = jvm.org.apache.spark.sql.catalyst.util.DateTimeUtils
    zone = jvm.java.time.ZoneId.of("UTC")
    if utils.convertSpecialDate(text, zone).isDefined():
        assert is_clock_text(text)
    elif is_clock_text(text):
        assert spark.sql("SELECT try_cast(? AS DATE) AS d", args=[text]).first() == (None,)


def test_each_of_several_is_reported_at_its_place(spark: SparkSession) -> None:
    """Of one query, in its order, each with its own reason."""
    view = "CREATE MATERIALIZED VIEW v AS SELECT a, uuid() AS u, now() AS n, rand() AS r FROM t"
    with pytest.raises(InvalidProject) as caught:
        check(spark, TABLES + view)
    found = [(problem.code, problem.message.partition("(")[0]) for problem in caught.value.problems]
    assert found == [("NOT_DETERMINISTIC", name) for name in ("uuid", "now", "rand")]
    columns = [problem.place.column for problem in caught.value.problems if problem.place]
    assert columns == sorted(columns)
    assert len(set(columns)) == 3


NEXMARK_WINDOWS = {
    "tumbling": "SELECT window.start AS s, count(*) AS n FROM bid "
    "GROUP BY window(dateTime, '10 seconds')",
    "hopping": "SELECT auction, window.end AS e, count(*) AS n FROM bid "
    "GROUP BY auction, window(dateTime, '10 seconds', '2 seconds')",
    "session": "SELECT bidder, session_window.start AS s, count(*) AS n FROM bid "
    "GROUP BY bidder, session_window(dateTime, '10 seconds')",
    "window_time": "SELECT window_time(window) AS t, n FROM "
    "(SELECT window, count(*) AS n FROM bid GROUP BY window(dateTime, '10 seconds'))",
    "in_select": "SELECT auction, window(dateTime, '10 seconds') AS w FROM bid",
    "named": "SELECT auction, count(*) OVER w AS n FROM bid WINDOW w AS (PARTITION BY bidder)",
}


def test_windows_of_nexmark_are_taken(spark: SparkSession) -> None:
    """Each function of windows of time, in GROUP BY and in SELECT, beside the clause WINDOW."""
    text = "CREATE SOURCE bid USING nexmark OPTIONS (table 'bid');"
    for name, query in NEXMARK_WINDOWS.items():
        text += f"CREATE MATERIALIZED VIEW {name} AS {query};"
    found = check(spark, text).descriptions
    linear = set()
    for name in NEXMARK_WINDOWS:
        kept = found[name]
        assert isinstance(kept, ViewDescription)
        assert kept.inputs == ("bid",)
        linear |= {name} if kept.strategy == "linear" else set()
    assert linear == {"in_select"}

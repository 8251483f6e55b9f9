"""A plan that is kept gives Spark's own rows over any rows, without a job, and leaves nothing."""

from __future__ import annotations

import datetime as dt
import random
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from decimal import Decimal
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from shardline.app.introspection.spark_plan.kept_runs import KeptRunReader
from shardline.app.introspection.spark_plan.status_store import StatusStore
from shardline.datasource.spark_native import kept_job
from shardline.datasource.spark_native.kept_job import (
    KeptJob,
    KeptRuns,
    NotKept,
    rows_given_later,
)
from support.profiles import one_of
from support.spark.kept_plans import counted

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

COLUMNS: Final = {
    "t": "k BIGINT, v DOUBLE, n STRING, p DECIMAL(12,2)",
    "u": "k BIGINT, n STRING, tags ARRAY<STRING>",
}

QUERIES: Final = {
    "filter": "SELECT k, v * 2 AS w FROM t WHERE k % 2 = 0",
    "join": "SELECT t.k, u.n FROM t JOIN u ON t.k = u.k",
    "join_of_three": "SELECT a.k, b.n FROM t a JOIN u b ON a.k = b.k JOIN t c ON c.n = b.n",
    "left_join": "SELECT t.k, u.n FROM t LEFT JOIN u ON t.k = u.k AND u.n <> 'a'",
    "full_join": "SELECT t.k, u.k AS o FROM t FULL JOIN u ON t.k = u.k",
    "semi_join": "SELECT k FROM t LEFT SEMI JOIN u ON t.k = u.k",
    "anti_join": "SELECT k FROM t LEFT ANTI JOIN u ON t.k = u.k",
    "self_join": "SELECT l.k, r.p FROM t l JOIN t r ON l.k = r.k + 1",
    "groups": "SELECT n, count(*) AS c, sum(p) AS s, min(v) AS m FROM t GROUP BY n",
    "total": "SELECT count(*) AS c, max(k) AS m FROM t",
    "distinct_groups": "SELECT n, count(DISTINCT k) AS c, sum(p) AS s FROM t GROUP BY n",
    "collected": "SELECT n, sort_array(collect_list(k)) AS ks FROM t GROUP BY n",
    "groups_of_a_join": "SELECT u.n, sum(t.p) AS s FROM t JOIN u USING (k) GROUP BY u.n",
    "distinct": "SELECT DISTINCT n FROM t",
    "window": "SELECT k, rank() OVER (PARTITION BY n ORDER BY p, k) AS r FROM t",
    "first_of_each": (
        "SELECT * FROM (SELECT k, n, row_number() OVER (PARTITION BY n ORDER BY k, p, v) AS r "
        "FROM t) WHERE r <= 2"
    ),
    "union_of_joins": (
        "SELECT t.k, u.n FROM t JOIN u ON t.k = u.k UNION ALL "
        "SELECT t.k, u.n FROM t JOIN u ON t.n = u.n"
    ),
    "groups_of_a_union_of_joins": (
        "SELECT n, count(*) AS c FROM (SELECT t.k, u.n FROM t JOIN u ON t.k = u.k UNION ALL "
        "SELECT t.k, u.n FROM t JOIN u ON t.n = u.n) GROUP BY n"
    ),
    "with_constants": "SELECT k, n FROM t UNION ALL VALUES (1L, 'one'), (2L, 'two')",
    "join_by_a_range": "SELECT t.k, u.n FROM t, u WHERE t.k < u.k",
    "all_pairs": "SELECT t.k, u.n, t.n AS m FROM t CROSS JOIN u",
    "join_with_constants": "SELECT k, w FROM t JOIN VALUES ('a', 1), ('b', 2) x(n, w) USING (n)",
    "exploded": "SELECT k, tag FROM u LATERAL VIEW OUTER explode(tags) AS tag",
    "grouping_sets": "SELECT n, k, count(*) AS c FROM t GROUP BY GROUPING SETS ((n), (k), ())",
    "cte_twice": "WITH c AS (SELECT k FROM t WHERE v > 1) FROM c UNION SELECT k + 1 FROM c",
    "repartitioned": "SELECT /*+ REPARTITION(3) */ k FROM t",
    "ordered": "SELECT k, p FROM t ORDER BY p",
    "first_of_all": "SELECT k, n FROM t ORDER BY k NULLS LAST, n, p, v LIMIT 5",
}

NOT_KEPT: Final = {
    "SELECT k FROM t WHERE v = (SELECT max(v) FROM t)": "subquery",
    "SELECT k, now() AS at FROM t": "time of the query",
    "SELECT t.k FROM t LEFT JOIN u ON t.k < u.k": "BroadcastNestedLoopJoinExec",
    "SELECT twice(k) AS d FROM t": "EvalPython",
}


def drawn(seed: int, rows: int) -> dict[str, list[tuple[Any, ...]]]:
    """Rows of both tables, with NULL, NaN and both zeros."""
    draw = random.Random(seed)
    names, values = ["a", "b", "c", None, "ü"], [0.0, -0.0, 1.5, float("nan"), None, 2.5]
    prices = [Decimal("1.50"), Decimal("-2.25"), None, Decimal("9999999999.99")]
    keys = [*range(max(rows // 2, 1)), None]
    one, many = draw.choice, draw.choices
    return {
        "t": [(one(keys), one(values), one(names), one(prices)) for _ in range(rows)],
        "u": [(one(keys), one(names), one([None, [], many(names, k=2)])) for _ in range(rows)],
    }


def struct(columns: str) -> StructType:
    found = StructType.fromDDL(columns)
    assert isinstance(found, StructType)
    return found


def table(columns: str, rows: list[tuple[Any, ...]]) -> pa.Table:
    schema = to_arrow_schema(struct(columns), timezone="UTC")
    given = [pa.array([row[at] for row in rows], f.type) for at, f in enumerate(schema)]
    return pa.table(given, schema=schema)


def queried(session: SparkSession, query: str, frames: Mapping[str, DataFrame]) -> DataFrame:
    for name, frame in frames.items():
        frame.createOrReplaceTempView(name)
    return session.sql(query)


def kept(session: SparkSession, query: str) -> KeptJob:
    leaves = {name: rows_given_later(session, struct(given)) for name, given in COLUMNS.items()}
    return KeptJob(queried(session, query, leaves), list(leaves.values()))


def run(
    job: KeptJob, rows: Mapping[str, list[tuple[Any, ...]]], *, is_told: bool = True
) -> pa.Table:
    tables = [table(columns, rows[name]) for name, columns in COLUMNS.items()]
    assert job.takes(tables)
    return job.run(tables, is_told=is_told)


@pytest.fixture
def session(spark: SparkSession) -> Iterator[SparkSession]:
    """A session for views of these names."""
    made = spark.newSession()
    yield made
    for name in COLUMNS:
        made.catalog.dropTempView(name)


@pytest.mark.parametrize("name", one_of(6, QUERIES))
def test_rows_are_sparks_own_over_any_rows(
    session: SparkSession, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them, fewer, none, and the first ones again: nothing of a run is in a later one.

    Also where what operators make in a run is compiled, as of many rows, and interpreted, by turns.
    """
    job = kept(session, QUERIES[name])
    for seed, size, interpreted_max in ((1, 8, 99), (2, 60, 99), (3, 0, 0), (4, 1, 0), (1, 8, -1)):
        monkeypatch.setattr(kept_job, "_INTERPRETED_MAX", interpreted_max)
        rows = drawn(seed, size)
        frames = {one: session.createDataFrame(rows[one], COLUMNS[one]) for one in COLUMNS}
        wanted = queried(session, QUERIES[name], frames).toArrow()
        assert counted(run(job, rows)) == counted(wanted), (seed, size)


HELD: Final = [
    "SELECT min(n) AS lo, max(n) AS hi FROM t",
    "SELECT min(tags) AS lo, max(n) AS hi FROM u",
    "SELECT min(collate(n, 'UTF8_LCASE')) AS lo, max(collate(n, 'UNICODE')) AS hi FROM t",
    "SELECT min(struct(n, k)) AS lo, max(CAST(n AS BINARY)) AS hi, max(p) AS p FROM t",
    "SELECT k % 2 AS odd, max(n) AS hi, max_by(n, struct(k, n)) AS m FROM t GROUP BY k % 2",
    "SELECT sort_array(collect_list(n)) AS ns, sort_array(collect_set(tags)) AS ts FROM u",
    "SELECT lag(n) OVER (ORDER BY k, n, p, v) AS l, n FROM t",
    "SELECT l.n, r.n AS m FROM t l JOIN t r ON l.k = r.k AND l.n <= r.n",
    "SELECT n, tags FROM u ORDER BY k, n, tags LIMIT 7",
]
"""Queries whose operators hold text and lists while further rows come."""


@pytest.mark.parametrize("query", [*HELD, *one_of(3, list(QUERIES.values()))])
@pytest.mark.parametrize("interpreted_max", [999, -1])
def test_rows_may_come_in_batches(
    session: SparkSession, query: str, interpreted_max: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of a batch is used again by the next one: nothing may point to it then."""
    monkeypatch.setattr(kept_job, "_INTERPRETED_MAX", interpreted_max)
    rows = drawn(5, 60)
    rows["t"] = [(k, v, n and n * 9, p) for k, v, n, p in rows["t"]]
    frames = {one: session.createDataFrame(rows[one], COLUMNS[one]) for one in COLUMNS}
    wanted = counted(queried(session, query, frames).toArrow())
    job = kept(session, query)
    whole = [table(columns, rows[name]) for name, columns in COLUMNS.items()]
    for size in (1, 7):
        batches = [one.to_batches(max_chunksize=size) for one in whole]
        # One without a row may be anywhere.
        nothing = [one.to_batches()[0].slice(0, 0) for one in whole]
        tables = [
            pa.Table.from_batches([empty, *some[:2], empty, *some[2:], empty])
            for empty, some in zip(nothing, batches, strict=True)
        ]
        assert counted(job.run(tables)) == wanted


@pytest.mark.parametrize("query", NOT_KEPT)
def test_what_would_be_of_one_run_is_not_kept(session: SparkSession, query: str) -> None:
    """Results of other jobs, broadcasts, the time of planning, and what runs elsewhere."""
    session.udf.register("twice", lambda k: None if k is None else 2.0 * k, "double")
    job = kept(session, query)
    with pytest.raises(NotKept) as refused:
        run(job, drawn(1, 5))
    assert NOT_KEPT[query].lower() in str(refused.value).lower()


def test_rows_of_elsewhere_are_not_kept(session: SparkSession, tmp_path: Path) -> None:
    """A file, a cache, and a leaf that nobody would give rows."""
    (leaf, other) = (rows_given_later(session, struct("k BIGINT")) for _ in range(2))
    session.range(3).write.parquet(f"{tmp_path}/rows")
    cached = session.range(3).cache()
    cached.count()
    try:
        for rows in (session.read.parquet(f"{tmp_path}/rows"), cached, other):
            job = KeptJob(leaf.unionAll(rows), [leaf])
            with pytest.raises(NotKept):
                job.run([pa.table({"k": pa.array([1], pa.int64())})])
    finally:
        cached.unpersist()


def test_all_types_come_and_go(session: SparkSession) -> None:
    """With the values at which encodings differ."""
    columns = (
        "a BOOLEAN, b TINYINT, c SMALLINT, d INT, e FLOAT, f DOUBLE, g STRING, h BINARY, i DATE, "
        "j TIMESTAMP, k TIMESTAMP_NTZ, l DECIMAL(38,10), m ARRAY<INT>, n MAP<STRING, BIGINT>, "
        "o STRUCT<x: INT, y: ARRAY<STRING>>, p INTERVAL DAY TO SECOND, q VOID"
    )
    at = dt.datetime(1500, 2, 28, 1, 2, 3, 456789, tzinfo=dt.UTC)
    plain = (True, -128, 32767, -(2**31), -0.0, float("nan"), "ü\n", b"\x00\xff")
    times = (dt.date(1, 1, 1), at, at.replace(tzinfo=None))
    nested = ([1, None], {"k": None}, {"x": 1, "y": ["a", None]})
    exact, span = Decimal(10) ** 27, dt.timedelta(days=-1, microseconds=1)
    rows = [(*plain, *times, exact, *nested, span, None), (None,) * 17]
    leaf = rows_given_later(session, struct(columns))
    given = table(columns, rows)
    found = KeptJob(leaf.where("true"), [leaf]).run([given])
    assert found.schema.types == given.schema.types
    assert counted(found) == counted(given)


def test_rows_of_other_types_are_not_taken(session: SparkSession) -> None:
    """They would be read as what they are not."""
    leaf = rows_given_later(session, struct("k BIGINT"))
    job = KeptJob(leaf.where("k > 0"), [leaf])
    assert job.takes([pa.table({"k": pa.array([1], pa.int64())})])
    assert not job.takes([pa.table({"k": pa.array([1], pa.int32())})])
    assert not job.takes([pa.table({"k": ["one"]})])


def test_an_error_at_a_row_is_of_that_run(session: SparkSession) -> None:
    """It says what Spark says, and the next run has none."""
    job = kept(session, "SELECT n, sum(100 / k) AS s FROM t GROUP BY n")
    rows = {"t": [(0, 1.0, "a", None)], "u": []}
    for _ in range(2):
        with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
            run(job, rows)
        found = run(job, {"t": [(50, 1.0, "a", None)], "u": []})
        assert found.to_pylist() == [{"n": "a", "s": 2.0}]


def test_neither_a_job_nor_an_execution_is_run_and_its_counts_are_told(
    session: SparkSession,
) -> None:
    """Under the description that an execution would have, once, with this run's rows."""
    context: Any = session.sparkContext
    status = session._jsparkSession.sharedState().statusStore()
    failing = kept(session, "SELECT sum(100 / k) AS s FROM t")
    job, runs = kept(session, QUERIES["groups"]), KeptRuns(session)
    reader = KeptRunReader(runs, StatusStore(session).encode)
    runs.counted()
    context._jsc.sc().listenerBus().waitUntilEmpty()
    before = status.executionsCount()
    context.setJobGroup("kept-plan", "v:u1:1\nid = q\nrunId = r\nbatch = 3")
    try:
        for size in (5, 7):
            run(job, {"t": [(k, 1.0, f"n{k}", None) for k in range(size)], "u": []})
            (one,) = reader.read()
            assert one.key == ("r", 3)
            assert {size} <= {node.rows for node in one.plan.nodes.values()} <= {size, None}
            assert {"HashAggregate", "Scan ExistingRDD"} <= {
                node.name for node in one.plan.nodes.values()
            }
        run(job, {"t": [(1, 1.0, "n", None)], "u": []}, is_told=False)
        with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
            run(failing, {"t": [(0, 1.0, "a", None)], "u": []})
        assert reader.read() == []
        context._jsc.sc().listenerBus().waitUntilEmpty()
        assert status.executionsCount() == before
        assert list(context.statusTracker().getJobIdsForGroup("kept-plan")) == []
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
        context.setLocalProperty("spark.job.description", None)


def test_the_session_is_as_it_was(session: SparkSession) -> None:
    """Planning has settings of its own."""
    before = dict(session.conf.getAll)
    run(kept(session, QUERIES["join"]), drawn(1, 5))
    assert dict(session.conf.getAll) == before


def test_threads_have_plans_of_their_own(spark: SparkSession) -> None:
    """Each is computed by its caller, side by side."""
    wrong: list[object] = []

    def work(seed: int) -> None:
        own = spark.newSession()
        job = kept(own, QUERIES["groups_of_a_join"])
        for again in range(5):
            rows = drawn(10 * seed + again, 40)
            found = run(job, rows)
            wanted: Counter[str | None] = Counter()
            for k, _, _, _ in rows["t"]:
                wanted.update(n for key, n, _ in rows["u"] if k is not None and key == k)
            if {row["n"] for row in found.to_pylist()} != set(wanted):
                wrong.append((seed, again))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert wrong == []


def test_a_column_function_in_the_frame_is_kept(session: SparkSession) -> None:
    """Plans need not come from text."""
    leaf = rows_given_later(session, struct("k BIGINT"))
    job = KeptJob(leaf.groupBy((F.col("k") % 2).alias("odd")).count(), [leaf])
    found = job.run([pa.table({"k": pa.array([1, 2, 3], pa.int64())})])
    assert counted(found) == counted(pa.table({"odd": [1, 0], "count": [2, 1]}))


SPLIT: Final = {
    "filter": True,
    "groups": True,
    "total": False,
    "distinct_groups": True,
    "collected": True,
    "distinct": True,
    "window": True,
    "first_of_each": True,
    "with_constants": True,
    "exploded": True,
    "self_join": False,
    "grouping_sets": False,
    "cte_twice": False,
    "repartitioned": False,
    "ordered": False,
    "first_of_all": False,
    "SELECT v, count(*) AS c FROM t GROUP BY v": False,
    "SELECT v, n, count(*) AS c FROM t GROUP BY v, n": True,
    "SELECT collate(n, 'UTF8_LCASE') AS m, count(*) AS c FROM t GROUP BY m": False,
    "SELECT k % 2 AS odd, count(*) AS c FROM t GROUP BY odd": False,
    "SELECT n, k % 2 AS odd, count(*) AS c FROM t GROUP BY n, odd": True,
    "SELECT c, count(*) FROM (SELECT n, count(*) AS c FROM t GROUP BY n) GROUP BY c": False,
    "SELECT n, sum(c) FROM (SELECT n, k, count(*) AS c FROM t GROUP BY n, k) GROUP BY n": True,
    "SELECT count(*) OVER () AS c, n FROM t": False,
    "SELECT p, max(k) AS m FROM t GROUP BY p": True,
    "SELECT tags, count(*) AS c FROM u GROUP BY tags": False,
}
"""Queries over one table, and whether its rows are split: by a column that all groups have."""


def kept_alone(session: SparkSession, query: str) -> tuple[KeptJob, str]:
    """A plan over the one table that a query reads, and the table's name."""
    name = "u" if " u" in query else "t"
    leaf = rows_given_later(session, struct(COLUMNS[name]))
    return KeptJob(queried(session, query, {name: leaf}), [leaf]), name


@pytest.mark.parametrize("case", one_of(8, SPLIT))
def test_rows_are_split_where_no_group_is(
    session: SparkSession, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And only there: pieces give together what Spark gives of all rows, whatever they are."""
    monkeypatch.setattr(kept_job, "_PIECES_MIN", 0)
    monkeypatch.setattr(kept_job, "_PIECES", 3)
    query = QUERIES.get(case, case)
    job, name = kept_alone(session, query)
    for seed, size in ((1, 8), (2, 60), (3, 0), (4, 1), (5, 200)):
        rows = drawn(seed, size)[name]
        given = [table(COLUMNS[name], rows)]
        assert (job.kind_of_run(given) == "in pieces") == SPLIT[case]
        frame = session.createDataFrame(rows, COLUMNS[name])
        assert counted(job.run(given)) == counted(queried(session, query, {name: frame}).toArrow())


@pytest.mark.parametrize(
    "values",
    [
        pa.array([1, None, 2, 1, -(2**63), None], pa.int64()),
        pa.array(["", None, "ü", "", "a" * 99, None]),
        pa.array([b"\xff", b"", None, b"\xff", b"0", b""]),
        pa.array([Decimal("1.50"), None, Decimal("-1.50"), Decimal("1.50"), None, None]),
        pa.chunked_array([[True, None], [], [False, True, None, True]]),
        pa.array([None] * 6, pa.timestamp("us", tz="UTC")),
    ],
)
def test_equal_values_are_in_one_piece(values: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """NULL is equal to itself; each row is in one of them, in its order."""
    monkeypatch.setattr(kept_job, "_PIECES", 2)
    rows = pa.table({"place": range(6), "value": values})
    pieces = kept_job._pieces(rows, 1)
    assert len(pieces) == 2
    places = [piece["place"].to_pylist() for piece in pieces]
    assert sorted(chain.from_iterable(places)) == list(range(6))
    assert all(one == sorted(one) for one in places)
    first, second = (set(map(repr, piece["value"].to_pylist())) for piece in pieces)
    assert not first & second


def test_each_piece_has_expressions_of_its_own(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of JSON write into a buffer that they keep: shared, one would be in another's text."""
    monkeypatch.setattr(kept_job, "_PIECES_MIN", 0)
    monkeypatch.setattr(kept_job, "_PIECES", 4)
    leaf = rows_given_later(session, struct("k BIGINT, n STRING"))
    text = F.to_json(F.struct("k", "n", F.lit("y" * 50).alias("y")))
    read = F.from_json(text, "k BIGINT, n STRING, y STRING")
    frame = leaf.groupBy("k").agg(F.max(text).alias("t"), F.max(read["n"]).alias("n"))
    job, size = KeptJob(frame, [leaf]), 20_000
    given = pa.table({"k": range(size), "n": [f"name {k}" for k in range(size)]})
    assert job.kind_of_run([given]) == "in pieces"
    found = job.run([given]).sort_by("k")
    wanted = [f'{{"k":{k},"n":"name {k}","y":"{"y" * 50}"}}' for k in range(size)]
    assert found["t"].to_pylist() == wanted
    assert found["n"].equals(given["n"])


def test_an_error_in_any_piece_is_of_that_run(
    session: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever thread meets it; and what had been counted until then is in no later run."""
    monkeypatch.setattr(kept_job, "_PIECES_MIN", 0)
    monkeypatch.setattr(kept_job, "_PIECES", 2)
    job, _ = kept_alone(session, "SELECT k, sum(10 / p) AS s, count(*) AS c FROM t GROUP BY k")
    runs = KeptRuns(session)
    reader = KeptRunReader(runs, StatusStore(session).encode)
    context: Any = session.sparkContext
    # The first value is in the first piece, the second one in the second.
    good = [(1, 1.0, "a", Decimal(1)), (2, 1.0, "a", Decimal(1)), (1, 1.0, "b", Decimal(1))]
    context.setJobGroup("kept-plan", "v:u1:1\nid = q\nrunId = r\nbatch = 3")
    try:
        for place in (0, 1):
            bad = list(good)
            bad[place] = (*bad[place][:3], Decimal(0))
            with pytest.raises(Exception, match="DIVIDE_BY_ZERO"):
                job.run([table(COLUMNS["t"], bad)])
            runs.counted()
            found = job.run([table(COLUMNS["t"], good)])
            assert {row["k"]: row["c"] for row in found.to_pylist()} == {1: 2, 2: 1}
            (told,) = reader.read()
            rows = {node.name: node.rows for node in told.plan.nodes.values()}
            assert rows["Scan ExistingRDD"] == 3
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
        context.setLocalProperty("spark.job.description", None)


@pytest.mark.parametrize("pieces_min", [0, 999])
def test_no_more_rows_than_wanted(
    session: SparkSession, pieces_min: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all pieces together."""
    monkeypatch.setattr(kept_job, "_PIECES_MIN", pieces_min)
    leaf = rows_given_later(session, struct("k BIGINT"))
    job = KeptJob(leaf.distinct(), [leaf], rows_max=5)
    for size in (3, 5, 6, 50):
        given = [pa.table({"k": pa.array(range(size), pa.int64())})]
        assert (job.kind_of_run(given) == "in pieces") == (pieces_min == 0)
        assert job.run(given).num_rows == min(size, 5)

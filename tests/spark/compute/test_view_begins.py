"""A view begins where its inputs' history does: what was before cannot be asked for."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, get_args

import pyarrow as pa
import pytest

from shardline.app.compute.view import output_correction, view_states
from shardline.app.compute.view.maintained_view import View
from shardline.app.compute.view.output import ViewSink
from shardline.app.compute.view.query_at import QueryAt
from shardline.app.execution.observations import Stepped
from shardline.app.protocol.objects import Strategy, errors_shard, state_shards
from shardline.datasource.frontier import Frontier
from shardline.datasource.spark_native.time_interval import Interval
from support.profiles import one_of
from support.spark.view_world import Killed
from support.spark.views import Bench, Following, contents, no_fence, view

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_a_kill_behind_the_first_contents_leaves_no_empty_past(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next start lets history begin where they are."""
    bench = Bench(spark, str(tmp_path / "lake"), tmp_path / "checkpoints")
    table = bench.input("t", pa.schema([("k", pa.int64())]))
    table.append([(10, (1,), 1)], 50)
    kept = view("copied", "SELECT k FROM t", "k BIGINT", "t")

    def rendered() -> View:
        return View(bench.host, bench.incarnation("copied", 20), kept, no_fence, Following())

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(ViewSink, "begin", killed)
        with pytest.raises(Killed):
            rendered().advance(spark.newSession(), Interval(20, 50, starts=True))
    assert bench.client.state("copied").upper == Frontier(50)
    rendered().advance(spark.newSession(), Interval(20, 50, starts=True))
    state = bench.client.state("copied")
    assert (state.since, state.critical) == (Frontier(20), {})


@pytest.mark.parametrize("goes_on", [True, False])
def test_a_view_in_the_place_of_another_one_says_from_its_first_time_on_that_it_fails(
    spark: SparkSession, tmp_path: Path, *, goes_on: bool
) -> None:
    """The errors of the one before are settled up to its upper, whatever the new one is.

    Where the input rests for ever there is no later time, and the view is there all the same.
    """
    bench = Bench(spark, str(tmp_path / "lake"), tmp_path / "checkpoints")
    table = bench.input("t", pa.schema([("k", pa.int64())]))
    table.append([(10, (0,), 1)], 50)
    before = view("v", "SELECT k FROM t", "k BIGINT", "t")
    after = view("v", "SELECT 1 DIV k AS q, k FROM t", "q BIGINT, k BIGINT", "t")
    first = View(bench.host, bench.incarnation("v", 20), before, no_fence, Following())
    first.advance(spark.newSession(), Interval(20, 50, starts=True))
    if goes_on:
        table.idle(60)
    second = View(bench.host, bench.incarnation("v", 49), after, no_fence, Following())
    second.advance(spark.newSession(), Interval(49, 60 if goes_on else 50, starts=True))
    [output, errors] = bench.client.readable("v", errors_shard("v"))
    since = output.since.time
    assert since == (50 if goes_on else 49)
    assert output.upper == (Frontier(60) if goes_on else Frontier(50))
    assert errors.upper >= output.upper
    for time in range(since, 60) if goes_on else ():
        assert len(contents(bench.client, errors_shard("v"), time)) == 1, time


@pytest.mark.parametrize("strategy", ["incremental", "recompute"])
@pytest.mark.parametrize("end", one_of(2, [21, 22, 50]))
def test_history_may_begin_with_the_first_contents(
    spark: SparkSession, tmp_path: Path, strategy: Strategy, end: int
) -> None:
    """One part holds changes of that time and of later ones, and older ones merged into it."""
    bench = Bench(spark, str(tmp_path / "lake"), tmp_path / "checkpoints")
    table = bench.input("t", pa.schema([("k", pa.int64())]))
    table.append([(10, (1,), 1), (20, (2,), 1), (21, (3,), 1), (30, (1,), -1)], 50)
    bench.client.set_retention("t", None)
    bench.client.hold("t", "test").downgrade(Frontier(20))
    query = "SELECT k, count(*) AS n FROM t GROUP BY k"
    kept = view("counted", query, "k BIGINT, n BIGINT", "t", strategy=strategy)
    run = View(bench.host, bench.incarnation("counted", 20), kept, no_fence, Following())
    session = spark.newSession()
    run.advance(session, Interval(20, end, starts=True))
    if end < 50:
        run.advance(session, Interval(end, 50))
    for time in (20, 21, 29, 30, 49):
        expected = Counter({(*row, 1): 1 for row in table.at(time)})
        assert contents(bench.client, "counted", time) == expected, time


@pytest.mark.parametrize("merged", [False, True])
@pytest.mark.parametrize(
    ("strategy", "query", "schema"),
    [
        ("linear", "SELECT k + 1 AS k FROM t", "k BIGINT"),
        ("incremental", "SELECT k, count(*) AS n FROM t GROUP BY k", "k BIGINT, n BIGINT"),
        ("recompute", "SELECT k, count(*) AS n FROM t GROUP BY k", "k BIGINT, n BIGINT"),
    ],
)
def test_a_view_that_starts_late_is_run_anew_once(
    spark: SparkSession,
    tmp_path: Path,
    strategy: Strategy,
    query: str,
    schema: str,
    *,
    merged: bool,
) -> None:
    """Of all that its inputs have done since then; one that cannot follow is run at each time."""
    bench = Bench(spark, str(tmp_path / "lake"), tmp_path / "checkpoints")
    table = bench.input("t", pa.schema([("k", pa.int64())]))
    changes = [(time, (time % 3,), 1) for time in range(20, 40)]
    if merged:
        table.append(changes, 50)
    else:
        for change in changes:
            table.append([change], change[0] + 1)
        table.idle(50)
    kept = view("late", query, schema, "t", strategy=strategy)
    run = View(bench.host, bench.incarnation("late", 20), kept, no_fence, Following())
    run.advance(spark.newSession(), Interval(20, 50, starts=True))
    steps = [(one.way, one.reason or "") for one in bench.told(Stepped)]
    first, *rest = steps
    assert first == ("recompute", "its first contents" if strategy != "recompute" else "")
    assert rest == ([(strategy, "")] if strategy != "recompute" else [("recompute", "")] * 19)
    for time in (20, 21, 30, 39, 49):
        rows = Counter((k,) for (k,) in table.at(time))
        counted = {(k, n): 1 for (k,), n in rows.items()}
        shown = {(k + 1,): n for (k,), n in rows.items()} if strategy == "linear" else counted
        assert contents(bench.client, "late", time) == Counter(shown), time


@pytest.mark.parametrize(
    ("strategy", "query", "schema"),
    [
        ("linear", "SELECT k, 10 div k AS n FROM t", "k BIGINT, n BIGINT"),
        ("incremental", "SELECT k, sum(10 div k) AS n FROM t GROUP BY k", "k BIGINT, n BIGINT"),
    ],
)
def test_a_view_that_starts_late_fails_when_its_query_did(
    spark: SparkSession, tmp_path: Path, strategy: Strategy, query: str, schema: str
) -> None:
    """An error behind the first contents, and its end, are at their own times.

    Which of the changes it comes from is not known, so the query is the judge at each time.
    """
    bench = Bench(spark, str(tmp_path / "lake"), tmp_path / "checkpoints")
    table = bench.input("t", pa.schema([("k", pa.int64())]))
    for time, k, diff in [(20, 1, 1), (22, 5, 1), (25, 0, 1), (28, 2, 1), (30, 0, -1), (35, 2, -1)]:
        table.append([(time, (k,), diff)], time + 1)
    table.idle(50)
    kept = view("late", query, schema, "t", strategy=strategy)
    run = View(bench.host, bench.incarnation("late", 20), kept, no_fence, Following())
    run.advance(spark.newSession(), Interval(20, 50, starts=True))
    for time in range(20, 50):
        failing = 25 <= time < 30
        assert bool(contents(bench.client, "late_errors", time)) == failing, time
        if not failing:
            assert contents(bench.client, "late", time) == Counter(
                (k, 10 // k) for (k,) in table.at(time)
            ), time


FIRST: Final = {
    "groups": "SELECT k, count(*) AS n FROM t GROUP BY k",
    "having": "SELECT k, sum(k) AS n FROM t GROUP BY k HAVING count(*) > 1",
    "joined": (
        "SELECT t.k, g.n FROM t JOIN (SELECT k, count(*) AS n FROM t GROUP BY k) g ON t.k = g.k"
    ),
    "groups_of_groups": (
        "SELECT n AS k, count(*) AS n FROM (SELECT k, count(*) AS n FROM t GROUP BY k) GROUP BY n"
    ),
    "of_nothing": "SELECT max(k) AS k, count(*) AS n FROM t WHERE k > 100",
}


@pytest.fixture
def numbers(spark: SparkSession, tmp_path: Path) -> Bench:
    """A table that has rows from 10 on, and others from 30 on."""
    bench = Bench(spark, str(tmp_path / "lake"), tmp_path / "checkpoints")
    table = bench.input("t", pa.schema([("k", pa.int64())]))
    table.push(10, ((1,), 2), ((2,), 1), ((3,), 1))
    table.push(30, ((3,), 1), ((2,), -1), ((0,), 1))
    table.idle(50)
    return bench


def counted_view(bench: Bench, query: str, at: int, strategy: Strategy = "incremental") -> View:
    """A view that begins at a time."""
    kept = view("counted", query, "k BIGINT, n BIGINT", "t", strategy=strategy)
    return View(bench.host, bench.incarnation("counted", at), kept, no_fence, Following())


@pytest.mark.parametrize("name", one_of(3, FIRST))
def test_first_contents_are_of_the_states_that_follow(
    spark: SparkSession, numbers: Bench, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The query is not run over inputs that its states are made of: they would be read twice."""
    monkeypatch.setattr(QueryAt, "anew", None)
    session = spark.newSession()
    run = counted_view(numbers, FIRST[name], 10)
    run.advance(session, Interval(10, 11, starts=True))
    assert numbers.client.state(state_shards("counted")[0]).upper == Frontier(11)
    run.advance(session, Interval(11, 50))
    for time, rows in ((10, [1, 1, 2, 3]), (49, [0, 1, 1, 3, 3])):
        session.createDataFrame([(k,) for k in rows], "k BIGINT").createOrReplaceTempView("t")
        right = Counter(map(tuple, session.sql(FIRST[name]).collect()))
        assert contents(numbers.client, "counted", time) == right, time


def test_first_contents_fail_as_the_query_does(spark: SparkSession, numbers: Bench) -> None:
    """With the query's own error, of the row that it meets, whether the view has states or not."""
    shown = {}
    for strategy in get_args(Strategy):
        query = "SELECT k, sum(12 div (k - 3)) AS n FROM t GROUP BY k"
        run = counted_view(numbers, query, 10, strategy)
        run.advance(spark.newSession(), Interval(10, 11, starts=True))
        shown[strategy] = contents(numbers.client, errors_shard("counted"), 10)
        for name in ("counted", errors_shard("counted"), *state_shards("counted")):
            if numbers.client.exists(name):
                numbers.client.drop(name)
    assert len(shown["recompute"]) == 1
    assert shown["incremental"] == shown["recompute"]


def test_a_state_of_a_later_attempt_is_not_taken(
    spark: SparkSession, numbers: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was killed behind its state, and the next one begins earlier: it has nothing of then."""

    def killed(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(ViewSink, "append", killed)
        with pytest.raises(Killed):
            counted_view(numbers, FIRST["groups"], 30).advance(
                spark.newSession(), Interval(30, 31, starts=True)
            )
    assert numbers.client.state(state_shards("counted")[0]).upper == Frontier(31)
    run, session = counted_view(numbers, FIRST["groups"], 10), spark.newSession()
    run.advance(session, Interval(10, 11, starts=True))
    assert [step.updates_out for step in numbers.told(Stepped)] == [3]
    run.advance(session, Interval(11, 50))
    assert contents(numbers.client, "counted", 49) == {(0, 1): 1, (1, 2): 1, (3, 2): 1}


def test_first_contents_that_states_cannot_tell_are_the_querys(
    spark: SparkSession, tmp_path: Path
) -> None:
    """An average of so large numbers is not told by their sum: Spark adds up what it can hold."""
    bench = Bench(spark, str(tmp_path / "lake"), tmp_path / "checkpoints")
    bench.input("t", pa.schema([("k", pa.int64())])).push(10, ((2**60,), 1), ((2**60 + 1,), 1))
    run = counted_view(bench, "SELECT CAST(avg(k) AS BIGINT) AS k, count(*) AS n FROM t", 10)
    run.advance(spark.newSession(), Interval(10, 11, starts=True))
    assert contents(bench.client, "counted", 10) == {(2**60, 2): 1}
    assert not contents(bench.client, errors_shard("counted"), 10)


@pytest.mark.parametrize(
    ("limit", "jobs"),
    [
        (("ROWS_MAX", 20), 0),
        (("ROWS_MAX", 19), 1),  # the output is over the state, which has three rows
        (("ROWS_MAX", 2), 2),
        (("BYTES_MAX", 1), 2),
    ],
)
def test_the_first_rows_of_little_are_collected(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    written: list[str],
    *,
    limit: tuple[str, int],
    jobs: int,
) -> None:
    """Of a state and of the output: no job writes a file. Of more, each is written by tasks.

    More are large rows as well: they would be collected before anybody knows how large they are.
    """
    bench = Bench(spark, str(tmp_path / "lake"), tmp_path / "checkpoints")
    table = bench.input("t", pa.schema([("k", pa.int64()), ("x", pa.int64())]))
    table.append([(10, (k % 3, k), 1 + k % 2) for k in range(20)], 50)
    text = "SELECT k, sum(x) AS s FROM t GROUP BY k"
    kept = view("sums", text, "k BIGINT, s BIGINT", "t", strategy="incremental")
    for module in (output_correction, view_states):
        monkeypatch.setattr(module, *limit)
    rendered = View(bench.host, bench.incarnation("sums", 20), kept, no_fence, Following())
    rendered.advance(spark.newSession(), Interval(20, 50, starts=True))
    assert len(written) == jobs
    wanted = Counter[int]()
    for k in range(20):
        wanted[k % 3] += k * (1 + k % 2)
    assert contents(bench.client, "sums", 49) == Counter(wanted.items())

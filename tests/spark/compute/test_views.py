"""Views as streaming queries: they follow, rest, fail, stop, and find their way back."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from shardline import datasource
from shardline.app.compute.group import trigger_query
from shardline.app.compute.holds import end_view_holds
from shardline.app.compute.render import render
from shardline.app.compute.view import streaming_query
from shardline.app.compute.view.maintained_view import View
from shardline.app.compute.view.streaming_query import run_view
from shardline.app.execution.observations import Ended, Failed, Health, Hydrated, Measured, Progress
from shardline.app.protocol.objects import ViewDescription
from shardline.datasource.errors import Fenced, Indeterminate, InvalidUsage
from shardline.datasource.frontier import EMPTY, Frontier
from shardline.datasource.spark_native.time_interval import Interval
from support.spark.sinks import parts
from support.spark.views import (
    DEAR,
    ORDERS,
    TOTALS,
    Bench,
    Following,
    Input,
    Row,
    contents,
    no_fence,
    view,
)
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

    from shardline.app.compute.view.streaming_query import RunningView
    from shardline.datasource.spark_native.plan_rule import NativeReads

pytestmark = pytest.mark.spark

INVERSE = view(
    "inverse", "SELECT id, 60 / price AS part FROM orders", "id BIGINT, part DOUBLE", "orders"
)


class Started:
    """Starts views, and stops all that still run."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.runs: list[RunningView] = []

    def __call__(self, description: ViewDescription, as_of: int, dataflow: int = 1) -> RunningView:
        incarnation = self.bench.incarnation(description.name, as_of, dataflow)
        self.runs.append(run_view(self.bench.host, incarnation, description))
        return self.runs[-1]


@pytest.fixture
def bench(spark: SparkSession, location: str, tmp_path: Path) -> Bench:
    return Bench(spark, location, tmp_path / "checkpoints")


@pytest.fixture
def start(bench: Bench) -> Iterator[Started]:
    started = Started(bench)
    yield started
    for run in started.runs:
        run.stop()


@pytest.fixture
def orders(bench: Bench) -> Input:
    found = bench.input("orders", ORDERS)
    found.push(5, ((1, "ada", 10), 1), ((2, "bob", 20), 1))
    return found


def reaches(bench: Bench, name: str, time: int) -> None:
    def there() -> bool:
        assert not bench.told(Failed)
        return (bench.upper(name) or 0) >= time

    wait_until(f"{name} at {time}", there, 60)


def tells(bench: Bench, name: str, time: int) -> None:
    def told() -> bool:
        return any(one.id == name and (one.write or 0) >= time for one in bench.told(Progress))

    wait_until(f"{name} tells of {time}", told, 60)


def totals_at(orders: Input, time: int) -> Counter[Any]:
    sums: Counter[str] = Counter()
    for _, who, price in orders.at(time):
        sums[who] += price
    return Counter(dict.fromkeys(sums.items(), 1))


def dear_at(orders: Input, time: int) -> Counter[Any]:
    return Counter((number, who) for number, who, price in orders.at(time) if price >= 10)


def session_of(bench: Bench) -> SparkSession:
    return bench.spark.newSession()


def rendered(bench: Bench, description: ViewDescription, as_of: int) -> View:
    return View(
        bench.host, bench.incarnation(description.name, as_of), description, no_fence, Following()
    )


def test_a_kill_within_the_first_plan_is_no_harm(
    bench: Bench, orders: Input, start: Started
) -> None:
    """Spark leaves a file that is not complete, and refuses to begin beside it."""
    incarnation = bench.incarnation("totals", 5)
    offsets = incarnation.checkpoint(bench.host.checkpoints) / "offsets"
    offsets.mkdir(parents=True)
    (offsets / ".0.1d2c.tmp").touch()
    orders.idle(10)
    start(TOTALS, 5)
    reaches(bench, "totals", 10)
    assert contents(bench.client, "totals", 9) == totals_at(orders, 9)


def test_a_step_ends_the_rest_of_its_application(
    bench: Bench, orders: Input, start: Started
) -> None:
    """One that follows changes, and none of those that only move the upper."""
    news: list[str] = []
    rest: Any = SimpleNamespace(is_resting=False, note_news=lambda: news.append("news"))
    bench.host = replace(bench.host, rest=rest)
    start(TOTALS, 5)
    tells(bench, "totals", 6)
    before = len(news)
    orders.idle(10)
    reaches(bench, "totals", 10)
    assert len(news) == before
    orders.push(20, ((3, "ada", 7), 1))
    reaches(bench, "totals", 21)
    wait_until("it is told", lambda: len(news) > before, 60)


def test_views_follow_rest_and_are_followed(
    bench: Bench, orders: Input, start: Started, native_reads: NativeReads
) -> None:
    """Changes take effect at their own times, a view reads a view, and rest costs no Spark job.

    Nor are frames planned natively that nobody executes.
    """
    rich = view("rich", "SELECT count(*) AS n FROM totals WHERE total > 15", "n BIGINT", "totals")
    start(TOTALS, 5)
    start(DEAR, 5)
    reaches(bench, "totals", 6)
    start(rich, 5)
    reaches(bench, "rich", 6)
    orders.push(10, ((3, "ada", 7), 1), ((2, "bob", 20), -1))
    orders.append([(12, (4, "cyd", 30), 1), (14, (4, "cyd", 30), -1)], 20)
    for name in ("totals", "dear", "rich"):
        reaches(bench, name, 20)
        tells(bench, name, 20)  # by when it has told all of the steps until there
    before = len(bench.told(Measured))
    orders.idle(5000)
    for name in ("totals", "dear", "rich"):
        reaches(bench, name, 5000)

    assert len(bench.told(Measured)) == before
    for time in (5, 9, 10, 11, 12, 13, 14, 4999):
        assert contents(bench.client, "totals", time) == totals_at(orders, time)
        assert contents(bench.client, "dear", time) == dear_at(orders, time)
        large = sum(total > 15 for _, total in totals_at(orders, time))
        assert contents(bench.client, "rich", time) == {(large,): 1}
    assert bench.client.state("totals").since.time == 5
    assert {seen.id for seen in bench.told(Hydrated)} == {"totals", "dear", "rich"}
    writes = [seen.write for seen in bench.told(Progress) if seen.id == "totals"]
    assert writes == sorted(writes, key=lambda time: time or 0)
    assert {type(seen) for seen in bench.seen} >= {Health, Progress, Hydrated, Measured}
    assert not bench.told(Failed)
    assert not native_reads.counts()


@pytest.mark.parametrize("lost", [False, True])
def test_a_restart_goes_on(bench: Bench, orders: Input, start: Started, lost: bool) -> None:
    """After a restart, with or without its checkpoint, nothing is missing or there twice."""
    run = start(DEAR, 5)
    reaches(bench, "dear", 6)
    run.stop()
    upper = bench.upper("dear")
    orders.push(10, ((3, "ada", 70), 1))
    orders.push(15, ((1, "ada", 10), -1))
    assert bench.upper("dear") == upper
    if lost:
        shutil.rmtree(bench.host.checkpoints)
    start(DEAR, 5)
    reaches(bench, "dear", 16)
    for time in (5, 10, 15):
        assert contents(bench.client, "dear", time) == dear_at(orders, time)


def test_a_lost_checkpoint_goes_on_where_history_begins(
    bench: Bench, orders: Input, start: Started
) -> None:
    """The as_of of its creation cannot be read any more: what can be is right, the rest stays."""
    run = start(TOTALS, 5)
    reaches(bench, "totals", 6)
    run.stop()
    orders.push(10, ((3, "ada", 7), 1))
    orders.push(20, ((4, "cyd", 5), 1))
    shutil.rmtree(bench.host.checkpoints)
    end_view_holds(bench.client, "totals", ["orders"])
    bench.client.hold("orders", "later").downgrade(Frontier(15))
    start(TOTALS, 5)
    reaches(bench, "totals", 21)
    for time in (15, 20):
        assert contents(bench.client, "totals", time) == totals_at(orders, time)


def test_after_a_restart_without_news_it_follows(
    bench: Bench, orders: Input, start: Started
) -> None:
    """No micro-batch comes as long as inputs rest: the output follows them all the same."""
    run = start(TOTALS, 5)
    reaches(bench, "totals", 6)
    run.stop()
    before = len(bench.told(Measured))
    start(TOTALS, 5)
    orders.idle(5000)
    reaches(bench, "totals", 5000)
    assert len(bench.told(Measured)) == before
    assert contents(bench.client, "totals", 4999) == totals_at(orders, 4999)


def test_spark_is_asked_what_its_log_does_not_say(
    bench: Bench, orders: Input, start: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another Spark than the one that is known changes nothing for a view, nor does its log."""
    asked = list[Interval | None]()

    def asking(frame: DataFrame, number: int) -> Interval | None:
        asked.append(datasource.interval_of(frame, number))
        return asked[-1]

    monkeypatch.setattr(trigger_query, "is_checked", lambda _: False)
    monkeypatch.setattr(trigger_query, "read_planned_offset", lambda *_: None)
    monkeypatch.setattr(trigger_query, "interval_of", asking)
    start(TOTALS, 5)
    reaches(bench, "totals", 6)
    orders.push(10, ((3, "ada", 7), 1))
    reaches(bench, "totals", 11)
    wait_until("two micro-batches were planned", lambda: len(asked) == 2, 30)
    assert asked == [Interval(5, 6, starts=True), Interval(6, 11)]
    for time in (5, 10):
        assert contents(bench.client, "totals", time) == totals_at(orders, time)


def test_another_definition_corrects_the_output(
    bench: Bench, orders: Input, start: Started
) -> None:
    """The new definition's contents replace the old one's, without the shard being made anew."""
    first = start(DEAR, 5)
    reaches(bench, "dear", 6)
    first.stop()
    shard = bench.client.state("dear").shard
    other = view("dear", "SELECT id, upper(who) AS who FROM orders", DEAR.schema, "orders")
    orders.push(10, ((3, "ada", 7), 1))
    start(other, 6, dataflow=2)
    reaches(bench, "dear", 11)
    assert bench.client.state("dear").shard == shard
    assert contents(bench.client, "dear", 5) == dear_at(orders, 5)
    for time in (6, 10):
        expected = Counter((number, who.upper()) for number, who, _ in orders.at(time))
        assert contents(bench.client, "dear", time) == expected


@pytest.mark.parametrize(
    "column", ["(SELECT count(*) {})", "CAST(EXISTS (SELECT 1 {}) AS BIGINT)"], ids=["value", "any"]
)
def test_a_subquery_in_select_corrects_many_rows_of_another_definition(
    bench: Bench, orders: Input, column: str
) -> None:
    """Spark fails at a filter over UNION ALL with a side that has one, and the view would, too."""
    columns = "who STRING, n BIGINT"
    session = session_of(bench)
    first = view("beside", "SELECT who, id AS n FROM orders", columns, "orders")
    orders.push(8, *(((number, f"w{number % 9_000}", 1), 1) for number in range(17_000)))
    rendered(bench, first, 8).advance(session, Interval(8, 9, starts=True))
    orders.idle(20)
    given = column.format("FROM orders i WHERE i.who = o.who AND i.price < 15")
    query = f"SELECT who, {given} AS n FROM orders o"  # noqa: S608 - put together here
    other = view("beside", query, columns, "orders")
    rendered(bench, other, 9).advance(session, Interval(9, 20, starts=True))
    rows = orders.at(10)
    cheap = Counter(who for _, who, price in rows if price < 15)
    counts = [(who, cheap[who] if "count" in column else min(cheap[who], 1)) for _, who, _ in rows]
    assert contents(bench.client, "beside", 10) == Counter[Row](counts)


def test_a_failing_query_is_an_error_until_it_works(bench: Bench, orders: Input) -> None:
    """A division by zero is a row of the errors shard, from the time it is there until it goes."""
    kept = rendered(bench, INVERSE, 5)
    session = session_of(bench)
    kept.advance(session, Interval(5, 6, starts=True))
    orders.push(10, ((3, "ada", 0), 1))
    kept.advance(session, Interval(6, 11))
    orders.push(12, ((4, "ada", 6), 1))
    orders.push(20, ((3, "ada", 0), -1), until=30)
    kept.advance(session, Interval(11, 30))

    def errors(time: int) -> list[str]:
        return [row[0] for row in contents(bench.client, "inverse_errors", time).elements()]

    assert errors(9) == []
    for time in (10, 12, 19):
        [error] = errors(time)
        assert error.startswith("[DIVIDE_BY_ZERO]")
        assert contents(bench.client, "inverse", time) == {(1, 6.0): 1, (2, 3.0): 1}
    assert errors(20) == []
    assert contents(bench.client, "inverse", 29) == {(1, 6.0): 1, (2, 3.0): 1, (4, 10.0): 1}
    assert [h.status for h in bench.told(Health)] == ["running", "stalled", "running"]


def test_a_view_that_fails_is_stalled_in_its_next_life(bench: Bench, orders: Input) -> None:
    """Also while its inputs rest, so that no step is taken; and it runs once it works again."""
    orders.push(10, ((3, "ada", 0), 1), until=20)
    session = session_of(bench)
    rendered(bench, INVERSE, 10).advance(session, Interval(10, 11, starts=True))
    [(error,)] = contents(bench.client, "inverse_errors", 10)
    bench.seen.clear()
    again = rendered(bench, INVERSE, 10)
    for until in (30, 40):
        again.follow(bench.client.readable("orders"))
        orders.idle(until)
    assert [(h.epoch, h.status, h.error) for h in bench.told(Health)] == [(2, "stalled", error)]
    orders.push(40, ((3, "ada", 0), -1))
    again.advance(session, Interval(20, 41))
    assert [h.status for h in bench.told(Health)] == ["stalled", "running"]


def test_a_result_that_is_not_small_is_left_to_spark(
    bench: Bench, orders: Input, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Below the bound rows are staged here, inside of the state; beyond it they are Spark's files.

    And a view that grows over the bound and shrinks again is right on both sides of it.
    """
    for module in (
        "shardline.app.compute.view.output_contents",
        "shardline.datasource.spark_native.time_interval",
    ):
        monkeypatch.setattr(f"{module}.ROWS_MAX", 3)
    for module in ("kept_jobs", "group_steps", "output_change"):
        monkeypatch.setattr(f"shardline.app.compute.view.{module}.RESULT_ROWS_MAX", 3)
    monkeypatch.setattr("shardline.datasource.spark_native.save._FEW_ROWS", 3)
    session = session_of(bench)
    views = {"totals": rendered(bench, TOTALS, 5), "dear": rendered(bench, DEAR, 5)}
    people = ("ada", "bob", "cyd", "dan", "eve", "fay")
    steps = [
        [((3, "ada", 30), 1)],
        [((10 + n, who, 40), 1) for n, who in enumerate(people)],
        [((10 + n, who, 40), -1) for n, who in enumerate(people)],
        [((4, "bob", 50), 1)],
    ]
    lower = 5
    inline: dict[str, set[bool]] = {name: set() for name in views}
    for number, changes in enumerate([[], *steps]):
        time = 10 * number + 5
        if changes:
            orders.push(time, *changes)
        for name, kept in views.items():
            kept.advance(session, Interval(lower, time + 1, starts=not changes))
            batches = bench.client.state(name).trace.batches
            last = [part for batch in batches[-1:] for part in batch.parts]
            inline[name] |= {part.inline is not None for part in last}
        lower = time + 1
        assert contents(bench.client, "totals", time) == totals_at(orders, time)
        assert contents(bench.client, "dear", time) == dear_at(orders, time)
    assert inline == {"totals": {True, False}, "dear": {True, False}}


def test_garbage_in_the_output_is_put_right(bench: Bench, orders: Input) -> None:
    """What somebody writes into the output, even if nobody can read it, the next step corrects."""
    session = session_of(bench)
    kept = rendered(bench, DEAR, 5)
    kept.advance(session, Interval(5, 6, starts=True))
    garbage = pa.table({"id": [1, 99], "who": ["ada", "eve"], "_ts": [7, 7], "_diff": [-3, 2]})
    bench.client.writer("dear").compare_and_append(garbage, Frontier(6), Frontier(8))
    orders.push(10, ((3, "ada", 70), 1))
    kept.advance(session, Interval(6, 11))
    for time in (8, 9, 10):
        assert contents(bench.client, "dear", time) == dear_at(orders, time)


def test_two_that_race_make_one_output(bench: Bench, orders: Input) -> None:
    """Of two renderings that write side by side each finds the other's steps and goes on."""
    pair = [(rendered(bench, TOTALS, 5), session_of(bench)) for _ in range(2)]
    for time in range(10, 50, 10):
        orders.push(
            time, ((time, "ada", time), 1), ((time - 10, "ada", time - 10), -1 if time > 10 else 1)
        )
    errors: list[BaseException] = []

    def run(kept: View, session: SparkSession) -> None:
        try:
            kept.advance(session, Interval(5, 6, starts=True))
            kept.advance(session, Interval(6, orders.upper))
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test shows it
            errors.append(error)

    threads = [threading.Thread(target=run, args=each) for each in pair]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for time in range(5, orders.upper):
        assert contents(bench.client, "totals", time) == totals_at(orders, time)


def test_nothing_is_written_before_it_is_allowed(
    bench: Bench, orders: Input, start: Started
) -> None:
    """Read-only, a view runs its query and holds its input; allowed to write it misses no time."""
    bench.writes.clear()
    start(TOTALS, 5)
    wait_until("warm", lambda: bool(bench.told(Hydrated)), 60)
    orders.push(10, ((3, "ada", 7), 1))
    orders.push(15, ((3, "ada", 7), -1))
    assert not bench.client.exists("totals")
    bench.writes.set()
    reaches(bench, "totals", 16)
    for time in (5, 10, 15):
        assert contents(bench.client, "totals", time) == totals_at(orders, time)


def test_a_fenced_view_says_so_and_writes_nothing(
    bench: Bench, orders: Input, start: Started
) -> None:
    """Once another runtime has taken over, the view ends, and tells why."""
    fence = threading.Event()

    def check() -> None:
        if fence.is_set():
            raise Fenced("another runtime has taken over this location")

    object.__setattr__(bench.host, "check_fence", check)
    start(TOTALS, 5)
    reaches(bench, "totals", 6)
    fence.set()
    orders.push(10, ((3, "ada", 7), 1))
    wait_until("failed", lambda: bool(bench.told(Failed)), 60)
    assert bench.upper("totals") == 6
    [failed] = bench.told(Failed)
    assert failed.fenced


@pytest.mark.usefixtures("orders")
def test_an_input_made_anew_is_hydrated_anew(bench: Bench, start: Started) -> None:
    """The output is of another shard by now: its checkpoint is thrown away, and it is corrected."""
    run = start(TOTALS, 5)
    reaches(bench, "totals", 6)
    run.stop()
    end_view_holds(bench.client, "totals", ["orders"])
    bench.client.drop("orders", despite_holders=list(bench.client.state("orders").leased))
    anew = bench.input("orders", ORDERS)
    anew.push(20, ((7, "eve", 1), 1))
    bench.client.hold("orders", "later").downgrade(Frontier(20))
    bench.seen.clear()
    start(TOTALS, 5)
    reaches(bench, "totals", 21)
    assert contents(bench.client, "totals", 20) == {("eve", 1): 1}


@pytest.mark.usefixtures("orders")
def test_a_failure_is_told_also_where_its_clean_up_fails(
    bench: Bench, start: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store is lost as well: a view whose failure nobody hears of is never started again."""
    run = start(TOTALS, 5)
    reaches(bench, "totals", 6)

    def lost(*_: object) -> None:
        raise Indeterminate("the store did not answer")

    monkeypatch.setattr(streaming_query, "end_hold", lost)
    run._error = InvalidUsage("it was expired", code="HOLD_EXPIRED")
    run._report_failure()
    [failed] = bench.told(Failed)
    assert "HOLD_EXPIRED" in failed.error


def test_an_input_that_lost_a_part_freezes_the_view(
    bench: Bench, orders: Input, start: Started
) -> None:
    """Nothing passes a part that is gone, the status names it; put back, the view goes on."""
    run = start(DEAR, 5)
    reaches(bench, "dear", 6)
    run.stop()
    orders.push(10, *(((n, f"who {n * 7919:x}" * 8, 70), 1) for n in range(100, 600)))
    orders.push(20, ((3, "ada", 70), 1))
    (part,) = parts(bench.client, "orders")
    whole = part.read_bytes()
    part.unlink()
    run = start(DEAR, 5)
    wait_until("failed", lambda: bool(bench.told(Failed)), 60)
    (health,) = [seen for seen in bench.told(Health) if seen.epoch == bench.epoch]
    assert (health.namespace, health.status) == ("compute", "frozen")
    assert part.name in health.error
    assert [seen.error for seen in bench.told(Failed)] == [health.error]
    assert bench.upper("dear") == 6
    run.stop()
    part.write_bytes(whole)
    bench.seen.clear()
    start(DEAR, 5)
    reaches(bench, "dear", 21)
    for time in (5, 10, 20):
        assert contents(bench.client, "dear", time) == dear_at(orders, time)


def test_finished_inputs_end_the_view(bench: Bench, orders: Input, start: Started) -> None:
    """When nothing more can come of the inputs, nothing more comes of the view, and it says so."""
    start(TOTALS, 5)
    reaches(bench, "totals", 6)
    handle = bench.client.writer("orders")
    handle.compare_and_append(None, handle.upper(), EMPTY)
    wait_until("ended", lambda: bool(bench.told(Ended)), 60)
    assert bench.client.state("totals").upper.is_empty
    assert contents(bench.client, "totals", 1000) == totals_at(orders, 5)


def test_a_view_of_nothing_is_finished_at_once(bench: Bench) -> None:
    """A view without inputs holds its rows from its as_of on, for ever."""
    bench.spark.udf.register("one_less", lambda n: n - 1, "int")
    one = view("one", "SELECT 1 AS n UNION ALL SELECT one_less(2)", "n INT")
    run = render(bench.host, bench.incarnation("one", 7), one)
    wait_until("ended", lambda: bool(bench.told(Ended) or bench.told(Failed)), 60)
    run.stop()
    assert not bench.told(Failed)
    assert bench.client.state("one").upper.is_empty
    assert contents(bench.client, "one", 7) == {(1,): 2}
    assert bench.client.state("one").since.time == 7


@pytest.mark.usefixtures("orders")
def test_a_frame_becomes_an_interval_once(bench: Bench) -> None:
    """`compare_and_append` fills exactly its interval, once, and refuses another upper."""
    frame = bench.spark.sql("SELECT 9L AS id, 'eve' AS who, 1 AS price")
    path = f"{bench.client.location.url}/orders"

    def append(lower: int, upper: int, number: int) -> str:
        done = datasource.compare_and_append(
            frame, path, lower=lower, upper=upper, writer=("w", number)
        )
        return type(done).__name__

    assert append(6, 9, 1) == "Appended"
    assert append(6, 9, 1) == "AlreadyCommitted"
    assert append(6, 12, 2) == "UpperMismatch"
    empty = datasource.compare_and_append(
        frame.where("false"), path, lower=9, upper=20, writer=("w", 3)
    )
    assert type(empty).__name__ == "Appended"
    assert bench.upper("orders") == 20
    assert contents(bench.client, "orders", 6)[(9, "eve", 1)] == 1
    assert contents(bench.client, "orders", 5)[(9, "eve", 1)] == 0
    assert contents(bench.client, "orders", 19).total() == 3

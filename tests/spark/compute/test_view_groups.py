"""Views of the same inputs step as a group: they join it, step together, leave it and come back."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JError

from shardline.app.compute.group import trigger_query, view_group
from shardline.app.compute.group.group_registry import get_groups
from shardline.app.compute.holds import end_view_holds
from shardline.app.compute.view import membership, streaming_query
from shardline.app.compute.view.maintained_view import View
from shardline.app.compute.view.streaming_query import RunningView, run_view
from shardline.app.execution.observations import Failed, GroupStepped, Health, Started
from support.profiles import one_of
from support.spark.views import DEAR, ORDERS, TOTALS, Bench, Input, contents, view
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from shardline.app.protocol.objects import ViewDescription
    from shardline.datasource.spark_native.time_interval import Interval

pytestmark = pytest.mark.spark

PATIENCE_S = 60

RICH = view("rich", "SELECT who FROM totals WHERE total >= 20", "who STRING", "totals")
BOTH = view(
    "both",
    "SELECT d.id, t.total FROM dear d JOIN totals t ON t.who = d.who",
    "id BIGINT, total BIGINT",
    "dear",
    "totals",
)


NUMBER = view("number", "SELECT count(*) AS n FROM dear", "n BIGINT", "dear")
ANEW = view(
    "dear",
    "SELECT CAST(id AS STRING) AS id, who FROM orders WHERE price >= 50",
    "id STRING, who STRING",
    "orders",
)
"""Under the name of `DEAR`, whose shard cannot hold it."""


VALID = view(
    "valid",
    "SELECT id, who FROM orders WHERE timestamp_millis(price) > now()",
    "id BIGINT, who STRING",
    "orders",
    strategy="incremental",
)
INVERSE = view(
    "inverse", "SELECT id, 60 / price AS part FROM orders", "id BIGINT, part DOUBLE", "orders"
)
COUNTED = view("counted", "SELECT count(*) AS n FROM valid", "n BIGINT", "valid")


class Views:
    """Views that run, and stop at the end."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.groups = get_groups(bench.host)
        self.runs: dict[str, RunningView] = {}

    def start(self, *descriptions: ViewDescription, as_of: int = 0) -> None:
        for description in descriptions:
            incarnation = self.bench.incarnation(description.name, as_of)
            self.runs[description.name] = run_view(self.bench.host, incarnation, description)

    def group(self, name: str) -> str:
        """The group in which a view steps; "" for none."""
        found = self.groups.group_of(name)
        return "" if found is None or name not in found.names() else found.name

    def wait_for_groups(self, *names: str) -> None:
        wait_until("the views are in a group", lambda: all(map(self.group, names)), PATIENCE_S)

    def wait_for(self, upper: int, *names: str) -> None:
        def reached() -> bool:
            return all((self.bench.upper(name) or 0) >= upper for name in names)

        wait_until(f"the views are at {upper}", reached, PATIENCE_S)


@pytest.fixture
def bench(spark: SparkSession, location: str, tmp_path: Path) -> Bench:
    return Bench(spark, location, tmp_path / "checkpoints")


@pytest.fixture
def orders(bench: Bench) -> Input:
    return bench.input("orders", ORDERS)


@pytest.fixture
def views(bench: Bench) -> Iterator[Views]:
    started = Views(bench)
    yield started
    for run in started.runs.values():
        run.stop()


def holders(bench: Bench) -> list[str]:
    """Who holds `orders`, by the first word of each hold's name."""
    return sorted({name.split(":")[0] for name in bench.client.state("orders").critical})


def totals(rows: list[tuple[int, str, int]]) -> Counter[tuple[str, int]]:
    found: Counter[str] = Counter()
    for _, who, price in rows:
        found[who] += price
    return Counter(found.items())


def test_a_chain_steps_in_one_group(
    spark: SparkSession, bench: Bench, orders: Input, views: Views
) -> None:
    """One streaming query triggers all of them, and all are right at each of its times."""
    orders.push(10, ((1, "ann", 5), 1), ((2, "bob", 30), 1), until=100)
    views.start(TOTALS, DEAR)
    views.wait_for(100, "totals", "dear")
    views.start(RICH, BOTH)
    views.wait_for_groups("totals", "dear", "rich", "both")
    names = ("totals", "dear", "rich", "both")
    wait_until("it is one group", lambda: len({*map(views.group, names)}) == 1, PATIENCE_S)
    group = views.groups.group_of("both")
    assert group is not None
    assert group.inputs == ("orders",)
    wait_until(
        "one query runs", lambda: [q.name for q in spark.streams.active] == [group.query.name], 60
    )
    before = len(bench.told(GroupStepped))
    for time in range(200, 800, 100):
        change = ((time, "ann", time // 100), 1), ((2, "bob", 30), -1 if time == 400 else 0)
        orders.push(time, *(one for one in change if one[1]))
    views.wait_for(701, *names)
    for time in (150, 200, 399, 400, 650, 700):
        rows = orders.at(time)
        assert contents(bench.client, "totals", time) == totals(rows)
        dear = Counter((i, who) for i, who, price in rows if price >= 10)
        assert contents(bench.client, "dear", time) == dear
        assert contents(bench.client, "rich", time) == Counter(
            (who,) for who, total in totals(rows) if total >= 20
        )
        sums = dict(totals(rows).keys())
        assert contents(bench.client, "both", time) == Counter(
            (i, sums[who]) for i, who, price in rows if price >= 10
        )
    told = bench.told(GroupStepped)[before:]
    assert {one.id for one in told} == set(names)
    assert {one.query for one in told} == {group.query.id}
    last = {one.id: one.query for one in bench.told(Started)}
    assert last == dict.fromkeys(names, group.query.id)
    assert not bench.told(Failed)


@pytest.mark.parametrize("alone", one_of(2, [False, True]), ids=["in a group", "alone"])
def test_rows_go_by_themselves(
    bench: Bench, orders: Input, views: Views, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No input changes: the tick that finds a row due has the view step, and views of it."""
    if alone:
        monkeypatch.setattr(streaming_query, "_LITTLE", -1)
        monkeypatch.setattr(membership.Membership, "may_join", lambda _: False)
    orders.push(10, ((1, "ann", 150), 1), ((2, "bob", 350), 1), ((3, "cyd", 550), 1), until=100)
    views.start(VALID)
    views.wait_for(100, "valid")
    views.start(COUNTED)
    views.wait_for(100, "counted")
    if not alone:
        views.wait_for_groups("valid", "counted")
        assert views.group("valid") == views.group("counted")
    for until in (120, 200, 400):
        orders.idle(until)
        views.wait_for(until, "valid", "counted")
    assert bool(views.group("valid")) is not alone
    for run in views.runs.values():
        run.stop()
    # What is due meanwhile is made up for: each row is gone at its time.
    orders.idle(600)
    views.start(VALID, COUNTED)
    views.wait_for(600, "valid", "counted")
    there = {time: sum(price > time for price in (150, 350, 550)) for time in range(140, 600, 10)}
    for time, rows in there.items():
        assert contents(bench.client, "valid", time).total() == rows, time
        assert contents(bench.client, "counted", time) == Counter([(rows,)]), time
    assert not bench.told(Failed)


def test_a_view_that_fails_in_a_group_fails_alone(
    bench: Bench, orders: Input, views: Views, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its failure is reported, the others go on in the same step, and its next life comes back."""
    orders.push(10, ((1, "ann", 5), 1))
    views.start(TOTALS, DEAR)
    views.wait_for_groups("totals", "dear")
    query = views.groups.group_of("dear")
    advance = View.advance

    def failing(view: View, session: SparkSession, interval: Interval) -> None:
        if view is views.runs["totals"]._view:
            raise OSError("the disk is gone")
        advance(view, session, interval)

    monkeypatch.setattr(View, "advance", failing)
    orders.push(20, ((2, "bob", 30), 1))
    views.wait_for(21, "dear")
    wait_until("the failure is told", lambda: bool(bench.told(Failed)), PATIENCE_S)
    (failed,) = bench.told(Failed)
    assert (failed.id, "the disk is gone" in failed.error) == ("totals", True)
    assert views.group("totals") == ""
    assert views.groups.group_of("dear") is query
    assert bench.upper("totals") == 11
    monkeypatch.undo()
    views.runs["totals"].stop()
    views.start(TOTALS)
    views.wait_for_groups("totals")
    views.wait_for(21, "totals")
    assert contents(bench.client, "totals", 20) == totals(orders.at(20))


def test_a_view_whose_query_fails_is_stalled_in_its_next_life(
    bench: Bench, orders: Input, views: Views
) -> None:
    """The errors of its shard are told where no step is taken, and it runs once it works again."""

    def told() -> list[str]:
        return [one.status for one in bench.told(Health) if one.epoch == bench.epoch]

    def is_stalled() -> bool:
        return told()[-1:] == ["stalled"]

    orders.push(10, ((1, "ann", 0), 1))
    views.start(INVERSE)
    views.wait_for_groups("inverse")
    wait_until("it is stalled", is_stalled, PATIENCE_S)
    views.runs["inverse"].stop()
    views.start(INVERSE)
    views.wait_for_groups("inverse")
    wait_until("it is stalled again", is_stalled, PATIENCE_S)
    orders.push(20, ((1, "ann", 0), -1))
    wait_until("it works again", lambda: told() == ["stalled", "running"], PATIENCE_S)
    assert not bench.told(Failed)


def test_a_view_that_blocks_is_let_go_and_comes_back(
    bench: Bench, orders: Input, views: Views, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others wait for it as long as their patience, go on without it, and take it in again."""
    monkeypatch.setattr(view_group, "_PATIENCE_MS", 300.0)
    monkeypatch.setattr(view_group, "_PATIENCE_MOST_MS", 300.0)
    monkeypatch.setattr(membership, "_PAUSE_MS", 100.0)
    orders.push(10, ((1, "ann", 5), 1))
    views.start(TOTALS, DEAR)
    views.wait_for_groups("totals", "dear")
    advance, free = View.advance, threading.Event()

    def blocking(view: View, session: SparkSession, interval: Interval) -> None:
        if view is views.runs["totals"]._view and not free.is_set():
            assert free.wait(3 * PATIENCE_S)
        advance(view, session, interval)

    monkeypatch.setattr(View, "advance", blocking)
    orders.push(20, ((2, "bob", 30), 1))
    views.wait_for(21, "dear")
    orders.push(30, ((3, "bob", 40), 1))
    views.wait_for(31, "dear")
    assert views.group("totals") == ""
    free.set()
    wait_until(
        "it goes on", lambda: bench.upper("totals") == 31 or bool(bench.told(Failed)), PATIENCE_S
    )
    assert not bench.told(Failed)
    views.wait_for_groups("totals")
    assert not bench.told(Failed)
    for time in (10, 20, 30):
        assert contents(bench.client, "totals", time) == totals(orders.at(time))
        dear = Counter((i, who) for i, who, price in orders.at(time) if price >= 10)
        assert contents(bench.client, "dear", time) == dear


def test_a_view_goes_on_where_it_was_in_its_group(
    spark: SparkSession, bench: Bench, orders: Input, views: Views
) -> None:
    """Without a checkpoint: its shard says how far it is, its holds keep what comes next."""
    orders.push(10, ((1, "ann", 5), 1))
    views.start(TOTALS)
    views.wait_for_groups("totals")
    views.wait_for(11, "totals")
    views.runs["totals"].stop()
    wait_until("its group has ended", lambda: not spark.streams.active, PATIENCE_S)
    assert holders(bench) == ["view"], "the group's hold is gone"
    orders.push(20, ((2, "bob", 30), 1))
    orders.push(30, ((2, "bob", 30), -1))
    views.start(TOTALS)
    views.wait_for(31, "totals")
    for time in (10, 20, 30):
        assert contents(bench.client, "totals", time) == totals(orders.at(time))
    wait_until("the group has its hold", lambda: "group" in holders(bench), PATIENCE_S)
    end_view_holds(bench.client, "totals", ["orders"])
    assert holders(bench) == ["group"], "a group that runs keeps its hold"


@pytest.mark.parametrize("lower_first", [True, False], ids=["at once", "later"])
def test_a_view_of_a_view_that_was_made_anew_begins_anew(
    bench: Bench, orders: Input, views: Views, lower_first: bool
) -> None:
    """Its group reads what it read before, so that no query finds another shard in the middle."""
    orders.push(10, ((1, "ann", 15), 1), ((2, "bob", 60), 1))
    views.start(DEAR)
    views.wait_for(11, "dear")
    views.start(NUMBER)
    views.wait_for_groups("dear", "number")
    views.wait_for(11, "number")
    assert contents(bench.client, "number", 10) == {(2,): 1}
    views.runs["dear"].stop()
    if not lower_first:
        views.start(ANEW)
        views.wait_for(11, "dear")
        orders.push(20, ((3, "eve", 70), 1))
    else:
        orders.push(20, ((3, "eve", 70), 1))
        views.start(ANEW)
    wait_until("it has ended", lambda: bool(bench.told(Failed)), PATIENCE_S)
    [failed] = bench.told(Failed)
    assert failed.id == "number"
    # Or it has looked between the end of the one shard and the beginning of the other.
    assert failed.error.startswith(("[INPUT_CHANGED]", "[SHARD_DROPPED]", "[HISTORY_GONE]"))
    views.runs["number"].stop()
    # As the lane does, which tries again where this finds no shard yet.
    wait_until("its input is there again", lambda: bench.client.exists("dear"), PATIENCE_S)
    views.start(NUMBER)
    views.wait_for(21, "dear", "number")
    assert contents(bench.client, "number", 20) == {(2,): 1}
    orders.push(30, ((2, "bob", 60), -1))
    views.wait_for(31, "number")
    assert contents(bench.client, "number", 30) == {(1,): 1}
    assert len(bench.told(Failed)) == 1


def test_a_tick_amid_a_views_way_out_of_its_group_hides_nothing(
    spark: SparkSession,
    bench: Bench,
    orders: Input,
    views: Views,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It finds the group ended, as the one before did; the query that comes then is still watched.

    Found by kills: a view stood still for ever when the query that it had got died as well.
    """
    orders.push(10, ((1, "ann", 5), 1))
    views.start(TOTALS)
    views.wait_for_groups("totals")
    monkeypatch.setattr(membership.Membership, "may_join", lambda _: False)
    hold, amid, ticked = bench.client.hold, threading.Event(), threading.Event()

    def slow(name: str, hold_name: str, **chosen: Any) -> Any:
        if hold_name.endswith(":begin"):
            amid.set()
            assert ticked.wait(PATIENCE_S)
        return hold(name, hold_name, **chosen)

    monkeypatch.setattr(bench.client, "hold", slow)
    for query in spark.streams.active:
        query.stop()
    wait_until("the view gets a query of its own", amid.is_set, PATIENCE_S)
    views.runs["totals"].tick([])
    ticked.set()
    orders.push(20, ((2, "bob", 30), 1))
    views.wait_for(21, "totals")
    assert not bench.told(Failed)
    (own,) = (query for query in spark.streams.active if query.name.startswith("totals:"))
    own.stop()
    wait_until("its end is told", lambda: bool(bench.told(Failed)), PATIENCE_S)


def test_a_group_waits_for_its_query_to_be_known(
    orders: Input, views: Views, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark may run the first micro-batch before the call that starts the query has returned."""
    begun, run = threading.Event(), view_group.ViewGroup._run_micro_batch

    def running(group: view_group.ViewGroup, *args: Any) -> None:
        begun.set()
        run(group, *args)

    def late(*_: object) -> None:
        assert begun.wait(PATIENCE_S)

    monkeypatch.setattr(view_group.ViewGroup, "_run_micro_batch", running)
    monkeypatch.setattr(trigger_query, "wait_until_initialised", late)
    orders.push(10, ((1, "ann", 5), 1), until=100)
    views.start(TOTALS)
    views.wait_for_groups("totals")
    orders.push(200, ((2, "bob", 30), 1))
    views.wait_for(201, "totals")
    group = views.groups.group_of("totals")
    assert group is not None
    assert group.is_active()
    assert group.query.name.endswith(":1"), "it has not been started again"


def test_a_query_whose_start_fails_does_not_run(
    spark: SparkSession,
    bench: Bench,
    orders: Input,
    views: Views,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The JVM may not answer while a query is waited for; nobody else could end it."""

    def fail(*_: object) -> None:
        raise Py4JError("the JVM did not answer")

    orders.push(10, ((1, "ann", 5), 1))
    with monkeypatch.context() as patched:
        patched.setattr(trigger_query, "wait_until_initialised", fail)
        views.start(TOTALS)
        wait_until("the failure is told", lambda: bool(bench.told(Failed)), PATIENCE_S)
        wait_until("it does not run", lambda: not spark.streams.active, PATIENCE_S)
    views.runs["totals"].stop()
    views.start(TOTALS)
    views.wait_for(11, "totals")


def test_functions_of_python_run_in_no_group(
    spark: SparkSession, bench: Bench, orders: Input, views: Views
) -> None:
    """They may block for ever; the view has a streaming query of its own."""
    spark.udf.register("doubled", lambda price: 2 * price, "int")
    doubled = view(
        "doubled_prices",
        "SELECT id, doubled(price) AS price FROM orders",
        "id BIGINT, price INT",
        "orders",
    )
    orders.push(10, ((1, "ann", 5), 1))
    views.start(DEAR, doubled)
    views.wait_for(11, "doubled_prices")
    orders.push(20, ((2, "bob", 30), 1))
    views.wait_for(21, "doubled_prices", "dear")
    assert views.group("doubled_prices") == ""
    assert views.group("dear") != ""
    assert contents(bench.client, "doubled_prices", 20) == Counter({(1, 10): 1, (2, 60): 1})

"""Executions of Spark's store are read when they are due, each for its micro-batch."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import pytest

from shardline.app.introspection.spark_plan.execution_plan import SparkPlan, parse_plan
from shardline.app.introspection.spark_plan.harvest import Harvester
from shardline.app.introspection.spark_plan.kept_runs import KeptRun, KeptRunReader
from shardline.app.introspection.spark_plan.status_store import Execution
from support.fakes.introspection import DELAYS, World, progress

RUN = "r-delays-1"
QUERY = "delays:u1:1"


def aggregated(rows: int) -> SparkPlan:
    """A plan that filters nothing: a write of an aggregate over a scan of so many rows."""
    nodes = [
        ("WriteFiles", "WriteFiles", []),
        ("HashAggregate", "HashAggregate(keys=[carrier#1], functions=[avg(delay#2)])", []),
        (
            "Scan parquet",
            "Scan parquet []",
            [{"name": "number of output rows", "accumulatorId": 9, "metricType": "sum"}],
        ),
    ]
    graph = {
        "nodes": [
            {"id": number, "name": name, "desc": detail, "metrics": metrics}
            for number, (name, detail, metrics) in enumerate(nodes)
        ],
        "edges": [{"fromId": 1, "toId": 0}, {"fromId": 2, "toId": 1}],
    }
    return parse_plan(json.dumps(graph), {"9": str(rows)})


@dataclass
class Store:
    """Spark's status store: executions by number, of which the oldest may be gone.

    Attributes:
        forgets: This one is gone after the next look.
        firsts: From where on it was looked.
        asked: Executions that were asked for by themselves.
    """

    kept: list[Execution] = field(default_factory=list)
    plans: int = 0
    forgets: int = -1
    firsts: list[int] = field(default_factory=list)
    asked: list[int] = field(default_factory=list)

    def add(
        self, run: str, batch: int, rows: int | None = None, *, ended: bool = True, error: str = ""
    ) -> int:
        number = self.kept[-1].number + 1 if self.kept else 0
        self.kept.append(
            Execution(
                number,
                f"{QUERY}\nid = q\nrunId = {run}\nbatch = {batch}",
                1 if ended else None,
                error,
                {} if rows is None else {"9": str(rows)},
            )
        )
        return number

    def end(self, number: int) -> None:
        self.kept = [
            msgspec.structs.replace(one, ended_ms=1) if one.number == number else one
            for one in self.kept
        ]

    def since(self, first: int) -> list[Execution]:
        self.firsts.append(first)
        found = [one for one in self.kept if one.number >= first]
        self.kept = [one for one in self.kept if one.number != self.forgets]
        return found

    def execution(self, number: int) -> Execution | None:
        self.asked.append(number)
        return next((one for one in self.kept if one.number == number), None)

    def plan(self, execution: Execution) -> SparkPlan | None:
        if execution not in self.kept:
            return None
        self.plans += 1
        assert execution.values is not None
        return aggregated(int(execution.values["9"]))


@pytest.fixture
def world() -> World:
    made = World()
    made.run(DELAYS)
    return made


@dataclass
class KeptRunStore:
    """Runs of kept plans that nobody has asked for yet."""

    waiting: list[KeptRun] = field(default_factory=list)

    def add(self, run: str, batch: int, rows: int) -> None:
        self.waiting.append(KeptRun((run, batch), aggregated(rows)))

    def read(self) -> list[KeptRun]:
        found, self.waiting = self.waiting, []
        return found


def harvester(world: World, store: Any, kept_runs: KeptRunStore | None = None) -> Harvester:
    return Harvester(world.sink, store, cast("Any", kept_runs or KeptRunStore()))


def done(world: World, given: Harvester, batch: int = 0, *, in_group: bool = False) -> None:
    """Let a micro-batch be done, and be looked at."""
    event = progress(QUERY, RUN, micro_batch=batch, addBatch=1)
    given.ask(msgspec.structs.replace(event, in_group=in_group))
    given.step()
    world.sink.step()


def read(world: World) -> list[tuple[object, object]]:
    """Rows that the view's aggregate has taken, and in how many micro-batches."""
    ends = {r["id"]: r["from_operator_id"] for r in world.rows("dataflow_channel_operators")}
    sources = {r["id"] for r in world.rows("dataflow_operators") if r["name"] == "Source"}
    rows = world.rows("message_counts")
    return [(r["sent"], r["batch_sent"]) for r in rows if ends[r["channel_id"]] in sources]


def observed(world: World) -> object:
    """How many micro-batches of the view were looked at."""
    [found] = {row["batch_observed"] for row in world.rows("message_counts")}
    return found


def test_all_executions_of_a_micro_batch_are_added_up(world: World) -> None:
    """Those that counted something and went well; of other micro-batches none."""
    store = Store()
    given = harvester(world, store)
    store.add(RUN, 0)
    store.add("another", 0, rows=1000)
    store.add(RUN, 0, rows=5)
    store.add(RUN, 0, rows=7)
    store.add(RUN, 0, rows=100, error="it failed")
    store.add(RUN, 1, rows=30)
    done(world, given)
    assert read(world) == [(12, 1)]
    done(world, given, 1)
    assert read(world) == [(42, 2)]
    assert store.plans == 3


def test_a_micro_batch_is_looked_at_once_the_store_knows_its_end(world: World) -> None:
    """The listener may be earlier; what never arrives is given up and counted."""
    store = Store()
    given = harvester(world, store)
    done(world, given)
    outer = store.add(RUN, 0, ended=False)
    store.add(RUN, 0, rows=5)
    given.step()
    world.sink.step()
    assert read(world) == []
    store.end(outer)
    given.step()
    world.sink.step()
    assert read(world) == [(5, 1)]
    done(world, given, 7)
    for _ in range(30):
        given.step()
    assert world.sink.inbox.dropped == 1


def test_what_goes_on_is_looked_at_with_what_is_new(world: World) -> None:
    """It is asked for by itself only once much is newer, and then counts all the same."""
    store = Store()
    given = harvester(world, store)
    inner = [store.add(RUN, batch, rows=5, ended=False) for batch in (0, 1)]
    given.step()
    store.add("another", 0)
    store.end(inner[0])
    done(world, given)
    assert (store.firsts, store.asked) == ([0, 0], [])
    assert read(world) == [(5, 1)]
    for _ in range(100):
        store.add("another", 0)
    given.step()
    store.end(inner[1])
    done(world, given, 1)
    assert (store.firsts[2:], store.asked) == ([1, 103], [inner[1]])
    assert read(world) == [(10, 2)]


def test_an_execution_that_the_store_knows_after_a_later_one_is_not_lost(world: World) -> None:
    """Spark numbers it before it plans it, and only then tells the store."""
    store = Store()
    given = harvester(world, store)
    store.add("another", 0)
    given.step()
    for batch, rows in ((0, 5), (1, 7)):
        before = read(world)
        outer, inner = store.add(RUN, batch, ended=False), store.add(RUN, batch, rows)
        store.add(RUN, batch)
        late = [one for one in store.kept if one.number in (outer, inner)]
        store.kept = [one for one in store.kept if one not in late]
        given.step()
        store.kept = sorted([*store.kept, *late], key=lambda one: one.number)
        done(world, given, batch)
        assert read(world) == before, "the outermost one goes on"
        store.end(outer)
        given.step()
        world.sink.step()
    assert read(world) == [(12, 2)]
    never = store.add("another", 0)
    for _ in range(100):
        store.add("another", 0)
    store.kept = [one for one in store.kept if one.number != never]
    given.step()
    given.step()
    assert store.firsts[-1] == never + 101, "one that never comes is not looked for for ever"


def test_what_the_store_has_forgotten_is_passed_over(world: World) -> None:
    """It keeps the newest executions only."""
    store = Store()
    given = harvester(world, store)
    for _ in range(20):
        store.add("another", 0)
    store.add(RUN, 0, rows=5)
    del store.kept[:10]
    done(world, given)
    assert read(world) == [(5, 1)]
    store.add(RUN, 1, rows=7)
    store.forgets = store.add(RUN, 1, rows=30)
    done(world, given, 1)
    assert read(world) == [(5, 1)], "forgotten between two looks: 7 would be too few"
    assert observed(world) == 2
    del store.kept[:]
    done(world, given, 2)
    for _ in range(30):
        given.step()
    world.sink.step()
    assert read(world) == [(5, 1)]
    assert observed(world) == 3, "it was, and nothing is known of its rows"


def test_more_than_fits_is_counted(world: World) -> None:
    """Whoever asks is not held up."""
    given = harvester(world, Store())
    for number in range(1_100):
        given.ask(progress(QUERY, RUN, micro_batch=number, addBatch=1))
    assert world.sink.inbox.dropped == 100


def test_the_end_of_a_run_does_not_lose_what_it_has_done(world: World) -> None:
    """The snapshot of a source is a run of its own, which is over when it is looked at."""
    store = Store()
    given = harvester(world, store)
    store.add("r-snapshot", 0, rows=5)
    given.ask(progress(QUERY, "r-snapshot", addBatch=1))
    given.step()
    world.sink.step()
    assert read(world) == [(5, 1)]
    (row,) = world.rows("objects")
    assert row["run_id"] == RUN


def test_runs_of_kept_plans_are_added_to_the_executions_of_their_micro_batch(world: World) -> None:
    """Of a query of the view's own these come later: its end is that of the outermost."""
    store, kept = Store(), KeptRunStore()
    given = harvester(world, store, kept)
    outer = store.add(RUN, 0, ended=False)
    store.add(RUN, 0, rows=5)
    for run, batch, rows in ((RUN, 0, 7), (RUN, 0, 8), (RUN, 1, 100), ("another", 0, 1000)):
        kept.add(run, batch, rows)
    done(world, given)
    given.step()
    assert read(world) == []
    store.end(outer)
    given.step()
    world.sink.step()
    assert read(world) == [(20, 1)]
    store.add(RUN, 1)
    done(world, given, 1)
    assert read(world) == [(120, 2)]


def test_a_step_in_a_group_may_be_all_of_kept_plans(world: World) -> None:
    """No execution wraps it. One that comes a little later than the end is still of it."""
    store, kept = Store(), KeptRunStore()
    given = harvester(world, store, kept)
    kept.add(RUN, 1, 7)
    done(world, given, 1, in_group=True)
    assert read(world) == []
    given.step()
    world.sink.step()
    assert read(world) == [(7, 1)]
    kept.add(RUN, 2, 8)
    done(world, given, 2, in_group=True)
    store.add(RUN, 2, rows=5)
    given.step()
    world.sink.step()
    assert read(world) == [(20, 2)]


class Counted:
    """What the JVM answers about kept plans."""

    def __init__(self) -> None:
        self.runs: list[tuple[int, str, dict[str, str]]] = []
        self.asked: list[int] = []

    def counted(self) -> str:
        found, self.runs = self.runs, []
        return json.dumps(found)

    def graph(self, plan: int) -> str | None:
        self.asked.append(plan)
        metric = {"name": "number of output rows", "accumulatorId": plan, "metricType": "sum"}
        node = {"id": 0, "name": "Filter", "desc": "Filter", "metrics": [metric]}
        return None if plan == 3 else json.dumps({"nodes": [node], "edges": []})


def test_a_kept_plan_is_asked_for_once_and_its_counts_are_of_each_run() -> None:
    """Runs outside of micro-batches, and of plans that are given up, are nobody's."""
    counted: Any = Counted()
    reader = KeptRunReader(counted, str)
    assert reader.read() == []
    described = "v:u1:1\nid = q\nrunId = r\nbatch = {}"
    counted.runs = [
        (1, described.format(4), {"1": "6"}),
        (2, described.format(4), {"2": "7"}),
        (2, "", {"2": "8"}),
        (3, described.format(4), {"3": "9"}),
    ]
    assert [(run.key, run.plan.nodes[0].rows) for run in reader.read()] == [
        (("r", 4), 6),
        (("r", 4), 7),
    ]
    counted.runs = [(2, described.format(5), {"2": "1,000"})]
    (last,) = reader.read()
    assert (last.key, last.plan.nodes[0].rows) == (("r", 5), 1000)
    assert counted.asked == [1, 2, 3]

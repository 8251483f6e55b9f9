"""Which executions of Spark's store belong to which micro-batch, and when they are looked at."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import pytest

from app.introspection.harvest import Harvester
from support.introspection import DELAYS, World, progress

RUN = "r-delays-1"
QUERY = "delays:u1:1"


@dataclass
class Option:
    """Scala's."""

    value: Any = None

    def isEmpty(self) -> bool:  # noqa: N802 - Scala's names, in all of these
        return self.value is None

    def isDefined(self) -> bool:  # noqa: N802
        return self.value is not None

    def get(self) -> Any:
        assert self.value is not None
        return self.value


class Items(list[Any]):
    """A sequence of Scala's."""

    def isEmpty(self) -> bool:  # noqa: N802
        return not self

    def apply(self, at: int) -> Any:
        return self[at]

    def edges(self) -> Items:
        return self

    def mkString(self, between: str) -> str:  # noqa: N802
        return between.join(self)


@dataclass
class Execution:
    """One SQL execution."""

    id: int
    described: str
    rows: int | None = None
    ended: bool = True
    status: str = "COMPLETED"

    def executionId(self) -> int:  # noqa: N802
        return self.id

    def description(self) -> str:
        return self.described

    def completionTime(self) -> Option:  # noqa: N802
        return Option(1 if self.ended else None)

    def executionStatus(self) -> str:  # noqa: N802
        return self.status

    def metrics(self) -> Items:
        return Items([] if self.rows is None else ["rows"])


class Graph(Items):
    """A plan that filters nothing: a write of an aggregate over a scan."""

    def __init__(self, rows: int) -> None:
        super().__init__(["(1,0)", "(2,1)"])
        self._rows = rows

    def makeNodeDetailsJson(self, _metrics: object) -> str:  # noqa: N802
        counted = [{"name": "number of output rows", "value": str(self._rows), "type": "sum"}]
        details = {
            "node0": {"name": "WriteFiles", "desc": "WriteFiles", "metrics": []},
            "node1": {
                "name": "HashAggregate",
                "desc": "HashAggregate(keys=[carrier#1], functions=[avg(delay#2)])",
                "metrics": [],
            },
            "node2": {"name": "Scan parquet", "desc": "Scan parquet []", "metrics": counted},
        }
        return json.dumps(details)


@dataclass
class Store:
    """Spark's status store: executions by number, of which the oldest may be gone."""

    kept: list[Execution] = field(default_factory=list)
    plans: int = 0

    def add(self, run: str, batch: int, rows: int | None = None, **more: Any) -> Execution:
        number = self.kept[-1].id + 1 if self.kept else 0
        described = f"{QUERY}\nid = q\nrunId = {run}\nbatch = {batch}"
        self.kept.append(Execution(number, described, rows, **more))
        return self.kept[-1]

    def execution(self, number: int) -> Option:
        return Option(next((one for one in self.kept if one.id == number), None))

    def executionsCount(self) -> int:  # noqa: N802
        return len(self.kept)

    def executionsList(self, start: int, count: int) -> Items:  # noqa: N802
        return Items(self.kept[start : start + count])

    def executionMetrics(self, _number: int) -> object:  # noqa: N802
        return None

    def planGraph(self, number: int) -> Graph:  # noqa: N802
        self.plans += 1
        return Graph(self.execution(number).get().rows)


class Session:
    """A session whose shared state has the store."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def _jsparkSession(self) -> Session:  # noqa: N802
        return self

    def sharedState(self) -> Session:  # noqa: N802
        return self

    def statusStore(self) -> Store:  # noqa: N802
        return self._store


@pytest.fixture
def world() -> World:
    made = World()
    made.run(DELAYS)
    return made


def harvester(world: World, store: Store) -> Harvester:
    session: Any = Session(store)
    return Harvester(world.sink, session)


def done(world: World, given: Harvester, batch: int = 0) -> None:
    """Let a micro-batch be done, and be looked at."""
    given.ask(progress(QUERY, RUN, micro_batch=batch, addBatch=1))
    given.step()
    world.sink.step()


def read(world: World) -> list[tuple[object, object]]:
    """Rows that the view's aggregate has taken, and in how many micro-batches."""
    ends = {r["id"]: r["from_operator_id"] for r in world.rows("dataflow_channel_operators")}
    sources = {r["id"] for r in world.rows("dataflow_operators") if r["name"] == "Source"}
    rows = world.rows("message_counts")
    return [(r["sent"], r["batch_sent"]) for r in rows if ends[r["channel_id"]] in sources]


def test_all_executions_of_a_micro_batch_are_added_up(world: World) -> None:
    """Those that counted something and went well; of other micro-batches none."""
    store = Store()
    given = harvester(world, store)
    store.add(RUN, 0)
    store.add("another", 0, rows=1000)
    store.add(RUN, 0, rows=5)
    store.add(RUN, 0, rows=7)
    store.add(RUN, 0, rows=100, status="FAILED")
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
    outer.ended = True
    given.step()
    world.sink.step()
    assert read(world) == [(5, 1)]
    done(world, given, 7)
    for _ in range(30):
        given.step()
    assert world.sink.inbox.dropped == 1


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
    del store.kept[:]
    done(world, given, 1)
    assert read(world) == [(5, 1)]


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

"""A sink under a manual clock, and events of a source, a view, an index and a sink."""

from __future__ import annotations

from dataclasses import dataclass, field

from shardline.app.execution.observations import Started
from shardline.app.introspection.events import Domain, Event, Installed, Phase, QueryProgress
from shardline.app.introspection.sink import Sink
from shardline.app.introspection.spark_plan.operators import operators_of
from shardline.app.introspection.store import Relations
from shardline.app.protocol.objects import (
    Description,
    IndexDescription,
    SinkDescription,
    SourceDescription,
    ViewDescription,
)
from shardline.datasource.spark_native.read_counts import ReadCounts
from support.fakes.clock import ManualClock

__all__ = ["DELAYS", "FAST", "FLIGHTS", "OUT", "World", "progress"]

FLIGHTS = SourceDescription(name="flights", format="csv", schema="carrier STRING, delay INT")
DELAYS = ViewDescription(
    name="delays",
    query="SELECT carrier, avg(delay) AS delay FROM flights GROUP BY carrier",
    inputs=("flights",),
    schema="carrier STRING, delay DOUBLE",
)
FAST = IndexDescription(name="fast", on="delays", key=("carrier",))
OUT = SinkDescription(name="out", on="delays", format="parquet")


@dataclass
class World:
    """A sink, its relations, and an allocator of ids as the lane's is."""

    clock: ManualClock = field(default_factory=ManualClock)
    dataflows: int = 0
    operators: int = 1

    def __post_init__(self) -> None:
        self.sink = Sink(self.clock)
        self.relations = Relations(self.sink, ReadCounts(self.clock))

    def tell(self, *events: Event) -> None:
        """Let the sink apply events."""
        for event in events:
            self.sink.put(event)
        self.sink.step()

    def installed(self, description: Description, *, epoch: int = 1) -> Installed:
        """The event of a new object."""
        count = len(operators_of(description))
        self.dataflows += 1
        first, self.operators = self.operators, self.operators + count
        stored = isinstance(description, SourceDescription | SinkDescription)
        domain: Domain = "storage" if stored else "compute"
        return Installed(
            id=description.name,
            global_id=f"u{self.dataflows}",
            domain=domain,
            description=description,
            dataflow=self.dataflows,
            operators=(first, count),
            at_ms=self.clock.now_ms(),
            epoch=epoch,
            as_of=None if stored else self.clock.now_ms(),
        )

    def run(self, description: Description, *, epoch: int = 1) -> Installed:
        """Install an object and let its query run."""
        event = self.installed(description, epoch=epoch)
        name, now = description.name, self.clock.now_ms()
        self.tell(
            event,
            Phase(id=name, epoch=epoch, phase="running", at_ms=now),
            Started(id=name, epoch=epoch, query=f"q-{name}", run=f"r-{name}-{epoch}"),
        )
        return event

    def rows(self, name: str, about: str | None = None) -> list[dict[str, object]]:
        """Rows of a relation."""
        return self.relations.rows(name, object=about)


def progress(name: str, run: str, *, micro_batch: int = 0, **phases_ms: int) -> QueryProgress:
    """A progress event with phases."""
    return QueryProgress(
        query="q",
        run=run,
        name=name,
        micro_batch=micro_batch,
        at_ms=1,
        phases_ms=phases_ms,
    )

"""Toy replicas: each command is simply done as it comes, with nothing folded, for comparisons.

They are the model of `shardline.app.protocol.history` and `shardline.app.protocol.reconcile`, and
share no code with them. `born` tells lives apart: what is made anew is born again, what goes on is
not.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from shardline.app.protocol import compute as c
from shardline.app.protocol import storage as s
from shardline.app.protocol.objects import (
    Dataflow,
    IndexDescription,
    SinkDescription,
    SourceDescription,
    SubscribeDescription,
    ViewDescription,
)
from support.profiles import wide_examples

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = [
    "ComputeReplica",
    "StorageReplica",
    "compute_commands",
    "dataflow",
    "sink",
    "source",
    "storage_commands",
    "thorough",
]

thorough = wide_examples(2)
"""Histories are cheap: each property gets twice as many as others."""

NAMES = ("a", "b", "d")
UUIDS = ("p", "q")


@dataclass
class Flow:
    what: Dataflow
    since: int
    born: int
    scheduled: bool = False


@dataclass
class ComputeReplica:
    """What compute commands come to when each is done as it comes."""

    instance: dict[str, str] | None = None
    settings: dict[str, str] = field(default_factory=dict)
    writes: bool = False
    flows: dict[str, Flow] = field(default_factory=dict)
    peeks: dict[str, c.Peek] = field(default_factory=dict)
    births: int = 0

    def do(self, commands: Iterable[c.ComputeCommand]) -> ComputeReplica:
        for command in commands:
            getattr(self, type(command).__name__)(command)
        return self

    def Hello(self, command: c.Hello) -> None:  # noqa: N802 - named like the command
        pass

    def InitializationComplete(self, command: c.InitializationComplete) -> None:  # noqa: N802
        pass

    def CreateInstance(self, command: c.CreateInstance) -> None:  # noqa: N802
        assert self.instance in (None, command.settings)
        self.instance = command.settings

    def AllowWrites(self, command: c.AllowWrites) -> None:  # noqa: N802, ARG002
        self.writes = True

    def UpdateConfiguration(self, command: c.UpdateConfiguration) -> None:  # noqa: N802
        self.settings.update(command.settings)

    def CreateDataflow(self, command: c.CreateDataflow) -> None:  # noqa: N802
        name = command.dataflow.name
        flow = self.flows.get(name)
        follows = isinstance(command.dataflow, SubscribeDescription)
        if (
            flow is not None
            and flow.what == command.dataflow
            and flow.since <= command.as_of
            and not follows
        ):
            flow.since = command.as_of
        else:
            self.drop(name)
            self.cancel_readers(name)
            self.births += 1
            self.flows[name] = Flow(command.dataflow, command.as_of, self.births)

    def Schedule(self, command: c.Schedule) -> None:  # noqa: N802
        if command.id in self.flows:
            self.flows[command.id].scheduled = True

    def AllowCompaction(self, command: c.AllowCompaction) -> None:  # noqa: N802
        if command.frontier is None:
            self.drop(command.id)
        elif command.id in self.flows:
            flow = self.flows[command.id]
            flow.since = max(flow.since, command.frontier)

    def Peek(self, command: c.Peek) -> None:  # noqa: N802
        self.peeks[command.uuid] = command

    def CancelPeek(self, command: c.CancelPeek) -> None:  # noqa: N802
        self.peeks.pop(command.uuid, None)

    def drop(self, name: str) -> None:
        if self.flows.pop(name, None):
            self.cancel_readers(name)

    def cancel_readers(self, name: str) -> None:
        for uuid in [u for u, peek in self.peeks.items() if name in peek.inputs]:
            del self.peeks[uuid]

    def outcome(self) -> dict[str, Any]:
        """All that can be seen of it, but what a peek may say if its time is gone."""
        flows = {name: (flow.what, flow.since, flow.scheduled) for name, flow in self.flows.items()}
        return {
            "instance": self.instance,
            "settings": self.settings,
            "writes": self.writes,
            "flows": list(flows.items()),
            "peeks": self.peeks,
        }

    def answers(self) -> set[str]:
        """Peeks that are answered with rows, however late: at times that nobody has let go."""
        return {
            uuid
            for uuid, peek in self.peeks.items()
            if all(self.flows[n].since <= peek.as_of for n in peek.inputs if n in self.flows)
        }


@dataclass
class Thing:
    what: SourceDescription | SinkDescription
    since: int | None
    born: int


@dataclass
class StorageReplica:
    """What storage commands come to when each is done as it comes."""

    settings: dict[str, str] = field(default_factory=dict)
    writes: bool = False
    things: dict[str, Thing] = field(default_factory=dict)
    oneshots: dict[str, tuple[s.RunOneshotIngestion, int]] = field(default_factory=dict)
    births: int = 0

    def do(self, commands: Iterable[s.StorageCommand]) -> StorageReplica:
        for command in commands:
            getattr(self, type(command).__name__)(command)
        return self

    def Hello(self, command: c.Hello) -> None:  # noqa: N802
        pass

    def InitializationComplete(self, command: c.InitializationComplete) -> None:  # noqa: N802
        pass

    def AllowWrites(self, command: c.AllowWrites) -> None:  # noqa: N802, ARG002
        self.writes = True

    def UpdateConfiguration(self, command: c.UpdateConfiguration) -> None:  # noqa: N802
        self.settings.update(command.settings)

    def RunIngestion(self, command: s.RunIngestion) -> None:  # noqa: N802
        self.run(command.ingestion, None)

    def RunSink(self, command: s.RunSink) -> None:  # noqa: N802
        self.run(command.sink, command.as_of)

    def run(self, what: SourceDescription | SinkDescription, as_of: int | None) -> None:
        thing = self.things.get(what.name)
        if thing is None or type(thing.what) is not type(what):
            self.births += 1
            self.things.pop(what.name, None)
            thing = self.things[what.name] = Thing(what, None, self.births)
        thing.what = what
        thing.since = max((t for t in (thing.since, as_of) if t is not None), default=None)

    def AllowCompaction(self, command: c.AllowCompaction) -> None:  # noqa: N802
        thing = self.things.get(command.id)
        if thing is None:
            return
        if command.frontier is None:
            del self.things[command.id]
        elif thing.since is None or thing.since < command.frontier:
            thing.since = command.frontier

    def RunOneshotIngestion(self, command: s.RunOneshotIngestion) -> None:  # noqa: N802
        self.births += 1
        self.oneshots[command.uuid] = (command, self.births)

    def CancelOneshotIngestion(self, command: s.CancelOneshotIngestion) -> None:  # noqa: N802
        self.oneshots.pop(command.uuid, None)

    def outcome(self) -> dict[str, Any]:
        """All that can be seen of it."""
        return {
            "settings": self.settings,
            "writes": self.writes,
            "things": {name: (thing.what, thing.since) for name, thing in self.things.items()},
            "oneshots": {uuid: run for uuid, (run, _) in self.oneshots.items()},
        }


# --- what controllers may say ------------------------------------------------------------------


def dataflow(name: str, variant: int = 0) -> Dataflow:
    """One of a few dataflows of a name."""
    match variant:
        case 0 | 1:
            query = f"select {variant} from src"  # noqa: S608 - never run
            return ViewDescription(name=name, query=query, inputs=("src",), schema="n INT")
        case 2:
            return IndexDescription(name=name, on="src")
        case _:
            return SubscribeDescription(name=name, on="src")


def source(name: str, variant: int = 0) -> SourceDescription:
    """One of a few sources of a name."""
    return SourceDescription(name=name, format="rate", options={"rowsPerSecond": str(variant)})


def sink(name: str, variant: int = 0) -> SinkDescription:
    """One of a few sinks of a name."""
    return SinkDescription(name=name, on="src", format="noop", snapshot=variant == 0)


def compute_commands(
    known: Iterable[str] = (), size: int = 14
) -> st.SearchStrategy[list[c.ComputeCommand]]:
    """What a controller may say; names that it has not created itself are of `known`."""
    names, times = st.sampled_from(NAMES), st.integers(0, 6)
    created = st.builds(
        lambda n, v, t: c.CreateDataflow(dataflow=dataflow(n, v), as_of=t),
        names,
        st.sampled_from((0, 0, 0, 1, 2, 3)),
        times,
    )
    peeks = st.builds(
        lambda u, i, t: c.Peek(uuid=u, query="select", inputs=i, as_of=t, limit_bytes=9),
        st.sampled_from(UUIDS),
        st.sampled_from((("a",), ("b", "src"), ("a", "b"))),
        times,
    )
    anything = st.one_of(
        created,
        created,
        st.builds(c.Schedule, names),
        st.builds(c.AllowCompaction, names, times),
        st.builds(c.AllowCompaction, names, st.none()),
        peeks,
        st.builds(c.CancelPeek, st.sampled_from(UUIDS)),
        st.builds(c.UpdateConfiguration, st.dictionaries(st.sampled_from("xy"), st.just("1"))),
        st.just(c.CreateInstance({"k": "v"})),
        st.just(c.AllowWrites()),
        st.just(c.InitializationComplete()),
        st.builds(c.Hello, st.sampled_from("nm")),
    )
    return st.lists(anything, max_size=size).map(lambda said: list(_sayable(said, known)))


def storage_commands(
    known: Iterable[str] = (), size: int = 14
) -> st.SearchStrategy[list[s.StorageCommand]]:
    """As `compute_commands`."""
    names, times, variants = st.sampled_from(NAMES), st.integers(0, 6), st.integers(0, 1)
    anything = st.one_of(
        st.builds(lambda n, v: s.RunIngestion(source(n, v)), names, variants),
        st.builds(lambda n, v, t: s.RunSink(sink=sink(n, v), as_of=t), names, variants, times),
        st.builds(c.AllowCompaction, names, times),
        st.builds(c.AllowCompaction, names, st.none()),
        st.builds(
            lambda u, f: s.RunOneshotIngestion(uuid=u, into="src", format=f),
            st.sampled_from(UUIDS),
            st.sampled_from(("csv", "json")),
        ),
        st.builds(s.CancelOneshotIngestion, st.sampled_from(UUIDS)),
        st.builds(c.UpdateConfiguration, st.dictionaries(st.sampled_from("xy"), st.just("1"))),
        st.just(c.AllowWrites()),
        st.just(c.InitializationComplete()),
        st.builds(c.Hello, st.sampled_from("nm")),
    )
    return st.lists(anything, max_size=size).map(lambda said: list(_sayable(said, known)))


def _sayable(said: Sequence[Any], known: Iterable[str]) -> Iterable[Any]:
    names = set(known)
    for command in said:
        if isinstance(command, (c.CreateDataflow, s.RunIngestion, s.RunSink)):
            names.add(command.id)
        if not isinstance(command, (c.Schedule, c.AllowCompaction)) or command.id in names:
            yield command

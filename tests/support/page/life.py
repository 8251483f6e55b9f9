"""Made objects live: each second every one of them reports what a real one would, by its mode.

    life = Life(demo_project(), MovingClock())
    life.become("flights", "frozen")
    life.step()                     one second's events, applied

A life has begun before a test looks: trends, verdicts that have lasted, and rows that came minutes
ago are made by letting it run through them, on a clock that was set back for that.
"""

from __future__ import annotations

import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

import msgspec

from shardline.app.execution.observations import Failed, Health, Hydrated, Measured, Progress
from shardline.app.execution.observations import Started as RunStarted
from shardline.app.introspection.events import (
    Event,
    Harvested,
    Installed,
    Phase,
    Polled,
    QueryProgress,
    StateProgress,
    Wanted,
    WantedObject,
)
from shardline.app.introspection.sink import Sink
from shardline.app.introspection.spark_plan.operators import OperatorPlan, operators_of
from shardline.app.introspection.store import Relations
from shardline.app.protocol.objects import (
    Description,
    SinkDescription,
    SourceDescription,
    SubscribeDescription,
    ViewDescription,
    inputs_of,
)
from shardline.app.protocol.storage import StatisticsUpdates, StatusUpdate
from shardline.datasource.clock import SystemClock

__all__ = ["Life", "Mode", "MovingClock"]

Mode: TypeAlias = Literal[
    "well",
    "quiet",
    "backlog",
    "catching up",
    "falling behind",
    "frozen",
    "stalled",
    "paused",
    "starting",
    "unreadable",
    "finished",
    "uncreated",
]
"""The state that an object is made to be in. That of one that waits for it follows from it."""

ERRORS: Final = {
    "frozen": (
        "part 'flights/p0000a3' cannot be read: it is not there",
        "put it back, or `restore` the shard from a copy; nothing was skipped",
    ),
    "stalled": (
        "[DIVIDE_BY_ZERO] Division by zero, in 'd.delay_sum / d.flights' (views.sql, line 12)",
        "use try_divide, or leave rows with 0 out",
    ),
    "unreadable": (
        "'12:3O' in column 'dep_time' is no INT (2013-01-17.csv, line 814)",
        "`errors show flights` lists such rows; `errors retract flights` takes them away",
    ),
    "uncreated": (
        "column 'tailnumber' does not exist; there is 'tailnum' (views.sql, line 27)",
        "correct the query",
    ),
}
"""Error and hint by mode."""

_PHASES: Final = (
    ("latestOffset", 0.07),
    ("getBatch", 0.02),
    ("queryPlanning", 0.11),
    ("walCommit", 0.06),
    ("addBatch", 0.69),
    ("commitOffsets", 0.05),
)
"""Phases of a micro-batch and their shares of it."""

_QUIET_MS: Final = 400_000
_RETRY_MS: Final = 48_000


class MovingClock:
    """The machine's clock, plus what a test has added."""

    def __init__(self) -> None:
        self._real = SystemClock()
        self._added_ms = 0.0

    def now_ms(self) -> int:
        """Now, ms since the epoch."""
        return int(self._real.now_ms() + self._added_ms)

    def elapsed_ms(self) -> float:
        """Time that has passed since any moment, in ms."""
        return self._real.elapsed_ms() + self._added_ms

    def wait(self, signal: threading.Event, timeout_ms: float) -> bool:
        """Wait for a signal; True if it is set."""
        return signal.wait(timeout_ms / 1000)

    def advance(self, milliseconds: float) -> None:
        """Add to both readings."""
        self._added_ms += milliseconds


@dataclass
class Living:
    """One object of a life.

    Attributes:
        mode: As it is made to be.
        upper: Of its output, in ms; None before the first.
        lag_ms: How far it stays behind its slowest input, or a source behind the clock.
        waiting: Files outside of it.
        failures: In a row; after the last one it is started again at `retry_at_ms`.
        rows: In its newest contents.
    """

    description: Description
    installed: Installed | None = None
    mode: Mode = "well"
    epoch: int = 1
    micro_batch: int = 0
    upper: int | None = None
    lag_ms: float = 0.0
    waiting: int = 0
    failures: int = 0
    retry_at_ms: int = 0
    rows: int = 0

    @property
    def name(self) -> str:
        """Of the object."""
        return self.description.name

    @property
    def plan(self) -> tuple[OperatorPlan, ...]:
        """Its operators."""
        return operators_of(self.description)

    @property
    def seed(self) -> int:
        """A number that is its own, and the same in every process."""
        return zlib.crc32(self.name.encode())

    @property
    def is_stored(self) -> bool:
        """True for what the storage protocol creates."""
        return isinstance(self.description, SourceDescription | SinkDescription)

    @property
    def has_shard(self) -> bool:
        """True if its contents are kept in a shard of its name."""
        return isinstance(self.description, SourceDescription | ViewDescription)

    @property
    def step_ms(self) -> int:
        """How long one of its micro-batches takes."""
        usual = 90 + self.seed % 500
        return usual * 9 if self.mode in ("falling behind", "catching up") else usual

    @property
    def rows_a_second(self) -> int:
        """How many rows come out of it."""
        if self.mode in ("quiet", "finished"):
            return 0
        return 3 + self.seed % (2_000 if isinstance(self.description, SourceDescription) else 90)


class Life:
    """The objects of a project, a sink that hears of them, and its relations."""

    def __init__(self, project: Sequence[Description], clock: MovingClock) -> None:
        """Create the objects; nothing is reported of them yet."""
        self.clock = clock
        self.sink = Sink(clock, capacity=1_000_000)
        self.relations = Relations(self.sink)
        self.objects = {one.name: Living(one) for one in project}
        self._lock = threading.Lock()
        self._dataflows = 0
        self._operators = 1

    def begin(self, modes: dict[str, Mode], *, seconds: int) -> None:
        """Let all objects run for a while before now, in their modes since `seconds` ago."""
        now_back_ms = _QUIET_MS + seconds * 1000
        self.clock.advance(-now_back_ms)
        for one in self.objects.values():
            if modes.get(one.name) != "uncreated":
                self._install(one)
        self.step()
        for name, mode in modes.items():
            if mode in ("quiet", "catching up"):
                self.become(name, mode)
        self.clock.advance(_QUIET_MS - 1000)
        self.step()  # or the time that was left out would be a lag, and then one that shrinks
        for name, mode in modes.items():
            if self.objects[name].mode != mode:
                self.become(name, mode)
        for _ in range(seconds + 1):
            self.step()
            self.clock.advance(1000)
        self.step()

    def become(self, name: str, mode: Mode, error: str = "", hint: str = "") -> None:
        """Bring an object into a mode; whoever reads it follows by itself."""
        with self._lock:
            one = self.objects[name]
            before, one.mode = one.mode, mode
            wrong = (error, hint) if error else ERRORS.get(mode, ("", ""))
            self._tell(*self._change(one, before, *wrong))

    def add(self, description: Description) -> None:
        """Create one more object, which runs at once."""
        with self._lock:
            one = self.objects[description.name] = Living(description)
            self._install(one)

    def tell(self, *events: Event) -> None:
        """Let the sink apply events of any kind."""
        with self._lock:
            self._tell(*events)

    def step(self) -> None:
        """Let every object report its second."""
        with self._lock:
            now = self.clock.now_ms()
            events: list[Event] = []
            for one in self.objects.values():
                if one.installed is not None and one.mode != "uncreated":
                    events += self._second(one, now)
            self._tell(*events)

    def _tell(self, *events: Event) -> None:
        for event in events:
            self.sink.put(event)
        self.sink.step()

    def _install(self, one: Living) -> None:
        count = len(one.plan)
        first, self._operators = self._operators, self._operators + count
        self._dataflows += 1
        now = self.clock.now_ms()
        one.installed = Installed(
            id=one.name,
            global_id=f"u{self._dataflows}",
            domain="storage" if one.is_stored else "compute",
            description=one.description,
            dataflow=self._dataflows,
            operators=(first, count),
            at_ms=now,
            epoch=one.epoch,
            as_of=None if one.is_stored else now - 1000,
        )
        one.rows = one.seed % 100_000
        self._tell(one.installed, *self._running(one))

    def _running(self, one: Living) -> list[Event]:
        now, name = self.clock.now_ms(), one.name
        run = f"{one.seed:08x}-4b1d-4f3a-9c55-{one.epoch:012x}"
        query = f"{one.seed:08x}-7c42-4d0e-8a11-000000000000"
        found: list[Event] = [
            Phase(id=name, epoch=one.epoch, phase="running", at_ms=now),
            RunStarted(id=name, epoch=one.epoch, query=query, run=run),
        ]
        if one.is_stored:
            found.append(StatusUpdate(id=name, status="running", at_ms=now))
        if one.mode != "starting":
            found.append(Hydrated(id=name, epoch=one.epoch, took_ms=1800))
        return found

    # --- changes of mode ------------------------------------------------------------------------

    def _change(self, one: Living, before: Mode, error: str, hint: str) -> Iterator[Event]:
        if one.mode == "uncreated" or before == "uncreated":
            wanted = (
                WantedObject(id=one.name, description=one.description, error=error, hint=hint),
            )
            yield Wanted(wanted if one.mode == "uncreated" else (), self.clock.now_ms())
            if one.mode != "uncreated":
                self._install(one)
            return
        if before in ("frozen", "unreadable"):
            yield self._health(one, "running", "", "")
            yield self._polled(one, errors=0)
        if before in ("stalled", "paused", "starting") and one.mode != "starting":
            yield from self._restart(one)
        yield from self._enter(one, error, hint)

    def _enter(self, one: Living, error: str, hint: str) -> Iterator[Event]:  # noqa: C901 - cases
        now = self.clock.now_ms()
        match one.mode:
            case "well" | "quiet":
                one.waiting = 0
            case "frozen":
                yield self._health(one, "frozen", error, hint)
            case "unreadable":
                yield self._health(one, "running", error, hint)
                yield self._polled(one, errors=3)
            case "stalled":
                one.failures += 3
                if one.is_stored:
                    yield StatusUpdate(
                        id=one.name, status="stalled", at_ms=now, error=error, hints=(hint,)
                    )
                yield Failed(id=one.name, epoch=one.epoch, error=error, hint=hint)
                yield self._suspended(one, now)
            case "paused":
                yield Phase(id=one.name, epoch=one.epoch, phase="paused", at_ms=now)
                if one.is_stored:
                    yield StatusUpdate(id=one.name, status="paused", at_ms=now)
            case "starting":
                one.upper = None
                yield from self._restart(one)
            case "finished":
                one.upper = None
                yield Progress(id=one.name, epoch=one.epoch, write=None)
            case "backlog":
                one.waiting = 480
            case _:
                pass

    def _suspended(self, one: Living, now: int) -> Event:
        one.retry_at_ms = now + _RETRY_MS
        return Phase(
            id=one.name,
            epoch=one.epoch,
            phase="suspended",
            at_ms=now,
            failures=one.failures,
            retry_at_ms=one.retry_at_ms,
        )

    def _restart(self, one: Living) -> Iterator[Event]:
        one.epoch += 1
        one.failures = 0
        if one.mode == "starting":
            self._dataflows += 1
            assert one.installed is not None
            one.installed = msgspec.structs.replace(
                one.installed,
                dataflow=self._dataflows,
                epoch=one.epoch,
                as_of=None if one.is_stored else self.clock.now_ms(),
            )
            yield one.installed
        yield from self._running(one)

    def _health(self, one: Living, status: str, error: str, hint: str) -> Event:
        if one.is_stored:
            return StatusUpdate(
                id=one.name,
                status=status,  # type: ignore[arg-type]  # one of a status's words
                at_ms=self.clock.now_ms(),
                error=error,
                hints=(hint,) if hint else (),
                namespaced={"decode": error} if one.mode == "unreadable" else {},
            )
        return Health(
            id=one.name,
            epoch=one.epoch,
            namespace="compute",
            status=status,  # type: ignore[arg-type]  # one of a status's words
            error=error,
            hint=hint,
        )

    # --- a second of life -----------------------------------------------------------------------

    def _second(self, one: Living, now: int) -> Iterator[Event]:
        if one.mode == "stalled" and now >= one.retry_at_ms:
            one.failures += 1
            yield self._suspended(one, now)
        if one.mode in ("stalled", "paused", "finished", "starting", "frozen"):
            return
        before = one.upper
        self._move(one, now)
        one.micro_batch += 1
        yield Progress(id=one.name, epoch=one.epoch, write=one.upper, read=one.upper)
        rows = 0 if one.upper == before else one.rows_a_second
        one.rows += rows // 2
        yield Measured(id=one.name, epoch=one.epoch, added=_added(one, rows))
        if one.is_stored:
            yield _statistics(one)
        if one.has_shard:
            yield self._polled(one, errors=3 if one.mode == "unreadable" else 0)
        yield from self._micro_batch(one, now, rows)

    def _move(self, one: Living, now: int) -> None:
        """Move its upper by what it has done in this second."""
        above = [self.objects[name].upper for name in inputs_of(one.description)]
        known = [upper for upper in above if upper is not None]
        end = min(known) - 5 - one.seed % 40 if known else now - 40 - one.seed % 700
        if one.mode == "falling behind":
            one.lag_ms += 700
        elif one.mode == "catching up":
            one.lag_ms = max(0.0, end - (one.upper or end) - 3000)
        else:
            one.lag_ms = 0.0
        one.waiting += 5 if one.mode == "backlog" else 0
        one.upper = max(one.upper or 0, end - int(one.lag_ms))

    def _polled(self, one: Living, *, errors: int) -> Event:
        since = (one.upper or self.clock.now_ms()) - 600_000
        return Polled(
            id=one.name,
            since=since,
            upper=one.upper or 0,
            rows=one.rows,
            size_bytes=one.rows * (30 + one.seed % 200),
            errors=errors,
        )

    def _micro_batch(self, one: Living, now: int, rows: int) -> Iterator[Event]:
        phases = {name: int(one.step_ms * share) for name, share in _PHASES}
        phases["triggerExecution"] = one.step_ms
        states = (StateProgress("stateStoreSave", one.rows // 4, one.rows * 12, 8),)
        is_view = isinstance(one.description, ViewDescription)
        name = f"{one.name}:{one.installed.global_id if one.installed else ''}:{one.epoch}"
        query, run = f"{one.seed:08x}-7c42-4d0e-8a11-000000000000", ""
        yield QueryProgress(
            query=query,
            run=run or f"{one.seed:08x}-4b1d-4f3a-9c55-{one.epoch:012x}",
            name=name,
            micro_batch=one.micro_batch,
            at_ms=now,
            phases_ms=phases,
            states=states if is_view else (),
        )
        if not isinstance(one.description, SourceDescription | SubscribeDescription):
            yield _harvest(one, name, query, rows)


def _added(one: Living, rows: int) -> dict[str, float]:
    match one.description:
        case SourceDescription():
            return {
                "messages_received": rows,
                "updates_staged": rows,
                "updates_committed": rows,
            }
        case SinkDescription():
            return {"messages_staged": rows, "messages_committed": rows}
        case _:
            return {"updates_out": rows}


def _statistics(one: Living) -> StatisticsUpdates:
    total = float(one.rows * 2)
    if isinstance(one.description, SinkDescription):
        staged = {"messages_staged": total, "messages_committed": total, "bytes_staged": total * 90}
        return StatisticsUpdates({}, {one.name: staged})
    values = {
        "messages_received": total,
        "bytes_received": total * 80,
        "updates_staged": total,
        "updates_committed": total,
        "rows_skipped": 0.0,
    }
    if one.description.name != "weather" and isinstance(one.description, SourceDescription):
        values |= {"files_waiting": float(one.waiting), "bytes_waiting": one.waiting * 1_300_000.0}
    return StatisticsUpdates({one.name: values}, {})


def _harvest(one: Living, name: str, query: str, rows: int) -> Harvested:
    """Rows into each operator: more at the beginning than at the end; the third takes longest."""
    plan = one.plan
    channels = [(at, port) for at, op in enumerate(plan) for port, _ in enumerate(op.inputs)]
    first = min((at for at, _ in channels), default=0)
    work = [at for at, op in enumerate(plan) if op.lir is not None]
    share = [4 if n == len(work) // 2 else 1 for n, _ in enumerate(work)]
    whole = one.step_ms * 2.2 / max(1, sum(share))
    return Harvested(
        query=query,
        run="",
        name=name,
        micro_batch=one.micro_batch,
        rows=tuple((at, port, max(1, rows * 6 // (1 + at - first))) for at, port in channels),
        took_ms=tuple((at, whole * part) for at, part in zip(work, share, strict=True)),
    )

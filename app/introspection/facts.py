"""Facts are the state of introspection: one record per object, and some that belong to no object.

Only `apply` and the sink change facts. Relations are computed from them when they are read, so a
relation that nobody reads costs nothing.

Invariants:
    A value that was not observed is UNSET, None where its type allows it, or absent; never 0.
    Everything here is bounded: by the number of objects and shards, or by a constant.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias, TypeVar

from msgspec import UNSET, UnsetType

from shardline.app.execution.observations import Health, Stepped
from shardline.app.introspection.events import (
    Client,
    Installed,
    Maintenance,
    PeekStarted,
    ProcessStarted,
    RuntimeSeen,
    ShardSeen,
    StateProgress,
    WantedObject,
)
from shardline.app.introspection.histories import History, existing
from shardline.app.introspection.spark_plan.operators import OperatorPlan
from shardline.app.introspection.verdicts.situation import Judged, Judgement
from shardline.app.introspection.verdicts.trend import Trend
from shardline.app.lane.commands import KINDS, Kind
from shardline.app.protocol.object_state import ShownPhase, Status, Verdict
from shardline.app.protocol.objects import Description, SubscribeDescription
from shardline.app.protocol.storage import StatusUpdate

__all__ = [
    "COMMANDS_MAX",
    "MINUTE_MS",
    "RUN_HISTORY",
    "Condition",
    "Facts",
    "History",
    "MicroBatch",
    "NotedVerdict",
    "ObjectFacts",
    "Observed",
    "ProcessFacts",
    "Received",
    "histogram_bucket_ns",
    "lag_ms",
    "object_kind",
]

Observed: TypeAlias = int | UnsetType | None
"""A frontier: None is the empty one, UNSET one that was never observed."""

T = TypeVar("T")

COMMANDS_MAX: Final = 1_000
MAINTENANCE_MAX: Final = 1_000
MICRO_BATCHES_MAX: Final = 60
RUNS_MAX: Final = 1_000
RUN_HISTORY: Final = "run_history"
_RUN_KINDS: Final = ("start", "end", "resumed")
SECOND_MS: Final = 1000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
MONTH_MS: Final = 30 * 24 * HOUR_MS
FOR_EVER_MS: Final = 1 << 62
"""Retention of rows that go by their number alone."""


@dataclass(frozen=True, slots=True)
class Condition:
    """An object's status with the error that explains it."""

    status: Status
    error: str = ""
    hints: tuple[str, ...] = ()
    namespaced: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A micro-batch that was done.

    Attributes:
        number: Its number, from 0.
        at_ms: When it was triggered.
        took_ms: How long it took; None if that was not reported.
        phases_ms: How long each phase of it took.
    """

    number: int
    at_ms: int
    took_ms: int | None
    phases_ms: dict[str, int]


@dataclass(slots=True)
class ObjectFacts:
    """The facts of one object.

    Attributes:
        installed: The lane's last event about its definition.
        plan: Its operators; number `i` is `installed.operators[0] + i`.
        phase: Its phase in the lane, and since when (`phase_ms`).
        epoch: The current incarnation; events of an earlier one are ignored.
        query: Id of its streaming query; "" until one was started.
        run: Id of that query's run.
        group: Name of the group whose streaming query triggers its steps; "" for one of its own.
        heard: True if Spark's listener has had an event of the run.
        since: Of its shard; its `as_of` where it has none.
        write: Upper of its output.
        read: Frontier that it has read up to of all inputs, and of each (`inputs`).
        hydrated: True if it has reported so in this incarnation.
        hydration_ms: How long that took, the last time.
        health: Last reports of its parts, by namespace.
        storage_status: The status from the storage worker, if there is one; it overrules `health`.
        failure: The error that ended the last incarnation, with its hint (`failure_hint`) and the
            number of that incarnation (`failed_epoch`); "" if there was none, or if the present
            one has shown that it works.
        condition: Status as of the last event, and since when (`condition_ms`).
        counters: Sums over the time of this dataflow, by name.
        gauges: Present values, by name.
        statistics: As the storage worker has aggregated them.
        errors: Number of rows in its errors shard; None if that is not known.
        rows: Of the newest contents of its shard, and their size (`size_bytes`); None if it has no
            shard, or if that was not read yet.
        columns: Name and SQL type of each column of its shard; None as above.
        elapsed_ms: Time spent, by phase of a micro-batch.
        durations: Counts by phase and bound, see `histogram_bucket_ns`.
        worked_ms: Time of Spark's tasks, by position of an operator.
        worked: Counts by position and bound of the time in one micro-batch.
        moved: Rows, and in how many micro-batches, by position of a receiver and its port.
        harvested: Number of micro-batches whose plans were looked at for rows.
        states: Spark's stateful operators, as of the last micro-batch.
        micro_batches: Number of micro-batches done by this dataflow.
        progress_ms: When the last one was triggered; None before the first.
        lag_max_ms: Largest lag of the current minute.
        failures: Failures in a row in the lane.
        retry_at_ms: When it is started again; None if it is not suspended.
        changed_ms: When rows of it have come or gone the last time; None if none has since the
            start of this process.
        step_ms: How long the last micro-batch took, and the time of each phase (`step_phases_ms`).
        steps: The newest micro-batches.
        view_steps: The newest steps of a view.
        lag_trend: Its lag behind the clock in the last steps.
        backlog_trend: What has waited outside in the last steps.
    """

    installed: Installed
    plan: tuple[OperatorPlan, ...]
    phase: ShownPhase = "created"
    phase_ms: int = 0
    epoch: int = 0
    query: str = ""
    run: str = ""
    group: str = ""
    heard: bool = False
    since: Observed = UNSET
    write: Observed = UNSET
    read: Observed = UNSET
    inputs: dict[str, int | None] = field(default_factory=dict)
    hydrated: bool = False
    hydration_ms: int | None = None
    health: dict[str, Health] = field(default_factory=dict)
    storage_status: StatusUpdate | None = None
    failure: str = ""
    failure_hint: str = ""
    failed_epoch: int = 0
    condition: Condition = Condition("created")
    condition_ms: int = 0
    counters: dict[str, float] = field(default_factory=dict)
    gauges: dict[str, float | None] = field(default_factory=dict)
    statistics: dict[str, float] = field(default_factory=dict)
    errors: int | None = None
    rows: int | None = None
    size_bytes: int | None = None
    columns: tuple[tuple[str, str], ...] | None = None
    elapsed_ms: Counter[str] = field(default_factory=Counter)
    durations: Counter[tuple[str, int]] = field(default_factory=Counter)
    worked_ms: Counter[int] = field(default_factory=Counter)
    worked: Counter[tuple[int, int]] = field(default_factory=Counter)
    moved: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    harvested: int = 0
    states: tuple[StateProgress, ...] = ()
    micro_batches: int = 0
    progress_ms: int | None = None
    lag_max_ms: int | None = None
    failures: int = 0
    retry_at_ms: int | None = None
    changed_ms: int | None = None
    step_ms: int | None = None
    step_phases_ms: dict[str, int] = field(default_factory=dict)
    steps: deque[MicroBatch] = field(default_factory=lambda: deque(maxlen=MICRO_BATCHES_MAX))
    view_steps: deque[Stepped] = field(default_factory=lambda: deque(maxlen=MICRO_BATCHES_MAX))
    lag_trend: Trend = field(default_factory=Trend)
    backlog_trend: Trend = field(default_factory=Trend)

    @property
    def id(self) -> str:
        """The object's name."""
        return self.installed.id

    @property
    def kind(self) -> str:
        """Kind of the object: source, view, index, sink or subscribe."""
        return object_kind(self.installed.description)

    @property
    def reached(self) -> Observed:
        """How far it is: upper of its output, or what a subscription has read, which has none."""
        return self.read if self.is_subscription else self.write

    @property
    def is_subscription(self) -> bool:
        """True if it comes and goes with a client, and is in no history."""
        return isinstance(self.installed.description, SubscribeDescription)

    @property
    def query_name(self) -> str:
        """Name of the streaming query of its incarnation, as `Incarnation` gives it."""
        return f"{self.id}:{self.installed.global_id}:{self.epoch}"

    def operators(self) -> Iterator[tuple[int, OperatorPlan]]:
        """Its operators with their numbers, as many as the lane has allocated."""
        first, count = self.installed.operators
        return ((first + i, operator) for i, operator in enumerate(self.plan[:count]))

    def is_hydrated(self) -> bool:
        """True if it has reported so, or its output is past its `as_of`."""
        as_of = self.installed.as_of
        if self.hydrated or self.write is None:
            return True
        return as_of is not None and self.write is not UNSET and self.write > as_of


@dataclass(slots=True)
class NotedVerdict:
    """A verdict that is in the history.

    Attributes:
        verdict: In a word.
        since_ms: Since when.
        cause: The object to blame and the error, without what is no news; both may be "".
        pending: Another verdict, or this one with another cause, that the last look saw: noted if
            the next ones see it, too. The cause of another verdict is not looked at: None.
        pending_ms: Since when they do.
    """

    verdict: Verdict
    since_ms: int
    cause: tuple[str, str] = ("", "")
    pending: tuple[Verdict, tuple[str, str] | None] | None = None
    pending_ms: int = 0


@dataclass(slots=True)
class Received:
    """Counts of the events so far, by outcome.

    Attributes:
        applied: Taken from the queue; those below are among them.
        stale: Of an earlier incarnation or run.
        foreign: About queries or objects that are not ours, or are dropped.
        failed: Could not be applied: a defect of this program, which is in the log.
        lag_ms: How long the last one was in the queue; None before the first.
    """

    applied: int = 0
    stale: int = 0
    foreign: int = 0
    failed: int = 0
    lag_ms: float | None = None


@dataclass(slots=True)
class ProcessFacts:
    """The facts of the process, its location and those who are connected.

    Attributes:
        started: What does not change; None before the start.
        spark_ui: Address of Spark's own pages; "" if there are none.
        address: Where the application is served; "" if it is not.
        runtime: As last looked at; None before.
        controllers: When each controller that is connected was seen first, by its name.
        clients: Those that follow relations.
    """

    started: ProcessStarted | None = None
    spark_ui: str = ""
    address: str = ""
    runtime: RuntimeSeen | None = None
    controllers: dict[str, int] = field(default_factory=dict)
    clients: tuple[Client, ...] = ()


@dataclass(slots=True)
class Facts:
    """All facts.

    Attributes:
        domains: Whose dataflows are watched: those in a session whose queries are listened to. Of
            the others' objects only what they say of themselves is known.
        objects: By name.
        run_owners: Names of objects by run id of their queries.
        group_runs: Run ids of queries that run and trigger the steps of groups of views. Noted at
            the start only: progress may come after the end, and would be noted for ever.
        peeks: Those under way, by uuid.
        peek_durations: Counts by path and bound.
        commands: The newest records of the lane: see `lane_history`.
        maintenance: Rounds that did something, failed, or failed no more.
        rounds: The newest of them of each shard.
        writer_merges: Merges that writers of this process have done, by shard.
        actions: What persons have asked for.
        self_checks: What views have found to be wrong with what they keep.
        shards: By name, as last inspected.
        received: Counts of the events so far.
        revision: Grows whenever facts are changed.
        desired: Objects that the project asks for, whether the lane has them or not, by name.
        verdicts: The verdict on each object as it was noted last.
        judgements: The judgement of each object, as of the last second.
        judged: What the facts of a revision were judged to be at a moment: computed of them, so
            that it is computed once for all who ask.
        defined: The newest row of `definitions` of each object.
        definitions: Changes of definitions, of all objects but subscriptions.
        runs: Starts of applications with the objects that they have found, when the one before was
            last heard of, and when one went on that had stood still.
        statuses: Changes of status, of all objects but subscriptions.
        verdict_changes: Changes of verdicts, of the same.
        lags: Wall-clock lag of all objects, once a minute.
        process: Of the process, its location and its connections.
        derived: What was made of histories, with their revisions: see `derive`.
        histories_since_ms: From when on what is noted belongs to the location: 0 from the start,
            the take-over of a process that had followed another one; None while it follows.
    """

    domains: Collection[Kind] = KINDS
    objects: dict[str, ObjectFacts] = field(default_factory=dict)
    run_owners: dict[str, str] = field(default_factory=dict)
    group_runs: set[str] = field(default_factory=set)
    peeks: dict[str, PeekStarted] = field(default_factory=dict)
    peek_durations: Counter[tuple[str, int]] = field(default_factory=Counter)
    commands: History = field(
        default_factory=lambda: History("command_history", FOR_EVER_MS, COMMANDS_MAX)
    )
    shards: dict[str, ShardSeen] = field(default_factory=dict)
    rounds: dict[str, Maintenance] = field(default_factory=dict)
    writer_merges: Counter[str] = field(default_factory=Counter)
    received: Received = field(default_factory=Received)
    revision: int = 0
    judged: Judged | None = None
    statuses: History = field(
        default_factory=lambda: History("status_history", MONTH_MS, 10_000, lasting=True)
    )
    desired: dict[str, WantedObject] = field(default_factory=dict)
    verdicts: dict[str, NotedVerdict] = field(default_factory=dict)
    judgements: Mapping[str, Judgement] = field(default_factory=dict)
    verdict_changes: History = field(
        default_factory=lambda: History("verdict_history", MONTH_MS, 10_000, lasting=True)
    )
    lags: History = field(
        default_factory=lambda: History("wallclock_lag_history", 24 * HOUR_MS, 100_000)
    )
    maintenance: History = field(
        default_factory=lambda: History("maintenance", MONTH_MS, MAINTENANCE_MAX)
    )
    actions: History = field(default_factory=lambda: History("action_history", MONTH_MS, 10_000))
    self_checks: History = field(
        default_factory=lambda: History("self_check_history", MONTH_MS, 10_000)
    )
    defined: dict[str, tuple[object, ...]] = field(default_factory=dict)
    definitions: History = field(
        default_factory=lambda: History("definition_history", MONTH_MS, 10_000, lasting=True)
    )
    runs: History = field(
        default_factory=lambda: History(RUN_HISTORY, MONTH_MS, RUNS_MAX, lasting=True)
    )
    process: ProcessFacts = field(default_factory=ProcessFacts)
    derived: dict[str, tuple[tuple[int, ...], object]] = field(default_factory=dict)
    histories_since_ms: int | None = 0

    @property
    def follows(self) -> bool:
        """True while this process follows the one that holds the location."""
        return self.histories_since_ms is None

    def watched(self) -> Iterator[ObjectFacts]:
        """Objects whose dataflows are watched; relations about dataflows are of these alone."""
        return (one for one in self.objects.values() if one.installed.domain in self.domains)

    def histories(self) -> tuple[History, ...]:
        """All histories."""
        return (*self.stored_histories(), self.commands)

    def stored_histories(self) -> tuple[History, ...]:
        """Those of what this process has noted: the lane stores its commands itself."""
        return (
            self.statuses,
            self.verdict_changes,
            self.lags,
            self.maintenance,
            self.actions,
            self.self_checks,
            self.definitions,
            self.runs,
        )

    def maintenance_fails(self, shard: str) -> bool:
        """True if a step of the newest round on a shard, as it was noted, has failed."""
        return shard in self.rounds and bool(self.rounds[shard].failed)

    def history_revision(self, names: Collection[str]) -> int:
        """Grows whenever one of these histories changes."""
        return sum(history.revision for history in self.histories() if history.name in names)

    def existing_at(self, at_ms: int) -> set[str]:
        """Names of the objects that there were at a moment, as the histories have them."""
        return existing(self.statuses, self.definitions, self.runs, at_ms)

    def derive(self, name: str, histories: Iterable[History], make: Callable[[], T]) -> T:
        """What `make` makes of histories; made again only after one of them has changed.

        Args:
            name: Of what is made: it has one type.
            histories: All that `make` looks at.
            make: Makes it.
        """
        revision = tuple(history.revision for history in histories)
        known = self.derived.get(name)
        if known is None or known[0] != revision:
            self.derived[name] = known = (revision, make())
        return known[1]  # type: ignore[return-value]  # see `name`

    def prune(self, now_ms: int) -> None:
        """Remove rows of histories that are too old, and that nothing is to be learned from."""
        for history in self.histories():
            # The newest row of each kind holds for good: nothing drops a start or an end.
            names = (lambda _: _RUN_KINDS) if history is self.runs else self.existing_at
            history.prune(now_ms, names)

    def until(self, at_ms: int) -> Facts:
        """Facts with nothing but the histories as they were at a moment; a copy."""
        return self._with(lambda history: history.until(at_ms))

    def about(self, names: Collection[str], histories: Collection[str]) -> Facts:
        """Facts of some objects, or shards, alone.

        Args:
            names: Of the objects and shards.
            histories: Names of those that are wanted; the others are left empty.
        """
        found = self._with(lambda one: one.about(names if one.name in histories else ()))
        found.domains = self.domains
        found.objects = {name: self.objects[name] for name in names if name in self.objects}
        found.shards = {name: self.shards[name] for name in names if name in self.shards}
        return found

    def _with(self, choose: Callable[[History], History]) -> Facts:
        """Facts with nothing but a part of each history."""
        return Facts(
            statuses=choose(self.statuses),
            verdict_changes=choose(self.verdict_changes),
            lags=choose(self.lags),
            maintenance=choose(self.maintenance),
            actions=choose(self.actions),
            self_checks=choose(self.self_checks),
            definitions=choose(self.definitions),
            runs=choose(self.runs),
            commands=choose(self.commands),
        )


def lag_ms(write: Observed, now_ms: int) -> int | None:
    """Lag of an upper behind the clock in ms: 0 for the empty one, None for one never written."""
    if write is UNSET or write == 0:
        return None
    return 0 if write is None else max(0, now_ms - write)


def histogram_bucket_ns(duration_ms: float) -> int:
    """The least power of two, in nanoseconds, that a duration does not exceed."""
    ns = max(1, int(duration_ms * 1_000_000))
    return 1 << (ns - 1).bit_length()


def object_kind(description: Description) -> str:
    """Kind of an object: source, view, index, sink or subscribe."""
    return str(description.__struct_config__.tag)

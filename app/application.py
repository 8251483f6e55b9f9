"""The application: a runtime, its two controllers, and the project that they want.

    with Application(spark, client, settings, data=folder) as application:
        application.apply(Project.load(folder).check(spark))
        application.sql("SELECT * FROM delays_by_carrier")

One process has both ends: controllers speak to the runtime through connections of its own, which
are the same protocols that a controller elsewhere would speak. What is wanted is said by `apply`;
what is to be done about it is found out by the runtime.

Invariants:
    The shard of a source or view is there before anything that reads it is created.
    What reads is created once all of its inputs have begun: it never sees one that is half there.
    A dropped object's shard stays until `drop` names it: what a slip of a project dropped comes
    back with the next `apply`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa
from msgspec.structs import replace

from app.bounds import bounds_of, check_configuration, configuration_of
from app.compute.holds import beginning_name, forget_holds
from app.config import RuntimeSettings
from app.connection.inprocess import InProcessClient
from app.controller.as_of import Readable, choose_as_of
from app.controller.compute import ComputeController, Hold, Subscription
from app.controller.storage import StorageController
from app.duration import duration_ms
from app.lane.commands import Kind
from app.lane.holder import this_process
from app.lane.journal import Takeover
from app.lane.log import LANE_SHARD, LaneLog, read_lane
from app.lane.state import LaneState
from app.observing import Observing
from app.project.plan import Plan, difference
from app.project.project import Project, Resolved
from app.protocol.objects import (
    Dataflow,
    Description,
    SinkDescription,
    SourceDescription,
    SubscribeDescription,
    ViewDescription,
    errors_shard,
    inputs_of,
    progress_shard,
)
from app.reads import Reads
from app.runtime import Runtime, RuntimeOptions
from app.shards import make_shard
from app.tuning import size_bytes
from datasource.client import ShardClient
from datasource.clock import Clock, IdGenerator
from datasource.errors import Determinate, InvalidUsage, ShardError, unknown_name
from datasource.frontier import MINIMUM
from datasource.maintenance import Maintainer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from app.project.statements import Kept

__all__ = ["Application", "planned"]

_log = logging.getLogger(__name__)

_BEGUN_MS: Final = 200.0
"""How often it is looked whether the inputs of new dataflows have begun."""


class Application:
    """Everything of one location in one process. Use it as a context manager.

    Attributes:
        runtime: What runs.
        observing: What watches it; None if nothing does.
        timeout_ms: How long a query may take that does not say so itself.
    """

    def __init__(
        self,
        spark: SparkSession,
        client: ShardClient,
        settings: RuntimeSettings,
        *,
        data: Path,
        storage: Mapping[str, str] | None = None,
        take_over: bool = False,
        read_only: bool = False,
        name: str = "shardline",
    ) -> None:
        """Take the location's lane.

        Args:
            spark: The session.
            client: Of the location; of this application alone.
            settings: Of the runtime.
            data: Folder on this machine for checkpoints.
            storage: Options of the location's store.
            take_over: Take the location from another runtime that holds it.
            read_only: Follow the runtime that holds the location, hydrate, and write nothing until
                `allow_writes`.
            name: What it calls itself to others.

        Raises:
            InvalidUsage: `LOCATION_HELD`: another runtime holds the location.
        """
        self._spark, self._client = spark, client
        self._clock: Clock = client.clock
        self._ids: IdGenerator = client.ids
        self._follows = read_only
        self._retain_ms = duration_ms(settings.retain_history)
        self.timeout_ms = float(duration_ms(settings.query_timeout))
        self._bounds = bounds_of(settings)
        holder = this_process(name, self._clock, self._ids)
        if read_only:
            journal = LaneLog(client, holder, self._bounds.lane)
        else:
            how: Takeover = "by-force" if take_over else "if-free"
            journal = LaneLog.open(client, holder, self._bounds.lane, how=how)
        # Two sessions are what a unified runtime does away with: kept to compare.
        other = spark if settings.unified else spark.newSession()
        sessions: dict[Kind, SparkSession] = {"compute": spark, "storage": other}
        self.observing = Observing(client, self._clock) if settings.introspection else None
        if self.observing is not None:
            self.observing.attach(spark)
        options = RuntimeOptions(
            # A follower has its own: two queries on one checkpoint would push each other out.
            checkpoints=data / ("following" if read_only else "checkpoints") / client.location.id,
            storage=dict(storage or {}),
            interval_ms=settings.interval_ms,
            bounds=self._bounds,
        )
        self.runtime = Runtime(
            sessions,
            client,
            journal,
            options,
            clock=self._clock,
            ids=self._ids,
            observing=self.observing,
        )
        self._compute = ComputeController(
            lambda: InProcessClient(self.runtime.compute, self.token(), self._clock),
            self._clock,
            self._ids,
            hold=self._hold,
            writes=not read_only,
        )
        self._storage = StorageController(
            lambda: InProcessClient(self.runtime.storage, self.token(), self._clock),
            self._clock,
            as_of=self._sink_as_of,
            writes=not read_only,
        )
        self._reads = self._reading(settings)
        self._configure(configuration_of(settings))
        observer = None if self.observing is None else self.observing.maintained
        self._maintainer = Maintainer(client, observer=observer) if settings.maintenance else None
        self._maintains = False
        self._lock = threading.Lock()
        self._connected = False
        self._waiting: dict[str, Dataflow | SinkDescription] = {}
        self._ending = threading.Event()
        self._starter = threading.Thread(target=self._start_waiting, name="starter", daemon=True)

    def _reading(self, settings: RuntimeSettings) -> Reads:
        return Reads(
            self._client,
            self._compute,
            self.running,
            limit_bytes=size_bytes(settings.result_limit),
            timeout_ms=self.timeout_ms,
            zone=lambda: self._spark.conf.get("spark.sql.session.timeZone") or "UTC",
            shard_bytes=lambda: self._bounds.peeks.shard_bytes,
        )

    # -- life ------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Start the runtime; nothing of the project runs until `apply`."""
        self.runtime.start()
        self._starter.start()
        if not self._follows:
            self._maintain()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop everything; the next start goes on."""
        self._ending.set()
        self._starter.join()
        self._compute.stop()
        self._storage.stop()
        self.runtime.stop()
        if self._maintainer is not None and self._maintains:
            self._maintainer.__exit__(kind, error, trace)

    @property
    def lost(self) -> Exception | None:
        """Why everything was stopped, if another runtime has taken over; None while all is well."""
        return self.runtime.lane.lost

    @property
    def location_id(self) -> str:
        """Identity of the location."""
        return self._client.location.id

    def allow_writes(self) -> None:
        """Take the location over from the runtime that this one has followed."""
        self._compute.allow_writes()
        self._storage.allow_writes()
        with self._lock:
            self._follows = False
            self._maintain()

    def configure(self, settings: Mapping[str, str]) -> None:
        """Change settings of section `[runtime]` while everything runs, until the next start.

        Args:
            settings: Values as they are written in `conf/app.toml`, by name.

        Raises:
            InvalidUsage: It is no setting that may change so, or a value cannot be; or this runtime
                only follows another one.
        """
        with self._lock:
            if self._follows:
                raise InvalidUsage(
                    "this runtime follows another one, whose settings are in force",
                    code="READ_ONLY_RUNTIME",
                    hint="ask that one, or allow this one to write",
                )
            self._bounds = check_configuration(settings, self._bounds)
            self._configure(settings)

    def _configure(self, settings: Mapping[str, str]) -> None:
        self._compute.configure(settings)
        self._storage.configure(settings)

    def _maintain(self) -> None:
        if self._maintainer is not None and not self._maintains:
            self._maintains = True
            self._maintainer.__enter__()

    # -- what should be there ---------------------------------------------------------------------

    def running(self) -> dict[str, Description]:
        """What the lane says should be there, by name; subscriptions apart."""
        return _living(self.runtime.lane.state)

    def plan(self, resolved: Resolved) -> Plan:
        """What `apply` would do."""
        return difference(_complete(resolved, self._retain_ms), self.running())

    def apply(self, resolved: Resolved) -> Plan:
        """Make the project run: what is new is created, what differs changed, the rest dropped.

        Raises:
            InvalidUsage: A shard of one of the names is there and cannot be this object's.
        """
        with self._lock:
            wanted = _complete(resolved, self._retain_ms)
            plan = difference(wanted, self.running())
            kept = (SourceDescription, ViewDescription)
            for description in () if self._follows else wanted.values():
                if isinstance(description, kept):
                    make_shard(self._client, description, resolved.schemas[description.name])
            self._waiting.clear()
            gone = (self._storage.wanted().keys() | self._compute.wanted().keys()) - wanted.keys()
            self._storage.drop(gone)
            self._compute.drop(gone)
            before = self.running()
            for description in wanted.values():
                self._run(description)
                self._leave(before.get(description.name), description)
            if not self._connected:
                # Only now: the runtime is told everything at once, and drops what is not named.
                self._connected = True
                self._storage.start()
                self._compute.start()
            return plan

    def change(self, files: Mapping[str, str], *, dry_run: bool) -> Plan:
        """Make a project run that is given as text, or only say what that would do.

        Args:
            files: The project's texts by file name, variables put in.
            dry_run: Whether to change nothing.

        Raises:
            InvalidProject: Something is wrong; every problem that was found is in it.
            InvalidUsage: As of `apply`.
        """
        resolved = Project.parse(files).check(self._spark, self._ids)
        return self.plan(resolved) if dry_run else self.apply(resolved)

    def drop(self, names: Sequence[str]) -> list[str]:
        """Drop objects and their shards for good; those that read them must be among them.

        Returns:
            The names of the shards that were dropped.

        Raises:
            InvalidUsage: There is no such object, or another one reads it.
            Determinate: It has not stopped in time; nothing of its shards was dropped.
        """
        with self._lock:
            running = self.running()
            shards = set(self._client.shards())
            for name in names:
                if name not in running and name not in shards:
                    raise unknown_name("object", name, [*running, *shards])
            self._check_unread(names, running)
            for name in names:
                self._waiting.pop(name, None)
            self._storage.drop(names)
            self._compute.drop(names)
            self._until_gone(names)
            return [shard for name in names for shard in self._drop_shards(name)]

    def _check_unread(self, names: Sequence[str], running: Mapping[str, Description]) -> None:
        for other, description in running.items():
            read = [name for name in inputs_of(description) if name in names]
            if read and other not in names:
                raise InvalidUsage(
                    f"'{other}' reads '{read[0]}'",
                    code="STILL_READ",
                    hint=f"drop '{other}' too, or take it out of the project first",
                )

    def _until_gone(self, names: Sequence[str]) -> None:
        """Wait until nothing of objects runs any more: a shard that is written must not go."""
        deadline_ms = self._clock.elapsed_ms() + self.timeout_ms
        while left := [name for name in names if name in self.runtime.lane.state.objects]:
            if self._clock.elapsed_ms() > deadline_ms or self._clock.wait(self._ending, _BEGUN_MS):
                raise Determinate(
                    f"'{left[0]}' is being dropped, and has not stopped yet",
                    code="NOT_STOPPED",
                    hint="drop it again, which then drops its shard",
                )

    def _drop_shards(self, name: str) -> list[str]:
        dropped = []
        # The object's own goes last: while it is there the drop can be asked for again.
        for shard in (errors_shard(name), progress_shard(name), name):
            if self._client.exists(shard):
                state = self._client.state(shard)
                self._client.drop(shard, despite_holders=[*state.critical, *state.leased])
                dropped.append(shard)
        return dropped

    def _run(self, description: Kept) -> None:
        match description:
            case SourceDescription():
                self._storage.run(description)
            case _:
                known = {**self._compute.wanted(), **self._storage.wanted()}
                if known.get(description.name) != description:
                    self._waiting[description.name] = description
                    self._start_if_begun(description)

    def _start_if_begun(self, reader: Dataflow | SinkDescription) -> None:
        """Create what waits for its inputs, if all of them have begun."""
        inputs = [self._readable(name) for name in inputs_of(reader)]
        if any(one.upper == MINIMUM for one in inputs):
            return
        if isinstance(reader, SinkDescription):
            self._storage.run(reader)
        else:
            self._compute.run(reader, self._as_of(reader))
        del self._waiting[reader.name]

    def _start_waiting(self) -> None:
        while not self._clock.wait(self._ending, _BEGUN_MS):
            with self._lock:
                for reader in list(self._waiting.values()):
                    try:
                        self._start_if_begun(reader)
                    except ShardError:
                        context = {"id": reader.name}
                        _log.warning("not created yet", exc_info=True, extra={"context": context})

    def _leave(self, before: Description | None, after: Kept) -> None:
        """Let go of the inputs that a view read by its former definition only."""
        if isinstance(before, ViewDescription) and before != after:
            left = set(before.inputs) - set(inputs_of(after))
            forget_holds(self._client, before.name, sorted(filter(self._client.exists, left)))

    def _as_of(self, dataflow: Dataflow) -> int:
        output = dataflow.name if isinstance(dataflow, ViewDescription) else None
        inputs = [self._readable(name) for name in inputs_of(dataflow)]
        there = None if output is None else self._readable(output)
        chosen = choose_as_of(inputs, there)
        if chosen is None:
            raise InvalidUsage(
                f"an input of '{dataflow.name}' has no history left to begin at",
                code="HISTORY_GONE",
                hint="./spark-submit.sh inspect shows its since",
            )
        return chosen

    def _sink_as_of(self, sink: SinkDescription) -> int:
        chosen = choose_as_of([self._readable(sink.on)], None)
        return 0 if chosen is None else chosen

    def _readable(self, name: str) -> Readable:
        if not self._client.exists(name):
            return Readable(MINIMUM, MINIMUM)
        state = self._client.readable(name)[0]
        return Readable(state.since, state.upper)

    def _hold(self, dataflow: Dataflow, as_of: int) -> list[Hold]:
        """Holds on a dataflow's inputs until it has its own."""
        purpose = f"the beginning of {dataflow.name}"
        # Under the view's own prefix: whatever ends the view's holds, after a crash too, ends it.
        name = beginning_name(dataflow.name)
        return [
            self._client.hold(one, name, since=as_of, purpose=purpose)
            for one in inputs_of(dataflow)
            if self._client.exists(one)
        ]

    # -- reads -----------------------------------------------------------------------------------

    def sql(
        self,
        text: str,
        *,
        timeout_ms: float | None = None,
        cancelled: threading.Event | None = None,
    ) -> pa.Table:
        """What a query gives: `SELECT … [AS OF t]` over objects and `introspection` relations.

        Without `AS OF` it sees everything that was written before (strict serializable).
        `EXPLAIN SELECT …` says how that is answered, `EXPLAIN VIEW name` how it is kept up to date,
        each with the reason.

        Raises:
            InvalidUsage: The query cannot be run.
            Determinate: It was not answered in time, or failed.
        """
        return self._reads.sql(text, timeout_ms=timeout_ms, cancelled=cancelled)

    def subscribe(self, text: str) -> Subscription:
        """Follow an object: `SUBSCRIBE obj [WITHOUT SNAPSHOT] [AS OF t] [UP TO t]`.

        Raises:
            InvalidUsage: There is no such object.
        """
        return self._reads.subscribe(text)

    def token(self) -> str:
        """A fresh secret."""
        return self._ids.token().hex()


def planned(client: ShardClient, settings: RuntimeSettings, resolved: Resolved) -> Plan:
    """What applying a project to a location would do, asked of its lane from outside."""
    running = _living(read_lane(client)[0]) if client.exists(LANE_SHARD) else {}
    return difference(_complete(resolved, duration_ms(settings.retain_history)), running)


def _living(state: LaneState) -> dict[str, Description]:
    return {
        name: known.description
        for name, known in state.objects.items()
        if known.life == "live" and not isinstance(known.description, SubscribeDescription)
    }


def _complete(resolved: Resolved, retain_ms: int) -> dict[str, Kept]:
    """The descriptions, with what the settings say where they say nothing."""
    found: dict[str, Kept] = {}
    for name, description in resolved.descriptions.items():
        match description:
            case SourceDescription(retain_ms=None) | ViewDescription(retain_ms=None):
                found[name] = replace(description, retain_ms=retain_ms)
            case _:
                found[name] = description
    return found

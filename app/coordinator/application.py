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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Final, Self

import pyarrow as pa

from shardline.app.controller.compute import ComputeController
from shardline.app.controller.storage import StorageController
from shardline.app.controller.subscription import Subscription
from shardline.app.coordinator.desired_state import check_unread, complete, living
from shardline.app.coordinator.object_creation import Starter
from shardline.app.coordinator.reads import Reads
from shardline.app.coordinator.start_holds import Beginnings
from shardline.app.execution.object_shards import make_shard
from shardline.app.introspection.feeds import Observing
from shardline.app.lane.commands import Kind
from shardline.app.lane.holder import this_process
from shardline.app.lane.log import LANE_SHARD, LaneLog, read_lane
from shardline.app.lane.order_protocol import Takeover
from shardline.app.project.plan import Plan, difference
from shardline.app.project.project import Project, Resolved
from shardline.app.protocol.objects import (
    SourceDescription,
    ViewDescription,
    errors_shard,
    progress_shard,
)
from shardline.app.runtime.runtime import Runtime, RuntimeOptions
from shardline.app.runtime.settings import bounds_of, check_configuration, configuration_of
from shardline.app.settings.config import RuntimeSettings
from shardline.app.settings.durations import duration_ms
from shardline.app.settings.live import size_bytes
from shardline.app.transport.in_process import InProcessClient
from shardline.datasource.client import ShardClient
from shardline.datasource.clock import Clock, IdGenerator
from shardline.datasource.errors import Determinate, InvalidUsage, ShardError, unknown_name
from shardline.datasource.maintainer import Maintainer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from shardline.app.project.statements import Kept

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
        self.runtime = Runtime(
            sessions,
            client,
            journal,
            self._options(settings, data, storage or {}),
            clock=self._clock,
            ids=self._ids,
            observing=self.observing,
        )
        self._journal = journal
        self._beginnings = Beginnings(client)
        self._compute = ComputeController(
            lambda: InProcessClient(self.runtime.compute, self.token(), self._clock),
            self._clock,
            self._ids,
            hold=self._beginnings.hold,
            writes=not read_only,
            vacant=lambda: self.runtime.compute.vacant,
        )
        self._storage = StorageController(
            lambda: InProcessClient(self.runtime.storage, self.token(), self._clock),
            self._clock,
            as_of=self._beginnings.sink_as_of,
            writes=not read_only,
            vacant=lambda: self.runtime.storage.vacant,
        )
        self._reads = self._reading(settings)
        self._configure(configuration_of(settings))
        observer = None if self.observing is None else self.observing.maintained
        self._maintainer = Maintainer(client, observer=observer) if settings.maintenance else None
        self._maintains = False
        self._lock = threading.Lock()
        self._connected = False
        self._wanted: Resolved | None = None
        self._ending = threading.Event()
        self._starter = Starter(client, self._compute, self._storage, self._beginnings)
        self._thread = threading.Thread(target=self._start_waiting, name="starter", daemon=True)

    def _options(
        self, settings: RuntimeSettings, data: Path, storage: Mapping[str, str]
    ) -> RuntimeOptions:
        # A follower has its own: two queries on one checkpoint would push each other out.
        folder = data / ("following" if self._follows else "checkpoints")
        return RuntimeOptions(
            checkpoints=folder / self._client.location.id,
            storage=dict(storage),
            interval_ms=settings.interval_ms,
            interval_max_ms=duration_ms(settings.interval_max),
            bounds=self._bounds,
        )

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
        self._reads.begin(self._beginnings.latest(self.running().values()))
        self.runtime.start()
        self._thread.start()
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
        self._thread.join()
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

    @property
    def not_ready(self) -> str:
        """Why queries cannot be answered, as a sentence; "" if they can."""
        try:
            self._check_in_charge()
        except ShardError as error:
            return str(error)
        return ""

    def waiting(self) -> dict[str, str]:
        """What is not created yet, and why: "" if an input has not begun, which it waits for."""
        with self._lock:
            return self._starter.waiting()

    def allow_writes(self) -> None:
        """Take the location over from the runtime that this one has followed; waits for that.

        What the project says otherwise than the order of that one takes effect then.

        Raises:
            InvalidUsage: No project has been applied yet.
            Determinate: It has not happened in time; asking again goes on.
            ShardError: As of `apply`; the location is taken over.
        """
        with self._lock:
            if not self._follows:
                return
            if self._wanted is None:
                raise _nothing_applied()
            # What the other one has created meanwhile is no less wanted than before.
            self._starter.run(self.running().values())
            self._compute.allow_writes()
            self._storage.allow_writes()
            self._until(
                lambda: self._journal.role == "holder" and len(self.runtime.lane.state.writes) > 1,
                "the location has not been taken over yet",
                code="NOT_TAKEN_OVER",
                hint="the store may be slow, or away: ask again",
            )
            self._follows = False
            self._maintain()
            self._reads.begin(self._beginnings.latest(self.running().values()))
            self._apply(self._wanted)

    def _until(self, happened: Callable[[], bool], what: str, *, code: str, hint: str) -> None:
        deadline_ms = self._clock.elapsed_ms() + self.timeout_ms
        while not happened():
            self._check_in_charge()
            if self._clock.elapsed_ms() > deadline_ms or self._clock.wait(self._ending, _BEGUN_MS):
                raise Determinate(what, code=code, hint=hint)

    def _check_in_charge(self) -> None:
        """Make sure that what is said here has an effect."""
        if self.runtime.lane.lost is not None:
            raise self.runtime.lane.lost
        self._compute.check_in_charge()
        self._storage.check_in_charge()

    def configure(self, settings: Mapping[str, str]) -> None:
        """Change settings of section `[runtime]` while everything runs, until the next start.

        Args:
            settings: Values as they are written in `conf/app.toml`, by name.

        Raises:
            InvalidUsage: It is no setting that may change so, or a value cannot be; or this runtime
                only follows another one.
        """
        with self._lock:
            self._check_in_charge()
            if self._follows:
                raise _read_only("its settings are in force")
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

    def running(self) -> dict[str, Kept]:
        """What the lane says should be there, by name; subscriptions apart."""
        return living(self.runtime.lane.state)

    def plan(self, resolved: Resolved) -> Plan:
        """What `apply` would do."""
        return difference(complete(resolved, self._retain_ms), self.running())

    def apply(self, resolved: Resolved) -> Plan:
        """Make the project run: what is new is created, what differs changed, the rest dropped.

        What cannot be created now is tried again: see `waiting`. A runtime that follows another
        one runs what that one runs; the project it starts with takes effect with `allow_writes`.

        Raises:
            InvalidUsage: A shard of one of the names is there and cannot be this object's; or
                `READ_ONLY_RUNTIME`: this runtime follows another one, which runs something else.
            ShardError: Another runtime has taken over, or another controller.
        """
        with self._lock:
            self._check_in_charge()
            return self._apply(resolved)

    def _apply(self, resolved: Resolved) -> Plan:
        wanted = complete(resolved, self._retain_ms)
        plan = difference(wanted, self.running())
        if self._follows:
            if plan.steps and self._connected:
                raise _read_only("it decides what runs")
            if plan.steps:
                _log.warning("what the project changes waits until this runtime may write")
            wanted = self.running()
        for description in () if self._follows else wanted.values():
            if isinstance(description, SourceDescription | ViewDescription):
                make_shard(self._client, description, resolved.schemas[description.name])
        self._wanted = resolved
        self._starter.keep(wanted)
        before = self.running()
        self._starter.run(wanted.values())
        self._starter.leave(before, wanted)
        self._connect()
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
            InvalidUsage: There is no such object, or another one reads it; or it runs, and no
                project has been applied yet; or this runtime only follows another one.
            Determinate: It has not stopped in time; nothing of its shards was dropped.
            ShardError: Another runtime has taken over, or another controller.
        """
        with self._lock:
            self._check_in_charge()
            if self._follows:
                raise _read_only("it decides what is dropped")
            running = self.running()
            shards = set(self._client.shards())
            for name in names:
                if name not in running and name not in shards:
                    raise unknown_name("object", name, [*running, *shards])
            check_unread(names, {**running, **self._starter.readers()})
            if not self._connected and not running.keys().isdisjoint(names):
                raise _nothing_applied()
            self._starter.drop(names)
            self._until_gone(names)
            return [shard for name in names for shard in self._drop_shards(name)]

    def _until_gone(self, names: Sequence[str]) -> None:
        """Wait until nothing of objects runs any more: a shard that is written must not go."""
        for name in names:
            self._until(
                lambda name=name: name not in self.runtime.lane.state.objects,  # type: ignore[misc]
                f"'{name}' is being dropped, and has not stopped yet",
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

    def _connect(self) -> None:
        """Let the runtime be told everything at once: it drops what is not named."""
        # A start must not drop what could not be looked up for a moment.
        if not self._connected and self._starter.unclear().isdisjoint(self.running()):
            self._connected = True
            self._storage.start()
            self._compute.start()

    def _start_waiting(self) -> None:
        swept = False
        while not self._clock.wait(self._ending, _BEGUN_MS):
            try:
                with self._lock:
                    self._starter.again()
                    if self._wanted is not None:
                        self._connect()
                if not swept and not self._follows:
                    objects = self.runtime.lane.state.objects
                    self._beginnings.sweep(objects, self._compute.knows, self._ending.is_set)
                    swept = True
            except Exception:  # noqa: BLE001 - see below
                # Without this thread nothing that waits would ever be created.
                _log.exception("a look at what waits failed")

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
            InvalidUsage: There is no such object; or this runtime only follows another one.
        """
        if self._follows:
            raise _read_only("subscriptions are in its order")
        return self._reads.subscribe(text)

    def token(self) -> str:
        """A fresh secret."""
        return self._ids.token().hex()


def _read_only(why: str) -> InvalidUsage:
    return InvalidUsage(
        f"this runtime follows another one, and {why}",
        code="READ_ONLY_RUNTIME",
        hint="ask that one, or allow this one to write",
    )


def _nothing_applied() -> InvalidUsage:
    return InvalidUsage(
        "no project has been applied since the start: what runs is that of the last one",
        code="NOTHING_APPLIED",
        hint="apply a project first",
    )


def planned(client: ShardClient, settings: RuntimeSettings, resolved: Resolved) -> Plan:
    """What applying a project to a location would do, asked of its lane from outside."""
    running = living(read_lane(client)[0]) if client.exists(LANE_SHARD) else {}
    return difference(complete(resolved, duration_ms(settings.retain_history)), running)

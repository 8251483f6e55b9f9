"""The application: a runtime, its two controllers, and the project that they want.

    with Application(spark, client, settings, data=folder) as application:
        application.apply(Project.load(folder).check(spark))
        application.sql("SELECT * FROM delays_by_carrier")

One process has both ends: its controllers send commands to the runtime over connections inside of
the process, by the same protocol as a controller in another process. `apply` passes the objects of
the project to the controllers (`objects`); `sql` and `subscribe` choose the time of a read and pass
it to the compute controller (`reads`). The runtime compares these commands with what runs, and
starts, changes and ends objects accordingly. A program uses this class alone: it makes the parts,
and stops them in the right order.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import pyarrow as pa

from shardline.app.controller.compute import ComputeController
from shardline.app.controller.storage import StorageController
from shardline.app.controller.subscription import Subscription
from shardline.app.coordinator.error_repairs import ErrorRepairs
from shardline.app.coordinator.object_control import ObjectControl
from shardline.app.coordinator.objects import Objects, read_only_error
from shardline.app.coordinator.project_comparison import ProjectComparison
from shardline.app.coordinator.reads import Reads
from shardline.app.coordinator.shard_actions import ShardActions
from shardline.app.coordinator.start_holds import StartHolds
from shardline.app.coordinator.view_explanation import ViewExplanations, with_view_plans
from shardline.app.coordinator.wakes import Wakes
from shardline.app.introspection.feeds import RuntimeFeeds
from shardline.app.lane.commands import KINDS, Kind
from shardline.app.lane.holder import describe_process
from shardline.app.lane.log import LaneLog
from shardline.app.lane.order_protocol import Takeover
from shardline.app.project.dropping import DropPlan
from shardline.app.project.permission import Permissions
from shardline.app.project.plan import Plan
from shardline.app.project.project import CheckedProject, Project
from shardline.app.protocol.project_identity import ProjectIdentity
from shardline.app.runtime.runtime import Runtime
from shardline.app.runtime.settings import (
    RuntimeOptions,
    changeable_values,
    part_settings_of,
    with_checked_values,
)
from shardline.app.settings.config import RuntimeSettings
from shardline.app.settings.durations import parse_duration_ms
from shardline.app.settings.live import parse_size_bytes
from shardline.app.spark_session import read_as_written
from shardline.app.transport.in_process import InProcessClient
from shardline.datasource.client import ShardClient
from shardline.datasource.clock import Clock, IdGenerator
from shardline.datasource.errors import ShardError
from shardline.datasource.maintainer import Maintainer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from shardline.app.project.statements import ObjectDescription

__all__ = ["Application"]

_log = logging.getLogger(__name__)


class Application:
    """Everything of one location in one process. Use it as a context manager.

    Attributes:
        runtime: What runs.
        feeds: Introspection of what runs; None if it is off.
        control: Pauses, resumes and restarts single objects.
        repairs: Shows bad rows of sources, and has them taken away.
        comparison: Compares the project's files, as they are now, with what runs.
        shard_actions: Merges, collects and sweeps shards, and expires holds, on request.
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
        self.timeout_ms = float(parse_duration_ms(settings.query_timeout))
        self._part_settings = part_settings_of(settings)
        # What can be wrong with the settings is found before anything is taken.
        options = self._options(settings, data, storage or {}, follows=read_only)
        self._result_bytes = parse_size_bytes(settings.result_limit)
        self._retain_ms = parse_duration_ms(settings.retain_history)
        holder = describe_process(name, self._clock, self._ids)
        if read_only:
            order = LaneLog(client, holder, self._part_settings.lane)
        else:
            how: Takeover = "by-force" if take_over else "if-free"
            order = LaneLog.open(client, holder, self._part_settings.lane, how=how)
        self._order = order
        try:
            self._assemble(settings, data, options, follows=read_only)
        except BaseException:
            # Its heartbeat runs: the location would be this process's until that ends, and refuse
            # the next try.
            order.close()
            raise

    def _assemble(
        self, settings: RuntimeSettings, data: Path, options: RuntimeOptions, *, follows: bool
    ) -> None:
        """Make the parts of the application; none of them has started yet."""
        spark, client = self._spark, self._client
        # Two sessions are what a unified runtime does away with: kept to compare.
        other = spark if settings.unified else spark.newSession()
        sessions: dict[Kind, SparkSession] = {"compute": spark, "storage": other}
        for session in sessions.values():
            read_as_written(session)
        self.feeds = (
            self._observe(sessions, data, options.checkpoints) if settings.introspection else None
        )
        wakes, retain_ms = Wakes(), self._retain_ms
        self.runtime = Runtime(
            sessions,
            client,
            self._order,
            options,
            clock=self._clock,
            ids=self._ids,
            feeds=self.feeds,
            watcher=wakes,
        )
        self._start_holds = StartHolds(client)
        self._compute, self._storage = self._controllers(writes=not follows)
        self._reads = self._reading()
        self._configure(changeable_values(settings))
        self._maintainer = self._make_maintainer() if settings.maintenance else None
        self._maintains = False
        self._settings_lock = threading.Lock()
        self._objects = Objects(
            client,
            self.runtime,
            compute=self._compute,
            storage=self._storage,
            start_holds=self._start_holds,
            wakes=wakes,
            retain_ms=retain_ms,
            timeout_ms=self.timeout_ms,
            follows=follows,
            observer=(lambda _: None) if self.feeds is None else self.feeds.on_wanted,
        )
        self.control = ObjectControl(self.runtime, self._objects, self.timeout_ms)
        self.repairs = ErrorRepairs(
            client, self.runtime, self._objects, self.timeout_ms, wakes.repairs
        )
        self.comparison = ProjectComparison(
            spark, client, self.runtime, self._objects, retain_ms, client.ids
        )
        self.shard_actions = ShardActions(client, self.runtime, self._objects, options.checkpoints)

    def _make_maintainer(self) -> Maintainer:
        observer = None if self.feeds is None else self.feeds.on_maintenance
        # Only the holder of the location maintains it: one that was pushed aside leaves it to its
        # successor, and one that only follows has not begun (`_maintain`).
        return Maintainer(self._client, allowed=lambda: self.lost is None, observer=observer)

    def _observe(
        self, sessions: Mapping[Kind, SparkSession], data: Path, checkpoints: Path
    ) -> RuntimeFeeds:
        # One session: that of storage is unseen if it is another, in every relation about
        # dataflows. To see both kinds there is what a unified runtime is for.
        seen = [kind for kind in KINDS if sessions[kind] is self._spark]
        feeds = RuntimeFeeds(self._client, self._clock, seen)
        feeds.attach(self._spark)
        feeds.describe_process(data, checkpoints)
        return feeds

    def _controllers(self, *, writes: bool) -> tuple[ComputeController, StorageController]:
        compute = ComputeController(
            lambda: InProcessClient(self.runtime.compute, self.token(), self._clock),
            self._clock,
            self._ids,
            hold=self._start_holds.hold,
            writes=writes,
            vacant=lambda: self.runtime.compute.is_vacant,
            ended=lambda: self.runtime.lane.lost,
        )
        storage = StorageController(
            lambda: InProcessClient(self.runtime.storage, self.token(), self._clock),
            self._clock,
            as_of=self._start_holds.sink_as_of,
            writes=writes,
            vacant=lambda: self.runtime.storage.is_vacant,
            ended=lambda: self.runtime.lane.lost,
        )
        return compute, storage

    def _options(
        self, settings: RuntimeSettings, data: Path, storage: Mapping[str, str], *, follows: bool
    ) -> RuntimeOptions:
        # A follower has its own: two queries on one checkpoint would push each other out.
        folder = data / ("following" if follows else "checkpoints")
        return RuntimeOptions(
            checkpoints=folder / self._client.location.id,
            storage=dict(storage),
            interval_ms=settings.interval_ms,
            interval_max_ms=parse_duration_ms(settings.interval_max),
            rest_interval_ms=settings.rest_interval_ms,
            self_check_every=settings.self_check_every,
            part_settings=self._part_settings,
        )

    def _reading(self) -> Reads:
        return Reads(
            self._client,
            self._compute,
            self.running,
            limit_bytes=self._result_bytes,
            timeout_ms=self.timeout_ms,
            zone=lambda: self._spark.conf.get("spark.sql.session.timeZone") or "UTC",
            shard_bytes=lambda: self._part_settings.peeks.shard_bytes,
            explain_view=ViewExplanations(
                self._spark,
                self._client,
                self.running,
                None if self.feeds is None else self.feeds.relations,
            ).table,
            uncreated=self._explain_uncreated,
        )

    def _explain_uncreated(self) -> dict[str, str]:
        """Say in a sentence for each object that is not created yet what it waits for."""
        found = {}
        for name, error in self._objects.uncreated().items():
            judged = None if self.feeds is None else self.feeds.judgement(name)
            because = "" if judged is None else judged.because
            found[name] = because or error or "its inputs have not begun"
        return found

    # -- life ------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        """Start the runtime; nothing of the project runs until `apply`.

        Raises:
            ShardError: The store did not answer; nothing runs, and the location is let go.
        """
        try:
            self._reads.begin(self._start_holds.latest(self.running().values()))
        except BaseException:
            # Nobody calls `__exit__` then.
            self._order.close()
            raise
        try:
            self.runtime.start()
            self._objects.start()
            self.repairs.start()
            if not self.follows:
                self._maintain()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop everything; the next start goes on."""
        self._stop()

    def _stop(self) -> None:
        # Before all else, so that a merge of minutes ends while the others are stopped.
        if self._maintainer is not None:
            self._maintainer.cancel()
        with ExitStack() as at_last:
            if self._maintainer is not None and self._maintains:
                at_last.callback(self._maintainer.stop)
            # Whatever the others raise, such as a second Ctrl-C: it gives up the location.
            at_last.callback(self.runtime.stop)
            # First of them: an object that is created now would be told to controllers that are
            # gone.
            self._objects.stop()
            self.repairs.stop()
            self._compute.stop()
            self._storage.stop()

    @property
    def lost(self) -> Exception | None:
        """Why everything was stopped: `Fenced` if another runtime has taken over, else a failure.

        None while all is well.
        """
        return self.runtime.lane.lost

    @property
    def location_id(self) -> str:
        """Identity of the location."""
        return self._client.location.id

    @property
    def follows(self) -> bool:
        """True while it follows the runtime that holds the location, and writes nothing."""
        return self._objects.follows

    @property
    def not_ready(self) -> str:
        """Why queries cannot be answered, as a sentence; "" if they can."""
        try:
            self.check_in_charge()
        except ShardError as error:
            return str(error)
        return ""

    def check_in_charge(self) -> None:
        """Make sure that what is asked for here has an effect.

        Raises:
            ShardError: Another runtime has taken over, or another controller.
        """
        self._objects.check_in_charge()

    def waiting(self) -> dict[str, str]:
        """Objects that are not created yet, with the reason; "" while an input has not begun."""
        return self._objects.waiting()

    def allow_writes(self) -> None:
        """Take the location over from the runtime that this one has followed; waits for that.

        What the project says otherwise than the order of that one takes effect then, unless that
        would undo what was changed there since the project was applied here.

        Raises:
            InvalidUsage: No project has been applied yet. Or the project is refused, as of `apply`
                or `PROJECT_OVERTAKEN`, by this call or since an earlier one; the location is taken
                over.
            Indeterminate: It has not happened in time. It goes on, and so does what comes after it.
            ShardError: As of `apply`; the location is taken over.
        """
        self._objects.allow_writes(self._has_taken_over, self._begin_to_write)

    def _has_taken_over(self) -> bool:
        return self._order.role == "holder" and len(self.runtime.lane.state.writes) > 1

    def _begin_to_write(self) -> None:
        self._maintain()
        # A read after this must see what the other runtime has acknowledged.
        self._reads.begin(self._start_holds.latest(self.running().values()))

    def configure(self, settings: Mapping[str, str]) -> None:
        """Change settings of section `[runtime]` while everything runs, until the next start.

        Args:
            settings: Values as they are written in `conf/app.toml`, by name.

        Raises:
            InvalidUsage: It is no setting that may change so, or a value cannot be; or this runtime
                only follows another one.
        """
        self.check_in_charge()
        if self.follows:
            raise read_only_error("its settings are in force")
        with self._settings_lock:
            self._part_settings = with_checked_values(settings, self._part_settings)
            self._configure(settings)

    def _configure(self, settings: Mapping[str, str]) -> None:
        self._compute.configure(settings)
        self._storage.configure(settings)

    def _maintain(self) -> None:
        if self._maintainer is not None and not self._maintains:
            self._maintains = True
            self._maintainer.__enter__()

    # -- what should be there ---------------------------------------------------------------------

    def running(self) -> dict[str, ObjectDescription]:
        """The objects of the lane's order, by name; without subscriptions."""
        return self._objects.running()

    def plan(self, resolved: CheckedProject) -> Plan:
        """The steps that `apply` would take, also if it would refuse them.

        Raises:
            InvalidProject: A source that is new or changed cannot be opened where it is.
        """
        return self._objects.plan(resolved)

    def apply(self, resolved: CheckedProject, allowed: Permissions | None = None) -> Plan:
        """Make the project run: what is new is created, what differs changed, the rest dropped.

        What cannot be created now is tried again: see `waiting`. A runtime that follows another
        one runs what that one runs; the project it starts with takes effect with `allow_writes`.

        Args:
            resolved: The project.
            allowed: What it may lose; None for nothing.

        Raises:
            InvalidProject: As of `plan`.
            InvalidUsage: `REPLACEMENT_REFUSED`, `RETENTION_REFUSED`, `OTHER_PROJECT`: it needs a
                permission that it does not have, and has changed nothing. Or a shard of one of the
                names is there and cannot be this object's; or `READ_ONLY_RUNTIME`: this runtime
                follows another one, which runs something else.
            Indeterminate: `NOT_RECORDED`: the store has not taken in time whose project it is; also
                at the start. Nothing of it runs yet; apply it again.
            ShardError: Another runtime has taken over, or another controller.
        """
        return self._objects.apply(resolved, allowed or Permissions())

    def change(
        self,
        files: Mapping[str, str],
        *,
        dry_run: bool,
        identity: ProjectIdentity | None = None,
        allowed: Permissions | None = None,
    ) -> Plan:
        """Make a project run that is given as text, or only say what that would do.

        Args:
            files: The project's texts by file name, variables put in.
            dry_run: Whether to change nothing.
            identity: Which project it is; None for no claim.
            allowed: As of `apply`.

        Raises:
            InvalidProject: Something is wrong; every problem that was found is in it.
            InvalidUsage: As of `apply`.
        """
        resolved = Project.parse(files, identity).check(self._spark, self._ids)
        if dry_run:
            plan = self.plan(resolved)
            return with_view_plans(self._spark, plan, resolved, allowed or Permissions())
        return self.apply(resolved, allowed)

    def plan_drop(self, names: Sequence[str]) -> DropPlan:
        """Plan a drop: everything that it would delete.

        Raises:
            InvalidUsage: There is no such object, or another one reads it.
        """
        return self._objects.plan_drop(names)

    def drop(self, names: Sequence[str]) -> list[str]:
        """Drop objects and their shards for good; those that read them must be among them.

        Returns:
            The names of the shards that were dropped.

        Raises:
            InvalidUsage: There is no such object, or another one reads it; or it runs, and no
                project has been applied yet; or this runtime only follows another one.
            Determinate: `NOT_STOPPED`: it has not stopped in time, and none of its shards was
                dropped. `SHARD_CHANGED`: a shard changes all the time and stays, while those
                before it are gone. Or the store did not answer, and some of them may be gone. To
                drop again does the rest.
            Indeterminate: `NOT_RECORDED`: the store has not taken it in time; no shard was dropped,
                but the objects may stop yet. Or a shard may have been dropped. To drop again does
                the rest.
            ShardError: Another runtime has taken over, or another controller.
        """
        return self._objects.drop(names)

    # -- reads -----------------------------------------------------------------------------------

    def sql(
        self,
        text: str,
        *,
        timeout_ms: float | None = None,
        cancelled: threading.Event | None = None,
    ) -> pa.Table:
        """The result of a query: `SELECT … [AS OF t]` over objects and `introspection` relations.

        Without `AS OF` it sees everything that was written before (strict serializable).
        `EXPLAIN SELECT …` says how that is answered, `EXPLAIN VIEW name` how it is kept up to date,
        each with the reason.

        Raises:
            InvalidUsage: The query cannot be run as it is: it is wrong, or fails on its rows.
            Determinate: It was not answered in time, or failed by something that may pass.
            MissingBlob: A part that it reads is not there.
            Corrupt: Data that it reads is damaged.
        """
        return self._reads.sql(text, timeout_ms=timeout_ms, cancelled=cancelled)

    def subscribe(self, text: str) -> Subscription:
        """Follow an object: `SUBSCRIBE obj [WITHOUT SNAPSHOT] [AS OF t] [UP TO t] [OF SHARD 'id']`.

        The id is that of a batch that was taken before: if the object has another shard by now, the
        one batch is the error `HISTORY_GONE`.

        If another runtime takes the location over, or another controller comes, it ends with that
        error.

        Raises:
            InvalidUsage: There is no such object; or this runtime only follows another one.
            ShardError: Another runtime has taken over, or another controller.
        """
        if self.follows:
            raise read_only_error("subscriptions are in its order")
        return self._reads.subscribe(text)

    def token(self) -> str:
        """A fresh secret."""
        return self._ids.token().hex()

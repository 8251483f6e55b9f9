"""Makes the objects of a runtime run, by kind, and keeps those that take settings while they run.

The lane decides when an object starts and stops; this module knows how. It is the only place that
knows both protocols' kinds of objects, and the one registry of running indexes and subscriptions,
which are spoken to while they run.

Invariants:
    An object that starts while settings change has the new ones: it is registered first, and takes
        what is in force then.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from shardline.app.compute.index.index import RunningIndex
from shardline.app.compute.render import render as render_dataflow
from shardline.app.compute.subscribe.subscription import RunningSubscription
from shardline.app.execution.commit_pacing import CommitPacing
from shardline.app.execution.host import Host, Incarnation, Running
from shardline.app.execution.live_errors import Catalog
from shardline.app.execution.observations import Report
from shardline.app.execution.rest_pace import RestPace
from shardline.app.lane.commands import Kind
from shardline.app.lane.lane import Renderer
from shardline.app.lane.state import LaneObject
from shardline.app.protocol.objects import (
    Dataflow,
    Description,
    IndexDescription,
    SinkDescription,
    SourceDescription,
    SubscribeDescription,
    ViewDescription,
)
from shardline.app.runtime.cleanup import forget
from shardline.app.runtime.settings import PartSettings, RuntimeOptions
from shardline.app.storage.render import render as render_storage
from shardline.datasource.client import ShardClient
from shardline.datasource.clock import Clock, IdGenerator

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["RunningObjects"]


class RunningObjects:
    """Starts and forgets objects, called by the lane in the threads of its effects.

    Attributes:
        hosts: What the objects of each kind are given.
    """

    def __init__(
        self,
        sessions: Mapping[Kind, SparkSession],
        client: ShardClient,
        options: RuntimeOptions,
        catalog: Catalog,
        *,
        report: Report,
        check_fence: Callable[[], None],
        clock: Clock,
        ids: IdGenerator,
    ) -> None:
        """Nothing runs yet.

        Args:
            sessions: That of each kind; one and the same for both in a unified runtime.
            client: Of the location.
            options: Of the runtime.
            catalog: For subscriptions, which end by errors of what their object is made of, and for
                sinks, which wait for them to go.
            report: Takes the observations of all objects.
            check_fence: Raises when another runtime has taken the location over.
            clock: Of the process.
            ids: Source of everything random.
        """
        self._client = client
        self._options = options
        self._catalog = catalog
        self._check_fence = check_fence
        self._part_settings = options.part_settings
        self._indexes: dict[str, RunningIndex] = {}
        self._subscribes: dict[str, RunningSubscription] = {}
        pacing = CommitPacing(clock, options.interval_ms, options.interval_max_ms)
        rest = RestPace(clock, options.interval_ms, options.rest_interval_ms)
        self.hosts = {
            kind: Host(
                spark=session,
                client=client,
                storage=options.storage,
                report=report,
                clock=clock,
                ids=ids,
                checkpoints=options.checkpoints,
                writes=threading.Event(),
                check_fence=check_fence,
                interval_ms=options.interval_ms,
                self_check_every=options.self_check_every,
                pool=kind,
                pacing=pacing,
                rest=rest,
            )
            for kind, session in sessions.items()
        }

    @property
    def renderers(self) -> dict[type, Renderer]:
        """For each kind of description, the function that starts an object."""
        return {
            SourceDescription: self._start_storage,
            SinkDescription: self._start_storage,
            ViewDescription: self._start_dataflow,
            IndexDescription: self._start_dataflow,
            SubscribeDescription: self._start_dataflow,
        }

    def apply_settings(self, parts: PartSettings) -> None:
        """Apply changed settings to the objects that run, and to those that start later."""
        # First: an object that starts meanwhile takes these by itself, or is in the registry below.
        self._part_settings = parts
        for index in [*self._indexes.values()]:
            index.tune(parts.indexes)
        for subscribe in [*self._subscribes.values()]:
            subscribe.tune(parts.subscribes)

    def allow_compaction(self, name: str, frontier: int | None) -> None:
        """Let the history of an index or subscription before `frontier` go; None ends it.

        Of shards it is their retention that decides, so nothing is done for other objects.
        """
        if name in self._indexes and frontier is not None:
            self._indexes[name].allow_compaction(frontier)
        if name in self._subscribes:
            self._subscribes[name].acknowledge(frontier)

    def forget(self, dropped: LaneObject) -> None:
        """Remove what a dropped object has left: its checkpoints and holds."""
        self._indexes.pop(dropped.description.name, None)
        self._subscribes.pop(dropped.description.name, None)
        forget(self._client, self._options.checkpoints, dropped, self._check_fence)

    def _start_dataflow(
        self, host: Host, incarnation: Incarnation, description: Description
    ) -> Running:
        assert isinstance(description, Dataflow), description
        running = render_dataflow(
            host,
            incarnation,
            description,
            self._catalog,
            indexes=self._part_settings.indexes,
            subscribes=self._part_settings.subscribes,
        )
        # Registered before it is tuned: settings that change between the two lines reach it by
        # the registry, those that changed while it was made by the second line.
        if isinstance(running, RunningIndex):
            self._indexes[incarnation.id] = running
            running.tune(self._part_settings.indexes)
        elif isinstance(running, RunningSubscription):
            self._subscribes[incarnation.id] = running
            running.tune(self._part_settings.subscribes)
        return running

    def _start_storage(
        self, host: Host, incarnation: Incarnation, description: Description
    ) -> Running:
        assert isinstance(description, SourceDescription | SinkDescription), description
        return render_storage(host, incarnation, description, self._catalog)

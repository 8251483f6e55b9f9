"""The host is the one seam between the lane's bookkeeping and Spark: a renderer gets it and runs.

The lane must be able to start and stop any object without knowing what it is, and tests must be
able to run the lane without Spark.

    render(host, incarnation, description) -> Running      starts it; may take seconds
    running.stop()                                          ends it; may take as long

Both are called from threads that may wait, never from the lane's own, and for one object never at
the same time: an incarnation is started when the one before it has stopped.

Invariants:
    When `stop` has returned nothing of this incarnation commits anything any more.
    An object that is not allowed to write computes and reports, and commits nothing.
    Everything durable that a rendering needs to go on is in the object's shards; a checkpoint that
    is lost, or that cannot be continued, costs time and nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from shardline.app.execution.commit_pacing import CommitPacing
from shardline.app.execution.observations import Report
from shardline.app.execution.rest_pace import RestPace
from shardline.app.protocol.objects import SourceDescription
from shardline.datasource.client import ShardClient
from shardline.datasource.clock import Clock, IdGenerator

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Host", "Incarnation", "Running"]


@dataclass(frozen=True, slots=True)
class Host:
    """The resources that all running objects of a kind share.

    Attributes:
        spark: The session of the object's kind; the same one for all in a unified runtime.
        client: Client of the location.
        storage: Options of the location's store, for reads and writes through Spark.
        report: Takes the observations of running objects.
        clock: The driver's clock.
        ids: Source of everything random.
        checkpoints: Folder of the checkpoints, on this machine.
        writes: Set once writing is allowed; never cleared.
        check_fence: Raises `Fenced` if another runtime has taken over the location. Called before
            every commit and after every one that was refused.
        interval_ms: Distance of the times that sources give to data, and of their ticks.
        pool: Spark's scheduler pool of the object's kind.
        pacing: Slows sources' commits down; None for a commit at each interval.
        rest: Lets uppers move less often while nothing happens; None for each interval.
        self_check_every: One step of a view in so many recomputes a key; 0 for none.
    """

    spark: SparkSession
    client: ShardClient
    storage: Mapping[str, str]
    report: Report
    clock: Clock
    ids: IdGenerator
    checkpoints: Path
    writes: threading.Event
    check_fence: Callable[[], None]
    interval_ms: int = 1000
    pool: str = "compute"
    pacing: CommitPacing | None = None
    rest: RestPace | None = None
    self_check_every: int = 0

    def note_news(self) -> None:
        """Say that something happens: uppers move at each interval again."""
        if self.rest is not None:
            self.rest.note_news()

    def note_time(self, time_ms: int) -> None:
        """Say that the upper of a source has passed a time."""
        if self.rest is not None:
            self.rest.note_time(time_ms)

    def moment(self, now_ms: int) -> int:
        """The last time at or before `now_ms` to which uppers should move, ms since the epoch."""
        return now_ms if self.rest is None else self.rest.moment(now_ms)


@dataclass(frozen=True, slots=True)
class Incarnation:
    """One life of an object, from its start to its end, as the lane has numbered it.

    Attributes:
        id: The object's name.
        global_id: Its id for ever: `u7`, `t3`.
        dataflow: Number of the dataflow: a new one for each definition.
        epoch: Number of this start of it, from 1. Reports and statistics of a lower one are
            ignored; the lane's order, not this number, fences writers.
        operators: First number of its operators, and how many there are.
        as_of: The first time at which its output must be right; None for a source, which sets its
            own.
        former_sources: Former definitions of it that have read shards, which may have left holds.
    """

    id: str
    global_id: str
    dataflow: int
    epoch: int
    operators: tuple[int, int]
    as_of: int | None = None
    former_sources: tuple[SourceDescription, ...] = field(default=(), compare=False)

    @property
    def query_name(self) -> str:
        """Name of its streaming query, unique among those that run at once."""
        return f"{self.id}:{self.global_id}:{self.epoch}"

    def checkpoint(self, folder: Path) -> Path:
        """Folder of its checkpoint: that of the incarnation before, while the definition stays.

        Without the epoch, so that a restart continues the query; with the dataflow, since Spark
        cannot continue another query from it.
        """
        return folder / f"{self.global_id}-{self.dataflow}"


class Running(Protocol):
    """A running incarnation of an object."""

    def stop(self) -> None:
        """End it, and wait until nothing of it commits any more; harmless to repeat.

        Raises:
            Exception: It may still run; the lane calls again.
        """
        ...

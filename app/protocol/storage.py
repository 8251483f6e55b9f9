"""The storage protocol lets a controller create sources and sinks: commands, responses.

The stages are those of `shardline.app.protocol.compute`, without the creation stage; frontiers are
written as there.

These commands only change the worker's bookkeeping. Only the lane starts and stops what runs
(`shardline.app.lane`).
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from shardline.app.protocol.compute import (
    AllowCompaction,
    AllowWrites,
    Hello,
    InitializationComplete,
    UpdateConfiguration,
)
from shardline.app.protocol.object_state import Status
from shardline.app.protocol.objects import ProtocolValue, SinkDescription, SourceDescription, Time

__all__ = [
    "CancelOneshotIngestion",
    "DroppedId",
    "FrontierUpper",
    "RunIngestion",
    "RunOneshotIngestion",
    "RunSink",
    "StagedBatches",
    "StatisticsUpdates",
    "StatusUpdate",
    "StorageCommand",
    "StorageResponse",
]

# --- commands --------------------------------------------------------------------------------


class RunIngestion(ProtocolValue, frozen=True, tag="run_ingestion"):
    """Create a source, or change the one of that name to this description.

    Attributes:
        ingestion: The description.
    """

    ingestion: SourceDescription

    @property
    def id(self) -> str:
        """The source's name."""
        return self.ingestion.name


class RunSink(ProtocolValue, frozen=True, kw_only=True, tag="run_sink"):
    """Create a sink, or change the one of that name to this description.

    Attributes:
        sink: The description.
        as_of: The time at which it begins; without effect on a sink that has begun.
    """

    sink: SinkDescription
    as_of: Time

    @property
    def id(self) -> str:
        """The sink's name."""
        return self.sink.name


class RunOneshotIngestion(ProtocolValue, frozen=True, kw_only=True, tag="run_oneshot_ingestion"):
    """Read data once in batch mode, and append it to a shard at one time.

    Attributes:
        uuid: Name of the ingestion.
        into: The source or table whose columns the rows have.
        format: As `spark.read.format` takes it.
        options: Options of the format.
    """

    uuid: str
    into: str
    format: str
    options: dict[str, str] = msgspec.field(default_factory=dict)


class CancelOneshotIngestion(ProtocolValue, frozen=True, tag="cancel_oneshot_ingestion"):
    """Cancel a one-shot ingestion: no response about it comes any more.

    Controllers send it after each `StagedBatches`, too: it takes the ingestion out of the history.
    """

    uuid: str


StorageCommand: TypeAlias = (
    Hello
    | InitializationComplete
    | AllowWrites
    | UpdateConfiguration
    | RunIngestion
    | RunSink
    | AllowCompaction
    | RunOneshotIngestion
    | CancelOneshotIngestion
)

# --- responses -------------------------------------------------------------------------------


class FrontierUpper(ProtocolValue, frozen=True, tag="frontier_upper"):
    """The upper of a source's shard, or that of a sink's progress; never goes back."""

    id: str
    upper: Time | None


class DroppedId(ProtocolValue, frozen=True, tag="dropped_id"):
    """The object was dropped: no response about it comes any more."""

    id: str


class StagedBatches(ProtocolValue, frozen=True, kw_only=True, tag="staged_batches"):
    """The end of a oneshot ingestion.

    Attributes:
        uuid: Name of the ingestion.
        rows: Number of rows, counted just before they were appended.
        error: The error, if none were; "" otherwise.
    """

    uuid: str
    rows: int = 0
    error: str = ""


class StatisticsUpdates(ProtocolValue, frozen=True, tag="statistics_updates"):
    """Statistics by object and name; unknown ones are left out."""

    sources: dict[str, dict[str, float]]
    sinks: dict[str, dict[str, float]]


class StatusUpdate(ProtocolValue, frozen=True, kw_only=True, tag="status_update"):
    """A status that has changed.

    Attributes:
        id: The object's name.
        status: The new status.
        at_ms: Time of the change, ms since the epoch.
        error: The problem; "" if there is none.
        hints: Remedies.
        namespaced: Errors by component: decode, upsert, kafka, internal.
    """

    id: str
    status: Status
    at_ms: int
    error: str = ""
    hints: tuple[str, ...] = ()
    namespaced: dict[str, str] = msgspec.field(default_factory=dict)


StorageResponse: TypeAlias = (
    FrontierUpper | DroppedId | StagedBatches | StatisticsUpdates | StatusUpdate
)

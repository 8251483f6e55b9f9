"""The storage protocol: commands from a controller, responses to it.

The stages are those of `compute`; there is no creation stage. Times as there.

External commands change what is known about objects, nothing else. What runs is changed by the
lane only (`shardline.app.lane`).
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from shardline.app.protocol.compute import (
    AllowCompaction,
    AllowWrites,
    Hello,
    InitializationComplete,
    UpdateConfiguration,
)
from shardline.app.protocol.objects import SinkDescription, SourceDescription, Time, Value

__all__ = [
    "CancelOneshotIngestion",
    "DroppedId",
    "FrontierUpper",
    "RunIngestion",
    "RunOneshotIngestion",
    "RunSink",
    "StagedBatches",
    "StatisticsUpdates",
    "Status",
    "StatusUpdate",
    "StorageCommand",
    "StorageResponse",
]

# --- commands --------------------------------------------------------------------------------


class RunIngestion(Value, frozen=True, tag="run_ingestion"):
    """Create a source, or change one: the same name again with another description.

    Attributes:
        ingestion: What.
    """

    ingestion: SourceDescription

    @property
    def id(self) -> str:
        """The source's name."""
        return self.ingestion.name


class RunSink(Value, frozen=True, kw_only=True, tag="run_sink"):
    """Create a sink, or change one.

    Attributes:
        sink: What.
        as_of: Where it begins if it has not begun yet.
    """

    sink: SinkDescription
    as_of: Time

    @property
    def id(self) -> str:
        """The sink's name."""
        return self.sink.name


class RunOneshotIngestion(Value, frozen=True, kw_only=True, tag="run_oneshot_ingestion"):
    """Stage what a batch read gives, for one append that the controller decides about.

    Attributes:
        uuid: Names it.
        into: The source or table whose columns the rows have.
        format: As `spark.read.format` takes it.
        options: Of the format.
    """

    uuid: str
    into: str
    format: str
    options: dict[str, str] = msgspec.field(default_factory=dict)


class CancelOneshotIngestion(Value, frozen=True, tag="cancel_oneshot_ingestion"):
    """It is not needed any more, or its end has been told; nothing comes about it any more.

    Controllers send it after each `StagedBatches` too: it takes the ingestion out of the history.
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

Status: TypeAlias = Literal[
    "created", "starting", "running", "stalled", "frozen", "paused", "ceased", "dropped"
]


class FrontierUpper(Value, frozen=True, tag="frontier_upper"):
    """The upper of a source's shard, or how far a sink's target is; never goes back."""

    id: str
    upper: Time | None


class DroppedId(Value, frozen=True, tag="dropped_id"):
    """Nothing more comes about this object."""

    id: str


class StagedBatches(Value, frozen=True, kw_only=True, tag="staged_batches"):
    """The end of a oneshot ingestion.

    Attributes:
        uuid: Its name.
        rows: How many were appended.
        error: Why not; "" if they were.
    """

    uuid: str
    rows: int = 0
    error: str = ""


class StatisticsUpdates(Value, frozen=True, tag="statistics_updates"):
    """Statistics by object and name; what is not known is left out."""

    sources: dict[str, dict[str, float]]
    sinks: dict[str, dict[str, float]]


class StatusUpdate(Value, frozen=True, kw_only=True, tag="status_update"):
    """A status that has changed.

    Attributes:
        id: The object's.
        status: What it is now.
        at_ms: When it changed, ms since the epoch.
        error: What is wrong; "" if nothing is.
        hints: What to do about it.
        namespaced: Errors by where they come from: decode, upsert, kafka, internal.
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

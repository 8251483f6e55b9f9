"""The storage controller: which sources and sinks there should be, and what is heard of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from typing_extensions import override

from shardline.app.controller.controller import Controller
from shardline.app.protocol.compute import AllowCompaction
from shardline.app.protocol.objects import SinkDescription, SourceDescription
from shardline.app.protocol.storage import (
    DroppedId,
    FrontierUpper,
    RunIngestion,
    RunSink,
    StagedBatches,
    StatisticsUpdates,
    StatusUpdate,
    StorageCommand,
    StorageResponse,
)
from shardline.app.transport.client import Client
from shardline.datasource.clock import Clock

__all__ = ["StorageController"]


class StorageController(Controller[StorageCommand, StorageResponse]):
    """Says what should be there, over one connection at a time.

    Attributes:
        statuses: The newest status of each object.
        uppers: How far each object is.
    """

    def __init__(
        self,
        connect: Callable[[], Client[StorageCommand, StorageResponse]],
        clock: Clock,
        *,
        as_of: Callable[[SinkDescription], int],
        writes: bool = True,
        vacant: Callable[[], bool] | None = None,
    ) -> None:
        """A controller of nothing yet.

        Args:
            connect: As of `Link`.
            clock: Of the process.
            as_of: Where a sink begins that has not begun yet.
            writes: Whether to allow writes at once; otherwise with `allow_writes`.
            vacant: As of `Link`.
        """
        self.statuses: dict[str, StatusUpdate] = {}
        self.uppers: dict[str, int | None] = {}
        self._wanted: dict[str, RunIngestion | RunSink] = {}
        self._as_of = as_of
        super().__init__(connect, clock, "storage", writes=writes, vacant=vacant)

    def wanted(self) -> Mapping[str, SourceDescription | SinkDescription]:
        """What should be there, by name."""
        with self._link.lock:
            return {name: _description(command) for name, command in self._wanted.items()}

    def run(self, description: SourceDescription | SinkDescription) -> None:
        """Create an object, or change it; one that is the same already stays as it is."""
        with self._link.lock:
            known = self._wanted.get(description.name)
            if known is not None and _description(known) == description:
                return
            command = self._command(description)
            self._wanted[description.name] = command
            self._link.send(command)

    def drop(self, names: Iterable[str]) -> None:
        """Drop objects; those that are not there are left out."""
        with self._link.lock:
            for name in names:
                if self._wanted.pop(name, None) is not None:
                    self._link.send(AllowCompaction(name, None))

    def _command(self, description: SourceDescription | SinkDescription) -> RunIngestion | RunSink:
        match description:
            case SourceDescription():
                return RunIngestion(description)
            case SinkDescription():
                return RunSink(sink=description, as_of=self._as_of(description))

    @override
    def _saying(self) -> tuple[Iterable[StorageCommand], Iterable[StorageCommand]]:
        return (), self._wanted.values()

    @override
    def _on_response(self, response: StorageResponse) -> None:
        match response:
            case StatusUpdate():
                self.statuses[response.id] = response
            case FrontierUpper(name, upper):
                self.uppers[name] = upper
            case DroppedId(name):
                self.uppers.pop(name, None)
            case StagedBatches() | StatisticsUpdates():
                # The runtime shows statistics itself; oneshot ingestions are not asked for here.
                pass


def _description(command: RunIngestion | RunSink) -> SourceDescription | SinkDescription:
    match command:
        case RunIngestion(ingestion):
            return ingestion
        case RunSink():
            return command.sink

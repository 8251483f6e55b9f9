"""The storage controller holds the desired sources and sinks, and their last known statuses.

A source chooses its own times, so nothing is held for its start. A sink's as_of is chosen once,
when it is created; after a restart the sink goes on from its own progress, not from there.
"""

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
from shardline.datasource.errors import ShardError

__all__ = ["StorageController"]


class StorageController(Controller[StorageCommand, StorageResponse]):
    """Sends the desired sources and sinks, over one connection at a time.

    Attributes:
        statuses: The newest status of each object; none of one that was dropped.
        uppers: The newest upper of each object, likewise; None for the empty frontier.
    """

    def __init__(
        self,
        connect: Callable[[], Client[StorageCommand, StorageResponse]],
        clock: Clock,
        *,
        as_of: Callable[[SinkDescription], int],
        writes: bool = True,
        vacant: Callable[[], bool] | None = None,
        ended: Callable[[], ShardError | None] = lambda: None,
    ) -> None:
        """Make a controller without objects.

        Args:
            connect: As of `Link`.
            clock: Of the process.
            as_of: Chooses the time at which a new sink begins.
            writes: Allow writes at once; otherwise `allow_writes` does.
            vacant: As of `Link`.
            ended: As of `Link`.
        """
        self.statuses: dict[str, StatusUpdate] = {}
        self.uppers: dict[str, int | None] = {}
        self._desired: dict[str, RunIngestion | RunSink] = {}
        self._as_of = as_of
        super().__init__(connect, clock, "storage", writes=writes, vacant=vacant, ended=ended)

    def desired(self) -> Mapping[str, SourceDescription | SinkDescription]:
        """The desired sources and sinks, by name."""
        with self._link.lock:
            return {name: _description(command) for name, command in self._desired.items()}

    def run(self, description: SourceDescription | SinkDescription) -> None:
        """Create an object, or change it; one that is the same already stays as it is."""
        with self._link.lock:
            known = self._desired.get(description.name)
            if known is not None and _description(known) == description:
                return
            command = self._command(description)
            self._desired[description.name] = command
            self._link.send(command)

    def adopt(self, sink: SinkDescription, as_of: int) -> None:
        """Name a sink that runs already, with its as_of; one that is known stays as it is.

        Its input is not looked at: it may be away, or not have begun again.
        """
        with self._link.lock:
            if sink.name not in self._desired:
                self._desired[sink.name] = RunSink(sink=sink, as_of=as_of)
                self._link.send(self._desired[sink.name])

    def drop(self, names: Iterable[str]) -> None:
        """Drop objects; those that are not there are left out."""
        with self._link.lock:
            for name in names:
                if self._desired.pop(name, None) is not None:
                    self._link.send(AllowCompaction(name, None))

    def _command(self, description: SourceDescription | SinkDescription) -> RunIngestion | RunSink:
        match description:
            case SourceDescription():
                return RunIngestion(description)
            case SinkDescription():
                return RunSink(sink=description, as_of=self._as_of(description))

    @override
    def _desired_commands(self) -> tuple[Iterable[StorageCommand], Iterable[StorageCommand]]:
        return (), self._desired.values()

    @override
    def _on_response(self, response: StorageResponse) -> None:
        match response:
            case StatusUpdate():
                self.statuses[response.id] = response
            case FrontierUpper(name, upper):
                self.uppers[name] = upper
            case DroppedId(name):
                # The last response about it. Kept, they would grow with every object that ever was.
                self.uppers.pop(name, None)
                self.statuses.pop(name, None)
            case StagedBatches() | StatisticsUpdates():
                # The runtime shows statistics itself; oneshot ingestions are not asked for here.
                pass


def _description(command: RunIngestion | RunSink) -> SourceDescription | SinkDescription:
    match command:
        case RunIngestion(ingestion):
            return ingestion
        case RunSink():
            return command.sink

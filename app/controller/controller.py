"""The controller base class holds what both controllers share: a link, settings, and writing.

Invariants:
    A connection begins with the commands that come before all objects, then settings, then the
    objects, then `InitializationComplete`; `AllowWrites` comes last.
    Settings are sent only by a controller that allows writes: the runtime records them in the
    lane's order, which a follower cannot do.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeAlias, TypeVar

from shardline.app.controller.link import Link
from shardline.app.protocol.compute import AllowWrites, InitializationComplete, UpdateConfiguration
from shardline.app.transport.client import Client
from shardline.datasource.clock import Clock
from shardline.datasource.errors import ShardError

__all__ = ["Controller"]

K = TypeVar("K")
S = TypeVar("S")

_Common: TypeAlias = UpdateConfiguration | InitializationComplete | AllowWrites


class Controller(ABC, Generic[K, S]):
    """Sends the desired objects of one kind, over one connection at a time."""

    def __init__(
        self,
        connect: Callable[[], Client[K | _Common, S]],
        clock: Clock,
        name: str,
        *,
        writes: bool,
        vacant: Callable[[], bool] | None,
        ended: Callable[[], ShardError | None],
    ) -> None:
        """Make a controller without objects; arguments as of `Link`.

        Args:
            writes: Allow writes at once; otherwise `allow_writes` does.
        """
        self._writes = writes
        self._settings: dict[str, str] = {}
        self._link: Link[K | _Common, S] = Link(
            connect,
            self._opening,
            self._on_response,
            clock,
            name,
            vacant=vacant,
            ended=ended,
            on_unanswered=self._on_unanswered,
        )

    def start(self) -> None:
        """Connect."""
        self._link.start()

    def stop(self) -> None:
        """Disconnect; everything runs on."""
        self._link.stop()

    def allow_writes(self) -> None:
        """Let all objects write, from here on and for ever; there is no way back."""
        with self._link.lock:
            if not self._writes:
                # `AllowWrites` first: it makes a follower the holder, and only a holder can record
                # settings.
                self._writes = True
                self._link.send(AllowWrites())
                for command in self._settings_commands():
                    self._link.send(command)

    def configure(self, settings: Mapping[str, str]) -> None:
        """Change settings of running objects; kept until writes are allowed."""
        with self._link.lock:
            self._settings |= settings
            if self._writes:
                self._link.send(UpdateConfiguration(dict(settings)))

    def check_in_charge(self) -> None:
        """As of `Link`."""
        self._link.check_in_charge()

    def _opening(self) -> list[K | _Common]:
        """All commands that a connection begins with."""
        before, objects = self._desired_commands()
        commands: list[K | _Common] = [*before]
        commands += self._settings_commands() if self._writes else ()
        commands += objects
        commands.append(InitializationComplete())
        return [*commands, AllowWrites()] if self._writes else commands

    def _settings_commands(self) -> list[UpdateConfiguration]:
        """The command with all settings, if there are any."""
        return [UpdateConfiguration(dict(self._settings))] if self._settings else []

    @abstractmethod
    def _desired_commands(self) -> tuple[Iterable[K], Iterable[K]]:
        """The commands before all objects, and those of the objects; under the link's lock."""

    @abstractmethod
    def _on_response(self, response: S) -> None:
        """Take a response; in the link's thread, so it must not block."""

    def _on_unanswered(self, error: ShardError) -> None:
        """Release whoever waits for responses: none will come. In the link's thread."""

"""What both controllers have in common: a link, whether anything may write, and settings.

Invariants:
    A connection begins with what there is before all objects, then settings, then the objects; what
    may write is told so last. Settings are said to what may write only: they are part of the order
    of commands then, and no other runtime says other ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import Generic, TypeAlias, TypeVar

from shardline.app.controller.link import Link
from shardline.app.protocol.compute import AllowWrites, InitializationComplete, UpdateConfiguration
from shardline.app.transport.client import Client
from shardline.datasource.clock import Clock

__all__ = ["Controller"]

K = TypeVar("K")
S = TypeVar("S")

_Common: TypeAlias = UpdateConfiguration | InitializationComplete | AllowWrites


class Controller(ABC, Generic[K, S]):
    """Says what should be there, over one connection at a time."""

    def __init__(
        self,
        connect: Callable[[], Client[K | _Common, S]],
        clock: Clock,
        name: str,
        *,
        writes: bool,
        vacant: Callable[[], bool] | None,
    ) -> None:
        """A controller of nothing yet; arguments as of `Link`.

        Args:
            writes: Whether to allow writes at once; otherwise with `allow_writes`.
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
            on_replaced=self._on_replaced,
        )

    def start(self) -> None:
        """Connect."""
        self._link.start()

    def stop(self) -> None:
        """Disconnect; everything runs on."""
        self._link.stop()

    def allow_writes(self) -> None:
        """Let everything write, from here on and for ever."""
        with self._link.lock:
            if not self._writes:
                self._writes = True
                self._link.send(AllowWrites())
                for command in self._configuring():
                    self._link.send(command)

    def configure(self, settings: Mapping[str, str]) -> None:
        """Change settings of all that runs; once it may write, as they become part of the order."""
        with self._link.lock:
            self._settings |= settings
            if self._writes:
                self._link.send(UpdateConfiguration(dict(settings)))

    def check_in_charge(self) -> None:
        """As of `Link`."""
        self._link.check_in_charge()

    def _opening(self) -> list[K | _Common]:
        """All that a connection begins with."""
        before, objects = self._saying()
        commands: list[K | _Common] = [*before]
        commands += self._configuring() if self._writes else ()
        commands += objects
        commands.append(InitializationComplete())
        return [*commands, AllowWrites()] if self._writes else commands

    def _configuring(self) -> list[UpdateConfiguration]:
        """The command that says all settings; none where there are none."""
        return [UpdateConfiguration(dict(self._settings))] if self._settings else []

    @abstractmethod
    def _saying(self) -> tuple[Iterable[K], Iterable[K]]:
        """What must be said before all objects, and of each of them; under the link's lock."""

    @abstractmethod
    def _on_response(self, response: S) -> None:
        """Take a response; in the link's thread, so that it must not block."""

    def _on_replaced(self) -> None:
        """Nothing more is heard; in the link's thread."""

"""Discovery lets other commands find the running application: by a file that only its user reads.

    <data>/application.json      {"url": "http://127.0.0.1:4200", "token": "…", "pid": 4711, …}
    <data>/following.json        the same of one that follows another runtime
    <data>/port                  4200

    with Announcement(folder, whereabouts, follows): …

A file is written whole or not at all, and removed when the application ends. A file that a killed
application has left leads to an address where nothing answers, or where another application has got
the same port since: requests name the location that they mean, and that one refuses them. The
client reports both alike. Another program may have the port as well: before a command sends the
token there, it looks once whether an answer names the location.

Two applications may share a folder: one that follows the other, and one of another location.
Commands reach the one that follows only where there is no other. Of two that do not follow they
reach the one that was started last; when it is gone the other writes its file again, since the
commands would otherwise take it for ended, and change its location behind its back. One that
follows writes its own over that of the holder that it has pushed aside, and keeps the one that it
has until then; it removes that of a holder that was killed.

The port stays: an application that may choose its port takes that of the one before it, so that a
page that was open then finds it again.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self
from urllib.parse import urlsplit

import msgspec

from shardline.app.server.start_mark import starting_process
from shardline.app.transport.token_header import token_header
from shardline.datasource.background import PeriodicThread
from shardline.datasource.clock import Clock
from shardline.datasource.errors import InvalidUsage
from shardline.installation import PROGRAM

__all__ = [
    "LOCATION_HEADER",
    "Announcement",
    "ApplicationAddress",
    "announce",
    "find",
    "find_holder",
    "last_port",
    "request_headers",
    "withdraw",
]

LOCATION_HEADER: Final = "shardline-location"
"""Header of a request with the identity of the location that it means; without it any is meant. Of
an answer: the location of the application."""

_FILE: Final = "application.json"
_FOLLOWING: Final = "following.json"
_PORT: Final = "port"

_LOOK_MS: Final = 5_000.0
"""Pause between two looks at whether the file is there still: a read of a small file."""

_CONNECT_S: Final = 1.0
"""Time in which the application of another file has to accept a connection."""


class ApplicationAddress(msgspec.Struct, frozen=True, kw_only=True):
    """The address of a running application.

    Attributes:
        url: URL of its HTTP server, without a slash at the end.
        token: Token of requests that change something.
        pid: Its process id, for people.
        location: Identity of its location; "" if it is not known.
    """

    url: str
    token: str
    pid: int
    location: str = ""


def request_headers(where: ApplicationAddress) -> dict[str, str]:
    """The headers of a request that only this application is to serve."""
    return token_header(where.token) | ({LOCATION_HEADER: where.location} if where.location else {})


class Announcement:
    """The file of an application, which is there for as long as it runs. A context manager."""

    def __init__(
        self,
        folder: Path,
        whereabouts: ApplicationAddress,
        follows: Callable[[], bool],
        clock: Clock,
    ) -> None:
        """Announce an application from `__enter__` on.

        Args:
            folder: In which commands look for it.
            whereabouts: Of the application.
            follows: True while it does not hold its location: it follows another runtime, or has
                lost the location to one.
            clock: Says when to look again.
        """
        self._folder, self._whereabouts, self._follows = folder, whereabouts, follows
        self._has_followed = False
        self._thread = PeriodicThread("announcement", self._step, clock, first_ms=_LOOK_MS)

    def __enter__(self) -> Self:
        """Write the file, and look after it."""
        self._has_followed = self._follows()
        announce(self._folder, self._whereabouts, follows=self._has_followed)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Remove it, unless it is of another application."""
        self._thread.stop()
        withdraw(self._folder, self._whereabouts)

    def renew(self) -> None:
        """Write the file again if it is gone, or of an application that does not answer.

        One that has become the holder since has another file than before, in the place of the one
        that it has pushed aside.
        """
        follows, mine = self._follows(), self._whereabouts
        first, following = self._folder / _FILE, self._folder / _FOLLOWING
        # One that has lost its location keeps the first until another one has taken that.
        if _read(first) != mine:
            there = _read(following if follows else first)
            # A former holder that was pushed aside may hang, which accepts connections, too. Once
            # only: two that do not know yet which one was pushed aside would write it in turn.
            replaces = (
                there is not None
                and not follows
                and there.location == mine.location
                and self._has_followed  # not by the file: several that follow share one
            )
            if there is None or replaces or (there != mine and self._is_silent(there)):
                announce(self._folder, mine, follows=follows)
                self._has_followed = follows
        if follows:
            self._remove_silent_holder()
        # Not before it has the first: commands would take it for ended.
        if _read(first) == mine:
            _remove(following, mine)

    def _remove_silent_holder(self) -> None:
        """Remove the file of a holder that does not answer: it hides the one that follows.

        A holder that was only slow to answer writes it again.
        """
        holder = _read(self._folder / _FILE)
        if holder is not None and holder != self._whereabouts and self._is_silent(holder):
            _remove(self._folder / _FILE, holder)

    def _is_silent(self, there: ApplicationAddress) -> bool:
        """True if the application of a file does not answer.

        One whose address is ours by now does not: what answers there is ourselves.
        """
        mine = self._whereabouts
        return (there.url == mine.url and there.token != mine.token) or not _answers(there)

    def _step(self) -> float:
        self.renew()
        return _LOOK_MS


def announce(folder: Path, whereabouts: ApplicationAddress, *, follows: bool = False) -> None:
    """Write the files; only this user may read the first, because of the token."""
    name = _name_of(follows=follows)
    # Created with its mode and then renamed: written in place it would be readable by others, or
    # half written, for a moment.
    fresh = folder / f"{name}.{os.getpid()}"
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(whereabouts))
    fresh.replace(folder / name)
    # Where both are, the port is that of the one that is followed.
    if not follows or not (folder / _FILE).exists():
        port = urlsplit(whereabouts.url).port
        (folder / _PORT).write_text(f"{port}\n", encoding="ascii")


def last_port(folder: Path) -> int:
    """Return the port of the folder's last application; 0 if it is not known."""
    try:
        port = int((folder / _PORT).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0
    return port if 0 < port < 1 << 16 else 0


def withdraw(folder: Path, whereabouts: ApplicationAddress) -> None:
    """Remove the file, unless another application has written its own since."""
    for name in (_FILE, _FOLLOWING):
        _remove(folder / name, whereabouts)


def find(folder: Path) -> ApplicationAddress:
    """Return the address of the folder's application; it may have been killed since.

    One that follows another runtime is found where there is no other.

    Raises:
        InvalidUsage: `NOT_RUNNING`: the folder has no such file, or one that was killed has left
            it, and another one is starting. `ADDRESS_UNREADABLE`: it has one
            that this user may not read, or that is no address.
    """
    found = find_holder(folder) or _read(folder / _FOLLOWING)
    starting = starting_process(folder)
    if starting is not None and (found is None or not _answers(found)):
        raise InvalidUsage(
            f"the application of '{folder}' is starting (process {starting}), and does not answer "
            "yet",
            code="NOT_RUNNING",
            hint="ask again in a moment",
        )
    if found is not None:
        return found
    for name in (_FILE, _FOLLOWING):
        _refuse_unreadable(folder / name)
    raise InvalidUsage(
        f"no application runs in '{folder}'",
        code="NOT_RUNNING",
        hint=f"start one with {PROGRAM} run, or name its folder with --data",
    )


def find_holder(folder: Path) -> ApplicationAddress | None:
    """The address of the folder's application that follows none; None if the folder has none."""
    return _read(folder / _FILE)


def _name_of(*, follows: bool) -> str:
    return _FOLLOWING if follows else _FILE


def _remove(file: Path, whereabouts: ApplicationAddress) -> None:
    if _read(file) == whereabouts:
        file.unlink(missing_ok=True)


def _answers(where: ApplicationAddress) -> bool:
    """True if something accepts connections there."""
    parts = urlsplit(where.url)
    try:
        socket.create_connection((parts.hostname, parts.port or 0), _CONNECT_S).close()
    except OSError:
        return False
    return True


def _read(file: Path) -> ApplicationAddress | None:
    try:
        return _decoded(file)
    except (OSError, msgspec.DecodeError):
        return None


def _decoded(file: Path) -> ApplicationAddress:
    return msgspec.json.decode(file.read_bytes(), type=ApplicationAddress)


def _refuse_unreadable(file: Path) -> None:
    """Raise `ADDRESS_UNREADABLE` if the file is there and cannot be read as an address."""
    try:
        _decoded(file)
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidUsage(
            f"'{file}', by which commands find the application, cannot be read: {error}",
            code="ADDRESS_UNREADABLE",
            hint="run the command as the user that runs the application: its token is in the file"
            if isinstance(error, PermissionError)
            else "an application that runs writes it anew within seconds: run the command again; "
            f"if none runs, start one with {PROGRAM} run",
        ) from error

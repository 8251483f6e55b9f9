"""How the other commands find the running application: a file that only its user can read.

    <data>/application.json      {"url": "http://127.0.0.1:4200", "token": "…", "pid": 4711, …}

The file is written whole or not at all, and removed when the application ends. One that a killed
application left behind leads nowhere, which whoever tries it is told.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from shardline.datasource.errors import InvalidUsage
from shardline.installation import PROGRAM

__all__ = ["Whereabouts", "announce", "find", "withdraw"]

_FILE = "application.json"


class Whereabouts(msgspec.Struct, frozen=True, kw_only=True):
    """Where an application answers.

    Attributes:
        url: Of its HTTP server, without a slash at the end.
        token: What it wants to see with every request that changes something.
        pid: Its process, for people.
        location: Identity of the location that it runs; "" if it is not said.
    """

    url: str
    token: str
    pid: int
    location: str = ""


def announce(folder: Path, whereabouts: Whereabouts) -> None:
    """Write the file; only this user may read it, because of the token."""
    fresh = folder / f"{_FILE}.{os.getpid()}"
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(whereabouts))
    fresh.replace(folder / _FILE)


def withdraw(folder: Path, whereabouts: Whereabouts) -> None:
    """Remove the file, unless another application has written its own since."""
    if _read(folder) == whereabouts:
        (folder / _FILE).unlink(missing_ok=True)


def find(folder: Path) -> Whereabouts:
    """Where the application of this folder answers, if it still runs.

    Raises:
        InvalidUsage: No application runs here, as far as the folder knows.
    """
    found = _read(folder)
    if found is None:
        raise InvalidUsage(
            f"no application runs in '{folder}'",
            code="NOT_RUNNING",
            hint=f"start one with {PROGRAM} run, or name its folder with --data",
        )
    return found


def _read(folder: Path) -> Whereabouts | None:
    try:
        return msgspec.json.decode((folder / _FILE).read_bytes(), type=Whereabouts)
    except (OSError, msgspec.DecodeError):
        return None

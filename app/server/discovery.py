"""Discovery lets other commands find the running application: by a file that only its user reads.

    <data>/application.json      {"url": "http://127.0.0.1:4200", "token": "…", "pid": 4711, …}
    <data>/port                  4200

The first file is written whole or not at all, and removed when the application ends. A file that a
killed application has left leads to an address where nothing answers, or where another application
has got the same port since: requests name the location that they mean, and that one refuses them.
The client reports both alike.

The second one stays: an application that may choose its port takes that of the one before it, so
that a page that was open then finds it again.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from shardline.app.transport.token_header import token_header
from shardline.datasource.errors import InvalidUsage
from shardline.installation import PROGRAM

__all__ = [
    "LOCATION_HEADER",
    "ApplicationAddress",
    "announce",
    "find",
    "last_port",
    "request_headers",
    "withdraw",
]

LOCATION_HEADER: Final = "shardline-location"
"""Header of a request with the identity of the location that it means; without it any is meant."""

_FILE = "application.json"
_PORT = "port"


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


def announce(folder: Path, whereabouts: ApplicationAddress) -> None:
    """Write the files; only this user may read the first, because of the token."""
    # Created with its mode and then renamed: written in place it would be readable by others, or
    # half written, for a moment.
    fresh = folder / f"{_FILE}.{os.getpid()}"
    fresh.unlink(missing_ok=True)
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(whereabouts))
    fresh.replace(folder / _FILE)
    (folder / _PORT).write_text(f"{urlsplit(whereabouts.url).port}\n", encoding="ascii")


def last_port(folder: Path) -> int:
    """Return the port of the folder's last application; 0 if it is not known."""
    try:
        port = int((folder / _PORT).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return 0
    return port if 0 < port < 1 << 16 else 0


def withdraw(folder: Path, whereabouts: ApplicationAddress) -> None:
    """Remove the file, unless another application has written its own since."""
    if _read(folder) == whereabouts:
        (folder / _FILE).unlink(missing_ok=True)


def find(folder: Path) -> ApplicationAddress:
    """Return the address of the folder's application; it may have been killed since.

    Raises:
        InvalidUsage: `NOT_RUNNING`: the folder has no such file.
    """
    found = _read(folder)
    if found is None:
        raise InvalidUsage(
            f"no application runs in '{folder}'",
            code="NOT_RUNNING",
            hint=f"start one with {PROGRAM} run, or name its folder with --data",
        )
    return found


def _read(folder: Path) -> ApplicationAddress | None:
    try:
        return msgspec.json.decode((folder / _FILE).read_bytes(), type=ApplicationAddress)
    except (OSError, msgspec.DecodeError):
        return None

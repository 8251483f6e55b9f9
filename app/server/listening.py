"""Listening reserves the address of an application before the application takes its location.

To take a location over ends what runs there. A start that cannot serve must not do that: it binds
its address first.

    reserve_address(settings, folder, takes_over=location)  before the location is taken
    wait_for_address(settings, clock)                       after it, where the first had none

The runtime that is pushed aside may serve at this address itself. It closes its socket once it has
noticed that it lost the location, so the start takes the location without an address and waits for
it then. If the address does not become free, the start listens at any other port: the location is
its own by then, and to end would leave nothing running.
"""

from __future__ import annotations

import logging
import socket
import threading
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from shardline.app.server.discovery import find_holder, last_port
from shardline.app.server.http_server import listen
from shardline.app.settings.config import RuntimeSettings
from shardline.datasource.clock import Clock
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.waiting import poll_until

__all__ = ["reserve_address", "wait_for_address"]

_log = logging.getLogger(__name__)

_LOOK_MS: Final = 100
"""Longest pause between two tries to get an address that another process is about to let go."""

_PATIENCE_MS: Final = 60_000
"""Longest wait of a start for it: a few leases, as the other process notices by its heartbeat."""


def reserve_address(
    settings: RuntimeSettings, folder: Path, *, takes_over: str = ""
) -> socket.socket | None:
    """Listen where the settings say.

    Args:
        settings: Name the address.
        folder: Of the application: where the last one has listened, and where one that runs does.
        takes_over: Identity of the location whose holder is going to be pushed aside; "" if none
            is.

    Returns:
        The socket; None if that holder has announced the address.

    Raises:
        InvalidUsage: `ADDRESS_TAKEN`: it cannot be bound.
    """
    where = settings.listen
    try:
        return listen(where.host, where.port, preferred=last_port(folder))
    except InvalidUsage:
        # Nobody else is going to let it go: one of another location, or one that only follows.
        holder = find_holder(folder) if takes_over else None
        if holder is None or holder.location != takes_over:
            raise
        if urlsplit(holder.url).port != where.port:
            raise
        return None


def wait_for_address(
    settings: RuntimeSettings, clock: Clock, patience_ms: float = _PATIENCE_MS
) -> socket.socket:
    """Listen where the settings say once that is free, or elsewhere if that takes too long.

    Raises:
        InvalidUsage: `ADDRESS_TAKEN`: the host has no port that is free.
    """
    where = settings.listen

    def look() -> socket.socket | None:
        try:
            return listen(where.host, where.port)
        except InvalidUsage:
            return None

    never = threading.Event()
    found = poll_until(look, clock, never, poll_ms=_LOOK_MS, timeout_ms=patience_ms)
    if found is None:
        context = {"address": where}
        _log.warning("another port is served than that of the settings", extra={"context": context})
        found = listen(where.host)
    return found

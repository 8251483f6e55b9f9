"""The clients that a process keeps, one for each location and its options.

    client = shared_client(url, options, create=False, settings=settings)

Spark's helper processes are reused from micro-batch to micro-batch: a kept client finds a shard's
state with one conditional read instead of a cold one.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Final

from shardline.datasource.client import ShardClient
from shardline.datasource.settings import ShardSettings

__all__ = ["shared_client"]

_CLIENTS_MAX: Final = 64
"""Clients that are kept; the one that was asked for longest ago goes, as soon as nobody uses it.
A store's options may change with each token of its credentials."""


@dataclass(slots=True)
class _Place:
    """A location with its options.

    Attributes:
        lock: Held while the client is opened: a store that does not answer delays no other place.
        client: None until it is open.
    """

    lock: threading.Lock = field(default_factory=threading.Lock)
    client: ShardClient | None = None


_places: OrderedDict[Hashable, _Place] = OrderedDict()
_lock = threading.Lock()


def shared_client(
    url: str,
    options: Mapping[str, str],
    *,
    create: bool,
    settings: ShardSettings,
) -> ShardClient:
    """This process's client of a location, opened at the first use and kept."""
    # With the process id: a forked child must not use its parent's locks and connections.
    key = (os.getpid(), url, tuple(sorted(options.items())), settings)
    with _lock:
        place = _places.setdefault(key, _Place())
        _places.move_to_end(key)
        if len(_places) > _CLIENTS_MAX:
            _places.popitem(last=False)
    with place.lock:
        if place.client is None:
            place.client = ShardClient.open(url, options, create=create, settings=settings)
        return place.client

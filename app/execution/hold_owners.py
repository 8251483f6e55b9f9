"""Finds the owners of holds by the names of holds and the purposes of leases that objects take.

    find_hold_owner("view:delays:3:0a1b2c3d")     HoldOwner("delays", 3, "0a1b2c3d")
    find_hold_owner("sink:out")                   HoldOwner("out")
    find_hold_owner("source:in:l5f…")             HoldOwner("in", location="l5f…")
    find_hold_owner("stream-5f…")                 None: of somebody else's query
    find_lease_owner("index fast")                "fast"

A hold that nobody gives up keeps history for ever, so a person must be able to say whose it is; and
one that a running object needs must not be taken away. A shard's state has names only. They are
made in `shardline.app.compute.holds`, and in `sink_holds` and `source_holds` of
`shardline.app.storage`.

Invariants:
    Any text is taken: names of holds are chosen by whoever takes them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

__all__ = ["HoldOwner", "find_hold_owner", "find_lease_owner"]

# The place by its length: a hash may have digits only, and look like the number of a dataflow.
_DATAFLOW: Final = re.compile(r"view:(?P<id>.+):(?P<dataflow>\d+):(?P<place>[0-9a-f]{8})(:begin)?")
_START: Final = re.compile(r"view:(?P<id>.+):0:begin")
_SINK: Final = re.compile(r"sink:(?P<id>.+)")
_SOURCE: Final = re.compile(r"source:(?P<id>.+):(?P<location>l[0-9a-f]{32})")
_LEASE: Final = re.compile(r"(?:index|subscription) (?P<id>.+)")


@dataclass(frozen=True, slots=True)
class HoldOwner:
    """The object whose name a hold has.

    Attributes:
        id: The object's name.
        dataflow: Number of the dataflow that the hold is for; 0 if the coordinator has taken it for
            an object that has not begun; None for a sink or a source, which have one hold for all
            definitions.
        place: Hash of machine and checkpoints of the runtime that has taken it; "" if the name does
            not tell.
        location: Id of the location whose source has taken it, which may be another one than that
            of the shard; "" for other objects.
    """

    id: str
    dataflow: int | None = None
    place: str = ""
    location: str = ""


def find_hold_owner(hold: str) -> HoldOwner | None:
    """The owner of a hold by its name; None if no object takes holds of such names."""
    found = _DATAFLOW.fullmatch(hold)
    if found is not None:
        return HoldOwner(found["id"], int(found["dataflow"]), found["place"])
    start = _START.fullmatch(hold)
    if start is not None:
        return HoldOwner(start["id"], 0)
    source = _SOURCE.fullmatch(hold)
    if source is not None:
        return HoldOwner(source["id"], location=source["location"])
    sink = _SINK.fullmatch(hold)
    return None if sink is None else HoldOwner(sink["id"])


def find_lease_owner(purpose: str) -> str | None:
    """Name of the index or subscription that has taken a lease with this purpose; else None."""
    found = _LEASE.fullmatch(purpose)
    return None if found is None else found["id"]

"""What running objects tell of themselves: small values, put into a queue and forgotten.

    report(Progress("delays", epoch=3, write=1700000001000))

`Report` never blocks and never raises, so that it can be called from a micro-batch. What arrives
from an earlier incarnation of an object than the one that runs is thrown away by whoever reads the
queue: `epoch` says which one it is from.

Missing is not zero: a field that is UNSET was not observed. A time of None is the empty frontier.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import msgspec

from shardline.app.protocol.compute import PeekResponse, SubscribeDropped, SubscribeResponse
from shardline.app.protocol.storage import Status

__all__ = [
    "Ended",
    "Failed",
    "Health",
    "Hydrated",
    "Measured",
    "Observation",
    "Progress",
    "Report",
    "Started",
]


class Started(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A streaming query of an object runs.

    Attributes:
        id: The object's name; so in all of these.
        epoch: Its incarnation; so in all of these.
        query: Id of the streaming query, stable across restarts; "" if it has none.
        run: Id of this run of it.
    """

    id: str
    epoch: int
    query: str = ""
    run: str = ""


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """How far an object is, after a commit: see `Frontiers` of the compute protocol.

    Attributes:
        inputs: By input: what of it has been read.
    """

    id: str
    epoch: int
    write: int | msgspec.UnsetType | None = msgspec.UNSET
    read: int | msgspec.UnsetType | None = msgspec.UNSET
    inputs: dict[str, int | None] = {}


class Hydrated(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An object has caught up with its `as_of` for the first time in this incarnation.

    Attributes:
        took_ms: Since it was started.
    """

    id: str
    epoch: int
    took_ms: int


class Health(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What one part of an object says of its state.

    Attributes:
        namespace: Which part: generator, decode, upsert, kafka, sink, compute, internal.
        status: running, stalled, frozen or ceased.
        error: What is wrong; "" if nothing is.
        hint: What to do about it.
    """

    id: str
    epoch: int
    namespace: str
    status: Status
    error: str = ""
    hint: str = ""


class Measured(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Statistics of one micro-batch: names and meanings are those of `introspection`.

    Attributes:
        added: Counters: to be added to what there is.
        now: Gauges: replace what there is.
    """

    id: str
    epoch: int
    added: dict[str, float] = {}
    now: dict[str, float | None] = {}


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What ran for an object has ended by an error: it is to be suspended and started again.

    Attributes:
        error: In a sentence.
        hint: What to do about it.
        fenced: Whether another runtime has taken over: then nothing of this one may go on.
    """

    id: str
    epoch: int
    error: str
    hint: str = ""
    fenced: bool = False


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """What ran for an object has come to its end: there is nothing more to do, ever."""

    id: str
    epoch: int


Observation: TypeAlias = (
    Started
    | Progress
    | Hydrated
    | Health
    | Measured
    | Failed
    | Ended
    | PeekResponse
    | SubscribeResponse
    | SubscribeDropped
)

Report: TypeAlias = Callable[[Observation], None]
"""Takes an observation; returns at once, in any thread, and never raises."""

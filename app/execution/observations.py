"""Observations are the small values by which running objects report progress, health and failure.

    host.report(Progress("delays", epoch=3, write=1700000001000))

`Report` never blocks and never raises, so that a micro-batch can call it. The reader of the queue
drops observations of an earlier incarnation than the one that runs: `epoch` tells them apart.

Missing is not zero: a field that is UNSET was not observed. A time of None is the empty frontier.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Self, TypeAlias

import msgspec

from shardline.app.protocol.compute import PeekResponse, SubscribeDropped, SubscribeResponse
from shardline.app.protocol.object_state import Status
from shardline.app.protocol.objects import Strategy

__all__ = [
    "GROUP",
    "Doubted",
    "Ended",
    "Failed",
    "GroupStepped",
    "Health",
    "Hydrated",
    "Measured",
    "Observation",
    "Progress",
    "Report",
    "Started",
    "Stepped",
]


GROUP: Final = "group:"
"""Names of groups of views, of their queries and holds begin so: no object's name has a colon.
Names of the queries of an object that is called `group` do, too."""


class Started(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A streaming query of an object runs.

    Attributes:
        id: The object's name; so in all of these.
        epoch: Its incarnation; so in all of these.
        query: Id of the streaming query, stable across restarts; "" if it has none.
        run: Id of this run of it; of a view in a group, of its part of the group's run.
        group: Name of the group of views that the query is of; "" if it is the object's own.
    """

    id: str
    epoch: int
    query: str = ""
    run: str = ""
    group: str = ""


class GroupStepped(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A step that an object has taken in a group: a micro-batch of its own, as far as it can be.

    Attributes:
        query: Id of the group's streaming query.
        run: Id of the object's part of that query's run.
        name: Name that a query of its own would have.
        number: Number of the step, from 1.
        at_ms: When the group's micro-batch began, ms since the epoch.
        took_ms: How long the object's step took.
    """

    id: str
    epoch: int
    query: str
    run: str
    name: str
    number: int
    at_ms: int
    took_ms: int


class Progress(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The frontiers of an object after a commit; see `Frontiers` of the compute protocol.

    Attributes:
        write: Upper of its output.
        read: Frontier up to which all inputs have been read.
        inputs: By input: the frontier up to which it has been read.
    """

    id: str
    epoch: int
    write: int | msgspec.UnsetType | None = msgspec.UNSET
    read: int | msgspec.UnsetType | None = msgspec.UNSET
    inputs: dict[str, int | None] = {}


class Hydrated(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An object has computed its output up to its `as_of`, for the first time in this incarnation.

    Attributes:
        took_ms: Time since its start.
    """

    id: str
    epoch: int
    took_ms: int


class Health(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The state of one component of an object.

    Attributes:
        namespace: The component: generator, decode, upsert, kafka, sink, compute, internal.
        status: running, stalled, frozen or ceased.
        error: The problem; "" if there is none.
        hint: The remedy.
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
        added: Counters: are added to the values so far.
        now: Gauges: replace the values so far.
    """

    id: str
    epoch: int
    added: dict[str, float] = {}
    now: dict[str, float | None] = {}


class Stepped(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A step of a view that Spark took, beside what it was predicted to take.

    Attributes:
        at_ms: When it was done.
        lower: The output's upper before it.
        upper: The output's upper afterwards.
        way: How it was computed.
        reason: Why it was not computed from changes; "" if it was, or if the view never is.
        rows_changed: Updates of the inputs in it, at most; None if they were not counted.
        rows_looked_up: Rows that were found by key.
        updates_out: Updates of the output.
        took_ms: What it took.
        predicted_ms_incremental: What it was predicted to take from changes; None for unknown.
        predicted_ms_recompute: The same of the query run anew.
    """

    id: str
    epoch: int
    at_ms: int
    lower: int
    upper: int | None
    way: Strategy
    reason: str = ""
    rows_changed: int | None = None
    rows_looked_up: int = 0
    updates_out: int = 0
    took_ms: float = 0
    predicted_ms_incremental: float | None = None
    predicted_ms_recompute: float | None = None


class Doubted(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A view has found that what it keeps cannot be right, and recomputes.

    Attributes:
        at_ms: When.
        finding: `audit`, `negative count`, `foreign writer` or `lost part`.
        shard: What is wrong: a state, or the view.
        detail: What was found, in a sentence.
    """

    id: str
    epoch: int
    at_ms: int
    finding: str
    shard: str
    detail: str = ""


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An incarnation has ended by an error: it is suspended and started again.

    Attributes:
        error: The error, in a sentence.
        hint: The remedy.
        fenced: True if the error is `Fenced`: if another runtime has taken over, nothing of this
            one may go on.
    """

    id: str
    epoch: int
    error: str
    hint: str = ""
    fenced: bool = False

    @classmethod
    def of_start(cls, name: str, epoch: int, sentence: str) -> Self:
        """A start has failed, of which nothing runs that could report it.

        Args:
            name: The object.
            epoch: The incarnation that was to start.
            sentence: The error with its hint, in one text.
        """
        error, _, hint = sentence.partition(" — hint: ")
        return cls(id=name, epoch=epoch, error=error, hint=hint)


class Ended(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """An incarnation has come to its end: there is nothing more to do, ever."""

    id: str
    epoch: int


Observation: TypeAlias = (
    Started
    | GroupStepped
    | Progress
    | Hydrated
    | Health
    | Measured
    | Stepped
    | Doubted
    | Failed
    | Ended
    | PeekResponse
    | SubscribeResponse
    | SubscribeDropped
)

Report: TypeAlias = Callable[[Observation], None]
"""Takes an observation; returns at once, in any thread, and never raises."""

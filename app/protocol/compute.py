"""The compute protocol: commands from a controller, responses to it.

A connection goes through three stages (Materialize's compute protocol):

    creation         `Hello`, which the connection itself takes, then `CreateInstance`
    initialization   any commands that say what should be there, then `InitializationComplete`:
                     until then nothing is done, and everything is then done as one difference
    computation      any commands; nothing is written until `AllowWrites`, which is never undone

Times are frontiers as one number: None is the empty frontier, nothing more ever.

Rules of responses: frontiers never go back; after the empty frontier nothing comes about an object;
each `Peek` has exactly one `PeekResponse`; the batches of a subscription are contiguous.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from shardline.app.protocol.objects import Dataflow, Time, Value

__all__ = [
    "AllowCompaction",
    "AllowWrites",
    "CancelPeek",
    "ComputeCommand",
    "ComputeResponse",
    "CreateDataflow",
    "CreateInstance",
    "Frontiers",
    "Hello",
    "Hydration",
    "InitializationComplete",
    "Peek",
    "PeekResponse",
    "PeekStrategy",
    "Schedule",
    "SubscribeDropped",
    "SubscribeResponse",
    "UpdateConfiguration",
]

PeekStrategy: TypeAlias = Literal["constant", "index", "shard", "standard"]
"""How a query is answered: without reading, from an index, from one shard's parts, by Spark."""

# --- commands --------------------------------------------------------------------------------


class Hello(Value, frozen=True, tag="hello"):
    """Identifies a connection; never reaches a worker."""

    nonce: str


class CreateInstance(Value, frozen=True, tag="create_instance"):
    """Settings of the whole; one that was sent before must be the same.

    A connection that says anything else is refused: this cannot be changed while objects run.

    Attributes:
        settings: By name.
    """

    settings: dict[str, str] = msgspec.field(default_factory=dict)


class InitializationComplete(Value, frozen=True, tag="initialization_complete"):
    """What should be there has been said."""


class AllowWrites(Value, frozen=True, tag="allow_writes"):
    """From here on shards may be written."""


class UpdateConfiguration(Value, frozen=True, tag="update_configuration"):
    """Settings that take effect at once, for everything; what is not named stays.

    Attributes:
        settings: By name.
    """

    settings: dict[str, str]


class CreateDataflow(Value, frozen=True, kw_only=True, tag="create_dataflow"):
    """Make a view, an index or a subscription; it starts when it is scheduled.

    What is there by the name already goes on if it is the same and can be read at `as_of`, and it
    is no subscription; otherwise it is dropped and made anew.

    Attributes:
        dataflow: What.
        as_of: The first time at which its output is right; all inputs are readable there.
    """

    dataflow: Dataflow
    as_of: Time

    @property
    def id(self) -> str:
        """The object's name."""
        return self.dataflow.name


class Schedule(Value, frozen=True, tag="schedule"):
    """Let a dataflow start."""

    id: str


class AllowCompaction(Value, frozen=True, tag="allow_compaction"):
    """Nobody reads an object at times before `frontier` any more; None: drop it.

    Of a subscription: its batches before that time were taken, which makes room for more. It never
    takes a frontier back. A peek that still reads before it may get an error; a drop cancels the
    peeks that read what is dropped. For what has been dropped it does nothing; for what was never
    there it is an error.
    """

    id: str
    frontier: Time | None


class Peek(Value, frozen=True, kw_only=True, tag="peek"):
    """Run a query once.

    Attributes:
        uuid: Names the peek.
        query: SQL over objects and `introspection` relations.
        inputs: Objects that it reads.
        as_of: At which time; before the upper of all of them at some point.
        limit_bytes: Largest result, in bytes of Arrow.
    """

    uuid: str
    query: str
    inputs: tuple[str, ...]
    as_of: Time
    limit_bytes: int


class CancelPeek(Value, frozen=True, tag="cancel_peek"):
    """The answer is not needed any more, or it has come; it may come all the same.

    Controllers send it after each answer too: it takes the peek out of the history.
    """

    uuid: str


ComputeCommand: TypeAlias = (
    Hello
    | CreateInstance
    | InitializationComplete
    | AllowWrites
    | UpdateConfiguration
    | CreateDataflow
    | Schedule
    | AllowCompaction
    | Peek
    | CancelPeek
)

# --- responses -------------------------------------------------------------------------------


class Frontiers(Value, frozen=True, kw_only=True, tag="frontiers"):
    """How far an object is. UNSET is "as before", None the empty frontier.

    Attributes:
        id: The object's.
        write: Upper of its output.
        input: What of its inputs it has read: holds on them may follow.
        output: What of the work is done; greater than `as_of` once it is hydrated.
    """

    id: str
    write: Time | msgspec.UnsetType | None = msgspec.UNSET
    input: Time | msgspec.UnsetType | None = msgspec.UNSET
    output: Time | msgspec.UnsetType | None = msgspec.UNSET


class PeekResponse(Value, frozen=True, kw_only=True, tag="peek_response"):
    """The one answer to a peek.

    Attributes:
        uuid: The peek's.
        rows: An Arrow IPC stream; None after an error or a cancellation.
        error: Why not; "" if there is none.
        cancelled: Whether it was cancelled before it was done.
    """

    uuid: str
    rows: bytes | None = None
    error: str = ""
    cancelled: bool = False


class SubscribeResponse(Value, frozen=True, kw_only=True, tag="subscribe_response"):
    """The changes of one interval, consolidated.

    Attributes:
        id: The subscription's.
        lower: First time of the interval.
        upper: First time after it; None if nothing more will come.
        updates: An Arrow IPC stream with `_ts` and `_diff`; None after an error.
        error: An error that poisons the rest; "" if there is none.
    """

    id: str
    lower: Time
    upper: Time | None
    updates: bytes | None = None
    error: str = ""


class SubscribeDropped(Value, frozen=True, tag="subscribe_dropped"):
    """A subscription ended early; `upper` is that of its last batch."""

    id: str
    upper: Time


class Hydration(Value, frozen=True, tag="hydration"):
    """Whether an object has caught up with its `as_of`; for people, nothing relies on it."""

    id: str
    hydrated: bool


ComputeResponse: TypeAlias = (
    Frontiers | PeekResponse | SubscribeResponse | SubscribeDropped | Hydration
)

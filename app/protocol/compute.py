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

from typing import TypeAlias

import msgspec

from app.protocol.objects import Dataflow

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
    "Schedule",
    "SubscribeDropped",
    "SubscribeResponse",
    "UpdateConfiguration",
]

# --- commands --------------------------------------------------------------------------------


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """Identifies a connection; never reaches a worker."""

    nonce: str


class CreateInstance(msgspec.Struct, frozen=True, tag="create_instance"):
    """Settings of the whole; one that was sent before must be the same.

    Attributes:
        settings: By name.
    """

    settings: dict[str, str] = {}


class InitializationComplete(msgspec.Struct, frozen=True, tag="initialization_complete"):
    """What should be there has been said."""


class AllowWrites(msgspec.Struct, frozen=True, tag="allow_writes"):
    """From here on shards may be written."""


class UpdateConfiguration(msgspec.Struct, frozen=True, tag="update_configuration"):
    """Settings that take effect at once, for everything; what is not named stays.

    Attributes:
        settings: By name.
    """

    settings: dict[str, str]


class CreateDataflow(msgspec.Struct, frozen=True, kw_only=True, tag="create_dataflow"):
    """Make a view, an index or a subscription; it starts when it is scheduled.

    Attributes:
        dataflow: What.
        as_of: The first time at which its output is right; all inputs are readable there.
    """

    dataflow: Dataflow
    as_of: int

    @property
    def id(self) -> str:
        """The object's name."""
        return self.dataflow.name


class Schedule(msgspec.Struct, frozen=True, tag="schedule"):
    """Let a dataflow start."""

    id: str


class AllowCompaction(msgspec.Struct, frozen=True, tag="allow_compaction"):
    """Nobody reads an object at times before `frontier` any more; None: drop it."""

    id: str
    frontier: int | None


class Peek(msgspec.Struct, frozen=True, kw_only=True, tag="peek"):
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
    as_of: int
    limit_bytes: int


class CancelPeek(msgspec.Struct, frozen=True, tag="cancel_peek"):
    """The answer is not needed any more; it may come all the same."""

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


class Frontiers(msgspec.Struct, frozen=True, kw_only=True, tag="frontiers"):
    """How far an object is. UNSET is "as before", None the empty frontier.

    Attributes:
        id: The object's.
        write: Upper of its output.
        input: What of its inputs it has read: holds on them may follow.
        output: What of the work is done; greater than `as_of` once it is hydrated.
    """

    id: str
    write: int | msgspec.UnsetType | None = msgspec.UNSET
    input: int | msgspec.UnsetType | None = msgspec.UNSET
    output: int | msgspec.UnsetType | None = msgspec.UNSET


class PeekResponse(msgspec.Struct, frozen=True, kw_only=True, tag="peek_response"):
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


class SubscribeResponse(msgspec.Struct, frozen=True, kw_only=True, tag="subscribe_response"):
    """The changes of one interval, consolidated.

    Attributes:
        id: The subscription's.
        lower: First time of the interval.
        upper: First time after it; None if nothing more will come.
        updates: An Arrow IPC stream with `_ts` and `_diff`; None after an error.
        error: An error that poisons the rest; "" if there is none.
    """

    id: str
    lower: int
    upper: int | None
    updates: bytes | None = None
    error: str = ""


class SubscribeDropped(msgspec.Struct, frozen=True, tag="subscribe_dropped"):
    """A subscription ended early; `upper` is that of its last batch."""

    id: str
    upper: int


class Hydration(msgspec.Struct, frozen=True, tag="hydration"):
    """Whether an object has caught up with its `as_of`; for people, nothing relies on it."""

    id: str
    hydrated: bool


ComputeResponse: TypeAlias = (
    Frontiers | PeekResponse | SubscribeResponse | SubscribeDropped | Hydration
)

"""The compute protocol lets a controller create views and indexes, and read: commands, responses.

A connection goes through three stages (Materialize's compute protocol):

    creation         `Hello`, which the connection itself takes, then `CreateInstance`
    initialization   commands of the complete desired state, then `InitializationComplete`: until
                     then nothing is executed, and then only the difference to what runs
    computation      any commands; nothing is written until `AllowWrites`, which is never undone

Without the second stage, a controller that connects again would stop and start everything.

Frontiers are one number: None is the empty frontier, nothing more ever.

Rules of responses: the frontiers of one creation of an object never go back; after the empty
frontier nothing comes about it; each `Peek` has exactly one `PeekResponse`; the batches of a
subscription are contiguous.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from shardline.app.protocol.objects import Dataflow, ProtocolValue, Time

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
"""The way a query is answered: without reading, from an index, from one shard's parts, by Spark."""

# --- commands --------------------------------------------------------------------------------


class Hello(ProtocolValue, frozen=True, tag="hello"):
    """Open a connection named `nonce`; never reaches a worker."""

    nonce: str


class CreateInstance(ProtocolValue, frozen=True, tag="create_instance"):
    """Create the compute instance, with settings that can never change while objects run.

    A connection with other settings than the one before is refused.

    Attributes:
        settings: Values by name.
    """

    settings: dict[str, str] = msgspec.field(default_factory=dict)


class InitializationComplete(ProtocolValue, frozen=True, tag="initialization_complete"):
    """End the initialization: the desired state is complete, and is reconciled now."""


class AllowWrites(ProtocolValue, frozen=True, tag="allow_writes"):
    """Let objects write their shards from here on; never undone."""


class UpdateConfiguration(ProtocolValue, frozen=True, tag="update_configuration"):
    """Change settings at once, for all objects; those that are not named stay.

    Attributes:
        settings: Values by name.
    """

    settings: dict[str, str]


class CreateDataflow(ProtocolValue, frozen=True, kw_only=True, tag="create_dataflow"):
    """Create a view, an index or a subscription; it starts when it is scheduled.

    A dataflow of that name goes on if it is the same, can be read at `as_of`, and is no
    subscription; otherwise it is dropped and created anew, and peeks that read it end with the
    error `OBJECT_CHANGED`.

    Attributes:
        dataflow: The description.
        as_of: The first time at which its output must be right; all inputs are readable there.
        creation: The controller's own number of this creation, by which it tells responses about
            the dataflow from those about a former one of its name: it sees them in one order, but
            not which of them the runtime sent before it had this command. 0 for none.
    """

    dataflow: Dataflow
    as_of: Time
    creation: int = 0

    @property
    def id(self) -> str:
        """The object's name."""
        return self.dataflow.name


class Schedule(ProtocolValue, frozen=True, tag="schedule"):
    """Let a dataflow start."""

    id: str


class AllowCompaction(ProtocolValue, frozen=True, tag="allow_compaction"):
    """Allow an object's history before `frontier` to be merged; None drops the object.

    The controller does not read the object at earlier times any more. For a subscription it
    acknowledges the batches before that time, which makes room for more. A frontier never goes
    back. A peek that still reads before it may get an error. A drop ends the peeks that read the
    object: their answer is the error `OBJECT_CHANGED`. For a dropped object it does nothing; for
    one that never was it is an error.
    """

    id: str
    frontier: Time | None


class Peek(ProtocolValue, frozen=True, kw_only=True, tag="peek"):
    """Run a query once, at one time.

    Attributes:
        uuid: Name of the peek.
        query: SQL over objects and `introspection` relations.
        inputs: Names of the objects that it reads.
        as_of: The time; the answer waits until the upper of each input is beyond it.
        limit_bytes: Largest result, in bytes of Arrow.
        relations_as_of: The time of relations, if the client has chosen one; None for the present.
    """

    uuid: str
    query: str
    inputs: tuple[str, ...]
    as_of: Time
    limit_bytes: int
    relations_as_of: Time | None = None


class CancelPeek(ProtocolValue, frozen=True, tag="cancel_peek"):
    """Cancel a peek; its answer may come all the same.

    Controllers send it after each answer, too: it takes the peek out of the history.
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


class Frontiers(ProtocolValue, frozen=True, kw_only=True, tag="frontiers"):
    """The frontiers of an object. UNSET is "as before", None the empty frontier.

    Attributes:
        id: The object's name.
        write: Upper of its output.
        input: Frontier up to which it has read its inputs: holds on them may advance to it.
        output: Frontier up to which its work is done; greater than `as_of` once it is hydrated.
        creation: As of the newest `CreateDataflow` that the runtime has taken.
    """

    id: str
    write: Time | msgspec.UnsetType | None = msgspec.UNSET
    input: Time | msgspec.UnsetType | None = msgspec.UNSET
    output: Time | msgspec.UnsetType | None = msgspec.UNSET
    creation: int = 0


class PeekResponse(ProtocolValue, frozen=True, kw_only=True, tag="peek_response"):
    """The one answer to a peek.

    Attributes:
        uuid: Name of the peek.
        rows: An Arrow IPC stream; None after an error or a cancellation.
        error: The error; "" if there is none.
        cancelled: True if it was cancelled before it was done.
        kind: One of `error_kinds.KINDS`, by which the error's class is known; "" if it is not.
    """

    uuid: str
    rows: bytes | None = None
    error: str = ""
    cancelled: bool = False
    kind: str = ""


class SubscribeResponse(ProtocolValue, frozen=True, kw_only=True, tag="subscribe_response"):
    """The changes of one interval, consolidated.

    Attributes:
        id: Name of the subscription.
        lower: First time of the interval.
        upper: First time after it; None if nothing more will come.
        updates: An Arrow IPC stream with `_ts` and `_diff`; None after an error.
        error: An error, after which nothing comes; "" if there is none.
        shard: Id of the shard whose changes these are, to go on with
            (`SubscribeDescription.shard`); "" if none was read.
    """

    id: str
    lower: Time
    upper: Time | None
    updates: bytes | None = None
    error: str = ""
    shard: str = ""


class SubscribeDropped(ProtocolValue, frozen=True, tag="subscribe_dropped"):
    """A subscription ended early; `upper` is that of its last batch."""

    id: str
    upper: Time


class Hydration(ProtocolValue, frozen=True, tag="hydration"):
    """Reports if an object has hydrated; for people, nothing relies on it.

    Attributes:
        id: The object's name.
        hydrated: True if it has.
        creation: As of `Frontiers`.
    """

    id: str
    hydrated: bool
    creation: int = 0


ComputeResponse: TypeAlias = (
    Frontiers | PeekResponse | SubscribeResponse | SubscribeDropped | Hydration
)

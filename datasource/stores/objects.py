"""Defines the interface of a backend: objects by key, below one root, for Blob and Consensus alike.

Every backend implements `Objects` and nothing else; the numbered log, the blobs, the probe and the
wrappers are written once over it, so what an answer proves is decided in one place. Keys are
`/`-separated relative paths, checked by the callers.

Commits rest on one operation, `create`: it stores a value only if the key is absent, atomically
with respect to every other process, and durably before it answers. Its outcome is a value and no
exception, because its caller has to handle each of the three:

    `CREATED`       this call stored the value;
    `EXISTS`        the store says that the key is taken, possibly *by this very call*: clients
                    and proxies repeat requests and then report the repetition's refusal;
    `Unresolved`    the outcome is unknown; it may even take effect later. A refusal (403, 404,
                    400 …) counts as unknown, too: it may be about a repetition of a request that
                    has taken effect.

Error semantics:
    `Determinate`    it certainly did not happen (a read: it gave no answer); from a `create`:
                     nothing was sent, or the kernel refused before it gave the object a name;
    `Indeterminate`  a `put` or `delete` may have happened; both may simply be repeated;
    `InvalidUsage`   the location cannot be used as asked; repeating cannot help.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from shardline.datasource.errors import InvalidUsage
    from shardline.datasource.stores.location import BlobEntry

__all__ = ["CREATED", "EXISTS", "CreateAnswer", "CreateOutcome", "Objects", "Unresolved"]


class CreateAnswer(enum.Enum):
    """A store's definite answer to a `create`."""

    CREATED = "created"
    EXISTS = "exists"


CREATED: Final = CreateAnswer.CREATED
EXISTS: Final = CreateAnswer.EXISTS


@dataclass(frozen=True, slots=True)
class Unresolved:
    """An unknown outcome: the value may have been stored, or may be stored later.

    Attributes:
        reason: The answer or failure that was seen, for the message of an `Indeterminate`.
        refusal: The error to show to the user if the store refused for a permanent reason (no
            permission, no bucket). It does not prove that nothing was stored: see `Objects.create`.
    """

    reason: str
    refusal: InvalidUsage | None = None


CreateOutcome: TypeAlias = Literal[CreateAnswer.CREATED, CreateAnswer.EXISTS] | Unresolved


class Objects(Protocol):
    """Objects under one root. Safe to share between threads; may be used after a fork."""

    url: str
    """Canonical URL of the root, for messages; never holds a credential."""

    def latest_ms(self) -> float:
        """The store's own time in its newest answer to this process; sends no request.

        Milliseconds since the epoch; 0 if the store does not tell its time, and before the first
        answer. Never goes back. Once a request has returned, its answer is counted.
        """
        return 0.0

    def create(self, key: str, value: bytes) -> CreateOutcome:
        """Store `value` at `key` if nothing is there, atomically and durably.

        Once a request may have left this process, everything but success is returned and not
        raised: clients, proxies and ingresses repeat a PUT whose connection was lost, and then
        report the outcome of the repetition, with any status at all.

        Raises:
            Determinate: It certainly did not and will not take effect.
            InvalidUsage: The same, and a repetition cannot help.
        """
        ...

    def put(self, key: str, value: bytes | memoryview) -> None:
        """Store `value` at `key`, replacing what is there; all or nothing, and durably."""
        ...

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes | None:
        """Bytes `[start, end)` of the object, cut at its end; None if it is not there."""
        ...

    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        """Whole objects in the order of `keys`, None for a missing one; requested concurrently."""
        ...

    def open(
        self, key: str, size_bytes: int | None = None, via: Objects | None = None
    ) -> pa.NativeFile | None:
        """Random access; None if it is not there.

        Args:
            key: The object's key.
            size_bytes: The object's size if known. A remote store then sends no request to see if
                it exists: a missing object fails the first read with `MissingBlob`.
            via: The store that a remote file sends its reads to; this one by default. A wrapper
                passes itself, so that its retries and counters apply to these reads.
        """
        ...

    def delete(self, key: str) -> bool:
        """Remove the object; True if it was there when the call began."""
        ...

    def delete_many(self, keys: Sequence[str]) -> None:
        """Remove these objects, those that exist; concurrent, in no particular order."""
        ...

    def prune(self, prefix: str, before_ms: int) -> None:
        """Remove empty directories below `prefix` that have not changed since `before_ms`.

        Only a file system has any; elsewhere this does nothing. The first two levels (shard, and
        kind of object) stay, because writers use them all the time. What cannot be removed stays.
        """
        del prefix, before_ms

    def entries(
        self, prefix: str, start_after: str = "", limit: int | None = None
    ) -> Iterator[BlobEntry]:
        """Objects whose key starts with `prefix` and is greater than `start_after`, in key order.

        Objects that exist during the whole call are listed; others may be.

        Args:
            prefix: Any leading part of a key; empty lists everything.
            start_after: A whole key, which need not exist.
            limit: Stop after that many; a store is asked for no more.
        """
        ...

    def directories(self) -> list[str]:
        """First segments of all keys that have more than one, sorted."""
        ...

    def settle(self, directory: str) -> None:
        """Make durable what has been read under `directory`.

        Only a local disk shows an object before it is certain to survive a power cut. Call it
        before acting, outside of this store, on what was read: a record that a decision rests on
        must not disappear. Elsewhere this does nothing.
        """
        ...

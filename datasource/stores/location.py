"""Defines a persist location and its two seams: Blob (objects by key), Consensus (a log per shard).

Everything above this room works with these two protocols, so that a shard behaves alike on a disk,
in a bucket and in memory. They are persist's Blob and Consensus (Materialize), both below one URL.

A *persist location* is one URL. Below it each shard has a directory with four kinds of objects:

    <shard>/log/<16 hex>      records of the shard's log, one object each, created once  (Consensus)
    <shard>/floor/<16 hex>    how far the log has been truncated, itself a log           (Consensus)
    <shard>/rollup/<name>     whole states                                               (Blob)
    <shard>/part/<name>       Parquet parts                                              (Blob)

`Blob` holds immutable, write-once objects. `Consensus` holds, per shard, a linearizable log of
small records; only its compare-and-set decides what is true. Blobs are written before a record
refers to them, and deleted only when no live state can refer to them any more: a crash leaves
objects that nothing refers to, and never a reference to an object that is not there.

Error semantics of both:
    `Determinate`    it certainly did not happen;
    `Indeterminate`  it may have happened (only writes can raise it);
    `InvalidUsage`   the location cannot be used as asked (no bucket, no permission, a store that
                     ignores conditional writes): retrying cannot help;
    `Corrupt`        the stored bytes are not those that were written.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from shardline.datasource.errors import Determinate, InvalidUsage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import pyarrow as pa

__all__ = [
    "LOG_REPLACED",
    "MARKER",
    "Blob",
    "BlobEntry",
    "Committed",
    "Consensus",
    "ExpectationMismatch",
    "Location",
    "OperationStatistics",
    "StoreStatistics",
    "VersionedData",
    "log_replaced",
    "truncated_too_fast",
]


LOG_REPLACED: Final = "LOG_REPLACED"
"""Code of the error for a log that is not the one that this process knows."""

MARKER: Final = "_shardline"
"""Key of the object that shows that a location exists; nothing of ours ever deletes it."""


@dataclass(frozen=True, slots=True)
class BlobEntry:
    """One object of a listing: its key, size in bytes, and when it was last written.

    `modified_ms` is milliseconds since the epoch by the store's own clock; 0 if the store does not
    report it, and then nothing may be concluded from the object's age.
    """

    key: str
    size_bytes: int
    modified_ms: int


class Blob(Protocol):
    """Immutable objects under flat keys such as `orders/part/0f….parquet`.

    Linearizable: every later get and list, by any process, finds what was set. Keys are non-empty
    relative paths (unicode and spaces allowed; `..`, empty segments and control characters are
    refused with `InvalidUsage`).
    """

    def set(self, key: str, value: bytes | memoryview) -> None:
        """Store `value`, all or nothing and durably. Setting the same bytes again is harmless."""
        ...

    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes | None:
        """Bytes `[start, end)` of the object, to its end by default; None if it is not there."""
        ...

    def open(self, key: str, size_bytes: int | None = None) -> pa.NativeFile | None:
        """Random access for Parquet readers; None if it is not there.

        Args:
            key: The object's key.
            size_bytes: The object's size if the caller knows it. This saves a request; a missing
                object may then fail as late as the first read, with `MissingBlob`.
        """
        ...

    def delete(self, key: str) -> bool:
        """Remove the object; True if it was there. Deleting a missing object is no error."""
        ...

    def delete_many(self, keys: Sequence[str]) -> None:
        """Remove these objects, concurrently and in no particular order.

        After an error some are gone and some are not.
        """
        ...

    def prune(self, prefix: str, before_ms: int) -> None:
        """Remove empty directories below `prefix` that have not changed since `before_ms`.

        Only where directories exist by themselves, as on a local disk; elsewhere this does nothing.
        What cannot be removed stays, without an error.
        """
        ...

    def list(self, prefix: str) -> Iterator[BlobEntry]:
        """All objects whose key starts with `prefix`, in key order.

        Without those of others, at keys that no blob can have.
        """
        ...


@dataclass(frozen=True, slots=True)
class VersionedData:
    """One record of a log: its seqno (1, 2, 3, … without gaps above the floor) and its bytes."""

    seqno: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Committed:
    """The compare-and-set took effect: the record is at `seqno` for ever."""

    seqno: int


@dataclass(frozen=True, slots=True)
class ExpectationMismatch:
    """The compare-and-set certainly did not and will not take effect.

    Attributes:
        current: The record at the seqno that the append was for, if it was read anyway; saves the
            caller a request. None means only that `expected` is not the head.
    """

    current: VersionedData | None = None


class Consensus(Protocol):
    """Per shard, a linearizable log of small records, addressed by the shard's directory name."""

    def head(self, shard: str) -> VersionedData | None:
        """The newest record, linearized; None if the shard has no log."""
        ...

    def compare_and_set(
        self, shard: str, expected: int | None, data: bytes
    ) -> Committed | ExpectationMismatch:
        """Append `data` at `expected + 1` (at 1 if `expected` is None), if `expected` is the head.

        Raises:
            Indeterminate: It may have taken effect. Read the log back: the caller recognises its
                own record by the token in `data`.
        """
        ...

    def scan(self, shard: str, from_seqno: int, limit: int) -> list[VersionedData]:
        """Records with seqno >= `from_seqno`, ascending, at most `limit`, linearized.

        An empty answer means that `from_seqno` is beyond the head. Records below the floor are
        gone: then the first record returned has a seqno greater than `from_seqno`.
        """
        ...

    def truncate(self, shard: str, before: int) -> int:
        """Delete records with seqno < `before`, never the head; the number of deleted records.

        In two phases: the floor is published first, and records are deleted when a grace period has
        passed since. So a call may delete what an *earlier* call announced, and less than `before`.
        """
        ...

    def list_shards(self) -> list[str]:
        """Directory names of all shards with a log at this location, sorted.

        With those whose log may not, or cannot be looked at, as long as the location can be.
        """
        ...


@dataclass(frozen=True, slots=True)
class OperationStatistics:
    """Totals of one operation of a store since it was opened.

    Attributes:
        operation: The kind of request: `create`, `get`, `list` …
        calls: Requests; each attempt of a repeated one counts.
        errors: Calls that failed or whose outcome is unknown.
        conflicts: Creates that were answered "exists".
        bytes: Payload written or read; reads through an opened local file are not counted.
        elapsed_ms: Time spent, summed over callers that may have run at once.
        elapsed_ms_max: The slowest call.
    """

    operation: str
    calls: int
    errors: int
    conflicts: int
    bytes: int
    elapsed_ms: float
    elapsed_ms_max: float


@dataclass(frozen=True, slots=True)
class StoreStatistics:
    """The requests of a store since it was opened, by operation."""

    operations: tuple[OperationStatistics, ...] = ()


def _nothing() -> None:
    pass


def _no_entries(prefix: str) -> Iterator[BlobEntry]:
    del prefix
    return iter(())


@dataclass(frozen=True, slots=True)
class Location:
    """An opened persist location: its canonical URL and its two stores.

    Attributes:
        url: Canonical: two locations with one URL are the same place.
        blob: Its blobs.
        consensus: Its logs.
        id: Made and stored when the location was created: distinguishes it from a location that
            was later made at the same URL. Empty where nothing is stored.
        statistics: Counts the requests of its store so far.
        entries: All objects whose key starts with a prefix, in key order: blobs, records, floors
            and the location's own. To account for them; `blob` and `consensus` interpret them.
        directories: First segments of all keys that have more than one, sorted: those of shards,
            and of whatever else was put beside them.
        check: Raises if the location is another one by now; puts a marker back that was deleted.
    """

    url: str
    blob: Blob
    consensus: Consensus
    id: str = ""
    statistics: Callable[[], StoreStatistics] = StoreStatistics
    entries: Callable[[str], Iterator[BlobEntry]] = _no_entries
    directories: Callable[[], list[str]] = list
    check: Callable[[], None] = _nothing


def log_replaced(record: str, found: VersionedData | None) -> InvalidUsage:
    """The error for a record that this process has read, in whose place is now `found`."""
    return InvalidUsage(
        f"{record}, which this process has read, is "
        f"{'not there any more' if found is None else 'another one now'}: the shard was deleted, "
        "or an older copy was put in its place; nothing was written",
        code=LOG_REPLACED,
        hint="try again: what this process knew of it is forgotten now",
    )


def truncated_too_fast(shard: str, url: str, rounds: int) -> Determinate:
    """The error for a log that was truncated in each of so many attempts at one operation."""
    return Determinate(
        f"the log of shard '{shard}' at '{url}' was truncated faster than it could be read, "
        f"{rounds} times",
        hint="retry; if it persists, check that nothing else deletes objects there",
    )

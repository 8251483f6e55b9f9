"""Implements `Blob` over any `Objects`: checks keys, and refuses those of the log.

A blob written into a log's directory would be read as a record; one deleted there would be a gap in
the log for ever.

Invariants: no blob operation can touch the location's own objects (`_…`) or a shard's log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.stores.location import Blob, BlobEntry
from shardline.datasource.stores.shard_names import check_segments, has_control

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from shardline.datasource.stores.objects import Objects

__all__ = ["ObjectBlob"]


class ObjectBlob(Blob):
    """The blobs among the objects of one location."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    @override
    def set(self, key: str, value: bytes | memoryview) -> None:
        self._objects.put(_checked(key), value)

    @override
    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes | None:
        if start < 0 or (end is not None and end < start):
            raise InvalidUsage(
                f"cannot read bytes [{start}, {end}) of '{key}'", hint="0 <= start <= end"
            )
        return self._objects.get(_checked(key), start, end)

    @override
    def open(self, key: str, size_bytes: int | None = None) -> pa.NativeFile | None:
        return self._objects.open(_checked(key), size_bytes)

    @override
    def delete(self, key: str) -> bool:
        return self._objects.delete(_checked(key))

    @override
    def delete_many(self, keys: Sequence[str]) -> None:
        self._objects.delete_many([_checked_listed(key) for key in keys])

    @override
    def prune(self, prefix: str, before_ms: int) -> None:
        self._objects.prune(_checked(prefix), before_ms)

    @override
    def list(self, prefix: str) -> Iterator[BlobEntry]:
        if has_control(prefix) or ".." in prefix.split("/"):
            raise InvalidUsage(f"prefix {prefix!r} can match no key", code="INVALID_KEY")
        return (entry for entry in self._objects.entries(prefix) if _is_listed(entry.key))


def _checked(key: str) -> str:
    check_segments("key", key)
    if _is_reserved(key):
        raise InvalidUsage(
            f"key '{key}' belongs to the location itself or to a shard's log",
            code="INVALID_KEY",
            hint="blobs live in <shard>/part/ and <shard>/rollup/",
        )
    return key


def _checked_listed(key: str) -> str:
    """`key` if it is legal; may end in `/`, as Hadoop marks directories in a bucket (`a/b/`)."""
    _checked(key.removesuffix("/"))
    return key


def _is_listed(key: str) -> bool:
    """True if the object at `key` is a blob, or a directory's mark.

    Others can give theirs what no blob of ours has, such as `a//b` in a bucket, or a name on a disk
    that is no UTF-8. Who took it for a blob could not even delete it.
    """
    if _is_reserved(key):
        return False
    try:
        _checked_listed(key)
    except InvalidUsage:
        return False
    return True


def _is_reserved(key: str) -> bool:
    if key[0] == "_":
        return True
    below = key.partition("/")[2]
    return below.startswith(("log/", "floor/"))

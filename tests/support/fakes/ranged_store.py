"""A store in memory whose objects are opened as those of a remote store are: without a request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from shardline.datasource.stores.memory import MemoryObjects
from shardline.datasource.stores.ranged import open_ranged

if TYPE_CHECKING:
    import pyarrow as pa

    from shardline.datasource.stores.objects import Objects

__all__ = ["OpenedByRanges"]


class OpenedByRanges(MemoryObjects):
    """Finds out that an object of known size is gone or shorter only where it is read."""

    @override
    def open(
        self, key: str, size_bytes: int | None = None, via: Objects | None = None
    ) -> pa.NativeFile | None:
        if size_bytes is None:
            value = self.get(key)
            size_bytes = None if value is None else len(value)
        return None if size_bytes is None else open_ranged(via or self, key, size_bytes)

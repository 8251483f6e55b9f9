"""Opens a remote object as a file: every read is one ranged GET of exactly the requested bytes.

Parquet readers coalesce their reads by themselves, so nothing is read ahead or cached here: that
would transfer bytes that no query needs.
"""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

from typing_extensions import override

from shardline.datasource.errors import MissingBlob

if TYPE_CHECKING:
    import pyarrow as pa

    from shardline.datasource.stores.objects import Objects

__all__ = ["open_ranged"]


def open_ranged(objects: Objects, key: str, size_bytes: int) -> pa.NativeFile:
    """The object of `size_bytes` at `key`, read through `objects`."""
    import pyarrow as pa  # noqa: PLC0415 - a log needs no Arrow; loading it takes 100 ms

    return pa.PythonFile(_RangedFile(objects, key, size_bytes), mode="r")


class _RangedFile(io.RawIOBase):
    def __init__(self, objects: Objects, key: str, size_bytes: int) -> None:
        super().__init__()
        self._objects = objects
        self._key = key
        self._size = size_bytes
        self._position = 0

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def tell(self) -> int:
        return self._position

    @override
    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def size(self) -> int:
        """Bytes of the object; pyarrow asks for it by this name."""
        return self._size

    @override
    def read(self, size: int | None = -1) -> bytes:
        end = self._size if size is None or size < 0 else min(self._position + size, self._size)
        if end <= self._position:
            return b""
        value = self._objects.get(self._key, self._position, end)
        if value is None or len(value) != end - self._position:
            raise MissingBlob(
                f"'{self._key}' at '{self._objects.url}' is gone or shorter than its {self._size} "
                "bytes",
                hint="it was deleted or replaced while it was read",
            )
        self._position = end
        return value

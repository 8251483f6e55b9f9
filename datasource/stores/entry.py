"""Encodes and decodes one entry of a numbered log: its key, and its bytes.

A log is read by its keys alone, and a record that was damaged, renamed or copied there by another
tool must never be taken for a commit.

    {prefix}{2**63-1-n:016x}   the key of entry n; keys count down, so the newest is listed first
    magic, version, crc32, token, payload   its bytes; 28 before the payload, big-endian

Other tools leave objects in the same directory: an empty one that marks it in a bucket (`a/log/`),
a `.DS_Store`, a copy of the whole log in a folder. None of them has the name of an entry, so they
are skipped wherever a log is listed; fsck reports those that are not empty.

The checksum also covers the entry's place below the shard, `log/…` or `floor/…` and the number: a
copied or renamed entry is refused. It does not cover the shard's name: a directory that was copied
or renamed as a whole is recognised by the states in its log, which have that name
(`shardline.datasource.shard.replay`), and the error can say whose it is.
"""

from __future__ import annotations

import re
import struct
import zlib
from typing import TYPE_CHECKING, Final

from shardline.datasource.errors import Corrupt, InvalidUsage

if TYPE_CHECKING:
    from shardline.datasource.stores.location import BlobEntry
    from shardline.datasource.stores.objects import Objects

__all__ = [
    "decode_entry",
    "encode_entry",
    "entry_key",
    "entry_seqno",
    "is_entry",
    "may_have_entries",
    "newest_entry",
]

_SEQNO_MAX: Final = 2**63 - 1
_KEY: Final = re.compile(r"[^/]+/[^/]+/[0-7][0-9a-f]{15}")
"""Three segments: shard, `log` or `floor`, entry. A deeper key is a copy made by another tool."""
_HEADER: Final = struct.Struct(">4sBxxxI16s")
_MAGIC: Final = b"SLog"
_VERSION: Final = 1


def entry_key(prefix: str, seqno: int) -> str:
    """The key of entry `seqno` of the log at `prefix`, such as `orders/log/`."""
    return f"{prefix}{_SEQNO_MAX - seqno:016x}"


def is_entry(key: str) -> bool:
    """True if `key` has the form of an entry's key."""
    return _KEY.fullmatch(key) is not None


def entry_seqno(key: str) -> int:
    """The seqno of the entry at `key`.

    Raises:
        Corrupt: `key` is not the key of an entry.
    """
    if not is_entry(key):
        raise Corrupt(
            f"'{key}' is not the key of a log entry",
            code="FOREIGN_OBJECT",
            hint="something else wrote into the log's directory: move the object away",
        )
    return _SEQNO_MAX - int(key.rpartition("/")[2], 16)


def newest_entry(objects: Objects, prefix: str) -> BlobEntry | None:
    """The newest entry of the log at `prefix`, such as `orders/log/`; None if it has none.

    Raises:
        Determinate: The store did not answer.
    """
    # One key of one LIST, as long as there is nothing foreign. "/" sorts right before the digits,
    # so what other tools leave most often, directory markers and hidden files, is not listed.
    first = next(objects.entries(prefix, start_after=f"{prefix}/", limit=1), None)
    if first is None or is_entry(first.key):
        return first
    rest = objects.entries(prefix, start_after=first.key)
    return next((entry for entry in rest if is_entry(entry.key)), None)


def may_have_entries(objects: Objects, prefix: str) -> bool:
    """True if the log at `prefix` has entries, or nobody can tell as it alone cannot be listed.

    Who goes through all shards goes on then, and hears why from the operations of that one.

    Raises:
        Determinate: The store did not answer.
    """
    try:
        return newest_entry(objects, prefix) is not None
    except (InvalidUsage, Corrupt):
        return True


def encode_entry(key: str, token: bytes, data: bytes) -> bytes:
    """The bytes of an entry at `key` with the writer's 16-byte `token`."""
    return _HEADER.pack(_MAGIC, _VERSION, _checksum(key, token, data), token) + data


def decode_entry(url: str, key: str, value: bytes) -> tuple[bytes, bytes]:
    """The token and the payload of `value`, which was read at `key` of the store at `url`.

    Raises:
        Corrupt: `value` is not an entry that was written at that place.
    """
    problem = "it is shorter than an entry's header"
    if len(value) >= _HEADER.size:
        magic, version, checksum, token = _HEADER.unpack_from(value)
        data = value[_HEADER.size :]
        if magic != _MAGIC:
            problem = "it does not begin like an entry"
        elif version != _VERSION:
            problem = f"it has format version {version}, this program reads {_VERSION}"
        elif checksum != _checksum(key, token, data):
            problem = "its checksum does not match its content and place"
        else:
            return token, data
    raise Corrupt(
        f"'{key}' at '{url}' is not a log entry of ours: {problem}",
        code="CORRUPT_LOG_ENTRY",
        hint="restore the object from a backup; do not delete it, the log would have a gap",
    )


def _checksum(key: str, token: bytes, data: bytes) -> int:
    place = key.partition("/")[2].encode()
    return zlib.crc32(data, zlib.crc32(token, zlib.crc32(place)))

"""Encodes a shard's name as a directory of its location, and decodes it.

Users name shards as they like; disks, buckets and URLs each forbid other characters. A directory
name is made of `[A-Za-z0-9_.-]` and of `%XX` for each byte of everything else (UTF-8),
so that the same name works on disk, in a bucket and in a URL. It never starts with `_` or `.`:
such names belong to the location itself (`_shardline`, `_probe`) or to the file system.

Invariants:
    `shard_name(shard_directory(name)) == name`, and two names never share a directory;
    every directory has one spelling: `shard_directory(shard_name(d)) == d` or `d` is refused.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection
from typing import Final
from urllib.parse import quote, unquote_to_bytes

from shardline.datasource.errors import InvalidUsage, nearest_name

__all__ = [
    "NAME_BYTES_MAX",
    "check_segments",
    "has_control",
    "is_shard_directory",
    "names_hint",
    "shard_directory",
    "shard_name",
]

NAME_BYTES_MAX: Final = 240
"""Longest encoded directory name: file systems stop at 255 bytes."""

_BESIDE: Final = re.compile(r"(?P<object>.+)_(errors|progress|skipped|state_[0-9]+)")
"""Names of shards that are kept beside that of an object."""

_DIRECTORY: Final = re.compile(r"(?:[A-Za-z0-9-]|%[0-9A-F]{2})(?:[A-Za-z0-9_.-]|%[0-9A-F]{2})*")


def shard_directory(name: str) -> str:
    """The directory of the shard that users call `name`.

    Raises:
        InvalidUsage: `name` is empty, consists of dots and slashes only, has a `..` segment,
            control characters or lone surrogates, or is too long.
    """
    if not _is_text(name) or not name.strip() or not name.strip("./") or ".." in name.split("/"):
        raise _refused(name, "a shard's name is not empty, has no '..' and is more than '/'")
    if has_control(name):
        raise _refused(name, "control characters are not allowed in a shard's name")
    # `~` is the one character that quote() leaves alone and we do not.
    directory = quote(name, safe="").replace("~", "%7E")
    if directory[0] in "_.":
        directory = f"%{ord(directory[0]):02X}{directory[1:]}"
    if len(directory) > NAME_BYTES_MAX:
        raise _refused(name, f"the encoded name may have {NAME_BYTES_MAX} bytes")
    return directory


def shard_name(directory: str) -> str:
    """The user's name of the shard in `directory`.

    Raises:
        InvalidUsage: `shard_directory` never makes such a directory.
    """
    if _DIRECTORY.fullmatch(directory) is not None:
        try:
            name = unquote_to_bytes(directory).decode("utf-8")
        except UnicodeDecodeError:
            raise _not_a_shard(directory) from None
        if not has_control(name) and shard_directory(name) == directory:
            return name
    raise _not_a_shard(directory)


def is_shard_directory(directory: str) -> bool:
    """False for what is the location's own, or somebody else's."""
    try:
        shard_name(directory)
    except InvalidUsage:
        return False
    return True


def _is_text(name: object) -> bool:
    return isinstance(name, str)


def has_control(text: str) -> bool:
    """True if `text` has control characters or lone surrogates, which no store keeps."""
    if text.isascii():
        return not text.isprintable()
    return any(unicodedata.category(character) in {"Cc", "Cs"} for character in text)


def check_segments(what: str, path: str) -> tuple[str, ...]:
    """The segments of a relative path such as a blob's key, if all of them are plain names.

    Args:
        what: The kind of path, for the message: "key", "prefix".
        path: `/`-separated; unicode and spaces are fine.

    Raises:
        InvalidUsage: A segment is empty, `.` or `..`, or holds control characters.
    """
    segments = tuple(path.split("/"))
    if any(segment in {"", ".", ".."} for segment in segments) or has_control(path):
        raise InvalidUsage(
            f"{what} {path!r} is not a plain relative path",
            code="INVALID_KEY",
            hint="no empty segment, no '.' or '..', no control characters",
        )
    return segments


def _refused(name: object, hint: str) -> InvalidUsage:
    return InvalidUsage(f"{name!r} cannot name a shard", code="INVALID_NAME", hint=hint)


def _not_a_shard(directory: str) -> InvalidUsage:
    return InvalidUsage(
        f"{directory!r} is no directory of a shard",
        code="INVALID_NAME",
        hint="use the directory that shard_directory(name) gives",
    )


def names_hint(name: str, shards: list[str]) -> str:
    """The hint for a shard that is not among those of its location.

    Shards that are kept beside another one, such as the errors of a source, or for the location
    itself (`_lane`) are not what somebody means who names none of these.
    """
    if not shards:
        return "the location has no shards yet"
    if not _is_beside(name, None):
        shards = [one for one in shards if not _is_beside(one, shards)] or shards
    near = nearest_name(name, shards)
    if near is not None:
        return f"did you mean '{near}'?"
    shown = ", ".join(f"'{shard}'" for shard in shards[:10])
    more = f" and {len(shards) - 10} more" if len(shards) > 10 else ""  # noqa: PLR2004
    return f"the location has {shown}{more}"


def _is_beside(name: str, shards: Collection[str] | None) -> bool:
    """True if a shard is one that is kept for another one of `shards`; None for any."""
    match = _BESIDE.fullmatch(name)
    return name.startswith("_") or (
        match is not None and (shards is None or match["object"] in shards)
    )

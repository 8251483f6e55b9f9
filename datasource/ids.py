"""Identifiers name shards, readers, writers and parts: one letter for the kind, 32 hex digits.

    s… shard    r… leased reader    w… anonymous writer    p… part    l… location    t… attempt

The letter keeps an id of one kind from being taken for another; parsing is strict. Critical readers
and durable writers are named by their user instead: such a name is known before it is registered,
so a crash between the two loses nothing.
"""

from __future__ import annotations

import os
import re
import socket
from typing import Final, Literal, NewType

from shardline.datasource.clock import IdGenerator
from shardline.datasource.errors import InvalidUsage

__all__ = ["Kind", "Seqno", "check_owner_name", "is_id", "new_id", "process_name"]

Kind = Literal["s", "r", "w", "p", "l", "t"]

Seqno = NewType("Seqno", int)
"""Position of a record in a shard's log: 1, 2, 3, …"""

_ID: Final = re.compile(r"[srwplt][0-9a-f]{32}")
_OWNER: Final = re.compile(r"[^\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,200}")


def new_id(kind: Kind, ids: IdGenerator) -> str:
    """A fresh identifier of `kind`."""
    return kind + ids.token().hex()


def is_id(text: str, kind: Kind) -> bool:
    """True if `text` is a well-formed identifier of `kind`."""
    return _ID.fullmatch(text) is not None and text[0] == kind


def check_owner_name(role: str, name: object) -> str:
    """Return `name` if it can name a critical reader or a durable writer.

    Raises:
        InvalidUsage: It is empty, longer than 200 characters, or holds control characters or
            lone surrogates.
    """
    if not isinstance(name, str) or _OWNER.fullmatch(name) is None:
        raise InvalidUsage(
            f"{name!r} cannot name a {role}",
            code="INVALID_NAME",
            hint="use 1 to 200 characters without control characters",
        )
    return name


def process_name() -> str:
    """This process as `host:pid`, for the people who look at holds and claims."""
    return f"{socket.gethostname()}:{os.getpid()}"

"""A covered range names the part of its source that a numbered append is made of, as a short text.

A writer's number alone does not prove that two appends are the same (Delta's `txnVersion` has this
gap). A checkpoint of a query that is rolled back by hand, restored from a copy or begun anew gives
old numbers to new ranges; their rows would be taken for "committed before", and be lost without an
error. So a writer that knows the range of its number names it, and the shard remembers the range of
each writer's last append.

    query:<query>:<range>   a micro-batch: of one streaming query, between two offsets
    interval:[17, 42)       exactly these times of the shard
    text:<digest>           the user's own name for the range (`txnRange`)

Each may be unknown: the whole text (empty), or the range of a query. Only texts of one kind can be
compared, so state of older code and writers that name no range go on as before.

Invariants:
    Two runs of one piece of work have the same text, in any process and after any crash.
    The forms are for ever: they are compared with what older code has stored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

__all__ = ["may_cover_same", "of_interval", "of_query", "of_text"]

_ID_BYTES = 8
_RANGE_BYTES = 12


def of_text(text: str) -> str:
    """The covered range for a user's own name of it; empty if the name is."""
    return f"text:{_digest([text], _RANGE_BYTES)}" if text else ""


def of_interval(lower: int, upper: int | None) -> str:
    """The covered range for the times `[lower, upper)` of the shard; None is the end of time."""
    return f"interval:[{lower}, {upper})"


def of_query(query: str, offsets: Iterable[str] | None) -> str:
    """The covered range for a micro-batch of a streaming query.

    Args:
        query: The query's id; if empty, so is the result.
        offsets: Texts that differ for any two ranges of the query, in order; None if not known.
    """
    if not query:
        return ""
    found = "" if offsets is None else _digest(offsets, _RANGE_BYTES)
    return f"query:{_digest([query], _ID_BYTES)}:{found}"


def may_cover_same(one: str, other: str) -> bool:
    """False if two appends are certainly of different ranges; unknown ranges may be the same."""
    if one.partition(":")[0] != other.partition(":")[0]:
        return True
    return all(
        known == said or not known or not said
        for known, said in zip(one.split(":"), other.split(":"), strict=True)
    )


def _digest(texts: Iterable[str], size_bytes: int) -> str:
    digest = hashlib.blake2b(digest_size=size_bytes)
    for text in texts:
        encoded = text.encode()
        # With its length: "ab", "c" must not have the digest of "a", "bc".
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()

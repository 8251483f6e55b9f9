"""What a numbered append covers: the part of its source that its rows are made of, as a short text.

A writer's number alone does not say that two appends are the same. Who rolls the checkpoint of a
query back by hand, restores it from a copy or begins a new one gets old numbers for new ranges, and
rows that were taken for "committed before" would be gone without an error. So whoever knows what
its number stands for says it, and the shard remembers it of each writer's last append.

    query:<query>:<range>   a micro-batch: which streaming query, from which offsets to which
    interval:[17, 42)       exactly these times of the shard
    text:<digest>           what the user has said (`txnRange`)

Each may be unknown: the whole text (empty), or the range of a query. Only texts of one kind can be
compared, so state of older code and writers that say nothing go on as ever.

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
    """Of a user's own name for a range; empty says nothing."""
    return f"text:{_digest([text], _RANGE_BYTES)}" if text else ""


def of_interval(lower: int, upper: int | None) -> str:
    """Of the times `[lower, upper)` of the shard that is written; None is the end of all times."""
    return f"interval:[{lower}, {upper})"


def of_query(query: str, offsets: Iterable[str] | None) -> str:
    """Of a micro-batch of a streaming query.

    Args:
        query: The query's id; empty says nothing.
        offsets: What tells its range from any other of the query, in order; None if not known.
    """
    if not query:
        return ""
    found = "" if offsets is None else _digest(offsets, _RANGE_BYTES)
    return f"query:{_digest([query], _ID_BYTES)}:{found}"


def may_cover_same(one: str, other: str) -> bool:
    """False if two appends are certainly of different ranges; what is unknown may be the same."""
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
        # With its length: two texts that are cut elsewhere are not the same.
        digest.update(len(encoded).to_bytes(8, "big") + encoded)
    return digest.hexdigest()

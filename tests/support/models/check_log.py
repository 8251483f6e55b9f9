"""Checks a recorded history of appends and head reads for linearizability, in O(n log n)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

__all__ = ["Ack", "HeadRead", "check_log"]


@dataclass(frozen=True, slots=True)
class Ack:
    """An append that was acknowledged; times from one clock, before the call and after it."""

    seqno: int
    data: bytes
    began_ms: float
    ended_ms: float


@dataclass(frozen=True, slots=True)
class HeadRead:
    """An answer of `head`; seqno 0 stands for an empty log."""

    seqno: int
    began_ms: float
    ended_ms: float


def check_log(
    acks: Sequence[Ack], final: Mapping[int, bytes], heads: Iterable[HeadRead] = ()
) -> list[str]:
    """Everything in the history that a linearizable log cannot show; empty if it is one.

    Args:
        acks: Acknowledged appends of all clients.
        final: What the log held at the end, with every record it ever had (nothing truncated).
        heads: Head reads of all clients.
    """
    problems = []
    by_seqno: dict[int, Ack] = {}
    for ack in acks:
        if ack.seqno in by_seqno:
            problems.append(f"two acknowledged appends at seqno {ack.seqno}")
        by_seqno[ack.seqno] = ack
        if final.get(ack.seqno) != ack.data:
            problems.append(f"the append acknowledged at seqno {ack.seqno} is not in the log")
    if sorted(final) != list(range(1, len(final) + 1)):
        problems.append("the log has gaps")
    if len(set(final.values())) != len(final):
        problems.append("one record is in the log twice")
    latest_begin = float("-inf")
    for seqno in sorted(by_seqno):
        if by_seqno[seqno].ended_ms < latest_begin:
            problems.append(f"seqno {seqno} was acknowledged before an earlier one was asked for")
        latest_begin = max(latest_begin, by_seqno[seqno].began_ms)
    problems += _check_heads(by_seqno, sorted(heads, key=lambda head: head.began_ms))
    return problems


def _check_heads(by_seqno: Mapping[int, Ack], heads: Sequence[HeadRead]) -> list[str]:
    problems = []
    by_end = sorted(by_seqno.values(), key=lambda ack: ack.ended_ms)
    newest, position = 0, 0
    for head in heads:
        while position < len(by_end) and by_end[position].ended_ms < head.began_ms:
            newest = max(newest, by_end[position].seqno)
            position += 1
        if head.seqno < newest:
            problems.append(f"a head read {head.seqno} after {newest} was acknowledged")
        ack = by_seqno.get(head.seqno)
        if ack is not None and head.ended_ms < ack.began_ms:
            problems.append(f"a head read {head.seqno} before it was asked for")
    return problems

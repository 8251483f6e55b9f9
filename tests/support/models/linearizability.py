"""Checks recorded histories of a shard for linearizability: was there one order that explains all?

    explains(calls)        any history, by search (Wing & Gong, with Lowe's memory of what was
                           tried); for some hundred calls, and to find out what a small one means
    problems(calls, held)  long histories, in O(n log n), by the order that the shard itself gives:
                           where in time each append ended up

A *call* is what one client asked of the shard, between two readings of one clock. Its outcome may
be unknown: then it may take effect at any moment after it began, or never.

`check_log` does the same for the raw log of records; this is the level of appends, uppers and
contents.

Sources: Herlihy & Wing 1990; Wing & Gong 1993; Lowe 2017 ("Testing for linearizability").
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["UNKNOWN", "Call", "Held", "Kind", "explains", "problems", "resolved"]

Kind: TypeAlias = Literal["cas", "now", "upper", "snapshot"]

UNKNOWN: Final = float("inf")
"""When a call of unknown outcome ended."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of one client.

    Attributes:
        kind: `cas`: append `mark` as `[lower, upper)`; `now`: append `mark` wherever; `upper`: ask
            for the upper; `snapshot`: read the contents at the latest time.
        began_ms: Before the call.
        ended_ms: After it; `UNKNOWN` if nobody knows what became of it.
        mark: What is appended: a name that no other append has.
        lower: Of a `cas`: what it expects; of a `now` that succeeded: where it is.
        upper: Of a `cas` or a `now` that succeeded: the upper after it. Of `upper`: the answer. Of
            a `snapshot`: the time after the one that was read.
        done: Whether an append was done; False says that the upper was `current` and it was not.
        current: What a refused `cas` was told.
        marks: What a snapshot has found, each as often as it was there.
    """

    kind: Kind
    began_ms: float
    ended_ms: float
    mark: str = ""
    lower: int = 0
    upper: int = 0
    done: bool = True
    current: int = 0
    marks: tuple[str, ...] = ()

    @property
    def is_known(self) -> bool:
        """Whether the client learnt what became of it."""
        return self.ended_ms != UNKNOWN

    @property
    def appends(self) -> bool:
        """Whether it is an append that was done, as far as its client knows."""
        return self.kind in {"cas", "now"} and self.done


Held: TypeAlias = tuple[str, int, int]
"""What a shard has in the end: a mark, and the interval `[lower, upper)` of its append."""

_State: TypeAlias = tuple[int, frozenset[str]]


# --- any history, by search ----------------------------------------------------------------------


def explains(calls: Sequence[Call]) -> bool:
    """Whether some order of the calls, which contradicts no clock, makes all answers right.

    Exponential in the number of calls that overlap; what was tried is not tried again.
    """
    order = sorted(calls, key=lambda call: call.began_ms)
    known = sum(1 << i for i, call in enumerate(order) if call.is_known)
    start: tuple[int, _State] = (0, (0, frozenset()))
    seen = {start}
    stack = [start]
    while stack:
        placed, state = stack.pop()
        if placed & known == known:
            return True
        for index in _next(order, placed):
            after = _applied(order[index], state)
            step = (placed | 1 << index, after) if after is not None else None
            if step is not None and step not in seen:
                seen.add(step)
                stack.append(step)
    return False


def resolved(calls: Iterable[Call], held: Iterable[Held]) -> list[Call]:
    """The calls, with the place of each append of unknown outcome that turned out to be done.

    Those that are not there were never done.
    """
    places = {mark: (lower, upper) for mark, lower, upper in held}
    found = []
    for call in calls:
        if call.is_known:
            found.append(call)
        elif call.mark in places and call.kind in {"cas", "now"}:
            lower, upper = places[call.mark]
            found.append(replace(call, lower=lower, upper=upper))
    return found


def _next(order: Sequence[Call], placed: int) -> Iterator[int]:
    """The calls that may come next: those that began before any other one that is left ended."""
    ends = UNKNOWN
    left = []
    for index, call in enumerate(order):
        if not placed >> index & 1:
            if call.began_ms > ends:
                break
            left.append(index)
            ends = min(ends, call.ended_ms)
    return (index for index in left if order[index].began_ms <= ends)


def _applied(call: Call, state: _State) -> _State | None:
    """The state after the call, if its answer is right in `state`."""
    upper, marks = state
    match call.kind:
        case "cas" if call.done:
            right = upper == call.lower
            return (call.upper, marks | {call.mark}) if right else None
        case "cas":
            return state if call.current == upper != call.lower else None
        case "now" if not call.upper:
            return None  # where it ended up is not known: see `resolved`
        case "now":
            return (call.upper, marks | {call.mark}) if upper == call.lower else None
        case "upper":
            return state if call.upper == upper else None
        case "snapshot":
            right = call.upper == upper and Counter(call.marks) == Counter(marks)
            return state if right else None


# --- long histories, by the shard's own order ----------------------------------------------------


def problems(calls: Sequence[Call], held: Sequence[Held]) -> list[str]:
    """Everything in a history that a linearizable shard cannot show; empty if it is one.

    Args:
        calls: Of all clients.
        held: What was in the shard afterwards, by somebody who has read all of it.
    """
    final = sorted(held, key=lambda entry: entry[1:])
    return [
        *_check_held(calls, final),
        *_check_order(calls, final),
        *_check_uppers(calls, final),
        *_check_snapshots(calls, final),
    ]


def _check_held(calls: Sequence[Call], final: Sequence[Held]) -> Iterator[str]:
    """Each append that was done is there, where it was said to be, once; others are not."""
    places = {mark: (lower, upper) for mark, lower, upper in final}
    for mark, count in Counter(mark for mark, _, _ in final).items():
        if count > 1:
            yield f"append {mark} is there {count} times"
    appends = {call.mark: call for call in calls if call.kind in {"cas", "now"}}
    for mark, call in appends.items():
        if not call.is_known:
            continue
        if not call.done and mark in places:
            yield f"append {mark} was refused, and is there at {places[mark]}"
        if call.done and places.get(mark) != (call.lower, call.upper):
            yield (
                f"append {mark} was acknowledged at {(call.lower, call.upper)}, "
                f"and is at {places.get(mark)}"
            )
    yield from (f"nobody has appended {mark}" for mark in places if mark not in appends)
    before = 0
    for mark, lower, upper in final:
        if lower < before:
            yield f"append {mark} at {(lower, upper)} overlaps the one before, up to {before}"
        before = upper


def _check_order(calls: Sequence[Call], final: Sequence[Held]) -> Iterator[str]:
    """No append comes before one that had ended when it began."""
    by_mark = {call.mark: call for call in calls if call.kind in {"cas", "now"}}
    latest = float("-inf")
    for mark, _, _ in final:
        call = by_mark.get(mark)
        if call is not None:
            if call.ended_ms < latest:
                yield f"append {mark} had ended before one that it comes after was begun"
            latest = max(latest, call.began_ms)


def _seen(calls: Iterable[Call]) -> Iterator[tuple[Call, int]]:
    """Calls that were told an upper without changing it, and that upper."""
    for call in calls:
        if call.is_known and call.kind in {"upper", "snapshot"}:
            yield call, call.upper
        elif call.is_known and not call.done:
            yield call, call.current


def _check_uppers(calls: Sequence[Call], final: Sequence[Held]) -> Iterator[str]:
    """Whoever asks sees what had been done before, and nothing that was begun after."""
    by_mark = {call.mark: call for call in calls if call.appends}
    done = [call for call in by_mark.values() if call.is_known]
    reads = sorted(_seen(calls), key=lambda read: read[0].began_ms)
    sure = sorted([(c.ended_ms, c.upper) for c in done] + [(c.ended_ms, u) for c, u in reads])
    newest, position = 0, 0
    for call, upper in reads:
        while position < len(sure) and sure[position][0] < call.began_ms:
            newest = max(newest, sure[position][1])
            position += 1
        if upper < newest:
            yield f"a {call.kind} sees upper {upper} after {newest} was told to somebody"
        if call.kind == "cas" and upper == call.lower:
            yield f"append {call.mark} was refused at the upper that it expects, {upper}"
    begun, latest = {0: float("-inf")}, float("-inf")
    for mark, _, upper in final:
        latest = max(latest, by_mark[mark].began_ms if mark in by_mark else latest)
        begun[upper] = latest
    for call, upper in reads:
        if upper not in begun:
            yield f"a {call.kind} sees upper {upper}, which no append has made"
        elif begun[upper] > call.ended_ms:
            yield f"a {call.kind} sees upper {upper} before it was asked for"


def _check_snapshots(calls: Sequence[Call], final: Sequence[Held]) -> Iterator[str]:
    """A snapshot is the sum of all appends up to its time."""
    marks = [mark for mark, _, _ in final]
    count_at = {upper: count for count, (_, _, upper) in enumerate(final, start=1)}
    for call in calls:
        if call.kind == "snapshot" and call.is_known and call.upper in count_at:
            wanted = Counter(marks[: count_at[call.upper]])
            if Counter(call.marks) != wanted:
                yield (
                    f"a snapshot before {call.upper} has {Counter(call.marks) - wanted} too many, "
                    f"{wanted - Counter(call.marks)} too few"
                )

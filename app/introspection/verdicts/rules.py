"""The rules judge situations: pure, one after another, the first that applies decides.

    judge({"flights": Situation("flights", "source"), …})["delays"].verdict

In the order of what a person must know first: what does not run, what cannot be read, what has not
begun, what is late, and last of all what is well. An object is judged after all that it reads, so
that what is late only because of an input says so, and names the object that is the cause.

Invariants:
    What cannot be read is never well: live errors of anything that an object is made of count.
    An object whose input is not well is never `healthy`, however near it is to the clock: its
        contents lack what the input has not brought.
    Exactly one object is to blame for each that waits, and that one has a verdict of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from shardline.app.introspection.verdicts.situation import (
    Judgement,
    Situation,
)
from shardline.app.introspection.verdicts.wording import amount, name_of, names_of, sentence, span
from shardline.app.protocol.graph import Graph
from shardline.app.protocol.object_state import VERDICTS, Verdict

__all__ = ["IDLE_MS", "Summary", "headline", "judge", "summarize"]

IDLE_MS: Final = 300_000
"""A source to which nothing has come for so long is idle: it is well, and worth a look."""

_FINE: Final[frozenset[Verdict]] = frozenset({"healthy", "idle", "finished"})

_CAUSES_MAX: Final = 2
"""Objects that a summary names; the others are counted."""

_PHASES: Final = {
    "addBatch": "computing and writing",
    "commitOffsets": "writing its checkpoint",
    "getBatch": "planning what to read",
    "latestOffset": "asking its inputs what is new",
    "queryPlanning": "planning the query",
    "walCommit": "writing its checkpoint",
}


@dataclass(frozen=True, slots=True)
class _Case:
    """One situation with what is known of the objects below it.

    Attributes:
        one: The situation.
        below: Judgements of the inputs, and of all below those.
        erring: The objects with live errors that it is made of, itself among them.
    """

    one: Situation
    below: Mapping[str, Judgement]
    erring: tuple[str, ...]


_Rule: TypeAlias = Callable[[_Case], Judgement | None]


@dataclass(frozen=True, slots=True)
class Summary:
    """The whole in a sentence or two.

    Attributes:
        words: For people.
        objects: How many there are.
        fresh: How many are well.
        bad: How many need a person.
    """

    words: str
    objects: int
    fresh: int
    bad: int


def judge(situations: Mapping[str, Situation]) -> dict[str, Judgement]:
    """Judge all objects of a runtime.

    Args:
        situations: By name; an input that is not among them is not known at all.
    """
    done: dict[str, Judgement] = {}
    order = Graph({name: one.inputs for name, one in situations.items()}).order()
    # All of them: a circle cannot be, and if it were its objects would still have verdicts.
    for name in dict.fromkeys([*order, *situations]):
        one = situations[name]
        below = {i for known in one.inputs if known in done for i in done[known].unreadable}
        erring = tuple(sorted(below | ({name} if one.errors else set())))
        found = _decide(_Case(one, done, erring))
        count = sum(situations[i].errors for i in erring)
        done[name] = replace(found, errors=count, unreadable=erring)
    return {name: done[name] for name in situations}


def headline(judgement: Judgement) -> str:
    """The verdict, with an estimate where there is one: `catching up, about 4 min more`."""
    if judgement.ready_in_ms is None:
        return judgement.verdict
    return f"{judgement.verdict}, about {span(judgement.ready_in_ms)} more"


def summarize(judgements: Mapping[str, Judgement]) -> Summary:
    """Say how the whole is, and whose fault it is if it is not well."""
    total = len(judgements)
    fresh = sum(j.verdict in _FINE for j in judgements.values())
    bad = sum(j.tone == "bad" for j in judgements.values())
    if not total:
        return Summary("There are no objects.", 0, 0, 0)
    if fresh == total:
        every = "The one object is fresh." if total == 1 else f"All {total} objects are fresh."
        return Summary(every, total, fresh, bad)
    words = [f"{fresh} of {total} objects {'is' if fresh == 1 else 'are'} fresh."]
    causes = [name for name, j in judgements.items() if j.verdict not in _FINE and not j.blame]
    order = list(VERDICTS)
    causes.sort(key=lambda name: -order.index(judgements[name].verdict))
    words += [_cause(name, judgements) for name in causes[:_CAUSES_MAX]]
    if len(causes) > _CAUSES_MAX:
        more = len(causes) - _CAUSES_MAX
        words.append(f"{more} more {'needs' if more == 1 else 'need'} a look.")
    return Summary(" ".join(words), total, fresh, bad)


def _cause(name: str, judgements: Mapping[str, Judgement]) -> str:
    found = judgements[name]
    because = f": {found.because}" if found.because else ""
    above = [n for n, j in judgements.items() if j.blame == name]
    waiting = (
        f" Because of it {names_of(above)} {'is' if len(above) == 1 else 'are'} not fresh."
        if above
        else ""
    )
    return f"{sentence(f'{name_of(name)} is {headline(found)}{because}')}{waiting}"


def _decide(case: _Case) -> Judgement:
    for rule in _RULES:
        found = rule(case)
        if found is not None:
            return found
    return _late(case)


# --- does it run? --------------------------------------------------------------------------------


def _not_created(case: _Case) -> Judgement | None:
    one = case.one
    if one.created:
        return None
    if one.error:
        return Judgement("stalled", f"it cannot be created: {one.error}", one.hint, lasts=True)
    ill = _worst_input(case)
    if ill is not None:
        return _waits_for(case, ill)
    if not one.inputs:
        return Judgement("starting", "it is being created")
    return Judgement("waiting", f"{names_of(one.inputs)} has not begun yet")


def _lost(case: _Case) -> Judgement | None:
    """Of parts that are gone: it may run on, as nothing that runs has needed them yet."""
    if not case.one.lost:
        return None
    to_do = "put them back from a backup: `fsck` names all of them; nothing was skipped"
    return Judgement("unreadable", case.one.lost, to_do, lasts=True)


def _finished(case: _Case) -> Judgement | None:
    if not case.one.finished or case.erring:
        return None
    return Judgement("finished", "its contents are complete for ever")


def _paused(case: _Case) -> Judgement | None:
    one = case.one
    # Errors come first: reads fail while it is paused as well, and `paused` needs nobody.
    if not _is_paused(one) or case.erring:
        return None
    return Judgement("paused", "it was stopped on request", _resume(one), lasts=True)


def _is_paused(one: Situation) -> bool:
    # By the phase: the status is `paused` too while an incarnation ends, and another one follows.
    return one.phase == "paused"


def _resume(one: Situation) -> str:
    return f"`resume {one.name}` goes on with it"


def _failed(case: _Case) -> Judgement | None:
    one = case.one
    if one.phase != "suspended" or one.status == "frozen":
        return None
    again = "" if one.retry_in_ms is None else f", and it starts again in {span(one.retry_in_ms)}"
    times = f"{one.failures} times in a row" if one.failures > 1 else "once"
    tried = f". It has failed {times}{again}" if one.failures else ""
    # The first failure may be a store that did not answer once: the restart is about to show it.
    return Judgement("stalled", f"{one.error.rstrip('.')}{tried}", one.hint, lasts=one.failures > 1)


def _frozen(case: _Case) -> Judgement | None:
    one = case.one
    if one.status != "frozen":
        return None
    return Judgement("frozen", one.error, one.hint, lasts=True)


def _unreadable(case: _Case) -> Judgement | None:
    one = case.one
    if not case.erring:
        return None
    paused = "; it was stopped on request" if _is_paused(one) else ""
    if one.name in case.erring:
        many = "1 error" if one.errors == 1 else f"{one.errors} errors"
        detail = f": {one.error.rstrip('.') if paused else one.error}" if one.error else ""
        text = f"its contents have {many}{detail}{paused}"
        # It may not have run in this process: then only the shard says what they are.
        shown = (
            f"`errors {one.name}` shows them"
            if one.kind == "source"
            else f"query `{one.name}_errors`, which has them"
        )
        if not paused:
            return Judgement("unreadable", text, one.hint or ("" if one.error else shown))
        # Paused it takes nothing in that could take its errors back.
        to_do = f"{one.hint or shown}; {_resume(one)}"
        return Judgement("unreadable", text, to_do, lasts=True)
    source = case.erring[0]
    because = f"{names_of(case.erring)} {'has' if len(case.erring) == 1 else 'have'} errors"
    found = case.below.get(source)
    more = f": {found.because}" if found is not None and found.verdict == "unreadable" else ""
    lasts = bool(paused) or (found is not None and found.lasts)
    text = f"{because}{more.rstrip('.') if paused else more}{paused}"
    return Judgement("unreadable", text, f"mend {name_of(source)}", source, lasts=lasts)


def _stalled(case: _Case) -> Judgement | None:
    one = case.one
    if one.status not in ("stalled", "ceased"):
        return None
    # While it is started again the status is that of its last run: see `_failed`.
    lasts = one.phase == "running" or one.failures > 1
    return Judgement("stalled", one.error or "it has stopped", one.hint, lasts=lasts)


# --- has it begun? -------------------------------------------------------------------------------


def _written_elsewhere(case: _Case) -> Judgement | None:
    if not case.one.written_elsewhere or case.one.phase != "running":
        return None
    return Judgement("idle", "the application that holds the location writes it, and not this one")


def _starting(case: _Case) -> Judgement | None:
    one = case.one
    if one.written and one.hydrated and one.phase == "running":
        return None
    if one.phase == "waiting" and one.ahead:
        text = f"its turn to compute its contents has not come: {names_of(one.ahead)} first"
        return Judgement("starting", text)
    if one.phase in ("created", "waiting", "starting"):
        return Judgement("starting", "its streaming query is being started")
    if one.phase in ("stopping", "stopped"):
        how = "is being" if one.phase == "stopping" else "was"
        return Judgement("starting", f"its last run {how} stopped")
    if not one.written and (ill := _worst_input(case)) is not None:
        return _waits_for(case, ill)
    what = "its first rows are being read" if not one.inputs else "its contents are being computed"
    return Judgement("starting", what)


# --- is it late? ---------------------------------------------------------------------------------


def _outside(case: _Case) -> Judgement | None:
    """A source with data that wait outside: near to the clock, and far from complete."""
    backlog = case.one.backlog
    if backlog.is_empty:
        return None
    parts = []
    if backlog.files:
        size = f" ({amount(backlog.size_bytes)})" if backlog.size_bytes else ""
        parts.append(f"{backlog.files:,} file{'s' if backlog.files > 1 else ''}{size}")
    if backlog.offsets:
        parts.append(f"{backlog.offsets:,} message{'s' if backlog.offsets > 1 else ''}")
    one = (backlog.files or 0) + (backlog.offsets or 0) == 1
    text = f"{' and '.join(parts)} {'waits' if one else 'wait'} outside"
    if backlog.direction in ("growing", "steady"):
        return Judgement(
            "falling behind",
            f"{text}, and they do not get fewer",
            "let a micro-batch take more (maxFilesPerTrigger, maxBytesPerTrigger, "
            "maxOffsetsPerTrigger), or give it more cores",
        )
    return Judgement("catching up", text, ready_in_ms=backlog.remaining_ms)


def _because_of_input(case: _Case) -> Judgement | None:
    one = case.one
    ill = _worst_input(case)
    if ill is None:
        return None
    if one.behind_ms is not None and one.behind_ms > one.fresh_ms:
        return None  # it is late by itself as well: that comes first
    return _waits_for(case, ill)


def _fresh(case: _Case) -> Judgement | None:
    one = case.one
    if one.lag_ms is None or one.lag_ms > one.fresh_ms:
        return None
    if one.kind == "source" and one.quiet_ms is not None and one.quiet_ms >= IDLE_MS:
        return Judgement("idle", f"nothing has come in for {span(one.quiet_ms)}")
    return Judgement("healthy")


def _late(case: _Case) -> Judgement:
    one = case.one
    if one.lag_ms is None:
        return Judgement("starting", "nothing is settled in it yet")
    text = f"{span(one.lag_ms)} behind the clock"
    if one.lag_direction == "shrinking":
        return Judgement("catching up", text, ready_in_ms=one.lag_remaining_ms)
    if one.step_ms is not None:
        phase = _PHASES.get(one.slowest_phase, one.slowest_phase)
        most = f", most of it for {phase}" if phase else ""
        text = f"{text}: its last micro-batch took {span(one.step_ms)}{most}"
    return Judgement("falling behind", text, _REMEDIES.get(one.kind, ""))


_REMEDIES: Final = {
    "view": "EXPLAIN VIEW says how it is kept; introspection.scheduling_elapsed which step is slow",
    "index": "an index needs memory and cores: see index_limit",
    "sink": "look at how fast the target takes rows",
    "subscribe": "look at how fast its client takes batches",
    "source": "look at how fast the source answers, and at the cores that it has",
}


# --- inputs --------------------------------------------------------------------------------------


def _worst_input(case: _Case) -> str | None:
    """The input that is not well and is the worst of them; None if all are well."""
    order = list(VERDICTS)
    ill = [i for i in case.one.inputs if i in case.below and case.below[i].verdict not in _FINE]
    return max(ill, key=lambda i: order.index(case.below[i].verdict), default=None)


def _waits_for(case: _Case, given: str) -> Judgement:
    """The verdict on an object that waits for an input: names the object at the root of it."""
    cause = case.below[given].blame or given
    found = case.below.get(cause, case.below[given])
    because = f": {found.because}" if found.because else ""
    text = f"{name_of(cause)} is {headline(found)}{because}"
    to_do = f"look at {name_of(cause)}" if found.tone == "bad" else ""
    return Judgement("waiting", text, to_do, cause, found.ready_in_ms, found.lasts)


_RULES: Final[tuple[_Rule, ...]] = (
    _not_created,
    _lost,
    _finished,
    _paused,
    _failed,
    _frozen,
    _unreadable,
    _stalled,
    _written_elsewhere,
    _starting,
    _outside,
    _because_of_input,
    _fresh,
)

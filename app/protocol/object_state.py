"""Object states have their words here: four questions about an object, each with its answers.

    step      what does this process do with it?       the lane's process state, for itself alone
    phase     how far is the lane's order carried out? the lane's process state, at each change
    status    does what runs of it work?               the status machine (storage), `apply`
                                                       (introspection); from reports of its parts
    verdict   is it fresh, and what is to be done?     rules of introspection; for people

They are four axes and not four spellings of one: a view whose phase is `running` may be `stalled`,
because a part of it reports an error; it may be `running` and yet, for a person, `starting`, while
its contents are computed, or `waiting`, while an input is not well. A verdict is made of all that
is known, of lag, backlog and inputs, too, so none of the others can be told from it. Hydration is
no state but an event, which happens once for each incarnation.

Words that two axes share mean different things:

    starting    phase: the query is being started      verdict: its contents are not complete yet
    waiting     phase: for its turn to hydrate         verdict: for an input that is not well
    paused      phase: until a person resumes it       status: nothing runs it, for whatever reason
    frozen      status: a part cannot be read          verdict: the same, and somebody must act
    stalled     status: a part has failed              verdict: the same, or it cannot be created

No module declares such words of its own. The type checker refuses an assignment of, and a
comparison with, a word that its axis does not have; a test does where that looks at types only
(`in`, `case`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, TypeAlias, get_args

__all__ = [
    "FAILED_VERDICTS",
    "SHOWN_PHASES",
    "SHOWN_STATUSES",
    "UNCREATED",
    "VERDICTS",
    "Phase",
    "ShownPhase",
    "Status",
    "Step",
    "Tone",
    "Verdict",
]

# --- what this process does ----------------------------------------------------------------------

Step: TypeAlias = Literal[
    "idle",  # nothing of it runs here
    "starting",  # its start is under way
    "running",  # one incarnation runs
    "stopping",  # its stop is under way, or is to be repeated
    "ended",  # it has finished: there is nothing more to do
    "forgetting",  # it was dropped, and what it has left is being removed
    "gone",  # that is removed
]
"""The step of an object in the lane's process state, which alone sets it. Effects depend on it."""

# --- how far the order is carried out ------------------------------------------------------------

Phase: TypeAlias = Literal[
    "waiting",  # for a hydration slot
    "suspended",  # for the end of the pause after a failure
    "paused",  # until a person resumes it
    "starting",  # the effect of starting it is under way
    "running",  # one incarnation runs
    "hydrated",  # it runs, and has computed its output for the first time
    "stopping",  # the effect of stopping it is under way
    "stopped",  # nothing of it runs; with an error, it has failed
    "ended",  # it has finished
    "dropped",  # nothing comes after it
]
"""The state of an object as the lane's process state reports it, once per change."""

ShownPhase: TypeAlias = Literal[
    "created",  # the lane knows it, and has not begun with it
    "waiting",
    "starting",
    "running",
    "stopping",
    "suspended",
    "paused",
    "stopped",  # for good, or by a shutdown
]
"""The phase of an object in relations; set by introspection from what the lane reports."""

SHOWN_PHASES: Final[Mapping[Phase, ShownPhase]] = {
    "waiting": "waiting",
    "suspended": "suspended",
    "paused": "paused",
    "starting": "starting",
    "running": "running",
    "hydrated": "running",
    "stopping": "stopping",
    "stopped": "stopped",
    "ended": "stopped",
}
"""The word of relations for each phase; a dropped object is in no relation."""

UNCREATED: Final = "uncreated"
"""In place of a phase, of an object that the project asks for and the lane does not know yet."""

# --- does it work? -------------------------------------------------------------------------------

Status: TypeAlias = Literal[
    "created",  # it is known, and nothing has been reported of it
    "starting",  # an incarnation has begun, and no part of it has reported
    "running",  # all of its parts work
    "stalled",  # a part has failed; it stays so until an incarnation works
    "frozen",  # a part of an input cannot be read, and it waits for that
    "paused",  # nothing runs it, for now or until it is resumed
    "ceased",  # it has come to its end
    "dropped",  # nothing comes after it
]
"""The status of an object: on the wire of the storage protocol, and in relations. Its parts report
`running`, `stalled`, `frozen` or `ceased`; the others follow from the lane's phases."""

SHOWN_STATUSES: Final[tuple[Status, ...]] = tuple(
    status for status in get_args(Status) if status != "dropped"
)
"""Those of objects that are there."""

# --- what does that mean for a person? -----------------------------------------------------------

Verdict: TypeAlias = Literal[
    "healthy",  # fresh
    "idle",  # fresh, and nothing has come in for a while
    "finished",  # its contents are complete for ever
    "starting",  # its contents are being computed for the first time
    "catching up",  # late, and less so every moment
    "waiting",  # for an input that is not well
    "paused",  # stopped on request
    "falling behind",  # late, and not getting better
    "unreadable",  # reads of it fail: it has errors, or is made of what has
    "frozen",  # a part of an input cannot be read
    "stalled",  # it has failed, or cannot be created
]
"""The verdict on an object, by the rules of introspection."""

Tone: TypeAlias = Literal["good", "idle", "wait", "bad"]
"""Bad needs a person; wait passes by itself, or is told of at another object."""

VERDICTS: Final[Mapping[Verdict, Tone]] = {
    "healthy": "good",
    "idle": "idle",
    "finished": "good",
    "starting": "wait",
    "catching up": "wait",
    "waiting": "wait",
    "paused": "idle",
    "falling behind": "bad",
    "unreadable": "bad",
    "frozen": "bad",
    "stalled": "bad",
}
"""All verdicts with their tones, from the best to the worst."""

FAILED_VERDICTS: Final[frozenset[Verdict]] = frozenset({"stalled", "frozen", "unreadable"})
"""Verdicts on what does not work, where others are on what is late or has not begun."""

"""A situation is all that the verdict on one object depends on, as plain values.

    Situation("delays", "view", inputs=("flights",), lag_ms=800)

Rules see nothing else, so that every rule can be shown by a table of situations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shardline.app.introspection.verdicts.trend import Direction
from shardline.app.protocol.object_state import VERDICTS, ShownPhase, Status, Tone, Verdict

__all__ = ["FRESH_MS", "Backlog", "Judged", "Judgement", "Situation"]

FRESH_MS: Final = 5_000
"""An object is fresh if its lag behind the clock is no more than this."""


@dataclass(frozen=True, slots=True)
class Backlog:
    """The backlog outside of a source; None for what the source cannot tell.

    Attributes:
        files: Files that were found and not read yet.
        size_bytes: Their size.
        offsets: Messages behind the newest one.
        direction: Which way it goes.
        remaining_ms: When it is read, at the present speed; None if it does not shrink.
    """

    files: int | None = None
    size_bytes: int | None = None
    offsets: int | None = None
    direction: Direction = "unknown"
    remaining_ms: int | None = None

    @property
    def is_empty(self) -> bool:
        """True if nothing waits that the source can tell of."""
        return not (self.files or self.offsets)


@dataclass(frozen=True, slots=True)
class Situation:
    """Present facts of one object.

    Attributes:
        name: Of the object.
        kind: source, view, index, sink or subscribe.
        inputs: The objects that it reads.
        created: False while it waits to be created; then `error` says what keeps it from that.
        phase: Where the lane has it.
        status: As in relation `objects`.
        error: What is wrong, in a sentence; "" if nothing is.
        hint: What to do about it.
        failures: Failures in a row, by which it was stopped.
        retry_in_ms: When it is started again; None if it is not suspended.
        errors: Live errors of its own contents.
        lost: What its shards lack of what they name, in words; "" if nothing.
        finished: True if its output is complete for ever.
        written: True if anything is settled in its output.
        hydrated: True if it has caught up once since its start.
        lag_ms: Behind the clock; None if that is not known.
        behind_ms: Behind its slowest input; None if it has none.
        slowest_input: That input.
        lag_direction: Which way its lag goes.
        lag_remaining_ms: When the lag is gone, at the present speed.
        fresh_ms: Up to which lag it counts as fresh.
        backlog: What waits at a source outside.
        quiet_ms: Since rows have come or gone the last time, or since it runs if none has; None if
            that is not known.
        step_ms: How long its last micro-batch took.
        slowest_phase: The phase of it that took longest.
        ahead: Objects that hydrate at the moment, if it waits for its turn to do so.
        written_elsewhere: True if it is a sink that the application writes which this one follows.
    """

    name: str
    kind: str
    inputs: tuple[str, ...] = ()
    created: bool = True
    phase: ShownPhase = "running"
    status: Status = "running"
    error: str = ""
    hint: str = ""
    failures: int = 0
    retry_in_ms: int | None = None
    errors: int = 0
    lost: str = ""
    finished: bool = False
    written: bool = True
    hydrated: bool = True
    lag_ms: int | None = 0
    behind_ms: int | None = None
    slowest_input: str | None = None
    lag_direction: Direction = "unknown"
    lag_remaining_ms: int | None = None
    fresh_ms: int = FRESH_MS
    backlog: Backlog = Backlog()
    quiet_ms: int | None = None
    step_ms: int | None = None
    slowest_phase: str = ""
    ahead: tuple[str, ...] = ()
    written_elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict on one object.

    Attributes:
        verdict: In one word, or two.
        because: Why, in one or two sentences.
        to_do: What a person can do; "" if nothing is to be done here.
        blame: The object that is the cause; "" if it is this one, or if nothing is wrong.
        ready_in_ms: When it is expected to be fresh; None if that cannot be said.
        lasts: True if it stays so until somebody does something: to wait for it is of no use.
        errors: Live errors that make reads fail: its own, and those of all that it is made of.
        unreadable: The objects that have them.
    """

    verdict: Verdict
    because: str = ""
    to_do: str = ""
    blame: str = ""
    ready_in_ms: int | None = None
    lasts: bool = False
    errors: int = 0
    unreadable: tuple[str, ...] = ()

    @property
    def tone(self) -> Tone:
        """The tone of the verdict."""
        return VERDICTS[self.verdict]


@dataclass(frozen=True, slots=True)
class Judged:
    """All objects of a runtime as of one moment, judged.

    Attributes:
        at_ms: The moment.
        revision: Of the facts that were judged.
        situations: By name.
        judgements: By name.
    """

    at_ms: int
    revision: int
    situations: Mapping[str, Situation]
    judgements: Mapping[str, Judgement]

"""Readable times are those of a sink's input that a query may show; no other reaches a target.

While an object, or one that it is made of, has live errors, its contents lack rows, and a query of
it is refused. A target that was given them would show what no query ever does. So a sink ends its
micro-batch where errors begin, and waits there, stalled, until they have gone:

    time            10      20      30      40
    errors                  from 20 on      none from 40 on
    updates         +a      +b      -b +c   +d
    target has      +a      nothing         +c +d, all of them at 40

What has changed meanwhile comes with the first readable time, added up: a subscription that is made
anew sees its contents change then, and at no time in between.

Invariants:
    A time is readable if no error shard has live errors then, and all of them can be read there.
    The since hold of the sink stands on each error shard as well, at or before what its target has:
    a sink that was stopped for long still finds out at which times its input had errors. One that
    is made while the sink is stopped may have a later history only; times before that are passed
    over, as nothing is known of them.
    Errors of what is no input any more are let go, with the hold: their shard may never move again.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from shardline.app.execution.live_errors import Catalog, InputErrors, LiveErrors
from shardline.app.execution.shard_follower import RELEASE_EVERY_MS, ShardFollower
from shardline.app.protocol.objects import errors_shard
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Determinate, InvalidUsage, ShardError
from shardline.datasource.frontier import Frontier, meet
from shardline.datasource.since_hold import SinceHandle
from shardline.datasource.state import ShardState

__all__ = ["ReadableSpan", "ReadableTimes"]

_UNSETTLED_MS: Final = 5_000
"""For so long errors that may still come are nothing to speak of: they are settled right before
the input's own upper moves, and what reads both sees them a moment apart at most."""


@dataclass(frozen=True, slots=True)
class ReadableSpan:
    """The readable times at the beginning of an interval.

    Attributes:
        first: The first readable time; None if the interval has none. Updates before it take effect
            then.
        upper: Where they end; the interval's own end if nothing is wrong up to there.
        errors: Those that begin at `upper`, or, without a readable time, the first ones.
    """

    first: int | None
    upper: Frontier
    errors: LiveErrors | None


class ReadableTimes(InputErrors):
    """The errors of a sink's input. A context manager that gives up its leases, and no hold.

    Its holds are a capability, too: without them a sink that was stopped would not know when its
    input had errors. One that is not given up keeps the history of errors for ever.

    Attributes:
        on: The input.
    """

    def __init__(self, client: ShardClient, on: str, catalog: Catalog, hold: str) -> None:
        """Nothing is read yet.

        Args:
            client: Of the location.
            on: The sink's input.
            catalog: Has the inputs of that.
            hold: Name of the sink's since hold.
        """
        super().__init__(client, on, catalog, purpose=hold)
        self.on = on
        self._hold = hold
        self._states: Mapping[str, ShardState] = {}
        self._holds: dict[str, SinceHandle] = {}
        self._released_ms = 0.0
        self._unsettled_ms: float | None = None

    @override
    def _open(self, name: str, since: int) -> ShardFollower:
        """Hold an error shard from `since` on, or from where its history begins."""
        try:
            held = self._client.hold(name, self._hold, since=since, purpose=self._purpose)
        except InvalidUsage:
            held = self._client.hold(name, self._hold, purpose=self._purpose)
        self._holds[name] = held
        return ShardFollower.open(
            self._client, name, since=max(since, held.since.time or 0), purpose=self._purpose
        )

    @override
    def _let_go(self, of: str) -> None:
        """Give up the hold as well: nobody else would, before the sink is dropped.

        Raises:
            Fenced: Another incarnation has taken the hold over.
        """
        # Before the lease: if this fails, the shard is still known, and let go at the next look.
        with suppress(InvalidUsage):  # a shard that is gone holds nothing
            self._holds[errors_shard(of)].expire()
        del self._holds[errors_shard(of)]
        super()._let_go(of)

    def span(self, lower: int, upper: Frontier) -> ReadableSpan | None:
        """The readable times of an interval; None if errors of it may still come.

        To be called after the input was looked at.

        Args:
            lower: First time of the interval.
            upper: Where it ends.
        """
        states = self._states = self.look(lower)
        if meet([upper, *(state.upper for state in states.values())]) < upper:
            if self._unsettled_ms is None:
                self._unsettled_ms = self._client.clock.elapsed_ms()
            return None
        self._unsettled_ms = None
        known = max([lower, *(state.since.time or 0 for state in states.values())])
        if not upper.is_beyond(known):
            return ReadableSpan(None, upper, None)
        first = self.first_without(states, known, upper)
        if first is None:
            return ReadableSpan(None, upper, self.first(states, known, upper))
        errors = self.first(states, first, upper)
        return ReadableSpan(first, upper if errors is None else Frontier(errors.at), errors)

    def error(self, span: ReadableSpan) -> ShardError:
        """The error of the times that nobody may read, from where the readable ones end."""
        if span.errors is not None:
            return span.errors.error()
        return Determinate(
            f"it is not known whether '{self.on}' had errors before {span.upper}",
            code="ERRORS_UNKNOWN",
            hint="nothing: the sink goes on once its input has come to times that are known",
        )

    def unsettled(self, upper: Frontier) -> Determinate | None:
        """The error of errors that `span` waits for; None while it has not done so for long.

        Args:
            upper: As for the last `span`.
        """
        since_ms = self._unsettled_ms
        if since_ms is None or self._client.clock.elapsed_ms() - since_ms < _UNSETTLED_MS:
            return None
        # Without times: they move on, and the error would be another one at each look.
        behind = [of for of, state in self._states.items() if state.upper < upper]
        return Determinate(
            f"errors of {', '.join(map(repr, sorted(behind)))} are not settled up to times that "
            f"'{self.on}' has come to",
            code="ERRORS_UNSETTLED",
            hint="see whether it still runs; the sink goes on once its errors shard has come as "
            "far",
        )

    def release(self, time: int) -> None:
        """Let history before `time` be compacted, by leases and holds.

        Raises:
            Fenced: Another incarnation has taken the holds over.
            LeaseExpired: A lease or a hold is gone.
        """
        self.release_before(time, self._states)
        now_ms = self._client.clock.elapsed_ms()
        if now_ms - self._released_ms >= RELEASE_EVERY_MS:
            self._released_ms = now_ms
            for held in self._holds.values():
                held.downgrade(Frontier(time))

"""Repeats an append until its outcome is known, or says that it cannot be known.

Two things keep an append from being done by one commit. Its answer may be lost: it may have
happened or not, and to take either for granted would double rows or lose them. Or the shard's state
may be full of inline parts, which must be moved to the blob store first. The one is `run`, the
other is `_apply`: an attempt to make room is never counted as an attempt to append.

What makes the repetition harmless is the writer's entry in the shard's state: the number of its
last append. An attempt that finds its own number there has happened before. Only an anonymous
writer can be forgotten by the shard, so its repetition has limits: see `_append_remembered`.

Invariants:
    An error other than `Indeterminate` is raised only if no attempt of the call has happened, nor
        may happen yet.
    Parts that were flushed on the way are among the uncommitted ones before they are asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, Protocol, TypeAlias

import msgspec

from shardline.datasource.clock import Clock
from shardline.datasource.errors import Determinate, Indeterminate, InvalidUsage, ShardError
from shardline.datasource.maintenance.make_room import make_room
from shardline.datasource.parts.stage import Stager, UncommittedParts
from shardline.datasource.shard.batch import Run
from shardline.datasource.shard.commands.append import (
    Abandoned,
    AlreadyCommitted,
    Append,
    Appended,
    AppendResult,
    InlineBackpressure,
    OtherRange,
    Redirected,
    StagedTooLong,
    UpperMismatch,
    compare_and_append,
)
from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.state import Registration, ShardState

__all__ = ["AppendAttempts", "Decided", "Redirect"]

Decided: TypeAlias = (
    Appended | AlreadyCommitted | OtherRange | UpperMismatch | StagedTooLong | Abandoned
)
"""All that an append can come to, once that is known."""

Redirect: TypeAlias = Callable[[Append, Registration], Decided]
"""Makes an append by a transaction of one shard. Idempotent; errors as those of an append.

If the number is counted, an answer that names another attempt, or none, says that the append
certainly has not happened."""

_ATTEMPTS_MAX: Final = 3
"""How often one call repeats an append whose outcome is unknown; each attempt waits for the commit
timeout."""


class _Command(Protocol):
    def __call__(
        self, state: ShardState, now_ms: int, *, append: Append
    ) -> Transition[AppendResult]: ...


@dataclass(slots=True)
class AppendAttempts:
    """The attempts of one append.

    Attributes:
        machine: The shard's.
        stager: Makes what writes inline parts to the blob store.
        parts: Takes the parts that are flushed on the way, which are uncommitted until the end.
        redirect: Takes appends to a registered shard; None refuses them.
        request: The append; its number is the same in each attempt. Parts of it that were flushed
            once are not flushed again.
    """

    machine: Machine
    stager: Callable[[], Stager]
    parts: UncommittedParts
    redirect: Redirect | None
    request: Append

    def run(self) -> tuple[Decided, tuple[Run, ...]]:
        """Repeat the append until its outcome is known.

        Returns:
            The outcome, and the runs as they were asked to be appended in the end.

        Raises:
            Indeterminate: Also when only the last attempt certainly did not happen: an earlier
                one may have, or may yet.
        """
        unknown: Indeterminate | None = None
        clock, known = self.machine.clock, self.machine.cached
        first = partial(_append_remembered, clock, clock.elapsed_ms())
        # What was known before the first attempt: while nothing came after it, that attempt has
        # not happened. Taken here, since afterwards the cache may have its record.
        repeated = partial(first, doubted=-1 if known is None else known.seqno)
        for _ in range(_ATTEMPTS_MAX):
            try:
                outcome = self._apply(first if unknown is None else repeated)
            except Indeterminate as error:
                unknown = error
            except ShardError as error:
                # It certainly did not happen, this time; of the attempt before, nobody knows.
                if unknown is not None:
                    raise unknown from error
                raise
            else:
                if unknown is not None and self._leaves_earlier_unknown(outcome):
                    raise unknown
                return outcome, self.request.runs
        assert unknown is not None
        raise unknown

    def _apply(self, command: _Command) -> Decided:
        """One attempt: makes room for inline parts, or leaves the append to a transaction."""
        outcome = self.machine.apply(partial(command, append=self.request))
        if isinstance(outcome, InlineBackpressure):
            make_room(self.machine)
            outcome = self.machine.apply(partial(command, append=self.request))
        if isinstance(outcome, InlineBackpressure):
            # What is inline cannot be moved, or others filled the room at once.
            self.request = replace(self.request, runs=self._flushed(self.request.runs))
            # Before the commit: if it certainly does not happen, these are to be deleted, too.
            self.parts.add(self.request.runs)
            outcome = self.machine.apply(partial(command, append=self.request))
            assert not isinstance(outcome, InlineBackpressure), "nothing inline is left"
        if isinstance(outcome, Redirected):
            return self._redirected(outcome.registration)
        return outcome

    def _redirected(self, registration: Registration) -> Decided:
        if self.redirect is not None:
            return self.redirect(self.request, registration)
        raise InvalidUsage(
            f"shard '{self.machine.name}' is registered with the transactions shard "
            f"'{registration.txns}': direct writes to it are refused",
            code="SHARD_REGISTERED",
            hint="write in a transaction (client.transaction()), by Spark, or forget it first "
            "(client.transactions().forget)",
        )

    def _leaves_earlier_unknown(self, outcome: Decided) -> bool:
        """True if what came of one attempt says nothing of an earlier one of the same call."""
        if isinstance(outcome, OtherRange):
            # It may have arrived before the writer went on to greater numbers.
            return not outcome.attempt
        if isinstance(outcome, AlreadyCommitted):
            # The same; a number of the caller's own is committed, whichever attempt it was.
            return self.request.is_counted and not outcome.attempt
        # It began in time, and may yet arrive.
        return isinstance(outcome, StagedTooLong)

    def _flushed(self, runs: tuple[Run, ...]) -> tuple[Run, ...]:
        """`runs` with every inline part written to the blob store."""
        stager = self.stager()
        return tuple(
            msgspec.structs.replace(run, parts=tuple(stager.flush(part) for part in run.parts))
            for run in runs
        )


def _append_remembered(
    clock: Clock,
    began_ms: float,
    state: ShardState,
    now_ms: int,
    *,
    append: Append,
    doubted: int | None = None,
) -> Transition[AppendResult]:
    """As `compare_and_append`, if the shard would still know of an earlier attempt.

    An anonymous writer is forgotten some time after its append, by the clock of whoever commits.
    One that was suspended for longer, with an answer on its way, must not take that for "it did not
    happen"; nor one whose clock is behind, whom any other commit may forget at once.

    Args:
        doubted: Newest seqno that was known before an attempt of unknown outcome; None if there
            was none. While nothing came after it, that attempt has not happened either.

    Raises:
        Determinate: This attempt comes too late; earlier ones may have happened.
    """
    late_ms = clock.elapsed_ms() - began_ms
    forgotten = not append.durable and append.writer not in state.writers
    passed = doubted is not None and state.seqno > doubted
    if forgotten and (passed or late_ms > append.lease_ms / 2):
        raise Determinate(
            f"an append to shard '{state.name}' was begun {late_ms:.0f} ms ago, and its writer is "
            "forgotten",
            code="WRITER_FORGOTTEN",
            hint="append under a writer's name: such appends can be repeated at any time",
        )
    return compare_and_append(state, now_ms, append=append)

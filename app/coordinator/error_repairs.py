"""Error repairs show the bad rows of objects, and have errors of sources taken away.

    repairs = ErrorRepairs(client, runtime, objects, timeout_ms)
    repairs.show("delays")                          the bad rows that its reads fail with
    repairs.repair("flights", "retract", as_of, ["3f9c2a1b"])

What a person asks for is a command in the lane's order, like all that changes an object. A thread
carries out what is pending there, the oldest of each source first: so a repair that a crash has
interrupted is carried out by the next start, or by the runtime that has taken over. Its position is
its number, by which the shard knows a repetition (`shardline.app.storage.repair`).

Invariants:
    Only the holder of the lane repairs, one repair at a time: their numbers reach a shard in order.
    A repair stays pending until it is done or can never be. A store that does not answer, or a
    micro-batch in its way, is a reason to try again, and keeps back later ones of its source.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotDone
from dataclasses import dataclass
from typing import Final

from shardline.app.coordinator.objects import Objects, read_only_error
from shardline.app.coordinator.operator_commands import OPERATOR, record_command
from shardline.app.execution.causes import encodable
from shardline.app.lane.commands import Repaired, RepairErrors
from shardline.app.protocol.graph import reachable_names
from shardline.app.protocol.objects import (
    Description,
    SourceDescription,
    errors_shard,
    inputs_of,
)
from shardline.app.runtime.runtime import Runtime
from shardline.app.storage.repair import (
    REPAIR,
    Act,
    BadRows,
    Repair,
    bad_rows,
    repair_errors,
    skipped_rows,
)
from shardline.datasource.background import PeriodicThread
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import (
    Fenced,
    Indeterminate,
    InvalidUsage,
    ShardError,
    unknown_name,
)

__all__ = ["ErrorRepairs", "SourceErrors", "errors_of", "source_names"]

_log = logging.getLogger(__name__)

_RETRY_MS: Final = 1000.0
"""Pause before a repair that failed is tried again, and between two looks of a follower."""

_REST_MS: Final = 60_000.0
"""Pause while nothing is pending: what comes into the order wakes."""

_OUTCOMES_MAX: Final = 1000
"""Outcomes that are kept for those who asked; of more, the oldest were asked for by nobody."""

_LOOK_S: Final = 0.5
"""Pause between two looks, while it is waited for the store, at whether the application ends."""


@dataclass(frozen=True, slots=True)
class SourceErrors:
    """The bad rows of one source.

    Attributes:
        source: Its name.
        live: Errors: reads of it fail while there are any.
        skipped: Rows that were left out.
    """

    source: str
    live: BadRows
    skipped: BadRows


def source_names(name: str, objects: Mapping[str, Description]) -> list[str]:
    """The sources that an object is made of, itself included, sorted."""
    upstream = reachable_names(name, lambda one: inputs_of(objects[one]) if one in objects else ())
    every = sorted({name, *upstream})
    return [one for one in every if isinstance(objects.get(one), SourceDescription)]


def errors_of(
    client: ShardClient, sources: Iterable[str], ids: Collection[str] = ()
) -> list[SourceErrors]:
    """The bad rows of sources, those with these ids among them; of what has begun."""
    return [
        SourceErrors(one, bad_rows(client, one, ids), skipped_rows(client, one))
        for one in sources
        if client.exists(errors_shard(one))
    ]


class ErrorRepairs:
    """See the module. Safe to use from any thread."""

    def __init__(
        self,
        client: ShardClient,
        runtime: Runtime,
        objects: Objects,
        timeout_ms: float,
        wake: threading.Event,
    ) -> None:
        """Carry nothing out yet.

        Args:
            client: Of the location.
            runtime: Whose lane has the order.
            objects: The objects of the application.
            timeout_ms: How long to wait for a repair.
            wake: Set whenever the order has something new.
        """
        self._client = client
        self._runtime = runtime
        self._objects = objects
        self._timeout_ms = timeout_ms
        self._news = threading.Condition()
        self._outcomes: dict[int, int | ShardError | None] = {}
        # A look that fails is logged, and another one is taken: without this thread nothing could
        # be repaired.
        self._thread = PeriodicThread(
            "error-repair", self._carry_out_pending, client.clock, retry_ms=_RETRY_MS, wake=wake
        )

    def start(self) -> None:
        """Begin to carry out what is pending."""
        self._thread.start()

    def stop(self) -> None:
        """Carry nothing more out; what is pending stays so."""
        self._thread.cancel()
        # After the flag: those who wait for a repair look at it when they are woken.
        with self._news:
            self._news.notify_all()
        self._thread.stop()

    def show(self, name: str, ids: Collection[str] = ()) -> list[SourceErrors]:
        """The bad rows of a source, or of all sources that an object is made of; see `bad_rows`.

        Raises:
            InvalidUsage: There is no such object.
        """
        running = self._objects.running()
        if name not in running:
            raise unknown_name("object", name, [*running, *self._objects.waiting()])
        return errors_of(self._client, source_names(name, running), ids)

    def repair(self, name: str, act: Act, as_of: int, errors: Sequence[str]) -> int | None:
        """Take errors of a source away, and wait until it is done.

        Args:
            name: Of the source.
            act: What becomes of the rows.
            as_of: Only errors that were live at this time are meant.
            errors: Ids of those that are meant; empty for all.

        Returns:
            How many errors were retracted; None if that is not known any more.

        Raises:
            InvalidUsage: There is no such source or error; or this runtime only follows another.
            Indeterminate: `REPAIR_PENDING`: it is recorded and not done in time, and will be, by
                the next holder if this one ends; `NOT_RECORDED`: it may be recorded.
            ShardError: Another runtime has taken over.
        """
        self._objects.check_in_charge()
        if self._objects.follows:
            raise read_only_error("its sources are that one's")
        self._check_source(name)
        command = RepairErrors(id=name, act=act, as_of=as_of, errors=tuple(errors))
        deadline_ms = self._client.clock.elapsed_ms() + self._timeout_ms
        index = record_command(self._runtime.lane, command, self._timeout_ms)
        with self._news:
            self._thread.wake.set()
            while index not in self._outcomes:
                left_ms = deadline_ms - self._client.clock.elapsed_ms()
                if left_ms <= 0 or self._thread.stopping.is_set():
                    raise _pending_error(name)
                self._news.wait(left_ms / 1000)
            outcome = self._outcomes.pop(index)
        if isinstance(outcome, ShardError):
            raise outcome
        return outcome

    def _check_source(self, name: str) -> None:
        running = self._objects.running()
        sources = [n for n, one in running.items() if isinstance(one, SourceDescription)]
        if name in sources:
            return
        if name in running:
            raise InvalidUsage(
                f"'{name}' is no source: its errors are those of what it reads",
                code="NO_SOURCE",
                hint=f"`errors {name}` names the source",
            )
        raise unknown_name("source", name, sources)

    # -- the thread ------------------------------------------------------------------------------

    def _carry_out_pending(self) -> float:
        lane = self._runtime.lane
        if self._objects.follows or lane.lost is not None:
            return _RETRY_MS
        stuck: set[str] = set()
        for index, command in sorted(lane.state.repairs.items()):
            if self._thread.stopping.is_set():
                break
            # Oldest first, and none of a source before the one before it is done: its shard takes
            # numbers of one writer in order, and would take the older one for done.
            if command.id not in stuck and not self._carry_out(index, command):
                stuck.add(command.id)
        return _RETRY_MS if stuck else _REST_MS

    def _carry_out(self, index: int, command: RepairErrors) -> bool:
        """Carry a repair out and have its end recorded; False if it stays pending."""
        repair = Repair(command.act, command.as_of, command.errors)
        outcome: int | ShardError | None
        try:
            self._runtime.lane.check_fence()
            # Positions begin at 0, numbers of a writer at 1.
            outcome = repair_errors(
                self._client, command.id, repair, writer=REPAIR, number=index + 1
            )
        except InvalidUsage as error:
            outcome = error
        except Exception as error:  # noqa: BLE001 - what one source cannot do keeps back no other
            level = logging.INFO if isinstance(error, Fenced) else logging.WARNING
            context = {"source": command.id, "error": str(error)}
            trace = not isinstance(error, ShardError | OSError)
            _log.log(
                level, "errors are not repaired yet", exc_info=trace, extra={"context": context}
            )
            return False
        why = encodable(str(outcome)) if isinstance(outcome, ShardError) else ""
        try:
            ended = Repaired(command.id, index, why)
            if not self._is_recorded(self._runtime.lane.offer(OPERATOR, ended, wait=False)):
                return False
        except ShardError as error:
            # The next holder finds it done by its number.
            _log.info(
                "the end of a repair was not recorded", extra={"context": {"why": str(error)}}
            )
            return False
        with self._news:
            self._outcomes[index] = outcome
            for old in sorted(self._outcomes)[:-_OUTCOMES_MAX]:
                del self._outcomes[old]
            self._news.notify_all()
        return True

    def _is_recorded(self, position: Future[int]) -> bool:
        """Wait until the order has it; False if the application ends before."""
        while True:
            try:
                position.result(_LOOK_S)
            except NotDone:
                if self._thread.stopping.is_set():
                    return False
            else:
                return True


def _pending_error(name: str) -> Indeterminate:
    return Indeterminate(
        f"the repair of '{name}' is not done yet",
        code="REPAIR_PENDING",
        hint=f"it is recorded and tried again; `errors {name}` shows when it is done",
    )

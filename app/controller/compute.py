"""The compute controller holds the desired dataflows, and passes on peeks and subscriptions.

Before a dataflow is created a *hold* is taken on each of its inputs at its `as_of`: otherwise
compaction could pass that time before the dataflow reads. It is given up when the dataflow reads
under holds of its own, which an input frontier beyond the `as_of` shows. (Materialize's read holds,
made of the shard's since holds.)

The runtime answers by name, and may not have heard of a change or drop when it did. So each
creation has a number, which comes back with what is reported: what has another one is of a former
dataflow of the name, and ignored. Taken for the new one's, its frontier would end the new one's
holds before it has any of its own.

Invariants:
    From its creation on, a dataflow's inputs can be read at its `as_of` or its own frontier.
    Each peek is answered, once: by the runtime, or by an error when the answer was lost.
    A subscription goes on over lost connections, and ends once: no reader waits for ever.
"""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from typing_extensions import override

from shardline.app.controller.controller import Controller
from shardline.app.controller.subscription import Subscription
from shardline.app.execution.ending_holds import TRIED_AGAIN
from shardline.app.protocol.compute import (
    AllowCompaction,
    CancelPeek,
    ComputeCommand,
    ComputeResponse,
    CreateDataflow,
    CreateInstance,
    Frontiers,
    Hydration,
    Peek,
    PeekResponse,
    Schedule,
    SubscribeDropped,
    SubscribeResponse,
)
from shardline.app.protocol.objects import Dataflow, SubscribeDescription
from shardline.app.transport.client import Client
from shardline.datasource.clock import Clock, IdGenerator
from shardline.datasource.errors import Determinate, ShardError

__all__ = ["ComputeController", "Hold", "Subscription"]

_log = logging.getLogger(__name__)

_LOOK_MS: Final = 200.0
"""Between two looks at `cancelled`, which is the caller's own event: it wakes nobody here."""


class Hold(Protocol):
    """A capability that keeps an input readable at a dataflow's as_of.

    Losing it before the dataflow has its own means that the dataflow may not be able to begin. One
    that is never given up keeps the input's history for ever.
    """

    def expire(self) -> bool:
        """Give it up; False if it was gone already."""
        ...


@dataclass(slots=True)
class _DesiredDataflow:
    """A desired dataflow, and the holds that its start needs; none once it has its own."""

    command: CreateDataflow
    holds: list[Hold]


@dataclass(slots=True)
class _Waiting:
    """A caller of `peek` that waits for the answer."""

    peek: Peek
    done: threading.Event = field(default_factory=threading.Event)
    response: PeekResponse | None = None
    error: ShardError | None = None


class ComputeController(Controller[ComputeCommand, ComputeResponse]):
    """Sends the desired dataflows, over one connection at a time.

    Attributes:
        frontiers: The newest frontiers of each object that were reported.
        hydrated: By object: True once it has hydrated.
    """

    def __init__(
        self,
        connect: Callable[[], Client[ComputeCommand, ComputeResponse]],
        clock: Clock,
        ids: IdGenerator,
        *,
        hold: Callable[[Dataflow, int], list[Hold]],
        writes: bool = True,
        vacant: Callable[[], bool] | None = None,
        ended: Callable[[], ShardError | None] = lambda: None,
    ) -> None:
        """Make a controller without objects.

        Args:
            connect: As of `Link`.
            clock: Of the process.
            ids: Source of the names of peeks and subscriptions.
            hold: Takes holds on the inputs of a dataflow at its `as_of`.
            writes: Allow writes at once; otherwise `allow_writes` does.
            vacant: As of `Link`.
            ended: As of `Link`.
        """
        self.frontiers: dict[str, Frontiers] = {}
        self.hydrated: dict[str, bool] = {}
        self._desired: dict[str, _DesiredDataflow] = {}
        self._waiting: dict[str, _Waiting] = {}
        self._subscriptions: dict[str, Subscription] = {}
        self._creations = itertools.count(1)
        self._clock = clock
        self._ids = ids
        self._hold = hold
        super().__init__(connect, clock, "compute", writes=writes, vacant=vacant, ended=ended)

    @override
    def stop(self) -> None:
        """Disconnect; objects run on, peeks that wait end with an error, subscriptions end."""
        super().stop()
        with self._link.lock:
            for waiting in self._waiting.values():
                waiting.done.set()
            for subscription in self._subscriptions.values():
                subscription.drop()
            for wanted in self._desired.values():
                _release(wanted)

    def desired(self) -> Mapping[str, Dataflow]:
        """The desired dataflows by name, without subscriptions."""
        with self._link.lock:
            found = {name: one.command.dataflow for name, one in self._desired.items()}
        return {n: d for n, d in found.items() if not isinstance(d, SubscribeDescription)}

    def run(self, dataflow: Dataflow, as_of: int) -> None:
        """Create a dataflow, or change it; one that is the same already stays as it is."""
        with self._link.lock:
            known = self._desired.get(dataflow.name)
            if known is not None and known.command.dataflow == dataflow:
                return
            holds = self._hold(dataflow, as_of)
            self._create(self._creation(dataflow, as_of), holds)

    def _creation(self, dataflow: Dataflow, as_of: int) -> CreateDataflow:
        """The command for a new creation of a dataflow."""
        return CreateDataflow(dataflow=dataflow, as_of=as_of, creation=next(self._creations))

    def _create(self, command: CreateDataflow, holds: list[Hold]) -> None:
        """Send a dataflow for which `holds` were taken; those of the one before are released."""
        # New handles before the old ones go. On an input of both definitions the new handle takes
        # the hold over, and the old one's release changes nothing; released first, the input would
        # be unprotected in between.
        known = self._desired.get(command.id)
        if known is not None:
            _release(known)
        self._desired[command.id] = _DesiredDataflow(command, holds)
        self._link.send(command)
        self._link.send(Schedule(command.id))

    def adopt(self, dataflow: Dataflow, as_of: int, *, takes_hold: bool = True) -> None:
        """Name a dataflow that the replica runs already; one that is known stays as it is.

        Unless the replica has created it anew since, from a later time on.

        Args:
            dataflow: As it runs.
            as_of: With which it was created. Where its history is gone by now, the dataflow has
                begun, and has holds of its own.
            takes_hold: False where another runtime runs it as well: what it holds is its own.
        """
        with self._link.lock:
            known = self._desired.get(dataflow.name)
            if known is not None and (
                known.command.dataflow != dataflow or known.command.as_of >= as_of
            ):
                return
            holds: list[Hold] = []
            try:
                # Its start hold may have been left by a controller that is gone, and would stay.
                holds = self._hold(dataflow, as_of) if takes_hold else []
            except ShardError:
                context = {"id": dataflow.name}
                _log.debug("no start hold to take over", exc_info=True, extra={"context": context})
            self._create(self._creation(dataflow, as_of), holds)

    def reads_by_itself(self, name: str) -> bool:
        """True if a dataflow has shown that it reads under holds of its own, or is not wanted."""
        with self._link.lock:
            wanted = self._desired.get(name)
            return wanted is None or not wanted.holds

    def drop(self, names: Iterable[str]) -> None:
        """Drop dataflows; those that are not there are left out."""
        with self._link.lock:
            for name in names:
                wanted = self._desired.pop(name, None)
                self.frontiers.pop(name, None)
                self.hydrated.pop(name, None)
                if wanted is not None:
                    _release(wanted)
                    self._link.send(AllowCompaction(name, None))

    # -- reads -----------------------------------------------------------------------------------

    def peek(
        self,
        query: str,
        inputs: tuple[str, ...],
        as_of: int,
        *,
        limit_bytes: int,
        timeout_ms: float,
        relations_as_of: int | None = None,
        cancelled: threading.Event | None = None,
    ) -> PeekResponse:
        """Run a query once, and wait for its answer.

        Args:
            query: SQL.
            inputs: Objects that it reads.
            as_of: The time at which it reads.
            limit_bytes: Largest result.
            timeout_ms: How long to wait; the peek is cancelled then.
            relations_as_of: The time of relations; None for the present.
            cancelled: May be set to cancel it, which is seen within 200 ms.

        Raises:
            Determinate: There was no answer in time; or a newer controller is connected.
            ShardError: The runtime has ended, by this error.
        """
        name = self._ids.token().hex()
        peek = Peek(
            uuid=name,
            query=query,
            inputs=inputs,
            as_of=as_of,
            limit_bytes=limit_bytes,
            relations_as_of=relations_as_of,
        )
        waiting = _Waiting(peek)
        with self._link.lock:
            self._link.check_in_charge()
            self._waiting[name] = waiting
            self._link.send(peek)
        try:
            given_up = self._wait_for_answer(waiting, timeout_ms, cancelled)
            if waiting.error is not None:
                # One error for all who wait: each raise would add to its traceback.
                raise waiting.error.with_traceback(None)
            if waiting.response is not None and not given_up:
                return waiting.response
            raise Determinate(
                "the query was given up before it was answered"
                if given_up or waiting.done.is_set()
                else f"the query was not answered within {timeout_ms:.0f} ms",
                code="PEEK_TIMEOUT",
                hint="ask for less, let it take longer (runtime.query_timeout, or the call's own "
                "timeout_ms), or look at `status`: an input may be behind",
            )
        finally:
            with self._link.lock:
                self._waiting.pop(name, None)
                # Also after the answer: the runtime forgets the peek by it.
                self._link.send(CancelPeek(name))

    def _wait_for_answer(
        self, waiting: _Waiting, timeout_ms: float, cancelled: threading.Event | None
    ) -> bool:
        """Wait for an answer, the time-out, or `cancelled`; True if it was cancelled."""
        deadline = self._clock.elapsed_ms() + timeout_ms
        while cancelled is None or not cancelled.is_set():
            left = deadline - self._clock.elapsed_ms()
            look_ms = left if cancelled is None else min(left, _LOOK_MS)
            if left <= 0 or self._clock.wait(waiting.done, look_ms):
                break
        return cancelled is not None and cancelled.is_set()

    def subscribe(
        self,
        on: str,
        as_of: int,
        *,
        snapshot: bool = True,
        up_to: int | None = None,
        shard: str = "",
    ) -> Subscription:
        """Follow an object's changes; arguments as of `SubscribeDescription`."""
        name = self._fresh_name()
        described = SubscribeDescription(
            name=name, on=on, snapshot=snapshot, up_to=up_to, shard=shard
        )
        subscription = Subscription(described, as_of, self._acknowledge, self._unsubscribe)
        with self._link.lock:
            self._link.check_in_charge()
            self.run(described, as_of)
            self._subscriptions[name] = subscription
        return subscription

    def knows(self, subscription: str) -> bool:
        """True if a subscription is one of this controller's, by its present name."""
        with self._link.lock:
            return subscription in self._desired

    def _fresh_name(self) -> str:
        return f"t{self._ids.token().hex()}"

    def _acknowledge(self, subscription: Subscription, upper: int) -> None:
        with self._link.lock:
            if subscription.name in self._desired:
                # The runtime's permission to send more.
                self._link.send(AllowCompaction(subscription.name, upper))

    def _unsubscribe(self, subscription: Subscription) -> None:
        with self._link.lock:
            self._subscriptions.pop(subscription.name, None)
            self.drop([subscription.name])

    def _resume_subscriptions(self) -> None:
        """Create each subscription again after its last batch, under a new name.

        A new name, because batches of the old one may still be under way: under the same name they
        could not be told from those that are to come.
        """
        for name, subscription in list(self._subscriptions.items()):
            described, as_of = subscription.continuation(self._fresh_name())
            holds: list[Hold] = []
            try:
                if not subscription.ended:
                    holds = self._hold(described, as_of)
            except TRIED_AGAIN:
                raise  # by the next connection
            except ShardError as error:
                # Of this subscription alone: raised, it would keep all others away for good.
                subscription.fail(error)
            del self._subscriptions[name]
            _release(self._desired.pop(name))
            if not subscription.ended:
                subscription.name = described.name
                self._subscriptions[described.name] = subscription
                command = self._creation(described, as_of)
                self._desired[described.name] = _DesiredDataflow(command, holds)

    @override
    def _on_unanswered(self, error: ShardError) -> None:
        """End all peeks and subscriptions with an error: no response will come any more."""
        with self._link.lock:
            for waiting in self._waiting.values():
                waiting.error = error
                waiting.done.set()
            for subscription in list(self._subscriptions.values()):
                subscription.fail(error)
                self._unsubscribe(subscription)

    # -- the connection ----------------------------------------------------------------------------

    @override
    def _desired_commands(self) -> tuple[Iterable[ComputeCommand], Iterable[ComputeCommand]]:
        self._resume_subscriptions()
        commands: list[ComputeCommand] = [one.command for one in self._desired.values()]
        commands += [Schedule(name) for name in self._desired]
        commands += [one.peek for one in self._waiting.values()]
        return [CreateInstance()], commands

    @override
    def _on_response(self, response: ComputeResponse) -> None:
        match response:
            case Frontiers():
                self._on_frontiers(response)
            case Hydration(name, hydrated):
                with self._link.lock:
                    if self._is_meant(response) and name not in self._subscriptions:
                        self.hydrated[name] = hydrated
            case PeekResponse():
                with self._link.lock:
                    waiting = self._waiting.get(response.uuid)
                if waiting is not None:
                    waiting.response = response
                    waiting.done.set()
            case SubscribeResponse() | SubscribeDropped():
                self._on_batch(response)

    def _on_batch(self, response: SubscribeResponse | SubscribeDropped) -> None:
        with self._link.lock:
            subscription = self._subscriptions.get(response.id)
            if subscription is None:
                return
            subscription.put(response)
            # The first batch shows that it has read, so it has a hold of its own.
            _release(self._desired[response.id])
            if subscription.ended:
                self._unsubscribe(subscription)

    def _is_meant(self, response: Frontiers | Hydration) -> bool:
        """True if a response is about the desired dataflow, and not a former one of its name."""
        wanted = self._desired.get(response.id)
        return wanted is not None and wanted.command.creation == response.creation

    def _on_frontiers(self, response: Frontiers) -> None:
        with self._link.lock:
            if not self._is_meant(response):
                return
            wanted = self._desired[response.id]
            self.frontiers[response.id] = response
            read = response.input
            if not wanted.holds or not (read is None or isinstance(read, int)):
                return
            if read is None or read > wanted.command.as_of:
                _release(wanted)


def _release(wanted: _DesiredDataflow) -> None:
    holds, wanted.holds = wanted.holds, []
    for hold in holds:
        try:
            hold.expire()
        except ShardError:
            # Another controller has the hold by now, or the store is away. Nothing is lost: it is
            # named under the dataflow's prefix, and ends with the dataflow's own holds.
            context = {"id": wanted.command.id}
            _log.info("a hold was not given up", exc_info=True, extra={"context": context})

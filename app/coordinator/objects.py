"""Makes the objects of a project be there: creates, changes and drops them, each when it can be.

A project says what should be; the lane's order says what is. The difference goes to the
controllers. An object whose inputs have not begun, or that something else kept from being created,
waits here and is tried again, woken by the progress of its inputs.

Invariants:
    The shard of a source or view is there before anything that reads it is created.
    What reads is created once all of its inputs have begun: it never sees one that is half there.
    A dropped object's shard stays until `drop` names it: what a slip of a project dropped comes
        back with the next `apply`.
    A controller that connects drops what it does not name: before it does, everything is named
        that the last start ran and that is still wanted, whether it could be created now or not.
    The project of a follower undoes nothing, once it is promoted, that the holder was asked for
        after it: it may be the older one of the two, and the permissions that came with it were
        given for what ran then.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from shardline.app.controller.compute import ComputeController
from shardline.app.controller.storage import StorageController
from shardline.app.coordinator.desired_state import (
    desired_objects,
    live_objects,
    refuse_if_overtaken,
    refuse_if_read,
)
from shardline.app.coordinator.existing_shards import list_shards, read_drop_plan
from shardline.app.coordinator.left_behind import KnownObjects, end_left_behind
from shardline.app.coordinator.object_creation import ObjectCreator
from shardline.app.coordinator.operator_commands import OPERATOR
from shardline.app.coordinator.planning import objects_to_replace, plan_project
from shardline.app.coordinator.replacements import Replacements, shards_to_renew
from shardline.app.coordinator.start_holds import StartHolds
from shardline.app.coordinator.wakes import Wakes
from shardline.app.execution.object_shards import create_object_shard, drop_object_shard
from shardline.app.introspection.events import WantedObject
from shardline.app.lane.commands import READ_ONLY, DropDataflow, UseProject
from shardline.app.project.dropping import DropPlan, find_droppable, owned_shards
from shardline.app.project.permission import Permissions, find_refusal
from shardline.app.project.plan import Plan
from shardline.app.project.project import CheckedProject
from shardline.app.protocol.objects import (
    Description,
    SourceDescription,
    SubscribeDescription,
    ViewDescription,
)
from shardline.app.runtime.runtime import Runtime
from shardline.datasource.background import PeriodicThread
from shardline.datasource.client import ShardClient
from shardline.datasource.clock import Clock
from shardline.datasource.errors import (
    Determinate,
    Indeterminate,
    InvalidUsage,
    ShardError,
    unknown_names,
)

if TYPE_CHECKING:
    from shardline.app.project.statements import ObjectDescription

__all__ = ["Objects", "read_only_error"]

_log = logging.getLogger(__name__)

_RETRY_MS: Final = 1000.0
"""How soon what failed is tried again."""

_UNREPORTED_MS: Final = 2000.0
"""How often inputs are looked at whose progress nobody reports here: those of another process."""

_IDLE_MS: Final = 60_000.0
"""With nothing to wait for: only so that a signal that was lost would not be lost for ever."""


class Objects:
    """The objects of one application; every method may be called in any thread.

    Attributes:
        follows: True while this runtime only follows another one, and may not change anything.
    """

    def __init__(
        self,
        client: ShardClient,
        runtime: Runtime,
        *,
        compute: ComputeController,
        storage: StorageController,
        start_holds: StartHolds,
        wakes: Wakes,
        retain_ms: int,
        timeout_ms: float,
        follows: bool,
        observer: Callable[[Sequence[WantedObject]], None] = lambda _: None,
    ) -> None:
        """Nothing is wanted yet.

        Args:
            client: Of the location.
            runtime: What runs.
            compute: Told of views, indexes and subscriptions.
            storage: Told of sources and sinks.
            start_holds: Keeps inputs readable until what reads them has begun.
            wakes: The signals that the runtime sets.
            retain_ms: History of objects that do not say how much they keep.
            timeout_ms: How long a drop or a takeover may take.
            follows: True if another runtime holds the location.
            observer: Called with all objects that the project asks for, and what keeps them from
                being created, whenever that changes.
        """
        self.follows = follows
        self._observer = observer
        self._observed: Sequence[WantedObject] = ()
        self._client = client
        self._clock: Clock = client.clock
        self._runtime = runtime
        self._compute = compute
        self._storage = storage
        self._start_holds = start_holds
        self._wakes = wakes
        self._retain_ms = retain_ms
        self._timeout_ms = timeout_ms
        self._lock = threading.Lock()
        self._connected = False
        self._promotion: tuple[Callable[[], bool], Callable[[], None]] | None = None
        self._refused: InvalidUsage | None = None
        self._swept = False
        self._applied: tuple[CheckedProject, Permissions] | None = None
        self._followed: dict[str, Description] | None = None
        self._asked: dict[str, ObjectDescription] = {}
        self._replacements = Replacements(runtime, self._clock, self._asked_of_controllers)
        self._check_fence = runtime.lane.check_fence
        self._creator = ObjectCreator(client, compute, storage, start_holds, self._check_fence)
        # Without this thread nothing that waits would ever be created: a look that fails is logged,
        # and another one is taken.
        self._thread = PeriodicThread(
            "object-creation", self._look, self._clock, retry_ms=_RETRY_MS, wake=wakes.creation
        )
        self._ending = self._thread.stopping

    def start(self) -> None:
        """Begin to create what waits."""
        self._thread.start()

    def stop(self) -> None:
        """Create nothing more; what runs runs on."""
        self._thread.cancel()
        # After the flag: a drop that waits for the lane looks at it when it is woken.
        self._wakes.end()
        self._thread.join()

    @property
    def applied(self) -> CheckedProject | None:
        """The project that was applied last; None before the first one."""
        return None if self._applied is None else self._applied[0]

    def running(self) -> dict[str, ObjectDescription]:
        """The objects of the lane's order, by name; without subscriptions."""
        return live_objects(self._runtime.lane.state)

    def waiting(self) -> dict[str, str]:
        """Objects that are not created yet, with the reason; "" while an input has not begun."""
        with self._lock:
            return self._reasons()

    def uncreated(self) -> dict[str, str]:
        """Objects that the lane does not have yet, with the reason; "" as of `waiting`."""
        with self._lock:
            # Who has applied a project may ask before the store has taken what was ordered then.
            asked = {} if self.follows else self._asked_of_controllers()
            recorded = dict.fromkeys(asked.keys() - self.running().keys(), "it is being recorded")
            return recorded | self._reasons()

    def _reasons(self) -> dict[str, str]:
        return self._creator.waiting() | self._replacements.reasons()

    def check_in_charge(self) -> None:
        """Make sure that what is asked for here has an effect.

        Raises:
            ShardError: Another runtime has taken over, or another controller.
        """
        if self._runtime.lane.lost is not None:
            raise self._runtime.lane.lost.with_traceback(None)
        self._compute.check_in_charge()
        self._storage.check_in_charge()

    # -- what a user asks for --------------------------------------------------------------------

    def plan(self, resolved: CheckedProject) -> Plan:
        """The steps that `apply` would take."""
        return plan_project(self._client, resolved, self._runtime.lane.state, self._retain_ms)

    def apply(self, resolved: CheckedProject, allowed: Permissions) -> Plan:
        """Make the project run; see `Application.apply`."""
        with self._lock:
            self.check_in_charge()
            return self._apply(resolved, allowed)

    def plan_drop(self, names: Sequence[str]) -> DropPlan:
        """Plan a drop; see `Application.plan_drop`."""
        with self._lock:
            self._check_droppable(names)
            return read_drop_plan(self._client, names, self._known())

    def drop(self, names: Sequence[str]) -> list[str]:
        """Drop objects and their shards for good; see `Application.drop`."""
        with self._lock:
            self.check_in_charge()
            if self.follows:
                raise read_only_error("it decides what is dropped")
            self._check_droppable(names)
            # Now: of what no longer runs nobody knows the kind.
            known = self._known()
            shards = [one for name in dict.fromkeys(names) for one in owned_shards(name, known)]
            # The runtime drops the accounts of a sink with the sink.
            there = {one for one in shards if self._client.exists(one)}
            if not self._connected and not self.running().keys().isdisjoint(names):
                raise _nothing_applied_error()
            for name in names:
                self._replacements.done(name)
            self._creator.drop(names)
            for name in names:
                self._asked.pop(name, None)
            self._report_wanted()
            self._wait_until_gone(names)
            there.update(self._drop_shards(shards))
            return [one for one in shards if one in there]

    def _known(self) -> dict[str, ObjectDescription]:
        """The objects that run or are about to, wait to be created, or are being replaced."""
        return {name: one for known in self._definitions() for name, one in known.items()}

    def _definitions(self) -> tuple[dict[str, ObjectDescription], ...]:
        """The objects of `_known`; of one that is being changed each of its definitions."""
        if self.follows:
            # Nobody tells its controllers what the holder has changed since they were told.
            return (self.running(),)
        waiting = {**self._creator.readers(), **self._replacements.waiting}
        return self._asked_of_controllers(), self.running(), waiting

    def _asked_of_controllers(self) -> dict[str, ObjectDescription]:
        """All that the controllers were asked for last, of which the lane may have nothing yet."""
        asked = {**self._compute.desired(), **self._storage.desired()}
        return {n: one for n, one in asked.items() if not isinstance(one, SubscribeDescription)}

    def _check_droppable(self, names: Sequence[str]) -> None:
        known = self._known()
        droppable = find_droppable(known, list_shards(self._client))
        unknown = [name for name in names if name not in droppable]
        if unknown:
            raise unknown_names("object", unknown, droppable)
        # What is being changed may read one by its former definition or by its new one.
        for wanted in self._definitions():
            refuse_if_read(names, wanted)

    def allow_writes(self, taken_over: Callable[[], bool], then: Callable[[], None]) -> None:
        """Take the location over from the runtime that this one has followed; waits for that.

        Args:
            taken_over: True once the lane is this runtime's.
            then: Called once it is, before anything is created or dropped.

        Raises:
            InvalidUsage: No project has been applied yet. Or the project is refused, as of `apply`
                or `PROJECT_OVERTAKEN`, by this call or since an earlier one; the location is taken
                over.
            Indeterminate: It has not happened in time. It goes on, and so does what comes after it.
            ShardError: As of `apply`; the location is taken over.
        """
        with self._lock:
            self.check_in_charge()
            if self._refused is not None:
                # Each raise adds to the traceback that it has, and that keeps what the frames have.
                raise self._refused.with_traceback(None)
            if not self.follows and self._promotion is None:
                return
            if self._applied is None:
                raise _nothing_applied_error()
            # What the other one has created meanwhile is no less wanted than before: it is named
            # before writes are allowed, or it would be dropped as unwanted.
            self._name_what_runs()
            self._compute.allow_writes()
            self._storage.allow_writes()
            # From here on it may happen at any time, whoever waits for it.
            self._promotion = taken_over, then
            self._wakes.creation.set()
            self._wait_until(
                taken_over,
                "the location has not been taken over yet",
                code="NOT_TAKEN_OVER",
                hint="the store may be slow, or away: it goes on by itself, or ask again",
                error=Indeterminate,
            )
            self._promote(then)

    def _promote(self, then: Callable[[], None]) -> None:
        """Run the project that was applied, in a location that has been taken over."""
        assert self._applied is not None
        # The take-over stays true of a runtime that has been pushed aside since. Another controller
        # is no reason to wait: the location has one holder, and maintenance is the holder's work.
        if self._runtime.lane.lost is not None:
            raise self._runtime.lane.lost.with_traceback(None)
        self.follows = False
        try:
            then()
            # Again: what was created between the two, which nothing else would ever drop.
            self._name_what_runs()
            self._refuse_if_overtaken(self._applied[0])
            self._apply(*self._applied)
        except InvalidUsage as error:
            # Nothing but another project, or a permission, would change it. It is kept, as nobody
            # may have waited for it, and who asks again must not take it for done.
            self._promotion, self._refused = None, error
            raise
        self._promotion = None

    def _go_on_with_promotion(self) -> None:
        """Do what follows a take-over that nobody has waited for to its end."""
        if self._promotion is None:
            return
        taken_over, then = self._promotion
        if taken_over():
            try:
                self._promote(then)
            except Exception:  # noqa: BLE001 - it must not keep back what waits to be created
                _log.warning("the project does not run yet", exc_info=True)

    def _name_what_runs(self) -> None:
        """Name to the controllers what the lane keeps running, and nothing else."""
        running = self.running()
        # Not what was named before and is dropped since: it would be made again, and a sink write
        # all of its contents a second time.
        self._creator.keep_only(self._in_order())
        self._creator.adopt(self._runtime.lane.state.objects, running, follows=self.follows)
        self._creator.run(running.values())

    def _in_order(self) -> dict[str, Description]:
        """What the lane keeps running, or has dropped for a successor that is still to come."""
        objects = self._runtime.lane.state.objects
        replaced = {name: one.description for name, one in objects.items() if one.replaced}
        return {**self.running(), **replaced}

    def _refuse_if_overtaken(self, resolved: CheckedProject) -> None:
        if self._followed is not None:
            wanted = desired_objects(resolved, self._retain_ms)
            refuse_if_overtaken(self._followed, self._in_order(), wanted)
        # Once: of what is tried again, a part may be done, which is a change of its own.
        self._followed = None

    # -- steps, under the lock -------------------------------------------------------------------

    def _apply(self, resolved: CheckedProject, allowed: Permissions) -> Plan:
        plan = self.plan(resolved)
        refusal = find_refusal(plan, allowed)
        if refusal is not None:
            raise refusal
        wanted = desired_objects(resolved, self._retain_ms)
        if self.follows:
            if plan.steps and self._connected:
                raise read_only_error("it decides what runs")
            if plan.steps:
                _log.warning("what the project changes waits until this runtime may write")
            wanted, self._followed = self.running(), self._in_order()
        else:
            # Before anything is dropped: once it is, the objects are no longer the other project's.
            self._record_project(resolved)
        renewed = {} if self.follows else objects_to_replace(plan, allowed)
        for name, description in () if self.follows else wanted.items():
            if isinstance(description, SourceDescription | ViewDescription) and name not in renewed:
                create_object_shard(self._client, description, resolved.schemas[name])
        self._replacements.begin({} if self.follows else wanted, renewed)
        kept = {n: one for n, one in wanted.items() if n not in self._replacements.waiting}
        self._applied, self._refused = (resolved, allowed), None
        # What another runtime does with the objects that it runs is for that one's lane to say.
        self._asked = {} if self.follows else dict(wanted)
        # What is replaced is left out here, which drops what there is of it: see `_replace`.
        self._creator.keep_only(kept)
        # Before `run`, which leaves out what has to wait, and before the controllers connect.
        self._creator.adopt(self._runtime.lane.state.objects, kept, follows=self.follows)
        self._creator.run(kept.values())
        self._connect()
        self._report_wanted()
        # What waits now is to be looked at by the thread, which may be asleep for a minute.
        self._wakes.creation.set()
        return plan

    def _report_wanted(self) -> None:
        # Those that run as well: to change a definition is to drop and to create, and between the
        # two the lane has the object no more.
        waiting = {one.id: one for one in self._creator.uncreated()}
        asked = {
            name: WantedObject(id=name, description=description)
            for name, description in self._asked.items()
        }
        found = list((asked | waiting).values())
        if found != self._observed:
            self._observed = found
            self._observer(found)

    def _record_project(self, resolved: CheckedProject) -> None:
        """Record whose objects run, if that is known and not recorded yet."""
        identity = resolved.identity
        if identity is not None and self._runtime.lane.state.project != identity:
            self._record("project", UseProject(identity))

    def _record(self, producer: str, command: DropDataflow | UseProject) -> None:
        """Give a command its place in the order.

        Raises:
            Indeterminate: `NOT_RECORDED`: the store has not taken it in time, or the application
                ends; it may have its place, or get it later.
            ShardError: As of `_wait_until`.
        """
        # With a limit, and not beyond the end: a store that takes nothing would keep the lock, and
        # with it whoever asks for anything, and the end of the application.
        position = self._runtime.lane.offer(producer, command, wait=False)
        self._wait_until(
            position.done,
            "the order has not taken it in time",
            code="NOT_RECORDED",
            hint="it may yet when the store answers: look at `status`, or ask again",
            error=Indeterminate,
        )
        position.result()

    def _replace(self) -> None:
        """Create what comes after another object, each once nothing of that one is left.

        A crash in between leaves an object that does not run, and the next plan says what of it
        is still there.
        """
        if not self._replacements.may_be_made():
            return
        for name, replaced in list(self._replacements.waiting.items()):
            try:
                if not self._replacements.is_free(name):
                    continue
                if self._replacements.is_renewed(name):
                    self._renew_shards(replaced)
            except Exception:  # noqa: BLE001 - any error of one must not keep back the others
                context = {"id": name}
                _log.warning("not replaced yet", exc_info=True, extra={"context": context})
            else:
                self._replacements.done(name)
                self._creator.run([replaced])

    def _renew_shards(self, replaced: ObjectDescription) -> None:
        """Make the shards of an object anew: an empty one in the place of all of the old ones."""
        assert isinstance(replaced, SourceDescription | ViewDescription), replaced
        assert self._applied is not None, replaced
        self._drop_shards(shards_to_renew(replaced.name, self._known()))
        create_object_shard(self._client, replaced, self._applied[0].schemas[replaced.name])

    def _connect(self) -> None:
        """Let the controllers connect, which drops what they do not name."""
        if not self._connected:
            self._connected = True
            self._storage.start()
            self._compute.start()

    def _wait_until(
        self,
        happened: Callable[[], bool],
        what: str,
        *,
        code: str,
        hint: str,
        error: type[ShardError] = Determinate,
    ) -> None:
        """Wait for something that the lane's state shows.

        Raises:
            ShardError: `error`: it has not happened in time, or the application ends.
            ShardError: Another runtime has taken over, or another controller.
        """
        deadline_ms = self._clock.elapsed_ms() + self._timeout_ms
        while True:
            self._wakes.lane.clear()
            if happened():
                return
            # A controller that was replaced sets no signal, so this is looked at now and then.
            self.check_in_charge()
            left_ms = deadline_ms - self._clock.elapsed_ms()
            if left_ms <= 0 or self._ending.is_set():
                raise error(what, code=code, hint=hint)
            self._clock.wait(self._wakes.lane, min(left_ms, _RETRY_MS))

    def _wait_until_gone(self, names: Sequence[str]) -> None:
        """Wait until nothing of objects runs any more: a shard that is written must not go.

        Raises:
            Indeterminate: `NOT_RECORDED`: the store does not take what comes before that.
            ShardError: As of `_wait_until`.
        """
        passed = self._runtime.pass_on()
        self._wait_until(
            passed.is_set,
            "what was asked for before has not been recorded yet",
            code="NOT_STOPPED",
            hint="drop it again",
        )
        for name in names:
            # Behind a creation that is on its way to the lane: without a place of its own in the
            # order, one that the lane does not have yet would count as gone.
            self._record(OPERATOR, DropDataflow(name, if_unfollowed=True))
            self._wait_until(
                lambda name=name: name not in self._runtime.lane.state.objects,  # type: ignore[misc]
                f"'{name}' is being dropped, and has not stopped yet",
                code="NOT_STOPPED",
                hint="drop it again, which then drops its shard",
            )

    def _drop_shards(self, shards: Sequence[str]) -> list[str]:
        fence = self._runtime.lane.check_fence
        return [name for name in shards if drop_object_shard(self._client, name, fence)]

    # -- the thread ------------------------------------------------------------------------------

    def _look(self) -> float:
        """Try what waits again; how long to wait for a signal before the next look."""
        if self._runtime.lane.lost is not None:
            # What happens here is for another runtime to say, for good. What waits is that one's to
            # create: a hold that is taken here would be taken from it.
            with self._lock:
                self._promotion = None
            return _IDLE_MS
        with self._lock:
            self._go_on_with_promotion()
            self._wakes.await_inputs(self._creator.awaited())
            self._creator.retry()
            self._replace()
            self._wakes.await_inputs(self._creator.awaited())
            self._report_wanted()
            pause_ms = self._pause_ms()
        if not self.follows:
            if self._start_holds.has_left:
                objects = self._runtime.lane.state.objects
                ours, ending = self._compute.knows, self._ending.is_set
                self._start_holds.sweep(objects, ours, self._check_fence, ending)
            # Not before a project says what is to be: where the lane was lost, nothing else does.
            if not self._swept and self._applied is not None:
                ending = self._ending.is_set
                end_left_behind(self._client, self._known_objects, self._check_fence, ending)
                self._swept = True
        return pause_ms

    def _known_objects(self) -> KnownObjects:
        """All objects there are, by each definition that runs, is wanted or waits."""
        # Under the lock: one that is being changed has taken holds for its new definition already.
        with self._lock:
            in_lane = self._runtime.lane.state.objects
            return KnownObjects.of(
                (
                    # What is being dropped, too: its end is the lane's.
                    {name: one.description for name, one in in_lane.items()},
                    self._asked_of_controllers(),
                    self._creator.readers(),
                    self._replacements.waiting,
                    self._asked,
                )
            )

    def _pause_ms(self) -> float:
        waiting = self._creator.waiting()
        is_under_way = self._replacements.waiting or self._promotion is not None
        has_left = self._creator.has_left() or (self._start_holds.has_left and not self.follows)
        if is_under_way or any(waiting.values()) or has_left:
            return _RETRY_MS
        return _UNREPORTED_MS if waiting else _IDLE_MS


def read_only_error(why: str) -> InvalidUsage:
    """The error for what a runtime cannot do while it follows another one."""
    return InvalidUsage(
        f"this runtime follows another one, and {why}",
        code=READ_ONLY,
        hint="ask that one, or allow this one to write",
    )


def _nothing_applied_error() -> InvalidUsage:
    return InvalidUsage(
        "no project has been applied since the start: what runs is that of the last one",
        code="NOTHING_APPLIED",
        hint="apply a project first",
    )

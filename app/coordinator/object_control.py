"""Object control pauses, resumes and restarts single objects of a running application.

    control = ObjectControl(runtime, objects, timeout_ms)
    control.pause("delays")         stopped until `resume`, also over restarts of the application
    control.resume("delays")        goes on where it was
    control.restart("delays")       another incarnation, at once

A project says what should be there; whether it runs at the moment is a decision of the person on
call, which no deployment and no crash may undo. So it is a command in the lane's order, and not
part of what controllers say.

A paused object keeps its ids, its checkpoint and its holds: resuming loses nothing. The price is
that what it reads keeps its history from then on, and grows until it is resumed or dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardline.app.coordinator.objects import Objects, read_only_error
from shardline.app.coordinator.operator_commands import OperatorCommand, record_command
from shardline.app.lane.commands import PauseDataflow, RestartDataflow, ResumeDataflow
from shardline.app.runtime.runtime import Runtime
from shardline.datasource.errors import InvalidUsage, unknown_name

__all__ = ["Controlled", "ObjectControl"]


@dataclass(frozen=True, slots=True)
class Controlled:
    """The outcome of a command about one object.

    Attributes:
        id: The object's name.
        paused: True if it is paused now.
        changed: False if it was so already: the command has its place, and no effect.
    """

    id: str
    paused: bool
    changed: bool = True


@dataclass(frozen=True, slots=True)
class ObjectControl:
    """See the module. Safe to use from any thread.

    Attributes:
        runtime: Whose lane has the order.
        objects: The objects of the application.
        timeout_ms: How long to wait for the store.
    """

    runtime: Runtime
    objects: Objects
    timeout_ms: float

    def pause(self, name: str) -> Controlled:
        """Stop an object until it is resumed.

        Raises:
            InvalidUsage: There is no such object, or it has not been created yet; or this runtime
                only follows another one.
            Indeterminate: The store did not answer in time; the command may have its place.
            ShardError: Another runtime has taken over.
        """
        return self._record(PauseDataflow(name))

    def resume(self, name: str) -> Controlled:
        """Let a paused object go on; errors as of `pause`."""
        return self._record(ResumeDataflow(name))

    def restart(self, name: str) -> Controlled:
        """Give an object another incarnation at once; errors as of `pause`.

        Raises:
            InvalidUsage: `OBJECT_PAUSED`: it is paused.
        """
        done = self._record(RestartDataflow(name))
        if done.paused:
            raise InvalidUsage(
                f"'{name}' is paused: there is nothing to restart",
                code="OBJECT_PAUSED",
                hint=f"resume {name}",
            )
        return done

    def _record(self, command: OperatorCommand) -> Controlled:
        """Record a command, and return what has become of its object."""
        name = command.id
        self._check(name)
        before = self._situation(name)
        # Always, also if it would change nothing now. An earlier command whose outcome is unknown
        # may still wait for its place, and the order keeps the two in turn: a resume that was left
        # out because nothing is paused yet would be followed by the pause that it was to end.
        record_command(self.runtime.lane, command, self.timeout_ms)
        after = self._situation(name)
        paused, _ = after
        return Controlled(name, paused=paused, changed=after != before)

    def _situation(self, name: str) -> tuple[bool, int]:
        """True if an object is paused, and the epoch at which a person last asked for a start."""
        state = self.runtime.lane.state
        known = state.objects.get(name)
        return name in state.paused, 0 if known is None else known.asked

    def _check(self, name: str) -> None:
        self.objects.check_in_charge()
        if self.objects.follows:
            raise read_only_error("what runs is in that one's order")
        running = self.objects.running()
        if name in running:
            return
        # Only now: it waits for a project that is being applied, and for a drop.
        waiting = self.objects.uncreated()
        if name in self.objects.running():
            # It has been recorded between the two.
            return
        if name in waiting:
            why = waiting[name] or "an input has not begun"
            raise InvalidUsage(
                f"'{name}' has not been created yet: {why}",
                code="NOT_CREATED",
                hint="it is created by itself; what it waits for can be paused or restarted",
            )
        raise unknown_name("object", name, [*running, *waiting])

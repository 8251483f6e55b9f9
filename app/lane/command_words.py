"""Command words say in a sentence what a command of the lane asks for, for people.

    describe_command(PauseDataflow("delays"))                    "Paused"
    describe_command(UpdateConfiguration({"index_limit": "1g"}))  "Set index_limit = 1g"

Pages and terminals have no words of their own for commands: one that is added is named by all. The
object that a command is about stands beside the sentence, so it is not repeated in it.
"""

from __future__ import annotations

from typing import assert_never

from shardline.app.lane.commands import (
    AllowWrites,
    CreateDataflow,
    DropDataflow,
    Dropped,
    Holder,
    HolderLease,
    LaneCommand,
    Opened,
    PauseDataflow,
    Repaired,
    RepairErrors,
    RestartDataflow,
    ResumeDataflow,
    SuspendAndRestart,
    UpdateConfiguration,
    UseProject,
)
from shardline.app.protocol.objects import (
    Description,
    IndexDescription,
    SinkDescription,
    SourceDescription,
    SubscribeDescription,
    ViewDescription,
)

__all__ = ["describe_command"]


def describe_command(command: LaneCommand) -> str:  # noqa: C901, PLR0911, PLR0912 - a sentence each
    """A sentence without its full stop; secrets that the command has are in it as they are."""
    match command:
        case Opened(holder=holder):
            return f"{_process(holder)} has taken the location"
        case HolderLease(holder):
            return f"{_process(holder)} has taken another lease"
        case CreateDataflow(description=description):
            return f"Created or changed {_definition(description)}"
        case DropDataflow(replaced=replaced):
            return "Dropped, to be made anew" if replaced else "Dropped"
        case Dropped():
            return "Its drop is done: nothing of it runs any more"
        case SuspendAndRestart(reason=reason):
            return f"Stopped by a failure, and started again: {reason}"
        case PauseDataflow():
            return "Paused"
        case ResumeDataflow():
            return "Resumed"
        case RestartDataflow():
            return "Restarted on request"
        case RepairErrors(act=act, errors=errors):
            done = "skipped" if act == "skip" else "retracted"
            return f"{f'{len(errors):,}' if errors else 'All'} of its errors {done}"
        case Repaired(error=error):
            return f"A repair cannot be done: {error}" if error else "A repair is done"
        case AllowWrites(kind):
            return f"Objects of {kind} may write"
        case UpdateConfiguration(settings):
            pairs = ", ".join(f"{name} = {value}" for name, value in settings.items())
            return f"Set {pairs}"
        case UseProject(project):
            return f"The objects are those of project {project.name or project.folder}"
        case _:
            assert_never(command)


def _process(holder: Holder) -> str:
    return f"Process {holder.pid} on {holder.host}"


def _definition(description: Description) -> str:
    match description:
        case SourceDescription(format=form):
            return f"the source: {form}"
        case ViewDescription(query=query):
            return f"the view: {' '.join(query.split())}"
        case IndexDescription(on=on, key=key):
            return f"the index on {on}" + (f", by {', '.join(key)}" if key else "")
        case SinkDescription(on=on, format=form):
            return f"the sink of {on}: {form}"
        case SubscribeDescription(on=on):
            return f"the subscription to {on}"
        case _:
            assert_never(description)

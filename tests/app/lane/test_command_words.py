"""Every command of the lane is said in words."""

from __future__ import annotations

from typing import get_args

import pytest

from shardline.app.lane.command_words import describe_command
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
from shardline.app.protocol.project_identity import ProjectIdentity

HOLDER = Holder(token="", host="host-a", boot="b", pid=4711, started=1, application="a", since_ms=0)
VIEW = ViewDescription(name="d", query="SELECT a\n  FROM t", inputs=("t",), schema="a INT")
CREATED: list[tuple[Description, str]] = [
    (SourceDescription(name="t", format="csv", schema="a INT"), "the source: csv"),
    (VIEW, "the view: SELECT a FROM t"),
    (IndexDescription(name="i", on="d"), "the index on d"),
    (IndexDescription(name="i", on="d", key=("a", "b")), "the index on d, by a, b"),
    (SinkDescription(name="o", on="d", format="parquet"), "the sink of d: parquet"),
    (SubscribeDescription(name="s", on="d"), "the subscription to d"),
]
SAID: list[tuple[LaneCommand, str]] = [
    (Opened(HOLDER), "Process 4711 on host-a has taken the location"),
    (HolderLease(HOLDER), "Process 4711 on host-a has taken another lease"),
    (DropDataflow("d"), "Dropped"),
    (DropDataflow("d", replaced=True), "Dropped, to be made anew"),
    (Dropped("d", 3), "Its drop is done: nothing of it runs any more"),
    (SuspendAndRestart("d", 3, "no file"), "Stopped by a failure, and started again: no file"),
    (PauseDataflow("d"), "Paused"),
    (ResumeDataflow("d"), "Resumed"),
    (RestartDataflow("d"), "Restarted on request"),
    (RepairErrors(id="t", act="skip", as_of=1, errors=("1", "2")), "2 of its errors skipped"),
    (RepairErrors(id="t", act="retract", as_of=1), "All of its errors retracted"),
    (Repaired("t", 7), "A repair is done"),
    (Repaired("t", 7, "it is gone"), "A repair cannot be done: it is gone"),
    (AllowWrites("compute"), "Objects of compute may write"),
    (UpdateConfiguration({"a": "1", "b": "2g"}), "Set a = 1, b = 2g"),
    (UseProject(ProjectIdentity(name="p", folder="/f")), "The objects are those of project p"),
    (UseProject(ProjectIdentity(folder="/f")), "The objects are those of project /f"),
    *((CreateDataflow(description=one), f"Created or changed {text}") for one, text in CREATED),
]


@pytest.mark.parametrize(("command", "text"), SAID, ids=[text[:40] for _, text in SAID])
def test_a_command_is_said_in_words(command: LaneCommand, text: str) -> None:
    """In one line, without the name of its object, which stands beside it."""
    assert describe_command(command) == text


def test_every_kind_of_command_is_in_the_list_above() -> None:
    """Or one could be without words."""
    assert {type(command) for command, _ in SAID} == set(get_args(LaneCommand))

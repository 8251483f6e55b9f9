"""Storage's bookkeeping: what follows from commands, reports and phases, in values."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from shardline.app.execution.host import Incarnation
from shardline.app.execution.observations import Failed, Health, Measured, Progress
from shardline.app.lane import commands as lane
from shardline.app.lane.process_state import PhaseChange
from shardline.app.lane.state import LaneObject
from shardline.app.protocol.compute import AllowCompaction, AllowWrites, InitializationComplete
from shardline.app.protocol.objects import SinkDescription, SourceDescription
from shardline.app.protocol.storage import (
    DroppedId,
    FrontierUpper,
    RunIngestion,
    RunOneshotIngestion,
    RunSink,
    StagedBatches,
    StatusUpdate,
)
from shardline.app.storage.worker import StorageEffects, StorageWorker
from shardline.datasource.errors import InvalidUsage

if TYPE_CHECKING:
    from shardline.app.protocol.object_state import Phase

DONE = InitializationComplete()
NOTHING = StorageEffects()


def source(format: str = "csv") -> SourceDescription:  # noqa: A002 - the field's name
    return SourceDescription(name="s", format=format)


def sink() -> SinkDescription:
    return SinkDescription(name="s", on="v", format="parquet")


def phase(
    name: Phase,
    epoch: int = 1,
    what: SourceDescription | SinkDescription | None = None,
    error: str = "",
) -> PhaseChange:
    what = what or source()
    return PhaseChange(
        what.name, "storage", name, Incarnation("s", "u1", 1, epoch, (1, 1)), what, 50, error
    )


def in_lane(description: SourceDescription | SinkDescription) -> LaneObject:
    return LaneObject(
        description=description,
        as_of=None,
        global_id="u1",
        dataflow=1,
        operators=(1, 1),
        epoch=1,
        created=1,
    )


def progress(write: int | None, epoch: int = 1) -> Progress:
    return Progress(id="s", epoch=epoch, write=write)


def connected() -> StorageWorker:
    worker = StorageWorker({}, 0)
    worker.on_reconcile([DONE], 0)
    return worker


def running() -> StorageWorker:
    worker = connected()
    worker.on_command(RunIngestion(source()), 1)
    worker.on_phase(phase("starting"))
    return worker


def statuses(done: StorageEffects) -> list[str]:
    told = [r for r in done.responses if isinstance(r, StatusUpdate)]
    assert told == list(done.statuses)
    return [status.status for status in told]


def test_a_command_is_bookkeeping_and_asks_the_lane_to_render() -> None:
    """Sources and sinks come into the order; nothing else happens by a command."""
    worker = connected()
    done = worker.on_command(RunIngestion(source()), 1)
    assert done.commands == (lane.CreateDataflow(description=source()),)
    assert statuses(done) == ["created"]
    asked = SinkDescription(name="out", on="s", format="parquet")
    done = worker.on_command(RunSink(sink=asked, as_of=7), 1)
    assert done.commands == (lane.CreateDataflow(description=asked, as_of=7),)
    assert worker.on_command(AllowWrites(), 1).commands == (lane.AllowWrites("storage"),)


def test_only_advances_are_told() -> None:
    """A repeated or older upper is no news; nothing comes after the empty one."""
    worker = running()
    told = [worker.on_observation(progress(t), 2).responses for t in (5, 5, 4, 6, None, 9)]
    uppers = [(FrontierUpper("s", t),) for t in (5, 6, None)]
    assert told == [uppers[0], (), (), uppers[1], uppers[2], ()]


def test_nothing_is_told_before_a_controller_has_named_the_object() -> None:
    """The lane may be faster than the connection; what it reports waits until it is asked for."""
    left = LaneObject(
        description=source(),
        as_of=None,
        global_id="u1",
        dataflow=1,
        operators=(1, 1),
        epoch=2,
        created=5,
    )
    worker = StorageWorker({"s": left}, 0)
    assert worker.on_phase(phase("starting", 2)).responses == ()
    assert worker.on_observation(progress(8, 2), 3).responses == ()
    done = worker.on_reconcile([RunIngestion(source()), DONE], 9)
    assert done.commands == ()
    assert done.responses == (
        FrontierUpper("s", 8),
        StatusUpdate(id="s", status="starting", at_ms=50),
    )


def test_a_drop_is_acknowledged_at_once_and_once() -> None:
    """What is left is tidying up; later reports and phases say nothing."""
    worker = running()
    worker.on_observation(progress(5), 2)
    done = worker.on_command(AllowCompaction("s", None), 60)
    assert done.commands == (lane.DropDataflow("s", kind="storage"),)
    assert done.responses == (
        StatusUpdate(id="s", status="dropped", at_ms=60),
        DroppedId("s"),
    )
    assert worker.on_observation(progress(6), 61) == NOTHING
    assert worker.on_phase(phase("dropped")) == NOTHING
    assert worker.on_command(AllowCompaction("s", None), 62) == NOTHING
    assert worker.on_command(AllowCompaction("s", 9), 62) == NOTHING


def test_a_changed_definition_goes_on_in_the_same_shard() -> None:
    """The upper is not told anew, and reports of the definition before are not heard."""
    worker = running()
    worker.on_observation(progress(5), 2)
    done = worker.on_command(RunIngestion(source("json")), 3)
    assert done.commands == (lane.CreateDataflow(description=source("json")),)
    assert done.responses == ()
    assert worker.on_observation(progress(6), 4) == NOTHING
    worker.on_phase(phase("starting", 2, source("json")))
    assert worker.on_observation(progress(5, 2), 5).responses == ()
    assert worker.on_observation(progress(7, 2), 5).responses == (FrontierUpper("s", 7),)


def test_a_sink_in_the_place_of_a_source_is_another_object() -> None:
    """It begins with a status and an upper of its own."""
    worker = running()
    worker.on_observation(progress(5), 2)
    done = worker.on_command(RunSink(sink=sink(), as_of=3), 60)
    assert statuses(done) == ["dropped", "created"]
    worker.on_phase(phase("starting", 2, sink()))
    assert worker.on_observation(progress(4, 2), 61).responses == (FrontierUpper("s", 4),)


def test_statuses_follow_lives() -> None:
    """Started, running, failed and again: only changes are told."""
    worker = connected()
    worker.on_command(RunIngestion(source()), 1)
    assert statuses(worker.on_phase(phase("starting"))) == ["starting"]
    healthy = Health(id="s", epoch=1, namespace="decode", status="running")
    assert statuses(worker.on_observation(healthy, 60)) == ["running"]
    assert statuses(worker.on_observation(healthy, 61)) == []
    failed = Failed(id="s", epoch=1, error="the broker is away", hint="wait")
    done = worker.on_observation(failed, 62)
    assert statuses(done) == ["stalled"]
    assert done.commands == ()
    assert statuses(worker.on_phase(phase("starting", 2))) == []
    again = Health(id="s", epoch=2, namespace="decode", status="running")
    assert statuses(worker.on_observation(again, 70)) == ["running"]


def test_an_error_that_is_told_behind_the_stop_is_the_status() -> None:
    """The lane hears of it by a way of its own, and may have stopped the object by then."""
    worker = running()
    stopped = replace(phase("stopped"), failures=1)
    assert statuses(worker.on_phase(stopped)) == []
    failed = Failed(id="s", epoch=1, error="no space is left on the disk")
    (told,) = worker.on_observation(failed, 62).statuses
    assert (told.status, told.error) == ("stalled", "internal: no space is left on the disk")


def test_a_paused_object_is_paused_whatever_was_reported_before() -> None:
    """Also one that had failed, one that never ran here, and one whose reports come late."""
    rest = PhaseChange("s", "storage", "paused", None, None, 70)
    worker = connected()
    worker.on_command(RunIngestion(source()), 1)
    assert statuses(worker.on_phase(rest)) == ["paused"]
    worker = running()
    worker.on_observation(Failed(id="s", epoch=1, error="the broker is away"), 62)
    worker.on_phase(phase("stopped"))
    assert statuses(worker.on_phase(rest)) == ["paused"]
    late = Health(id="s", epoch=1, namespace="decode", status="running")
    assert worker.on_observation(late, 80) == NOTHING
    assert worker.on_observation(Failed(id="s", epoch=1, error="late"), 81) == NOTHING
    assert statuses(worker.on_phase(phase("starting", 2))) == ["starting"]
    healthy = Health(id="s", epoch=2, namespace="decode", status="running")
    assert statuses(worker.on_observation(healthy, 90)) == ["running"]


def test_a_pause_outlives_a_replacement_by_a_new_controller() -> None:
    """The drop of what is replaced says so; the drop of what is left out does not."""
    worker = running()
    done = worker.on_reconcile([RunSink(sink=sink(), as_of=3), DONE], 60)
    assert done.commands[0] == lane.DropDataflow("s", replaced=True, kind="storage")
    assert worker.on_reconcile([DONE], 61).commands == (lane.DropDataflow("s", kind="storage"),)


def test_what_is_stopped_without_a_fault_is_paused() -> None:
    """A life that ends because it was asked to is a pause; one that failed stays what it was."""
    worker = connected()
    worker.on_command(RunIngestion(source()), 1)
    worker.on_phase(phase("starting"))
    worker.on_observation(Health(id="s", epoch=1, namespace="decode", status="running"), 60)
    assert statuses(worker.on_phase(phase("stopped"))) == ["paused"]
    assert statuses(worker.on_phase(phase("starting", 2))) == ["starting"]
    frozen = Health(id="s", epoch=2, namespace="sink", status="frozen", error="part p is gone")
    assert statuses(worker.on_observation(frozen, 70)) == ["frozen"]
    assert statuses(worker.on_observation(Failed(id="s", epoch=2, error="it failed"), 71)) == []
    assert statuses(worker.on_phase(phase("stopped", 2))) == []
    assert statuses(worker.on_phase(phase("ended", 2))) == ["ceased"]


def test_an_object_that_another_runtime_makes_again_is_heard() -> None:
    """A follower's controller names it all the time; its epochs begin at 1 again."""
    worker = running()
    worker.on_phase(phase("starting", 3))
    worker.on_observation(progress(9, 3), 60)
    worker.on_observation(Measured(id="s", epoch=3, added={"messages_received": 4}), 60)
    worker.on_phase(phase("stopped", 3))
    assert statuses(worker.on_phase(phase("dropped", 3))) == ["created"]
    assert worker.statistics().sources == {}
    assert worker.on_observation(progress(10, 3), 61) == NOTHING
    assert statuses(worker.on_phase(phase("starting"))) == ["starting"]
    healthy = Health(id="s", epoch=1, namespace="decode", status="running")
    assert statuses(worker.on_observation(healthy, 70)) == ["running"]
    assert worker.on_observation(progress(8), 71).responses == ()
    assert worker.on_observation(progress(11), 71).responses == (FrontierUpper("s", 11),)


def test_a_start_that_fails_is_a_status() -> None:
    """What could not even be rendered has nobody else to say so."""
    worker = running()
    done = worker.on_phase(phase("stopped", error="no such format — hint: name another"))
    assert statuses(done) == ["stalled"]
    assert done.statuses[0].error == "internal: no such format"
    assert done.statuses[0].hints == ("name another",)


def test_what_a_reconciliation_drops_is_not_told() -> None:
    """The history has it; the controller, who does not know the object, has not."""
    worker = running()
    done = worker.on_reconcile([DONE], 60)
    assert done.commands == (lane.DropDataflow("s", kind="storage"),)
    assert done.responses == ()
    assert [status.status for status in done.statuses] == ["dropped"]
    assert worker.on_command(AllowCompaction("s", 3), 61) == NOTHING
    with pytest.raises(InvalidUsage, match="UNKNOWN_OBJECT"):
        worker.on_command(AllowCompaction("x", 3), 61)


def test_what_the_lane_has_refused_is_said_again() -> None:
    """What nobody wants is dropped, and what is wanted is said; what is equal changes nothing."""
    worker = running()
    other = SinkDescription(name="old", on="v", format="parquet")
    assert worker.catch_up({"old": in_lane(other), "s": in_lane(sink())}).commands == (
        lane.DropDataflow("s", replaced=True, kind="storage"),
        lane.DropDataflow("old", kind="storage"),
        lane.CreateDataflow(description=source()),
    )
    again = worker.catch_up({"s": in_lane(source())}).commands
    assert again == (lane.CreateDataflow(description=source()),)


def test_a_replacement_that_a_crash_has_halved_is_completed_by_the_next_controller() -> None:
    """The successor is created, and without one the object is dropped for good; each once."""
    halved = {"s": structs.replace(in_lane(source()), life="dropping", replaced=True)}
    for named in (RunIngestion(source()), RunSink(sink=sink(), as_of=7)):
        worker = StorageWorker(halved, 0)
        made = worker.on_reconcile([named, DONE], 0).commands
        assert [type(command) for command in made] == [lane.CreateDataflow]
        assert worker.catch_up(halved).commands == made
    end = (lane.DropDataflow("s", if_unfollowed=True, kind="storage"),)
    worker = StorageWorker(halved, 0)
    assert worker.on_reconcile([DONE], 0).commands == end
    assert worker.on_reconcile([DONE], 0).commands == ()
    assert worker.catch_up(halved).commands == end


def test_a_oneshot_ingestion_is_answered_once_and_to_its_own_connection() -> None:
    """An end that comes after a reconnect goes nowhere."""
    worker = connected()
    run = RunOneshotIngestion(uuid="o", into="s", format="csv")
    assert worker.on_command(run, 1).requests == (run,)
    end = StagedBatches(uuid="o", rows=3)
    assert worker.on_staged(end).responses == (end,)
    assert worker.on_staged(end) == NOTHING
    worker.on_command(run, 2)
    worker.on_reconcile([DONE], 3)
    assert worker.on_staged(end) == NOTHING


def test_statistics_are_those_of_the_present_life() -> None:
    """A late report of the life before is not added."""
    worker = running()
    measured = Measured(id="s", epoch=1, added={"messages_received": 5.0})
    worker.on_observation(measured, 2)
    worker.on_phase(phase("starting", 2))
    worker.on_observation(measured, 3)
    assert worker.statistics().sources["s"]["messages_received"] == 5.0

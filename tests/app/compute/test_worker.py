"""Compute's bookkeeping: what follows from commands, reports and phases, in values."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from shardline.app.compute.worker import ComputeEffects, ComputeWorker
from shardline.app.execution.host import Incarnation
from shardline.app.execution.observations import Ended, Hydrated, Progress
from shardline.app.lane import commands as lane
from shardline.app.lane.process_state import PhaseChange
from shardline.app.lane.state import LaneObject
from shardline.app.protocol.compute import (
    AllowCompaction,
    AllowWrites,
    CreateDataflow,
    CreateInstance,
    Frontiers,
    Hydration,
    InitializationComplete,
    Peek,
    PeekResponse,
    Schedule,
    SubscribeDropped,
    SubscribeResponse,
    UpdateConfiguration,
)
from shardline.app.protocol.objects import IndexDescription, SubscribeDescription, ViewDescription
from shardline.datasource.errors import InvalidUsage

if TYPE_CHECKING:
    from shardline.app.protocol.compute import ComputeCommand
    from shardline.app.protocol.object_state import Phase
    from shardline.app.protocol.objects import Dataflow

DONE = InitializationComplete()
NOTHING = ComputeEffects()


def view(query: str = "SELECT 1") -> ViewDescription:
    return ViewDescription(name="v", query=query, inputs=("s",), schema="a INT")


def create(dataflow: Dataflow | None = None, as_of: int = 10) -> CreateDataflow:
    return CreateDataflow(dataflow=dataflow or view(), as_of=as_of)


def view_of(name: str) -> ViewDescription:
    return ViewDescription(name=name, query="SELECT 1", inputs=("s",), schema="a INT")


def in_lane(description: Dataflow) -> LaneObject:
    return LaneObject(
        description=description,
        as_of=10,
        global_id="u1",
        dataflow=1,
        operators=(1, 1),
        epoch=1,
        created=1,
    )


def phase(name: Phase, epoch: int = 1, what: Dataflow | None = None) -> PhaseChange:
    what = what or view()
    incarnation = Incarnation(what.name, "u1", 1, epoch, (1, 1), 10)
    return PhaseChange(what.name, "compute", name, incarnation, what, 0)


def progress(write: int | None, epoch: int = 1, read: int | None = None) -> Progress:
    return Progress(id="v", epoch=epoch, write=write, read=write if read is None else read)


def connected(*commands: CreateDataflow | Schedule | Peek) -> ComputeWorker:
    worker = ComputeWorker({})
    worker.on_reconcile([CreateInstance(), *commands, DONE])
    return worker


def running() -> ComputeWorker:
    worker = connected(create(), Schedule("v"))
    worker.on_phase(phase("starting"))
    return worker


def test_a_dataflow_comes_into_the_lane_when_it_is_scheduled() -> None:
    """A creation alone is bookkeeping."""
    worker = connected()
    assert worker.on_command(create()) == NOTHING
    done = worker.on_command(Schedule("v"))
    assert done.commands == (lane.CreateDataflow(description=view(), as_of=10),)


def test_settings_and_writes_go_through_the_lane() -> None:
    """They take effect at a position in the order, as all that changes what runs."""
    worker = connected()
    assert worker.on_command(AllowWrites()).commands == (lane.AllowWrites("compute"),)
    done = worker.on_command(UpdateConfiguration({"a": "1"}))
    assert done.commands == (lane.UpdateConfiguration({"a": "1"}),)


def test_only_advances_are_told_and_from_the_as_of_on() -> None:
    """A frontier before `as_of`, a repeated one and an older one are no news."""
    worker = running()
    told = [worker.on_observation(progress(t)).responses for t in (9, 10, 10, 8, 12)]
    assert told == [
        (),
        (Frontiers(id="v", write=10, input=10, output=10),),
        (),
        (),
        (Frontiers(id="v", write=12, input=12, output=12),),
    ]


def test_the_output_is_what_is_both_read_and_written() -> None:
    """`output` never runs ahead of the work: it is the lesser one of both."""
    worker = running()
    (told,) = worker.on_observation(progress(20, read=15)).responses
    assert told == Frontiers(id="v", write=20, input=15, output=15)


def test_nothing_comes_after_the_empty_frontier() -> None:
    """An object that has ended says so once."""
    worker = running()
    ended = worker.on_observation(Ended(id="v", epoch=1)).responses
    assert ended == (Frontiers(id="v", write=None, input=None, output=None),)
    assert worker.on_observation(progress(99)) == NOTHING


def test_reports_of_another_life_are_not_heard() -> None:
    """Before the start, after a restart, and of an older definition."""
    worker = connected(create(), Schedule("v"))
    assert worker.on_observation(progress(11)) == NOTHING
    worker.on_phase(phase("starting", epoch=2))
    assert worker.on_observation(progress(11, epoch=1)) == NOTHING
    worker.on_command(create(view("SELECT 2")))
    worker.on_command(Schedule("v"))
    worker.on_phase(phase("starting", epoch=3))
    assert worker.on_observation(progress(11, epoch=3)) == NOTHING
    worker.on_phase(phase("starting", epoch=4, what=view("SELECT 2")))
    assert worker.on_observation(progress(11, epoch=4)).responses != ()


def test_an_object_that_another_runtime_makes_again_is_heard() -> None:
    """A follower's controller names it all the time; its epochs begin at 1 again."""
    worker = running()
    worker.on_phase(phase("starting", epoch=3))
    worker.on_observation(Progress(id="v", epoch=3, read=None, write=11))
    assert worker.on_phase(phase("dropped", epoch=3)) == NOTHING
    assert worker.on_observation(progress(12, epoch=3)) == NOTHING
    worker.on_phase(phase("starting"))
    (told,) = worker.on_observation(progress(12)).responses
    assert told == Frontiers(id="v", write=12, output=12)
    again: list[ComputeCommand] = [CreateInstance(), create(), Schedule("v"), DONE]
    assert worker.on_reconcile(again).responses == (
        Frontiers(id="v", write=12, input=12, output=12),
    )


def test_a_drop_is_acknowledged_once_and_after_the_stop() -> None:
    """The controller may let go of the inputs only when nothing reads them any more."""
    worker = running()
    worker.on_observation(progress(11))
    assert worker.on_command(AllowCompaction("v", None)).commands == (
        lane.DropDataflow("v", kind="compute"),
    )
    assert worker.on_observation(progress(12)) == NOTHING
    assert worker.on_phase(phase("stopped")) == NOTHING
    end = Frontiers(id="v", write=None, input=None, output=None)
    assert worker.on_phase(phase("dropped")).responses == (end,)
    assert worker.on_phase(phase("dropped")) == NOTHING
    assert worker.on_command(AllowCompaction("v", None)) == NOTHING


def test_what_was_never_scheduled_is_acknowledged_at_once() -> None:
    """The lane has never heard of it, and nothing is to be stopped."""
    worker = connected(create())
    done = worker.on_command(AllowCompaction("v", None))
    assert done.commands == ()
    assert done.responses == (Frontiers(id="v", write=None, input=None, output=None),)


def test_the_end_of_what_was_replaced_is_not_told() -> None:
    """A name that is taken again belongs to the new object, from its creation on."""
    worker = running()
    worker.on_command(AllowCompaction("v", None))
    worker.on_command(create(view("SELECT 2")))
    assert worker.on_phase(phase("dropped")) == NOTHING


def test_a_dropped_subscription_ends_where_its_last_batch_did() -> None:
    """`SubscribeDropped` takes the place of frontiers, and batches never overlap."""
    asked = SubscribeDescription(name="t", on="v")
    worker = connected(create(asked), Schedule("t"))
    worker.on_phase(phase("starting", what=asked))
    batch = SubscribeResponse(id="t", lower=0, upper=12)
    assert worker.on_observation(batch).responses == (batch,)
    assert worker.on_observation(batch) == NOTHING
    assert worker.on_observation(Progress(id="t", epoch=1, write=12)) == NOTHING
    worker.on_command(AllowCompaction("t", None))
    done = worker.on_phase(phase("dropped", what=asked))
    assert done.responses == (SubscribeDropped("t", 12),)


def test_a_subscription_that_drops_itself_is_told_once() -> None:
    """Its client was too slow, or it has failed; a later drop says nothing more."""
    followed = SubscribeDescription(name="t1", on="v")
    worker = connected(create(followed, as_of=5), Schedule("t1"))
    batch = SubscribeResponse(id="t1", lower=5, upper=9)
    assert worker.on_observation(batch).responses == (batch,)
    dropped = SubscribeDropped("t1", 9)
    assert worker.on_observation(dropped).responses == (dropped,)
    assert worker.on_observation(dropped) == NOTHING
    worker.on_command(AllowCompaction("t1", None))
    assert worker.on_phase(phase("dropped", what=followed)).responses == ()


def test_a_new_controller_is_told_what_goes_on() -> None:
    """What is kept is not touched, and all that is known of it is told anew."""
    worker = running()
    worker.on_observation(progress(11))
    worker.on_observation(Hydrated(id="v", epoch=1, took_ms=5))
    done = worker.on_reconcile([CreateInstance(), create(as_of=11), Schedule("v"), DONE])
    assert done.commands == ()
    assert done.responses == (
        Frontiers(id="v", write=11, input=11, output=11),
        Hydration("v", hydrated=True),
    )
    assert worker.on_observation(progress(12)).responses != ()


def test_what_is_told_has_the_number_of_the_creation_that_was_taken_last() -> None:
    """The same object under another number is told anew; repeated, the number is no news."""
    worker = running()
    worker.on_observation(progress(20))
    worker.on_observation(Hydrated(id="v", epoch=1, took_ms=1))
    again = CreateDataflow(dataflow=view(), as_of=10, creation=7)
    done = worker.on_command(again)
    told = Frontiers(id="v", write=20, input=20, output=20, creation=7)
    assert (done.commands, done.responses) == (
        (),
        (told, Hydration("v", hydrated=True, creation=7)),
    )
    assert worker.on_command(again) == NOTHING
    worker.on_command(AllowCompaction("v", None))
    assert worker.on_phase(phase("dropped")).responses == (
        Frontiers(id="v", write=None, input=None, output=None, creation=7),
    )


def test_nothing_is_told_of_what_a_reconciliation_has_dropped() -> None:
    """A controller that does not know an object does not hear of its end."""
    worker = running()
    worker.on_observation(progress(11))
    done = worker.on_reconcile([CreateInstance(), DONE])
    assert done.commands == (lane.DropDataflow("v", kind="compute"),)
    assert worker.on_observation(progress(12)) == NOTHING
    assert worker.on_phase(phase("dropped")) == NOTHING
    assert worker.on_command(AllowCompaction("v", 99)) == NOTHING


def test_a_pause_outlives_a_replacement() -> None:
    """By a new controller and by the same one: both drops say that the name goes on."""
    other = view("SELECT 2")
    worker = running()
    again: list[ComputeCommand] = [CreateInstance(), create(other), Schedule("v"), DONE]
    assert worker.on_reconcile(again).commands[0] == lane.DropDataflow(
        "v", replaced=True, kind="compute"
    )
    assert worker.on_command(create(view())).commands == (
        lane.DropDataflow("v", replaced=True, kind="compute"),
    )


def test_what_was_scheduled_once_is_dropped_from_the_lane() -> None:
    """Also by a controller that has named it, and has not scheduled it again."""
    named: list[ComputeCommand] = [CreateInstance(), create(), DONE]
    worker = running()
    assert worker.on_reconcile(named).commands == ()
    assert worker.catch_up({"v": in_lane(view())}) == NOTHING
    assert worker.on_command(AllowCompaction("v", None)).commands == (
        lane.DropDataflow("v", kind="compute"),
    )
    worker = running()
    worker.on_reconcile(named)
    left_out = worker.on_reconcile([CreateInstance(), DONE])
    assert left_out.commands == (lane.DropDataflow("v", kind="compute"),)


def test_what_was_never_there_is_refused_and_changes_nothing() -> None:
    """A frontier of an unknown object is a mistake of the controller."""
    worker = connected()
    with pytest.raises(InvalidUsage, match="UNKNOWN_OBJECT"):
        worker.on_command(AllowCompaction("x", 3))


def test_what_a_crash_left_is_dropped_unless_it_is_named() -> None:
    """After a restart the first controller decides about what the lane has brought back."""
    left = LaneObject(
        description=view(),
        as_of=10,
        global_id="u1",
        dataflow=1,
        operators=(1, 1),
        epoch=3,
        created=5,
    )
    worker = ComputeWorker({"v": left})
    worker.on_phase(phase("starting", epoch=3))
    worker.on_observation(progress(20, epoch=3))
    again: list[ComputeCommand] = [CreateInstance(), create(), Schedule("v"), DONE]
    assert worker.on_reconcile(again).responses == (
        Frontiers(id="v", write=20, input=20, output=20),
    )
    other = ComputeWorker({"v": left})
    assert other.on_reconcile([CreateInstance(), DONE]).commands == (
        lane.DropDataflow("v", kind="compute"),
    )


def test_a_replacement_that_a_crash_has_halved_is_completed_by_the_next_controller() -> None:
    """The successor is created, and without one the object is dropped for good; each once."""
    halved = {"v": structs.replace(in_lane(view()), life="dropping", replaced=True)}
    for named in (view(), view("SELECT 2")):
        worker = ComputeWorker(halved)
        again: list[ComputeCommand] = [CreateInstance(), create(named), Schedule("v"), DONE]
        made = (lane.CreateDataflow(description=named, as_of=10),)
        assert worker.on_reconcile(again).commands == made
        assert worker.catch_up(halved).commands == made
    end = (lane.DropDataflow("v", if_unfollowed=True, kind="compute"),)
    worker = ComputeWorker(halved)
    assert worker.on_reconcile([CreateInstance(), DONE]).commands == end
    assert worker.on_reconcile([CreateInstance(), DONE]) == NOTHING
    assert worker.catch_up(halved).commands == end


def test_a_successor_that_is_dropped_before_it_starts_ends_what_it_was_to_replace() -> None:
    """The lane has dropped the former one only for it: by this connection or by the next one."""
    worker = running()
    worker.on_command(create(view("SELECT 2")))
    done = worker.on_command(AllowCompaction("v", None))
    assert done.commands == (lane.DropDataflow("v", kind="compute"),)
    assert [response.id for response in done.responses if isinstance(response, Frontiers)] == ["v"]
    worker = running()
    worker.on_command(create(view("SELECT 2")))
    assert worker.on_reconcile([CreateInstance(), DONE]).commands == (
        lane.DropDataflow("v", kind="compute"),
    )


def test_a_peek_is_answered_once_and_only_to_its_own_connection() -> None:
    """Answers to peeks of an earlier connection go nowhere, and those peeks are ended."""
    peek = Peek(uuid="p", query="SELECT 1", inputs=("v",), as_of=12, limit_bytes=1)
    worker = running()
    assert worker.on_command(peek).requests == (peek,)
    answer = PeekResponse(uuid="p")
    assert worker.on_observation(answer).responses == (answer,)
    assert worker.on_observation(answer) == NOTHING
    worker.on_command(peek)
    done = worker.on_reconcile([CreateInstance(), create(), Schedule("v"), DONE])
    assert (done.forgotten, done.requests) == (("p",), ())
    assert worker.on_observation(answer) == NOTHING


@pytest.mark.parametrize(
    "command", [AllowCompaction("v", None), create(view("SELECT 2"), as_of=20)]
)
def test_a_peek_ends_with_the_object_that_it_reads(command: ComputeCommand) -> None:
    """Its caller would else wait for the time-out: the answer that comes later is thrown away."""
    worker = running()
    for uuid, name in (("p", "v"), ("q", "v"), ("other", "w")):
        worker.on_command(Peek(uuid=uuid, query="", inputs=(name,), as_of=12, limit_bytes=1))
    done = worker.on_command(command)
    assert done.forgotten == ("p", "q")
    answers = [one for one in done.responses if isinstance(one, PeekResponse)]
    assert [one.uuid for one in answers] == ["p", "q"]
    assert all(one.error.startswith("[OBJECT_CHANGED] 'v' was changed") for one in answers)
    late = [worker.on_observation(PeekResponse(uuid=uuid)).responses for uuid in ("p", "q")]
    assert late == [(), ()]
    assert worker.on_observation(PeekResponse(uuid="other")).responses


def test_a_peek_goes_on_when_the_same_object_is_created_again() -> None:
    """Nothing changes for it: the object runs on."""
    worker = running()
    worker.on_command(Peek(uuid="p", query="", inputs=("v",), as_of=12, limit_bytes=1))
    assert worker.on_command(create()) == NOTHING
    assert worker.on_observation(PeekResponse(uuid="p")).responses


def test_what_the_lane_has_refused_is_said_again() -> None:
    """What it lacks is made, what nobody wants is dropped, and what is equal goes on untouched."""
    index = IndexDescription(name="ix", on="s", key=())
    worker = connected(create(), Schedule("v"), create(index), Schedule("ix"), create(view_of("w")))
    there = {"old": in_lane(view_of("old")), "v": in_lane(view()), "ix": in_lane(view_of("ix"))}
    assert worker.catch_up(there).commands == (
        lane.DropDataflow("ix", replaced=True, kind="compute"),
        lane.DropDataflow("old", kind="compute"),
        lane.CreateDataflow(description=index, as_of=10),
    )
    assert worker.catch_up({"v": in_lane(view()), "ix": in_lane(index)}) == NOTHING


@given(
    st.lists(
        st.one_of(
            st.integers(0, 30).map(progress),
            st.just("reconnect"),
            st.just("restart"),
            st.tuples(st.integers(0, 30), st.integers(0, 30)),
        ),
        max_size=30,
    )
)
def test_frontiers_never_go_back(events: list[object]) -> None:
    """Whatever is reported, by whichever life: each connection hears a growing sequence."""
    worker = running()
    told: dict[str, int] = {}
    epoch = 1
    for event in events:
        match event:
            case "reconnect":
                told = {}
                done = worker.on_reconcile([CreateInstance(), create(), Schedule("v"), DONE])
            case "restart":
                epoch += 1
                done = worker.on_phase(phase("starting", epoch))
            case Progress(write=int(write)):
                done = worker.on_observation(progress(write, epoch))
            case (int(write), int(read)):
                done = worker.on_observation(progress(write, epoch, read))
            case _:
                raise AssertionError(event)
        for response in done.responses:
            assert isinstance(response, Frontiers)
            for name in ("write", "input", "output"):
                time = getattr(response, name)
                if isinstance(time, int):
                    assert time > told.get(name, 9)
                    told[name] = time

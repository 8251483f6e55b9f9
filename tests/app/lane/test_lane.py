"""The lane's promises one by one, with effects under control."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from shardline.app.execution.observations import Ended, Failed
from shardline.app.lane.commands import (
    AllowWrites,
    CreateDataflow,
    DropDataflow,
    Dropped,
    PauseDataflow,
    Record,
    Submission,
    SuspendAndRestart,
    UpdateConfiguration,
)
from shardline.app.lane.lane import Lane
from shardline.app.lane.state import LaneObject
from shardline.app.protocol.objects import (
    IndexDescription,
    SubscribeDescription,
)
from shardline.datasource.errors import Determinate, Fenced, Indeterminate, InvalidUsage
from support.fakes.clock import ManualClock, SeededIds
from support.fakes.lane import Order, SimJournal, host
from support.fakes.stage import Stage, source, view

if TYPE_CHECKING:
    from collections.abc import Callable


def test_a_dropped_object_is_gone_when_it_has_stopped_and_not_before() -> None:
    """A drop has two phases, both in the order; its ids are its own until the second one."""
    stage = Stage()
    stage.do(CreateDataflow(description=view("v")))
    stage.effects()
    assert stage.phases("v") == ["starting", "running"]
    stage.do(DropDataflow("v"))
    assert stage.a.lane.state.objects["v"].life == "dropping"
    assert stage.phases("v") == ["stopping"]
    stage.effects()
    assert stage.phases("v") == ["stopped", "dropped"]
    assert stage.a.lane.state.objects == {}
    stage.do(CreateDataflow(description=view("v")))
    assert stage.a.lane.state.objects["v"].global_id == "u2"


@pytest.mark.parametrize("again", [[], [DropDataflow("v")]])
def test_a_name_taken_again_starts_though_its_drop_was_recorded_unseen(
    monkeypatch: pytest.MonkeyPatch, again: list[DropDataflow]
) -> None:
    """The order was never seen without the name: the answer to `Dropped` came with a creation."""
    stage = Stage()
    stage.do(CreateDataflow(description=view("v")))
    stage.effects()
    stage.do(DropDataflow("v"))
    stage.a.pool.run_one()  # it stops
    stage.a.lane.step()
    stage.a.pool.run_one()  # what it has left is removed
    # The append of this round lands, and its answer is lost.
    monkeypatch.setattr(stage.a.journal, "faults", 1.0)
    monkeypatch.setattr(stage.a.journal, "_rng", SimpleNamespace(random=lambda: 0.9))
    stage.a.lane.step()
    assert stage.order.records[-1].command == Dropped("v", 1, "u1")
    assert "v" in stage.a.lane.state.objects
    monkeypatch.setattr(stage.a.journal, "faults", 0.0)
    if again:
        # A look at the fence, of another thread, finds that it has landed. The lane does not know
        # that, and records it once more, behind the commands of others.
        stage.a.journal.poll()
    stage.do(CreateDataflow(description=view("v")), *again)
    assert stage.a.lane.state.objects["v"].global_id == "u2"
    stage.effects()
    if not again:
        assert stage.a.lives()["v"].global_id == "u2"
        stage.do(DropDataflow("v"))
        stage.effects()
    assert (stage.a.lane.state.objects, stage.phases("v")[-1]) == ({}, "dropped")
    assert stage.a.forgotten == ["v", "v"]


def test_each_record_is_told_once_whoever_resolves_its_append(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A look at the fence, from another thread, may fold an append at any moment."""
    stage = Stage()
    stage.do(CreateDataflow(description=view("v")))
    records, late = stage.a.journal.records, [Submission("other", 1, DropDataflow("v"))]

    def resolve_and_read(start: int = 0) -> list[Record]:
        if late:
            stage.a.journal._add([late.pop()], stage.a.journal.state.epoch)
            stage.a.journal.poll()
        return records(start)

    monkeypatch.setattr(stage.a.journal, "records", resolve_and_read)
    stage.do(PauseDataflow("v"))
    stage.effects()
    told = [record.index for record in stage.a.told]
    assert told == list(range(told[0], stage.a.lane.state.next_index))
    assert stage.a.lane.state.objects == {}


@pytest.mark.parametrize(("query", "dataflow"), [("SELECT 1", 1), ("SELECT 2", 2)])
def test_a_name_taken_again_waits_for_the_stop(query: str, dataflow: int) -> None:
    """A creation right behind a drop starts after it; with the same numbers if it is the same."""
    stage = Stage()
    stage.do(CreateDataflow(description=view("v")))
    stage.effects()
    stage.do(DropDataflow("v"), CreateDataflow(description=view("v", query)))
    assert stage.phases("v") == ["starting", "running", "stopping"]
    stage.effects()
    assert stage.phases("v") == ["stopped", "starting", "running"]
    known = stage.a.lane.state.objects["v"]
    assert (known.global_id, known.dataflow, known.epoch) == ("u1", dataflow, 2)
    assert stage.a.runs() == {"v": view("v", query)}


def test_a_subscription_made_again_is_another_one() -> None:
    """What serves one client never goes on for another one."""
    stage = Stage()
    asked = CreateDataflow(description=SubscribeDescription(name="t", on="v"), as_of=1)
    stage.do(asked)
    stage.effects()
    stage.do(DropDataflow("t"), asked)
    stage.effects()
    assert stage.a.lives()["t"].dataflow == 2


def test_the_same_creation_again_changes_nothing() -> None:
    """A controller that repeats itself restarts nothing."""
    stage = Stage()
    stage.do(CreateDataflow(description=view("v")))
    stage.effects()
    before = stage.a.lives()
    stage.do(CreateDataflow(description=view("v")))
    stage.effects()
    assert stage.a.lives() == before


def test_a_drop_overtakes_a_restart() -> None:
    """What was dropped while it waited to be started again is not started again."""
    stage = Stage()
    stage.do(CreateDataflow(description=view("v")))
    stage.effects()
    stage.a.fail("v")
    stage.do(DropDataflow("v"))
    stage.effects()
    stage.clock.advance(100_000)
    stage.a.lane.step()
    stage.effects()
    assert stage.a.runs() == {}
    assert stage.ledger.started == 1


def test_a_drop_while_it_starts() -> None:
    """A start under way is let finish, and then stopped."""
    stage = Stage()
    stage.do(CreateDataflow(description=view("v")))
    stage.do(DropDataflow("v"))
    stage.effects()
    assert stage.phases("v") == ["starting", "running", "stopping", "stopped", "dropped"]
    assert stage.a.runs() == {}


def test_a_drop_is_not_done_while_the_store_does_not_answer() -> None:
    """What the object has left is removed after a pause; a hold that stayed would stay for ever."""
    stage = Stage()
    stage.do(CreateDataflow(description=view("v")))
    stage.effects()
    answers: list[Exception | None] = [Determinate("away"), Indeterminate("unknown"), None]
    removed = []

    def forget(dropped: LaneObject) -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer
        removed.append(dropped.description.name)

    stage.a.lane._forget = forget
    stage.do(DropDataflow("v"))
    stage.effects()
    for left in (2, 1):
        assert len(answers) == left
        assert stage.a.lane.state.objects["v"].life == "dropping"
        stage.a.lane.step()
        stage.effects()
        assert len(answers) == left, "not before a pause is over"
        stage.clock.advance(100_000)
        stage.a.lane.step()
        stage.effects()
    assert removed == ["v"]
    assert stage.a.lane.state.objects == {}


def test_pauses_between_failures_grow_and_end() -> None:
    """Each failure in a row doubles the pause, up to a bound; a healthy time starts anew."""
    stage = Stage(restart_base_ms=1_000, restart_max_ms=8_000, healthy_ms=60_000)
    stage.do(CreateDataflow(description=source("s")))
    stage.effects()

    def pause() -> float:
        stage.a.fail("s")
        stage.a.lane.step()
        stage.effects()
        waited = 0
        while not stage.a.runs():
            stage.clock.advance(100)
            waited += 100
            stage.a.lane.step()
            stage.effects()
        return waited

    pauses = [pause() for _ in range(6)]
    for number, waited in enumerate(pauses):
        middle = min(1_000 * 2**number, 8_000)
        assert 0.5 * middle <= waited <= 1.5 * middle + 100
    stage.clock.advance(60_000)
    assert pause() <= 1_600
    assert stage.a.lives()["s"].epoch == 8


def test_a_clock_that_is_set_back_delays_no_restart() -> None:
    """Timers run on; who looks on is told the time of day, as it is then."""
    stage = Stage()
    stage.do(CreateDataflow(description=view("v")))
    stage.effects()
    stage.a.fail("v")
    stage.a.lane.step()
    stage.effects()
    stage.clock.set_back(3_600_000)
    stage.a.phases.clear()
    stage.clock.advance(5_000)
    stage.a.lane.step()
    stage.effects()
    assert set(stage.a.runs()) == {"v"}
    assert {change.at_ms for change in stage.a.phases} == {stage.clock.now_ms()}
    stage.a.fail("v")
    stage.a.lane.step()
    stage.effects()
    stage.a.lane.step()
    (suspended,) = (one for one in stage.a.phases if one.phase == "suspended")
    assert suspended.retry_at_ms is not None
    assert 0 < suspended.retry_at_ms - stage.clock.now_ms() <= 30_000


@pytest.mark.parametrize("refused", ["append", "renewal of the lease"])
def test_a_life_that_could_not_be_recorded_does_not_begin(refused: str) -> None:
    """While the store does not answer nothing is started again; then the next life is recorded."""
    stage = Stage()
    stage.do(CreateDataflow(description=source("s")))
    stage.effects()
    stage.a.fail("s")
    stage.a.journal.faults = 2.0 if refused == "append" else 0.0
    stage.a.journal.keep_fails = refused != "append"
    stage.a.settle(rounds=5)
    assert stage.a.runs() == {}
    stage.a.journal.faults = 0.0
    stage.a.journal.keep_fails = False
    stage.a.settle(rounds=2)
    assert stage.a.lives()["s"].epoch == stage.a.lane.state.objects["s"].epoch == 2


def test_a_store_that_is_away_delays_commands_and_loses_none() -> None:
    """Whether an append did happen or not: each command gets one position, in their order."""
    stage = Stage()
    stage.a.journal.faults = 0.9
    tickets = [
        stage.a.lane.offer("p", UpdateConfiguration({"k": str(number)})) for number in range(20)
    ]
    for _ in range(60):
        stage.a.lane.step()
    late = stage.a.lane.offer("p", UpdateConfiguration({"k": "last"}))
    stage.a.journal.faults = 0.0
    stage.a.lane.step()
    places = [ticket.result(timeout=0) for ticket in [*tickets, late]]
    assert places == sorted(set(places))
    said = [r.command for r in stage.order.records if r.producer == "p"]
    assert [c.settings["k"] for c in said if isinstance(c, UpdateConfiguration)] == [
        *map(str, range(20)),
        "last",
    ]


def test_a_failure_is_in_the_order_with_its_reason() -> None:
    """A restart is recorded, and a report of a life that is over is not heard."""
    stage = Stage()
    stage.do(CreateDataflow(description=source("s")))
    stage.effects()
    for _ in range(3):
        stage.a.lane.report(Failed(id="s", epoch=1, error="the broker is away"))
        stage.a.lane.step()
        stage.effects()
        stage.clock.advance(5_000)
    restarts = [r.command for r in stage.order.records if isinstance(r.command, SuspendAndRestart)]
    assert restarts == [SuspendAndRestart("s", 1, "the broker is away", "u1")]


def test_a_start_that_tells_of_its_failure_has_failed_once() -> None:
    """What reports an error and then raises it is one failure, with one pause."""
    stage = Stage()
    stage.do(CreateDataflow(description=source("s")))
    stage.a.lane.report(Failed(id="s", epoch=1, error="the broker is away"))
    stage.a.lane.step()
    stage.a.failing = 1.0
    stage.effects()
    stage.a.lane.step()
    restarts = [r.command for r in stage.order.records if isinstance(r.command, SuspendAndRestart)]
    assert restarts == [SuspendAndRestart("s", 1, "the broker is away", "u1")]


def test_a_start_that_fails_is_in_the_order_with_its_cause() -> None:
    """The innermost one, with a hint; the number of Py4J's call, another each time, is left out."""
    stage = Stage()

    def refuse(*_: object) -> Any:
        raise RuntimeError(
            "An error occurred while calling o17.create.\n"
            ": java.io.IOException: No space left on device\n\tat a.b(C.java:1)\n"
        )

    stage.a.lane._renderers = dict.fromkeys(stage.a.lane._renderers, refuse)
    stage.do(CreateDataflow(description=source("s")))
    stage.effects()
    stage.a.lane.step()
    stage.clock.advance(5_000)
    stage.a.lane.step()
    restarts = [r.command for r in stage.order.records if isinstance(r.command, SuspendAndRestart)]
    assert restarts == [
        SuspendAndRestart(
            "s",
            1,
            "no space is left on the disk — hint: free some space, or give the application a "
            "larger disk",
            "u1",
        )
    ]


def test_an_effect_for_which_there_is_no_thread_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody would complete it; and what was decided in the same round comes about all the same."""
    stage = Stage()
    run, refused = stage.a.pool.run, list[object]()

    def refuse_once(effect: Callable[[], None]) -> None:
        if not refused:
            refused.append(effect)
            raise RuntimeError("can't start new thread")
        run(effect)

    monkeypatch.setattr(stage.a.pool, "run", refuse_once)
    stage.a.lane.offer("storage", CreateDataflow(description=source("s")))
    stage.a.lane.offer("storage", CreateDataflow(description=source("t")))
    for _ in range(4):
        stage.a.lane.step()
        stage.effects()
    assert len(refused) == 1
    assert stage.phases("t")[-1] == "running"
    restarts = [r.command for r in stage.order.records if isinstance(r.command, SuspendAndRestart)]
    assert ["can't start new thread" in str(one) for one in restarts] == [True]


def test_hydration_is_limited_first_come_first_served() -> None:
    """So many compute objects catch up at a time; sources do not count; a drop gives its turn."""
    stage = Stage(hydration_concurrency=2)
    names = [f"v{i}" for i in range(5)]
    stage.do(*(CreateDataflow(description=view(name)) for name in names))
    stage.do(CreateDataflow(description=source("s")))
    stage.effects()
    assert sorted(stage.a.runs()) == ["s", "v0", "v1"]
    assert stage.phases("v2") == ["waiting"]
    stage.a.hydrate("v1")
    stage.a.lane.step()
    stage.effects()
    assert sorted(stage.a.runs()) == ["s", "v0", "v1", "v2"]
    stage.do(DropDataflow("v0"))
    stage.effects()
    assert sorted(stage.a.runs()) == ["s", "v1", "v2", "v3"]


def test_the_limit_on_hydration_may_change_meanwhile() -> None:
    """From the next turn on; a value that is none, by another version, changes nothing."""
    stage = Stage(hydration_concurrency=1)
    stage.do(*(CreateDataflow(description=view(f"v{number}")) for number in range(4)))
    stage.effects()
    assert sorted(stage.a.lives()) == ["v0"]
    stage.do(UpdateConfiguration({"hydration_concurrency": "3", "of another version": "x"}))
    stage.effects()
    assert sorted(stage.a.lives()) == ["v0", "v1", "v2"]
    stage.do(UpdateConfiguration({"hydration_concurrency": "many"}))
    stage.a.hydrate("v0")
    stage.a.lane.step()
    stage.effects()
    assert sorted(stage.a.lives()) == ["v0", "v1", "v2", "v3"]


def test_an_object_that_never_hydrates_does_not_keep_its_turn() -> None:
    """After its patience the next one starts, and it goes on."""
    stage = Stage(hydration_concurrency=1, hydration_patience_ms=1_000)
    stage.do(*(CreateDataflow(description=view(name)) for name in ("v0", "v1")))
    stage.effects()
    assert sorted(stage.a.runs()) == ["v0"]
    stage.clock.advance(1_000)
    stage.a.lane.step()
    stage.effects()
    assert sorted(stage.a.runs()) == ["v0", "v1"]


def test_what_has_ended_is_stopped_and_not_started_again() -> None:
    """An object with nothing left to do stays; another definition of it starts."""
    stage = Stage()
    stage.do(CreateDataflow(description=view("v")))
    stage.effects()
    stage.a.lane.report(Ended(id="v", epoch=1))
    stage.a.lane.step()
    stage.effects()
    stage.clock.advance(100_000)
    stage.a.lane.step()
    assert stage.phases("v") == ["starting", "running", "stopping", "ended"]
    stage.do(CreateDataflow(description=view("v", "SELECT 2")))
    stage.effects()
    assert stage.a.runs() == {"v": view("v", "SELECT 2")}


def test_a_stop_that_fails_is_repeated() -> None:
    """Nothing is started while nobody knows whether the life before still runs."""
    stage = Stage()
    stage.do(CreateDataflow(description=view("v")))
    stage.effects()
    stage.a.failing = 1.0
    stage.do(CreateDataflow(description=view("v", "SELECT 2")))
    stage.effects()
    assert stage.a.runs() == {"v": view("v")}
    stage.a.failing = 0.0
    stage.clock.advance(2_000)
    stage.a.lane.step()
    stage.effects()
    assert stage.a.runs() == {"v": view("v", "SELECT 2")}


def test_a_restart_of_the_runtime_keeps_ids_and_begins_new_lives() -> None:
    """After a crash all comes back with its numbers; subscriptions end with their runtime."""
    stage = Stage()
    stage.do(
        CreateDataflow(description=source("s")),
        CreateDataflow(description=view("v")),
        CreateDataflow(description=SubscribeDescription(name="t", on="v"), as_of=1),
    )
    stage.effects()
    before = stage.a.lives()
    stage.ledger.kill(stage.a.name)
    stage.a = stage.runtime()
    stage.a.lane.step()
    stage.effects()
    after = stage.a.lives()
    assert set(after) == {"s", "v"}
    for name, life in after.items():
        assert (life.global_id, life.dataflow, life.operators) == (
            before[name].global_id,
            before[name].dataflow,
            before[name].operators,
        )
        assert life.epoch == before[name].epoch + 1
    assert set(stage.a.lane.state.objects) == {"s", "v"}


def test_writes_are_allowed_by_kind_and_for_ever() -> None:
    """A kind may write once that is in the order, also in the runtimes that follow."""
    stage = Stage()
    assert not stage.a.hosts["storage"].writes.is_set()
    stage.do(AllowWrites("storage"))
    assert stage.a.hosts["storage"].writes.is_set()
    assert not stage.a.hosts["compute"].writes.is_set()
    successor = stage.runtime()
    successor.lane.step()
    assert successor.hosts["storage"].writes.is_set()


def test_a_fenced_lane_says_so_and_starts_nothing() -> None:
    """After a take-over commands are refused with the reason, and starts that wait do not begin."""
    stage = Stage()
    stage.do(CreateDataflow(description=view("v")))
    stage.runtime()
    ticket = stage.a.lane.offer("compute", CreateDataflow(description=view("w")))
    stage.a.lane.step()
    stage.effects()
    for refused in (ticket, stage.a.lane.offer("compute", DropDataflow("v"))):
        with pytest.raises(Fenced):
            refused.result()
    assert stage.ledger.started == 0
    assert isinstance(stage.a.end, Fenced)


def test_a_fenced_object_alone_does_not_end_the_runtime() -> None:
    """A life that was fenced by the next one of the same object is an ordinary failure."""
    stage = Stage()
    stage.do(CreateDataflow(description=view("v")))
    stage.effects()
    stage.a.lane.report(Failed(id="v", epoch=1, error="hold taken over", fenced=True))
    stage.a.settle(rounds=3)
    assert stage.a.lane.lost is None
    assert stage.a.lives()["v"].epoch == 2


def test_a_number_of_a_producer_counts_once() -> None:
    """A repeated number gets the position of the first command."""
    stage = Stage()
    first = stage.a.lane.offer("p", UpdateConfiguration({"k": "1"}), 5)
    again = stage.a.lane.offer("p", UpdateConfiguration({"k": "2"}), 5)
    stage.a.lane.step()
    assert first.result() == again.result() == 1
    assert stage.a.lane.state.settings == {"k": "1"}


def test_what_nothing_renders_is_refused_before_it_is_recorded() -> None:
    """The order never holds a command that cannot be carried out here."""
    order, clock = Order(), ManualClock()
    journal = SimJournal(order, "a", clock, random.Random(0))
    lane = Lane(journal, {}, lambda _: host(clock), clock=clock, ids=SeededIds())
    with pytest.raises(InvalidUsage, match="NO_RENDERER"):
        lane.offer("compute", CreateDataflow(description=IndexDescription(name="i", on="v")))


def test_what_cannot_be_recorded_is_refused_to_its_producer_alone() -> None:
    """The lane goes on, with the commands of all others."""
    stage = Stage()
    endless = SubscribeDescription(name="t", on="v", up_to=2**63)
    with pytest.raises(InvalidUsage, match="NOT_RECORDABLE"):
        stage.a.lane.offer("compute", CreateDataflow(description=endless, as_of=5))
    stage.do(CreateDataflow(description=view("v")))
    stage.effects()
    assert (stage.a.lane.lost, list(stage.a.runs())) == (None, ["v"])


def test_the_observer_hears_of_each_record_once_and_in_order() -> None:
    """Records that this lane has added, its own among them, without a gap."""
    stage = Stage()
    first = stage.a.lane.state.next_index
    stage.do(CreateDataflow(description=view("v")))
    stage.effects()
    stage.do(DropDataflow("v"))
    stage.effects()
    assert [r.index for r in stage.a.told] == list(range(first, stage.a.lane.state.next_index))


def test_the_observer_hears_of_an_effect_before_it_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    """What starts fast reports before the round is over; observers must know it by then."""
    stage = Stage()
    known: list[list[str]] = []

    def run_at_once(effect: Callable[[], None]) -> None:
        known.append([change.phase for change in stage.a.phases])
        effect()

    monkeypatch.setattr(stage.a.pool, "run", run_at_once)
    stage.do(CreateDataflow(description=view("v")))
    stage.do(DropDataflow("v"))
    assert known == [["starting"], ["starting", "running", "stopping"]]


def test_an_observer_that_fails_keeps_back_no_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    """An effect is decided once: if it were not handed out then, it never would be."""
    stage = Stage()

    def fail(_change: object) -> None:
        raise RuntimeError("an observer's own error")

    with monkeypatch.context() as patched:
        patched.setattr(stage.a, "on_phase", fail)
        with pytest.raises(RuntimeError, match="own error"):
            stage.do(CreateDataflow(description=view("v")))
    stage.effects()
    assert stage.a.runs() == {"v": view("v")}

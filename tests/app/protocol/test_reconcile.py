"""Reconciliation: a replica that goes on comes to what a fresh one would come to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.app.protocol.compute import (
    AllowCompaction,
    ComputeCommand,
    CreateDataflow,
    CreateInstance,
    Hello,
    InitializationComplete,
    Peek,
    Schedule,
    UpdateConfiguration,
)
from shardline.app.protocol.history import reduce_compute, reduce_storage
from shardline.app.protocol.objects import SubscribeDescription
from shardline.app.protocol.reconcile import reconcile_compute, reconcile_storage
from shardline.app.protocol.storage import (
    CancelOneshotIngestion,
    RunIngestion,
    RunOneshotIngestion,
    RunSink,
    StorageCommand,
)
from shardline.datasource.errors import InvalidUsage
from support.fakes.replicas import (
    ComputeReplica,
    StorageReplica,
    compute_commands,
    dataflow,
    sink,
    source,
    storage_commands,
    thorough,
)

# --- compute: properties -----------------------------------------------------------------------


@st.composite
def compute_reconnects(
    draw: st.DrawFn,
) -> tuple[list[ComputeCommand], list[ComputeCommand]]:
    """A history, and what the next controller says: often much the same."""
    old = draw(compute_commands())
    old = old[: draw(st.integers(0, len(old)))]
    there = ComputeReplica().do(old).flows
    repeated = reduce_compute(old) if draw(st.booleans()) else []
    return old, [*repeated, *draw(compute_commands(there, size=8))]


@pytest.mark.slow
@given(compute_reconnects())
@thorough
def test_reconciled_compute_is_as_a_fresh_replica(
    said: tuple[list[ComputeCommand], list[ComputeCommand]],
) -> None:
    """After any history and any new commands: what is there is what the new commands say."""
    old, new = said
    done = reconcile_compute(old, new)
    replica = ComputeReplica().do(old)
    before = {name: flow.born for name, flow in replica.flows.items()}
    for uuid in done.forgotten:
        replica.peeks.pop(uuid, None)
    replica.do(done.todo)
    fresh = ComputeReplica().do(new)

    assert {n: (f.what, f.since) for n, f in replica.flows.items()} == {
        n: (f.what, f.since) for n, f in fresh.flows.items()
    }
    assert {n for n, f in fresh.flows.items() if f.scheduled} <= {
        n for n, f in replica.flows.items() if f.scheduled
    }
    assert replica.peeks == fresh.peeks
    assert replica.answers() == fresh.answers()
    assert replica.settings.items() >= fresh.settings.items()
    assert replica.writes >= fresh.writes
    assert fresh.instance in (None, replica.instance)

    untouched = {n for n, f in replica.flows.items() if before.get(n) == f.born}
    assert untouched == set(done.kept)
    assert set(done.replaced) == set(before) & set(replica.flows) - untouched
    assert set(done.dropped) == set(before) - set(replica.flows)
    assert set(done.lower) == set(fresh.flows)


@pytest.mark.slow
@given(compute_reconnects())
@thorough
def test_what_goes_on_was_equal(
    said: tuple[list[ComputeCommand], list[ComputeCommand]],
) -> None:
    """What is kept is described as before, and is asked for nothing that is compacted."""
    old, new = said
    done = reconcile_compute(old, new)
    was, now = ComputeReplica().do(old).flows, ComputeReplica().do(new).flows
    for name in done.kept:
        assert was[name].what == now[name].what
        assert was[name].since <= done.lower[name] == now[name].since
        assert not isinstance(now[name].what, SubscribeDescription)


@pytest.mark.slow
@given(compute_reconnects())
@thorough
def test_compute_is_reconciled_in_order(
    said: tuple[list[ComputeCommand], list[ComputeCommand]],
) -> None:
    """Drops come first; each thing is made once, then started, then read, then let go."""
    old, new = said
    done = reconcile_compute(old, new)
    ranks = [_rank(command) for command in done.todo]
    assert ranks == sorted(ranks)
    made = [command.id for command in done.todo if isinstance(command, CreateDataflow)]
    assert len(made) == len(set(made))
    assert not {*made} & {*done.kept, *done.dropped}


def _rank(command: ComputeCommand) -> int:
    order = ("CreateInstance", "UpdateConfiguration", "CreateDataflow", "Schedule", "Peek")
    match command:
        case AllowCompaction(frontier=None):
            return 0
        case AllowCompaction():
            return 10
        case _:
            name = type(command).__name__
            return 11 if name == "AllowWrites" else 1 + order.index(name)


@pytest.mark.slow
@given(compute_reconnects())
@thorough
def test_only_what_was_said_decides_about_compute(
    said: tuple[list[ComputeCommand], list[ComputeCommand]],
) -> None:
    """Whether a history was reduced before makes no difference to what goes on."""
    old, new = said
    whole, reduced = reconcile_compute(old, new), reconcile_compute(reduce_compute(old), new)
    assert whole == reduced


@given(compute_commands())
@thorough
def test_saying_the_same_again_does_nothing(commands: list[ComputeCommand]) -> None:
    """Reconnecting costs what runs nothing: only peeks and subscriptions are told anew."""
    done = reconcile_compute(commands, reduce_compute(commands))
    subscribed = {n for n in done.lower if isinstance(_what(commands, n), SubscribeDescription)}
    assert set(done.replaced) == subscribed
    assert done.dropped == ()
    for command in done.todo:
        assert isinstance(command, Peek) or getattr(command, "id", None) in subscribed


def _what(commands: list[ComputeCommand], name: str) -> object:
    return ComputeReplica().do(commands).flows[name].what


# --- compute: cases ----------------------------------------------------------------------------


def made(name: str, as_of: int = 0, variant: int = 0) -> CreateDataflow:
    return CreateDataflow(dataflow=dataflow(name, variant), as_of=as_of)


def test_a_compacted_dataflow_is_made_anew_for_an_earlier_time() -> None:
    """Equal is not enough: at a time that is compacted nothing can be read any more."""
    old = (made("a", 3), Schedule("a"), AllowCompaction("a", 8))
    assert reconcile_compute(old, [made("a", 8)]).kept == ("a",)
    early = reconcile_compute(old, [made("a", 7)])
    assert early.replaced == ("a",)
    assert early.todo == (AllowCompaction("a", None), made("a", 7))


def test_times_are_let_go_after_the_peeks() -> None:
    """A peek that comes with the new commands reads before its time is let go."""
    peek = Peek(uuid="p", query="select", inputs=("a",), as_of=5, limit_bytes=1)
    new = (made("a", 4), peek, AllowCompaction("a", 9))
    done = reconcile_compute([made("a", 2), Schedule("a")], new)
    assert done.kept == ("a",)
    assert done.todo == (peek, AllowCompaction("a", 9))
    assert done.lower == {"a": 9}


def test_nothing_is_made_anew_for_a_peek() -> None:
    """A peek at a time that has been let go is answered by an error, and costs nobody anything."""
    peek = Peek(uuid="p", query="select", inputs=("a",), as_of=5, limit_bytes=1)
    said = (made("a", 4), peek, AllowCompaction("a", 9))
    assert reconcile_compute(said, said).kept == ("a",)
    assert reconcile_compute(said, reduce_compute(said)).todo == (peek,)


def test_peeks_of_the_connection_before_are_forgotten() -> None:
    """An old peek is not answered to somebody else, even if its uuid comes again."""
    peek = Peek(uuid="p", query="select", inputs=("src",), as_of=5, limit_bytes=1)
    done = reconcile_compute([peek], [peek])
    assert done.forgotten == ("p",)
    assert done.todo == (peek,)


def test_readers_are_dropped_before_what_they_read() -> None:
    """Drops go in the opposite order of creation."""
    done = reconcile_compute([made("base"), made("over")], [])
    assert done.todo == (AllowCompaction("over", None), AllowCompaction("base", None))


def test_permissions_and_settings_stay_as_they_are() -> None:
    """A controller that does not know of a permission or setting does not take it back."""
    old = (CreateInstance({"k": "v"}), UpdateConfiguration({"x": "1", "y": "1"}), made("a"))
    new = (Hello("n"), CreateInstance({"k": "v"}), UpdateConfiguration({"x": "1", "y": "2"}))
    done = reconcile_compute((*old, Schedule("a")), (*new, made("a"), InitializationComplete()))
    assert done.todo == (UpdateConfiguration({"y": "2"}),)


def test_other_settings_of_the_whole_are_refused() -> None:
    """What cannot change while objects run is an error for the controller, not for the runtime."""
    with pytest.raises(InvalidUsage, match="INCOMPATIBLE_INSTANCE"):
        reconcile_compute([CreateInstance({"k": "v"})], [CreateInstance({})])


def test_regression_compaction_of_what_the_same_reconciliation_drops() -> None:
    """Commands about what is not to be there any more do nothing, and are not done."""
    done = reconcile_compute([made("a"), made("b")], [made("b"), AllowCompaction("a", 5)])
    assert done.todo == (AllowCompaction("a", None),)
    stored = reconcile_storage([RunIngestion(source("a"))], [AllowCompaction("a", 5)])
    assert stored.todo == (AllowCompaction("a", None),)


def test_regression_compaction_of_what_never_was_there() -> None:
    """A name that neither the history nor the new commands know is a mistake."""
    with pytest.raises(InvalidUsage, match=r"\[UNKNOWN_OBJECT\].*'x'"):
        reconcile_compute([made("a")], [made("a"), AllowCompaction("x", 5)])
    with pytest.raises(InvalidUsage, match=r"\[UNKNOWN_OBJECT\].*'x'"):
        reconcile_storage([RunIngestion(source("a"))], [AllowCompaction("x", 5)])


# --- storage -----------------------------------------------------------------------------------


@st.composite
def storage_reconnects(
    draw: st.DrawFn,
) -> tuple[list[StorageCommand], list[StorageCommand]]:
    """A history, and what the next controller says: often much the same."""
    old = draw(storage_commands())
    old = old[: draw(st.integers(0, len(old)))]
    there = StorageReplica().do(old).things
    repeated = reduce_storage(old) if draw(st.booleans()) else []
    return old, [*repeated, *draw(storage_commands(there, size=8))]


@pytest.mark.slow
@given(storage_reconnects())
@thorough
def test_reconciled_storage_is_as_a_fresh_replica(
    said: tuple[list[StorageCommand], list[StorageCommand]],
) -> None:
    """After any history and any new commands: what is there is what the new commands say."""
    old, new = said
    done = reconcile_storage(old, new)
    replica = StorageReplica().do(old)
    before = {name: (thing.born, thing.what) for name, thing in replica.things.items()}
    ran = dict(replica.oneshots)
    replica.do(done.todo)
    fresh = StorageReplica().do(new)

    assert {n: t.what for n, t in replica.things.items()} == {
        n: t.what for n, t in fresh.things.items()
    }
    for name, thing in fresh.things.items():
        # A frontier never goes back: what was let go before stays so.
        assert thing.since is None or thing.since <= (replica.things[name].since or 0)
    assert replica.settings.items() >= fresh.settings.items()
    assert replica.writes >= fresh.writes
    assert set(replica.oneshots) == set(fresh.oneshots)
    for uuid, (run, _) in fresh.oneshots.items():
        assert replica.oneshots[uuid][0] == run
        if uuid in ran and ran[uuid][0] == run:
            assert replica.oneshots[uuid] == ran[uuid]  # it runs on

    equal = {n for n, t in replica.things.items() if n in before and before[n] == (t.born, t.what)}
    assert set(done.kept) == equal
    assert set(done.replaced) == set(before) & set(replica.things) - equal
    assert set(done.dropped) == set(before) - set(replica.things)
    assert reconcile_storage(reduce_storage(old), new) == done


@given(storage_commands())
@thorough
def test_saying_the_same_of_storage_again_does_nothing(commands: list[StorageCommand]) -> None:
    """Reconnecting costs sources and sinks nothing."""
    done = reconcile_storage(commands, reduce_storage(commands))
    assert done.todo == ()
    assert done.replaced == done.dropped == ()


def test_a_changed_source_is_changed_in_place() -> None:
    """Another definition of the same name is one command, and no drop."""
    new = [RunIngestion(source("a")), RunIngestion(source("a", 1))]
    done = reconcile_storage([RunIngestion(source("a"))], new)
    assert done.todo == (RunIngestion(source("a", 1)),)
    assert done.replaced == ("a",)


def test_a_sink_in_the_place_of_a_source_is_another_thing() -> None:
    """What changes its kind is dropped before it is made."""
    run = RunSink(sink=sink("a"), as_of=4)
    done = reconcile_storage([RunIngestion(source("a"))], [run])
    assert done.todo == (AllowCompaction("a", None), run)
    assert done.replaced == ("a",)


def test_an_ingestion_that_was_ended_is_run_again() -> None:
    """A oneshot ingestion runs on if it is the same; one whose end was told is not there."""
    run = RunOneshotIngestion(uuid="p", into="a", format="csv")
    other = RunOneshotIngestion(uuid="q", into="a", format="csv")
    assert reconcile_storage([run, other], [run]).todo == (CancelOneshotIngestion("q"),)
    assert reconcile_storage([run, CancelOneshotIngestion("p")], [run]).todo == (run,)

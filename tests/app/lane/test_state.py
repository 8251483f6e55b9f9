"""The fold: properties over any order of commands, and what each command comes to."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    Record,
    Repaired,
    RepairErrors,
    RestartDataflow,
    ResumeDataflow,
    Submission,
    SuspendAndRestart,
    UpdateConfiguration,
    command_kind,
    kind_of,
)
from shardline.app.lane.settings import LaneSettings
from shardline.app.lane.state import (
    EMPTY_STATE,
    LaneObject,
    LaneState,
    apply,
    check_state,
    unfinished_replacements,
    without_repeated,
    would_change,
)
from shardline.app.protocol.objects import (
    Description,
    SourceDescription,
    SubscribeDescription,
    ViewDescription,
)
from shardline.datasource.errors import InvalidUsage

HOLDER = Holder(
    token="t",  # noqa: S106 - an id, no secret
    host="h",
    boot="b",
    pid=1,
    started=2,
    application="a",
    since_ms=3,
)

names = st.sampled_from(["a", "b", "c"])
descriptions = st.one_of(
    st.builds(SourceDescription, name=names, format=st.sampled_from(["csv", "json"])),
    st.builds(
        ViewDescription,
        name=names,
        query=st.sampled_from(["SELECT 1", "SELECT 2"]),
        inputs=st.just(()),
        schema=st.just("a INT"),
    ),
    st.builds(SubscribeDescription, name=st.sampled_from(["t", "u"]), on=names),
)
commands: st.SearchStrategy[LaneCommand] = st.one_of(
    st.builds(
        CreateDataflow,
        description=descriptions,
        as_of=st.integers(0, 9),
        operators=st.integers(1, 5),
    ),
    st.builds(DropDataflow, names, st.booleans(), kind=st.sampled_from(["", "compute", "storage"])),
    st.builds(PauseDataflow, st.sampled_from(["a", "b", "t"])),
    st.builds(ResumeDataflow, names),
    st.builds(RestartDataflow, names),
    st.builds(RepairErrors, id=names, act=st.sampled_from(["retract", "skip"]), as_of=st.just(7)),
    st.builds(Repaired, names, st.integers(0, 25), st.sampled_from(["", "why"])),
    st.builds(Dropped, names, st.integers(1, 4)),
    st.builds(SuspendAndRestart, names, st.integers(1, 4), st.just("why")),
    st.builds(
        Opened,
        st.just(HOLDER),
        st.dictionaries(names, st.integers(1, 9), max_size=2),
    ),
    st.just(HolderLease(HOLDER)),
    st.builds(AllowWrites, st.sampled_from(["compute", "storage"])),
    st.just(UpdateConfiguration({"k": "1"})),
)
orders = st.lists(commands, max_size=25)


def record(index: int, command: LaneCommand, producer: str = "p") -> Record:
    return Record(
        index=index,
        producer=producer,
        sequence=index + 1,
        epoch=1,
        at_ms=0,
        command=command,
    )


def fold(order: list[LaneCommand], state: LaneState = EMPTY_STATE) -> LaneState:
    for command in order:
        state = apply(state, record(state.next_index, command))
        check_state(state)
    return state


@given(orders, st.integers(0, 25))
def test_a_replay_from_any_recorded_state_gives_the_same(
    order: list[LaneCommand], cut: int
) -> None:
    """A state that was written and read in between changes nothing, ids least of all."""
    before = fold(order[:cut])
    read = msgspec.json.decode(msgspec.json.encode(before), type=LaneState)
    assert read == before
    assert list(read.objects) == list(before.objects)
    assert fold(order[cut:], read) == fold(order)


@given(orders)
def test_records_survive_their_encoding(order: list[LaneCommand]) -> None:
    """Every command is read back as it was written."""
    for index, command in enumerate(order):
        one = record(index, command)
        assert msgspec.json.decode(msgspec.json.encode(one), type=Record) == one
        assert msgspec.to_builtins(command)["type"] == command_kind(command)


@given(orders)
def test_no_id_is_given_out_twice(order: list[LaneCommand]) -> None:
    """A global id belongs to one name, a dataflow number to one definition, for ever."""
    owners: dict[str, str] = {}
    definitions: dict[int, object] = {}
    epochs: dict[str, int] = {}
    state = EMPTY_STATE
    for command in order:
        state = fold([command], state)
        for name, known in state.objects.items():
            assert owners.setdefault(known.global_id, name) == name
            assert definitions.setdefault(known.dataflow, known.description) == known.description
            assert known.epoch >= epochs.get(known.global_id, 1)
            epochs[known.global_id] = known.epoch


@given(orders)
def test_what_lives_is_what_was_last_asked_for(order: list[LaneCommand]) -> None:
    """The newest creation of each name counts, unless a drop, or its runtime's end, came after."""
    meant: dict[str, Description] = {}
    for command in order:
        match command:
            case CreateDataflow(description=description):
                meant[command.id] = description
            case DropDataflow(name, kind=kind):
                if name in meant and kind in {"", kind_of(meant[name])}:
                    del meant[name]
            case Opened():
                meant = {n: d for n, d in meant.items() if not n.startswith(("t", "u"))}
            case _:
                pass
    live = {n: o.description for n, o in fold(order).objects.items() if o.life == "live"}
    assert live == meant


@given(orders, commands)
def test_a_command_without_effect_is_known_beforehand(
    order: list[LaneCommand], command: LaneCommand
) -> None:
    """`would_change` says what applying it shows, positions and numbers apart."""
    state = fold(order)
    after = fold([command], state)
    same = msgspec.structs.replace(after, next_index=state.next_index, producers=state.producers)
    assert would_change(state, command) == (same != state)


def test_restarts_of_lives_that_are_over_have_no_effect() -> None:
    """Of two reports of one failure the second comes too late."""
    create = CreateDataflow(description=SourceDescription(name="a", format="csv"))
    restart = SuspendAndRestart("a", 1, "why")
    assert fold([create, restart, restart]).objects["a"].epoch == 2
    dropped = fold([create, DropDataflow("a"), restart]).objects["a"]
    assert (dropped.life, dropped.epoch) == ("dropping", 1)


def test_a_pause_stays_until_it_is_resumed_or_its_object_dropped() -> None:
    """No definition, restart, new holder or replacement ends it; a drop for good does."""
    create = CreateDataflow(description=SourceDescription(name="a", format="csv"))
    other = CreateDataflow(description=SourceDescription(name="a", format="json"))
    pause, resume = PauseDataflow("a"), ResumeDataflow("a")
    kept: list[list[LaneCommand]] = [
        [create],
        [other],
        [pause],
        [Opened(HOLDER)],
        [RestartDataflow("a")],
        [SuspendAndRestart("a", 1, "why")],
        [DropDataflow("a", replaced=True), Dropped("a", 1), other],
    ]
    for more in kept:
        assert fold([create, pause, *more]).paused == ("a",), more
    assert fold([create, pause, resume]).paused == ()
    assert fold([create, pause, DropDataflow("a"), create]).paused == ()


def test_only_what_lives_and_serves_nobody_in_particular_can_be_paused() -> None:
    """A pause of what is unknown, on its way out, or one client's has no effect."""
    create = CreateDataflow(description=SourceDescription(name="a", format="csv"))
    followed = CreateDataflow(description=SubscribeDescription(name="t", on="a"))
    assert fold([PauseDataflow("a"), create]).paused == ()
    assert fold([create, DropDataflow("a"), PauseDataflow("a")]).paused == ()
    assert fold([create, followed, PauseDataflow("t")]).paused == ()


def test_a_start_that_is_asked_for_has_an_epoch_of_its_own() -> None:
    """Resumed and restarted objects count on in the order; what is not there does not."""
    create = CreateDataflow(description=SourceDescription(name="a", format="csv"))
    restarted = fold([create, RestartDataflow("a"), RestartDataflow("a")]).objects["a"]
    assert (restarted.epoch, restarted.asked) == (3, 3)
    resumed = fold([create, PauseDataflow("a"), ResumeDataflow("a")]).objects["a"]
    assert (resumed.epoch, resumed.asked) == (2, 2)
    same = fold([create]).objects
    assert fold([create, ResumeDataflow("a")]).objects == same
    assert fold([create, PauseDataflow("a"), RestartDataflow("a")]).objects == same
    assert fold([create, RestartDataflow("b")]).objects == same
    gone = fold([create, DropDataflow("a"), RestartDataflow("a")]).objects["a"]
    assert (gone.life, gone.epoch) == ("dropping", 1)


def test_a_repair_is_pending_until_it_is_done() -> None:
    """Also for the next holder; in the order of positions, each until its own end."""
    one = RepairErrors(id="a", act="retract", as_of=7)
    other = RepairErrors(id="a", act="skip", as_of=8, errors=("e",))
    assert fold([one, other, Opened(HOLDER)]).repairs == {0: one, 1: other}
    assert fold([one, other, Repaired("a", 0)]).repairs == {1: other}
    assert fold([one, Repaired("a", 0), Repaired("a", 0)]).repairs == {}


def test_the_end_of_a_drop_belongs_to_the_life_that_was_dropped() -> None:
    """A late `Dropped` does not take away what was made again meanwhile, or dropped again."""
    create = CreateDataflow(description=SourceDescription(name="a", format="csv"))
    drop, late = DropDataflow("a"), Dropped("a", 1)
    assert "a" in fold([create, drop, create, late]).objects
    assert "a" in fold([create, drop, create, drop, late]).objects
    assert "a" not in fold([create, drop, create, drop, Dropped("a", 2)]).objects
    # The next object of the name begins with epoch 1 again.
    done = Dropped("a", 1, "u1")
    state = fold([create, drop, done, create, drop, done])
    assert state.objects["a"].global_id == "u2"
    assert fold([Dropped("a", 1, "u2")], state).objects == {}
    failed = SuspendAndRestart("a", 1, "why", "u1")
    assert fold([create, drop, done, create, failed]).objects["a"].epoch == 1


def test_records_of_versions_that_did_not_write_the_global_id_are_read() -> None:
    """They mean whichever object has the name, as they did when they were written."""
    written = {
        b'{"type":"dropped","id":"a","epoch":1}': Dropped("a", 1),
        b'{"type":"suspend_and_restart","id":"a","epoch":1,"reason":"why"}': SuspendAndRestart(
            "a", 1, "why"
        ),
    }
    for data, command in written.items():
        assert msgspec.json.decode(data, type=LaneCommand) == command
    create = CreateDataflow(description=SourceDescription(name="a", format="csv"))
    assert fold([create, DropDataflow("a"), Dropped("a", 1)]).objects == {}
    assert fold([create, SuspendAndRestart("a", 1, "why")]).objects["a"].epoch == 2


def test_a_drop_means_an_object_of_its_controller() -> None:
    """Not the one of the other controller that has got the name meanwhile."""
    view = ViewDescription(name="a", query="SELECT 1", inputs=(), schema="a INT")
    make = CreateDataflow(description=view, as_of=1)
    before = fold([CreateDataflow(description=SourceDescription(name="a", format="csv")), make])
    before = fold([PauseDataflow("a")], before)
    late = DropDataflow("a", kind="storage")
    for drop in (late, DropDataflow("a", replaced=True, kind="storage")):
        assert not would_change(before, drop)
    for drop in (DropDataflow("a", kind="compute"), DropDataflow("a")):
        after = fold([drop], before)
        assert (after.objects["a"].life, after.paused) == ("dropping", ())
    # Of versions that did not write it.
    written = b'{"type":"drop_dataflow","id":"a","replaced":false,"if_unfollowed":false}'
    assert msgspec.json.decode(written, type=LaneCommand) == DropDataflow("a")


def test_what_is_dropped_for_a_successor_waits_for_it_or_for_a_drop_without_one() -> None:
    """Over a new holder too; a subscription and what is dropped already do not wait."""
    create = CreateDataflow(description=SourceDescription(name="a", format="csv"))
    other = CreateDataflow(description=SourceDescription(name="a", format="json"))
    replace, drop = DropDataflow("a", replaced=True), DropDataflow("a")
    end = DropDataflow("a", if_unfollowed=True)
    orders: list[tuple[list[LaneCommand], tuple[str, bool], tuple[str, ...]]] = [
        ([replace], ("dropping", True), ("a",)),
        ([replace, Opened(HOLDER), replace], ("dropping", True), ("a",)),
        ([replace, create], ("live", False), ("a",)),
        ([replace, Opened(HOLDER), other], ("live", False), ("a",)),
        ([replace, Opened(HOLDER), drop], ("dropping", False), ()),
        ([replace, Opened(HOLDER), end], ("dropping", False), ()),
        ([drop, replace], ("dropping", False), ()),
        ([replace, Opened(HOLDER), other, end], ("live", False), ("a",)),
        ([end], ("live", False), ("a",)),
    ]
    for more, life, paused in orders:
        state = fold([create, PauseDataflow("a"), *more])
        known = state.objects["a"]
        assert ((known.life, known.replaced), state.paused) == (life, paused), more
        waits = {"a"} if life[1] else set()
        assert unfinished_replacements(state.objects, "storage") == waits, more
        assert unfinished_replacements(state.objects, "compute") == set(), more
    followed = CreateDataflow(description=SubscribeDescription(name="t", on="a"))
    assert not fold([followed, DropDataflow("t", replaced=True)]).objects["t"].replaced


def test_what_former_definitions_have_read_is_known_until_the_object_is_gone() -> None:
    """Their holds end with it, whoever was to end them before."""

    def of(*inputs: str) -> CreateDataflow:
        view = ViewDescription(name="v", query="SELECT 1", inputs=inputs, schema="a INT")
        return CreateDataflow(description=view, as_of=1)

    drop = DropDataflow("v", replaced=True)
    state = fold([of("a"), drop, of("b", "c"), of("b", "c"), drop, of("a", "d"), DropDataflow("v")])
    assert state.objects["v"].former_inputs == ("a", "b", "c")
    assert state.objects["v"].inputs_so_far == ("a", "b", "c", "d")
    assert fold([Dropped("v", 3), of("e")], state).objects["v"].inputs_so_far == ("e",)
    written = msgspec.to_builtins(state.objects["v"])
    del written["former_inputs"]
    assert msgspec.convert(written, LaneObject).inputs_so_far == ("a", "d")


def test_former_definitions_of_a_source_of_shards_are_known_until_it_is_gone() -> None:
    """One for each place, with the newest options: older credentials open it no more."""

    def of(path: str, kind: str = "shard", **options: str) -> CreateDataflow:
        given = {"path": path, **options}
        source = SourceDescription(name="s", format=kind, options=given)
        return CreateDataflow(description=source)

    state = fold([of("a"), of("b"), of("a", region="2"), of("c", "csv"), DropDataflow("s")])
    known = state.objects["s"]
    assert [one.options for one in known.sources_so_far] == [
        {"path": "a", "region": "2"},
        {"path": "b"},
    ]
    assert known.former_sources == known.sources_so_far
    assert fold([Dropped("s", 4), of("d", "csv")], state).objects["s"].sources_so_far == ()
    written = msgspec.to_builtins(known)
    del written["former_sources"]
    assert msgspec.convert(written, LaneObject).sources_so_far == ()


def test_producers_are_forgotten_in_the_order_of_their_silence() -> None:
    """Their number is bounded, and the lane itself is never forgotten."""
    state = apply(EMPTY_STATE, record(0, UpdateConfiguration({}), "lane"))
    for index in range(1, 600):
        state = apply(state, record(index, UpdateConfiguration({}), f"p{index}"))
    check_state(state)
    assert "lane" in state.producers
    assert "p599" in state.producers
    assert "p1" not in state.producers


def test_numbers_that_came_before_are_left_out() -> None:
    """A repeated submission is no new one, in the state and within one group."""
    state = apply(EMPTY_STATE, record(0, UpdateConfiguration({})))
    command = UpdateConfiguration({"k": "v"})
    asked = [Submission("p", n, command) for n in (1, 2, 2, 3)] + [Submission("q", 1, command)]
    fresh = [(s.producer, s.sequence) for s in without_repeated(state, asked)]
    assert fresh == [("p", 2), ("p", 3), ("q", 1)]


@pytest.mark.parametrize("wrong", [{"queue_max": 0}, {"restart_base_ms": 9, "restart_max_ms": 8}])
def test_settings_that_cannot_work_are_refused(wrong: dict[str, int]) -> None:
    """Nothing is unbounded by a zero, and the longest pause is not the shortest."""
    with pytest.raises(InvalidUsage, match="INVALID_SETTING"):
        LaneSettings(**wrong)

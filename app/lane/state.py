"""The lane's state is a pure fold of its records: ids, descriptions and epochs of all objects.

    state = apply(state, record)

The one allocator is here: global ids, numbers of dataflows and ranges of operator numbers follow
from the records alone. Checkpoints and metrics are filed under these ids, so a replay after a
crash, on any machine, has to give the same ones.

What runs at the moment is not here (`shardline.app.lane.process_state`). Started, stopped and
hydrated are facts about threads of one process: after its death none of them holds, and a replay
would take them for true. One completion *is* recorded, `Dropped`: it ends a name's claim to its
ids, which decides if a later creation of the same name gets new ones; that must not depend on which
of the two a process happened to see first.

Invariants:
    Ids are unique for ever: counters never go back.
    An object keeps its global id until `Dropped`; its dataflow number and operators for as long as
    its description stays, also if it is dropped and created again before it has stopped. A
    transient object that is created again is another one, and begins from nothing.
    Its epoch only grows, and grows with each incarnation that the order knows of.
    An object that is dropped for another definition keeps its name, ids, holds and pause until that
    one comes, or until it is dropped without one: a crash in between loses none of them.
    A pause belongs to a name. It ends when the object is resumed, or dropped without another one of
    that name to follow; nothing else ends it: no new definition, no reconciliation, no new holder.
    A repair is pending from its record to the `Repaired` of its position, so that a holder that
    dies in between leaves it to the next one.
    `apply` refuses nothing: a command that does not apply (any more) has no effect, so that replays
    never fail. What is refused is refused before it is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, Literal, TypeAlias, assert_never

import msgspec

from shardline.app.lane.commands import (
    LANE,
    AllowWrites,
    CreateDataflow,
    DropDataflow,
    Dropped,
    Holder,
    HolderLease,
    Kind,
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
    UseProject,
    is_transient,
    kind_of,
)
from shardline.app.protocol.objects import Description, SourceDescription, inputs_of, reads_shards
from shardline.app.protocol.project_identity import ProjectIdentity

__all__ = [
    "EMPTY_STATE",
    "LaneObject",
    "LaneState",
    "Life",
    "apply",
    "check_state",
    "unfinished_replacements",
    "without_repeated",
    "would_change",
]

Life: TypeAlias = Literal["live", "dropping"]
"""Live: the object should run. Dropping: it is stopped, and its leftovers are removed."""

_PRODUCERS_MAX: Final = 256
"""Most producers whose last numbers are remembered. Each connection is a producer; one that so many
others came after has been gone for long, and repeats nothing any more."""


class LaneObject(msgspec.Struct, frozen=True, kw_only=True):
    """An object by the order.

    Attributes:
        description: The definition.
        as_of: As in the command that created it.
        global_id: The id: `u7`, or `t3` if it is transient.
        dataflow: Number of its dataflow, from 1.
        operators: First number of its operators, and how many there are.
        epoch: Number of its present incarnation, from 1; what comes from a lower one is ignored.
        created: Index of the record that gave it its description.
        life: "live" if it should run, "dropping" if it is on its way out.
        replaced: True if it was dropped to make room for another definition of its name that has
            not come yet. Nothing of it is removed, since the other one takes its place, ids and
            holds; without one, a drop says so (`unfinished_replacements`).
        asked: Its epoch when a person last asked for a start (`ResumeDataflow`, `RestartDataflow`);
            that start does not wait out the pause after a failure. 0 for never.
        former_inputs: What dataflows of former definitions have read, sorted; the present one may
            read it, too. Holds on it may be left when the object is dropped: who was to end them
            may have died.
        former_sources: Former definitions of a source that have read shards, the newest of each
            place: their holds may be left, too, and in a location that only its options open.
    """

    description: Description
    as_of: int | None
    global_id: str
    dataflow: int
    operators: tuple[int, int]
    epoch: int
    created: int
    life: Life = "live"
    replaced: bool = False
    asked: int = 0
    former_inputs: tuple[str, ...] = ()
    former_sources: tuple[SourceDescription, ...] = ()

    @property
    def kind(self) -> Kind:
        """The controller that the object belongs to."""
        return kind_of(self.description)

    @property
    def inputs_so_far(self) -> tuple[str, ...]:
        """What dataflows of any of its definitions have read, the present one included."""
        read = inputs_of(self.description) if self.kind == "compute" else ()
        return tuple(sorted({*self.former_inputs, *read}))

    @property
    def sources_so_far(self) -> tuple[SourceDescription, ...]:
        """Definitions that have read shards, the present one included, the newest of each place."""
        found = {_place(one): one for one in self.former_sources}
        present = self.description
        if isinstance(present, SourceDescription) and reads_shards(present):
            found[_place(present)] = present
        return tuple(found.values())


class LaneState(msgspec.Struct, frozen=True, kw_only=True):
    """The fold of all records before `next_index`.

    Attributes:
        next_index: Position of the next record.
        epoch: Number of the runtime that holds the lane: how many have held it.
        holder: The last one of them; None before the first.
        next_user: Next number of a global id `u…`.
        next_transient: Next number of a global id `t…`.
        next_dataflow: Next number of a dataflow.
        next_operator: Next number of an operator.
        writes: Kinds whose objects may write, sorted.
        settings: Values of `UpdateConfiguration`, by name.
        project: The project whose objects these are; None if nobody has said.
        objects: By name, in the order of their creation.
        paused: Names of objects that are paused, sorted: live, and not to run.
        repairs: Repairs that are not known to be done, by their positions, in this order.
        producers: Last sequence of each producer, the least recently used one first.
    """

    next_index: int = 0
    epoch: int = 0
    holder: Holder | None = None
    next_user: int = 1
    next_transient: int = 1
    next_dataflow: int = 1
    next_operator: int = 1
    writes: tuple[Kind, ...] = ()
    settings: dict[str, str] = {}
    project: ProjectIdentity | None = None
    objects: dict[str, LaneObject] = {}
    paused: tuple[str, ...] = ()
    repairs: dict[int, RepairErrors] = {}
    producers: dict[str, int] = {}

    def next_sequence(self, producer: str) -> int:
        """The number after the last one of `producer`."""
        return self.producers.get(producer, 0) + 1


EMPTY_STATE: Final = LaneState()


def apply(state: LaneState, record: Record) -> LaneState:
    """The state after `record`, which must be the next one."""
    assert record.index == state.next_index, (record.index, state.next_index)
    # Taken out and put in again at the end: the dict's order is the order of last use.
    producers = {p: s for p, s in state.producers.items() if p != record.producer}
    if len(producers) >= _PRODUCERS_MAX:
        # Never the lane itself: its numbers would begin at 1 again, and name other records.
        producers.pop(next(p for p in producers if p != LANE))
    producers[record.producer] = record.sequence
    changed = _changed(state, record.command, record.index)
    return msgspec.structs.replace(changed, next_index=record.index + 1, producers=producers)


def would_change(state: LaneState, command: LaneCommand) -> bool:
    """True if `command` as the next record would change more than its producer's number."""
    return _changed(state, command, state.next_index) != state


def _changed(state: LaneState, command: LaneCommand, index: int) -> LaneState:
    match command:
        case Opened():
            changed = _opened(state, command)
        case HolderLease(holder):
            changed = msgspec.structs.replace(state, holder=holder)
        case CreateDataflow():
            changed = _created(state, command, index)
        case DropDataflow():
            changed = _dropping(state, command)
        case Dropped():
            changed = _dropped(state, command)
        case SuspendAndRestart():
            changed = _restarted(state, command)
        case PauseDataflow() | ResumeDataflow() | RestartDataflow():
            changed = _operated(state, command)
        case RepairErrors() | Repaired():
            changed = _with_repair(state, command, index)
        case AllowWrites() | UpdateConfiguration() | UseProject():
            changed = _configured(state, command)
        case _:
            assert_never(command)
    return changed


def _opened(state: LaneState, command: Opened) -> LaneState:
    """A new holder: all objects begin a new epoch; transient ones belonged to the old one."""
    # Above those that the new holder has reached as a follower, too, which the order never saw.
    objects = {
        name: msgspec.structs.replace(
            known,
            epoch=max(known.epoch, command.epochs.get(name, 0)) + 1,
            life="dropping" if is_transient(known.description) else known.life,
        )
        for name, known in state.objects.items()
    }
    return msgspec.structs.replace(
        state, epoch=state.epoch + 1, holder=command.holder, objects=objects
    )


def _created(state: LaneState, command: CreateDataflow, index: int) -> LaneState:
    """An object with this description: allocated, kept, brought back, or changed."""
    known = state.objects.get(command.id)
    if known is None:
        return _allocated(state, command, index)
    if known.description == command.description and known.life == "live":
        return state
    if known.description == command.description and not is_transient(known.description):
        # Created again before its drop was complete: it keeps its ids, and with them its checkpoint
        # and its shard. The epoch makes the `Dropped` that is under way ineffective.
        again = msgspec.structs.replace(
            known, life="live", replaced=False, epoch=known.epoch + 1, as_of=command.as_of
        )
        return _with_object(state, command.id, again)
    changed = msgspec.structs.replace(
        known,
        description=command.description,
        as_of=command.as_of,
        dataflow=state.next_dataflow,
        operators=(state.next_operator, command.operators),
        epoch=known.epoch + 1,
        created=index,
        life="live",
        replaced=False,
        former_inputs=known.inputs_so_far,
        former_sources=known.sources_so_far,
    )
    return _numbered(_with_object(state, command.id, changed), command)


def _allocated(state: LaneState, command: CreateDataflow, index: int) -> LaneState:
    """A new object, with a new global id."""
    transient = is_transient(command.description)
    global_id = f"t{state.next_transient}" if transient else f"u{state.next_user}"
    fresh = LaneObject(
        description=command.description,
        as_of=command.as_of,
        global_id=global_id,
        dataflow=state.next_dataflow,
        operators=(state.next_operator, command.operators),
        epoch=1,
        created=index,
    )
    counted = msgspec.structs.replace(
        _with_object(state, command.id, fresh),
        next_user=state.next_user + (0 if transient else 1),
        next_transient=state.next_transient + (1 if transient else 0),
    )
    return _numbered(counted, command)


def _numbered(state: LaneState, command: CreateDataflow) -> LaneState:
    return msgspec.structs.replace(
        state,
        next_dataflow=state.next_dataflow + 1,
        next_operator=state.next_operator + command.operators,
    )


def _dropped(state: LaneState, command: Dropped) -> LaneState:
    known = _object_meant(state, command)
    # The epoch: the drop of an earlier life of this object may be complete only now.
    if known is None or known.life != "dropping" or known.epoch != command.epoch:
        return state
    left = {name: other for name, other in state.objects.items() if name != command.id}
    return msgspec.structs.replace(state, objects=left)


def _restarted(state: LaneState, command: SuspendAndRestart) -> LaneState:
    known = _object_meant(state, command)
    # A restart never brings back what a drop has overtaken, and one that is recorded twice counts
    # once: the second names an epoch that is over.
    if known is None or known.life != "live" or command.epoch < known.epoch:
        return state
    restarted = msgspec.structs.replace(known, epoch=command.epoch + 1)
    return _with_object(state, command.id, restarted)


def _object_meant(state: LaneState, command: Dropped | SuspendAndRestart) -> LaneObject | None:
    """The object that the lane has recorded a completion of; None if another one has its name.

    A completion may come twice, and late: the lane records it again behind an append of which it
    did not know that it was done, and commands of others come in between.
    """
    known = state.objects.get(command.id)
    if known is None or command.global_id not in {"", known.global_id}:
        return None
    return known


def _configured(
    state: LaneState, command: AllowWrites | UpdateConfiguration | UseProject
) -> LaneState:
    match command:
        case AllowWrites(kind):
            kinds = tuple(sorted({*state.writes, kind}))
            return msgspec.structs.replace(state, writes=kinds)
        case UpdateConfiguration(settings):
            return msgspec.structs.replace(state, settings={**state.settings, **settings})
        case UseProject(project):
            return msgspec.structs.replace(state, project=project)


def _with_repair(state: LaneState, command: RepairErrors | Repaired, index: int) -> LaneState:
    """The state with one repair more, or less."""
    done = index if isinstance(command, RepairErrors) else command.index
    repairs = {at: repair for at, repair in state.repairs.items() if at != done}
    if isinstance(command, RepairErrors):
        repairs[index] = command
    return msgspec.structs.replace(state, repairs=repairs)


def _dropping(state: LaneState, command: DropDataflow) -> LaneState:
    name, replaced = command.id, command.replaced
    known = state.objects.get(name)
    if known is not None and command.kind not in {"", known.kind}:
        return state
    if command.if_unfollowed and (known is None or not known.replaced):
        return state
    kept = state if replaced else _with_pause(state, name, paused=False)
    if known is None:
        return kept
    # Not of what is dropped already: its leftovers may be gone. And not of a transient object: a
    # successor begins from nothing, and the next holder has no use for what is left.
    waits = replaced and not is_transient(known.description)
    waits = waits and (known.life == "live" or known.replaced)
    dropped = msgspec.structs.replace(known, life="dropping", replaced=waits)
    return _with_object(kept, name, dropped)


def _operated(
    state: LaneState, command: PauseDataflow | ResumeDataflow | RestartDataflow
) -> LaneState:
    """The state after a command of a person about one object."""
    match command:
        case PauseDataflow(name):
            return _paused(state, name)
        case ResumeDataflow(name):
            return _resumed(state, name)
        case RestartDataflow(name):
            # A paused object has no incarnation to end, and stays paused.
            return state if name in state.paused else _asked(state, name)


def _paused(state: LaneState, name: str) -> LaneState:
    known = state.objects.get(name)
    # A transient object serves a client that waits for it: it is dropped, not paused.
    if known is None or known.life != "live" or is_transient(known.description):
        return state
    return _with_pause(state, name, paused=True)


def _resumed(state: LaneState, name: str) -> LaneState:
    if name not in state.paused:
        return state
    # The epoch grows here, and not only when the object starts: the next holder counts on from the
    # order's epochs, and would give that of this start to another incarnation.
    return _asked(_with_pause(state, name, paused=False), name)


def _asked(state: LaneState, name: str) -> LaneState:
    """The object with a new epoch that a person has asked for."""
    known = state.objects.get(name)
    if known is None or known.life != "live":
        return state
    epoch = known.epoch + 1
    return _with_object(state, name, msgspec.structs.replace(known, epoch=epoch, asked=epoch))


def _with_pause(state: LaneState, name: str, *, paused: bool) -> LaneState:
    names = {*state.paused, name} if paused else {*state.paused} - {name}
    return msgspec.structs.replace(state, paused=tuple(sorted(names)))


def _with_object(state: LaneState, name: str, changed: LaneObject) -> LaneState:
    return msgspec.structs.replace(state, objects={**state.objects, name: changed})


def without_repeated(state: LaneState, submissions: Sequence[Submission]) -> list[Submission]:
    """The submissions whose numbers are new to `state`; of equal ones the first."""
    last = dict(state.producers)
    fresh = []
    for submission in submissions:
        if submission.sequence > last.get(submission.producer, 0):
            last[submission.producer] = submission.sequence
            fresh.append(submission)
    return fresh


def _place(source: SourceDescription) -> tuple[str | None, ...]:
    """The options that say which shards a source reads; others of it may change."""
    given = {name.lower(): text for name, text in source.options.items()}
    return tuple(given.get(name) for name in ("path", "location", "shard", "shards"))


def unfinished_replacements(objects: Mapping[str, LaneObject], kind: Kind) -> set[str]:
    """Names of objects that were dropped for a successor, which the order does not have yet."""
    return {name for name, known in objects.items() if known.replaced and known.kind == kind}


def check_state(state: LaneState) -> None:
    """Assert the invariants of a state: for tests and simulations.

    Raises:
        AssertionError: Two objects share a number, or one has a number that was not given out.
    """
    objects = state.objects.values()
    assert len({o.global_id for o in objects}) == len(state.objects), state
    assert len({o.dataflow for o in objects}) == len(state.objects), state
    assert all(o.dataflow < state.next_dataflow for o in objects), state
    ranges = sorted(o.operators for o in objects)
    ends = [first + count for first, count in ranges]
    starts = [first for first, _ in ranges[1:]]
    assert all(end <= start for end, start in zip(ends, starts, strict=False)), ranges
    assert not ends or ends[-1] <= state.next_operator, (ranges, state.next_operator)
    assert len(state.producers) <= _PRODUCERS_MAX, len(state.producers)
    assert list(state.paused) == sorted(set(state.paused)), state.paused
    assert all(o.asked <= o.epoch for o in objects), state
    assert all(o.life == "dropping" for o in objects if o.replaced), state

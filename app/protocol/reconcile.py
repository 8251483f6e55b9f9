"""What is to be done when a controller says anew what should be there.

    done = reconcile_compute(history.commands(), commands)
    for command in done.todo: ...                   all that is to be done, in this order
    history = ComputeHistory(commands, gone=done.dropped)

Both functions are pure: the result follows from what was said before and what is said now, and from
nothing that has happened since (a peek that is answered, a query that failed). It is a difference
of two states, no replay: what a list makes and drops again is as if it had never been named.

Invariants:
    What is equal goes on untouched: nothing of it is in `todo` but a later frontier, and the
    permission to start if it had none. Equal are descriptions; times may differ as long as nothing
    is asked for that is compacted already.
    Drops come first, readers before what they read. Each name is in one of kept, replaced, dropped
    at most, and in none if it is new.
    `todo` holds neither `Hello` nor `InitializationComplete`, and `AllowWrites` once.
    Times of what goes on are let go (`AllowCompaction`) after the peeks of the same list. What goes
    on is not made anew for a peek at a time that it has let go already.
    A permission that was given stays given: writes, the start of what goes on, and settings that
    are not named now.
    Doing it for the same commands again drops and makes nothing but subscriptions.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from shardline.app.protocol.compute import (
    AllowCompaction,
    AllowWrites,
    ComputeCommand,
    CreateDataflow,
    Schedule,
    UpdateConfiguration,
)
from shardline.app.protocol.history import (
    ComputeHistory,
    HeldObject,
    StorageHistory,
    reduce_storage,
    same_instance,
)
from shardline.app.protocol.storage import (
    CancelOneshotIngestion,
    RunIngestion,
    RunSink,
    StorageCommand,
)

__all__ = [
    "ComputeReconciliation",
    "StorageReconciliation",
    "reconcile_compute",
    "reconcile_storage",
]


@dataclass(frozen=True, slots=True)
class ComputeReconciliation:
    """What a new list of compute commands comes to.

    Attributes:
        todo: What is to be done, in this order.
        kept: Dataflows that go on untouched.
        replaced: Dataflows that are dropped and made anew under the same name.
        dropped: Dataflows that are dropped; nothing about them is told to the new controller.
        lower: For all that is there afterwards: from which time on its frontiers are told anew.
        forgotten: Peeks of the connection before: end them and answer none. A peek of the same
            uuid in `todo` is another one.
    """

    todo: tuple[ComputeCommand, ...]
    kept: tuple[str, ...]
    replaced: tuple[str, ...]
    dropped: tuple[str, ...]
    lower: Mapping[str, int]
    forgotten: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StorageReconciliation:
    """What a new list of storage commands comes to.

    Attributes:
        todo: What is to be done, in this order.
        kept: Sources and sinks that go on untouched.
        replaced: Those with another definition; changed in place, unless a source becomes a sink.
        dropped: Those that are dropped; nothing about them is told to the new controller.
    """

    todo: tuple[StorageCommand, ...]
    kept: tuple[str, ...]
    replaced: tuple[str, ...]
    dropped: tuple[str, ...]


def reconcile_compute(
    old: Sequence[ComputeCommand], new: Sequence[ComputeCommand]
) -> ComputeReconciliation:
    """What is to be done so that a replica that was told `old` is as one that was told `new`.

    Args:
        old: Commands so far, reduced or not; empty for a fresh replica.
        new: Commands of a new connection up to `InitializationComplete`.

    Raises:
        InvalidUsage: With code UNKNOWN_OBJECT for a name that is in neither, with code
            INCOMPATIBLE_INSTANCE for other settings of the whole. Nothing is to be done then.
    """
    was = ComputeHistory(old)
    now = ComputeHistory(gone=was.dataflows)
    for command in new:
        now.append(command)
    same_instance(was.instance, now.instance)

    lower = {name: now.as_of(name) for name in now.dataflows}
    kept = tuple(
        name
        for name, held in now.dataflows.items()
        if name in was.dataflows and was.dataflows[name].goes_on_as(held.create, lower[name])
    )
    replaced = tuple(n for n in now.dataflows if n in was.dataflows and n not in kept)
    dropped = tuple(n for n in was.dataflows if n not in now.dataflows)
    todo = (
        *(AllowCompaction(n, None) for n in reversed(was.dataflows) if n not in kept),
        *_what_is_made(was, now, kept),
        *now.peeks.values(),
        *_what_is_let_go(was, now, kept),
        *([AllowWrites()] if now.writes and not was.writes else []),
    )
    return ComputeReconciliation(todo, kept, replaced, dropped, lower, tuple(was.peeks))


def _what_is_made(
    was: ComputeHistory, now: ComputeHistory, kept: Container[str]
) -> Iterator[ComputeCommand]:
    if now.instance and not was.instance:
        yield now.instance
    yield from _configuration(was.settings, now.settings)
    for command in now.commands():
        match command:
            case CreateDataflow(id=name) if name not in kept:
                yield command
            case Schedule(id=name) if name not in kept or not was.dataflows[name].scheduled:
                yield command
            case _:
                pass


def _what_is_let_go(
    was: ComputeHistory, now: ComputeHistory, kept: Iterable[str]
) -> Iterator[AllowCompaction]:
    for name in kept:
        if now.as_of(name) > was.as_of(name):
            yield AllowCompaction(name, now.as_of(name))


def reconcile_storage(
    old: Sequence[StorageCommand], new: Sequence[StorageCommand]
) -> StorageReconciliation:
    """What is to be done so that a replica that was told `old` is as one that was told `new`.

    Args:
        old: Commands so far, reduced or not; empty for a fresh replica. A oneshot ingestion whose
            end was told to a controller is to be cancelled in it, or it is taken to run still.
        new: Commands of a new connection up to `InitializationComplete`.

    Raises:
        InvalidUsage: With code UNKNOWN_OBJECT for a name that is in neither. Nothing is to be done
            then.
    """
    was = StorageHistory(reduce_storage(old))  # in the order of a reduced one, whatever it was
    now = StorageHistory(gone=was.objects)
    for command in new:
        now.append(command)

    kept = tuple(n for n, held in now.objects.items() if _goes_on(was.objects.get(n), held))
    replaced = tuple(n for n in now.objects if n in was.objects and n not in kept)
    dropped = tuple(n for n in was.objects if n not in now.objects)
    ended = (uuid for uuid, run in was.oneshots.items() if now.oneshots.get(uuid) != run)
    todo = (
        *(CancelOneshotIngestion(uuid) for uuid in ended),
        *(AllowCompaction(n, None) for n in reversed(was.objects) if _in_the_way(n, was, now)),
        *_configuration(was.settings, now.settings),
        *_definitions(now, kept),
        *(run for uuid, run in now.oneshots.items() if was.oneshots.get(uuid) != run),
        *_frontiers(was, now, kept),
        *([AllowWrites()] if now.writes and not was.writes else []),
    )
    return StorageReconciliation(todo, kept, replaced, dropped)


def _goes_on(before: HeldObject | None, held: HeldObject) -> bool:
    """Whether the definition is the same; a sink that has begun goes on from where it is."""
    if before is None:
        return False
    match before.run, held.run:
        case RunIngestion(ingestion=a), RunIngestion(ingestion=b):
            return a == b
        case RunSink(sink=c), RunSink(sink=d):
            return c == d
        case _:
            return False


def _in_the_way(name: str, was: StorageHistory, now: StorageHistory) -> bool:
    """Whether an object is to be dropped: nobody wants it, or its name is for the other kind."""
    held = now.objects.get(name)
    return held is None or type(held.run) is not type(was.objects[name].run)


def _definitions(now: StorageHistory, kept: Sequence[str]) -> Iterator[RunIngestion | RunSink]:
    made = [held.run for name, held in now.objects.items() if name not in kept]
    yield from (run for run in made if isinstance(run, RunIngestion))
    yield from (run for run in made if isinstance(run, RunSink))


def _frontiers(
    was: StorageHistory, now: StorageHistory, kept: Container[str]
) -> Iterator[AllowCompaction]:
    for name, held in now.objects.items():
        if held.since is None or (name not in kept and isinstance(held.run, RunSink)):
            continue
        before = was.objects[name].since if name in kept else None
        if before is None or held.since > before:
            yield AllowCompaction(name, held.since)


def _configuration(was: Mapping[str, str], now: Mapping[str, str]) -> Iterator[UpdateConfiguration]:
    changed = {name: value for name, value in now.items() if was.get(name) != value}
    if changed:
        yield UpdateConfiguration(changed)

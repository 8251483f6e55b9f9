"""Reconciliation computes the difference between what a runtime has and what a controller wants.

A controller that has crashed or lost its connection sends its complete desired state. To start
everything anew would cost a hydration of every object; to trust that nothing has changed would be
wrong. So objects that are equal run on, and only the difference is executed (Materialize:
reconciliation).

    done = reconcile_compute(history.commands(), commands)
    for command in done.todo: ...                   all that must be done, in this order
    history = ComputeHistory(commands, gone=done.dropped)

Both functions are pure: the result follows from the commands before and the commands now, and from
nothing that has happened since (a peek that is answered, a query that failed). It is a difference
of two states, not a replay: an object that a list creates and drops again does not occur in it.

Invariants:
    Equal objects run on untouched: nothing of them is in `todo` but a later frontier, and the
    permission to start if they had none. Descriptions are compared; times may differ as long as no
    time is asked for that is compacted already.
    Drops come first, readers before their inputs. Each name is in at most one of kept, replaced,
    dropped, and in none if it is new.
    `todo` holds neither `Hello` nor `InitializationComplete`, and `AllowWrites` at most once.
    `AllowCompaction` of objects that run on comes after the peeks of the same list. An object is
    not created anew for a peek at a time that it has compacted already.
    Permissions stay: writes, the start of objects that run on, and settings that are not named now.
    To reconcile the same commands again drops and creates nothing but subscriptions.
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
    check_same_instance,
    reduce_storage,
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
    """The difference that a new list of compute commands makes.

    Attributes:
        todo: The commands to execute, in this order.
        kept: Dataflows that run on untouched.
        replaced: Dataflows that are dropped and created anew under the same name.
        dropped: Dataflows that are dropped; the new controller gets no response about them.
        lower: For each dataflow afterwards: the time from which its frontiers are reported anew.
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
    """The difference that a new list of storage commands makes.

    Attributes:
        todo: The commands to execute, in this order.
        kept: Sources and sinks that run on untouched.
        replaced: Those with another definition; changed in place, unless a source becomes a sink.
        dropped: Those that are dropped; the new controller gets no response about them.
    """

    todo: tuple[StorageCommand, ...]
    kept: tuple[str, ...]
    replaced: tuple[str, ...]
    dropped: tuple[str, ...]


def reconcile_compute(
    old: Sequence[ComputeCommand], new: Sequence[ComputeCommand]
) -> ComputeReconciliation:
    """Compute the difference from a replica after `old` to one after `new`.

    Args:
        old: Commands so far, reduced or not; empty for a fresh replica.
        new: Commands of a new connection up to `InitializationComplete`.

    Raises:
        InvalidUsage: With code UNKNOWN_OBJECT for a name that is in neither, with code
            INCOMPATIBLE_INSTANCE for other settings of the instance. Nothing must be done then.
    """
    was = ComputeHistory(old)
    now = ComputeHistory(gone=was.dataflows)
    for command in new:
        now.append(command)
    check_same_instance(was.instance, now.instance)

    lower = {name: now.as_of(name) for name in now.dataflows}
    kept = tuple(
        name
        for name, held in now.dataflows.items()
        if name in was.dataflows and was.dataflows[name].can_serve(held.create, lower[name])
    )
    replaced = tuple(n for n in now.dataflows if n in was.dataflows and n not in kept)
    dropped = tuple(n for n in was.dataflows if n not in now.dataflows)
    # Drops first: a name is free before it is created again; in reverse, readers go before inputs.
    # Peeks before compaction, or a peek could find its time gone by this very list.
    todo = (
        *(AllowCompaction(n, None) for n in reversed(was.dataflows) if n not in kept),
        *_creations(was, now, kept),
        *now.peeks.values(),
        *_compactions(was, now, kept),
        *([AllowWrites()] if now.writes and not was.writes else []),
    )
    return ComputeReconciliation(todo, kept, replaced, dropped, lower, tuple(was.peeks))


def _creations(
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


def _compactions(
    was: ComputeHistory, now: ComputeHistory, kept: Iterable[str]
) -> Iterator[AllowCompaction]:
    for name in kept:
        if now.as_of(name) > was.as_of(name):
            yield AllowCompaction(name, now.as_of(name))


def reconcile_storage(
    old: Sequence[StorageCommand], new: Sequence[StorageCommand]
) -> StorageReconciliation:
    """Compute the difference from a replica after `old` to one after `new`.

    Args:
        old: Commands so far, reduced or not; empty for a fresh replica. A one-shot ingestion whose
            end was reported must be cancelled in it, or it counts as running.
        new: Commands of a new connection up to `InitializationComplete`.

    Raises:
        InvalidUsage: With code UNKNOWN_OBJECT for a name that is in neither. Nothing must be done
            then.
    """
    # Reduced first: then sources come before sinks, whatever the order of `old`, and the reversed
    # drops below take sinks before the sources that they read.
    was = StorageHistory(reduce_storage(old))
    now = StorageHistory(gone=was.objects)
    for command in new:
        now.append(command)

    kept = tuple(n for n, held in now.objects.items() if _runs_on(was.objects.get(n), held))
    replaced = tuple(n for n in now.objects if n in was.objects and n not in kept)
    dropped = tuple(n for n in was.objects if n not in now.objects)
    ended = (uuid for uuid, run in was.oneshots.items() if now.oneshots.get(uuid) != run)
    todo = (
        *(CancelOneshotIngestion(uuid) for uuid in ended),
        *(AllowCompaction(n, None) for n in reversed(was.objects) if _must_be_dropped(n, was, now)),
        *_configuration(was.settings, now.settings),
        *_definitions(now, kept),
        *(run for uuid, run in now.oneshots.items() if was.oneshots.get(uuid) != run),
        *_frontiers(was, now, kept),
        *([AllowWrites()] if now.writes and not was.writes else []),
    )
    return StorageReconciliation(todo, kept, replaced, dropped)


def _runs_on(before: HeldObject | None, held: HeldObject) -> bool:
    """True if the definition is the same; a sink that has begun goes on from its progress."""
    if before is None:
        return False
    match before.run, held.run:
        case RunIngestion(ingestion=a), RunIngestion(ingestion=b):
            return a == b
        case RunSink(sink=c), RunSink(sink=d):
            return c == d
        case _:
            return False


def _must_be_dropped(name: str, was: StorageHistory, now: StorageHistory) -> bool:
    """True if an object must be dropped: it is not wanted, or its name is now of the other kind."""
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

"""Compaction replaces neighbouring batches of a shard by fewer, larger ones that mean the same.

A reader opens every batch: without compaction a shard would become slower with each append, and
keep every row that was ever retracted (persist: compaction, Delta: OPTIMIZE).

    compact(machine)                      merge neighbours of like size until the trace is in shape
    compact(machine, force=True)          merge everything into one batch
    compact_inline(machine, appended)     a writer's share of merging, after its commit
    flush_inline(machine)                 move the newest inline batches into a blob: for a writer
                                          whose append would not fit into the state any more

A merge is written first and applied after (`parts.merge_parts`, `commands/merge`). If it is not
applied, as another process has merged the same batches, its blobs are deleted, but only when that
is certain: a merge of unknown outcome is left to the orphan sweep (materialize #14101).

A large merge claims its range first, and claimed ranges are left alone (`compaction_claim`). A
writer merges within its merge budget (`shard.merge_budget`): a multiple of the bytes that it has
appended, saved up to `compact_inline_bytes`; larger merges are left to maintenance.

Invariants:
    The contents at every readable time, and the changes after it, stay as they were.
    The rows and diffs that were read are those that the state records, and the diffs that are
    written have the same sum; otherwise nothing is applied, and the parts written are deleted.
    A merge takes no lease: if its inputs are collected while it runs, they were not in the trace
    any more, and it would not have been applied.
    A merge after an append never makes the append fail.
    In `compact`, a merge that its inputs make impossible keeps them and their nearest neighbours,
    fewer than `2 * compact_factor` in all, from being merged, and no others. A writer, whose most
    urgent merge it is each time, leaves the others to maintenance.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from shardline.datasource.errors import Determinate, MissingBlob, ShardError
from shardline.datasource.frontier import Frontier
from shardline.datasource.ids import process_name
from shardline.datasource.maintenance.compaction_claim import MergeClaim, Superseded
from shardline.datasource.maintenance.impossible_merges import ImpossibleMerges, is_about_inputs
from shardline.datasource.parts.merge_parts import (
    Merged,
    Merger,
    check_all_read,
    covered_interval,
    merge_work_bytes,
    sources,
)
from shardline.datasource.parts.nan_bounds import float_paths, trusts_bounds
from shardline.datasource.parts.stage import Stager, UncommittedParts
from shardline.datasource.shard.batch import Batch, Part
from shardline.datasource.shard.commands.claims import live_claims
from shardline.datasource.shard.commands.merge import apply_merge
from shardline.datasource.shard.description import Description
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.state import Claim, ShardState, is_tombstone
from shardline.datasource.shard.trace import Due, cancelled_past, due_merges, level_of
from shardline.datasource.types.schema import ShardSchema

__all__ = [
    "MERGED_ELSEWHERE",
    "all_mergeable_batches",
    "apply_merged",
    "are_all_parts_named",
    "compact",
    "compact_inline",
    "flush_inline",
    "is_unclaimed_by",
    "make_due_merges",
    "merge_batches",
    "merge_stager",
    "merge_weight",
    "observe_merges",
]

_log = logging.getLogger(__name__)

_LOST_MAX: Final = 8
"""How many merges in a row may turn out to have been made by other processes, before this one
leaves the shard to them."""

MERGED_ELSEWHERE: Final = "MERGED_ELSEWHERE"
"""Code of the error that says so: merges may be due still, and none of them was made here."""

_CLAIM_BYTES: Final = 4 << 20
"""Lighter merges take no claim. They take less than half a second, which is lost when two processes
make the same one; a claim costs a record, which on an object store takes a tenth of that and is
paid each time."""

_BUDGET_PER_BYTE: Final = 4
"""Bytes that an appended byte adds to the merge budget: how often it is written again on the way to
16**4 times the size of its append, by the default factor."""

_INLINE_MERGES: Final = 4
"""The most merges after one commit: one per tier, if its append completes all of them."""

_Interval: TypeAlias = Claim | Description

MergeObserver: TypeAlias = Callable[[Machine, int, float], None]

_observers: tuple[MergeObserver, ...] = ()
_observing = threading.Lock()


def compact(
    machine: Machine,
    *,
    force: bool = False,
    most_bytes: int | None = None,
    made: Callable[[], None] = lambda: None,
    stopping: Callable[[], bool] = lambda: False,
) -> int:
    """Merge until nothing is due; return the number of merges applied.

    Args:
        machine: The shard's machine.
        force: True merges all batches into one, and that one again if it is not as small and as
            sorted as can be. Batches that are appended meanwhile stay beside it. While another
            process has claimed a part of the trace, nothing is done.
        most_bytes: The most that may be read in all (see `parts.merge_parts.merge_work_bytes`);
            merges that exceed the rest of it stay due. None for any amount.
        made: Called after each merge that was applied, also if an error is raised in the end.
        stopping: True once no more is to be merged: a merge under way is given up.

    Raises:
        InvalidUsage: There is no such shard.
        MissingBlob: A part is missing in the store.
        Corrupt: A part is not what was written.
        Determinate: The store did not answer; or `MERGED_ELSEWHERE`, other processes have replaced
            the batches of each merge. Merges made before stay.
        Indeterminate: It is not known whether the last merge was applied.
    """

    def merge(state: ShardState, inputs: tuple[Batch, ...]) -> bool:
        may_inline = not force and _are_inline(inputs)
        return merge_batches(machine, state, inputs, may_inline=may_inline, stopping=stopping)

    return make_due_merges(
        machine, merge, force=force, most_bytes=most_bytes, made=made, stopping=stopping
    )


def make_due_merges(
    machine: Machine,
    merge: Callable[[ShardState, tuple[Batch, ...]], bool],
    *,
    force: bool,
    most_bytes: int | None = None,
    left_to: Callable[[tuple[Claim, ...]], None] = lambda _: None,
    made: Callable[[], None] = lambda: None,
    stopping: Callable[[], bool] = lambda: False,
) -> int:
    """Make the merges that are due with `merge`, one after the other; return how many were applied.

    A merge that its inputs make impossible does not end this: those that can be made are made, so
    that batches do not pile up behind one that is damaged. Its error is raised after that.

    Args:
        machine: The shard's machine.
        merge: Puts one batch in the place of the given ones, which are planned from the given
            state; False if another process has merged them, or has claimed them.
        force: As for `compact`.
        most_bytes: As for `compact`.
        left_to: Called with the claims of other processes, when nothing else is due.
        made: As for `compact`.
        stopping: As for `compact`; `merge` looks at it as well.

    Raises:
        ShardError: As of `merge`; of several impossible merges the error of the first one.
        Determinate: `MERGED_ELSEWHERE`, as of `compact`.
    """
    applied = lost = 0
    left = most_bytes
    impossible = ImpossibleMerges(machine.settings.compact_factor)
    while lost < _LOST_MAX and not stopping():
        # Read anew for each merge: the one before, and appends meanwhile, have changed the trace.
        state = machine.state()
        claims = live_claims(state, machine.clock.now_ms())
        if force:
            inputs = all_mergeable_batches(state, claims)
        else:
            without: tuple[_Interval, ...] = (*claims, *impossible.found)
            inputs = impossible.next_smaller() or _most_urgent(machine, state, without, left)
        if not inputs:
            left_to(claims)
            break
        weight = merge_weight(inputs)
        if left is not None and weight > left:
            break
        try:
            is_applied = merge(state, inputs)
        except ShardError as error:
            if force or not is_about_inputs(error):
                raise
            # Nothing is spent, or it would leave too little for the others, in each round again.
            impossible.note(inputs, error)
            continue
        # Spent also if it was not applied: bytes read in vain are read all the same.
        left = None if left is None else left - weight
        if not is_applied:
            lost += 1
            continue
        applied, lost = applied + 1, 0
        made()
        if force:
            break  # or a busy writer would keep this going for ever
    impossible.raise_first()
    if lost == _LOST_MAX and not stopping():
        raise Determinate(
            f"merges of shard '{machine.name}' were lost {_LOST_MAX} times in a row, as others had "
            f"replaced or claimed the batches; made before: {applied}",
            code=MERGED_ELSEWHERE,
            hint="run it again, when fewer writers are at work",
        )
    return applied


def observe_merges(observer: MergeObserver) -> Callable[[], None]:
    """Call `observer` after merges that this process makes inline, until the result is called.

    Args:
        observer: Takes the shard's machine, the number of merges applied, and the milliseconds that
            they took. Called in the thread of a writer: it must return at once and never raise.

    Returns:
        A function that ends the observation.
    """
    global _observers  # noqa: PLW0603 - of the process: writers have clients of their own

    with _observing:
        _observers = (*_observers, observer)

    def end() -> None:
        global _observers  # noqa: PLW0603 - as above

        with _observing:
            _observers = tuple(one for one in _observers if one is not observer)

    return end


def compact_inline(machine: Machine, appended: Iterable[Part] = ()) -> int:
    """Make small merges that are due, after a commit of this process; return how many were applied.

    Never raises an error of a store or a part: the commit has happened, and must not seem to have
    failed. Threads do not wait for each other: one at a time merges, for all.

    Args:
        machine: The shard's machine.
        appended: The parts that were committed; they add to the merge budget.
    """
    capacity = machine.settings.compact_inline_bytes
    state = machine.cached
    if not capacity or state is None or is_tombstone(state):
        return 0
    machine.merge_budget.add(_BUDGET_PER_BYTE * merge_work_bytes(appended), capacity)
    with machine.merge_budget.turn() as mine:
        if not mine:
            return 0
        began_ms = machine.clock.elapsed_ms()
        applied = _merge_within_budget(machine)
        if applied:
            for observer in _observers:
                observer(machine, applied, machine.clock.elapsed_ms() - began_ms)
        return applied


def _merge_within_budget(machine: Machine) -> int:
    """Merge as long as the merge budget allows."""
    applied = 0
    try:
        for _ in range(_INLINE_MERGES):
            state = machine.cached
            assert state is not None, "nothing was committed"
            claims = live_claims(state, machine.clock.now_ms())
            # `_most_urgent` looks at every part for a past that cancels: too slow for every
            # commit, so it is asked only after another merge was due.
            choose = _most_urgent if applied else _out_of_shape
            inputs = choose(machine, state, claims, machine.merge_budget.left)
            if not inputs:
                break
            machine.merge_budget.use(merge_weight(inputs))
            # A merge that was lost was made by another writer, which goes on from there.
            if not merge_batches(machine, state, inputs, may_inline=_are_inline(inputs)):
                break
            applied += 1
    except Exception:  # noqa: BLE001 - a commit that has happened must not look as if it had not
        machine.merge_budget.penalise(machine.settings.compact_inline_bytes)
        context = {"shard": machine.name}
        _log.warning("merge after an append failed", exc_info=True, extra={"context": context})
    return applied


def flush_inline(machine: Machine) -> bool:
    """Move the shard's newest stretch of inline batches into one blob; False if there is none.

    Batches that a merge has claimed stay, as the newest state that this process has seen says: a
    merge of hours would be lost with the first of its inputs that is moved. If only such are
    inline, the caller's own parts have to be moved.

    Raises:
        Indeterminate: The merge may have been applied; the contents are the same either way.
    """
    state = machine.cached or machine.state()
    inputs = _inline_stretch(state, live_claims(state, machine.clock.now_ms()))
    return bool(inputs) and merge_batches(machine, state, inputs, may_inline=False)


# --- what to merge -------------------------------------------------------------------------------


def _most_urgent(
    machine: Machine,
    state: ShardState,
    claims: tuple[_Interval, ...],
    most_bytes: int | None = None,
) -> tuple[Batch, ...]:
    """The batches to merge next: not claimed and at most `most_bytes`; empty if nothing is due.

    Args:
        machine: The shard's machine.
        state: Its state.
        claims: The claims of merges under way, and what cannot be merged.
        most_bytes: As for `compact`.
    """
    inputs = _out_of_shape(machine, state, claims, most_bytes)
    if inputs:
        return inputs
    due = cancelled_past(state.trace, is_unclaimed_by(claims))
    past = () if due is None else state.trace.batches[: due.end]
    return past if most_bytes is None or merge_weight(past) <= most_bytes else ()


def _out_of_shape(
    machine: Machine,
    state: ShardState,
    claims: tuple[_Interval, ...],
    most_bytes: int | None,
) -> tuple[Batch, ...]:
    factor = machine.settings.compact_factor
    trace = state.trace
    for due, weight in _weighed(machine, state, claims):
        inputs = trace.batches[due.start : due.end]
        if most_bytes is None or weight <= most_bytes:
            return inputs
        if due.is_one_tier and (some := _first_fitting(inputs, factor, most_bytes)):
            return some
    return ()


def _weighed(
    machine: Machine, state: ShardState, claims: tuple[_Interval, ...]
) -> Iterable[tuple[Due, int]]:
    """The merges that are due, with their weights."""
    factor = machine.settings.compact_factor
    if not claims:
        return machine.finder.find(state.trace, factor, _weight_of_batch)
    batches = state.trace.batches
    due = due_merges(state.trace, factor, is_unclaimed_by(claims))
    return ((one, merge_weight(batches[one.start : one.end])) for one in due)


def is_unclaimed_by(claims: tuple[_Interval, ...]) -> Callable[[Batch], bool]:
    """A predicate that is true for batches which no claim covers."""

    def is_free(batch: Batch) -> bool:
        return not any(batch.desc.overlaps(held.lower, held.upper) for held in claims)

    return is_free


def _first_fitting(alike: tuple[Batch, ...], factor: int, most_bytes: int) -> tuple[Batch, ...]:
    """As many of the first batches as weigh `most_bytes`; none if that is fewer than `factor`.

    The first, not the last: the merged batch is larger than those after it, which is in shape.
    """
    total = count = end = 0
    for index, batch in enumerate(alike):
        total += merge_weight((batch,))
        if total > most_bytes:
            break
        if not batch.is_empty:
            count, end = count + 1, index + 1
    return alike[:end] if count >= factor else ()


def _weight_of_batch(batch: Batch) -> int:
    return merge_work_bytes(batch.parts)


def merge_weight(inputs: Iterable[Batch]) -> int:
    """The work of merging `inputs`, which limits are compared with: see `merge_work_bytes`."""
    return merge_work_bytes(part for batch in inputs for part in batch.parts)


def all_mergeable_batches(state: ShardState, claims: tuple[Claim, ...] = ()) -> tuple[Batch, ...]:
    """All batches but an empty last one, which may grow.

    Empty if a merge would change nothing, or while another process has claimed some of them.
    """
    batches = state.trace.batches
    if batches and batches[-1].is_empty:
        batches = batches[:-1]
    if all(batch.is_empty for batch in batches):
        return ()
    if len(batches) == 1 and _is_settled(state, batches[0]):
        return ()
    whole = covered_interval(batches)
    return () if any(whole.overlaps(held.lower, held.upper) for held in claims) else batches


def _is_settled(state: ShardState, batch: Batch) -> bool:
    """True if a merge of this batch alone would improve neither its size nor its description."""
    parts = list(batch.parts)
    if len(batch.runs) > 1 or batch.runs[0].order != "sorted" or batch.is_trimmed:
        return False
    if any(part.schema != state.schema_id for part in parts):
        return False
    floats = list(float_paths(ShardSchema.parse(state.schemas[state.schema_id]).record.fields))
    # A part of an older version is rewritten although it stays as large: its file's own bounds may
    # leave out NaN, and reads cannot prune by them.
    if any(part.inline is None and not trusts_bounds(part, floats) for part in parts):
        return False
    bounds = [bounds for part in parts if (bounds := part.time_bounds)]
    first, last = min(low for low, _ in bounds), max(high for _, high in bounds)
    return first == last or not Frontier(first) < state.since


def _inline_stretch(state: ShardState, claims: tuple[Claim, ...]) -> tuple[Batch, ...]:
    """The last stretch of neighbouring batches that have inline parts only, none empty at its ends.

    An empty batch at the end of the trace may still grow, so it is never part of a merge. Claimed
    batches are in no stretch.
    """
    batches = state.trace.batches
    is_free = is_unclaimed_by(claims)
    end = len(batches)
    while end and not (_is_inline(batches[end - 1]) and is_free(batches[end - 1])):
        end -= 1
    start = end
    while start and _are_inline((batches[start - 1],)) and is_free(batches[start - 1]):
        start -= 1
    while start < end and batches[start].is_empty:
        start += 1
    return batches[start:end]


def _are_inline(inputs: Iterable[Batch]) -> bool:
    """True if all parts are inside the state: then there is room in the state for their merge."""
    return all(part.inline is not None for batch in inputs for part in batch.parts)


def _is_inline(batch: Batch) -> bool:
    return not batch.is_empty and _are_inline((batch,))


# --- merging -------------------------------------------------------------------------------------


def merge_batches(
    machine: Machine,
    state: ShardState,
    inputs: tuple[Batch, ...],
    *,
    may_inline: bool,
    stopping: Callable[[], bool] = lambda: False,
) -> bool:
    """Put one batch in the place of `inputs`; False if another process did, or has claimed them.

    Args:
        machine: The shard's machine.
        state: The state that the merge was planned from.
        inputs: Neighbouring batches of `state`, the last one not empty.
        may_inline: True if the result may stay in the state if it is tiny.
        stopping: Asked for every table that is read; once it is True, the merge is given up, and
            the result is False.

    Raises:
        ShardError: As `compact`.
    """

    def merge(claim: MergeClaim | None) -> bool:
        return _merge_and_apply(
            machine, state, inputs, claim, may_inline=may_inline, stopping=stopping
        )

    if merge_weight(inputs) < _CLAIM_BYTES:
        return merge(None)
    with MergeClaim.on(machine, inputs, f"merge by {process_name()}") as claim:
        return claim.held and merge(claim)


def _merge_and_apply(
    machine: Machine,
    state: ShardState,
    inputs: tuple[Batch, ...],
    claim: MergeClaim | None,
    *,
    may_inline: bool,
    stopping: Callable[[], bool] = lambda: False,
) -> bool:
    # Before the first part is written: a sweep judges a part by the time of its writing, and
    # `apply_merge` refuses by this one, which must not be later.
    staged_ms = machine.clock.now_ms()

    def progress() -> None:
        if stopping():
            raise Superseded("this process stops")
        if claim is not None:
            claim.keep()

    merger = Merger.of(state, inputs, merge_stager(machine, state, may_inline=may_inline))
    merger = replace(merger, progress=progress)
    try:
        merged = merger.merge(sources(inputs))
    except Superseded:
        return False
    except MissingBlob:
        # No lease protects the inputs: a missing part is an error only if the newest state still
        # names it. Otherwise another process has merged it, and it was collected.
        if not are_all_parts_named(machine.state(), inputs):
            return False
        raise
    return apply_merged(machine, state, inputs, merged, claim=claim, staged_ms=staged_ms)


def apply_merged(
    machine: Machine,
    state: ShardState,
    inputs: tuple[Batch, ...],
    merged: Merged,
    *,
    claim: MergeClaim | None,
    staged_ms: int,
) -> bool:
    """Put one batch in the place of `inputs`; False if they are not in the trace.

    The blobs of `merged` are deleted unless it was, or may have been, applied.

    Args:
        machine: The shard's machine.
        state: The state that the inputs were planned from.
        inputs: The batches that were merged.
        merged: The result of the merge.
        claim: The claim on the inputs, given up with the same record; None if there is none.
        staged_ms: When the first part of `merged` was begun, or before.

    Raises:
        Corrupt: The rows read are not those that the state records: nothing was applied.
        ShardError: As `compact`.
    """
    runs = merged.runs
    # The since of the planned state, up to which rows were advanced; the shard's may be later now.
    desc = Description(inputs[0].desc.lower, inputs[-1].desc.upper, state.since.time)
    rows = sum(part.rows for run in runs for part in run.parts)
    output = Batch(desc, runs, level=level_of(rows))
    name = "" if claim is None else claim.name
    command = partial(
        apply_merge, inputs=inputs, output=output, claim=name, staged_ms=staged_ms if runs else None
    )
    with UncommittedParts(machine.location.blob, runs) as parts:
        check_all_read(state.name, inputs, merged.read)
        with parts.commit():
            applied = machine.apply(command)
        if not applied:
            # Not in the trace of a state that was read after this call began, and a merge of an
            # unknown outcome raises: so no record names them.
            parts.note_refused()
    if applied and claim is not None:
        claim.held = False
    return applied


def merge_stager(machine: Machine, state: ShardState, *, may_inline: bool) -> Stager:
    """The stager that writes the parts of a merge, under the newest schema of `state`."""
    return Stager(
        machine.location.blob,
        machine.directory,
        ShardSchema.parse(state.schemas[state.schema_id]),
        state.schema_id,
        state.key,
        machine.settings,
        machine.clock,
        machine.ids,
        may_inline,
    )


def are_all_parts_named(state: ShardState, inputs: tuple[Batch, ...]) -> bool:
    """True if all parts of `inputs` are still named by `state`."""
    keys = {part.key for batch in state.trace.batches for part in batch.parts}
    return all(part.key in keys for batch in inputs for part in batch.parts)

"""Compaction: fewer, larger batches that mean the same.

    compact(machine)                      merges neighbours of like size until the trace is in shape
    compact(machine, force=True)          merges everything into one batch
    compact_inline(machine, appended)     what a writer does of it after its commit
    flush_inline(machine)                 moves the newest inline batches into a blob: for a writer
                                          whose append would not fit into the state any more

A merge is written first and applied after (`merger`, `commands/merge`). If it is not applied
(somebody else merged the same batches) its blobs are deleted, but only when that is certain: a
merge of unknown outcome is left to the sweeper (materialize #14101).

A merge that is worth it claims its range before it works, and ranges that others have claimed are
left alone (`claim`). A writer merges within its fuel (`fuel`): a multiple of what it has appended,
saved up to `compact_inline_bytes`; what is larger than that is left to maintenance.

Invariants:
    The contents at every readable time, and the changes after it, stay as they were.
    The rows and diffs that were read are those that the state tells of, and the diffs that are
    written have the same sum; otherwise nothing is applied, and what was written is deleted.
    A merge takes no lease: if its inputs are collected under it, they were not in the trace any
    more, and it would not have been applied.
    An append that has been committed is not failed by a merge after it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Final, TypeAlias

from shardline.datasource.errors import MissingBlob
from shardline.datasource.frontier import Frontier
from shardline.datasource.ids import owner
from shardline.datasource.maintenance.compaction_claim import MergeClaim, Superseded
from shardline.datasource.parts.merge_parts import Merged, Merger, check_read, sources, span, weigh
from shardline.datasource.parts.nan_bounds import float_paths, trusts_bounds
from shardline.datasource.parts.stage import Stager, UncommittedParts
from shardline.datasource.shard.batch import Batch, Part
from shardline.datasource.shard.commands.claims import live_claims
from shardline.datasource.shard.commands.merge import apply_merge
from shardline.datasource.shard.description import Description
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.state import Claim, ShardState, is_tombstone
from shardline.datasource.shard.trace import due_merges, level_of, worn_past
from shardline.datasource.types.schema import ShardSchema

__all__ = [
    "apply_merged",
    "compact",
    "compact_inline",
    "everything",
    "flush_inline",
    "free_of",
    "is_there",
    "merge_batches",
    "merge_in_turn",
    "observe_merges",
    "stager_of",
]

_log = logging.getLogger(__name__)

_LOST_MAX: Final = 8
"""How often in a row a merge may turn out to have been made by somebody else, before this one
leaves the shard to them."""

_CLAIM_BYTES: Final = 4 << 20
"""Lighter merges take no claim. They last for less than half a second, which is what is lost when
two make the same; a claim costs a record, which on an object store takes a tenth of that and is
paid each time."""

_FUEL_PER_BYTE: Final = 4
"""Fuel that an appended byte brings: how often it is written again on the way to 16**4 times the
size of its append, by the default factor."""

_INLINE_MERGES: Final = 4
"""Merges after one commit, at most: one per tier, when its append completes all of them."""

MergeObserver: TypeAlias = Callable[[Machine, int, float], None]

_observers: tuple[MergeObserver, ...] = ()
_observing = threading.Lock()


def compact(machine: Machine, *, force: bool = False, most_bytes: int | None = None) -> int:
    """Merge until nothing is due; the number of merges applied.

    Args:
        machine: The shard's.
        force: Merge all that is there into one batch, and that one again if it is not as small and
            as sorted as can be. What is appended meanwhile stays beside it. While somebody else has
            claimed a part of it, nothing is done.
        most_bytes: How much may be read in all (see `merger.weigh`); merges that are larger than
            what is left of it stay due. None for any amount.

    Raises:
        InvalidUsage: There is no such shard.
        MissingBlob: A part is not there.
        Corrupt: A part is not what was written.
        Determinate: The store did not answer; merges made before stay.
        Indeterminate: It is not known whether the last merge was applied.
    """

    def merge(state: ShardState, inputs: tuple[Batch, ...]) -> bool:
        may_inline = not force and _are_inline(inputs)
        return merge_batches(machine, state, inputs, may_inline=may_inline)

    return merge_in_turn(machine, merge, force=force, most_bytes=most_bytes)


def merge_in_turn(
    machine: Machine,
    merge: Callable[[ShardState, tuple[Batch, ...]], bool],
    *,
    force: bool,
    most_bytes: int | None = None,
    left_to: Callable[[tuple[Claim, ...]], None] = lambda _: None,
) -> int:
    """Let `merge` make what is due, one after the other; the number of merges applied.

    Args:
        machine: The shard's.
        merge: Puts one batch in the place of those it is given, planned from that state; False if
            somebody else did, or is at it.
        force: As of `compact`.
        most_bytes: As of `compact`.
        left_to: Told what others have claimed, when nothing else is due.
    """
    applied = lost = 0
    left = most_bytes
    while lost < _LOST_MAX:
        state = machine.state()
        claims = live_claims(state, machine.clock.now_ms())
        inputs = everything(state, claims) if force else _most_urgent(machine, state, claims, left)
        if not inputs:
            left_to(claims)
            break
        weight = _weight(inputs)
        if left is not None and weight > left:
            break
        left = None if left is None else left - weight
        if not merge(state, inputs):
            lost += 1
            continue
        applied, lost = applied + 1, 0
        if force:
            break  # or a busy writer would keep this going for ever
    return applied


def observe_merges(observer: MergeObserver) -> Callable[[], None]:
    """Tell `observer` of the merges that this process makes inline, until the result is called.

    Args:
        observer: Takes the shard's machine, how many merges were applied, and the milliseconds that
            they took; in the thread of a writer, so it returns at once and never raises.
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
    """Merge what is due and small, after a commit of this process; the number of merges applied.

    Never raises what a store or a part has done wrong: the commit has happened, whatever comes of
    this. Threads do not wait for each other: one at a time merges, for all.

    Args:
        machine: The shard's.
        appended: The parts that were committed.
    """
    capacity = machine.settings.compact_inline_bytes
    state = machine.cached
    if not capacity or state is None or is_tombstone(state):
        return 0
    machine.tank.add(_FUEL_PER_BYTE * weigh(appended), capacity)
    with machine.tank.turn() as mine:
        if not mine:
            return 0
        began_ms = machine.clock.elapsed_ms()
        applied = _burn(machine)
        if applied:
            for observer in _observers:
                observer(machine, applied, machine.clock.elapsed_ms() - began_ms)
        return applied


def _burn(machine: Machine) -> int:
    """Merge while there is fuel for it."""
    applied = 0
    try:
        for _ in range(_INLINE_MERGES):
            state = machine.cached
            assert state is not None, "nothing was committed"
            claims = live_claims(state, machine.clock.now_ms())
            # The past is looked through when a merge was due, not after every commit.
            choose = _most_urgent if applied else _out_of_shape
            inputs = choose(machine, state, claims, machine.tank.fuel)
            if not inputs:
                break
            machine.tank.use(_weight(inputs))
            # One that was lost was made by another writer, who goes on where it ended.
            if not merge_batches(machine, state, inputs, may_inline=_are_inline(inputs)):
                break
            applied += 1
    except Exception:  # noqa: BLE001 - a commit that has happened must not look as if it had not
        machine.tank.penalise(machine.settings.compact_inline_bytes)
        context = {"shard": machine.name}
        _log.warning("merge after an append failed", exc_info=True, extra={"context": context})
    return applied


def flush_inline(machine: Machine) -> bool:
    """Move the shard's newest stretch of inline batches into one blob; False if there is none.

    Raises:
        Indeterminate: It is not known whether it was applied; either way the contents are the same.
    """
    state = machine.cached or machine.state()
    inputs = _inline_stretch(state)
    return bool(inputs) and merge_batches(machine, state, inputs, may_inline=False)


# --- what to merge -------------------------------------------------------------------------------


def _most_urgent(
    machine: Machine,
    state: ShardState,
    claims: tuple[Claim, ...],
    most_bytes: int | None = None,
) -> tuple[Batch, ...]:
    """What to merge next: what nobody is at and what weighs `most_bytes` or less; none if in shape.

    Args:
        machine: The shard's.
        state: Its state.
        claims: The ranges that are taken.
        most_bytes: As of `compact`.
    """
    inputs = _out_of_shape(machine, state, claims, most_bytes)
    if inputs:
        return inputs
    worn = worn_past(state.trace, free_of(claims))
    past = () if worn is None else state.trace.batches[: worn.end]
    return past if most_bytes is None or _weight(past) <= most_bytes else ()


def _out_of_shape(
    machine: Machine,
    state: ShardState,
    claims: tuple[Claim, ...],
    most_bytes: int | None,
) -> tuple[Batch, ...]:
    factor = machine.settings.compact_factor
    for due in due_merges(state.trace, factor, free_of(claims)):
        inputs = state.trace.batches[due.start : due.end]
        if most_bytes is None or _weight(inputs) <= most_bytes:
            return inputs
        if due.alike and (some := _first_fitting(inputs, factor, most_bytes)):
            return some
    return ()


def free_of(claims: tuple[Claim, ...]) -> Callable[[Batch], bool]:
    """Whether nobody has claimed a batch."""

    def is_free(batch: Batch) -> bool:
        return not any(batch.desc.overlaps(held.lower, held.upper) for held in claims)

    return is_free


def _first_fitting(alike: tuple[Batch, ...], factor: int, most_bytes: int) -> tuple[Batch, ...]:
    """As many of the first batches as weigh `most_bytes`; none if that is fewer than `factor`.

    The first, not the last: what they become is larger than those after it, which is in shape.
    """
    total = count = end = 0
    for index, batch in enumerate(alike):
        total += _weight((batch,))
        if total > most_bytes:
            break
        if not batch.is_empty:
            count, end = count + 1, index + 1
    return alike[:end] if count >= factor else ()


def _weight(inputs: Iterable[Batch]) -> int:
    return weigh(part for batch in inputs for part in batch.parts)


def everything(state: ShardState, claims: tuple[Claim, ...] = ()) -> tuple[Batch, ...]:
    """All batches but an empty last one, which may grow.

    None if a merge would change nothing, or while somebody has claimed some of them.
    """
    batches = state.trace.batches
    if batches and batches[-1].is_empty:
        batches = batches[:-1]
    if not batches or (len(batches) == 1 and _is_settled(state, batches[0])):
        return ()
    whole = span(batches)
    return () if any(whole.overlaps(held.lower, held.upper) for held in claims) else batches


def _is_settled(state: ShardState, batch: Batch) -> bool:
    """Whether a merge of this batch alone could not make it smaller, simpler or better known."""
    parts = list(batch.parts)
    if len(batch.runs) > 1 or batch.runs[0].order != "sorted" or batch.is_trimmed:
        return False
    if any(part.schema != state.schema_id for part in parts):
        return False
    floats = list(float_paths(ShardSchema.parse(state.schemas[state.schema_id]).record.fields))
    # A part of an older version is rewritten although it stays as large: for its file's bounds.
    if any(part.inline is None and not trusts_bounds(part, floats) for part in parts):
        return False
    bounds = [bounds for part in parts if (bounds := part.time_bounds)]
    first, last = min(low for low, _ in bounds), max(high for _, high in bounds)
    return first == last or not Frontier(first) < state.since


def _inline_stretch(state: ShardState) -> tuple[Batch, ...]:
    """The last stretch of neighbouring batches that have inline parts only, none empty at its ends.

    An empty batch at the end of the trace may still grow, so it is never part of a merge.
    """
    batches = state.trace.batches
    end = len(batches)
    while end and not _is_inline(batches[end - 1]):
        end -= 1
    start = end
    while start and (_is_inline(batches[start - 1]) or batches[start - 1].is_empty):
        start -= 1
    while start < end and batches[start].is_empty:
        start += 1
    return batches[start:end]


def _are_inline(inputs: Iterable[Batch]) -> bool:
    """Whether all of it is in the state already: then it has its room there, and so has its sum."""
    return all(part.inline is not None for batch in inputs for part in batch.parts)


def _is_inline(batch: Batch) -> bool:
    return not batch.is_empty and _are_inline((batch,))


# --- merging -------------------------------------------------------------------------------------


def merge_batches(
    machine: Machine, state: ShardState, inputs: tuple[Batch, ...], *, may_inline: bool
) -> bool:
    """Put one batch in the place of `inputs`; False if somebody else did, or is at it.

    Args:
        machine: The shard's.
        state: What they were planned from.
        inputs: Neighbouring batches of `state`, the last one not empty.
        may_inline: Whether the result may stay in the state if it is tiny.

    Raises:
        ShardError: As `compact`.
    """
    if _weight(inputs) < _CLAIM_BYTES:
        return _merge_and_apply(machine, state, inputs, None, may_inline=may_inline)
    with MergeClaim.on(machine, inputs, f"merge by {owner()}") as claim:
        return claim.held and _merge_and_apply(machine, state, inputs, claim, may_inline=may_inline)


def _merge_and_apply(
    machine: Machine,
    state: ShardState,
    inputs: tuple[Batch, ...],
    claim: MergeClaim | None,
    *,
    may_inline: bool,
) -> bool:
    staged_ms = machine.clock.now_ms()
    merger = Merger.of(state, inputs, stager_of(machine, state, may_inline=may_inline))
    if claim is not None:
        merger = replace(merger, progress=claim.keep)
    try:
        merged = merger.merge(sources(inputs))
    except Superseded:
        return False
    except MissingBlob:
        if not is_there(machine.state(), inputs):
            return False  # merged by another, and collected
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

    The blobs of what was merged are deleted unless it was, or may have been, applied.

    Args:
        state: What the inputs were planned from.
        merged: What was made of them.
        claim: On the inputs; given up with the same record.
        staged_ms: When the first part of `merged` was begun, or before.

    Raises:
        Corrupt: What was read is not what the state says of the inputs: nothing was applied.
        ShardError: As `compact`.
    """
    runs = merged.runs
    desc = Description(inputs[0].desc.lower, inputs[-1].desc.upper, state.since.time)
    rows = sum(part.rows for run in runs for part in run.parts)
    output = Batch(desc, runs, level=level_of(rows))
    name = "" if claim is None else claim.name
    command = partial(
        apply_merge, inputs=inputs, output=output, claim=name, staged_ms=staged_ms if runs else None
    )
    with UncommittedParts(machine.location.blob, runs) as parts:
        check_read(state.name, inputs, merged.read)
        with parts.commit():
            applied = machine.apply(command)
        if not applied:
            # Not in the trace of a state that was read after this call began, and a merge of an
            # unknown outcome raises: so no record names them.
            parts.unused()
    if applied and claim is not None:
        claim.held = False
    return applied


def stager_of(machine: Machine, state: ShardState, *, may_inline: bool) -> Stager:
    """What writes the parts of a merge: under the newest schema of `state`."""
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


def is_there(state: ShardState, inputs: tuple[Batch, ...]) -> bool:
    """Whether all parts of `inputs` are still named by `state`."""
    keys = {part.key for batch in state.trace.batches for part in batch.parts}
    return all(part.key in keys for batch in inputs for part in batch.parts)

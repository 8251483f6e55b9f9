"""Checks the invariants of a state by itself, without its log or parts.

These are the invariants of `shardline.datasource.shard.state.check_invariants` and
`shardline.datasource.shard.trace.check_trace`, which stop at the first one that fails. Here each is
a finding with a code of its own, so that a damaged state is described completely. An invariant that
only those two check is reported as `STATE_INVARIANT`.
"""

from __future__ import annotations

from collections.abc import Mapping

from shardline.datasource.errors import ShardError
from shardline.datasource.frontier import TIME_MIN, Frontier
from shardline.datasource.inspect.fsck.findings import Findings
from shardline.datasource.shard.batch import Batch, Part
from shardline.datasource.shard.state import (
    CriticalReader,
    LeasedReader,
    ShardState,
    check_invariants,
    is_tombstone,
    seqno_since,
)
from shardline.datasource.stores.shard_names import shard_directory
from shardline.datasource.types.schema import ShardSchema

__all__ = ["check_state", "reason_not_successor", "schemas_of"]


def check_state(state: ShardState, directory: str, found: Findings) -> None:
    """Report broken invariants of `state` of the shard in `directory`."""
    before = len(found.found)
    _names(state, directory, found)
    _trace(state, directory, found)
    _check_marks(state, found)
    _readers(state, found)
    _writers(state, found)
    if len(found.found) == before:
        try:
            check_invariants(state)
        except AssertionError as error:
            found.add("STATE_INVARIANT", f"seqno {state.seqno}", f"an invariant fails: {error}")


def schemas_of(state: ShardState, found: Findings) -> Mapping[int, ShardSchema]:
    """The state's schemas by id; those that cannot be parsed become findings."""
    schemas = {}
    for number, text in state.schemas.items():
        try:
            schemas[number] = ShardSchema.parse(text)
        except ShardError as error:
            found.add("SCHEMA_UNREADABLE", f"schema {number}", f"schema {number}: {error.detail}")
    return schemas


def _names(state: ShardState, directory: str, found: Findings) -> None:
    try:
        own = shard_directory(state.name)
    except ShardError:
        own = ""
    if own != directory:
        found.add(
            "NAME_MISMATCH",
            directory,
            f"the shard in directory '{directory}' says that it is {state.name!r}",
        )
    if not state.schemas or set(state.schemas) != set(range(len(state.schemas))):
        found.add("SCHEMA_IDS", "schemas", f"the schemas are numbered {sorted(state.schemas)}")
    schemas = schemas_of(state, found)
    current = schemas.get(len(state.schemas) - 1)
    unknown = [name for name in state.key if current is not None and name not in current]
    if unknown:
        found.add("SCHEMA_UNREADABLE", "key", f"key columns {unknown} are not in the schema")


def _trace(state: ShardState, directory: str, found: Findings) -> None:
    lower: int | None = TIME_MIN
    previous_empty = False
    for batch in state.trace.batches:
        desc = batch.desc
        subject = f"batch [{desc.lower}, {desc.upper})"
        if lower is None or desc.lower != lower:
            found.add("BATCH_GAP", subject, f"{subject} follows one that ends at {lower}")
        if desc.is_empty_interval:
            found.add("BATCH_INTERVAL", subject, f"{subject} covers no time")
        if Frontier(desc.since) > state.since:
            found.add(
                "BATCH_SINCE",
                subject,
                f"{subject} is compacted to {desc.since}, beyond the shard's since {state.since}",
            )
        if previous_empty and batch.is_empty:
            found.add("EMPTY_NEIGHBOURS", subject, f"{subject} and the one before it are empty")
        for part in batch.parts:
            _part(state, directory, batch, part, found)
        previous_empty, lower = batch.is_empty, desc.upper
    inline = sum(batch.inline_bytes for batch in state.trace.batches)
    if inline != state.trace.inline_bytes:
        found.add(
            "INLINE_BYTES",
            "inline_bytes",
            f"the state says {state.trace.inline_bytes} bytes of inline parts, they have {inline}",
        )


def _part(state: ShardState, directory: str, batch: Batch, part: Part, found: Findings) -> None:
    bounds = part.time_bounds
    if part.rows <= 0 or bounds is None or bounds[0] > bounds[1]:
        found.add(
            "PART_UNDESCRIBED",
            part.key,
            f"part '{part.key}' is said to have {part.rows} rows at times {bounds}",
        )
    elif not batch.desc.covers(bounds[1]):
        # Rows before the interval are legal: the batch was trimmed. A part without a row in it is
        # not.
        found.add(
            "PART_INTERVAL",
            part.key,
            f"part '{part.key}' with times {bounds[0]} to {bounds[1]} is in the batch "
            f"[{batch.desc.lower}, {batch.desc.upper})",
        )
    if part.schema not in state.schemas:
        found.add(
            "SCHEMA_UNKNOWN",
            part.key,
            f"part '{part.key}' was written with schema {part.schema}, of {sorted(state.schemas)}",
        )
    if part.inline is None and not part.key.startswith(f"{directory}/part/"):
        found.add("FOREIGN_PART", part.key, f"part '{part.key}' is not in '{directory}/part/'")


def _check_marks(state: ShardState, found: Findings) -> None:
    for seqno, rollup in state.rollups.items():
        if seqno >= state.seqno:
            found.add(
                "ROLLUP_AHEAD",
                rollup.key,
                f"rollup '{rollup.key}' is of seqno {seqno}, the shard is at {state.seqno}",
            )
    if not 0 <= state.cleaned_seqno <= state.gc_seqno <= state.seqno:
        found.add(
            "GC_MARKS",
            "gc_seqno",
            f"cleaned up to {state.cleaned_seqno}, given up to {state.gc_seqno}, at {state.seqno}",
        )


def _readers(state: ShardState, found: Findings) -> None:
    holders: dict[str, LeasedReader | CriticalReader] = {**state.leased, **state.critical}
    if holders and is_tombstone(state):
        found.add("READER_INCONSISTENT", "readers", f"{sorted(holders)} read a dropped shard")
    for name, lease in state.leased.items():
        if lease.lease_ms <= 0:
            found.add("READER_INCONSISTENT", name, f"lease '{name}' lasts {lease.lease_ms} ms")
    for name, reader in holders.items():
        if reader.seqno is not None and not 1 <= reader.seqno <= state.seqno:
            found.add(
                "READER_INCONSISTENT",
                name,
                f"reader '{name}' holds seqno {reader.seqno}, the shard is at {state.seqno}",
            )
        if reader.seqno is not None and reader.seqno < state.gc_seqno:
            found.add(
                "GC_PAST_HOLD",
                name,
                f"reader '{name}' holds seqno {reader.seqno}, and states before {state.gc_seqno} "
                f"have been given up; the least hold is {seqno_since(state)}",
            )
        if Frontier(reader.since) < state.since:
            found.add(
                "SINCE_PAST_HOLDER",
                name,
                f"reader '{name}' holds since {reader.since}, the shard's is {state.since}",
            )


def _writers(state: ShardState, found: Findings) -> None:
    for name, writer in state.writers.items():
        if Frontier(writer.upper) > state.upper:
            found.add(
                "WRITER_INCONSISTENT",
                name,
                f"writer '{name}' has appended up to {writer.upper}, the upper is {state.upper}",
            )
        late = {a: n for a, n in writer.abandoned.items() if n <= writer.last}
        if late or writer.last < -1:
            found.add(
                "WRITER_INCONSISTENT",
                name,
                f"writer '{name}' is at {writer.last} and has given up {late}",
            )


def reason_not_successor(before: ShardState, after: ShardState) -> str | None:
    """The reason why no command can have made `after` from `before`; None if one can.

    Nothing ever moves back, unless the shard was dropped and made again.
    """
    if after.seqno != before.seqno + 1:
        return f"seqno {after.seqno} after {before.seqno}"
    if after.walltime_ms <= before.walltime_ms:
        return f"it was made at {after.walltime_ms} ms, the one before it at {before.walltime_ms}"
    if after.version < before.version:
        return f"version {after.version} after {before.version}"
    if after.shard != before.shard:
        return None if is_tombstone(before) else f"shard {after.shard} after {before.shard}"
    moved_back = [
        name
        for name, old, new in (
            ("since", before.since, after.since),
            ("upper", before.upper, after.upper),
            ("gc_seqno", Frontier(before.gc_seqno), Frontier(after.gc_seqno)),
            ("cleaned_seqno", Frontier(before.cleaned_seqno), Frontier(after.cleaned_seqno)),
        )
        if new < old
    ]
    return f"it moves {', '.join(moved_back)} back" if moved_back else None

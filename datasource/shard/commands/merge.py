"""The merge command replaces several neighbouring batches by one with the same meaning.

A merge is computed outside of the state, for seconds or hours, while the shard goes on changing.
Applying it is invisible to readers, and harmless to repeat, to lose, or to race with another one:
if its inputs are not in the trace any more, exactly as they were, it is not applied (persist:
`apply_merge_res`, Delta: OPTIMIZE's commit).

Invariants:
    A merge may sum diffs and drop rows that cancel, but the sum of all diffs stays. One that
    changed it has lost or invented updates, and is refused.
    No output is compacted further than the shard's since.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from shardline.datasource.errors import Corrupt, Determinate
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard.batch import Batch, Part
from shardline.datasource.shard.commands.orphan_sweep import CLOCKS_WRONG
from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.description import Description
from shardline.datasource.shard.state import ShardState, begun_too_early

__all__ = ["apply_merge", "find_batches", "not_conserved", "same_sum", "sum_of_diffs"]


def apply_merge(
    state: ShardState,
    now_ms: int,
    *,
    inputs: tuple[Batch, ...],
    output: Batch,
    claim: str = "",
    staged_ms: int | None = None,
) -> Transition[bool]:
    """Put `output` in the place of `inputs`; False if they are not in the trace as they were.

    Args:
        inputs: Neighbouring batches, as the merge read them.
        output: The merged batch, of the same interval.
        claim: Name of the claim on the inputs, given up with this; empty for none.
        staged_ms: When the first part of the output was begun; None if nothing was written.

    Raises:
        Corrupt: `SUM_OF_DIFFS`: the output does not hold the updates of the inputs. (Not checked
            if an input was trimmed: its parts count rows that are not the batch's.)
        Determinate: `STAGED_TOO_LONG`: an orphan sweep may have deleted the output's blobs.
    """
    assert output.desc.lower == inputs[0].desc.lower, (output.desc, inputs[0].desc)
    assert output.desc.upper == inputs[-1].desc.upper, (output.desc, inputs[-1].desc)
    if not any(batch.is_trimmed for batch in inputs):
        before = sum_of_diffs(part for batch in inputs for part in batch.parts)
        after = sum_of_diffs(output.parts)
        if not same_sum(before, after):
            raise not_conserved(state.name, output.desc, before, after)
    # By value, not by interval alone: after another merge, or this very one, a batch of the same
    # interval is not the one that was read.
    start = find_batches(state, inputs)
    if start is None or Frontier(output.desc.since) > state.since:
        return Transition(None, result=False)
    if staged_ms is not None and begun_too_early(state, now_ms, staged_ms):
        raise Determinate(
            f"a merge in shard '{state.name}' took longer than staged parts are kept "
            f"({now_ms - staged_ms} ms, by this machine's clock)",
            code="STAGED_TOO_LONG",
            hint="merge it with more tasks, or on a faster machine; if it took no time, "
            f"{CLOCKS_WRONG}",
        )
    claims = {name: held for name, held in state.claims.items() if name != claim}
    trace = state.trace
    end = start + len(inputs)
    inline = sum(batch.inline_bytes for batch in inputs) - output.inline_bytes
    if output.is_empty:
        start, end, output = _joined(trace.batches, start, end, output)
    trace = msgspec.structs.replace(
        trace,
        batches=(*trace.batches[:start], output, *trace.batches[end:]),
        inline_bytes=trace.inline_bytes - inline,
    )
    return Transition(msgspec.structs.replace(state, trace=trace, claims=claims), result=True)


def _joined(
    batches: Sequence[Batch], start: int, end: int, output: Batch
) -> tuple[int, int, Batch]:
    """An empty `output` for `[start, end)`, extended over its neighbours that are empty, too."""
    while start and batches[start - 1].is_empty:
        start -= 1
    while end < len(batches) and batches[end].is_empty:
        end += 1
    desc = msgspec.structs.replace(
        output.desc, lower=batches[start].desc.lower, upper=batches[end - 1].desc.upper
    )
    return start, end, msgspec.structs.replace(output, desc=desc)


def find_batches(state: ShardState, inputs: tuple[Batch, ...]) -> int | None:
    """Index in the trace at which `inputs` stand, side by side and unchanged; None if nowhere."""
    batches, lower = state.trace.batches, inputs[0].desc.lower
    start = next((i for i, batch in enumerate(batches) if batch.desc.lower == lower), None)
    if start is None or batches[start : start + len(inputs)] != inputs:
        return None
    return start


def sum_of_diffs(parts: Iterable[Part]) -> int:
    """The sum of all diffs of `parts`, as their writers recorded it."""
    return sum(part.diff_sum for part in parts)


def same_sum(one: int, other: int) -> bool:
    """True if two sums of diffs agree. Each part's is an int64 that may have wrapped around."""
    return (one - other) % (1 << 64) == 0


def not_conserved(name: str, desc: Description, before: int, after: int) -> Corrupt:
    """The error for a merge of the interval `desc` whose diffs do not add up."""
    return Corrupt(
        f"a merge of [{desc.lower}, {desc.upper}) in shard '{name}' read diffs that add up to "
        f"{before} and made some that add up to {after}; it was not applied",
        code="SUM_OF_DIFFS",
        hint="a part is not what its writer described: run inspect; the shard is as it was",
    )

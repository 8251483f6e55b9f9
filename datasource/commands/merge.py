"""Applying a merge: several neighbouring batches are replaced by one with the same meaning.

Invisible to readers, and harmless to repeat, to lose, or to race with another one: a merge whose
inputs are not there any more, exactly as they were, is not applied.
"""

from __future__ import annotations

import msgspec

from datasource.batch import Batch
from datasource.commands.transition import Transition
from datasource.frontier import Frontier
from datasource.state import ShardState

__all__ = ["apply_merge"]


def apply_merge(
    state: ShardState, now_ms: int, *, inputs: tuple[Batch, ...], output: Batch
) -> Transition[bool]:
    """Put `output` in the place of `inputs`; False if they are not in the trace as they were.

    A merge may sum diffs and drop what cancels, but the sum of all diffs stays: one that changed
    it would have lost or invented updates, and is a bug of the merge. It cannot be told where an
    input was trimmed: its parts count rows that are not the batch's.
    """
    del now_ms
    if not any(batch.is_trimmed for batch in inputs):
        before = sum(part.diff_sum for batch in inputs for part in batch.parts)
        after = sum(part.diff_sum for part in output.parts)
        assert before == after, (before, after, output.desc)
    assert output.desc.lower == inputs[0].desc.lower, (output.desc, inputs[0].desc)
    assert output.desc.upper == inputs[-1].desc.upper, (output.desc, inputs[-1].desc)

    batches = state.trace.batches
    start = next(
        (i for i, batch in enumerate(batches) if batch.desc.lower == output.desc.lower),
        len(batches),
    )
    end = start + len(inputs)
    ahead = Frontier(output.desc.since) > state.since
    if batches[start:end] != inputs or ahead:
        return Transition(None, result=False)
    inline = sum(batch.inline_bytes for batch in inputs) - output.inline_bytes
    if output.is_empty:
        # Everything cancelled: an empty batch has no empty neighbour.
        while start and batches[start - 1].is_empty:
            start -= 1
        while end < len(batches) and batches[end].is_empty:
            end += 1
        desc = msgspec.structs.replace(
            output.desc, lower=batches[start].desc.lower, upper=batches[end - 1].desc.upper
        )
        output = msgspec.structs.replace(output, desc=desc)
    trace = msgspec.structs.replace(
        state.trace,
        batches=(*batches[:start], output, *batches[end:]),
        inline_bytes=state.trace.inline_bytes - inline,
    )
    return Transition(msgspec.structs.replace(state, trace=trace), result=True)

"""Recomputes one key of a state that a step has changed, from what the state is of.

    difference_of(check, state, step)     what the state lacks of it, in a sentence; "" if nothing

As of the step's end: what the state has been before is in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from shardline.app.compute.view.aggregate_rule import GroupState
from shardline.app.compute.view.choice_rule import ChoiceState
from shardline.app.compute.view.first_rows_rule import END, FirstRowsState
from shardline.app.compute.view.self_check import SelfCheck, difference, key_of, with_key
from shardline.datasource.frames import ROWS_MAX, to_arrow

if TYPE_CHECKING:
    from shardline.app.compute.view.state_rules import State
    from shardline.app.compute.view.state_step import StateStep

__all__ = ["difference_of"]


def difference_of(check: SelfCheck, group: State, step: StateStep) -> str:
    """What a key that the step has changed lacks in a state, or has too much, at the step's end.

    Args:
        check: Of the view.
        group: The state.
        step: To its end the state has been brought, and has changed in it.
    """
    if isinstance(group, ChoiceState):
        return ""  # other rows may tie with those that were chosen
    touched = to_arrow(step.changes[group.name].limit(ROWS_MAX))
    if isinstance(group, FirstRowsState):
        touched = touched.filter(pc.invert(touched[END]))  # the end is no row
    if not touched.num_rows:
        return ""
    source = step.plan.source_contents(group)
    rows = source.over(step.session, {}, step.contents_at(source.before, step.last))
    # A state of all rows has a key that its source does not have.
    letter = "k" if isinstance(group, GroupState) else "c"
    columns = [name for name in rows.columns if name.startswith(letter)]
    key = key_of(check.choose(touched.select(columns)), group.schema)
    shard, state = step.states[group.name]
    held = shard.contents(step.session, state, step.last + 1)
    if isinstance(group, FirstRowsState):
        # Of the rows with this key those that it has everything in front of.
        given = group.held_frame(held, step.last)
        desired = group.within(step.session, with_key(rows, key), given)
        held = held.where(~F.col(END))
    else:
        desired = group.contents(step.session, with_key(rows, key), step.last)
    return difference(key, desired, held)

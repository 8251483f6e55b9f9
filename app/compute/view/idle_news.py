"""News that a view waits for end the rest of its application: uppers move at each interval again.

    end_rest_for(view, states, rest)

A source that gets rows ends it by itself. What no source of the application tells are rows that
somebody else writes into an input, beside another one that rests and whose upper they have to wait
for; and rows that come or go by themselves, for which the clock of shards has to reach their time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from shardline.datasource.state import ShardState, plan_changes

if TYPE_CHECKING:
    from shardline.app.compute.view.maintained_view import View
    from shardline.app.execution.rest_pace import RestPace

__all__ = ["end_rest_for"]


def end_rest_for(view: View, states: Sequence[ShardState], rest: RestPace | None) -> None:
    """End the rest if rows wait for uppers to move, or will before they move next.

    Args:
        view: It has followed `states` as far as they let it.
        states: Of all its inputs.
        rest: Of its application; None if that never rests.
    """
    if rest is None or not rest.is_resting:
        return
    output = view.reports.output
    upper = None if output is None else output.upper
    # Changes up to any time: what all inputs have settled is where the one that rests keeps them.
    has_news = upper is not None and any(plan_changes(state, upper, None) for state in states)
    if has_news or view.is_due_within(2 * rest.rest_ms):
        rest.note_news()

"""Reads the exact times at which inputs change from rows, where parts do not tell them.

A part that spans several times says only its first and its last one (`input_changes`). To be
recomputed at each time of a change a view needs all of them, and each once.

    news = read_times(session, host, news, lower, upper)      `news.spread` is empty afterwards
    times_over_states(host, step, is_temporal=False)          all times of a step
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardline import datasource
from shardline.app.compute.view.input_changes import InputChanges, find_input_changes
from shardline.app.compute.view.state_step import StateStep
from shardline.app.execution.host import Host
from shardline.datasource.frames import ROWS_MAX, times_of_changes
from shardline.datasource.schema import TS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["read_times", "times_over_states"]


def read_times(
    session: SparkSession,
    host: Host,
    news: InputChanges,
    lower: int,
    upper: int | None,
    *,
    begins: bool = False,
) -> InputChanges:
    """The news with all times of the inputs whose parts do not tell: these are read.

    Args:
        session: Reads them where they are many.
        host: What the view runs in.
        news: Of `[lower, upper)`.
        lower: First time, inclusive.
        upper: Last time, exclusive; None for no end.
        begins: True if nothing before `lower` may be known any more: whether the inputs changed
            just then cannot be told, and `lower` is among the times. To run a query at one more
            time costs as much as at any other.
    """
    found: set[int] = set()
    if begins:
        found.add(lower)
        lower += 1
    for name in news.spread if upper is None or lower < upper else ():
        times = times_of_changes(host.client, name, start=lower, end=upper, rows_max=ROWS_MAX)
        if times is not None:
            found |= times
            continue
        updates = datasource.changes(
            session,
            location=host.client.location.url,
            shard=name,
            start=lower,
            end=upper,
            storage=host.storage,
        )
        found |= {row[0] for row in updates.select(TS).distinct().collect()}
    return news.with_times(found)


def times_over_states(host: Host, step: StateStep, *, is_temporal: bool) -> list[int]:
    """The times of a step, ascending, at which what the query says of its states may change.

    Args:
        host: What the view runs in.
        step: To its end all states have been brought.
        is_temporal: True if rows come and go by themselves.
    """
    news = step.news
    if is_temporal:
        # They change at times at which no input does.
        held = [state for _, state in step.states.values()]
        news = find_input_changes(held, step.lower, step.upper)
    if news.spread:
        news = read_times(step.session, host, news, step.lower, step.upper)
    return [time for time in news.known if time >= step.lower]

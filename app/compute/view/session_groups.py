"""The SQL by which the sessions of an aggregate are kept: a state of one row for each session.

A session is what the windows of rows with one key come to where they overlap or touch: it lasts
from the first start to the last end. Rows that come extend sessions, join two of them, or are one
of their own, and all of it follows from the sessions that are there, as sums add up. A row that
goes may leave a hole, so that a session falls apart: what is left of it only its rows tell, and
then the sessions of its key are made anew from these (`gone`; Spark's own operators for session
windows know neither changes nor several times).

    k1 …       the key, as of `accumulators`, which has the other columns, too
    w          the window of a row, with its `start` and `end`; of a state, a session's
    g0         in `moved`: true of rows that go, and NULL of those that come

Where windows follow each other without a hole is told by two window functions, and not by Spark's
merging of sessions: that depends on the metadata of a column, and a rule of the optimizer that
puts another column in its place would drop it without a word.

Invariants:
    Sessions of a key neither overlap nor touch, as Spark merges windows that do.
    What a step adds at each of its times is kept apart: a state is right at every time.
    Only sessions between the first and the last of what a step adds to a key can change by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from shardline.app.compute.view.accumulators import (
    BEFORE,
    Accumulators,
    GroupPrograms,
    extremes_of,
    same_key,
    select,
    sums_of,
    table,
)
from shardline.datasource.schema import DIFF, TS

__all__ = ["WINDOW", "session_programs"]

WINDOW: Final = "w"
"""The column with the window."""

_AT: Final = "_at"
_SIDE: Final = "_side"
_SESSION: Final = f"named_struct('start', min({WINDOW}.start), 'end', max({WINDOW}.end))"

_BY_PLACE: Final = ("ROWS", "1")
"""Kind of a window function's frame, and how far before a row its end is."""

_BY_VALUE: Final = ("RANGE", "INTERVAL '0.000001' SECOND")
"""The same for rows of keys that are computed anew: there a frame of ROWS is refused, as ties may
decide it. It is slower by a sixth, as the interval is added to the time of each row."""


def session_programs(keys: int, calls: Sequence[Accumulators]) -> GroupPrograms:
    """The programs of an aggregate that groups by a session window.

    Args:
        keys: The number of other columns that it groups by, at least one.
        calls: Its calls, in order.
    """
    key = [f"k{place}" for place in range(1, keys + 1)]
    sums, extremes = sums_of(calls), extremes_of(calls)
    of_rows = {there: f"{function}(v{there[1:]})" for function, there, _ in extremes}
    again = {name: f"sum({name})" for name in sums}
    again |= {there: f"{function}({there})" for function, there, _ in extremes}
    merged = _merged(key, again)
    return GroupPrograms(
        contents=_sessions(key, sums | of_rows, table(["*", f"1L AS {DIFF}"], "rows"), _BY_VALUE),
        moved=_moved(key, sums | of_rows),
        merged=merged,
        merged_found=merged,
        gone=select(["1 AS lost"], "moved", "WHERE g0 LIMIT 1"),
    )


def _sessions(
    common: Sequence[str], values: dict[str, str], rows: str, frame: tuple[str, str] = _BY_PLACE
) -> str:
    """The sessions of rows that have a window: one row for each, with its values.

    Args:
        common: Columns that all rows of a session have in common.
        values: What is computed of a session's rows, by column.
        rows: A table.
        frame: The frame of the window functions (`_BY_PLACE`, `_BY_VALUE`).
    """
    together = ", ".join(common)
    kind, step = frame
    # A column of its own: of an expression Spark makes one for each of the two functions, and
    # sorts by either.
    started = table(["*", f"{WINDOW}.start AS _start"], rows)
    by_start = f"OVER (PARTITION BY {together} ORDER BY _start {kind} BETWEEN UNBOUNDED"
    # Windows that start together are of the same session, whichever is first: none is empty.
    reached = f"max({WINDOW}.end) {by_start} PRECEDING AND {step} PRECEDING)"
    begins = "CASE WHEN _reached IS NULL OR _start > _reached THEN _start END"
    session = f"max({begins}) {by_start} PRECEDING AND CURRENT ROW)"
    labelled = table(
        ["*", f"{session} AS _session"], table(["*", f"{reached} AS _reached"], started)
    )
    columns = [*common, f"{_SESSION} AS {WINDOW}"]
    columns += [f"{text} AS {name}" for name, text in values.items()]
    return select(columns, labelled, f"GROUP BY {together}, _session")


def _moved(key: Sequence[str], values: dict[str, str]) -> str:
    """The sessions that rows of one time are by themselves, and those that rows that go were."""
    news = table(["*", f"nullif({DIFF} < 0, false) AS g0"], "changes")
    return _sessions([*key, TS, "g0"], values, news)


def _merged(key: Sequence[str], again: dict[str, str]) -> str:
    """The state's change: at each time the sessions that are new, and those that they replace."""
    listed = ", ".join(key)
    columns = [WINDOW, *again]
    spans = table(
        [*key, f"min({WINDOW}.start) AS _first", f"max({WINDOW}.end) AS _last"],
        "moved",
        f"GROUP BY {listed}",
    )
    within = f"state.{WINDOW}.start <= _last AND state.{WINDOW}.end >= _first"
    held = select(
        [*(f"state.{name}" for name in key), f"{BEFORE}L AS {TS}", *columns],
        "state",
        f"JOIN {spans} spans ON {same_key('state', 'spans', key)} AND {within}",
    )
    there = f"({held} UNION ALL {select([*key, TS, *columns], 'moved')})"
    times = table([f"DISTINCT {listed}", f"{TS} AS {_AT}"], "moved")
    # Each row of before a time twice: with those of that time, and among what was there before.
    sides = f"CASE WHEN {TS} < {_AT} THEN array(1L, -1L) ELSE array(1L) END"
    at_times = select(
        [*(f"times.{name}" for name in key), _AT, TS, *columns],
        times,
        f"times JOIN {there} there ON {same_key('times', 'there', key)} AND {TS} <= {_AT}",
    )
    rows = table(["*"], f"({at_times})", f"LATERAL VIEW explode({sides}) AS {_SIDE}")
    sessions = _sessions([*key, _AT, _SIDE], again, rows)
    # Sessions that nothing was added to are on both sides.
    all_columns = ", ".join([*key, *columns, _AT])
    return select(
        [*key, *columns, f"{_AT} AS {TS}", f"sum({_SIDE}) AS {DIFF}"],
        f"({sessions})",
        f"GROUP BY {all_columns} HAVING sum({_SIDE}) <> 0",
    )

"""Accumulators say what a group's rows add up to: a state of one row for each group.

The rows of a group are not kept. A row that comes adds to the numbers of its group, and one that
goes takes away; the values of aggregate functions are computed from them (DBSP's linear aggregates,
Materialize's accumulable reductions). The arithmetic is SQL over columns with names of its own, and
is analysed once, in a session whose arithmetic raises where a number does not fit:

    contents    rows                the accumulators of all groups
    moved       changes of rows     what each time adds to each group
    merged      moved, state        the state's change: rows that come and go, at their times
    gone        moved, state        a row if a least or greatest value went: the next is not known
    refreshed   all of these, rows  as `merged`, with the least and greatest values of rows
    buffers     state               what Spark's functions compute their values from

Columns: `k1` … the key; `v1` … what each call is about: a value, or for `count` whether the row
counts; `n` the number of rows; `c1` … the number of rows that a call counts; `a1` … their sum;
`m1` … the sum of their magnitudes; `e1` … the least or greatest value; `g1` … the same of those
that go.

Invariants:
    What a step adds at each of its times is kept apart: a state is right at every time.
    A group is there as long as it has rows. Without a key there is one group, also over no rows.
    What cannot be told from the accumulators is an error, and never a wrong number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from pyspark.sql.types import DataType, DecimalType

from shardline.datasource.schema import DIFF, TS

__all__ = [
    "BEFORE",
    "NEGATIVE",
    "Accumulators",
    "Extremes",
    "GroupPrograms",
    "extremes_of",
    "group_programs",
    "same_key",
    "select",
    "sums_of",
    "table",
]

BEFORE: Final = -(2**62)
"""The time of a state's rows that were there before a step; no update has it."""

NEGATIVE: Final = "a state has a negative number of rows"
"""Error where a state and its inputs disagree."""

_EXACT: Final = 2**53
"""Up to here Spark's own average, which adds up as doubles, is the exact one in every order."""

_SOLE: Final = "k0"
"""The key of a state that has one group."""


@dataclass(frozen=True, slots=True)
class Accumulators:
    """Those of one call of an aggregate function.

    Attributes:
        function: Its name.
        place: Number of the call, from 1.
        type: The type of its argument; of no meaning for `count`.
    """

    function: str
    place: int
    type: DataType

    def sums(self) -> dict[str, str]:
        """What is added up over rows, by column."""
        value, place = f"v{self.place}", self.place
        counts = value if self.function == "count" else f"{value} IS NOT NULL"
        found = {f"c{place}": _sum(f"CASE WHEN {counts} THEN {DIFF} ELSE 0L END")}
        if self.function in {"sum", "avg"}:
            found[f"a{place}"] = self._total(value)
            if self.function == "avg" and not isinstance(self.type, DecimalType):
                found[f"m{place}"] = self._total(f"abs(CAST({value} AS BIGINT))")
        return found

    def _total(self, value: str) -> str:
        if isinstance(self.type, DecimalType):
            wide = f"DECIMAL(38, {self.type.scale})"
            times = f"CAST({value} AS {wide}) * CAST({DIFF} AS DECIMAL(20, 0))"
            return f"coalesce(sum(CAST({times} AS {wide})), CAST(0 AS {wide}))"
        return _sum(f"CAST({value} AS BIGINT) * {DIFF}")

    def extreme(self) -> tuple[str, str, str] | None:
        """Of `min` and `max`: the function, and the columns of what is there, and of what goes."""
        if self.function not in {"max", "min"}:
            return None
        return self.function, f"e{self.place}", f"g{self.place}"

    def buffers(self) -> list[str]:
        """The attributes of Spark's function, in its order, over the state's columns."""
        count, total = f"c{self.place}", f"a{self.place}"
        match self.function:
            case "count":
                return [count]
            case "max" | "min":
                return [f"e{self.place}"]
            case "avg" if isinstance(self.type, DecimalType):
                return [total, count]
            case "avg":
                inexact = _raise("an average of integers that depends on their order")
                exact = f"m{self.place} <= {_EXACT}L"
                return [f"CASE WHEN {exact} THEN {total} ELSE {inexact} END", count]
        if isinstance(self.type, DecimalType):
            return [total, f"{count} = 0"]
        return [f"CASE WHEN {count} > 0 THEN {total} END"]


Extremes: TypeAlias = Sequence[tuple[str, str, str]]
"""What `Accumulators.extreme` says, of all calls that have one."""


@dataclass(frozen=True, slots=True)
class GroupPrograms:
    """The SQL by which a state of groups is kept.

    Attributes:
        contents: Over the table `rows`.
        moved: Over the table `changes`, with `_ts` and `_diff`.
        merged: Over the tables `moved` and `state`.
        merged_found: The same, where `state` has little more than the groups that have moved.
        gone: Over the same tables as `merged`; "" if nothing can be lost. If it has a row,
            the step cannot be computed from the state.
        refreshed: The same as `merged_found` where it can be computed by means of further tables:
            `changes`, and for each of the extremes, `front1` …, rows of before the step that have
            the least or greatest values at each of its times, if `changes` come to them; "" if
            there are none.
        extremes: What `refreshed` has the tables `front1` … of, in order.
    """

    contents: str
    moved: str
    merged: str
    merged_found: str
    gone: str
    refreshed: str = ""
    extremes: Extremes = ()


def group_programs(keys: int, calls: Sequence[Accumulators]) -> GroupPrograms:
    """The programs of an aggregate.

    Args:
        keys: The number of columns that it groups by; 0 for one group.
        calls: Its calls, in order.
    """
    key = [f"k{place}" for place in range(1, keys + 1)] or [_SOLE]
    sums, extremes = sums_of(calls), extremes_of(calls)
    return GroupPrograms(
        contents=_contents(keys, key, sums, extremes),
        moved=_moved(keys, key, sums, extremes),
        merged=_merged(key, sums, extremes, _touched(key), sole=not keys),
        merged_found=_merged(key, sums, extremes, "", sole=not keys),
        gone=_gone(key, sums, extremes) if extremes else "",
        refreshed=_merged(key, sums, extremes, "", sole=False, refresh=True)
        if keys and extremes
        else "",
        extremes=extremes if keys else (),
    )


def sums_of(calls: Sequence[Accumulators]) -> dict[str, str]:
    """What is added up over the rows of a group, by column: their number first."""
    return {"n": _sum(DIFF)} | {name: text for call in calls for name, text in call.sums().items()}


def extremes_of(calls: Sequence[Accumulators]) -> Extremes:
    """What calls of `min` and `max` keep."""
    return [found for call in calls if (found := call.extreme()) is not None]


def _contents(keys: int, key: list[str], sums: dict[str, str], extremes: Extremes) -> str:
    values = [f"{text} AS {name}" for name, text in sums.items()]
    values += [f"{function}(v{there[1:]}) AS {there}" for function, there, _ in extremes]
    rows = table(["*", f"1L AS {DIFF}"], "rows")
    if not keys:
        return select([_sole(), *values], rows)
    return select([*key, *values], rows, f"GROUP BY {', '.join(key)}")


def _moved(keys: int, key: list[str], sums: dict[str, str], extremes: Extremes) -> str:
    """One row for each group and time at which something is added."""
    values = [f"{text} AS {name}" for name, text in sums.items()]
    for function, there, gone in extremes:
        value = f"v{there[1:]}"
        values.append(f"{function}(CASE WHEN {DIFF} > 0 THEN {value} END) AS {there}")
        values.append(f"{function}(CASE WHEN {DIFF} < 0 THEN {value} END) AS {gone}")
    news = [f"{name} <> 0" for name in sums]
    news += [f"{name} IS NOT NULL" for _, *pair in extremes for name in pair]
    groups = ", ".join([*(key if keys else []), TS])
    return select(
        [*(key if keys else [_sole()]), TS, *values],
        "changes",
        f"GROUP BY {groups} HAVING {' OR '.join(news)}",
    )


def _touched(key: list[str]) -> str:
    return f"LEFT SEMI JOIN moved ON {same_key('state', 'moved', key)}"


def _reached(key: list[str], sums: dict[str, str], extremes: Extremes, touched: str) -> str:
    """Each group at each of its times: from when to when, and what it has added up by then.

    Others than those that have moved may be there, too: they have no next time.
    """
    known, added = [*key, f"{BEFORE}L AS {TS}", *sums], [*key, TS, *sums]
    reached = [*key, f"{TS} AS _from", f"lead({TS}) OVER at AS _next"]
    reached += [f"sum({name}) OVER until AS {name}" for name in sums]
    for function, there, gone in extremes:
        known += [there, f"NULL AS {gone}"]
        added += [there, gone]
        reached += [f"{function}({there}) OVER until AS {there}", gone]
    keys = ", ".join(key)
    return table(
        reached,
        f"({select(known, 'state', touched)} UNION ALL {select(added, 'moved')})",
        f"WINDOW at AS (PARTITION BY {keys} ORDER BY {TS}), until AS (PARTITION BY {keys} "
        f"ORDER BY {TS} ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)",
    )


def _merged(
    key: list[str],
    sums: dict[str, str],
    extremes: Extremes,
    touched: str,
    *,
    sole: bool,
    refresh: bool = False,
) -> str:
    """The state's change: each row doubled, coming at its time, and going at the group's next."""
    rows = [*key, "_from", "_next", *sums]
    rows += [f"CASE WHEN c{there[1:]} > 0 THEN {there} END AS {there}" for _, there, _ in extremes]
    reached = _reached(key, sums, extremes, touched)
    if refresh:
        reached = _with_fresh(key, sums, extremes, reached)
    there_is = "TRUE" if sole else "n > 0"
    rows.append(f"CASE WHEN n < 0 THEN {_raise(NEGATIVE)} ELSE {there_is} END AS _there")
    columns = [*key, *sums, *(there for _, there, _ in extremes), f"_one.{TS}", f"_one.{DIFF}"]
    return select(
        columns,
        table(rows, reached),
        f"LATERAL VIEW inline(array(named_struct('{TS}', _from, '{DIFF}', 1L), "
        f"named_struct('{TS}', _next, '{DIFF}', -1L))) _one "
        f"WHERE _there AND _one.{TS} > {BEFORE}L",
    )


def _with_fresh(key: list[str], sums: dict[str, str], extremes: Extremes, reached: str) -> str:
    """What `_reached` gives, with the least and greatest values that rows have at each time."""
    columns = [f"reached.{name}" for name in [*key, "_from", "_next", *sums]]
    joins = []
    for place, (function, there, _) in enumerate(extremes, 1):
        fresh = f"fresh{place}"
        columns.append(f"IF(_from > {BEFORE}L, {fresh}.{there}, reached.{there}) AS {there}")
        found = _fresh(key, function, there, f"front{place}")
        joins.append(
            f"LEFT JOIN {found} {fresh} ON {same_key('reached', fresh, key)} "
            f"AND _from = {fresh}._at"
        )
    return table(columns, f"{reached} reached", " ".join(joins))


def _fresh(key: list[str], function: str, there: str, front: str) -> str:
    """The least or greatest value of each group at each of its times, of rows that are there."""
    columns = [*key, f"v{there[1:]} AS _value"]
    before = select([*columns, f"{BEFORE}L AS {TS}", f"1L AS {DIFF}"], front)
    rows = f"({before} UNION ALL {select([*columns, TS, DIFF], 'changes')})"
    listed = ", ".join(key)
    times = table([f"DISTINCT {listed}", f"{TS} AS _at"], "moved")
    values = table(
        [*(f"times.{name}" for name in key), "_at", "_value"],
        times,
        f"times JOIN {rows} one ON {same_key('times', 'one', key)} AND one.{TS} <= _at "
        f"GROUP BY {', '.join(f'times.{name}' for name in key)}, _at, _value "
        f"HAVING sum(one.{DIFF}) > 0",
    )
    return table([*key, "_at", f"{function}(_value) AS {there}"], values, f"GROUP BY {listed}, _at")


def _gone(key: list[str], sums: dict[str, str], extremes: Extremes) -> str:
    """A row if the least or greatest value of a group may have gone, with others left."""
    lost = []
    for function, there, gone in extremes:
        beyond = "<=" if function == "min" else ">="
        # Of a group that is empty and stays so nothing needs to be known.
        lost.append(f"({gone} {beyond} {there} AND (c{there[1:]} > 0 OR _next IS NOT NULL))")
    reached = _reached(key, sums, extremes, _touched(key))
    return select(["1 AS lost"], reached, f"WHERE {' OR '.join(lost)} LIMIT 1")


def select(columns: Sequence[str], source: str, rest: str = "") -> str:
    """A query over a table, with what comes after it."""
    return " ".join(["SELECT", ", ".join(columns), "FROM", source, rest]).rstrip()


def table(columns: Sequence[str], source: str, rest: str = "") -> str:
    """The same as a table of another query."""
    return f"({select(columns, source, rest)})"


def same_key(one: str, other: str, key: Iterable[str]) -> str:
    """The condition that rows of two tables have the same key; NULL is one."""
    return " AND ".join(f"{one}.{name} <=> {other}.{name}" for name in key)


def _sum(text: str) -> str:
    return f"coalesce(sum({text}), 0L)"


def _sole() -> str:
    return f"CAST(0 AS TINYINT) AS {_SOLE}"


def _raise(text: str) -> str:
    return f"raise_error('{text}')"

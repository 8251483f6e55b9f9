"""Views over tables with filters, whose steps look up little, hold at each time what Spark says.

Random joins of all kinds, with filters over one table, over several and inside of OR, over inputs
of which some change in columns that the query reads, and some in a column that it does not.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pytest

from shardline.app.compute.view.found_rows import Found, FoundRows
from shardline.app.execution.observations import Doubted, Stepped
from support.profiles import one_of, some_of
from support.spark.view_world import START, ViewWorld

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from shardline.app.compute.view.change_plan import StepPlan
    from shardline.app.compute.view.state_step import StateStep
    from shardline.datasource.shard.state import ShardState
    from support.spark.views import Row

pytestmark = pytest.mark.spark

# ruff: noqa: S608 - queries are made here

COLUMNS: Final = pa.schema(
    [
        ("k", pa.int64()),
        ("m", pa.int32()),
        ("word", pa.string()),
        ("note", pa.string()),
    ]
)
TABLES: Final = ("a", "b", "c", "d")
TIMES: Final = (20, 30, 40)
END: Final = 50
WORDS: Final = ("red", "ready", "blue", "", None)


def row(draw: random.Random, place: int) -> Row:
    return (
        draw.choice([None, *range(5)]),
        draw.randrange(4),
        draw.choice(WORDS),
        f"note {place}",
    )


class Tables(ViewWorld):
    """Tables of which at each time some change, and some only in `note`."""

    def __init__(self, spark: SparkSession, folder: Path, seed: int) -> None:
        looks = [START, *(time + late for time in TIMES for late in (0, 1)), END - 1]
        super().__init__(spark, folder, (START + 1, 25, 35, END), looks)
        draw = random.Random(seed)
        for number, name in enumerate(TABLES):
            self.inputs[name] = found = self.bench.input(name, COLUMNS)
            found.push(START, *((row(draw, place), 1) for place in range(14)))
            for step, time in enumerate(TIMES):
                there = found.at(time - 1)
                gone = draw.sample(there, min(3, len(there)))
                changes = [(time, one, -1) for one in gone]
                match ("rows", "note", "both", "none")[(number + step) % 4]:
                    case "none":
                        changes = []
                    case "note":
                        changes += [(time, (*one[:3], f"{one[3]}!"), 1) for one in gone]
                    case "rows":
                        changes += [(time, row(draw, time + n), 1) for n in range(3)]
                    case _:
                        changes += [(time, (*one[:3], f"{one[3]}!"), 1) for one in gone]
                        changes += [(time + 1, row(draw, time + n), 1) for n in range(2)]
                found.append(changes, time + 3)
            found.idle(END)


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tables]:
    made = Tables(spark, tmp_path_factory.mktemp("lookups"), 7)
    yield made
    made.close()


def condition(draw: random.Random, tables: list[str], depth: int = 2) -> str:
    """A condition over columns of these tables."""
    one, other = draw.choice(tables), draw.choice(tables)
    if depth and draw.random() < 0.4:
        sides = [condition(draw, tables, depth - 1) for _ in "ab"]
        made = f"({sides[0]} {draw.choice(['AND', 'OR'])} {sides[1]})"
        return f"NOT {made}" if draw.random() < 0.2 else made
    return draw.choice(
        [
            f"{one}.m > {draw.randrange(3)}",
            f"{one}.m IN (1, {draw.randrange(4)})",
            f"{one}.m BETWEEN {draw.randrange(2)} AND 2",
            f"{one}.k IS NOT NULL",
            f"{one}.word LIKE '{draw.choice(['re%', '%d%', '_lue', '%'])}'",
            f"{one}.word <> 'blue'",
            f"length({one}.word) > {draw.choice([0, 3])}",
            f"{one}.k < {other}.m",
            f"{one}.k <> {one}.m",
        ]
    )


def equality(draw: random.Random, mine: str, others: list[str]) -> str:
    other = draw.choice(others)
    found = [
        draw.choice(
            [
                f"{mine}.k = {other}.k",
                f"{mine}.m = {other}.k",
                f"{mine}.m = {other}.m",
                f"{mine}.word <=> {other}.word",
            ]
        )
        for _ in range(draw.choice([1, 1, 2]))
    ]
    both = " AND ".join(dict.fromkeys(found))
    if draw.random() < 0.2:
        more = [f"({both} AND {condition(draw, [mine, other], 0)})" for _ in "ab"]
        return f"({' OR '.join(more)})"
    return both


def random_query(draw: random.Random) -> str:
    """A query over some of the tables, some of them twice, which reads no `note` of most."""
    names = [f"t{place}" for place in range(draw.choice([2, 3, 3, 4]))]
    there = [names[0]]
    text = f"{draw.choice(TABLES)} {names[0]}"
    for name in names[1:]:
        kind = draw.choice(["JOIN"] * 4 + ["LEFT JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN"])
        table = draw.choice(TABLES)
        if draw.random() < 0.3:
            inner = condition(draw, ["x"], 1)
            table = f"(SELECT * FROM {table} x WHERE {inner})"
        text += f" {kind} {table} {name} ON {equality(draw, name, there)}"
        if draw.random() < 0.3:
            text += f" AND {condition(draw, [*there, name], 1)}"
        if kind in {"JOIN", "LEFT JOIN"}:
            there.append(name)
    where = [condition(draw, there) for _ in range(draw.choice([0, 1, 2]))]
    if draw.random() < 0.3:
        inside = f"x.k = {draw.choice(there)}.k AND {condition(draw, ['x'], 1)}"
        exists = draw.choice(["EXISTS", "NOT EXISTS"])
        where.append(f"{exists} (SELECT 1 FROM {draw.choice(TABLES)} x WHERE {inside})")
    if draw.random() < 0.3:
        inside = f"x.m = {draw.choice(there)}.m"
        value = f"(SELECT max(x.k) FROM {draw.choice(TABLES)} x WHERE {inside})"
        where.append(f"{draw.choice(there)}.k {draw.choice(['<=', '='])} {value}")
    if where:
        text += f" WHERE {' AND '.join(where)}"
    first, last = there[0], there[-1]
    return draw.choice(
        [
            f"SELECT {first}.k, {first}.m, {last}.word FROM {text}",
            f"SELECT {last}.k, {first}.note FROM {text}",
            f"SELECT {first}.word AS w, count(*) AS n, sum({last}.m) AS s FROM {text} GROUP BY w",
            f"SELECT {last}.m AS g, max({first}.k) AS x, min({last}.k) AS y FROM {text} GROUP BY g",
            f"SELECT {first}.m AS g, count(DISTINCT {last}.k) AS n FROM {text} GROUP BY g",
            f"SELECT count(*) AS n FROM {text}",
        ]
    )


SEEDS: Final = (1, 2, 3, 5, 6)
"""Of queries that Spark answers soon."""


@pytest.mark.parametrize("seed", some_of(SEEDS, {6}))
def test_random_joins_with_filters_are_right(world: Tables, seed: int) -> None:
    """At every time, whatever a step has left out and looked up."""
    query = random_query(random.Random(seed))
    kept = world.kept(f"random_{seed}", query)
    world.follow(kept, partial(world.by_spark, query))
    assert not doubts(world, kept.name), query


def doubts(world: Tables, view: str) -> list[Doubted]:
    """What a view has found to be wrong in what it keeps; it is right again, and nobody noticed."""
    return [one for one in world.bench.told(Doubted) if one.id == view]


FOLLOWED: Final = {
    "partner_may_be_a_constant": (
        "SELECT a.note, c.word FROM a JOIN (SELECT k FROM b WHERE m > 100 UNION ALL SELECT 3L) u "
        "ON a.k = u.k JOIN c ON a.m = c.m"
    ),
    "filtered_above_a_self_join": (
        "SELECT o.note, p.word FROM a o LEFT JOIN a p ON o.k = p.m WHERE o.m > 1"
    ),
    "filtered_above_groups": (
        "SELECT g.k, b.word FROM (SELECT k, count(*) AS n FROM a GROUP BY k) g "
        "LEFT JOIN b ON g.k = b.k WHERE g.n > 2"
    ),
    "lists_filtered_above": (
        "SELECT o.k, o.m, p.items FROM a o LEFT JOIN (SELECT m AS id, "
        "sort_array(collect_list(note)) AS items FROM a GROUP BY m) p ON o.m = p.id WHERE o.k > 1"
    ),
    "semi_join_inside": (
        "SELECT c.note, b.k FROM c JOIN (SELECT * FROM b LEFT SEMI JOIN d ON b.m = d.m "
        "AND d.word = 'red') b ON c.k = b.k WHERE c.m > 0"
    ),
}


@pytest.mark.parametrize(
    ("name", "whole"),
    some_of(
        [
            *((name, False) for name in FOLLOWED),
            ("filtered_above_a_self_join", True),
            ("lists_filtered_above", True),
        ],
        {("lists_filtered_above", True)},
    ),
)
def test_no_step_is_taken_anew(
    world: Tables, monkeypatch: pytest.MonkeyPatch, name: str, *, whole: bool
) -> None:
    """Contents are right by changes alone, whether rows of `a` are looked up or all read."""
    rows = FoundRows.rows

    def sometimes(self: FoundRows, state: ShardState, *given: Any) -> pa.Table | None:
        return None if whole and state.name == "a" else rows(self, state, *given)

    monkeypatch.setattr(FoundRows, "rows", sometimes)
    view, query = f"{name}_{'read' if whole else 'found'}", FOLLOWED[name]
    kept = world.kept(view, query)
    assert world.follow(kept, partial(world.by_spark, query)) == {"recompute", "incremental"}
    anew = [one for one in world.bench.told(Stepped) if one.id == view and one.reason]
    assert [one.reason for one in anew] == ["its first contents"]
    assert not doubts(world, view)


EMPTY_SIDES = [
    # No row of b is found, so rows of a have no partner.
    (
        "SELECT a.note, c.word FROM a JOIN b ON a.k = b.k AND b.m > 100 JOIN c ON a.m = c.m",
        ("c", ("m",)),
    ),
    # Of a's rows none is meant at one of its places; at the other all are.
    (
        "SELECT x.note FROM a x JOIN b ON x.k = b.k AND x.m > 100 JOIN a y ON y.word = b.word",
        ("b", ("k",)),
    ),
]


@pytest.mark.parametrize(("query", "asked_of"), one_of(2, EMPTY_SIDES))
def test_rows_that_come_to_nothing_give_no_keys(
    world: Tables, monkeypatch: pytest.MonkeyPatch, query: str, asked_of: tuple[str, tuple[str]]
) -> None:
    """Keys that a step looks up where another one has left no row."""
    asked: dict[tuple[str, tuple[str, ...]], int] = {}
    rows = FoundRows.rows

    def counted(
        self: FoundRows, state: ShardState, key: tuple[str, ...], keys: pa.Table, *given: Any
    ) -> pa.Table | None:
        place = state.name, key
        asked[place] = asked.get(place, 0) + keys.num_rows
        return rows(self, state, key, keys, *given)

    monkeypatch.setattr(FoundRows, "rows", counted)
    kept = world.kept(f"asks_{asked_of[0]}", query)
    assert world.follow(kept, partial(world.by_spark, query)) == {"recompute", "incremental"}
    assert sum(asked.values()) > 0
    assert asked[asked_of] == 0


def test_rows_that_a_filter_leaves_out_are_not_handed_on(
    world: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are looked up by their key, and go no further than that."""
    found: list[int] = []
    find = FoundRows.find

    def noted(self: FoundRows, step: StateStep, plan: StepPlan) -> Found | None:
        made = find(self, step, plan)
        assert made is not None
        found.extend(
            rows.num_rows
            for leaf, rows in made.tables.items()
            if leaf.name == "b" and rows is not None
        )
        return made

    monkeypatch.setattr(FoundRows, "find", noted)
    query = "SELECT a.note FROM a JOIN b ON a.k = b.k WHERE b.m > 100"
    kept = world.kept("hands_nothing_on", query)
    world.follow(kept, partial(world.by_spark, query))
    assert found
    assert not any(found)


def test_an_update_that_concerns_no_view_costs_no_step(
    world: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an unread column, and of rows that the view's filter leaves out: nothing is looked up."""
    asked: list[set[str]] = []
    leave_out = FoundRows.leave_out_the_rest

    def noted(self: FoundRows, step: StateStep) -> None:
        leave_out(self, step)
        asked.append(set(step.changed))

    monkeypatch.setattr(FoundRows, "leave_out_the_rest", noted)
    query = "SELECT a.k, b.m FROM a JOIN b ON a.k = b.k WHERE a.m > 100 AND b.word LIKE 'zz%'"
    kept = world.kept("concerned_by_none", query)
    assert world.follow(kept, partial(world.by_spark, query)) == {"recompute"}
    assert asked, "each step asks"
    assert not set().union(*asked)

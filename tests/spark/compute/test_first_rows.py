"""The first rows of an order follow changes, whatever comes, goes, ties or is killed.

The spare rows are few here, so that states are trimmed, run short and are made anew all the time.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias
from unittest import mock

import pyarrow as pa
import pytest

from shardline.app.compute.view import first_rows_rule
from shardline.app.compute.view.first_rows_steps import FirstRowsSteps
from shardline.app.compute.view.output import ViewSink
from shardline.app.compute.view.state_shard import StateShard
from shardline.app.execution.observations import Doubted, Measured, Stepped
from shardline.app.protocol.objects import state_shards
from shardline.datasource.state import plan_changes
from support.profiles import some_of
from support.spark.view_world import START, Killed, SteppedView, ViewWorld
from support.spark.views import Following, Input, Row, contents

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

# ruff: noqa: S608 - queries are put together here

SCORES: Final = pa.schema(
    [
        ("id", pa.int64()),
        ("who", pa.string()),
        ("points", pa.int32()),
        ("weight", pa.float64()),
        ("tags", pa.list_(pa.string())),
    ]
)
PEOPLE: Final = pa.schema([("name", pa.string()), ("city", pa.string())])
TIMES: Final = tuple(range(START, START + 60, 6))
LOOKS: Final = (*TIMES, START + 1, START + 59)
CUTS: Final = (START + 1, 14, 22, 23, 36, 50, START + 60)
"""Of the steps two have changes at no time or at one, others at two and at three or four."""

NAMES: Final = ("ada", "bob", "cyd", "dan", "eve")
SPARE: Final = 4

Worlds: TypeAlias = "Callable[[int], ViewWorld]"


def score(draw: random.Random, number: int) -> Row:
    return (
        number,
        draw.choice([None, *NAMES]),
        draw.choice([None, *range(8)]),
        draw.choice([None, math.nan, -0.0, 0.0, 0.5, -2.0, math.inf]),
        draw.choice([None, (), ("a",), ("a", "b")]),
    )


def change(draw: random.Random, scores: Input, time: int, numbers: Iterator[int]) -> None:
    """Some scores come and some go: at some times many that are in front in most orders."""
    there = scores.at(time)
    gone = draw.sample(there, min(len(there), draw.choice([0, 1, 3, len(there) // 6])))
    if draw.random() < 0.3:
        gone = sorted(there, key=lambda row: (row[2] is not None, row[2] or 0))[:15]
    come = [score(draw, next(numbers)) for _ in range(draw.choice([0, 2, 12, 24]) if there else 80)]
    changes = [(time, row, 1) for row in come] + [(time, row, -1) for row in gone]
    scores.append(changes, time + 1)


def make_world(spark: SparkSession, folder: Path, seed: int) -> ViewWorld:
    made = ViewWorld(spark, folder, CUTS, sorted(LOOKS))
    draw, numbers = random.Random(seed), itertools.count()
    scores = made.inputs["scores"] = made.bench.input("scores", SCORES)
    people = made.inputs["people"] = made.bench.input("people", PEOPLE)
    for time in TIMES:
        change(draw, scores, time, numbers)
        lives = [(draw.choice(NAMES), draw.choice(["Rome", "Oslo", None])) for _ in range(2)]
        people.append([(time, row, 1) for row in lives] if draw.random() < 0.5 else [], time + 1)
    for one in (scores, people):
        one.idle(CUTS[-1])
    return made


@pytest.fixture(scope="module")
def worlds(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Worlds:
    """Worlds by their seeds."""
    return cache(lambda seed: make_world(spark, tmp_path_factory.mktemp("first"), seed))


@pytest.fixture
def world(worlds: Worlds) -> ViewWorld:
    return worlds(1)


@pytest.fixture(autouse=True)
def _few_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_rows_rule, "_SPARE", SPARE)


TOTALS: Final = "(SELECT who, count(*) AS n, sum(points) AS total FROM scores GROUP BY who)"
QUERIES: Final = {
    "ascending": "SELECT id, who, points FROM scores ORDER BY points, id LIMIT 3",
    "descending": "SELECT id, points FROM scores ORDER BY points DESC, id DESC LIMIT 3",
    "nulls": "SELECT id, who FROM scores "
    "ORDER BY if(id % 17 = 0, NULL, nvl(who, 'x')) DESC NULLS FIRST, points NULLS LAST, id LIMIT 4",
    "nulls_last": "SELECT id FROM scores ORDER BY if(id % 12 = 0, points, NULL) NULLS LAST, id "
    "LIMIT 5",
    "floats": "SELECT id, weight FROM scores ORDER BY weight DESC, id LIMIT 3",
    "arrays": "SELECT id, tags FROM scores ORDER BY tags DESC, id LIMIT 3",
    "structs": "SELECT id FROM scores ORDER BY named_struct('w', who, 'p', points), id LIMIT 3",
    "computed": "SELECT id * 2 AS twice FROM scores ORDER BY points % 3, abs(id - 20), id LIMIT 3",
    "offset": "SELECT id, points + 1 AS more FROM scores ORDER BY points, id LIMIT 2 OFFSET 3",
    "filtered": "SELECT id FROM scores WHERE points > 2 ORDER BY points, id LIMIT 3",
    "above": "SELECT who, points * 2 AS twice FROM "
    "(SELECT * FROM scores ORDER BY points, id LIMIT 5) WHERE who IS NOT NULL",
    "all": "SELECT * FROM scores ORDER BY id DESC LIMIT 2",
    "joined": "SELECT s.id, p.city FROM scores s JOIN people p ON s.who = p.name "
    "ORDER BY s.points, s.id, p.city LIMIT 4",
    "groups": f"SELECT who, total FROM {TOTALS} ORDER BY total DESC, who LIMIT 2",
    "few": f"SELECT who FROM {TOTALS} WHERE n > 1 ORDER BY who LIMIT 9",
    "two": "(SELECT id FROM scores ORDER BY points, id LIMIT 2) UNION ALL "
    "(SELECT id FROM scores ORDER BY points DESC, id LIMIT 2)",
    "nested": "SELECT id, points FROM (SELECT id, points FROM scores ORDER BY points, id LIMIT 6) "
    "ORDER BY id DESC LIMIT 2",
    "of_first": "SELECT t.id, p.city FROM (SELECT id, who FROM scores ORDER BY points, id LIMIT 4) "
    "t JOIN people p ON t.who = p.name",
    "of_first_outer": "SELECT p.name, t.id FROM people p LEFT JOIN "
    "(SELECT id, who FROM scores ORDER BY points DESC, id LIMIT 4) t ON t.who = p.name",
    "grouped": "SELECT who, count(*) AS n, max(id) AS last FROM "
    "(SELECT id, who FROM scores ORDER BY points, id LIMIT 7 OFFSET 1) GROUP BY who",
    "beside": "(SELECT id FROM scores ORDER BY points, id LIMIT 2) UNION ALL "
    "(SELECT id FROM scores WHERE points = 1)",
    "in_first": "SELECT id FROM scores WHERE who IN "
    "(SELECT who FROM scores ORDER BY points DESC, id LIMIT 2)",
    "piped": "FROM scores |> WHERE points > 1 |> ORDER BY points, id |> LIMIT 3 |> SELECT id",
    "outer": "SELECT s.id, p.city FROM scores s LEFT JOIN people p ON s.who = p.name "
    "ORDER BY s.points DESC, s.id, p.city LIMIT 4",
    "windows": "SELECT id, place FROM (SELECT id, rank() OVER (PARTITION BY who ORDER BY id) "
    "AS place FROM scores) ORDER BY place DESC, id LIMIT 3",
}
"""Queries whose order leaves no choice, or whose rows are the same whichever is chosen."""


@pytest.mark.parametrize(
    ("seed", "name"),
    some_of(
        itertools.product([1, 2, 3, 4], QUERIES),
        [(1, "grouped"), (1, "nulls_last")],
    ),
)
def test_a_limit_follows_changes(worlds: Worlds, seed: int, name: str) -> None:
    """At each time it has what plain Spark says of all rows."""
    query, world = QUERIES[name], worlds(seed)
    kept = world.kept(f"first_{name}", query)
    assert kept.strategy == "incremental", kept.reason
    ways = world.follow(kept, partial(world.by_spark, query))
    assert "incremental" in ways


NOT_KEPT: Final = [
    # A state is above the LIMIT, which gives it no changes.
    "SELECT max(id) AS last FROM (SELECT id FROM scores ORDER BY id LIMIT 1001)",
    "SELECT id FROM scores ORDER BY id OFFSET 3",
    "SELECT id FROM scores ORDER BY id LIMIT 0",
    "SELECT id FROM scores ORDER BY id LIMIT 2000000",
    "SELECT id FROM (SELECT * FROM scores SORT BY id) LIMIT 2",
    "SELECT map(id, 1) AS m FROM scores ORDER BY id LIMIT 2",
    "SELECT id FROM scores ORDER BY make_ym_interval(points, 1), id LIMIT 2",
    "SELECT id, sum(weight) OVER (ORDER BY id) AS s FROM scores ORDER BY id LIMIT 2",
    "SELECT avg(weight) AS mean FROM scores ORDER BY mean LIMIT 2",
    "SELECT s.id, p.city FROM scores s LEFT JOIN people p ON s.who < p.name ORDER BY s.id LIMIT 2",
]


def test_a_limit_is_run_anew_where_it_has_no_order_or_its_rows_do_not_follow(
    worlds: Worlds,
) -> None:
    for query in NOT_KEPT:
        assert worlds(1).kept("anew", query).strategy == "recompute", query


TIED: Final = {
    "points": "SELECT id, points FROM scores ORDER BY points LIMIT 4",
    "zeros": "SELECT id, weight FROM scores ORDER BY weight DESC LIMIT 5",
}
"""Queries whose last column is what they order by."""


@pytest.mark.parametrize("name", some_of(TIED, {"points"}))
def test_of_rows_that_tie_any_are_shown(world: ViewWorld, name: str) -> None:
    """Rows that are there, with the same values in what the query orders by as Spark's have."""
    query = TIED[name]
    found = followed(world, f"tied_{name}", query)
    for time in LOOKS:
        shown = contents(world.bench.client, found.name, time)
        assert not shown - world.by_spark(query[: query.index(" ORDER BY")], time)
        assert keys(shown) == keys(world.by_spark(query, time))


def keys(rows: Counter[Row]) -> Counter[Any]:
    return Counter(row[-1] for row in rows.elements())


def followed(world: ViewWorld, name: str, query: str) -> SteppedView:
    """A view that has been kept through all of history."""
    found = SteppedView(world, name, query, Following())
    for lower, upper in itertools.pairwise((START, *CUTS)):
        found.step(lower, upper)
    return found


def check(found: SteppedView) -> None:
    for time in LOOKS:
        right = found.world.by_spark(found.query, time)
        assert contents(found.world.bench.client, found.name, time) == right, time


def state_of(found: SteppedView) -> str:
    (name,) = (one for one in state_shards(found.name) if found.world.bench.client.exists(one))
    return name


def ways(found: SteppedView) -> list[tuple[str, str]]:
    """How each step was taken, with the reason of those that ran the query anew."""
    told = found.world.bench.told(Stepped)
    return [(one.way, one.reason) for one in told if one.id == found.name]


def rows(numbers: range) -> list[Row]:
    return [(number, "ada", 1, 0.5, None) for number in numbers]


def alone(spark: SparkSession, folder: Path, first: list[Row], query: str) -> SteppedView:
    """A view of scores that come later; it has its first contents."""
    world = ViewWorld(spark, folder, (), ())
    scores = world.inputs["scores"] = world.bench.input("scores", SCORES)
    scores.append([(START, row, 1) for row in first], START + 1)
    found = SteppedView(world, "alone", query, Following())
    found.step(START, START + 1)
    return found


def step(found: SteppedView, come: list[Row], gone: list[Row]) -> str:
    """One more time at which scores come and go; the way of the last step, if one was taken."""
    scores, before = found.world.inputs["scores"], len(ways(found))
    time = scores.upper
    changes = [(time, row, 1) for row in come] + [(time, row, -1) for row in gone]
    scores.append(changes, time + 1)
    found.step(time, time + 1)
    right = found.world.by_spark(found.query, time)
    assert contents(found.world.bench.client, found.name, time) == right
    return " ".join(ways(found)[-1]).strip() if len(ways(found)) > before else ""


def held(found: SteppedView) -> list[int | None]:
    """The first column of the rows of a state, that of the end last."""
    client, name = found.world.bench.client, state_of(found)
    with client.reader(name, purpose="test") as reader:
        ids = reader.snapshot((client.state(name).upper.time or 1) - 1)["c1"].to_pylist()
    return sorted(ids, key=lambda number: (number is None, number))


SHORT: Final = "recompute too few of the first rows are left"


def test_a_state_is_trimmed_and_is_made_anew_where_it_runs_short(
    spark: SparkSession, tmp_path: Path
) -> None:
    """It keeps twice as many rows as are needed, and some to spare; the end is one of them."""
    query = "SELECT id FROM scores ORDER BY id LIMIT 3"
    found = alone(spark, tmp_path, rows(range(100, 200)), query)
    assert held(found) == [*range(100, 109)]
    # What is behind these moves nothing, and what is in front of them is kept.
    assert step(found, rows(range(300, 400)), rows(range(150, 160))) == "incremental"
    assert step(found, rows(range(80, 100)), rows(range(102, 104))) == "incremental"
    assert held(found) == [*range(80, 102), *range(104, 109)]
    # They are too many now: the next change leaves ten.
    assert step(found, rows(range(79, 80)), []) == "incremental"
    assert held(found) == [*range(79, 90)]
    assert step(found, [], rows(range(79, 87))) == "incremental"
    assert held(found) == [87, 88, 89]
    assert step(found, [], rows(range(88, 89))) == SHORT
    assert step(found, rows(range(70, 71)), []) == "incremental"
    assert held(found) == [70, 87, *range(89, 97)]
    # All but two go: there is nothing behind them, so that none are too few.
    assert step(found, [], [row for row in here(found) if row[0] not in {70, 87}]) == SHORT
    assert step(found, rows(range(88, 89)), []) == "incremental"
    assert held(found) == [70, 87, 88, None]
    assert step(found, rows(range(500, 520)), rows(range(70, 71))) == "incremental"
    assert held(found) == [87, 88, *range(500, 520), None]
    assert step(found, rows(range(1, 2)), []) == "incremental"
    assert held(found) == [1, 87, 88, *range(500, 508)]


def here(found: SteppedView) -> list[Row]:
    scores = found.world.inputs["scores"]
    return scores.at(scores.upper - 1)


def test_what_is_behind_the_rows_that_are_kept_moves_nothing(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Neither the state nor the output has anything to append, however much comes."""
    found = alone(spark, tmp_path, rows(range(100)), "SELECT id FROM scores ORDER BY id LIMIT 3")
    client = found.world.bench.client
    for number in (200, 300, 400):
        step(found, rows(range(number, number + 9)), rows(range(number // 10, number // 10 + 3)))
    for name in (found.name, state_of(found)):
        assert not plan_changes(client.state(name), START + 1, None)


@pytest.mark.parametrize("name", some_of(["descending", "offset", "groups"], {"offset"}))
def test_spark_moves_a_state_as_this_process_does(
    world: ViewWorld, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the rows of a state, or what comes, are not few."""
    monkeypatch.setattr(FirstRowsSteps, "_of_few", lambda *_: None)
    found = followed(world, f"spark_{name}", QUERIES[name])
    check(found)
    assert ("incremental", "") in ways(found)


def test_equal_rows_that_are_more_than_a_state_has_are_asked_for_anew(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A state with some of them could not tell which of them go."""
    query = "SELECT points FROM scores ORDER BY points LIMIT 3"
    found = alone(spark, tmp_path, rows(range(30)), query)
    assert step(found, [], rows(range(9))) == SHORT
    assert step(found, [], rows(range(9, 20))) == SHORT
    assert step(found, [], rows(range(20, 25))) == SHORT
    # Now the state has all of them.
    assert step(found, [], rows(range(25, 28))) == "incremental"


KILLS: Final = {
    "before a state is written": (StateShard, "append", False),
    "after a state is written": (StateShard, "append", True),
    "before the output is written": (ViewSink, "append", False),
    "after the output is written": (ViewSink, "append", True),
}


@pytest.mark.parametrize(
    ("kill", "name"),
    some_of(
        itertools.product(KILLS, ["ascending", "groups", "two"]),
        [("after a state is written", "groups")],
    ),
)
def test_a_step_that_is_killed_is_taken_once(
    world: ViewWorld, kill: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A state that is trimmed, or has run short, is read as of where the output ends."""
    cls, method, after = KILLS[kill]
    given: Callable[..., Any] = getattr(cls, method)
    turns = itertools.cycle([False, False, True])

    def wrapped(*args: Any, **more: Any) -> Any:
        kills = next(turns)
        if kills and not after:
            raise Killed
        outcome = given(*args, **more)
        if kills:
            raise Killed
        return outcome

    monkeypatch.setattr(cls, method, wrapped)
    found = SteppedView(
        world, f"killed_{name}_{list(KILLS).index(kill)}", QUERIES[name], Following()
    )
    for lower, upper in itertools.pairwise((START, *CUTS)):
        while True:
            try:
                found.step(lower, upper)
                break
            except Killed:
                found.start()
    check(found)


def test_a_state_with_wrong_rows_is_found_and_put_right(world: ViewWorld) -> None:
    """A key of what comes and goes is compared with what is ordered."""
    host = replace(world.bench.host, self_check_every=1)
    found = SteppedView(world, "checked", QUERIES["ascending"], Following())
    with mock.patch.object(world.bench, "host", host):
        found.start()
    for lower, upper in itertools.pairwise((START, *CUTS)):
        found.step(lower, upper)
    check(found)
    told = [one for one in world.bench.told(Measured) if one.id == "checked"]
    assert sum(one.added.get("self_checks", 0) for one in told)
    assert not [one for one in world.bench.told(Doubted) if one.id == "checked"]


@pytest.mark.parametrize("descends", [False, True])
@pytest.mark.parametrize("nulls_last", [False, True])
def test_an_order_is_the_same_forwards_backwards_and_in_pairs(
    spark: SparkSession, descends: bool, nulls_last: bool
) -> None:
    """It is written three times: to sort, to find the last row, and to compare with one."""
    order = first_rows_rule._Order(
        [
            first_rows_rule._Key("o1", descends, nulls_last),
            first_rows_rule._Key("o2", not descends, nulls_last),
        ],
        ["c1"],
    )
    values = [None, math.nan, -0.0, 0.0, 1.5]
    rows = [(n, values[n % 5], [None, 1, 2][n % 3], False) for n in range(30)]
    session = spark.newSession()
    every = session.createDataFrame(rows, "c1 BIGINT, o1 DOUBLE, o2 BIGINT, is_end BOOLEAN")
    every.createOrReplaceTempView("every")

    def sorted_by(text: str) -> list[int]:
        return [row.c1 for row in session.sql(f"SELECT c1 FROM every ORDER BY {text}").collect()]

    forwards = sorted_by(order.text())
    assert sorted_by(order.text(reverse=True)) == forwards[::-1]
    behind = session.sql(
        f"SELECT a.c1, b.c1 FROM every a CROSS JOIN every b WHERE {order.is_behind('a', 'b')}"
    )
    expected = {(two, one) for one, two in itertools.combinations(forwards, 2)}
    assert {tuple(row) for row in behind.collect()} == expected


def test_a_struct_may_be_null_whose_fields_never_are(spark: SparkSession, tmp_path: Path) -> None:
    """As those of the side of an outer join that is not there; Arrow has a cast that refuses it."""
    struct = "if(id % 2 = 0, named_struct('kind', 'x', 'i', id), NULL)"
    query = f"SELECT id, {struct} AS s FROM scores ORDER BY id LIMIT 3"
    found = alone(spark, tmp_path, rows(range(5, 20)), query)
    scores = found.world.inputs["scores"]
    for time, number in ((START + 1, 4), (START + 2, 3)):
        scores.append([(time, row, 1) for row in rows(range(number, number + 1))], time + 1)
        found.step(time, time + 1)
        right = {(n, ("x", n) if n % 2 == 0 else None): 1 for n in range(number, number + 3)}
        assert contents(found.world.bench.client, found.name, time) == right
    assert [way for way, _ in ways(found)] == ["recompute", "incremental", "incremental"]


def test_rows_may_have_many_columns(spark: SparkSession, tmp_path: Path) -> None:
    """Spark infers conditions by columns and their aliases: of forty it would make 2^40."""
    columns = ", ".join(f"id + {n} AS a{n}, points AS b{n}" for n in range(20))
    query = f"SELECT {columns} FROM scores ORDER BY a0, b1 DESC LIMIT 3"
    found = alone(spark, tmp_path, rows(range(20, 60)), query)
    assert step(found, rows(range(9, 12)), rows(range(20, 22))) == "incremental"
    assert step(found, [], rows(range(9, 10))) == "incremental"

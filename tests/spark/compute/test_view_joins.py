"""Views of random joins, of inputs that change together or apart, at every time against Spark."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pytest

from shardline.app.compute.index.arrangement import Arrangement
from shardline.app.compute.index.index import INDEXES, run_index
from shardline.app.compute.index.shard_lookups import ShardLookups, lookups_of
from shardline.app.protocol.objects import IndexDescription
from support.profiles import some_of
from support.spark.view_world import START, World
from support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

# ruff: noqa: S608 - queries are made here

PATIENCE_S: Final = 60
SEEDS: Final = range(20)
"""Some are of joins of four tables, which Spark plans for half a minute."""

SCANNED: Final = range(4, 8)
"""Seeds of joins in which nothing is found by key."""

APART: Final = {
    "orders": (START, 20),
    "people": (START,),
    "visits": (START, 20, 40),
    "numbers": (START, 40),
}
"""People do not change after the first contents, and others not in each micro-batch."""


@pytest.fixture(scope="module")
def together(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Inputs that all change at the same times."""
    made = World(spark, tmp_path_factory.mktemp("joins"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def apart(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Inputs that change at times of their own."""
    made = World(spark, tmp_path_factory.mktemp("joins"), apart=APART)
    yield made
    made.close()


@pytest.fixture
def world(request: pytest.FixtureRequest) -> World:
    """Either, as a test has it."""
    found = request.getfixturevalue(request.param)
    assert isinstance(found, World)
    return found


@pytest.mark.parametrize(
    ("world", "seed"),
    some_of(product(["together", "apart"], SEEDS), [("apart", 4)]),
    indirect=["world"],
)
def test_random_joins_are_right_at_every_time(
    world: World, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of their inputs change, and whichever of these changes can be followed.

    Rows of other sides are found by key, or by Spark in all of them, as where they are many.
    """
    answers: list[bool] = []
    given = ShardLookups.rows

    def rows(*args: Any, **more: Any) -> pa.Table | None:
        found = None if seed in SCANNED else given(*args, **more)
        answers.append(found is not None)
        return found

    monkeypatch.setattr(ShardLookups, "rows", rows)
    query = random_join(random.Random(seed))
    kept = world.kept(f"join_{seed}", query)
    ways = world.follow(kept, partial(world.by_spark, query))
    assert kept.strategy == "incremental", query
    assert "recompute" in ways  # its first contents
    assert set(answers) <= {seed not in SCANNED}


def test_the_seeds_look_rows_up(together: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A join that could look nothing up would be right, too, by reading everything."""
    query = (
        "SELECT o.id, p.city, v.day FROM orders o, people p, visits v "
        "WHERE o.who = p.name AND v.who = p.name AND o.price > v.day"
    )
    found: list[int] = []
    given = Arrangement.gather

    def gather(*args: Any, **more: Any) -> pa.Table | None:
        rows = given(*args, **more)
        assert rows is not None
        found.append(rows.num_rows)
        return rows

    monkeypatch.setattr(Arrangement, "gather", gather)
    ways = together.follow(together.kept("found", query), partial(together.by_spark, query))
    assert ways == {"recompute", "incremental"}
    assert sum(found)


def test_an_index_is_the_arrangement_of_its_key(
    together: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps look rows up in what a person has made, and arrange nothing a second time."""
    query = "SELECT o.id, p.city FROM orders o, people p WHERE o.who = p.name"
    bench = together.bench
    lookups, url = lookups_of(bench.client, bench.host.checkpoints), bench.client.location.url
    lookups.forget(["orders", "people"])
    made = [
        IndexDescription(name="orders_by_who", on="orders", key=("who",)),
        IndexDescription(name="people_by_name", on="people", key=("name",)),
    ]
    running = [run_index(bench.host, bench.incarnation(one.name, START), one) for one in made]
    wait_until(
        "both are hydrated", lambda: all(INDEXES.of(url, one.on) for one in made), PATIENCE_S
    )
    expected = partial(together.by_spark, query)
    with monkeypatch.context() as patched:
        patched.setattr(ShardLookups, "_arrange", None)  # nothing may be arranged
        ways = together.follow(together.kept("indexed", query), expected)
    assert ways == {"recompute", "incremental"}
    found = {key: one.index for key, one in lookups.arranged().items() if one.index}
    assert found == {
        ("orders", ("who",)): "orders_by_who",
        ("people", ("name",)): "people_by_name",
    }
    for one in running:
        one.stop()
    assert not [one for one in lookups.arranged().values() if one.index]
    together.follow(together.kept("unindexed", query), expected)
    assert lookups.arranged()[("people", ("name",))].index == ""


KEYS_OF_SEVERAL: Final = {
    # A key of two columns, of two inputs.
    "outer": "SELECT o.id, v.day FROM orders o JOIN people p ON o.who = p.name "
    "LEFT JOIN visits v ON v.who = p.name AND v.day = o.price",
    "exists": "SELECT o.id FROM orders o JOIN people p ON o.who = p.name WHERE EXISTS "
    "(SELECT 1 FROM visits v WHERE v.who = p.name AND v.day < o.price AND v.day = o.id)",
    "undecided": "SELECT o.price, p.city, sum(o.weight) AS kg FROM orders o "
    "JOIN people p ON o.who = p.name GROUP BY o.price, p.city",
}
"""Queries whose keys come from more than one input."""


@pytest.mark.parametrize("name", some_of(KEYS_OF_SEVERAL, {"exists"}))
def test_keys_of_several_inputs_find_all_rows(apart: World, name: str) -> None:
    """Whatever changes alone."""
    query = KEYS_OF_SEVERAL[name]
    ways = apart.follow(apart.kept(f"keys_{name}", query), partial(apart.by_spark, query))
    assert ways == {"recompute", "incremental"}


KEPT_SIDE: Final = {
    "left": "SELECT o.id, p.city FROM orders o LEFT JOIN people p ON o.who = p.name",
    "right": "SELECT o.id, p.city FROM people p RIGHT JOIN orders o ON o.who = p.name",
    "semi": "SELECT o.id FROM orders o LEFT SEMI JOIN people p ON o.who = p.name",
    "anti": "SELECT o.id FROM orders o LEFT ANTI JOIN people p ON o.who = p.name",
    "in": "SELECT id FROM orders WHERE who IN (SELECT name FROM people WHERE city = 'Rome')",
    "not_in": "SELECT id FROM orders WHERE who NOT IN (SELECT name FROM people)",
    "not_in_without_nulls": "SELECT id FROM orders WHERE who NOT IN "
    "(SELECT name FROM people WHERE name IS NOT NULL)",
    "exists": "SELECT id FROM orders o WHERE price > 9 AND EXISTS "
    "(SELECT 1 FROM people p WHERE p.name = o.who AND length(p.city) < o.price)",
    "not_exists": "SELECT id, who FROM orders o "
    "WHERE NOT EXISTS (SELECT 1 FROM people p WHERE p.name = o.who)",
    "exists_or": "SELECT id FROM orders o "
    "WHERE price < 12 OR EXISTS (SELECT 1 FROM people p WHERE p.name = o.who)",
    "in_a_select_list": "SELECT id, who IN (SELECT name FROM people) AS known, price FROM orders",
    "in_of_a_cte": "WITH c AS (SELECT name, city FROM people WHERE city IS NOT NULL) "
    "SELECT id FROM orders o WHERE who IN (SELECT name FROM c) AND NOT EXISTS "
    "(SELECT 1 FROM c WHERE c.name = o.who AND c.city = 'Oslo')",
}
"""Orders are on the side that is kept."""

OTHER_SIDE: Final = {
    "left": "SELECT o.id, p.city FROM people p LEFT JOIN orders o ON o.who = p.name",
    "anti": "SELECT p.city FROM people p LEFT ANTI JOIN orders o ON o.who = p.name",
    "full": "SELECT o.id, p.city FROM orders o FULL JOIN people p ON o.who = p.name",
    "in": "SELECT city FROM people WHERE name IN (SELECT who FROM orders)",
}
"""They are on the other one, with an equality."""

WITHOUT_A_KEY: Final = {
    "full_by_range": "SELECT o.id, p.city FROM orders o FULL JOIN people p ON o.who < p.name",
    "left_by_range": "SELECT o.id, p.city FROM people p LEFT JOIN orders o ON o.who < p.name",
    "not_in": "SELECT city FROM people WHERE name NOT IN (SELECT who FROM orders)",
    "exists_of_anything": "SELECT id FROM orders WHERE EXISTS (SELECT 1 FROM people)",
    "exists_within_a_join": "SELECT o.id FROM orders o JOIN people p ON o.who = p.name AND EXISTS "
    "(SELECT 1 FROM visits v WHERE v.who = p.name AND EXISTS "
    "(SELECT 1 FROM numbers n WHERE n.a = v.day))",
}
"""Nothing says which rows meet, or the query needs more: only filters and projections are looked
through for subqueries within subqueries that refer to an outer row."""

NESTED: Final = {
    "in_within_exists": "SELECT id FROM orders o WHERE EXISTS (SELECT 1 FROM people p WHERE "
    "p.name = o.who AND p.city IN (SELECT q.city FROM people q WHERE q.name = p.name))",
    "in_within_in": "SELECT id FROM orders o WHERE who IN (SELECT name FROM people p "
    "WHERE p.city IN (SELECT city FROM people q WHERE q.name = p.name))",
    "not_exists_within_exists": "SELECT city FROM people p WHERE EXISTS (SELECT 1 FROM orders o "
    "WHERE o.who = p.name AND NOT EXISTS (SELECT 1 FROM visits v "
    "WHERE v.who = o.who AND v.day > o.price))",
    "value_within_in": "SELECT city FROM people WHERE name IN (SELECT o.who FROM orders o "
    "WHERE o.price > (SELECT avg(p.price) FROM orders p WHERE p.who = o.who))",
    "count_within_in": "SELECT city FROM people WHERE name IN (SELECT o.who FROM orders o "
    "WHERE (SELECT count(*) FROM visits v WHERE v.who = o.who AND v.day > 3) = 0)",
    "one_row_within_exists": "SELECT city FROM people p WHERE EXISTS (SELECT 1 FROM orders o "
    "WHERE o.who = p.name AND o.price = (SELECT max(price) FROM orders))",
    "three_deep": "SELECT city FROM people WHERE name IN (SELECT who FROM orders o WHERE id IN "
    "(SELECT v.day FROM visits v WHERE EXISTS (SELECT 1 FROM numbers n WHERE n.a = v.day)))",
    "in_within_a_join": "SELECT o.id FROM orders o JOIN people p ON o.who = p.name AND EXISTS "
    "(SELECT 1 FROM visits v WHERE v.who = p.name AND v.day IN (SELECT price FROM orders))",
    "in_a_value": "SELECT id, (SELECT max(v.day) FROM visits v WHERE v.who = o.who AND v.day IN "
    "(SELECT b FROM numbers)) AS day FROM orders o",
}
"""Subqueries within subqueries."""


@pytest.mark.parametrize("name", some_of(KEPT_SIDE, {"exists_or"}))
def test_an_outer_join_follows_the_side_that_it_keeps(apart: World, name: str) -> None:
    """Where that one alone changes."""
    query = KEPT_SIDE[name]
    ways = apart.follow(apart.kept(f"kept_{name}", query), partial(apart.by_spark, query))
    assert ways == {"recompute", "incremental"}


@pytest.mark.parametrize("name", some_of(OTHER_SIDE, {"full"}))
def test_an_outer_join_follows_its_other_side_by_key(apart: World, name: str) -> None:
    """Rows come and go that have not changed: those of keys that the other side's rows have."""
    query = OTHER_SIDE[name]
    ways = apart.follow(apart.kept(f"other_{name}", query), partial(apart.by_spark, query))
    assert ways == {"recompute", "incremental"}


@pytest.mark.parametrize("name", some_of(NESTED, {"in_within_exists"}))
def test_subqueries_within_subqueries_follow_changes(apart: World, name: str) -> None:
    """Whichever of their inputs change, also of rows that no outer row meets."""
    query = NESTED[name]
    ways = apart.follow(apart.kept(f"nested_{name}", query), partial(apart.by_spark, query))
    assert ways == {"recompute", "incremental"}


@pytest.mark.parametrize("name", some_of(WITHOUT_A_KEY, {"full_by_range"}))
def test_an_outer_join_without_a_key_is_recomputed(apart: World, name: str) -> None:
    """Where the other side changes."""
    query = WITHOUT_A_KEY[name]
    kept = apart.kept(f"other_{name}", query)
    assert apart.follow(kept, partial(apart.by_spark, query)) == {"recompute"}


# -- random joins ----------------------------------------------------------------------------


class Side(NamedTuple):
    """Something to join: SQL, and expressions of two of its columns."""

    sql: str
    text: str
    number: str


def random_join(draw: random.Random) -> str:
    """A query that joins two to four inputs, or results of queries over them."""
    sides = [_side(draw, f"t{place}") for place in range(draw.choice((2, 2, 3, 3, 4)))]
    shown, sql = [sides[0]], sides[0].sql
    for side in sides[1:]:
        kind = draw.choices(
            ("JOIN", "LEFT JOIN", "LEFT SEMI JOIN", "LEFT ANTI JOIN", "RIGHT JOIN"), (6, 1, 1, 1, 1)
        )[0]
        sql += f" {kind} {side.sql} ON {_condition(draw, draw.choice(shown), side)}"
        if kind not in {"LEFT SEMI JOIN", "LEFT ANTI JOIN"}:
            shown.append(side)
    columns = [
        draw.choice((one.text, one.number, f"hash({one.text}, {one.number})")) for one in shown
    ]
    columns.append(f"concat_ws('-', {shown[-1].text}, {shown[0].number})")
    listed = ", ".join(f"{column} AS c{place}" for place, column in enumerate(columns))
    where = draw.choice(
        (
            "",
            f" WHERE {shown[0].number} > 2",
            f" WHERE {shown[-1].text} IS NOT NULL",
            f" WHERE {shown[0].text} IN (SELECT who FROM visits WHERE day > 1)",
            f" WHERE NOT EXISTS (SELECT 1 FROM numbers n WHERE n.b = {shown[-1].number})",
        )
    )
    return f"SELECT {listed} FROM {sql}{where}"


def _condition(draw: random.Random, left: Side, right: Side) -> str:
    equal = draw.choice(
        (
            f"{left.text} = {right.text}",
            f"{left.text} <=> {right.text}",
            f"{left.number} = {right.number}",
            f"upper({left.text}) = upper({right.text})",
        )
    )
    more = draw.choice(
        ("", f" AND {left.number} <= {right.number}", f" AND {right.number} % 2 = 0", " AND true")
    )
    return equal + more


def _side(draw: random.Random, alias: str) -> Side:
    plain = {
        "orders": (f"{alias}.who", f"{alias}.price"),
        "people": (f"{alias}.name", f"length({alias}.city)"),
        "visits": (f"{alias}.who", f"{alias}.day"),
        "numbers": (f"CAST({alias}.a AS STRING)", f"{alias}.b"),
    }
    table = draw.choice(list(plain))
    text, number = plain[table]
    other = draw.choice(list(plain))
    more_text, more_number = plain[other]
    forms = [
        Side(f"{table} {alias}", text, number),
        Side(
            f"(SELECT {text} AS s, {number} + 1 AS n FROM {table} {alias} WHERE {number} > 1) "
            f"{alias}",
            f"{alias}.s",
            f"{alias}.n",
        ),
        Side(
            f"(SELECT {text} AS s, {number} AS n FROM {table} {alias} "
            f"UNION ALL SELECT {more_text}, {more_number} FROM {other} {alias}) {alias}",
            f"{alias}.s",
            f"{alias}.n",
        ),
        Side(
            f"(SELECT {alias}.*, e FROM {table} {alias} "
            f"LATERAL VIEW explode(array(1, 2)) x AS e) {alias}",
            text,
            f"{alias}.e",
        ),
        Side(
            f"(VALUES ('ann', 1), ('bob', 2), (NULL, 3)) AS {alias}(s, n)",
            f"{alias}.s",
            f"{alias}.n",
        ),
    ]
    return draw.choice(forms)

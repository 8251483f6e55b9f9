"""Views whose queries speak of all columns: none of them may be the time or the diff of an update.

What each view has to hold comes from plain Spark, over the rows of a model as plain tables.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from shardline.app.sql.problems import InvalidProject
from support.profiles import one_of, some_of
from support.spark.view_world import World

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

HANDED_ON: Final = {
    "plain": "SELECT * FROM numbers",
    "qualified": "SELECT n.*, n.a + 1 AS more FROM numbers n",
    "except": "SELECT * EXCEPT (b) FROM numbers",
    "of_a_cte": "WITH d AS (SELECT * FROM numbers) SELECT x.* EXCEPT (a) FROM d x WHERE b > 0",
    "union": "SELECT * FROM numbers UNION ALL SELECT c, b, d FROM (SELECT *, 1 AS d FROM numbers)",
    "lateral_alias": "SELECT a + 1 AS x, x * 2 AS y, y - x AS z FROM numbers WHERE b > 0",
    "lambda": "SELECT transform(array(a, b), _ts -> _ts + 1) AS s FROM numbers",
    "unpivot": "SELECT * FROM numbers UNPIVOT (v FOR k IN (a, b))",
    "pipe_where": "SELECT a, b FROM numbers |> WHERE a > 0 |> ORDER BY b",
    "generator_in_a_union": "FROM numbers LATERAL VIEW explode(array(a, b)) x AS e "
    "|> UNION ALL (SELECT c, b, a, a FROM numbers)",
    "sorted_by_another": "SELECT a FROM numbers ORDER BY b",
    "alias_of_a_table": "SELECT _diff.a FROM numbers _diff",
}
"""Right over changes: the two columns are handed on, and nothing else sees them."""

WITHIN: Final = {
    "hash": "SELECT a, hash(*) AS h FROM numbers",
    "xxhash64_qualified": "SELECT xxhash64(n.*) AS h FROM numbers n",
    "beside_a_star": "SELECT *, xxhash64(*) AS h FROM numbers",
    "to_json": "SELECT to_json(struct(*)) AS j FROM orders",
    "to_csv": "SELECT to_csv(struct(p.*)) AS line FROM people p",
    "struct_as_text": "SELECT CAST(struct(*) AS STRING) AS s FROM people",
    "greatest": "SELECT greatest(*) AS g FROM numbers",
    "least": "SELECT least(*) AS l FROM numbers",
    "coalesce": "SELECT coalesce(*) AS c FROM numbers",
    "array": "SELECT array(*) AS s FROM numbers",
    "size": "SELECT size(array(*)) AS n FROM numbers",
    "struct": "SELECT struct(x.*) AS s FROM numbers x",
    "struct_and_back": "SELECT s.* FROM (SELECT struct(*) AS s FROM numbers) x",
    "a_field_of_it": "SELECT s.b FROM (SELECT struct(x.*) AS s FROM numbers x) y",
    "typeof": "SELECT typeof(struct(*)) AS t FROM numbers",
    "in_list": "SELECT a, 1L IN (*) AS there FROM numbers",
    "where_in_list": "SELECT a FROM numbers WHERE 1L IN (*)",
    "where_hash": "SELECT a, b FROM numbers n WHERE pmod(hash(n.*), 2) = 0",
    "where_size": "SELECT a FROM numbers WHERE size(array(*)) = 3",
    "case": "SELECT CASE WHEN pmod(hash(*), 2) = 0 THEN a END AS k FROM numbers",
    "except_within": "SELECT hash(* EXCEPT (a)) AS h FROM numbers",
    "cte": "WITH d AS (SELECT * FROM numbers) SELECT hash(*) AS h FROM d",
    "within_a_cte": "WITH d AS (SELECT a, xxhash64(*) AS h FROM numbers) SELECT h FROM d",
    "subquery": "SELECT h + 1 AS i FROM (SELECT a, xxhash64(*) AS h FROM numbers) x",
    "explode": "SELECT explode(array(*)) AS v FROM numbers",
    "inline": "SELECT inline(array(struct(*))) FROM numbers",
    "one_of_a_union": "SELECT xxhash64(*) AS h FROM numbers UNION ALL SELECT b FROM numbers",
    "the_other_of_a_union": "SELECT b FROM numbers UNION ALL SELECT greatest(*) FROM numbers",
    "filter_function": "SELECT size(filter(array(*), x -> x = 1)) AS n FROM numbers",
    "pipe_where": "SELECT a, b FROM numbers |> WHERE 1L IN (*)",
    "pipe_extend": "SELECT a, b FROM numbers |> EXTEND xxhash64(*) AS h",
    "pipe_alias": "SELECT a, b FROM numbers |> AS x |> WHERE pmod(hash(x.*), 2) = 0",
    "pipe_union": "SELECT a FROM numbers |> UNION ALL (SELECT greatest(*) FROM numbers)",
    "hidden_name_within": "SELECT y FROM (SELECT a AS _ts, _ts + 1 AS y FROM numbers) x",
    "hidden_name_above": "SELECT _diff + 1 AS y FROM (SELECT a AS _diff FROM numbers) x",
    "hidden_name_filtered": "SELECT y FROM (SELECT a AS _DIFF, b AS y FROM numbers) WHERE _diff = 1"
    " OR y = 1",
    "hidden_name_of_a_generator": (
        "SELECT t._ts + 1 AS y FROM numbers LATERAL VIEW explode(array(a, b)) t AS _ts"
    ),
    "hidden_name_of_a_cte": "WITH d(_ts, _diff) AS (SELECT a, b FROM numbers) "
    "SELECT _ts + _diff AS y FROM d",
    "hidden_name_renamed": "SELECT x._ts AS y FROM numbers AS x(_ts, b, _diff)",
}
"""Right over changes: no expression, whatever it is called with, sees the two columns."""

JOINED: Final = {
    "natural_join": "SELECT * FROM people NATURAL JOIN (SELECT who AS name, day FROM visits)",
    "natural_join_of_hashes": (
        "SELECT hash(*) AS h FROM people NATURAL JOIN (SELECT who AS name, day FROM visits)"
    ),
    "using": "SELECT *, hash(*) AS h FROM orders JOIN visits USING (who)",
}
"""Right over changes and what they are joined with."""

ANEW: Final = {
    "aggregate": "SELECT count(*) AS n, count(DISTINCT *) AS d, max(struct(*)) AS m FROM numbers",
}
"""Kept by running the query anew."""


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Inputs with a history, which all cases share."""
    made = World(spark, tmp_path_factory.mktemp("stars"), times=(10, 20))
    yield made
    made.close()


def assert_linear(world: World, name: str, query: str) -> None:
    """Check that a view takes changes alone, by the project's choice, and holds what it has to."""
    kept = world.kept(name, query)
    assert world.follow(kept, partial(world.by_spark, query)) == {"recompute", "linear"}
    assert (kept.strategy, kept.reason) == ("linear", "")


@pytest.mark.parametrize("name", some_of(HANDED_ON, {"plain", "generator_in_a_union"}))
def test_what_no_expression_sees_is_handed_on(world: World, name: str) -> None:
    """Stars of a select list, and names that only look like those of the hidden columns."""
    assert_linear(world, f"handed_on_{name}", HANDED_ON[name])


@pytest.mark.parametrize(
    "name", some_of(WITHIN, {"hash", "where_in_list", "explode", "pipe_union"})
)
def test_an_expression_over_all_columns_sees_those_of_the_query(world: World, name: str) -> None:
    """Over changes as well: a plan that was analysed without the two columns stays what it is."""
    assert_linear(world, f"within_{name}", WITHIN[name])


@pytest.mark.parametrize("name", some_of(JOINED, {"using", "natural_join_of_hashes"}))
def test_what_a_join_returns_has_no_hidden_columns(world: World, name: str) -> None:
    """Of neither side: columns of one name would be joined by."""
    query = JOINED[name]
    kept = world.kept(f"joined_{name}", query)
    ways = world.follow(kept, partial(world.by_spark, query))
    assert ways == {"recompute", "incremental"}
    assert kept.strategy == "incremental"


@pytest.mark.parametrize("name", ANEW)
def test_what_needs_more_than_changes_is_recomputed(world: World, name: str) -> None:
    """Its contents are those of the query, and neither the check nor the run takes changes."""
    query = ANEW[name]
    kept = world.kept(f"anew_{name}", query)
    assert world.follow(kept, partial(world.by_spark, query)) == {"recompute"}
    assert kept.strategy == "recompute"
    assert kept.reason


@pytest.mark.parametrize(
    "query",
    [
        "SELECT a, b FROM numbers UNION ALL BY NAME SELECT b, a FROM numbers",
        "SELECT a, v FROM numbers LATERAL VIEW explode(array(*)) t AS v",
        "SELECT a FROM numbers ORDER BY hash(*)",
        "SELECT a FROM numbers DISTRIBUTE BY hash(*)",
        "SELECT a, b FROM numbers |> SET b = xxhash64(*)",
    ],
)
def test_what_cannot_be_said_is_refused(world: World, query: str) -> None:
    """Once it can be said, it belongs among the queries above."""
    with pytest.raises(InvalidProject, match=r"SYNTAX|INVALID_USAGE_OF_STAR"):
        world.kept("refused", query)


SEEDS: Final = range(8)


@pytest.mark.parametrize("seed", one_of(8, SEEDS))
def test_random_queries_with_stars_are_right(world: World, seed: int) -> None:
    """Whatever a random query does with all columns, its view holds what plain Spark says."""
    query = random_query(random.Random(seed))
    kept = world.kept(f"random_{seed}", query)
    ways = world.follow(kept, partial(world.by_spark, query))
    assert ways == {"recompute", kept.strategy}


# ruff: noqa: S608 - queries are made here


def random_query(draw: random.Random, depth: int = 2) -> str:
    """A query with three columns `a`, `b` and `c` of BIGINT, of rows one by one."""
    source, alias = "numbers", draw.choice(["n", "x", "_ts"])
    if depth and draw.random() < 0.5:
        source = f"({random_query(draw, depth - 1)})"
    star = draw.choice(["*", f"{alias}.*"])
    values = [
        f"xxhash64({star})",
        f"greatest({star})",
        f"coalesce({star})",
        f"size(array({star})) + 0L",
        f"CAST({draw.choice([1, 20])}L IN ({star}) AS BIGINT)",
        f"length(to_json(struct({star}))) + 0L",
        f"{alias}.a + 1",
        "b - c",
        "7L",
    ]
    conditions = [
        f"{draw.choice([1, 10])}L IN ({star})",
        f"pmod(hash({star}), 3) <> 0",
        f"{alias}.b IS NOT NULL",
        "a > 0 OR c > 0",
    ]
    columns = draw.choice(
        [
            f"{star} EXCEPT (a), {draw.choice(values)} AS a",
            f"{draw.choice(values)} AS a, b, c",
            f"a, {draw.choice(values)} AS b, {draw.choice(values)} AS c",
            star,
        ]
    )
    query = f"SELECT {columns} FROM {source} AS {alias}"
    if draw.random() < 0.5:
        query += f" WHERE {draw.choice(conditions)}"
    query = f"SELECT a, b, c FROM ({query}) AS y"  # in this order wherever the star put them
    if depth and draw.random() < 0.3:
        query += f" UNION ALL {random_query(draw, 0)}"
    return query

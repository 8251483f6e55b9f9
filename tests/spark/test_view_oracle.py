"""Views of every kind, at every time, against DuckDB over the rows of a model."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, NamedTuple

import duckdb
import pyarrow as pa
import pytest
from msgspec.structs import replace

from app.compute.view import View
from app.project.project import Project
from app.protocol.objects import ViewDescription
from app.reports import Measured
from datasource.native.interval import Interval
from support.views import Bench, Input, Row, comparable, contents, no_fence

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

START = 10
TIMES = (10, 20, 40)
"""When inputs change."""

LATE = 20
"""At this time, and a little after it, in one part."""

END = 50

ORDERS = pa.schema(
    [
        ("id", pa.int64()),
        ("who", pa.string()),
        ("price", pa.int32()),
        ("weight", pa.float64()),
        ("cost", pa.decimal128(10, 2)),
        ("tags", pa.list_(pa.string())),
    ]
)
PEOPLE = pa.schema([("name", pa.string()), ("city", pa.string())])
VISITS = pa.schema([("who", pa.string()), ("day", pa.int32())])


class Case(NamedTuple):
    query: str
    duck: str = ""
    how: str = "recompute"


LINEAR = "linear"

CASES = {
    "filter": Case("SELECT id, price * 2 AS twice FROM orders WHERE price > 10", how=LINEAR),
    "star": Case("SELECT * FROM orders WHERE who <> 'bob' OR who IS NULL", how=LINEAR),
    "star_except": Case(
        "SELECT o.* EXCEPT (tags, weight), upper(who) AS big FROM orders o",
        "SELECT id, who, price, cost, upper(who) FROM orders",
        LINEAR,
    ),
    "cte": Case(
        "WITH dear AS (SELECT who, price FROM orders WHERE price >= 20) "
        "SELECT who, price + 1 AS p FROM (SELECT * FROM dear) d",
        how=LINEAR,
    ),
    "union_all": Case(
        "SELECT who FROM orders UNION ALL SELECT name FROM people WHERE city IS NOT NULL",
        how=LINEAR,
    ),
    "explode": Case(
        "SELECT id, tag FROM orders LATERAL VIEW explode(tags) t AS tag",
        "SELECT id, unnest(tags) FROM orders",
        LINEAR,
    ),
    "case_null_nan": Case(
        "SELECT id, coalesce(weight, -1D) AS w, CASE WHEN price > 15 THEN 'dear' END AS k "
        "FROM orders",
        "SELECT id, coalesce(weight, -1), CASE WHEN price > 15 THEN 'dear' END FROM orders",
        LINEAR,
    ),
    "distinct_from": Case(
        "SELECT id, who IS DISTINCT FROM 'bob' AS other FROM orders "
        "WHERE price IS NOT DISTINCT FROM 10 OR id > 1",
        how=LINEAR,
    ),
    "from_first": Case("FROM orders SELECT id, price WHERE price > 10"),
    "table": Case("TABLE people", "SELECT * FROM people"),
    "pipe": Case(
        "FROM orders |> WHERE price > 10 |> SELECT id", "SELECT id FROM orders WHERE price > 10"
    ),
    "pipe_behind_select": Case(
        "SELECT id, price FROM orders |> WHERE price > 10",
        "SELECT id, price FROM orders WHERE price > 10",
        LINEAR,
    ),
    "sorted_spread_hinted": Case(
        "SELECT /*+ REPARTITION(2) */ id FROM (SELECT id FROM orders DISTRIBUTE BY id) ORDER BY id",
        "SELECT id FROM orders",
        LINEAR,
    ),
    "unpivot": Case(
        "SELECT * FROM (SELECT id, price, price + 1 AS more FROM orders) "
        "UNPIVOT (v FOR k IN (price, more))",
        how=LINEAR,
    ),
    "hop": Case(
        "SELECT id, unix_seconds(window(timestamp_seconds(price), '10 seconds', '5 seconds').start)"
        " AS s FROM orders",
        "SELECT id, price // 5 * 5 - d FROM orders, (VALUES (0), (5)) AS w(d)",
        LINEAR,
    ),
    "tumble": Case(
        "SELECT unix_seconds(window.start) AS s, count(*) AS n FROM orders "
        "GROUP BY window(timestamp_seconds(price), '10 seconds')",
        "SELECT price // 10 * 10, count(*) FROM orders GROUP BY 1",
    ),
    "array_of_no_nulls": Case(
        "SELECT id, array(id, 1L) AS a, named_struct('p', price) AS s FROM orders",
        "SELECT id, [id, 1], {'p': price} FROM orders",
        LINEAR,
    ),
    "select_as_name": Case("SELECT id AS select FROM orders", "SELECT id FROM orders", LINEAR),
    "inner_join": Case("SELECT o.id, p.city FROM orders o JOIN people p ON o.who = p.name"),
    "left_join": Case("SELECT o.id, p.city FROM orders o LEFT JOIN people p ON o.who = p.name"),
    "full_join": Case(
        "SELECT o.id, p.name, p.city FROM orders o FULL OUTER JOIN people p ON o.who = p.name"
    ),
    "semi_join": Case(
        "SELECT id FROM orders o LEFT SEMI JOIN people p ON o.who = p.name",
        "SELECT id FROM orders o WHERE who IN (SELECT name FROM people)",
    ),
    "anti_join": Case(
        "SELECT id FROM orders o LEFT ANTI JOIN people p ON o.who = p.name",
        "SELECT id FROM orders o WHERE NOT EXISTS (SELECT 1 FROM people p WHERE p.name = o.who)",
    ),
    "self_join": Case(
        "SELECT a.id AS one, b.id AS two FROM orders a JOIN orders b "
        "ON a.who = b.who AND a.id < b.id"
    ),
    "three_way": Case(
        "SELECT p.city, v.day, count(*) AS n FROM orders o JOIN people p ON o.who = p.name "
        "JOIN visits v ON v.who = p.name GROUP BY p.city, v.day"
    ),
    "aggregates": Case(
        "SELECT who, count(*) AS n, count(weight) AS w, sum(price) AS s, min(price) AS lo, "
        "max(cost) AS hi, avg(price) AS mean FROM orders GROUP BY who"
    ),
    "global_count": Case("SELECT count(*) AS n, sum(cost) AS c FROM orders"),
    "having": Case("SELECT who, count(*) AS n FROM orders GROUP BY who HAVING count(*) > 1"),
    "distinct": Case("SELECT DISTINCT who, price % 2 AS odd FROM orders"),
    "count_distinct": Case("SELECT count(DISTINCT who) AS n, max(weight) AS w FROM orders"),
    "window": Case(
        "SELECT id, who, row_number() OVER (PARTITION BY who ORDER BY price, id) AS place, "
        "sum(price) OVER (PARTITION BY who) AS total FROM orders"
    ),
    "lag": Case("SELECT id, lag(price) OVER (ORDER BY id, price) AS before FROM orders"),
    "union": Case("SELECT who FROM orders UNION SELECT name FROM people"),
    "except": Case("SELECT who FROM orders EXCEPT SELECT name FROM people"),
    "except_all": Case("SELECT who FROM orders EXCEPT ALL SELECT name FROM people"),
    "intersect": Case("SELECT who FROM orders INTERSECT SELECT name FROM people"),
    "scalar_subquery": Case("SELECT id FROM orders WHERE price > (SELECT avg(price) FROM orders)"),
    "correlated": Case(
        "SELECT id, (SELECT count(*) FROM visits v WHERE v.who = o.who) AS n FROM orders o"
    ),
    "exists": Case(
        "SELECT id FROM orders o WHERE EXISTS "
        "(SELECT 1 FROM visits v WHERE v.who = o.who AND v.day > 2)"
    ),
    "not_in": Case(
        "SELECT id FROM orders WHERE who IS NOT NULL AND "
        "who NOT IN (SELECT name FROM people WHERE name IS NOT NULL)"
    ),
    "top_k": Case("SELECT id, price FROM orders ORDER BY price DESC, id LIMIT 3"),
    "rollup": Case(
        "SELECT who, price % 2 AS odd, count(*) AS n FROM orders GROUP BY ROLLUP (who, price % 2)"
    ),
    "cube": Case("SELECT p.city, p.name, count(*) AS n FROM people p GROUP BY CUBE (city, name)"),
    "nested": Case(
        "SELECT who, named_struct('id', id, 'tags', tags) AS s, weight AS w, "
        "array(weight, 0D) AS ws FROM orders GROUP BY ALL",
        "SELECT DISTINCT who, {'id': id, 'tags': tags}, weight, [weight, 0] FROM orders",
    ),
}


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Inputs with a history, which all cases share."""
    folder = tmp_path_factory.mktemp("oracle")
    bench = Bench(spark, str(folder / "lake"), folder / "checkpoints")
    made = World(bench)
    yield made
    made.close()


class World:
    """Three inputs that were updated at random, and a session to run views in."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.session = bench.spark.newSession()
        draw = random.Random(7)
        makers: dict[str, Callable[[random.Random], Row]] = {
            "orders": _order,
            "people": lambda draw: (_who(draw), draw.choice([None, "Rome", "Oslo"])),
            "visits": lambda draw: (_who(draw), draw.randrange(5)),
        }
        schemas = {"orders": ORDERS, "people": PEOPLE, "visits": VISITS}
        self._ducks: dict[int, duckdb.DuckDBPyConnection] = {}
        self.inputs: dict[str, Input] = {}
        for name, make in makers.items():
            self.inputs[name] = found = bench.input(name, schemas[name])
            for time in TIMES:
                rows = [(make(draw), 1) for _ in range(6 if time == START else 2)]
                there = found.at(time - 1)
                gone = [(row, -1) for row in draw.sample(there, min(2, len(there)))]
                late = [0, 3] if time == LATE else [0]
                changes = [(time + draw.choice(late), row, d) for row, d in rows + gone]
                found.append(changes, time + 5)
            found.idle(END)

    def kept(self, name: str, query: str) -> ViewDescription:
        """The view as a project that is checked keeps it."""
        project = Project().view(name, query)
        for source, found in self.inputs.items():
            project.source(source, "csv", options={"path": "later"}, schema=_ddl(found))
        kept = project.check(self.bench.spark).descriptions[name]
        assert isinstance(kept, ViewDescription)
        return kept

    def expected(self, query: str, time: int) -> Counter[Row]:
        """What DuckDB makes of the model's rows at `time`."""
        if time not in self._ducks:
            self._ducks[time] = self._duck(time)
        return Counter(comparable(row) for row in self._ducks[time].execute(query).fetchall())

    def close(self) -> None:
        """End DuckDB's part."""
        for connection in self._ducks.values():
            connection.close()

    def _duck(self, time: int) -> duckdb.DuckDBPyConnection:
        connection = duckdb.connect()
        for name, found in self.inputs.items():
            rows = found.at(time)
            table = pa.Table.from_pylist(
                [dict(zip(found.schema.names, row, strict=True)) for row in rows], found.schema
            )
            connection.register(f"{name}_rows", table)
            connection.table(f"{name}_rows").create(name)
        return connection


def _ddl(found: Input) -> str:
    from pyspark.sql.pandas.types import from_arrow_schema

    types = from_arrow_schema(found.schema)
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in types)


def _who(draw: random.Random) -> str | None:
    return draw.choice([None, "ada", "bob", "cyd", "dan"])


def _order(draw: random.Random) -> Row:
    return (
        draw.randrange(6),
        _who(draw),
        draw.randrange(5, 30),
        draw.choice([None, math.nan, 0.25, 1.5, -2.0]),
        draw.choice([None, Decimal("1.10"), Decimal("20.05")]),
        draw.choice([None, (), ("x",), ("x", "y", "x")]),
    )


@pytest.mark.parametrize("name", CASES)
def test_contents_at_every_time(world: World, name: str) -> None:
    """Its view holds at each time what DuckDB says, and is kept as its project said."""
    case = CASES[name]
    bench, kept = world.bench, world.kept(f"v_{name}", case.query)
    name = kept.name
    # Whatever is said, the change alone is tried: where that is right, it is what is said.
    tried = replace(kept, strategy="linear")
    run = View(bench.host, bench.incarnation(name, START), tried, no_fence)
    cuts = [START + 1, 22, END]
    run.advance(world.session, Interval(START, cuts[0], starts=True))
    for lower, upper in itertools.pairwise(cuts):
        run.advance(world.session, Interval(lower, upper))

    for time in sorted({t + d for t in TIMES for d in (0, 2, 3)} | {END - 1}):
        found = contents(bench.client, name, time)
        assert found == world.expected(case.duck or case.query, time), time
    steps = [o for o in bench.seen if isinstance(o, Measured) and o.id == name]
    linear = [o for o in steps if "evaluations_linear" in o.added]
    assert bool(linear) == (case.how == LINEAR)
    assert kept.strategy == case.how
    assert (kept.reason == "") == (case.how == LINEAR)
    assert not world.session.catalog.listTables()

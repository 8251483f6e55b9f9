"""A whole project in one application: run, asked, changed, restarted, taken over.

What objects hold is compared with DuckDB over the files that were put in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import duckdb
import pyarrow as pa
import pytest

from app.application import Application
from app.config import RuntimeSettings
from app.project.project import Project
from app.protocol.compute import SubscribeResponse
from datasource.client import ShardClient
from datasource.errors import Fenced, InvalidUsage
from support.checkout import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PATIENCE_S = 120

SQL = """
CREATE SOURCE orders USING csv OPTIONS (path '${in}/orders', header 'true')
  SCHEMA (id INT, customer INT, price INT);
CREATE SOURCE customers USING csv OPTIONS (path '${in}/customers', header 'true')
  SCHEMA (customer INT, name STRING) ENVELOPE UPSERT KEY (customer);
CREATE MATERIALIZED VIEW spent AS
  SELECT c.name, count(*) AS orders, sum(o.price) AS total
  FROM orders o JOIN customers c ON o.customer = c.customer GROUP BY c.name;
CREATE MATERIALIZED VIEW large AS SELECT id, price FROM orders WHERE price > 50;
CREATE MATERIALIZED VIEW best AS
  SELECT name FROM spent WHERE total = (SELECT max(total) FROM spent);
CREATE INDEX spent_by_name ON spent (name);
CREATE SINK large_out FROM large USING parquet OPTIONS (path '${in}/out');
"""

QUERIES = {
    "spent": """SELECT c.name, count(*)::BIGINT, sum(o.price)::BIGINT
                FROM orders o JOIN customers c ON o.customer = c.customer GROUP BY c.name""",
    "large": "SELECT id::INT, price::INT FROM orders WHERE price > 50",
    "best": """WITH s AS (SELECT c.name, sum(o.price) AS total FROM orders o
                          JOIN customers c ON o.customer = c.customer GROUP BY c.name)
               SELECT name FROM s WHERE total = (SELECT max(total) FROM s)""",
}


class Place:
    """Where one test has its files and its shards."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("orders", "customers"):
            (folder / name).mkdir()
        self.put("customers", "a", "customer,name\n1,ann\n2,bob\n")
        self.put("orders", "a", "id,customer,price\n1,1,10\n2,2,60\n3,1,70\n")

    def put(self, source: str, name: str, text: str) -> None:
        """Let a file arrive whole."""
        fresh = self.folder / f"{source}-{name}.new"
        fresh.write_text(text)
        fresh.rename(self.folder / source / f"{name}.csv")

    def expected(self, view: str) -> list[tuple[object, ...]]:
        """What DuckDB says of the files."""
        with duckdb.connect() as duck:
            duck.read_csv(str(self.folder / "orders" / "*.csv")).create("orders")
            # The newest file of a customer counts; later files sort behind earlier ones.
            duck.read_csv(str(self.folder / "customers" / "*.csv"), filename=True).create("named")
            duck.execute(
                "CREATE TABLE customers AS "
                "SELECT customer, arg_max(name, filename) AS name FROM named GROUP BY customer"
            )
            return sorted(duck.sql(QUERIES[view]).fetchall())

    def client(self) -> ShardClient:
        return ShardClient.open(str(self.folder / "shards"))

    def project(self, text: str = SQL) -> Project:
        return Project.parse({"all.sql": text.replace("${in}", str(self.folder))})


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@contextmanager
def running(spark: SparkSession, place: Place, text: str = SQL) -> Iterator[Application]:
    """An application with the project applied."""
    settings = RuntimeSettings(interval_ms=500)
    data = place.folder / "data"
    with Application(spark, place.client(), settings, data=data) as application:
        application.apply(place.project(text).check(spark))
        yield application


def rows(table: pa.Table) -> list[tuple[object, ...]]:
    return sorted(tuple(row.values()) for row in table.to_pylist())


def settled(application: Application, place: Place, *views: str) -> None:
    """Wait until views hold what the files say."""
    for view in views or QUERIES:
        expected = place.expected(view)

        def agrees(view: str = view, expected: list[tuple[object, ...]] = expected) -> bool:
            state = application.running().get(view)
            reader = place.client()
            if state is None or not reader.exists(view) or not reader.state(view).upper.time:
                return False
            with reader.reader(view) as opened:
                return rows(opened.snapshot()) == expected

        wait_until(f"{view} is {expected}", agrees, PATIENCE_S)


def eventually(what: str, happened: Callable[[], bool]) -> None:
    wait_until(what, happened, PATIENCE_S)


def ids(application: Application) -> dict[str, tuple[str, int]]:
    objects = application.runtime.lane.state.objects
    return {name: (known.global_id, known.dataflow) for name, known in objects.items()}


def test_a_project_follows_its_files(spark: SparkSession, place: Place) -> None:
    """Views, a view of a view, index and sink hold what DuckDB says, before and after changes.

    And a start over the same location goes on: same ids, nothing twice.
    """
    with running(spark, place) as application:
        settled(application, place)
        place.put("orders", "b", "id,customer,price\n4,2,500\n")
        place.put("customers", "b", "customer,name\n1,anna\n")
        settled(application, place)
        asked = application.sql("SELECT name, orders, total FROM spent")
        assert rows(asked) == place.expected("spent"), "a read sees what was written before it"
        by_key = application.sql("SELECT total FROM spent WHERE name = 'bob'")
        assert rows(by_key) == [(560,)]
        known = application.sql("SELECT object_id, hydrated FROM introspection.hydration_statuses")
        assert {"orders", "customers", "spent", "large", "best"} <= {row[0] for row in rows(known)}
        first = ids(application)
    place.put("orders", "c", "id,customer,price\n5,1,90\n")
    with running(spark, place) as application:
        settled(application, place)
        assert ids(application) == first
        assert application.plan(place.project().check(spark)).steps == ()

        def written() -> bool:
            out = place.folder / "out"
            some = any(out.glob("_upper=*/*.parquet"))
            found = spark.read.parquet(str(out)).count() if some else 0
            return found == len(place.expected("large"))

        eventually("the sink has written every row once", written)


def test_a_subscription_adds_up_to_the_contents(spark: SparkSession, place: Place) -> None:
    """From the snapshot on, every change once; also while nothing happens the time goes on."""
    with running(spark, place) as application:
        settled(application, place)
        subscription = application.subscribe("SUBSCRIBE large")
        place.put("orders", "b", "id,customer,price\n4,2,500\n")
        from app.compute.subscribe import rows_of

        total: dict[tuple[int, int], int] = {}
        reached = 0
        for batch in subscription:
            assert isinstance(batch, SubscribeResponse), batch
            assert not batch.error, batch
            assert batch.lower >= reached
            reached = batch.upper or reached
            for row in rows_of(batch).to_pylist():
                key = (row["id"], row["price"])
                total[key] = total.get(key, 0) + row["_diff"]
            if sorted(key for key, n in total.items() if n) == place.expected("large"):
                break
        subscription.close()
        assert all(n in (0, 1) for n in total.values()), total


def test_a_changed_definition_takes_the_old_ones_place(spark: SparkSession, place: Place) -> None:
    """Contents become those of the new one; what was left out stops, and its shard stays."""
    with running(spark, place) as application:
        settled(application, place)
        before = ids(application)
        changed = SQL.replace("price > 50;", "price > 65;").replace(
            "CREATE INDEX spent_by_name ON spent (name);", ""
        )
        application.apply(place.project(changed).check(spark))
        eventually(
            "large holds the new rows",
            lambda: rows(application.sql("SELECT id, price FROM large")) == [(3, 70)],
        )
        eventually("the index is gone", lambda: "spent_by_name" not in application.running())
        after = ids(application)
        assert after["spent"] == before["spent"], "what did not change runs on untouched"
        assert after["large"][0] == before["large"][0]
        assert after["large"][1] != before["large"][1]
        with pytest.raises(InvalidUsage, match=r"large_out.*reads 'large'"):
            application.drop(["large"])


def test_the_location_belongs_to_one_runtime(spark: SparkSession, place: Place) -> None:
    """A second is told who holds it; with take-over the first stops, and the second goes on."""
    with running(spark, place) as first:
        settled(first, place)
        with pytest.raises(InvalidUsage, match="LOCATION_HELD"), running(spark, place):
            pass
        data = place.folder / "data 2"
        settings = RuntimeSettings(interval_ms=500)
        with Application(spark, place.client(), settings, data=data, take_over=True) as second:
            second.apply(place.project().check(spark))
            eventually("the first is fenced", lambda: isinstance(first.lost, Fenced))
            place.put("orders", "b", "id,customer,price\n4,2,500\n")
            settled(second, place)
            assert ids(second) == ids(first)


def test_a_follower_hydrates_and_is_promoted(spark: SparkSession, place: Place) -> None:
    """It writes nothing before it is allowed to; then the other one ends, and nothing is twice."""
    with running(spark, place) as first:
        settled(first, place)
        data = place.folder / "data 2"
        settings = RuntimeSettings(interval_ms=500)
        with Application(spark, place.client(), settings, data=data, read_only=True) as second:
            second.apply(place.project().check(spark))
            writers = place.client().state("large").writers
            place.put("orders", "b", "id,customer,price\n4,2,500\n")
            settled(first, place)
            assert first.lost is None
            assert place.client().state("large").writers.keys() == writers.keys()
            second.allow_writes()
            eventually("the first is fenced", lambda: isinstance(first.lost, Fenced))
            place.put("orders", "c", "id,customer,price\n5,1,90\n")
            settled(second, place)

"""A small project over files, and what DuckDB says of it."""

from __future__ import annotations

from contextlib import closing
from functools import cached_property
from pathlib import Path

import duckdb
import pyarrow as pa

from shardline.app.execution.shard_follower import ShardFollower
from shardline.app.project.project import Project
from shardline.datasource.client import ShardClient

__all__ = ["QUERIES", "SQL", "Place", "rows"]

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
    """Where one test has its files and its shards.

    Args:
        made: Whether somebody else has put the first files there.
    """

    def __init__(self, folder: Path, *, made: bool = False) -> None:
        self.folder = folder
        self._expected: dict[str, list[tuple[object, ...]]] = {}
        if made:
            return
        for name in ("orders", "customers"):
            (folder / name).mkdir()
        self.put("customers", "a", "customer,name\n1,ann\n2,bob\n")
        self.put("orders", "a", "id,customer,price\n1,1,10\n2,2,60\n3,1,70\n")

    def put(self, source: str, name: str, text: str) -> None:
        """Let a file arrive whole."""
        self._expected.clear()
        fresh = self.folder / f"{source}-{name}.new"
        fresh.write_text(text)
        fresh.rename(self.folder / source / f"{name}.csv")

    def expected(self, view: str) -> list[tuple[object, ...]]:
        """What DuckDB says of the files."""
        if view not in self._expected:
            self._expected[view] = self._asked(view)
        return self._expected[view]

    def _asked(self, view: str) -> list[tuple[object, ...]]:
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
        """A client of its own of the location."""
        return ShardClient.open(str(self.folder / "shards"))

    @cached_property
    def _reading(self) -> ShardClient:
        return self.client()

    def contents(self, view: str) -> list[tuple[object, ...]] | None:
        """What a view's shard holds; None if it has nothing yet."""
        client = self._reading
        if not client.exists(view) or not client.state(view).upper.time:
            return None
        with client.reader(view) as reader:
            return rows(reader.snapshot())

    def agrees(self) -> bool:
        """Whether every view holds what DuckDB says of the files."""
        return all(self.contents(view) == self.expected(view) for view in QUERIES)

    def agrees_at_every_time(self) -> list[int]:
        """The times at which sources changed, after each view was compared with DuckDB there.

        Also right before each of them. Nothing is ever there twice, and what was, stays.
        """
        client = self._reading
        views = [client.state(view) for view in QUERIES]
        since = max(state.since.time or 0 for state in views)
        end = min(state.upper.time or 0 for state in views)
        times = [time for time in _times(client, ("orders", "customers")) if since < time < end]
        before: list[object] = []
        for time in sorted({*times, *(time - 1 for time in times if time - 1 >= since)}):
            orders = _at(client, "orders", time)
            ids = orders.column("id").to_pylist()
            assert len(set(ids)) == len(ids), f"an order twice at {time}: {sorted(ids)}"
            assert set(before) <= set(ids), f"an order lost at {time}"
            before = ids
            with duckdb.connect() as duck:
                duck.register("orders", orders)
                duck.register("customers", _at(client, "customers", time))
                for view, query in QUERIES.items():
                    wanted = sorted(duck.sql(query).fetchall())
                    assert rows(_at(client, view, time)) == wanted, (view, time)
        return times

    def project(self, text: str = SQL) -> Project:
        """The project over these files."""
        return Project.parse({"all.sql": text.replace("${in}", str(self.folder))})


def _at(client: ShardClient, name: str, time: int) -> pa.Table:
    with client.reader(name, since=time) as reader:
        return reader.snapshot(time)


def _times(client: ShardClient, names: tuple[str, ...]) -> list[int]:
    """The times at which any of these has an update."""
    found: set[int] = set()
    for name in names:
        with closing(ShardFollower.open(client, name, since=None, purpose="test")) as shard:
            state = shard.look()
            for batch in shard.changes(state, (state.since.time or 0) + 1, state.upper.time):
                found.update(batch.column("_ts").to_pylist())
    return sorted(found)


def rows(table: pa.Table) -> list[tuple[object, ...]]:
    """The rows of a table, sorted."""
    return sorted(tuple(row.values()) for row in table.to_pylist())

"""Keeps the view in DuckDB, by running its query anew after each change.

    python -m bench.engine_jobs.duckdb_job FOLDER WARM CONTENTS

All tables are in memory. DuckDB takes as many threads as there are cores.
"""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from bench.engine_jobs.measured_view import (
    measure,
    read_changes,
    read_rows,
    report,
    resident_mib,
)
from bench.orders import QUERY


def main(folder: Path, warm: int, contents: Path) -> None:
    """Measure, and report."""
    database = duckdb.connect()
    tables = {name: read_rows(folder, name) for name in ("customers", "orders")}
    rounds = [
        partial(_advance, database, changes.filter(pc.equal(changes["diff"], 1)))
        for changes in read_changes(folder)
    ]
    measured = measure(partial(_begin, database, tables), rounds, warm)
    memory = resident_mib()
    rows = database.execute("SELECT region, name, n, total FROM totals").fetchall()
    report(measured, memory, rows, contents)


def _begin(database: duckdb.DuckDBPyConnection, tables: dict[str, pa.Table]) -> None:
    for name in list(tables):
        database.register("given", tables.pop(name))
        database.execute(f"CREATE TABLE {name} AS FROM given")
        database.unregister("given")
    _run_anew(database)


def _advance(database: duckdb.DuckDBPyConnection, rows: pa.Table) -> None:
    database.register("news", rows)
    database.execute("UPDATE orders SET price = news.price FROM news WHERE orders.id = news.id")
    _run_anew(database)


def _run_anew(database: duckdb.DuckDBPyConnection) -> None:
    database.execute(f"CREATE OR REPLACE TABLE totals AS {QUERY}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))

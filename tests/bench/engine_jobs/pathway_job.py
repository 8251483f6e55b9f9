"""Keeps the view in Pathway, whose engine is a fork of differential dataflow, driven by Python.

    python -m bench.engine_jobs.pathway_job FOLDER WARM CONTENTS

Runs in Pathway's own environment. Orders come by its connector for Python, one call for each row,
and a commit ends a round, which is over when the last change of the view has been handed out. The
variable `PATHWAY_THREADS` says how many workers there are. Types are checked where there is no
Pathway, so its classes are `Any` to the checker.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pathway as pw
import pyarrow as pa

from bench.engine_jobs.measured_view import (
    measure,
    read_changes,
    read_rows,
    report,
    resident_mib,
)

_PATIENCE_S = 600.0
"""No round takes as long."""

_ORDER = ("number", "customer", "price")
"""An order's columns in Pathway, where `id` is a row's own key."""


class _Customer(pw.Schema):  # type: ignore[misc]
    number: int = pw.column_definition(primary_key=True)
    name: str
    region: int


class _Order(pw.Schema):  # type: ignore[misc]
    number: int = pw.column_definition(primary_key=True)
    customer: int
    price: int


class _Totals:
    """The rows of the view, as they are handed out."""

    def __init__(self) -> None:
        self.rows: dict[Any, dict[str, Any]] = {}
        self._changed = False
        self._settled = threading.Event()

    def wait(self) -> None:
        """Wait for the end of a time at which rows have changed."""
        if not self._settled.wait(_PATIENCE_S):
            raise TimeoutError
        self._settled.clear()

    def on_change(self, key: Any, row: dict[str, Any], time: int, is_addition: bool) -> None:
        del time
        self._changed = True
        if is_addition:
            self.rows[key] = row
        elif self.rows.get(key) == row:  # else the one that comes for it was first
            del self.rows[key]

    def on_time_end(self, time: int) -> None:
        del time
        if self._changed:
            self._changed = False
            self._settled.set()


class _Orders(pw.io.python.ConnectorSubject):  # type: ignore[misc]
    """Hands orders over, and waits for the view each time; Pathway runs it in a thread."""

    def __init__(self, folder: Path, warm: int, totals: _Totals) -> None:
        super().__init__()
        self.measured: dict[str, Any] = {}
        self.memory_mib = 0.0
        self._first = read_rows(folder, "orders")
        self._rounds = read_changes(folder)
        self._warm = warm
        self._totals = totals

    def run(self) -> None:
        # Pathway looks for a call that leads to `delete` in the text of this method.
        rounds = [lambda changes=changes: self._advance(changes) for changes in self._rounds]
        self.measured = measure(self._begin, rounds, self._warm)
        self.memory_mib = resident_mib()

    def _begin(self) -> None:
        for order in _dicts(self._first):
            self.next(**order)
        self.commit()
        self._totals.wait()
        del self._first

    def _advance(self, changes: pa.Table) -> None:
        rows = _dicts(changes.select(["id", "customer", "price"]))
        for order, diff in zip(rows, changes["diff"].to_pylist(), strict=True):
            self.next(**order) if diff > 0 else self.delete(**order)
        self.commit()
        self._totals.wait()


def _dicts(orders: pa.Table) -> Iterator[dict[str, Any]]:
    for batch in orders.rename_columns(_ORDER).to_batches(max_chunksize=10_000):
        yield from batch.to_pylist()


def main(folder: Path, warm: int, contents: Path) -> None:
    """Measure, and report."""
    totals = _Totals()
    subject = _Orders(folder, warm, totals)
    everybody = read_rows(folder, "customers").to_pylist()
    rows = [(each["id"], each["name"], each["region"]) for each in everybody]
    customers = pw.debug.table_from_rows(_Customer, rows)
    orders = pw.io.python.read(subject, schema=_Order, autocommit_duration_ms=None)
    joined = orders.join(customers, orders.customer == customers.number).select(
        customers.region, customers.name, orders.price
    )
    view = joined.groupby(joined.region, joined.name).reduce(
        joined.region,
        joined.name,
        n=pw.reducers.count(),
        total=pw.reducers.sum(joined.price),
    )
    pw.io.subscribe(view, on_change=totals.on_change, on_time_end=totals.on_time_end)
    pw.run(monitoring_level=pw.MonitoringLevel.NONE)
    found = [
        tuple(row[name] for name in ("region", "name", "n", "total"))
        for row in totals.rows.values()
    ]
    report(subject.measured, subject.memory_mib, found, contents)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))

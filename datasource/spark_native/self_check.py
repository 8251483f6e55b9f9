"""Tests native reads on a small shard before the first rows of a user are read by them.

A rule over internal classes of Spark that compiles may still give other rows: by a setting, a rule
of somebody else, a patched Spark. So the first read that can be native waits until a shard of all
common types in a temporary folder was read natively, and its rows compared. If they differ, or
anything fails, no read of the session is native. A first read and not the installation, since a
session that has just started takes seconds for its first job, which not every session has. What
has passed once with the same programs and settings is not tested again (`passed_tests.py`).

The test has a thread of its own: a query that is stopped while it waits must not end the test, and
properties of its jobs are not the query's.

Not tested where tasks run on other machines: they do not see the folder.
"""

from __future__ import annotations

import datetime as dt
import logging
import tempfile
import threading
from collections.abc import Callable
from decimal import Decimal
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from shardline.datasource.background import BackgroundThread
from shardline.datasource.client import ShardClient
from shardline.datasource.frontier import Frontier
from shardline.datasource.settings import ShardSettings
from shardline.datasource.spark_native.leases import LEASE_KEEPER
from shardline.datasource.spark_native.passed_tests import (
    combination_of,
    has_passed,
    note_passed,
)
from shardline.datasource.types.schema import ShardSchema

__all__ = ["FAILED", "SelfTest"]

_log = logging.getLogger(__name__)

FAILED: Final = "the self-test failed: "
"""Beginning of the reason why no read of the session is native."""

_SHARD: Final = "self-test"
_UTC: Final = pa.timestamp("us", "UTC")


class SelfTest:
    """The test of one session's rule; passed once, it is passed for the application."""

    _passed: Final[set[str]] = set()

    def __init__(self, spark: SparkSession, read: Callable[[str], pa.Table]) -> None:
        """Set the test up; it runs when its result is first asked for.

        Args:
            spark: The session of the rule.
            read: Reads the shard at a path natively, or raises; by the rule, in a copy of the
                session.
        """
        self._spark = spark
        self._read = read
        self._lock = threading.Lock()
        self._failure: str | None = None

    def failure(self) -> str | None:
        """Why no read of the session is native; None if they are right."""
        with self._lock:  # whoever else reads waits for the result
            if self._failure is None and not self._is_passed():
                combination = combination_of(self._spark)
                if has_passed(combination):
                    self._note_passed()
                    return None
                thread = BackgroundThread("native-self-test", self._run)
                thread.start()
                thread.join()
                if self._is_passed():
                    note_passed(combination)
            return self._failure

    def _is_passed(self) -> bool:
        context = self._spark.sparkContext
        return not str(context.master).startswith("local") or context.applicationId in self._passed

    def _note_passed(self) -> None:
        self._passed.add(self._spark.sparkContext.applicationId)

    def _run(self) -> None:
        try:
            wrong = _difference(self._read)
        except Exception as error:  # noqa: BLE001 - reads work without native plans
            first_line = next(iter(str(error).splitlines()), "")
            wrong = f"{type(error).__name__}: {first_line}"
            _log.debug("the self-test of native reads failed", exc_info=True)
        if wrong is None:
            self._note_passed()
        else:
            self._failure = f"{FAILED}{wrong}"


def _difference(read: Callable[[str], pa.Table]) -> str | None:
    """How the rows that are read differ from those of the shard; None if they do not."""
    rows = _rows()
    with tempfile.TemporaryDirectory(prefix="shardline-", ignore_cleanup_errors=True) as folder:
        # In a file: parts inside of the state are read by Python.
        settings = ShardSettings(inline_part_bytes=0)
        client = ShardClient.open(folder, settings=settings, create=True)
        client.create(_SHARD, ShardSchema.from_arrow(rows.schema))
        client.writer(_SHARD).compare_and_append(rows, client.writer(_SHARD).upper(), Frontier(1))
        try:
            found = read(f"{folder}/{_SHARD}")
        finally:
            LEASE_KEEPER.release(client.location.url)
    wanted, got = _texts(rows), _texts(found)
    if wanted == got:
        return None
    wrong = [name for name in rows.column_names if wanted.get(name) != got.get(name)]
    return f"it has read other values of {', '.join(wrong)}"


def _texts(table: pa.Table) -> dict[str, str]:
    """Each column's values in the order of `n`, as text: -0.0 is not 0.0, and NaN is itself."""
    rows = sorted(table.to_pylist(), key=lambda row: row["n"])
    return {name: repr([row[name] for row in rows]) for name in table.column_names}


def _rows() -> pa.Table:
    """Values at which readers differ: NaN and both zeros, calendars, scales, nulls at any depth."""
    struct = pa.struct([("a", pa.int32()), ("tags", pa.list_(pa.string()))])
    columns: dict[str, tuple[pa.DataType, list[object]]] = {
        "n": (pa.int64(), [0, 1, 2, 3]),
        "yes": (pa.bool_(), [True, False, None, True]),
        "tiny": (pa.int8(), [-128, 127, None, 0]),
        "whole": (pa.int32(), [-(2**31), 2**31 - 1, None, 0]),
        "price": (pa.decimal128(12, 2), [Decimal("1.50"), Decimal("-0.01"), None, Decimal(0)]),
        "exact": (pa.decimal128(38, 10), [Decimal(10) ** 27, Decimal("-1E-10"), None, Decimal(0)]),
        "single": (pa.float32(), [float("nan"), -0.0, None, 0.0]),
        "x": (pa.float64(), [float("nan"), -0.0, None, float("-inf")]),
        "s": (pa.string(), ["", "ü\n", None, "x" * 100]),
        "raw": (pa.binary(), [b"", b"\x00\xff", None, b"x"]),
        "day": (pa.date32(), [dt.date(1, 1, 1), dt.date(1582, 10, 10), None, dt.date(9999, 1, 1)]),
        "at": (
            _UTC,
            [
                dt.datetime(1500, 2, 28, 1, tzinfo=dt.UTC),
                dt.datetime(2026, 10, 25, 1, 30, 0, 123456, tzinfo=dt.UTC),
                None,
                dt.datetime(1969, 12, 31, 23, 59, 59, 999999, tzinfo=dt.UTC),
            ],
        ),
        "local": (pa.timestamp("us"), [1_774_751_400_000_000, None, -1, 0]),
        "nested": (struct, [{"a": 1, "tags": ["x", None]}, {"a": None, "tags": []}, None, None]),
        "counts": (pa.map_(pa.string(), pa.int64()), [[("k", 1)], [("k", None)], None, []]),
    }
    return pa.table({name: pa.array(values, kind) for name, (kind, values) in columns.items()})

"""Rows in, rows out, for the tests of native fetch and of native write."""

from __future__ import annotations

import gc
import json
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from shardline.datasource.client import ShardClient
from shardline.datasource.frontier import Frontier
from shardline.datasource.settings import ShardSettings
from shardline.datasource.types.schema import ShardSchema
from support.profiles import wide_examples
from support.strategies.rows import Case, json_types, plain, row_identity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from shardline.datasource.spark_native.plan_rule import NativeReads

TYPES = json_types().filter(lambda kind: "geo" not in json.dumps(kind))
"""Types whose values the strategies make as Spark accepts them: random bytes are no shapes."""

few = wide_examples(0.4)
"""Few: each example takes Spark a second."""


@contextmanager
def fresh_rule(spark: SparkSession) -> Iterator[NativeReads]:
    """Plain reads of the session are planned by a rule that has planned nothing before."""
    from shardline.datasource.spark_native.plan_rule import plan_reads_natively
    from shardline.datasource.spark_native.rule_loader import offer_native_reads

    before = plan_reads_natively(spark)
    assert before is not None
    before.remove()
    installed = plan_reads_natively(spark)
    assert installed is not None
    yield installed
    installed.remove()
    offer_native_reads(spark)


@dataclass
class Reads:
    """The path that a test's plain reads are to take: native or arrow.

    Attributes:
        path: The path.
        rule: The rule that chooses it.
        reasons: Why some of the reads of a native run are left to the Python workers; each of them
            has to come true.
    """

    path: str
    rule: NativeReads
    reasons: set[str] = field(default_factory=set)

    def expect(self, *reasons: str) -> None:
        """Say why some reads of the test are not native, though they are asked to be."""
        self.reasons.update(reasons)

    def check(self) -> None:
        """Fail if a read took the other path, or there was none."""
        counts = self.rule.counts()
        # Spark plans a micro-batch without rows too, for a time that has passed.
        left = counts.keys() - {"native", "left: the range is empty"}
        if self.path == "native":
            assert left == {f"left: {reason}" for reason in self.reasons}, counts
            assert counts.get("native", 0) or left, counts
        else:
            assert left == {"left: turned off"}, counts
            assert "native" not in counts


def client_at(location: str, **chosen: Any) -> ShardClient:
    return ShardClient.open(location, settings=ShardSettings(**chosen))


def put(
    client: ShardClient, name: str, time: int, table: pa.Table, key: tuple[str, ...] = ()
) -> None:
    """Append updates, or rows that only metadata put at `time`; makes the shard."""
    rows = table.drop_columns([n for n in ("_ts", "_diff") if n in table.column_names])
    client.create(name, ShardSchema.from_arrow(rows.schema), key=key)
    handle = client.writer(name)
    handle.compare_and_append(table, handle.upper(), Frontier(time + 1))


def upsert(path: str, rows: pa.Table, **options: str) -> None:
    """What the tasks and the commit of a write by key do, without a job of Spark, into files."""
    from pyspark.sql.pandas.types import from_arrow_schema

    from shardline.datasource.shard_sink.writers import batch_writer

    given = {"path": path, "envelope": "upsert", "inlinePartBytes": "0", **options}
    writer = batch_writer(given, from_arrow_schema(rows.schema), overwrite=False)
    writer.commit([writer.write(iter(rows.to_batches()))])


def plan_of(frame: DataFrame) -> str:
    """The text of the plan that Spark executes."""
    return str(frame._jdf.queryExecution().executedPlan().toString())


def is_leased(spark: SparkSession, client: ShardClient, name: str = "in") -> bool:
    """True if a lease is left after all that can be collected is."""
    from shardline.datasource.spark_native.leases import LEASE_KEEPER

    gc.collect()
    jvm: Any = spark._jvm
    jvm.java.lang.System.gc()
    LEASE_KEEPER.beat()
    return bool(client.state(name).leased)


def ids(*numbers: int) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64())})


def collected(frame: DataFrame) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, frame.collect()))


def arrow_of(frame: DataFrame, case: Case) -> Counter[Any]:
    """The identities of a frame's rows, as Arrow has them, without the ranges of Python's types."""
    from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

    # In a struct each: Spark's way to Arrow has no other place for variants. And as its tasks give
    # them: `toArrow` then casts to what some of them are not.
    boxed = frame.select([F.struct(F.col(n).alias("v")).alias(n) for n in frame.columns])
    batches: list[pa.RecordBatch] = boxed._collect_as_arrow()  # type: ignore[operator]
    if not batches:
        return Counter()
    table = pa.Table.from_batches(batches)
    columns = ([plain(value["v"]) for value in table[name]] for name in case.schema.names)
    return Counter(row_identity(row, case.schema) for row in zip(*columns, strict=True))

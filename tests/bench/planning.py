"""Planning without Spark: a shard of many parts, made up; nothing but its state is there.

Each size is planned in a process of its own, as a query's planner is one, so that its greatest
memory is known. The parts have the statistics of a part of lineitem.
"""

from __future__ import annotations

import multiprocessing
import pickle
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from bench.processes import greatest_memory_bytes
from bench.rounds import Measured, quantile
from shardline.datasource.client import ShardClient
from shardline.datasource.clock import SystemClock
from shardline.datasource.shard.batch import Part, Run
from shardline.datasource.shard.commands.append import Append, Appended, compare_and_append
from shardline.datasource.types.schema import ShardSchema

if TYPE_CHECKING:
    from pyspark.sql.streaming.datasource import ReadLimit

__all__ = ["measure_planning", "sample_rows", "synthetic_runs"]

_COUNTS = (100, 10_000, 100_000)
_PARTS_PER_APPEND = 1_000
_IDLE_TRIGGERS = 200
_WARM_PLANS = 3
_MEMORY_MOST_MB, _WARM_MOST_MS = 500.0, 1_000.0


def measure_planning(url: str) -> list[Measured]:
    """Milliseconds and memory of planning a whole shard, and of looking for news in it."""
    lines = []
    for count in _COUNTS:
        name = f"parts-{count}"
        make_shard(ShardClient.open(url), name, count)
        figures = _in_a_process(url, name)
        last = count == _COUNTS[-1]
        what = f"planning, {count:,} parts"
        lines += [
            Measured(f"{what}: open", figures.open_ms, "ms"),
            Measured(f"{what}: first plan", figures.first_ms, "ms"),
            Measured(
                f"{what}: warm plan", figures.warm_ms, "ms", most=_WARM_MOST_MS if last else None
            ),
            Measured(f"{what}: trigger without news, p50", figures.idle_ms, "ms"),
            Measured(f"{what}: sent to Spark", figures.sent_bytes / 1e6, "MB"),
            Measured(
                f"{what}: greatest memory of the process",
                figures.memory_bytes / 1e6,
                "MB",
                most=_MEMORY_MOST_MB if last else None,
            ),
        ]
    return lines


class _Figures(msgspec.Struct, frozen=True):
    """What one process measured.

    Attributes:
        open_ms: Opening the location and reading the state.
        first_ms: Choosing the offset, taking the holds, planning.
        warm_ms: Planning the same again.
        idle_ms: A look for news.
        sent_bytes: Pickled partitions.
        memory_bytes: The greatest that the process had, libraries included.
    """

    open_ms: float
    first_ms: float
    warm_ms: float
    idle_ms: float
    sent_bytes: int
    memory_bytes: int


def _in_a_process(url: str, name: str) -> _Figures:
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_measure, args=(url, name, there))
    process.start()
    there.close()
    try:
        return msgspec.json.decode(here.recv_bytes(), type=_Figures)
    finally:
        process.join()


def _measure(url: str, name: str, result: Connection) -> None:
    """Runs in the process."""
    # What a planner process has loaded before it is asked anything.
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from shardline.datasource.read import current_schema
    from shardline.datasource.shard_source.options import parse_source
    from shardline.datasource.shard_source.partition_planner import open_client
    from shardline.datasource.shard_source.row_shape import RowShape
    from shardline.datasource.shard_source.stream import ShardStreamReader

    clock = SystemClock()
    options = parse_source({"path": f"{url}/{name}"})
    began = clock.elapsed_ms()
    state = open_client(options).state(name)
    opened = clock.elapsed_ms()
    reader = ShardStreamReader(options, RowShape.now(options, [current_schema(state)]))
    del state
    limit: ReadLimit = ReadAllAvailable()
    start = reader.initialOffset()

    def plan() -> int:
        end = reader.latestOffset(start, limit)
        return sum(len(pickle.dumps(part)) for part in reader.partitions(start, end))

    sent = plan()
    first = clock.elapsed_ms()
    warm = min(_timed(clock, plan) for _ in range(_WARM_PLANS))
    end = reader.latestOffset(start, limit)
    idle = [_timed(clock, lambda: reader.latestOffset(end, limit)) for _ in range(_IDLE_TRIGGERS)]
    memory = greatest_memory_bytes()
    reader.stop()
    figures = _Figures(opened - began, first - opened, warm, quantile(idle, 0.5), sent, memory)
    result.send_bytes(msgspec.json.encode(figures))
    result.close()


def _timed(clock: SystemClock, call: Callable[[], object]) -> float:
    began = clock.elapsed_ms()
    call()
    return clock.elapsed_ms() - began


def make_shard(client: ShardClient, name: str, count: int) -> None:
    """A shard whose state says that it has `count` parts; they are not there."""
    rows = sample_rows()
    state = client.create(name, ShardSchema.from_arrow(rows.schema), key=("l_orderkey",))
    writer = client.writer(name)
    staged = writer.stager(may_inline=False).stage(rows.to_batches())
    sample = staged.runs[0].parts[0]
    for number, runs in enumerate(synthetic_runs(sample, count, _PARTS_PER_APPEND), start=1):
        append = Append(
            shard=state.shard,
            runs=runs,
            writer="bench",
            sequence=number,
            durable=True,
            lease_ms=1,
            attempt=str(number),
        )
        outcome = writer.machine.apply(partial(compare_and_append, append=append))
        assert isinstance(outcome, Appended), outcome


def synthetic_runs(sample: Part, count: int, per_append: int) -> Iterator[tuple[Run, ...]]:
    """`count` parts like `sample`, under keys of their own, in runs of at most `per_append`."""
    for start in range(0, count, per_append):
        parts = tuple(
            msgspec.structs.replace(
                sample,
                key=f"{sample.key}-{number:08x}",
                # A part of usual size, so that packing makes as many partitions as it would.
                rows=1_000_000,
                size_bytes=32 << 20,
            )
            for number in range(start, min(start + per_append, count))
        )
        yield (Run(parts, "none"),)


def sample_rows() -> pa.Table:
    """Two rows of lineitem."""
    text, number = pa.string(), pa.decimal128(15, 2)
    columns = {
        "l_orderkey": pa.array([1, 750_000], pa.int64()),
        "l_partkey": pa.array([2, 19_999], pa.int64()),
        "l_suppkey": pa.array([3, 999], pa.int64()),
        "l_linenumber": pa.array([1, 7], pa.int32()),
        "l_quantity": pa.array([1, 50], number),
        "l_extendedprice": pa.array([901, 104_949], number),
        "l_discount": pa.array([0, 1], number),
        "l_tax": pa.array([0, 1], number),
        "l_returnflag": pa.array(["A", "R"], text),
        "l_linestatus": pa.array(["F", "O"], text),
        "l_shipdate": pa.array([8_036, 10_561], pa.int32()).cast(pa.date32()),
        "l_commitdate": pa.array([8_065, 10_530], pa.int32()).cast(pa.date32()),
        "l_receiptdate": pa.array([8_037, 10_591], pa.int32()).cast(pa.date32()),
        "l_shipinstruct": pa.array(["COLLECT COD", "TAKE BACK RETURN"], text),
        "l_shipmode": pa.array(["AIR", "TRUCK"], text),
        "l_comment": pa.array(
            [" Tiresias about the blithely", "zzle? slyly final platelets"], text
        ),
    }
    return pa.table(columns)

"""Rows per second of TPC-H lineitem, in and out of a shard, against Spark's own Parquet.

    write    into Parquet, and into shards: plainly, by Python workers, and by `shardline.save`
    read     out of both copies: all columns, 2 of 16, and a filter that half of the files pass; of
             the shard plainly, by Python workers with these as options, and by `shardline.snapshot`
    stream   the same out of a stream in micro-batches of two files

A stream's rate is that of its micro-batches but for the first, in which processes start and code is
compiled; what comes between the micro-batches counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from bench.copies import FILES, NARROW, Copies
from bench.micro import Sink, discard, discard_natively, run_available
from bench.rounds import Measured, alternate, in_turns, rates
from shardline import datasource
from shardline.datasource.clock import Clock

__all__ = ["measure_read", "measure_stream", "measure_write"]

_WRITE_AIMS = {"shard": 0.9, "shard, Python workers": 0.45, "shard, native": 0.9}
_READ_AIMS = {"shard": 1.1, "shard, Python workers": 0.65, "shard, native": 0.95}
_STREAM_AIMS = {"shard": 0.95, "shard, Python workers": 0.85, "shard, native": 0.95}

_BY_WORKERS = {"nativeReads": "false"}

_FILES_PER_TRIGGER = 2


@dataclass(frozen=True, slots=True)
class _Question:
    """What is read.

    Attributes:
        name: In the table.
        columns: Which; None is all.
        where: A filter.
    """

    name: str
    columns: tuple[str, ...] | None = None
    where: str | None = None

    def of(self, frame: DataFrame) -> DataFrame:
        """The same, asked of Spark's own source."""
        asked = frame if self.where is None else frame.where(self.where)
        return asked if self.columns is None else asked.select(*self.columns)

    @property
    def options(self) -> dict[str, str]:
        """The same, as options of the format."""
        columns = {} if self.columns is None else {"columns": ",".join(self.columns)}
        return columns if self.where is None else {**columns, "where": self.where}


def measure_write(
    spark: SparkSession, clock: Clock, data: Path, place: Path, rounds: int
) -> list[Measured]:
    """Rows per second into Parquet as Spark writes it by default, with zstd, and into shards."""
    frame = spark.read.parquet(str(data))
    count = frame.count()
    numbers: Iterator[int] = iter(range(3 * rounds))

    def parquet(codec: str) -> None:
        frame.write.mode("overwrite").option("compression", codec).parquet(str(place / codec))

    def shard(**options: str) -> None:
        writer = frame.write.format("shard").options(**options).mode("append")
        writer.save(str(place / "shards" / f"w{next(numbers)}"))

    def native() -> None:
        datasource.save(frame, str(place / "shards" / f"w{next(numbers)}"))

    cases: dict[str, Callable[[], object]] = {
        "Spark's Parquet, snappy": lambda: parquet("snappy"),
        "Spark's Parquet, zstd": lambda: parquet("zstd"),
        "shard": shard,
        "shard, Python workers": partial(shard, nativeWrites="false"),
        "shard, native": native,
    }
    return rates("write", alternate(clock, rounds, cases), count, "rows/s", _WRITE_AIMS)


def measure_read(spark: SparkSession, clock: Clock, copies: Copies, rounds: int) -> list[Measured]:
    """Rows per second of batch reads; a filtered read is credited with all rows."""
    lines = []
    for question in _questions(copies):
        cases = {
            "Spark's Parquet": partial(_batch_parquet, spark, copies, question),
            "shard": partial(_batch_shard, spark, copies, question),
            "shard, Python workers": partial(_batch_workers, spark, copies, question),
            "shard, native": partial(_batch_native, spark, copies, question),
        }
        best = alternate(clock, rounds, cases)
        lines += rates(f"read{question.name}", best, copies.rows, "rows/s", _READ_AIMS)
    return lines


def measure_stream(spark: SparkSession, copies: Copies, place: Path, rounds: int) -> list[Measured]:
    """Rows per second of streaming reads; a filtered read is credited with all rows."""
    lines = []
    for question in _questions(copies):
        cases: Mapping[str, Callable[[], float]] = {
            "Spark's Parquet": lambda q=question: _stream(  # type: ignore[misc]
                _stream_parquet(spark, copies, q), discard, place
            ),
            "shard": lambda q=question: _stream(  # type: ignore[misc]
                q.of(_stream_shard(spark, copies)), discard, place
            ),
            "shard, Python workers": lambda q=question: _stream(  # type: ignore[misc]
                _stream_shard(spark, copies, **_BY_WORKERS, **q.options), discard, place
            ),
            "shard, native": lambda q=question: _stream(  # type: ignore[misc]
                _stream_shard(spark, copies, **_BY_WORKERS, **q.options), discard_natively, place
            ),
        }
        best = in_turns(rounds, cases)
        lines += rates(f"stream{question.name}", best, copies.rows, "rows/s", _STREAM_AIMS)
    return lines


def _questions(copies: Copies) -> tuple[_Question, ...]:
    return (
        _Question(""),
        _Question(" 2 of 16 columns", columns=NARROW),
        _Question(" with a filter for half", where=copies.half),
    )


def _batch_parquet(spark: SparkSession, copies: Copies, question: _Question) -> None:
    _consume(question.of(spark.read.parquet(copies.parquet)))


def _batch_shard(spark: SparkSession, copies: Copies, question: _Question) -> None:
    _consume(question.of(spark.read.format("shard").load(copies.shard)))


def _batch_workers(spark: SparkSession, copies: Copies, question: _Question) -> None:
    reader = spark.read.format("shard").options(**_BY_WORKERS, **question.options)
    _consume(reader.load(copies.shard))


def _batch_native(spark: SparkSession, copies: Copies, question: _Question) -> None:
    _consume(
        datasource.snapshot(spark, copies.shard, columns=question.columns, where=question.where)
    )


def _consume(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _stream_parquet(spark: SparkSession, copies: Copies, question: _Question) -> DataFrame:
    reader = spark.readStream.schema(copies.schema)
    reader = reader.option("maxFilesPerTrigger", _FILES_PER_TRIGGER)
    return question.of(reader.parquet(copies.parquet))


def _stream_shard(spark: SparkSession, copies: Copies, **options: str) -> DataFrame:
    reader = spark.readStream.format("shard").options(**options)
    # From the first change on, and not from a snapshot: cut by time, one time for each file.
    reader = reader.option("startingTimestamp", "0")
    return reader.option("maxFilesPerTrigger", _FILES_PER_TRIGGER).load(copies.shard)


def _stream(frame: DataFrame, sink: Sink, place: Path) -> float:
    """Seconds for all rows, at the rate of all micro-batches but the first."""
    steady = run_available(frame, sink, place)[1:]
    batches = FILES // _FILES_PER_TRIGGER
    return sum(steady) / len(steady) / 1000.0 * batches

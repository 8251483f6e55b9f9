"""Batch read and write of TPC-H lineitem: a shard against Spark's own Parquet, on the same rows."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from app.bench.rounds import Measured, alternate
from datasource.clock import Clock
from datasource.errors import InvalidUsage

__all__ = ["lineitem", "measure_read", "measure_write"]

_READ_AIM = 0.6
_WRITE_AIM = 0.45


def lineitem(folder: Path, scale: float) -> Path:
    """A folder with lineitem as four Parquet files, generated once by `tpchgen-cli`.

    Raises:
        InvalidUsage: The generator is not installed.
    """
    target = folder / f"tpch-{scale:g}"
    if not target.is_dir():
        tool = Path(sys.executable).with_name("tpchgen-cli")
        if not tool.exists():
            raise InvalidUsage(
                "the benchmark's data generator is not installed",
                code="MISSING_TOOL",
                hint="./spark-submit.sh setup --tests installs it",
            )
        making = folder / f"tpch-{scale:g}.making"
        shutil.rmtree(making, ignore_errors=True)
        words = ["parquet", "-q", "-s", f"{scale:g}", "-T", "lineitem", "-p", "4", "--output-dir"]
        subprocess.run([str(tool), *words, str(making)], check=True)  # noqa: S603 - our own words
        making.rename(target)
    return target / "lineitem"


def measure_write(
    spark: SparkSession, clock: Clock, data: Path, place: Path, rounds: int
) -> list[Measured]:
    """Rows per second into a shard, into Parquet as Spark writes it by default, and with zstd."""
    frame = spark.read.parquet(str(data))
    count = frame.count()
    numbers: Iterator[int] = iter(range(rounds))

    def parquet(codec: str) -> None:
        frame.write.mode("overwrite").option("compression", codec).parquet(str(place / codec))

    def shard() -> None:
        name = f"lineitem-{next(numbers)}"
        frame.write.format("shard").mode("append").save(str(place / "shards" / name))

    best = alternate(
        clock,
        rounds,
        {
            "Spark's Parquet, snappy": lambda: parquet("snappy"),
            "Spark's Parquet, zstd": lambda: parquet("zstd"),
            "shard": shard,
        },
    )
    return _compared("write", best, count, "Spark's Parquet, snappy", _WRITE_AIM)


def measure_read(spark: SparkSession, clock: Clock, place: Path, rounds: int) -> list[Measured]:
    """Rows per second out of what `measure_write` wrote: all 16 columns, and 2 of them."""
    parquet = str(place / "snappy")
    shard = str(place / "shards" / "lineitem-0")
    count = spark.read.parquet(parquet).count()
    narrow = ["l_orderkey", "l_quantity"]

    def load(columns: list[str] | None = None) -> DataFrame:
        reader = spark.read.format("shard")
        return (reader.option("columns", ",".join(columns)) if columns else reader).load(shard)

    def consume(frame: DataFrame) -> None:
        frame.write.format("noop").mode("overwrite").save()

    wide = alternate(
        clock,
        rounds,
        {
            "Spark's Parquet": lambda: consume(spark.read.parquet(parquet)),
            "shard": lambda: consume(load()),
        },
    )
    few = alternate(
        clock,
        rounds,
        {
            "Spark's Parquet": lambda: consume(spark.read.parquet(parquet).select(*narrow)),
            "shard": lambda: consume(load(narrow)),
        },
    )
    return [
        *_compared("read", wide, count, "Spark's Parquet", _READ_AIM),
        *_compared("read 2 of 16 columns", few, count, "Spark's Parquet", None),
    ]


def _compared(
    what: str, seconds: dict[str, float], rows: int, base: str, aim: float | None
) -> list[Measured]:
    return [
        Measured(
            f"{what}: {name}",
            rows / taken,
            "rows/s",
            None if name == base else seconds[base] / taken,
            aim if name == "shard" else None,
        )
        for name, taken in seconds.items()
    ]

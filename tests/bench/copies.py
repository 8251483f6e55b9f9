"""The rows that reads and writes are measured with: TPC-H lineitem, as Parquet and as a shard.

Both copies are made of the same files, one task and one append for each, so that a micro-batch of
two files is one of two parts. Each file has an `l_orderkey` range of its own.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage

__all__ = ["FILES", "NARROW", "Copies", "generator", "lineitem", "make_copies"]

FILES = 8
NARROW = ("l_orderkey", "l_quantity")


@dataclass(frozen=True, slots=True)
class Copies:
    """The same rows twice.

    Attributes:
        parquet: Folder of the files, as Spark writes them by default.
        shard: Path of the shard.
        rows: How many.
        schema: Of the rows.
        half: A filter that statistics alone decide, and that half of the files pass whole.
    """

    parquet: str
    shard: str
    rows: int
    schema: StructType
    half: str


def lineitem(folder: Path, scale: float) -> Path:
    """A folder with lineitem as Parquet files, generated once by `tpchgen-cli`.

    Raises:
        InvalidUsage: The generator is not installed.
    """
    target = folder / f"tpch-{scale:g}-{FILES}"
    if not target.is_dir():
        tool = generator()
        making = folder / f"{target.name}.making"
        shutil.rmtree(making, ignore_errors=True)
        words = ["parquet", "-q", "-s", f"{scale:g}", "-T", "lineitem", "-p", str(FILES)]
        subprocess.run([str(tool), *words, "--output-dir", str(making)], check=True)
        making.rename(target)
    return target / "lineitem"


def generator() -> Path:
    """The program that generates tables of TPC-H.

    Raises:
        InvalidUsage: It is not installed.
    """
    tool = Path(sys.executable).with_name("tpchgen-cli")
    if not tool.exists():
        raise InvalidUsage(
            "the benchmark's data generator is not installed",
            code="MISSING_TOOL",
            hint="./spark-submit.sh setup --tests installs it",
        )
    return tool


def make_copies(spark: SparkSession, data: Path, place: Path) -> Copies:
    """Both copies of the files in `data`, below `place`."""
    parquet, shard = place / "parquet", str(place / "shards" / "lineitem")
    parquet.mkdir()
    files = sorted(str(file) for file in data.glob("*.parquet"))
    frame = spark.read.parquet(*files)
    frame.limit(0).write.format("shard").mode("append").save(shard)
    # Streams move the shard's since with what they have read, and the next one starts over.
    ShardClient.open(str(place / "shards")).hold("lineitem", "bench", since=0)

    # On two threads, and shards on this one: in others Spark finds no source made of Python.
    with ThreadPoolExecutor(1) as pool:
        copied = pool.submit(_copy_as_parquet, spark, files, parquet)
        for file in files:
            spark.read.parquet(file).coalesce(1).write.format("shard").mode("append").save(shard)
        copied.result()
    firsts = sorted(_first_key(spark, file) for file in files)
    half = f"l_orderkey >= {firsts[len(firsts) // 2]}"
    return Copies(str(parquet), shard, frame.count(), frame.schema, half)


def _copy_as_parquet(spark: SparkSession, files: Sequence[str], target: Path) -> None:
    for file in files:
        making = target.with_name("parquet-making") / Path(file).stem
        spark.read.parquet(file).coalesce(1).write.parquet(str(making))
        for part in making.glob("*.parquet"):
            part.rename(target / part.name)


def _first_key(spark: SparkSession, file: str) -> int:
    row = spark.read.parquet(file).agg({"l_orderkey": "min"}).first()
    assert row is not None, file
    return int(row[0])

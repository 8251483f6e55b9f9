"""A process that copies a shard by a stream whose micro-batches are read natively, to be killed.

python -m support.faults.native_stream <folder> [<master> [freeze]]: copies `in` to `out` below the
folder, each part in a micro-batch of its own, and stops in the middle of the second part until
there is a file `go`. File `reading` tells that it is there; `counts-reading` what it has counted
until then, or `counts-end` until its end.

With `freeze` it starts at the first part, waits for parts that are missing, and ends when there is
a file `done`; `counts-frozen` has what it has counted when it first had nothing more to read.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql.streaming import StreamingQuery

from shardline.app.spark_session import open_session
from shardline.datasource.spark_native.read_counts import READ_COUNTS

__all__ = ["EACH", "main"]

EACH: Final = 6000
"""Rows of a part: enough for a native plan."""


def main(folder: str, master: str = "local[2]", missing: str = "fail") -> None:
    """Copy until the end, or until this process or a part of it is killed."""
    place = Path(folder)
    settings = {"spark.ui.enabled": "false"}
    cores = {"spark.master": master, "spark.executor.memory": "512m"}
    spark = open_session("native", settings | cores)
    reading, go, each = place / "reading", place / "go", EACH

    def pause(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            half = batch.num_rows // 2
            yield batch.slice(0, half)
            if batch.num_rows and batch["id"][0].as_py() // each == 1:
                reading.touch()
                while not go.exists():
                    threading.Event().wait(0.05)
            yield batch.slice(half)

    reader = spark.readStream.format("shard").option("maxFilesPerTrigger", 1)
    if missing == "freeze":
        reader = reader.option("onMissingPart", missing).option("startingTimestamp", 0)
    frame = reader.load(f"{place}/lake/in")
    writer = frame.mapInArrow(pause, frame.schema).writeStream.format("shard")
    writer = writer.option("checkpointLocation", str(place / "checkpoint"))
    if missing == "freeze":
        query = writer.start(f"{place}/lake/out")
        threading.Thread(target=note_freezing, args=(query, place), daemon=True).start()
    else:
        query = writer.trigger(availableNow=True).start(f"{place}/lake/out")
    watch(query, place)


def watch(query: StreamingQuery, place: Path) -> None:
    """Note what was counted, until the query ends."""
    try:
        while not query.awaitTermination(1):
            if (place / "reading").exists():
                write_counts(place / "counts-reading")
            if (place / "done").exists():
                query.stop()
    finally:
        write_counts(place / "counts-end")


def note_freezing(query: StreamingQuery, place: Path) -> None:
    """Write what was counted when the query first had nothing more to read."""
    query.processAllAvailable()
    write_counts(place / "counts-frozen")


def write_counts(path: Path) -> None:
    """The counts of reads, in one step."""
    counts = {f"{one.path} {one.reason}".strip(): one.number for one in READ_COUNTS.all()}
    made = path.with_suffix(".new")
    made.write_text(json.dumps(counts))
    made.rename(path)


if __name__ == "__main__":
    main(*sys.argv[1:])

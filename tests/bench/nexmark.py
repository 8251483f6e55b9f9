"""Measures the queries of Nexmark as views: events a second, beside Spark's own streaming.

Events come in micro-batches of equal size, as of a source that has fallen behind. Of each query:

    stream      Spark's streaming query of the same text over the same rows as Parquet files, with
                a watermark and with RocksDB; its result is thrown away. Of modes the first that
                Spark takes: append, update, complete. Without a line Spark refuses the query.
    changes     a view that follows its inputs, its rows durable after each micro-batch; all that
                a micro-batch does, the commit included, but for Spark's planning of it
    anew        the query run once over all events. To run it anew in each micro-batch would cost
                so much in the last one: the rate is of that one.

The first micro-batch counts, with all that is compiled and made there.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, pairwise
from pathlib import Path
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import to_arrow_schema

from bench.rounds import Measured
from bench.views import WAYS, Followed, described, first_contents
from bench.world import append_at
from shardline.app.compute.view.view_columns import parse_columns
from shardline.app.storage.generators.catalog import open_generator
from shardline.datasource.clock import Clock
from shardline.datasource.errors import InvalidUsage, unknown_name
from support.spark.benchmark_queries import NEXMARK, NEXMARK_TABLES
from support.spark.views import Bench

__all__ = ["Story", "chosen_queries", "measure_nexmark"]

_START: Final = 10
_RATE: Final = 10_000
"""Events for a second of the time in their rows: a window of 10 s has 92,000 bids."""

_BATCHES: Final = 20
_FILES: Final = 2
"""Files of a table for each micro-batch, so that both cores of a small machine read."""

_EVENTS_MIN: Final = 500 * _BATCHES
_SIDE_ROWS: Final = 10_000
_WATERMARK: Final = "10 seconds"
_MODES: Final = ("append", "update", "complete")

_STATELESS: Final = frozenset({"q0", "q1", "q2", "q10", "q13", "q14", "q21", "q22"})
"""Those for which a streaming query of Spark keeps nothing: there is no aim for these."""

_NATIVE: Final = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
}
"""As for a large state on two cores: with the default provider ten million bids fill the heap."""


def chosen_queries(names: Sequence[str]) -> tuple[str, ...]:
    """The queries of these names, in the order of the benchmark; all if there is none.

    Raises:
        InvalidUsage: There is no such query.
    """
    for name in names:
        if name not in NEXMARK:
            raise unknown_name("query", name, tuple(NEXMARK))
    return tuple(name for name in NEXMARK if name in (names or NEXMARK))


def measure_nexmark(
    spark: SparkSession, clock: Clock, place: Path, events: int, queries: Sequence[str]
) -> list[Measured]:
    """Events a second of each query, over `events` in 20 micro-batches.

    Args:
        spark: The session.
        clock: Of the process.
        place: Where files and shards are made, and removed.
        events: How many, of all tables.
        queries: Their names (`chosen_queries`).

    Raises:
        InvalidUsage: There are too few events (`Story`).
    """
    story = Story(place / "events", events)
    lines: list[Measured] = []
    for name in queries:
        world = _World(spark, clock, story, place / name)
        for line in world.measure(name):
            lines.append(line)
            ratio = "" if line.ratio is None else f" ({line.ratio:.2f})"
            print(f"{line.name}: {line.value:,.0f} {line.unit}{ratio}", file=sys.stderr)
        shutil.rmtree(place / name, ignore_errors=True)
    return lines


@dataclass
class Story:
    """All events, as files of which a micro-batch has some.

    Raises:
        InvalidUsage: There are too few events for rows of each table in each micro-batch.
    """

    folder: Path
    events: int

    def __post_init__(self) -> None:
        if self.events < _EVENTS_MIN:
            raise InvalidUsage(
                f"{self.events} events are too few for {_BATCHES} micro-batches",
                code="TOO_FEW_EVENTS",
                hint=f"--events {_EVENTS_MIN} is the least number",
            )

    @cached_property
    def tables(self) -> dict[str, Path]:
        """Folders of the tables, written when they are first asked for."""
        found = {name: self.folder / name for name in NEXMARK_TABLES}
        for name, folder in found.items():
            folder.mkdir(parents=True)
            if name == "side_input":
                keys = range(_SIDE_ROWS)
                rows = pa.table({"key": keys, "value": [f"value {key}" for key in keys]})
                pq.write_table(rows, folder / "0.parquet")
                continue
            options = {"table": name, "rate": str(_RATE), "pace": "none"}
            _, made = open_generator("nexmark", options | {"limit": str(self.events)})
            count = _BATCHES * _FILES
            bounds = [self.events * place // count for place in range(count + 1)]
            for place, (first, end) in enumerate(pairwise(bounds)):
                rows = pa.Table.from_batches([made.rows(first, end)])
                pq.write_table(rows, folder / f"{place:05d}.parquet")
        return found

    def batches(self, name: str) -> Iterator[pa.Table]:
        """The rows of a table for each micro-batch; of the side input all come with the first."""
        files = sorted(self.tables[name].iterdir())
        for place in range(0, len(files), _FILES):
            yield pa.concat_tables(map(pq.read_table, files[place : place + _FILES]))


class _World:
    """What is measured of one query, in shards of its own."""

    def __init__(self, spark: SparkSession, clock: Clock, story: Story, place: Path) -> None:
        self._spark = spark
        self._clock = clock
        self._story = story
        self._place = place

    def measure(self, name: str) -> Iterator[Measured]:
        """Rates of each way that there is."""
        query = NEXMARK[name]
        stream = self._stream(query)
        if stream is not None:
            yield Measured(f"Nexmark {name}: stream", stream, "events/s")
        changes, anew = self._views(query)
        compared = None if stream is None else changes / stream
        aim = None if stream is None or name in _STATELESS else 1.0
        yield Measured(f"Nexmark {name}: changes", changes, "events/s", compared, aim)
        yield Measured(f"Nexmark {name}: anew", anew, "events/s", anew / changes)

    def _stream(self, query: str) -> float | None:
        """Events a second of Spark's own streaming; None if it refuses the query."""
        session = self._spark.newSession()
        for key, value in _NATIVE.items():
            session.conf.set(key, value)
        for name, folder in self._story.tables.items():
            if name == "side_input":
                session.read.parquet(str(folder)).createOrReplaceTempView(name)
                continue
            reader = session.readStream.schema(parse_columns(NEXMARK_TABLES[name]))
            rows = reader.option("maxFilesPerTrigger", _FILES).parquet(str(folder))
            rows.withWatermark("dateTime", _WATERMARK).createOrReplaceTempView(name)
        for place, mode in enumerate(_MODES):
            began = self._clock.elapsed_ms()
            checkpoint = str(self._place / f"checkpoint-{place}")
            try:
                writer = session.sql(query).writeStream.format("noop").outputMode(mode)
                writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
                writer.start().awaitTermination()
            except PySparkException as refused:
                # At the start, or by the first micro-batch.
                print(f"{mode}: {str(refused).splitlines()[0]:.120}", file=sys.stderr)
                continue
            return self._rate(self._clock.elapsed_ms() - began)
        return None

    def _views(self, query: str) -> tuple[float, float]:
        """Events a second of a view that follows changes, and of one that is run anew."""
        bench = Bench(self._spark, str(self._place / "lake"), self._place / "checkpoints")
        session = self._spark.newSession()
        inputs = {}
        for name, columns in NEXMARK_TABLES.items():
            schema = to_arrow_schema(parse_columns(columns), timezone="UTC")
            inputs[name] = bench.input(name, schema)
        anew, incremental = (
            described(bench, inputs.values(), query, strategy) for strategy in WAYS.values()
        )
        news = {name: self._story.batches(name) for name in inputs}
        followed: Followed | None = None
        taken = 0.0
        for upper in range(_START + 1, _START + 1 + _BATCHES):
            for name, found in inputs.items():
                append_at(found, [(rows, 1) for rows in islice(news[name], 1)], upper)
            began = self._clock.elapsed_ms()
            if followed is None:
                followed = first_contents(bench, session, incremental, upper)
            else:
                followed.step(session, upper)
            taken += self._clock.elapsed_ms() - began
        began = self._clock.elapsed_ms()
        first_contents(bench, session, anew, upper)
        once = self._clock.elapsed_ms() - began
        return self._rate(taken), self._rate(once) / _BATCHES

    def _rate(self, taken_ms: float) -> float:
        return self._story.events * 1000.0 / taken_ms

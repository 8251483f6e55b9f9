"""What Spark does: four tables at once, then three streaming queries, each on the one before.

    daily CSV files  ->  flights  ->  delays_by_carrier  ->  carrier_ranking

All three are exactly once, each in another way:
    flights             Spark's file source into `format("shard")`, output mode append.
    delays_by_carrier   a streaming aggregation in output mode complete: each micro-batch becomes
                        the difference to what is there, so only airlines that changed do.
    carrier_ranking     `foreachBatch` with a batch write of its own, made repeatable by
                        `txnAppId` and `txnVersion`.

Every sum over a shard's changes is weighted with `_diff`: a flight that is taken out of `flights`
is taken out of the delays too.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self

from pyspark.errors import StreamingQueryException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.streaming import StreamingQuery

from app.demo.data import AIRLINES, DELAYS, FLIGHTS, RANKING, TABLES, Dataset
from app.demo.lake import Lake
from app.demo.place import Place
from datasource.clock import Clock

__all__ = ["LATE_MINUTES", "QUERIES", "Queries", "write_tables"]

_log = logging.getLogger(__name__)

LATE_MINUTES = 15
"""A flight is late when it arrives more than so many minutes after its time."""

QUERIES = (FLIGHTS.name, DELAYS.name, RANKING.name)
"""Each query is called like the shard that it keeps."""

_STARTING = ("Initializing", "Starting")
_SLOW_START = "Python worker failed to connect back"
_RESTARTS_MAX = 5
_POLL_MS = 50.0

_NEVER_TOO_OLD = "36500d"
"""Spark's file source forgets files a week older than the newest; a stream that goes on after a
longer pause must not."""


def write_tables(lake: Lake, source: Path) -> dict[str, tuple[int, int]]:
    """Make the batch tables' shards equal to their files.

    Returns:
        By shard: its rows, and how many updates that took; 0 when it was equal already.
    """
    written = {}
    for dataset in TABLES:
        lake.make(dataset)
        before = _updates(lake, dataset)
        frame = lake.csv(str(source / dataset.file), dataset)
        frame.write.format("shard").mode("overwrite").options(**lake.options(dataset.name)).save()
        state = lake.state(dataset)
        rows = sum(part.diff_sum for batch in state.trace.batches for part in batch.parts)
        written[dataset.name] = (rows, _updates(lake, dataset) - before)
    return written


def _updates(lake: Lake, dataset: Dataset) -> int:
    return sum(batch.rows for batch in lake.state(dataset).trace.batches)


@dataclass(slots=True)
class Queries:
    """The three queries while they run. Use it as a context manager.

    They start one after the other. Each brings up Python processes of its own, and Spark gives up
    on one that does not answer within 10 s, which has no setting: on a busy machine, all at once
    are too many. A start that fails so is tried again; any other failure is the caller's.

    Attributes:
        lake: The shards.
        place: Where the files and the checkpoints are.
        files_per_micro_batch: Limit of the first query.
        clock: For waiting.
    """

    lake: Lake
    place: Place
    files_per_micro_batch: int
    clock: Clock
    _running: dict[str, StreamingQuery] = field(default_factory=dict)
    _restarts: int = 0

    def __enter__(self) -> Self:
        """Start all of them, or go on with them."""
        try:
            for name in QUERIES:
                self._start(name)
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Stop all of them, however it came to the end."""
        self.stop()

    def ensure(self) -> None:
        """Raise the failure of a query that has failed, or start it again if that may help.

        Raises:
            StreamingQueryException: Why a query ended.
        """
        for name, query in list(self._running.items()):
            error = None if query.isActive else query.exception()
            if error is None:
                continue
            if _SLOW_START not in str(error) or self._restarts >= _RESTARTS_MAX:
                raise error
            self._restarts += 1
            _log.warning("a query is started again", extra={"context": {"query": name}})
            self._start(name)

    def process_all(self) -> None:
        """Wait until each query in turn has taken in what was there when its turn came."""
        for name in QUERIES:
            try:
                self._running[name].processAllAvailable()
            except StreamingQueryException:
                self.ensure()

    def stop(self) -> None:
        """Stop what runs; harmless when nothing does, or when the JVM is gone."""
        for query in self._running.values():
            try:
                query.stop()
            except Exception:  # noqa: BLE001 - the next run goes on from the checkpoint all the same
                _log.warning("cannot stop a query", exc_info=True)
        self._running.clear()

    def _start(self, name: str) -> None:
        starters: dict[str, Callable[[Lake, Place], StreamingQuery]] = {
            FLIGHTS.name: partial(_start_flights, files_per_micro_batch=self.files_per_micro_batch),
            DELAYS.name: _start_delays,
            RANKING.name: _start_ranking,
        }
        query = starters[name](self.lake, self.place)
        self._running[name] = query
        never = threading.Event()
        while query.isActive and query.status["message"].startswith(_STARTING):
            self.clock.wait(never, _POLL_MS)
        self.ensure()


def _start_flights(lake: Lake, place: Place, *, files_per_micro_batch: int) -> StreamingQuery:
    arriving = (
        lake.spark.readStream.schema(FLIGHTS.columns)
        .option("header", "true")
        .option("nullValue", "NA")
        .option("maxFilesPerTrigger", files_per_micro_batch)
        .option("maxFileAge", _NEVER_TOO_OLD)
        .csv(str(place.landing))
    )
    return (
        arriving.writeStream.queryName(FLIGHTS.name)
        .format("shard")
        .options(**lake.options(FLIGHTS.name))
        .option("checkpointLocation", str(place.checkpoint(FLIGHTS.name)))
        .start()
    )


def _start_delays(lake: Lake, place: Place) -> StreamingQuery:
    columns = ("carrier", "dep_time", "dep_delay", "arr_delay")
    changes = lake.follow(FLIGHTS, hold=f"query-{DELAYS.name}", columns=columns)
    return (
        _delays(changes)
        .writeStream.queryName(DELAYS.name)
        .outputMode("complete")
        .format("shard")
        .options(**lake.options(DELAYS.name))
        .option("checkpointLocation", str(place.checkpoint(DELAYS.name)))
        .start()
    )


def _delays(changes: DataFrame) -> DataFrame:
    """Sums per airline over changes of `flights`; a row taken away counts as minus one."""
    diff, dep, arr = F.col("_diff"), F.col("dep_delay"), F.col("arr_delay")

    def total(value: Column, where: Column) -> Column:
        return F.sum(F.when(where, value).otherwise(0))

    sums = changes.groupBy("carrier").agg(
        F.sum(diff).alias("flights"),
        total(diff, F.col("dep_time").isNull()).alias("cancelled"),
        total(diff, dep.isNotNull()).alias("departed"),
        total(dep * diff, dep.isNotNull()).alias("dep_delay_sum"),
        total(diff, arr.isNotNull()).alias("arrived"),
        total(arr * diff, arr.isNotNull()).alias("arr_delay_sum"),
        total(diff, arr > LATE_MINUTES).alias("arrived_late"),
    )
    return sums.where("flights > 0")


def _start_ranking(lake: Lake, place: Place) -> StreamingQuery:
    changes = lake.follow(DELAYS, hold=f"query-{RANKING.name}", columns=("carrier",))
    return (
        changes.writeStream.queryName(RANKING.name)
        .foreachBatch(_brief(_rank_into(lake)))
        .option("checkpointLocation", str(place.checkpoint(RANKING.name)))
        .start()
    )


def _brief(act: Callable[[DataFrame, int], None]) -> Callable[[DataFrame, int], None]:
    """`act`, whose errors reach Spark as a class of ours and with their message only.

    Spark 4.3 looks for an interruption in the text of a `Py4JJavaError` with a regular expression
    that overflows the stack of a query's thread when the text is long, as stack traces are.
    """

    def briefly(changes: DataFrame, batch_id: int) -> None:
        try:
            act(changes, batch_id)
        except Exception as error:  # noqa: BLE001 - it goes on, as another class
            _log.warning("a micro-batch failed", exc_info=True, extra={"context": {"id": batch_id}})
            raise MicroBatchFailed(str(error)) from None

    return briefly


class MicroBatchFailed(Exception):
    """A micro-batch of `foreachBatch` failed; the message is its error's."""


def _rank_into(lake: Lake) -> Callable[[DataFrame, int], None]:
    """What a micro-batch of changes of the delays does: rank again, as of its last change.

    Reading as of a time of the micro-batch, and not as of now, makes a repeated micro-batch write
    the very same; naming the write makes the repetition do nothing at all.
    """

    def rank(changes: DataFrame, batch_id: int) -> None:
        row = changes.agg(F.max("_ts")).first()
        if row is None or row[0] is None:
            return
        ranking = _ranking(lake.contents(DELAYS, timestampAsOf=row[0]), lake.contents(AIRLINES))
        # The query's own id: a new checkpoint counts micro-batches from 0 again.
        query = lake.spark.sparkContext.getLocalProperty("sql.streaming.queryId")
        ranking.write.format("shard").mode("overwrite").options(
            **lake.options(RANKING.name, txnAppId=f"{RANKING.name}-{query}", txnVersion=batch_id)
        ).save()

    return rank


def _ranking(delays: DataFrame, airlines: DataFrame) -> DataFrame:
    """Airlines by mean delay at arrival.

    The one division of two exact integers is the only fraction of this job, and rounds the same
    everywhere.
    """
    named = delays.join(F.broadcast(airlines), "carrier", "left").where("arrived > 0")
    mean = F.col("arr_delay_sum") / F.col("arrived")
    worst_first = F.struct((-mean).alias("minus_mean"), "carrier", "name", "flights")
    # Sixteen rows: sorting them as one array needs no window over everything, which Spark warns of.
    return (
        named.agg(F.array_sort(F.collect_list(worst_first)).alias("ranked"))
        .select(F.posexplode("ranked").alias("position", "row"))
        .select(
            "row.carrier",
            "row.name",
            "row.flights",
            (-F.col("row.minus_mean")).alias("mean_arr_delay"),
            (F.col("position") + 1).cast("int").alias("place"),
        )
    )

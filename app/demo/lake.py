"""The shards of this job: made, dropped, and read through Spark.

Two views of the same shards side by side: `client` is the plain Python one, without Spark, for
making them and for looking at their state; the methods that return frames are `format("shard")`.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from app.demo.data import DELAYS, FLIGHTS, RANKING, SHARDS, Dataset
from app.demo.place import Place
from datasource.client import ShardClient
from datasource.errors import InvalidUsage
from datasource.frontier import Frontier
from datasource.report import ShardReport, report_shard
from datasource.schema import ShardSchema
from datasource.state import ShardState

__all__ = ["HISTORY_HOLD", "Lake"]

_log = logging.getLogger(__name__)

HISTORY_HOLD = "main-job-history"
"""Name of the since hold that keeps the streamed shards readable as of any earlier time."""


@dataclass(frozen=True, slots=True)
class Lake:
    """The persist location of this job.

    Attributes:
        spark: The session.
        client: Of the location.
        storage: How to reach it.
    """

    spark: SparkSession
    client: ShardClient
    storage: dict[str, str]

    @property
    def url(self) -> str:
        """The location."""
        return self.client.location.url

    def options(self, shard: str, **more: object) -> dict[str, str]:
        """Options of `format("shard")` for one of the shards; `more` in its own spelling."""
        given = {name: str(value) for name, value in more.items()}
        return {"location": self.url, "shard": shard, **self.storage, **given}

    def contents(self, dataset: Dataset, **more: object) -> DataFrame:
        """What is in a shard, now or `timestampAsOf` a time."""
        return self._load(dataset, **more)

    def changes(self, dataset: Dataset, **more: object) -> DataFrame:
        """What has happened to a shard: its rows, each with `_ts` and `_diff`."""
        return self._load(dataset, readChangeFeed="true", **more)

    def follow(self, dataset: Dataset, *, hold: str, columns: Sequence[str] = ()) -> DataFrame:
        """A stream of a shard's contents and then of every change to them.

        Args:
            dataset: The shard.
            hold: Name of the stream's since hold: it shows who holds what back.
            columns: Only these are read; all of them by default.
        """
        chosen = {"columns": ",".join(columns)} if columns else {}
        options = self.options(dataset.name, readChangeFeed="true", hold=hold, **chosen)
        return self.spark.readStream.format("shard").options(**options).load()

    def csv(self, path: str, dataset: Dataset) -> DataFrame:
        """A CSV file as it is, through Spark's own reader."""
        return self.spark.read.csv(path, schema=dataset.columns, header=True, nullValue="NA")

    def make(self, dataset: Dataset) -> None:
        """Make a shard if it is not there; keep the history of what queries write to it."""
        schema = StructType.fromDDL(dataset.columns)
        self.client.create(
            dataset.name,
            ShardSchema.parse(schema.json()),
            key=dataset.key,
            comment=dataset.comment,
        )

    def hold_history(self) -> dict[str, Frontier]:
        """Take the hold that keeps history; from when on each shard can be read."""
        return {
            dataset.name: self.client.hold(
                dataset.name, HISTORY_HOLD, purpose="main job: reads as of earlier times"
            ).since
            for dataset in (FLIGHTS, DELAYS, RANKING)
        }

    def state(self, dataset: Dataset) -> ShardState:
        """The newest state of a shard."""
        return self.client.state(dataset.name)

    def reports(self) -> list[ShardReport]:
        """What every shard of this job looks like."""
        now_ms = self.client.clock.now_ms()
        return [report_shard(self.state(dataset), now_ms) for dataset in SHARDS]

    def check_ours(self, place: Place) -> None:
        """Refuse a location that has been filled by a run whose checkpoints are not here.

        Raises:
            InvalidUsage: Going on would add every flight a second time.
        """
        filled = self.client.exists(FLIGHTS.name) and self.state(FLIGHTS).upper > Frontier(0)
        if filled and not place.has_checkpoints:
            raise InvalidUsage(
                f"shard '{FLIGHTS.name}' at {self.url} has been filled by a run whose checkpoints "
                f"are not in '{place.data}'",
                code="FOREIGN_SHARDS",
                hint="go on with that run's --data, choose another --location, or drop its shards "
                "with --fresh",
            )

    def drop(self, place: Place) -> None:
        """Drop every shard of this job, and what belongs to them here.

        A marker says so from before the first step until after the last, so that a run killed in
        between is finished by the next one instead of mixing old and new.
        """
        place.work.mkdir(parents=True, exist_ok=True)
        place.dropping.touch()
        for dataset in SHARDS:
            if self.client.exists(dataset.name):
                state = self.state(dataset)
                holders = [*state.leased, *state.critical]
                self.client.drop(dataset.name, despite_holders=holders)
                _log.info("dropped", extra={"context": {"shard": dataset.name}})
        place.clear()

    def _load(self, dataset: Dataset, **more: Any) -> DataFrame:
        return self.spark.read.format("shard").options(**self.options(dataset.name, **more)).load()

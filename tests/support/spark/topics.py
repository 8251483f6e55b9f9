"""Topics stand in for Kafka: the format `topics`, whose brokers are a folder.

It has the columns and the defaults of Spark's own source, which needs a broker and a package. Spark
keeps the name `kafka` for that one, whether it is there or not.

    columns                  key, value, topic, partition, offset, timestamp, timestampType
    startingOffsets          latest: what is there when the stream begins is not read
    kafka.isolation.level    read_uncommitted: rows of transactions that were aborted are read
"""

from __future__ import annotations

import datetime as dt
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark import cloudpickle
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from typing_extensions import override

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["TOPICS", "Topics", "register_topics"]

TOPICS: Final = "topics"
"""Name of the format."""

_COLUMNS = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "timestampType INT"
)


@dataclass(frozen=True)
class Topics:
    """The brokers: a file for each partition, with a line of JSON for each message."""

    folder: Path

    def send(
        self,
        topic: str,
        partition: int,
        at_ms: int,
        key: str | None,
        value: str | None,
        *,
        aborted: bool = False,
    ) -> None:
        """Append a message; `aborted` if its transaction is."""
        place = self.folder / topic / str(partition)
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("a") as file:
            file.write(f"{json.dumps([at_ms, key, value, aborted])}\n")


def register_topics(spark: SparkSession) -> None:
    """Make the format known to a session."""
    # Python workers do not have the folder of the tests on their path.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    spark.dataSource.register(_KafkaFolder)


class _KafkaFolder(DataSource):
    @override
    def schema(self) -> str:
        return _COLUMNS

    @classmethod
    @override
    def name(cls) -> str:
        return TOPICS

    @override
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return _Messages(dict(self.options))


class _Messages(DataSourceStreamReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._given = {
            "startingoffsets": "latest",
            "kafka.isolation.level": "read_uncommitted",
            **{name.lower(): value for name, value in options.items()},
        }
        self._folder = Path(self._given["kafka.bootstrap.servers"])

    @override
    def initialOffset(self) -> dict[str, Any]:
        if self._given["startingoffsets"] == "earliest":
            return {}
        return self._ends()

    @override
    def latestOffset(self, start: dict[str, Any], limit: Any) -> dict[str, Any]:
        return self._ends()

    @override
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [
            InputPartition((topic, partition, start.get(topic, {}).get(partition, 0), last))
            for topic, partitions in end.items()
            for partition, last in partitions.items()
        ]

    @override
    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        topic, number, first, last = partition.value
        lines = (self._folder / topic / number).read_text().splitlines()
        for offset in range(first, last):
            at_ms, key, value, aborted = json.loads(lines[offset])
            if not aborted or self._given["kafka.isolation.level"] == "read_uncommitted":
                when = dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC)
                yield (_bytes(key), _bytes(value), topic, int(number), offset, when, 0)

    def _ends(self) -> dict[str, Any]:
        return {
            topic: {
                place.name: len(place.read_text().splitlines())
                for place in sorted((self._folder / topic).iterdir())
            }
            for topic in self._given["subscribe"].split(",")
            if (self._folder / topic).is_dir()
        }


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode()

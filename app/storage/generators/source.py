"""Python data sources of Spark read the load generators: offsets, limits and partitions.

    {"v": 1, "event": 1200}     events 0 to 1199 have been read

Invariants:
    Two offsets mean the same rows for ever: the clock only bounds how far an offset may go.
    While no event is due, or those that are have no rows, `latestOffset` returns its argument.
    Offsets never go back, also if a source is started again with a lower rate.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    InputPartition,
)
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType
from typing_extensions import override

from shardline.app.storage.generators.catalog import open_generator, schema_of, spark_format
from shardline.app.storage.generators.generator import PIECE, micro_batch_end
from shardline.datasource.clock import Clock, SystemClock
from shardline.datasource.errors import InvalidUsage

__all__ = ["SOURCES", "GeneratorStreamReader"]

_VERSION: Final = 1

_PARTITION: Final = 4 * PIECE
"""Events of a partition: a task that is worth starting."""


@dataclass(frozen=True, slots=True)
class _Rows:
    """Makes the rows of a range of events, in any process."""

    format: str
    options: Mapping[str, str]
    names: tuple[str, ...]

    def split(self, start: int, end: int) -> list[InputPartition]:
        return [
            InputPartition((first, min(first + _PARTITION, end)))
            for first in range(start, end, _PARTITION)
        ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        _, generator = open_generator(self.format, self.options)
        start, end = partition.value
        for first in range(start, end, PIECE):
            yield generator.rows(first, min(first + PIECE, end)).select(list(self.names))


class GeneratorBatchReader(DataSourceReader):
    """All events up to the limit, at once."""

    def __init__(self, rows: _Rows) -> None:
        self._rows = rows

    @override
    def partitions(self) -> Sequence[InputPartition]:
        options, _ = open_generator(self._rows.format, self._rows.options)
        if "limit" not in {name.lower() for name in self._rows.options}:
            raise InvalidUsage(
                "option 'limit' is missing: a batch has an end",
                code="MISSING_OPTION",
                hint="say how many events to read",
            )
        return self._rows.split(0, options.limit)

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition)


class GeneratorStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Plans the micro-batches of one query; its pickled copies make the rows in executors."""

    def __init__(self, rows: _Rows, clock: Clock | None = None) -> None:
        """Check the options; no row is made yet.

        Args:
            rows: Makes the rows.
            clock: Decides which events are due; the machine's by default.

        Raises:
            InvalidUsage: The options cannot be read as a stream.
        """
        self._rows = rows
        self._clock = clock or SystemClock()
        self._options, self._generator = open_generator(rows.format, rows.options)
        self._options.check_readable()
        self._target: int | None = None

    @override
    def initialOffset(self) -> dict[str, Any]:
        return _offset(0)

    @override
    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadMaxRows(self._options.max_rows)

    @override
    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        first, head = _event(start), self._head()
        if isinstance(limit, ReadAllAvailable):
            most = self._generator.rows_before(max(head, first))
        else:
            most = limit.max_rows if isinstance(limit, ReadMaxRows) else self._options.max_rows
        return _offset(micro_batch_end(self._generator, first, head, most))

    @override
    def reportLatestOffset(self) -> dict[str, Any]:
        return _offset(self._head())

    @override
    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._head()

    @override
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return self._rows.split(_event(start), _event(end))

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.read(partition)

    @override
    def commit(self, end: dict[str, Any]) -> None:
        """Do nothing: all rows can be made again."""

    def _head(self) -> int:
        return self._options.due(self._clock.now_ms()) if self._target is None else self._target


class _GeneratorSource(DataSource):
    """A generator as a data source of Spark; subclasses set `format`."""

    format: str

    @classmethod
    @override
    def name(cls) -> str:
        return spark_format(cls.format)

    @override
    def schema(self) -> str:
        return schema_of(self.format, self._typed_options)

    @override
    def reader(self, schema: StructType) -> DataSourceReader:
        return GeneratorBatchReader(self._rows(schema))

    @override
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return GeneratorStreamReader(self._rows(schema))

    def _rows(self, schema: StructType) -> _Rows:
        return _Rows(self.format, dict(self._typed_options), tuple(schema.names))

    @property
    def _typed_options(self) -> Mapping[str, str]:
        return cast("Mapping[str, str]", self.options)


class AuctionSource(_GeneratorSource):
    """`auction`."""

    format = "auction"


class CounterSource(_GeneratorSource):
    """`counter`."""

    format = "counter"


class NexmarkSource(_GeneratorSource):
    """`nexmark`."""

    format = "nexmark"


SOURCES: Final[tuple[type[DataSource], ...]] = (AuctionSource, CounterSource, NexmarkSource)
"""The data sources of all generators."""


def _offset(event: int) -> dict[str, Any]:
    return {"v": _VERSION, "event": event}


def _event(offset: Mapping[str, Any]) -> int:
    event = offset.get("event")
    if offset.get("v") != _VERSION or type(event) is not int:
        raise InvalidUsage(
            f"{dict(offset)} is no offset of a load generator",
            code="FOREIGN_OFFSET",
            hint="the checkpoint belongs to another source: use a new one",
        )
    return event

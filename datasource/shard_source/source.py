"""`format("shard")`: where Spark's hooks meet ours. Glue, without decisions of its own."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import LongType, StructField, StructType
from typing_extensions import override

from datasource.errors import InvalidUsage
from datasource.read import current_schema
from datasource.schema import DIFF, TS
from datasource.shard_sink.sink import batch_writer, stream_writer
from datasource.shard_source.batch_reader import ShardBatchReader
from datasource.shard_source.options import SourceOptions, parse_source
from datasource.shard_source.planner import open_client
from datasource.shard_source.stream import ShardStreamReader

__all__ = ["ShardDataSource"]

_UPDATE = (
    StructField(TS, LongType(), nullable=False),
    StructField(DIFF, LongType(), nullable=False),
)


class ShardDataSource(DataSource):
    """Reads and writes shards.

    Rows have the shard's columns. A batch read gives the contents at one time; a stream starts with
    them and goes on with every row that is added, and fails at the first one that is retracted.
    With `readChangeFeed=true` either gives updates: the columns, then `_ts` and `_diff`.

    (Spark asks for the schema before it says whether a batch or a stream is loaded, and gives the
    same options in both cases. So what tells rows from updates has to be an option; this one means
    the same to Delta's users.)
    """

    @classmethod
    @override
    def name(cls) -> str:
        """The short name in `format("shard")`."""
        return "shard"

    @override
    def schema(self) -> StructType:
        """The schema of a read: of the shard, or of the columns asked for, as it is now.

        Called once per `load()`, in a helper process.
        """
        options = parse_source(self._given)
        state = open_client(options).state(options.shard)
        schema = current_schema(state)
        chosen = schema if options.columns is None else schema.select(options.columns)
        struct = StructType.fromJson(json.loads(chosen.json))
        return StructType([*struct.fields, *_UPDATE]) if options.read_change_feed else struct

    @property
    def _given(self) -> Mapping[str, str]:
        return cast("Mapping[str, str]", self.options)

    @override
    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_source(self._given)
        return ShardBatchReader(options, _wanted(options, schema))

    @override
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = parse_source(self._given)
        return ShardStreamReader(options, _wanted(options, schema))

    @override
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return batch_writer(self._given, schema, overwrite=overwrite)

    @override
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return stream_writer(self._given, schema, overwrite=overwrite)


def _wanted(options: SourceOptions, schema: StructType) -> tuple[str, ...]:
    """The shard's columns in a schema that Spark hands back: ours, or one that the user gave.

    Raises:
        InvalidUsage: The user's schema leaves out the columns of an update.
    """
    names = schema.names
    if not options.read_change_feed:
        return tuple(names)
    if tuple(names[-2:]) != (TS, DIFF):
        raise InvalidUsage(
            f"a change feed's schema must end with '{TS}' and '{DIFF}', not {names[-2:]}",
            code="SCHEMA_MISMATCH",
            hint="leave schema() out and choose columns with the option 'columns'",
        )
    return tuple(names[:-2])

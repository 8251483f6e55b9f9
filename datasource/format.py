"""Registers shards with Spark as `format("shard")`, for reads and writes, batches and streams.

Spark finds a Python data source by its class, and calls one hook of it for each kind of use. Each
hook here parses the options and passes them on to `shard_source` or `shard_sink`; nothing is
decided in this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType
from typing_extensions import override

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.read import current_schema
from shardline.datasource.shard_sink.writers import batch_writer, stream_writer
from shardline.datasource.shard_source.batch_reader import ShardBatchReader
from shardline.datasource.shard_source.options import parse_source
from shardline.datasource.shard_source.partition_planner import open_client
from shardline.datasource.shard_source.row_shape import RowShape
from shardline.datasource.shard_source.stream import RefusedStreamReader, ShardStreamReader
from shardline.datasource.shard_source.worker_errors import as_one_sentence

__all__ = ["ShardDataSource"]


class ShardDataSource(DataSource):
    """Reads and writes shards.

    Rows have the shard's columns. A batch read gives the contents at one time; a stream starts with
    them and goes on with every row that is added, and fails at the first one that is retracted.
    With `readChangeFeed=true` either gives updates: the columns, then `_ts` and `_diff`, or with
    `changeFormat=cdf` the columns of Delta's change feed. `shards=a,b,c` reads several shards up to
    one frontier.

    (Spark asks for the schema before it knows if a batch or a stream is loaded, and passes the same
    options in both cases. So rows or updates must be chosen by an option; this one means the same
    in Delta.)
    """

    @classmethod
    @override
    def name(cls) -> str:
        """The short name in `format("shard")`."""
        return "shard"

    @override
    @as_one_sentence
    def schema(self) -> StructType:
        """The schema of a read: that of its shards, or of the chosen columns, as it is now.

        Called once per `load()`, in a helper process.
        """
        options = parse_source(self._typed_options)
        client = open_client(options)
        schemas = [current_schema(client.state(name)) for name in options.inputs]
        if options.where is not None:
            for schema in schemas:
                options.where.bind(schema)  # unknown columns fail at load(), not in the first job
        return RowShape.now(options, schemas).struct

    @property
    def _typed_options(self) -> Mapping[str, str]:
        return cast("Mapping[str, str]", self.options)

    @override
    @as_one_sentence
    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_source(self._typed_options)
        return ShardBatchReader(options, RowShape.of(options, schema))

    @override
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        try:
            options = parse_source(self._typed_options)
        except InvalidUsage as error:
            return RefusedStreamReader(error)
        return ShardStreamReader(options, RowShape.of(options, schema))

    @override
    @as_one_sentence
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return batch_writer(self._typed_options, schema, overwrite=overwrite)

    @override
    @as_one_sentence
    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        return stream_writer(self._typed_options, schema, overwrite=overwrite)

"""The columns of a read have a name each, or the read is refused before any task runs."""

from __future__ import annotations

import pyarrow as pa
import pytest

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.shard_source.options import SourceOptions
from shardline.datasource.shard_source.row_shape import RowShape
from support.fakes.engine import options_of
from support.models.shards import schema_of


def named(*columns: str) -> pa.Schema:
    return pa.schema([pa.field(name, pa.int64()) for name in columns])


def rows_alone(**given: str) -> SourceOptions:
    return options_of(readChangeFeed="unset", **given)


@pytest.mark.parametrize("column", ["_change_type", "_commit_timestamp", "_commit_version"])
def test_a_column_that_the_feed_adds_is_not_in_the_shard(column: str) -> None:
    """Names that differ by case are two names; and rows without the feed have no such column."""
    shards = [schema_of(named("id", column))]
    with pytest.raises(InvalidUsage, match=f"RESERVED_COLUMN.*'{column}' of the shard.*`columns`"):
        RowShape.now(options_of(changeFormat="cdf"), shards)
    without = RowShape.now(options_of(changeFormat="cdf", columns="id"), shards)
    assert without.struct.names.count(column) == 1
    assert RowShape.now(rows_alone(), shards).struct.names == ["id", column]
    upper = [schema_of(named("id", column.upper()))]
    assert column.upper() in RowShape.now(options_of(changeFormat="cdf"), upper).struct.names


def test_a_shard_is_not_called_as_a_column_that_is_added() -> None:
    """Each of several shards is a column."""
    both = [schema_of(), schema_of()]
    with pytest.raises(InvalidUsage, match=r"RESERVED_COLUMN.*shard '_input'.*by itself"):
        RowShape.now(rows_alone(shards="_input,b"), both)
    with pytest.raises(InvalidUsage, match=r"RESERVED_COLUMN.*shard '_ts'.*another feed"):
        RowShape.now(options_of(shards="_ts,b", readChangeFeed="true"), both)
    assert RowShape.now(rows_alone(shards="_ts,b"), both).struct.names == ["_input", "_ts", "b"]

"""Merges one range of a large merge in an executor: reads, merges and stages its rows.

A task carries all that it needs, so it reads and writes blobs only. Spark may run it again, or side
by side with another attempt of itself: each writes parts of its own, and the orphan sweep deletes
those that are not in the job's result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shardline.datasource.filters.parser import Where
from shardline.datasource.parts.contents import Contents
from shardline.datasource.parts.fetch import Fetcher
from shardline.datasource.parts.merge_parts import Merger, MergeSource, Tally
from shardline.datasource.parts.stage import Stager
from shardline.datasource.settings import ShardSettings
from shardline.datasource.shard.batch import Run
from shardline.datasource.shard.description import Description
from shardline.datasource.shared_client import shared_client
from shardline.datasource.spark_compaction.ranges import RowRange
from shardline.datasource.types.schema import ShardSchema

__all__ = ["MergeTask", "RangeResult", "merge_range"]


@dataclass(frozen=True, slots=True)
class MergeTask:
    """One range of one merge: plain data, pickled into a Spark task.

    Attributes:
        location: URL of the location.
        storage: Options of its store.
        settings: Settings of the driver's client.
        name: Name of the shard.
        directory: Directory of the shard, below the location.
        schemas: Schemas of the shard by id, as JSON text.
        schema_id: Id of the schema of the result.
        key: The shard's key.
        desc: Description of the merged batch, for errors.
        since: Earlier times become this one; None leaves times alone.
        sources: The parts that may have rows in the range.
        rows: The range.
    """

    location: str
    storage: Mapping[str, str]
    settings: ShardSettings
    name: str
    directory: str
    schemas: Mapping[int, str]
    schema_id: int
    key: tuple[str, ...]
    desc: Description
    since: int | None
    sources: tuple[MergeSource, ...]
    rows: RowRange

    @property
    def size_bytes(self) -> int:
        """Encoded size of the parts that may have rows in the range: the most that is read."""
        return sum(planned.part.size_bytes for one in self.sources for planned in one.parts)


@dataclass(frozen=True, slots=True)
class RangeResult:
    """The result of a task: staged parts in order, and the tally of the rows that it read."""

    runs: tuple[Run, ...]
    read: Tally


def merge_range(task: MergeTask) -> RangeResult:
    """Merge one range and stage the result. Runs in an executor, once per attempt.

    Raises:
        MissingBlob: A part is missing.
        Corrupt: A part is damaged, or the diffs of input and output do not add up.
    """
    client = shared_client(task.location, task.storage, create=False, settings=task.settings)
    blob = client.location.blob
    schemas = {number: ShardSchema.parse(text) for number, text in task.schemas.items()}
    schema = schemas[task.schema_id]
    where = Where(f"{task.rows.column} is in one range of a merge", task.rows)
    fetcher = Fetcher(blob, schemas, schema, where if task.rows.is_cut else None)
    stager = Stager(
        blob,
        task.directory,
        schema,
        task.schema_id,
        task.key,
        task.settings,
        client.clock,
        client.ids,
        may_inline=False,
    )
    merger = Merger(
        name=task.name,
        desc=task.desc,
        contents=Contents(fetcher, task.key, schema.names),
        stager=stager,
        since=task.since,
        memory_bytes=task.settings.compact_memory_bytes,
    )
    merged = merger.merge(task.sources)
    return RangeResult(merged.runs, merged.read)

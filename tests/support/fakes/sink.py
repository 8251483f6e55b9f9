"""Plays Spark for the sink: processes share nothing but pickled writers and messages."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest
from pyspark import TaskContext
from pyspark.sql.pandas.types import from_arrow_schema

from shardline.datasource.errors import ShardError
from shardline.datasource.shard_sink import writers as sink
from support.models.shards import TINY, World

if TYPE_CHECKING:
    import pyarrow as pa

    from shardline.datasource.client import ShardClient
    from support.models.shards import Mortal

__all__ = ["SHARD", "Engine", "engine"]

SHARD: Final = "out"

_SETTINGS: Final = dataclasses.replace(TINY, compact_inline_bytes=0)
"""Without merges: what is stored is what the sink staged."""

_OPTIONS: Final = {
    "location": "memory://unused",
    "shard": SHARD,
    "partBufferBytes": str(TINY.part_buffer_bytes),
    "rowGroupRows": str(TINY.row_group_rows),
    "inlinePartBytes": str(TINY.inline_part_bytes),
}


class FakeContext:
    """What a task sees of its query."""

    def getLocalProperty(self, key: str) -> str | None:  # noqa: N802 - Spark's name
        return "query-1" if key == "sql.streaming.queryId" else None


class Engine:
    """One streaming query, or batch writes, into the shard `SHARD` of a world."""

    def __init__(
        self, world: World, patch: pytest.MonkeyPatch, options: Mapping[str, str], kind: pa.Schema
    ) -> None:
        self.world = world
        self.patch = patch
        self._options = {**_OPTIONS, **options}
        self._struct = from_arrow_schema(kind)
        patch.setattr(TaskContext, "get", FakeContext)
        self.client = self.process()

    def process(self, objects: Mortal | None = None) -> ShardClient:
        """A new process: whatever the sink opens from here on is this client."""
        self.client = self.world.client(_SETTINGS, objects)
        self.patch.setattr(sink, "open_client", lambda *_, **__: self.client)
        return self.client

    def writer(self, *, overwrite: bool = False) -> Any:
        """What Spark makes for a micro-batch, and again to commit or abort it."""
        return sink.stream_writer(self._options, self._struct, overwrite=overwrite)

    def stage(self, writer: Any, *tasks: pa.Table) -> list[Any]:
        """Run the tasks of a micro-batch: their messages."""
        return [
            pickle.loads(pickle.dumps(writer)).write(iter(task.to_batches()))  # noqa: S301
            for task in tasks
        ]

    def micro_batch(self, number: int, *tasks: pa.Table, overwrite: bool = False) -> None:
        """One attempt at one micro-batch."""
        messages = self.stage(self.writer(overwrite=overwrite), *tasks)
        try:
            self.writer(overwrite=overwrite).commit(messages, number)
        except ShardError:
            self.writer(overwrite=overwrite).abort(messages, number)
            raise

    def batch_writer(self, *, overwrite: bool = False, **options: str) -> Any:
        """What Spark makes for a batch write."""
        given = {**self._options, **options}
        return sink.batch_writer(given, self._struct, overwrite=overwrite)

    def save(self, *tasks: pa.Table, overwrite: bool = False, **options: str) -> None:
        """One batch write."""
        writer = self.batch_writer(overwrite=overwrite, **options)
        messages = self.stage(writer, *tasks)
        try:
            pickle.loads(pickle.dumps(writer)).commit(messages)  # noqa: S301
        except ShardError:
            writer.abort(messages)
            raise

    def blobs(self) -> set[str]:
        """Keys of all parts that are stored."""
        return {entry.key for entry in self.world.objects().entries(f"{SHARD}/part/")}

    def parts(self) -> set[str]:
        """Keys of all stored parts that the shard refers to."""
        state = self.world.client(TINY).state(SHARD)
        return {p.key for b in state.trace.batches for p in b.parts if p.inline is None}


@contextmanager
def engine(
    kind: pa.Schema, options: Mapping[str, str] | None = None, world: World | None = None
) -> Iterator[Engine]:
    """An engine that writes frames of the Arrow schema `kind` with these options of the sink."""
    own = world or World()
    with pytest.MonkeyPatch.context() as patch:
        yield Engine(own, patch, options or {}, kind)
    own.close()

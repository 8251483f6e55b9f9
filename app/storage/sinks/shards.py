"""A sink of shards copies an object into another shard, exactly once.

Exactly once comes from the idempotency token of each append: the sink's definition and the number
of the interval.

With the envelope diff the copy is definite: updates keep their times, and the copy's upper follows
the input's, so that its contents at any time equal the input's. With the other envelopes rows take
effect when they are committed.

Invariants:
    The shard remembers the token for ever: an interval that it has is not appended again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyspark.sql import DataFrame

from shardline.app.execution.host import Host
from shardline.app.protocol.objects import SinkDescription, fingerprint
from shardline.app.storage.sinks.interval import Interval, frontier_of
from shardline.app.storage.sinks.rows import DELETED
from shardline.app.storage.sinks.target import Written, cached_rows
from shardline.datasource.client import ShardClient
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard_source.options import parse_sink
from shardline.datasource.shard_source.partition_planner import open_client
from shardline.datasource.spark_native.save import save
from shardline.datasource.types.schema import TS

__all__ = ["ShardTarget"]


class ShardTarget:
    """A shard that a sink writes to; with the envelope diff nothing else may write to it."""

    input = ""

    def __init__(self, host: Host, sink: SinkDescription, options: Mapping[str, str]) -> None:
        """Open the shard's location; the shard itself is made by the first write.

        Raises:
            InvalidUsage: An option is unknown, or no shard is named.
        """
        given = dict(options)
        names = {name.lower() for name in given}
        if not names & {"path", "location"}:
            given["location"] = host.client.location.url
        self._given: dict[str, str] = {**host.storage, **given, **_envelope(sink)}
        self._mirror = sink.envelope == "diff"
        parsed = parse_sink(self._given)
        self._shard = parsed.shard
        self._client: ShardClient = open_client(parsed, create=True)
        self._app = f"sink:{sink.name}:{fingerprint(sink)}"

    def committed(self) -> Frontier | None:
        """The upper of the sink's last append; None if there was none."""
        if not self._client.exists(self._shard):
            return None
        writer = self._client.state(self._shard).writers.get(f"app:{self._app}")
        return None if writer is None else frontier_of(writer.last)

    def write(self, rows: DataFrame, interval: Interval) -> Written:
        """Append the rows under the interval's number."""
        # No covered range of Spark's offsets: the number is a time of the input, and the rows begin
        # where the shard ends. How Spark cuts them into micro-batches may change with a checkpoint.
        options: dict[str, Any] = {**self._given, "txnRange": ""}
        with cached_rows(rows.drop(TS) if DELETED in rows.columns else rows) as frame:
            save(frame, txn=(self._app, interval.number), options=options)
            count = frame.count()
        self.skip(interval)
        return Written(count)

    def skip(self, interval: Interval) -> None:
        """Move the copy's upper to the interval's, for the envelope diff."""
        if not self._mirror or not self._client.exists(self._shard):
            return
        upper = self._client.state(self._shard).upper
        if upper < interval.upper:
            self._client.writer(self._shard).compare_and_append(None, upper, interval.upper)


def _envelope(sink: SinkDescription) -> dict[str, str]:
    """Options of the write by which the shard takes the rows of the sink's envelope."""
    key = {"key": ",".join(sink.key)} if sink.key else {}
    match sink.envelope:
        case "upsert":
            return {"envelope": "upsert", "deleteColumn": DELETED, **key}
        case "debezium":
            order = {"orderingColumn": "ts_ms"} if sink.key else {}
            return {"envelope": "debezium", **order, **key}
        case "diff":
            return {"envelope": "diff", **key}
        case _:
            return key

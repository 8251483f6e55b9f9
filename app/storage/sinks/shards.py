"""A sink of shards copies an object into another shard, exactly once.

Exactly once comes from the idempotency token of each append: the sink's definition and the number
of the interval.

With the envelope diff the copy is definite: updates keep their times, and the copy's upper follows
the input's, so that its contents at any time equal the input's. With the other envelopes rows take
effect when they are committed.

Columns that the input gets, and wider types, come into the shard as well, once it has rows of this
sink: until then it may be one that was named by mistake, and is refused.

Invariants:
    A shard that an object of the same location keeps is refused, whatever path leads to it: a sink
    that wrote to its own input would feed itself without end.
    A shard that has the rows of another definition is refused, unless rows are written by key: the
    contents that a sink begins with would be there twice.
    The shard remembers the token for ever: an interval that it has is not appended again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import DataFrame

from shardline.app.execution.host import Host
from shardline.app.protocol.fingerprint import accepted_fingerprints, fingerprint
from shardline.app.protocol.objects import SinkDescription, is_runtime_shard, state_shards
from shardline.app.storage.sinks.interval import Interval, frontier_of
from shardline.app.storage.sinks.progress import is_progress
from shardline.app.storage.sinks.rows import DELETED
from shardline.app.storage.sinks.target import Written, cached_rows, evolving, target_taken
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frames import save
from shardline.datasource.frontier import Frontier
from shardline.datasource.schema import TS
from shardline.datasource.sink import open_client, parse_sink
from shardline.datasource.state import Writer

__all__ = ["ShardTarget"]

_SINKS: Final = "app:sink:"
"""Writers of sinks begin so in the state of a shard: sink and definition come behind it."""


class ShardTarget:
    """A shard that a sink writes to; with the envelope diff nothing else may write to it."""

    input = ""

    def __init__(
        self,
        host: Host,
        sink: SinkDescription,
        options: Mapping[str, str],
        recorded: Frontier | None,
    ) -> None:
        """Open the shard's location; the shard itself is made by the first write.

        Args:
            host: Of the sink.
            sink: Writes to the shard.
            options: Of the target.
            recorded: How far the shard is by the sink's progress; None if that has nothing.

        Raises:
            InvalidUsage: An option is unknown, no shard is named, an object keeps it, or it has the
                rows of another definition, which this one would write once more.
        """
        given = dict(options)
        names = {name.lower() for name in given}
        if not names & {"path", "location"}:
            given["location"] = host.client.location.url
        self._options: dict[str, str] = {**host.storage, **given, **_envelope(sink)}
        self._mirror = sink.envelope == "diff"
        self._replaces = sink.envelope == "upsert"
        parsed = parse_sink(self._options)
        self._shard = parsed.shard
        if is_runtime_shard(self._shard):
            # The lane's log, or that of transactions: an upper that is moved there ends both.
            raise InvalidUsage(
                f"sink '{sink.name}' writes to '{self._shard}', a shard of a runtime itself",
                code="RESERVED_NAME",
                hint="choose a shard whose name does not start with _",
            )
        self._client: ShardClient = open_client(parsed, create=True)
        self._refuse_shards_of_objects(host, sink)
        self._app = f"sink:{sink.name}:{fingerprint(sink)}"
        # An earlier version has written under another fingerprint of the same definition.
        self._writers = [f"{_SINKS}{sink.name}:{one}" for one in accepted_fingerprints(sink)]
        if recorded is None:
            self._refuse_rows_of_others(sink)

    def committed(self) -> Frontier | None:
        """The upper of the sink's last append; None if there was none."""
        known = self._known_writers()
        last = [known[name].last for name in self._writers if name in known]
        return frontier_of(max(last)) if last else None

    def has_taken(self, upper: Frontier) -> bool:
        """False if the newest append of the sink is before `upper`, or there is none."""
        there = self.committed()
        return there is not None and there >= upper

    def write(self, rows: DataFrame, interval: Interval) -> Written:
        """Append the rows under the interval's number."""
        # No covered range of Spark's offsets: the number is a time of the input, and the rows begin
        # where the shard ends. How Spark cuts them into micro-batches may change with a checkpoint.
        options: dict[str, Any] = {**self._options, "txnRange": ""}
        options |= evolving(self._options, self.committed())
        with cached_rows(rows.drop(TS) if self._replaces else rows) as frame:
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

    def _known_writers(self) -> Mapping[str, Writer]:
        client = self._client
        return client.state(self._shard).writers if client.exists(self._shard) else {}

    def _refuse_shards_of_objects(self, host: Host, sink: SinkDescription) -> None:
        """Refuse a shard that an object of the sink's own location keeps.

        Of one that is named without a path a plan says so. Where a path leads is known only now.

        Raises:
            InvalidUsage: An object keeps it.
        """
        here, there = host.client.location, self._client.location
        if (there.id or there.url) != (here.id or here.url):
            return
        keeper = "its own input" if self._shard == sink.on else _keeper(self._client, self._shard)
        if keeper:
            raise InvalidUsage(
                f"sink '{sink.name}' writes to '{self._shard}', a shard of {keeper}",
                code="RESERVED_NAME",
                hint="nothing but the object itself may write it: choose another shard",
            )

    def _refuse_rows_of_others(self, sink: SinkDescription) -> None:
        """Refuse a shard to which what the sink begins with would come twice.

        Raises:
            InvalidUsage: A sink has written it, and it was not this definition.
        """
        # By key rows replace what is there.
        if sink.envelope == "upsert" or (sink.envelope == "debezium" and sink.key):
            return
        known = self._known_writers()
        mine = max((known[name].last for name in self._writers if name in known), default=None)
        # Without a snapshot nothing comes that is there. One that has been here before goes on
        # where it was, and what others have written since would come again.
        if mine is None and not sink.snapshot:
            return
        # A copy has one writer. A shard that takes rows as they come may have those of many sinks.
        others = _SINKS if self._mirror else f"{_SINKS}{sink.name}:"
        since = -1 if mine is None else mine
        newer = (n for n, w in known.items() if n.startswith(others) and w.last > since)
        found = next(newer, None)
        if found is not None:
            owner = found.removeprefix(_SINKS).rpartition(":")[0]
            way_out = "give the sink another shard, or drop this one"
            if not self._mirror:
                way_out += ", or rename the sink if another location has one that fills it"
            raise target_taken(f"shard '{self._shard}'", owner, way_out)


def _keeper(client: ShardClient, shard: str) -> str:
    """The object that keeps a shard, in words; "" if none does."""
    view = shard.rpartition("_state_")[0]
    if shard in state_shards(view) and _times_by(client, view) == f"view {view}":
        return f"view {view}"
    if client.exists(shard) and is_progress(client.state(shard)):
        return "a sink"
    by = _times_by(client, shard)
    return by if by.startswith(("source ", "view ")) else ""


def _times_by(client: ShardClient, shard: str) -> str:
    """Who chooses the times of a shard: sources and views note it in theirs, but for states."""
    return client.state(shard).times_by if client.exists(shard) else ""


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

"""`EXPLAIN` predicts the strategy by which a query would be answered now, and gives the reason.

    explain_peek(client, query, inputs, …) -> Explanation("index", "looked up by carrier in …")

It asks the same questions as `answer`, in the same order, and reads nothing but one state.

Invariants:
    The prediction is right if nothing changes meanwhile and indexes have caught up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass

from shardline.app.compute.peek.fast_path import (
    Select,
    lookup_keys,
    read_simple_select,
    spark_schema,
)
from shardline.app.execution.shard_follower import ShardFollower
from shardline.app.protocol.compute import PeekStrategy
from shardline.app.protocol.objects import IndexDescription
from shardline.datasource.client import ShardClient
from shardline.datasource.schema import ShardSchema
from shardline.datasource.state import volume_of

__all__ = ["Explanation", "explain_peek"]


@dataclass(frozen=True, slots=True)
class Explanation:
    """A strategy of `answer`, and the reason for it as a sentence."""

    strategy: PeekStrategy
    reason: str


def explain_peek(
    client: ShardClient,
    query: str,
    inputs: Sequence[str],
    as_of: int | None,
    *,
    indexes: Iterable[IndexDescription],
    zone: str,
    shard_bytes: int,
) -> Explanation:
    """The strategy by which a query is answered, and the reason.

    Args:
        client: Client of the location.
        query: The text, as in a `Peek`.
        inputs: Names of objects and relations, as in a `Peek`.
        as_of: Its time; None for the latest.
        indexes: All indexes of the application.
        zone: Time zone of the session.
        shard_bytes: As in `PeekSettings`.

    Raises:
        InvalidUsage: The history at `as_of` is gone.
    """
    objects = [name for name in inputs if "." not in name]
    if not inputs:
        return Explanation("constant", "it reads no object")
    if len(objects) < len(inputs):
        return Explanation("standard", "it reads relations of introspection")
    if len(objects) > 1:
        return Explanation("standard", "it reads several objects")
    (name,) = objects
    with closing(ShardFollower.open(client, name, since=as_of, purpose="explain")) as shard:
        select = read_simple_select(query, name, shard.schema, zone)
        if select is None:
            return Explanation(
                "standard", "it is more than columns, a simple condition and a LIMIT"
            )
        if spark_schema(shard.schema) is None:
            return Explanation("standard", "a column's type has another form in Spark's results")
        there = [one for one in indexes if one.on == name]
        return _indexed(select, there, shard.schema) or _read(shard, select, as_of, shard_bytes)


def _indexed(
    select: Select, indexes: Sequence[IndexDescription], schema: ShardSchema
) -> Explanation | None:
    for one in indexes:
        key = one.key or tuple(schema.names)
        if lookup_keys(select, key, schema) is not None:
            return Explanation("index", f"looked up by {', '.join(key)} in '{one.name}'")
    if not indexes:
        return None
    first = indexes[0]
    key = first.key or tuple(schema.names)
    return Explanation(
        "index", f"scanned in '{first.name}': no condition gives a value for {', '.join(key)}"
    )


def _read(shard: ShardFollower, select: Select, as_of: int | None, shard_bytes: int) -> Explanation:
    state = shard.look()
    latest = state.upper.time
    time = as_of if as_of is not None or latest is None else max(latest - 1, 0)
    plan = shard.plan(state, time or 0, select.where)
    planned = plan.planned
    size = volume_of(planned).size_bytes
    volume = f"{size:,} bytes of {len(planned)} parts are to be read"
    if size <= shard_bytes:
        return Explanation("shard", f"{volume}, no more than {shard_bytes:,}")
    return Explanation(
        "standard",
        f"{volume}, more than {shard_bytes:,} (direct_read_limit), and there is no index",
    )

"""The output of a view: its shard and its errors shard, written as one.

    look()            how far the output is, whether this definition wrote it last
    append(step, …)   a step of the view, as one compare-and-append on each of the two
    follow(step)      the same without rows

The errors come first: they are settled at a time before the contents are, so that whoever sees that
the contents are settled can know whether they count. Both are written by a durable writer whose
name is made of the definition: the query, the columns, the settings that decide what the query
means, and the very shards that it reads. So the
output itself says, for ever and to anybody, whether what it holds is of this definition; its number
is the upper that it appends up to, so that a step is taken once, whoever tries it.

Invariants:
    The errors shard's upper is never behind the output's, but for a moment of a first start.
    Nothing is appended before `gate` has let it pass.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence

import msgspec
import pyarrow as pa

from shardline.app.compute.errors import ERRORS_SCHEMA
from shardline.app.compute.view.next_step import Linear, Output, Quiet, Recompute
from shardline.app.execution.object_shards import make_shard, schema_of
from shardline.app.protocol.objects import ViewDescription, errors_shard
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import TIME_MAX, Frontier
from shardline.datasource.read import current_schema
from shardline.datasource.shard.commands.append import Appended
from shardline.datasource.shard.state import ShardState
from shardline.datasource.spark_native.time_interval import StagedInterval
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.write import WriteHandle

__all__ = ["ViewSink", "writer_name"]

_log = logging.getLogger(__name__)


def writer_name(
    description: ViewDescription, shards: Sequence[str], meaning: Sequence[str] = ()
) -> str:
    """Name of the durable writer of a definition.

    Args:
        description: How the view is kept, and for how long, does not count: contents are the same.
        shards: Ids of the inputs' shards, in the order of `description.inputs`.
        meaning: What the session's settings make of the query
            (`shardline.app.compute.view.session_settings`).
    """
    parts = (description.query, description.schema, *description.inputs, *shards, *meaning)
    encoded = msgspec.json.encode(parts)
    return f"view:{hashlib.blake2b(encoded, digest_size=8).hexdigest()}"


class ViewSink:
    """Writes the output of one rendering of a view. Used by one thread at a time."""

    def __init__(
        self,
        client: ShardClient,
        description: ViewDescription,
        shards: Sequence[str],
        gate: Callable[[], None],
        meaning: Sequence[str] = (),
    ) -> None:
        """A sink of the definition over the input shards with these ids; no I/O.

        Args:
            gate: Raises if nothing may be appended any more.
            meaning: See `writer_name`.
        """
        self.writer = writer_name(description, shards, meaning)
        self._client = client
        self._description = description
        self._name = description.name
        self._errors = errors_shard(description.name)
        self._gate = gate
        self._handles: dict[str, WriteHandle] = {}
        self._failing: tuple[int, frozenset[str]] = (0, frozenset())

    def make(self) -> None:
        """Let both shards be there with their columns.

        Columns that a definition adds or widens are evolved. A shard with other columns cannot hold
        the new contents beside the old ones: it is dropped and made again, whoever reads it. Views
        of it find that their checkpoint belongs to another shard, and are hydrated anew.
        """
        self._gate()
        client, name = self._client, self._name
        if client.exists(name) and not self._fits(schema_of(self._description.schema)):
            state = client.state(name)
            client.drop(name, despite_holders=[*state.leased, *state.critical])
        make_shard(client, self._description, self._description.schema)
        retain_ms = self._description.retain_ms
        client.create(self._errors, ERRORS_SCHEMA, retain_ms=retain_ms)
        client.set_retention(self._errors, retain_ms)
        self._handles = {shard: self._handle(shard) for shard in (name, self._errors)}

    def _fits(self, wanted: ShardSchema) -> bool:
        """Whether the shard has the wanted columns, or has them now."""
        if current_schema(self._client.state(self._name)) == wanted:
            return True
        try:
            self._client.evolve(self._name, wanted)
        except InvalidUsage:
            return False
        return True

    def _handle(self, shard: str) -> WriteHandle:
        handle = self._client.writer(shard, self.writer)
        handle.redirect = self._client.redirect(shard)
        return handle

    def look(self) -> Output:
        """What there is, no older than this call; nothing at all if it was not made yet."""
        if not self._client.exists(self._name) or not self._client.exists(self._errors):
            return Output(0, ours=False, failing=False)
        output, errors = self._client.readable(self._name, self._errors)
        ours = self._wrote_last(output) and self._wrote_last(errors)
        return Output(output.upper.time, ours, failing=bool(self._known_errors(errors)))

    def append(
        self, step: Linear | Recompute, rows: StagedInterval | None, error: str | None
    ) -> bool:
        """Take a step; False if somebody else was faster, and it must be looked at again.

        Args:
            step: Starts at the output's upper.
            rows: Updates of the output, those of a recomputation without times; None for none.
            error: Why the query fails from this step on; None if it works.
        """
        at = step.at if isinstance(step, Recompute) else step.lower
        try:
            settled = self._settle_errors(at, step.upper, error)
            self._gate()
        except BaseException:
            if rows is not None:
                rows.discard()
            raise
        if not settled:
            if rows is not None:
                rows.discard()
            return False
        if rows is None:
            return self._move(self._name, step.lower, step.upper)
        outcome = rows.append(
            step.lower, step.upper, writer=self.writer, sequence=_number(step.upper), at=at
        )
        return isinstance(outcome, Appended)

    def follow(self, step: Quiet) -> bool:
        """Move both uppers over an interval in which nothing changes; False as `append`."""
        self._gate()
        [errors] = self._client.readable(self._errors)
        lower = errors.upper.time
        if Frontier(step.upper) > errors.upper:
            assert lower is not None, step
            if not self._move(self._errors, lower, step.upper):
                return False
        return self._move(self._name, step.lower, step.upper)

    def begin_at(self, as_of: int) -> None:
        """Let history start at `as_of`: before, an output that was just made holds nothing.

        Readers who asked for earlier times keep them, and what they find is nothing.
        """
        client = self._client
        for name in (self._name, self._errors):
            state = client.state(name)
            if state.since >= Frontier(as_of):
                continue
            self._gate()
            # A policy counts back from the upper, and times before the first were never there.
            client.set_retention(name, None)
            hold = client.hold(name, "begin", purpose="first time of a view")
            hold.downgrade(Frontier(as_of))
            hold.expire()
            client.set_retention(name, state.retain_ms)

    def _move(self, shard: str, lower: int, upper: int | None) -> bool:
        """Append nothing as `[lower, upper)`."""
        outcome = self._handles[shard].compare_and_append(
            None, Frontier(lower), Frontier(upper), sequence=_number(upper)
        )
        return isinstance(outcome, Appended)

    # -- errors ------------------------------------------------------------------------------

    def _settle_errors(self, at: int, upper: int | None, error: str | None) -> bool:
        """Let the errors shard say `error`, or nothing, from `at` on, settled up to `upper`.

        An errors shard that is ahead is one that a crash left so: what it must say differently, it
        says from its upper on. False if somebody else was faster.
        """
        [state] = self._client.readable(self._errors)
        known = self._known_errors(state)
        wanted = frozenset[str]() if error is None else frozenset([error])
        lower = state.upper.time
        if lower is None:
            return True
        until = Frontier(upper)
        if until <= Frontier(lower):
            if known == wanted:
                return True
            until = Frontier(lower + 1)
        self._gate()
        outcome = self._handles[self._errors].compare_and_append(
            _error_updates(known, wanted, max(at, lower)),
            Frontier(lower),
            until,
            sequence=_number(until.time),
        )
        if known != wanted:
            _log.info(
                "a view's query began or ceased to fail",
                extra={"context": {"view": self._name, "at": at, "error": error}},
            )
        return isinstance(outcome, Appended)

    def _known_errors(self, state: ShardState) -> frozenset[str]:
        """What the errors shard says right before its upper."""
        if not any(batch.parts for batch in state.trace.batches):
            return frozenset()
        if self._failing[0] != state.seqno:
            with self._client.reader(self._errors, purpose="view") as reader:
                table = reader.snapshot(None if state.upper.time is None else state.upper.time - 1)
            self._failing = (state.seqno, frozenset(table["error"].to_pylist()))
        return self._failing[1]

    def _wrote_last(self, state: ShardState) -> bool:
        mine = state.writers.get(self.writer)
        return mine is not None and mine.upper == state.upper.time


def _number(upper: int | None) -> int:
    return TIME_MAX + 1 if upper is None else upper


def _error_updates(known: frozenset[str], wanted: frozenset[str], at: int) -> pa.Table | None:
    """What turns the one set of errors into the other; None if they are the same."""
    updates = [(text, -1) for text in sorted(known - wanted)]
    updates += [(text, 1) for text in sorted(wanted - known)]
    if not updates:
        return None
    return pa.table(
        {
            "error": pa.array([text for text, _ in updates], pa.string()),
            "_ts": pa.array([at] * len(updates), pa.int64()),
            "_diff": pa.array([diff for _, diff in updates], pa.int64()),
        }
    )

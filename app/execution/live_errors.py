"""Live errors of an object, and of everything that it is made of, forbid to show its contents.

A row that cannot be decoded, or a query that fails, is a row in the errors shard of its object, for
as long as it is wrong. What is computed meanwhile lacks it, so it does not count, at any place that
shows contents: a query is refused, a subscription ends, a sink waits. They share the rule here.

    with InputErrors(client, "totals", catalog, purpose="…") as errors:
        states = errors.look(lower)             after the object itself was looked at
        errors.first(states, lower, upper)      the errors of the first time at which there are some
        errors.first_without(states, lower, upper)      the first time without any

Invariants:
    Error shards are looked for after the object was looked at: one that is made later has errors of
    later times only, because errors are written before the object's upper passes them.
    A time counts as one without errors only if the history of all error shards there can be read.
    Only objects that are inputs now count: a view that was changed no longer waits for the errors
    of what it read before, which may stand still or be gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import accumulate
from typing import Final, Protocol, Self

import pyarrow as pa
from typing_extensions import override

from shardline.app.execution.shard_follower import ShardFollower
from shardline.app.protocol.objects import errors_shard
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.schema import DIFF, TS, python_values
from shardline.datasource.state import ShardState

__all__ = [
    "EMPTY_CATALOG",
    "Catalog",
    "InputErrors",
    "LiveErrors",
    "find_error_shards",
    "find_live_errors",
]


class Catalog(Protocol):
    """The dependencies of objects, as far as reads need them."""

    def inputs_of(self, name: str) -> Collection[str]:
        """Names of all inputs of object `name`, direct and indirect."""
        ...


_RAW: Final = "raw"
"""The column of a source's errors that has the bad row; those of a view's query have none."""


class _EmptyCatalog(Catalog):
    """A catalog of objects without inputs."""

    @override
    def inputs_of(self, name: str) -> Collection[str]:
        return ()


EMPTY_CATALOG: Final[Catalog] = _EmptyCatalog()
"""A catalog for reads that have none: only errors of the object itself forbid the read."""


@dataclass(frozen=True, slots=True)
class LiveErrors:
    """Errors of one object that are live at a time.

    Attributes:
        object: Name of the object.
        at: The time.
        count: Number of errors.
        first: The text of one of them.
        of_source: Whether it is a source, whose bad rows `errors` takes away.
    """

    object: str
    at: int
    count: int
    first: str
    of_source: bool

    def error(self) -> InvalidUsage:
        """The error for a read that needs this object at this time.

        Without the time: a sink that waits meets the same errors at other times, and a history has
        one line for what stays the same.
        """
        many = "1 live error" if self.count == 1 else f"{self.count} live errors"
        return InvalidUsage(
            f"'{self.object}' has {many}, the first of them: {self.first:.500}",
            code="INPUT_HAS_ERRORS",
            hint=f"`errors {self.object}` shows them and takes them away; with a key, a later row "
            "of the same key does so too"
            if self.of_source
            else f"read '{errors_shard(self.object)}' for all of them; they go away when the rows "
            "that cause them are corrected or deleted",
        )


def find_error_shards(client: ShardClient, objects: Iterable[str]) -> dict[str, str]:
    """Names of the error shards that exist, by object."""
    named = {name: errors_shard(name) for name in sorted(set(objects))}
    return {name: shard for name, shard in named.items() if client.exists(shard)}


def find_live_errors(
    shard: ShardFollower, of: str, state: ShardState, as_of: int
) -> LiveErrors | None:
    """The errors of an object that are live at `as_of`; None if there are none.

    Args:
        shard: The error shard.
        of: Name of the object.
        state: State of the error shard, settled at `as_of`.
        as_of: The time.
    """
    count, first = 0, ""
    for batch in shard.contents(state, as_of):
        first = first or _first_error_text(batch, shard.schema.names)
        count += sum(batch.column(DIFF).to_pylist())
    return LiveErrors(of, as_of, count, first, _RAW in shard.schema.names) if count else None


def _first_error_text(batch: pa.RecordBatch, names: Sequence[str]) -> str:
    """The error text of the first row: column `error`, or else the first one."""
    column = "error" if "error" in names else names[0]
    # Python's `as_py` would raise for a text that quotes bytes of a row that are no UTF-8.
    return str(python_values(batch.column(column).slice(0, 1))[0])


class InputErrors:
    """The error shards of an object and of its inputs. A context manager that closes them.

    Its leases are a capability: they keep the history of the errors. When one is lost
    (`LeaseExpired`), nothing can be said any more, and its user begins again.
    """

    def __init__(self, client: ShardClient, on: str, catalog: Catalog, *, purpose: str) -> None:
        """Nothing is read yet.

        Args:
            client: Of the location.
            on: The object.
            catalog: Has its inputs.
            purpose: Who reads, for people.
        """
        self._client = client
        self._on = on
        self._catalog = catalog
        self._purpose = purpose
        self._shards: dict[str, ShardFollower] = {}

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give up all leases."""
        with ExitStack() as stack:
            for shard in self._shards.values():
                stack.callback(shard.close)
            self._shards.clear()

    def objects(self) -> set[str]:
        """The object and its inputs, as they are now."""
        return {self._on, *self._catalog.inputs_of(self._on)}

    def look(self, since: int) -> dict[str, ShardState]:
        """The states of all error shards that there are, by object; no older than this call.

        Those of objects that are no inputs any more are let go.

        Args:
            since: From where on the errors are asked for. A shard that is found for the first time
                is held from there on.

        Raises:
            InvalidUsage: Its history there is gone.
        """
        objects = self.objects()
        # First: the shard of an object that was removed may be gone, and could not be looked at.
        for of in self._shards.keys() - objects:
            self._let_go(of)
        for of, name in find_error_shards(self._client, objects - self._shards.keys()).items():
            self._shards[of] = self._open(name, since)
        return {of: shard.look() for of, shard in self._shards.items()}

    def _open(self, name: str, since: int) -> ShardFollower:
        """Open an error shard, held from `since` on."""
        return ShardFollower.open(self._client, name, since=since, purpose=self._purpose)

    def _let_go(self, of: str) -> None:
        """Give up the lease on the errors of an object that is no input any more."""
        self._shards.pop(of).close()

    def first(
        self, states: Mapping[str, ShardState], lower: int, upper: Frontier
    ) -> LiveErrors | None:
        """The errors at the first time of an interval at which some are live; None if none are.

        Args:
            states: From `look`, settled at all times of the interval.
            lower: Its first time.
            upper: Where it ends.
        """
        found = []
        for of, state in states.items():
            counts = _running_totals(self._counts(of, state, lower, upper))
            found += [(at, of) for at, live in counts.items() if live > 0][:1]
        if not found:
            return None
        at, of = min(found)
        return find_live_errors(self._shards[of], of, states[of], at)

    def first_without(
        self, states: Mapping[str, ShardState], lower: int, upper: Frontier
    ) -> int | None:
        """The first time of an interval at which no error is live; None if there is none."""
        total = {lower: 0}
        for of, state in states.items():
            for time, count in self._counts(of, state, lower, upper).items():
                total[time] = total.get(time, 0) + count
        return next((at for at, live in _running_totals(total).items() if live == 0), None)

    def release_before(self, time: int, states: Mapping[str, ShardState]) -> None:
        """Let history before `time` be compacted; takes effect within about two seconds.

        Raises:
            LeaseExpired: A lease is gone.
        """
        for of, shard in self._shards.items():
            shard.release_before(time, states[of])

    def _counts(self, of: str, state: ShardState, lower: int, upper: Frontier) -> dict[int, int]:
        """How many errors an object has at `lower`, and how many come or go at later times."""
        shard = self._shards[of]
        live = find_live_errors(shard, of, state, lower)
        found = {lower: 0 if live is None else live.count}
        # At the frontier `lower + 1` there may be nothing later, and nothing to be read.
        if Frontier(lower + 1) < upper:
            for batch in shard.changes(state, lower + 1, upper.time):
                times, diffs = batch.column(TS).to_pylist(), batch.column(DIFF).to_pylist()
                for time, diff in zip(times, diffs, strict=True):
                    found[time] = found.get(time, 0) + diff
        return found


def _running_totals(changes: Mapping[int, int]) -> dict[int, int]:
    """The sums of all changes up to each time, in order of time."""
    times = sorted(changes)
    return dict(zip(times, accumulate(changes[time] for time in times), strict=True))

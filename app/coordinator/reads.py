"""The reads of an application answer queries once (peeks) and follow changes (subscriptions).

They choose the time of each read, and leave its execution to the compute controller.

    reads = Reads(catalog, compute, limit_bytes=…, timeout_ms=…)
    reads.sql("SELECT * FROM delays AS OF 1700000000000")     a pyarrow.Table
    reads.sql("SELECT * FROM flights_errors")                 the errors that reads of it fail with
    reads.sql("SELECT * FROM flights_skipped")                rows that were left out of it
    reads.sql("EXPLAIN SELECT * FROM delays")                 the strategy, and the reason for it
    reads.sql("EXPLAIN VIEW delays")                          how it is kept up to date
    reads.subscribe("SUBSCRIBE delays WITHOUT SNAPSHOT")      its batches, in order

Invariants:
    A query without `AS OF` sees everything that was written before it was made, and never goes back
    behind an earlier one of any client (strict serializable).
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

import pyarrow as pa

from shardline.app.compute.peek.explain import explain_peek
from shardline.app.compute.results import from_ipc
from shardline.app.controller.compute import ComputeController
from shardline.app.controller.subscription import Subscription
from shardline.app.coordinator.oracle import Oracle
from shardline.app.introspection.live import DATABASE
from shardline.app.protocol.error_kinds import class_of
from shardline.app.protocol.graph import reachable_names
from shardline.app.protocol.objects import (
    Description,
    IndexDescription,
    SinkDescription,
    SourceDescription,
    ViewDescription,
    errors_shard,
    inputs_of,
    progress_shard,
    skipped_shard,
)
from shardline.app.sql.queries import SelectRequest, parse_explain, parse_select, parse_subscribe
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import (
    Determinate,
    Indeterminate,
    InvalidUsage,
    ShardError,
    unknown_name,
)
from shardline.datasource.frontier import Frontier
from shardline.datasource.read import check_begun, check_may_come, latest_readable

__all__ = ["Reads"]

_CODED: Final = re.compile(r"\[([A-Z][A-Z0-9_.]*)\] (.*?)(?: — hint: (.*))?", re.DOTALL)
"""An error of the runtime as text: code, sentence, hint."""


class Reads:
    """See the module. Safe to use from any thread."""

    def __init__(
        self,
        client: ShardClient,
        compute: ComputeController,
        running: Callable[[], Mapping[str, Description]],
        *,
        limit_bytes: int,
        timeout_ms: float,
        zone: Callable[[], str],
        shard_bytes: Callable[[], int],
        explain_view: Callable[[str], pa.Table],
        uncreated: Callable[[], Mapping[str, str]] = dict,
    ) -> None:
        """Make the reads of one application.

        Args:
            client: Of its location.
            compute: Executes queries and subscriptions.
            running: Returns the descriptions of all objects, by name.
            limit_bytes: Largest result of a query.
            timeout_ms: Time-out of a query that sets none itself.
            zone: Returns the time zone of the session.
            shard_bytes: Returns the `direct_read_limit` in force.
            explain_view: Answers `EXPLAIN VIEW`.
            uncreated: Returns why objects of the project are not created yet, by name.
        """
        self._client = client
        self._compute = compute
        self._running = running
        self._limit_bytes = limit_bytes
        self._timeout_ms = timeout_ms
        self._zone = zone
        self._shard_bytes = shard_bytes
        self._explain_view = explain_view
        self._uncreated = uncreated
        self._oracle = Oracle()

    def begin(self, sources: Iterable[Frontier]) -> None:
        """Begin after the reads of an earlier process: no strict read goes back behind its last.

        Args:
            sources: Uppers of all sources that it may have read, no older than its last read.
        """
        # No time of the oracle is stored. None was beyond the sources' uppers of then, and uppers
        # do not go back.
        self._oracle.choose_strict(sources)

    def sql(
        self,
        text: str,
        *,
        timeout_ms: float | None = None,
        cancelled: threading.Event | None = None,
    ) -> pa.Table:
        """Answer a query; see `Application.sql`."""
        explained = parse_explain(text)
        if isinstance(explained, str):
            return self._explain_view(explained)
        if explained is not None:
            return self._explain_query(explained)
        selected = parse_select(text)
        objects = _objects(selected)
        running = self._check_readable(objects, errors=True)
        self._check_begun(selected, running)
        as_of = self._given_time(objects, selected.as_of, running)
        if as_of is not None:
            self._check_may_come(objects, as_of, timeout_ms)
        response = self._compute.peek(
            selected.query,
            tuple(selected.inputs),
            self._choose_time(objects, running) if as_of is None else as_of,
            limit_bytes=self._limit_bytes,
            # As written: of a query without a time relations are those of the present, whatever
            # time was chosen for its objects.
            relations_as_of=selected.as_of,
            timeout_ms=self._timeout_ms if timeout_ms is None else timeout_ms,
            cancelled=cancelled,
        )
        if response.rows is None:
            raise _query_error(response.error or "the query was cancelled", response.kind)
        return from_ipc(response.rows)

    def subscribe(self, text: str) -> Subscription:
        """Follow an object; see `Application.subscribe`."""
        asked = parse_subscribe(text)
        self._check_readable([asked.on])
        as_of = asked.as_of
        if as_of is None:
            as_of = Oracle.choose_serializable([self._client.readable(asked.on)[0].upper])
            # Here, since the text has only one of the two times: times that it has itself are
            # compared when it is parsed.
            if asked.up_to is not None and asked.up_to <= as_of:
                raise InvalidUsage(
                    f"UP TO {asked.up_to} is not behind the time at which the subscription would "
                    f"begin, {as_of}: there is nothing to send",
                    code="INVALID_INTERVAL",
                    hint="give a later time, or AS OF an earlier one",
                )
        return self._compute.subscribe(
            asked.on, as_of, snapshot=asked.snapshot, up_to=asked.up_to, shard=asked.shard
        )

    def _explain_query(self, selected: SelectRequest) -> pa.Table:
        running = self._check_readable(_objects(selected), errors=True)
        found = explain_peek(
            self._client,
            selected.query,
            selected.inputs,
            self._given_time(_objects(selected), selected.as_of, running),
            indexes=[one for one in running.values() if isinstance(one, IndexDescription)],
            zone=self._zone(),
            shard_bytes=self._shard_bytes(),
        )
        return pa.table({"strategy": [found.strategy], "reason": [found.reason]})

    def _check_readable(
        self, names: Sequence[str], *, errors: bool = False
    ) -> Mapping[str, Description]:
        """Return all objects; `names` must be sources or views among them.

        Args:
            names: The names of a query.
            errors: True if the errors of sources and views, and the rows that sources have left
                out, can be read as well.

        Raises:
            InvalidUsage: One is not; the nearest name is suggested, or what it belongs to.
            Determinate: One is not created yet; says what it waits for.
        """
        running = self._running()
        readable = [
            name
            for name, description in running.items()
            if isinstance(description, SourceDescription | ViewDescription)
        ]
        owners = _error_owners(running) if errors else {}
        skipping = _skip_owners(running) if errors else {}
        for name in names:
            # An error shard is made by the first start of its owner.
            kept_beside = name in owners or name in skipping
            if name in readable or (kept_beside and self._client.exists(name)):
                continue
            if name in skipping:
                raise InvalidUsage(
                    f"source '{skipping[name]}' has left out no rows",
                    code="NOTHING_SKIPPED",
                    hint=f"rows are left out by its option onBadRow 'skip', or by `errors "
                    f"{skipping[name]} --skip`",
                )
            if name in running:
                raise _not_readable(name, running[name])
            # Only now: it waits for a project that is being applied, and for a drop.
            uncreated = self._uncreated()
            if name not in running and name in self._running():
                # It has been recorded between the two.
                return self._check_readable(names, errors=errors)
            if name in uncreated and name not in running:
                raise Determinate(
                    f"'{name}' has no contents yet: {uncreated[name]}",
                    code="NOT_CREATED",
                    hint="it is created by itself when that is over; `status` shows it",
                )
            raise _unknown(name, running, [*readable, *uncreated])
        return running

    def _check_begun(self, selected: SelectRequest, running: Mapping[str, Description]) -> None:
        """Refuse a date-time before one of the objects began, as `format("shard")` does.

        Raises:
            InvalidUsage: `BEFORE_FIRST_CHANGE`.
        """
        if selected.as_of is None or not selected.as_of_date:
            return
        # Not of errors: that there were none before the first one is no surprise.
        for name in _objects(selected):
            if name in running:
                check_begun(self._client.readable(name)[0], selected.as_of)

    def _check_may_come(self, names: Sequence[str], as_of: int, timeout_ms: float | None) -> None:
        """Refuse a time that the clock does not reach while a query waits; as `check_may_come`."""
        for name in names:
            check_may_come(
                self._client.readable(name)[0],
                as_of,
                self._client.clock.now_ms(),
                ask="raise `runtime.query_timeout`",
                wait_ms=max(self._timeout_ms, timeout_ms or 0),
            )

    def _given_time(
        self, names: Sequence[str], as_of: int | None, running: Mapping[str, Description]
    ) -> int | None:
        """The time that a query gives for its objects; None if it is to be chosen.

        Of rows that were left out it is known in any case: they have times of their own.

        Raises:
            InvalidUsage, Determinate: As `_time_of_skipped`.
        """
        skipped_of = _skip_owners(running)
        skipped = [name for name in names if name in skipped_of]
        if not skipped:
            return as_of
        return self._time_of_skipped(skipped[0], skipped_of[skipped[0]], as_of, names)

    def _choose_time(self, names: Sequence[str], running: Mapping[str, Description]) -> int:
        """The newest time at which objects may be read, strictly."""
        # Errors have the time of their owner: their upper is never behind that of its rows.
        owners = _error_owners(running)
        read = [owners.get(name, name) for name in names]
        return self._oracle.choose_strict(self._source_uppers(read, running))

    def _time_of_skipped(
        self, skipped: str, source: str, as_of: int | None, names: Sequence[str]
    ) -> int:
        """The time at which rows of a source that were left out are read.

        Their shard moves only when some are left out, so that a read at the time of other objects
        would wait for ever. It is complete at any time at which its source is: rows that are left
        out are noted before anything else of their time.

        Args:
            skipped: Name of the shard.
            source: Whose rows they are.
            as_of: The time that was asked for; None for the newest.
            names: All objects of the query.

        Raises:
            InvalidUsage: The query reads something else, too.
            Determinate: The source has taken nothing in yet.
        """
        if len(names) > 1:
            raise InvalidUsage(
                f"'{skipped}' is read together with other objects, and has times of its own",
                code="SKIPPED_WITH_OTHERS",
                hint="query it alone",
            )
        (state,) = self._client.readable(skipped)
        if state.upper.time == 0:
            raise Determinate(
                f"source '{source}' has taken nothing in yet",
                code="NOTHING_APPENDED",
                hint="ask again when it has; `status` shows it",
            )
        newest = latest_readable(state)
        if as_of is None or as_of <= newest:
            return newest if as_of is None else as_of
        beside = self._client.readable(source, errors_shard(source))
        return newest if all(one.upper.is_beyond(as_of) for one in beside) else as_of

    def _source_uppers(
        self, names: Iterable[str], running: Mapping[str, Description]
    ) -> list[Frontier]:
        """Uppers of the sources that objects depend on, directly or through views."""

        def edges(name: str) -> tuple[str, ...]:
            return inputs_of(running[name]) if name in running else ()

        wanted = {one for name in names for one in (name, *reachable_names(name, edges))}
        sources = [n for n in sorted(wanted) if isinstance(running.get(n), SourceDescription)]
        return [state.upper for state in self._client.readable(*sources)] if sources else []


def _query_error(text: str, kind: str) -> ShardError:
    """The error of a query, of its kind's class, with the code and the hint that its text has."""
    made = class_of(kind)
    if made is None or made is Indeterminate:
        # A query has no outcome but its answer.
        made = Determinate
    found = _CODED.fullmatch(text)
    if found is None:
        return made(text, code="QUERY_FAILED")
    return made(found[2], code=found[1], hint=found[3] or "")


def _not_readable(name: str, description: Description) -> InvalidUsage:
    """The error for an object that is there and has no contents of its own."""
    what = "a sink" if isinstance(description, SinkDescription) else "an index"
    (on,) = inputs_of(description)
    return InvalidUsage(
        f"'{name}' is {what} of '{on}', and cannot be read",
        code="NOT_READABLE",
        hint=f"read '{on}'",
    )


def _unknown(name: str, running: Mapping[str, Description], known: Iterable[str]) -> InvalidUsage:
    """The error for a name that no object has; maybe it is that of a shard which one keeps."""
    owner = next((of for of in running if name == progress_shard(of)), "")
    if not isinstance(running.get(owner), SourceDescription | SinkDescription):
        return unknown_name("object", name, known)
    return InvalidUsage(
        f"'{name}' is a shard in which '{owner}' notes how far it is, and no object",
        code="UNKNOWN_OBJECT",
        hint=f"`status {owner}` says how it is; spark.read.format('shard') reads the shard itself",
    )


def _error_owners(running: Mapping[str, Description]) -> dict[str, str]:
    """The sources and views by the names of the shards with their errors."""
    return {
        errors_shard(name): name
        for name, description in running.items()
        if isinstance(description, SourceDescription | ViewDescription)
    }


def _skip_owners(running: Mapping[str, Description]) -> dict[str, str]:
    """The sources by the names of the shards with the rows that they have left out."""
    return {
        skipped_shard(name): name
        for name, description in running.items()
        if isinstance(description, SourceDescription)
    }


def _objects(selected: SelectRequest) -> list[str]:
    """The objects of a query; the rest are relations, for whose time nothing has to be settled."""
    return [name for name in selected.inputs if not name.startswith(f"{DATABASE}.")]

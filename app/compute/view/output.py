"""The view's sink writes a view's contents and its errors, two shards, as if they were one.

    look()            how far the output is, and whether this definition wrote it last
    append(step, …)   a step of the view, as one compare-and-append on each of the two
    follow(step)      the same without rows

Two shards cannot be appended to at once without a transaction, which a step each second would make
dear. Instead the order is fixed: errors first. They are settled at a time before the contents are,
so a reader who sees that contents are settled at a time can know whether they count there.

Nearly always there is nothing to say of errors. So their shard follows the output's: readers take
its upper for that of the output, and it is appended to when errors begin or end, and once by each
sink before it appends to the output (`shardline.datasource.shard.commands.leader` says why that is
needed). Of a view at rest one record is written in each interval, and not two.

Both are written by a durable writer whose name is a hash of the definition: the query, the columns,
the settings that decide what the query means, and the ids of the shards that it reads. So the
output itself shows, for ever and to anybody, whether its contents are of this definition. The
writer's number of an append is the upper that it appends up to, so a step is taken once, however
often it is tried.

    crash before the errors           nothing has happened
    crash between errors and rows     errors are ahead: the next step corrects them from their upper
                                      on, or finds that they are right, and appends the rows
    crash after the rows              `look` shows a later upper: the step is not taken again

Invariants:
    Errors at a time are in their shard before the output's upper passes that time.
    The errors shard's own upper is behind the output's only while it follows that one.
    Nothing is appended before `gate` has let it pass.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

import msgspec
import pyarrow as pa

from shardline.app.compute.errors import ERRORS_SCHEMA
from shardline.app.compute.view.next_step import FollowChanges, OutputProgress, Recompute, Unchanged
from shardline.app.execution.object_shards import (
    create_object_shard,
    drop_object_shard,
    parse_ddl_schema,
)
from shardline.app.protocol.objects import ViewDescription, errors_shard
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.followers import follow, may_lag
from shardline.datasource.frames import StagedInterval
from shardline.datasource.frontier import MINIMUM, TIME_MAX, Frontier
from shardline.datasource.read import current_schema
from shardline.datasource.schema import ShardSchema
from shardline.datasource.state import Appended, Leader, ShardState, is_tombstone
from shardline.datasource.write import WriteHandle

__all__ = ["ViewSink", "writer_name"]

_log = logging.getLogger(__name__)

_BEGIN: Final = "begin"
"""Name of a hold on the view's shards, which is there while their history gets its start."""


def writer_name(
    description: ViewDescription, shards: Sequence[str], determinants: Sequence[str] = ()
) -> str:
    """Name of the durable writer of a definition.

    Args:
        description: The view. Its strategy and retention do not count: contents are the same.
        shards: Ids of the inputs' shards, in the order of `description.inputs`. Ids, not names: an
            input that was dropped and made again has other contents.
        determinants: Settings and versions that decide what the query means
            (`shardline.app.compute.view.session_settings`).
    """
    parts = (description.query, description.schema, *description.inputs, *shards, *determinants)
    encoded = msgspec.json.encode(parts)
    return f"view:{hashlib.blake2b(encoded, digest_size=8).hexdigest()}"


class ViewSink:
    """Writes the output of one rendering of a view. Used by one thread at a time.

    Its durable writer is a capability: as long as it was the last to append, the output may be
    extended. When another writer appends, it is lost, and the next step recomputes the output.
    """

    def __init__(
        self,
        client: ShardClient,
        description: ViewDescription,
        shards: Sequence[str],
        gate: Callable[[], None],
        determinants: Sequence[str] = (),
    ) -> None:
        """A sink of the definition over the input shards with these ids; no I/O.

        Args:
            gate: Raises if nothing may be appended any more.
            determinants: See `writer_name`.
        """
        self.writer = writer_name(description, shards, determinants)
        self._client = client
        self._description = description
        self._name = description.name
        self._errors = errors_shard(description.name)
        self._gate = gate
        self._handles: dict[str, WriteHandle] = {}
        self._has_settled_errors = False
        self._failing: tuple[tuple[str, ...], frozenset[str]] = ((), frozenset())

    def make(self) -> None:
        """Make both shards, or bring their columns up to date.

        Columns that a definition adds or widens are evolved. A shard with other columns cannot hold
        the new contents beside the old ones: it is dropped and made again, even if it has readers.
        Views of it find that their checkpoint belongs to another shard, and are hydrated anew. So
        is one that another definition has finished: nothing could be corrected behind its end.
        """
        # To make is a write, too.
        self._gate()
        client, name = self._client, self._name
        if client.exists(name):
            # Before it is judged: what is made under that name after that is not what did not fit.
            state = client.state(name)
            if self._is_finished_by_another(state):
                drop_object_shard(client, name, self._gate, shard=state.shard)
            elif not self._fits(parse_ddl_schema(self._description.schema)):
                before = self._end_following
                drop_object_shard(client, name, self._gate, shard=state.shard, before=before)
        self._drop_finished_errors()
        create_object_shard(client, self._description, self._description.schema)
        retain_ms = self._description.retain_ms
        self._make_errors()
        client.set_retention(self._errors, retain_ms)
        follow(client, self._errors, name)
        for state in client.readable(name, self._errors):
            self._mend_begin(state)
        # Last: a handle that was made before a drop writes to the shard that is gone.
        self._handles = {shard: self._handle(shard) for shard in (name, self._errors)}
        self._has_settled_errors = False

    def _mend_begin(self, state: ShardState) -> None:
        """Finish the `begin` of a start that was killed, or end it if that has appended nothing."""
        begins = state.critical.get(_BEGIN)
        # Where nothing was appended the next first contents may be of another time.
        if begins is None or state.upper == MINIMUM:
            return
        if Frontier(begins.since) < state.upper:
            self._finish_begin(state.name)
        else:
            # What is there is of others: errors stay when an output is dropped, and another runtime
            # may have begun first. Finished, history would start behind the upper, and the next
            # contents, or these, could not be read.
            self._client.hold(state.name, _BEGIN).expire()

    def _drop_finished_errors(self) -> None:
        """Drop errors that are the last word of another definition."""
        # By themselves: a crash may have left them finished beside an output that is not, or by
        # `make` beside none.
        if self._client.exists(self._errors):
            state = self._client.state(self._errors)
            if self._is_finished_by_another(state):
                drop_object_shard(self._client, self._errors, self._gate, shard=state.shard)

    def _is_finished_by_another(self, state: ShardState) -> bool:
        return state.upper.time is None and not self._is_ours(state)

    def _end_following(self, output: ShardState) -> None:
        """Move the errors' own upper to that of an output that is dropped in this very state.

        The upper of the next output is an earlier one, and readers have seen this one.
        """
        if not self._client.exists(self._errors):
            return
        errors = self._client.state(self._errors)
        if errors.leader == Leader(self._name, output.shard) and errors.upper < output.upper:
            self._gate()
            handle = self._handle(self._errors)
            # Refused, the other sink has moved them, which it never does to before the output's.
            handle.compare_and_append(
                None, errors.upper, output.upper, sequence=_sequence_number(output.upper.time)
            )

    def _make_errors(self) -> None:
        name, retain_ms = self._description.name, self._description.retain_ms
        try:
            self._client.create(
                self._errors, ERRORS_SCHEMA, retain_ms=retain_ms, times_by=f"view {name}"
            )
        except InvalidUsage as error:
            # A plan replaces what a source has left (`replacement`). Earlier versions did not.
            raise InvalidUsage(
                f"view '{name}' cannot keep its errors: {error.detail}",
                code="NAME_TAKEN",
                hint=f"a source had this name: take '{name}' out of the project, run it, "
                f"`drop {name}`, which drops what the source has left, and put it in again",
            ) from error

    def _fits(self, wanted: ShardSchema) -> bool:
        """True if the shard has the wanted columns, or was evolved to have them."""
        if current_schema(self._client.state(self._name)) == wanted:
            return True
        try:
            self._client.evolve(self._name, wanted)
        except InvalidUsage:
            return False
        return True

    def _handle(self, shard: str) -> WriteHandle:
        handle = self._client.writer(shard, self.writer)
        # A shard that was registered for transactions refuses every other append.
        handle.redirect = self._client.redirect(shard)
        handle.writes_leader = shard == self._errors
        return handle

    def look(self) -> OutputProgress:
        """The output's progress, no older than this call; upper 0 if it was not made yet."""
        # Both: a first start may have ended between the two.
        if not self._client.exists(self._name) or not self._client.exists(self._errors):
            return OutputProgress(0, ours=False, failing=False)
        output, errors = self._client.readable(self._name, self._errors)
        # By the errors' own upper, which only appends to them move.
        own = self._client.machine(self._errors).cached
        ours = self._is_ours(output) and own is not None and self._is_ours(own)
        error = min(self._known_errors(errors), default="")
        failing = bool(error) or self._stood_still(output, errors)
        return OutputProgress(output.upper.time, ours, failing=failing, error=error)

    def first_time(self) -> int:
        """The least time at which it can be said of a new output that its query fails, or works.

        Up to where an output was that was dropped, its errors are settled.
        """
        return self._client.state(self._errors).upper.time or 0

    def append(
        self, step: FollowChanges | Recompute, rows: StagedInterval | None, error: str | None
    ) -> bool:
        """Take a step; False if another writer was first, and the output must be looked at again.

        Args:
            step: Starts at the output's upper.
            rows: Updates of the output, those of a recomputation without times; None for none. They
                are taken over: appended, or discarded.
            error: Why the query fails from this step on; None if it works.
        """
        at = step.at if isinstance(step, Recompute) else step.lower
        try:
            # Errors before rows, always: see the module. With the rows first, a reader between the
            # two would take contents for right at times at which the query fails.
            settled = self._settle_errors(at, step.upper, error)
            # A second time: the first append has waited for the store, and the fence or a stop may
            # have come meanwhile.
            self._gate()
        except BaseException:
            # Nothing refers to the staged parts yet, and nobody else knows of them.
            if rows is not None:
                rows.discard()
            raise
        if not settled:
            # Not repeated here: another writer was at the errors shard, so the output, too, may
            # have moved. The caller looks at both and chooses the step anew.
            if rows is not None:
                rows.discard()
            return False
        if rows is None:
            return self._append_empty(self._name, step.lower, step.upper)
        outcome = rows.append(
            step.lower, step.upper, writer=self.writer, sequence=_sequence_number(step.upper), at=at
        )
        return isinstance(outcome, Appended)

    def follow(self, step: Unchanged) -> bool:
        """Move both uppers over an interval in which nothing changes; False as in `append`."""
        self._gate()
        if not self._may_lag(step.upper) and not self._move_errors(step.upper):
            return False
        return self._append_empty(self._name, step.lower, step.upper)

    def _move_errors(self, upper: int | None) -> bool:
        """Move the errors' own upper, without a change of them; False as in `append`."""
        machine = self._client.machine(self._errors)
        # As it was last seen: nobody else writes it, and if somebody does the append is refused,
        # after which this process knows better.
        errors = machine.cached or machine.state()
        if is_tombstone(errors):
            return False  # somebody has dropped it: who looks finds that out, and makes it anew
        # From their own upper, which a crash between the two appends has left ahead.
        lower = errors.upper.time
        if Frontier(upper) <= errors.upper:
            return True
        assert lower is not None, upper
        self._has_settled_errors = self._append_empty(self._errors, lower, upper)
        return self._has_settled_errors

    def _may_lag(self, upper: int | None) -> bool:
        """True if the errors' own upper may stay where it is while the output's goes to `upper`."""
        # Finished by itself: what follows a finished shard would never be seen to end.
        if upper is None or not self._has_settled_errors:
            return False
        return may_lag(self._client, self._errors, self._name)

    def begin(self, step: Recompute) -> None:
        """Let history start at a step's time, if it was the first: nothing was there before.

        Without it a reader could ask for a time before the first, and would get no rows instead of
        a refusal. Readers that hold earlier times keep them.
        """
        if step.lower != 0:
            return
        self.prepare_begin(step)
        for name in (self._name, self._errors):
            # Also after a crash between the two shards: the one that is done is left alone.
            if _BEGIN in self._client.state(name).critical:
                self._gate()
                self._finish_begin(name)

    def prepare_begin(self, step: Recompute) -> None:
        """Say, durably, that `begin` is to be done, before a step appends the first contents.

        After them it would be too late: a crash in between would leave earlier times readable, and
        nobody would know that these have never had contents.
        """
        if step.lower != 0:
            return
        as_of = step.at
        for name in (self._name, self._errors):
            state = self._client.state(name)
            begins = state.critical.get(_BEGIN)
            if begins is not None and Frontier(begins.since) > Frontier(as_of):
                # Of an earlier attempt, of another definition perhaps, which appended nothing. A
                # hold never goes back, and where it is `_finish_begin` lets history start.
                self._gate()
                self._client.hold(name, _BEGIN).expire()
                begins = None
            if state.since >= Frontier(as_of) or (begins is not None and begins.since == as_of):
                continue
            self._gate()
            hold = self._client.hold(name, _BEGIN, since=as_of, purpose="first time of a view")
            hold.downgrade(Frontier(as_of))  # one of an earlier attempt at an earlier time

    def _finish_begin(self, name: str) -> None:
        """Let the history of a shard start where the hold of `prepare_begin` is, and end that."""
        # Retention counts back from the upper, and would keep the since before it. A crash before
        # it is set again, or before the hold has ended, is repaired by `make` at the next start.
        self._client.set_retention(name, None)
        hold = self._client.hold(name, _BEGIN)
        # A shard's since moves when a hold on it does, and this one was made where it is to be.
        replace(hold, since=MINIMUM).downgrade(hold.since)
        hold.expire()
        self._client.set_retention(name, self._description.retain_ms)

    def _append_empty(self, shard: str, lower: int, upper: int | None) -> bool:
        """Append `[lower, upper)` without updates; False if another writer was first."""
        outcome = self._handles[shard].compare_and_append(
            None, Frontier(lower), Frontier(upper), sequence=_sequence_number(upper)
        )
        return isinstance(outcome, Appended)

    # -- errors ------------------------------------------------------------------------------

    def _settle_errors(self, at: int, upper: int | None, error: str | None) -> bool:
        """Make `error`, or none, the contents of the errors shard from `at` on, up to `upper`.

        A crash can have left the errors shard ahead of `upper`. Its past is written: a correction
        then begins at its own upper. False if another writer was first.
        """
        state = self._client.state(self._errors)
        known = self._known_errors(state)
        wanted = frozenset[str]() if error is None else frozenset([error])
        lower = state.upper.time
        # Finished for ever by a step that ended before its rows: its last word stands.
        if lower is None:
            return True
        until = Frontier(upper)
        if until <= Frontier(lower):
            if known == wanted:
                return True
            # An append must move the upper, by one time at least.
            until = Frontier(lower + 1)
        elif known == wanted and self._may_lag(upper):
            return True
        # From here on also without a difference: the upper must move, or the output would be ahead.
        # The gate after the look at the state: it ends a writer that was replaced before that look,
        # and one that is replaced after it is refused by the upper.
        self._gate()
        outcome = self._handles[self._errors].compare_and_append(
            # Not before its own upper: times below it are settled, and an append there is refused.
            _error_updates(known, wanted, max(at, lower)),
            Frontier(lower),
            until,
            sequence=_sequence_number(until.time),
        )
        if known != wanted:
            _log.info(
                "a view's query began or ceased to fail",
                extra={"context": {"view": self._name, "at": at, "error": error}},
            )
        self._has_settled_errors = isinstance(outcome, Appended)
        return self._has_settled_errors

    def _known_errors(self, state: ShardState) -> frozenset[str]:
        """The errors that are live right before the errors shard's upper, and stay that."""
        # By the parts: each step moves the number of the state, and so does the lease itself.
        parts = tuple(part.key for batch in state.trace.batches for part in batch.parts)
        if not parts:
            return frozenset()  # of nearly all views, at every step
        if self._failing[0] != parts:
            with self._client.reader(self._errors, purpose="view") as reader:
                table = reader.snapshot()
            self._failing = (parts, frozenset(table["error"].to_pylist()))
        return self._failing[1]

    def _stood_still(self, output: ShardState, errors: ShardState) -> bool:
        """True if the query failed right before the output's upper, whatever is known later on.

        A step that heals takes the errors back first. If it ended there, the output still has what
        it had when the query began to fail: changes since then are nowhere but in the inputs.
        """
        upper = output.upper.time
        if not upper or output.upper >= errors.upper:
            return False
        if all(batch.is_empty for batch in errors.trace.batches):
            return False  # of nearly all views
        if errors.since > Frontier(upper - 1):
            return True  # nobody can tell
        with self._client.reader(self._errors, purpose="view") as reader:
            failed = reader.snapshot(upper - 1)
        return bool(failed.num_rows)

    def _is_ours(self, state: ShardState) -> bool:
        # By the upper: a writer of another definition that has appended since has moved it.
        mine = state.writers.get(self.writer)
        return mine is not None and mine.upper == state.upper.time


def _sequence_number(upper: int | None) -> int:
    return TIME_MAX + 1 if upper is None else upper


def _error_updates(known: frozenset[str], wanted: frozenset[str], at: int) -> pa.Table | None:
    """The updates that turn the known errors into the wanted; None if they are the same."""
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

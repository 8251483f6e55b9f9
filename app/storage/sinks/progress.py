"""Keeps the progress of a sink in a shard, `<sink>_progress`: how far its target is.

Most targets cannot be asked what they have, and Spark's checkpoint may be lost or belong to another
definition. The accounts are durable, can be queried, and fence: of two incarnations one is refused.

    definition   fingerprint of the sink's description; "" of one that has committed nothing yet
    input        the object that it reads
    shard        the id of the input's shard: another one once it was dropped and made again
    lower, upper times of the last micro-batch; upper is null once nothing more comes
    rows         rows that it gave to the target
    given        number of the newest micro-batch that gave rows: a target that remembers has that
                 one, or it is no more what it was; null before the first one

There is one row, that of the newest micro-batch; the history of the shard has the others for a
day. The upper of the shard is that of the target. A new definition has a row without a micro-batch
first, if it has another input: a sink holds its input's history from before its first micro-batch
on, and whoever drops or redefines it must find that hold, or the history is kept for ever.

Invariants:
    A row is appended by a compare-and-append at the upper before it: of two incarnations that run
    by mistake one is refused.
    It is appended after the target has committed: the target has at least that. Rows beyond it
    come again, unless the target itself can tell that it has them.
    The input of the row is the only one that the sink can hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import msgspec
import pyarrow as pa

from shardline.app.protocol.fingerprint import accepted_fingerprints, fingerprint
from shardline.app.protocol.objects import SinkDescription, progress_shard
from shardline.app.storage.sinks.interval import Interval, frontier_of, number_of
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Fenced
from shardline.datasource.frontier import EMPTY, Frontier
from shardline.datasource.read import current_schema
from shardline.datasource.schema import DIFF, TS, ShardSchema
from shardline.datasource.state import ShardState, UpperMismatch

__all__ = ["ProgressRow", "SinkProgress", "is_accounts", "is_progress", "read_progress"]

_RETAIN_MS: Final = 86_400_000

_COMMENT: Final = "how far the target of a sink is"

_LATER: Final = frozenset({"shard", "given"})
"""Columns that accounts of earlier versions lack."""

_COLUMNS: Final = pa.schema(
    [
        ("definition", pa.string()),
        ("input", pa.string()),
        ("lower", pa.int64()),
        ("upper", pa.int64()),
        ("rows", pa.int64()),
        ("shard", pa.string()),
        ("given", pa.int64()),
    ]
)


class ProgressRow(msgspec.Struct, frozen=True):
    """The row of the newest micro-batch; the module says what is in it."""

    definition: str
    input: str
    lower: int
    upper: int | None
    rows: int
    shard: str | None = None
    given: int | None = None


@dataclass(slots=True)
class SinkProgress:
    """The accounts of one incarnation of a sink.

    If their shard is lost, a sink whose target cannot tell what it has begins anew, with all rows
    of the present contents.

    Attributes:
        client: Of the location.
        shard: Name of the shard with the accounts.
        definition: Fingerprint of the sink's description.
        input: Name of the object that it reads.
        committed: The upper that the target has of this definition; None if nothing.
        earliest: The least time that a new definition can begin at.
        previous_input: The input of the row, maybe of the definition before; "" if there is none.
        previous_definition: The fingerprint of the definition before; "" if the row is of this one,
            or of one that has committed nothing.
        shard_id: Id of the input's shard now.
        previous_shard: Its id at the last micro-batch; "" if that is not known.
        given: The upper of the newest micro-batch of this definition that gave rows; None if there
            was none, or an earlier version has not noted it.
    """

    client: ShardClient
    shard: str
    definition: str
    input: str
    committed: Frontier | None
    earliest: int
    previous_input: str
    previous_definition: str
    shard_id: str
    previous_shard: str
    given: Frontier | None
    _row: ProgressRow | None
    _upper: Frontier
    _own_id: str

    @classmethod
    def open(cls, client: ShardClient, sink: SinkDescription) -> Self:
        """Open the accounts of a sink; makes their shard if it is not there."""
        shard = progress_shard(sink.name)
        _prepare(client, shard)
        row, state = _newest(client, shard)
        mine = row is not None and row.definition in accepted_fingerprints(sink)
        return cls(
            client=client,
            shard=shard,
            definition=fingerprint(sink),
            input=sink.on,
            committed=Frontier(row.upper) if row is not None and mine else None,
            earliest=state.upper.time or 0,
            previous_input="" if row is None else row.input,
            previous_definition="" if row is None or mine else row.definition,
            shard_id=client.state(sink.on).shard if client.exists(sink.on) else "",
            previous_shard=(row.shard or "") if row is not None else "",
            given=frontier_of(row.given) if row is not None and mine and row.given else None,
            _row=row,
            _upper=state.upper,
            _own_id=state.shard,
        )

    def note_input(self) -> None:
        """Note the input of a definition that has committed nothing, unless the row has it.

        To be called before anything is held for it, and after the hold on `previous_input` was
        given up: no other place has that name.

        Raises:
            Fenced: Another incarnation has noted something meanwhile.
        """
        noted = self._row is not None and self._row.input == self.input and self._upper != EMPTY
        if self.committed is not None or noted:
            return
        if self._upper == EMPTY:
            # A shard with the empty upper takes nothing more: a new definition needs a new one.
            # By its id: what a later incarnation has made meanwhile is not ours to drop.
            self.client.drop(self.shard, shard=self._own_id)
            _prepare(self.client, self.shard)
            self._row, self._upper = None, Frontier(0)
        at = self._upper.time
        assert at is not None
        self._append(ProgressRow("", self.input, at, at, 0, self.shard_id), at, Frontier(at + 1))
        self.earliest = at + 1

    def record(self, interval: Interval, rows: int, given: Frontier | None = None) -> None:
        """Note that the target has all of `interval`.

        Args:
            interval: Begins where the last one ended.
            rows: How many rows of it the target was given.
            given: The newest upper with rows that the target itself has; None to go by `rows`.

        Raises:
            Fenced: Another incarnation has noted something meanwhile.
        """
        self.given = given or (interval.upper if rows else self.given)
        if interval.upper <= self._upper:
            # The definition before went further than the target of this one. That target can tell
            # what it has, or the sink would have begun behind the definition before (`earliest`).
            self.committed = interval.upper
            return
        upper = interval.upper.time
        at = self._upper.time if upper is None else upper - 1
        assert at is not None
        row = ProgressRow(
            self.definition,
            self.input,
            interval.lower,
            upper,
            rows,
            self.shard_id,
            None if self.given is None else number_of(self.given),
        )
        self._append(row, at, interval.upper)
        self.committed = interval.upper

    def _append(self, row: ProgressRow, at: int, upper: Frontier) -> None:
        """Put a row in the place of the one that is there."""
        changes = [{**msgspec.structs.asdict(row), TS: at, DIFF: 1}]
        if self._row is not None:
            changes.append({**msgspec.structs.asdict(self._row), TS: at, DIFF: -1})
        columns = _COLUMNS.append(pa.field(TS, pa.int64())).append(pa.field(DIFF, pa.int64()))
        outcome = self.client.writer(self.shard).compare_and_append(
            pa.Table.from_pylist(changes, columns), self._upper, upper
        )
        if isinstance(outcome, UpperMismatch):
            raise Fenced(
                f"progress of the sink is at {outcome.current} and not at {self._upper}: another "
                f"incarnation has written it",
                hint="stop this one",
            )
        self._row, self._upper = row, upper


def read_progress(client: ShardClient, sink: str) -> ProgressRow | None:
    """The row of the accounts of a sink; None if there are none. Writes nothing."""
    shard = progress_shard(sink)
    return _newest(client, shard)[0] if client.exists(shard) else None


def is_progress(state: ShardState) -> bool:
    """True if a shard has the accounts of a sink; a source's bindings are in one of such a name."""
    return {*_COLUMNS.names} - _LATER <= {*current_schema(state).names}


def is_accounts(state: ShardState) -> bool:
    """True if a sink has made a shard for its accounts, and nobody else one with such columns."""
    return is_progress(state) and state.comment == _COMMENT


def _prepare(client: ShardClient, shard: str) -> None:
    """Make the shard of the accounts, or give it the columns that it has now."""
    schema = ShardSchema.from_arrow(_COLUMNS)
    if client.exists(shard):
        if current_schema(client.state(shard)) != schema:
            client.evolve(shard, schema)
    else:
        client.create(shard, schema, comment=_COMMENT, retain_ms=_RETAIN_MS)


def _newest(client: ShardClient, shard: str) -> tuple[ProgressRow | None, ShardState]:
    """The newest row, and a state of the shard with the upper that it stands at."""
    state = client.state(shard)
    if state.upper == Frontier(0):
        return None, state
    with client.reader(shard, purpose="progress of a sink") as reader:
        (only,) = reader.snapshot().to_pylist()
    return msgspec.convert(only, ProgressRow), state

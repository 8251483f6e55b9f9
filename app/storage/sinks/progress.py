"""The progress of a sink is kept in a shard, `<sink>_progress`: how far its target is.

Most targets cannot be asked what they have, and Spark's checkpoint may be lost or belong to another
definition. The accounts are durable, can be queried, and fence: of two incarnations one is refused.

    definition   fingerprint of the sink's description
    input        the object that it reads
    shard        the id of the input's shard: another one once it was dropped and made again
    lower, upper times of the last micro-batch; upper is null once nothing more comes
    rows         rows that it gave to the target

There is one row, that of the newest micro-batch; the history of the shard has the others for a
day. The upper of the shard is that of the target.

Invariants:
    A row is appended by a compare-and-append at the upper before it: of two incarnations that run
    by mistake one is refused.
    It is appended after the target has committed: the target has at least that. Rows beyond it
    come again, unless the target itself can tell that it has them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

import msgspec
import pyarrow as pa

from shardline.app.protocol.objects import SinkDescription, fingerprint, progress_shard
from shardline.app.storage.sinks.interval import Interval
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Fenced
from shardline.datasource.frontier import EMPTY, Frontier
from shardline.datasource.read import current_schema
from shardline.datasource.shard.commands.append import UpperMismatch
from shardline.datasource.types.schema import DIFF, TS, ShardSchema

__all__ = ["SinkProgress"]

_RETAIN_MS: Final = 86_400_000

_COLUMNS: Final = pa.schema(
    [
        ("definition", pa.string()),
        ("input", pa.string()),
        ("lower", pa.int64()),
        ("upper", pa.int64()),
        ("rows", pa.int64()),
        ("shard", pa.string()),
    ]
)


class _Row(msgspec.Struct, frozen=True):
    """The row of the newest micro-batch."""

    definition: str
    input: str
    lower: int
    upper: int | None
    rows: int
    shard: str | None = None


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
        previous_input: The input of the definition before; "" if there was none.
        shard_id: Id of the input's shard now.
        previous_shard: Its id at the last micro-batch; "" if that is not known.
    """

    client: ShardClient
    shard: str
    definition: str
    input: str
    committed: Frontier | None
    earliest: int
    previous_input: str
    shard_id: str
    previous_shard: str
    _row: _Row | None
    _upper: Frontier

    @classmethod
    def open(cls, client: ShardClient, sink: SinkDescription) -> Self:
        """Open the accounts of a sink; makes their shard if it is not there."""
        shard = progress_shard(sink.name)
        row, upper = _newest(client, shard)
        if upper == EMPTY and row is not None and row.definition != fingerprint(sink):
            # A shard with the empty upper takes nothing more: a new definition needs a new one.
            client.drop(shard)
            row, upper = _newest(client, shard)
        mine = row is not None and row.definition == fingerprint(sink)
        return cls(
            client=client,
            shard=shard,
            definition=fingerprint(sink),
            input=sink.on,
            committed=Frontier(row.upper) if row is not None and mine else None,
            earliest=upper.time or 0,
            previous_input="" if row is None else row.input,
            shard_id=client.state(sink.on).shard if client.exists(sink.on) else "",
            previous_shard=(row.shard or "") if row is not None else "",
            _row=row,
            _upper=upper,
        )

    def record(self, interval: Interval, rows: int) -> None:
        """Note that the target has all of `interval`.

        Args:
            interval: Begins where the last one ended.
            rows: How many rows of it the target was given.

        Raises:
            Fenced: Another incarnation has noted something meanwhile.
        """
        if interval.upper <= self._upper:
            # The definition before went further than the target of this one. That target can tell
            # what it has, or the sink would have begun behind the definition before (`earliest`).
            self.committed = interval.upper
            return
        upper = interval.upper.time
        row = _Row(self.definition, self.input, interval.lower, upper, rows, self.shard_id)
        at = self._upper.time if upper is None else upper - 1
        changes = [{**msgspec.structs.asdict(row), TS: at, DIFF: 1}]
        if self._row is not None:
            changes.append({**msgspec.structs.asdict(self._row), TS: at, DIFF: -1})
        columns = _COLUMNS.append(pa.field(TS, pa.int64())).append(pa.field(DIFF, pa.int64()))
        outcome = self.client.writer(self.shard).compare_and_append(
            pa.Table.from_pylist(changes, columns), self._upper, interval.upper
        )
        if isinstance(outcome, UpperMismatch):
            raise Fenced(
                f"progress of the sink is at {outcome.current} and not at {self._upper}: another "
                f"incarnation has written it",
                hint="stop this one",
            )
        self._row, self._upper, self.committed = row, interval.upper, interval.upper


def _newest(client: ShardClient, shard: str) -> tuple[_Row | None, Frontier]:
    """The newest row, and the upper that it stands at."""
    schema = ShardSchema.from_arrow(_COLUMNS)
    if client.exists(shard):
        if current_schema(client.state(shard)) != schema:
            client.evolve(shard, schema)
    else:
        comment = "how far the target of a sink is"
        client.create(shard, schema, comment=comment, retain_ms=_RETAIN_MS)
    upper = client.state(shard).upper
    if upper == Frontier(0):
        return None, upper
    with client.reader(shard, purpose="progress of a sink") as reader:
        (only,) = reader.snapshot().to_pylist()
    return msgspec.convert({name: only[name] for name in _COLUMNS.names}, _Row), upper

"""Reclocking binds the offsets of a source to times, durably, before their rows are visible.

A source counts in offsets, views count in times. Were the time of a micro-batch chosen anew when it
runs again, its rows would be there twice, or views would see them at a time that they have answered
for already. So the time is chosen once and written down first. It is Materialize's remap shard.

    remap = Remap.open(client, "flights", origin)      the shard `flights_progress`
    bound = remap.read()
    bound = remap.bind(bound, number=7, offset='{"logOffset":7}', files=(), at=1700000003000)

The shard holds, at every time, how far the source had been read by then:

    micro_batch  time  offset  null  null    the last two bindings
    micro_batch  time  null    file  text    lines of files that the source keeps in its checkpoint

so that a checkpoint can be made again from it (`resume`). Bindings older than the last two are
retracted: with the history that the shard keeps, "what was the offset at time t" is a read of the
contents at t.

Invariants:
    A micro-batch is bound once. One that is found to be bound uses the time that is there.
    A binding is appended only to exactly the bindings that its writer has seen: the upper is
    compared. Two writers cannot bind past each other.
    Times of bindings grow, and are multiples of the interval.
    No binding is ever added below the upper of this shard; so what lies below it, and is committed,
    is complete.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec
import pyarrow as pa

from shardline.app.protocol.objects import progress_shard
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.read import current_schema
from shardline.datasource.schema import DIFF, TS, ShardSchema
from shardline.datasource.state import ShardState, UpperMismatch
from shardline.datasource.write import WriteHandle

__all__ = [
    "EMPTY_SNAPSHOT",
    "Binding",
    "BoundOffsets",
    "Origin",
    "Remap",
    "SourceFile",
    "next_time",
    "origin_in",
]

EMPTY_SNAPSHOT: Final = -1
"""Number of the binding of a snapshot that was empty: no micro-batch ran for it."""

_SCHEMA: Final = pa.schema(
    [
        pa.field("micro_batch", pa.int64(), nullable=False),
        pa.field("time", pa.int64(), nullable=False),
        pa.field("offset", pa.string()),
        pa.field("file", pa.string()),
        pa.field("text", pa.string()),
    ]
)


class Origin(msgspec.Struct, frozen=True):
    """The facts that give a source's offsets their meaning; kept as the comment of the remap shard.

    Losing it would make a source of files infer other columns, and a load generator make other
    rows, at the same offsets.

    Attributes:
        format: Format of the source. Its offsets mean nothing to another format.
        start_ms: Time zero of a load generator: when the source was made, ms since the epoch.
        schema: Columns as they were inferred when the source was made, JSON text; "" if the
            definition has them, or the format has its own.
    """

    format: str
    start_ms: int
    schema: str = ""


@dataclass(frozen=True, slots=True, order=True)
class Binding:
    """A micro-batch and its time.

    Attributes:
        number: Of the micro-batch, from 0; `EMPTY_SNAPSHOT` for a snapshot without one.
        time: Of all its rows, ms since the epoch; a multiple of the interval.
        offset: Where it ends: the line that Spark writes into its offset log; None for
            `EMPTY_SNAPSHOT`.
    """

    number: int
    time: int
    offset: str | None


@dataclass(frozen=True, slots=True, order=True)
class SourceFile:
    """A line of a file that a source keeps in its checkpoint; see `resume`."""

    name: str
    text: str


@dataclass(frozen=True, slots=True)
class BoundOffsets:
    """The bindings of a source, as they are at one upper of the remap shard.

    Attributes:
        upper: Of the remap shard: nothing can be bound before it any more.
        last: The newest binding; None if nothing is bound.
        before: The one before it; None if there is none.
        files: All lines of the source's own files in its checkpoint.
    """

    upper: int = 0
    last: Binding | None = None
    before: Binding | None = None
    files: frozenset[SourceFile] = field(default_factory=frozenset)


def next_time(upper: int, now_ms: int, interval_ms: int) -> int:
    """The least multiple of `interval_ms` that is neither before `upper` nor before `now_ms`."""
    return -(-max(upper, now_ms) // interval_ms) * interval_ms


def origin_in(state: ShardState) -> Origin | None:
    """The origin of a source's offsets, of the shard that may have them; None if they are none."""
    # A sink keeps its progress in a shard that is called so, too; and beside a view the name is
    # free for any object.
    if current_schema(state).names != tuple(_SCHEMA.names):
        return None
    return msgspec.json.decode(state.comment, type=Origin)


@dataclass(frozen=True, slots=True)
class Remap:
    """Reads and appends the bindings of one source.

    If their shard is lost, the source begins anew with a snapshot: without keys, all its rows come
    twice.

    Attributes:
        handle: Writes the remap shard.
        client: Of the location.
        origin: Of the source, as it was when the shard was made.
    """

    handle: WriteHandle
    client: ShardClient
    origin: Origin

    @classmethod
    def open(cls, client: ShardClient, source: str, origin: Origin) -> Remap:
        """Open the bindings of `source`; makes their shard if it is not there.

        Raises:
            InvalidUsage: The source was made with another format.
        """
        name = progress_shard(source)
        comment = msgspec.json.encode(origin).decode()
        schema = ShardSchema.from_arrow(_SCHEMA)
        state = client.create(name, schema, comment=comment, times_by=f"source {source}")
        found = msgspec.json.decode(state.comment, type=Origin)
        if found.format != origin.format:
            raise InvalidUsage(
                f"source '{source}' was made with format '{found.format}', whose offsets "
                f"'{origin.format}' cannot continue",
                code="FORMAT_CHANGED",
                hint="drop the source, or give the new one another name",
            )
        return cls(client.writer(name), client, found)

    @classmethod
    def attach(cls, client: ShardClient, source: str) -> Remap:
        """Open the bindings of a source that exists.

        Raises:
            InvalidUsage: There is no such source.
        """
        name = progress_shard(source)
        state = client.state(name)
        return cls(client.writer(name), client, msgspec.json.decode(state.comment, type=Origin))

    @property
    def upper(self) -> int:
        """The shard's upper, no older than this call."""
        return _time(self.handle.upper())

    def read(self) -> BoundOffsets:
        """Read all bindings, no older than this call."""
        # The upper once, and then the contents right before it: a binding that is appended in
        # between is not in the contents, and makes the next compare-and-append fail.
        upper = self.upper
        if upper == 0:
            return BoundOffsets()
        with self.client.reader(self.handle.machine.name, purpose="bindings of a source") as reader:
            rows = reader.snapshot(upper - 1).to_pylist()
        bindings = sorted(
            Binding(row["micro_batch"], row["time"], row["offset"])
            for row in rows
            if row["file"] is None
        )
        files = frozenset(SourceFile(row["file"], row["text"]) for row in rows if row["file"])
        newest: list[Binding | None] = [*bindings[-2:]]
        before, last = [None, None, *newest][-2:]
        return BoundOffsets(upper, last, before, files)

    def bind(
        self,
        bound: BoundOffsets,
        *,
        number: int,
        offset: str | None,
        files: Iterable[SourceFile],
        at: int,
    ) -> BoundOffsets | None:
        """Bind a micro-batch; None if somebody else has appended since `bound` was read.

        Args:
            bound: The bindings as they were read.
            number: Of the micro-batch, one more than the last.
            offset: Where it ends; None for `EMPTY_SNAPSHOT`.
            files: Lines of the source's files; those that are bound already are left out.
            at: Its time, not before the upper.

        Raises:
            Determinate: It did not happen.
            Indeterminate: It may have happened: read the bindings.
        """
        expected = EMPTY_SNAPSHOT + 1 if bound.last is None else bound.last.number + 1
        assert number in {expected, EMPTY_SNAPSHOT if bound.last is None else expected}, (
            number,
            bound,
        )
        binding = Binding(number, at, offset)
        new = sorted(set(files) - bound.files)
        rows = [_row(binding, 1), *(_file_row(binding, file) for file in new)]
        # Two stay, as a checkpoint needs them: Spark resumes a micro-batch that is not committed
        # from the offset of the one before it.
        if bound.before is not None:
            rows.append(_row(bound.before, -1))
        if not self._append(rows, bound.upper, at + 1, at):
            return None
        return BoundOffsets(at + 1, binding, bound.last, bound.files | frozenset(new))

    def advance(self, bound: BoundOffsets, upper: int) -> BoundOffsets | None:
        """Settle that nothing will be bound before `upper`; None if `bound` is not the newest.

        Raises:
            Determinate: It did not happen.
            Indeterminate: It may have happened: read the bindings.
        """
        if upper <= bound.upper:
            return bound
        if not self._append([], bound.upper, upper, bound.upper):
            return None
        return replace(bound, upper=upper)

    def _append(self, rows: Sequence[dict[str, object]], lower: int, upper: int, at: int) -> bool:
        updates = None
        if rows:
            schema = _SCHEMA.append(pa.field(DIFF, pa.int64(), nullable=False))
            table = pa.Table.from_pylist(list(rows), schema)
            times = pa.repeat(pa.scalar(at, pa.int64()), table.num_rows)
            updates = table.append_column(pa.field(TS, pa.int64(), nullable=False), times)
        outcome = self.handle.compare_and_append(updates, Frontier(lower), Frontier(upper))
        return not isinstance(outcome, UpperMismatch)


def _row(binding: Binding, diff: int) -> dict[str, object]:
    return {
        "micro_batch": binding.number,
        "time": binding.time,
        "offset": binding.offset,
        DIFF: diff,
    }


def _file_row(binding: Binding, file: SourceFile) -> dict[str, object]:
    return {
        "micro_batch": binding.number,
        "time": binding.time,
        "file": file.name,
        "text": file.text,
        DIFF: 1,
    }


def _time(upper: Frontier) -> int:
    assert upper.time is not None, "the shards of a source are never finished"
    return upper.time

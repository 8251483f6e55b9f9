"""The rows of a transactions shard: what is registered, and what is on its way to data shards.

    register   the shard belongs to the transactions shard; taken back when it is forgotten
    append     updates of the shard at `at`; taken back once they are in it
    forget     the shard is written directly after `at`; taken back once it knows

A row is added by the commit that it is about, and taken back later. Each has an id of its own, so
that taking back cancels exactly that one. A row says its own time: whatever compaction does to the
times of updates, its meaning stays.

Invariants:
    The columns, and the encoding of `data`, are for ever: rows outlive the code that wrote them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, Literal

import msgspec
import pyarrow as pa

from shardline.datasource.errors import Corrupt
from shardline.datasource.shard.batch import Run
from shardline.datasource.shard.commands.txns import Commit
from shardline.datasource.types.schema import DIFF, ShardSchema

__all__ = ["KEY", "TRANSACTIONS", "Payload", "Row", "RowKind", "schema", "table_of"]

TRANSACTIONS: Final = "_transactions"
"""The transactions shard of a location, unless a user names another one."""

KEY: Final = ("name", "at")

RowKind = Literal["register", "append", "forget"]

_ARROW: Final = pa.schema(
    [
        pa.field("id", pa.string(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("name", pa.string(), nullable=False),
        pa.field("shard", pa.string(), nullable=False),
        pa.field("at", pa.int64(), nullable=False),
        pa.field("data", pa.binary()),
    ]
)


@cache
def schema() -> ShardSchema:
    """The schema of every transactions shard."""
    return ShardSchema.from_arrow(_ARROW)


class Payload(msgspec.Struct, frozen=True, omit_defaults=True):
    """The `data` of an append: as in `Commit`; JSON, so that people can read it."""

    runs: tuple[Run, ...]
    writer: str = ""
    sequence: int = 0
    attempt: str = ""
    covers: str = ""

    def encode(self) -> bytes:
        """As it stands in a row."""
        return msgspec.json.encode(self)


@dataclass(frozen=True, slots=True)
class Row:
    """One row.

    Attributes:
        id: Its own, unique.
        kind: What it says.
        name: Name of the data shard.
        shard: Its id.
        at: When it was committed.
        data: Encoded `Payload` of an append; None otherwise.
    """

    id: str
    kind: RowKind
    name: str
    shard: str
    at: int
    data: bytes | None = None

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Row:
        """A row as it was read."""
        return cls(**{name: values[name] for name in _ARROW.names})

    def payload(self) -> Payload:
        """What `data` says.

        Raises:
            Corrupt: It says nothing that this code understands.
        """
        try:
            return msgspec.json.decode(self.data or b"", type=Payload)
        except msgspec.MsgspecError as error:
            raise Corrupt(
                f"row {self.id} of a transactions shard, for shard '{self.name}' at {self.at}, "
                f"cannot be read: {error}",
                hint="it was written by newer code, or by something else",
            ) from error

    def commit(self) -> Commit:
        """What the row does to its shard."""
        if self.kind == "forget":
            return Commit(at=self.at, forget=True)
        said = self.payload()
        return Commit(
            at=self.at,
            runs=said.runs,
            writer=said.writer,
            sequence=said.sequence,
            attempt=said.attempt,
            covers=said.covers,
        )


def table_of(added: Sequence[Row], taken_back: Iterable[Row]) -> pa.Table:
    """The updates that add some rows and take others back."""
    gone = list(taken_back)
    rows = [*added, *gone]
    columns = [pa.array([getattr(row, field.name) for row in rows], field.type) for field in _ARROW]
    diffs = pa.array([1] * len(added) + [-1] * len(gone), pa.int64())
    return pa.Table.from_arrays([*columns, diffs], names=[*_ARROW.names, DIFF])

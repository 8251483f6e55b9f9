"""Defines the rows of a transactions shard: registrations, and updates that are to be applied.

    register   the shard is registered; retracted when it is forgotten
    append     updates of the shard at `at`; retracted when they are applied to it
    forget     the shard is written directly after `at`; retracted when this is applied to it

A row is added by the commit that it belongs to, and retracted later. Each has an id of its own, so
that a retraction cancels exactly that one. A row has its own time: compaction advances the times of
updates, and the meaning of a row must not change with them.

Invariants:
    The columns, and the encoding of `data`, never change: rows outlive the code that wrote them.
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
from shardline.datasource.shard.codec import encode_checked
from shardline.datasource.shard.commands.txns import Commit
from shardline.datasource.types.schema import DIFF, ShardSchema

__all__ = ["KEY", "TRANSACTIONS", "Payload", "Row", "RowKind", "schema", "updates_table"]

TRANSACTIONS: Final = "_transactions"
"""Name of a location's transactions shard, unless the user chooses another one."""

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
    """The `data` of an `append` row: fields of `Commit`, as JSON so that people can read them.

    A field may be added if code that does not know it may drop it: without `lease_ms` an anonymous
    writer is remembered for ever, which costs some bytes of the data shard's state.
    """

    runs: tuple[Run, ...]
    writer: str = ""
    sequence: int = 0
    attempt: str = ""
    covers: str = ""
    lease_ms: int | None = None

    def encode(self) -> bytes:
        """The bytes for a row's `data`; errors as `encode_checked`."""
        return encode_checked(self, _payloads)


_payloads: Final = msgspec.json.Decoder(Payload)


@dataclass(frozen=True, slots=True)
class Row:
    """One row.

    Attributes:
        id: A unique id.
        kind: `register`, `append` or `forget`: see the module's docstring.
        name: Name of the data shard.
        shard: Id of the data shard.
        at: The time at which it was committed.
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
        """The row with these column values."""
        return cls(**{name: values[name] for name in _ARROW.names})

    def payload(self) -> Payload:
        """The decoded `data`.

        Raises:
            Corrupt: This code cannot decode it.
        """
        try:
            return _payloads.decode(self.data or b"")
        except msgspec.MsgspecError as error:
            raise Corrupt(
                f"row {self.id} of a transactions shard, for shard '{self.name}' at {self.at}, "
                f"cannot be read: {error}",
                hint="it was written by newer code, or by something else",
            ) from error

    def commit(self) -> Commit:
        """The change that the row makes to its data shard when it is applied."""
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
            lease_ms=said.lease_ms,
        )


def updates_table(added: Sequence[Row], taken_back: Iterable[Row]) -> pa.Table:
    """The updates that add `added` and retract `taken_back`."""
    gone = list(taken_back)
    rows = [*added, *gone]
    columns = [pa.array([getattr(row, field.name) for row in rows], field.type) for field in _ARROW]
    diffs = pa.array([1] * len(added) + [-1] * len(gone), pa.int64())
    return pa.Table.from_arrays([*columns, diffs], names=[*_ARROW.names, DIFF])

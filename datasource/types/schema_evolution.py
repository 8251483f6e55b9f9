"""Decides which schema changes a shard accepts: those after which old parts keep their meaning.

    evolve(current, requested) -> ShardSchema | Incompatible

Parts are never rewritten when a schema changes, so every part must be readable under all later
schemas, and parts of different schemas must still merge and consolidate.

Allowed, at any depth: a nullable column appended at the end of the schema or of a struct, a column
relaxed to nullable, and the numeric widenings of Delta's type widening feature:

    byte -> short -> int -> long; each of these -> a decimal with room for all its digits
    byte, short, int -> double; float -> double
    decimal(p1,s1) -> decimal(p2,s2) with s2 >= s1 and p2-s2 >= p1-s1
    date -> timestamp_ntz

Invariants:
    - Every allowed change maps distinct values to distinct values and keeps their order, so
      sorted runs stay sorted and consolidation means the same before and after.
    - `evolve` is idempotent: a schema asked for again is no change, so a request whose outcome
      was unknown can be repeated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.types.spark_types import (
    Array,
    Atomic,
    Field,
    Map,
    Record,
    SparkType,
    decimal_of,
    path_text,
    type_text,
)

__all__ = ["Incompatible", "evolve"]

Path = tuple[str, ...]

_WIDER: Final[Mapping[str, frozenset[str]]] = {
    "byte": frozenset({"short", "integer", "long", "double"}),
    "short": frozenset({"integer", "long", "double"}),
    "integer": frozenset({"long", "double"}),
    "float": frozenset({"double"}),
    "date": frozenset({"timestamp_ntz"}),
}

# Digits before the point that hold every value, rounded up as Delta does.
_INTEGER_DIGITS: Final[Mapping[str, int]] = {"byte": 10, "short": 10, "integer": 10, "long": 20}


@dataclass(frozen=True, slots=True)
class Incompatible:
    """The reason why a schema was refused.

    Attributes:
        column: Path of the first column that cannot change so.
        reason: The refused change, with both types.
    """

    column: str
    reason: str

    def error(self) -> InvalidUsage:
        """The refusal as an error, for callers that do not return it."""
        return InvalidUsage(
            f"cannot evolve the schema: column '{self.column}' {self.reason}",
            code="INCOMPATIBLE_SCHEMA",
            hint="append nullable columns, relax to nullable, or widen numbers; for anything else "
            "write a new shard",
        )


def evolve(current: ShardSchema, requested: ShardSchema) -> ShardSchema | Incompatible:
    """`requested` if data under `current` can be read under it, otherwise the first obstacle.

    Returns `current` itself when the two are equal. Metadata other than collations (comments)
    follows the request.
    """
    if current == requested:
        return current
    obstacle = _record(current.record, requested.record, ())
    return requested if obstacle is None else obstacle


def _record(old: Record, new: Record, path: Path) -> Incompatible | None:
    names = {f.name for f in new.fields}
    for field in old.fields:
        if field.name not in names:
            return _refuse((*path, field.name), "is missing: columns cannot be dropped or renamed")
    for position, field in enumerate(new.fields):
        here = (*path, field.name)
        if position >= len(old.fields):
            if not field.nullable:
                return _refuse(here, "is new and must be nullable: old rows have no value for it")
            continue
        if field.name != old.fields[position].name:
            return _refuse(here, "has moved: columns keep their order and new ones come last")
        if obstacle := _field(old.fields[position], field, here):
            return obstacle
    return None


def _field(old: Field, new: Field, path: Path) -> Incompatible | None:
    if old.collations != new.collations:
        return _refuse(path, f"changes its collation from {old.collations} to {new.collations}")
    return _nulls(old.nullable, new.nullable, path) or _type(old.type, new.type, path)


def _type(old: SparkType, new: SparkType, path: Path) -> Incompatible | None:
    match old, new:
        case Record(), Record():
            return _record(old, new, path)
        case Array(), Array():
            inner = (*path, "element")
            nulls = _nulls(old.nullable, new.nullable, inner)
            return nulls or _type(old.element, new.element, inner)
        case Map(), Map():
            inner = (*path, "value")
            nulls = _nulls(old.nullable, new.nullable, inner)
            in_value = nulls or _type(old.value, new.value, inner)
            return in_value or _type(old.key, new.key, (*path, "key"))
        case Atomic(), Atomic() if old == new or _widens(old.name, new.name):
            return None
    return _refuse(path, f"cannot change from {type_text(old)} to {type_text(new)}")


def _nulls(old: bool, new: bool, path: Path) -> Incompatible | None:  # noqa: FBT001
    refused = old and not new
    return _refuse(path, "is nullable and cannot become not nullable") if refused else None


def _widens(old: str, new: str) -> bool:
    wider = decimal_of(new)
    if wider is None:
        return new in _WIDER.get(old, ())
    digits, scale = wider[0] - wider[1], wider[1]
    if narrow := decimal_of(old):
        return scale >= narrow[1] and digits >= narrow[0] - narrow[1]
    return old in _INTEGER_DIGITS and digits >= _INTEGER_DIGITS[old]


def _refuse(path: Path, reason: str) -> Incompatible:
    return Incompatible(path_text(path), reason)

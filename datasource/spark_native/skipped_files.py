"""Leaves files out of a scan if no row of them can pass its filters, by their parts' statistics.

Spark's reader skips row groups by the bounds in their footers, so it makes a task for each file and
opens it. Here the list of files (`NativeRelations.java`) asks when a scan is planned, with the
scan's filters, and no task is made for a file without a row for them. A frame may be run by many
queries, each with filters of its own; the plan that they share has all parts. (Delta: data
skipping.)

    ScannedParts(parts, written, record).passing(filters) -> "0110…"
    file_statistics().add(scanned)                        -> its number, by which the JVM asks

Invariants:
    A file that is left out has no row for which all of the filters are true.
    A filter that is not understood leaves out nothing.
    Parts are kept for as long as something in the JVM can list their files.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from itertools import count
from typing import Any, ClassVar, Final

from shardline.datasource.filters.predicates import (
    And,
    Compare,
    In,
    IsNull,
    Not,
    Or,
    Path,
    Predicate,
    StartsWith,
    field_at,
)
from shardline.datasource.parts.prune import may_pass
from shardline.datasource.shard.batch import Part
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.types.spark_types import Record
from shardline.datasource.types.stats import NO_STATS, Bound, Kind, kind_of

__all__ = ["FileStatistics", "ScannedParts", "file_statistics"]

_log = logging.getLogger(__name__)


_PARTS_MAX: Final = 1 << 20
"""Parts that are kept in all, about 1 GB with their statistics; scans of the oldest frames read all
their files beyond that. The JVM may not collect for hours what nothing refers to."""


class _NotUnderstoodError(Exception):
    """A filter over what statistics say nothing of."""


@dataclass(frozen=True, slots=True)
class ScannedParts:
    """The parts of one scan.

    Attributes:
        parts: In the order of their files.
        written: The schema that they were written with.
        record: The record that their files are read under.
    """

    parts: Sequence[Part]
    written: ShardSchema
    record: Record

    @property
    def can_skip(self) -> bool:
        """True if some file may be left out; the footer of a single one tells Spark the same."""
        return len(self.parts) > 1 and any(one.encoded_stats != NO_STATS for one in self.parts)

    def passing(self, filters: Sequence[Any]) -> str:
        """A digit for each part: 0 if no row of it passes all of the filters, else 1.

        Args:
            filters: As `NativeRelations.java` describes them (FileFilters).
        """
        understood = []
        for one in filters:
            try:
                understood.append(_predicate(one, self.record))
            except (_NotUnderstoodError, ValueError, ArithmeticError):  # a type of a later Spark
                continue
        if not understood:
            return "1" * len(self.parts)
        predicate = And(tuple(understood))
        return "".join("01"[may_pass(part, predicate, self.written)] for part in self.parts)


@dataclass(slots=True)
class FileStatistics:
    """Answers for the lists of files of the driver's JVM. May be shared between threads.

    Attributes:
        parts_max: Parts of all scans together that are kept at most.
    """

    parts_max: int = _PARTS_MAX
    _kept: dict[str, ScannedParts] = field(default_factory=dict)
    _parts: int = 0
    _numbers: count[int] = field(default_factory=count)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __len__(self) -> int:
        """The number of scans whose parts are kept."""
        return len(self._kept)

    def add(self, scanned: ScannedParts) -> str:
        """Keep the parts of a scan, and return the number to ask by."""
        with self._lock:
            number = str(next(self._numbers))
            self._kept[number] = scanned
            self._parts += len(scanned.parts)
            while self._parts > self.parts_max:
                self._drop(next(iter(self._kept)))
        return number

    def forget(self, numbers: Sequence[str]) -> None:
        """Keep these no more: nothing lists their files."""
        with self._lock:
            for number in numbers:
                if number in self._kept:
                    self._drop(number)

    def _drop(self, number: str) -> None:
        self._parts -= len(self._kept.pop(number).parts)

    def apply(self, request: str) -> str | None:
        """The digits of `ScannedParts.passing`, for a number and filters; None if not known.

        Called by the JVM, by one thread for all scans.
        """
        try:
            number, _, filters = request.partition(" ")
            scanned = self._kept.get(number)
            return None if scanned is None else scanned.passing(json.loads(filters))
        except Exception:  # noqa: BLE001 - whatever it is, no query fails because of it
            # Without an answer all files are read.
            _log.exception("files of a scan could not be left out")
            return None

    class Java:
        """The Java interface that py4j gives the object in the JVM."""

        implements: ClassVar = ["java.util.function.Function"]


@cache
def file_statistics() -> FileStatistics:
    """The statistics of this process's scans."""
    return FileStatistics()


# --- filters -------------------------------------------------------------------------------------


def _predicate(described: Sequence[Any], record: Record) -> Predicate:
    """A filter as a predicate over the columns of `record`.

    Raises:
        _NotUnderstoodError: It names another column, or one whose values have no bounds.
    """
    operator, *given = described
    if operator in ("and", "or", "not"):
        parts = tuple(_predicate(one, record) for one in given)
        return Not(*parts) if operator == "not" else And(parts) if operator == "and" else Or(parts)
    path, kind = _column(given[0], record)
    if operator == "null":
        return IsNull(path)
    if kind is None or kind not in _VALUES:
        raise _NotUnderstoodError
    value = _VALUES[kind]
    if operator == "in":
        return In(path, kind, tuple(map(value, given[1])), given[2])
    if operator == "starts with":
        return StartsWith(path, given[1])
    return Compare(path, kind, operator, value(given[1]))


def _column(names: Sequence[str], record: Record) -> tuple[Path, Kind | None]:
    """The path of a column of the record, and the kind of its bounds."""
    found = field_at(record, tuple(names))
    # What is no column of the files (the time of a commit, a row's number) is no null either, which
    # is what statistics would say of it.
    if found is None:
        raise _NotUnderstoodError
    return tuple(names), kind_of(found)


_VALUES: Final[Mapping[Kind, Callable[[str], Bound]]] = {
    "bool": lambda text: text == "true",
    "int": int,
    "dec": Decimal,
    "float": float,
    "str": str,
    "date": int,
    "ts": int,
    "ntz": int,
}
"""The text of a value of Spark's in the form of a bound, by the kind of its column."""

"""Reads relations by name, as they are at that moment.

    relations = Relations(sink)
    relations.relation("frontiers")              a pyarrow.Table, for peeks
    relations.relation("verdicts", at_ms)        the same, of an earlier moment
    relations.rows("frontiers", object="delays") plain values, for JSON
    relations.rows("verdicts", as_of=at_ms)      those of an earlier moment
    relations.later_rows("events", at_ms)        those that occurred from a moment on
    relations.read_together(["verdicts", "frontiers"])   several, as of one moment

Safe to use from any thread. Each answer is consistent in itself; two answers are of two moments.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final

import pyarrow as pa

from shardline.app.introspection.facts import Facts
from shardline.app.introspection.past import require_recorded
from shardline.app.introspection.registry import relations_with
from shardline.app.introspection.relation import AT, Relation, Row, Scalar
from shardline.app.introspection.sink import Sink
from shardline.datasource.errors import InvalidUsage, unknown_name
from shardline.datasource.report import READ_COUNTS, ReadCounts

__all__ = ["Reading", "Relations"]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LAST_MS: Final = 253_402_300_799_000
"""The last second of a year of four digits."""

_OCCURRED: Final = "occurred_at"
"""The column with the time of rows that say what happened."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Rows of several relations as of one moment.

    Attributes:
        at_ms: The moment, in ms since the epoch.
        revisions: By name of a relation that is made of histories: theirs together.
        rows: By name of the relation, with the values of `Relations.rows` in the order of columns.
    """

    at_ms: int
    revisions: Mapping[str, int]
    rows: Mapping[str, list[list[object]]]


class Relations:
    """All relations of one sink.

    Attributes:
        declared: By name: columns, types and meanings.
    """

    def __init__(self, sink: Sink, reads: ReadCounts = READ_COUNTS) -> None:
        """Declare all relations over the facts of a sink, and over the plain reads of a process."""
        self._sink = sink
        self.declared: Mapping[str, Relation] = relations_with(sink.inbox, reads)

    def relation(self, name: str, as_of: int | None = None) -> pa.Table:
        """Read all rows of a relation.

        Args:
            name: Of the relation.
            as_of: The moment, in ms since the epoch; None for now.

        Raises:
            InvalidUsage: `UNKNOWN_RELATION`, with the nearest name; `NO_HISTORY`, nothing is
                recorded of it; `BEFORE_HISTORY`, the moment is before the first one that is known;
                `NOT_RECORDED`, no application ran then, or it stood still; `NOT_YET`, the moment
                has not come.
        """
        declared = self._declared(name)
        if as_of is not None:
            return declared.table_of(self._past_rows(declared, as_of, None))
        return declared.table_of(self._present_rows(declared, None))

    def rows(
        self,
        name: str,
        *,
        object: str | None = None,  # noqa: A002 - the filter is called so in the JSON interface
        where: Mapping[str, Scalar] | None = None,
        as_of: int | None = None,
    ) -> list[dict[str, object]]:
        """Read rows of a relation as values of JSON; times of the clock are ISO 8601.

        Args:
            name: Of the relation.
            object: Only rows about this object.
            where: Only rows whose columns have these values.
            as_of: The moment, in ms since the epoch; None for now.

        Raises:
            InvalidUsage: There is no such relation or column, a column cannot have such a value,
                rows are not about objects, or it is not known what they were at that moment: see
                `relation`.
        """
        declared = self._declared(name)
        wanted = dict(where or {})
        if object is not None:
            if not declared.object:
                raise InvalidUsage(
                    f"rows of relation '{name}' are not about one object",
                    code="NO_OBJECT_COLUMN",
                    hint="leave the filter out",
                )
            wanted[declared.object] = object
        declared.check_filter(wanted)
        about = wanted.get(declared.object)
        names = {about} if isinstance(about, str) else None
        made = (
            self._present_rows(declared, names)
            if as_of is None
            else self._past_rows(declared, as_of, names)
        )
        # By no table: Arrow takes a hundred times as long for a time, and some have 20,000.
        keys = declared.schema.names
        rows = (dict(zip(keys, row, strict=True)) for row in _plain_rows(declared, made))
        return [row for row in rows if all(row[key] == value for key, value in wanted.items())]

    def later_rows(
        self,
        name: str,
        begin_ms: int,
        *,
        object: str | None = None,  # noqa: A002 - as in `rows`
        where: Mapping[str, Scalar] | None = None,
        as_of: int | None = None,
    ) -> tuple[int, list[dict[str, object]]]:
        """Read the rows of something that occurred at a moment or later.

        Args:
            name: Of the relation.
            begin_ms: The moment, in ms since the epoch.
            object: As of `rows`; so are the others.
            where: See there.
            as_of: See there.

        Returns:
            How many rows there are of earlier moments, and the later ones. Whoever holds another
            number of earlier ones lacks some, or has some that are gone: a row may become known
            late, and the oldest do not stay.

        Raises:
            InvalidUsage: `NO_TIME_COLUMN`: rows of the relation have not occurred at a time. Or as
                of `rows`.
        """
        if all(column.name != _OCCURRED for column in self._declared(name).columns):
            timed = [
                one.name
                for one in self.declared.values()
                if any(column.name == _OCCURRED for column in one.columns)
            ]
            raise InvalidUsage(
                f"rows of relation '{name}' have no time at which they occurred",
                code="NO_TIME_COLUMN",
                hint=f"leave 'from' out, or read one that has: {', '.join(timed)}",
            )
        rows = self.rows(name, object=object, where=where, as_of=as_of)
        # As text, which all of them are: it is in order of time.
        begin = str(_plain(_EPOCH + timedelta(milliseconds=min(begin_ms, _LAST_MS))))
        later = [row for row in rows if str(row[_OCCURRED] or "") >= begin]
        return len(rows) - len(later), later

    def read_together(
        self,
        names: Iterable[str],
        about: Mapping[str, Collection[str]] = MappingProxyType({}),
        known: Mapping[str, int] = MappingProxyType({}),
    ) -> Reading:
        """Read all rows of several relations as of one moment.

        Args:
            names: Of the relations.
            about: By relation, the objects of which rows are wanted at least; a relation that is
                not in it is wanted whole.
            known: Revision by name of a relation whose rows are held as of it: it is left out if
                it has not changed since.

        Raises:
            InvalidUsage: `UNKNOWN_RELATION`, with the nearest name.
        """
        declared = [self._declared(name) for name in names]

        def look(facts: Facts, now_ms: int) -> tuple[int, dict[str, int], dict[str, list[Row]]]:
            revisions = {
                relation.name: facts.history_revision(relation.histories)
                for relation in declared
                if relation.histories
            }
            found = {
                relation.name: relation.rows_about(facts, now_ms, about.get(relation.name))
                for relation in declared
                if not relation.histories or known.get(relation.name) != revisions[relation.name]
            }
            return now_ms, revisions, found

        # Values are converted after the lock is given back: the sink waits for it.
        now_ms, revisions, found = self._sink.read(look)
        rows = {name: _plain_rows(self.declared[name], found[name]) for name in found}
        return Reading(now_ms, revisions, rows)

    def _present_rows(self, relation: Relation, names: Collection[str] | None) -> list[Row]:
        """The rows about these objects at least; the lock is held for them, and for no table."""
        return self._sink.read(lambda facts, now_ms: relation.rows_about(facts, now_ms, names))

    def _past_rows(
        self, relation: Relation, at_ms: int, names: Collection[str] | None
    ) -> Iterable[Row]:
        past = relation.past
        if past is None:
            kept = [one.name for one in self.declared.values() if one.past is not None]
            raise InvalidUsage(
                f"relation '{relation.name}' has no history",
                code="NO_HISTORY",
                hint=f"leave 'as_of' out, or read one that has: {', '.join(kept)}",
            )

        def look(facts: Facts, now_ms: int) -> Facts:
            require_recorded(facts, relation.name, past.histories, at_ms, now_ms)
            return facts.until(at_ms)

        facts = self._sink.read(look)
        if names is not None and relation.histories and relation.separable:
            facts = facts.about(names, relation.histories)
        return past.rows(facts, at_ms)

    def _declared(self, name: str) -> Relation:
        if name not in self.declared:
            raise unknown_name("relation", name, self.declared)
        return self.declared[name]


def _plain(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return value


def _plain_rows(relation: Relation, rows: Iterable[Row]) -> list[list[object]]:
    """Rows as the functions of a relation make them, as values of JSON."""
    clocks = [place for place, column in enumerate(relation.columns) if column.type == AT]
    lists = [place for place, one in enumerate(relation.columns) if pa.types.is_list(one.type)]
    plain = [list(row) for row in rows]
    for row in plain:
        for place in clocks:
            value = row[place]
            if isinstance(value, int):
                row[place] = _plain(_EPOCH + timedelta(microseconds=value))
        for place in lists:
            value = row[place]
            if isinstance(value, tuple):
                row[place] = list(value)
    return plain

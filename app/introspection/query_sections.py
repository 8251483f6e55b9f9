"""Query sections say on the pages of Spark's UI what is known of the objects that a query runs.

    show_statistics(spark, QuerySections(relations).describe)

The numbers are those of `/metrics`, by their names there. Spark's UI has no token, so a page has
numbers, names and a verdict in a word; the reasons, which may quote data, are behind the link to
the object's own page.

A query of somebody else in the same session has a section for each shard that it reads, if any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias
from urllib.parse import quote

from shardline.app.introspection.relation import Metric, Relation
from shardline.app.introspection.samples import labels_of, samples_of
from shardline.app.introspection.store import Relations
from shardline.datasource.frames import (
    SeenQuery,
    StatisticsSection,
    StatisticsTable,
    metrics_table,
    source_sections,
)

__all__ = ["QuerySections"]

_JsonRow: TypeAlias = Mapping[str, object]
_Values: TypeAlias = Mapping[tuple[str, ...], Mapping[str, str]]
"""Numbers for people: by the values of labels, then by the name of the metric."""


@dataclass(frozen=True, slots=True)
class QuerySections:
    """Describes the queries of an application's session."""

    relations: Relations

    def describe(self, query: SeenQuery) -> list[StatisticsSection]:
        """The sections of the objects that a query runs, or has run, then of shards that it reads.

        A group's query has one for each view whose steps it triggers. Those of a run that has ended
        say how its object is now.
        """
        shards = {str(row["shard_id"]): str(row["name"]) for row in self.relations.rows("shards")}
        return [*self._objects(query), *source_sections(query.progress, shards)]

    def _objects(self, query: SeenQuery) -> Iterator[StatisticsSection]:
        rows = self.relations.rows("objects")
        shown = [row for row in rows if _is_run_by(row, query)]
        shown = shown or [row for row in rows if _was_run_by(row, query)]
        if not shown:
            return
        kinds = {str(row["id"]): str(row["type"]) for row in rows}
        names = [str(row["id"]) for row in shown]
        found = self._metrics(names, kinds)
        verdicts = self._column("verdicts", "verdict")
        lags = self._column("wallclock_lag", "lag")
        address = next((row["address"] for row in self.relations.rows("location")), None)
        for name in names:
            yield StatisticsSection(
                title=f"{kinds[name]} {name}",
                state=", ".join(_words(verdicts.get(name), lags.get(name))),
                link=f"{address}/object/{quote(name)}" if address else "",
                tables=found[name],
            )

    def _column(self, relation: str, column: str) -> dict[str, object]:
        """Values of a column, by the object that they are about."""
        return {str(row["object_id"]): row[column] for row in self.relations.rows(relation)}

    def _metrics(
        self, names: Iterable[str], kinds: Mapping[str, str]
    ) -> dict[str, tuple[StatisticsTable, ...]]:
        """All metrics about these objects, their shards, and what they hold of others' shards."""
        measured = [
            # Read once, however many objects a query has: some are computed from a lot.
            (one, self.relations.rows(one.name))
            for one in self.relations.declared.values()
            if one.object and any(column.metric for column in one.columns)
        ]
        found = {}
        for name in names:
            single: list[tuple[str, str, str]] = []
            several: list[StatisticsTable] = []
            for relation, rows in measured:
                # A hold is about the shard, and about the object that has taken it.
                about = [r for r in rows if name in (r[relation.object], r.get("object_id"))]
                labels = _labels(relation, about, name)
                values = _values(relation, about, kinds, labels)
                if labels:
                    several.append(_labelled(relation, values, labels))
                else:
                    single.extend(_single(relation, values))
            found[name] = (metrics_table(single), *(table for table in several if table.rows))
        return found


def _is_run_by(row: _JsonRow, query: SeenQuery) -> bool:
    # A view in a group runs as part of the group's run: see `details._spark_page`.
    return str(row["run_id"] or "").partition("/")[0] == query.run


def _was_run_by(row: _JsonRow, query: SeenQuery) -> bool:
    """True if the query has the name that incarnations of the object give to theirs."""
    return query.name.startswith(f"{row['id']}:{row['global_id']}:")


def _words(verdict: object, lag_ms: object) -> Iterator[str]:
    if verdict is not None:
        yield str(verdict)
    if isinstance(lag_ms, int):
        yield f"{lag_ms / 1000:,.1f} s behind the clock"


# --- tables --------------------------------------------------------------------------------------


def _labels(relation: Relation, rows: Iterable[_JsonRow], name: str) -> tuple[str, ...]:
    """The labels that tell one sample about an object from another one about it.

    Those of a hold have its shard if some of the holds are on shards of others.
    """
    return tuple(
        label
        for label, source in labels_of(relation)
        if source and (source != relation.object or any(row[source] != name for row in rows))
    )


def _values(
    relation: Relation, rows: Sequence[_JsonRow], kinds: Mapping[str, str], labels: tuple[str, ...]
) -> _Values:
    found: dict[tuple[str, ...], dict[str, str]] = {}
    for column in relation.columns:
        if column.metric is not None:
            for sample in samples_of(relation, column, rows, kinds):
                key = tuple(value for label, value in sample.labels if label in labels)
                found.setdefault(key, {})[column.metric.name] = _number(sample.value)
    return found


def _single(relation: Relation, values: _Values) -> Iterator[tuple[str, str, str]]:
    for metric, by_name in product(_metrics_of(relation), values.values()):
        if metric.name in by_name:
            yield _shown(metric), by_name[metric.name], metric.help


def _labelled(relation: Relation, values: _Values, labels: tuple[str, ...]) -> StatisticsTable:
    metrics = _metrics_of(relation)
    return StatisticsTable(
        (*((label, "") for label in labels), *((_shown(one), one.help) for one in metrics)),
        tuple(
            (*key, *(by_name.get(one.name, "") for one in metrics))
            for key, by_name in values.items()
        ),
    )


def _metrics_of(relation: Relation) -> list[Metric]:
    return [column.metric for column in relation.columns if column.metric is not None]


def _shown(metric: Metric) -> str:
    """The name of a metric's samples: Prometheus has an ending for those that only grow."""
    return f"shardline_{metric.name}{'_total' if metric.grows else ''}"


def _number(value: float) -> str:
    return f"{value:,.3f}".rstrip("0").rstrip(".")

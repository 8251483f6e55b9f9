"""Samples are the values of a relation's metrics, one for each row that has the number.

What a metric is, a column declares (`relation.Metric`); here its values are taken from rows, for
`/metrics` and for Spark's UI, so that a number has one name, one unit and one value in both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from shardline.app.introspection.relation import Column, Relation

__all__ = ["Sample", "labels_of", "samples_of"]


@dataclass(frozen=True, slots=True)
class Sample:
    """A value of a metric.

    Attributes:
        labels: Names and values, in the order of `labels_of`.
        value: In the unit of the metric's name.
    """

    labels: tuple[tuple[str, str], ...]
    value: float


def labels_of(relation: Relation) -> tuple[tuple[str, str], ...]:
    """Label and column of a relation's metrics, where "" stands for the kind of the object."""
    if relation.labels is None:
        return (("object", relation.object), ("kind", ""))
    return relation.labels


def samples_of(
    relation: Relation,
    column: Column,
    rows: Iterable[Mapping[str, object]],
    kinds: Mapping[str, str],
) -> Iterator[Sample]:
    """The samples of one column; what has not been observed has none.

    Args:
        relation: Whose rows they are.
        column: One that has a metric.
        rows: As `Relations.rows` has them.
        kinds: Kinds of objects, by name.
    """
    assert column.metric is not None, column
    labels = labels_of(relation)
    for row in rows:
        value = row[column.name]
        if isinstance(value, int | float):
            values = tuple(
                (label, str(row[name]) if name else kinds.get(str(row[relation.object]), ""))
                for label, name in labels
            )
            yield Sample(values, float(value) * column.metric.scale)

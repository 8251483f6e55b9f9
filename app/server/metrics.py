"""The metrics are the numbers of the introspection relations in Prometheus' text format.

    encode_metrics(relations)    -> bytes, with CONTENT_TYPE

Each family is made of one relation when it is scraped, so that a number on a dashboard and the one
that SQL gives are the same. Labels are `object` (or `shard`) and `kind`; units are in the names:
seconds and bytes, as Prometheus wants them. What has not been observed has no sample.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from typing_extensions import override

from shardline.app.introspection.relation import Relation
from shardline.app.introspection.samples import labels_of, samples_of
from shardline.app.introspection.spark_plan.operators import PHASES
from shardline.app.introspection.store import Relations
from shardline.app.protocol.object_state import SHOWN_STATUSES, VERDICTS

__all__ = ["CONTENT_TYPE", "RelationCollector", "encode_metrics"]

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST

_TIMED: Final = ("Dataflow", *PHASES)
"""Operators whose time is wall-clock time; that of the others is the time of Spark's tasks."""

_NS: Final = 1e-9


def encode_metrics(relations: Relations) -> bytes:
    """Encode all families as text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(RelationCollector(relations))
    return generate_latest(registry)


class RelationCollector(Collector):
    """Makes families of relations, for a registry of prometheus-client."""

    def __init__(self, relations: Relations) -> None:
        self._relations = relations

    @override
    def collect(self) -> Iterator[Metric]:
        # A family without samples would be a name with a type and nothing to look at.
        return (family for family in self._families() if family.samples)

    def _families(self) -> Iterator[Metric]:
        rows = self._relations.rows
        kinds = {str(row["id"]): str(row["type"]) for row in rows("objects")}
        yield _state("status", SHOWN_STATUSES, rows("objects"), "id")
        yield _state("verdict", VERDICTS, rows("verdicts"), "object_id")
        for relation in self._relations.declared.values():
            yield from self._declared(relation, kinds)
        yield from self._work(kinds)
        yield from self._operators(kinds)
        yield from self._reads()

    def _declared(self, relation: Relation, kinds: Mapping[str, str]) -> Iterator[Metric]:
        """The families of a relation's columns: see `relation.Metric`."""
        measured = [column for column in relation.columns if column.metric is not None]
        rows = self._relations.rows(relation.name) if measured else []
        labels = [name for name, _ in labels_of(relation)]
        for column in measured:
            metric = column.metric
            assert metric is not None
            make = CounterMetricFamily if metric.grows else GaugeMetricFamily
            family = make(f"shardline_{metric.name}", metric.help, labels=labels)
            for sample in samples_of(relation, column, rows, kinds):
                family.add_metric([value for _, value in sample.labels], sample.value)
            yield family

    def _work(self, kinds: Mapping[str, str]) -> Iterator[Metric]:
        rows = self._relations.rows
        busy = CounterMetricFamily(
            "shardline_micro_batch_seconds",
            "Time spent in micro-batches, by phase; Dataflow is all of it.",
            labels=("object", "kind", "phase"),
        )
        homes = {row["id"]: row for row in rows("dataflow_operator_dataflows")}
        for row in rows("scheduling_elapsed"):
            home = homes.get(row["id"])
            value = _number(row["elapsed_ns"], _NS)
            if home is not None and value is not None and home["name"] in _TIMED:
                name = _object(home)
                busy.add_metric((name, kinds.get(name, ""), str(home["name"])), value)
        yield busy
        whole = {number: row for number, row in homes.items() if row["name"] == _TIMED[0]}
        took = HistogramMetricFamily(
            "shardline_micro_batch_duration_seconds",
            "How long micro-batches took.",
            labels=("object", "kind"),
        )
        for number, buckets in _buckets(rows("operator_durations_histogram"), "id").items():
            if number in whole:
                name = _object(whole[number])
                took.add_metric((name, kinds.get(name, "")), buckets, None)
        yield took

    def _operators(self, kinds: Mapping[str, str]) -> Iterator[Metric]:
        rows = self._relations.rows
        homes = {row["id"]: row for row in rows("dataflow_operator_dataflows")}

        def labels(number: object) -> tuple[str, str, str, str]:
            home = homes[number]
            name = _object(home)
            return (name, kinds.get(name, ""), str(home["name"]), str(number))

        names = ("object", "kind", "operator", "id")
        worked = CounterMetricFamily(
            "shardline_operator_seconds", "Time of Spark's tasks for an operator.", labels=names
        )
        for row in rows("scheduling_elapsed"):
            value = _number(row["elapsed_ns"], _NS)
            if row["id"] in homes and homes[row["id"]]["name"] not in _TIMED and value is not None:
                worked.add_metric(labels(row["id"]), value)
        yield worked
        moved = CounterMetricFamily(
            "shardline_operator_rows",
            "Rows that an operator has taken, by port.",
            labels=(*names, "port"),
        )
        ends = {row["id"]: row["to_operator_id"] for row in rows("dataflow_channel_operators")}
        ports = {row["id"]: row["to_port"] for row in rows("dataflow_channels")}
        for row in rows("message_counts"):
            channel, value = row["channel_id"], _number(row["received"])
            if channel in ends and ends[channel] in homes and value is not None:
                moved.add_metric((*labels(ends[channel]), str(ports.get(channel, 0))), value)
        yield moved
        for name, column, text in (
            ("arrangement_records", "records", "Rows, or keys, that an operator keeps in memory."),
            ("arrangement_size_bytes", "size", "What an operator keeps in memory."),
        ):
            kept = GaugeMetricFamily(f"shardline_{name}", text, labels=names)
            for row in rows("arrangement_sizes"):
                value = _number(row[column])
                if row["operator_id"] in homes and value is not None:
                    kept.add_metric(labels(row["operator_id"]), value)
            yield kept

    def _reads(self) -> Iterator[Metric]:
        rows = self._relations.rows
        took = HistogramMetricFamily(
            "shardline_peek_duration_seconds",
            "How long reads took, by where their answers came from.",
            labels=("path",),
        )
        for path, buckets in _buckets(rows("peek_durations_histogram"), "type").items():
            took.add_metric((str(path),), buckets, None)
        yield took
        for name, text, count in (
            ("peeks_active", "Reads that are under way.", {r["id"] for r in rows("active_peeks")}),
            ("subscriptions", "Clients that follow an object.", rows("subscriptions")),
        ):
            family = GaugeMetricFamily(f"shardline_{name}", text)
            family.add_metric((), len(count))
            yield family
        commands = [value for r in rows("command_history") if (value := _number(r["index"]))]
        lane = GaugeMetricFamily("shardline_lane_index", "Position of the lane's newest command.")
        if commands:
            lane.add_metric((), max(commands))
        yield lane


def _state(
    what: str, values: Iterable[str], rows: Iterable[Mapping[str, object]], name: str
) -> Metric:
    """A family with 1 for the value that an object has, as Prometheus wants states."""
    family = GaugeMetricFamily(
        f"shardline_object_{what}",
        f"1 for the {what} that the object has, 0 for the others.",
        labels=("object", "kind", what),
    )
    for row in rows:
        for value in values:
            labels = (str(row[name]), str(row["type"]), value)
            family.add_metric(labels, float(row[what] == value))
    return family


def _object(home: Mapping[str, object]) -> str:
    return str(home["dataflow_name"]).removeprefix("Dataflow: ")


def _buckets(
    rows: Iterable[Mapping[str, object]], column: str
) -> dict[object, list[tuple[str, float]]]:
    """Buckets of histograms, cumulative as Prometheus wants them, by the value of `column`."""
    counts: dict[object, dict[float, float]] = {}
    for row in rows:
        bound, count = _number(row["duration_ns"], _NS), _number(row["count"])
        if bound is not None and count is not None:
            counts.setdefault(row[column], {})[bound] = count
    found: dict[object, list[tuple[str, float]]] = {}
    for key, buckets in counts.items():
        total, found[key] = 0.0, []
        for bound, count in sorted(buckets.items()):
            total += count
            found[key].append((repr(bound), total))
        found[key].append(("+Inf", total))
    return found


def _number(value: object, scale: float = 1.0) -> float | None:
    return float(value) * scale if isinstance(value, int | float) else None

"""The numbers of the relations in Prometheus' text format.

    exposition(relations)    -> bytes, with CONTENT_TYPE

Each family is made of one relation when it is scraped, so that a number on a dashboard and the one
that SQL gives are the same. Labels are `object` (or `shard`) and `kind`; units are in the names:
seconds and bytes, as Prometheus wants them. What has not been observed has no sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from typing_extensions import override

from app.introspection.store import Relations

__all__ = ["CONTENT_TYPE", "RelationCollector", "exposition"]

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST

_STATUSES: Final = ("created", "starting", "running", "stalled", "frozen", "paused", "ceased")
_MS: Final = 1e-3
_NS: Final = 1e-9

_Value = Callable[[Mapping[str, object]], float | None]


def exposition(relations: Relations) -> bytes:
    """All families, as text."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(RelationCollector(relations))
    return generate_latest(registry)


class RelationCollector(Collector):
    """Makes families of relations, for a registry of prometheus-client."""

    def __init__(self, relations: Relations) -> None:
        self._relations = relations

    @override
    def collect(self) -> Iterator[Metric]:
        rows = self._relations.rows
        kinds = {str(row["id"]): str(row["type"]) for row in rows("objects")}
        yield _status(rows("objects"))
        yield from self._progress(kinds)
        yield from self._work(kinds)
        yield from self._shards()
        yield from self._listener()

    def _progress(self, kinds: Mapping[str, str]) -> Iterator[Metric]:
        rows = self._relations.rows
        yield _gauge(
            "object_lag_seconds",
            "How far the object is behind the clock.",
            _labelled(rows("wallclock_lag"), "object_id", kinds, _of("lag", _MS)),
        )
        yield _gauge(
            "object_input_lag_seconds",
            "How far the object is behind its slowest input.",
            _labelled(rows("materialization_lag"), "object_id", kinds, _of("local_lag", _MS)),
        )
        yield _gauge(
            "object_upper_seconds",
            "Upper of the object's contents, as a time since the epoch.",
            _labelled(rows("frontiers"), "object_id", kinds, _of("write_frontier", _MS)),
        )
        yield _gauge(
            "object_hydrated",
            "Whether the object has caught up with its as_of.",
            _labelled(rows("hydration_statuses"), "object_id", kinds, _of("hydrated")),
        )
        yield _gauge(
            "object_hydration_seconds",
            "How long the object took to catch up.",
            _labelled(rows("hydration_times"), "object_id", kinds, _of("hydration_time", _MS)),
        )
        yield _gauge(
            "object_errors",
            "Errors that the object's contents have now.",
            _labelled(rows("error_counts"), "export_id", kinds, _of("count")),
        )

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
            if home is not None and value is not None:
                name = str(home["dataflow_name"]).removeprefix("Dataflow: ")
                busy.add_metric((name, kinds.get(name, ""), str(home["name"])), value)
        yield busy
        for kind, relation in (("source", "source_statistics"), ("sink", "sink_statistics")):
            yield from self._statistics(kind, relation)
        measured = GaugeMetricFamily(
            "shardline_object_measurement",
            "A number that the object reports of itself.",
            labels=("object", "kind", "name"),
        )
        for row in rows("measurements"):
            value = _number(row["value"])
            if value is not None:
                name = str(row["object_id"])
                measured.add_metric((name, kinds.get(name, ""), str(row["name"])), value)
        yield measured

    def _statistics(self, kind: str, relation: str) -> Iterator[Metric]:
        rows = self._relations.rows(relation)
        for column in self._relations.declared[relation].columns[1:]:
            name, scale = f"{kind}_{column.name}", 1.0
            if column.name.endswith("_latency"):
                name, scale = f"{name}_seconds", _MS
            yield _gauge(
                name,
                f"{column.comment.removesuffix(', in ms')}.".capitalize(),
                _labelled(rows, "id", {str(r["id"]): kind for r in rows}, _of(column.name, scale)),
            )

    def _shards(self) -> Iterator[Metric]:
        shards = self._relations.rows("shards")
        for name, column in (
            ("shard_size_bytes", "size"),
            ("shard_parts", "parts"),
            ("shard_batches", "batches"),
            ("shard_records", "records"),
        ):
            family = GaugeMetricFamily(
                f"shardline_{name}", f"Of the shard: {column}.", labels=("shard",)
            )
            for row in shards:
                value = _number(row[column])
                if value is not None:
                    family.add_metric((str(row["name"]),), value)
            yield family
        held = GaugeMetricFamily(
            "shardline_hold_behind_seconds",
            "History that a reader holds back.",
            labels=("shard", "holder", "kind"),
        )
        for row in self._relations.rows("shard_holds"):
            value = _number(row["behind"], _MS)
            if value is not None:
                held.add_metric((str(row["shard"]), str(row["name"]), str(row["kind"])), value)
        yield held

    def _listener(self) -> Iterator[Metric]:
        (row,) = self._relations.rows("listener")
        for name in ("events", "dropped", "unconverted", "stale", "foreign", "failed"):
            value = _number(row[name])
            family = CounterMetricFamily(
                f"shardline_introspection_{name}", f"Events of introspection: {name}."
            )
            family.add_metric((), value or 0.0)
            yield family
        for name, column, scale in (
            ("queue_depth", "queue_depth", 1.0),
            ("lag_seconds", "lag", _MS),
            ("unheard_queries", "unheard_queries", 1.0),
        ):
            value = _number(row[column], scale)
            gauge = GaugeMetricFamily(
                f"shardline_introspection_{name}", f"Of introspection itself: {name}."
            )
            if value is not None:
                gauge.add_metric((), value)
            yield gauge


def _status(rows: Iterable[Mapping[str, object]]) -> Metric:
    family = GaugeMetricFamily(
        "shardline_object_status",
        "1 for the status that the object has, 0 for the others.",
        labels=("object", "kind", "status"),
    )
    for row in rows:
        for status in _STATUSES:
            labels = (str(row["id"]), str(row["type"]), status)
            family.add_metric(labels, float(row["status"] == status))
    return family


def _gauge(
    name: str, text: str, samples: Iterable[tuple[tuple[str, str], float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"shardline_{name}", text, labels=("object", "kind"))
    for labels, value in samples:
        family.add_metric(labels, value)
    return family


def _labelled(
    rows: Iterable[Mapping[str, object]], column: str, kinds: Mapping[str, str], value_of: _Value
) -> Iterator[tuple[tuple[str, str], float]]:
    for row in rows:
        value = value_of(row)
        if value is not None:
            name = str(row[column])
            yield (name, kinds.get(name, "")), value


def _of(column: str, scale: float = 1.0) -> _Value:
    return lambda row: _number(row[column], scale)


def _number(value: object, scale: float = 1.0) -> float | None:
    return float(value) * scale if isinstance(value, int | float) else None

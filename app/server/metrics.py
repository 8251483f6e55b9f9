"""The metrics are the numbers of the introspection relations in Prometheus' text format.

    exposition(relations)    -> bytes, with CONTENT_TYPE

Each family is made of one relation when it is scraped, so that a number on a dashboard and the one
that SQL gives are the same. Labels are `object` (or `shard`) and `kind`; units are in the names:
seconds and bytes, as Prometheus wants them. What has not been observed has no sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
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

from shardline.app.introspection.spark_plan.operators import PHASES
from shardline.app.introspection.store import Relations

__all__ = ["CONTENT_TYPE", "RelationCollector", "encode_metrics"]

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST

_STATUSES: Final = ("created", "starting", "running", "stalled", "frozen", "paused", "ceased")
_TIMED: Final = ("Dataflow", *PHASES)
"""Operators whose time is wall-clock time; that of the others is the time of Spark's tasks."""

_COUNTED: Final = frozenset(
    {
        "messages_received",
        "bytes_received",
        "updates_staged",
        "updates_committed",
        "messages_staged",
        "messages_committed",
        "bytes_staged",
        "bytes_committed",
    }
)
"""Statistics that only grow while the object lives."""

_MS: Final = 1e-3
_NS: Final = 1e-9

_PROGRESS: Final = {
    ("wallclock_lag", "object_id"): (
        ("lag_seconds", "lag", _MS, "How far the object is behind the clock."),
    ),
    ("materialization_lag", "object_id"): (
        ("input_lag_seconds", "local_lag", _MS, "How far the object is behind its slowest input."),
        (
            "source_lag_seconds",
            "global_lag",
            _MS,
            "How far the object is behind the slowest source below it.",
        ),
    ),
    ("frontiers", "object_id"): (
        (
            "since_seconds",
            "read_frontier",
            _MS,
            "Since of the object's contents, as a time since the epoch.",
        ),
        (
            "upper_seconds",
            "write_frontier",
            _MS,
            "Upper of the object's contents, as a time since the epoch.",
        ),
    ),
    ("hydration_statuses", "object_id"): (
        ("hydrated", "hydrated", 1.0, "Whether the object has caught up with its as_of."),
    ),
    ("hydration_times", "object_id"): (
        ("hydration_seconds", "hydration_time", _MS, "How long the object took to catch up."),
    ),
    ("error_counts", "export_id"): (
        ("errors", "count", 1.0, "Errors that the object's contents have now."),
    ),
}
"""Families of an object: by relation and the column of the object's name, in this relation."""

_Value = Callable[[Mapping[str, object]], float | None]


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
        rows = self._relations.rows
        kinds = {str(row["id"]): str(row["type"]) for row in rows("objects")}
        yield _status(rows("objects"))
        yield from self._progress(kinds)
        yield from self._work(kinds)
        yield from self._operators(kinds)
        yield from self._reads()
        yield from self._shards()
        yield from self._maintenance()
        yield from self._listener()

    def _progress(self, kinds: Mapping[str, str]) -> Iterator[Metric]:
        for (relation, key), families in _PROGRESS.items():
            rows = self._relations.rows(relation)
            for name, column, scale, text in families:
                yield _gauge(
                    f"object_{name}", text, _labelled(rows, key, kinds, _of(column, scale))
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

    def _statistics(self, kind: str, relation: str) -> Iterator[Metric]:
        rows = self._relations.rows(relation)
        for column in self._relations.declared[relation].columns[1:]:
            name, scale = f"{kind}_{column.name}", 1.0
            made = CounterMetricFamily if column.name in _COUNTED else GaugeMetricFamily
            if column.name.endswith("_latency"):
                name, scale = f"{name}_seconds", _MS
            yield _gauge(
                name,
                f"{column.comment.removesuffix(', in ms')}.".capitalize(),
                _labelled(rows, "id", {str(r["id"]): kind for r in rows}, _of(column.name, scale)),
                made,
            )

    def _shards(self) -> Iterator[Metric]:
        shards = self._relations.rows("shards")
        for name, column in (
            ("shard_size_bytes", "size"),
            ("shard_parts", "parts"),
            ("shard_batches", "batches"),
            ("shard_records", "records"),
            ("shard_updates", "updates"),
            ("shard_dropped_bytes", "dropped_size"),
            ("shard_seqno", "seqno"),
        ):
            family = GaugeMetricFamily(
                f"shardline_{name}", f"Of the shard: {column}.", labels=("shard",)
            )
            for row in shards:
                value = _number(row[column])
                if value is not None:
                    family.add_metric((str(row["name"]),), value)
            yield family
        for name, column, scale, text in (
            ("behind_seconds", "behind", _MS, "History that a reader holds back."),
            ("silent_seconds", "silent", _MS, "Since a reader was heard of."),
            ("only_bytes", "only_size", 1.0, "What is kept for a reader alone."),
        ):
            held = GaugeMetricFamily(
                f"shardline_hold_{name}", text, labels=("shard", "holder", "kind")
            )
            for row in self._relations.rows("shard_holds"):
                value = _number(row[column], scale)
                if value is not None:
                    held.add_metric((str(row["shard"]), str(row["name"]), str(row["kind"])), value)
            yield held

    def _maintenance(self) -> Iterator[Metric]:
        newest = {str(row["shard"]): row for row in self._relations.rows("maintenance")}
        took = GaugeMetricFamily(
            "shardline_maintenance_seconds",
            "How long the last round on the shard that did something took.",
            labels=("shard",),
        )
        failed = GaugeMetricFamily(
            "shardline_maintenance_failed_steps",
            "Steps of that round that failed.",
            labels=("shard",),
        )
        for name, row in newest.items():
            steps = row["failed"]
            assert isinstance(steps, list), row
            took.add_metric((name,), _number(row["took"], _MS) or 0.0)
            failed.add_metric((name,), float(len(steps)))
        yield from (took, failed)

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
    name: str,
    text: str,
    samples: Iterable[tuple[tuple[str, str], float]],
    made: type[CounterMetricFamily | GaugeMetricFamily] = GaugeMetricFamily,
) -> CounterMetricFamily | GaugeMetricFamily:
    family = made(f"shardline_{name}", text, labels=("object", "kind"))
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


def _of(column: str, scale: float = 1.0) -> _Value:
    return lambda row: _number(row[column], scale)


def _number(value: object, scale: float = 1.0) -> float | None:
    return float(value) * scale if isinstance(value, int | float) else None

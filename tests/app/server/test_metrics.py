"""Metrics: each column that declares one is exposed, row for row, under the name that it had."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from prometheus_client.parser import text_string_to_metric_families

from shardline.app.introspection.relation import Relation
from shardline.app.server.metrics import encode_metrics
from support.fakes.introspection import World

FAMILIES = {
    "hold_behind_seconds", "hold_only_bytes", "hold_silent_seconds",
    "introspection_dropped", "introspection_events", "introspection_failed",
    "introspection_foreign", "introspection_lag_seconds", "introspection_queue_depth",
    "introspection_stale", "introspection_unconverted", "introspection_unheard_queries",
    "maintenance_failed_steps", "maintenance_seconds",
    "object_errors", "object_hydrated", "object_hydration_seconds", "object_input_lag_seconds",
    "object_lag_seconds", "object_measurement", "object_since_seconds",
    "object_source_lag_seconds", "object_upper_seconds",
    "shard_batches", "shard_dropped_bytes", "shard_parts", "shard_records", "shard_seqno",
    "shard_size_bytes", "shard_updates",
    "sink_bytes_committed", "sink_bytes_staged", "sink_messages_committed", "sink_messages_staged",
    "source_bytes_indexed", "source_bytes_received", "source_messages_received",
    "source_offset_committed", "source_offset_known", "source_records_indexed",
    "source_rehydration_latency_seconds", "source_snapshot_committed",
    "source_snapshot_records_known", "source_snapshot_records_staged", "source_updates_committed",
    "source_updates_staged",
}  # fmt: skip
"""Names that dashboards and alerts of others have: one may be added, none may go."""


class Rows:
    """Relations with made-up rows: numbers that differ, every third one missing."""

    def __init__(self) -> None:
        self.declared = dict(World().relations.declared)

    def rows(self, name: str) -> list[dict[str, Any]]:
        relation = self.declared[name]
        count = 1 if name in ("listener", "verdict_summary", "location") else 3
        if not any(column.metric for column in relation.columns) and name != "objects":
            return []
        return [self._row(relation, number) for number in range(count)]

    @staticmethod
    def _row(relation: Relation, number: int) -> dict[str, Any]:
        row: dict[str, Any] = {}
        for place, column in enumerate(relation.columns, 1):
            if column.name == relation.object:
                row[column.name] = f"o{number}"
            elif pa.types.is_string(column.type):
                row[column.name] = f"{column.name} {number}"
            else:
                row[column.name] = None if (place + number) % 3 == 0 else place * 100 + number
        if relation.name == "objects":
            row |= {"id": f"o{number}", "type": "view", "status": "running"}
        return row


def test_every_declared_column_is_exposed_with_its_rows() -> None:
    """Scaled to the unit of the name, with the labels of the relation; what is NULL has none."""
    rows: Any = Rows()
    text = encode_metrics(rows).decode()
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    names = set()
    expected: dict[Any, float] = {}
    for relation in rows.declared.values():
        for column in relation.columns:
            if column.metric is None:
                continue
            names.add(column.metric.name)
            suffix = "_total" if column.metric.grows else ""
            for row in rows.rows(relation.name):
                if row[column.name] is not None:
                    name = f"shardline_{column.metric.name}{suffix}"
                    key = (name, *sorted(labels_of(relation, row).items()))
                    expected[key] = row[column.name] * column.metric.scale
    assert names >= FAMILIES
    missing = {key for key, value in expected.items() if found.get(key) != value}
    assert missing == set()
    declared = {f"shardline_{name}" for name in names}
    others = {
        key
        for key in found
        if str(key[0]).removesuffix("_total") in declared and key not in expected
    }
    assert others == set()


def labels_of(relation: Relation, row: dict[str, Any]) -> dict[str, str]:
    """By name of the relation, as the documentation has them."""
    match relation.name:
        case "listener" | "verdict_summary" | "location":
            return {}
        case "shards":
            return {"shard": row["name"]}
        case "shard_maintenance":
            return {"shard": row["shard"]}
        case "shard_holds":
            return {"shard": row["shard"], "holder": row["name"], "kind": row["kind"]}
        case "measurements":
            return {"object": row["object_id"], "kind": "view", "name": row["name"]}
        case _:
            return {"object": row[relation.object], "kind": "view"}


def test_no_two_columns_are_one_family() -> None:
    """A name is that of one column."""
    names = [
        column.metric.name
        for relation in World().relations.declared.values()
        for column in relation.columns
        if column.metric is not None
    ]
    assert len(names) == len(set(names))

"""An application with a session each for storage and compute watches one of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from shardline.app.coordinator.application import Application
from shardline.app.settings.config import RuntimeSettings
from support.spark.projects import Place
from support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PATIENCE_S = 120

ONE_OF_EACH = """
CREATE SOURCE orders USING csv OPTIONS (path '${in}/orders', header 'true')
  SCHEMA (id INT, customer INT, price INT);
CREATE MATERIALIZED VIEW large AS SELECT id, price FROM orders WHERE price > 50;
"""


OF_OPERATORS = (
    *("dataflow_operators", "dataflow_addresses", "dataflow_operator_parents"),
    *("scheduling_elapsed", "operator_durations_histogram"),
)
"""Relations whose `id` is that of an operator."""


def test_with_a_session_each_storage_is_not_seen(spark: SparkSession, tmp_path: Path) -> None:
    """`--no-unified-runtime`: of dataflows, all relations show the view's and none the source's."""
    place = Place(tmp_path)
    settings = RuntimeSettings(interval_ms=500, unified=False)
    with Application(spark, place.client(), settings, data=tmp_path / "data") as application:
        assert application.feeds is not None
        ask = application.feeds.relations.rows

        def measured(name: str, about: str) -> list[Any]:
            rows = ask("measurements", object=about)
            return [row["value"] for row in rows if row["name"] == name]

        application.apply(place.project(ONE_OF_EACH).check(spark))
        wait_until(
            "the view holds what the files say",
            lambda: place.contents("large") == place.expected("large"),
            PATIENCE_S,
        )
        wait_until(
            "the view's micro-batch was heard of",
            lambda: bool(measured("micro_batches", "large")),
            PATIENCE_S,
        )
        homes = {row["id"]: row["dataflow_name"] for row in ask("dataflow_operator_dataflows")}
        assert set(homes.values()) == {"Dataflow: large"}
        (dataflow,) = ask("dataflows")
        assert dataflow["name"] == "Dataflow: large"
        assert {row["dataflow_id"] for row in ask("compute_exports")} == {dataflow["id"]}
        assert ask("storage_exports") == []
        for name in OF_OPERATORS:
            assert {homes[row["id"]] for row in ask(name)} == {"Dataflow: large"}, name
        assert {row["object_id"] for row in ask("step_phases")} == {"large"}
        # As an object it is there, like all that runs: it says itself how it is.
        assert {row["id"] for row in ask("objects")} == {"orders", "large"}
        assert measured("messages_received", "orders") == [3.0]

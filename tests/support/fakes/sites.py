"""Applications over one location in memory, without Spark: sources fail, the rest runs.

Indexes, subscriptions and simple queries need no Spark. What a source would bring the test puts
into its shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pyarrow as pa
import pytest

from shardline.app.coordinator.application import Application
from shardline.app.project.project import CheckedProject
from shardline.app.project.statements import ObjectDescription
from shardline.app.protocol.objects import IndexDescription, SourceDescription
from shardline.app.settings.config import RuntimeSettings
from shardline.datasource.client import ShardClient
from shardline.datasource.types.schema import ShardSchema
from support.fakes.reads import Place, Row
from support.waiting import wait_until

__all__ = ["SCHEMA", "Site", "index", "project", "source"]

SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string())])

_PATIENCE_S = 60


def source(name: str = "t", **options: str) -> SourceDescription:
    """A source that cannot run here."""
    return SourceDescription(name=name, format="none", options=options)


def index(name: str = "i", on: str = "t") -> IndexDescription:
    """An index on all of an object."""
    return IndexDescription(name=name, on=on)


def project(*wanted: ObjectDescription) -> CheckedProject:
    """A project of these objects."""
    schemas = {one.name: "k BIGINT, s STRING" for one in wanted}
    return CheckedProject({one.name: one for one in wanted}, schemas=schemas)


def _parse(ddl: str) -> ShardSchema:
    """As the real one, which needs Spark to read DDL."""
    del ddl
    return ShardSchema.from_arrow(SCHEMA)


class Site:
    """A location, and applications over it that come and go."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder = folder
        self.place = Place()
        monkeypatch.setattr("shardline.app.execution.object_shards.parse_ddl_schema", _parse)

    def client(self) -> ShardClient:
        """One more client of the location."""
        return ShardClient.open(self.place.url)

    def application(
        self,
        *,
        client: ShardClient | None = None,
        read_only: bool = False,
        take_over: bool = False,
        **settings: Any,
    ) -> Application:
        """An application of this location, not started yet."""
        spark = MagicMock(spec=["conf", "streams", "_jsparkSession"])
        spark.conf.get.return_value = "UTC"
        given = RuntimeSettings(
            **{"introspection": False, "maintenance": False, "retain_history": "1h", **settings}
        )
        return Application(
            spark,
            client or self.client(),
            given,
            data=self._folder,
            read_only=read_only,
            take_over=take_over,
        )

    def put(self, rows: Sequence[tuple[Row, int, int]], upper: int, name: str = "t") -> None:
        """What a source would bring."""
        self.place.put(name, list(rows), upper, SCHEMA)

    def holds(self, name: str = "t") -> list[str]:
        """Critical holds on a shard."""
        return sorted(self.place.client.state(name).critical)

    @staticmethod
    def wait(what: str, happened: Any) -> None:
        """Wait until something has happened."""
        wait_until(what, happened, _PATIENCE_S)

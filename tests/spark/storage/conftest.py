"""A host, and an input, for the tests of sinks on Spark."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardline.app.execution.host import Host
from shardline.app.storage.sinks.others import forget_collected
from support.spark.sinks import Input, host_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def host(spark: SparkSession, location: str, tmp_path: Path) -> Host:
    forget_collected()
    return host_of(spark, location, tmp_path / "checkpoints")


@pytest.fixture
def source(host: Host) -> Input:
    return Input(host.client)

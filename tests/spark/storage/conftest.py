"""Fixtures of the tests of sinks, a host and an input; and of sources: a runtime and an inbox."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardline.app.execution.host import Host
from shardline.app.storage.sinks.others import forget_collected
from support.spark.ingestions import Runtime
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


@pytest.fixture
def runtime(spark: SparkSession, location: str, tmp_path: Path) -> Runtime:
    return Runtime(spark, location, tmp_path / "checkpoints")


@pytest.fixture
def inbox(tmp_path: Path) -> Path:
    folder = tmp_path / "in box"
    folder.mkdir()
    return folder

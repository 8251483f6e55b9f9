"""Tests of native reads and writes over S3, by Spark's own file system for it (s3a).

Its jars are not among Spark's. With `SHARDLINE_TEST_S3A=true` Spark fetches them, every `location`
is in a bucket of a server process, and storage options come from the environment, as users of AWS
have them. What is marked `s3a` means the same there, but for what is marked `disk` as well: it
needs files on the local disk, or tests what no store has a part in: refusals, settings, choices.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from support.processes.s3_server import S3Server, s3_server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["CHOSEN", "new_location", "s3a_session", "server"]

CHOSEN: Final = os.environ.get("SHARDLINE_TEST_S3A") == "true"

_SDK: Final = "2.35.4"
"""The release that hadoop-aws was built with. It asks for all of it in one archive of 686 MB; these
are the modules that it uses."""

_PACKAGES: Final = (
    "org.apache.hadoop:hadoop-aws:3.5.0",  # the release of the Hadoop client that PySpark brings
    f"software.amazon.awssdk:s3:{_SDK}",
    f"software.amazon.awssdk:s3-transfer-manager:{_SDK}",
    f"software.amazon.awssdk:sts:{_SDK}",
)

_running: list[S3Server] = []


def server() -> S3Server:
    """The server that the session of the tests reaches."""
    return _running[0]


def new_location(folder: Path) -> str:
    """A location in a path with a space and unicode: in `folder`, or in a bucket of its own."""
    return f"s3://{server().new_bucket()}/läke 1" if CHOSEN else str(folder / "läke 1")


@contextmanager
def s3a_session(builder: SparkSession.Builder) -> Iterator[SparkSession]:
    """A session that reaches a server, as Shardline's own client does without any option.

    The tests are skipped where the jars cannot be had.
    """
    with s3_server() as started, pytest.MonkeyPatch.context() as environment:
        for name, value in {
            "AWS_ENDPOINT_URL": started.endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "not-a-secret",
            "AWS_REGION": "us-east-1",
        }.items():
            environment.setenv(name, value)
        for name, value in {
            "spark.jars.packages": ",".join(_PACKAGES),
            "spark.jars.excludes": "software.amazon.awssdk:bundle",
            "spark.hadoop.fs.s3a.endpoint": started.endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
            "spark.hadoop.fs.s3a.path.style.access": "true",
            # Checkpoints beside the shards, under the same scheme.
            "spark.hadoop.fs.s3.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
        }.items():
            builder = builder.config(name, value)
        _running.append(started)
        try:
            yield _start(builder)
        finally:
            _running.clear()


def _start(builder: SparkSession.Builder) -> SparkSession:
    from pyspark.errors import PySparkRuntimeError

    try:
        return builder.getOrCreate()
    except PySparkRuntimeError as error:
        # The script of Spark ends where a package cannot be had, and has said so.
        if "JAVA_GATEWAY_EXITED" not in str(error):
            raise
        pytest.skip("the jars of s3a cannot be fetched here")

"""Places to open locations at: memory, a local disk, and a bucket of a real S3 server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardline.datasource.clock import SystemIds
from shardline.datasource.stores.memory import drop_store
from support.fakes.clock import SeededIds
from support.processes.places import Place
from support.processes.s3_server import S3Server, s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def memory_place() -> Iterator[Place]:
    name = f"test-{SystemIds().token().hex()}"
    yield Place(f"memory://{name}")
    drop_store(name)


@pytest.fixture
def file_place(tmp_path: Path) -> Place:
    return Place(f"file://{tmp_path}/a löcation with spaces")


@pytest.fixture
def s3_place(s3: S3Server) -> Place:
    return Place(f"s3://{s3.new_bucket()}/some prefix/ü", s3.options)


_ON_DISK = ["file", pytest.param("s3", marks=pytest.mark.s3)]


@pytest.fixture(params=["memory", *_ON_DISK])
def place(request: pytest.FixtureRequest) -> Place:
    """Every kind of place."""
    found: Place = request.getfixturevalue(f"{request.param}_place")
    return found


@pytest.fixture(params=_ON_DISK)
def shared_place(request: pytest.FixtureRequest) -> Place:
    """Every kind of place that processes can share."""
    found: Place = request.getfixturevalue(f"{request.param}_place")
    return found


@pytest.fixture
def ids() -> SeededIds:
    return SeededIds()

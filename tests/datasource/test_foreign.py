"""Objects that other tools leave in a location: they change nothing that Shardline does.

Copying tools, consoles and mounted file systems mark the directories of a bucket by empty objects
whose names end in a slash, and hide files of their own beside ours.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import pytest

from shardline.datasource.client import ShardClient
from shardline.datasource.clock import SystemClock, SystemIds
from shardline.datasource.inspect.fsck import check_location
from shardline.datasource.stores.open import compose_location, open_objects
from support.fakes.clock import ManualClock
from support.models.shards import TINY, World, rows, schema_of, table
from support.processes.s3_server import S3Server, s3_server

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardline.datasource.stores.objects import Objects

MARKERS: Final = ("", "a/", "a/log/", "a/floor/", "a/part/", "a/rollup/", "ghost/", "ghost/log/")
HIDDEN: Final = tuple(f"a/{kind}/.DS_Store" for kind in ("log", "floor", "part", "rollup"))
NAMED_ALIKE: Final = ("a/rollup/0-notes.txt", "a/log/0000000000000000.bak")
AGE_MS: Final = 2 * 24 * 3600 * 1000


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


def bucket_of(server: S3Server) -> Objects:
    url = f"s3://{server.new_bucket()}/lake"
    return open_objects(url, server.options, clock=ManualClock(), ids=SystemIds())


@pytest.mark.s3
def test_a_shard_lives_among_markers_of_directories_on_s3(server: S3Server) -> None:
    """Opened cold again and again: read, written, merged, collected, truncated, swept, checked."""
    objects = bucket_of(server)
    clock = ManualClock()

    def cold() -> ShardClient:
        location = compose_location(
            objects, clock=clock, ids=SystemIds(), if_missing="create", grace_ms=0
        )
        return ShardClient(location, replace(TINY, rollup_every=4), clock, SystemIds())

    cold().create("a", schema_of())
    for key in (*MARKERS, *HIDDEN, *NAMED_ALIKE):
        objects.put(key, b"" if not key or key.endswith("/") else b"x")
    for number in range(12):
        cold().writer("a").append_now(table((number, "x" * 50)))
        if number % 4 == 3:
            cold().compact("a", force=True)
            cold().collect_garbage("a")
    expected = rows(table(*((number, "x" * 50) for number in range(12))))
    with cold().reader("a") as reader:
        assert rows(reader.snapshot()) == expected
    assert cold().shards() == ["a"]
    cold().collect_garbage("a")
    assert next(objects.entries("a/floor/", start_after="a/floor//"), None) is not None, "truncated"
    clock.advance(SystemClock().now_ms() + AGE_MS - clock.now_ms())  # by the clock of the store
    cold().sweep("a")
    with cold().reader("a") as reader:
        assert rows(reader.snapshot()) == expected
    report = check_location(objects, clock)
    assert report.findings == ()
    (check,) = report.shards
    assert {finding.severity for finding in check.findings} == {"warning"}, check.findings
    named = {finding.subject for finding in check.findings}
    assert named == {*HIDDEN, *NAMED_ALIKE} - {"a/part/.DS_Store"}, "a sweep has taken that one"
    for key in NAMED_ALIKE:
        assert objects.get(key) == b"x", "it was not ours to delete"


def test_the_same_without_a_bucket(world: World) -> None:
    """In memory, where a marker is an object like any other."""
    world.client(TINY).create("a", schema_of())
    for key in (*MARKERS[1:], *HIDDEN, *NAMED_ALIKE):
        world.objects().put(key, b"")
    for number in range(8):
        world.client(TINY).writer("a").append_now(table((number, "x")))
    assert world.client().shards() == ["a"]
    with world.client().reader("a") as reader:
        assert len(rows(reader.snapshot())) == 8

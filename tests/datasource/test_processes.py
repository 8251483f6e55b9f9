"""Real processes on one shard on disk: contending, repeating each other, and killed."""

from __future__ import annotations

import multiprocessing
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from shardline.datasource.client import ShardClient
from support.models.shards import SETTINGS, dangling, rows
from support.processes.shard_worker import SHARD, Task, rows_of, schema, work

pytestmark = pytest.mark.process

PROCESSES = multiprocessing.get_context("forkserver")
# Twenty processes that import Arrow anew would take longer than what they are started for.
PROCESSES.set_forkserver_preload(
    ["shardline.datasource.client", "pyarrow.compute", "pyarrow.parquet"]
)
MIXED = replace(SETTINGS, inline_part_bytes=700, inline_state_bytes=2000, rollup_every=16)

Said = tuple[int, tuple[int, int] | None]


@contextmanager
def started(task: Task) -> Iterator[tuple[BaseProcess, Connection]]:
    """A worker that is ready to append; killed at the end, if it still runs."""
    ours, theirs = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=work, args=(task, theirs))
    process.start()
    theirs.close()
    try:
        assert ours.recv() is None
        yield process, ours
    finally:
        process.kill()
        process.join()
        ours.close()


def heard(connection: Connection) -> list[Said]:
    """Everything that a worker still says."""
    said: list[Said] = []
    try:
        while True:
            said.append(connection.recv())
    except EOFError:
        return said


@pytest.fixture
def client() -> Iterator[ShardClient]:
    """A client of a fresh location, with an empty shard.

    In a file system in memory where there is one: a kill takes nothing that was written, synced
    or not, and hundreds of syncs take longer than all the rest.
    """
    memory = Path("/dev/shm")  # noqa: S108 - a fresh folder of our own below it
    with TemporaryDirectory(dir=memory if memory.is_dir() else None) as folder:
        made = ShardClient.open(f"file://{folder}/with spaces", settings=MIXED)
        made.create(SHARD, schema())
        yield made


def task_of(client: ShardClient, writer: str, first: int = 1, count: int | None = None) -> Task:
    return Task(client.location.url, MIXED, writer, first, count)


def contents(client: ShardClient) -> Counter[tuple[str, int]]:
    """What a process that has seen nothing reads."""
    fresh = ShardClient.open(client.location.url, settings=MIXED)
    assert dangling(fresh.machine(SHARD)) == []
    with fresh.reader(SHARD) as reader:
        return rows(reader.snapshot())


def expected(writer: str, numbers: range) -> Counter[tuple[str, int]]:
    total: Counter[tuple[str, int]] = Counter()
    for number in numbers:
        total += rows(rows_of(writer, number))
    return total


def test_contending_processes_append_everything_once(client: ShardClient) -> None:
    """Four processes at once: each append has an interval of its own, and none is lost."""
    tasks = [task_of(client, f"w{i}", count=25) for i in range(4)]
    with (
        started(tasks[0]) as (_, one),
        started(tasks[1]) as (_, two),
        started(tasks[2]) as (_, three),
        started(tasks[3]) as (_, four),
    ):
        said = [heard(connection) for connection in (one, two, three, four)]
    assert [[number for number, _ in some] for some in said] == [list(range(1, 26))] * 4
    spans = sorted(span for some in said for _, span in some if span is not None)
    assert len(spans) == 100
    assert spans[0][0] == 0
    assert all(a[1] == b[0] for a, b in pairwise(spans))
    for some in said:
        mine = [span for _, span in some if span is not None]
        assert mine == sorted(mine)
    total: Counter[tuple[str, int]] = Counter()
    for i in range(4):
        total += expected(f"w{i}", range(1, 26))
    assert contents(client) == total


def test_two_processes_with_the_same_work_do_it_once(client: ShardClient) -> None:
    """As two drivers with one checkpoint: whoever is first appends, the other one is told."""
    task = task_of(client, "query", count=30)
    with started(task) as (_, one), started(task) as (_, two):
        said = [heard(one), heard(two)]
    spans = [dict(some) for some in said]
    for number in range(1, 31):
        assert sum(some[number] is not None for some in spans) <= 1, number
    assert contents(client) == expected("query", range(1, 31))


@pytest.mark.slow
def test_a_killed_writer_loses_and_repeats_nothing(client: ShardClient) -> None:
    """SIGKILL at any moment: what was acknowledged is there, and at most one append beyond it."""
    chance = random.Random(20261121)
    first = 1
    for _ in range(20):
        acknowledged = 0
        with started(task_of(client, "etl", first)) as (process, connection):
            for _ in range(chance.randrange(4)):
                acknowledged, _ = connection.recv()
            # Burn a random while without the clock: the kill falls anywhere into an append.
            sum(range(chance.randrange(200_000)))
            process.kill()
            process.join()
            for number, _ in heard(connection):
                acknowledged = number
        done = max(first - 1, acknowledged)
        found = contents(client) if client.state(SHARD).upper.time else Counter()
        sure, more = expected("etl", range(1, done + 1)), expected("etl", range(1, done + 2))
        assert found in (sure, more)
        # The next process repeats the one append whose fate nobody has told it.
        first = done + 1
    with started(task_of(client, "etl", first, count=3)) as (_, connection):
        assert [number for number, _ in heard(connection)] == [first, first + 1, first + 2]
    assert contents(client) == expected("etl", range(1, first + 3))

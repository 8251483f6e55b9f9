"""Appends of one row: through a shard, and as the bare put-if-absent loop of the same store."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from functools import partial
from multiprocessing.synchronize import Barrier

import pyarrow as pa

from bench.rounds import Measured, alternate, rates
from shardline.datasource.client import ShardClient
from shardline.datasource.clock import Clock
from shardline.datasource.stores.location import Committed
from shardline.datasource.types.schema import ShardSchema

__all__ = ["measure_appends", "measure_contention", "measure_opening"]

_AIMS = {"shard": 0.8}
_RECORD = b"x" * 600
"""As large as the record of an append of one row."""

_ROW = pa.table({"id": pa.array([1], pa.int64()), "name": pa.array(["a"])})


def measure_appends(
    clock: Clock, url: str, options: Mapping[str, str], count: int, rounds: int
) -> list[Measured]:
    """Appends per second of one writer."""
    client = ShardClient.open(url, options)
    made = iter(range(2 * rounds))

    def bare() -> None:
        _bare_loop(client, f"bare-{next(made)}", count)

    def shard() -> None:
        name = f"appends-{next(made)}"
        client.create(name, ShardSchema.from_arrow(_ROW.schema))
        writer = client.writer(name)
        for _ in range(count):
            writer.append_now(_ROW)

    best = alternate(clock, rounds, {"bare loop": bare, "shard": shard})
    return rates("append, one writer", best, count, "appends/s", _AIMS)


def measure_contention(
    clock: Clock, url: str, options: Mapping[str, str], writers: int, count: int
) -> list[Measured]:
    """Appends per second of several processes that contend for one shard, or for one bare log."""
    client = ShardClient.open(url, options)
    client.create("contended", ShardSchema.from_arrow(_ROW.schema))
    best = {
        "bare loop": _race(clock, partial(_contend_bare, url, dict(options), count), writers),
        "shard": _race(clock, partial(_contend_shard, url, dict(options), count), writers),
    }
    what = f"append, {writers} contending processes"
    return rates(what, best, count * writers, "appends/s", _AIMS)


def measure_opening(
    clock: Clock, url: str, options: Mapping[str, str], count: int
) -> list[Measured]:
    """Seconds to open a shard, in a fresh client, after `count` appends."""
    client = ShardClient.open(url, options)
    client.create("old", ShardSchema.from_arrow(_ROW.schema))
    writer = client.writer("old")
    start = clock.elapsed_ms()
    for _ in range(count):
        writer.append_now(_ROW)
    taken = (clock.elapsed_ms() - start) / 1000.0
    best = alternate(
        clock, 5, {"open": lambda: ShardClient.open(url, options, create=False).state("old")}
    )
    state = client.state("old")
    return [
        Measured(f"append, one writer, {count:,} in a row", count / taken, "appends/s"),
        Measured(
            f"open after {count:,} appends ({len(state.trace.batches):,} batches)",
            best["open"] * 1000.0,
            "ms",
        ),
    ]


def _bare_loop(client: ShardClient, log: str, count: int) -> None:
    """Append records to a log until `count` have been won, whoever else appends."""
    consensus = client.location.consensus
    head = consensus.head(log)
    expected = None if head is None else head.seqno
    won = 0
    while won < count:
        outcome = consensus.compare_and_set(log, expected, _RECORD)
        if isinstance(outcome, Committed):
            won, expected = won + 1, outcome.seqno
        else:
            found = consensus.head(log)
            expected = None if found is None else found.seqno


def _contend_bare(url: str, options: dict[str, str], count: int, barrier: Barrier) -> None:
    client = ShardClient.open(url, options)
    barrier.wait()
    _bare_loop(client, "contended-bare", count)


def _contend_shard(url: str, options: dict[str, str], count: int, barrier: Barrier) -> None:
    writer = ShardClient.open(url, options).writer("contended")
    barrier.wait()
    for _ in range(count):
        writer.append_now(_ROW)


def _race(clock: Clock, body: partial[None], writers: int) -> float:
    """Seconds from when all processes are ready until the last one is done."""
    context = multiprocessing.get_context("spawn")
    barrier = context.Barrier(writers + 1)
    processes = [context.Process(target=body, args=(barrier,)) for _ in range(writers)]
    for process in processes:
        process.start()
    barrier.wait()
    start = clock.elapsed_ms()
    for process in processes:
        process.join()
        assert process.exitcode == 0, process.exitcode
    return (clock.elapsed_ms() - start) / 1000.0

"""Measures what maintenance leaves of many small appends: batches, rewritten bytes, reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa

from bench.rounds import Measured, alternate
from shardline.datasource.client import ShardClient
from shardline.datasource.clock import Clock
from shardline.datasource.maintainer import Maintainer
from shardline.datasource.settings import ShardSettings
from shardline.datasource.types.schema import ShardSchema

__all__ = ["measure_maintenance"]

_ROWS: Final = 100
_SAMPLE: Final = 200
"""Appends without merges, from which the bytes of all are told."""

# Rollups are paid for by records, not by merges: they would be most of what a shard without merges
# writes, and make these look better than they are.
_SETTINGS: Final = replace(ShardSettings(), rollup_every=1_000_000)


def measure_maintenance(
    clock: Clock, url: str, options: Mapping[str, str], appends: int, rounds: int
) -> list[Measured]:
    """Appends of a hundred rows with default settings, then what they have become."""
    quiet = ShardClient.open(url, options, settings=replace(_SETTINGS, compact_inline_bytes=0))
    merging = ShardClient.open(url, options, settings=_SETTINGS)
    per_append = _append(clock, quiet, "sample", _SAMPLE)[0] / _SAMPLE
    written, seconds = _append(clock, merging, "appended", appends)
    appended = per_append * appends
    batches = len(merging.state("appended").trace.batches)
    _write_fresh(merging, appends)
    cases = {name: partial(_read, merging, name) for name in ("fresh", "appended")}
    read = alternate(clock, 5 * rounds, cases)
    size = f"{appends:,} appends of {_ROWS} rows"
    lines = [
        Measured(f"maintain, {size}", appends / seconds, "appends/s"),
        Measured("maintain, batches left", batches, "batches", most=16 * 4),
        Measured(
            "maintain, written by merges per byte appended",
            (written - appended) / appended,
            "bytes",
            most=4,
        ),
        Measured(
            "maintain, snapshot read against a fresh shard",
            read["appended"] / read["fresh"],
            "times",
            most=1.2,
        ),
    ]
    return [*lines, *_forced(clock, merging)]


def _forced(clock: Clock, client: ShardClient) -> list[Measured]:
    """A forced merge, and a round when nothing is due."""
    rows = sum(batch.rows for batch in client.state("appended").trace.batches)
    keeper = Maintainer(client, shards=["appended"])
    start = clock.elapsed_ms()
    client.compact("appended", force=True)
    taken = (clock.elapsed_ms() - start) / 1000.0
    keeper.round()
    idle = alternate(clock, 5, {"idle": keeper.round})["idle"]
    return [
        Measured("maintain, forced merge", rows / taken, "rows/s"),
        Measured("maintain, round without news", idle * 1000.0, "ms"),
    ]


def _append(clock: Clock, client: ShardClient, name: str, count: int) -> tuple[float, float]:
    """Bytes written and seconds taken by `count` appends."""
    client.create(name, ShardSchema.from_arrow(_rows(0).schema), key=("id",))
    writer = client.writer(name)
    before, start = _written(client), clock.elapsed_ms()
    for number in range(count):
        writer.append_now(_rows(number))
    return _written(client) - before, (clock.elapsed_ms() - start) / 1000.0


def _write_fresh(client: ShardClient, appends: int) -> None:
    client.create("fresh", ShardSchema.from_arrow(_rows(0).schema), key=("id",))
    client.writer("fresh").append_now(pa.concat_tables([_rows(n) for n in range(appends)]))


def _read(client: ShardClient, name: str) -> None:
    with client.reader(name) as reader:
        reader.snapshot()


def _rows(number: int) -> pa.Table:
    """The rows of one append: keys all over the place, an amount, a text of few values."""
    ids = (np.arange(_ROWS, dtype=np.int64) + number * _ROWS) * 7_919_993 % 1_000_000_007
    names = pa.array([f"customer {n % 97}" for n in range(_ROWS)])
    return pa.table({"id": ids, "amount": ids % 1000 / 4.0, "name": names})


def _written(client: ShardClient) -> float:
    return sum(
        one.bytes for one in client.location.statistics().operations if one.operation in _WRITES
    )


_WRITES: Final = ("create", "put")

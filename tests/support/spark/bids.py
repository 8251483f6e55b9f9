"""A world of bids on items: those in front come and go, and in most orders several are equal."""

from __future__ import annotations

import itertools
import math
import random
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from support.spark.view_world import START, ViewWorld

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pyspark.sql import SparkSession

    from support.spark.views import Input, Row

__all__ = ["bids_world"]

_BIDS: Final = pa.schema(
    [
        ("id", pa.int64()),
        ("item", pa.string()),
        ("price", pa.int32()),
        ("weight", pa.float64()),
        ("note", pa.string()),
        ("day", pa.date32()),
    ]
)
_ITEMS: Final = pa.schema([("name", pa.string()), ("city", pa.string())])
_TIMES: Final = tuple(range(START, START + 48, 6))
_CUTS: Final = (START + 1, 14, 22, 23, 36, START + 48)


def _bid(draw: random.Random, number: int) -> Row:
    return (
        number,
        draw.choice([None, "chair", "lamp", "rug"]),
        draw.choice([None, *range(9)]),
        draw.choice([None, math.nan, -0.0, 0.0, 0.5, -2.0, math.inf]),
        draw.choice([None, "", "a", "aaaaaaaab", "aaaaaaaaa", "é"]),
        draw.choice([None, -1, 0, 19_000]),
    )


def _change(draw: random.Random, bids: Input, time: int, numbers: Iterator[int]) -> None:
    """Some bids come and some go: at some times those that are in front in most orders."""
    there = bids.at(time)
    gone = draw.sample(there, min(len(there), draw.choice([0, 1, 4])))
    if draw.random() < 0.4:
        gone = sorted(there, key=lambda row: -(row[2] or -1))[:9]
    come = [_bid(draw, next(numbers)) for _ in range(draw.choice([0, 2, 6]) if there else 90)]
    bids.append([(time, row, 1) for row in come] + [(time, row, -1) for row in gone], time + 1)


def bids_world(spark: SparkSession, folder: Path, seed: int) -> ViewWorld:
    """A world by its seed: only `id` tells all bids apart, and sums of `weight` are exact."""
    world = ViewWorld(spark, folder, _CUTS, _TIMES)
    draw, numbers = random.Random(seed), itertools.count()
    bids = world.inputs["bids"] = world.bench.input("bids", _BIDS)
    items = world.inputs["items"] = world.bench.input("items", _ITEMS)
    for time in _TIMES:
        _change(draw, bids, time, numbers)
        news = [(draw.choice(["chair", "lamp"]), draw.choice(["Rome", "Oslo"]))]
        items.append([(time, row, 1) for row in news] if draw.random() < 0.5 else [], time + 1)
    for one in (bids, items):
        one.idle(_CUTS[-1])
    return world

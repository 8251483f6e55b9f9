"""A world of rows that are there for a time, and what DuckDB says of views of them at each time.

Times of shards are a few ms after the epoch, and so are the timestamps in rows, with parts of a ms:
a bound that is rounded the wrong way shows at the next time.
"""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from typing_extensions import override

from support.spark.view_world import ViewWorld
from support.spark.views import Row

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

__all__ = ["CUTS", "END", "EVENTS", "START", "TimedWorld", "at_us"]

START: Final = 10
END: Final = 60
CHANGES: Final = (10, 20, 21, 40)
CUTS: Final = (START + 1, 20, 22, 31, 45, END)
"""The ends of steps: two of them have no change of an input, and one has changes at two times."""


def at_us(micros: int) -> datetime:
    """A timestamp so many µs after the epoch."""
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=micros)


EVENTS: Final = pa.schema(
    [
        ("id", pa.int64()),
        ("who", pa.string()),
        ("price", pa.int32()),
        ("begins", pa.timestamp("us", "UTC")),
        ("ends", pa.timestamp("us", "UTC")),
    ]
)
SHORTLY_BEFORE: Final = (
    (7, "dan", 9, at_us(12_000), at_us(42_500)),
    (7, "dan", 8, at_us(41_500), at_us(43_500)),
)
"""Rows that are retracted at 40, in the step in which they would go, or come and go."""

PEOPLE: Final = pa.schema([("name", pa.string()), ("city", pa.string())])


class TimedWorld(ViewWorld):
    """Events with a time from which on and one up to which they are there, and people."""

    def __init__(self, spark: SparkSession, folder: Path, seed: int = 5) -> None:
        """Inputs in a location in `folder`, updated at random."""
        super().__init__(spark, folder, CUTS, range(START, END))
        draw = random.Random(seed)
        for name, schema in {"events": EVENTS, "people": PEOPLE}.items():
            make = _event if name == "events" else _person
            self.inputs[name] = found = self.bench.input(name, schema)
            for time in CHANGES:
                made = [make(draw) for _ in range(9 if time == START else 4)]
                there = [row for row in found.at(time) if row not in SHORTLY_BEFORE]
                gone = draw.sample(there, min(3, len(there)))
                twice = [(row, draw.choice([1, 1, 2])) for row in made]
                changes = [*twice, *((row, -1) for row in gone)]
                if name == "events" and time in {START, 40}:
                    changes += [(row, 1 if time == START else -1) for row in SHORTLY_BEFORE]
                if time == 20:
                    # Two times in one part.
                    found.append([(time + draw.choice([0, 1]), *one) for one in changes], 22)
                elif time != 21:
                    found.append([(time, *one) for one in changes], time + 1)
            found.idle(END)

    @override
    def by_duck(self, query: str, time: int) -> Counter[Row]:
        """What DuckDB makes of the model's rows at `time`; `{now}` in the query are its µs."""
        last = max(change for change in (0, *CHANGES, 41, 22) if change <= time)
        return super().by_duck(query.format(now=time * 1000), last)

    @override
    def for_duck(self, rows: pa.Table) -> pa.Table:
        """Rows with timestamps as µs."""
        for place, field in enumerate(rows.schema):
            if pa.types.is_timestamp(field.type):
                micros = rows.column(place).cast(pa.int64())
                rows = rows.set_column(place, field.name, micros)
        return rows


def _moment(draw: random.Random, chances: Sequence[int]) -> datetime | None:
    if draw.random() < 0.1:
        return None
    return at_us(draw.choice(chances) * 1000 + draw.choice([0, 0, 1, 400, 999]))


def _event(draw: random.Random) -> Row:
    return (
        draw.randrange(6),
        draw.choice([None, "ada", "bob", "cyd"]),
        draw.randrange(5, 30),
        _moment(draw, range(5, 50)),
        _moment(draw, range(8, 65)),
    )


def _person(draw: random.Random) -> Row:
    return draw.choice([None, "ada", "bob", "cyd"]), draw.choice(["Rome", "Oslo"])

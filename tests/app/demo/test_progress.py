"""How far everything is, from shards and checkpoints alone."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pyarrow as pa
import pytest
from rich.console import Console

from app.demo.data import DELAYS, FLIGHTS, RANKING
from app.demo.feed import Day, Feed, land
from app.demo.place import Place
from app.demo.progress import QueryStanding, Standing, Ticker, committed_frontier, look
from datasource.client import ShardClient
from datasource.clock import SystemClock
from datasource.frontier import Frontier
from datasource.schema import ShardSchema
from support.clock import ManualClock

SCHEMA = pa.schema([("n", pa.int64())])


def checkpoint(place: Place, query: str, frontiers: list[int | None], committed: int) -> None:
    """A checkpoint as Spark writes it; the first micro-batch may have had nothing to read."""
    folder = place.checkpoint(query)
    for part in ("offsets", "commits"):
        (folder / part).mkdir(parents=True)
    for number, frontier in enumerate(frontiers):
        offset: dict[str, object] = {
            "v": 1,
            "shard": "s",
            "hold": "h",
            "as_of": 1,
            "frontier": frontier,
        }
        if frontier is None:
            offset = {"v": 1, "init": True}
        text = "\n".join(["v1", '{"batchWatermarkMs":0}', json.dumps(offset)])
        (folder / "offsets" / str(number)).write_text(text)
        if number < committed:
            (folder / "commits" / str(number)).write_text("v1\n{}")
            (folder / "commits" / f".{number}.crc").write_text("")


@pytest.mark.parametrize(
    ("frontiers", "committed", "expected"),
    [([], 0, 0), ([None], 1, 0), ([10], 0, 0), ([None, 10], 2, 10), ([10, 20, 30], 2, 20)],
)
def test_a_position_is_that_of_the_last_micro_batch_done(
    tmp_path: Path, frontiers: list[int | None], committed: int, expected: int
) -> None:
    """A micro-batch that is planned but not committed has not been read."""
    place = Place(tmp_path, "l")
    checkpoint(place, "q", frontiers, committed)
    assert committed_frontier(place.checkpoint("q")) == Frontier(expected)


def test_eleven_micro_batches_are_counted_as_numbers(tmp_path: Path) -> None:
    """The tenth comes after the ninth, which as text it does not."""
    place = Place(tmp_path, "l")
    checkpoint(place, "q", list(range(100, 111)), 11)
    assert committed_frontier(place.checkpoint("q")) == Frontier(110)


def test_what_is_left_is_what_lies_at_or_after_the_position(tmp_path: Path) -> None:
    """Rows landed, rows taken in, and updates before and after each query's frontier."""
    place, clock = Place(tmp_path, "l"), ManualClock(5_000)
    place.make()
    client = ShardClient.open("memory://progress", clock=clock)
    for dataset in (FLIGHTS, DELAYS, RANKING):
        client.create(dataset.name, ShardSchema.from_arrow(SCHEMA))
    days = [Day("2013-01-01", b"", 6), Day("2013-01-02", b"", 5), Day("2013-01-03", b"", 1)]
    for day in days[:2]:
        land(day, place)
    flights = client.writer(FLIGHTS.name)
    for ts, rows in ((1_000, 2), (2_000, 3), (3_000, 4)):
        updates = pa.table({"n": list(range(rows)), "_ts": [ts] * rows, "_diff": [1] * rows})
        flights.append_now(updates)
    checkpoint(place, DELAYS.name, [1_500, 2_000], 2)

    standing = look(client, place, Feed(days, place, 1.0, clock), clock)
    assert (standing.days, standing.days_total, standing.finished) == (2, 3, False)
    first, second, third = standing.queries
    assert (first.done, first.left, first.upper) == (9, 2, 3_001)
    assert (second.done, second.left, second.behind_ms) == (2, 7, 3_000)
    assert (third.done, third.left, third.behind_ms, third.upper) == (0, 0, 0, 0)


def standing(at_ms: float, done: int, left: int, days: int = 1) -> Standing:
    query = QueryStanding("flights", done, left, 1_500 if left else 0, 1_795_000_000_123)
    return Standing(at_ms, days, 2, (query,))


def test_it_is_finished_when_nothing_is_left_anywhere() -> None:
    """Both count: days that have not arrived, and rows that have not been taken in."""
    assert standing(0, 5, 0, days=2).finished
    assert not standing(0, 5, 1, days=2).finished
    assert not standing(0, 5, 0, days=1).finished


def test_a_line_says_rows_rate_rest_and_upper() -> None:
    """Without a terminal there is one plain line per look, rates over the last few of them."""
    looks = iter([standing(0, 0, 10), standing(2_000, 3_000, 7)])
    clock = SystemClock()
    console = Console(file=io.StringIO(), width=200, force_terminal=False)
    ticker = Ticker(console, clock, lambda: next(looks), 0.0)
    assert ticker._look()
    assert ticker._look()
    assert ticker.line().partition("| ")[2] == (
        "flights 3,000 in (1,500/s), 7 left, 1 s behind, upper 11:06:40.123"
    )

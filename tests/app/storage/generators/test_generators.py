"""Load generators: any piece of them, made anywhere, is the same rows; and what the rows are."""

from __future__ import annotations

import random
from collections import Counter
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from shardline.app.storage.generators import FORMATS, register, schema_of, spark_format, with_start
from shardline.app.storage.generators.catalog import open_generator
from shardline.app.storage.generators.generator import Generator, micro_batch_end
from shardline.app.storage.generators.mixing import draws, high, low, prices
from shardline.app.storage.generators.source import GeneratorStreamReader, _Rows
from shardline.datasource.errors import InvalidUsage
from support.fakes.clock import ManualClock
from support.profiles import one_of

TABLES = [
    ("counter", {}),
    ("counter", {"maxCardinality": "7"}),
    *(("auction", {"table": t}) for t in ("organizations", "users", "accounts")),
    *(("auction", {"table": t}) for t in ("auctions", "bids")),
    *(("nexmark", {"table": t}) for t in ("person", "auction", "bid")),
]

GOLDEN: list[dict[str, Any]] = [
    {
        "auction": 1005,
        "bidder": 1001,
        "price": 6453045,
        "channel": "Apple",
        "url": "https://www.nexmark.com/xck/boi/yapl/item.htm?query=1",
        "dateTime": datetime(2015, 7, 15, 0, 0, 0, 4000, tzinfo=UTC),
        "extra": "mfbntjjdqqdnqikynfdjgxkifzoioafwzfgddqvhetctfxodseqlbazdkyz",
    },
    {
        "auction": 1000,
        "bidder": 1006,
        "price": 30468,
        "channel": "channel-6316",
        "url": "https://www.nexmark.com/wslg/lodh/_njm/item.htm?query=1&channel_id=890765312",
        "dateTime": datetime(2015, 7, 15, 0, 0, 0, 5000, tzinfo=UTC),
        "extra": "fmvuyhsjaxrktidixmlgppxrrcyfhjarmlmvupgfazz"
        "aeyafpspohoolgjbcwmthovtxxhhzxkeqgjjoo",
    },
]

Rows = list[dict[str, Any]]


def opened(name: str, **options: str) -> Generator:
    return open_generator(name, options)[1]


def made(generator: Generator, start: int, end: int) -> Rows:
    rows: Rows = generator.rows(start, end).to_pylist()
    return rows


@pytest.mark.parametrize(("name", "options"), one_of(2, TABLES))
@given(cuts=st.lists(st.integers(0, 3000), min_size=2, max_size=6))
def test_pieces_make_the_whole(name: str, options: dict[str, str], cuts: list[int]) -> None:
    """Whatever pieces events are made in, the rows are the same, and as many as was said."""
    generator = opened(name, **options)
    cuts = sorted(cuts)
    pieces = [row for a, b in pairwise(cuts) for row in made(generator, a, b)]

    assert pieces == made(generator, cuts[0], cuts[-1])
    assert len(pieces) == generator.rows_before(cuts[-1]) - generator.rows_before(cuts[0])


@pytest.mark.parametrize(("name", "options"), TABLES)
@given(start=st.integers(0, 500), more=st.integers(0, 500), rows=st.integers(1, 200))
def test_a_micro_batch_is_as_large_as_allowed(
    name: str, options: dict[str, str], start: int, more: int, rows: int
) -> None:
    """The end is the farthest one within the limit, or after one event that has rows."""
    generator = opened(name, **options)
    head = start + more
    counts = [generator.rows_before(n) - generator.rows_before(start) for n in range(head + 1)]
    fitting = [n for n in range(start, head + 1) if counts[n] <= rows]
    first = [n for n in range(start, head + 1) if counts[n] > 0][:1]

    end = micro_batch_end(generator, start, head, rows)

    if not first:
        assert end == start
    elif counts[fitting[-1]] > 0:
        assert end == fitting[-1]
    else:
        assert end == first[0]


def splitmix(seed: int) -> Any:
    """SplitMix64 as its author wrote it down, on Python's own integers."""
    state = seed
    while True:
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        z = state
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        yield z ^ (z >> 31)


def test_draws_are_splitmix() -> None:
    """Draws of consecutive events are consecutive numbers of one SplitMix64 generator."""
    bits = [int(b) for b in draws(5, 3, np.arange(4, dtype=np.int64))]
    # Undo the mixing of the first one to find the state; the known generator goes on from there.
    state = next(splitmix((next(splitmix(5)) ^ (3 * 0x9E3779B97F4A7C15)) % 2**64))
    expected = splitmix((state - 0x9E3779B97F4A7C15) % 2**64)

    assert bits == [next(expected) for _ in range(4)]


def test_numbers_are_spread_evenly() -> None:
    """Each half of a draw gives every number below a bound about as often."""
    bits = draws(1, 1, np.arange(60_000, dtype=np.int64))
    for half in (high, low):
        counts = np.bincount(half(bits, 6), minlength=6)
        assert counts.sum() == 60_000
        assert abs(counts - 10_000).max() < 500


def test_prices_are_spread_over_magnitudes() -> None:
    """A price is 100 * 10 ** (6 u) for the draw's u: to 0.02 %, and rounding."""
    bits = draws(2, 1, np.arange(10_000, dtype=np.int64))
    exact = 100 * 10 ** (6 * (bits / 2**64))
    assert (abs(prices(bits) - exact) <= 0.0002 * exact + 2).all()


@given(keep=st.integers(1, 20), events=st.integers(0, 100))
def test_a_counter_keeps_the_newest(keep: int, events: int) -> None:
    """With a greatest cardinality the contents are the newest numbers, after every event."""
    contents: Counter[int] = Counter()
    for row in made(opened("counter", maxCardinality=str(keep)), 0, events):
        contents[row["counter"]] += row["_diff"]

    assert +contents == Counter(range(max(1, events - keep + 1), events + 1))
    assert all(count >= 0 for count in contents.values())


def test_the_auction_house_is_consistent() -> None:
    """Every key refers to a row, auctions precede their bids, blocks have 44 bids."""
    tables = {
        t: made(opened("auction", table=t), 0, 1 + 52 * 100)
        for t in ("organizations", "users", "accounts", "auctions", "bids")
    }
    ids = {t: {row["id"] for row in rows} for t, rows in tables.items()}

    assert {u["org_id"] for u in tables["users"]} <= ids["organizations"]
    assert {a["org_id"] for a in tables["accounts"]} == ids["organizations"]
    assert {a["seller"] for a in tables["auctions"]} <= ids["users"]
    assert {b["buyer"] for b in tables["bids"]} <= ids["users"]
    assert ids["auctions"] == set(range(1, 801))
    per_auction = Counter(b["auction_id"] for b in tables["bids"])
    assert Counter(per_auction.values()) == dict.fromkeys(range(2, 10), 100)
    assert len(ids["bids"]) == len(tables["bids"]) == 4400
    # The order is random: not every block has the same.
    assert len({tuple(per_auction[n + i] for i in range(8)) for n in range(1, 801, 8)}) > 50
    ends = {a["id"]: a["end_time"] for a in tables["auctions"]}
    ahead = [(ends[b["auction_id"]] - b["bid_time"]).total_seconds() for b in tables["bids"]]
    assert sorted(set(ahead)) == [float(n) for n in range(2, 11)]


def test_auctions_come_before_their_bids() -> None:
    """In the order of events a bid's auction is always there already."""
    auctions, bids = opened("auction", table="auctions"), opened("auction", table="bids")
    there: set[int] = set()
    for event in range(1, 300):
        there |= {row["id"] for row in made(auctions, event, event + 1)}
        assert {row["auction_id"] for row in made(bids, event, event + 1)} <= there


@pytest.mark.slow
def test_nexmark_has_the_benchmarks_proportions_and_keys() -> None:
    """1 : 3 : 46, dense ids, hot keys as often as they should be, references at most ten ahead."""
    rounds = 2000
    tables = {
        t: made(opened("nexmark", table=t), 0, 50 * rounds) for t in ("person", "auction", "bid")
    }
    person, auction, bid = tables["person"], tables["auction"], tables["bid"]

    assert [len(person), len(auction), len(bid)] == [rounds, 3 * rounds, 46 * rounds]
    assert [row["id"] for row in person] == list(range(1000, 1000 + rounds))
    assert [row["id"] for row in auction] == list(range(1000, 1000 + 3 * rounds))
    hot_auction = hot_bidder = 0
    for number, row in enumerate(bid):
        newest, people = number // 46 * 3 + 2 + 1000, number // 46 + 1000
        hot_auction += row["auction"] == (newest - 1000) // 100 * 100 + 1000
        hot_bidder += row["bidder"] == (people - 1000) // 100 * 100 + 1001
        assert newest - 199 <= row["auction"] <= newest + 10
        assert max(people - 1100, 1000) <= row["bidder"] <= max(people + 10, 1001)
    assert 0.48 < hot_auction / len(bid) < 0.53
    assert 0.73 < hot_bidder / len(bid) < 0.78
    hot_seller = sum(row["seller"] % 100 == 0 for row in auction) / len(auction)
    assert 0.73 < hot_seller < 0.78
    assert {row["category"] for row in auction} == {10, 11, 12, 13, 14}
    assert all(row["reserve"] > row["initialBid"] >= 100 for row in auction)
    assert all(row["expires"] > row["dateTime"] for row in auction)
    assert 0.48 < sum(row["channel"][:8] != "channel-" for row in bid) / len(bid) < 0.52


def test_a_row_is_about_as_large_as_the_benchmarks() -> None:
    """Rows have 200, 500 and 100 bytes on average, `channel` and `url` not counted."""
    for table, wanted in (("person", 200), ("auction", 500), ("bid", 100)):
        batch = opened("nexmark", table=table).rows(0, 50_000)
        kept = [n for n in batch.schema.names if n not in ("channel", "url", "dateTime")]
        size = sum(
            batch.column(n).nbytes - 4 * batch.num_rows
            if batch.schema.field(n).type == pa.string()
            else 8 * batch.num_rows
            for n in kept
        )
        assert abs(size / batch.num_rows - wanted) < wanted * 0.12


def test_the_seed_decides() -> None:
    """Another seed makes other rows of the same shape; the same seed the same."""
    one, same, other = (opened("nexmark", table="bid", seed=s) for s in ("1", "1", "2"))
    assert made(one, 0, 100) == made(same, 0, 100) != made(other, 0, 100)


def test_rows_stay_what_they_are() -> None:
    """A few rows, written down: a release that changes them would break replays."""
    assert made(opened("nexmark", table="bid", seed="7"), 4, 6) == GOLDEN


def reader(clock: ManualClock, **options: str) -> GeneratorStreamReader:
    table = {"table": "bid"} | options
    return GeneratorStreamReader(_Rows("nexmark", table, ("auction",)), clock)


def test_events_come_when_their_time_has_come() -> None:
    """With a real pace there are rate events per second from the start time on, never fewer."""
    clock = ManualClock(10_000)
    read = reader(clock, rate="500", startTime="20000")
    start = read.initialOffset()

    assert read.latestOffset(start, ReadAllAvailable()) == start
    clock.advance(10_999)
    end = read.latestOffset(start, ReadAllAvailable())
    assert end == {"v": 1, "event": 500}
    assert read.reportLatestOffset() == end
    clock.set_back(5_000)
    assert read.latestOffset(end, ReadAllAvailable()) == end


def test_a_limit_of_rows_is_kept() -> None:
    """A micro-batch ends at the limit it is given; the last one at the end of all events."""
    read = reader(ManualClock(), pace="none", limit="100")
    first = read.latestOffset(read.initialOffset(), ReadMaxRows(46))
    second = read.latestOffset(first, ReadMaxRows(46))

    # A person and three auctions come before the next bid.
    assert first == {"v": 1, "event": 54}
    assert second == {"v": 1, "event": 100}
    assert read.latestOffset(second, ReadMaxRows(46)) == second


def test_available_now_ends_at_what_was_due() -> None:
    """A run to what is available does not follow the clock."""
    clock = ManualClock(1000)
    read = reader(clock, rate="1000", startTime="0")
    read.prepareForTriggerAvailableNow()
    clock.advance(60_000)

    assert read.latestOffset(read.initialOffset(), ReadAllAvailable()) == {"v": 1, "event": 1001}


def test_partitions_cover_a_range_once() -> None:
    """All rows of a range are in its partitions, each once."""
    read = reader(ManualClock(), pace="none", limit="1000000")
    partitions = read.partitions({"v": 1, "event": 123}, {"v": 1, "event": 600_123})
    rows = sum(batch.num_rows for p in partitions for batch in read.read(p))

    assert len(partitions) == 3
    assert rows == 600_000 // 50 * 46


def test_columns_need_no_spark() -> None:
    """Columns are known from the options alone, and `_diff` is among those of a counter."""
    assert schema_of("counter", {}) == "counter BIGINT"
    assert schema_of("counter", {"MAXCARDINALITY": "3"}) == "counter BIGINT, _diff BIGINT"
    assert schema_of("auction", {"table": "Users"}) == "id BIGINT, org_id BIGINT, name STRING"
    assert schema_of("nexmark", {"table": "bid"}).startswith("auction BIGINT, bidder BIGINT")


def test_formats() -> None:
    """Generators have names of their own in Spark, other formats keep theirs."""
    assert FORMATS == ("auction", "counter", "nexmark")
    assert [spark_format(n) for n in ("nexmark", "csv")] == ["shardline_nexmark", "csv"]


def test_the_start_is_fixed_once() -> None:
    """A start time that was said stays; formats that are no generators are left alone."""
    assert with_start("counter", {}, 5) == {"startTime": "5"}
    assert with_start("counter", {"STARTTIME": "3"}, 5) == {"STARTTIME": "3"}
    assert with_start("csv", {"path": "p"}, 5) == {"path": "p"}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("nexmark", {"table": "bids"}, "unknown table 'bids' — hint: did you mean 'bid'"),
        ("nexmark", {}, "MISSING_OPTION.*person, auction, bid"),
        ("nexmark", {"table": "bid", "sead": "1"}, "did you mean 'seed'"),
        ("counter", {"table": "x"}, "unknown option 'table'"),
        ("counter", {"hotAuctionRatio": "2"}, "unknown option"),
        ("counter", {"rate": "0"}, "events per second"),
        ("counter", {"rate": "fast"}, "events per second"),
        ("counter", {"seed": "-1"}, "a whole number"),
        ("counter", {"pace": "slow"}, "real or none"),
        ("counter", {"limit": "0"}, "at least 1"),
        ("counter", {"startTime": "noon"}, "milliseconds since the epoch"),
        ("conter", {}, "unknown generator.*counter"),
    ],
)
def test_what_is_refused(name: str, options: dict[str, str], message: str) -> None:
    """What means nothing is refused with what would."""
    with pytest.raises(InvalidUsage, match=message):
        schema_of(name, options)


def test_what_has_no_end_or_no_beginning_is_not_read() -> None:
    """A stream needs a time to start from, or a number of events to end with."""
    with pytest.raises(InvalidUsage, match="startTime"):
        reader(ManualClock())
    with pytest.raises(InvalidUsage, match="limit"):
        reader(ManualClock(), pace="none")
    with pytest.raises(InvalidUsage, match="FOREIGN_OFFSET"):
        reader(ManualClock(), startTime="0").latestOffset({"v": 1, "init": True}, ReadMaxRows(1))


def test_formats_are_registered_once_with_a_session() -> None:
    """Spark warns of each repetition, and every source asks for it."""
    first, second = Mock(), Mock()
    for session in (first, first, second):
        register(session)
    assert first.dataSource.register.call_count == second.dataSource.register.call_count > 0


def test_random_access_equals_the_sequence() -> None:
    """Far along the sequence an event is what it is when made alone."""
    generator = opened("nexmark", table="bid", limit="1000000000")
    at = random.Random(3).randrange(10**9)
    batch = made(generator, at - at % 50, at - at % 50 + 50)
    alone = [
        row for n in range(50) for row in made(generator, at - at % 50 + n, at - at % 50 + n + 1)
    ]

    assert batch == alone
    assert len(batch) == 46

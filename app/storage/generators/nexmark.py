"""`nexmark` generates people, their auctions, and bids, as the Nexmark benchmark has them.

    person    id, name, emailAddress, creditCard, city, state, dateTime, extra
    auction   id, itemName, description, initialBid, reserve, dateTime, expires, seller, category,
              extra
    bid       auction, bidder, price, channel, url, dateTime, extra

Of 50 events the first is a person, three are auctions, 46 are bids. Three of four auctions are of
the first of the last 100 people, half of the bids are for the first of the last 100 auctions, three
of four bids are by the second of the last 100 people; the others by, or for, anybody active. Some
refer to people and auctions that are yet to come, up to ten ahead. Columns, proportions, hot keys,
leads, sizes and prices are those of the benchmark's generators in Apache Beam and Flink; the random
numbers are not. Flink's adds the first id to a bidder twice, so that no bid finds its person: here
it is added once, as in Beam. Texts are taken from pools of 8,192.

Invariants:
    Tables with equal options are one story: the same ids, at the same times.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from shardline.app.storage.generators.generator import (
    Columns,
    arrow_schema,
    text_column,
    time_column,
    times,
)
from shardline.app.storage.generators.mixing import Draws, Events, draws, high, low, prices, words
from shardline.app.storage.generators.options import GeneratorOptions

__all__ = ["TABLES", "Nexmark"]

_COLUMNS: Final[dict[str, Columns]] = {
    "person": {
        "id": "BIGINT",
        "name": "STRING",
        "emailAddress": "STRING",
        "creditCard": "STRING",
        "city": "STRING",
        "state": "STRING",
        "dateTime": "TIMESTAMP",
        "extra": "STRING",
    },
    "auction": {
        "id": "BIGINT",
        "itemName": "STRING",
        "description": "STRING",
        "initialBid": "BIGINT",
        "reserve": "BIGINT",
        "dateTime": "TIMESTAMP",
        "expires": "TIMESTAMP",
        "seller": "BIGINT",
        "category": "BIGINT",
        "extra": "STRING",
    },
    "bid": {
        "auction": "BIGINT",
        "bidder": "BIGINT",
        "price": "BIGINT",
        "channel": "STRING",
        "url": "STRING",
        "dateTime": "TIMESTAMP",
        "extra": "STRING",
    },
}

TABLES: Final = tuple(_COLUMNS)

_ROUND: Final = 50
"""Events of a round: a person, three auctions, 46 bids."""

_SHARE: Final = {"person": (0, 1), "auction": (1, 4), "bid": (4, 50)}
"""Range of the events of a round that are of a table."""

_FIRST_ID: Final = 1000
_HOT: Final = 100
"""One of so many people, or auctions, is hot at a time."""

_LEAD: Final = 10
"""So many ids ahead of those that are there may be referred to."""

_ACTIVE: Final = 1000
"""People that are active."""

_IN_FLIGHT: Final = 100
"""Auctions that are likely to be open."""

_FIRST_CATEGORY: Final = 10
_CATEGORIES: Final = 5
_POOL: Final = 8192
_CHANNELS: Final = 10_000

_STATES: Final = pa.array(["AZ", "CA", "ID", "OR", "WA", "WY"])
_CITIES: Final = pa.array(
    [
        *("Phoenix", "Los Angeles", "San Francisco", "Boise", "Portland", "Bend", "Redmond"),
        *("Seattle", "Kent", "Cheyenne"),
    ]
)
_FIRST_NAMES: Final = (
    *("Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter"),
    "Walter",
)
_LAST_NAMES: Final = (
    *("Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones"),
    "Noris",
)
_NAMES: Final = pa.array([f"{first} {last}" for first in _FIRST_NAMES for last in _LAST_NAMES])
_FOUR_DIGITS: Final = pa.array([f"{n:04d}" for n in range(10_000)])
_HOT_CHANNELS: Final = ("Google", "Facebook", "Baidu", "Apple")

_EXTRAS: Final = {"person": (112, 168), "auction": (318, 477), "bid": (54, 81)}
"""Letters of `extra`, which fills rows up to 200, 500 and 100 bytes, give or take a fifth."""

_WORDS: Final = 100
"""Streams from here on are of pools."""


class Nexmark:
    """One table of `nexmark`."""

    def __init__(self, options: GeneratorOptions) -> None:
        self._options = options
        self._table = options.table

    @property
    def columns(self) -> Columns:
        """The table's columns."""
        return _COLUMNS[self._table]

    def rows_before(self, event: int) -> int:
        """The table's rows of all whole rounds, and of the events of the last one."""
        first, end = _SHARE[self._table]
        rounds, place = divmod(event, _ROUND)
        return rounds * (end - first) + min(max(place - first, 0), end - first)

    def rows(self, start: int, end: int) -> pa.RecordBatch:
        """The rows of events `start` to `end` - 1."""
        first, last = _SHARE[self._table]
        events = np.arange(start, end, dtype=np.int64)
        place = events % _ROUND
        events = events[(place >= first) & (place < last)]
        match self._table:
            case "person":
                arrays = self._people(events)
            case "auction":
                arrays = self._auctions(events)
            case _:
                arrays = self._bids(events)
        return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(self.columns))

    # -- tables ------------------------------------------------------------------------------

    def _people(self, events: Events) -> list[pa.Array]:
        one, two, three, four = (self._draws(stream, events) for stream in range(4))
        mailbox, domain = self._pool(0, 3, 6, " "), self._pool(2, 3, 4, " ")
        email = pc.binary_join_element_wise(
            text_column(mailbox, high(two, _POOL)), text_column(domain, low(two, _POOL)), "@"
        )
        digits = [half(bits, 10_000) for bits in (three, four) for half in (high, low)]
        card = pc.binary_join_element_wise(*(text_column(_FOUR_DIGITS, d) for d in digits), " ")
        place = self._draws(4, events)
        return [
            pa.array(events // _ROUND + _FIRST_ID),
            text_column(_NAMES, high(one, len(_NAMES))),
            pc.binary_join_element_wise(email, pa.scalar(".com"), ""),
            card,
            text_column(_CITIES, high(place, len(_CITIES))),
            text_column(_STATES, low(place, len(_STATES))),
            time_column(times(self._options, events)),
            self._extra(low(one, _POOL)),
        ]

    def _auctions(self, events: Events) -> list[pa.Array]:
        one, two, three, four, five = (self._draws(10 + stream, events) for stream in range(5))
        rounds, place = np.divmod(events, _ROUND)
        opened = times(self._options, events)
        # Open for as long, on average, as it takes until all that are open now are closed.
        horizon = times(self._options, events + _IN_FLIGHT * _ROUND // 3) - opened
        length = 1 + high(five, np.maximum(np.minimum(horizon * 2, 1 << 31), 1))
        first = prices(two)
        return [
            pa.array(rounds * 3 + place - 1 + _FIRST_ID),
            text_column(self._pool(4, 3, 19, " "), high(four, _POOL)),
            text_column(self._pool(6, 3, 99, " "), low(four, _POOL)),
            pa.array(first),
            pa.array(first + prices(three)),
            time_column(opened),
            time_column(opened + length),
            pa.array(self._person(rounds, one, self._options.hot_seller, hot=0) + _FIRST_ID),
            pa.array(low(five, _CATEGORIES) + _FIRST_CATEGORY),
            self._extra(low(two, _POOL)),
        ]

    def _bids(self, events: Events) -> list[pa.Array]:
        one, two, three, four = (self._draws(20 + stream, events) for stream in range(4))
        rounds = events // _ROUND
        channels, urls = _channels(self._options.seed)
        # Half of the bids come through one of the four large channels.
        of_hot = high(four, 2 * len(_HOT_CHANNELS))
        other = low(three, _CHANNELS) + len(_HOT_CHANNELS)
        channel = np.where(of_hot < len(_HOT_CHANNELS), of_hot, other)
        return [
            pa.array(self._auction(rounds, one) + _FIRST_ID),
            pa.array(self._person(rounds, two, self._options.hot_bidder, hot=1) + _FIRST_ID),
            pa.array(prices(three)),
            text_column(channels, channel),
            text_column(urls, channel),
            time_column(times(self._options, events)),
            self._extra(low(four, _POOL)),
        ]

    # -- keys --------------------------------------------------------------------------------

    def _person(self, rounds: Events, bits: Draws, ratio: int, *, hot: int) -> Events:
        """The hot person, number `hot` of the last hundred, or somebody active."""
        active = np.minimum(rounds + 1, _ACTIVE)
        somebody = rounds + 1 - active + low(bits, active + _LEAD)
        return np.where(high(bits, ratio) > 0, rounds // _HOT * _HOT + hot, somebody)

    def _auction(self, rounds: Events, bits: Draws) -> Events:
        """The hot auction, or one that may be open."""
        last = rounds * 3 + 2
        oldest = np.maximum(last - _IN_FLIGHT, 0)
        some = oldest + low(bits, last - oldest + 1 + _LEAD)
        hot = high(bits, self._options.hot_auction) > 0
        return np.where(hot, last // _HOT * _HOT, some)

    # -- numbers and texts -------------------------------------------------------------------

    def _draws(self, stream: int, events: Events) -> Draws:
        return draws(self._options.seed, stream, events)

    def _extra(self, indices: Events) -> pa.Array:
        return text_column(self._pool(8, *_EXTRAS[self._table], ""), indices)

    def _pool(self, stream: int, shortest: int, longest: int, special: str) -> pa.StringArray:
        pool = words(
            self._options.seed,
            _WORDS + stream,
            _POOL,
            shortest=shortest,
            longest=longest,
            special=special,
        )
        return pc.utf8_trim_whitespace(pool) if special else pool


@lru_cache(maxsize=8)
def _channels(seed: int) -> tuple[pa.StringArray, pa.StringArray]:
    """Names of all channels, the large ones first, and their URLs."""
    count = len(_HOT_CHANNELS) + _CHANNELS
    folders = [
        words(seed, _WORDS + stream, count, shortest=3, longest=4, special="_").to_pylist()
        for stream in (10, 12, 14)
    ]
    paths = map("/".join, zip(*folders, strict=True))
    bases = [f"https://www.nexmark.com/{path}/item.htm?query=1" for path in paths]
    named = high(draws(seed, _WORDS + 16, np.arange(_CHANNELS, dtype=np.int64)), 10) > 0
    names = [*_HOT_CHANNELS, *(f"channel-{n}" for n in range(_CHANNELS))]
    ends = ["" for _ in _HOT_CHANNELS]
    ends += [f"&channel_id={_reversed(n)}" if named[n] else "" for n in range(_CHANNELS)]
    urls = [base + end for base, end in zip(bases, ends, strict=True)]
    return pa.array(names, pa.string()), pa.array(urls, pa.string())


def _reversed(number: int) -> int:
    """The bits of an int32 in the other order, without the sign: ids that look like ids."""
    turned = int(f"{number:032b}"[::-1], 2)
    return turned if turned < 1 << 31 else (1 << 32) - turned

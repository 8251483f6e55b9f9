"""`auction` generates an auction house that is small enough to look at: five tables with keys.

    organizations   id, name
    users           id, org_id, name
    accounts        id, org_id, balance
    auctions        id, seller, item, end_time
    bids            id, buyer, auction_id, amount, bid_time

Event 0 founds the house: all of the first three tables. From then on each event is one auction or
one bid. Auctions come in blocks of eight, which have 2, 3, … and 9 bids, in a random order of each
block: so it is known how many rows there are before any event. An auction comes before its bids,
ends ten seconds after it began, and its bids are a second apart.

Invariants:
    Every reference is to a row of the same or an earlier event.
"""

from __future__ import annotations

from functools import cached_property
from typing import Final

import numpy as np
import pyarrow as pa

from shardline.app.storage.generators.generator import (
    Columns,
    arrow_schema,
    text_column,
    time_column,
    times,
)
from shardline.app.storage.generators.mixing import Events, draws, high, low
from shardline.app.storage.generators.options import GeneratorOptions

__all__ = ["TABLES", "Auction"]

_COLUMNS: Final[dict[str, Columns]] = {
    "organizations": {"id": "BIGINT", "name": "STRING"},
    "users": {"id": "BIGINT", "org_id": "BIGINT", "name": "STRING"},
    "accounts": {"id": "BIGINT", "org_id": "BIGINT", "balance": "BIGINT"},
    "auctions": {"id": "BIGINT", "seller": "BIGINT", "item": "STRING", "end_time": "TIMESTAMP"},
    "bids": {
        "id": "BIGINT",
        "buyer": "BIGINT",
        "auction_id": "BIGINT",
        "amount": "BIGINT",
        "bid_time": "TIMESTAMP",
    },
}

TABLES: Final = tuple(_COLUMNS)

_PLACES: Final = ("Amber", "Basalt", "Cedar", "Delta", "Ember", "Fjord", "Granite", "Harbour")
_TRADES: Final = ("Books", "Clocks", "Maps", "Tools")
_FIRST: Final = ("Ada", "Bruno", "Chidi", "Dara", "Elif", "Farid", "Greta", "Hiro", "Ines", "Jan")
_LAST: Final = ("Almeida", "Berg", "Costa", "Dubois", "Eriksen", "Fischer", "Gupta", "Haddad")
_ITEMS: Final = pa.array(["Atlas", "Brass Lamp", "Chess Set", "Fountain Pen", "Signed Print"])

_COMPANIES: Final = [f"{place} {trade}" for place in _PLACES for trade in _TRADES]
_PEOPLE: Final = [f"{first} {last}" for first in _FIRST for last in _LAST]

_AUCTIONS: Final = 8
"""Auctions of a block."""

_BIDS: Final = 44
"""Bids of a block: 2 + 3 + … + 9."""

_BLOCK: Final = _AUCTIONS + _BIDS
_ID_STEP: Final = 10
"""Ids of bids: that of the auction times this, and their number in it."""

_LENGTH_MS: Final = 10_000
_FIRST_ACCOUNT: Final = 43
_BALANCE: Final = 10_000
_ORDER, _OF_AUCTION, _OF_BID = range(3)


class Auction:
    """One table of `auction`."""

    def __init__(self, options: GeneratorOptions) -> None:
        self._options = options
        self._table = options.table

    @property
    def columns(self) -> Columns:
        """The table's columns."""
        return _COLUMNS[self._table]

    def rows_before(self, event: int) -> int:
        """All rows of a table that event 0 fills; else the rows of whole blocks and of the last."""
        if self._founded is not None:
            return len(self._founded) if event > 0 else 0
        if event <= 1:
            return 0
        block, place = divmod(event - 1, _BLOCK)
        starts = self._starts(np.array([block], dtype=np.int64))[0]
        auctions = int(np.count_nonzero(starts < place))
        if self._table == "auctions":
            return block * _AUCTIONS + auctions
        return block * _BIDS + place - auctions

    def rows(self, start: int, end: int) -> pa.RecordBatch:
        """The rows of events `start` to `end` - 1."""
        if self._founded is not None:
            return self._founded if start <= 0 < end else self._founded.slice(0, 0)
        events = np.arange(max(start, 1), end, dtype=np.int64)
        block, place = np.divmod(events - 1, _BLOCK)
        blocks, which = np.unique(block, return_inverse=True)
        starts = self._starts(blocks)[which] if len(events) else np.zeros((0, _AUCTIONS), np.int64)
        begun = np.count_nonzero(starts <= place[:, None], axis=1) - 1
        number = place - starts[np.arange(len(events)), begun] - 1
        auction = block * _AUCTIONS + begun + 1
        # An auction happens at its own event; its bids are seconds after that.
        opened = times(self._options, events - number - 1)
        if self._table == "auctions":
            kept = number < 0
            return self._auctions(auction[kept], opened[kept])
        kept = number >= 0
        return self._bids(auction[kept], number[kept], opened[kept])

    def _starts(self, blocks: Events) -> Events:
        """Positions of auctions within their blocks: a row of eight for each of `blocks`."""
        numbers = (blocks[:, None] * _AUCTIONS + np.arange(_AUCTIONS)).ravel()
        order = draws(self._options.seed, _ORDER, numbers).reshape(-1, _AUCTIONS)
        bids = np.argsort(order, axis=1, kind="stable") + 2
        before = np.cumsum(bids + 1, axis=1)
        first = np.zeros((len(blocks), 1), dtype=np.int64)
        return np.concatenate([first, before[:, :-1]], axis=1)

    def _auctions(self, auction: Events, opened: Events) -> pa.RecordBatch:
        bits = draws(self._options.seed, _OF_AUCTION, auction)
        arrays = [
            pa.array(auction),
            pa.array(high(bits, len(_PEOPLE)) + 1),
            text_column(_ITEMS, low(bits, len(_ITEMS))),
            time_column(opened + _LENGTH_MS),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(self.columns))

    def _bids(self, auction: Events, number: Events, opened: Events) -> pa.RecordBatch:
        ids = auction * _ID_STEP + number
        bits = draws(self._options.seed, _OF_BID, ids)
        arrays = [
            pa.array(ids),
            pa.array(high(bits, len(_PEOPLE)) + 1),
            pa.array(auction),
            pa.array(low(bits, 99) + 1),
            time_column(opened + number * 1000),
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(self.columns))

    @cached_property
    def _founded(self) -> pa.RecordBatch | None:
        """The rows of a table that event 0 fills; None for one that grows."""
        companies = list(range(1, len(_COMPANIES) + 1))
        match self._table:
            case "organizations":
                columns: list[list[object]] = [[*companies], [*_COMPANIES]]
            case "users":
                people = range(len(_PEOPLE))
                orgs = [n % len(_COMPANIES) + 1 for n in people]
                columns = [[n + 1 for n in people], [*orgs], [*_PEOPLE]]
            case "accounts":
                accounts = [_FIRST_ACCOUNT + n for n in range(len(companies))]
                columns = [[*accounts], [*companies], [_BALANCE for _ in companies]]
            case _:
                return None
        schema = arrow_schema(self.columns)
        arrays = [pa.array(c, field.type) for c, field in zip(columns, schema, strict=True)]
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

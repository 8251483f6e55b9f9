"""Draws orders and their customers, and changes of them: the same numbers in each process.

Benchmarks of one view take their rows from here, in whatever engine it is, so that all of them do
the same work. It is a join and a GROUP BY: a customer has about a hundred orders, and each changed
order moves the sum of its customer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["CUSTOMERS", "ORDERS", "QUERY", "Orders"]

_ORDERS_EACH: Final = 100
"""Orders of a customer."""

_REGIONS: Final = 25

_PIECE: Final = 1_000_000
"""Rows that are made at once."""

ORDERS: Final = pa.schema([("id", pa.int64()), ("customer", pa.int64()), ("price", pa.int64())])
CUSTOMERS: Final = pa.schema([("id", pa.int64()), ("name", pa.string()), ("region", pa.int64())])

QUERY: Final = (
    "SELECT c.name, c.region, count(*) AS n, sum(o.price) AS total "
    "FROM orders o JOIN customers c ON o.customer = c.id GROUP BY c.name, c.region"
)

Change = tuple[pa.Table, pa.Table]
"""Rows that go, and those that come for them."""


class Orders:
    """So many orders, and their customers, as they are after the changes so far."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._draw = np.random.default_rng(7)
        customers = count // _ORDERS_EACH
        self._customer = self._draw.integers(0, customers, count)
        self._price = self._draw.integers(1, 1000, count)
        self._named = np.zeros(customers, np.int64)

    def customers(self) -> pa.Table:
        """All customers."""
        return self._customers(np.arange(len(self._named)))

    def orders(self) -> Iterator[pa.Table]:
        """All orders, piece by piece."""
        for first in range(0, self.count, _PIECE):
            yield self._orders(np.arange(first, min(first + _PIECE, self.count)))

    def change_prices(self, count: int) -> Change:
        """Let so many orders have another price."""
        places = self._draw.choice(self.count, count, replace=False)
        before = self._orders(places)
        self._price[places] += 1
        return before, self._orders(places)

    def change_names(self, count: int) -> Change:
        """Let so many customers have another name."""
        places = self._draw.choice(len(self._named), count, replace=False)
        before = self._customers(places)
        self._named[places] += 1
        return before, self._customers(places)

    def _orders(self, places: npt.NDArray[np.int64]) -> pa.Table:
        columns = {"id": places, "customer": self._customer[places], "price": self._price[places]}
        return pa.table(columns, schema=ORDERS)

    def _customers(self, places: npt.NDArray[np.int64]) -> pa.Table:
        # Without a comma: programs of other engines read names from lines of CSV.
        names = [f"customer {place} {self._named[place]}" for place in places.tolist()]
        columns = {"id": places, "name": names, "region": places % _REGIONS}
        return pa.table(columns, schema=CUSTOMERS)

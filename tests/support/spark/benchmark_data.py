"""Small tables for TPC-H's and Nexmark's queries, with a history of which each query sees a part.

    history(TPCH_CHANGES, seed)     (time, table, its changes), the first rows at `FIRST`

A column's values are drawn from the few that the queries ask for, so that some hundred rows are
enough: dates within the quarters of the texts, brands and nations of their names, keys that meet.
Values that are not of a key are NULL at times. Rows come, go, change in single columns, and some
are there twice. All tables change at one time; in the end the largest ones lose all of their rows
and get some of them back.

No query's answer is a matter of ties: what an ORDER BY within a query looks at is drawn once.
"""

from __future__ import annotations

import datetime as dt
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

__all__ = ["AGAIN", "FIRST", "GONE", "NEXMARK_CHANGES", "TPCH_CHANGES", "Changes", "history"]

Row = tuple[Any, ...]
_Update = tuple[Row, int]
_Maker = Callable[[random.Random, int], Row]
"""A row for the key of this number, drawn anew; other numbers have other keys."""

FIRST: Final = 10
"""The time of the first rows."""

GONE: Final = 43
"""At this time some tables lose all of their rows."""

AGAIN: Final = 52
"""At this time they get every other one back."""

_NULLS: Final = 0.04
"""How often a value is NULL that may be."""

_CHANGED: Final = 0.35
"""How often a column of a row that changes is drawn anew."""

_MOSTLY: Final = 0.85
"""How often a value is the one that its row's number gives."""


@dataclass(frozen=True, slots=True)
class Changes:
    """What becomes of some tables.

    Attributes:
        first: Of each how many rows it begins with, and what makes one.
        some: For each time, how many rows of which tables come; as many change, half as many go.
        emptied: Those that lose all of their rows.
    """

    first: Mapping[str, tuple[int, _Maker]]
    some: Mapping[int, Mapping[str, int]]
    emptied: tuple[str, ...]

    @property
    def times(self) -> list[int]:
        """When something changes, ascending."""
        return sorted({FIRST, *self.some, GONE, AGAIN})


def history(changes: Changes, seed: int) -> Iterator[tuple[int, str, list[_Update]]]:
    """Rows and their diffs, by time and table; the same for the same seed."""
    tables = _Tables(changes.first, seed)
    for name in changes.first:
        yield FIRST, name, tables.first(name)
    for time in changes.times:
        for name, count in changes.some.get(time, {}).items():
            yield time, name, tables.some(name, count)
    gone = {name: tables.all_gone(name) for name in changes.emptied}
    for name, rows in gone.items():
        yield GONE, name, rows
    for name, rows in gone.items():
        yield AGAIN, name, tables.again(name, rows)


class _Tables:
    """Tables under change."""

    def __init__(self, makers: Mapping[str, tuple[int, _Maker]], seed: int) -> None:
        self._makers = makers
        self._draw = random.Random(seed)
        self._made: Counter[str] = Counter()
        self._numbers: dict[tuple[str, Row], int] = {}
        self._there: dict[str, Counter[Row]] = {name: Counter() for name in makers}

    def first(self, name: str) -> list[_Update]:
        """The rows that a table begins with, one of them twice."""
        rows = [self._new(name) for _ in range(self._makers[name][0])]
        return self._put(name, [*((row, 1) for row in rows), (self._draw.choice(rows), 1)])

    def some(self, name: str, count: int) -> list[_Update]:
        """New rows, changed ones, some that go, and a copy of one."""
        there = [row for row, copies in self._there[name].items() if copies]
        chosen = self._draw.sample(there, min(count + count // 2 + 1, len(there)))
        changed, gone, copied = chosen[:count], chosen[count:-1], chosen[-1:]
        updates = [(self._new(name), 1) for _ in range(count)]
        updates += [u for row in changed for u in ((row, -1), (self._changed(name, row), 1))]
        updates += [(row, -1) for row in gone]
        return self._put(name, [*updates, *((row, 1) for row in copied)])

    def all_gone(self, name: str) -> list[_Update]:
        """No row is left."""
        return self._put(name, [(row, -n) for row, n in self._there[name].items() if n])

    def again(self, name: str, gone: Sequence[_Update]) -> list[_Update]:
        """Every other one of the rows that have gone."""
        return self._put(name, [(row, -diff) for row, diff in gone[::2]])

    def _put(self, name: str, updates: list[_Update]) -> list[_Update]:
        for row, diff in updates:
            self._there[name][row] += diff
        assert min(self._there[name].values()) >= 0, name
        return updates

    def _new(self, name: str) -> Row:
        self._made[name] += 1
        return self._numbered(name, self._made[name] - 1, None)

    def _changed(self, name: str, row: Row) -> Row:
        """The row of the same number, with about a third of its columns drawn anew."""
        return self._numbered(name, self._numbers[name, row], row)

    def _numbered(self, name: str, number: int, old: Row | None) -> Row:
        row = self._makers[name][1](self._draw, number)
        if old is not None:
            pairs = zip(old, row, strict=True)
            row = tuple(new if self._draw.random() < _CHANGED else one for one, new in pairs)
        self._numbers[name, row] = number
        return row


def _maybe(draw: random.Random, value: Any) -> Any:
    return None if draw.random() < _NULLS else value


def _cents(draw: random.Random, low: int, high: int) -> Decimal:
    return Decimal(draw.randrange(low * 100, high * 100)).scaleb(-2)


# -- TPC-H ---------------------------------------------------------------------------------------

_REGIONS: Final = ("EUROPE", "ASIA", "AMERICA")
_NATIONS: Final = (
    ("FRANCE", 0),
    ("GERMANY", 0),
    ("CHINA", 1),
    ("SAUDI ARABIA", 1),
    ("BRAZIL", 2),
    ("CANADA", 2),
)
_ORDERED: Final = ((1993, 8, 3), (1993, 11, 5), (1994, 6, 1), (1995, 3, 1), (1996, 5, 7))
_SHIPPED: Final = ((1994, 3, 1), (1994, 8, 9), (1995, 4, 2), (1995, 9, 10), (1996, 2, 2))


def _region(draw: random.Random, number: int) -> Row:
    name = number % 3 if draw.random() < _MOSTLY else draw.randrange(3)
    return number % 3, _maybe(draw, _REGIONS[name])


def _nation(draw: random.Random, number: int) -> Row:
    name, region = _NATIONS[number % 6]
    return number % 6, _maybe(draw, name), region if draw.random() < _MOSTLY else draw.randrange(3)


def _its_nation(draw: random.Random, number: int) -> int:
    return number % 6 if draw.random() < _MOSTLY else draw.randrange(6)


def _supplier(draw: random.Random, number: int) -> Row:
    comment = draw.choice(("quick", "the Customer has Complaints", "slow"))
    return (
        number,
        f"Supplier {number}",
        draw.choice(("a street", "a lane")),
        _its_nation(draw, number),
        f"10-{draw.randrange(100)}",
        _cents(draw, -100, 900),
        _maybe(draw, comment),
    )


def _customer(draw: random.Random, number: int) -> Row:
    return (
        number,
        f"Customer {number}",
        draw.choice(("a street", "a lane")),
        _its_nation(draw, number),
        _maybe(draw, f"{draw.choice((13, 31, 23, 55))}-{draw.randrange(100)}"),
        _maybe(draw, _cents(draw, -100, 900)),
        _maybe(draw, draw.choice(("BUILDING", "BUILDING", "MACHINERY"))),
        draw.choice(("quick", "slow")),
    )


def _part(draw: random.Random, number: int) -> Row:
    types = ("ECONOMY ANODIZED STEEL", "PROMO PLATED BRASS", "MEDIUM BRASS", "SMALL BRASS")
    return (
        number,
        _maybe(draw, draw.choice(("forest green", "forest pink", "a green lace", "blue"))),
        draw.choice(("Maker#1", "Maker#2")),
        _maybe(draw, draw.choice(("Brand#12", "Brand#23", "Brand#23", "Brand#45"))),
        _maybe(draw, draw.choice(types)),
        _maybe(draw, draw.choice((15, 15, 3, 3, 9, 49, 2))),
        draw.choice(("MED BOX", "MED BOX", "JUMBO")),
        _cents(draw, 1, 50),
    )


def _partsupp(draw: random.Random, number: int) -> Row:
    return (
        number % 12,
        draw.randrange(10),
        _maybe(draw, draw.randrange(1, 90)),
        Decimal(draw.choice((10, 20, 30))).scaleb(-1),
    )


def _orders(draw: random.Random, number: int) -> Row:
    comment = draw.choice(("quick", "slow", "special kinds of requests"))
    priority = draw.choice(("1-URGENT", "2-HIGH", "3-MEDIUM"))
    return (
        number,
        _maybe(draw, draw.randrange(10)),
        _maybe(draw, draw.choice(("F", "F", "O"))),
        _cents(draw, 10, 900),
        _maybe(draw, dt.date(*draw.choice(_ORDERED))),
        _maybe(draw, priority),
        draw.randrange(2),
        _maybe(draw, comment),
    )


def _lineitem(draw: random.Random, number: int) -> Row:
    shipped = dt.date(*draw.choice(_SHIPPED))
    committed = shipped + dt.timedelta(days=draw.choice((10, 20, 40)))
    received = shipped + dt.timedelta(days=draw.choice((2, 15, 30)))
    modes = ("MAIL", "SHIP", "AIR", "AIR", "REG AIR")
    return (
        draw.randrange(50),
        _maybe(draw, draw.randrange(12)),
        _maybe(draw, draw.randrange(10)),
        number,
        _maybe(draw, Decimal(draw.choice((1, 3, 10, 15, 23, 50)))),
        _maybe(draw, _cents(draw, 10, 900)),
        _maybe(draw, Decimal(draw.choice((4, 5, 6, 7))).scaleb(-2)),
        Decimal(draw.choice((0, 2, 8))).scaleb(-2),
        _maybe(draw, draw.choice(("R", "A", "N"))),
        draw.choice(("F", "O")),
        _maybe(draw, shipped),
        _maybe(draw, committed),
        _maybe(draw, received),
        draw.choice(("NONE", "COD")),
        _maybe(draw, draw.choice(modes)),
    )


TPCH_CHANGES: Final = Changes(
    {
        "region": (3, _region),
        "nation": (6, _nation),
        "supplier": (12, _supplier),
        "customer": (20, _customer),
        "part": (12, _part),
        "partsupp": (60, _partsupp),
        "orders": (50, _orders),
        "lineitem": (320, _lineitem),
    },
    {
        20: {
            "region": 1,
            "nation": 2,
            "supplier": 4,
            "customer": 4,
            "part": 4,
            "partsupp": 8,
            "orders": 8,
            "lineitem": 16,
        },
        25: {"customer": 4, "lineitem": 16, "nation": 1, "partsupp": 8, "supplier": 4},
        GONE: {"partsupp": 8},
    },
    ("orders", "lineitem"),
)


# -- Nexmark -------------------------------------------------------------------------------------

_AUCTIONS: Final = (0, 1, 2, 123, 246, 10_001)
_DAY: Final = dt.datetime(2026, 3, 1, 7, 59, 30, tzinfo=dt.UTC)


def _moment(draw: random.Random, number: int, seconds: int) -> dt.datetime:
    """A moment of these seconds, which is that of no other number."""
    return _DAY + dt.timedelta(seconds=draw.randrange(seconds), microseconds=number)


def _bid(draw: random.Random, number: int) -> Row:
    channel = draw.choice(("apple", "Google", "Baidu", "other"))
    price = draw.choice((2, 7, 9, 1500, 1600, 40_000, 70_000)) * 1000 + number
    rest = draw.choice(("?channel_id=7&k=1", "?k=1", "&channel_id=x"))
    return (
        _maybe(draw, draw.choice(_AUCTIONS)),
        _maybe(draw, draw.randrange(5)),
        price,
        _maybe(draw, channel),
        _maybe(draw, f"https://www.nexmark.com/{draw.choice('abc')}/{channel}/item.htm{rest}"),
        _moment(draw, number, 90),
        _maybe(draw, draw.choice(("abccc", "c", "xyz", ""))),
    )


def _auction(draw: random.Random, number: int) -> Row:
    opened = _DAY + dt.timedelta(seconds=draw.randrange(40))
    return (
        _AUCTIONS[number] if number < len(_AUCTIONS) else number,
        f"item {number}",
        draw.choice(("old", "new")),
        draw.randrange(100),
        draw.randrange(100),
        _maybe(draw, opened),
        _maybe(draw, opened + dt.timedelta(seconds=draw.choice((20, 60)))),
        _maybe(draw, draw.randrange(4)),
        _maybe(draw, draw.choice((10, 10, 11))),
        "",
    )


def _person(draw: random.Random, number: int) -> Row:
    return (
        number % 6,
        f"person {number}",
        "a@b",
        "1234",
        draw.choice(("Rome", "Oslo")),
        _maybe(draw, draw.choice(("OR", "ID", "CA", "NY"))),
        _maybe(draw, _DAY + dt.timedelta(seconds=draw.randrange(40))),
        "",
    )


def _side_input(draw: random.Random, number: int) -> Row:
    return number % 5, _maybe(draw, draw.choice(("x", "y")))


NEXMARK_CHANGES: Final = Changes(
    {
        "bid": (80, _bid),
        "auction": (6, _auction),
        "person": (5, _person),
        "side_input": (4, _side_input),
    },
    {
        20: {"bid": 8, "auction": 2, "person": 2, "side_input": 1},
        25: {"bid": 4, "person": 2},
        GONE: {"person": 1},
    },
    ("bid",),
)

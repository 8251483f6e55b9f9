"""The first rows of keys, and with them the changes: the same first ones as of all rows."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable
from decimal import Decimal
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.app.compute.index import first_of_keys, runs
from shardline.app.compute.index.arrangement import Arrangement
from shardline.app.compute.index.first_of_keys import FirstOfKeys
from shardline.app.compute.index.order_codes import OrderBy, codes_of
from shardline.datasource.frontier import Frontier
from shardline.datasource.types.schema import ShardSchema
from support.fakes.reads import Row, updates_of
from support.profiles import examples

SCHEMA = pa.schema([("k", pa.int64()), ("t", pa.string()), ("v", pa.float64())])
SETTLED, LAST = 8, 12
"""Changes are those from `SETTLED` on, before `LAST`."""

Update = tuple[Row, int, int]


@st.composite
def histories(draw: st.DrawFn, at_a_time: int = 12) -> list[Update]:
    """Updates of few keys with many rows, that never take away what is not there."""
    row = st.tuples(
        st.sampled_from([None, 0, 1]),
        st.sampled_from([None, "", "a", "ä", "a" * 8 + "b", "a" * 8 + "a"]),
        st.sampled_from([None, 0.0, -0.0, 1.5, -2.5, float("inf"), float("nan"), 1e300]),
    )
    there: dict[str, tuple[Row, int]] = {}
    found: list[Update] = []
    for time in range(LAST):
        for _ in range(draw(st.integers(0, at_a_time))):
            alive = [text for text, (_, count) in there.items() if count > 0]
            if alive and draw(st.integers(0, 2)) == 0:
                chosen, count = there[draw(st.sampled_from(alive))]
                diff = -draw(st.integers(1, count))
            else:
                chosen, diff = draw(row), draw(st.integers(1, 2))
            there[repr(chosen)] = (chosen, there.get(repr(chosen), (chosen, 0))[1] + diff)
            found.append((chosen, time, diff))
    return found


def rank_of(value: Any, order: OrderBy) -> tuple[int, Any]:
    """A key by which Python sorts as Spark does."""
    if value is None:
        return (0 if order.nulls_first else 2), 0
    number: Any = value
    if isinstance(value, str):
        number = [*value.encode()]
        number = [-one for one in number] + [1] if order.descends else [*number, -1]
    elif math.isnan(value):  # the greatest
        number = (-1, 0) if order.descends else (1, 0)
    else:
        number = (0, -value if order.descends else value)
    return 1, number


def first_ranks(rows: Counter[str], of: dict[str, Row], asked: FirstOfKeys) -> Counter[Any]:
    """Of each key the rows with a rank up to the number, and their ranks."""
    place = SCHEMA.get_field_index(asked.order.column)
    found: Counter[Any] = Counter()
    keys: dict[Any, list[tuple[Any, str]]] = {}
    for text in rows:
        keys.setdefault(of[text][0], []).append((rank_of(of[text][place], asked.order), text))
    for key, mine in keys.items():
        in_front = 0
        for _, equal in itertools.groupby(sorted(mine), lambda one: one[0]):
            tied = [text for _, text in equal]
            found.update({(key, in_front, text): rows[text] for text in tied})
            in_front += sum(rows[text] for text in tied)
            if in_front >= asked.number:
                break
    return found


def arranged(rows: list[Update], cuts: list[int], key: tuple[str, ...] = ("k",)) -> Arrangement:
    found = Arrangement(ShardSchema.from_arrow(SCHEMA), key, 0)
    lower = 0
    for upper in sorted({cut for cut in cuts if 0 < cut < SETTLED} | {SETTLED, LAST}):
        step = [one for one in rows if lower <= one[1] < upper]
        found.append(updates_of(step, SCHEMA), Frontier(upper))
        lower = upper
    return found


def check(rows: list[Update], found: Arrangement, order: OrderBy, number: int) -> int:
    """Compare the first rows at each time of the changes; how many rows were found before."""
    changes = [one for one in rows if one[1] >= SETTLED]
    asked = FirstOfKeys(order, number, updates_of(changes, SCHEMA))
    table = found.by(("k",)).first(asked, SETTLED - 1, 10_000)
    assert table is not None
    held = [tuple(row.values()) for row in table.to_pylist()]
    of = {repr(row): row for row in [*held, *(one[0] for one in rows)]}
    changed = {one[0][0] for one in changes}
    for time in range(SETTLED, LAST):
        moved: Counter[str] = Counter()
        for row, at, diff in changes:
            moved[repr(row)] += diff if at <= time else 0
        mine = Counter(map(repr, held))
        mine.update(moved)
        everything: Counter[str] = Counter()
        for row, at, diff in rows:
            everything[repr(row)] += diff if at <= time else 0
        assert min(mine.values(), default=0) >= 0
        of_changed = Counter(
            {text: n for text, n in everything.items() if n and of[text][0] in changed}
        )
        mine = Counter({text: n for text, n in mine.items() if n and of[text][0] in changed})
        assert first_ranks(mine, of, asked) == first_ranks(of_changed, of, asked)
    return len(held)


@pytest.mark.slow
@examples(8)
@given(
    rows=histories(),
    cuts=st.lists(st.integers(1, SETTLED - 1), max_size=6),
    order=st.builds(OrderBy, st.sampled_from(["v", "t"]), st.booleans(), st.booleans()),
    number=st.integers(1, 4),
    made=st.tuples(st.integers(1, 4), st.sampled_from(["k", "v"])),
)
def test_first_rows_with_the_changes_are_those_of_all(
    rows: list[Update],
    cuts: list[int],
    order: OrderBy,
    number: int,
    made: tuple[int, str],
) -> None:
    """At each time, in whatever order, whatever goes, in however many pieces the rows are."""
    short, own_key = made
    with (
        mock.patch.object(runs, "SHORT", short),
        mock.patch.object(first_of_keys, "SHORT", short),
    ):
        check(rows, arranged(rows, cuts, (own_key,)), order, number)


def _many(number: int, price: Callable[[int], float], diff: int = 1, time: int = 0) -> list[Update]:
    return [((0, f"row {one}", price(one)), time, diff) for one in range(number)]


BY_PRICE = OrderBy("v", descends=True, nulls_first=False)


def test_few_rows_of_a_long_key_are_looked_at() -> None:
    """As many as are wanted and go, whatever their number, and one more for each that goes."""
    rows = _many(5_000, float)
    rows += [((0, "new", 1e6), SETTLED, 1), ((0, "row 17", 17.0), SETTLED, -1)]
    assert check(rows, arranged(rows, []), BY_PRICE, 10) == runs.SHORT + 1


def test_rows_that_tie_with_the_last_one_are_there() -> None:
    """A rank is the same for all of them, so that they are in it together."""
    rows = _many(500, lambda _: 7.0)
    rows.append(((0, "new", 7.0), SETTLED, 1))
    assert check(rows, arranged(rows, []), BY_PRICE, 3) == 500


def test_more_is_taken_where_most_of_the_first_has_gone() -> None:
    """Those that have gone are in one piece as additions, and in another one as what takes away."""
    rows = _many(2_000, float)
    # Merged runs would have added them up: these are in pieces of their own.
    rows += [((0, f"row {one}", float(one)), 1, -1) for one in range(1_000, 2_000)]
    rows.append(((0, "new", 1e6), SETTLED, 1))
    with mock.patch.object(Arrangement, "compact"):
        found = Arrangement(ShardSchema.from_arrow(SCHEMA), ("k",), 0)
        found.append(updates_of(rows[:2_000], SCHEMA), Frontier(1))
        found.append(updates_of(rows[2_000:3_000], SCHEMA), Frontier(SETTLED))
        found.append(updates_of(rows[3_000:], SCHEMA), Frontier(LAST))
    assert len(found.view.runs) > 1
    assert 10 <= check(rows, found, BY_PRICE, 10) < 1_000


def test_as_many_are_taken_as_go() -> None:
    """All that were first go at once: what comes up behind them must be there."""
    rows = _many(1_000, float)
    rows += [((0, f"row {one}", float(one)), SETTLED, -1) for one in range(700, 1_000)]
    assert check(rows, arranged(rows, []), BY_PRICE, 10) >= 310


def test_two_keys_of_one_hash_are_not_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hash is all that a piece knows of a key: of two it cannot tell whose rows are first."""

    def same(table: pa.Table, _: object) -> runs.Hashes:
        return np.zeros(table.num_rows, np.uint64)

    monkeypatch.setattr(runs, "hashes_of", same)
    monkeypatch.setattr(first_of_keys, "hashes_of", same)
    rows = [((one % 2, f"row {one}", float(one)), 0, 1) for one in range(1_000)]
    found = arranged(rows, [])
    for keys in [(0,), (0, 1)]:
        changes = updates_of([((key, "new", 1e6), SETTLED, 1) for key in keys], SCHEMA)
        assert found.first(FirstOfKeys(BY_PRICE, 10, changes), SETTLED - 1, 10_000) is None


def test_an_order_within_a_key_is_counted_where_it_takes_memory() -> None:
    """Twelve bytes a row beside the hashes; nothing if no key has many rows."""
    long, short = arranged(_many(5_000, float), []), arranged(_many(9, float), [])
    for found, more in ((long, 5_000 * (8 + 4 + 8)), (short, 0)):
        rows, before = found.by(("k",)), found.nbytes
        change = updates_of([((0, "new", 1.0), SETTLED, 1)], SCHEMA)
        rows.first(FirstOfKeys(BY_PRICE, 3, change), SETTLED - 1, 10_000)
        assert rows.nbytes == found.nbytes == before + more
        assert found.view.nbytes == before + more


def test_rows_of_another_key_do_not_stand_for_those_of_a_key() -> None:
    """NULL and the text "None" have one hash, and all rows that are taken may be of the other."""
    rows: list[Update] = [((one, None, 100.0 + one), 0, 1) for one in range(200)]
    rows += [((one, "None", float(one)), 0, 1) for one in range(200)]
    found = arranged(rows, [], ("t",))
    changes = updates_of([((7, "None", 50.5), SETTLED, 1)], SCHEMA)
    asked = FirstOfKeys(BY_PRICE, 3, changes)
    first = found.first(asked, SETTLED - 1, 10_000)
    kept = [] if first is None else [row for row in first.to_pylist() if row["t"] == "None"]
    assert first is None or sorted(row["v"] for row in kept)[-3:] == [197.0, 198.0, 199.0]


@pytest.mark.parametrize(
    ("key", "name"),
    [("k", "_owner"), ("k", "_hash"), ("k", "_place"), ("k", "_code"), (".k", "k"), ("[0]", "a.b")],
)
def test_a_column_may_have_any_name(key: str, name: str) -> None:
    """Hashes, places and codes are beside the rows, and a name is no path."""
    rows = pa.table({key: [0] * 200, name: [*range(200)], "_ts": [0] * 200, "_diff": [1] * 200})
    schema = rows.schema.remove(3).remove(2)
    found = Arrangement(ShardSchema.from_arrow(schema), (key,), 0)
    found.append(rows, Frontier(SETTLED))
    order = OrderBy(name, descends=True, nulls_first=False)
    first = found.first(FirstOfKeys(order, 3, rows.slice(10, 1)), SETTLED - 1, 10_000)
    assert first is not None
    assert first.column_names == schema.names
    assert sorted(first.column(name).to_pylist()) == [*range(200 - runs.SHORT, 200)]


def test_too_many_are_left_to_another_way() -> None:
    """None says so; no row is left out for it."""
    rows = [*_many(500, lambda _: 7.0), ((0, "new", 7.0), SETTLED, 1)]
    found = arranged(rows, [])
    asked = FirstOfKeys(BY_PRICE, 3, updates_of(rows[500:], SCHEMA))
    assert found.first(asked, SETTLED - 1, 500) is None
    assert found.first(asked, SETTLED - 1, 501) is not None


def test_a_key_that_is_new_has_no_rows() -> None:
    """Nor has a key of an arrangement without any."""
    change = updates_of([((5, "new", 1.0), SETTLED, 1)], SCHEMA)
    for rows in (_many(3, float), []):
        found = arranged(rows, []).first(FirstOfKeys(BY_PRICE, 3, change), SETTLED - 1, 10)
        assert found is not None
        assert found.num_rows == 0


@pytest.mark.parametrize("descends", [False, True])
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.int8(), [-128, -1, 0, 127]),
        (pa.int64(), [-(2**63), -1, 0, 2**63 - 1]),
        (pa.decimal128(18, 2), [Decimal("-9999999999999999.99"), Decimal("0.01"), Decimal(3)]),
        (pa.float32(), [float("-inf"), -1.5, 0.0, 1e30, float("inf"), float("nan")]),
        (pa.float64(), [float("-inf"), -1e-300, 0.0, 5.0, float("inf"), float("nan")]),
        (pa.bool_(), [False, True]),
        (pa.date32(), [-719162, 0, 20000]),
        (pa.timestamp("us", "UTC"), [-(10**15), 0, 10**15]),
        (pa.string(), ["", "\x00", "a", "a\x00", "ab", "b", "ä", "\U0001f600"]),
        (pa.large_string(), ["", "a", "ab"]),
    ],
    ids=str,
)
def test_codes_compare_as_values_do(
    kind: pa.DataType,
    values: list[Any],
    descends: bool,
) -> None:
    """NULL where the order has it, whatever the values are; equal ones have one code."""
    numbers = pa.int32() if pa.types.is_date32(kind) else kind
    column = pa.array([None, *values, *values], numbers).cast(kind)
    for nulls_first in (True, False):
        codes = codes_of(pa.table({"v": column}), OrderBy("v", descends, nulls_first))
        null, rest = codes[0], [*codes[1:]]
        assert rest[: len(values)] == rest[len(values) :]
        assert rest[: len(values)] == sorted(rest[: len(values)], reverse=descends)
        assert all((null <= one) if nulls_first else (null >= one) for one in rest)


def test_zeros_of_both_signs_have_one_code() -> None:
    """They are equal to Spark: a rank has both."""
    column = pa.table({"v": pa.array([0.0, -0.0, -5e-324, 5e-324])})
    plus, minus, below, above = codes_of(column, OrderBy("v", descends=False, nulls_first=True))
    assert below < plus == minus < above


def test_text_of_many_lengths_has_codes_in_its_order() -> None:
    """Slices of a column, too, whose bytes do not begin where the column does."""
    made = random.Random(7)
    texts = ["".join(made.choices("ab\x00é", k=made.randrange(12))) for _ in range(300)]
    column = pa.table({"v": pa.array(["x", *texts])}).slice(1)
    codes = codes_of(column, OrderBy("v", descends=False, nulls_first=True))
    in_order = sorted(range(len(texts)), key=lambda one: texts[one].encode())
    assert [*codes[in_order]] == sorted(codes)
    assert len(set(codes)) > 100

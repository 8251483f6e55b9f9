"""Filtered reads: what comes out is what an unfiltered read gives, less the rows that fail."""

from __future__ import annotations

import io
import math
from collections import Counter
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.datasource.errors import Corrupt
from shardline.datasource.filters.parser import Condition, Where
from shardline.datasource.frontier import Frontier
from shardline.datasource.parts.contents import Contents
from shardline.datasource.parts.part_file import encode_parquet
from shardline.datasource.parts.prune import Pruner, is_audited
from shardline.datasource.read import contents_of, first_sort_column
from shardline.datasource.shard.plan import (
    PlannedPart,
    TimeFilter,
    pack_parts,
    plan_changes,
    plan_snapshot,
)
from shardline.datasource.shard.state import ShardState
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.types.stats import ColumnStats, PartStats, encode_stats
from support.models.shards import SETTINGS, TINY, World, rows, schema_of, table, updates
from support.strategies.commands import part
from support.strategies.rows import bounded

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardline.datasource.client import ShardClient

SHARD = "orders"
PIECES = replace(TINY, inline_part_bytes=0, part_buffer_bytes=64, row_group_rows=2)
GROUPS = replace(SETTINGS, inline_part_bytes=0, row_group_rows=2, stats_bytes=0)
"""No statistics in state: what is left out is left out by footers."""


@dataclass(frozen=True)
class Reading:
    """A filtered read of a shard without Spark, as its planner and its tasks do it."""

    contents: Contents
    state: ShardState
    pruner: Pruner

    @classmethod
    def of(
        cls, client: ShardClient, where: Where | str, columns: list[str] | None = None
    ) -> Reading:
        state = client.state(SHARD)
        contents = contents_of(client.machine(SHARD), state, columns)
        if isinstance(where, str):
            where = Condition(where).bind(contents.fetcher.target)
        fetcher = replace(contents.fetcher, where=where)
        return cls(replace(contents, fetcher=fetcher), state, Pruner(where, state.schemas))

    def snapshot(self, as_of: int, target_bytes: int = 1 << 20) -> pa.Table:
        whole = plan_snapshot(self.state, as_of, first_sort_column(self.state))
        plan = self.pruner.prune_snapshot(whole)
        plain = (one for some in pack_parts(plan.plain, target_bytes) for one in some)
        batches = [batch for one in plain for batch in self.contents.plain(one)]
        batches += [batch for group in plan.groups for batch in self.contents.group(group)]
        return pa.Table.from_batches(batches, self.contents.target.arrow)

    def changes(self, target_bytes: int = 1 << 20) -> Counter[Any]:
        kept = self.pruner.prune(plan_changes(self.state, 0, None))
        found: Counter[Any] = Counter()
        for some in pack_parts(kept, target_bytes):
            for one in some:
                for batch in self.contents.changes(one):
                    found += rows(pa.Table.from_batches([batch]))
        return found

    @property
    def parts(self) -> list[PlannedPart]:
        return self.pruner.prune(plan_changes(self.state, 0, None))


# --- against an unfiltered read ------------------------------------------------------------------

_TEXTS = ("", "a", "ab", "b" * 70, "b" * 70 + "c", "é", None)
_FLOATS = (0.0, -0.0, math.nan, math.inf, -1.5, None)
_PRICES = (*map(Decimal, ("0.00", "1.50", "-3.25", "99.99")), None)
_TIMES = (0, 1_774_745_999_999_999, 1_774_746_000_000_000, 1_792_890_000_000_000, None)

_OLD = pa.schema(
    [
        ("id", pa.int32()),
        ("s", pa.string()),
        ("x", pa.float32()),
        ("p", pa.decimal128(6, 2)),
        ("t", pa.timestamp("us", "UTC")),
        ("day", pa.date32()),
    ]
)
_NEW = pa.schema(
    [
        ("id", pa.int64()),
        ("s", pa.string()),
        ("x", pa.float64()),
        ("p", pa.decimal128(12, 4)),
        ("t", pa.timestamp("us", "UTC")),
        ("day", pa.timestamp("us")),
        ("more", pa.string()),
    ]
)

_ROWS = st.tuples(
    st.integers(-3, 3) | st.none(),
    st.sampled_from(_TEXTS),
    st.sampled_from(_FLOATS),
    st.sampled_from(_PRICES),
    st.sampled_from(_TIMES),
    st.integers(20_000, 20_003) | st.none(),
)

Row = dict[str, Any]

# What each text means, said again in plain Python. NaN is above all; null is never true.
_CONDITIONS: dict[str, Callable[[Row], bool]] = {
    "id > 1": lambda r: r["id"] is not None and r["id"] > 1,
    "id <= 0.5": lambda r: r["id"] is not None and r["id"] <= 0,
    "not (id = 2)": lambda r: r["id"] is not None and r["id"] != 2,
    "id <=> null": lambda r: r["id"] is None,
    "s like 'b%'": lambda r: r["s"] is not None and r["s"].startswith("b"),
    f"s = '{'b' * 70}'": lambda r: r["s"] == "b" * 70,
    f"s > '{'b' * 70}'": lambda r: r["s"] is not None and r["s"] > "b" * 70,
    "s in ('', 'é')": lambda r: r["s"] in ("", "é"),
    "x > 5": lambda r: r["x"] is not None and not r["x"] <= 5,
    "x = double('nan')": lambda r: r["x"] is not None and math.isnan(r["x"]),
    "x = 0": lambda r: r["x"] == 0,
    "x < 0": lambda r: r["x"] is not None and r["x"] < 0,
    "p = 1.5": lambda r: r["p"] == Decimal("1.5"),
    "p < -3.245": lambda r: r["p"] is not None and r["p"] < Decimal("-3.245"),
    "p between 1.495 and 1.505": lambda r: r["p"] == Decimal("1.5"),
    "t >= '2026-03-29 02:00:00'": lambda r: (r["t"] or -1) >= 1_774_746_000_000_000,
    "t is null or id = 1": lambda r: r["t"] is None or r["id"] == 1,
    "day >= date '2024-10-05'": lambda r: (r["day"] or 0) >= 20_001,
    "more = 'here'": lambda r: r["more"] == "here",
    "more is null": lambda r: r["more"] is None,
    "more <> 'gone' and id is not null": lambda r: r["more"] == "here" and r["id"] is not None,
    "false or null": lambda _: False,
}


def arrow(some: list[tuple[Any, ...]], schema: pa.Schema) -> pa.Table:
    columns = [pa.array([row[i] for row in some], field.type) for i, field in enumerate(schema)]
    return pa.Table.from_arrays(columns, schema=schema)


def plain_row(row: tuple[Any, ...], more: str | None) -> Row:
    return dict(zip(_NEW.names, (*row, more), strict=True))


def identity(row: Row) -> tuple[Any, ...]:
    """Equal exactly when two rows are the same."""
    return tuple(repr(float(v)) if name == "x" and v is not None else v for name, v in row.items())


def contents(found: pa.Table) -> Counter[Any]:
    days = found.column("day").cast(pa.int64()).to_pylist()
    micros = found.column("t").cast(pa.int64()).to_pylist()
    counted: Counter[Any] = Counter()
    for row, day, micro in zip(found.to_pylist(), days, micros, strict=True):
        days_only = None if day is None else day // 86_400_000_000
        counted[identity({**row, "day": days_only, "t": micro})] += 1
    return counted


_HISTORIES = st.tuples(
    st.lists(_ROWS, max_size=8), st.lists(_ROWS, max_size=6), st.sets(st.sampled_from(range(8)))
)


@given(
    _HISTORIES,
    st.sampled_from([SETTINGS, PIECES, GROUPS]),
    st.sampled_from(sorted(_CONDITIONS)),
    st.sampled_from([1, 400, 1 << 20]),
)
@bounded
def test_rows_that_come_out_are_exactly_those_that_pass(
    history: tuple[Any, Any, set[int]], settings: Any, text: str, target_bytes: int
) -> None:
    """Over old and new types, missing columns, retractions, and parts cut into shares."""
    old, new, gone = history
    world = World()
    client = world.client(settings)
    client.create(SHARD, ShardSchema.from_arrow(_OLD))
    client.writer(SHARD).compare_and_append(arrow(old, _OLD), Frontier(0), Frontier(1))
    client.evolve(SHARD, ShardSchema.from_arrow(_NEW))
    writer = client.writer(SHARD)
    days = [(*row[:5], None if row[5] is None else row[5] * 86_400_000_000) for row in new]
    added = arrow([(*row, "here") for row in days], _NEW)
    writer.compare_and_append(added, Frontier(1), Frontier(2))
    places = pa.array(sorted(at for at in gone if at < len(new)), pa.int64())
    taken = added.take(places)
    minus = taken.append_column("_diff", pa.array([-1] * taken.num_rows, pa.int64()))
    writer.compare_and_append(minus, Frontier(2), Frontier(3))

    there = [plain_row(row, None) for row in old]
    there += [plain_row(row, "here") for at, row in enumerate(new) if at not in gone]
    expected = Counter(identity(row) for row in there if _CONDITIONS[text](row))
    condition = Condition(text, "Europe/Berlin").bind(ShardSchema.from_arrow(_NEW))
    reading = Reading.of(client, condition)
    assert contents(reading.snapshot(2, target_bytes)) == expected
    world.close()


# --- projection, changes, groups -----------------------------------------------------------------


@pytest.fixture
def pieces(world: World) -> ShardClient:
    """Ten rows in parts of one or two."""
    made = world.client(PIECES)
    made.create(SHARD, schema_of(), key=["id"])
    some = table(*((i, "even" if i % 2 == 0 else "odd") for i in range(10)))
    made.writer(SHARD).compare_and_append(some, Frontier(0), Frontier(1))
    return made


def test_columns_of_the_filter_alone_do_not_come_out(pieces: ShardClient) -> None:
    """The filter sees them, the reader does not."""
    found = Reading.of(pieces, "id >= 6 and v = 'even'", ["v"]).snapshot(0)
    assert found.to_pydict() == {"v": ["even", "even"]}
    assert Reading.of(pieces, "v = 'odd'", ["id"]).snapshot(0).num_columns == 1


def test_changes_are_filtered_with_their_times(pieces: ShardClient) -> None:
    """Retractions of rows that pass come, too, and no others."""
    writer = pieces.writer(SHARD)
    more = updates((2, "even", 1, -1), (3, "odd", 1, -1), (11, "odd", 1, 1))
    writer.compare_and_append(more, Frontier(1), Frontier(2))
    found = Reading.of(pieces, "id in (2, 11) or id = 8").changes(200)
    assert found == Counter(
        [(2, "even", 0, 1), (2, "even", 1, -1), (8, "even", 0, 1), (11, "odd", 1, 1)]
    )


def test_what_retracts_only_other_rows_is_not_merged_with(pieces: ShardClient) -> None:
    """Then parts of a group are plain."""
    pieces.writer(SHARD).compare_and_append(updates((2, "even", 1, -1)), Frontier(1), Frontier(2))
    whole = plan_snapshot(pieces.state(SHARD), 1, "id")
    assert len(whole.groups) == 1
    reading = Reading.of(pieces, "id = 5")
    kept = reading.pruner.prune_snapshot(whole)
    assert kept.groups == ()
    assert len([one for one in kept.plain if not one.audit]) == 1
    assert reading.snapshot(1).to_pydict() == {"id": [5], "v": ["odd"]}
    assert Reading.of(pieces, "id = 2").snapshot(1).num_rows == 0


def test_parts_that_cannot_match_are_not_opened(pieces: ShardClient) -> None:
    """Their blobs may as well be gone."""
    reading = Reading.of(pieces, "id = 7")
    kept = {one.part.key for one in reading.parts}
    for one in pieces.state(SHARD).trace.batches[0].parts:
        if one.key not in kept:
            pieces.location.blob.delete(one.key)
    assert reading.snapshot(0).to_pydict() == {"id": [7], "v": ["odd"]}
    assert len(kept) < 5


# --- audit ---------------------------------------------------------------------------------------


def lying(state: ShardState, key: str) -> ShardState:
    """The state with statistics that deny what the part called `key` holds."""
    lie = PartStats(1, {"id": ColumnStats(0, "int", 1000, 2000)})

    def told(value: Any) -> Any:
        return (
            msgspec.structs.replace(value, encoded_stats=encode_stats(lie))
            if value.key == key
            else value
        )

    batches = tuple(
        msgspec.structs.replace(
            batch,
            runs=tuple(
                msgspec.structs.replace(run, parts=tuple(map(told, run.parts)))
                for run in batch.runs
            ),
        )
        for batch in state.trace.batches
    )
    return msgspec.structs.replace(
        state, trace=msgspec.structs.replace(state.trace, batches=batches)
    )


def test_statistics_that_lie_are_found_out(world: World) -> None:
    """One in a hundred parts that are left out is read all the same, always the same one."""
    client = world.client(replace(PIECES, part_buffer_bytes=1))
    client.create(SHARD, schema_of(), key=["id"])
    some = table(*((i, "x") for i in range(400)))
    client.writer(SHARD).compare_and_append(some, Frontier(0), Frontier(1))
    reading = Reading.of(client, "id < 0")
    audits = [one for one in reading.parts if one.audit]
    assert reading.parts == Reading.of(client, "id < 0").parts
    assert 1 <= len(audits) <= 12
    assert all(is_audited(one.part.key) for one in audits)
    assert reading.snapshot(0).num_rows == 0
    liar = audits[0].part
    stats = liar.stats
    assert stats is not None
    value = stats.columns["id"].lo
    lied = replace(Reading.of(client, f"id = {value}"), state=lying(reading.state, liar.key))
    with pytest.raises(Corrupt, match=rf"FILTER_AUDIT.*{liar.key}.*id = {value}.*without option"):
        lied.snapshot(0)


def test_audits_read_no_more_than_the_read_itself(world: World) -> None:
    """Beyond an allowance: a filter that leaves a thousand large parts out stays cheap."""
    client = world.client(replace(PIECES, part_buffer_bytes=1))
    client.create(SHARD, schema_of(), key=["id"])
    some = table(*((i, "x") for i in range(400)))
    client.writer(SHARD).compare_and_append(some, Frontier(0), Frontier(1))
    reading = Reading.of(client, "id < 0")
    large = [
        msgspec.structs.replace(one, part=msgspec.structs.replace(one.part, size_bytes=200 << 20))
        for one in plan_changes(reading.state, 0, None)
    ]
    assert len([one for one in reading.pruner.prune(large) if one.audit]) == 1


# --- shares --------------------------------------------------------------------------------------


@given(st.integers(0, 40), st.integers(1, 12))
@bounded
def test_every_row_group_is_in_one_share(count: int, shares: int) -> None:
    """Of any number of row groups in any number of shares, and shares are of like size."""
    whole = PlannedPart(part("p"), TimeFilter(None, None), ordered=True)
    slices = [
        msgspec.structs.replace(whole, share=(i, shares)).row_groups(count) for i in range(shares)
    ]
    assert [group for some in slices for group in some] == list(range(count))
    assert max(map(len, slices)) - min(map(len, slices)) <= 1


@given(st.integers(1, 60), st.integers(1, 9))
@bounded
def test_shares_of_a_part_are_the_part(count: int, shares: int) -> None:
    """Each row once, whatever the share, and each share checks the file as a whole."""
    world = World()
    client = world.client(replace(SETTINGS, inline_part_bytes=0, row_group_rows=4))
    client.create(SHARD, schema_of())
    some = table(*((i, f"value {i}") for i in range(count)))
    client.writer(SHARD).append_now(some)
    state = client.state(SHARD)
    [whole] = plan_snapshot(state, 10**15, "id").plain
    reader = contents_of(client.machine(SHARD), state)
    found: Counter[Any] = Counter()
    for index in range(shares):
        for batch in reader.plain(msgspec.structs.replace(whole, share=(index, shares))):
            found += rows(pa.Table.from_batches([batch]))
    assert found == rows(some)
    world.close()


@pytest.mark.slow
def test_wide_rows_make_small_row_groups() -> None:
    """So that they, too, are cut, left out and read in pieces: 32 MiB of them at most."""
    wide = pa.table({"document": [b"x" * (4 << 20)] * 20})
    data = encode_parquet(wide, row_group_rows=1000)
    metadata = pq.read_metadata(io.BytesIO(data))
    assert [metadata.row_group(i).num_rows for i in range(metadata.num_row_groups)] == [7, 7, 6]


def test_a_column_that_an_old_part_lacks_can_be_read_alone(world: World) -> None:
    """Nothing of the part's own is asked for, and it still has as many rows."""
    client = world.client(PIECES)
    client.create(SHARD, schema_of())
    client.writer(SHARD).append_now(table((1, "a"), (2, "b")))
    wider = pa.schema([("id", pa.int64()), ("v", pa.string()), ("more", pa.string())])
    client.evolve(SHARD, schema_of(wider))
    with client.reader(SHARD) as reader:
        assert reader.snapshot(columns=["more"]).to_pydict() == {"more": [None, None]}

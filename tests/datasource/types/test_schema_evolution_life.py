"""A shard whose schema changes all its life: old parts, merges and filters, against a model.

A value is a number `n`; what it looks like is a matter of its column's type at the time of reading,
which no change of schema may alter: 5, 5.0, Decimal("5.00"), five days after 2000.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.datasource.client import ShardClient
from shardline.datasource.filters.parser import Condition
from shardline.datasource.frontier import Frontier
from shardline.datasource.parts.prune import Pruner
from shardline.datasource.read import contents_of, first_sort_column
from shardline.datasource.shard.plan import plan_snapshot
from shardline.datasource.types.schema import DIFF, TS, ShardSchema
from support.models.shards import TINY, World, dangling
from support.profiles import wide_examples

SHARD = "orders"

CHAINS = {
    "i": [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.decimal128(22, 2)],
    "f": [pa.float32(), pa.float64()],
    "p": [pa.decimal128(5, 2), pa.decimal128(9, 4), pa.decimal128(20, 4)],
    "d": [pa.date32(), pa.timestamp("us")],
    "b": [pa.int8(), pa.float64()],
    "s": [pa.string()],
}
"""Columns by their first letter, and the types that they are widened to, in order."""


def shown(number: int | None, kind: pa.DataType) -> Any:
    """What the value `number` looks like in a column of this type."""
    if number is None:
        return None
    if pa.types.is_decimal(kind):
        return Decimal(number).quantize(Decimal(1).scaleb(-kind.scale))
    if pa.types.is_floating(kind):
        return float(number)
    if pa.types.is_string(kind):
        return str(number)
    if pa.types.is_temporal(kind):
        start = date(2000, 1, 1) if pa.types.is_date(kind) else datetime(2000, 1, 1)  # noqa: DTZ001
        return start + timedelta(days=number)
    return number


Row = tuple[int | None, ...]


@dataclass
class Life:
    """A shard, and beside it every update and schema that it was given."""

    client: ShardClient
    columns: list[list[Any]] = field(default_factory=lambda: [["i0", 0, False], ["f1", 0, True]])
    updates: list[tuple[Row, int, int]] = field(default_factory=list)
    upper: int = 0

    @property
    def arrow(self) -> pa.Schema:
        return pa.schema([pa.field(n, CHAINS[n[0]][at], nullable=o) for n, at, o in self.columns])

    def append(self, numbers: list[int | None]) -> None:
        """Two new rows, and one that is there taken away again."""
        width = len(self.columns)
        values = (numbers * 2 * width)[: 2 * width]
        new = [self._fitted(values[:width]), self._fitted(values[width:])]
        there = [row for row, count in self.model(self.upper).items() if count > 0]
        changes = [(row, self.upper, 1) for row in new]
        changes += [(row, self.upper, -1) for row in there[:1] if numbers and numbers[0]]
        arrays = [
            pa.array([shown(self._wide(row)[i], f.type) for row, _, _ in changes], f.type)
            for i, f in enumerate(self.arrow)
        ]
        table = pa.Table.from_arrays(arrays, schema=self.arrow)
        table = table.append_column(TS, pa.array([at for _, at, _ in changes], pa.int64()))
        table = table.append_column(DIFF, pa.array([d for _, _, d in changes], pa.int64()))
        end = Frontier(self.upper + 10)
        self.client.writer(SHARD).compare_and_append(table, Frontier(self.upper), end)
        self.updates += changes
        self.upper += 10

    def _fitted(self, values: list[int | None]) -> Row:
        pairs = zip(values, self.columns, strict=True)
        return tuple(0 if n is None and not column[2] else n for n, column in pairs)

    def _wide(self, row: Row) -> Row:
        return (*row, *[None] * (len(self.columns) - len(row)))

    def evolve(self, at: int) -> None:
        """Widen or relax a column, or add one."""
        name, step, _ = column = self.columns[at % len(self.columns)]
        if step + 1 < len(CHAINS[name[0]]):
            column[1] += 1
        column[2] = True
        if at >= len(self.columns):
            kind = "ifpdbs"[at % 6]
            self.columns.append([f"{kind}{len(self.columns)}", 0, True])
        self.client.evolve(SHARD, ShardSchema.from_arrow(self.arrow))

    def model(self, as_of: int) -> Counter[Row]:
        """Rows at a time; a column that came later is null in older ones."""
        found: Counter[Row] = Counter()
        for row, at, diff in self.updates:
            if at <= as_of:
                found[self._wide(row)] += diff
        return found

    def expected(self, as_of: int, keep: int | None = None) -> Counter[tuple[Any, ...]]:
        kinds = self.arrow.types
        return Counter(
            {
                tuple(shown(n, kind) for n, kind in zip(row, kinds, strict=True)): count
                for row, count in self.model(as_of).items()
                if count and (keep is None or (row[0] is not None and row[0] >= keep))
            }
        )

    def read(self, as_of: int, keep: int | None = None) -> Counter[tuple[Any, ...]]:
        """By a plan and its tasks; with a filter on the widened column, pruned by statistics."""
        state = self.client.state(SHARD)
        contents = contents_of(self.client.machine(SHARD), state)
        plan = plan_snapshot(state, as_of, first_sort_column(state))
        if keep is not None:
            where = Condition(f"i0 >= {keep}").bind(contents.fetcher.target)
            contents = replace(contents, fetcher=replace(contents.fetcher, where=where))
            plan = Pruner(where, state.schemas).prune_snapshot(plan)
        batches = [batch for one in plan.plain for batch in contents.plain(one)]
        batches += [batch for group in plan.groups for batch in contents.group(group)]
        table = pa.Table.from_batches(batches, contents.target.arrow)
        assert table.schema.types == self.arrow.types
        columns = [column.to_pylist() for column in table.columns]
        return Counter(zip(*columns, strict=True))


_numbers = st.lists(st.none() | st.integers(-99, 99), min_size=1, max_size=8)
_moves = st.one_of(
    st.tuples(st.just("append"), _numbers),
    st.tuples(st.just("append"), _numbers),
    st.tuples(st.just("evolve"), st.integers(0, 11)),
    st.tuples(st.sampled_from(["force", "tiered", "collect", "downgrade"]), st.none()),
)


@pytest.mark.slow
@wide_examples(0.6)
@given(moves=st.lists(_moves, max_size=24), keep=st.integers(-99, 99))
def test_contents_mean_the_same_through_changes_of_schema_and_merges(
    moves: list[tuple[str, Any]], keep: int
) -> None:
    """At every readable time, filtered or not; a forced merge leaves only the newest schema."""
    world = World()
    tiny = replace(TINY, inline_part_bytes=250, compact_factor=2, stats_bytes=512)
    life = Life(world.client(tiny))
    life.client.create(SHARD, ShardSchema.from_arrow(life.arrow), key=["i0"])
    hold = life.client.hold(SHARD, "q")
    life.append([1, 2])
    for move, given_value in moves:
        match move:
            case "append":
                life.append(given_value)
            case "evolve":
                life.evolve(given_value)
            case "force" | "tiered":
                life.client.compact(SHARD, force=move == "force")
            case "collect":
                life.client.collect_garbage(SHARD)
            case "downgrade":
                hold.downgrade(Frontier(life.upper // 2))
    state = life.client.state(SHARD)
    assert state.since.time is not None
    for as_of in {state.since.time, (state.since.time + life.upper) // 2, life.upper - 1}:
        assert life.read(as_of) == life.expected(as_of)
        assert life.read(as_of, keep) == life.expected(as_of, keep)
    life.client.compact(SHARD, force=True)
    state = life.client.state(SHARD)
    assert {p.schema for b in state.trace.batches for p in b.parts} <= {state.schema_id}
    assert life.read(life.upper - 1) == life.expected(life.upper - 1)
    assert life.read(life.upper - 1, keep) == life.expected(life.upper - 1, keep)
    assert dangling(life.client.machine(SHARD)) == []
    world.close()

"""A view whose inputs get other columns, or are made again, says of all rows what it says now."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from msgspec.structs import replace

from shardline.app.compute.view.maintained_view import View
from shardline.app.compute.view.view_inputs import InputChanged, ViewInputs
from shardline.app.execution.observations import Measured
from shardline.app.protocol.objects import state_shards
from shardline.datasource.spark_native.time_interval import Interval
from shardline.datasource.types.schema import ShardSchema
from support.spark.views import Bench, Following, Input, contents, no_fence, view

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from shardline.app.protocol.objects import ViewDescription

pytestmark = pytest.mark.spark


@pytest.fixture
def bench(spark: SparkSession, location: str, tmp_path: Path) -> Bench:
    return Bench(spark, location, tmp_path / "checkpoints")


def evolve(source: Input, **types: pa.DataType) -> None:
    """Widen columns of an input, or add some."""
    known = {field.name: field.type for field in source.schema} | types
    source.schema = pa.schema(list(known.items()))
    source.client.evolve(source.name, ShardSchema.from_arrow(source.schema))


class Renderings:
    """The renderings of a view, one after the other."""

    def __init__(self, bench: Bench, description: ViewDescription) -> None:
        self._bench = bench
        self._description = replace(description, strategy="incremental")
        self.made = 0
        self._reached = 5
        self.start()

    def start(self) -> None:
        """Begin a rendering that knows nothing of the one before."""
        self.made += 1
        self._view = View(
            self._bench.host,
            self._bench.incarnation(self._description.name, 5),
            self._description,
            no_fence,
            Following(),
        )

    def step(self, upper: int) -> None:
        """Bring the view up to a time; a rendering that ends itself is followed by another."""
        interval = Interval(self._reached, upper, starts=self._reached == 5)
        self._reached = upper
        try:
            self._view.advance(self._bench.spark, interval)
        except InputChanged:
            self.start()
            self._view.advance(self._bench.spark, interval)


def of(bench: Bench, description: ViewDescription) -> tuple[str, ...]:
    """What the inputs of a view add to its meaning."""
    meaning = ViewInputs(bench.host, description).determinants
    return tuple(one for one in meaning if one.startswith(("t.", "u.")))


TEXT = view("text", "SELECT id, CAST(x AS STRING) AS s FROM t", "id BIGINT, s STRING", "t")
FLOATS = pa.schema([("id", pa.int64()), ("x", pa.float32())])


def test_a_row_goes_as_it_was_shown_though_its_column_is_wider(bench: Bench) -> None:
    """Its text is another one by now, and the one that was shown must not stay."""
    source = bench.input("t", FLOATS)
    source.push(5, ((1, 0.1), 1), ((2, 0.5), 1))
    shown = Renderings(bench, TEXT)
    shown.step(6)
    assert contents(bench.client, "text", 5) == {(1, "0.1"): 1, (2, "0.5"): 1}
    evolve(source, x=pa.float64())
    wide = float(np.float32(0.1))
    source.push(10, ((1, wide), -1), ((3, wide), 1))
    shown.step(11)
    assert contents(bench.client, "text", 10) == {(2, "0.5"): 1, (3, str(wide)): 1}
    source.push(20, ((3, wide), -1))
    shown.step(21)
    assert contents(bench.client, "text", 20) == {(2, "0.5"): 1}
    assert shown.made == 2


def test_a_column_that_the_query_sees_without_a_name_counts(bench: Bench) -> None:
    """All columns are in `struct(*)`, also one that comes later."""
    source = bench.input("t", FLOATS)
    source.push(5, ((1, 0.5), 1))
    shown = Renderings(
        bench, view("lines", "SELECT to_csv(struct(*)) AS s FROM t", "s STRING", "t")
    )
    shown.step(6)
    assert contents(bench.client, "lines", 5) == {("1,0.5",): 1}
    evolve(source, later=pa.string())
    source.push(10, ((2, 0.25, "b"), 1))
    shown.step(11)
    rows = [[1, 0.5, ""], [2, 0.25, "b"]]
    assert contents(bench.client, "lines", 10) == Counter(
        (",".join(map(str, row)),) for row in rows
    )


def test_a_column_that_the_query_does_not_see_changes_nothing(bench: Bench) -> None:
    """Neither for a rendering that runs, nor for the next one: nothing is computed again."""
    source = bench.input("t", FLOATS)
    source.push(5, ((1, 0.5), 1))
    shown = Renderings(bench, TEXT)
    shown.step(6)
    writers = set(bench.client.state("text").writers)
    evolve(source, later=pa.string())
    source.push(10, ((2, 0.25, "b"), 1), ((1, 0.5, None), -1))
    shown.step(11)
    shown.start()  # as after a kill
    source.push(20, ((3, 0.75, "c"), 1))
    shown.step(21)
    assert set(bench.client.state("text").writers) == writers
    assert contents(bench.client, "text", 20) == {(2, "0.25"): 1, (3, "0.75"): 1}


SEES: dict[str, tuple[str, set[str]]] = {
    "by_name": ("SELECT id FROM t", set()),
    "number": ("SELECT size(array(*)) AS n FROM t", {"t.x", "t.later"}),
    "types": ("SELECT typeof(struct(*)) AS n FROM t", {"t.x", "t.later"}),
    "widened": ("SELECT id FROM t WHERE x > 0", {"t.x"}),
    "grouped": ("SELECT count(*) AS n FROM t GROUP BY id", set()),
    "alias": ("SELECT id AS later, count(*) AS n FROM t GROUP BY later", {"t.x", "t.later"}),
    "natural": ("SELECT t.id FROM t NATURAL JOIN u", {"t.later"}),
    "exists": ("SELECT id FROM t WHERE EXISTS (SELECT 1 FROM u WHERE later = t.id)", set()),
    "inner": ("SELECT k FROM u WHERE EXISTS (SELECT 1 FROM t WHERE later = u.k)", {"t.later"}),
    "cte": ("WITH c AS (SELECT id FROM t) SELECT l.id FROM c l JOIN c r USING (id)", set()),
    "cte_star": ("WITH c AS (SELECT * FROM t) SELECT count(*) AS n FROM c", {"t.x", "t.later"}),
    "union": ("SELECT id FROM t UNION ALL SELECT k FROM u", set()),
    "scalar": ("SELECT k, (SELECT max(x) FROM t) AS m FROM u", {"t.x"}),
}
"""Queries, and the columns that they see of those that their inputs have got."""


def test_what_a_query_reads_is_what_it_can_see(bench: Bench) -> None:
    """By Spark's own resolution of names, which a column that comes may change."""
    source = bench.input("t", FLOATS)
    bench.input("u", pa.schema([("k", pa.int64()), ("later", pa.int64())]))
    described = {
        name: view(name, query, "n INT", "t", *(["u"] if " u" in query else []))
        for name, (query, _) in SEES.items()
    }
    assert {of(bench, one) for one in described.values()} == {()}
    evolve(source, x=pa.float64(), later=pa.int64())
    for name, one in described.items():
        found = of(bench, one)
        assert {text.split(" ")[0] for text in found} == SEES[name][1], name
        assert not any(a == b for a, b in itertools.combinations(found, 2))


HAVING = view("dear", "SELECT k FROM p GROUP BY k HAVING max(x) > 100", "k BIGINT", "p")
PRICES = pa.schema([("k", pa.int64()), ("x", pa.int32())])


def doubts(bench: Bench) -> float:
    return sum(one.added.get("self_check_findings", 0) for one in bench.told(Measured))


def test_a_state_has_the_types_that_its_columns_have_now(bench: Bench) -> None:
    """A greatest value is of the type of its column, in the view's state as well."""
    source = bench.input("p", PRICES)
    source.push(5, ((1, 101), 1), ((2, 7), 1))
    shown = Renderings(bench, HAVING)
    shown.step(6)
    source.push(10, ((2, 102), 1))
    shown.step(11)
    evolve(source, x=pa.int64())
    source.push(20, ((1, 101), -1), ((3, 2**40), 1))
    shown.step(21)
    source.push(30, ((2, 102), -1), ((4, 2**41), 1))
    shown.step(31)
    for time in (10, 20, 30):
        rows = {k for k, x in source.at(time) if x > 100}
        assert contents(bench.client, "dear", time) == dict.fromkeys(((k,) for k in rows), 1)
    assert bench.told(Measured)[-1].added["evaluations_incremental"] == 1


def test_a_state_that_nobody_has_written_may_be_of_another_definition(bench: Bench) -> None:
    """One that ended between the making of its state and the first append to it."""
    source = bench.input("p", PRICES)
    source.push(5, ((1, 101), 1), ((2, 7), 1))
    shown = Renderings(bench, HAVING)
    state = state_shards("dear")[0]
    bench.client.create(state, ShardSchema.from_arrow(pa.schema([("k1", pa.string())])))
    shown.step(6)
    assert contents(bench.client, "dear", 5) == {(1,): 1}
    source.push(10, ((2, 102), 1))
    shown.step(11)
    assert contents(bench.client, "dear", 10) == {(1,): 1, (2,): 1}
    assert bench.told(Measured)[-1].added["evaluations_incremental"] == 1


@pytest.mark.night
def test_states_go_with_an_output_that_is_made_anew(bench: Bench) -> None:
    """They are of a definition that is gone; the new one's have its rows, under the same name."""
    source = bench.input("p", PRICES)
    source.push(5, ((1, 101), 1))
    shown = Renderings(bench, HAVING)
    shown.step(6)
    source.push(10, ((2, 102), 1))
    shown.step(11)
    state = state_shards("dear")[0]
    before = bench.client.state(state).shard
    query = "SELECT CAST(k AS STRING) AS k FROM p GROUP BY k HAVING max(x) > 100"
    shown = Renderings(bench, view("dear", query, "k STRING", "p"))
    shown.step(11)
    assert bench.client.state(state).shard != before
    source.push(20, ((3, 103), 1))
    shown.step(21)
    assert contents(bench.client, "dear", 20) == {("1",): 1, ("2",): 1, ("3",): 1}
    assert not doubts(bench)


def test_an_input_that_is_made_again_ends_a_rendering(bench: Bench) -> None:
    """Between steps, too, where nothing of it is read."""
    source = bench.input("t", FLOATS)
    source.push(5, ((1, 0.5), 1))
    run = View(bench.host, bench.incarnation("text", 5), TEXT, no_fence)
    run.advance(bench.spark, Interval(5, 6, starts=True))
    bench.client.drop("t", despite_holders=list(bench.client.state("t").leased))
    source = bench.input("t", FLOATS)
    source.push(10, ((2, 0.5), 1))
    states: Any = bench.client.readable("t")
    with pytest.raises(InputChanged, match="INPUT_CHANGED"):
        run.follow(states)
    with pytest.raises(InputChanged, match="'t' was dropped and made again"):
        run.advance(bench.spark, Interval(6, 11))
    assert bench.upper("text") == 6

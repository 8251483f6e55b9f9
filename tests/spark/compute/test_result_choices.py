"""Results that ties decide, below other operators: whatever a step does, one choice is shown.

What is computed anew may be another choice than what a state has. What comes later must not follow
from one of them while the other one is shown.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from typing_extensions import override

from shardline.app import testing as app_testing
from shardline.app.compute.view.choice_rule import ChoiceState
from shardline.app.compute.view.output import ViewSink
from shardline.app.compute.view.state_shard import StateShard
from shardline.app.compute.view.step_costs import StepCosts
from shardline.app.compute.view.view_states import ViewStates
from shardline.app.execution.object_shards import drop_object_shard
from shardline.app.execution.observations import Stepped
from shardline.app.protocol.objects import state_shards
from shardline.testing import Lab, assert_follows_changes
from support.profiles import some_of
from support.spark.view_world import START, Killed, SteppedView, ViewWorld
from support.spark.views import contents

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

QUERY = """
    WITH one AS (SELECT id % 2 AS odd FROM
        (SELECT id, row_number() OVER (PARTITION BY k ORDER BY w) AS place FROM a) WHERE place = 1)
    SELECT c.name, g.n FROM (SELECT odd, count(*) AS n FROM one GROUP BY odd) g
    JOIN c ON c.odd = g.odd
"""
"""Of each key there are two rows, an odd one and an even one, and nothing else tells them apart."""

SQL = f"""
CREATE SOURCE a USING json OPTIONS (path '/nowhere') SCHEMA (k BIGINT, id BIGINT, w DOUBLE);
CREATE SOURCE c USING json OPTIONS (path '/nowhere') SCHEMA (odd BIGINT, name STRING);
CREATE MATERIALIZED VIEW v AS {QUERY};
"""

KEYS = 40
CHOICE, COUNTS = state_shards("v")[:2]


class Pairs:
    """The rows of all keys: pairs of which some come and some go."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.keys = set(range(KEYS))
        lab.push("a", self._rows(self.keys), at=0)
        lab.push("c", [(0, "even"), (1, "odd")], at=0)
        lab.advance(1)

    def _rows(self, keys: set[int]) -> list[tuple[Any, ...]]:
        return [(key, 2 * key + odd, 1.0) for key in sorted(keys) for odd in (0, 1)]

    def step(self, time: int) -> None:
        """Three keys go, and another one comes."""
        gone = set(sorted(self.keys)[:3])
        self.lab.push("a", self._rows(gone), at=time, diff=-1)
        self.lab.push("a", self._rows({100 + time}), at=time)
        self.keys = (self.keys - gone) | {100 + time}
        self.lab.advance(time + 1)

    def step_beside(self, time: int) -> None:
        """Only the other input changes."""
        self.lab.push("c", [(0, f"name {time}")], at=time)
        self.lab.advance(time + 1)

    def rows(self, name: str, time: int) -> list[tuple[Any, ...]]:
        with self.lab.client.reader(name) as reader:
            return [tuple(row.values()) for row in reader.snapshot(time).to_pylist()]

    def check(self, time: int) -> None:
        """One row of each key is counted, and all that is kept and shown is of the same ones."""
        shown = dict(self.rows("v", time))
        assert shown.get("odd", 0) + shown.get("even", 0) == len(self.keys), shown
        kept = self._state(CHOICE)
        assert {key for _, key in kept} == self.keys
        chosen = Counter(odd for odd, _ in kept)
        assert {odd: n for odd, n, *_ in self._state(COUNTS)} == chosen
        named = Counter({"even": chosen[0], "odd": chosen[1]})
        assert {name: n for name, n in shown.items() if name in named} == +named

    def _state(self, name: str) -> list[tuple[Any, ...]]:
        """The rows of a state, as of its last time."""
        upper = self.lab.client.state(name).upper.time
        assert upper is not None
        return self.rows(name, upper - 1)


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A state that is made is of the other choice, of each key."""

    def swapped(*given: Any) -> DataFrame:
        rows: DataFrame = given[2]
        return rows.withColumn("c1", (F.lit(1) - F.col("c1")).cast("bigint"))

    monkeypatch.setattr(ChoiceState, "contents", swapped)


@pytest.fixture
def lab(spark: SparkSession) -> Iterator[Lab]:
    with Lab(spark, SQL, follow_changes=True) as made:
        yield made


def ways(lab: Lab) -> list[str]:
    return [step.way for step in lab.steps("v")]


def test_a_choice_stays_as_long_as_its_rows_are_there(lab: Lab) -> None:
    """And the plan says that it follows, as users test it."""
    pairs = Pairs(lab)
    pairs.check(0)
    for time in range(1, 5):
        pairs.step(time)
        pairs.check(time)
    assert ways(lab) == ["recompute", *["incremental"] * 4]
    assert_follows_changes(lab, "v")


@pytest.mark.parametrize(
    ("lost", "beside"),
    some_of(
        itertools.product([(CHOICE,), (COUNTS,), (COUNTS, CHOICE)], [True, False]),
        [((CHOICE,), True), ((COUNTS,), False)],
    ),
)
@pytest.mark.usefixtures("other")
def test_a_choice_that_is_lost_takes_along_what_was_made_of_it(
    lab: Lab, lost: tuple[str, ...], *, beside: bool
) -> None:
    """Another one is made in its place, also where nothing of it has changed."""
    pairs = Pairs(lab)
    for time in range(1, 5):
        if time == 2:
            for name in lost:
                drop_object_shard(lab.client, name, lambda: None)
        (pairs.step_beside if beside and time == 2 else pairs.step)(time)
        pairs.check(time)
    assert "incremental" in ways(lab)[2:]


@pytest.mark.usefixtures("other")
def test_a_step_that_is_cheaper_anew_is_of_one_choice(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States are there and would follow."""
    pairs, anew = Pairs(lab), [False]
    follows = app_testing._AlwaysFollow.follows
    monkeypatch.setattr(
        app_testing._AlwaysFollow,
        "follows",
        lambda self, *given: follows(self, *given) and not anew[0],
    )
    for time in range(1, 6):
        anew[0] = time == 2
        pairs.step(time)
        pairs.check(time)
    assert ways(lab)[2] == "recompute"


@pytest.mark.usefixtures("other")
def test_the_choice_of_the_query_itself_is_left_before_anything_follows_from_states(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States cannot be settled for a moment: another writer is at one of them."""
    pairs, anew = Pairs(lab), [False]
    monkeypatch.setattr(app_testing._AlwaysFollow, "follows", lambda *_: not anew[0])
    settle = ViewStates.settle
    monkeypatch.setattr(ViewStates, "settle", lambda *given: not anew[0] and settle(*given))
    for time in range(1, 6):
        anew[0] = time == 2
        pairs.step(time)
        if not anew[0]:
            pairs.check(time)
        else:
            assert not lab.client.exists(CHOICE)
            assert not lab.client.exists(COUNTS)
    assert ways(lab)[1:] == [
        "incremental",
        "recompute",
        "recompute",
        "incremental",
        "incremental",
    ]


class Chosen(StepCosts):
    """Changes are followed, unless the query is to be run anew."""

    anew = False

    @override
    def follows(self, times: int, rows: int, changed: int) -> bool:
        return not self.anew


class PairsOfKeys:
    """A view of pairs that is kept step by step: in each one the first key goes, and one comes."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self.costs = Chosen()
        world = ViewWorld(spark, folder, (START + 1,), ())
        rows = pa.schema([("k", pa.int64()), ("id", pa.int64()), ("w", pa.float64())])
        names = pa.schema([("odd", pa.int64()), ("name", pa.string())])
        self.bench = world.bench
        self.rows = world.inputs["a"] = world.bench.input("a", rows)
        self.names = world.inputs["c"] = world.bench.input("c", names)
        self.view = SteppedView(world, "v", QUERY, self.costs)
        self.keys = list(range(12))
        self.names.push(START, ((0, "even"), 1), ((1, "odd"), 1))
        self.step(START, come=self.keys, gone=[])

    def step(self, time: int, come: list[int], gone: list[int]) -> None:
        changes = [((k, 2 * k + odd, 1.0), 1) for k in come for odd in (0, 1)]
        changes += [((k, 2 * k + odd, 1.0), -1) for k in gone for odd in (0, 1)]
        self.rows.push(time, *changes)
        if time > START:
            self.names.idle(time + 1)
        self.view.step(time, time + 1)

    def next_step(self, time: int) -> int:
        """How many keys are counted after another step."""
        self.step(time, [100 + time], [self.keys.pop(0)])
        self.keys.append(100 + time)
        shown = contents(self.bench.client, "v", time)
        assert set(shown.values()) <= {1}, shown
        return sum(n for _, n in shown)


@pytest.mark.parametrize(
    ("anew", "lost", "killed"),
    [
        (False, CHOICE, (StateShard, 1)),
        (False, CHOICE, (ViewSink, 0)),
        (True, COUNTS, (StateShard, 1)),
        (True, CHOICE, (ViewSink, 0)),
    ],
)
def test_a_choice_of_a_step_that_was_killed_is_not_followed(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    anew: bool,
    lost: str,
    killed: tuple[type[Any], int],
) -> None:
    """The output still shows another one, or a state begins beyond it: the query is run anew."""
    pairs = PairsOfKeys(spark, tmp_path)
    assert pairs.next_step(START + 1) == len(pairs.keys)
    drop_object_shard(pairs.bench.client, lost, lambda: None)
    given, (cls, after) = ChoiceState.contents, killed

    def swapped(*args: Any) -> DataFrame:
        return given(*args).withColumn("c1", (F.lit(1) - F.col("c1")).cast("bigint"))

    append, kills = cls.append, [after]

    def killing(*args: Any, **more: Any) -> Any:
        outcome = append(*args, **more) if not kills or kills[0] else None
        if kills:
            kills.clear()
            pairs.costs.anew = False
            raise Killed
        return outcome

    monkeypatch.setattr(ChoiceState, "contents", swapped)
    monkeypatch.setattr(cls, "append", killing)
    pairs.costs.anew = anew
    for time in range(START + 2, START + 5):
        assert pairs.next_step(time) == len(pairs.keys)
    assert not kills
    ways = [one.way for one in pairs.bench.told(Stepped)]
    assert ways == ["recompute", "incremental", "recompute", "incremental", "incremental"]

"""LIMITs among equal rows, below other operators: whatever a step does, one choice is shown.

The query run anew may let other rows through than a state has. What comes later must not follow
from one choice while the other one is shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from shardline.app import testing as app_testing
from shardline.app.compute.view import output_correction
from shardline.app.compute.view.maintained_view import View
from shardline.app.compute.view.view_states import ViewStates
from shardline.app.execution.object_shards import drop_object_shard
from shardline.app.protocol.objects import state_shards
from shardline.testing import Lab, assert_follows_changes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SQL = """
CREATE SOURCE a USING json OPTIONS (path '/nowhere') SCHEMA (x BIGINT, id BIGINT, p INT);
CREATE SOURCE c USING json OPTIONS (path '/nowhere') SCHEMA (p INT, n INT);
CREATE MATERIALIZED VIEW v AS
    SELECT t.id, t.p, c.n FROM (SELECT id, p FROM a ORDER BY p LIMIT 3) t JOIN c ON c.p = t.p;
"""
"""The first column is not read: rows are stored in another order than those of the state are."""

TIES = 50


class Table:
    """Rows of `a`, of which so many are equal in the order."""

    def __init__(self, lab: Lab, rows: int) -> None:
        self.lab = lab
        self.live = {number: (-number, number, number // TIES) for number in range(rows)}
        lab.push("a", list(self.live.values()), at=0)
        lab.push("c", [(p, p) for p in range(rows // TIES + 1)], at=0)
        lab.advance(1)

    def shown(self, time: int) -> Counter[tuple[Any, ...]]:
        with self.lab.client.reader("v") as reader:
            return Counter(tuple(row.values()) for row in reader.snapshot(time).to_pylist())

    def take_away(self, time: int, numbers: list[int]) -> None:
        self.lab.push("a", [self.live.pop(number) for number in numbers], at=time, diff=-1)
        self.lab.advance(time + 1)

    def take_away_one_that_is_shown(self, time: int) -> None:
        shown = [number for number, _, _ in self.shown(time - 1)]
        assert set(shown) <= self.live.keys()
        self.take_away(time, shown[:1])

    def check(self, time: int) -> None:
        """Three rows that are there, and none that is there comes before them."""
        found = self.shown(time)
        least = sorted(p for _, _, p in self.live.values())[:3]
        assert set(found.values()) == {1}, found
        assert {number for number, _, _ in found} <= self.live.keys(), found
        assert sorted(p for _, p, _ in found) == least
        assert all(p == n for _, p, n in found)


@pytest.fixture
def lab(spark: SparkSession) -> Iterator[Lab]:
    with Lab(spark, SQL, follow_changes=True) as made:
        yield made


def ways(lab: Lab) -> list[str]:
    return [step.way for step in lab.steps("v")]


def test_a_state_that_runs_short_is_chosen_and_shown_as_one(lab: Lab) -> None:
    """The step is run anew, and the next ones follow from what it shows."""
    table = Table(lab, 2_600)
    for time, count in enumerate([1, 1, 1_500, 1, 1, 1], start=1):
        if count == 1:
            table.take_away_one_that_is_shown(time)
        else:
            table.take_away(time, sorted(table.live)[:count])
        table.check(time)
    assert ways(lab).count("recompute") == 2, "the first contents, and where it ran short"


def test_a_step_that_is_cheaper_anew_is_of_one_choice(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States are there and would follow."""
    table, anew = Table(lab, 400), [False]
    follows = app_testing._AlwaysFollow.follows
    monkeypatch.setattr(
        app_testing._AlwaysFollow,
        "follows",
        lambda self, *given: follows(self, *given) and not anew[0],
    )
    for time in range(1, 6):
        anew[0] = time == 2
        table.take_away_one_that_is_shown(time)
        table.check(time)
    assert ways(lab)[2] == "recompute"


def test_the_choice_of_the_query_itself_is_left_before_anything_follows_from_states(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States cannot be settled for a moment: another writer is at one of them."""
    table, anew = Table(lab, 400), [False]
    monkeypatch.setattr(app_testing._AlwaysFollow, "follows", lambda *_: not anew[0])
    settle = ViewStates.settle
    monkeypatch.setattr(ViewStates, "settle", lambda *given: not anew[0] and settle(*given))
    for time in range(1, 6):
        anew[0] = time == 2
        table.take_away_one_that_is_shown(time)
        table.check(time)
    assert ways(lab)[1:] == [
        "incremental",
        "recompute",
        "recompute",
        "incremental",
        "incremental",
    ]


def test_a_state_that_is_ahead_of_the_choice_of_the_query_itself_is_dropped(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States have followed the step, which is given up only then, and cannot be settled."""
    table, is_given_up = Table(lab, 400), [False]
    settle, append = ViewStates.settle, View._append_change

    def given_up(view: View, *given: Any) -> Any:
        return view._give_up("it is too much") if is_given_up[0] else append(view, *given)

    monkeypatch.setattr(View, "_append_change", given_up)
    monkeypatch.setattr(ViewStates, "settle", lambda *given: not is_given_up[0] and settle(*given))
    for time in range(1, 6):
        is_given_up[0] = time == 2
        table.take_away_one_that_is_shown(time)
        table.check(time)
    assert ways(lab)[2:] == ["recompute", "recompute", "incremental", "incremental"]


def test_states_that_are_lost_are_not_chosen_behind_what_is_shown(lab: Lab) -> None:
    """What is made in their place may be of other rows: then all of it is shown."""
    table = Table(lab, 400)
    for time in range(1, 6):
        if time == 3:
            for name in state_shards("v"):
                drop_object_shard(lab.client, name, lambda: None)
        table.take_away_one_that_is_shown(time)
        table.check(time)


def test_a_plan_says_that_a_limit_below_a_join_follows(lab: Lab) -> None:
    """As it does: users test their views by that."""
    table = Table(lab, 400)
    table.take_away_one_that_is_shown(1)
    assert ways(lab) == ["recompute", "incremental"]
    assert_follows_changes(lab, "v")


def test_a_state_with_a_long_history_is_added_up_by_spark(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the first rows few may be there, and many may have come and gone."""
    table = Table(lab, 400)
    monkeypatch.setattr(output_correction, "_FEW", 20)
    for time in range(1, 5):
        table.take_away_one_that_is_shown(time)
        table.check(time)
    assert ways(lab) == ["recompute", *["incremental"] * 4]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT k, (SELECT a FROM t WHERE t.k = u.k ORDER BY s DESC LIMIT 1) AS x FROM u",
        "SELECT k, z.a FROM u, LATERAL (SELECT a FROM t WHERE t.k = u.k ORDER BY s DESC LIMIT 1) z",
        "SELECT k FROM u WHERE EXISTS (SELECT 1 FROM t WHERE t.k = u.k LIMIT 1)",
    ],
)
def test_a_limit_of_each_key_that_spark_numbers_as_rows_come_is_run_anew(
    spark: SparkSession, query: str
) -> None:
    """It gives that window no order, and does not analyse it a second time."""
    sql = f"""
    CREATE SOURCE t USING json OPTIONS (path '/nowhere') SCHEMA (k BIGINT, a BIGINT, s STRING);
    CREATE SOURCE u USING json OPTIONS (path '/nowhere') SCHEMA (k BIGINT);
    CREATE MATERIALIZED VIEW v AS {query};
    """
    rows = [(k, 10 * k + place, "abc"[place]) for k in range(4) for place in range(3)]
    with Lab(spark, sql, follow_changes=True) as lab:
        assert lab.plan("v").strategy == "recompute"
        lab.push("t", rows, at=1)
        lab.push("u", [(k,) for k in range(5)], at=1)
        lab.advance(2)
        lab.push("t", [rows.pop(5), rows.pop(2)], at=2, diff=-1)
        lab.push("u", [(9,)], at=2)
        lab.advance(3)
        with lab.client.reader("v") as reader:
            found = Counter(tuple(row.values()) for row in reader.snapshot(2).to_pylist())
    columns = "k BIGINT, a BIGINT, s STRING"
    spark.createDataFrame(rows, columns).coalesce(1).createOrReplaceTempView("t")
    spark.createDataFrame([(k,) for k in (0, 1, 2, 3, 4, 9)], "k BIGINT").createOrReplaceTempView(
        "u"
    )
    try:
        assert found == Counter(tuple(row) for row in spark.sql(query).collect())
    finally:
        for name in ("t", "u"):
            spark.catalog.dropTempView(name)

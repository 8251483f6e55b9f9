"""A view that shows the first rows of each key looks up few of them, and is right at each time."""

from __future__ import annotations

import itertools
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import pytest

from shardline.app.compute.index import first_of_keys, runs
from shardline.app.compute.index.arrangement import Arrangement
from shardline.app.compute.view.group_steps import GroupSteps
from shardline.app.execution.observations import Stepped
from support.profiles import some_of
from support.spark.bids import bids_world

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from support.spark.view_world import ViewWorld

pytestmark = pytest.mark.spark

# ruff: noqa: S608 - queries are put together here


@pytest.fixture(scope="module")
def worlds(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[int], ViewWorld]:
    """Worlds by their seeds."""
    return cache(lambda seed: bids_world(spark, tmp_path_factory.mktemp("bids"), seed))


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """For each look-up of first rows how many keys had more rows than were looked at."""
    for module in (runs, first_of_keys):
        monkeypatch.setattr(module, "SHORT", 2)
    found: list[int] = []
    first = Arrangement.first

    def noted(self: Arrangement, *given: Any, **named: Any) -> pa.Table | None:
        cut = first_of_keys._gone_behind

        def told(*all_of: Any) -> Any:
            found.append(int((all_of[-1] < runs.NOT_CUT).sum()))
            return cut(*all_of)

        with mock.patch.object(first_of_keys, "_gone_behind", told):
            return first(self, *given, **named)

    monkeypatch.setattr(Arrangement, "first", noted)
    return found


def placed(order: str, function: str = "row_number()", rows: str = "bids") -> str:
    return f"(SELECT *, {function} OVER (PARTITION BY item ORDER BY {order}) AS place FROM {rows})"


BY_PRICE: Final = placed("price DESC, id")
FILTERED: Final = "(SELECT * FROM bids WHERE note <> '' AND id > 5) WHERE NOT (price = 7 OR id < 9)"
QUERIES: Final = {
    "descending": f"SELECT item, id, place FROM {BY_PRICE} WHERE place <= 3",
    "ascending": f"SELECT item, id FROM {placed('price, id')} WHERE place = 1",
    "nulls": f"SELECT item, id FROM {placed('price NULLS LAST, id')} WHERE 2 > place",
    "rank": f"SELECT item, id, price, place FROM {placed('price', 'rank()')} WHERE place < 3",
    "floats": f"SELECT item, id FROM {placed('weight DESC, id')} WHERE place <= 2",
    "zeros": f"SELECT item, id, place FROM {placed('weight', 'rank()')} WHERE 3 >= place",
    "text": f"SELECT item, id FROM {placed('note DESC NULLS FIRST, id')} WHERE place <= 2",
    "between": f"SELECT item, id FROM {placed('id DESC')} WHERE place BETWEEN 1 AND 2",
    "days": f"SELECT item, id FROM {placed('day, id')} WHERE place <= 2L AND id < 70",
    "listed": f"SELECT item, id FROM {placed('id DESC')} WHERE place IN (1, 3)",
    "renamed": "SELECT i, n FROM (SELECT item AS i, price AS p, id AS n, row_number() OVER "
    "(PARTITION BY item ORDER BY price DESC, id) AS r FROM bids b) WHERE r <= 2",
    "beside": "SELECT item, id, place, d FROM (SELECT *, rank() OVER w AS place, dense_rank() "
    "OVER w AS d FROM bids WINDOW w AS (PARTITION BY item ORDER BY price)) WHERE place <= 2",
    "filtered": f"SELECT item, id FROM {placed('price DESC, id', rows=FILTERED)} WHERE place <= 2",
    "joined": f"SELECT t.item, t.id, i.city FROM {placed('price', 'rank()')} t "
    "JOIN items i ON t.item = i.name WHERE t.place <= 2",
    "grouped": f"SELECT item, sum(price) AS total FROM {placed('price', 'rank()')} "
    "WHERE place <= 3 GROUP BY item",
    "latest": "SELECT item, max_by(price, id) AS p, max_by(note, id) AS n, max(id) AS i FROM bids "
    "GROUP BY item",
    "earliest": "SELECT item AS name, min_by(id, weight) IS NULL AS none, min(weight) AS w "
    "FROM bids WHERE price > 1 GROUP BY item",
    "of_groups": "SELECT item, price, n FROM (SELECT *, row_number() OVER (PARTITION BY item "
    "ORDER BY n DESC, price) AS place FROM (SELECT item, price, count(*) AS n FROM bids "
    "GROUP BY item, price)) WHERE place <= 2",
}


@pytest.mark.parametrize(
    ("seed", "name"),
    some_of(
        itertools.product([1, 2, 3], QUERIES),
        [
            (1, "descending"),
            (1, "zeros"),
            (3, "latest"),
            (2, "joined"),
            (1, "filtered"),
            (3, "of_groups"),
            (2, "text"),
        ],
    ),
)
def test_first_rows_of_keys_are_looked_up(
    worlds: Callable[[int], ViewWorld], seed: int, name: str, cut: list[int]
) -> None:
    """At each time the view has what Spark says of all rows, whatever comes, goes or ties."""
    query, world = QUERIES[name], worlds(seed)
    kept = world.kept(f"first_{name}", query)
    assert world.follow(kept, partial(world.by_spark, query)) == {"recompute", "incremental"}
    anew = [one.reason for one in world.bench.told(Stepped) if one.id == kept.name and one.reason]
    assert anew == ["its first contents"]
    assert any(cut)


LIKE: Final = "'%a_a%'"
NOT_CUT: Final = {
    "dense": f"SELECT item, id FROM {placed('price', 'dense_rank()')} WHERE place <= 2",
    "or": f"SELECT item, id FROM {BY_PRICE} WHERE place <= 2 OR id = 3",
    "total": "SELECT item, id, n FROM (SELECT *, row_number() OVER (PARTITION BY item ORDER BY "
    "price, id) AS place, count(*) OVER (PARTITION BY item ORDER BY price, id ROWS BETWEEN "
    "UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING) AS n FROM bids) WHERE place <= 2",
    "fails": f"SELECT item, id FROM {BY_PRICE} WHERE place <= 2 AND 10 div (id + 1) < 5",
    "last": f"SELECT item, id FROM {BY_PRICE} WHERE place >= 2",
    "computed": f"SELECT item, id FROM {placed('price % 4, id')} WHERE place <= 2",
    "filtered": f"SELECT item, id FROM {placed('price, id', rows='bids WHERE id % 3 > 0')} "
    "WHERE place <= 2",
    "patterns": f"SELECT item, id FROM {placed('price, id', rows='bids WHERE note LIKE ' + LIKE)} "
    "WHERE place <= 2",
    "two_ends": "SELECT item, max_by(price, id) AS p, min_by(price, id) AS q FROM bids "
    "GROUP BY item",
    "chosen": "SELECT item, max_by(price, id) FILTER (WHERE price > 3) AS p FROM bids "
    "GROUP BY item",
    "counted": "SELECT item, max_by(price, id) AS p, count(*) AS n FROM bids GROUP BY item",
    "narrowed": f"SELECT item, id FROM {BY_PRICE} WHERE CAST(place AS tinyint) <= 2",
    "two_orders": "SELECT item, id, n, place FROM (SELECT *, row_number() OVER (PARTITION BY item "
    "ORDER BY price, id) AS n, rank() OVER (PARTITION BY item ORDER BY weight DESC) AS place "
    "FROM bids) WHERE place <= 2",
    "hidden_key": f"SELECT item, id FROM {placed('price, id').replace('BY item', 'BY item, note')} "
    "WHERE place <= 2",
    "computed_key": "SELECT item, id, place FROM (SELECT *, rank() OVER (PARTITION BY item, "
    "price % 2 ORDER BY weight) AS place FROM bids) WHERE place <= 2",
    "shown_too": f"SELECT item, id FROM {BY_PRICE} WHERE place <= 2 UNION ALL "
    f"SELECT item, id FROM {BY_PRICE}",
}


@pytest.mark.parametrize("name", some_of(NOT_CUT, {"total", "two_orders", "computed_key"}))
def test_all_rows_are_looked_up_where_others_count(
    worlds: Callable[[int], ViewWorld], name: str, cut: list[int]
) -> None:
    """Those behind the first ones come to something, fail, or are first themselves."""
    query, world = NOT_CUT[name], worlds(1)
    world.follow(world.kept(f"all_{name}", query), partial(world.by_spark, query))
    assert not any(cut)


EXTREMES: Final = {
    "both": "SELECT item, count(*) AS n, min(price) AS a, max(price) AS b, sum(price) AS s "
    "FROM bids GROUP BY item",
    "text": "SELECT item, max(note) AS last FROM bids GROUP BY item",
    "days": "SELECT day, min(day) AS d, max(id) AS last FROM bids GROUP BY day",
    "keys": "SELECT item, day, max(price) AS p FROM bids GROUP BY item, day",
    "filtered": "SELECT item, max(price) AS p FROM bids WHERE id > 20 AND note IS NOT NULL "
    "GROUP BY item",
    "having": "SELECT max(p) AS top FROM (SELECT item, max(price) AS p FROM bids GROUP BY item) "
    "GROUP BY p HAVING p > 3",
}


@pytest.mark.parametrize(
    ("seed", "name"),
    some_of(itertools.product([1, 2, 3], EXTREMES), [(1, "both"), (2, "filtered"), (3, "having")]),
)
def test_the_next_extreme_is_looked_up(
    worlds: Callable[[int], ViewWorld],
    seed: int,
    name: str,
    cut: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the least or greatest value of a group goes, not all of its rows are read."""
    monkeypatch.delattr(GroupSteps, "_anew")
    query, world = EXTREMES[name], worlds(seed)
    kept = world.kept(f"extreme_{name}", query)
    assert world.follow(kept, partial(world.by_spark, query)) == {"recompute", "incremental"}
    anew = [one.reason for one in world.bench.told(Stepped) if one.id == kept.name and one.reason]
    assert anew == ["its first contents"]
    assert any(cut)


ALL_ROWS: Final = {
    "sole": "SELECT count(*) AS n, max(price) AS p FROM bids",
    "computed": "SELECT item, max(price % 4) AS p FROM bids GROUP BY item",
    "chosen": "SELECT item, max(price) FILTER (WHERE id > 9) AS p FROM bids GROUP BY item",
    "joined": "SELECT i.city, max(b.price) AS p FROM bids b JOIN items i ON b.item = i.name "
    "GROUP BY i.city",
    "patterns": f"SELECT item, max(price) AS p FROM bids WHERE note LIKE {LIKE} GROUP BY item",
}


@pytest.mark.parametrize("name", some_of(ALL_ROWS, {"chosen"}))
def test_groups_are_made_anew_where_it_cannot_be(
    worlds: Callable[[int], ViewWorld], name: str, cut: list[int]
) -> None:
    """Their values are computed, or rows are of several inputs."""
    query, world = ALL_ROWS[name], worlds(1)
    ways = world.follow(world.kept(f"group_{name}", query), partial(world.by_spark, query))
    assert "incremental" in ways
    assert not any(cut)

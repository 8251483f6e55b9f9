"""The kit for tests of views, used as a user would."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from chispa import assert_df_equality

from shardline.app.compute.view.maintained_view import View
from shardline.app.project.project import Project
from shardline.app.testing import Lab, assert_follows_changes
from shardline.datasource.errors import Determinate, InvalidUsage
from shardline.datasource.spark_native.leases import LEASE_KEEPER
from support.tree import ROOT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.spark]

SQL = """
CREATE SOURCE orders USING csv OPTIONS (path 'nowhere') SCHEMA (id INT, customer INT, price INT);
CREATE SOURCE customers USING csv OPTIONS (path 'nowhere') SCHEMA (customer INT, name STRING)
  ENVELOPE UPSERT KEY (customer);
CREATE MATERIALIZED VIEW spent AS
  SELECT c.name, sum(o.price) AS total FROM orders o JOIN customers c ON o.customer = c.customer
  GROUP BY c.name;
CREATE MATERIALIZED VIEW large AS SELECT id, price FROM orders WHERE price > 50;
CREATE MATERIALIZED VIEW share AS SELECT id, 100 DIV price AS part FROM orders;
CREATE MATERIALIZED VIEW shares AS SELECT sum(part) AS parts FROM share;
"""


def frame(spark: SparkSession, columns: str, *rows: tuple[object, ...]) -> DataFrame:
    return spark.createDataFrame(list(rows), columns)


def test_a_view_is_tested_in_ten_lines(spark: SparkSession) -> None:
    """Push, advance, compare; also as of an earlier time."""
    with Lab(spark, SQL) as lab:
        lab.push("customers", [(1, "ann"), (2, "bob")], at=1000)
        lab.push("orders", [(1, 1, 10), (2, 2, 60)], at=1000)
        lab.push("orders", [(3, 1, 70)], at=1500)
        lab.advance(2000)
        expected = frame(spark, "name STRING, total BIGINT", ("ann", 80), ("bob", 60))
        assert_df_equality(lab.contents("spent"), expected, ignore_row_order=True)
        before = frame(spark, "name STRING, total BIGINT", ("ann", 10), ("bob", 60))
        assert_df_equality(lab.contents("spent", as_of=1499), before, ignore_row_order=True)


@pytest.mark.parametrize("cased", ["true", "false"])
def test_names_of_objects_have_no_case_in_any_session(spark: SparkSession, cased: str) -> None:
    """Columns have, where it tells capitals apart; both ways to keep a view know its inputs."""
    session = spark.newSession()
    session.conf.set("spark.sql.caseSensitive", cased)
    text = """
CREATE SOURCE Mixed USING csv OPTIONS (path 'nowhere') SCHEMA (Aa INT, b INT);
CREATE MATERIALIZED VIEW Sums AS SELECT Mixed.Aa, sum(b) AS n FROM Mixed GROUP BY Mixed.Aa;
CREATE MATERIALIZED VIEW both AS
  SELECT MIXED.Aa, SUMS.n, MIXED.b FROM SUMS JOIN MIXED USING (Aa);
"""
    with Lab(session, text, follow_changes=True) as lab:
        lab.push("mixed", [(1, 10), (2, 20)], at=1000)
        lab.advance(1500)
        lab.push("mixed", [(1, 5)], at=1600)
        lab.advance(2000)
        rows = lab.contents("both").collect()
        assert sorted(map(tuple, rows)) == [(1, 15, 5), (1, 15, 10), (2, 20, 20)]


def test_the_examples_of_the_docs_run(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are written there."""
    text = (ROOT / "docs" / "testing.md").read_text()
    examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "orders.sql").write_text(
        "CREATE SOURCE orders USING csv OPTIONS (path 'in') SCHEMA (id INT, price INT);"
        "CREATE MATERIALIZED VIEW large AS SELECT id, price FROM orders WHERE price > 50;"
        "CREATE SOURCE sales USING csv OPTIONS (path 'in') SCHEMA (customer INT, price INT);"
        "CREATE MATERIALIZED VIEW spending AS "
        "SELECT customer, sum(price) AS total FROM sales GROUP BY customer;"
    )
    monkeypatch.chdir(tmp_path)
    said: dict[str, Any] = {}
    for example in examples:
        exec(example, said)  # noqa: S102 - our own text
    said["test_large_orders"](spark)
    said["test_spending_follows_changes"](spark)


def test_rows_come_and_go(spark: SparkSession) -> None:
    """Rows that are taken away, replaced by key, and deleted by key are gone from views."""
    with Lab(spark, Project.parse({"a.sql": SQL})) as lab:
        lab.push("customers", [{"customer": 1, "name": "ann"}, {"customer": 2, "name": "bob"}], 1)
        lab.push("orders", [(1, 1, 10), (2, 2, 60), (3, 2, 99)], at=2)
        lab.advance(10)
        lab.push("orders", [(2, 2, 60)], at=11, diff=-1)
        lab.push("customers", [(1, "anna")], at=12)
        lab.push("customers", [(2, "anyone")], at=13, diff=-1)
        lab.advance(20)
        large = frame(spark, "id INT, price INT", (3, 99))
        assert_df_equality(lab.contents("large"), large)
        spent = frame(spark, "name STRING, total BIGINT", ("anna", 10))
        assert_df_equality(lab.contents("spent"), spent)
        both = frame(spark, "name STRING, total BIGINT", ("anna", 10), ("bob", 99))
        assert_df_equality(lab.contents("spent", as_of=12), both, ignore_row_order=True)
        assert lab.clock.now_ms() == 20


UPSERTS = """
CREATE SOURCE plain USING csv OPTIONS (path 'nowhere') SCHEMA (id INT, at INT, v STRING)
  ENVELOPE UPSERT KEY (id);
CREATE SOURCE ordered USING csv OPTIONS (path 'nowhere', orderingColumn 'at')
  SCHEMA (id INT, at INT, v STRING) ENVELOPE UPSERT KEY (id);
CREATE SOURCE marked USING csv OPTIONS (path 'nowhere', deleteColumn 'gone')
  SCHEMA (id INT, gone BOOLEAN, v STRING) ENVELOPE UPSERT KEY (id);
CREATE SOURCE ids USING csv OPTIONS (path 'nowhere') SCHEMA (id INT) ENVELOPE UPSERT KEY (id);
CREATE MATERIALIZED VIEW doubled AS SELECT id, count(*) AS copies FROM plain GROUP BY id;
"""


def held(lab: Lab, name: str, as_of: int | None = None) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, lab.contents(name, as_of).collect()), key=repr)


def test_texts_and_names_mean_what_they_say(
    spark: SparkSession, request: pytest.FixtureRequest
) -> None:
    """By default Spark puts the environment of the process in the place of `${env:…}`.

    The session stays as it was: what a test does next is its own.
    """
    before = spark.conf.get("spark.sql.variable.substitute")
    spark.conf.set("spark.sql.variable.substitute", "true")
    request.addfinalizer(lambda: spark.conf.set("spark.sql.variable.substitute", str(before)))
    settings = spark.conf.getAll
    sql = """
    CREATE SOURCE a USING csv OPTIONS (path 'nowhere') SCHEMA (`k.x` INT, `q``y` INT);
    CREATE MATERIALIZED VIEW b AS SELECT '${env:HOME}' AS home, `k.x` + `q``y` AS total FROM a;
    CREATE MATERIALIZED VIEW c AS SELECT total, count(*) AS n FROM b GROUP BY total;
    """
    with Lab(spark, sql) as lab:
        lab.push("a", [(1, 2)], at=1)
        lab.push("a", spark.createDataFrame([(3, 4)], "`k.x` INT, `q``y` INT"), at=1)
        lab.advance(2)
        lab.push("a", [(5, 6)], at=3)
        lab.advance(4)
        assert sorted(map(tuple, lab.contents("b").collect())) == [
            ("${env:HOME}", total) for total in (3, 7, 11)
        ]
    assert spark.conf.getAll == settings


def test_rows_of_one_key_in_one_micro_batch_replace_one_another(spark: SparkSession) -> None:
    """As docs/ingestion.md has it: the last one counts, or what the ordering column says is last.

    A row with nothing but its key deletes it, or what the delete column says; what is pushed at one
    time is one micro-batch, between two of which the later one counts whatever its order.
    """
    with Lab(spark, UPSERTS) as lab:
        lab.push("plain", [(1, 9, "a"), (1, 3, "b"), (2, 1, "x"), (3, 1, "y"), (2, None, None)], 1)
        lab.push("plain", [(3, 0, "z")], at=1)
        lab.push("plain", [(4, 1, "soon gone")], at=1)
        lab.push("plain", [(4, None, None)], at=2)
        lab.push("ordered", [(1, 9, "a"), (1, 3, "b"), (2, 5, "x"), (2, 5, "w"), (3, 1, "y")], 1)
        lab.push("ordered", [(3, 0, "late")], at=1)
        lab.push("ordered", [(1, 1, "later")], at=2)
        lab.push("ordered", [(2, 0, "any")], at=2, diff=-1)
        lab.push("marked", [(1, None, None), (2, False, "a"), (3, False, "b"), (3, True, "c")], 1)
        lab.push("marked", [(2, False, "any")], at=2, diff=-1)
        lab.push("ids", [(1,), (2,), (2,)], at=1)
        lab.push("ids", [(1,)], at=2, diff=-1)
        with pytest.raises(InvalidUsage, match="one row of each key"):
            lab.push("ids", [(7,)], at=3, diff=2)
        lab.advance(10)
        assert held(lab, "plain", 1) == [(1, 3, "b"), (3, 0, "z"), (4, 1, "soon gone")]
        assert held(lab, "plain") == [(1, 3, "b"), (3, 0, "z")]
        assert held(lab, "doubled") == [(1, 1), (3, 1)]
        assert held(lab, "ordered", 1) == [(1, 9, "a"), (2, 5, "w"), (3, 1, "y")]
        assert held(lab, "ordered") == [(1, 1, "later"), (3, 1, "y")]
        assert [row[::2] for row in held(lab, "marked", 1)] == [(1, None), (2, "a")]
        assert [row[::2] for row in held(lab, "marked")] == [(1, None)]
        assert held(lab, "ids") == [(2,)]
        lab.push("plain", [(3, None, None), (1, 1, "again")], at=11)
        lab.advance(20)
        assert held(lab, "plain") == [(1, 1, "again")]


def test_a_query_that_fails_says_so_until_its_input_is_mended(spark: SparkSession) -> None:
    """The contents at each time are the rows or the error."""
    with Lab(spark, SQL) as lab:
        lab.push("orders", [(1, 1, 10)], at=1)
        lab.push("orders", [(2, 1, 0)], at=5)
        lab.push("orders", [(2, 1, 0)], at=8, diff=-1)
        lab.advance(10)
        with pytest.raises(Determinate, match="DIVIDE_BY_ZERO"):
            lab.contents("share", as_of=6)
        with pytest.raises(Determinate, match=r"'shares' has no contents at 6: share: .*DIVIDE_BY"):
            lab.contents("shares", as_of=6)
        assert [tuple(row) for row in lab.contents("shares").collect()] == [(10,)]
        assert [tuple(row) for row in lab.contents("share", as_of=4).collect()] == [(1, 10)]
        assert [tuple(row) for row in lab.contents("share").collect()] == [(1, 10)]


def test_mistakes_are_told(spark: SparkSession) -> None:
    """Names with the nearest one, times with the least that can be had."""
    with Lab(spark, SQL) as lab:
        lab.advance(10)
        with pytest.raises(InvalidUsage, match="did you mean 'orders'"):
            lab.push("order", [], at=11)
        with pytest.raises(InvalidUsage, match="did you mean 'large'"):
            lab.contents("larg")
        with pytest.raises(InvalidUsage, match="push at 10 or later"):
            lab.push("orders", [(1, 1, 1)], at=9)
        with pytest.raises(InvalidUsage, match="advance to 11 or later"):
            lab.advance(10)
        with pytest.raises(InvalidUsage, match="advance to 26 first"):
            lab.contents("large", as_of=25)
        with pytest.raises(InvalidUsage, match="did you mean 'price'"):
            lab.push("orders", [{"id": 1, "customer": 1, "prize": 1}], at=11)
        for wrong in ({"at": 10.5}, {"at": 11, "diff": True}, {"at": "11"}):
            with pytest.raises(InvalidUsage, match="whole number"):
                lab.push("orders", [(1, 1, 1)], **wrong)
        with pytest.raises(InvalidUsage, match="'as_of' cannot be 'x'"):
            lab.contents("large", "x")  # type: ignore[arg-type]
        with pytest.raises(InvalidUsage, match="'rows' cannot be 5"):
            lab.push("orders", 5, at=11)
        with pytest.raises(InvalidUsage, match="'source' cannot be None"):
            lab.push(None, [], at=11)  # type: ignore[arg-type]
        with pytest.raises(InvalidUsage, match="0 copies"):
            lab.push("orders", [(1, 1, 1)], at=11, diff=0)
        extra = spark.sql("SELECT 1 AS id, 2 AS customer, 3 AS price, 4 AS prise")
        for given in (extra, extra.toArrow()):
            with pytest.raises(InvalidUsage, match="did you mean 'price'"):
                lab.push("orders", given, at=11)
        lab.push("orders", spark.sql("SELECT 1 AS ID, 2 AS customer, 3 AS PRICE"), at=11)
        with pytest.raises(InvalidUsage, match=r"column 'price' is int32.*string"):
            lab.push("orders", spark.sql("SELECT 1 AS id, 2 AS customer, 'x' AS price"), at=11)
    with pytest.raises(InvalidUsage, match=r"Project.load\(folder\)"):
        Lab(spark, Path("queries"))  # type: ignore[arg-type]
    with pytest.raises(InvalidUsage, match="SYNTAX"):
        Lab(spark, "CREATE SOURCE x;")


def test_after_an_advance_that_fails_a_lab_is_read_only(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some of its objects have moved and others have not: it says so, and not what comes of it."""
    with Lab(spark, SQL) as lab:
        lab.push("orders", [(1, 10, 100)], at=5)
        lab.advance(10)
        with monkeypatch.context() as broken:
            broken.setattr(View, "advance", lambda *_: pytest.fail("as of a full disk"))
            with pytest.raises(pytest.fail.Exception, match="full disk"):
                lab.advance(20)
        for use in (partial(lab.advance, 30), partial(lab.push, "orders", [(2, 10, 100)], at=30)):
            with pytest.raises(InvalidUsage, match="advance to 20 has failed"):
                use()
        assert lab.contents("orders").count() == 1


def test_a_lab_that_is_closed_says_so_and_leaves_no_lease(
    spark: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    """At the end of the process each would be given up, of shards that are gone."""
    with Lab(spark, SQL) as lab:
        lab.push("orders", [(1, 10, 100)], at=5)
        lab.advance(10)
        lab.contents("large").collect()
    for use in (partial(lab.contents, "large"), partial(lab.advance, 20)):
        with pytest.raises(InvalidUsage, match="LAB_CLOSED"):
            use()
    with caplog.at_level("WARNING"):
        LEASE_KEEPER.release(lab.client.location.url)
    assert not caplog.records


def test_rows_have_the_types_of_their_source(spark: SparkSession) -> None:
    """Below a NULL there are none, also where a field must have one; others are cast exactly."""
    sql = """
        CREATE SOURCE s USING json OPTIONS (path 'nowhere')
          SCHEMA (id INT, at STRUCT<x: INT NOT NULL, y: STRING>);
    """
    with Lab(spark, sql) as lab:
        lab.push("s", [(1, None), (2, (3, None))], at=1)
        lab.push("s", spark.sql("SELECT 4L AS id, named_struct('x', 5, 'y', 'z') AS at"), at=1)
        lab.advance(2)
        rows = lab.contents("s").selectExpr("id", "at.x", "at.y", "at IS NULL").collect()
        assert sorted(map(tuple, rows)) == [
            (1, None, None, True),
            (2, 3, None, False),
            (4, 5, "z", False),
        ]


PLANS = """
CREATE SOURCE orders USING csv OPTIONS (path 'nowhere') SCHEMA (id INT, customer INT, price INT);
CREATE SOURCE customers USING csv OPTIONS (path 'nowhere') SCHEMA (customer INT, name STRING);
CREATE MATERIALIZED VIEW spent AS
  SELECT customer, sum(price) AS total FROM orders GROUP BY customer;
CREATE MATERIALIZED VIEW ranking AS
  SELECT customer, total, row_number() OVER (ORDER BY total, customer) AS place
  FROM spent WHERE total > 3;
CREATE MATERIALIZED VIEW before AS
  SELECT o.id, c.name FROM orders o LEFT JOIN customers c ON o.customer < c.customer;
"""


def test_a_view_that_follows_changes_passes(spark: SparkSession) -> None:
    """By its plan alone: no row is there, and no step was taken."""
    with Lab(spark, PLANS) as lab:
        assert_follows_changes(lab, "spent")
        assert [state.shard for state in lab.plan("spent").states] == ["spent_state_1"]
        assert not lab.steps("spent")


def test_a_view_that_is_recomputed_fails_with_its_operator(spark: SparkSession) -> None:
    """The one that stands in the way, with the reason, and nothing else; then the plan."""
    with Lab(spark, PLANS) as lab, pytest.raises(AssertionError) as failed:
        assert_follows_changes(lab, "ranking")
    first, *listed = str(failed.value).split("\n\n", maxsplit=1)[0].splitlines()
    assert first == "view 'ranking' does not follow the changes of spent: its query is run anew"
    assert listed == ["  Window over all rows: a window over all rows, without PARTITION BY"]
    assert "its plan:\nview " in str(failed.value)


def test_a_view_must_follow_the_inputs_that_are_named(spark: SparkSession) -> None:
    """A left join by a range follows its left side, and not its right one."""
    with Lab(spark, PLANS) as lab:
        assert_follows_changes(lab, "before", of=["orders"])
        with pytest.raises(AssertionError, match=r"\n  where customers changes: "):
            assert_follows_changes(lab, "before")
        with pytest.raises(InvalidUsage, match="unknown input 'order'"):
            assert_follows_changes(lab, "before", of=["order"])
        with pytest.raises(InvalidUsage, match="unknown view 'orders'"):
            lab.plan("orders")


@pytest.mark.night
def test_views_of_a_lab_follow_changes_if_they_are_to(spark: SparkSession) -> None:
    """However few rows there are, with the right contents at each time."""
    with Lab(spark, PLANS, follow_changes=True) as lab:
        lab.push("orders", [(1, 1, 10), (2, 2, 20)], at=1)
        lab.advance(2)
        for at in range(2, 5):
            lab.push("orders", [(at, 1, at)], at=at)
            lab.advance(at + 1)
        steps = {step.lower: (step.way, step.reason) for step in lab.steps("spent")}
        for at, total in ((1, 10), (2, 12), (3, 15), (4, 19)):
            expected = frame(spark, "customer INT, total BIGINT", (1, total), (2, 20))
            assert_df_equality(lab.contents("spent", at), expected, ignore_row_order=True)
    assert steps[0] == ("recompute", "its first contents")
    assert [steps[at] for at in range(1, 5)] == [("incremental", "")] * 4

"""Entries of a catalog are those of Spark's own commands, and a query's are gone afterwards."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql.datasource import DataSource
from typing_extensions import override

from shardline.app.compute.view.view_columns import parse_columns
from shardline.datasource.frames import analyse_query, as_active, children_of, kind_of, make_table
from shardline.datasource.java_names import java_class

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

NAMES = ["t", "MiXed", "with space", "a.b", "back`tick", "ünïcode"]

COLUMNS = "a BIGINT COMMENT 'it''s', b ARRAY<STRUCT<x: STRING>> COMMENT 'k'"


class Nothing(DataSource):
    """The provider of a table."""

    @classmethod
    @override
    def name(cls) -> str:
        """As tables say it."""
        return "nothing_at_all"


@pytest.fixture
def session(spark: SparkSession) -> SparkSession:
    """One with temporary views of its own."""
    return spark.newSession()


@pytest.fixture
def database(spark: SparkSession) -> Iterator[str]:
    spark.sql("CREATE DATABASE entries")
    yield "entries"
    spark.sql("DROP DATABASE entries CASCADE")


def quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


def catalog_of(session: SparkSession) -> Any:
    java: Any = session._jsparkSession
    return java.sessionState().catalog()


def rows_of(session: SparkSession) -> DataFrame:
    return session.sql("SELECT id, CAST(id AS INT) AS `A``b` FROM range(3)")


def views_of(session: SparkSession) -> list[str]:
    return [one.name for one in session.catalog.listTables() if one.isTemporary]


def without_times(entry: Any) -> list[tuple[str, str]]:
    """The fields of an entry as text, but for when it was made."""
    fields = [(entry.productElementName(n), entry.productElement(n)) for n in range(22)]
    return [(name, str(value)) for name, value in fields if name != "createTime"]


def plan_of(frame: DataFrame) -> Any:
    return frame._jdf.queryExecution().analyzed()


def plan_text(frame: DataFrame) -> str:
    """A plan, whose columns have numbers of their own in each."""
    return re.sub(r"#\d+", "#", plan_of(frame).toString())


def described_view(frame: DataFrame) -> list[tuple[str, str]]:
    """What a plan says of the first view in it."""
    nodes = [plan_of(frame)]
    for node in nodes:
        if kind_of(node) == "View":
            return without_times(node.desc())
        nodes += children_of(node)
    raise AssertionError(plan_text(frame))


@pytest.mark.parametrize("name", NAMES)
def test_a_frame_is_what_its_temporary_view_is(session: SparkSession, name: str) -> None:
    """The plan, and what the catalog knew of it while the query was analysed."""
    text = " ".join(["SELECT v.*, count(*) OVER () FROM", quoted(name), "AS v"])
    rows = rows_of(session)
    found = analyse_query(session, text, {name: rows})
    assert views_of(session) == []
    rows.createOrReplaceTempView(quoted(name))
    wanted = session.sql(text)
    assert described_view(found) == described_view(wanted)
    assert plan_text(found) == plan_text(wanted)
    assert found.collect() == wanted.collect() == [(n, n, 3) for n in range(3)]


def test_frames_come_before_tables_and_views(session: SparkSession, database: str) -> None:
    session.sql(f"CREATE TABLE {database}.t USING parquet AS SELECT 9 AS id")
    session.sql(f"USE {database}")
    two = session.sql("SELECT 5 AS id")
    found = analyse_query(
        session, "SELECT t.id, u.id FROM t JOIN u", {"t": rows_of(session).limit(1), "u": two}
    )
    assert found.collect() == [(0, 5)]
    assert session.sql("SELECT * FROM t").collect() == [(9,)]


@pytest.mark.parametrize("is_sensitive", [True, False])
def test_names_of_frames_have_no_case(spark: SparkSession, is_sensitive: bool) -> None:
    """In a session that tells capitals apart as well; another one is active in the thread."""
    session, other = spark.newSession(), spark.newSession()
    session.conf.set("spark.sql.caseSensitive", is_sensitive)
    other.conf.set("spark.sql.caseSensitive", not is_sensitive)
    with as_active(other):
        frames = {"names": session.sql("SELECT 5 AS id")}
        for text in ("SELECT id FROM NAMES", "SELECT Names.id FROM Names", "SELECT id FROM names"):
            assert analyse_query(session, text, frames).collect() == [(5,)]
        both = "SELECT a.id FROM nAmes a JOIN NaMeS b"
        assert analyse_query(session, both, frames).collect() == [(5,)]
    assert views_of(session) == []


def test_a_refused_query_leaves_nothing(session: SparkSession) -> None:
    """Spark's own error, and no view of the session."""
    with pytest.raises(AnalysisException, match="UNRESOLVED_COLUMN"):
        analyse_query(session, "SELECT nope FROM t", {"t": rows_of(session)})
    assert views_of(session) == []


def test_a_query_over_nothing(session: SparkSession) -> None:
    assert analyse_query(session, "SELECT 1 AS one", {}).collect() == [(1,)]


def test_a_table_is_the_one_that_a_command_makes(session: SparkSession, database: str) -> None:
    """Apart from the owner; made twice, it stays."""
    session.dataSource.register(Nothing)
    columns = parse_columns(COLUMNS)
    session.sql(f"CREATE TABLE {database}.made ({COLUMNS}) USING nothing_at_all COMMENT 'hey'")
    wanted = described(session, database, "made")
    session.sql(f"DROP TABLE {database}.made")
    for comment in ("hey", "never seen"):
        make_table(session, database, "made", columns, provider="nothing_at_all", comment=comment)
    found = described(session, database, "made")
    # Of a table they are its owner and, once more, its provider.
    del found["properties"], wanted["properties"]
    assert found == wanted
    assert [one.name for one in session.catalog.listTables(database)] == ["made"]


def described(session: SparkSession, database: str, name: str) -> dict[str, str]:
    option = java_class(session, "scala.Option").apply(database)
    identifier = java_class(session, "org.apache.spark.sql.catalyst.TableIdentifier")
    found = catalog_of(session).getTableMetadata(identifier(name, option))
    return dict(without_times(found)) | {"columns": found.schema().json()}

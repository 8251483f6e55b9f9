"""Names of the JVM are looked up once: by this project, and by PySpark in its process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from py4j.java_gateway import JavaClass, JavaPackage, JVMView
from pyspark.errors import AnalysisException
from pyspark.sql.functions import col, lit

from shardline.app.sql.catalyst import Catalyst
from shardline.datasource.clock import SystemIds
from shardline.datasource.java_names import class_in, java_class, remember_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark]


@pytest.fixture
def asked(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names that the JVM is asked for from here on."""
    remember_names(spark)
    found: list[str] = []

    def counted(ask: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
        def ask_and_note(holder: Any, name: str) -> Any:
            found.append(name)
            return ask(holder, name)

        return ask_and_note

    for kind in (JVMView, JavaPackage):
        monkeypatch.setattr(kind, "__getattr__", counted(kind.__getattr__))
    return found


def test_a_name_is_asked_for_once_and_in_one_piece(spark: SparkSession, asked: list[str]) -> None:
    """No package on its way is: each is looked for in every archive of Spark."""
    class_in.cache_clear()
    made = [java_class(spark, "java.util.BitSet")() for _ in range(3)]
    assert [one.cardinality() for one in made] == [0, 0, 0]
    assert asked == ["java.util.BitSet"]


def test_what_pyspark_asks_for_most_is_remembered(spark: SparkSession, asked: list[str]) -> None:
    """Functions, frames of rows, and errors, for whose kind Py4J asks ten times."""
    frame = spark.createDataFrame([(1,)], "a INT").select(col("a") + lit(1))
    with pytest.raises(AnalysisException, match="UNRESOLVED_COLUMN"):
        frame.select("b")
    assert asked == []


def test_a_function_of_sql_is_asked_for_once(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the class with it is, which Py4J asks for each of its methods."""
    remember_names(spark)

    def ask(holder: Any, name: str) -> Any:
        raise AssertionError(f"{holder} is asked for {name}")

    monkeypatch.setattr(JavaClass, "__getattr__", ask)
    assert str(col("a") + lit(1)) == "Column<'+(a, 1)'>"


def test_a_query_is_analysed_without_asking_again(spark: SparkSession, asked: list[str]) -> None:
    """The second analysis asks for nothing that the first one has found."""
    for _ in range(2):
        asked.clear()
        with Catalyst(spark, SystemIds()) as catalyst:
            catalyst.add("t", '{"type":"struct","fields":[]}')
            catalyst.query("SELECT 1 AS one")
    assert asked == []

"""A plan keeps the shard of an object that changes in nothing that the shard holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from shardline.app.coordinator.existing_shards import read_existing_shards
from shardline.app.coordinator.planning import plan_project
from shardline.app.execution.object_shards import create_object_shard
from shardline.app.lane.state import EMPTY_STATE
from shardline.app.project.plan import Plan, make_plan
from shardline.app.project.project import CheckedProject, Project
from shardline.app.protocol.objects import SourceDescription, ViewDescription
from shardline.datasource.client import ShardClient
from shardline.datasource.frontier import MINIMUM, Frontier
from support.fakes.reads import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

SOURCE = (
    "CREATE SOURCE t USING json OPTIONS (path 'docs') SCHEMA ("
    "a INT NOT NULL, s STRING, xs ARRAY<INT>, "
    "deep STRUCT<n: INT NOT NULL, many: ARRAY<STRUCT<m: MAP<STRING, INT>, o: INT NOT NULL>>>);"
)

NESTED = {
    "split": "SELECT split(s, ',') AS v FROM t",
    "collect_list": "SELECT s, sort_array(collect_list(a)) AS v FROM t GROUP BY s",
    "array": "SELECT array(a, 1) AS v FROM t",
    "map": "SELECT map('k', a) AS v FROM t",
    "arrays in a map in a struct": "SELECT named_struct('m', map(a, array(array(1)))) AS v FROM t",
    "structs that are never null": "SELECT array(named_struct('n', a, 'o', s)) AS v, a FROM t",
    "columns of a source": "SELECT * FROM t",
}
"""Views with arrays and maps of which Spark knows that they hold no nulls, and some others."""

LISTED = "SELECT sort_array(collect_list({})) AS v, struct({} AS n) AS w FROM t GROUP BY s"


@pytest.fixture
def client() -> Iterator[ShardClient]:
    place = Place()
    yield place.client
    place.close()


def check(spark: SparkSession, query: str) -> CheckedProject:
    text = f"{SOURCE} CREATE MATERIALIZED VIEW v AS {query}"
    return Project.parse({"p.sql": text}).check(spark)


def make_shards(client: ShardClient, project: CheckedProject) -> None:
    """Make the shards as the application does; that of the view has a history that can be lost."""
    for name, description in project.descriptions.items():
        assert isinstance(description, SourceDescription | ViewDescription)
        create_object_shard(client, description, project.schemas[name])
    client.writer("v").compare_and_append(None, MINIMUM, Frontier(10))


def changed(client: ShardClient, before: CheckedProject, after: CheckedProject) -> Plan:
    """The plan from a project that runs to another one."""
    running, wanted = before.descriptions, after.descriptions
    shards = read_existing_shards(client, wanted, running)
    return make_plan(wanted, running, columns=after.columns, shards=shards)


@pytest.mark.parametrize("name", NESTED)
def test_a_view_of_the_same_columns_keeps_its_shard(
    spark: SparkSession, client: ShardClient, name: str
) -> None:
    """With another retention, with a filter, and when it is created again after it was dropped."""
    project = check(spark, NESTED[name])
    make_shards(client, project)
    again = plan_project(client, project, EMPTY_STATE, 1)
    assert ([step.act for step in again.steps], again.replaced) == (["create"] * 2, ())
    view = project.descriptions["v"]
    assert isinstance(view, ViewDescription)
    for other in (replace(view, retain_ms=2), replace(view, query=f"{view.query} -- filtered")):
        wanted = CheckedProject({**project.descriptions, "v": other}, columns=project.columns)
        plan = changed(client, project, wanted)
        assert ([step.name for step in plan.steps], plan.replaced) == (["v"], ())


def test_a_type_that_changes_within_an_array_is_still_a_loss(
    spark: SparkSession, client: ShardClient
) -> None:
    """And so is a field of a struct that must not be null any more: its shard may hold nulls."""
    before = check(spark, LISTED.format("s", "s"))
    make_shards(client, before)
    other = check(spark, LISTED.format("a", "s"))
    (lost,) = changed(client, before, other).replaced
    assert lost.why == "column 'v.element' cannot change from string to integer"
    other = check(spark, LISTED.format("s", "1"))
    (lost,) = changed(client, before, other).replaced
    assert lost.why.startswith("column 'w.n' ")

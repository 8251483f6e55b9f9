"""Spark's plans beside ours: whose rows and whose time they are.

The plans are of PySpark 4.3, shortened; the numbers on edges are counted by hand.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from shardline.app.introspection.spark_plan.execution_plan import SparkPlan, parse_plan
from shardline.app.introspection.spark_plan.matching import Work, match_execution
from shardline.app.introspection.spark_plan.operators import operators_of
from shardline.app.protocol.objects import Description, ViewDescription
from support.fakes.introspection import DELAYS, FLIGHTS, OUT

WRITE = "Execute InsertIntoHadoopFsRelationCommand file:/x, false, Parquet"
CORRECT = "Filter (isnotnull(_diff#7L) AND NOT (_diff#7L = 0))"
FINAL = "HashAggregate(keys=[a#1], functions=[first(a#1, false), sum(1)])"
PARTIAL = "HashAggregate(keys=[a#1], functions=[partial_first(a#1, false), partial_sum(1)])"


def plan(
    *lines: tuple[int, int | None, str] | tuple[int, int | None, str, str],
    pipelines: tuple[tuple[str, list[int]], ...] = (),
) -> SparkPlan:
    """A plan of lines: depth, rows, detail, and the node's own time if it has one."""
    nodes: list[dict[str, Any]] = []
    edges: list[dict[str, int]] = []
    values: dict[str, str] = {}
    above: list[int] = []

    def counted(name: str, kind: str, value: str) -> dict[str, object]:
        values[str(len(values))] = value
        return {"name": name, "accumulatorId": len(values) - 1, "metricType": kind}

    for number, (depth, rows, detail, *time) in enumerate(lines):
        metrics = [counted("sort time", "timing", one) for one in time]
        if rows is not None:
            metrics.append(counted("number of output rows", "sum", f"{rows:,}"))
        # Not in Spark's sum: it has never been counted.
        metrics.append({"name": "spill size", "accumulatorId": 10_000, "metricType": "size"})
        words = detail.split("(")[0].split(" ")
        name = " ".join(words[: 2 if words[0] in {"Execute", "Scan"} else 1])
        nodes.append({"id": number, "name": name, "desc": detail, "metrics": metrics})
        del above[depth:]
        if above:
            edges.append({"fromId": number, "toId": above[-1]})
        above.append(number)
    within = {number for _, inside in pipelines for number in inside}
    clusters = [
        {
            "id": 100 + number,
            "name": "WholeStageCodegen",
            "desc": "",
            "nodes": [nodes[one] for one in inside],
            "metrics": [counted("duration", "timing", duration)],
        }
        for number, (duration, inside) in enumerate(pipelines)
    ]
    graph = [node for node in nodes if node["id"] not in within] + clusters
    return parse_plan(json.dumps({"nodes": graph, "edges": edges}), values)


def work(description: Description, given: SparkPlan) -> Work:
    return match_execution(description, operators_of(description), given)


def rows(description: Description, found: Work) -> dict[str, int]:
    """Rows by the names at both ends of an edge, with the sender's detail if it is a source."""
    operators = operators_of(description)
    told = {}
    for (receiver, port), count in found.rows.items():
        sender = operators[operators[receiver].inputs[port]]
        start = sender.detail if sender.name == "Source" else sender.name
        told[f"{start}->{operators[receiver].name}"] = count
    return told


def took(description: Description, found: Work) -> dict[str, float]:
    operators = operators_of(description)
    return {operators[place].name: ms for place, ms in found.took_ms.items()}


def view(query: str, *inputs: str) -> ViewDescription:
    return ViewDescription(name="v", query=query, inputs=inputs, schema="a INT")


LARGE = view("SELECT a FROM t WHERE b > 5", "t")
JOINED = view("SELECT a, sum(b) AS s FROM t JOIN u USING (k) WHERE b > 5 GROUP BY a", "t", "u")


def test_a_change_that_is_filtered_has_rows_on_all_edges() -> None:
    """A linear step: nothing is compared with the output, whose columns are the query's."""
    found = work(
        LARGE,
        plan(
            (0, 1200, WRITE),
            (1, None, "WriteFiles"),
            (2, None, "Project [a#1]"),
            (3, 1200, "Filter (isnotnull(b#2) AND (b#2 > 5))"),
            (4, None, "ColumnarToRow"),
            (5, 3000, "Scan parquet [a#1,b#2]"),
            pipelines=(
                ("total (min, med, max (stageId: taskId))\n1.2 s (1 ms, 1 ms, 1 ms)", [2, 3]),
            ),
        ),
    )
    assert rows(LARGE, found) == {
        "t->Filter": 3000,
        "Filter->Project": 1200,
        "Project->Correction": 1200,
    }
    assert took(LARGE, found) == {"Project": 1200.0}


def test_what_is_compared_with_the_output_is_the_corrections() -> None:
    """The sums of diffs above the query, and the branch of what is held, are not the query's."""
    found = work(
        DELAYS,
        plan(
            (0, 2, WRITE),
            (1, None, "WriteFiles", "7 ms"),
            (2, 2, CORRECT),
            (3, 3, FINAL, "5 ms"),
            (4, None, "Exchange hashpartitioning(a#1, 2)", "1 ms"),
            (5, 4, PARTIAL),
            (6, 4, "Union"),
            (7, 3, "HashAggregate(keys=[carrier#1], functions=[avg(delay#2)])", "2 ms"),
            (8, None, "Exchange hashpartitioning(carrier#1, 2)"),
            (9, 4, "HashAggregate(keys=[carrier#1], functions=[partial_avg(delay#2)])", "3 ms"),
            (10, 50, "Scan parquet [carrier#1,delay#2]", "9 ms"),
            (7, None, "Project [carrier#3, delay#4, (_diff#5L * -1) AS _diff#6L]"),
            (8, 1, "Scan parquet [carrier#3,delay#4,_diff#5L]", "4 ms"),
        ),
    )
    assert rows(DELAYS, found) == {
        "flights->Aggregate": 50,
        "Aggregate->Project": 3,
        "Project->Correction": 3,
    }
    assert took(DELAYS, found) == {
        "Persist": 7,
        "Correction": 5 + 1 + 4,
        "Aggregate": 5,
        "Source": 9,
    }


def test_rows_of_a_join_are_those_that_reach_it() -> None:
    """Each input on its own port; what Spark filters before it joins is not the query's filter."""
    found = work(
        JOINED,
        plan(
            (0, 2, WRITE),
            (1, None, "Project [a#1, s#9]"),
            (2, 2, "HashAggregate(keys=[a#1], functions=[sum(b#2)])"),
            (3, 6, "HashAggregate(keys=[a#1], functions=[partial_sum(b#2)])"),
            (4, 6, "BroadcastHashJoin [k#3], [k#4], Inner, BuildRight"),
            (5, 7, "Filter (isnotnull(b#2) AND (b#2 > 5))"),
            (6, 20, "Scan parquet [a#1,b#2,k#3]"),
            (5, 9, "BroadcastExchange HashedRelationBroadcastMode", "8 ms"),
            (6, 9, "Filter isnotnull(k#4)"),
            (7, 10, "Scan ExistingRDD[k#4]"),
        ),
    )
    assert rows(JOINED, found) == {
        "t->Join": 7,
        "u->Join": 9,
        "Join->Filter": 6,
        "Filter->Aggregate": 6,
        "Aggregate->Project": 2,
        "Project->Correction": 2,
    }
    assert took(JOINED, found) == {"Source": 8}


def test_what_reads_updates_belongs_to_the_source() -> None:
    """Copies are added up and repeated while a shard is read: that is no aggregate of the query."""
    found = work(
        LARGE,
        plan(
            (0, 1, WRITE),
            (1, 1, "Filter (b#2 > 5)", "1 ms"),
            (2, 4, "Generate explode(array_repeat(0, 2))", "2 ms"),
            (3, 3, "Filter (isnotnull(_diff#5L) AND (_diff#5L > 0))"),
            (4, 3, "HashAggregate(keys=[a#1], functions=[try_sum(_diff#4L)])", "4 ms"),
            (5, 9, "Scan parquet [a#1,b#2,_diff#4L]"),
        ),
    )
    assert rows(LARGE, found) == {
        "t->Filter": 4,
        "Filter->Project": 1,
        "Project->Correction": 1,
    }
    assert took(LARGE, found) == {"Filter": 1, "Source": 6}


def test_an_aggregate_that_counts_distinct_values_is_one() -> None:
    """Spark makes four of it; two aggregates of a query are two."""
    one = view("SELECT a, count(DISTINCT b) AS n FROM t GROUP BY a", "t")
    steps = (
        "HashAggregate(keys=[a#1], functions=[count(distinct b#2)])",
        "HashAggregate(keys=[a#1], functions=[partial_count(distinct b#2)])",
        "HashAggregate(keys=[a#1, b#2], functions=[])",
        "HashAggregate(keys=[a#1, b#2], functions=[])",
        "Scan parquet [a#1,b#2]",
    )
    lines = [(depth + 1, 5 + depth, step) for depth, step in enumerate(steps)]
    found = work(one, plan((0, 5, WRITE), *lines))
    assert rows(one, found) == {
        "t->Aggregate": 9,
        "Aggregate->Project": 5,
        "Project->Correction": 5,
    }
    two = view("SELECT max(n) FROM (SELECT a, count(*) AS n FROM t GROUP BY a) x", "t")
    steps = (
        "HashAggregate(keys=[], functions=[max(n#3)])",
        "HashAggregate(keys=[], functions=[partial_max(n#3)])",
        "HashAggregate(keys=[a#1], functions=[count(1)])",
        "HashAggregate(keys=[a#1], functions=[partial_count(1)])",
        "Scan parquet [a#1]",
    )
    lines = [(depth + 1, 1 + depth, step) for depth, step in enumerate(steps)]
    inner, outer = (place for place, o in enumerate(operators_of(two)) if o.name == "Aggregate")
    assert {inner: 5, outer: 3}.items() <= {
        receiver: count
        for (receiver, _), count in work(two, plan((0, 1, WRITE), *lines)).rows.items()
    }.items()


def test_a_look_at_times_is_no_run_of_the_query() -> None:
    """A view also looks at its inputs' times: their aggregate is none of the query."""
    lines = (
        (0, 3, "HashAggregate(keys=[_ts#1L], functions=[])"),
        (1, 4, "HashAggregate(keys=[_ts#1L], functions=[])"),
        (2, 9, "Scan parquet [_ts#1L]"),
    )
    assert work(DELAYS, plan(*lines)) == Work()


def test_a_small_result_is_collected_and_not_written() -> None:
    """Then the whole plan is the query's."""
    found = work(
        LARGE,
        plan(
            (0, None, "CollectLimit 1001"),
            (1, None, "Project [a#1]"),
            (2, 2, "Filter (b#2 > 5)", "3 ms"),
            (3, 7, "Scan parquet [a#1,b#2]"),
        ),
    )
    assert rows(LARGE, found) == {"t->Filter": 7, "Filter->Project": 2, "Project->Correction": 2}
    assert took(LARGE, found) == {"Filter": 3}


def test_what_spark_has_evaluated_in_planning_is_not_taken_for_input() -> None:
    """Rows that are in the plan itself are filtered there: how many there were is not known."""
    found = work(LARGE, plan((0, 3, "LocalTableScan [a#1]")))
    assert rows(LARGE, found) == {"Filter->Project": 3, "Project->Correction": 3}


def test_what_cannot_be_matched_is_absent() -> None:
    """A join that Spark has made a semi join of a subquery: of joins nothing is said."""
    found = work(
        JOINED,
        plan(
            (0, 2, WRITE),
            (1, 6, "SortMergeJoin [k#3], [k#4], Inner"),
            (2, 8, "SortMergeJoin [k#3], [k#5], Inner"),
            (3, 20, "Scan parquet [a#1,b#2,k#3]"),
            (3, 10, "Scan parquet [k#5]"),
            (2, 10, "Scan parquet [k#4]"),
        ),
    )
    assert "t->Join" not in rows(JOINED, found)
    assert rows(JOINED, found) == {"Project->Correction": 6, "Aggregate->Project": 6}


def test_sources_and_sinks_read_shape_and_write() -> None:
    """Leaves are the source's, what writes is the last operator's, the rest is the envelope's."""
    given = plan(
        (0, 3, WRITE, "1 ms"),
        (1, None, "Project [a#1]", "2 ms"),
        (2, 5, "Scan parquet [a#1]", "4 ms"),
    )
    assert took(FLIGHTS, work(FLIGHTS, given)) == {"Persist": 1, "Envelope": 2, "Source": 4}
    assert took(OUT, work(OUT, given)) == {"Sink": 1, "Envelope": 2, "Source": 4}
    assert rows(OUT, work(OUT, given)) == {"delays->Envelope": 5}


@pytest.mark.parametrize(
    ("text", "ms"),
    [
        ("35 ms", 35.0),
        ("1.4 s", 1400.0),
        ("2.5 m", 150_000.0),
        ("1.50 h", 5_400_000.0),
        (
            "total (min, med, max (stageId: taskId))\n1.2 s (0 ms, 3 ms, 3 ms (stage 0.0: task 1))",
            1200.0,
        ),
    ],
)
def test_times_are_read_as_spark_words_them(text: str, ms: float) -> None:
    """The first of them is the sum over all tasks."""
    given = plan((0, 1, WRITE), (1, 1, "Scan parquet [a#1]"), pipelines=((text, [1]),))
    assert [pipeline.took_ms for pipeline in given.pipelines] == [ms]


def test_what_spark_words_otherwise_is_refused() -> None:
    """Rather than read as something else."""
    with pytest.raises(ValueError, match="name"):
        parse_plan('{"nodes": [{"id": 0, "label": "x"}], "edges": []}', {})

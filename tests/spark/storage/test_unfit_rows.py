"""Rows that Spark decodes and that lack what the source needs: marked, or refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardline.app.protocol.objects import SourceDescription
from shardline.app.storage.errors import retract_errors
from support.spark.ingestions import Runtime, drop, running
from support.waiting import wait_until

pytestmark = pytest.mark.spark


def described(inbox: Path, kind: str = "json", **chosen: Any) -> SourceDescription:
    given: dict[str, Any] = {"name": "flights", "format": kind, "options": {"path": str(inbox)}}
    return SourceDescription(**given | chosen)


def rows(runtime: Runtime) -> list[tuple[Any, ...]]:
    """The source's rows, which need not be hashable, by their first column."""
    client = runtime.client
    if not client.exists("flights") or client.state("flights").upper.time == 0:
        return []
    with client.reader("flights") as reader:
        found = [tuple(row.values()) for row in reader.snapshot().to_pylist()]
    return sorted(found, key=lambda row: row[0])


def test_a_change_without_its_diff_is_an_error(runtime: Runtime, inbox: Path) -> None:
    """One such row must not keep back all others; what it says is unknown until it is retracted."""
    drop(inbox, "0.json", '{"a": 1, "_diff": 2}', '{"a": 2}', '{"a": 3, "_diff": "x"}')
    source_of = described(inbox, schema="a INT, _diff BIGINT", envelope="diff")
    with running(runtime, source_of) as source:
        source.wait_for_rows((1,), (1,))
        assert sorted(raw for _, raw, _ in source.errors) == ['{"a": 3, "_diff": "x"}', '{"a":2}']
        assert all(error.endswith("NULL in _diff") for error, _, _ in source.errors)
        assert retract_errors(runtime.client, "flights") == 2
        drop(inbox, "1.json", '{"a": 1, "_diff": -1}')
        source.wait_for_rows((1,))


def test_a_null_is_an_error_also_where_spark_is_to_trust_columns(
    runtime: Runtime, inbox: Path
) -> None:
    """Spark's own operators fail at a NULL in a column that they are told has none."""
    drop(inbox, "0.json", '{"id": 1, "at": {"x": "a"}}', '{"id": 2, "at": {}}', '{"id": 3}')
    session = runtime.spark.newSession()
    session.conf.set("spark.sql.streaming.fileSource.schema.forceNullable", "false")
    source_of = described(inbox, schema="id INT, at STRUCT<x: STRING NOT NULL>")
    with running(replace(runtime, spark=session), source_of) as source:
        source.wait_for("both rows", lambda: rows(runtime) == [(1, {"x": "a"}), (3, None)])
        [(_, raw, _)] = source.errors
        assert raw == '{"id":2,"at":{}}'


def test_a_null_in_a_column_that_must_have_none_is_an_error(runtime: Runtime, inbox: Path) -> None:
    """Spark takes it for a value; within a struct only where the struct itself is there."""
    drop(
        inbox,
        "0.json",
        '{"id": 1, "at": {"x": 1}}',
        '{"id": 2}',
        '{"at": {"x": 3}}',
        '{"id": 4, "at": {"x": null}}',
    )
    source_of = described(inbox, schema="id INT NOT NULL, at STRUCT<x: INT NOT NULL>")
    with running(runtime, source_of) as source:
        source.wait_for("both rows", lambda: rows(runtime) == [(1, {"x": 1}), (2, None)])
        assert sorted(raw for _, raw, _ in source.errors) == ['{"at":{"x":3}}', '{"id":4,"at":{}}']
        assert all(error.endswith("NULL in id or at.x") for error, _, _ in source.errors)


@pytest.mark.parametrize("forced", ["true", "false"])
def test_a_null_within_an_array_or_a_map_is_an_error(
    runtime: Runtime, inbox: Path, forced: str
) -> None:
    """Whatever Spark takes the declared columns for."""
    good = [
        '{"id": 1, "a": [{"x": 1}, null], "m": {"k": [{"y": "b"}], "l": null}}',
        '{"id": 2, "a": [], "m": {}}',
        '{"id": 3}',
    ]
    bad = ['{"id":4,"a":[{"x":1},{}]}', '{"id":5,"m":{"k":[{"y":"b"}],"l":[{}]}}']
    drop(inbox, "0.json", *good, *bad)
    session = runtime.spark.newSession()
    session.conf.set("spark.sql.streaming.fileSource.schema.forceNullable", forced)
    columns = "a ARRAY<STRUCT<x: INT NOT NULL>>, m MAP<STRING, ARRAY<STRUCT<y: STRING NOT NULL>>>"
    source_of = described(inbox, schema=f"id INT, {columns}")
    with running(replace(runtime, spark=session), source_of) as source:
        source.wait_for("the good rows", lambda: [row[0] for row in rows(runtime)] == [1, 2, 3])
        assert sorted(raw for _, raw, _ in source.errors) == bad
        told = "NULL in a.element.x or m.value.element.y"
        assert all(error.endswith(told) for error, _, _ in source.errors)
    assert rows(runtime)[0] == (1, [{"x": 1}, None], [("k", [{"y": "b"}]), ("l", None)])


@pytest.mark.parametrize("deletes", [{}, {"deleteColumn": "gone"}], ids=["nulls", "column"])
def test_a_delete_needs_its_key_alone(
    runtime: Runtime, inbox: Path, deletes: dict[str, str]
) -> None:
    """A row that replaces another one needs all; a good one of its key takes its error back."""
    options = {"path": str(inbox), "orderingColumn": "n", "maxFilesPerTrigger": "1", **deletes}
    columns = "id INT NOT NULL, n INT, v INT NOT NULL, w INT"
    columns, stays, goes = (
        (columns + ", gone BOOLEAN", ",", ",true") if deletes else (columns, "", "")
    )
    source_of = described(
        inbox, "csv", options=options, schema=columns, envelope="upsert", key=("id",)
    )
    given = ["1,1,1,1", "2,1,1,1", "3,1,,1", ",1,1,1", "4,1,1,1"]
    drop(inbox, "0.csv", *(row + stays for row in given))
    with running(runtime, source_of) as source:
        source.wait_for_rows((1, 1, 1, 1), (2, 1, 1, 1), (4, 1, 1, 1))
        assert {key for _, _, key in source.errors} == {'{"id":3}', None}
        drop(inbox, "1.csv", f"1,2,,{goes}", f"3,2,3,{stays}")
        source.wait_for_rows((2, 1, 1, 1), (3, 2, 3, None), (4, 1, 1, 1))
        assert [key for _, _, key in source.errors] == [None]


def test_an_event_needs_what_must_not_be_null_after_it(runtime: Runtime, inbox: Path) -> None:
    """Of the image before it many databases log the key alone."""
    row = "STRUCT<id: INT NOT NULL, v: INT NOT NULL>"
    columns = f"before {row}, after {row}, op STRING"
    source_of = described(inbox, schema=columns, envelope="debezium", key=("id",))
    drop(
        inbox,
        "0.json",
        '{"after": {"id": 1, "v": 1}, "op": "c"}',
        '{"after": {"id": 2}, "op": "c"}',
        '{"after": {"id": 3, "v": 3}, "op": "c"}',
        '{"before": {"id": 3}, "op": "d"}',
    )
    with running(runtime, source_of) as source:
        source.wait_for_rows((1, 1))
        assert [key for _, _, key in source.errors] == ['{"id":2}']


@pytest.mark.parametrize("null", ["_diff", "a"])
def test_what_is_missing_is_refused_where_rows_are_not_decoded(
    runtime: Runtime, inbox: Path, null: str
) -> None:
    """By the name of its file; once that is corrected the source goes on."""

    def put(missing: str = "") -> None:
        table = pa.table(
            {
                name: pa.array([1, None if name == missing else 2], kind)
                for name, kind in (("a", pa.int32()), ("_diff", pa.int64()))
            }
        )
        pq.write_table(table, inbox / ".0")
        (inbox / ".0").rename(inbox / "0.parquet")

    source_of = described(inbox, "parquet", schema="a INT NOT NULL, _diff BIGINT", envelope="diff")
    put(null)
    with running(runtime, source_of) as source:
        wait_until("it fails", lambda: source.failures() != [], 60)
        error = source.failures()[0].error
        assert "NULL in _diff or a" in error
        assert "0.parquet" in error
    put()
    with running(runtime, source_of) as source:
        source.wait_for_rows((1,), (2,), (2,))

"""Rows that Spark decodes and that lack what the source needs: marked, or refused by name."""

from __future__ import annotations

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


def test_a_change_without_its_diff_is_refused_where_rows_are_not_decoded(
    runtime: Runtime, inbox: Path
) -> None:
    """By the name of its file; once that is corrected the source goes on."""

    def put(*diffs: int | None) -> None:
        table = pa.table({"a": pa.array([1, 2], pa.int32()), "_diff": pa.array(diffs, pa.int64())})
        pq.write_table(table, inbox / ".0")
        (inbox / ".0").rename(inbox / "0.parquet")

    source_of = described(inbox, "parquet", schema="a INT, _diff BIGINT", envelope="diff")
    put(1, None)
    with running(runtime, source_of) as source:
        wait_until("it fails", lambda: source.failures() != [], 60)
        error = source.failures()[0].error
        assert "NULL in _diff" in error
        assert "0.parquet" in error
    put(1, 1)
    with running(runtime, source_of) as source:
        source.wait_for_rows((1,), (2,))

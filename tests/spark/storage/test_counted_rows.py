"""Rows that may be bad are counted before they are staged, whichever way they are read."""

from __future__ import annotations

import datetime as dt
import gzip
import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pytest

from shardline.app.execution.observations import Measured
from shardline.app.protocol.objects import SourceDescription
from shardline.app.storage import envelope, reading
from support.spark.ingestions import Runtime, drop, running
from support.waiting import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame

pytestmark = pytest.mark.spark

SCHEMA = (
    "id BIGINT NOT NULL, day DATE, at TIMESTAMP, local TIMESTAMP_NTZ, price DECIMAL(38, 2), "
    "text STRING, tags ARRAY<STRUCT<x: DOUBLE>>, more MAP<STRING, INT>, "
    "took INTERVAL DAY TO SECOND"
)

FIRST = (
    '{"id": 1, "day": "0001-01-01", "at": "1900-01-01T00:00:00.000001Z", "price": 1.5, '
    '"local": "9999-12-31T23:59:59.999999", "text": "ü\\u0000", "tags": [{"x": -0.0}, null], '
    '"more": {"a": null}, "took": "INTERVAL \'1 02:03:04.5\' DAY TO SECOND"}'
)

ROW: dict[str, Any] = {
    "id": 1,
    "day": dt.date(1, 1, 1),
    "at": dt.datetime(1900, 1, 1, 0, 0, 0, 1, tzinfo=dt.UTC),
    "local": dt.datetime(9999, 12, 31, 23, 59, 59, 999999),  # noqa: DTZ001 - it has no zone
    "price": Decimal("1.50"),
    "text": "ü\0",
    "tags": [{"x": -0.0}, None],
    "more": [("a", None)],
    "took": dt.timedelta(days=1, hours=2, minutes=3, seconds=4.5),
}


@pytest.fixture
def persisted(monkeypatch: pytest.MonkeyPatch) -> list[DataFrame]:
    """Micro-batches that Spark has cached."""
    found: list[DataFrame] = []
    count = reading._counted

    def noted(kept: DataFrame) -> reading.Counts:
        found.append(kept)
        return count(kept)

    monkeypatch.setattr(reading, "_counted", noted)
    return found


@pytest.mark.parametrize("limits", [{}, {"_FEW_ROWS": 2}, {"_FEW_BYTES": -1}, {"_FEW_FILES": 3}])
def test_rows_errors_and_sizes_are_the_same(
    runtime: Runtime,
    inbox: Path,
    monkeypatch: pytest.MonkeyPatch,
    persisted: list[DataFrame],
    limits: dict[str, int],
) -> None:
    """A few by this process; more are cached by Spark, also if that was found out too late."""
    for name, value in limits.items():
        monkeypatch.setattr(reading, name, value)
    drop(inbox, "0.json", FIRST, '{"id": 2}', '{"id": "x"}')
    drop(inbox, "1.json", '{"day": "2020-01-01"}')
    drop(inbox, "2.json")
    (inbox / "3.json.gz").write_bytes(gzip.compress(b'{"id": 3}\n{"id": 4}\n'))
    sizes = [one.stat().st_size for one in inbox.iterdir()]
    described = SourceDescription(
        name="flights", format="json", schema=SCHEMA, options={"path": str(inbox)}
    )
    with running(runtime, described) as source:
        source.wait_for("all rows", lambda: len(source.errors) == 2)
        assert len(persisted) == len(limits)
        with runtime.client.reader("flights") as reader:
            found = sorted(reader.snapshot().to_pylist(), key=lambda row: row["id"])
        assert [row["id"] for row in found] == [1, 2, 3, 4]
        assert {name: found[0][name] for name in ROW} == ROW
        assert str(found[0]["tags"][0]["x"]) == "-0.0"
        raws = sorted(raw for _, raw, _ in source.errors)
        assert raws == ['{"day":"2020-01-01"}', '{"id": "x"}']
        wanted = {"messages_received": 6, "updates_staged": 4, "bytes_received": sum(sizes)}

        def added() -> dict[str, float]:
            told = source.told(Measured)
            return {name: sum(one.added.get(name, 0) for one in told) for name in wanted}

        source.wait_for("figures", lambda: added() == wanted)


def test_files_without_a_row(runtime: Runtime, inbox: Path, persisted: list[DataFrame]) -> None:
    """Nothing to collect: the source has begun, and goes on."""
    drop(inbox, "0.csv", "id,s")
    options = {"path": str(inbox), "header": "true"}
    described = SourceDescription(
        name="flights", format="csv", schema="id INT, s STRING", options=options
    )
    with running(runtime, described) as source:
        source.wait_for("its beginning", lambda: bool(source.told(Measured)))
        drop(inbox, "1.csv", "id,s", "1,a")
        source.wait_for_rows((1, "a"))
    assert not persisted


@pytest.mark.parametrize("limits", [{}, {"_FEW_BYTES": -1}])
def test_a_source_that_stops_names_the_first_bad_row_of_its_file(
    runtime: Runtime, inbox: Path, monkeypatch: pytest.MonkeyPatch, limits: dict[str, int]
) -> None:
    """Who corrects a file goes through it from its beginning."""
    for name, value in limits.items():
        monkeypatch.setattr(reading, name, value)
    drop(inbox, "0.csv", "1")
    drop(inbox, "1.csv", "x", "y")
    options = {"path": str(inbox), "onBadRow": "stop"}
    described = SourceDescription(name="flights", format="csv", schema="id INT", options=options)
    with running(runtime, described) as source:
        wait_until("its end", lambda: bool(source.failures()), 60)
        [failure] = source.failures()
    assert re.search(r"2 rows cannot be decoded, one of them in .*/1\.csv: x$", failure.error)


@pytest.fixture
def most(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many bytes of files are small."""
    monkeypatch.setattr(envelope, "_SMALL_BYTES", request.param)


@pytest.mark.parametrize(("most", "jobs"), [(6, 0), (5, 1)], indirect=["most"])
@pytest.mark.usefixtures("most")
def test_large_files_of_few_rows_are_written_by_tasks(
    runtime: Runtime, inbox: Path, written: list[str], jobs: int
) -> None:
    """To collect them takes memory for all, however many rows they are."""
    drop(inbox, "0.csv", "1", "2")
    drop(inbox, "1.csv", "3")
    described = SourceDescription(
        name="flights", format="csv", schema="id INT", options={"path": str(inbox)}
    )
    with running(runtime, described) as source:
        source.wait_for_rows((1,), (2,), (3,))
    assert len(written) == jobs


@pytest.mark.parametrize(("most", "jobs"), [(2, 1), (1, 2)], indirect=["most"])
@pytest.mark.usefixtures("most")
def test_large_files_whose_rows_are_not_counted_are_written_by_tasks(
    runtime: Runtime, inbox: Path, written: list[str], jobs: int
) -> None:
    """So is the snapshot, of which nobody knows how many rows it has."""
    drop(inbox, "0.txt", "a")
    described = SourceDescription(name="flights", format="text", options={"path": str(inbox)})
    with running(runtime, described) as source:
        source.wait_for_rows(("a",))
        drop(inbox, "1.txt", "b")
        source.wait_for_rows(("a",), ("b",))
    assert len(written) == jobs


@pytest.mark.parametrize(
    ("name", "few"), [("0.csv.gz", True), ("0.csv.gz", False), ("0.CSV.GZ", False)]
)
def test_compressed_files_may_have_much_in_them(
    runtime: Runtime,
    inbox: Path,
    monkeypatch: pytest.MonkeyPatch,
    persisted: list[DataFrame],
    *,
    name: str,
    few: bool,
) -> None:
    """A file of a megabyte may have a gigabyte in it, which this process cannot hold."""
    text = b"1234567890\n" * 1_000
    (inbox / name).write_bytes(gzip.compress(text))
    monkeypatch.setattr(reading, "_FEW_BYTES", len(text) - (0 if few else 8_000))
    described = SourceDescription(
        name="flights", format="csv", schema="id BIGINT", options={"path": str(inbox)}
    )
    with running(runtime, described) as source:
        source.wait_for_rows(*[(1234567890,)] * 1_000)
    assert bool(persisted) != few


def test_the_clock_of_the_other_side_may_be_of_any_type(runtime: Runtime, inbox: Path) -> None:
    """Nobody reads it, so that it is none of Arrow's concern."""
    drop(inbox, "0.csv", "1,2,INTERVAL '1-2' YEAR TO MONTH")
    described = SourceDescription(
        name="flights",
        format="csv",
        schema="id INT, _diff INT, _ts INTERVAL YEAR TO MONTH",
        envelope="diff",
        options={"path": str(inbox)},
    )
    with running(runtime, described) as source:
        source.wait_for_rows((1,), (1,))

"""Sinks on Spark whose input has errors: what a query would not show reaches no target."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from shardline.app.execution.host import Host
from shardline.app.execution.observations import Failed, Health, Progress
from shardline.app.protocol.objects import SinkDescription
from shardline.app.storage.sinks import readable_times
from shardline.app.storage.sinks.others import collected
from shardline.datasource.client import ShardClient
from shardline.datasource.frontier import Frontier
from shardline.datasource.maintenance.retention import apply_retention
from shardline.datasource.types.schema import ShardSchema
from support.fakes.reads import Inputs
from support.profiles import one_of
from support.spark.sinks import Input, Reports, diffs, life, parquet, running

pytestmark = pytest.mark.spark

CATALOG = Inputs({"in": ("below",)})
"""The sink's input is made of another object, whose errors it does not repeat."""


class Errors:
    """The errors of an object, settled as far as a test says."""

    def __init__(self, client: ShardClient) -> None:
        self._client = client
        self._columns = pa.schema([("error", pa.string())])
        client.create("below_errors", ShardSchema.from_arrow(self._columns))

    def settle(self, upper: int, *changes: tuple[int, int]) -> None:
        """Errors come and go at times before `upper`."""
        rows = [{"error": "bad date", "_ts": time, "_diff": diff} for time, diff in changes]
        columns = self._columns.append(pa.field("_ts", pa.int64()))
        table = pa.Table.from_pylist(rows, columns.append(pa.field("_diff", pa.int64())))
        before = self._client.state("below_errors").upper
        writer = self._client.writer("below_errors")
        writer.compare_and_append(table if rows else None, before, Frontier(upper))


@pytest.fixture
def errors(host: Host) -> Errors:
    return Errors(host.client)


def reached(reports: Reports) -> int:
    """How far the target is, by the newest report."""
    found = [one.write for one in reports.all if isinstance(one, Progress)]
    assert isinstance(found[-1], int)
    return found[-1]


@pytest.mark.parametrize("envelope", one_of(2, ["diff", "none"]))
def test_a_broken_input_is_not_shown(
    host: Host, source: Input, errors: Errors, tmp_path: Path, envelope: str
) -> None:
    """The sink stops where errors begin, says so, and goes on where they end with what is then.

    Row 2 was never in the contents that a query could read.
    """
    sink = parquet(tmp_path, envelope=envelope)
    errors.settle(11)
    source.step(10, (1, "a", 1))
    with running(host, sink, catalog=CATALOG) as reports:
        reports.reached(11)
        errors.settle(31, (20, 1))
        source.step(20, (2, "b", 1))
        source.step(30, (3, "c", 1))
        failed = reports.failure()
    assert failed.error.startswith("[INPUT_HAS_ERRORS] 'below' has 1 live error, ")
    assert "bad date" in failed.error
    assert reached(reports) == 20
    with running(host, sink, life(2), CATALOG) as reports:
        assert reports.stalled().error == failed.error
        errors.settle(51, (40, -1))
        source.step(40, (2, "b", -1), (4, "d", 1))
        reports.reached(source.step(50, (5, "e", 1)))
        health = [one.status for one in reports.all if isinstance(one, Health)]

    assert health[0] == "stalled"
    assert health[-1] == "running"
    rows = host.spark.read.parquet(sink.options["path"])
    assert sorted((row.k, row.v) for row in rows.collect()) == [
        (1, "a"), (3, "c"), (4, "d"), (5, "e")
    ]  # fmt: skip
    if envelope == "diff":
        assert [one[2] for one in diffs(host.spark, sink)] == [10, 40, 40, 50]


def test_errors_that_came_and_went_meanwhile(
    host: Host, source: Input, errors: Errors, tmp_path: Path
) -> None:
    """A sink that comes back passes them over, up to errors that are still there."""
    sink = parquet(tmp_path)
    errors.settle(11)
    source.step(10, (1, "a", 1))
    with running(host, sink, catalog=CATALOG) as reports:
        reports.reached(11)
    errors.settle(71, (20, 1), (40, -1), (60, 2))
    source.step(15, (1, "a", -1), (1, "A", 1))
    source.step(20, (2, "b", 1))
    source.step(40, (2, "b", -1), (4, "d", 1))
    source.step(50, (5, "e", 1))
    source.step(60, (6, "f", 1))
    source.step(70)
    for epoch in (2, 3):
        with running(host, sink, life(epoch), CATALOG) as reports:
            reports.failure()
    with running(host, sink, life(4), CATALOG) as reports:
        said = reports.stalled()
    assert said.error.startswith("[INPUT_HAS_ERRORS] 'below' has 2 live errors, ")

    assert diffs(host.spark, sink) == [
        (1, "A", 15, 1),
        (1, "a", 10, 1),
        (1, "a", 15, -1),
        (4, "d", 40, 1),
        (5, "e", 50, 1),
    ]


@pytest.mark.parametrize("snapshot", one_of(2, [True, False]))
def test_a_sink_begins_without_errors(
    host: Host, source: Input, errors: Errors, snapshot: bool
) -> None:
    """Contents that lack rows are no beginning: the first ones that a query may read are."""
    sink = SinkDescription(name="out", on="in", format="memory", snapshot=snapshot)
    errors.settle(21, (10, 1))
    source.step(10, (1, "a", 1))
    source.step(20, (2, "b", 1))
    with running(host, sink, life(1, as_of=10), CATALOG) as reports:
        reports.stalled()
        assert collected(sink) == []
        errors.settle(41, (30, -1))
        source.step(30, (2, "b", -1), (3, "c", 1))
        reports.reached(source.step(40, (4, "d", 1)))

    first = [(1, 30, 1), (3, 30, 1)] if snapshot else []
    assert sorted((r.k, r._ts, r._diff) for r in collected(sink)) == [*first, (4, 40, 1)]


def wait_to_begin(host: Host, source: Input, errors: Errors) -> SinkDescription:
    """A new sink that was stopped while its input, which has come to 21, had errors."""
    sink = SinkDescription(name="out", on="in", format="memory")
    errors.settle(21, (10, 1))
    source.step(10, (1, "a", 1))
    source.step(20, (2, "b", 1))
    with running(host, sink, life(1, as_of=10), CATALOG) as reports:
        reports.stalled()
    return sink


def test_a_beginning_that_is_waited_for_is_held(host: Host, source: Input, errors: Errors) -> None:
    """A new sink that is stopped for long while its input has errors finds their end later on."""
    sink = wait_to_begin(host, source, errors)
    errors.settle(1_001, (30, -1))
    source.step(30, (2, "b", -1), (3, "c", 1))
    source.step(1_000, (4, "d", 1))
    host.client.set_retention("in", 0)
    apply_retention(host.client.machine("in"))
    with running(host, sink, life(2, as_of=10), CATALOG) as reports:
        reports.reached(1_001)
    found = sorted((r.k, r._ts, r._diff) for r in collected(sink))
    assert found == [(1, 30, 1), (3, 30, 1), (4, 1_000, 1)]


def test_the_hold_of_a_sink_that_waits_moves_on(host: Host, source: Input, errors: Errors) -> None:
    """Errors that stay for weeks do not keep weeks of history."""
    wait_to_begin(host, source, errors)
    assert host.client.state("in").critical["sink:out"].since == 20


def test_time_with_errors_does_not_pass(host: Host, source: Input, errors: Errors) -> None:
    """An input that does not change has errors all the same: the sink is no further than those."""
    sink = SinkDescription(name="out", on="in", format="memory")
    errors.settle(11)
    source.step(10, (1, "a", 1))
    with running(host, sink, catalog=CATALOG) as reports:
        reports.reached(11)
    errors.settle(500, (300, 1))
    source.step(499)
    with running(host, sink, life(2), CATALOG) as reports:
        reports.reached(300)
        reports.failure()
    assert reached(reports) == 300


def test_an_input_that_reads_other_objects_now(
    host: Host, source: Input, errors: Errors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sink says which errors it waits for, and waits for those of objects below it only."""
    monkeypatch.setattr(readable_times, "_UNSETTLED_MS", 0)
    sink = SinkDescription(name="out", on="in", format="memory")
    inputs = Inputs({"in": ("below",)})
    errors.settle(11)
    source.step(10, (1, "a", 1))
    with running(host, sink, catalog=inputs) as reports:
        reports.reached(11)
        source.step(20, (2, "b", 1))
        said = reports.stalled()
        assert said.error.startswith("[ERRORS_UNSETTLED] errors of 'below' are not settled")
        inputs["in"] = ()
        reports.reached(21)
        health = [one.status for one in reports.all if isinstance(one, Health)]

    assert health[-1] == "running"
    assert sorted((r.k, r._ts) for r in collected(sink)) == [(1, 10), (2, 20)]
    assert host.client.state("below_errors").critical == {}


def test_a_sink_that_waits_for_errors_can_be_stopped(
    host: Host, source: Input, errors: Errors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it waits in the middle of a micro-batch as well; it is no failure."""
    monkeypatch.setattr(readable_times, "_UNSETTLED_MS", 0)
    sink = SinkDescription(name="out", on="in", format="memory")
    errors.settle(11)
    source.step(10, (1, "a", 1))
    with running(host, sink, catalog=CATALOG) as reports:
        reports.reached(11)
        source.step(20, (2, "b", 1))
        reports.stalled()
    assert not any(isinstance(one, Failed) for one in reports.all)
    assert reached(reports) == 11


def test_an_input_that_was_changed_while_the_sink_was_stopped(
    host: Host, source: Input, errors: Errors
) -> None:
    """The hold on errors of what it read before goes with the next start."""
    sink = SinkDescription(name="out", on="in", format="memory")
    errors.settle(11)
    source.step(10, (1, "a", 1))
    with running(host, sink, catalog=CATALOG) as reports:
        reports.reached(11)
    assert set(host.client.state("below_errors").critical) == {"sink:out"}
    with running(host, sink, life(2)) as reports:
        reports.reached(source.step(20, (2, "b", 1)))
    assert host.client.state("below_errors").critical == {}

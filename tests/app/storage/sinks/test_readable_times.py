"""Times of an input that a sink may show, against a model that looks at each time by itself."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.app.execution.live_errors import LiveErrors
from shardline.app.protocol.objects import SinkDescription
from shardline.app.storage.sink_holds import drop_sink, hold_name
from shardline.app.storage.sinks.readable_times import ReadableTimes
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Determinate, InvalidUsage
from shardline.datasource.frontier import EMPTY, Frontier
from shardline.datasource.maintenance.retention import apply_retention
from shardline.datasource.types.schema import ShardSchema
from support.fakes.clock import ManualClock
from support.fakes.reads import Inputs

ERRORS = pa.schema([("error", pa.string())])
UPDATES = ERRORS.append(pa.field("_ts", pa.int64())).append(pa.field("_diff", pa.int64()))
CATALOG = Inputs({"in": ("below",)})
END = 12


def append(client: ShardClient, name: str, changes: list[tuple[int, int]], upper: int) -> None:
    """Errors that come and go, as `(time, diff)`; makes the shard."""
    client.create(name, ShardSchema.from_arrow(ERRORS))
    rows = [{"error": "bad", "_ts": time, "_diff": diff} for time, diff in changes]
    table = pa.Table.from_pylist(rows, UPDATES) if rows else None
    writer = client.writer(name)
    writer.compare_and_append(table, client.state(name).upper, Frontier(upper))


def times(client: ShardClient) -> ReadableTimes:
    return ReadableTimes(client, "in", CATALOG, hold_name("out"))


@pytest.fixture
def client(tmp_path: Path) -> ShardClient:
    return ShardClient.open(str(tmp_path / "lake"))


LOCATIONS = count()
LIVE = st.lists(st.integers(0, 1), min_size=END, max_size=END)


@given(LIVE, LIVE, st.integers(0, END - 1))
def test_spans_are_those_of_a_model(own: list[int], below: list[int], lower: int) -> None:
    """The first time at which neither has errors, and the first after it at which one has."""
    client = ShardClient.open(f"memory://readable-times-{next(LOCATIONS)}")
    for name, live in (("in_errors", own), ("below_errors", below)):
        steps = zip(live, [0, *live], strict=False)
        append(client, name, [(t, a - b) for t, (a, b) in enumerate(steps) if a != b], END)
    with times(client) as found:
        span = found.span(lower, Frontier(END))

    broken = [a + b > 0 for a, b in zip(own, below, strict=True)]
    good = [t for t in range(lower, END) if not broken[t]]
    bad = [t for t in range(good[0], END) if broken[t]] if good else [lower]
    assert span is not None
    assert span.first == (good[0] if good else None)
    assert span.upper == Frontier(bad[0] if good and bad else END)
    assert (None if span.errors is None else span.errors.at) == (bad[0] if bad else None)


def test_times_that_may_still_get_errors_are_waited_for(client: ShardClient) -> None:
    """Nothing is said before all error shards have come as far as the input."""
    append(client, "in_errors", [], 20)
    append(client, "below_errors", [], 10)
    with times(client) as found:
        assert found.span(5, Frontier(20)) is None
        append(client, "below_errors", [(15, 1)], 20)
        span = found.span(5, Frontier(20))
        assert span is not None
        assert (span.first, span.upper) == (5, Frontier(15))
        with pytest.raises(InvalidUsage, match=r"INPUT_HAS_ERRORS.*'below' has 1 live error, "):
            raise found.error(span)


def test_a_sink_that_waits_says_the_same_at_each_look() -> None:
    """It meets the errors at other times, and its history has one line; what to do is possible."""
    said = [LiveErrors("in", at, 1, "bad", of_source=True).error() for at in (15, 16)]
    assert str(said[0]) == str(said[1])
    assert said[0].hint.startswith("`errors in` shows them and takes them away")
    assert "read 'in_errors'" in LiveErrors("in", 15, 1, "bad", of_source=False).error().hint


def test_an_input_without_error_shards_is_readable(client: ShardClient) -> None:
    """To its end; a shard of errors that is made later counts from then on."""
    with times(client) as found:
        span = found.span(5, EMPTY)
        assert span is not None
        assert (span.first, span.upper, span.errors) == (5, EMPTY, None)
        append(client, "in_errors", [(7, 1)], 20)
        span = found.span(5, Frontier(20))
        assert span is not None
        assert (span.first, span.upper) == (5, Frontier(7))


def test_errors_of_a_former_input_are_let_go(client: ShardClient) -> None:
    """A view that is changed waits for what it reads now only; nothing of before is held."""
    append(client, "s1_errors", [(8, 1)], 10)
    append(client, "s2_errors", [], 30)
    inputs = Inputs({"in": ("s1",)})
    with ReadableTimes(client, "in", inputs, hold_name("out")) as found:
        assert found.span(5, Frontier(20)) is None
        inputs["in"] = ("s2",)
        span = found.span(5, Frontier(20))
        assert span is not None
        assert (span.first, span.upper, span.errors) == (5, Frontier(20), None)
        former = client.state("s1_errors")
        assert (former.critical, former.leased) == ({}, {})
        assert set(client.state("s2_errors").critical) == {"sink:out"}


def test_a_former_input_may_be_gone(client: ShardClient) -> None:
    """Its errors shard is dropped, whoever holds it, when the object is removed."""
    append(client, "s1_errors", [], 10)
    inputs = Inputs({"in": ("s1",)})
    with ReadableTimes(client, "in", inputs, hold_name("out")) as found:
        assert found.span(5, Frontier(10)) is not None
        holders = client.state("s1_errors")
        client.drop("s1_errors", despite_holders=[*holders.critical, *holders.leased])
        inputs["in"] = ()
        span = found.span(5, Frontier(20))
        assert span is not None
        assert (span.first, span.upper) == (5, Frontier(20))


def test_errors_that_stay_behind_are_named() -> None:
    """Not at once: they are behind for a moment whenever the input moves."""
    clock = ManualClock()
    client = ShardClient.open(f"memory://readable-times-{next(LOCATIONS)}", clock=clock)
    append(client, "in_errors", [], 20)
    append(client, "below_errors", [], 10)
    with times(client) as found:
        assert found.span(5, Frontier(20)) is None
        assert found.unsettled(Frontier(20)) is None
        clock.advance(60_000)
        assert found.span(5, Frontier(20)) is None
        error = found.unsettled(Frontier(20))
        assert error is not None
        assert error.code == "ERRORS_UNSETTLED"
        assert "'below'" in str(error)
        assert found.span(5, Frontier(10)) is not None
        assert found.span(5, Frontier(20)) is None
        assert found.unsettled(Frontier(20)) is None


def test_errors_are_held_while_the_sink_is_away(client: ShardClient) -> None:
    """What came and went meanwhile is found, however long that took; a drop ends the hold."""
    append(client, "below_errors", [], 10)
    with times(client) as found:
        assert found.span(9, Frontier(10)) is not None
        found.release(9)
    append(client, "below_errors", [(12, 1)], 20)
    append(client, "below_errors", [(25, -1)], 1_000)
    client.set_retention("below_errors", 0)
    apply_retention(client.machine("below_errors"))
    client.compact("below_errors", force=True)
    with times(client) as found:
        span = found.span(10, Frontier(1_000))
        assert span is not None
        assert (span.first, span.upper) == (10, Frontier(12))
    assert set(client.state("below_errors").critical) == {"sink:out"}
    drop_sink(client, SinkDescription(name="out", on="in", format="memory"))
    assert client.state("below_errors").critical == {}


def test_times_before_all_history_are_passed_over(client: ShardClient) -> None:
    """Of an error shard that nobody held nothing is known before its since: that is not nothing."""
    append(client, "in_errors", [(12, 1)], 20)
    append(client, "in_errors", [(25, -1)], 40)
    client.set_retention("in_errors", 5)
    assert apply_retention(client.machine("in_errors"))
    since = client.state("in_errors").since.time
    assert since is not None
    assert since > 25
    with times(client) as found:
        span = found.span(10, Frontier(40))
        assert span is not None
        assert (span.first, span.upper) == (since, Frontier(40))
        span = found.span(10, Frontier(since))
        assert span is not None
        assert span.first is None
        with pytest.raises(Determinate, match="ERRORS_UNKNOWN"):
            raise found.error(span)

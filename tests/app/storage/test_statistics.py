"""Statistics: what adds up, what resets, what may not go back, and what is not known."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.app.execution.observations import Measured
from shardline.app.storage.statistics import Statistics


def source(statistics: Statistics, epoch: int = 1) -> Statistics:
    statistics.start("s", "source", epoch)
    return statistics


def now(statistics: Statistics, epoch: int = 1, **values: float | None) -> None:
    statistics.observe(Measured(id="s", epoch=epoch, now=values))


def row(statistics: Statistics) -> dict[str, float]:
    """The numbers of the only source."""
    return statistics.updates().sources["s"]


def test_nothing_measured_is_nothing_known() -> None:
    """An object that has measured nothing is there, without a number."""
    statistics = source(Statistics())
    statistics.start("t", "sink", 1)

    assert statistics.updates().sources == {"s": {}}
    assert statistics.updates().sinks == {"t": {}}


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(0, 100)), max_size=30))
def test_counters_add_up_over_incarnations(reports: list[tuple[int, int]]) -> None:
    """A counter is the sum of all reports but those that are older than one seen before."""
    statistics = source(Statistics())
    expected, newest = None, 1
    for epoch, more in reports:
        statistics.observe(Measured(id="s", epoch=epoch, added={"messages_received": more}))
        if epoch >= newest:
            expected, newest = (expected or 0) + more, epoch

    assert row(statistics).get("messages_received") == expected


def test_what_resets() -> None:
    """At a restart sizes of state are 0 if they were known, and a snapshot's are not known."""
    statistics = source(Statistics())
    now(statistics, records_indexed=5, rehydration_latency=70, snapshot_records_known=9)
    now(statistics, epoch=2, snapshot_records_staged=1)

    assert row(statistics) == {"records_indexed": 0, "snapshot_records_staged": 1}


def test_a_snapshots_size_may_become_unknown() -> None:
    """A nullable total is what was said last, also if that is "not known"."""
    statistics = source(Statistics())
    now(statistics, snapshot_records_known=9)
    now(statistics, snapshot_records_known=None)

    assert "snapshot_records_known" not in row(statistics)


def test_what_may_not_go_back(caplog: pytest.LogCaptureFixture) -> None:
    """What is committed and the flag of the snapshot keep what they were; the log says so."""
    statistics = source(Statistics())
    now(statistics, offset_known=10, offset_committed=8, snapshot_committed=1)
    with caplog.at_level(logging.ERROR):
        now(statistics, epoch=2, offset_committed=7, snapshot_committed=0)
    now(statistics, epoch=2, offset_committed=None)

    assert row(statistics)["offset_committed"] == 8
    assert row(statistics)["snapshot_committed"] == 1
    assert len(caplog.records) == 2


def test_a_query_that_has_just_begun_knows_less(caplog: pytest.LogCaptureFixture) -> None:
    """The greatest offset stays, and nothing is wrong that the log would have to say."""
    statistics = source(Statistics())
    now(statistics, offset_known=10, offset_committed=8)
    with caplog.at_level(logging.DEBUG):
        now(statistics, epoch=2, offset_known=9, offset_committed=9)

    assert row(statistics) == {"offset_known": 10, "offset_committed": 9}
    assert not caplog.records


def test_offsets_of_a_source_that_was_made_again(caplog: pytest.LogCaptureFixture) -> None:
    """Both go back together: a topic that was deleted begins at 0, one with a part less is less."""
    statistics = source(Statistics())
    now(statistics, offset_known=100, offset_committed=90)
    with caplog.at_level(logging.ERROR):
        for known, committed in ((9, 4), (9, 9), (12, 10), (11, 8)):
            now(statistics, offset_known=known, offset_committed=committed)
            assert row(statistics) == {"offset_known": known, "offset_committed": committed}
    assert not caplog.records


def test_a_lag_is_never_negative() -> None:
    """What is committed is known, also if nobody has looked at the source since."""
    statistics = source(Statistics())
    now(statistics, offset_known=10, offset_committed=25)

    assert row(statistics) == {"offset_known": 25, "offset_committed": 25}


def test_an_old_incarnation_changes_nothing() -> None:
    """What a stopped incarnation still sends is thrown away."""
    statistics = source(Statistics(), epoch=3)
    now(statistics, epoch=2, offset_known=10)
    statistics.observe(Measured(id="s", epoch=2, added={"bytes_received": 7}))

    assert row(statistics) == {}


def test_dropped_objects_are_forgotten() -> None:
    """A report about an object that is not there any more adds none."""
    statistics = source(Statistics())
    statistics.drop("s")
    now(statistics, offset_known=1)

    assert statistics.updates().sources == {}


@pytest.mark.parametrize(
    ("added", "gauges"),
    [
        ({"offset_known": 1.0}, {}),
        ({"messages": 1.0}, {}),
        ({"messages_received": -1.0}, {}),
        ({}, {"messages_received": 1.0}),
        ({}, {"messages_staged": 1.0}),
    ],
)
def test_what_means_nothing_is_refused(
    added: dict[str, float], gauges: dict[str, float | None], caplog: pytest.LogCaptureFixture
) -> None:
    """An unknown name, a wrong kind and a negative count change nothing, and are logged."""
    statistics = source(Statistics())
    with caplog.at_level(logging.ERROR):
        statistics.observe(Measured(id="s", epoch=1, added=added, now=gauges))

    assert row(statistics) == {}
    assert len(caplog.records) == 1


def test_a_sinks_statistics() -> None:
    """A sink has its own names, and is no source."""
    statistics = Statistics()
    statistics.start("t", "sink", 1)
    statistics.observe(Measured(id="t", epoch=1, added={"messages_staged": 3, "bytes_staged": 20}))
    statistics.observe(Measured(id="t", epoch=1, added={"messages_committed": 3}))

    assert statistics.updates().sources == {}
    assert statistics.updates().sinks == {
        "t": {"messages_staged": 3, "messages_committed": 3, "bytes_staged": 20}
    }

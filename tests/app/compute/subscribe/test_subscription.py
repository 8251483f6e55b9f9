"""Subscriptions against a model: any changes, any cutting, errors, slow clients, resuming."""

from __future__ import annotations

import re
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from shardline.app.compute.subscribe.batches import SubscriptionFeed
from shardline.app.compute.subscribe.subscription import (
    RunningSubscription,
    SubscribeSettings,
    batch_rows,
    resume_at,
    run_subscription,
)
from shardline.app.execution.observations import Ended, Hydrated
from shardline.app.execution.shard_follower import ShardFollower
from shardline.app.protocol.compute import SubscribeDropped, SubscribeResponse
from shardline.app.protocol.objects import SubscribeDescription
from shardline.datasource.errors import (
    Determinate,
    Indeterminate,
    LeaseExpired,
    ShardError,
)
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard.state import ShardState
from support.fakes.reads import Inputs, Place, Row, incarnation, model_at
from support.profiles import examples

SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.string())])
ERRORS = pa.schema([("error", pa.string())])
QUICK = SubscribeSettings(poll_ms=2)
LAST = 20

Updates = list[tuple[Row, int, int]]


@pytest.fixture
def place() -> Iterator[Place]:
    found = Place()
    yield found
    found.close()


def wanted(snapshot: bool = True, up_to: int | None = None) -> SubscribeDescription:
    return SubscribeDescription(name="t1", on="t", snapshot=snapshot, up_to=up_to)


def start(
    place: Place,
    what: SubscribeDescription,
    as_of: int,
    chosen: SubscribeSettings = QUICK,
    inputs: Inputs | None = None,
) -> RunningSubscription:
    running = run_subscription(
        place.host, incarnation("t1", as_of), what, inputs or Inputs(), chosen
    )
    assert isinstance(running, RunningSubscription)
    return running


def refused(place: Place, what: SubscribeDescription, as_of: int = 3) -> str:
    """The error of a subscription that cannot begin: all that its client gets."""
    place.rest()
    life = incarnation("t1", as_of)
    run_subscription(place.host, life, what, Inputs(), QUICK).stop()
    told = place.rest()
    (batch,) = [one for one in told if isinstance(one, SubscribeResponse)]
    assert (batch.id, batch.lower, batch.upper, batch.updates) == ("t1", as_of, None, None)
    assert [one for one in told if isinstance(one, SubscribeDropped)] == []
    assert told[-1] == Ended(id="t1", epoch=1)
    return batch.error


def updates(batch: SubscribeResponse) -> Updates:
    """A batch as `(row, time, diff)`."""
    table = batch_rows(batch)
    return [(tuple(row[:-2]), row[-2], row[-1]) for row in zip(*columns(table), strict=True)]


def columns(table: pa.Table) -> list[list[Any]]:
    return [column.to_pylist() for column in table.columns]


def to_the_end(place: Place, running: RunningSubscription) -> list[SubscribeResponse]:
    """All batches of a subscription that comes to an end, each acknowledged."""
    found = []
    while True:
        batch = place.next(SubscribeResponse)
        found.append(batch)
        running.acknowledge(batch.upper)
        if batch.upper is None:
            return found


def contiguous(batches: list[SubscribeResponse], as_of: int) -> bool:
    """Whether batches follow each other from `as_of`, and none is empty in time."""
    lower: int | None = as_of
    for batch in batches:
        if batch.lower != lower or (batch.upper is not None and batch.upper <= batch.lower):
            return False
        lower = batch.upper
    return lower is None


@st.composite
def histories(draw: st.DrawFn) -> Updates:
    """Updates that never take away what is not there, in order of time."""
    there: Counter[Row] = Counter()
    found: Updates = []
    for time in range(LAST):
        for _ in range(draw(st.integers(0, 2))):
            alive = sorted(row for row, count in there.items() if count)
            retracts = draw(st.booleans())
            if alive and retracts:
                row, diff = draw(st.sampled_from(alive)), -1
            else:
                row, diff = (draw(st.integers(0, 2)), draw(st.sampled_from("ab"))), 1
            there[row] += diff
            found.append((row, time, diff))
    return found


@examples()
@given(
    rows=histories(),
    cuts=st.sets(st.integers(1, LAST - 1), max_size=6),
    as_of=st.integers(0, LAST - 1),
    up_to=st.none() | st.integers(0, LAST),
    snapshot=st.booleans(),
    size=st.sampled_from([1 << 20, 120]),
)
def test_batches_rebuild_the_contents_at_every_progress(  # noqa: PLR0917 - drawn by name
    rows: Updates,
    cuts: set[int],
    as_of: int,
    up_to: int | None,
    snapshot: bool,
    size: int,
) -> None:
    """However time is cut, what came until a progress time is what the model says of it.

    With a snapshot: its contents right before that time. Without: what changed since `as_of`. In
    both cases one update per row and time, at its own time, and none twice.
    """
    up_to = None if up_to is None else max(up_to, as_of)
    place = Place()
    steps = iter([*sorted(cuts), LAST])
    lower = 0

    def step() -> None:
        nonlocal lower
        upper = next(steps)
        chosen = [one for one in rows if lower <= one[1] < upper]
        place.put("t", chosen, None if upper == LAST else upper, SCHEMA)
        lower = upper

    step()
    while lower <= as_of and lower < LAST:
        step()
    shard = ShardFollower.open(place.client, "t", since=as_of, purpose="test")
    seen: Updates = []
    end: int | None = as_of
    with SubscriptionFeed(place.host, wanted(snapshot, up_to), Inputs(), shard, as_of) as feed:
        while feed.frontier.time is not None:
            while lower < LAST and lower <= feed.frontier.time:
                step()
            batch = feed.next(threading.Event(), size, 2)
            assert batch is not None
            if batch.error:
                # What happens at one time may be too much for so small a batch.
                assert "SUBSCRIBE_TOO_LARGE" in batch.error
                assert size == 120
                break
            assert batch.lower == end
            assert batch.upper is None or batch.upper > batch.lower
            end = batch.upper
            found = updates(batch)
            assert len({(row, time) for row, time, _ in found}) == len(found)
            assert all(time >= batch.lower for _, time, _ in found)
            seen += found
            until = min(n for n in (end, up_to, LAST) if n is not None) - 1
            assert all(time <= until or time == as_of for _, time, _ in found)
            if up_to == as_of:
                assert not seen
                continue
            before = Counter() if snapshot else model_at(rows, as_of)
            expected = model_at(rows, max(until, as_of))
            expected.subtract(before)
            assert model_at(seen, LAST) == Counter({r: n for r, n in expected.items() if n})
    place.close()


@pytest.mark.parametrize("stop_after", range(1, 4))
def test_resuming_loses_and_repeats_nothing(place: Place, stop_after: int) -> None:
    """A subscription that goes on behind any batch has what one without interruption would."""
    rows: Updates = [((time % 3, "x"), time, 1) for time in range(1, 10)]
    place.put("t", [], 1, SCHEMA)
    for time in range(1, 10):
        place.put("t", [one for one in rows if one[1] == time], time + 1, SCHEMA)
    shard = ShardFollower.open(place.client, "t", since=3, purpose="test")
    seen: Updates = []
    # Small batches make many.
    with SubscriptionFeed(place.host, wanted(), Inputs(), shard, 3) as feed:
        for _ in range(stop_after):
            assert feed.frontier.time is not None
            assert feed.frontier.time < 10
            batch = feed.next(threading.Event(), 130, 2)
            assert batch is not None
            seen += updates(batch)
        upper = feed.frontier.time
    assert upper is not None
    running = start(place, wanted(snapshot=False, up_to=10), resume_at(upper))
    for batch in to_the_end(place, running):
        seen += updates(batch)
    running.stop()
    assert model_at(seen, LAST) == model_at(rows, LAST)
    assert len(seen) == len({(row, time) for row, time, _ in seen})


def test_a_subscription_ends_at_up_to(place: Place) -> None:
    """`up_to` is exclusive, the last batch has no upper, and it says that it has ended."""
    place.put("t", [((1, "a"), 2, 1), ((2, "b"), 5, 1), ((3, "c"), 6, 1)], 10, SCHEMA)
    running = start(place, wanted(up_to=6), 3)
    batches = to_the_end(place, running)
    place.next(Ended)
    running.stop()
    assert contiguous(batches, 3)
    assert [one for batch in batches for one in updates(batch)] == [
        ((1, "a"), 3, 1),
        ((2, "b"), 5, 1),
    ]
    assert any(isinstance(one, Hydrated) for one in place.seen)
    assert not any(isinstance(one, SubscribeDropped) for one in [*place.seen, *place.rest()])


def test_an_empty_interval_has_no_rows(place: Place) -> None:
    """`as_of = up_to` is one batch without updates; `up_to` before `as_of` is refused."""
    place.put("t", [((1, "a"), 2, 1)], 10, SCHEMA)
    running = start(place, wanted(up_to=3), 3)
    (batch,) = to_the_end(place, running)
    assert (batch.lower, batch.upper, updates(batch)) == (3, None, [])
    running.stop()
    assert re.match(
        r"\[INVALID_INTERVAL\].*at 2, before its as_of 3", refused(place, wanted(up_to=2))
    )


def test_progress_comes_when_nothing_happens(place: Place) -> None:
    """An upper that moves alone is a batch without updates."""
    place.put("t", [((1, "a"), 2, 1)], 10, SCHEMA)
    running = start(place, wanted(), 5)
    assert place.next(SubscribeResponse).upper == 10
    place.put("t", [], 30, SCHEMA)
    batch = place.next(SubscribeResponse)
    assert (batch.lower, batch.upper, updates(batch)) == (10, 30, [])
    running.stop()
    assert place.next(SubscribeDropped) == SubscribeDropped(id="t1", upper=30)


def test_without_a_snapshot_what_is_at_as_of_does_not_come(place: Place) -> None:
    """Only what happens strictly after `as_of` comes."""
    place.put("t", [((1, "a"), 5, 1), ((2, "b"), 6, 1)], 10, SCHEMA)
    running = start(place, wanted(snapshot=False), 5)
    assert updates(place.next(SubscribeResponse)) == [((2, "b"), 6, 1)]
    running.stop()


def test_a_live_error_poisons(place: Place) -> None:
    """What is before an error goes out; the error is last, though it is retracted later."""
    place.put("a_errors", [], 1, ERRORS)
    place.put("t", [((1, "a"), 2, 1), ((2, "b"), 7, 1)], 10, SCHEMA)
    place.put("a_errors", [(("bad date",), 6, 1), (("bad date",), 8, -1)], 10, ERRORS)
    running = start(place, wanted(), 3, inputs=Inputs(t=("a",)))
    batches = to_the_end(place, running)
    running.stop()
    assert contiguous(batches, 3)
    assert [(one.lower, one.upper) for one in batches] == [(3, 6), (6, None)]
    assert updates(batches[0]) == [((1, "a"), 3, 1)]
    assert "[INPUT_HAS_ERRORS] 'a' has 1 live error, the first" in batches[1].error
    assert "bad date" in batches[1].error
    with pytest.raises(Determinate, match="SUBSCRIPTION_POISONED"):
        batch_rows(batches[1])


def test_an_error_of_another_time_is_none(place: Place) -> None:
    """An error that was retracted before `as_of` poisons nothing; nor one of another object."""
    place.put("t_errors", [(("bad",), 1, 1), (("bad",), 3, -1)], 10, ERRORS)
    place.put("other_errors", [(("bad",), 1, 1)], 10, ERRORS)
    place.put("t", [((1, "a"), 2, 1)], 10, SCHEMA)
    running = start(place, wanted(up_to=8), 3)
    assert [batch.error for batch in to_the_end(place, running)] == [""]
    running.stop()


def test_a_batch_waits_for_the_errors_of_its_times(place: Place) -> None:
    """What the errors have not settled does not go out, although the object has."""
    place.put("t_errors", [], 5, ERRORS)
    place.put("t", [((1, "a"), 2, 1), ((2, "b"), 7, 1)], 10, SCHEMA)
    running = start(place, wanted(), 3)
    assert place.next(SubscribeResponse).upper == 5
    place.put("t_errors", [(("late",), 7, 1)], 10, ERRORS)
    assert place.next(SubscribeResponse).upper == 7
    assert "late" in place.next(SubscribeResponse).error
    running.stop()


def test_errors_of_a_former_input_are_not_waited_for(place: Place) -> None:
    """An object that is made of others now goes on; what it was made of is not held any more."""
    place.put("a_errors", [], 10, ERRORS)
    place.put("t", [((1, "a"), 2, 1)], 10, SCHEMA)
    inputs = Inputs(t=("a",))
    running = start(place, wanted(), 3, inputs=inputs)
    assert place.next(SubscribeResponse).upper == 10
    inputs["t"] = ()
    place.put("t", [((2, "b"), 12, 1)], 20, SCHEMA)
    batch = place.next(SubscribeResponse)
    assert (batch.upper, updates(batch)) == (20, [((2, "b"), 12, 1)])
    assert place.client.state("a_errors").leased == {}
    running.stop()


def test_a_slow_client_gets_intervals_joined(place: Place) -> None:
    """While the window is full nothing is read; what happened meanwhile is then one batch."""
    place.put("t", [], 10, SCHEMA)
    running = start(place, wanted(), 5, SubscribeSettings(poll_ms=2, window=1))
    first = place.next(SubscribeResponse)
    for time in range(10, 60, 10):
        place.put("t", [((time, "x"), time, 1)], time + 10, SCHEMA)
    running.acknowledge(first.upper)
    second = place.next(SubscribeResponse)
    assert (second.lower, second.upper, len(updates(second))) == (10, 60, 5)
    running.stop()


def test_a_client_that_stays_away_is_dropped(place: Place) -> None:
    """One that acknowledges nothing is told where its last batch ended, and holds nothing more."""
    place.put("t", [], 10, SCHEMA)
    impatient = SubscribeSettings(poll_ms=2, window=1, patience_ms=30)
    running = start(place, wanted(), 5, impatient)
    assert place.next(SubscribeResponse).upper == 10
    assert place.next(SubscribeDropped) == SubscribeDropped(id="t1", upper=10)
    place.next(Ended)
    running.stop()
    assert not place.client.state("t").leased


def test_what_was_stopped_before_its_first_batch_is_dropped_at_as_of(place: Place) -> None:
    """A subscription that waits for its first time stops at once when told."""
    place.put("t", [], 10, SCHEMA)
    running = start(place, wanted(), 500)
    running.stop()
    running.stop()
    assert place.next(SubscribeDropped) == SubscribeDropped(id="t1", upper=500)


def test_a_snapshot_beyond_the_limit_says_so(place: Place) -> None:
    """What happens at one time cannot be cut: it is an error with a hint."""
    place.put("t", [((i, "x" * 50), 2, 1) for i in range(100)], 10, SCHEMA)
    running = start(place, wanted(), 5, SubscribeSettings(poll_ms=2, batch_bytes=1000))
    (batch,) = to_the_end(place, running)
    assert batch.error.startswith("[SUBSCRIBE_TOO_LARGE] what happens in 't' at 5")
    running.stop()


def test_history_that_is_gone_is_refused(place: Place) -> None:
    """A client that was away for too long hears from which time on it can begin again."""
    place.put("t", [((1, "a"), 2, 1)], 100, SCHEMA)
    place.client.hold("t", "h").downgrade(Frontier(50))
    error = refused(place, wanted(snapshot=False), resume_at(40))
    assert re.match(r"\[HISTORY_GONE\].*since is \[50\]", error)


def test_a_subscription_of_a_shard_goes_on_with_no_other_one_of_its_name(place: Place) -> None:
    """Made again, the object has other contents at the same times. Without the id it goes on."""
    place.put("t", [((1, "a"), 2, 1)], 10, SCHEMA)
    (batch,) = to_the_end(place, start(place, wanted(up_to=5), 3))
    goes_on = replace(wanted(snapshot=False, up_to=8), shard=batch.shard)
    assert batch.shard == place.client.state("t").shard
    (more,) = to_the_end(place, start(place, goes_on, resume_at(5)))
    assert (more.error, more.shard) == ("", batch.shard)
    place.client.drop("t", despite_holders=list(place.client.state("t").leased))
    place.put("t", [((2, "b"), 2, 1)], 10, SCHEMA)
    error = refused(place, goes_on, resume_at(5))
    assert re.match(rf"\[HISTORY_GONE\].*'t'.*made again.*{batch.shard}.*with a snapshot", error)
    assert place.client.state("t").leased == {}
    unnamed = replace(goes_on, shard="")
    assert to_the_end(place, start(place, unnamed, resume_at(5)))[-1].error == ""


def test_what_cannot_begin_ends_with_the_reason(place: Place) -> None:
    """An error that is raised would be taken for one of the moment, and the start be repeated."""
    assert "no shard 't'" in refused(place, wanted())


def test_a_store_that_does_not_answer_is_tried_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says nothing about the subscription: the lane starts it once more."""
    place.put("t", [], 10, SCHEMA)

    def away(*_: Any, **__: Any) -> ShardFollower:
        raise Determinate("the store did not answer", hint="again")

    monkeypatch.setattr(ShardFollower, "open", away)
    with pytest.raises(Determinate):
        start(place, wanted(), 5)
    assert place.rest() == []


class Flaky:
    """A feed that fails as often as it is told to, before each batch."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, failures: int) -> None:
        self.left = self.failures = failures
        self.asked = threading.Event()
        real = SubscriptionFeed.next

        def fail_or_ask(feed: SubscriptionFeed, *given: Any) -> Any:
            self.asked.set()
            if self.left:
                self.left -= 1
                raise Indeterminate("the store did not answer", hint="again")
            self.left = self.failures
            return real(feed, *given)

        monkeypatch.setattr(SubscriptionFeed, "next", fail_or_ask)


def test_only_failures_in_a_row_are_counted(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store that fails now and then ends nothing: each batch begins another count."""
    place.put("t", [], 10, SCHEMA)
    Flaky(monkeypatch, 2)
    running = start(place, wanted(), 5, SubscribeSettings(poll_ms=1, retries=2))
    for upper in (10, 20, 30):
        assert place.next(SubscribeResponse).upper == upper
        running.acknowledge(upper)
        place.put("t", [], upper + 10, SCHEMA)
    running.stop()


def test_a_store_that_stays_away_ends_it(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many failures in a row the client hears where its last batch ended."""
    place.put("t", [], 10, SCHEMA)
    flaky = Flaky(monkeypatch, 99)
    running = start(place, wanted(), 5, SubscribeSettings(poll_ms=1, retries=2))
    assert place.next(SubscribeDropped) == SubscribeDropped(id="t1", upper=5)
    assert flaky.left == 99 - 3
    running.stop()


def fail_release(monkeypatch: pytest.MonkeyPatch, error: ShardError, times: int = 1) -> None:
    """The first releases of history fail; every batch tries one."""
    real, left = ShardFollower.release_before, [error] * times

    def release(shard: ShardFollower, time: int, state: ShardState) -> None:
        if left:
            raise left.pop()
        real(shard, time, state)

    monkeypatch.setattr(ShardFollower, "release_before", release)


@pytest.mark.parametrize("up_to", [None, 10, 20])
def test_a_release_that_fails_loses_no_batch(
    place: Place, monkeypatch: pytest.MonkeyPatch, up_to: int | None
) -> None:
    """Batches are contiguous, the first and the last as well."""
    rows: Updates = [((1, "a"), 3, 1), ((2, "b"), 12, 1)]
    fail_release(monkeypatch, Indeterminate("the store did not answer", hint="again"))
    place.put("t", rows[:1], 10, SCHEMA)
    running = start(place, wanted(up_to=up_to), 5, SubscribeSettings(poll_ms=1, retries=2))
    first = place.next(SubscribeResponse)
    running.acknowledge(first.upper)
    place.put("t", rows[1:], None, SCHEMA)
    found = [first]
    if first.upper is not None:
        found += to_the_end(place, running)
    assert contiguous(found, 5)
    came = [one for batch in found for one in updates(batch)]
    assert came == [((1, "a"), 5, 1), ((2, "b"), 12, 1)][: 1 if up_to == 10 else 2]
    running.stop()


def test_a_lost_lease_is_told_with_the_upper_of_the_last_batch(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever goes on from there has all before it."""
    fail_release(monkeypatch, LeaseExpired("too late", hint="again"))
    place.put("t", [((1, "a"), 3, 1)], 10, SCHEMA)
    running = start(place, wanted(), 5)
    dropped = place.next(SubscribeDropped)
    assert [one.upper for one in place.seen if isinstance(one, SubscribeResponse)] == [10]
    assert dropped.upper == 10
    running.stop()


def test_a_stop_ends_the_pause_after_a_failure(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However long the pause would be; what it was stopped for is the stop, not the failure."""
    caplog.set_level("INFO")
    place.put("t", [], 10, SCHEMA)
    flaky = Flaky(monkeypatch, 99)
    running = start(place, wanted(), 5, SubscribeSettings(poll_ms=3_600_000))
    assert flaky.asked.wait(60)
    threading.Thread(target=running.stop, daemon=True).start()
    assert place.next(SubscribeDropped) == SubscribeDropped(id="t1", upper=5)
    assert flaky.left == 99 - 1
    why = [vars(one)["context"]["why"] for one in caplog.records if "dropped" in one.message]
    assert why == ["stopped"]

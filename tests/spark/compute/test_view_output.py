"""A view's sink knows what its query fails with, and asks the store no more than it must."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from msgspec.structs import replace

from shardline.app.compute.view.next_step import (
    FollowChanges,
    OutputProgress,
    Recompute,
    Unchanged,
)
from shardline.app.compute.view.output import ViewSink
from shardline.app.execution.stopped import Stopped
from shardline.app.protocol.objects import ViewDescription, errors_shard
from shardline.app.storage.errors import open_errors
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Indeterminate, InvalidUsage
from shardline.datasource.frontier import EMPTY, Frontier
from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.since_hold import SinceHandle
from support.models.shards import World

pytestmark = [pytest.mark.spark, pytest.mark.usefixtures("spark")]

VIEW = ViewDescription(
    name="totals", query="SELECT 1 AS n", inputs=(), schema="n INT", strategy="recompute"
)


SHARDS = ("totals", errors_shard("totals"))


@pytest.fixture
def client() -> Iterator[ShardClient]:
    world = World()
    yield world.client()
    world.close()


@pytest.fixture
def sink(client: ShardClient) -> ViewSink:
    made = ViewSink(client, VIEW, [], lambda: None)
    made.make()
    return made


def records(client: ShardClient) -> int:
    """How often the errors shard's state has been written."""
    return client.state(errors_shard("totals")).seqno


def uppers(client: ShardClient) -> list[Frontier]:
    """Of the output and its errors, as readers see them."""
    return [state.upper for state in client.readable(*SHARDS)]


def errors_by_time(client: ShardClient) -> dict[int, int]:
    """How many errors readers are shown at each time, from 1 on."""
    until = min(one.time or 0 for one in uppers(client))
    with client.reader(errors_shard("totals")) as reader:
        return {at: reader.snapshot(at).num_rows for at in range(1, until)}


def test_steps_that_work_leave_the_errors_alone(client: ShardClient, sink: ViewSink) -> None:
    """But for the first one. A record of each step, or two of a lease, is as dear as its rows."""
    before = records(client)
    assert sink.append(Recompute(1, 0, 2), None, None)
    assert records(client) == before + 1
    assert sink.append(FollowChanges(2, 3), None, None)
    assert sink.follow(Unchanged(3, 4))
    assert sink.look() == OutputProgress(4, ours=True, failing=False)
    assert records(client) == before + 1
    assert uppers(client) == [Frontier(4)] * 2
    assert sink.append(Recompute(4, 4, 6), None, "division by zero")
    assert records(client) == before + 2
    assert sink.follow(Unchanged(6, 8))
    assert records(client) == before + 2
    assert sink.look() == OutputProgress(8, ours=True, failing=True, error="division by zero")
    assert sink.append(Recompute(8, 8, 10), None, None)
    assert sink.follow(Unchanged(10, 11))
    shown = dict.fromkeys(range(1, 11), 0) | dict.fromkeys(range(4, 8), 1)
    assert errors_by_time(client) == shown


def test_a_view_that_ends_ends_its_errors(client: ShardClient, sink: ViewSink) -> None:
    """Without this nobody would ever know of their last time."""
    assert sink.append(Recompute(1, 0, 2), None, None)
    assert sink.follow(Unchanged(2, 3))
    assert sink.follow(Unchanged(3, None))
    assert [client.state(one).upper for one in SHARDS] == [EMPTY, EMPTY]


def test_errors_of_an_output_that_is_registered_go_along_by_themselves(
    client: ShardClient, sink: ViewSink
) -> None:
    """Readers see the upper of its transactions shard, which says nothing of the errors."""
    assert sink.append(Recompute(1, 0, 2), None, None)
    client.transactions().register("totals")
    for upper in (3, 4, 5):
        assert sink.follow(Unchanged(upper - 1, upper))
    assert client.state(errors_shard("totals")).upper == Frontier(5)


def test_readers_of_errors_never_go_back_when_the_output_is_made_anew(
    client: ShardClient, sink: ViewSink
) -> None:
    """Other columns need another shard, whose upper begins at the start."""
    assert sink.append(Recompute(1, 0, 2), None, None)
    assert sink.follow(Unchanged(2, 50))
    other = ViewSink(client, replace(VIEW, schema="other STRING"), [], lambda: None)
    other.make()
    assert client.state("totals").upper == Frontier(0)
    assert client.readable(errors_shard("totals"))[0].upper == Frontier(50)


@pytest.mark.parametrize("crash", ["none", "before the rows ended", "between the drops"])
def test_what_another_definition_has_finished_is_made_anew(
    client: ShardClient, sink: ViewSink, crash: str
) -> None:
    """Nothing could be corrected behind its end: a constant view would never show another one."""
    assert sink.append(Recompute(1, 0, 2), None, "division by zero")
    if crash == "before the rows ended":
        assert sink._move_errors(None)
    else:
        assert sink.follow(Unchanged(2, None))
    same = ViewSink(client, VIEW, [], lambda: None)
    before = [client.state(one).shard for one in SHARDS]
    same.make()
    assert [client.state(one).shard for one in SHARDS] == before, "of the same definition it stays"
    if crash == "between the drops":
        client.drop("totals")
    other = ViewSink(client, replace(VIEW, query="SELECT 2 AS n"), [], lambda: None)
    other.make()
    look = other.look()
    assert not look.ours
    assert look.upper == (2 if crash == "before the rows ended" else 0)
    at = look.upper or 1
    assert other.append(Recompute(at, look.upper, at + 1), None, None)
    other.begin(Recompute(at, look.upper, at + 1))
    assert other.look() == OutputProgress(at + 1, ours=True, failing=False)
    assert errors_by_time(client)[at] == 0


@pytest.mark.parametrize("moment", range(1, 7))
def test_readers_of_errors_never_go_back_while_the_old_output_still_moves(
    client: ShardClient, sink: ViewSink, moment: int
) -> None:
    """An append whose gate was passed before the take-over comes between any two steps of it."""
    looks, shown = [0], list[dict[int, int]]()

    def gate() -> None:
        looks[0] += 1
        if looks[0] == moment:
            with suppress(InvalidUsage):  # it is dropped by then
                sink.follow(Unchanged(50, 60))
            shown.append(errors_by_time(client))

    assert sink.append(Recompute(1, 0, 2), None, None)
    assert sink.follow(Unchanged(2, 50))
    other = ViewSink(client, replace(VIEW, schema="other STRING"), [], gate)
    other.make()
    [errors] = client.readable(errors_shard("totals"))
    assert errors.upper > Frontier(max((49, *(max(one) for one in shown))))
    at = other.first_time()
    assert other.append(Recompute(at, 0, at + 9), None, "division by zero")
    found = errors_by_time(client)
    assert found[at] == 1
    for before in shown:
        assert {time: found[time] for time in before} == before


class Fenced(Stopped):
    """Another runtime has taken over."""


@pytest.mark.parametrize("moment", range(1, 5))
def test_a_sink_that_was_replaced_changes_nothing_at_times_that_were_read(
    client: ShardClient, sink: ViewSink, moment: int
) -> None:
    """It rests right behind a look at the fence, and comes back with an error of its own.

    Its successor has moved the output alone, past the times of that error, and readers were told
    that there is none.
    """
    looks, shown = [0], dict[int, int]()

    def gate() -> None:
        if shown:
            raise Fenced
        looks[0] += 1
        if looks[0] == moment:
            successor = ViewSink(client, VIEW, [], lambda: None)
            successor.make()
            upper = successor.look().upper or 0
            assert successor.append(FollowChanges(upper, upper + 1), None, None)
            assert successor.follow(Unchanged(upper + 1, 9))
            shown.update(errors_by_time(client))

    old = ViewSink(client, VIEW, [], gate)
    assert sink.append(Recompute(1, 0, 2), None, None)
    with suppress(Fenced):
        old.make()
        old.follow(Unchanged(2, 4))
        old.append(Recompute(4, 4, 6), None, "division by zero")
    assert shown, "it was never replaced"
    found = errors_by_time(client)
    assert {time: found[time] for time in shown} == shown


def test_errors_are_read_once_while_they_stay(client: ShardClient, sink: ViewSink) -> None:
    """And again by a sink that has just started, and once they are taken back."""
    assert sink.append(Recompute(1, 0, 2), None, "division by zero")
    assert sink.look().failing
    before = records(client)
    for upper in (3, 4, 5):
        assert sink.append(Recompute(upper - 1, upper - 1, upper), None, "division by zero")
        assert sink.look().failing
    assert records(client) == before
    again = ViewSink(client, VIEW, [], lambda: None)
    again.make()
    assert again.look().failing
    assert again.append(Recompute(5, 5, 6), None, None)
    assert not again.look().failing
    assert not sink.look().failing


def test_a_dropped_errors_shard_stops_the_contents_from_going_on_without_it(
    client: ShardClient, sink: ViewSink
) -> None:
    """A view that rests goes by what it knows of the shard; that it is gone is known, too."""
    assert sink.append(Recompute(1, 0, 2), None, None)
    client.drop(errors_shard(VIEW.name))
    client.machine(errors_shard(VIEW.name)).refresh()
    upper = client.state(VIEW.name).upper

    assert not sink.follow(Unchanged(2, 3))
    assert client.state(VIEW.name).upper == upper


def test_errors_of_a_source_are_in_the_way_and_the_way_out_is_said(client: ShardClient) -> None:
    """Earlier versions let a view take the name of a source whose shards are there."""
    open_errors(client, "totals")
    with pytest.raises(InvalidUsage, match=r"NAME_TAKEN.*a source had this name.*`drop totals`"):
        ViewSink(client, VIEW, [], lambda: None).make()


def test_a_step_that_heals_is_taken_whole(client: ShardClient) -> None:
    """It takes the error back, and ends before its rows: the output still is as when it failed.

    Until the rows are there the step must compute all anew; changes alone would miss those that
    came while the query failed.
    """
    left = [100]

    def gate() -> None:
        left[0] -= 1
        if not left[0]:
            raise Stopped

    sink = ViewSink(client, VIEW, [], gate)
    sink.make()
    assert sink.append(Recompute(1, 0, 2), None, None)
    assert sink.append(Recompute(2, 2, 5), None, "division by zero")
    left[0] = 2
    with pytest.raises(Stopped):
        sink.append(Recompute(5, 5, 7), None, None)
    assert [client.state(one).upper.time for one in ("totals", errors_shard("totals"))] == [5, 7]
    again = ViewSink(client, VIEW, [], lambda: None)
    again.make()
    assert again.look() == OutputProgress(5, ours=True, failing=True)
    assert again.append(Recompute(5, 5, 6), None, None)
    assert again.look() == OutputProgress(6, ours=True, failing=False)


def test_a_first_step_that_is_killed_begins_its_history_all_the_same(client: ShardClient) -> None:
    """Before its contents, and after them; what comes then may be of a later time."""
    first, sink = (ViewSink(client, VIEW, [], lambda: None) for _ in range(2))
    first.make()
    first.prepare_begin(Recompute(1000, 0, 1001))
    sink.make()
    step = Recompute(1500, 0, 1501)
    sink.prepare_begin(step)
    assert sink.append(step, None, None)
    again = ViewSink(client, VIEW, [], lambda: None)
    again.make()
    for one in ("totals", errors_shard("totals")):
        state = client.state(one)
        assert (state.critical, state.since) == ({}, Frontier(1500)), one


@pytest.mark.parametrize("shard", ["totals", errors_shard("totals")])
def test_no_transaction_writes_to_a_views_shards(
    client: ShardClient, sink: ViewSink, shard: str
) -> None:
    """From the moment that they are there; made by older code, from the view's next start on."""
    assert client.state(shard).upper == Frontier(0)
    with pytest.raises(InvalidUsage, match=r"TIMES_OF_WRITER.*'view totals'"):
        client.transaction().shard_id(shard)
    machine = client.machine(shard)
    machine.apply(lambda state, _: Transition(replace(state, times_by=""), None))
    sink.make()
    assert client.state(shard).times_by == "view totals"


@pytest.mark.parametrize("shard", ["totals", errors_shard("totals")])
@pytest.mark.parametrize("step", ["set_retention", "expire", "set_retention again"])
def test_history_has_its_start_whatever_comes_between(
    client: ShardClient, monkeypatch: pytest.MonkeyPatch, step: str, shard: str
) -> None:
    """A start that ends in the middle is finished by the next one: nothing is held for ever."""
    kept = replace(VIEW, retain_ms=100)
    sink = ViewSink(client, kept, [], lambda: None)
    sink.make()
    assert sink.append(Recompute(1000, 0, 1001), None, None)
    calls = [0]

    def failing(given: Callable[..., Any]) -> Callable[..., Any]:
        def call(who: Any, *args: Any) -> Any:
            mine = shard in (*args, getattr(getattr(who, "machine", None), "name", ""))
            calls[0] += mine
            if mine and calls[0] == (2 if step.endswith("again") else 1):
                raise Indeterminate("the store did not answer")
            return given(who, *args)

        return call

    owner = SinceHandle if step == "expire" else ShardClient
    name = step.split(maxsplit=1)[0]
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, failing(getattr(owner, name)))
        with pytest.raises(Indeterminate):
            sink.begin(Recompute(1000, 0, 1001))
    again = ViewSink(client, kept, [], lambda: None)
    again.make()
    for one in ("totals", errors_shard("totals")):
        state = client.state(one)
        assert (state.critical, state.since, state.retain_ms) == ({}, Frontier(1000), 100), one

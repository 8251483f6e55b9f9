"""Rounds of maintenance, and the thread that makes them."""

from __future__ import annotations

import itertools
import logging
import threading
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

import shardline.datasource.maintenance.compact
from shardline.datasource import maintainer as maintenance
from shardline.datasource.errors import Determinate, InvalidUsage, ShardError
from shardline.datasource.maintainer import (
    WHOLE_LOCATION,
    CollectionMemory,
    Maintainer,
    RoundResult,
    is_collection_due,
    maintain,
)
from shardline.datasource.maintenance.retention import set_retention
from shardline.datasource.parts import merge_parts
from shardline.datasource.parts.merge_parts import merge_work_bytes
from support.models.merging import SHARD, contents, expected, filled, next_merge, sizes
from support.models.shards import SETTINGS, TINY, Crash, Mortal, World, dangling, schema_of, table
from support.profiles import one_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.models.shards import Effect

BLOBS = replace(SETTINGS, inline_part_bytes=0, compact_factor=4)
QUIET = replace(BLOBS, compact_inline_bytes=0)
HOUR_MS = 3600 * 1000


# --- a round -------------------------------------------------------------------------------------


def test_a_round_makes_each_step_in_order(world: World) -> None:
    """The since moves, what cancels is merged away, what that dropped is deleted."""
    client = filled(world.client(replace(QUIET, sweep_every_ms=24 * HOUR_MS)), 8)
    world.clock.advance(10 * HOUR_MS)
    machine = client.machine(SHARD)
    set_retention(machine, HOUR_MS)
    client.writer(SHARD).append_now(table((99, "x")))
    for _ in range(32):
        client.writer(SHARD).append_now(None)
    done = maintain(machine)
    assert (done.retained, done.merges, done.failed) == (True, 1, ())
    assert done.collected is not None
    assert done.collected >= 8
    assert done.swept is None
    stored = {entry.key for entry in world.objects().entries(f"{SHARD}/part/")}
    assert stored == {p.key for b in client.state(SHARD).trace.batches for p in b.parts}
    world.clock.advance(30 * HOUR_MS)
    assert maintain(machine).swept is not None
    assert maintain(machine).swept is None


@pytest.mark.parametrize("broken", ["apply_retention", "compact", "collect_garbage", "sweep"])
def test_a_step_that_fails_does_not_stop_the_others(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    broken: str,
) -> None:
    """It is logged with its name, and told."""
    client = filled(world.client(QUIET), 40)
    set_retention(client.machine(SHARD), HOUR_MS)
    world.clock.advance(30 * HOUR_MS)
    client.writer(SHARD).append_now(None)

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(broken)

    monkeypatch.setattr(maintenance, broken, fail)
    done = maintain(client.machine(SHARD))
    steps = {
        "apply_retention": "retention",
        "compact": "compaction",
        "collect_garbage": "collection",
        "sweep": "sweep",
    }
    assert done.failed == (steps[broken],)
    assert done.retained == (broken != "apply_retention")
    assert (done.merges > 0) == (broken != "compact")
    assert (done.collected is None) == (broken == "collect_garbage")
    assert (done.swept is None) == (broken == "sweep")
    assert [r.message for r in caplog.records] == ["maintenance step failed"]


def test_a_round_merges_within_its_budget(world: World) -> None:
    """The next one goes on."""
    client = filled(world.client(QUIET), 3)
    for size in (1, 40, 1, 1, 1):
        client.writer(SHARD).append_now(table(*((n, "x") for n in range(size))))
    before = contents(client)
    machine = client.machine(SHARD)
    tight = merge_work_bytes(p for b in machine.state().trace.batches for p in b.parts) // 2
    while maintain(machine, merge_bytes=tight).merges:
        pass
    loose = maintain(machine).merges
    assert loose <= 1
    assert next_merge(machine.state().trace, 4) is None
    assert contents(client) == before


def test_a_collection_waits_until_it_is_worth_it(world: World) -> None:
    """For records enough, or for rest; and what was looked at in vain is not looked at again."""
    client = filled(world.client(QUIET), 3)
    machine, memory = client.machine(SHARD), CollectionMemory()

    def due() -> bool:
        return is_collection_due(machine.state(), world.clock.now_ms(), memory)

    assert not due()
    world.clock.advance(HOUR_MS)
    assert due()
    assert maintain(machine, memory).collected is not None
    assert not due()
    for _ in range(40):
        client.writer(SHARD).append_now(table((1, "x")))
    assert due()
    with client.reader(SHARD):
        held = machine.state().seqno
        assert due()
        assert maintain(machine, memory).collected is not None
        assert memory.collected == held
        for _ in range(40):
            client.writer(SHARD).append_now(None)
        assert not due()
    assert due()


def test_a_collection_gives_itself_nothing_to_do(world: World) -> None:
    """A shard at rest comes to rest: no records, and hardly a request."""
    client = filled(world.client(replace(QUIET, sweep_every_ms=10**12)), 10)
    machine, memory = client.machine(SHARD), CollectionMemory()
    for _ in range(4):
        world.clock.advance(HOUR_MS)
        maintain(machine, memory)
    seqno = machine.state().seqno
    for _ in range(4):
        world.clock.advance(HOUR_MS)
        done = maintain(machine, memory)
        assert (done.merges, done.collected, done.swept) == (0, None, None)
    assert machine.state().seqno == seqno


def test_what_was_dropped_is_tidied_up(world: World) -> None:
    """A dropped shard is neither merged nor moved, and leaves one record."""
    client = filled(world.client(QUIET), 5)
    machine = client.machine(SHARD)
    client.drop(SHARD)
    world.clock.advance(HOUR_MS)
    assert maintain(machine).failed == ()
    assert not list(world.objects().entries(f"{SHARD}/part/"))


def test_a_shard_that_is_not_there_is_refused(world: World) -> None:
    """Whoever names it should hear of it."""
    with pytest.raises(InvalidUsage, match="SHARD_NOT_FOUND"):
        maintain(world.client().machine("nobody"))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("effect", "lasts"), one_of(3, itertools.product(["none", "done", "late"], [None, 1]))
)
def test_broken_at_any_operation_the_next_round_finishes(
    effect: Effect, lasts: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contents and references are right at once, and everything is tidy after two more rounds."""
    monkeypatch.setattr(shardline.datasource.maintenance.compact, "_CLAIM_BYTES", 1)
    settings = replace(TINY, inline_part_bytes=0, compact_inline_bytes=0, compact_factor=4)
    for at in itertools.count():
        world = World()
        client = filled(world.client(settings), 5)
        set_retention(client.machine(SHARD), 1)
        world.clock.advance(30 * HOUR_MS)
        client.writer(SHARD).append_now(table((7, "x")))
        before = contents(client)
        store = Mortal(world.objects(), at, effect, lasts=lasts)
        try:
            maintain(world.client(settings, store).machine(SHARD))
        except (Crash, ShardError):
            assert store.failed
        store.deliver()
        assert contents(world.client()) == before
        assert dangling(world.client().machine(SHARD)) == []
        machine = world.client(settings).machine(SHARD)
        for _ in range(3):
            world.clock.advance(30 * HOUR_MS)
            done = maintain(machine)
            assert done.failed == ()
        assert contents(world.client()) == before
        assert len(machine.state().trace.batches) <= 3
        assert machine.state().claims == {}
        stored = {entry.key for entry in world.objects().entries(f"{SHARD}/part/")}
        assert stored == {p.key for b in machine.state().trace.batches for p in b.parts}
        world.close()
        if not store.failed:
            assert at > 20
            return


# --- the thread ----------------------------------------------------------------------------------


def test_a_maintainer_looks_after_all_shards(world: World) -> None:
    """Also after those that are made later; one that cannot be read does not stop the others."""
    client = filled(filled(world.client(QUIET), 8, "a"), 8, "b")
    keeper = Maintainer(world.client(QUIET))
    done = keeper.round()
    assert {name: one.merges for name, one in done.items()} == {"a": 1, "b": 1}
    filled(client, 8, "c")
    world.objects().put(
        "b/log/" + next(e.key.rpartition("/")[2] for e in world.objects().entries("b/log/")),
        b"nonsense",
    )
    done = Maintainer(world.client(QUIET)).round()
    assert {name: one.failed for name, one in done.items()} == {"a": (), "b": ("state",), "c": ()}
    assert sizes(client, "c") == [16]


def test_named_shards_only(world: World) -> None:
    """The others are somebody else's; one that is not there is left out."""
    client = filled(filled(world.client(QUIET), 8, "a"), 8, "b")
    done = Maintainer(world.client(QUIET), shards=["b", "nobody"]).round()
    assert list(done) == ["b"]
    assert sizes(client, "a") == [2] * 8


def test_registered_shards_are_looked_after_too(world: World) -> None:
    """What was committed and not applied stays; once applied it is taken back, and leaks go."""
    client = filled(filled(world.client(QUIET), 1, "a"), 1, "b")
    client.transactions().register("a", "b")
    with client.transaction() as both:
        both.append("a", table((7, "x")))
        both.append("b", table((8, "x")))
    leak = "a/part/leaked.parquet"
    world.objects().put(leak, b"left by a crash")
    world.clock.advance(30 * HOUR_MS)
    keeper = Maintainer(world.client(QUIET))
    done = keeper.round()
    assert not any(one.failed for one in done.values())
    swept = done["a"].swept
    assert swept is not None
    assert swept.keys == (leak,)
    assert client.transactions().tidy() == 0
    seqno = client.state("_transactions").seqno
    keeper.round()
    assert client.state("_transactions").seqno == seqno, (
        "a transactions shard at rest is left alone"
    )
    assert contents(client, "a") == Counter([*expected(1), (7, "x")])


class TickingClock:
    """A clock whose waits return at once, and say how long they were to be."""

    def __init__(self, world: World, rounds: int) -> None:
        self._inner = world.clock
        self._left = rounds
        self.paused: list[float] = []
        self.ended = threading.Event()

    def now_ms(self) -> int:
        return self._inner.now_ms()

    def elapsed_ms(self) -> float:
        return self._inner.elapsed_ms()

    def wait(self, signal: threading.Event, timeout_ms: float) -> bool:
        if len(self.paused) > self._left:
            self.ended.set()
            return signal.wait()
        self.paused.append(timeout_ms)
        return signal.is_set()


def test_the_thread_makes_rounds_with_jitter_until_it_is_stopped(world: World) -> None:
    """The first begins within a period, the others half to one and a half after the last."""
    filled(world.client(QUIET), 8)
    client = world.client(QUIET)
    clock = TickingClock(world, rounds=5)
    client.clock = clock
    with Maintainer(client, period_ms=1000) as keeper:
        assert clock.ended.wait(60)
        with pytest.raises(InvalidUsage, match="ALREADY_STARTED"):
            keeper.start()
    assert sizes(world.client()) == [16]
    first, *others = clock.paused
    assert 0 <= first < 1000
    assert len(set(others)) == len(others) == 5
    assert all(500 <= pause < 1500 for pause in others)
    assert not any(t.name == "maintenance" for t in threading.enumerate())


def test_a_merge_under_way_is_given_up_by_who_stops(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With its claim and what it has written; nothing is told of steps that were left out."""
    monkeypatch.setattr(shardline.datasource.maintenance.compact, "_CLAIM_BYTES", 1)
    # Of four streams two fit into memory: the first pass writes before the next one reads.
    monkeypatch.setattr(merge_parts, "BATCH_ROWS", 1)
    settings = replace(QUIET, compact_memory_bytes=1)
    client = filled(world.client(settings), 4)
    before, stored = contents(client), parts_stored(world)
    written: list[str] = []
    told: list[str] = []

    class Stopping(Mortal):
        @override
        def put(self, key: str, value: bytes | memoryview) -> None:
            super().put(key, value)
            if "/part/" in key:
                written.append(key)
                keeper.cancel()

    keeper = Maintainer(
        world.client(settings, Stopping(world.objects())),
        observer=lambda name, *_: told.append(name),
    )
    done = keeper.round()[SHARD]
    assert written
    assert (done, told) == (RoundResult(), [WHOLE_LOCATION])
    state = world.client().state(SHARD)
    assert (len(state.trace.batches), state.claims, parts_stored(world)) == (4, {}, stored)
    assert Maintainer(world.client(settings)).round()[SHARD].merges == 1
    assert contents(world.client()) == before


def parts_stored(world: World) -> set[str]:
    return {entry.key for entry in world.objects().entries(f"{SHARD}/part/")}


def test_who_stops_begins_no_other_step(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that it is at is finished."""
    client = filled(world.client(QUIET), 40)
    keeper = Maintainer(client)

    def retain(_: object) -> bool:
        keeper.cancel()
        return True

    monkeypatch.setattr(maintenance, "apply_retention", retain)
    monkeypatch.setattr(maintenance, "collect_garbage", pytest.fail)
    assert keeper.round()[SHARD] == RoundResult(retained=True)
    assert sizes(client) == [2] * 40


def test_two_maintainers_do_not_make_the_same_merge(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While one is at it the other one leaves it alone, and merges what comes meanwhile."""
    monkeypatch.setattr(shardline.datasource.maintenance.compact, "_CLAIM_BYTES", 1)
    filled(world.client(QUIET), 4)
    others = Maintainer(world.client(QUIET))
    made: list[int] = []

    class Slow(Mortal):
        @override
        def put(self, key: str, value: bytes | memoryview) -> None:
            if not made and "/part/" in key:
                made.append(others.round()[SHARD].merges)
                filled(world.client(QUIET), 4)
                made.append(others.round()[SHARD].merges)
            super().put(key, value)

    slow = Maintainer(world.client(QUIET, Slow(world.objects())))
    assert slow.round()[SHARD].merges == 1
    assert made == [0, 1]
    assert sizes(world.client()) == [8, 8]
    assert contents(world.client()) == Counter(dict.fromkeys(expected(4), 2))


@pytest.mark.slow
def test_maintainers_and_writers_side_by_side(world: World) -> None:
    """Threads with clients of their own, as processes have: nothing is lost, added or dangling."""
    filled(world.client(QUIET), 0)
    failures: list[BaseException] = []

    def guarded(act: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                act()
            except BaseException as error:  # noqa: BLE001 - told below, by the test's own thread
                failures.append(error)

        return threading.Thread(target=run)

    def write(first: int) -> None:
        writer = world.client(BLOBS).writer(SHARD)
        for number in range(first, first + 40):
            writer.append_now(table((number, "x"), (number, "y")))

    def keep() -> None:
        keeper = Maintainer(world.client(BLOBS))
        for _ in range(10):
            keeper.round()

    threads = [guarded(lambda: write(0)), guarded(lambda: write(40)), guarded(keep), guarded(keep)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    Maintainer(world.client(BLOBS)).round()
    client = world.client(BLOBS)
    assert contents(client) == expected(80)
    assert dangling(client.machine(SHARD)) == []
    assert next_merge(client.state(SHARD).trace, BLOBS.compact_factor) is None


def test_shards_that_cannot_be_listed_are_tried_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The store does not answer: the round ends, the thread does not."""
    filled(world.client(QUIET), 4)
    down = [True]

    class Silent(Mortal):
        @override
        def directories(self) -> list[str]:
            if down[0]:
                raise Determinate("connection lost")
            return super().directories()

    seen: list[tuple[str, tuple[str, ...]]] = []
    keeper = Maintainer(
        world.client(QUIET, Silent(world.objects())),
        observer=lambda name, done, _: seen.append((name, done.failed)),
    )
    with caplog.at_level(logging.WARNING):
        assert keeper.round() == {WHOLE_LOCATION: RoundResult(failed=("listing",))}
    assert [r.message for r in caplog.records] == ["shards not listed for maintenance"]
    down.clear()
    down.append(False)
    assert keeper.round()[SHARD].merges == 1
    assert seen == [(WHOLE_LOCATION, ("listing",)), (WHOLE_LOCATION, ()), (SHARD, ())]
    with pytest.raises(InvalidUsage):
        keeper.client.create(WHOLE_LOCATION, schema_of())


def test_no_error_ends_the_thread(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Neither of the store nor of the program: shards would silently be maintained no more."""
    filled(world.client(QUIET), 4)
    listed = list[str]()

    class Broken(Mortal):
        @override
        def directories(self) -> list[str]:
            listed.append("once more")
            if len(listed) == 1:
                raise RuntimeError("no more threads")
            return super().directories()

    client = world.client(QUIET, Broken(world.objects()))
    client.clock = clock = TickingClock(world, rounds=2)
    with Maintainer(client, period_ms=1000):
        assert clock.ended.wait(60)
    assert sizes(world.client()) == [8]
    assert clock.paused[1] == 1000
    (record,) = [r for r in caplog.records if r.name.endswith("background")]
    assert record.__dict__["context"] == {"thread": "maintenance"}


def test_an_error_met_on_one_shard_leaves_the_others(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever it is: it is logged, and the shards after it have their round."""
    client = world.client(QUIET)
    for name in ("a", "b", "c"):
        client.create(name, schema_of())
    one = Maintainer._one

    def broken(self: Maintainer, name: str) -> RoundResult:
        if name == "b":
            raise RuntimeError(name)
        return one(self, name)

    monkeypatch.setattr(Maintainer, "_one", broken)
    done = Maintainer(client).round()
    assert {name: one.failed for name, one in done.items()} == {"a": (), "b": ("state",), "c": ()}
    assert [r.__dict__["context"] for r in caplog.records] == [{"shard": "b"}]


def test_a_start_without_a_thread_may_be_tried_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process at its limit of threads has started nothing, and is not told that it has."""
    keeper = Maintainer(world.client(QUIET), period_ms=10**9)

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        for _ in range(2):
            with pytest.raises(RuntimeError, match="new thread"):
                keeper.start()
    keeper.stop()
    with keeper, pytest.raises(InvalidUsage, match="ALREADY_STARTED"):
        keeper.start()

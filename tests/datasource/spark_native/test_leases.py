"""Leases of native reads: renewed while somebody may read, however busy the driver is."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

from typing_extensions import override

from shardline.datasource.background import PeriodicThread
from shardline.datasource.clock import SystemClock
from shardline.datasource.frontier import Frontier
from shardline.datasource.lease import Lease, take_lease
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard_source import partition_planner
from shardline.datasource.shard_source.partition_planner import (
    forget_batch_leases,
    take_batch_lease,
)
from shardline.datasource.spark_native.leases import LeaseKeeper
from support.models.shards import SETTINGS, World, schema_of, updates
from support.waiting import wait_until

if TYPE_CHECKING:
    from shardline.datasource.client import ShardClient
    from shardline.datasource.shard_source.fetch_task import PlanLease

LEASE_MS = 800
BUSY_MS = 100


@dataclass
class BusyClock:
    """A clock on which every wait is ended early by one more read, until the reads are over."""

    rounds: int
    elapsed: float = 0.0
    goes: threading.Event = field(default_factory=threading.Event)
    """No time passes before it is set."""

    def now_ms(self) -> int:
        return int(self.elapsed)

    def elapsed_ms(self) -> float:
        return self.elapsed

    def wait(self, signal: threading.Event, timeout_ms: float) -> bool:
        del signal
        assert self.goes.wait(60)
        self.rounds -= 1
        assert self.rounds > -1000, "it never ends"
        busy = self.rounds > 0
        self.elapsed += min(BUSY_MS, timeout_ms) if busy else timeout_ms
        return busy


@dataclass
class CountedLease:
    clock: BusyClock
    reader: str = "r1"
    lease_ms: int = LEASE_MS
    renewed: list[float] = field(default_factory=list)
    released: bool = False
    machine: Any = field(
        default_factory=lambda: SimpleNamespace(
            name="orders", location=SimpleNamespace(url="memory:x")
        )
    )

    def renew(self) -> None:
        self.renewed.append(self.clock.elapsed)

    def release(self) -> None:
        self.released = True


def _thread_of(keeper: LeaseKeeper) -> PeriodicThread:
    """The thread of the one location that it has leases of."""
    [found] = keeper._locations.values()
    assert found.thread is not None
    return found.thread


@dataclass
class Frame:
    clock: BusyClock

    def is_alive(self) -> bool:
        return self.clock.rounds > 0


def test_reads_that_are_planned_all_the_time_keep_no_lease_from_being_renewed() -> None:
    """No two renewals are further apart than half a lease, and the end releases it."""
    clock = BusyClock(rounds=50)
    keeper = LeaseKeeper(clock)
    lease: Any = CountedLease(clock)
    keeper.renew_while_read(lease, Frame(clock))
    thread = _thread_of(keeper)
    clock.goes.set()
    assert thread.join(60_000)
    times = [0.0, *lease.renewed]
    gaps = [after - before for before, after in pairwise(times)]
    assert len(gaps) > 15
    assert max(gaps) <= LEASE_MS / 2
    assert lease.released


def test_a_renewal_that_fails_keeps_no_other_lease_from_being_renewed() -> None:
    """Whatever the error is, and it is tried again with the next ones."""
    clock = BusyClock(rounds=20)
    keeper = LeaseKeeper(clock)
    broken: Any = Broken(clock)
    lease: Any = CountedLease(clock, "r2")
    with keeper.planning():
        keeper.renew_while_read(broken, Frame(clock))
        keeper.renew_while_read(lease, Frame(clock))
        thread = _thread_of(keeper)
    # Not before both are kept: the thread has begun with the first one.
    clock.goes.set()
    assert thread.join(60_000)
    assert thread.error is None
    assert len(lease.renewed) > 3
    assert lease.renewed == broken.renewed
    assert lease.released
    assert broken.released


@dataclass
class Broken(CountedLease):
    """A lease that no renewal reaches."""

    @override
    def renew(self) -> None:
        super().renew()
        raise RuntimeError("a bug, or no more memory")


@dataclass
class StillClock(BusyClock):
    """A clock whose time stands still: a wait lasts until its signal, or until the test's end."""

    rounds: int = 1
    elapsed: float = 1e9
    waited: list[float] = field(default_factory=list)
    deaf: bool = False

    @override
    def wait(self, signal: threading.Event, timeout_ms: float) -> bool:
        self.waited.append(timeout_ms)
        return (self.goes if self.deaf else signal).wait(60)


def test_a_shorter_lease_is_renewed_in_its_own_time() -> None:
    """The pause for a longer one ends when it comes; nothing is renewed before it is due."""
    clock = StillClock()
    keeper = LeaseKeeper(clock)
    leases: list[Any] = [CountedLease(clock), CountedLease(clock, "r2", LEASE_MS // 10)]
    for lease in leases:
        keeper.renew_while_read(lease, Frame(clock))
        due_ms = lease.lease_ms / 4
        wait_until("its pause", lambda due_ms=due_ms: clock.waited[-1:] == [due_ms], 30)  # type: ignore[misc]
    assert [lease.renewed for lease in leases] == [[], []]
    _end(keeper, clock)


def test_a_lease_that_comes_while_the_thread_ends_has_another_one() -> None:
    """It has seen that there is none and looks no more, though it still runs for a moment."""
    clock = StillClock(deaf=True)
    keeper = LeaseKeeper(clock)
    leases: list[Any] = [CountedLease(clock), CountedLease(clock, "r2")]
    keeper.renew_while_read(leases[0], Frame(clock))
    ending = _thread_of(keeper)
    wait_until("it pauses", lambda: bool(clock.waited), 30)
    [(url, found)] = keeper._locations.items()
    found.kept.clear()
    assert keeper._step(url, found) is None
    assert ending.is_running
    keeper.renew_while_read(leases[1], Frame(clock))
    assert _thread_of(keeper) is not ending
    _end(keeper, clock)
    assert ending.stop(60_000)


def _end(keeper: LeaseKeeper, clock: StillClock) -> None:
    """End all readers, and with them the thread."""
    thread = _thread_of(keeper)
    clock.rounds = 0
    keeper.beat()
    clock.goes.set()
    thread.wake.set()
    assert thread.join(60_000)


def test_a_location_that_hangs_delays_no_other() -> None:
    """Its requests may take minutes, and the leases of others are over by then."""
    keeper, answer = LeaseKeeper(SystemClock()), threading.Event()
    hangs, works = (
        mock.Mock(reader=url, lease_ms=40, machine=mock.Mock(location=mock.Mock(url=url)))
        for url in ("a", "b")
    )
    hangs.renew.side_effect = answer.wait
    life = mock.Mock()
    life.is_alive.return_value = True
    keeper.renew_while_read(hangs, life)
    wait_until("its store is asked", lambda: hangs.renew.called, 60)
    keeper.renew_while_read(works, life)
    wait_until("the other is renewed again", lambda: works.renew.call_count > 2, 60)
    assert hangs.renew.call_count == 1
    life.is_alive.return_value = False
    wait_until("the other is released", lambda: works.release.called, 60)
    hangs.release.assert_not_called()
    answer.set()
    wait_until("it is released", lambda: hangs.release.called, 60)


def _stop(keeper: LeaseKeeper) -> None:
    threads = [found.thread for found in keeper._locations.values()]
    keeper.release_all()
    for thread in threads:
        assert thread is not None
        thread.wake.set()
        assert thread.join(60_000)


def _world() -> tuple[World, ShardClient]:
    """A location with the shards `in` and `out`."""
    world = World()
    client = world.client(SETTINGS)
    for name in ("in", "out"):
        client.create(name, schema_of())
        client.writer(name).compare_and_append(updates((1, "a", 1, 1)), Frontier(0), Frontier(2))
    return world, client


def _kept(client: ShardClient, guard: PlanLease) -> Lease:
    return Lease(client.machine("in"), guard.reader, guard.lease_ms, Frontier(0), 0)


def test_plans_under_way_all_the_time_do_not_keep_leases_for_ever() -> None:
    """A lease without readers goes once all plans that may share it have ended; others may run."""
    world, client = _world()
    keeper = LeaseKeeper(StillClock())
    with ExitStack() as first, ExitStack() as second, ExitStack() as third:
        first.enter_context(keeper.planning())
        guard = take_batch_lease(client, "in", 1)
        keeper.renew_while_read(_kept(client, guard))
        keeper.beat()
        second.enter_context(keeper.planning())
        own = take_batch_lease(client, "in", 1)
        assert own.reader != guard.reader
        keeper.beat()
        assert client.state("in").leased.keys() == {guard.reader, own.reader}
        first.close()
        third.enter_context(keeper.planning())
        keeper.beat()
        # One is under way at every beat, and the lease is gone all the same.
        assert client.state("in").leased.keys() == {own.reader}
    _stop(keeper)
    world.close()


def test_a_plan_that_had_shared_a_lease_before_it_was_given_up_keeps_it() -> None:
    """Its frame has the lease for as long as it lives; it ends when nothing else can have it."""
    world, client = _world()
    keeper = LeaseKeeper(StillClock())
    life = mock.Mock()
    life.is_alive.return_value = True
    guard = take_batch_lease(client, "in", 1)
    with keeper.planning():
        assert take_batch_lease(client, "in", 1).reader == guard.reader
        keeper.renew_while_read(_kept(client, guard))
        keeper.beat()
        keeper.renew_while_read(_kept(client, guard), life)
    keeper.beat()
    assert guard.reader in client.state("in").leased
    life.is_alive.return_value = False
    with keeper.planning():
        keeper.beat()
        assert guard.reader in client.state("in").leased
    keeper.beat()
    assert guard.reader not in client.state("in").leased
    _stop(keeper)
    world.close()


def test_a_store_that_hangs_holds_up_no_plan_of_another_shard() -> None:
    """Nor the keeper: it renews, keeps and gives up the leases of all others meanwhile."""
    world, client = _world()
    keeper = LeaseKeeper(StillClock())
    guard = take_batch_lease(client, "in", 1)
    keeper.renew_while_read(_kept(client, guard))
    asked, answer = threading.Event(), threading.Event()

    def hang(machine: Machine, **given: Any) -> Any:
        if machine.name == "out":
            asked.set()
            assert answer.wait(120)
        return take_lease(machine, **given)

    def others() -> str:
        with keeper.planning():
            found = take_batch_lease(client, "in", 1)
            keeper.renew_while_read(_kept(client, found))
        keeper.beat()
        keeper.release_all()
        return found.reader

    with (
        mock.patch.object(partition_planner, "take_lease", hang),
        ThreadPoolExecutor(2) as pool,
    ):
        hangs = pool.submit(take_batch_lease, client, "out", 1)
        assert asked.wait(60)
        try:
            assert pool.submit(others).result(30) == guard.reader
        finally:
            answer.set()
        assert hangs.result(60).reader in client.state("out").leased
    assert not client.state("in").leased
    _stop(keeper)
    world.close()


def test_a_lease_that_is_forgotten_while_the_store_is_asked_is_not_shared() -> None:
    """It is given up as soon as the plans end that had it before."""
    world, client = _world()
    guard = take_batch_lease(client, "in", 1)
    asked = Machine.state

    def forget(machine: Machine) -> Any:
        found = asked(machine)
        forget_batch_leases({guard.reader})
        return found

    with mock.patch.object(Machine, "state", forget):
        assert take_batch_lease(client, "in", 1).reader != guard.reader
    world.close()

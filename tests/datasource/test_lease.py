"""Leases: kept alive by beats, lost without them, and never in the way of what they protect."""

from __future__ import annotations

import gc
import threading
from dataclasses import replace
from typing import ClassVar

import pytest
from typing_extensions import override

from shardline.datasource.background import BackgroundThread
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Determinate, InvalidUsage, LeaseExpired
from shardline.datasource.frontier import Frontier
from shardline.datasource.lease import Lease, LeaseRenewer, take_lease
from shardline.datasource.shard_source.holds import StreamHolds
from shardline.datasource.stores.faulty import Fault, Faulty
from support.fakes.clock import ManualClock
from support.models.shards import SETTINGS, World, rows, schema_of, table
from support.waiting import wait_until

SHARD = "orders"
LEASE_MS = 1600


@pytest.fixture
def client(world: World) -> ShardClient:
    """A client with a shard of one row."""
    made = world.client()
    made.create(SHARD, schema_of())
    made.writer(SHARD).append_now(table((1, "a")))
    return made


def lease_of(client: ShardClient) -> Lease:
    lease = take_lease(client.machine(SHARD), since=None, lease_ms=LEASE_MS, purpose="a test")
    assert isinstance(lease, Lease)
    return lease


class Beats(ManualClock):
    """A clock for a heart: a number of pauses pass at once, then it waits to be stopped."""

    def __init__(self, pauses: int) -> None:
        super().__init__()
        self.waited: list[float] = []
        self.done = threading.Event()
        self._pauses = pauses

    @override
    def wait(self, signal: threading.Event, timeout_ms: float) -> bool:
        self.waited.append(timeout_ms)
        if len(self.waited) <= self._pauses:
            return False
        self.done.set()
        return signal.wait()


def test_a_heart_beats_at_half_of_the_lease(world: World, client: ShardClient) -> None:
    """Each beat renews the lease; stopping ends the thread."""
    lease = lease_of(client)
    before = client.state(SHARD).leased[lease.reader].heartbeat_ms
    world.clock.advance(LEASE_MS)
    clock = Beats(2)
    heart = LeaseRenewer(lease, clock)
    heart.start()
    assert clock.done.wait(30)
    heart.stop()
    assert clock.waited == [LEASE_MS / 2] * 3
    assert client.state(SHARD).leased[lease.reader].heartbeat_ms == before + LEASE_MS
    assert heart.lost is None


class Unanswered(Lease):
    """A lease whose first renewal fails."""

    error: ClassVar[Exception]

    @override
    def renew(self) -> None:
        self.lease_ms, first = LEASE_MS, self.lease_ms != LEASE_MS
        if first:
            raise self.error
        Lease.renew(self)


@pytest.mark.parametrize(
    "error", [Determinate("the store does not answer"), RuntimeError("a bug, or no more memory")]
)
def test_a_failed_beat_is_repeated_well_before_the_lease_is_over(
    client: ShardClient, error: Exception
) -> None:
    """One beat that fails does not cost the lease, whatever the error: the next comes soon."""
    real = lease_of(client)
    Unanswered.error = error
    lease = Unanswered(real.machine, real.reader, LEASE_MS + 1, real.since, real.seqno)
    clock = Beats(3)
    heart = LeaseRenewer(lease, clock)
    heart.start()
    assert clock.done.wait(30)
    heart.stop()
    assert sum(clock.waited[:2]) < LEASE_MS * 3 / 4
    assert clock.waited[2:] == [LEASE_MS / 2] * 2
    assert heart.lost is None


def test_a_heart_whose_lease_is_gone_stops_and_says_so(client: ShardClient) -> None:
    """The error is kept for whoever relies on the lease."""
    lease = lease_of(client)
    lease.release()
    clock = Beats(5)
    heart = LeaseRenewer(lease, clock)
    heart.start()
    wait_until("the loss is noticed", lambda: heart.lost is not None, 30)
    heart.stop()
    assert isinstance(heart.lost, LeaseExpired)
    assert len(clock.waited) == 1


def test_the_lease_of_a_reader_that_was_not_closed_is_given_up(world: World) -> None:
    """Once nothing refers to the reader: it would hold history back for as long as its process."""
    client = world.client(replace(SETTINGS, lease_ms=LEASE_MS))
    client.create(SHARD, schema_of())
    machine = client.machine(SHARD)
    gates = [threading.Event(), threading.Event()]
    machine.clock = clock = Gated(gates)
    reader = client.reader(SHARD)
    first = reader.lease.reader
    gates[0].set()
    wait_until("a reader that is in use is renewed", lambda: len(clock.waited) == 2, 30)
    assert first in client.state(SHARD).leased
    del reader
    gc.collect()
    gates[1].set()
    wait_until("it is given up", lambda: first not in client.state(SHARD).leased, 30)
    wait_until("its thread has ended", lambda: not threads_of(first), 30)


class Gated(ManualClock):
    """A clock whose waits end when the test opens a gate, one after the other."""

    def __init__(self, gates: list[threading.Event]) -> None:
        super().__init__()
        self.waited: list[float] = []
        self._gates = gates

    @override
    def wait(self, signal: threading.Event, timeout_ms: float) -> bool:
        self.waited.append(timeout_ms)
        self._gates[len(self.waited) - 1].wait(30)
        return signal.is_set()


def threads_of(reader: str) -> list[str]:
    """Names of the threads that renew the lease of `reader`."""
    return [one.name for one in threading.enumerate() if one.name.endswith(reader[:9])]


def test_a_lease_is_released_after_its_block(client: ShardClient) -> None:
    """Also when the block fails."""
    lease = lease_of(client)

    def work() -> None:
        with lease.renewing():
            assert lease.reader in client.state(SHARD).leased
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
    assert client.state(SHARD).leased == {}


def test_a_lease_that_nobody_can_renew_is_given_up(
    client: ShardClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that cannot start a thread would keep history until the lease is over."""
    start = BackgroundThread.start

    def refuse(_: BackgroundThread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(BackgroundThread, "start", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        client.reader(SHARD)
    assert client.state(SHARD).leased == {}
    holds = StreamHolds(client.machine(SHARD), "e1", "a query", 1000)
    holds.acquire("q", 0)
    with pytest.raises(RuntimeError, match="new thread"):
        holds.protect(0)
    assert client.state(SHARD).leased == {}
    monkeypatch.setattr(BackgroundThread, "start", start)
    holds.protect(0)
    assert list(client.state(SHARD).leased) == [holds.reader]
    assert threads_of(str(holds.reader))
    holds.release()


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.AFTER])
def test_a_store_that_is_out_of_reach_does_not_hide_an_error(world: World, fault: Fault) -> None:
    """Closing a reader is harmless whatever the store says: the lease expires by itself."""
    store = Faulty(world.objects(), clock=world.clock, ids=world.ids)
    client = world.client(SETTINGS, store)
    client.create(SHARD, schema_of())

    def work() -> None:
        with client.reader(SHARD):
            store.fail("create", fault, *[Fault.BEFORE] * 200)
            store.fail("get", *[Fault.BEFORE] * 200)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()


def test_a_lease_lasts_from_its_last_beat(world: World, client: ShardClient) -> None:
    """A beat counts from the time of its own commit."""
    lease = lease_of(client)
    for _ in range(3):
        world.clock.advance(LEASE_MS)
        lease.renew()
    world.clock.advance(LEASE_MS + 1)
    client.writer(SHARD).append_now(None)
    with pytest.raises(LeaseExpired, match=rf"{LEASE_MS} ms went by.*start the read again"):
        lease.renew()
    with pytest.raises(LeaseExpired):
        lease.downgrade(Frontier(1), lease.seqno)


def test_a_late_beat_counts_while_nobody_has_noticed(world: World, client: ShardClient) -> None:
    """An expired reader is forgotten by the next change, and only then."""
    lease = lease_of(client)
    world.clock.advance(10 * LEASE_MS)
    lease.renew()
    assert lease.reader in client.state(SHARD).leased


def test_holds_of_seqnos_move_forward_and_not_beyond_the_state(client: ShardClient) -> None:
    """What a reader gives up it cannot take back, and what is not there it cannot give up."""
    lease = lease_of(client)
    first = lease.seqno
    lease.downgrade(Frontier(0), first - 1)
    assert lease.seqno == first
    lease.downgrade(Frontier(0), 10**9)
    assert first < lease.seqno <= client.state(SHARD).seqno


def test_a_reader_protects_only_what_it_asked_for(client: ShardClient) -> None:
    """Reading below the own since works while others hold it, and is refused once it is gone."""
    writer = client.writer(SHARD)
    late = (client.state(SHARD).upper.time or 0) - 1
    hold = client.hold(SHARD, "h")
    with client.reader(SHARD, since=late) as reader:
        assert reader.snapshot(0).num_rows == 0
        assert rows(reader.snapshot(late)) == rows(table((1, "a")))
        hold.downgrade(Frontier(late))
        writer.append_now(None)
        with pytest.raises(InvalidUsage, match=r"HISTORY_GONE.*read at"):
            reader.snapshot(0)
        with pytest.raises(InvalidUsage, match="HISTORY_GONE"):
            next(reader.listen(0))


def test_settings_refuse_a_lease_of_no_time() -> None:
    """A lease lasts at least a millisecond."""
    with pytest.raises(InvalidUsage, match=r"INVALID_SETTING.*lease_ms"):
        replace(SETTINGS, lease_ms=0)

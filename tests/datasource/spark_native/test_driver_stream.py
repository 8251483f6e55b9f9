"""A driver stream gives Spark the ends that a planner process would, and holds as that does."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pytest
from py4j.protocol import Py4JError
from typing_extensions import override

from shardline.datasource.clock import SystemClock
from shardline.datasource.errors import LeaseExpired
from shardline.datasource.frontier import Frontier
from shardline.datasource.offsets import START
from shardline.datasource.spark_native.driver_stream import DriverStream
from shardline.datasource.stores.metered import Metered
from support.fakes.engine import Checkpoint, Query, options_of
from support.models.shards import World, schema_of, updates
from support.spark.streams import BLOBS, fill
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from shardline.datasource.client import ShardClient

GAP_MS = 250.0
OPTIONS = {"snapshot": "exclude", "timestampAsOf": 0, "hold": "group:x"}


@dataclass
class Jvm:
    """The half of a stream that Spark asks, without Spark."""

    given: list[dict[str, Any]] = field(default_factory=list)
    statuses: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""
    start: str | None = None
    stream: DriverStream | None = None

    def asked(self) -> str | None:
        return self.start

    def give(self, end: str, status: str) -> None:
        assert self.start is not None, "nothing was asked for"
        assert end != self.start, "an end without news"
        self.start = None
        self.given.append(json.loads(end))
        self.statuses.append(json.loads(status))

    def fail(self, message: str) -> None:
        self.error = message

    def ask(self, start: dict[str, Any] | None = None) -> None:
        """Spark has committed what it was given, or begins at `start`."""
        if self.stream is not None:
            self.stream.micro_batch_ended()
        self.start = json.dumps(start or (self.given[-1] if self.given else START.json()))

    @property
    def frontiers(self) -> list[int | None]:
        """The frontiers of all ends that were given."""
        return [end["frontier"] for end in self.given]


def _stream(
    jvm: Jvm,
    client: ShardClient,
    options: Mapping[str, object] = MappingProxyType({}),
    *,
    gap_ms: float = GAP_MS,
    poll_ms: float = 1000,
) -> DriverStream:
    parsed = options_of(**{**OPTIONS, **options})
    jvm.stream = DriverStream(jvm, client, parsed, gap_ms=gap_ms, poll_ms=poll_ms)
    return jvm.stream


def _append(client: ShardClient, lower: int, upper: int, rows: int = 1) -> None:
    made = updates(*((lower * 1000 + n, "x", lower, 1) for n in range(rows)))
    client.writer("in").compare_and_append(made if rows else None, Frontier(lower), Frontier(upper))


def _hold(client: ShardClient, name: str = "group:x") -> int:
    since = client.state("in").critical[name].since
    assert since is not None
    return since


@pytest.fixture
def jvm() -> Jvm:
    return Jvm()


@pytest.fixture
def client(world: World) -> ShardClient:
    client = world.client(BLOBS)
    client.create("in", schema_of())
    _append(client, 0, 5)
    _append(client, 5, 10)
    return client


# --- the ends -------------------------------------------------------------------------------------


def test_nothing_is_given_before_spark_asks_or_without_news(
    world: World, jvm: Jvm, client: ShardClient
) -> None:
    stream = _stream(jvm, client)

    stream.look()
    assert jvm.given == []
    jvm.ask()
    stream.look()
    assert jvm.frontiers == [1]  # the first range begins behind `timestampAsOf`
    world.clock.advance(GAP_MS)
    stream.look()
    jvm.ask()
    stream.look()
    jvm.ask()
    for _ in range(5):
        world.clock.advance(GAP_MS)
        stream.look()

    assert jvm.frontiers == [1, 10]
    assert jvm.statuses[-1] == {"upper": 10}


@pytest.mark.parametrize("limit", [{}, {"maxFilesPerTrigger": 1}, {"maxRowsPerTrigger": 40}])
def test_the_ends_are_those_of_a_planner_process(
    world: World, jvm: Jvm, limit: dict[str, object]
) -> None:
    """The same history is cut at the same places, to the letter of the checkpoint."""
    client = world.client(BLOBS)
    fill(client, batches=5)
    checkpoint = Checkpoint()
    Query(world.copy().client(BLOBS), checkpoint, options_of(**OPTIONS, **limit)).drain()

    stream = _stream(jvm, client, limit)
    for _ in range(20):
        jvm.ask()
        stream.look()
        world.clock.advance(GAP_MS)

    assert len(jvm.given) > 1
    assert [json.dumps(end) for end in jvm.given] == checkpoint.offsets


def test_two_ends_are_a_pause_apart(world: World, jvm: Jvm, client: ShardClient) -> None:
    """A writer of many small appends does not make a micro-batch of each."""
    stream = _stream(jvm, client)
    jvm.ask()
    stream.look()
    given_ms = world.clock.elapsed_ms()
    jvm.ask()

    early_ms = stream.look()

    assert jvm.frontiers == [1]
    assert early_ms == given_ms + GAP_MS - world.clock.elapsed_ms() > 0
    world.clock.advance(early_ms)
    stream.look()
    assert jvm.frontiers == [1, 10]


def test_it_goes_on_from_the_checkpoint_of_a_planner_process(
    world: World, jvm: Jvm, client: ShardClient
) -> None:
    checkpoint = Checkpoint()
    Query(client, checkpoint, options_of(**OPTIONS)).drain()
    _append(client, 10, 20)

    after = world.client(BLOBS)
    stream = _stream(jvm, after)
    jvm.ask(json.loads(checkpoint.offsets[-1]))
    stream.look()

    assert jvm.frontiers == [20]
    assert _hold(after) == 9


# --- holds ----------------------------------------------------------------------------------------


def test_the_hold_follows_what_spark_has_committed(
    world: World, jvm: Jvm, client: ShardClient
) -> None:
    """What is given may be planned again until Spark asks for what comes after it."""
    stream = _stream(jvm, client)
    jvm.ask()
    stream.look()
    jvm.ask()
    world.clock.advance(GAP_MS)
    stream.look()
    assert jvm.frontiers == [1, 10]
    stream.look()
    stream.micro_batch_ended()
    stream.look()
    assert _hold(client) == 0

    jvm.ask()
    stream.look()

    assert _hold(client) == 9


def test_what_has_stopped_chooses_nothing_and_leases_nothing(jvm: Jvm, client: ShardClient) -> None:
    stream = _stream(jvm, client)
    jvm.ask()
    stream.look()
    jvm.ask()

    stream.stop()
    stream.stop()

    assert stream.look() is None
    assert jvm.frontiers == [1]
    assert not client.state("in").leased
    assert _hold(client) == 0  # as after a kill: it is its owner's to end


# --- the end of the query -------------------------------------------------------------------------


@pytest.mark.parametrize("releases", [True, False])
def test_an_error_ends_the_query_and_is_kept(
    jvm: Jvm, client: ShardClient, monkeypatch: pytest.MonkeyPatch, releases: bool
) -> None:
    """Its owner tells by the class what Spark would give as text; whatever giving up does."""
    stream = _stream(jvm, client)
    if not releases:

        def fail() -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(stream._run, "release", fail)
    jvm.ask()
    stream.look()
    jvm.ask()
    client.drop("in", despite_holders=["group:x"])
    client.create("in", schema_of())

    assert stream.look() is None

    assert isinstance(stream.error, LeaseExpired)
    assert jvm.error == str(stream.error)
    assert jvm.frontiers == [1]


def test_a_query_that_has_ended_is_asked_no_more(jvm: Jvm, client: ShardClient) -> None:
    stream = _stream(jvm, client)
    jvm.start = ""

    assert stream.look() is None
    assert stream.error is None


class _DeafJvm(Jvm):
    """Calls fail, before or after they have had their effect."""

    def __init__(self) -> None:
        super().__init__()
        self.fails_at = ""

    @override
    def asked(self) -> str | None:
        if self.fails_at == "asked":
            raise OSError("too many open files")
        return super().asked()

    @override
    def give(self, end: str, status: str) -> None:
        if self.fails_at == "before give":
            raise Py4JError("connection refused")
        super().give(end, status)
        if self.fails_at == "after give":
            raise Py4JError("answer lost")

    @override
    def fail(self, message: str) -> None:
        raise OSError(message)


@pytest.mark.parametrize("at", ["asked", "before give", "after give"])
def test_a_call_to_the_jvm_that_fails_is_made_again(
    world: World, client: ShardClient, at: str
) -> None:
    """A query that still runs would wait for an end for ever. Each end is given once."""
    jvm = _DeafJvm()
    stream = _stream(jvm, client)
    jvm.ask()
    jvm.fails_at = at

    assert stream.look() is not None
    assert stream.error is None
    jvm.fails_at = ""
    world.clock.advance(GAP_MS)
    stream.look()
    assert jvm.frontiers == [1]
    jvm.ask()
    world.clock.advance(GAP_MS)
    stream.look()

    assert jvm.frontiers == [1, 10]


def test_an_error_that_the_jvm_does_not_hear_is_kept(client: ShardClient) -> None:
    jvm = _DeafJvm()
    stream = _stream(jvm, client)
    jvm.ask()
    stream.look()
    jvm.ask()
    client.drop("in", despite_holders=["group:x"])

    assert stream.look() is None

    assert stream.error is not None
    assert stream.look() is None


def test_the_end_of_the_query_is_noticed_while_there_is_no_news(
    world: World, jvm: Jvm, client: ShardClient
) -> None:
    stream = _stream(jvm, client)
    jvm.ask(_end_at(client, 10))
    stream.look()
    jvm.start = ""
    world.clock.advance(1000)

    assert stream.look() is None


# --- the cost of waiting --------------------------------------------------------------------------


def test_an_upper_that_moves_without_rows_is_not_looked_at(
    world: World, jvm: Jvm, client: ShardClient
) -> None:
    """Sources move each second while nothing comes, and each move wakes whoever reads them."""
    store = Metered(world.objects(), world.clock)
    client = world.client(BLOBS, store)
    stream = _stream(jvm, client)
    jvm.ask(_end_at(client, 10))
    stream.look()
    for n in range(10, 20):
        world.clock.advance(10)
        _append(client, n, n + 1, rows=0)
        before = store.statistics()
        stream.look()
        assert store.statistics() == before

    assert jvm.given == []
    _append(client, 20, 21)
    stream.look()
    assert jvm.frontiers == [21]


def test_what_others_write_is_looked_for_now_and_then(
    world: World, jvm: Jvm, client: ShardClient
) -> None:
    stream = _stream(jvm, client)
    jvm.ask(_end_at(client, 10))
    stream.look()
    _append(world.client(BLOBS), 10, 20)
    stream.look()
    assert jvm.given == []

    world.clock.advance(1000)
    stream.look()

    assert jvm.frontiers == [20]


def test_spark_is_not_asked_while_a_micro_batch_runs_again(jvm: Jvm, client: ShardClient) -> None:
    """One that a restart has found unfinished may wait for hours, of a runtime that follows."""
    stream = _stream(jvm, client)

    stream.micro_batch_began()
    assert stream.look() == 1000
    stream.micro_batch_ended()
    pause_ms = stream.look()
    assert pause_ms is not None
    assert pause_ms < 1000


def test_spark_is_not_asked_at_each_news_while_a_micro_batch_runs(
    world: World, client: ShardClient
) -> None:
    jvm = _CountingJvm()
    stream = _stream(jvm, client)
    jvm.ask()
    stream.look()
    for n in range(10, 15):
        _append(client, n, n + 1)
        world.clock.advance(10)
        stream.look()

    assert jvm.questions == 1
    world.clock.advance(1000)
    stream.look()
    assert jvm.questions == 2


class _CountingJvm(Jvm):
    def __init__(self) -> None:
        super().__init__()
        self.questions = 0

    @override
    def asked(self) -> str | None:
        self.questions += 1
        return super().asked()


def test_the_hold_is_one_that_a_query_has_used(world: World, jvm: Jvm, client: ShardClient) -> None:
    """An administrator is told that one which never was may be ended."""
    stream = _stream(jvm, client)
    jvm.ask()
    stream.look()
    assert not client.state("in").critical["group:x"].confirmed
    jvm.ask()
    world.clock.advance(GAP_MS)
    stream.look()

    assert client.state("in").critical["group:x"].confirmed


# --- its thread -----------------------------------------------------------------------------------


@pytest.fixture
def real_time() -> Iterator[tuple[ShardClient, World]]:
    world = World()
    cast("Any", world).clock = SystemClock()  # threads wait by it
    client = world.client(BLOBS)
    client.create("in", schema_of())
    _append(client, 0, 5)
    _append(client, 5, 10)
    yield client, world
    world.close()


def test_it_is_woken_by_what_this_process_writes(
    jvm: Jvm, real_time: tuple[ShardClient, World]
) -> None:
    """Nothing else would have it look again before the test has failed."""
    client, _ = real_time
    never_ms = 3_600_000.0
    stream = _stream(jvm, client, gap_ms=0, poll_ms=never_ms)
    jvm.ask()
    stream.start()
    wait_until("the first end", lambda: jvm.frontiers == [1], 60)
    jvm.ask()
    wait_until("the second", lambda: jvm.frontiers == [1, 10], 60)
    jvm.ask()
    wait_until("the hold", lambda: _hold(client) == 9, 60)
    pause_ms = stream.look()  # behind that of the thread, which waits by now
    assert pause_ms is not None
    assert pause_ms > never_ms / 2

    _append(client, 10, 20)

    wait_until("the third", lambda: jvm.frontiers == [1, 10, 20], 60)
    stream.stop()


def test_it_looks_for_what_others_write(jvm: Jvm, real_time: tuple[ShardClient, World]) -> None:
    client, world = real_time
    stream = _stream(jvm, client, poll_ms=20)
    jvm.ask({**_end_at(client, 10)})
    stream.start()

    _append(world.client(BLOBS), 10, 20)

    wait_until("an end", lambda: jvm.frontiers == [20], 60)
    stream.stop()


def test_it_is_woken_by_the_transactions_of_a_shard_that_is_registered_later(
    jvm: Jvm, real_time: tuple[ShardClient, World]
) -> None:
    """Its upper moves with that of its transactions shard, without a record of its own."""
    client, _ = real_time
    client.create("other", schema_of())
    stream = _stream(jvm, client, gap_ms=0)
    jvm.ask(_end_at(client, 10))
    stream.look()
    client.transactions().register("in")
    stream.look()
    stream._turn.clear()
    with client.transaction() as transaction:
        transaction.append("other", pa.table({"id": [1], "v": ["x"]}))

    assert stream._turn.is_set()


def _end_at(client: ShardClient, frontier: int) -> dict[str, Any]:
    client.hold("in", "group:x", since=0)
    shard = client.state("in").shard
    return {"v": 1, "shard": shard, "hold": "group:x", "as_of": 0, "frontier": frontier}

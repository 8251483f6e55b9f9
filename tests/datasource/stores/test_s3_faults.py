"""Sink, stream, snapshots, merges and collection on an S3 server behind an unreliable wire.

Spark's part is played by hand (`support.fakes.sink`, `support.fakes.engine`), so that many seeds
are cheap; `tests/spark/shard_source/test_s3_faults.py` does the same once with Spark. More seeds:

    ./spark-submit.sh test tests/datasource/stores/test_s3_faults.py --fault-seeds 100
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from typing_extensions import override

from shardline.datasource.clock import SystemClock, SystemIds
from shardline.datasource.errors import Determinate, Indeterminate, ShardError
from shardline.datasource.stores.memory import MemoryObjects
from shardline.datasource.stores.objects import Objects
from shardline.datasource.stores.open import open_objects
from shardline.datasource.stores.retry import RETRY_LIMIT_MS, Retrying
from support.fakes.clock import ManualClock, SeededIds
from support.fakes.engine import Checkpoint, Query, consolidated, options_of
from support.fakes.sink import SHARD, Engine, engine
from support.faults.fault_proxy import FAULTS, FAULTS_OF_CREATE, FaultProxy, fault_proxy
from support.models.shards import TINY, World, dangling, rows, schema_of, table
from support.processes.s3_server import S3Server, options_for, s3_server
from support.profiles import some_of

pytestmark = pytest.mark.s3

Rows = Counter[tuple[Any, ...]]

SEEDS = 1
RESTARTS_MAX = 20
"""A query that fails more often in one run is not kept alive by restarts."""


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


def objects_at(url: str, endpoint: str, **more: str) -> Objects:
    """The bare store behind `endpoint`, with the patience of a test."""
    named = {f"s3.{name.replace('_', '-')}": value for name, value in more.items()}
    options = {**options_for(endpoint), "s3.read-timeout-ms": "5000", **named}
    return open_objects(url, options, clock=SystemClock(), ids=SystemIds())


@dataclass
class Wire:
    """One world on a bucket, reached through a proxy and, to check, past it."""

    url: str
    server: S3Server
    proxy: FaultProxy
    seed: int
    failures: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        through = objects_at(self.url, self.proxy.endpoint)
        self.world = World(self.seed, lambda _: through)
        self.direct = objects_at(self.url, self.server.endpoint)

    def patiently(self, attempt: Callable[[], object], again: Callable[[], object]) -> None:
        """Repeat what failed in a process of its own, as whoever restarts a query does."""
        for _ in range(RESTARTS_MAX):
            try:
                attempt()
            except (Determinate, Indeterminate) as error:
                self.failures[error.code] += 1
                with contextlib.suppress(ShardError):
                    again()
            else:
                return
        raise AssertionError(f"failed {RESTARTS_MAX} times: {self.failures}")


class Run:
    """A query into a shard, one out of it, a reader and a keeper, step by step, by one seed."""

    def __init__(self, wire: Wire, spark: Engine, *, replaces: bool) -> None:
        self._wire = wire
        self._spark = spark
        self._replaces = replaces
        self._chance = random.Random(wire.seed)
        self._checkpoint = Checkpoint()
        self._query: Query | None = None
        self.model: Rows = Counter()

    def play(self, length: int) -> None:
        for number in range(length):
            self._write(number)
            for step, odds in (
                (self._stream, 0.6),
                (self._keep, 0.4),
                (self._snapshot, 0.4),
            ):
                if self._chance.random() < odds:
                    step()
        for step in (self._stream, self._keep, self._snapshot):
            step()

    def check(self) -> None:
        """What everybody has agrees with the model, read past the proxy."""
        client = self._wire.world.client(TINY, self._wire.direct)
        with client.reader(SHARD) as reader:
            assert rows(reader.snapshot()) == self.model
        assert dangling(client.machine(SHARD)) == []
        assert consolidated(self._checkpoint.rows()) == self.model

    def _write(self, number: int) -> None:
        ids = [self._chance.randrange(12) for _ in range(self._chance.randrange(1, 9))]
        some = list(dict.fromkeys(ids)) if self._replaces else ids
        new = [(i, f"{number} of {i}") for i in some]
        if self._replaces:
            kept = {row: n for row, n in self.model.items() if row[0] not in some}
            self.model = Counter(kept)
        self.model.update(new)
        tasks = [table(*part) for part in (new[::2], new[1::2])]
        spark = self._spark
        # Spark repeats a micro-batch after a restart, also one that it had committed.
        for _ in range(1 + (self._chance.random() < 0.3)):
            self._wire.patiently(lambda: spark.micro_batch(number, *tasks), spark.process)
            spark.process()

    def _stream(self) -> None:
        def restart() -> None:
            self._query = None

        def drain() -> None:
            if self._query is None or self._chance.random() < 0.3:
                client = self._wire.world.client(TINY)
                self._query = Query(client, self._checkpoint, options_of(shard=SHARD))
            self._query.drain()

        self._wire.patiently(drain, restart)

    def _keep(self) -> None:
        def keep() -> None:
            client = self._wire.world.client(TINY)
            client.compact(SHARD, force=self._chance.random() < 0.5)
            client.collect_garbage(SHARD)

        self._wire.patiently(keep, lambda: None)

    def _snapshot(self) -> None:
        def read() -> None:
            with self._wire.world.client(TINY).reader(SHARD) as reader:
                assert rows(reader.snapshot()) == self.model

        self._wire.patiently(read, lambda: None)


ENVELOPES: dict[str, dict[str, str]] = {"append": {}, "upsert": {"envelope": "upsert", "key": "id"}}


def play(
    server: S3Server, proxy: FaultProxy, *, envelope: str, seed: int, odds: float, length: int
) -> Wire:
    """One run of `length` micro-batches, from an empty bucket to its checks."""
    wire = Wire(f"s3://{server.new_bucket()}/läke", server, proxy, seed)
    with engine(table((0, "")).schema, ENVELOPES[envelope], wire.world) as spark:
        run = Run(wire, spark, replaces=envelope == "upsert")
        spark.client.create(SHARD, schema_of(), key=("id",) if envelope == "upsert" else ())
        proxy.probability = odds
        try:
            run.play(length)
        finally:
            proxy.calm()
        run.check()
    return wire


@pytest.mark.parametrize("envelope", some_of(ENVELOPES, {"upsert"}))
def test_contents_are_right_over_an_unreliable_wire(
    server: S3Server, request: pytest.FixtureRequest, envelope: str
) -> None:
    """15 of 100 requests go wrong, in every way: the same contents for all, and no hang."""
    seeds: int = request.config.getoption("--fault-seeds", default=None) or SEEDS
    for seed in range(seeds):
        with fault_proxy(server.host, server.port, seed) as proxy:
            wire = play(server, proxy, envelope=envelope, seed=seed, odds=0.15, length=6)
            assert sum(proxy.injected.values()) > 0.08 * sum(proxy.requests.values()), seed
            assert len(proxy.injected) > len(FAULTS) / 2, proxy.injected
            assert sum(wire.failures.values()) < RESTARTS_MAX, (seed, wire.failures)


ODDS = {"storm": 0.05, **dict.fromkeys(FAULTS_OF_CREATE, 0.6)}
"""A storm is several requests long by itself, and few requests have a condition that can fail."""


HARDEST = {"e412_after", "late"}
"""Of each run: what a writer cannot tell from a refusal, or from success."""


@pytest.mark.parametrize("kind", some_of(FAULTS, HARDEST))
def test_each_fault_alone(server: S3Server, kind: str) -> None:
    """One kind of fault, in a fifth of the requests that it can befall."""
    with fault_proxy(server.host, server.port, seed=5) as proxy:
        proxy.kinds = (kind,)
        # A storm is several requests long by itself.
        play(server, proxy, envelope="append", seed=5, odds=ODDS.get(kind, 0.2), length=2)
        assert set(proxy.injected) == {kind}
        assert proxy.injected[kind] >= 2, proxy.requests


# --- every wait ends -----------------------------------------------------------------------------


SIZE = 3000
ATTEMPT_MS = 65_000.0
"""What one request to a silent server takes with the default options."""


@pytest.fixture
def slow(server: S3Server) -> Iterator[tuple[FaultProxy, Objects]]:
    """A store whose longest silence is a second, with one object of `SIZE` bytes."""
    url = f"s3://{server.new_bucket()}/x"
    with fault_proxy(server.host, server.port) as proxy:
        timeouts = {"read_timeout_ms": "1000", "connect_timeout_ms": "1000"}
        objects = objects_at(url, proxy.endpoint, **timeouts)
        Retrying(objects, clock=SystemClock(), ids=SystemIds()).put("part/a", b"x" * SIZE)
        yield proxy, objects


def test_a_body_that_dribbles_in_is_given_up(slow: tuple[FaultProxy, Objects]) -> None:
    """Each piece comes in time, and all of them together would take a minute."""
    proxy, objects = slow
    proxy.drip_bytes, proxy.drip_ms = 10, 200.0
    proxy.fail_next("GET", "dribble", "dribble")
    with pytest.raises(Determinate, match="STORE_UNAVAILABLE"):
        objects.get("part/a")
    assert 0 < proxy.dripped_bytes < SIZE / 4
    with pytest.raises(Determinate, match="STORE_UNAVAILABLE"):
        list(objects.entries(""))


def test_a_body_that_comes_slowly_is_waited_for(slow: tuple[FaultProxy, Objects]) -> None:
    """In pieces, but in time."""
    proxy, objects = slow
    proxy.drip_bytes, proxy.drip_ms = 500, 20.0
    proxy.fail_next("GET", "dribble")
    assert objects.get("part/a") == b"x" * SIZE
    assert proxy.injected == {"dribble": 1}


def test_an_answer_that_is_too_late_is_given_up(slow: tuple[FaultProxy, Objects]) -> None:
    """And what it was about may have happened."""
    proxy, objects = slow
    proxy.late_ms = 60_000.0
    proxy.fail_next("PUT", "late", "late")
    with pytest.raises(Indeterminate, match="STORE_UNAVAILABLE"):
        objects.put("part/b", b"y")
    assert objects.get("part/b") == b"y"


class Silent(MemoryObjects):
    """A server that takes every request and answers none until the client gives up."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__("silent", clock)
        self.clock = clock
        self.requests = 0

    @override
    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        self.requests += 1
        self.clock.advance(ATTEMPT_MS)
        raise Determinate(f"no answer about {len(keys)} keys")

    @override
    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes | None:
        return self.get_many([key])[0]


def test_a_server_that_never_answers_is_given_up_in_time() -> None:
    """After the patience of a caller and one request more, however many keys he wants."""
    clock = ManualClock()
    silent = Silent(clock)
    patient = Retrying(silent, clock=clock, ids=SeededIds())
    attempts: list[Callable[[], object]] = [
        lambda: patient.get("a"),
        lambda: patient.get_many(["a"] * 64),
    ]
    for attempt in attempts:
        began = clock.elapsed_ms()
        with pytest.raises(Determinate):
            attempt()
        assert clock.elapsed_ms() - began <= RETRY_LIMIT_MS + ATTEMPT_MS
    assert silent.requests == 2


class Flaky(Silent):
    """A server that fails each key of many with the odds of one in seven."""

    _chance = random.Random(5)

    @override
    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        self.requests += 1
        drawn = [self._chance.random() for _ in keys]
        if min(drawn) < 1 / 7:
            raise Determinate("one of them failed")
        return [key.encode() for key in keys]


def test_many_keys_come_through_where_one_request_of_seven_fails() -> None:
    """What failed is asked for again in halves: all 64 at once would never come through."""
    clock = ManualClock()
    flaky = Flaky(clock)
    patient = Retrying(flaky, clock=clock, ids=SeededIds())
    keys = [f"k{number}" for number in range(64)]
    for _ in range(50):
        assert patient.get_many(keys) == [key.encode() for key in keys]
    assert flaky.requests < 50 * 3 * len(keys)

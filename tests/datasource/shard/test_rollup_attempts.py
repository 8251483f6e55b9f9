"""Rollups are tried seldom where a store takes none, and written soon after it takes them again."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.stores.faulty import Faulty
from support.models.shards import SETTINGS, World, rows, schema_of, table

if TYPE_CHECKING:
    from shardline.datasource.shard.machine import Machine

SHARD = "orders"
EVERY = 4
ROLLUPS = replace(SETTINGS, rollup_every=EVERY, compact_inline_bytes=0)
MINUTE_MS = 60_000


class NoRollups(Faulty):
    """A store that refuses rollups, while it is `closed`."""

    closed = True
    tried = 0

    @override
    def put(self, key: str, value: bytes | memoryview) -> None:
        if "/rollup/" in key:
            self.tried += 1
            if self.closed:
                raise InvalidUsage("AccessDenied (403)", code="ACCESS_DENIED")
        super().put(key, value)


@pytest.fixture
def store(world: World) -> NoRollups:
    return NoRollups(world.objects(), clock=world.clock, ids=world.ids)


@pytest.fixture
def machine(world: World, store: NoRollups) -> Machine:
    client = world.client(ROLLUPS, store)
    client.create(SHARD, schema_of())
    for number in range(60):
        client.writer(SHARD).append_now(table((number, "x")))
    return client.machine(SHARD)


def append(world: World, store: NoRollups, machine: Machine) -> int:
    """Append a row; how often a rollup was tried for it."""
    before, number = store.tried, machine.state().seqno
    client = world.client(ROLLUPS, store)
    client._machines[SHARD] = machine
    client.writer(SHARD).append_now(table((number, "x")))
    return store.tried - before


def test_commits_do_not_wait_for_attempts_that_fail(
    world: World, store: NoRollups, machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    """One in so many records; all rows are there."""
    assert machine.state().seqno == 61
    assert 0 < store.tried <= 61 // EVERY
    with caplog.at_level(logging.WARNING):
        tried = sum(append(world, store, machine) for _ in range(EVERY))
    assert tried == 1
    assert [record.message for record in caplog.records] == ["rollup not written"]
    with world.client().reader(SHARD) as reader:
        assert rows(reader.snapshot()).total() == 60 + EVERY


def test_on_a_quiet_shard_the_time_counts(world: World, store: NoRollups, machine: Machine) -> None:
    """Not the records alone: the next ones may come in a day."""
    while not append(world, store, machine):
        pass
    assert append(world, store, machine) == 0
    world.clock.advance(6 * MINUTE_MS)
    assert append(world, store, machine) == 1
    assert append(world, store, machine) == 0


def test_a_store_that_takes_them_again_gets_one(
    world: World, store: NoRollups, machine: Machine
) -> None:
    """After as many records as lie between rollups, and from then on as ever."""
    store.closed = False
    for _ in range(EVERY):
        append(world, store, machine)
    first = machine.state().rollup
    assert first is not None
    for _ in range(2 * EVERY):
        append(world, store, machine)
    later = machine.state().rollup
    assert later is not None
    assert later[0] - first[0] >= EVERY


def test_a_process_that_starts_tries_at_once(
    world: World, store: NoRollups, machine: Machine
) -> None:
    """It knows of no attempt, and the one that should have written it may have died."""
    del machine
    store.closed = False
    before = store.tried
    world.client(ROLLUPS, store).writer(SHARD).append_now(table((99, "x")))
    assert store.tried == before + 1
    assert world.client().state(SHARD).rollup is not None

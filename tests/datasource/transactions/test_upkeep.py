"""A commit is not failed by what comes after it: that is told by its name, and repeated later."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from shardline.datasource.errors import Determinate
from shardline.datasource.transactions import commit_loop
from shardline.datasource.transactions.commit_loop import _UPKEEP_EVERY
from shardline.datasource.transactions.rows import TRANSACTIONS
from support.models.shards import SETTINGS, World, rows, schema_of, table

if TYPE_CHECKING:
    from shardline.datasource.client import ShardClient

NOT_APPLIED = "a transaction was committed and not applied yet"
NOT_KEPT_SMALL = "the transactions shard could not be kept small"


@pytest.fixture
def client(world: World) -> ShardClient:
    """A client of shard `a`, which is registered; without merges after each append."""
    made = world.client(replace(SETTINGS, compact_inline_bytes=0))
    made.create("a", schema_of(), key=["id"])
    made.transactions().register("a")
    return made


def commit(client: ShardClient, count: int) -> None:
    for number in range(count):
        with client.transaction() as t:
            t.append("a", table((number, "x")))


@pytest.mark.parametrize("step", ["apply_retention", "compact", "collect_garbage"])
def test_upkeep_that_fails_is_told_as_such_and_tried_again_later(
    client: ShardClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    step: str,
) -> None:
    """All is applied. A store that denies a listing is not asked again with each commit."""
    tried = 0

    def deny(*_: object, **__: object) -> None:
        nonlocal tried
        tried += 1
        raise Determinate("denied", code="ACCESS_DENIED")

    monkeypatch.setattr(commit_loop, step, deny)
    commit(client, 4 * _UPKEEP_EVERY)
    # A commit is a record. A few more are those of registering and of retention.
    assert 2 <= tried <= 5
    assert [record.message for record in caplog.records] == [NOT_KEPT_SMALL] * tried
    monkeypatch.undo()
    commit(client, _UPKEEP_EVERY)
    assert len(client.state(TRANSACTIONS).trace.batches) < _UPKEEP_EVERY
    with client.reader("a") as reader:
        assert sum(rows(reader.snapshot()).values()) == 5 * _UPKEEP_EVERY


def test_what_is_not_applied_is_told_as_such(
    client: ShardClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next reader applies it."""

    def deny(*_: object) -> None:
        raise Determinate("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(commit_loop, "apply_ledger", deny)
        commit(client, 1)
    assert [record.message for record in caplog.records] == [NOT_APPLIED]
    with client.reader("a") as reader:
        assert sum(rows(reader.snapshot()).values()) == 1

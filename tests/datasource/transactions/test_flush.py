"""Inline parts that become blobs on their way into a data shard, by several appliers at once."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from shardline.datasource.errors import Determinate
from shardline.datasource.shard.commands.orphan_sweep import SWEEP_AGE_MS
from shardline.datasource.shard.state import STAGE_LIFE_MS
from shardline.datasource.transactions.commit_loop import Committer
from support.models.shards import SETTINGS, World, dangling, rows, schema_of, table

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardline.datasource.client import ShardClient

FULL = replace(SETTINGS, inline_state_bytes=0)
"""A data shard takes no inline part: whoever applies one makes it a blob."""

OTHER = replace(FULL, row_group_rows=2)
"""Of another process: the same rows become other bytes."""

SMALL = table(*((number, "small") for number in range(9)))
LARGE = table(*((number, "large" * 20) for number in range(200)))
ALL = rows(SMALL) + rows(LARGE)


@pytest.fixture
def committed(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """A world in which a small and a large part were committed for shard `a`, by one who died."""
    client = world.client(FULL)
    client.create("a", schema_of())
    with monkeypatch.context() as patch:
        patch.setattr(Committer, "_follow_up", lambda *_: None)
        with client.transaction() as transaction:
            transaction.append("a", SMALL)
            transaction.append("a", LARGE)
    (large,) = world.objects().entries("a/part/")
    assert large.size_bytes
    return world


def applying(world: World, meanwhile: Callable[[], object], *, before: bool) -> ShardClient:
    """A client that does `meanwhile` when it writes its first part, before or after."""
    store = world.objects()
    put = store.put
    todo = [meanwhile]

    def put_part(key: str, value: Any) -> None:
        mine = todo.pop() if todo and "/part/" in key else None
        if mine is not None and before:
            mine()
        put(key, value)
        if mine is not None and not before:
            mine()

    store.put = put_part  # type: ignore[method-assign]
    return world.client(FULL, store)


def read(client: ShardClient) -> Counter[tuple[Any, ...]]:
    with client.reader("a") as reader:
        return rows(reader.snapshot())


@pytest.mark.parametrize("before", [True, False])
def test_appliers_that_flush_the_same_part_do_not_share_a_name(
    committed: World, *, before: bool
) -> None:
    """Whoever loses neither overwrites what the winner has written nor leaves its own behind."""
    winner = committed.client(OTHER)
    loser = applying(committed, lambda: read(winner), before=before)
    assert read(loser) == ALL
    fresh = committed.client()
    assert read(fresh) == ALL
    machine = fresh.machine("a")
    assert not dangling(machine)
    named = {part.key for batch in machine.state().trace.batches for part in batch.parts}
    assert {entry.key for entry in committed.objects().entries("a/part/")} == named


def test_who_slept_for_a_day_after_flushing_does_not_apply_what_was_swept(
    committed: World,
) -> None:
    """What it has written may be gone; the next one flushes again."""

    def sleep() -> None:
        committed.clock.advance(SWEEP_AGE_MS + 1)
        assert committed.client(FULL).sweep("a").parts.count == 1

    sleeper = applying(committed, sleep, before=False)
    with pytest.raises(Determinate, match="STAGED_TOO_LONG"):
        sleeper.transactions().apply()
    assert committed.client().state("a").trace.batches == ()
    sleeper.transactions().apply()
    assert not dangling(committed.client().machine("a"))
    assert read(committed.client()) == ALL


def test_a_part_of_a_day_is_young_enough_to_be_applied(committed: World) -> None:
    """No sweep has taken it."""

    def sleep() -> None:
        committed.clock.advance(STAGE_LIFE_MS)

    applying(committed, sleep, before=False).transactions().apply()
    assert read(committed.client()) == ALL

"""Bugs that the simulation has found, each as a small test of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from shardline.datasource.errors import Determinate, Indeterminate, InvalidUsage
from shardline.datasource.overwrite import overwrite
from shardline.datasource.stores.faulty import Faulty
from shardline.datasource.stores.objects import CreateOutcome, Unresolved
from support.models.shards import World, rows, schema_of, table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SHARD = "orders"


class Lost(Faulty):
    """Loses the answer to a commit and is dark for a while; then something else has happened."""

    meanwhile: Callable[[], None] | None = None
    _dark = 0

    @override
    def create(self, key: str, value: bytes) -> CreateOutcome:
        outcome = super().create(key, value)
        if self.meanwhile is None or "/log/" not in key or self._dark:
            return outcome
        self._dark = 1
        return Unresolved("the answer was lost")

    @override
    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes | None:
        self._look()
        return super().get(key, start, end)

    @override
    def get_many(self, keys: Sequence[str]) -> list[bytes | None]:
        self._look()
        return super().get_many(keys)

    def _look(self) -> None:
        if not self._dark or self.meanwhile is None:
            return
        self._dark += 1
        if self._dark > 12:  # both who look give up now
            meanwhile, self.meanwhile, self._dark = self.meanwhile, None, 0
            meanwhile()
        raise Determinate("no answer")


@pytest.mark.parametrize("behind", [False, True])
@pytest.mark.parametrize("writer", [None, "etl"])
def test_an_append_that_was_forgotten_is_not_made_again(
    writer: str | None, *, behind: bool
) -> None:
    """Whoever wakes up after its memory was dropped says that it does not know (seed 2043).

    So does who did not sleep, but has a clock that is behind those of others (seed 3637).
    """
    world = World()
    store = Lost(world.objects(), clock=world.clock, ids=world.ids)
    client, other = world.client(objects=store), world.client()
    client.create(SHARD, schema_of())
    handle = client.writer(SHARD, writer)

    lease_ms = client.settings.writer_lease_ms
    if behind:
        world.clock.set_back(2 * lease_ms)

    def meanwhile() -> None:
        if behind:
            world.clock.set_back(-2 * lease_ms)  # whoever comes now has the right time
        else:
            world.clock.advance(2 * lease_ms)
        other.writer(SHARD).append_now(table((2, "other")))
        other.compact(SHARD, force=True)

    store.meanwhile = meanwhile
    if writer is None:
        with pytest.raises(Indeterminate):
            handle.append_now(table((1, "mine")))
    else:
        handle.append_now(table((1, "mine")))

    with other.reader(SHARD) as reader:
        assert rows(reader.snapshot()) == {(1, "mine"): 1, (2, "other"): 1}
    world.close()


def test_an_overwrite_of_a_shard_that_was_made_again_is_refused() -> None:
    """Schema numbers start over with a new shard: the old ones mean nothing in it (seed 1845)."""
    world = World()
    client = world.client()
    client.create(SHARD, schema_of())
    wider = schema_of(schema_of().arrow.append(schema_of().arrow.field("id").with_name("more")))
    client.evolve(SHARD, wider)
    handle = client.writer(SHARD, "etl")
    new = table((1, "x")).append_column("more", [[None]]).cast(wider.arrow)
    staged = handle.stager().stage([new])
    client.drop(SHARD)
    client.create(SHARD, schema_of())
    with pytest.raises(InvalidUsage, match="SHARD_CHANGED"):
        overwrite(handle, staged, sequence=1, attempt="t")
    world.close()

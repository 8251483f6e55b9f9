"""Shards whose holds cannot be read when they are to be ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardline.app.execution import ending_holds

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest

    from shardline.datasource.client import ShardClient
    from shardline.datasource.errors import ShardError

__all__ = ["damage_holds"]


def damage_holds(monkeypatch: pytest.MonkeyPatch, errors: Mapping[str, ShardError]) -> None:
    """Let a look at the holds of these shards end with an error."""
    real = ending_holds.find_holds

    def find_holds(client: ShardClient, shard: str) -> dict[str, str]:
        if shard in errors:
            raise errors[shard]
        return real(client, shard)

    monkeypatch.setattr(ending_holds, "find_holds", find_holds)

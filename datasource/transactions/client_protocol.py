"""What transactions need of the client that they belong to."""

from __future__ import annotations

from typing import Protocol

from shardline.datasource.clock import Clock, IdGenerator
from shardline.datasource.settings import ShardSettings
from shardline.datasource.shard.machine import Machine
from shardline.datasource.stores.location import Location

__all__ = ["Home"]


class Home(Protocol):
    """A client, as far as transactions see it."""

    @property
    def location(self) -> Location:
        """Where all shards of a transaction live."""
        ...

    @property
    def settings(self) -> ShardSettings:
        """Of all its handles."""
        ...

    @property
    def clock(self) -> Clock:
        """Its clock."""
        ...

    @property
    def ids(self) -> IdGenerator:
        """Its source of ids."""
        ...

    def machine(self, name: str) -> Machine:
        """The one machine of shard `name`. Does no I/O."""
        ...

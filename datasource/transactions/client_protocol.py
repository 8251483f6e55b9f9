"""Defines the part of a client that transactions use, so that this room need not import it.

The client imports transactions; without this protocol the two would import each other.
"""

from __future__ import annotations

from typing import Protocol

from shardline.datasource.clock import Clock, IdGenerator
from shardline.datasource.settings import ShardSettings
from shardline.datasource.shard.machine import Machine
from shardline.datasource.stores.location import Location

__all__ = ["TransactionClient"]


class TransactionClient(Protocol):
    """A client, as far as transactions use it."""

    @property
    def location(self) -> Location:
        """The location of all shards of a transaction."""
        ...

    @property
    def settings(self) -> ShardSettings:
        """The settings of all its handles."""
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
        """The client's only machine of shard `name`. Does no I/O."""
        ...

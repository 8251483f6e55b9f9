"""A place for a location, opened by several handles and processes of one test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardline.datasource.clock import Clock, IdGenerator, SystemClock, SystemIds
from shardline.datasource.stores.log import GRACE_MS
from shardline.datasource.stores.open import open_location, open_objects
from support.tree import TESTS

if TYPE_CHECKING:
    from shardline.datasource.stores.location import Location
    from shardline.datasource.stores.objects import Objects

__all__ = ["Place"]


@dataclass(frozen=True, slots=True)
class Place:
    """Somewhere empty to put a location; each `open…` gives a handle of its own."""

    url: str
    options: dict[str, str] = field(default_factory=dict)

    def objects(self, clock: Clock | None = None, ids: IdGenerator | None = None) -> Objects:
        clock, ids = clock or SystemClock(), ids or SystemIds()
        return open_objects(self.url, self.options, clock=clock, ids=ids)

    def open(self, grace_ms: int = GRACE_MS) -> Location:
        return open_location(
            self.url,
            self.options,
            clock=SystemClock(),
            ids=SystemIds(),
            if_missing="create",
            grace_ms=grace_ms,
        )

    def worker(
        self, shard: str, name: str, count: int | None, repeat: int = 1
    ) -> subprocess.Popen[str]:
        """A process that has opened the location and appends once it is sent a line."""
        task = {
            "url": self.url,
            "options": self.options,
            "shard": shard,
            "name": name,
            "count": count,
            "repeat": repeat,
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "support.processes.log_worker", json.dumps(task)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)])},
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return process

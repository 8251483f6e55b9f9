"""A process of a soak: it takes its task from stdin and tells what it does on stdout.

The first line on stdin is the task, as JSON; a command line would show a store's credentials to
everybody. The end of stdin ends the process: nothing outlives the soak, however that ends. Each
line on stdout is one JSON value.
"""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from shardline.datasource.client import ShardClient
from shardline.datasource.clock import Clock, SystemClock, SystemIds
from shardline.datasource.settings import ShardSettings
from shardline.datasource.stores.faulty import Faulty
from shardline.datasource.stores.open import compose_location, open_objects

__all__ = ["Child", "Place", "Task", "said", "say", "take_task"]

_TESTS = Path(__file__).resolve().parents[1]

_SLOW_MS = 200.0
"""What a request takes that is slow on purpose."""


class Place(msgspec.Struct, frozen=True):
    """Where a soak runs.

    Attributes:
        url: The persist location.
        storage: Options of its store.
        folder: A folder of this machine for checkpoints and logs.
        lease_ms: How long readers are believed to live; short, so that leases of killed ones end
            within a round or two.
        rollup_every: Records between rollups.
        faults: The part of a client's requests that goes wrong, in [0, 1], in all the ways of
            `shardline.datasource.stores.faulty`. Queries of a session have clients of their own,
            without.
    """

    url: str
    storage: dict[str, str]
    folder: str
    lease_ms: int
    rollup_every: int
    faults: float = 0.0

    def client(self, clock: Clock | None = None) -> ShardClient:
        """A client with the soak's settings."""
        settings = ShardSettings(
            lease_ms=self.lease_ms, rollup_every=self.rollup_every, inline_state_bytes=64 << 10
        )
        clock, ids = clock or SystemClock(), SystemIds()
        objects = open_objects(self.url, self.storage, clock=clock, ids=ids)
        if self.faults:
            # Below the repetitions, where a wire is.
            objects = Faulty(
                objects, clock=clock, ids=ids, probability=self.faults, slow_ms=_SLOW_MS
            )
        location = compose_location(objects, clock=clock, ids=ids)
        return ShardClient(location, settings, clock, ids)


class Task(msgspec.Struct, frozen=True):
    """What one process is to do.

    Attributes:
        place: Where.
        name: Of a writer.
        first: The first append of a writer; it may have happened.
        last: The last one; None for no end.
        pause_ms: Between two appends.
        master: Of a session.
    """

    place: Place
    name: str = ""
    first: int = 1
    last: int | None = None
    pause_ms: int = 0
    master: str = ""


def take_task() -> Task:
    """The task of this process, which ends when stdin does."""
    task = msgspec.json.decode(sys.stdin.readline(), type=Task)

    def end_with_parent() -> None:
        sys.stdin.read()
        os._exit(4)

    threading.Thread(target=end_with_parent, daemon=True).start()
    return task


def say(value: object) -> None:
    """Tell the parent."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


@dataclass(slots=True)
class Child:
    """A started process.

    Attributes:
        process: It.
        events: What it has said and nobody has taken yet.
    """

    process: subprocess.Popen[bytes]
    events: queue.Queue[Any] = field(default_factory=queue.Queue)
    _reader: threading.Thread | None = None

    @classmethod
    def start(cls, module: ModuleType, task: Task, environment: Mapping[str, str]) -> Child:
        """Start `module` as a program; what it writes to stderr goes into a log."""
        log = Path(task.place.folder) / f"{module.__name__.rpartition('.')[2]}.log"
        with log.open("ab") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", module.__name__],
                cwd=task.place.folder,
                env={**environment, "PYTHONPATH": f"{_TESTS}:{environment.get('PYTHONPATH', '')}"},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
            )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(task) + b"\n")
        process.stdin.flush()
        child = cls(process)
        child._reader = threading.Thread(target=child._listen, daemon=True)
        child._reader.start()
        return child

    @property
    def lives(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def kill(self) -> None:
        """SIGKILL; returns when it is gone and all it said is in `events`."""
        self.process.kill()
        self.wait()

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait for its end; its status."""
        status = self.process.wait(timeout_s)
        if self._reader is not None:
            self._reader.join(10)
        assert self.process.stdin is not None
        self.process.stdin.close()
        return status

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                self.events.put(msgspec.json.decode(line))
            except msgspec.DecodeError:
                continue  # a line that the kill has cut
        self.process.stdout.close()


def said(child: Child) -> list[Any]:
    """Everything that a child has said since the last call."""
    found = []
    while True:
        try:
            found.append(child.events.get_nowait())
        except queue.Empty:
            return found

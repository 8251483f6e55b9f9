"""A process that keeps all shards of a soak small: merges, collects garbage, truncates logs.

Says one line per round. Trouble that a repetition may cure is said and passed over; anything else
ends the process, and with it the soak.
"""

from __future__ import annotations

import threading

from shardline.datasource.client import ShardClient
from shardline.datasource.clock import SystemClock
from shardline.datasource.errors import Determinate, Indeterminate, LeaseExpired
from soak.child import Task, say, take_task
from soak.known import SHARDS

__all__: list[str] = []

_PAUSE_MS = 300.0


def _main(task: Task) -> None:
    client = task.place.client()
    clock, never = SystemClock(), threading.Event()
    while True:
        for name in SHARDS:
            _keep(client, name)
        say("round")
        clock.wait(never, _PAUSE_MS)


def _keep(client: ShardClient, name: str) -> None:
    try:
        client.compact(name)
        client.collect_garbage(name)
    except (Determinate, Indeterminate, LeaseExpired) as error:
        say({"trouble": error.code, "message": str(error)[:300]})


if __name__ == "__main__":
    _main(take_task())

"""A process that appends known rows, one append after the other, and says each number.

It repeats an append whose outcome it does not know under the same number; so does the next process
after a kill. A number is said after its append was acknowledged, never before.
"""

from __future__ import annotations

import threading

from shardline.datasource.clock import SystemClock
from shardline.datasource.errors import Determinate, Indeterminate
from shardline.datasource.write import WriteHandle
from soak.child import Task, say, take_task
from soak.known import SOURCE, updates

__all__: list[str] = []

_ATTEMPTS = 20
_PAUSE_MS = 250.0


def _main(task: Task) -> None:
    handle = task.place.client().writer(SOURCE, task.name)
    clock, never = SystemClock(), threading.Event()
    number = task.first
    while task.last is None or number <= task.last:
        _append(handle, task.name, number)
        say(number)
        number += 1
        clock.wait(never, task.pause_ms)


def _append(handle: WriteHandle, name: str, number: int) -> None:
    clock, never = SystemClock(), threading.Event()
    for _ in range(_ATTEMPTS):
        try:
            handle.append_now(updates(name, number), sequence=number)
        except (Determinate, Indeterminate) as error:
            say({"trouble": error.code})
            clock.wait(never, _PAUSE_MS)
        else:
            return
    raise AssertionError(f"append {number} of '{name}' failed {_ATTEMPTS} times")


if __name__ == "__main__":
    _main(take_task())

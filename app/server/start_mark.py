"""A start marks its folder, so that commands that come too early learn to ask again in a moment.

    with start_mark(folder): …          while an application starts, until it is announced
    starting_process(folder) -> 4711    the process that starts one there; None if none does

An application is announced when it serves, which is half a minute after its start: until then
nothing else tells it from one that was never started. The mark is a lock of the operating system on
the file `starting`, which has the process's number: it ends with the process, however that ends.
Several may start at a time, of other locations or to follow another one; the last is told of.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

__all__ = ["start_mark", "starting_process"]

_FILE: Final = "starting"


@contextlib.contextmanager
def start_mark(folder: Path) -> Iterator[None]:
    """Mark the folder within the block; a folder that cannot be written to has no mark."""
    with contextlib.ExitStack() as open_:
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            file = open_.enter_context((folder / _FILE).open("a+", encoding="ascii"))
            fcntl.flock(file, fcntl.LOCK_SH)
            file.truncate(0)
            file.write(str(os.getpid()))
            file.flush()
        yield


def starting_process(folder: Path) -> int | None:
    """The number of the process that starts an application of this folder; None if none does."""
    try:
        with (folder / _FILE).open(encoding="ascii") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return int(file.read())
    except (OSError, ValueError):
        pass
    return None

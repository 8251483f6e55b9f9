"""CPU time and memory of processes, as Linux tells them in `/proc`.

A query over a Python source is spread over the JVM, a process of its own on the driver, and workers
on executors, so its cost is that of a whole tree of processes.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from shardline.datasource.errors import InvalidUsage

__all__ = [
    "COMPILERS",
    "SERVERS",
    "Process",
    "Threads",
    "belonging",
    "below",
    "cpu_seconds",
    "find",
    "forks_of",
    "greatest_memory_bytes",
    "is_java",
    "java_threads",
    "own_threads",
    "parse",
    "processes",
    "thread_ticks",
    "used",
]

_PROC = Path("/proc")

_ANY: Final = re.compile("")

_FORK_SERVER: Final = "shardline.planner_fork_server"
"""In the command of the process from which a JVM's planners are forked, and in theirs."""

COMPILERS: Final = re.compile(r"C[12] CompilerThre")
"""HotSpot's compiler threads, whose names Linux cuts."""

SERVERS: Final = re.compile(r"Thread-\d+$|spark-listener-")
"""Threads of the driver's JVM that Python calls, and those that tell listeners of events."""


@dataclass(frozen=True, slots=True)
class Process:
    """One process at a moment.

    Attributes:
        pid: Its id.
        parent: Its parent's.
        ticks: CPU time of its own and of the children that it has buried, in clock ticks.
    """

    pid: int
    parent: int
    ticks: int


def parse(text: str) -> Process:
    """A process from its `/proc/<pid>/stat`."""
    # A program's name stands in brackets, and may have brackets and blanks itself.
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    return Process(int(head.split(None, 1)[0]), int(fields[1]), sum(map(int, fields[11:15])))


def processes() -> dict[int, Process]:
    """All processes that can be seen, by id.

    Raises:
        InvalidUsage: This is not Linux.
    """
    _check_linux()
    found = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                process = parse((entry / "stat").read_text())
            except (OSError, ValueError):
                continue  # It has ended meanwhile.
            found[process.pid] = process
    return found


def below(root: int, table: Mapping[int, Process], without: Collection[int] = ()) -> set[int]:
    """`root` and all its descendants, but for those in `without` and their descendants."""
    children: dict[int, list[int]] = {}
    for process in table.values():
        children.setdefault(process.parent, []).append(process.pid)
    found, left = set(), [root]
    while left:
        pid = left.pop()
        if pid not in without and pid not in found:
            found.add(pid)
            left += children.get(pid, [])
    return found


def forks_of(jvms: Collection[int], table: Mapping[int, Process]) -> set[int]:
    """The fork servers of JVMs' planners, and their forks.

    A server outlives the planner that has started it, and is then below no process of its JVM.
    """
    servers = find(_FORK_SERVER, table)
    # Its argument is the JVM.
    return {pid for pid in servers if any(find(f"{_FORK_SERVER}\0{jvm}\0", {pid}) for jvm in jvms)}


def belonging(root: int, table: Mapping[int, Process], without: Collection[int] = ()) -> set[int]:
    """What is `below`, and what belongs to a JVM that is there."""
    found = below(root, table, without)
    return found | forks_of(found, table)


def cpu_seconds(table: Mapping[int, Process], pids: Collection[int]) -> float:
    """CPU time of `pids` so far, in seconds of one core."""
    ticks = sum(table[pid].ticks for pid in pids if pid in table)
    return ticks / os.sysconf("SC_CLK_TCK")


def thread_ticks(text: str) -> int:
    """CPU time of a thread, from its `stat`.

    Its own only: what was buried is told of each thread as of the whole process.
    """
    return sum(map(int, text.rpartition(")")[2].split()[11:13]))


Threads: TypeAlias = Mapping[int, float]
"""CPU seconds of threads so far, by id."""


def own_threads(prefix: str) -> Threads:
    """Threads of this process whose names begin so."""
    threads = (one for one in threading.enumerate() if one.name.startswith(prefix))
    return _threads(_PROC / f"self/task/{one.native_id}/stat" for one in threads)


def java_threads(pids: Collection[int], called: re.Pattern[str]) -> Threads:
    """Threads of the JVMs among `pids`.

    Args:
        called: Matches the beginning of a thread's name, as Linux has it: 15 bytes.
    """
    tasks = (_PROC / str(pid) / "task" for pid in pids if is_java(pid))
    return _threads((stat for task in tasks for stat in task.glob("*/stat")), called)


def _threads(stats: Iterable[Path], called: re.Pattern[str] = _ANY) -> Threads:
    found = {}
    for stat in stats:
        try:
            text = stat.read_text()
        except OSError:
            continue  # The thread has ended meanwhile.
        head, _, _ = text.rpartition(")")
        if called.match(head.partition("(")[2]):
            found[int(head.split(None, 1)[0])] = thread_ticks(text) / os.sysconf("SC_CLK_TCK")
    return found


def used(now: Threads, before: Threads) -> float:
    """CPU seconds that threads have used since `before`; what those used that ended is lost.

    A difference of sums would count these backwards, with all that they had used in their lives:
    the JVM's compilers come and go.
    """
    return sum(seconds - before.get(thread, 0.0) for thread, seconds in now.items())


def find(word: str, pids: Collection[int]) -> list[int]:
    """Those of `pids` whose command line has `word` in it, ascending."""
    found = []
    for pid in sorted(pids):
        try:
            line = (_PROC / str(pid) / "cmdline").read_bytes()
        except OSError:
            continue
        if word.encode() in line:
            found.append(pid)
    return found


def is_java(pid: int) -> bool:
    """Whether a process is a JVM."""
    try:
        program = (_PROC / str(pid) / "exe").readlink()
    except OSError:
        return False
    return program.name == "java"


def greatest_memory_bytes() -> int:
    """The most memory that this process has had at once, shared libraries included.

    `getrusage` would count what the process was forked from, before it became this program.

    Raises:
        InvalidUsage: This is not Linux.
    """
    _check_linux()
    text = (_PROC / "self" / "status").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def _check_linux() -> None:
    if not (_PROC / "self" / "stat").exists():
        raise InvalidUsage(
            "CPU time and memory of processes are only known on Linux",
            code="UNSUPPORTED_SYSTEM",
            hint="leave this benchmark out: --only names others",
        )

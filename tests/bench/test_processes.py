"""CPU time of a tree of processes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from bench.processes import (
    COMPILERS,
    SERVERS,
    Process,
    belonging,
    below,
    cpu_seconds,
    find,
    forks_of,
    greatest_memory_bytes,
    java_threads,
    own_threads,
    parse,
    processes,
    thread_ticks,
    used,
)

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")


def table(*some: Process) -> dict[int, Process]:
    return {process.pid: process for process in some}


def test_a_name_with_brackets_and_blanks_is_no_field() -> None:
    """The kernel puts a program's own name into the line, unescaped."""
    fields = "S 7 1 1 0 -1 4194304 900 0 2 0 11 22 33 44 20 0 5 0 100"
    assert parse(f"42 (a) b (c)) {fields}") == Process(42, 7, 11 + 22 + 33 + 44)


def test_a_tree_leaves_out_whom_it_is_told_to() -> None:
    """A process that is left out takes its descendants with it."""
    family = table(
        Process(1, 0, 0), Process(2, 1, 0), Process(3, 2, 0), Process(4, 1, 0), Process(9, 0, 0)
    )
    assert below(1, family) == {1, 2, 3, 4}
    assert below(1, family, without={2}) == {1, 4}


def test_cpu_time_is_in_seconds_of_a_core() -> None:
    """Ticks are the kernel's unit; a process that has ended since counts nothing."""
    ticks = os.sysconf("SC_CLK_TCK")
    family = table(Process(1, 0, 3 * ticks), Process(2, 1, 2 * ticks))
    assert cpu_seconds(family, {1, 2, 77}) == 5.0


def test_a_thread_has_used_what_it_has_used_itself() -> None:
    """Its line has the children of the whole process, too."""
    assert thread_ticks("7 (C2 (x) Thre) S 1 2 3 4 5 6 7 8 9 10 30 12 500 600 0 0") == 42


def test_threads_that_end_are_not_counted_backwards() -> None:
    """One has gone on, one is new, and one with a long life is over."""
    assert used({1: 5.5, 3: 0.25}, {1: 5.0, 2: 99.0}) == 0.75


@linux
def test_threads_are_found_by_their_names() -> None:
    """CPU time of those that are called so, and of no other."""
    go, done = threading.Event(), threading.Event()

    def work() -> None:
        began = time.thread_time()
        while time.thread_time() - began < 0.2:
            pass
        done.set()
        go.wait()

    for name in ("busy-1", "idle-1"):
        threading.Thread(target=work if name == "busy-1" else go.wait, name=name).start()
    done.wait(60)
    try:
        assert sum(own_threads("busy-").values()) >= 0.1
        (idle,) = own_threads("idle-").values()
        assert idle < 0.1
        assert not own_threads("nobody")
    finally:
        go.set()


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("C2 CompilerThre", COMPILERS),
        ("C1 CompilerThre", COMPILERS),
        ("Thread-12", SERVERS),
        ("spark-listener-", SERVERS),
        ("Thread-pool-7", None),
        ("stream executio", None),
        ("VM Thread", None),
    ],
)
def test_threads_of_the_jvm_are_told_apart(name: str, group: re.Pattern[str] | None) -> None:
    """By the names that Linux has of them."""
    assert [one for one in (COMPILERS, SERVERS) if one.match(name)] == [group] * (group is not None)


@linux
def test_only_threads_of_a_jvm_are_counted_as_such() -> None:
    """Not those of this process, whatever they are called."""
    assert java_threads([os.getpid()], re.compile("")) == {}


@contextmanager
def running_child(*words: str) -> Iterator[subprocess.Popen[str]]:
    """A child with words in its command that runs: before that Linux may not know them yet."""
    command = [sys.executable, "-c", "import sys; print('runs', flush=True); sys.stdin.read()"]
    pipe = subprocess.PIPE
    with subprocess.Popen([*command, *words], stdin=pipe, stdout=pipe, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "runs\n"
        yield child


@pytest.mark.process
@linux
def test_a_child_is_found_by_its_command_line() -> None:
    """A real process below this one, which says what it is."""
    with running_child("a-word-of-its-own") as child:
        seen = processes()
        assert seen[child.pid].parent == os.getpid()
        assert find("a-word-of-its-own", below(os.getpid(), seen)) == [child.pid]
        child.communicate()


@pytest.mark.process
@linux
def test_forks_belong_to_the_jvm_that_their_server_is_of() -> None:
    """By the command that they have from it; wherever they stand in the tree."""
    with running_child("shardline.planner_fork_server", "4242") as child:
        seen = processes()
        assert forks_of({1, 4242}, seen) == {child.pid}
        assert forks_of({1, 424, 42424}, seen) == set()
        root = Process(4242, 1, 0)
        assert belonging(4242, {4242: root, child.pid: Process(child.pid, 1, 0)}) == {
            4242,
            child.pid,
        }
        child.communicate()


@linux
def test_the_greatest_memory_stays_when_memory_is_given_back() -> None:
    """64 MiB that were touched and freed still count."""
    held = b"x" * (64 << 20)
    size = len(held)
    del held
    assert greatest_memory_bytes() >= size

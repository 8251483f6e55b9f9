"""CPU time of a tree of processes."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from app.bench.processes import (
    Process,
    below,
    compiler_ticks,
    cpu_seconds,
    find,
    greatest_memory_bytes,
    parse,
    processes,
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


@linux
def test_compilers_are_told_from_other_threads() -> None:
    """By their name, which Linux cuts; without the children that stand in each thread's line."""
    times = "S 1 2 3 4 5 6 7 8 9 10 30 12 500 600 0 0"
    assert compiler_ticks(f"7 (C2 CompilerThre) {times}") == 42
    assert compiler_ticks(f"8 (C1 CompilerThre) {times}") == 42
    assert compiler_ticks(f"9 (VM Thread) {times}") == 0


def test_a_child_is_found_by_its_command_line() -> None:
    """A real process below this one, which says what it is."""
    words = [sys.executable, "-c", "import sys; sys.stdin.read()", "a-word-of-its-own"]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as child:
        seen = processes()
        assert seen[child.pid].parent == os.getpid()
        assert find("a-word-of-its-own", below(os.getpid(), seen)) == [child.pid]
        child.communicate()


@linux
def test_the_greatest_memory_stays_when_memory_is_given_back() -> None:
    """64 MiB that were touched and freed still count."""
    held = b"x" * (64 << 20)
    size = len(held)
    del held
    assert greatest_memory_bytes() >= size

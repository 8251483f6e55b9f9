"""Commands end silently when nobody reads their output, and hide no other broken connection."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardline.app.cli.terminal import open_console
from shardline.commands import main
from shardline.unread_output import UNREAD, ends_when_unread

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]


@contextmanager
def unread_pipe() -> Iterator[int]:
    """The end for writing of a pipe whose other end is closed."""
    reader, writer = os.pipe()
    os.close(reader)
    try:
        yield writer
    finally:
        os.close(writer)


@contextmanager
def output_to(descriptor: int, patch: pytest.MonkeyPatch, buffering: int) -> Iterator[None]:
    """Standard output is this descriptor; `buffering` as for `open`."""
    with (
        open(descriptor, "w", encoding="utf-8", closefd=False, buffering=buffering) as file,
        patch.context() as patched,
    ):
        patched.setattr(sys, "stdout", file)
        yield


@pytest.mark.parametrize("buffering", [1, 100_000], ids=["lines", "blocks"])
@pytest.mark.parametrize("words", ["help", "--version"])
def test_the_help_ends_when_its_reader_does(
    words: str, buffering: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where all of it is in Python's buffer when the command is through."""
    with (
        unread_pipe() as pipe,
        output_to(pipe, monkeypatch, buffering),
        pytest.raises(SystemExit) as end,
    ):
        main(words.split())
    assert end.value.code == UNREAD


def test_a_console_ends_with_the_same_status(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        unread_pipe() as pipe,
        output_to(pipe, monkeypatch, 1),
        pytest.raises(SystemExit) as end,
        ends_when_unread(),
    ):
        open_console().print("a table")
    assert end.value.code == UNREAD


def test_another_connection_that_breaks_is_no_end_of_the_output(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reader, writer = os.pipe()
    one, other = socket.socketpair()
    other.close()
    with (
        one,
        output_to(writer, monkeypatch, 1),
        pytest.raises(BrokenPipeError),
        ends_when_unread(),
    ):
        one.sendall(b"to nobody")
    os.close(reader)
    os.close(writer)


def test_a_command_that_is_started_without_an_output_does_its_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by `>&-`: Python has no file for it then."""
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["help"]) == 0


@pytest.mark.process
@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "-P", "-m", "shardline", "help"],
        [str(ROOT / "spark-submit.sh"), "help"],
    ],
    ids=["program", "script"],
)
def test_nothing_is_complained_about(command: list[str]) -> None:
    """Neither is there a message of Python's, when it ends, nor one of the shell's."""
    with unread_pipe() as pipe:
        ended = subprocess.run(
            command, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False, timeout=60
        )
    assert (ended.returncode, ended.stderr) == (UNREAD, "")

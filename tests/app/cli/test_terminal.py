"""The console of a job: as wide as what shows it, and styled only where that is a terminal."""

from __future__ import annotations

import os
import signal
import subprocess
import termios
from collections.abc import Callable, Iterator

import pytest
from rich.console import Console, Group
from rich.padding import Padding
from rich.text import Text

from shardline.app.cli.tables import facts_table
from shardline.app.cli.terminal import exit_on_sigterm, open_console, report_error
from shardline.app.execution.spark_errors import print_job_error
from shardline.datasource.errors import Determinate

# The parent is one, whose output is a terminal.
pytestmark = pytest.mark.process


@pytest.fixture
def parent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Says how many columns the terminal has on which the parent process writes; this one does not.

    The parent is a process that waits: whoever has started the tests has another output.
    """
    ours, its = os.openpty()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=its) as process:
        monkeypatch.setattr(os, "getppid", lambda: process.pid)
        yield lambda columns: termios.tcsetwinsize(its, (40, columns))
        process.kill()
    os.close(ours)
    os.close(its)


def looks(console: Console) -> tuple[bool, int]:
    return console.is_terminal, console.width


@pytest.mark.parametrize(("columns", "shown"), [(97, 97), (0, 80)])
def test_below_spark_submit_the_terminal_is_its_own(
    monkeypatch: pytest.MonkeyPatch, parent: Callable[[int], None], columns: int, shown: int
) -> None:
    """Also one that does not say how wide it is: a console of no columns shows nothing."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "12345")
    parent(columns)
    assert looks(open_console()) == (True, shown)


def test_a_file_or_pipe_has_no_styles_though_a_shell_with_a_terminal_has_opened_it(
    monkeypatch: pytest.MonkeyPatch, parent: Callable[[int], None]
) -> None:
    """Nothing is broken into lines there: names are copied out of it."""
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    parent(97)
    assert looks(open_console()) == (False, 200)


def test_lines_of_a_pipe_end_with_their_texts(
    monkeypatch: pytest.MonkeyPatch,
    parent: Callable[[int], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """No cell of a table is padded at the end of a line; blanks before others stay."""
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    parent(97)
    table = facts_table({"a": "one", "long": "w" * 300})
    open_console().print(Group(table, Padding(Text("in  it "), (0, 0, 1, 2)), Text("end")))
    first, *_, padded, empty, last = capsys.readouterr().out.splitlines()
    assert (first, padded, empty, last) == ("a     one", "  in  it", "", "end")


def test_texts_of_data_do_not_command_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
    parent: Callable[[int], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """An error that quotes a row does not clear the screen; styles are there all the same."""
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "12345")
    parent(97)
    console = open_console()
    evil = "cannot read 'x\x1b[2J\x9b1;1H\x1b]0;title\x07'\nsecond"
    console.print(Text(evil))
    console.print(evil, markup=False, soft_wrap=True)
    console.print(Padding(Text("fine", "bold"), (0, 1)))
    report_error(Determinate(evil))
    print_job_error(Determinate(evil))
    out, err = capsys.readouterr()
    assert out.startswith("cannot read 'x[2J1;1H]0;title'\nsecond\n" * 2)
    assert "\x1b[1mfine\x1b[0m" in out
    assert not set(err) & set("\x1b\x9b\x07")
    assert err.count("second") == 2


def test_an_error_of_the_end_does_not_hide_that_a_supervisor_asked_for_it() -> None:
    """A call to the JVM was interrupted, and the next one reads its answer."""

    def work() -> None:
        with exit_on_sigterm():
            try:
                signal.raise_signal(signal.SIGTERM)
            finally:
                raise TypeError("'NoneType' object is not callable")

    with pytest.raises(SystemExit) as ended:
        work()
    assert ended.value.code == 128 + signal.SIGTERM


def test_an_error_without_a_signal_stays_what_it_is() -> None:
    """The block only changes what comes behind SIGTERM."""

    def work() -> None:
        with exit_on_sigterm():
            raise ZeroDivisionError

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(ZeroDivisionError):
        work()
    assert signal.getsignal(signal.SIGTERM) == before

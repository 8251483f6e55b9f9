"""The terminal of a real application, and its log: a person sees what counts, and nothing else."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from shardline.app.server.discovery import find
from shardline.jobs.ask import main as ask
from support.processes.checkout import kill_all_of
from support.processes.job import BRIEF, JOB_TIMEOUT_S
from support.tree import ROOT
from support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

PROJECT = """
CREATE SOURCE orders USING csv OPTIONS (path '${in}', header 'true') SCHEMA (id INT, price INT);
CREATE MATERIALIZED VIEW large AS SELECT id, price FROM orders WHERE price > 5;
"""

ALLOWED = (
    r". (starting|starting Spark|checking the project|starting the \w+) \d+:\d\d:\d\d",
    r"2 to create, 0 unchanged; log: .*/log\.jsonl",
    r"running; http://127\.0\.0\.1:\d+/#code=[\w-]+; Ctrl-C stops it",
    r"\d\d:\d\d:\d\d  (orders|large): (healthy|unreadable: .*)",
)
"""All that the terminal may show."""

_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """A process on a terminal of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        ours, theirs = pty.openpty()
        self._file = ours
        self._chunks: list[bytes] = []
        environment = {
            **os.environ,
            "TERM": "xterm",
            "COLUMNS": "200",
            "PYSPARK_PYTHON": sys.executable,
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "SPARK_CONF_DIR": str(ROOT / "conf"),
        }
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "shardline", *arguments],
            cwd=folder, env=environment, stdin=theirs, stdout=theirs, stderr=theirs,
            start_new_session=True, text=True,
        )  # fmt: skip
        os.close(theirs)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while True:
            try:
                chunk = os.read(self._file, 1 << 16)
            except OSError:  # the last process on it has ended
                return
            self._chunks.append(chunk)

    @property
    def lines(self) -> list[str]:
        """All lines that were shown, each state of one that changes in place for itself."""
        text = _ESCAPE.sub("", b"".join(self._chunks).decode(errors="replace"))
        return [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]

    def wait_for(self, pattern: str) -> None:
        """Wait until a line that matches was shown."""

        def seen() -> bool:
            if any(re.search(pattern, line) for line in self.lines):
                return True
            assert self.process.poll() is None, f"ended before {pattern}: {self.lines}"
            return False

        wait_until(pattern, seen, JOB_TIMEOUT_S)

    def finish(self) -> int:
        """Wait for its end; the exit status."""
        status = self.process.wait(JOB_TIMEOUT_S)
        self._thread.join(60)
        return status


@contextmanager
def terminal(folder: Path, *arguments: str) -> Iterator[Terminal]:
    shown = Terminal(folder, *arguments)
    try:
        yield shown
    finally:
        kill_all_of(shown.process)


def test_a_terminal_shows_what_counts_and_the_log_has_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Clients' typos, failing queries, Spark's warnings and a bad row, while it runs.

    Nothing is written beside its folder, though there is a space in the path.
    """
    home = tmp_path / "a home"
    (home / "in").mkdir(parents=True)
    (home / "in" / "a.csv").write_text("id,price\n1,10\n2,20\n")
    (home / "project").mkdir()
    (home / "project" / "all.sql").write_text(PROJECT)
    data = ["--data", str(home / "data")]
    arguments = ["run", str(home / "project"), *data, "--set", f"in={home / 'in'}"]
    with terminal(home, "--driver-java-options", f"{BRIEF}", *arguments) as shown:
        shown.wait_for("^.{2,3}starting")
        shown.wait_for("^running; http")
        shown.wait_for("orders: healthy")
        shown.wait_for("large: healthy")
        for query, status in (
            ("SELEC 1", 2),
            ("SELECT nope FROM large", 2),
            ("SELECT /*+ nope */ id, 1 / 0 FROM large", 2),
            ("SELECT count(*) FROM large", 0),
        ):
            assert ask(["sql", query, *data]) == status, capsys.readouterr()
        (home / "in" / "b.csv").write_text("id,price\n3,many\n")
        shown.wait_for("orders: unreadable")
        # To all, as supervisors do; it stops in order though the JVM gets the signal, too.
        os.killpg(shown.process.pid, signal.SIGTERM)
        assert shown.finish() == 143, shown.lines
    noise = [one for one in shown.lines if not any(re.fullmatch(p, one) for p in ALLOWED)]
    assert noise == []
    told = [line for line in shown.lines if re.match(r"\d\d:\S+ +orders:", line)]
    assert len(told) == 2, "a line for each change"
    assert re.search(r"unreadable: .* 1 row cannot be decoded", told[1])

    assert [found.name for found in tmp_path.iterdir()] == ["a home"]
    assert {found.name for found in home.iterdir()} == {"data", "in", "project"}

    log = [json.loads(line) for line in (home / "data" / "log.jsonl").read_text().splitlines()]
    said = " ".join(record["msg"] for record in log)
    assert "incubator" in said, "by the JVM, before there is a logger"
    assert "Unrecognized hint: nope" in said, "by Spark's logger"
    failed = [record for record in log if record["msg"] == "a query failed"]
    assert any("DIVIDE_BY_ZERO" in record["context"]["error"] for record in failed)
    answered = [record for record in log if record["msg"] == "a query was answered"]
    assert len(answered) == 1
    with pytest.raises(Exception, match="no application"):
        find(home / "data")


def test_a_jvm_that_cannot_start_says_why(tmp_path: Path) -> None:
    """On the terminal and not only in the log; the status is that of a failure."""
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "all.sql").write_text("")
    arguments = ["run", str(tmp_path / "project"), "--data", str(tmp_path / "data")]
    with terminal(tmp_path, "--driver-memory", "1x", *arguments) as shown:
        assert shown.finish() == 1
    text = "\n".join(shown.lines)
    assert "error: [SPARK_NOT_STARTED]" in text
    assert "1x" in text.partition("SPARK_NOT_STARTED")[2]
    assert "Traceback" not in text

"""A job as a real process: started as a command, watched, interrupted and killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from support.processes.checkout import kill_all_of
from support.tree import ROOT
from support.waiting import wait_until

__all__ = ["BRIEF", "JOB_TIMEOUT_S", "RunningJob", "running_job"]

JOB_TIMEOUT_S: Final = 240
"""One whole run of a slice, on two cores that are busy with other tests."""

BRIEF: Final = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Options of a JVM that lives for less than its optimising compiler takes to pay."""

_JAVA: Final = f"{BRIEF} -Duser.timezone=UTC"
"""As in conf/, but for the compiler."""


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A job; `process` is its Python, which has started the JVM as a child."""

    process: subprocess.Popen[str]
    output: Path

    @property
    def said(self) -> str:
        """Everything it has printed so far."""
        return self.output.read_text(encoding="utf-8", errors="replace")

    def wait_for_line(self, pattern: str) -> None:
        """Wait until a line that matches has been printed."""
        wanted = re.compile(pattern, re.MULTILINE)
        self.wait_for(pattern, lambda: wanted.search(self.said) is not None)

    def wait_for(self, what: str, happened: Callable[[], bool]) -> None:
        """Wait for an event while the job runs; a job that ends before it fails the test."""

        def seen() -> bool:
            if happened():
                return True
            assert self.process.poll() is None, f"ended before {what}:\n{self.said}"
            return False

        wait_until(what, seen, JOB_TIMEOUT_S)

    def finish(self) -> int:
        """Wait for its end; the exit status."""
        wait_until("the job ends", lambda: self.process.poll() is not None, JOB_TIMEOUT_S)
        status = self.process.returncode
        assert status is not None
        return status

    def kill(self, whom: str) -> None:
        """SIGKILL to the JVM, to Python, or to all; returns when Python is gone.

        One whose JVM is killed ends by itself.
        """
        match whom:
            case "all":
                kill_all_of(self.process)
            case "jvm":
                os.kill(self.jvm(), signal.SIGKILL)
            case "python":
                self.process.kill()
            case _:
                raise AssertionError(whom)
        self.process.wait(60)

    def interrupt(self) -> int:
        """Ctrl-C, as a terminal sends it: to every process of the group; the exit status."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.finish()

    def jvm(self) -> int:
        """The JVM, a child of Python."""
        for status in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = int(status.read_text().rpartition(")")[2].split()[1])
                command = (status.parent / "cmdline").read_bytes()
            except OSError:
                continue
            if parent == self.process.pid and b"org.apache.spark.deploy.SparkSubmit" in command:
                return int(status.parent.name)
        raise AssertionError(f"no JVM under {self.process.pid}:\n{self.said}")


@contextmanager
def running_job(
    folder: Path, *arguments: str, command: str = "run", options: Sequence[str] = ()
) -> Iterator[RunningJob]:
    """Start a job in `folder`, where what it prints is kept; it is gone after the block.

    Args:
        command: Its name.
        options: Of Spark.
    """
    number = len(list(folder.glob("run-*.txt")))
    output = folder / f"run-{number}.txt"
    environment = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "SPARK_CONF_DIR": str(ROOT / "conf"),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    with output.open("wb") as out:
        process = subprocess.Popen(
            [
                *(sys.executable, "-P", "-m", "shardline"),
                "--driver-java-options",
                _JAVA,
                "--conf",
                f"spark.executor.extraJavaOptions={BRIEF}",
                *options,
                command,
                *arguments,
            ],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
    try:
        yield RunningJob(process, output)
    finally:
        kill_all_of(process)

"""Spark hangs up: its processes end without a word, and say so if anything else is wrong."""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO

import pytest

from support.waiting import wait_until

pytestmark = pytest.mark.process

PATIENCE_S = 60.0

WORKER = """
def main(infile, outfile):
    \"\"\"Like a worker of Spark's: does a task, and tells Spark if there is none to do.\"\"\"
    if infile.read(1):
        {task}
    else:
        outfile.write(b"nothing to do")
"""

PLANNER = "pyspark.sql.streaming.python_streaming_source_runner"

PROGRAM = """
import sys
from importlib.machinery import ModuleSpec
sys.modules["__main__"].__spec__ = ModuleSpec({name!r}, None)
import shardline.datasource.shard_source
raise {error}
"""


def number(stream: IO[bytes]) -> int:
    """A number as Spark's processes tell each other."""
    (found,) = struct.unpack("!i", stream.read(4))
    assert isinstance(found, int)
    return found


def is_gone(pid: int) -> bool:
    """Whether there is no such process."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def said_when_left(task: str) -> str:
    """What Spark's daemon prints when Spark leaves a worker that has done a task."""
    # Not pytest's folder: a socket's path must be short.
    with tempfile.TemporaryDirectory() as folder:
        return _said_when_left(Path(folder), task)


def _said_when_left(folder: Path, task: str) -> str:
    module = "pyspark_worker_of_a_test"
    (folder / f"{module}.py").write_text(WORKER.format(task=task))
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]),
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(folder),
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
        "SPARK_REUSE_WORKER": "1",
    }
    with subprocess.Popen(
        [sys.executable, "-m", "pyspark.daemon", module],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment,
    ) as daemon:  # fmt: skip
        try:
            assert daemon.stdout is not None
            place = daemon.stdout.read(number(daemon.stdout)).decode()
            with socket.socket(socket.AF_UNIX) as spark:
                spark.connect(place)
                pid = number(spark.makefile("rb"))
                spark.sendall(b"1")
            wait_until("the worker ends", lambda: is_gone(pid), PATIENCE_S)
            assert daemon.poll() is None, "the daemon goes on"
            # Spark ends a daemon by closing what it reads.
            _, said = daemon.communicate(timeout=PATIENCE_S)
        finally:
            daemon.kill()
    return said.decode()


def test_a_worker_that_has_read_a_shard_and_is_left_ends_without_a_word() -> None:
    """Another one prints a stack trace; once Spark's workers do not, nothing of this is needed."""
    assert "BrokenPipeError" in said_when_left("pass")
    assert said_when_left("import shardline.datasource.shard_source") == ""


def test_what_else_a_worker_raises_is_told() -> None:
    """By the daemon, as ever."""
    said = said_when_left("import shardline.datasource.shard_source; raise ValueError(7)")
    assert "ValueError: 7" in said


@pytest.mark.parametrize(
    ("name", "error", "said"),
    [
        (PLANNER, "BrokenPipeError(32)", ""),
        (PLANNER, "ValueError('wrong')", "ValueError: wrong"),
        ("somebody.else", "BrokenPipeError(32)", "BrokenPipeError: 32"),
    ],
)
def test_only_a_planner_whom_nobody_hears_is_silent(name: str, error: str, said: str) -> None:
    """Its status says all the same that it was no ordinary end."""
    program = PROGRAM.format(name=name, error=error)
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.strip().rpartition("\n")[2] == said

"""Planners that Spark starts are forked from one server, and live and end as Spark's own would.

The test's process is the JVM here: it starts planners as Spark does, and each calls back at a
socket and says which process it is.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Final

import pytest

from shardline import planner_forks
from shardline.planner_forks import (
    DAEMON,
    GO,
    HEAD,
    PLANNER,
    READY,
    STREAMS,
    SWITCH,
    socket_name,
)
from support.waiting import wait_until

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="planners are forked on Linux only"),
]

PATIENCE_S: Final = 60.0

STEP: Final = "pyspark.sql.worker.lookup_data_sources"


@dataclass
class Planner:
    """A process that Spark has started, and the one that plans in its place or is the same."""

    started: subprocess.Popen[bytes]
    pid: int
    stream: io.BufferedRWPair
    connection: socket.socket

    @property
    def is_forked(self) -> bool:
        """True if another process than the one that was started has called back."""
        return self.pid != self.started.pid

    def wait(self) -> int:
        """The status of the process that Spark has started."""
        return self.started.wait(PATIENCE_S)


@dataclass
class Daemon:
    """A daemon that Spark has started, and a worker of the one that works in its place."""

    started: subprocess.Popen[bytes]
    worker: int
    connection: socket.socket

    @property
    def pid(self) -> int:
        """The process that has forked the worker."""
        return parent_of(self.worker)

    @property
    def is_forked(self) -> bool:
        """True if that is another process than the one that was started."""
        return self.pid != self.started.pid


class Spark:
    """Starts planners as a JVM does."""

    def __init__(self, folder: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._folder = folder
        self._path = str(folder / "socket")
        self._listener.bind(self._path)
        self._listener.listen()
        self._listener.settimeout(PATIENCE_S)
        self._planners: list[Planner] = []
        self._daemons: list[Daemon] = []

    def environment(self, **more: str) -> dict[str, str]:
        """The environment that a planner is started with."""
        # pytest's own variable has another value in each phase of a test.
        inherited = {k: v for k, v in os.environ.items() if k != "PYTEST_CURRENT_TEST"}
        return {
            **inherited,
            "PYTHON_UNIX_DOMAIN_ENABLED": "true",
            "PYTHON_WORKER_FACTORY_SOCK_PATH": self._path,
            **more,
        }

    def start(self, **environment: str) -> Planner:
        """Start a planner, and wait until it has called back."""
        started = subprocess.Popen(
            [sys.executable, "-m", PLANNER],
            env=self.environment(**environment),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        connection, _ = self._listener.accept()
        connection.settimeout(PATIENCE_S)
        stream = connection.makefile("rwb")
        (pid,) = struct.unpack("!i", stream.read(4))
        planner = Planner(started, pid, stream, connection)
        self._planners.append(planner)
        return planner

    def start_daemon(self, argument: str = STEP, **environment: str) -> Daemon:
        """Start a daemon, and let it fork a worker."""
        folder = {"PYTHON_WORKER_FACTORY_SOCK_DIR": str(self._folder)}
        started = subprocess.Popen(
            [sys.executable, "-m", DAEMON, argument],
            env=self.environment(**folder, **environment),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        assert started.stdout is not None
        (length,) = struct.unpack("!i", started.stdout.read(4))
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(PATIENCE_S)
        connection.connect(started.stdout.read(length))
        (worker,) = struct.unpack("!i", connection.recv(4, socket.MSG_WAITALL))
        daemon = Daemon(started, worker, connection)
        self._daemons.append(daemon)
        return daemon

    def nobody_calls(self) -> bool:
        """True if no planner waits to be accepted."""
        self._listener.setblocking(False)
        try:
            self._listener.accept()
        except BlockingIOError:
            return True
        finally:
            self._listener.settimeout(PATIENCE_S)
        return False

    def close(self) -> None:
        """End all that was started."""
        for planner in self._planners:
            planner.started.kill()
            if planner.is_forked and not is_gone(planner.pid):
                with suppress(ProcessLookupError):  # it may end just now
                    os.kill(planner.pid, signal.SIGKILL)  # or it would hold the streams
            planner.started.communicate()
            planner.stream.close()
            planner.connection.close()
        for daemon in self._daemons:
            daemon.connection.close()
            daemon.started.kill()
            wait_until("the worker is gone", partial(is_gone, daemon.worker), PATIENCE_S)
            daemon.started.communicate()
        self._listener.close()


def server() -> int | None:
    """Process id of the server of this process's planners; None without one."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(socket_name(os.getpid()))
        except OSError:
            return None
        peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid: int = struct.unpack("3i", peer)[0]
    # Until the server takes it over, the socket is that of the planner which has made it.
    return pid if "planner_fork_server" in command_of(pid) else None


def is_listening(jvm: int) -> bool:
    """True if somebody takes requests of a JVM's planners."""
    with socket.socket(socket.AF_UNIX) as connection:
        return connection.connect_ex(socket_name(jvm)) == 0


def command_of(pid: int) -> str:
    """The command of a process; "" if there is none."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def stat_of(pid: int) -> list[str]:
    """What the kernel says of a process, from its state and its parent on."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()


def is_gone(pid: int) -> bool:
    """True if there is no such process, or nothing but its status."""
    try:
        return stat_of(pid)[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def parent_of(pid: int) -> int:
    """The parent of a process."""
    return int(stat_of(pid)[1])


def kill_server() -> None:
    """SIGKILL to the server, if there is one; returns when it is gone."""
    pid = server()
    if pid is not None:
        os.kill(pid, signal.SIGKILL)
        wait_until("the server is gone", lambda: is_gone(pid), PATIENCE_S)
        # A process that it has forked just before has the socket, too, until it closes that.
        wait_until("nobody listens", lambda: not is_listening(os.getpid()), PATIENCE_S)


@pytest.fixture
def spark() -> Iterator[Spark]:
    """A JVM that has no server yet."""
    kill_server()
    # Not pytest's folder: a socket's path must be short.
    with tempfile.TemporaryDirectory() as folder:
        made = Spark(Path(folder))
        try:
            yield made
        finally:
            made.close()
            kill_server()


@pytest.fixture
def forking(spark: Spark) -> Spark:
    """The same, with a server: the first planner starts it."""
    first = spark.start()
    assert not first.is_forked
    wait_until("the server listens", lambda: server() is not None, PATIENCE_S)
    return spark


@pytest.mark.parametrize("kind", ["pid", "mnt"])
def test_containers_that_share_a_network_share_no_server(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same user and the same number of a JVM are, among other processes or files, others."""
    here = socket_name(1)

    def elsewhere(path: str) -> SimpleNamespace:
        number = os.stat(path).st_ino  # noqa: PTH116 - as it is called
        return SimpleNamespace(st_ino=number + (path == f"/proc/self/ns/{kind}"))

    other = SimpleNamespace(getuid=os.getuid, stat=elsewhere)
    monkeypatch.setattr(planner_forks, "os", other)
    assert socket_name(1) != here
    monkeypatch.undo()
    assert socket_name(1) == here != socket_name(2)


def test_planners_after_the_first_are_forked(forking: Spark) -> None:
    """From one process, which has the imports; each has its own answers, streams and status."""
    planners = [forking.start(PYSPARK_ANYTHING=str(number)) for number in range(3)]
    pid = server()
    assert all(planner.is_forked for planner in planners)
    assert len({planner.pid for planner in planners}) == len(planners)
    for planner in planners:
        assert "planner_fork_server" in command_of(planner.pid)
        assert f"PPid:\t{pid}\n" in Path(f"/proc/{planner.pid}/status").read_text()
    # The first thing that Spark sends is its version of Python: an answer comes, and the end.
    refused = planners[0]
    refused.stream.write(struct.pack("!i", 3) + b"2.7")
    refused.stream.flush()
    (answer,) = struct.unpack("!i", refused.stream.read(4))
    assert answer == -2, "the beginning of an exception"
    assert refused.wait() == 255
    # One whose socket is closed by Spark says so where Spark reads it.
    left = planners[1]
    left.stream.close()
    left.connection.close()
    assert left.wait() == 1
    assert left.started.stderr is not None
    assert b"BrokenPipeError" in left.started.stderr.read()
    assert not is_gone(planners[2].pid)


def test_a_planner_that_was_given_up_as_it_started_ends_quietly(
    forking: Spark, tmp_path: Path
) -> None:
    """A query that is stopped early takes its socket away; nobody has to read of that."""
    environment = {"PYTHON_WORKER_FACTORY_SOCK_PATH": str(tmp_path / "gone")}
    given_up = subprocess.run(
        [sys.executable, "-m", PLANNER],
        env=forking.environment(**environment),
        capture_output=True, timeout=PATIENCE_S, check=False,
    )  # fmt: skip
    assert (given_up.returncode, given_up.stderr) == (1, b"")


def test_a_planner_and_its_fork_end_together(forking: Spark) -> None:
    """Whichever of the two is killed: Spark knows the one, and talks to the other."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        destroyed = forking.start()
        assert destroyed.is_forked
        destroyed.started.send_signal(signal_number)
        wait_until("the fork is gone", partial(is_gone, destroyed.pid), PATIENCE_S)
    killed = forking.start()
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.wait() == 1


def test_a_server_that_is_killed_takes_no_planner_with_it(forking: Spark) -> None:
    """The next planner starts another server."""
    before = forking.start()
    kill_server()
    alone = forking.start()
    assert not alone.is_forked
    wait_until("another server listens", lambda: server() is not None, PATIENCE_S)
    assert forking.start().is_forked
    assert not is_gone(before.pid)


def test_another_environment_is_not_forked(forking: Spark) -> None:
    """A variable may have had its effect when the server started, so all of them count."""
    assert not forking.start(PYTHONHASHSEED="7").is_forked
    assert not forking.start(**{SWITCH: "0"}).is_forked
    assert forking.start().is_forked


def test_a_planner_that_has_waited_too_long_plans_by_itself(forking: Spark) -> None:
    """And then the fork does nothing, however late it comes to it."""
    pid = server()
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        alone = forking.start()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert not alone.is_forked
    # It forks in the order of requests: after this one the one before has been answered.
    assert forking.start().is_forked
    assert forking.nobody_calls()


@pytest.mark.parametrize("answer", [b"", b"?"], ids=["none", "another"])
def test_a_fork_waits_for_the_word(forking: Spark, answer: bytes) -> None:
    """Without it the one that has asked may plan by itself already."""
    assert answer != GO
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(PATIENCE_S)
        asking.connect(socket_name(os.getpid()))
        words = {"words": [PLANNER], "folder": "/"}
        request = json.dumps({**words, "environment": forking.environment()}).encode()
        null = os.open(os.devnull, os.O_RDWR)
        socket.send_fds(asking, [HEAD.pack(len(request))], [null] * STREAMS)
        os.close(null)
        asking.sendall(request)
        assert asking.recv(1) == READY
        asking.sendall(answer)
        if not answer:
            asking.shutdown(socket.SHUT_WR)
        assert asking.recv(1) == b"", "it has ended"
    assert forking.nobody_calls()


@pytest.mark.parametrize("request_", [b"", b"\0\0", HEAD.pack(9) + b"{}"])
def test_a_request_that_is_cut_off_harms_nobody(forking: Spark, request_: bytes) -> None:
    """The fork that reads it ends, and the server goes on."""
    with socket.socket(socket.AF_UNIX) as asking, contextlib.ExitStack() as open_:
        asking.settimeout(PATIENCE_S)
        asking.connect(socket_name(os.getpid()))
        null = os.open(os.devnull, os.O_RDWR)
        open_.callback(os.close, null)
        if request_:
            socket.send_fds(asking, [request_], [null] * STREAMS)
        asking.shutdown(socket.SHUT_WR)
        assert asking.recv(1) == b""
    assert forking.start().is_forked


def test_daemons_of_planning_are_forked(spark: Spark) -> None:
    """The first, too, which starts the server; each is in a process group of its own."""
    daemons = [spark.start_daemon() for _ in range(2)]
    pid = server()
    assert pid is not None
    for daemon in daemons:
        assert daemon.is_forked
        assert parent_of(daemon.pid) == pid
        # Ctrl-C in a terminal reaches the group of whoever was started there.
        assert os.getpgid(daemon.started.pid) == daemon.started.pid
        assert os.getpgid(daemon.pid) == os.getpgid(daemon.worker) == daemon.pid
    assert daemons[0].pid != daemons[1].pid
    assert spark.start().is_forked, "planners have the same server"


def test_other_daemons_are_not_forked(forking: Spark) -> None:
    """Functions of users run with another number of threads, which counts from the first import."""
    assert not forking.start_daemon("pyspark.worker").is_forked
    assert not forking.start_daemon(OMP_NUM_THREADS="3").is_forked
    assert forking.start_daemon(SPARK_ANYTHING="1", PYTHON_DAEMON_ANYTHING="1").is_forked


def test_a_daemon_ends_as_sparks_own(forking: Spark) -> None:
    """Destroyed, killed or left by the JVM, it ends its workers; a worker keeps nothing alive."""

    def hears_hangups(pid: int) -> bool:
        # Inherited from the daemon, which does not end by the signal that it sends.
        status = Path(f"/proc/{pid}/status").read_text()
        (ignored,) = (line for line in status.splitlines() if line.startswith("SigIgn:"))
        return not int(ignored.split()[1], 16) & 1

    def waits(pid: int) -> bool:
        # PySpark's daemon ends by an exception of its signal handler, which Python drops if it is
        # raised while functions that are registered for a fork run. One that is destroyed then goes
        # on until its input is closed, as the JVM does that, too.
        return stat_of(pid)[0] == "S"

    def leave(daemon: Daemon) -> None:
        assert daemon.started.stdin is not None
        daemon.started.stdin.close()
        daemon.started.stdin = None

    for end in (lambda d: d.started.terminate(), lambda d: d.started.kill(), leave):
        daemon = forking.start_daemon()
        ended = (daemon.worker, daemon.pid)
        wait_until("the worker is at work", partial(hears_hangups, daemon.worker), PATIENCE_S)
        assert daemon.is_forked
        wait_until("the daemon waits", partial(waits, daemon.pid), PATIENCE_S)
        end(daemon)
        for pid in ended:
            wait_until("all are gone", partial(is_gone, pid), PATIENCE_S)
        daemon.started.wait(PATIENCE_S)
    killed = forking.start_daemon()
    os.kill(killed.pid, signal.SIGKILL)
    assert killed.started.wait(PATIENCE_S) == 1
    assert not is_gone(killed.worker), "as with Spark's own, its task may go on"


def test_a_worker_that_spark_lets_go_says_nothing(forking: Spark) -> None:
    """Spark closes the socket of one that has been idle: no stack trace goes to the terminal."""
    daemon = forking.start_daemon(PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE="1")  # as Spark does
    assert daemon.is_forked
    daemon.connection.close()
    wait_until("the worker is gone", partial(is_gone, daemon.worker), PATIENCE_S)
    daemon.started.terminate()
    assert daemon.started.stderr is not None
    assert daemon.started.stderr.read() == b""


JVM = f"""
import os, subprocess, sys
started = subprocess.Popen([sys.executable, "-m", {PLANNER!r}], stdin=subprocess.PIPE)
print(os.getpid(), flush=True)
sys.stdin.read()
os._exit(0)
"""


def test_the_server_ends_with_the_jvm(spark: Spark) -> None:
    """However that ends: nothing is left behind."""
    jvm = subprocess.Popen(
        [sys.executable, "-c", JVM], env=spark.environment(),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    with jvm:
        try:
            wait_until("its server listens", lambda: is_listening(jvm.pid), PATIENCE_S)
        finally:
            jvm.kill()
    wait_until("the server is gone", lambda: not is_listening(jvm.pid), PATIENCE_S)

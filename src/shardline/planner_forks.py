"""A fork server starts Spark's planners with everything imported already.

Spark starts a new Python for each streaming query on a data source written in Python, which plans
its micro-batches. Importing PySpark, NumPy, Arrow and Shardline takes it half a second of processor
time and 100 MB, each time anew, and a Python that has not called Spark after ten seconds is given
up: thirty streams that start at once on two cores are too many. For each step of a query on such a
source that it plans (find it, make it, plan its reads, prepare and commit its writes) Spark starts
a daemon, which forks a worker that imports the same: six pairs, of which the first query of a JVM
waits for half. No setting of Spark shares these processes. So the Python that Spark starts hands
its work over, before it imports anything:

    Spark ── starts ──► python -m PLANNER  ── its streams, environment, folder ──►  fork server
      ▲                        │                    (a Unix socket)                     │ forks
      └── Spark's own socket ──┼────────────────────────────────────────────────────► planner
                               └── lives as long as the planner, and the planner as it

`hand_over` is called by a `.pth` file of the environment (`spark-submit.sh` writes it) in each
planner and each daemon of planning that starts there; not in the daemon of functions, whose
environment is another. The first of a JVM finds no server and starts one
(`shardline.planner_fork_server`). A planner then goes on by itself, as without all this, while the
server imports; a daemon, for which Spark waits as long as it takes, waits for that.

Nothing may plan twice, and nothing may be lost
    1. The planner-to-be sends its request; the fork reads it, and refuses (closes) where an
       environment differs in what was effective at the server's start.
    2. The fork says READY. Whoever has waited too long closes, and plans by itself.
    3. The planner-to-be says GO. Only then the fork does anything: so one of the two plans, never
       both, whatever dies or is late.
    4. If either ends, the other does: Spark destroys the process it has started, and its planner is
       killed by the kernel (`O_ASYNC`; a daemon is terminated, so that it ends its workers); a
       planner that ends closes the socket. A server that is killed takes no planner with it, and
       the next planner starts another.

On Linux only: elsewhere, and where anything here fails, planners are started as Spark does.
`SHARDLINE_PLANNER_FORKS=0` in the environment of the JVM turns it off. The idea is that of
`multiprocessing`'s fork server and of Android's zygote; `pyspark.daemon` does it for tasks.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import struct
import sys
from typing import Final

__all__ = [
    "DAEMON",
    "FAILED",
    "GO",
    "HEAD",
    "PLANNER",
    "READY",
    "STREAMS",
    "SWITCH",
    "hand_over",
    "socket_name",
    "user_of",
]

SWITCH: Final = "SHARDLINE_PLANNER_FORKS"
"""Variable of the environment: `0` leaves the start of planners to Spark."""

PLANNER: Final = "pyspark.sql.streaming.python_streaming_source_runner"
"""The module that Spark starts for a stream."""

DAEMON: Final = "pyspark.daemon"
"""The module that Spark starts for a step of planning; its argument is the module of the step."""

_STEPS: Final = "pyspark.sql.worker."
"""The package of these modules. The argument of the daemon of functions is another."""

READY: Final = b"r"
GO: Final = b"g"

_READY_TIMEOUT_S: Final = 4.0
"""Of Spark's ten seconds: long enough for a server that still imports, and short enough to import
everything here if it never answers."""
HEAD: Final = struct.Struct("!I")
"""Number of bytes of the request, a JSON object, that follows."""

STREAMS: Final = 3
"""Standard input, output and error."""

FAILED: Final = 1
"""The status of a planner that could not run, or was killed."""

_SPACES: Final = ("pid", "mnt")
"""The namespaces in which the number of a JVM, and the path of a folder, mean something."""


def socket_name(jvm: int) -> bytes:
    """Abstract address of a JVM's fork server: no file that anybody would have to remove.

    Raises:
        OSError: The namespaces of this process are not known.
    """
    # Containers may share a network, and so abstract addresses, but not processes and files: the
    # same number is then another JVM, whose planners would read and write another's folders.
    spaces = "-".join(str(os.stat(f"/proc/self/ns/{kind}").st_ino) for kind in _SPACES)  # noqa: PTH116 - `pathlib` would be one import more
    return f"\0shardline-planners-{os.getuid()}-{jvm}-{spaces}".encode()


_attempts: Final[list[list[str]]] = []
"""Python runs `.pth` files of a virtual environment twice; a second attempt would wait again."""


def hand_over() -> None:
    """Let a fork plan in the place of this process, which Spark has started, and end as it ends.

    To be called before anything is imported; does nothing in a process that is no planner. It
    returns where this process has to plan by itself.
    """
    if _attempts or sys.platform != "linux" or os.environ.get(SWITCH) == "0":
        return
    _attempts.append(sys.orig_argv)
    words = sys.orig_argv[2:]
    is_daemon = words[:1] == [DAEMON] and "".join(words[1:]).startswith(_STEPS)
    if words != [PLANNER] and not is_daemon:
        return
    jvm = os.getppid()
    try:
        connection = _connect(jvm)
        if connection is None:
            _start_server(jvm)
            connection = _connect(jvm) if is_daemon else None
        if connection is None:
            return
        if is_daemon:
            # As the daemon itself does: a Ctrl-C in the terminal is not for it.
            os.setpgid(0, 0)
        with connection:
            if _ask(connection, words):
                os._exit(_wait(connection))
    except OSError:
        # Also one after GO: a socket is reset only if the fork ended without having read that, so
        # nobody plans. As Spark has started it, this process works in any case.
        return


def _connect(jvm: int) -> socket.socket | None:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(socket_name(jvm))
        # Anybody on this machine may take an abstract address.
        if user_of(connection) == os.getuid():
            return connection
    except OSError:
        pass
    connection.close()
    return None


def user_of(connection: socket.socket) -> int:
    """Return the id of the user at the other end of a Unix socket."""
    peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    user: int = struct.unpack("3i", peer)[1]
    return user


def _start_server(jvm: int) -> None:
    """Start a server, unless another has been started meanwhile; requests are heard at once.

    It is given a socket that listens already: what connects before it has its imports waits.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(socket_name(jvm))
        listener.listen(socket.SOMAXCONN)
        listener.set_inheritable(True)
        # Spark reads the streams of this process to their end, and the server lives longer.
        streams = [(os.POSIX_SPAWN_DUP2, nothing, number) for number in range(STREAMS)]
        command = [sys.executable, "-P", "-m", "shardline.planner_fork_server"]
        command += [str(jvm), str(listener.fileno())]
        os.posix_spawn(sys.executable, command, os.environ, file_actions=streams)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
    finally:
        listener.close()
        os.close(nothing)


def _ask(connection: socket.socket, words: list[str]) -> bool:
    """Send the request; True once a fork works on it."""
    folder = os.getcwd()  # noqa: PTH109 - `pathlib` would be one import more
    environment = dict(os.environ)
    request = json.dumps({"words": words, "environment": environment, "folder": folder}).encode()
    connection.settimeout(_READY_TIMEOUT_S)
    head = HEAD.pack(len(request))
    # The streams travel with the first bytes, which are too few to be cut.
    socket.send_fds(connection, [head], list(range(STREAMS)))
    connection.sendall(request)
    if connection.recv(1) != READY:
        return False
    connection.settimeout(None)
    connection.sendall(GO)
    return True


def _wait(connection: socket.socket) -> int:
    """Wait for the end of the fork; returns its status."""
    status = connection.recv(1)
    return status[0] if status else FAILED

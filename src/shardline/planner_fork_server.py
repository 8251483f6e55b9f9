"""The fork server of a JVM's planners: has everything imported, and forks one for each request.

    python -m shardline.planner_fork_server JVM LISTENER

`shardline.planner_forks` says what for, and has the protocol. Its socket listens before it imports,
so that others wait for it rather than import; it ends with the JVM. It runs nothing but
imports, in one thread, and keeps nothing that two planners must not share: connections and
identities are made after the fork.
"""

from __future__ import annotations

import fcntl
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any, Final

from shardline.planner_forks import (
    DAEMON,
    FAILED,
    GO,
    HEAD,
    PLANNER,
    READY,
    STREAMS,
    user_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["main"]

_STEPS: Final = (
    "lookup_data_sources",
    "create_data_source",
    "plan_data_source_read",
    "write_into_data_source",
    "python_streaming_sink_runner",
    "commit_data_source_write",
)
"""Modules of `pyspark.sql.worker` that daemons run, forked."""

_IMPORTS: Final = (
    PLANNER,
    *(f"pyspark.sql.worker.{step}" for step in _STEPS),
    "pyspark_shard",
    "shardline.datasource.shard_source.stream",
)

_SHUTDOWN: Final = "shardline.datasource.shard_source.worker_shutdown"

_OF_ONE_PLANNER: Final = ("PYTHON_WORKER_FACTORY_", "PYTHON_DAEMON_", "PYSPARK_", "SPARK_")
"""Begins of variables that are read when a planner runs, and may differ from the server's. All
others must be equal: what they mean was decided when the server started (the path of imports, the
locale, the seed of hashes, the number of threads)."""

_REQUEST_TIMEOUT_S: Final = 10.0
"""For a request that its sender was stopped in the middle of."""

_SET_SIGNAL: Final = 10
"""`F_SETSIG` of Linux, which `fcntl` does not name."""


def main(jvm: int, listener: socket.socket) -> int:
    """Serve the planners of a JVM until it ends; returns in the server, and in each fork.

    Args:
        jvm: Its process id.
        listener: Where requests come in.

    Returns:
        The status to end with.
    """
    with listener:
        try:
            watched = os.pidfd_open(jvm)
        except OSError:
            return 0  # The JVM is gone.
        # Who connects from now on sees this process at the other end, not the one that made it.
        listener.listen(socket.SOMAXCONN)
        begun = _effective(os.environ)
        _import_all()
        connection = _serve(listener, watched)
        os.close(watched)
    if connection is None:
        return 0
    with connection:
        return _plan(connection, begun)


def _import_all() -> None:
    for name in _IMPORTS:
        importlib.import_module(name)
    # `runpy` warns of a module that it finds imported, and runs it a second time as `__main__`.
    del sys.modules[PLANNER]


def _serve(listener: socket.socket, watched: int) -> socket.socket | None:
    """Fork for each connection: returns it in the fork, and None in the server at its end."""
    # A page that nobody writes to is shared by all forks: the collector shall not mark these.
    gc.collect()
    gc.freeze()
    # Of Ctrl-C in a terminal Spark is the one to know; forks that end are nobody's to wait for.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    poll.register(watched, select.POLLIN)
    while all(number != watched for number, _ in poll.poll()):
        connection, _ = listener.accept()
        if user_of(connection) == os.getuid() and os.fork() == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            return connection
        connection.close()
    return None


def _effective(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that have had their effect when a process has started."""
    return {k: v for k, v in environment.items() if not k.startswith(_OF_ONE_PLANNER)}


def _plan(connection: socket.socket, begun: Mapping[str, str]) -> int:
    """In a fork: become the planner that was asked for; returns the status to end with."""
    connection.settimeout(_REQUEST_TIMEOUT_S)
    try:
        streams, request = _receive(connection)
        if _effective(request["environment"]) != begun:
            return FAILED
        connection.sendall(READY)
        if connection.recv(1) != GO:
            return FAILED
    except OSError:
        return FAILED
    module, *arguments = request["words"]
    # A daemon has workers to end: as when Spark destroys it, it does so when it is terminated.
    _end_with(connection, signal.SIGTERM if module == DAEMON else signal.SIGKILL)
    # Of what a daemon forks, nobody but itself has the connection: its end would not be seen.
    os.register_at_fork(after_in_child=connection.close)
    os.register_at_fork(after_in_child=_become_worker)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    if not os.environ.get("PYTHONSAFEPATH"):
        sys.path.insert(0, request["folder"])  # as `-m` does
    _draw_anew()
    sys.argv[1:] = arguments
    status = FAILED
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as end:
        status = end.code & 0xFF if isinstance(end.code, int) else int(end.code is not None)
    except BaseException as error:  # noqa: BLE001 - as the interpreter would at the end of a program
        if not _is_given_up(error):
            sys.excepthook(*sys.exc_info())
    # Whoever reads it is gone at once: this process has a right to end in order.
    fcntl.fcntl(connection, fcntl.F_SETFL, fcntl.fcntl(connection, fcntl.F_GETFL) & ~os.O_ASYNC)
    try:
        connection.sendall(bytes([status]))
    except OSError:
        return FAILED
    return status


def _is_given_up(error: BaseException) -> bool:
    """True if the JVM has taken away the socket at which it had waited for this planner.

    It does when a query is stopped as it starts. A traceback of it would be on the terminal of a
    session that has ended in order.
    """
    from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415 - imported by now, with the planner

    return (
        isinstance(error, PySparkRuntimeError)
        and error.getCondition() == "CANNOT_OPEN_SOCKET"
        and isinstance(error.__context__, FileNotFoundError)
    )


def _receive(connection: socket.socket) -> tuple[list[int], dict[str, Any]]:
    """Receive a request and the streams that come with it.

    Raises:
        OSError: It was cut off, or is none.
    """
    head, streams, _, _ = socket.recv_fds(connection, HEAD.size, STREAMS)
    if len(head) != HEAD.size or len(streams) != STREAMS:
        raise ConnectionError("no request")
    (left,) = HEAD.unpack(head)
    pieces = []
    while left:
        pieces.append(connection.recv(left))
        if not pieces[-1]:
            raise ConnectionError("a request was cut off")
        left -= len(pieces[-1])
    return streams, json.loads(b"".join(pieces))


def _end_with(connection: socket.socket, number: signal.Signals) -> None:
    """Let the kernel send this process a signal once the other end of the socket is closed."""
    fcntl.fcntl(connection, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(connection, _SET_SIGNAL, number)
    fcntl.fcntl(connection, fcntl.F_SETFL, fcntl.fcntl(connection, fcntl.F_GETFL) | os.O_ASYNC)
    # Closed before the kernel was asked to tell: it does not tell any more.
    connection.setblocking(False)
    try:
        if not connection.recv(1):
            os._exit(FAILED)
    except BlockingIOError:
        pass


def _become_worker() -> None:
    """In a process that a daemon has forked: do what its first imports would have done."""
    _draw_anew()
    importlib.import_module(_SHUTDOWN).silence_broken_pipes()


def _draw_anew() -> None:
    """Give this fork random numbers of its own, where a library does not do so by itself."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), socket.socket(fileno=int(sys.argv[2]))))

"""Who holds the lane: a process describes itself, is judged by others, and says that it lives.

A holder is alive for as long as the leased reader that it has named is in the state of the lane's
shard. On its own machine that need not be waited for: a process that is gone is gone.

Invariants:
    A verdict of "gone" is about that very process: it was on this machine, in its present run and
    in this container, and no process with its id began when it did.
    Whoever is wrongly believed dead is fenced by the next append all the same.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from pathlib import Path
from typing import Literal, TypeAlias

from shardline.app.lane.commands import Holder
from shardline.datasource.clock import Clock, IdGenerator
from shardline.datasource.errors import InvalidUsage, LeaseExpired, ShardError
from shardline.datasource.frontier import Frontier
from shardline.datasource.lease import Lease, take_lease
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.state import ShardState

__all__ = ["Liveness", "Pulse", "held_error", "judge", "this_process"]

_log = logging.getLogger(__name__)

Liveness: TypeAlias = Literal["alive", "gone", "silent"]
"""What is known of a holder: it lives; its process has ended; or it has not been heard of."""


def this_process(application: str, clock: Clock, ids: IdGenerator) -> Holder:
    """This process, as a holder from now on.

    Args:
        application: What it calls itself, for people.
        clock: Says since when.
        ids: Makes its token.
    """
    return Holder(
        token=ids.token().hex(),
        host=socket.gethostname(),
        boot=_boot(),
        pid=os.getpid(),
        started=_started(os.getpid()) or 0,
        application=application,
        since_ms=clock.now_ms(),
    )


def judge(holder: Holder, state: ShardState, now_ms: int) -> Liveness:
    """Whether `holder` lives, as far as this machine and the lane's shard can say.

    Args:
        holder: Who.
        state: Of the lane's shard.
        now_ms: By this machine's clock; a lease is judged as if the holder's clock agreed.
    """
    here = holder.host == socket.gethostname() and holder.boot == _boot()
    if here and holder.started and _started(holder.pid) != holder.started:
        return "gone"
    lease = state.leased.get(holder.lease)
    if lease is None or lease.heartbeat_ms + lease.lease_ms < now_ms:
        return "silent"
    return "alive"


def held_error(holder: Holder, url: str, now_ms: int) -> InvalidUsage:
    """The error for a runtime that finds the lane held."""
    seconds = max(now_ms - holder.since_ms, 0) // 1000
    return InvalidUsage(
        f"the runtime '{holder.application}' on {holder.host}, process {holder.pid}, has held "
        f"{url} for {seconds} s",
        code="LOCATION_HELD",
        hint="stop it, or take over with --take-over: its queries then stop without committing "
        "anything more",
    )


class Pulse:
    """Says from a thread of its own that the holder lives, twice per lease.

    Attributes:
        lost: Whether the lease turned out to be gone: the holder must take another one.
    """

    def __init__(self, machine: Machine, clock: Clock, lease_ms: int, purpose: str) -> None:
        """Take a lease; `start` starts the thread."""
        lease = take_lease(machine, since=None, lease_ms=lease_ms, purpose=purpose)
        assert isinstance(lease, Lease), lease
        self.lost = False
        self._lease = lease
        self._machine = machine
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lane-pulse", daemon=True)

    @property
    def reader(self) -> str:
        """Id of the leased reader."""
        return self._lease.reader

    def start(self) -> None:
        """Start beating."""
        self._thread.start()

    def stop(self) -> None:
        """Stop beating, and give the lease up: the next holder need not wait."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._lease.release()

    def beat(self) -> None:
        """One heartbeat; gives up what of the log's past nobody reads any more.

        Raises:
            LeaseExpired: The lease is gone.
            Determinate: The store did not answer.
            Indeterminate: The same.
        """
        state = self._machine.state()
        newest = max((state.upper.time or 1) - 1, state.since.time or 0)
        self._lease.downgrade(Frontier(newest), state.seqno)

    def _run(self) -> None:
        pause_ms = self._lease.lease_ms / 2
        while not self._clock.wait(self._stop, pause_ms):
            pause_ms = self._lease.lease_ms / 2
            try:
                self.beat()
            except LeaseExpired:
                self.lost = True
                return
            except ShardError as error:
                # The store did not answer. A whole pause from here the lease would be over.
                context = {"error": str(error)}
                _log.warning("a heartbeat of the lane failed", extra={"context": context})
                pause_ms = self._lease.lease_ms / 16


def _boot() -> str:
    """What process ids here are valid in: the machine's present run, and the container of it."""
    try:
        run = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{run}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _started(pid: int) -> int | None:
    """When process `pid` began, in ticks since the machine did; None if there is no such process.

    A process that has ended and was not yet waited for is none.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name of the program is in parentheses and may hold anything, parentheses too.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in {"Z", "X"} else int(fields[19])

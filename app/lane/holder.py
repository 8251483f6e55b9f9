"""The holder module describes the process that holds the lane, and judges if it still lives.

A runtime that starts while another one holds the location must not fence it by mistake, and must
not wait for one that has crashed. A holder lives for as long as the leased reader that it has named
is in the state of the lane's shard. On the holder's own machine nobody has to wait for the lease:
a process that has ended is seen at once.

Invariants:
    "gone" is a verdict about that very process: it was on this machine, in the machine's present
    run and in this container, and no process with its id began when it did.
    Safety does not rest on the verdict: a holder that is wrongly taken for dead is fenced by the
    next append.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final, Literal, TypeAlias

from shardline.app.lane.commands import Holder
from shardline.datasource.clock import Clock, IdGenerator
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.lease import Lease, LeaseRenewer, take_lease
from shardline.datasource.state import Machine, ShardState

__all__ = [
    "HolderHeartbeat",
    "Liveness",
    "describe_process",
    "find_follower",
    "follower_purpose",
    "held_error",
    "judge_liveness",
    "name_process",
]

_FOLLOWS: Final = "follower: "

Liveness: TypeAlias = Literal["alive", "gone", "silent"]
"""Alive: its lease is renewed. Gone: its process has ended. Silent: its lease has run out."""


def describe_process(application: str, clock: Clock, ids: IdGenerator) -> Holder:
    """Describe this process as a holder from now on.

    Args:
        application: Name of the application, for people.
        clock: Gives the time from which it holds.
        ids: Makes its token.
    """
    return Holder(
        token=ids.token().hex(),
        host=socket.gethostname(),
        boot=_process_scope(),
        pid=os.getpid(),
        started=_process_start(os.getpid()) or 0,
        application=application,
        since_ms=clock.now_ms(),
    )


def name_process(process: Holder) -> str:
    """The name of a process for people: `shardline on host, process 7`."""
    return f"{process.application} on {process.host}, process {process.pid}"


def follower_purpose(process: Holder) -> str:
    """The purpose of the lease by which others see that a process follows the holder."""
    return f"{_FOLLOWS}{name_process(process)}"


def find_follower(purpose: str) -> str | None:
    """Name of the process that follows, by its lease's purpose; None if it is another lease."""
    return purpose.removeprefix(_FOLLOWS) if purpose.startswith(_FOLLOWS) else None


def judge_liveness(holder: Holder, state: ShardState, now_ms: int) -> Liveness:
    """Judge if `holder` lives, as far as this machine and the lane's shard can tell.

    Args:
        holder: The holder by the order.
        state: Of the lane's shard.
        now_ms: By this machine's clock; a lease is judged as if the holder's clock agreed.
    """
    here = holder.host == socket.gethostname() and holder.boot == _process_scope()
    # Before the lease, which outlives a crash by up to `lease_ms`. The start of the process is
    # compared, not only its id: ids are given to other processes again.
    if here and holder.started and _process_start(holder.pid) != holder.started:
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
        "anything more. `run` hands a project over to it by itself only where it finds it: in its "
        "folder (--data), while it answers, and not if it is of an earlier version, which does not "
        "say in its answers which location it has",
    )


class HolderHeartbeat:
    """Renews the lease of a holder, or of a follower, from a thread of its own, twice per lease.

    Losing a holder's lease (a pause longer than it, a store that was away) does not end the holder:
    others take it for silent, and may take over without force. `LaneLog.renew_lease` takes another
    one. A follower that has lost its lease is not seen by others until `LaneLog.poll` takes another
    one.
    """

    def __init__(self, machine: Machine, clock: Clock, lease_ms: int, purpose: str) -> None:
        """Take a lease; `start` starts the thread."""
        lease = take_lease(machine, since=None, lease_ms=lease_ms, purpose=purpose)
        assert isinstance(lease, Lease), lease
        self._lease = lease
        self._machine = machine
        self._renewer = LeaseRenewer(lease, clock, renew=self.beat, name="lane-pulse")

    @property
    def reader(self) -> str:
        """Id of the leased reader."""
        return self._lease.reader

    @property
    def is_lost(self) -> bool:
        """True once the lease is gone."""
        return self._renewer.lost is not None

    def start(self) -> None:
        """Start the heartbeats."""
        self._renewer.start()

    def stop(self) -> None:
        """Stop the heartbeats, and give the lease up: the next holder need not wait."""
        # In this order: a heartbeat that came after the release would find its lease gone.
        self._renewer.stop()
        self._lease.release()

    def beat(self) -> None:
        """Renew the lease once; lets go of the log's past, which the holder does not read again.

        Raises:
            LeaseExpired: The lease is gone.
            Determinate: The store did not answer.
            Indeterminate: The same.
        """
        state = self._machine.state()
        newest = max((state.upper.time or 1) - 1, state.since.time or 0)
        self._lease.downgrade(Frontier(newest), state.seqno)


def _process_scope() -> str:
    """The scope of process ids here: the machine's present run, and the container in it.

    "" if the system does not say.
    """
    try:
        run = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{run}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""


def _process_start(pid: int) -> int | None:
    """When process `pid` began, in ticks since the machine did; None if there is no such process.

    A process that has ended and whose parent has not waited for it yet (a zombie) counts as none.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The name of the program is in parentheses and may hold anything, parentheses too.
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in {"Z", "X"} else int(fields[19])

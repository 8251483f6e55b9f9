"""A group is one streaming query for all views of the same inputs, whose steps it calls in order.

    group = ViewGroup(host, ("flights", "planes"), …)
    group.start()
    group.add(member, is_wanted)   from the next micro-batch on; at once up to where the group is
    group.remove(member)

A streaming query for each view costs a micro-batch of its own, with its logs and its calls,
whatever the view has to do; and a view of a view hears of a change only when its own query asks.
Here the inputs are asked once. In each micro-batch every member takes its step up to the same time,
a view before the views of it: so all are settled at the same times, and a chain is as fresh as its
first view. Differential dataflow's scope, with one frontier, has the same role.

All members depend, directly or by others of them, on each input of the group. So the frontier that
the group waits for is the one that each of them would wait for alone, and a source that stands
still delays nobody who does not read it.

Nothing of a group is durable but the shards of its members: their uppers say how far they are, and
their own holds keep what they need next. The group's checkpoint and hold end with it.

Invariants:
    A member's steps are called by one thread at a time, and none once `remove` has returned, but
    for one that is under way; the member's own lock ends that.
    A member that takes longer than the group's patience is let go, and the others go on.
"""

from __future__ import annotations

import hashlib
import logging
import os
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import Final, Protocol

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from shardline.app.compute.group.step_order import call_in_order
from shardline.app.compute.group.trigger_query import TriggerQuery
from shardline.app.compute.holds import end_group_hold, group_hold_name, use_in_group
from shardline.app.execution.batch_errors import micro_batch_error
from shardline.app.execution.host import Host
from shardline.app.execution.observations import GROUP
from shardline.app.execution.stopped import Stopped
from shardline.datasource.background import DaemonPool
from shardline.datasource.errors import ShardError
from shardline.datasource.frontier import EMPTY, Frontier, meet

__all__ = ["GroupMember", "GroupStep", "ViewGroup"]

_log = logging.getLogger(__name__)

_PATIENCE_MS: Final = 5_000.0
_PATIENCE_INTERVALS: Final = 2
_PATIENCE_TIMES: Final = 4.0
_PATIENCE_MOST_MS: Final = 60_000.0
"""How long the views of a group wait for one of them: so many ms, at least; so many intervals; and
so many times the longest step of the last micro-batch, at most a minute."""


@dataclass(frozen=True, slots=True)
class GroupStep:
    """A step of a group, as its members are told of it.

    Attributes:
        end: Frontier that the step goes up to.
        typical_ms: How long the steps of its members take; infinite for a step of one alone.
        at_ms: When it began, ms since the epoch.
        query: Id of the group's streaming query.
        run: Id of its run.
    """

    end: Frontier
    typical_ms: float
    at_ms: int
    query: str
    run: str


class GroupMember(Protocol):
    """A view in a group."""

    @property
    def name(self) -> str:
        """Its name, and its shard's."""
        ...

    @property
    def inputs(self) -> Sequence[str]:
        """Names of its input shards."""
        ...

    @property
    def expected_ms(self) -> float:
        """Milliseconds that its step takes, as far as is known."""
        ...

    def take_step(self, step: GroupStep) -> None:
        """Follow its inputs, as far as they are and the step goes; never raises."""
        ...

    def let_go(self, reason: str) -> None:
        """Go on without the group; called once, while a step of it may be under way."""
        ...


class ViewGroup:
    """The views of the same inputs. May be shared between threads."""

    def __init__(self, host: Host, inputs: Sequence[str], number: int) -> None:
        """A group without members.

        Args:
            host: Of its members.
            inputs: Shards that all members depend on, sorted.
            number: Tells it from earlier groups of these inputs in this process.
        """
        self.inputs = tuple(inputs)
        digest = hashlib.blake2b("\n".join(self.inputs).encode(), digest_size=4).hexdigest()
        self.name = f"{GROUP}{digest}"
        self._host = host
        self._query_name = f"{self.name}:{number}"
        self._hold = group_hold_name(self.name, host.checkpoints)
        self._checkpoint = host.checkpoints / f"{self.name.replace(':', '-')}-{number}"
        self._members: dict[str, GroupMember] = {}
        self._lock = threading.Lock()
        self._step_lock = threading.Lock()
        self._asked_by_time = threading.Event()
        self._stopping = threading.Event()
        self._is_known = threading.Event()
        self._query: StreamingQuery | None = None
        self._trigger: TriggerQuery | None = None
        self._threads = max(os.cpu_count() or 1, 2)
        self._pool = DaemonPool(self.name, self._threads)

    @property
    def query(self) -> StreamingQuery:
        """Its streaming query, once it is started."""
        assert self._query is not None, self.name
        return self._query

    def is_active(self) -> bool:
        """True while its streaming query runs."""
        return self._trigger is not None and self._trigger.is_active()

    def names(self) -> frozenset[str]:
        """Names of its members."""
        with self._lock:
            return frozenset(self._members)

    def start(self) -> None:
        """Start its streaming query; `stop` ends it, also where this raises.

        Raises:
            ShardError: An input cannot be read.
        """
        use_in_group(self._host.client, self.inputs)
        states = self._host.client.readable(*self.inputs)
        settled = meet(state.upper for state in states).time
        # Everything before is a matter of each member and its own holds. Of finished inputs there
        # is one micro-batch, whatever it begins with.
        begin = max((settled or 1) - 1, *(state.since.time or 0 for state in states))
        shutil.rmtree(self._checkpoint, ignore_errors=True)
        self._trigger = TriggerQuery(
            self._host, self._query_name, self.inputs, begin, self._hold, self._checkpoint
        )
        self._query = self._trigger.start(self._run_micro_batch, self._stopping)
        self._is_known.set()

    def stop(self) -> None:
        """End its streaming query; its members are not told. May be repeated."""
        with self._lock:
            if self._stopping.is_set():
                return  # or a later group of these inputs would lose what it has noted
            self._stopping.set()
        self._is_known.set()  # or a micro-batch would wait for a query that did not start
        if self._trigger is not None:
            with suppress(Py4JError, OSError):
                self._trigger.stop()
        with self._step_lock:
            pass  # a step that time has asked for may be under way
        self._pool.close()
        host = self._host
        try:
            end_group_hold(host.client, self._hold, self.inputs, host.check_fence)
            # The step may have taken minutes: a runtime that has taken over from the same folder
            # has a group with this checkpoint by now.
            host.check_fence()
            shutil.rmtree(self._checkpoint, ignore_errors=True)
        except ShardError as error:
            # It holds a little history back until the next group of these inputs ends, and the next
            # group that takes its checkpoint begins with an empty one.
            _log.info(
                "what a group has left could not be removed",
                extra={"context": {"error": str(error)}},
            )

    def add(self, member: GroupMember, is_wanted: Callable[[], bool]) -> None:
        """Take a member in, whose inputs are the group's, or members, and which has caught up.

        Args:
            member: The view.
            is_wanted: False if it has left meanwhile: then it is not taken in. Called under a lock
                of the group, for which it must not wait.
        """
        # Between micro-batches: in the middle of one its inputs may be members that have not
        # stepped yet, and nothing says when the next one comes.
        with self._step_lock, self._lock:
            # Asked here: that micro-batch may have taken minutes, in which the view was stopped and
            # its next incarnation has come. Who leaves later is removed later, under this lock.
            if not is_wanted():
                return
            self._members[member.name] = member
        # Outside of the lock: if this takes long, the next micro-batch lets the member go.
        self.catch_up(member)

    def catch_up(self, member: GroupMember) -> None:
        """Let a view take a step by itself, up to where its inputs are."""
        member.take_step(self._step_to(EMPTY, inf))

    def step_by_time(self) -> None:
        """Let the members step up to where the inputs are, though these do not change.

        The rows of one of them come or go by themselves. All step, as others read that one.
        """
        if self._asked_by_time.is_set():
            return  # each tick asks, of each such member, until the step is done
        self._asked_by_time.set()
        try:
            with self._step_lock:
                if not self._stopping.is_set():
                    states = self._host.client.readable(*self.inputs)
                    self._take_steps(meet(state.upper for state in states))
        except ShardError as error:
            # Of the moment: the next tick asks again.
            _log.info("a group could not step", extra={"context": {"error": str(error)}})
        finally:
            self._asked_by_time.clear()

    def remove(self, member: GroupMember) -> None:
        """Let nothing begin for a member any more; does nothing if it is none."""
        with self._lock:
            # Of the same name may be the next incarnation.
            if self._members.get(member.name) is member:
                del self._members[member.name]

    # -- the micro-batch ---------------------------------------------------------------------

    def _run_micro_batch(self, frame: DataFrame, number: int) -> None:
        assert self._trigger is not None
        try:
            # The first may come before `start` knows the query that it is a micro-batch of, by
            # which its members report theirs.
            self._is_known.wait()
            with self._step_lock:
                self._check_not_stopped()
                interval = self._trigger.interval(frame, number)
                if interval is not None:
                    self._take_steps(Frontier(interval.upper))
        except BaseException as error:  # noqa: BLE001 - it goes on, as another class
            raise micro_batch_error(error, stopping=self._stopping.is_set()) from None

    def _check_not_stopped(self) -> None:
        if self._stopping.is_set():
            raise Stopped

    def _step_to(self, end: Frontier, typical_ms: float) -> GroupStep:
        query, now_ms = self.query, self._host.clock.now_ms()
        return GroupStep(end, typical_ms, now_ms, str(query.id), str(query.runId))

    def _take_steps(self, end: Frontier) -> None:
        with self._lock:
            members = dict(self._members)
        took_ms = [one.expected_ms for one in members.values()]
        step = self._step_to(end, median(took_ms) if len(took_ms) > 1 else inf)

        def take(name: str) -> None:
            with self._lock:
                is_member = self._members.get(name) is members[name]
            if is_member:
                members[name].take_step(step)

        patience_ms = max(
            _PATIENCE_MS,
            _PATIENCE_INTERVALS * self._host.interval_ms,
            min(_PATIENCE_TIMES * max(took_ms, default=0.0), _PATIENCE_MOST_MS),
        )
        if len(members) == 1:
            patience_ms = max(patience_ms, _PATIENCE_MOST_MS)  # nobody waits for it
        while members:
            shortest_first = sorted(members, key=lambda name: members[name].expected_ms)
            left = call_in_order(
                {name: members[name].inputs for name in shortest_first},
                take,
                self._pool,
                self._host.clock,
                patience_ms=patience_ms,
            )
            if not left.late:
                return
            for name in left.late:
                self.remove(members[name])
                members[name].let_go("its step takes long")
            # Its threads are taken; they end with what they do.
            self._pool.close()
            self._pool = DaemonPool(self.name, self._threads)
            # Those that read one that is late are among them: they find no news of it, and return.
            members = {name: members[name] for name in left.waiting}

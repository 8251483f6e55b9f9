"""A view's membership: what it keeps while it steps in a group, and when it may.

In a group a view has no streaming query. So what that did for it is done here: its holds on the
inputs are brought forward behind its output, its jobs are named for introspection and can be
cancelled, and it has a session of its own, since steps change settings and run side by side.

    own query      it hydrates, has failed lately, is slow, or calls users' functions
    in a group     it has followed its inputs, and its steps are short

Invariants:
    The holds of a view in a group never pass the last time before its output's upper.
    A view that was let go comes back only after a pause, which doubles each time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from pyspark.sql import SparkSession

from shardline.app.compute.group.view_group import GroupStep
from shardline.app.compute.peek.collect import cancel_group, job_group
from shardline.app.execution.host import Host, Incarnation
from shardline.app.execution.observations import GroupStepped
from shardline.datasource.frames import clone_of, make_active
from shardline.datasource.frontier import Frontier
from shardline.datasource.since_hold import SinceHandle

__all__ = ["Membership"]

_HOLDS_MS: Final = 60_000.0
"""How often holds are brought forward: a record in each input, for a minute of history less."""

_LONG_MS: Final = 2_000.0
_LONG_TIMES: Final = 4.0
_LONG_IN_A_ROW: Final = 3
"""A view is too slow for a group after so many steps of so many ms, of twice the interval, and of
so many times what is typical in the group."""

_MISPLACED_MS: Final = 5_000.0
"""How long a view of a view that has left stays where it is: that one may be started again."""

_PAUSE_MS: Final = 30_000.0
_PAUSE_MOST_MS: Final = 600_000.0


class Membership:
    """One view's part in groups. Used under the view's step lock, but for `cancel`.

    Attributes:
        steps: How many steps it has begun in groups: the next one's number.
    """

    def __init__(
        self, host: Host, incarnation: Incarnation, hold: str, inputs: Sequence[str]
    ) -> None:
        """It is in no group."""
        self._host = host
        self._incarnation = incarnation
        self._hold = hold
        self._inputs = inputs
        self._holds: list[SinceHandle] = []
        self._moved_ms = 0.0
        self._session: SparkSession | None = None
        self._long = 0
        self._apart_until_ms = 0.0
        self._misplaced_ms: float | None = None
        self._pause_ms = _PAUSE_MS
        self._jobs = ""
        self.steps = 0

    def may_join(self) -> bool:
        """True if it was not let go lately."""
        return self._host.clock.elapsed_ms() >= self._apart_until_ms

    def enter(self) -> None:
        """Take the holds over from the view's streaming query, which has ended.

        Raises:
            ShardError: An input cannot be held.
        """
        client, purpose = self._host.client, f"view {self._incarnation.id}"
        self._holds = [client.hold(name, self._hold, purpose=purpose) for name in self._inputs]
        self._moved_ms = self._host.clock.elapsed_ms()
        self._long = 0

    def end(self) -> None:
        """End the membership; the view may join a group again after a while."""
        self._holds = []
        self._apart_until_ms = self._host.clock.elapsed_ms() + self._pause_ms
        self._pause_ms = min(2 * self._pause_ms, _PAUSE_MOST_MS)

    def bring_holds_forward(self, upper: int | None) -> None:
        """Let go of history before the output's upper; does nothing most of the time.

        Raises:
            ShardError: A hold is gone, or somebody else's.
        """
        now_ms = self._host.clock.elapsed_ms()
        if upper is None or now_ms - self._moved_ms < _HOLDS_MS:
            return
        self._moved_ms = now_ms
        for hold in self._holds:
            hold.downgrade(Frontier(max(upper - 1, 0)))

    @contextmanager
    def session_of(self, step: GroupStep) -> Iterator[SparkSession]:
        """The view's session, as that of this thread; jobs in the block are the step's."""
        if self._session is None:
            self._session = clone_of(self._host.spark)
        session = self._session
        make_active(session)
        # The words by which Spark describes a micro-batch, and introspection finds it.
        run = self._jobs = self.run(step.run)
        words = (
            f"{self._incarnation.query_name}\nid = {step.query}\nrunId = {run}\n"
            f"batch = {self.steps}"
        )
        with job_group(session, run, pool=self._host.pool, description=words):
            yield session

    def run(self, run: str) -> str:
        """The id under which introspection knows the view's part of a group's run."""
        return f"{run}/{self._incarnation.id}:{self._incarnation.epoch}"

    def stepped(self, step: GroupStep, took_ms: float) -> GroupStepped:
        """The report of a step that Spark has taken."""
        me = self._incarnation
        return GroupStepped(
            id=me.id,
            epoch=me.epoch,
            query=step.query,
            run=self.run(step.run),
            name=me.query_name,
            number=self.steps,
            at_ms=step.at_ms,
            took_ms=int(took_ms),
        )

    def cancel(self) -> None:
        """End the jobs of a step that is under way, for good; any thread."""
        if self._session is not None:
            cancel_group(self._session, self._jobs)

    def is_misplaced_for_long(self, *, is_misplaced: bool) -> bool:
        """True, once, if the view has belonged to another group for some seconds."""
        now_ms = self._host.clock.elapsed_ms()
        if not is_misplaced:
            self._misplaced_ms = None
        elif self._misplaced_ms is None:
            self._misplaced_ms = now_ms
        elif now_ms - self._misplaced_ms >= _MISPLACED_MS:
            self._misplaced_ms = None
            return True
        return False

    def is_too_slow(self, took_ms: float, typical_ms: float) -> bool:
        """True if its steps, the last of which took so long, keep a group waiting.

        Args:
            took_ms: How long the last one took.
            typical_ms: How long those of the group take: on a busy machine all do.
        """
        most_ms = max(_LONG_MS, 2.0 * self._host.interval_ms, _LONG_TIMES * typical_ms)
        self._long = self._long + 1 if took_ms > most_ms else 0
        return self._long >= _LONG_IN_A_ROW

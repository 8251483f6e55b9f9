"""A constant view has no inputs: its query is run once, and its output is then finished.

Without an input there is no streaming query that could trigger the step. A thread waits until
writing is allowed, takes the one step, and ends.

Invariants:
    The output holds the query's rows from the as_of on, for ever: its upper is empty.
    When `stop` has returned nothing is appended any more.
"""

from __future__ import annotations

from pyspark import InheritableThread

from shardline.app.compute.errors import failure_report
from shardline.app.compute.view.maintained_view import View
from shardline.app.execution.host import Host, Incarnation
from shardline.app.execution.observations import Ended, Started
from shardline.app.execution.stopped import Stopped
from shardline.app.protocol.objects import ViewDescription
from shardline.datasource.background import BackgroundThread
from shardline.datasource.frames import Interval, clone_of

__all__ = ["RunningConstantView", "run_constant"]


def run_constant(
    host: Host, incarnation: Incarnation, description: ViewDescription
) -> RunningConstantView:
    """Start to write the contents of a view without inputs.

    Raises:
        InvalidUsage: The view cannot be kept.
    """
    return RunningConstantView(host, incarnation, description)


class RunningConstantView:
    """One incarnation of a view without inputs; runs from the start."""

    def __init__(self, host: Host, incarnation: Incarnation, description: ViewDescription) -> None:
        """Start its thread."""
        self._host = host
        self._incarnation = incarnation
        self._thread = BackgroundThread(incarnation.query_name, self._run, make=InheritableThread)
        self._view = View(host, incarnation, description, self._gate)
        # Its own, as a streaming query would have: the shared one may hold temporary views of the
        # same names. A copy: a new one would know neither the user's functions nor the settings.
        self._session = clone_of(host.spark)
        host.report(Started(id=incarnation.id, epoch=incarnation.epoch))
        self._thread.start()

    def stop(self) -> None:
        """End it, and wait until nothing of it commits any more; may be repeated."""
        self._thread.stop()

    def _run(self) -> None:
        me, host = self._incarnation, self._host
        assert me.as_of is not None, me
        interval = Interval(me.as_of, None, starts=True)
        try:
            if not host.writes.is_set():
                self._view.rehearse(self._session, interval)
            while not host.clock.wait(host.writes, host.interval_ms):
                self._gate_stop()
            self._view.advance(self._session, interval)
        except Stopped:
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told
            host.report(failure_report(me, error))
        else:
            host.report(Ended(id=me.id, epoch=me.epoch))

    def _gate(self) -> None:
        self._gate_stop()
        self._host.check_fence()

    def _gate_stop(self) -> None:
        if self._thread.stopping.is_set():
            raise Stopped

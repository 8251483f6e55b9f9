"""A oneshot ingestion reads something once, as a batch, and appends it to a shard.

    oneshots = Oneshots(host, done)
    oneshots.start(request)          returns at once; one `StagedBatches` comes through `done`

It is for data that does not go on coming, as Materialize's `COPY FROM`: no streaming query needed.
The append has the ingestion's own idempotency token: a request that is repeated after a lost answer
appends nothing twice.

Invariants:
    Nothing is read or appended before the runtime may write.
    Each has exactly one answer, also one that is cancelled, or waits when the runtime stops.
    No request runs twice at once: one that comes again while it is being cancelled runs afterwards,
    and the one answer is that of the second run.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from shardline import datasource
from shardline.app.execution.host import Host
from shardline.app.execution.refusals import STOPPING, no_thread
from shardline.app.execution.spark_errors import explain_error
from shardline.app.protocol.storage import RunOneshotIngestion, StagedBatches
from shardline.datasource.background import DaemonPool

__all__ = ["Oneshots"]

_log = logging.getLogger(__name__)

_THREADS: Final = 2
_WAITING_MAX: Final = 100
_LOOK_MS: Final = 200.0

_STOP_S: Final = 30.0
"""How long `stop` waits for those that run: the lane, which is stopped behind them, must be."""


@dataclass(slots=True)
class _Run:
    """A request that waits or runs.

    Attributes:
        request: The request.
        cancelled: Set once it is not wanted any more.
        came_again: True if the request came again after that.
    """

    request: RunOneshotIngestion
    cancelled: threading.Event = field(default_factory=threading.Event)
    came_again: bool = False


class Oneshots:
    """Runs oneshot ingestions, two at a time; safe to use from any thread."""

    def __init__(self, host: Host, done: Callable[[StagedBatches], None]) -> None:
        """Run nothing yet.

        Args:
            host: Its session and location are used.
            done: Takes the answers; must return at once, is called in any thread.
        """
        self._host = host
        self._done = done
        self._lock = threading.Lock()
        self._runs: dict[str, _Run] = {}
        self._pool = DaemonPool("oneshot", _THREADS)
        self._stopped = False

    def start(self, request: RunOneshotIngestion) -> None:
        """Run `request`; one that runs or waits already is not run again."""
        with self._lock:
            refused = self._take(request)
        if refused:
            self._done(StagedBatches(uuid=request.uuid, error=refused))

    def _take(self, request: RunOneshotIngestion) -> str:
        """Let a thread run `request`, or say why none does. Under the lock."""
        known = self._runs.get(request.uuid)
        if known is not None:
            known.came_again = known.cancelled.is_set()
            return ""
        if self._stopped:
            return STOPPING
        if len(self._runs) >= _WAITING_MAX:
            return "[TOO_MANY] too many ingestions wait — hint: ask again later"
        run = _Run(request)
        try:
            self._pool.run(partial(self._run, run))
        except RuntimeError as error:
            return no_thread(error)
        self._runs[request.uuid] = run
        return ""

    def cancel(self, uuid: str) -> None:
        """Cancel an ingestion: one that waits is never begun, of one that runs the jobs stop."""
        with self._lock:
            run = self._runs.get(uuid)
            if run is None:
                return
            run.came_again = False
            run.cancelled.set()
        try:
            self._host.spark.sparkContext.cancelJobGroup(uuid)
        except Exception:  # noqa: BLE001 - its jobs have ended if there is no JVM any more
            _log.warning("jobs not cancelled", exc_info=True, extra={"context": {"uuid": uuid}})

    def stop(self) -> None:
        """Cancel all, and wait for those that run; no longer than 30 s."""
        with self._lock:
            self._stopped = True
            wanted = list(self._runs)
        for uuid in wanted:
            self.cancel(uuid)
        if not self._pool.wait_until_done(_STOP_S):
            _log.warning("ingestions have not ended", extra={"context": {"seconds": _STOP_S}})
        self._pool.close()

    def _run(self, run: _Run) -> None:
        uuid = run.request.uuid
        try:
            answer = StagedBatches(uuid=uuid, rows=self._ingest(run))
        except Exception as error:  # noqa: BLE001 - whatever it was is the answer
            _log.info("a oneshot ingestion failed", exc_info=True)
            answer = StagedBatches(uuid=uuid, error=explain_error(error)[1])
        with self._lock:
            # Before the answer: who has it may send the request again.
            del self._runs[uuid]
            refused = self._take(run.request) if run.came_again else ""
        if refused:
            answer = StagedBatches(uuid=uuid, error=refused)
        if refused or not run.came_again:
            self._done(answer)

    def _ingest(self, run: _Run) -> int:
        host, request = self._host, run.request
        while not run.cancelled.is_set() and not host.clock.wait(host.writes, _LOOK_MS):
            pass
        _check_wanted(run, "it began")
        host.spark.sparkContext.setJobGroup(request.uuid, f"ingest into {request.into}")
        reader = host.spark.read.format(request.format).options(**request.options)
        frame = reader.load()
        rows = frame.count()
        # Only jobs that run are stopped by `cancel`, and it may have come between two of them.
        _check_wanted(run, "anything was appended")
        host.check_fence()
        datasource.save(
            frame,
            location=host.client.location.url,
            shard=request.into,
            txn=(f"oneshot-{request.uuid}", 1),
            storage=host.storage,
        )
        return rows


def _check_wanted(run: _Run, before: str) -> None:
    """Raise if an ingestion was cancelled.

    Raises:
        InterruptedError: It was.
    """
    if run.cancelled.is_set():
        raise InterruptedError(f"it was cancelled before {before}")

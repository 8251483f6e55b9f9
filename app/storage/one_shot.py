"""A oneshot ingestion reads something once, as a batch, and appends it to a shard.

    oneshots = Oneshots(host, done)
    oneshots.start(request)          returns at once; one `StagedBatches` comes through `done`

It is for data that does not go on coming, as Materialize's `COPY FROM`: no streaming query needed.
The append has the ingestion's own idempotency token: a request that is repeated after a lost answer
appends nothing twice.

Invariants:
    Nothing is read or appended before the runtime may write.
    Each has exactly one answer, also one that is cancelled, or waits when the runtime stops.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from shardline import datasource
from shardline.app.execution.host import Host
from shardline.app.execution.spark_errors import explain_error
from shardline.app.protocol.storage import RunOneshotIngestion, StagedBatches

__all__ = ["Oneshots"]

_log = logging.getLogger(__name__)

_THREADS: Final = 2
_WAITING_MAX: Final = 100
_LOOK_MS: Final = 200.0


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
        self._pending: set[str] = set()
        self._pool = ThreadPoolExecutor(_THREADS, "oneshot")
        self._stopped = False

    def start(self, request: RunOneshotIngestion) -> None:
        """Run `request`; one that runs or waits already is not run again."""
        refused = ""
        with self._lock:
            if request.uuid in self._pending:
                return
            if self._stopped:
                refused = "[STOPPED] the runtime is stopping — hint: ask again when it runs"
            elif len(self._pending) >= _WAITING_MAX:
                refused = "[TOO_MANY] too many ingestions wait — hint: ask again later"
            else:
                self._pending.add(request.uuid)
                self._pool.submit(self._run, request)
        if refused:
            self._done(StagedBatches(uuid=request.uuid, error=refused))

    def cancel(self, uuid: str) -> None:
        """Cancel an ingestion: one that waits is never begun, of one that runs the jobs stop."""
        with self._lock:
            known = uuid in self._pending
            self._pending.discard(uuid)
        if known:
            self._host.spark.sparkContext.cancelJobGroup(uuid)

    def stop(self) -> None:
        """Cancel all, and wait for those that run."""
        with self._lock:
            self._stopped = True
            wanted = list(self._pending)
        for uuid in wanted:
            self.cancel(uuid)
        self._pool.shutdown()

    def _run(self, request: RunOneshotIngestion) -> None:
        try:
            self._done(StagedBatches(uuid=request.uuid, rows=self._ingest(request)))
        except Exception as error:  # noqa: BLE001 - whatever it was is the answer
            _log.info("a oneshot ingestion failed", exc_info=True)
            self._done(StagedBatches(uuid=request.uuid, error=explain_error(error)[1]))
        finally:
            with self._lock:
                self._pending.discard(request.uuid)

    def _ingest(self, request: RunOneshotIngestion) -> int:
        host = self._host
        while self._is_wanted(request) and not host.clock.wait(host.writes, _LOOK_MS):
            pass
        if not self._is_wanted(request):
            raise InterruptedError("it was cancelled before it began")
        host.spark.sparkContext.setJobGroup(request.uuid, f"ingest into {request.into}")
        reader = host.spark.read.format(request.format).options(**request.options)
        frame = reader.load()
        rows = frame.count()
        host.check_fence()
        datasource.save(
            frame,
            location=host.client.location.url,
            shard=request.into,
            txn=(f"oneshot-{request.uuid}", 1),
            storage=host.storage,
        )
        return rows

    def _is_wanted(self, request: RunOneshotIngestion) -> bool:
        with self._lock:
            return request.uuid in self._pending

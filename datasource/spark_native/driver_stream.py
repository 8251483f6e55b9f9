"""A driver stream is a streaming source over shards whose ends are chosen in the driver's process.

    stream, frame = open_driver_stream(spark, client, {"shards": "a,b", …}, gap_ms=…, poll_ms=…)
    query = frame.writeStream.foreachBatch(…).option("checkpointLocation", …).start()
    stream.start()                chooses ends from now on
    stream.micro_batch_began()    at the begin of each call of foreachBatch
    stream.micro_batch_ended()    at the end of it
    stream.stop()                 none any more; before or after the query is stopped

For `format("shard")` Spark starts a process for each run of a query, and asks it again and again
whether there is news. That is right for a query whose rows Spark reads. A view only wants to know
how far its inputs are: it reads them itself, in the driver, which sees most news first, since it
has written them. So here the very same choice of ends (`shard_source.run`: limits, holds, the
common frontier) is made in the driver, whenever this process sees news and now and then for what
others write; and Spark's thread waits for it (`DriverStream.java`). A few threads serve all streams
(`shardline.datasource.shared_threads`).

    Spark asks for the end of a range that starts at S     everything before S is done: commit(S)
    latest(S) is S                                         nothing is given, Spark goes on waiting
    latest(S) is E                                         E is given once; Spark logs it, and runs
                                                           the micro-batch [S, E), which has no rows

Offsets are those of `format("shard")`: a checkpoint of one goes on as one of the other.

Invariants:
    One end is given for each question; what was given is never taken back.
    A hold moves to S only when Spark asks for the range after S: what is before it is committed.
    Once `stop` has returned nothing is looked at or held any more.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from math import inf
from typing import Any, Final, Protocol

from py4j.protocol import Py4JError
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import LongType, StructType

from shardline.datasource.client import ShardClient
from shardline.datasource.offsets import START, ShardOffset, Start, parse_offset
from shardline.datasource.shard_source.descs import Limits
from shardline.datasource.shard_source.options import SourceOptions, parse_source
from shardline.datasource.shard_source.run import StreamRun
from shardline.datasource.shared_threads import TURNS, Turn
from shardline.datasource.spark_native.compiled_java import java_object
from shardline.datasource.spark_native.jvm import java_type
from shardline.datasource.types.schema import TS

__all__ = ["DriverStream", "JvmHalf", "open_driver_stream"]

_log = logging.getLogger(__name__)

_CLASS: Final = "DriverStream"

_COLUMNS: Final = StructType().add(TS, LongType())
"""Of the frame, which has no rows."""

_AGAIN_MS: Final = 1000.0
"""Pause after a call to the JVM that has failed."""

_ASK_MS: Final = 50.0
"""Pause between two looks at whether Spark asks for the next end, while no micro-batch runs."""


def open_driver_stream(
    spark: SparkSession,
    client: ShardClient,
    options: Mapping[str, str],
    *,
    gap_ms: float,
    poll_ms: float,
) -> tuple[DriverStream, DataFrame]:
    """A stream, and the frame without rows to start its query over; no I/O of the store.

    Only of the Spark that the Java class was checked against (`rule_loader.is_checked`).

    Args:
        spark: The session of the query.
        client: Of the location of the shards.
        options: Those of `format("shard")`; those about rows (`columns`, `where`) have no effect.
        gap_ms: Pause between two ends, at least.
        poll_ms: Pause between two looks for what other processes have written.

    Raises:
        InvalidUsage: An option is wrong.
    """
    parsed = parse_source(options)
    java: Any = java_object(spark, _CLASS)
    session = spark._jsparkSession  # noqa: SLF001 - no public door
    first = json.dumps(START.json())
    frame = java.frame(session, _name_of(parsed), java_type(spark, _COLUMNS), first)
    stream = DriverStream(java, client, parsed, gap_ms=gap_ms, poll_ms=poll_ms)
    return stream, DataFrame(frame, spark)


def _name_of(options: SourceOptions) -> str:
    """The stream, as people see it in a query's progress."""
    return f"shards {', '.join(options.inputs)} of {options.location}"


class JvmHalf(Protocol):
    """The half of a stream that Spark asks (`DriverStream.java`)."""

    def asked(self) -> str | None:
        """The start of the range that Spark waits for the end of, as JSON text.

        None while it waits for none, and "" once the query has ended.
        """
        ...

    def give(self, end: str, status: str) -> None:
        """Give the end of that range, and what the query's progress says of its source."""
        ...

    def fail(self, message: str) -> None:
        """End the query with an error."""
        ...


class DriverStream:
    """The source of one run of one query; see `open_driver_stream`.

    Attributes:
        error: What has ended the query, if the source has; None before.
    """

    def __init__(
        self,
        jvm: JvmHalf,
        client: ShardClient,
        options: SourceOptions,
        *,
        gap_ms: float,
        poll_ms: float,
    ) -> None:
        """A stream that chooses nothing before `start`; no I/O. See `open_driver_stream`."""
        self.error: Exception | None = None
        self._jvm = jvm
        self._client = client
        self._shards = options.inputs
        self._limits = Limits(options.max_bytes, options.max_rows, options.max_files)
        self._run = StreamRun(options, client)
        self._gap_ms, self._poll_ms = gap_ms, poll_ms
        self._start: Start | ShardOffset | None = None
        self._last_end: Start | ShardOffset | None = None
        self._last_end_ms = self._looked_ms = self._asked_ms = -inf
        self._watched: set[str] = set()
        self._is_running = self._is_stopped = False
        self._lock = threading.Lock()
        self._turn = Turn(client.clock, self.look)

    def start(self) -> None:
        """Choose ends from now on; call once, when the query is started."""
        self._watch(self._shards)
        TURNS.add(self._turn)

    def _watch(self, shards: Iterable[str]) -> None:
        """Be woken when this process sees a newer state of one of these."""
        for name in set(shards) - self._watched:
            self._client.machine(name).watch(self._turn)
            self._watched.add(name)

    def micro_batch_began(self) -> None:
        """Note that `foreachBatch` is called: Spark asks for no end until it has returned."""
        self._is_running = True

    def micro_batch_ended(self) -> None:
        """Note that `foreachBatch` returns: Spark asks for the next end within milliseconds."""
        self._is_running = False
        self._turn.set()

    def stop(self) -> None:
        """Choose no end any more, and let go of the inputs; its since hold stays.

        May be repeated. Waits for a look that is under way: what it takes must not come later.
        """
        TURNS.remove(self._turn)
        with self._lock:
            self._release()

    def _release(self) -> None:
        if not self._is_stopped:
            self._is_stopped = True
            try:
                self._run.release()
            except Exception:  # noqa: BLE001 - of any kind: the query must hear of its end
                _log.info("what a stream held is left to expire", exc_info=True)

    def look(self) -> float | None:
        """Look once, and give an end if there is one; called again and again while it is started.

        Returns:
            For how many ms to wait for news; None at the end of the query, or of the stream.
        """
        with self._lock:
            if self._is_stopped:
                return None
            try:
                return self._choose()
            except _JvmError as error:
                # Nothing follows from it: the JVM may live, and have heard what it was told.
                _log.info("a stream could not speak to its query: %s", error)
                self._is_running = False
                return _AGAIN_MS
            except _QueryEnded:
                self._release()
                return None
            except Exception as error:  # noqa: BLE001 - whatever it is, it ends the query
                self.error = error
                self._release()
        # Outside of the lock: an answer may not come, and `stop` is not to wait for it.
        with suppress(Py4JError, OSError):  # its owner looks at `error` as well
            self._jvm.fail(str(self.error))
        return None

    def _choose(self) -> float:
        clock = self._client.clock
        if self._start is not None:
            is_due = clock.elapsed_ms() >= self._looked_ms + self._poll_ms
            if not is_due and not self._run.may_have_news(self._start):
                return self._looked_ms + self._poll_ms - clock.elapsed_ms()
        elif self._is_running and clock.elapsed_ms() < self._asked_ms + self._poll_ms:
            return self._asked_ms + self._poll_ms - clock.elapsed_ms()
        # Also while the question is known: the query may have ended.
        asked = self._ask()
        self._asked_ms = clock.elapsed_ms()
        if asked is None:
            self._start = None
            return self._poll_ms if self._is_running else _ASK_MS
        if self._start is None:
            self._start, self._is_running = parse_offset(json.loads(asked)), False
            if self._start == self._last_end:
                self._run.commit(self._start)
        early_ms = self._last_end_ms + self._gap_ms - clock.elapsed_ms()
        if early_ms > 0:
            return early_ms
        self._looked_ms = clock.elapsed_ms()
        end = self._run.latest(self._start, self._limits)
        # The upper of one that is registered moves with that of its transactions shard.
        marks = (state.registered for state in self._run.states)
        self._watch(mark.txns for mark in marks if mark is not None)
        if end == self._start:
            return self._poll_ms
        # Before it is given: its micro-batch may have ended when the call returns.
        self._is_running, self._asked_ms = True, clock.elapsed_ms()
        self._start, self._last_end, self._last_end_ms = None, end, clock.elapsed_ms()
        with _calling_jvm():
            self._jvm.give(json.dumps(end.json()), json.dumps(self._run.report()))
        return self._poll_ms

    def _ask(self) -> str | None:
        with _calling_jvm():
            asked = self._jvm.asked()
        if asked == "":
            raise _QueryEnded
        return asked


class _JvmError(Exception):
    """A call to the JVM has failed, or its answer was lost."""


class _QueryEnded(Exception):
    """The query has ended."""


@contextmanager
def _calling_jvm() -> Iterator[None]:
    """Tell errors of calls to the JVM from those of a store."""
    try:
        yield
    except (Py4JError, OSError) as error:
        raise _JvmError(str(error)) from error

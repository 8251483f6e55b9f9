"""The capture of stderr sends to the log what anybody but the application writes there.

Spark's JVM, Python's warnings, libraries that log without being asked, tracebacks of threads: all
of them write to file descriptor 2 of this process or inherit it. On the terminal of an application
that runs for weeks, a stack trace for a client's typo hides the one line that counts.

    with StderrCapture(log) as capture:
        spark = capture.start_spark(lambda: open_session("name"))

Inside of the block descriptor 2 is a pipe whose lines become lines of the log: those that are JSON
as they are (Spark's own, `conf/log4j2.properties`), others as `msg` of the logger `stderr`. After
it the descriptor is the terminal again: the error that ends a job is shown there.

Invariants:
    Nothing is lost: what was written before the block ends is in the log when it has ended.
    A start of Spark that fails is shown, with the last lines that it has written; and so is the end
    of a JVM that nobody has asked to end.
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from shardline.app.logs import log_hint
from shardline.datasource.background import BackgroundThread
from shardline.datasource.errors import Determinate

if TYPE_CHECKING:
    from subprocess import Popen

    from pyspark.sql import SparkSession

    from shardline.app.logs import LogFile
    from shardline.datasource.clock import Clock

__all__ = ["StderrCapture", "log_lines"]

_STDERR: Final = 2
_CHUNK: Final = 1 << 16
_RECORD_MAX: Final = 1 << 20
_PAUSE_S: Final = 0.05
"""Writes that follow each other within this time become one record of the log: a traceback comes in
several pieces."""

_LAST: Final = 20
"""Lines of a start that has failed that are shown."""

_JVM_LOGS_TO: Final = "SHARDLINE_JVM_LOG"
"""Names the appender in `conf/log4j2.properties` that a JVM started from here logs to."""


class StderrCapture:
    """Descriptor 2 of the process as a source of the log. Use it once, as a context manager."""

    def __init__(self, log: LogFile, clock: Clock) -> None:
        """Prepare.

        Args:
            log: Takes the lines.
            clock: Of the process.
        """
        self._log = log
        self._clock = clock
        self._last: deque[str] = deque(maxlen=_LAST)
        self._passed = threading.Condition()
        self._marks = 0
        self._ended = False
        self._mark = b"\0%d\n" % os.getpid()
        # Whatever ends it is logged, not written: nobody would read it from the pipe any more.
        self._thread = BackgroundThread("stderr", self._run)

    def __enter__(self) -> Self:
        """Begin."""
        sys.stderr.flush()
        self._read, self._write = os.pipe()
        self._terminal = os.dup(_STDERR)
        os.dup2(self._write, _STDERR)
        os.environ[_JVM_LOGS_TO] = "log"
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give the descriptor back, after what was written to it is in the log."""
        self._ended = True
        self._flush()
        os.dup2(self._terminal, _STDERR)
        os.environ.pop(_JVM_LOGS_TO, None)

    @property
    def log_file(self) -> str:
        """Path of the log."""
        return self._log.baseFilename

    def start_spark(self, start: Callable[[], SparkSession]) -> SparkSession:
        """Return what `start` returns.

        Raises:
            Determinate: `SPARK_NOT_STARTED`: the JVM has ended instead; the error has its last
                lines, of which one says why.
        """
        # Imported by `start` anyway; other commands do without.
        from pyspark import SparkContext  # noqa: PLC0415
        from pyspark.errors import PySparkRuntimeError  # noqa: PLC0415

        try:
            spark = start()
        except PySparkRuntimeError as error:
            self._flush()
            lines = "\n".join(f"  {line}" for line in self._last)
            raise Determinate(
                f"Spark could not be started; the last that it said:\n{lines}\n",
                code="SPARK_NOT_STARTED",
                hint="look at JAVA_HOME, at conf/spark-defaults.conf and at Spark's options "
                "in front of the command",
            ) from error
        jvm = getattr(SparkContext._gateway, "proc", None)  # noqa: SLF001 - no other door
        if jvm is None:
            # spark-submit has started the JVM, whose stderr is none of ours: errors are told in a
            # sentence, and its stack traces on the terminal would hide that.
            spark.sparkContext.setLogLevel("FATAL")
        else:
            _leave_sigterm_to_us(spark)
            BackgroundThread("jvm", partial(self._watch, jvm)).start()
        return spark

    def _watch(self, jvm: Popen[bytes]) -> None:
        """End this process when its JVM has ended by itself, as one that is killed does."""
        status = jvm.wait()
        if self._ended:
            return
        self._flush()
        hint = f"start again, everything goes on; {log_hint()}"
        words = f"error: [SPARK_ENDED] Spark's JVM has ended, with status {status} — hint: {hint}\n"
        os.write(self._terminal, words.encode())
        # Not in order: whatever would be told to end waits for a JVM that is not there. All that
        # counts is durable.
        os._exit(1)

    def _flush(self) -> None:
        """Wait until everything that was written so far has been read."""
        with suppress(ValueError):  # closed by somebody
            sys.stderr.flush()
        with self._passed:
            wanted = self._marks + 1
            os.write(self._write, self._mark)
            self._passed.wait_for(lambda: self._marks >= wanted or not self._thread.is_running)

    def _run(self) -> None:
        left = b""
        while True:
            chunk = left + os.read(self._read, _CHUNK)
            while not chunk.endswith(self._mark) and len(chunk) < _RECORD_MAX and self._has_more():
                chunk += os.read(self._read, _CHUNK)
            whole, _, left = chunk.rpartition(b"\n")
            marks = f"{whole.decode(errors='replace')}\n".count(self._mark.decode())
            text = whole.decode(errors="replace").replace(self._mark.decode().rstrip("\n"), "")
            self._take(text)
            if marks:
                with self._passed:
                    self._marks += marks
                    self._passed.notify_all()

    def _has_more(self) -> bool:
        return bool(select.select([self._read], [], [], _PAUSE_S)[0])

    def _take(self, text: str) -> None:
        at_s = self._clock.now_ms() / 1000
        self._last.extend(line for line in text.splitlines() if line.strip())
        for line in log_lines(text, at_s):
            # A disk that is full: nobody can be told, and whoever writes must not be held up.
            with suppress(OSError):
                self._log.write_line(line, at_s)


def _leave_sigterm_to_us(spark: SparkSession) -> None:
    """Let the JVM ignore SIGTERM, which supervisors send to every process of a service.

    It ends when this process does, and not in the middle of an orderly stop.
    """
    jvm: Any = spark._jvm  # noqa: SLF001 - PySpark has no other door to the JVM
    signals = jvm.sun.misc
    signals.Signal.handle(signals.Signal("TERM"), signals.SignalHandler.SIG_IGN)


def log_lines(text: str, at_s: float) -> list[str]:
    """Lines of the log for what was written to stderr.

    Args:
        text: Whole lines. What comes together and is no log stays together, as a traceback.
        at_s: When it came, in s since the epoch.
    """
    found: list[str] = []
    plain: list[str] = []

    def end() -> None:
        if any(line.strip() for line in plain):
            at = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")
            record = {
                "ts": at.replace("+00:00", "Z"),
                "level": "WARNING",
                "logger": "stderr",
                "msg": "\n".join(plain).strip("\n"),
            }
            found.append(json.dumps(record, ensure_ascii=False))
        plain.clear()

    for line in text.splitlines():
        if _is_record(line):
            end()
            found.append(line)
        else:
            plain.append(line)
    end()
    return found


def _is_record(line: str) -> bool:
    """True if a line is of a log in Spark's form."""
    if not line.startswith("{"):
        return False
    try:
        record = json.loads(line)
    except ValueError:
        return False
    return isinstance(record, dict) and {"ts", "level", "msg"} <= record.keys()

"""Writes the log as JSON lines with the field names of Spark's own structured log.

    {"ts": "2026-11-20T12:00:00.000Z", "level": "INFO", "logger": "shardline.app.demo",
     "msg": "landed", "context": {"day": "2013-01-05"}}

One reader for Spark's log and ours: `spark.read.schema(pyspark.logger.SPARK_LOG_SCHEMA).json(…)`.
`msg` is constant text; what varies is in `context`, passed as `extra={"context": {…}}`. An
exception is under `exception`: its class, its message with those of its causes, and its stack
trace: method, file and line of each frame. ERROR means that someone must look.

Errors quote what users have written, with the secrets in it: whoever starts a log says how texts
are rid of them. Messages and the values of a context go through that, and no name of a frame.

The file is renamed to `log.jsonl.1` (and that one to `log.jsonl.2`, and so on) when it has grown to
its size or when a day (UTC) is over, and the oldest goes: a log that only grows fills the disk of
an application that runs for months. Several processes may write to one log, as two commands on one
folder do: the first that finds it due renames it under a lock, the others notice and follow.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import logging.handlers
import os
import sys
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Final, TypeAlias

from typing_extensions import override

from shardline.datasource.errors import InvalidUsage

__all__ = [
    "LOGGED_HINT",
    "LOG_FILES",
    "LOG_SIZE",
    "JsonLines",
    "LogFile",
    "add_log_file",
    "log_hint",
    "start_log",
]

_CAUSES = 10
"""Longest chain of causes in a message."""

_OURS = "shardline"

LOG_SIZE: Final = 16 << 20
"""Size in bytes at which a log file is renamed, unless settings say otherwise."""

LOG_FILES: Final = 10
"""Number of renamed files that are kept, unless settings say otherwise."""

_DAY_S: Final = 86_400

_Redact: TypeAlias = Callable[[str], str]
"""Returns a text without secrets."""


class JsonLines(logging.Formatter):
    """One record per line, as JSON."""

    def __init__(self, redact: _Redact = str) -> None:
        """Make one; `redact` is given each text of a record that may quote a user."""
        super().__init__()
        self._redact = redact

    @override
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "ts": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "msg": self._redact(record.getMessage()),
        }
        context: dict[str, object] | None = getattr(record, "context", None)
        if context:
            line["context"] = {name: self._shown(value) for name, value in context.items()}
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line["exception"] = {
                "class": type(error).__name__,
                "msg": self._message(error),
                "stacktrace": [
                    {
                        "class": None,
                        "method": frame.name,
                        "file": frame.filename,
                        "line": str(frame.lineno),
                    }
                    for frame in traceback.extract_tb(error.__traceback__)
                ],
            }
        return json.dumps(line, default=str, ensure_ascii=False)

    def _shown(self, value: object) -> object:
        """A value of a context: texts and errors without secrets, others as they are."""
        return self._redact(str(value)) if isinstance(value, str | BaseException) else value

    def _message(self, error: BaseException) -> str:
        """The messages of an exception and of its causes, a line each."""
        # Each by itself: a secret whose end is missing goes to the end of its text.
        lines = [self._redact(str(error))]
        while len(lines) < _CAUSES and (cause := error.__cause__ or error.__context__) is not None:
            lines.append(f"caused by {type(cause).__name__}: {self._redact(str(cause))}")
            error = cause
        return "\n".join(lines)


class LogFile(logging.handlers.WatchedFileHandler):
    """A file of the log, renamed when it is large or of an earlier day.

    The base class follows a file that another process has renamed.
    """

    def __init__(self, file: Path, *, size: int = LOG_SIZE, files: int = LOG_FILES) -> None:
        """Open the file; its folder is there.

        Args:
            file: The file that is written.
            size: Bytes at which it is renamed.
            files: How many renamed ones are kept.
        """
        super().__init__(file, encoding="utf-8")
        self._size = size
        self._files = files
        self._has_failed = False

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.write_line(self.format(record), record.created)
        except OSError as error:
            # Once, and not with a traceback for each record: a full disk says nothing of any.
            if not self._has_failed:
                self._has_failed = True
                cause = error.strerror or str(error)
                sys.stderr.write(f"the log '{self.baseFilename}' cannot be written: {cause}\n")
        except Exception:  # noqa: BLE001 - as every handler of the standard library
            self.handleError(record)
        else:
            self._has_failed = False

    def write_line(self, line: str, at_s: float) -> None:
        """Write a line that is JSON already.

        Args:
            line: Without a line break.
            at_s: The time now, in s since the epoch.

        Raises:
            OSError: It cannot be written.
        """
        # Reentrant, and held already when a logger calls.
        self.acquire()
        try:
            if self._is_due(self._current(), at_s):
                self._rename(self._current())
            self._current().write(f"{line}\n")
            self.flush()
        finally:
            self.release()

    def _current(self) -> IO[str]:
        """The file of the log's name; the one that was open may have been renamed."""
        with contextlib.suppress(FileNotFoundError):
            self.reopenIfNeeded()
        if self.stream is None:
            # Its folder was removed, or this is after `close`: a thread may log while the process
            # ends. The standard library would write a traceback to the terminal instead.
            Path(self.baseFilename).parent.mkdir(parents=True, exist_ok=True)
            self.stream = self._open()
            self._statstream()
        return self.stream

    def _is_due(self, stream: IO[str], at_s: float) -> bool:
        """True if the file is full, or was last written on an earlier day."""
        found = os.fstat(stream.fileno())
        is_old = found.st_mtime // _DAY_S < at_s // _DAY_S
        return found.st_size > 0 and (is_old or found.st_size >= self._size)

    def _rename(self, stream: IO[str]) -> None:
        """Rename the file and the earlier ones, unless another process has just done so."""
        fcntl.flock(stream, fcntl.LOCK_EX)
        path = Path(self.baseFilename)
        # Whoever has waited for the lock holds a file that is renamed by now, and must not rename
        # the new one.
        if not path.exists() or not os.path.samestat(path.stat(), os.fstat(stream.fileno())):
            return
        for number in range(self._files, 0, -1):
            earlier = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
            if earlier.exists():
                earlier.replace(path.with_name(f"{path.name}.{number}"))


LOGGED_HINT: Final = "the log has all of it"
"""Hint for an error about which nothing better is known; `log_hint` names the log."""


def log_hint() -> str:
    """Advice to read the log, which is named if this process has started one."""
    for handler in logging.getLogger(_OURS).handlers:
        if isinstance(handler, LogFile):
            return f"{LOGGED_HINT}: {handler.baseFilename}"
    return LOGGED_HINT


def add_log_file(
    file: Path,
    level: str,
    *,
    size: int = LOG_SIZE,
    files: int = LOG_FILES,
    redact: _Redact = str,
) -> LogFile:
    """Append this project's log to `file`; returns the handler, which the caller closes.

    Args:
        file: The file; its folder is made if need be.
        level: Least level that is written, by its name in the standard library.
        size: Bytes at which it is renamed.
        files: How many renamed ones are kept.
        redact: As of `JsonLines`.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    handler = LogFile(file, size=size, files=files)
    handler.setFormatter(JsonLines(redact))
    logger = logging.getLogger(_OURS)
    logger.setLevel(level)
    logger.addHandler(handler)
    # Or the root logger's handlers would write every line to the terminal as well.
    logger.propagate = False
    return handler


def start_log(
    file: str,
    folder: Path,
    level: str,
    *,
    size: int = LOG_SIZE,
    files: int = LOG_FILES,
    redact: _Redact = str,
) -> LogFile:
    """Start the log in `file`, or if that is empty in `log.jsonl` of the job's folder.

    Makes the folder. `size`, `files` and `redact` are those of `add_log_file`.

    Raises:
        InvalidUsage: `FOLDER_NOT_WRITABLE`: the log cannot be written.
    """
    path = Path(file) if file else folder / "log.jsonl"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return add_log_file(path, level, size=size, files=files, redact=redact)
    except OSError as error:
        raise InvalidUsage(
            f"the log '{path}' cannot be written: {error.strerror}",
            code="FOLDER_NOT_WRITABLE",
            hint="name another folder with --data, or another file with log.file",
        ) from error

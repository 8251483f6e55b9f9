"""The log is written as JSON lines with the field names of Spark's own structured log.

    {"ts": "2026-11-20T12:00:00.000Z", "level": "INFO", "logger": "shardline.app.demo",
     "msg": "landed", "context": {"day": "2013-01-05"}}

One reader for Spark's log and ours: `spark.read.schema(pyspark.logger.SPARK_LOG_SCHEMA).json(…)`.
`msg` is constant text; what varies is in `context`, passed as `extra={"context": {…}}`. An
exception is under `exception`: its class, its message with those of its causes, and its stack
trace: method, file and line of each frame. ERROR means that someone must look.
"""

from __future__ import annotations

import json
import logging
import traceback
from datetime import UTC, datetime
from pathlib import Path

from typing_extensions import override

from shardline.datasource.errors import InvalidUsage

__all__ = ["JsonLines", "add_log_file", "start_log"]

_CAUSES = 10
"""Longest chain of causes in a message."""

_OURS = "shardline"


class JsonLines(logging.Formatter):
    """One record per line, as JSON."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "ts": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "msg": record.getMessage(),
        }
        context = getattr(record, "context", None)
        if context:
            line["context"] = context
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            line["exception"] = {
                "class": type(error).__name__,
                "msg": _message(error),
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


def _message(error: BaseException) -> str:
    """The messages of an exception and of its causes, a line each."""
    said = [str(error)]
    while len(said) < _CAUSES and (cause := error.__cause__ or error.__context__) is not None:
        said.append(f"caused by {type(cause).__name__}: {cause}")
        error = cause
    return "\n".join(said)


def add_log_file(file: Path, level: str) -> logging.Handler:
    """Append this project's log to `file`; returns the handler, which the caller closes.

    Args:
        file: The file; its folder is made if need be.
        level: Least level that is written, by its name in the standard library.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(file, encoding="utf-8")
    handler.setFormatter(JsonLines())
    logger = logging.getLogger(_OURS)
    logger.setLevel(level)
    logger.addHandler(handler)
    # Or the root logger's handlers would write every line to the terminal as well.
    logger.propagate = False
    return handler


def start_log(file: str, folder: Path, level: str) -> logging.Handler:
    """Start the log in `file`, or if that is empty in `log.jsonl` of the job's folder.

    Makes the folder.

    Raises:
        InvalidUsage: `FOLDER_NOT_WRITABLE`: the log cannot be written.
    """
    path = Path(file) if file else folder / "log.jsonl"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return add_log_file(path, level)
    except OSError as error:
        raise InvalidUsage(
            f"the log '{path}' cannot be written: {error.strerror}",
            code="FOLDER_NOT_WRITABLE",
            hint="name another folder with --data, or another file with log.file",
        ) from error

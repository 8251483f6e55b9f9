"""The capture of stderr brings all that others write into the log, and none to the terminal."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from shardline.app.cli.stderr_capture import StderrCapture, log_lines
from shardline.app.logs import JsonLines, LogFile
from shardline.datasource.clock import SystemClock
from shardline.datasource.errors import Determinate


@pytest.fixture
def log(tmp_path: Path) -> Any:
    handler = LogFile(tmp_path / "log.jsonl")
    handler.setFormatter(JsonLines())
    yield handler
    handler.close()


def records(log: LogFile) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(log.baseFilename).read_text().splitlines()]


def test_what_is_written_to_stderr_is_in_the_log(
    log: LogFile, capfd: pytest.CaptureFixture[str]
) -> None:
    """By Python, or by descriptor as a child process does; after the block it is shown again."""
    spark = {"ts": "2026-11-23T08:00:00.000Z", "level": "ERROR", "msg": "lost", "logger": "X"}
    with StderrCapture(log, SystemClock()) as capture:
        os.write(2, b"Traceback (most recent call last):\n  File x\nBrokenPipeError: gone\n")
        capture._flush()
        os.write(2, f"{json.dumps(spark)}\n".encode())
        capture._flush()
        print("sqlglot: a warning", file=sys.__stderr__)
        capture._flush()
        os.write(2, b"without an end of line")
    os.write(2, b"error: shown\n")
    found = records(log)
    assert found[1] == spark, "Spark's own lines are kept as they are"
    assert [one["msg"] for one in (found[0], *found[2:])] == [
        "Traceback (most recent call last):\n  File x\nBrokenPipeError: gone",
        "sqlglot: a warning",
        "without an end of line",
    ]
    assert {(one["level"], one["logger"]) for one in (found[0], *found[2:])} == {
        ("WARNING", "stderr")
    }
    assert capfd.readouterr().err == "error: shown\n"


def test_a_lot_at_once_is_neither_lost_nor_blocked(log: LogFile) -> None:
    """More than a pipe holds, in pieces that are no lines."""
    wanted = "".join(f"line {number} äöü\n" for number in range(20_000))
    with StderrCapture(log, SystemClock()):
        data = wanted.encode()
        while data:
            data = data[os.write(2, data[:70_001]) :]
    assert "\n".join(one["msg"] for one in records(log)) == wanted.rstrip("\n")


def test_a_start_of_spark_that_fails_is_shown_with_what_the_jvm_said(log: LogFile) -> None:
    """The reason is only there: Python's error says nothing but that the JVM has ended."""
    from pyspark.errors import PySparkRuntimeError

    def start() -> Any:
        os.write(2, b"Invalid maximum heap size: -Xmx1x\n")
        raise PySparkRuntimeError(errorClass="JAVA_GATEWAY_EXITED", messageParameters={})

    with (
        StderrCapture(log, SystemClock()) as capture,
        pytest.raises(Determinate, match="Invalid maximum heap size: -Xmx1x") as raised,
    ):
        capture.start_spark(start)
    assert raised.value.code == "SPARK_NOT_STARTED"
    assert records(log)[0]["msg"] == "Invalid maximum heap size: -Xmx1x"


def test_lines_that_only_look_like_a_record_are_text() -> None:
    """A JSON object of somebody else, a torn record, and blank lines."""
    text = '{"a": 1}\n\n{"ts": "2026", "level\n[1]\n\n'
    (line,) = log_lines(text, 0.0)
    assert json.loads(line) == {
        "ts": "1970-01-01T00:00:00.000Z",
        "level": "WARNING",
        "logger": "stderr",
        "msg": text.strip("\n"),
    }

"""A failure is reported by our own sentence, wherever in a stack trace it is."""

from __future__ import annotations

import pytest

from shardline.app.execution.spark_errors import (
    error_line,
    error_sentence,
    explain_error,
    find_unreadable_part,
)
from shardline.datasource.errors import Corrupt, Determinate, MissingBlob

TRACE = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: \
[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform \
latestOffset: Traceback (most recent call last):
  File "runner.py", line 7, in main
shardline.datasource.errors.{kind}: [SHARD_DROPPED] shard 'flights' was dropped \
— hint: make it again SQLSTATE: 38000
\tat org.apache.spark.Something(Thing.scala:1)
"""


def test_our_own_error_is_found_in_a_stack_trace() -> None:
    """Code, sentence and hint come out; what Spark wrapped around them does not."""
    status, text = explain_error(RuntimeError(TRACE.format(kind="InvalidUsage")))
    assert text == "[SHARD_DROPPED] shard 'flights' was dropped — hint: make it again"
    assert status == 2


def test_a_fault_is_not_called_wrong_usage() -> None:
    """Only what the user can fix has status 2."""
    assert explain_error(RuntimeError(TRACE.format(kind="MissingBlob")))[0] == 1


def test_a_foreign_error_is_its_first_line() -> None:
    """No stack trace, and where to find it."""
    status, text = explain_error(ValueError("\nfirst line\nat java.lang.Thread"))
    assert (status, text.startswith("ValueError: first line —")) == (1, True)
    assert "java" not in text


WORKER = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "source.py", line 7, in read
    raise KeyError("first")
KeyError: 'first'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "source.py", line 9, in read
    raise ValueError("no mood")
ValueError: no mood

\tat org.apache.spark.api.python.BasePythonRunner.read(PythonRunner.scala:1)
"""


def test_what_a_python_function_raised_is_told_and_not_that_something_was() -> None:
    """The last error of a worker's stack trace, whatever Spark wraps around it."""
    assert (
        error_line(RuntimeError(WORKER))
        == "ValueError: no mood, in function 'read' (source.py, line 9)"
    )
    assert error_line(RuntimeError(TRACE.format(kind="Corrupt"))) == (
        "[SHARD_DROPPED] shard 'flights' was dropped"
    )
    streamed = (
        "Failed when planning: Traceback (most recent call last):\n  File\nE: x SQLSTATE: 38000"
    )
    assert error_line(RuntimeError(streamed)) == "E: x"
    called = "An error occurred while calling o17.create.\n: java.io.IOException: no room\n\tat x"
    assert error_line(RuntimeError(called)) == "IOException: no room"


NATIVE = """An error occurred while calling o1.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: [FAILED_READ_FILE.{code}] \
Encountered error while reading file file:///a%20b/lake/s1/part/p7.parquet. More. SQLSTATE: KD001
"""


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MissingBlob("part 'p7' is not there"), "part 'p7' is not there"),
        (Corrupt("part 'p7' has other bytes"), "part 'p7' has other bytes"),
        (MissingBlob("part 'p7' is gone", code="LEASE_LOST"), None),
        (RuntimeError(TRACE.format(kind="MissingBlob")), "shard 'flights' was dropped"),
        (RuntimeError(TRACE.format(kind="Determinate")), None),
        (
            RuntimeError(NATIVE.format(code="FILE_NOT_EXIST")),
            "part 'file:///a%20b/lake/s1/part/p7.parquet' is not there",
        ),
        (
            RuntimeError(NATIVE.format(code="CANNOT_READ_FILE_FOOTER")),
            "part 'file:///a%20b/lake/s1/part/p7.parquet' is damaged",
        ),
        (RuntimeError(NATIVE.format(code="NO_HINT").replace("/part/", "/days/")), None),
        (ValueError("no"), None),
    ],
)
def test_a_part_that_cannot_be_read_is_told(error: Exception, told: str | None) -> None:
    """Our own readers and Spark's say which part it is; a lost lease is no lost part."""
    assert find_unreadable_part(error) == told


def test_errors_are_one_sentence() -> None:
    """Ours as they are, also out of a stack of the JVM; Spark's without its state and plan."""
    ours = Determinate("it broke", code="BROKEN", hint="mend it")
    assert error_sentence(ours, "X") == "[BROKEN] it broke — hint: mend it"
    inside = RuntimeError(f"An error\n  at x\ndatasource.errors.Determinate: {ours}\n  at y")
    assert error_sentence(inside, "X") == "[BROKEN] it broke — hint: mend it"
    spark = RuntimeError("[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\n== SQL ==\nselect")
    assert error_sentence(spark, "X") == (
        "[DIVIDE_BY_ZERO] Division by zero — hint: use try_divide, which gives NULL, or leave out "
        "rows with a zero"
    )
    java = RuntimeError("An error occurred while calling f.\n: java.io.IOException: no disk\n at")
    assert error_sentence(java, "QUERY_FAILED").startswith("[QUERY_FAILED] IOException: no disk")
    assert error_sentence(RuntimeError(""), "QUERY_FAILED").startswith(
        "[QUERY_FAILED] RuntimeError"
    )

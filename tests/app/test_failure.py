"""What is told of a failure: our own sentence, wherever in a stack trace it is."""

from __future__ import annotations

from app.failure import explain

TRACE = """[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: \
[PYTHON_STREAMING_DATA_SOURCE_RUNTIME_ERROR] Failed when Python streaming data source perform \
latestOffset: Traceback (most recent call last):
  File "runner.py", line 7, in main
datasource.errors.{kind}: [SHARD_DROPPED] shard 'flights' was dropped — hint: make it again \
SQLSTATE: 38000
\tat org.apache.spark.Something(Thing.scala:1)
"""


def test_our_own_error_is_found_in_a_stack_trace() -> None:
    """Code, sentence and hint come out; what Spark wrapped around them does not."""
    status, text = explain(RuntimeError(TRACE.format(kind="InvalidUsage")))
    assert text == "[SHARD_DROPPED] shard 'flights' was dropped — hint: make it again"
    assert status == 2


def test_a_fault_is_not_called_wrong_usage() -> None:
    """Only what the user can fix has status 2."""
    assert explain(RuntimeError(TRACE.format(kind="MissingBlob")))[0] == 1


def test_a_foreign_error_is_its_first_line() -> None:
    """No stack trace, and where to find it."""
    status, text = explain(ValueError("\nfirst line\nat java.lang.Thread"))
    assert (status, text.startswith("ValueError: first line —")) == (1, True)
    assert "java" not in text

"""Errors of a query: those that are data, told from all others."""

from __future__ import annotations

from itertools import count

import pytest

from shardline.app.compute.errors import data_error_text

ZERO = (
    '[DIVIDE_BY_ZERO] Division by zero. Use `try_divide`.\nSet "x". SQLSTATE: 22012\n'
    "== SQL (line 1, position 8) ==\nselect 1/x y from t\n"
)
BYPASS = ' If necessary set "spark.sql.ansi.enabled" to "false" to bypass this error.'


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (ZERO, '[DIVIDE_BY_ZERO] Division by zero. Use `try_divide`. Set "x".'),
        (
            f"[DIVIDE_BY_ZERO] Division by zero. Use `try_divide`.{BYPASS} SQLSTATE: 22012",
            "[DIVIDE_BY_ZERO] Division by zero. Use `try_divide`.",
        ),
        (f"Job aborted.\n\tat x.y(z.java:1)\nCaused by: S: {ZERO}", None),
        ("[SCALAR_SUBQUERY_TOO_MANY_ROWS] More than one row. SQLSTATE: 21000", None),
        ("[USER_RAISED_EXCEPTION] no such city SQLSTATE: P0001", None),
        ("[DUPLICATED_MAP_KEY] Duplicate map key 1. SQLSTATE: 23505", None),
        ("[COLLECTION_SIZE_LIMIT_EXCEEDED.PARAMETER] too many. SQLSTATE: 54000", None),
        ("[FAILED_EXECUTE_UDF] failed due to: a.Unlucky: 13. SQLSTATE: 39000", None),
        ("[CAST_INVALID_INPUT] " + "x" * 5000 + " SQLSTATE: 22018", None),
    ],
)
def test_errors_about_rows_are_kept(text: str, kept: str | None) -> None:
    """The condition and its sentence are kept, without place and stack, and not for ever long."""
    found = data_error_text(RuntimeError(text))
    assert found is not None
    assert kept is None or found == kept
    assert "SQLSTATE" not in found
    assert "\n" not in found
    assert len(found) <= 1000


@pytest.mark.parametrize(
    "text",
    [
        "[UNRESOLVED_COLUMN] no column x. SQLSTATE: 42703",
        "[FAILED_READ_FILE.NO_HINT] a file is gone. SQLSTATE: KD001",
        "[USER_RAISED_EXCEPTION] [NEGATIVE_MULTIPLICITY] a row was removed SQLSTATE: P0001",
        "[FAILED_EXECUTE_UDF] failed due to: java.io.IOException: no disk. SQLSTATE: 39000",
        "[DUPLICATE_KEY] a clause is there twice. SQLSTATE: 23505",
        "no condition at all",
        "[STORE_UNAVAILABLE] the store did not answer — hint: try again",
    ],
)
def test_other_errors_are_not_data(text: str) -> None:
    """What is wrong with the query, the store or a shard says nothing about rows."""
    assert data_error_text(RuntimeError(text)) is None


CODE = "org.apache.spark.sql.catalyst.expressions.GeneratedClass$GeneratedIteratorForCodegenStage1"
LOST = (
    "An error occurred while calling o61.collectToPython.\n: org.apache.spark.SparkException: Job "
    "aborted due to stage failure: Task 1 in stage 5.0 failed 1 times, most recent failure: Lost "
    "task 1.0 in stage 5.0 (TID 31) (192.0.2.2 executor driver): "
)


def trace(*functions: str) -> str:
    return "".join(f"\n\tat {function}(Somewhere.java:7)" for function in functions)


RUNS = trace(f"{CODE}.processNext", "org.apache.spark.sql.execution.BufferedRowIterator.hasNext")


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (
            LOST
            + "java.lang.ArithmeticException: long overflow"
            + trace("java.base/java.lang.Math.multiplyExact")
            + RUNS
            + "\n\nDriver stacktrace:"
            + trace("org.apache.spark.scheduler.DAGScheduler.abortStage"),
            "[EXPRESSION_FAILED] ArithmeticException: long overflow",
        ),
        (
            "An error occurred while calling o7.count.\n: java.util.regex.PatternSyntaxException: "
            "Unclosed group near index 1\n("
            + trace("java.base/java.util.regex.Pattern.error")
            + trace("org.apache.spark.sql.catalyst.expressions.RLike.nullSafeEval"),
            "[EXPRESSION_FAILED] PatternSyntaxException: Unclosed group near index 1 (",
        ),
        (
            "py4j: failed\n\tat py4j.Gateway.invoke(Gateway.java:1)\nCaused by: "
            "java.lang.IllegalArgumentException" + trace(f"{CODE}.processNext"),
            "[EXPRESSION_FAILED] IllegalArgumentException",
        ),
        (
            LOST
            + "org.apache.spark.SparkIllegalArgumentException: [INVALID_FORMAT.MISMATCH_INPUT] The "
            "format is invalid: 99. SQLSTATE: 42601"
            + trace("org.apache.spark.sql.errors.QueryExecutionErrors$.invalidFormat")
            + RUNS,
            "[INVALID_FORMAT.MISMATCH_INPUT] The format is invalid: 99.",
        ),
    ],
    ids=["task", "driver", "cause", "condition"],
)
def test_an_exception_while_a_value_was_computed_is_kept(text: str, kept: str) -> None:
    """Its class and message; of Spark's conditions the condition."""
    assert data_error_text(RuntimeError(text)) == kept


@pytest.mark.parametrize(
    "text",
    [
        "java.lang.OutOfMemoryError: Java heap space" + RUNS,
        "java.lang.NullPointerException: Cannot invoke" + RUNS,
        "java.io.UncheckedIOException: no disk" + RUNS,
        "java.lang.IllegalArgumentException: no such file"
        + trace("org.apache.spark.sql.execution.datasources.FileScanRDD.next")
        + RUNS,
        "java.lang.IllegalStateException: no thread"
        + trace("java.base/java.util.concurrent.ThreadPoolExecutor.reject")
        + RUNS,
        "java.lang.RuntimeException: users" + trace("com.acme.Udf.call") + RUNS,
        "org.apache.spark.sql.AnalysisException: [UNRESOLVED_COLUMN] no x SQLSTATE: 42703"
        + trace("org.apache.spark.sql.catalyst.expressions.Cast.checkInputDataTypes"),
        "org.apache.spark.SparkRuntimeException: [USER_RAISED_EXCEPTION] [DIFF_OVERFLOW] too many "
        "SQLSTATE: P0001" + RUNS,
        "org.apache.spark.SparkException: [INTERNAL_ERROR] a mistake SQLSTATE: XX000" + RUNS,
        "org.apache.spark.SparkException: [FAILED_EXECUTE_UDF] failed due to: java.io.IOException: "
        "no disk. SQLSTATE: 39000" + RUNS,
        "nothing with a class" + RUNS,
    ],
    ids=count(),
)
def test_other_exceptions_of_the_jvm_are_not_data(text: str) -> None:
    """A lack of memory, an input that is away, and a mistake of Spark's are met in tasks, too."""
    for begin in (LOST, ": ", "boom\nCaused by: "):
        assert data_error_text(RuntimeError(begin + text)) is None

"""The cause of an error is the innermost that a person can act on, and the same at each attempt."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any

import pyarrow as pa
import pytest
from typing_extensions import override

from shardline.app.execution.causes import find_cause
from shardline.app.execution.error_texts import Frame, users_frame
from shardline.app.logs import LOGGED_HINT
from shardline.app.storage.sinks.interval import Interval
from shardline.app.storage.sinks.others import FunctionTarget, register_function
from shardline.datasource.errors import Corrupt, Determinate, Fenced, InvalidUsage, MissingBlob
from shardline.datasource.frontier import Frontier
from shardline.extras import MissingPackage
from support.spark.failures import CAUSES, GOLDEN, SITUATIONS
from support.spark.user_functions import hand_over


class OfSpark(Exception):
    """An error as Spark's Python side hands it over: its message, and the causes beside it."""

    def __init__(self, text: str, trace: str = "") -> None:
        super().__init__(text)
        self._stackTrace = trace


def recorded() -> list[tuple[str, str, str, str]]:
    """Version of Spark, situation, text and trace."""
    found: list[tuple[str, str, str, str]] = []
    for path in sorted(GOLDEN.glob("*.json")):
        texts: dict[str, dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))
        found += [(path.stem, name, one["text"], one["trace"]) for name, one in texts.items()]
    return found


RECORDED = recorded()


def said(error: BaseException) -> tuple[str, str]:
    cause = find_cause(error)
    return cause.sentence, cause.hint


def test_a_cause_can_be_recorded_whatever_bytes_a_name_has() -> None:
    """Python reads a file name that is no UTF-8 with marks that no encoding has."""
    name = b"/data/b\xfcro.csv".decode(errors="surrogateescape")
    at = FileNotFoundError(2, "No such file or directory", name)
    ours = InvalidUsage("no folder '\udcff'", code="NO_FOLDER", hint="rename '\udcff'")
    assert "/data/b\\udcfcro.csv" in find_cause(at).sentence
    assert said(ours) == ("[NO_FOLDER] no folder '\\udcff'", "rename '\\udcff'")


def test_every_situation_was_recorded_and_has_a_cause() -> None:
    """None is left out by mistake."""
    assert {name for _, name, _, _ in RECORDED} == set(SITUATIONS) == set(CAUSES)


@pytest.mark.parametrize(
    ("name", "text", "trace"), [pytest.param(*one[1:], id=f"{one[1]}-{one[0]}") for one in RECORDED]
)
def test_what_spark_has_really_said_becomes_its_cause(name: str, text: str, trace: str) -> None:
    """File, function or piece of the query, and what to do; no wrapper and no stack trace."""
    assert said(OfSpark(text, trace)) == CAUSES[name]


def another_run(text: str) -> str:
    """A text as the next attempt would have it: other ids and numbers, the same error."""
    text = re.sub(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", "0" * 8 + "-a-b-c", text)
    text = re.sub(r"calling o\d+", "calling o987654", text)
    text = re.sub(r"TID \d+", "TID 7654", text)
    text = re.sub(r"stage \d+\.\d+", "stage 321.0", text)
    text = re.sub(r"Task \d+ in|[Tt]ask \d+\.\d+ in", "task 1.2 in", text)
    return re.sub(r"/data/tmp\w+", "/data/tmpq0q0q0q0", text)


@pytest.mark.parametrize(("name", "text", "trace"), [one[1:] for one in RECORDED])
def test_the_same_error_has_the_same_cause_at_each_attempt(
    name: str, text: str, trace: str
) -> None:
    """A retry that fails alike is no new line in a history."""
    assert said(OfSpark(another_run(text), another_run(trace))) == CAUSES[name]


JAVA = "An error occurred while calling o9.save.\n: "


@pytest.mark.parametrize(
    ("error", "sentence", "hint"),
    [
        (
            OfSpark(
                f"{JAVA}org.apache.spark.SparkException: Exception thrown in awaitResult: \n"
                "\tat org.apache.spark.util.SparkThreadUtils$.awaitResult(T.scala:56)\n"
                "Caused by: java.util.concurrent.ExecutionException: java.io.IOException: x\n"
                "\tat a.b(C.java:1)\n"
                "Caused by: java.io.IOException: the catalog is locked by o'hara\n\t... 12 more\n"
            ),
            "IOException: the catalog is locked by o'hara",
            LOGGED_HINT,
        ),
        (
            OfSpark(
                f"{JAVA}org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 "
                "in stage 3.0 failed 4 times, most recent failure: Lost task 0.3 in stage 3.0 "
                "(TID 7) (host executor driver): java.lang.IllegalStateException: no more\n"
                "\tat a.b(C.java:1)\n\nDriver stacktrace:\n"
            ),
            "IllegalStateException: no more",
            LOGGED_HINT,
        ),
        (
            OfSpark(
                "[TASK_WRITE_FAILED] Task failed while writing rows to file:/out/.staging-17/"
                "_temporary/0. SQLSTATE: 58030",
                "org.apache.spark.SparkException: [TASK_WRITE_FAILED] Task failed. SQLSTATE: 58030"
                "\n\tat a.b(C.scala:1)\n"
                "Caused by: java.io.FileNotFoundException: /out/.staging-17/_temporary/0/part-1 "
                "(Permission denied)\n\tat a.b(C.java:1)\n",
            ),
            "no permission for '/out'",
            "give the application's user the right to read and write it",
        ),
        (
            OfSpark(
                f"{JAVA}java.io.IOException: Mkdirs failed to create file:/srv/out/.staging-17 "
                "(exists=false, cwd=file:/home/ada)\n\tat a.b(C.java:1)\n"
            ),
            "folder '/srv/out' cannot be made",
            "look at the path, and give the application's user the right to write there",
        ),
        (
            OfSpark(
                f"{JAVA}org.apache.hadoop.security.AccessControlException: Permission denied: "
                'user=ada, access=WRITE, inode="/lake":hdfs:hdfs:drwxr-xr-x\n\tat a.b(C.java:1)\n'
            ),
            "no permission for '/lake'",
            "give the application's user the right to read and write it",
        ),
        (
            OfSpark(f"{JAVA}java.net.ConnectException: Connection refused\n\tat a.b(C.java:1)\n"),
            "ConnectException: Connection refused",
            "look whether the service runs, and whether it can be reached from here",
        ),
        (
            OfSpark(f"{JAVA}java.lang.OutOfMemoryError: Java heap space\n\tat a.b(C.java:1)\n"),
            "OutOfMemoryError: Java heap space",
            "give the process more memory (spark.driver.memory)",
        ),
        (
            OfSpark(
                f"{JAVA}java.lang.StackOverflowError\n"
                "\tat org.apache.spark.sql.catalyst.trees.TreeNode.foreach(TreeNode.scala:260)\n"
            ),
            (
                "StackOverflowError: an expression or a value is nested more deeply than Java's "
                "stack has room for"
            ),
            (
                "make a query of fewer nested expressions, or give threads a larger stack "
                "(-Xss16m in spark.driver.extraJavaOptions)"
            ),
        ),
        (
            OfSpark(
                "[STREAM_FAILED] Query [id = 6c, runId = 36] terminated with exception: Python "
                "worker failed to connect back. SQLSTATE: XXKST\n=== Streaming Query ===\n",
                "org.apache.spark.sql.streaming.StreamingQueryException: Python worker failed to "
                "connect back.\n=== Streaming Query ===\n\nCurrent State: INITIALIZING\n"
                "\tat a.b(C.scala:1)\nCaused by: org.apache.spark.SparkException: Python worker "
                "failed to connect back.\n\tat a.b(C.scala:1)\n"
                "Caused by: java.net.SocketTimeoutException: Timed out while waiting for the "
                "Python worker to connect back\n\tat a.b(C.scala:1)\n",
            ),
            "Spark's Python process did not start in time",
            "look whether the machine has enough processors and memory for what runs on it",
        ),
        (
            PermissionError(13, "Permission denied", "/srv/in/a b.csv"),
            "no permission for '/srv/in/a b.csv'",
            "give the application's user the right to read and write it",
        ),
        (
            OSError(28, "No space left on device", "/srv/data/p1.parquet"),
            "no space is left on the disk of '/srv/data/p1.parquet'",
            "free some space, or give the application a larger disk",
        ),
        (
            FileNotFoundError(2, "No such file or directory", "/x/tmpab12cd34/rows.csv"),
            "'/x/tmp…/rows.csv' is not there",
            "put it back, or correct the path",
        ),
        (
            NotADirectoryError(20, "Not a directory", "/srv/file/x"),
            "'/srv/file/x' is a file, and a folder is needed there",
            "choose another path, or move the file away",
        ),
        (
            OfSpark(
                "An error occurred while calling o7.mkdirs.\n"
                ": org.apache.hadoop.fs.FileAlreadyExistsException: Destination exists and is not a"
                " directory: /srv/out/spent\n"
                "\tat org.apache.hadoop.fs.RawLocalFileSystem.mkdirs(RawLocalFileSystem.java:872)"
            ),
            "'/srv/out/spent' is a file, and a folder is needed there",
            "choose another path, or move the file away",
        ),
        (pa.ArrowInvalid("rows end too early"), "ArrowInvalid: rows end too early", LOGGED_HINT),
        (
            ModuleNotFoundError("No module named 'prices'"),
            "ModuleNotFoundError: No module named 'prices'",
            "install the module in the environment that this program runs in",
        ),
        (MissingPackage("'run' needs it: pip install x"), "'run' needs it: pip install x", ""),
        (
            ValueError("<Row at 0x7f00aa> is odd\nand more"),
            "ValueError: <Row> is odd",
            LOGGED_HINT,
        ),
        (RuntimeError(), "RuntimeError", LOGGED_HINT),
        (Fenced("another one runs", hint="stop it"), "[FENCED] another one runs", "stop it"),
        (
            OfSpark(
                "[STREAM_FAILED] Query [id = 1-2, runId = 3-4] terminated with exception: "
                "[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred. Reason: "
                "Traceback (most recent call last):\n"
                '  File "/x/py4j/clientserver.py", line 644, in _call_proxy\n'
                "    return_value = getattr(self.pool[obj_id], method)(*params)\n"
                "shardline.app.execution.batch_errors.MicroBatchFailed: [NO_ROOM] there is none\n"
                " SQLSTATE: 39000 SQLSTATE: XXKST"
            ),
            "[NO_ROOM] there is none",
            LOGGED_HINT,
        ),
        (
            OfSpark(
                "[STREAM_FAILED] Query [id = 1-2, runId = 3-4] terminated with exception: "
                "[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred. Reason: "
                "Traceback (most recent call last):\n"
                '  File "/x/py4j/clientserver.py", line 644, in _call_proxy\n'
                "shardline.app.execution.batch_errors.MicroBatchFailed: KeyError: 'b', in function "
                "'f' (prices.py, line 3)\n SQLSTATE: 39000 SQLSTATE: XXKST"
            ),
            "KeyError: 'b', in function 'f' (prices.py, line 3)",
            LOGGED_HINT,
        ),
        (
            OfSpark(
                "An exception was raised by the Python Proxy. Return Message: "
                "Traceback (most recent call last):\n"
                '  File "/home/ada/prices.py", line 3, in share\n'
                "pyspark.errors.exceptions.captured.ArithmeticException: [DIVIDE_BY_ZERO] Division "
                "by zero. SQLSTATE: 22012\n\n"
                "The above exception was the direct cause of the following exception:\n\n"
                "Traceback (most recent call last):\n"
                '  File "/home/ada/prices.py", line 5, in share\n'
                "prices.NoPrice: of Rome\n"
            ),
            "NoPrice: of Rome, in function 'share' (prices.py, line 5)",
            "correct the function, and start the application again",
        ),
        (
            OfSpark(
                "[PYTHON_EXCEPTION] An exception was thrown from the Python worker: "
                "Traceback (most recent call last):\n"
                '  File "/x/pyspark/worker.py", line 7, in main\n'
                "pyspark.errors.exceptions.base.PySparkRuntimeError: no such command\n"
                " SQLSTATE: 38000"
            ),
            "PySparkRuntimeError: no such command",
            LOGGED_HINT,
        ),
        (
            OfSpark(
                "An exception was thrown from the Python worker:\n"
                "Traceback (most recent call last):\n"
                '  File "/x/pyspark/worker.py", line 7, in main\n'
                "pyspark.errors.PySparkRuntimeError: [RESULT_ROWS_MISMATCH] 1 row, and not 5."
            ),
            "[RESULT_ROWS_MISMATCH] 1 row, and not 5",
            LOGGED_HINT,
        ),
        (
            OfSpark(
                f"{JAVA}org.apache.spark.SparkException: Exception thrown in awaitResult: \n"
                "\tat a.b(C.java:1)\nCaused by: java.util.NoSuchElementException\n\t... 12 more\n"
            ),
            "NoSuchElementException",
            LOGGED_HINT,
        ),
        (
            OfSpark(
                "[STATE_STORE_COMMIT_FAILED] The store of a state failed. SQLSTATE: XXKST\n",
                "org.apache.spark.SparkException: [CAST_OVERFLOW] The value 3 is too large. Use "
                "`try_cast` instead. SQLSTATE: 22003\n\tat a.b(C.java:1)",
            ),
            "[CAST_OVERFLOW] The value 3 is too large",
            "use `try_cast` instead",
        ),
        (
            OfSpark(
                f"{JAVA}java.io.FileNotFoundException: /out/x (Permission denied)\n"
                "\tat a.b(C.java:1)\nCaused by: java.io.IOException: Disk quota exceeded\n"
            ),
            "no space is left on the disk",
            "free some space, or give the application a larger disk",
        ),
    ],
)  # fmt: skip
def test_causes_that_were_not_recorded(error: BaseException, sentence: str, hint: str) -> None:
    """Wrappers of the JVM, the operating system, Python, and ourselves."""
    assert said(error) == (sentence, hint)


def test_an_error_of_ours_comes_first_wherever_it_is() -> None:
    """With its code and hint: below an exception of a user, or in a worker's traceback."""
    ours = InvalidUsage("no task 3 in file:/x", code="NO_COLUMN", hint="name another")
    outer = RuntimeError("it went wrong")
    outer.__cause__ = ours
    assert said(outer) == ("[NO_COLUMN] no task 3 in file:/x", "name another")
    inside = OfSpark(
        "[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent "
        f"call last):\nshardline.datasource.errors.InvalidUsage: {ours}\n SQLSTATE: 38000\n"
        "\tat a.b(C.scala:1)\nCaused by: java.io.IOException: No space left on device\n"
    )
    assert said(inside) == ("[NO_COLUMN] no task 3 in file:/x", "name another")
    assert find_cause(inside).is_usage


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InvalidUsage("x"), "invalid_usage"),
        (Determinate("x"), "determinate"),
        (MissingBlob("gone", code="LEASE_LOST"), "determinate"),
        (Corrupt("x"), "corrupt"),
        (
            OfSpark("shardline.datasource.errors.MissingBlob: [MISSING_BLOB] part 'a'"),
            "missing_blob",
        ),
        (OfSpark("shardline.datasource.errors.MissingBlob: [LEASE_LOST] part 'a'"), "determinate"),
        (OfSpark("[USER_RAISED_EXCEPTION] [NEGATIVE_MULTIPLICITY] -1 SQLSTATE: P0001"), "corrupt"),
        (OfSpark("[USER_RAISED_EXCEPTION] no. SQLSTATE: P0001"), "invalid_usage"),
        (OfSpark("[UNRESOLVED_COLUMN.X] no `a`. SQLSTATE: 42703"), "invalid_usage"),
        (OfSpark("[DIVIDE_BY_ZERO] Division. SQLSTATE: 22012"), "invalid_usage"),
        (OfSpark("[INTERNAL_ERROR] odd. SQLSTATE: XX000"), "determinate"),
        (OSError("Connection refused"), "determinate"),
    ],
)
def test_a_cause_says_what_is_to_be_done_next(error: Exception, kind: str) -> None:
    """As the class of an error of ours does; of Spark's, its SQLSTATE says it."""
    assert find_cause(error).kind == kind


class OfLostJvm(Exception):
    """An error whose text and context are in a JVM that has ended."""

    @override
    def __str__(self) -> str:
        raise ConnectionError("Answer from Java side is empty")

    def getCondition(self) -> str:  # noqa: N802 - Spark's name
        raise ConnectionError("Answer from Java side is empty")


def test_an_error_whose_text_is_lost_is_still_one() -> None:
    """A failure is reported also when the JVM has ended that could have said more."""
    assert said(OfLostJvm()) == ("OfLostJvm", LOGGED_HINT)
    lost = OfLostJvm()
    lost._stackTrace = "X: [DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012"  # type: ignore[attr-defined]
    assert find_cause(lost).code == "DIVIDE_BY_ZERO"


class Rows:
    """Stands for the frame of a micro-batch, which nobody reads."""

    def persist(self) -> Rows:
        return self

    def unpersist(self) -> None:
        """Nothing is kept."""


def test_a_users_function_that_we_have_called_is_named() -> None:
    """Who has called us is not: the error is not in that code."""
    register_function("hand_over", hand_over)
    rows: Any = Rows()
    with pytest.raises(KeyError) as called:
        FunctionTarget({"function": "hand_over"}).write(rows, Interval(0, Frontier(5)))
    assert said(called.value) == CAUSES["streamed function"]
    with pytest.raises(KeyError) as direct:
        hand_over(rows, 1)
    assert said(direct.value) == ("KeyError: 'b'", LOGGED_HINT)


def test_pythons_own_library_is_no_place_of_a_fault() -> None:
    """It is between our frames and Spark's; a package that a user has installed is one."""
    own = Frame(contextlib.__file__, 158, "__exit__")
    package = Frame("/x/lib/python3.11/site-packages/prices/city.py", 3, "share")
    assert users_frame([own]) is None
    assert users_frame([package, own]) == package


def test_secrets_and_long_rows_are_left_out() -> None:
    """A driver's message quotes the URL that it was given, and a user's whole rows."""
    hidden = find_cause(ValueError("cannot open jdbc:db://me:hunter2@host/x?password=hunter3"))
    assert "hunter" not in hidden.sentence
    assert "host" in hidden.sentence
    assert len(find_cause(ValueError("x" * 5000)).sentence) == 600

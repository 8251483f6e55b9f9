"""Spark's errors become a sentence, the place in the text, and a hint."""

from __future__ import annotations

import pytest

from shardline.app.sql.spark_errors import SparkProblem, read_spark_error

TEXT = "SELECT a\nFROM x"


class Suggesting(Exception):
    """An error of Spark with parameters."""

    def getMessageParameters(self) -> dict[str, str]:  # noqa: N802 - Spark's name
        return {"objectName": "`t`.`dely`", "proposal": "`t`.`a`, `t`.`delay`"}


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (
            ValueError("[NO_GOOD.AT_ALL] Cannot do it. SQLSTATE: 42000; line 2 pos 5;\n'Plan [x]"),
            SparkProblem("NO_GOOD.AT_ALL", "cannot do it", "", 14),
        ),
        (
            ValueError(
                '\n[UNSUPPORTED_DATATYPE] Unsupported type "FOO". SQLSTATE: 0A000 (line 1, pos 7)\n'
            ),
            SparkProblem(
                "UNSUPPORTED_DATATYPE",
                'unsupported type "FOO"',
                "types are those of Spark's SQL, such as INT, STRING, DECIMAL(10, 2)",
                7,
            ),
        ),
        (
            ValueError("UNION is odd\nand more"),
            SparkProblem("SPARK", "UNION is odd", "", None),
        ),
        (
            Suggesting("[X] No `t`.`dely`. Did you mean one of the following? [`t`.`a`]."),
            SparkProblem("X", "no `t`.`dely`", "did you mean t.delay?", None),
        ),
        (
            ValueError(
                "[PYTHON_DATA_SOURCE_ERROR] Failed: Traceback\n  File x\n"
                "shardline.datasource.errors.InvalidUsage: [SHARD_NOT_FOUND] no shard 'x' "
                "— hint: make it\n"
                " at y SQLSTATE: 38000"
            ),
            SparkProblem("SHARD_NOT_FOUND", "no shard 'x'", "make it", None),
        ),
        (
            ValueError("[PATH_NOT_FOUND] Path does not exist: file:/x. SQLSTATE: 42K03"),
            SparkProblem(
                "PATH_NOT_FOUND",
                "path does not exist: file:/x",
                "make the folder or file, or correct the path",
                None,
            ),
        ),
        (
            ValueError(
                "An error occurred while calling o60.parquet.\n: org.apache.spark.SparkException: "
                "[FAILED_READ_FILE.CANNOT_READ_FILE_FOOTER] Encountered error while reading file "
                "file:/in/a b.parquet. Could not read footer. SQLSTATE: KD001\n\tat a.b(C.java:1)\n"
                "\tSuppressed: org.apache.spark.SparkException: Exception thrown in awaitResult\n"
                "Caused by: java.lang.RuntimeException: file:/in/a b.parquet is not a Parquet file."
            ),
            SparkProblem(
                "FAILED_READ_FILE",
                "file '/in/a b.parquet' cannot be read: it is not a Parquet file",
                "repair the file, or put a good one in its place",
                None,
            ),
        ),
    ],
)  # fmt: skip
def test_an_error_is_told_in_a_sentence(error: Exception, said: SparkProblem) -> None:
    """Codes, plans and traces are left out; the offset counts from the start of the text."""
    assert read_spark_error(error, TEXT) == said


def test_an_unknown_function_gets_the_nearest_name() -> None:
    """Of Spark's own, whatever a catalog puts in front; what to do where none is near."""

    class Unresolved(ValueError):
        def __init__(self, name: str) -> None:
            super().__init__("[UNRESOLVED_ROUTINE] Cannot resolve routine. SQLSTATE: 42883")
            self.name = name

        def getMessageParameters(self) -> dict[str, str]:  # noqa: N802 - Spark's name
            return {"routineName": self.name}

    assert read_spark_error(Unresolved("`system`.`Cuont`"), "").hint == "did you mean count?"
    assert read_spark_error(Unresolved("`qqqqqqqq`"), "").hint.startswith("no function")

"""Errors of Python processes: those that a user's function has raised at rows, told from others."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardline import datasource
from shardline.app.compute.errors import data_error_text
from shardline.app.compute.user_functions import error_raised_at_row

HEAD = "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
USERS = '  File "/home/ada/prices.py", line 7, in checked\n    raise Unlucky(13)\n'
WORKER = "/opt/env/lib/python3.11/site-packages/pyspark/python/lib/pyspark.zip/pyspark"
OURS = Path(datasource.__file__).parent / "parts" / "fetch.py"


def of_worker(*functions: str) -> str:
    return "".join(f'  File "{WORKER}/worker.py", line 1, in {name}\n' for name in functions)


OUTER = (
    "An error occurred while calling o1.save.\n: SparkException: Job aborted\n\tat a.b(C)\n"
    "Caused by: org.apache.spark.api.python.PythonException: "
)
UDTF = (
    HEAD + of_worker("evaluate_rows") + USERS + "{inner}\n\n"
    "During handling of the above exception, another exception occurred:\n\n"
    "Traceback (most recent call last):\n"
    + of_worker("invoke_udf", "process", "evaluate_rows")
    + "pyspark.errors.exceptions.base.PySparkRuntimeError: [UDTF_EXEC_ERROR] in 'eval'\n"
)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD + USERS + "ValueError: no such city\nsecond line", "ValueError: no such city"),
        (HEAD + USERS + "ada.prices.Unlucky", "ada.prices.Unlucky"),
        (HEAD + USERS + "TypeError: <object at 0x7f0a> is odd", "TypeError: <object> is odd"),
        (
            HEAD + '  File "pyarrow/array.pxi", line 424, in pyarrow.lib.array\n'
            "pyarrow.lib.ArrowInvalid: Could not convert x",
            "pyarrow.lib.ArrowInvalid: Could not convert x",
        ),
        (
            HEAD + of_worker("invoke_udf", "process", "verify_result_row_count")
            + "pyspark.errors.PySparkRuntimeError: [RESULT_ROWS_MISMATCH] 1 and 5",
            "pyspark.errors.PySparkRuntimeError: [RESULT_ROWS_MISMATCH] 1 and 5",
        ),
        (HEAD + of_worker("main", "process") + USERS + "KeyError: 'x'", "KeyError: 'x'"),
        (
            UDTF.format(inner="ValueError: x"),
            "pyspark.errors.exceptions.base.PySparkRuntimeError: [UDTF_EXEC_ERROR] in 'eval'",
        ),
        ("An exception was thrown from the Python worker:\nValueError: x", "ValueError: x"),
        (
            f"{OUTER}{HEAD}{USERS}ValueError: x\n\n\tat org.apache.spark.Base.run(B.scala:1)\n",
            "ValueError: x",
        ),
        (
            f"[PYTHON_EXCEPTION] {HEAD}{USERS}ValueError: x\n SQLSTATE: 38000\n",
            "ValueError: x",
        ),
    ],
)  # fmt: skip
def test_what_a_function_raises_at_a_row_is_data(text: str, said: str) -> None:
    """Its class and the first line of its message, the same for the same row, and where it is."""
    assert error_raised_at_row(text) == said
    place = ", in function 'checked' (prices.py, line 7)" if USERS in text else ""
    assert data_error_text(RuntimeError(text)) == f"[PYTHON_EXCEPTION] {said}{place}"


@pytest.mark.parametrize(
    "text",
    [
        "Python worker exited unexpectedly (crashed)",
        HEAD + USERS + "MemoryError",
        HEAD + USERS + "ModuleNotFoundError: No module named 'prices'",
        HEAD + USERS + "FileNotFoundError: [Errno 2] No such file: 'prices.csv'",
        HEAD + USERS + "ConnectionRefusedError: [Errno 111] Connection refused",
        HEAD + USERS + "SystemExit: 3",
        UDTF.format(inner="TimeoutError: no answer"),
        HEAD + of_worker("main", "read_udfs", "read_command") + "AttributeError: no attribute 'f'",
        HEAD + of_worker("invoke_udf", "process", "load_stream") + "EOFError",
        HEAD + '  File "pyarrow/ipc.pxi", line 1, in read\npyarrow.lib.ArrowInvalid: 3 bytes read',
        HEAD + '  File "<frozen importlib._bootstrap>", line 1, in _find_and_load\n'
        + USERS + "NameError: name 'x' is not defined",
        HEAD + f'  File "{OURS}", line 1, in fetch\nValueError: x',
        HEAD + '  File "/srv/app/datasource/parts/fetch.py", line 1, in fetch\nValueError: x',
        HEAD + USERS + "shardline.datasource.errors.MissingBlob: [BLOB_DELETED] part 'p' is lost",
        "An exception was thrown from the Python worker:\n",
        HEAD,
    ],
)  # fmt: skip
def test_what_befalls_a_process_is_not_data(text: str) -> None:
    """Killed, without memory, files, network or modules, or in our own code: it is tried again."""
    assert error_raised_at_row(text) is None
    assert data_error_text(RuntimeError(text)) is None


def test_a_folder_of_a_user_may_have_the_name_of_ours() -> None:
    """Only files that are ours are ours."""
    frame = '  File "/home/ada/datasource/prices.py", line 1, in checked\n'
    assert error_raised_at_row(f"{HEAD}{frame}ValueError: x") == "ValueError: x"

"""A refusal has no frames in the processes that Spark starts, and only there."""

from __future__ import annotations

import io
import os
import struct
import sys
from importlib.machinery import ModuleSpec

import pytest
from pyspark.util import handle_worker_exception

from shardline.datasource.errors import Corrupt, Determinate, InvalidUsage
from shardline.datasource.shard_source.worker_errors import as_one_sentence

WORKER = "pyspark.daemon"
PLANNER = "pyspark.sql.streaming.python_streaming_source_runner"


def damaged() -> None:
    try:
        open("/dev/null/there-is-none")  # noqa: SIM115, PTH123 - it cannot be opened
    except OSError as error:
        raise Corrupt("a part is damaged") from error


def misspelt() -> None:
    try:
        int("many")
    except ValueError as error:
        raise InvalidUsage("it cannot be 'many'", code="INVALID_OPTION", hint="a number") from error


def unsettled() -> None:
    raise Determinate("not settled yet", code="NOT_YET_READABLE")


def broken() -> None:
    raise KeyError("a bug")


def said_by(hook: object, process: str | None, monkeypatch: pytest.MonkeyPatch) -> str:
    """What a process of this name tells Spark of the error of a hook."""
    spec = None if process is None else ModuleSpec(process, None)
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", spec, raising=False)
    # Set and unset, so that it is taken back after the test.
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    out = io.BytesIO()
    try:
        as_one_sentence(hook)()  # type: ignore[arg-type]
    except Exception as error:  # noqa: BLE001 - as PySpark does
        handle_worker_exception(error, out)
    number, length = struct.unpack("!ii", out.getvalue()[:8])
    assert (number, length) == (-2, len(out.getvalue()) - 8)
    return out.getvalue()[8:].decode()


@pytest.mark.parametrize("process", [WORKER, PLANNER])
def test_a_refusal_is_one_sentence(process: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one whose cause is a text that cannot be parsed."""
    assert said_by(misspelt, process, monkeypatch) == (
        "shardline.datasource.errors.InvalidUsage: "
        "[INVALID_OPTION] it cannot be 'many' — hint: a number\n"
    )
    assert said_by(unsettled, process, monkeypatch) == (
        "shardline.datasource.errors.Determinate: [NOT_YET_READABLE] not settled yet\n"
    )


@pytest.mark.parametrize(
    ("hook", "process"), [(damaged, WORKER), (broken, WORKER), (misspelt, None), (misspelt, "job")]
)
def test_what_else_goes_wrong_keeps_its_frames(
    hook: object, process: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure with a cause, a bug, and everything in a program of the user's own."""
    said = said_by(hook, process, monkeypatch)
    assert said.startswith(("Traceback", "NotADirectoryError", "ValueError"))
    assert ", in " in said
    assert not os.environ["SPARK_HIDE_TRACEBACK"]

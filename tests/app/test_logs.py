"""The log: one JSON object per line, in the fields of Spark's structured log."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from shardline.app.logs import add_log_file, start_log
from shardline.datasource.errors import InvalidUsage


@pytest.fixture
def file(tmp_path: Path) -> Any:
    """A log file in a folder that is not there yet."""
    path = tmp_path / "a b" / "log.jsonl"
    handler = add_log_file(path, "INFO")
    yield path
    end(handler)


def end(handler: logging.Handler) -> None:
    """Log as before."""
    logger = logging.getLogger("shardline")
    logger.removeHandler(handler)
    logger.propagate = True
    logger.setLevel(logging.NOTSET)
    handler.close()


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def fail() -> None:
    raise ValueError("two\nlines")


def test_a_record_is_one_line_with_its_context(file: Path) -> None:
    """Message and values are apart, the time is UTC, lesser levels are left out."""
    logger = logging.getLogger("shardline.app.demo.feed")
    logger.debug("not written")
    logger.info("landed", extra={"context": {"day": "2013-01-05", "where": Path("ä")}})
    (line,) = lines(file)
    assert (line["level"], line["logger"], line["msg"]) == (
        "INFO",
        "shardline.app.demo.feed",
        "landed",
    )
    assert line["context"] == {"day": "2013-01-05", "where": "ä"}
    assert line["ts"].endswith("Z")
    assert set(line) == {"ts", "level", "logger", "msg", "context"}


def test_an_exception_stays_on_its_line(file: Path) -> None:
    """Class, message and stack trace are fields, so a line break in them breaks no line."""
    try:
        fail()
    except ValueError:
        logging.getLogger("shardline.datasource.shard.machine").exception("it failed")
    (line,) = lines(file)
    assert (line["exception"]["class"], line["exception"]["msg"]) == ("ValueError", "two\nlines")
    frames = line["exception"]["stacktrace"]
    methods = ["test_an_exception_stays_on_its_line", "fail"]
    assert [frame["method"] for frame in frames] == methods
    assert all(Path(frame["file"]).name == "test_logs.py" for frame in frames)


def test_causes_are_told_with_an_exception(file: Path) -> None:
    """Whatever it was raised from."""
    try:
        try:
            fail()
        except ValueError as error:
            raise KeyError("k") from error
    except KeyError:
        logging.getLogger("shardline.app.lane").exception("it failed")
    (line,) = lines(file)
    assert line["exception"]["msg"] == "'k'\ncaused by ValueError: two\nlines"


def test_others_do_not_write_into_our_log(file: Path) -> None:
    """Only this project's loggers are written to the file."""
    logging.getLogger("somebody.else").error("loud")
    assert lines(file) == []


def test_settings_say_where_the_log_is(tmp_path: Path) -> None:
    """In the job's folder, unless a file is named; the folder is made all the same."""
    for chosen, found in (("", "job/log.jsonl"), (str(tmp_path / "else" / "l"), "else/l")):
        handler = start_log(chosen, tmp_path / "job", "INFO")
        logging.getLogger("shardline.jobs").info("here")
        end(handler)
        assert [line["msg"] for line in lines(tmp_path / found)] == ["here"]
    assert (tmp_path / "job").is_dir()


def test_a_folder_that_cannot_be_written_is_told_with_what_to_do(tmp_path: Path) -> None:
    """And not as a stack trace."""
    (tmp_path / "in the way").write_text("")
    with pytest.raises(InvalidUsage, match="FOLDER_NOT_WRITABLE") as refused:
        start_log("", tmp_path / "in the way" / "job", "INFO")
    assert "--data" in str(refused.value)

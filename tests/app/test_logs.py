"""The log: one JSON object per line, in the fields of Spark's structured log."""

from __future__ import annotations

import errno
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from shardline.app.cli.terminal import open_log
from shardline.app.logs import LogFile, add_log_file, log_hint, start_log
from shardline.app.settings.config import load
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


def test_a_log_has_no_secrets(tmp_path: Path) -> None:
    """Neither in the message, nor of an error or its causes, nor in a context."""
    settings = load(None, {"demo": {"data": str(tmp_path)}})
    handler = open_log(settings)
    url, logger = "jdbc:postgresql://me:hunter2@db/x", logging.getLogger("shardline.app.lane")
    error = KeyError("password='hunter2'")
    error.__cause__ = ValueError(f"no connection to {url}?password=hunter2&ssl=true")
    context = {"error": error, "reason": f"at {url}", "time": 7, "none": None}
    logger.error("not there: %s", url, exc_info=error, extra={"context": context})
    end(handler)
    (line,) = lines(tmp_path / "log.jsonl")
    assert "hunter2" not in json.dumps(line)
    assert line["msg"] == "not there: jdbc:postgresql://(secret)@db/x"
    assert line["exception"]["msg"] == (
        '"password=(secret)"\ncaused by ValueError: no connection to '
        "jdbc:postgresql://(secret)@db/x?password=(secret)&ssl=true"
    )
    assert line["context"] == {
        "error": '"password=(secret)"',
        "reason": "at jdbc:postgresql://(secret)@db/x",
        "time": 7,
        "none": None,
    }


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


def record(number: int, at_s: float) -> logging.LogRecord:
    """A record of a known time."""
    made = logging.LogRecord("shardline.jobs", logging.INFO, "", 0, f"line {number}", None, None)
    made.created = at_s
    return made


def messages(file: Path) -> list[str]:
    return [line["msg"] for line in lines(file)] if file.exists() else []


def test_a_file_is_renamed_when_it_is_full(tmp_path: Path) -> None:
    """Every line is in one of the files, in order; of more than are kept, the oldest goes."""
    path = tmp_path / "log.jsonl"
    log = add_log_file(path, "INFO", size=250, files=2)
    try:
        for number in range(12):
            logging.getLogger("shardline.jobs").info("line %d", number)
    finally:
        end(log)
    names = sorted(found.name for found in tmp_path.iterdir())
    assert names == ["log.jsonl", "log.jsonl.1", "log.jsonl.2"]
    found = [messages(path.with_name(name)) for name in reversed(names)]
    kept = [line for file in found for line in file]
    assert kept == [f"line {number}" for number in range(12 - len(kept), 12)]
    assert all(file.stat().st_size < 250 + 150 for file in tmp_path.iterdir())
    assert len(kept) > 6


def test_a_file_is_renamed_when_its_day_is_over(tmp_path: Path) -> None:
    """A day is one of UTC, and counts from the last line: a quiet day makes no file."""
    path = tmp_path / "log.jsonl"
    log = LogFile(path)
    day_s = 86_400
    try:
        for number, at_s in enumerate((100 * day_s, 101 * day_s - 1, 101 * day_s, 105 * day_s)):
            log.emit(record(number, at_s))
            os.utime(path, (at_s, at_s))
    finally:
        log.close()
    assert path.read_text().splitlines() == ["line 3"]
    assert path.with_name("log.jsonl.1").read_text().splitlines() == ["line 2"]
    assert path.with_name("log.jsonl.2").read_text().splitlines() == ["line 0", "line 1"]


def test_a_line_that_comes_after_the_end_is_no_traceback(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A thread may log while its process ends."""
    logger = logging.getLogger("shardline")
    next(one for one in logger.handlers if isinstance(one, LogFile)).close()
    logger.info("late")
    assert [line["msg"] for line in lines(file)] == ["late"]
    shutil.rmtree(file.parent)
    logger.info("later")
    assert [line["msg"] for line in lines(file)] == ["later"]
    assert capsys.readouterr().err == ""


def test_a_full_disk_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not once for each record, and again after it had room."""
    log = LogFile(tmp_path / "log.jsonl")
    record = logging.makeLogRecord({"msg": "a record"})

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    said = []
    for _ in range(2):
        with monkeypatch.context() as full:
            full.setattr(log, "write_line", refuse)
            log.emit(record)
            log.emit(record)
        log.emit(record)
        said.append(capsys.readouterr().err)
    log.close()
    line = f"the log '{tmp_path}/log.jsonl' cannot be written: No space left on device\n"
    assert said == [line, line]
    assert (tmp_path / "log.jsonl").read_text() == "a record\n" * 2


def test_two_processes_on_one_log_lose_no_line(tmp_path: Path) -> None:
    """Whoever finds it full renames it once; the other follows to the new file."""
    path = tmp_path / "log.jsonl"
    one, other = LogFile(path, size=200, files=50), LogFile(path, size=200, files=50)
    try:
        for number in range(0, 100, 2):
            one.emit(record(number, 10.0))
            other.emit(record(number + 1, 10.0))
            os.utime(path, (10.0, 10.0))
    finally:
        one.close()
        other.close()
    found = [line for file in tmp_path.iterdir() for line in file.read_text().splitlines()]
    assert sorted(found) == sorted(f"line {number}" for number in range(100))
    assert all(file.stat().st_size >= 200 for file in tmp_path.iterdir() if file != path)


def test_one_that_comes_late_to_a_full_file_does_not_rename_the_new_one(tmp_path: Path) -> None:
    """The file that it holds open is renamed already when it has the lock."""
    path = tmp_path / "log.jsonl"
    late = LogFile(path, size=10, files=5)
    late.emit(record(0, 10.0))
    held = late.stream
    assert held is not None
    path.rename(path.with_name("log.jsonl.1"))
    path.write_text("new\n")
    late._rename(held)
    assert path.read_text() == "new\n"
    assert not path.with_name("log.jsonl.2").exists()
    late.close()


def test_a_hint_names_the_log(file: Path) -> None:
    """Whoever is told to read the log is told which one."""
    assert log_hint() == f"the log has all of it: {file}"

"""The option `onBadRow`, the error of a source that stops, and where in its file a row stands."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardline.app.protocol.objects import SourceDescription
from shardline.app.storage.bad_rows import on_bad_row, stopped_error
from shardline.app.storage.error_lines import find_lines
from shardline.datasource.errors import InvalidUsage


def source(format: str = "csv", **options: str) -> SourceDescription:  # noqa: A002 - the field
    return SourceDescription(name="s", format=format, options=options)


@pytest.mark.parametrize(
    ("options", "meant"),
    [
        ({}, "keep"),
        ({"mode": "FAILFAST"}, "keep"),
        ({"onBadRow": "skip"}, "skip"),
        ({"ONBADROW": "STOP"}, "stop"),
        ({"onbadrow": "keep"}, "keep"),
    ],
)
def test_what_becomes_of_a_bad_row(options: dict[str, str], meant: str) -> None:
    """Kept by default; names and values in any case, as Spark takes its own."""
    assert on_bad_row(source(**options)) == meant


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (source(onBadRow="drop"), r"onBadRow 'drop' is not known.*DROPMALFORMED"),
        (source(onBadRow="DROPMALFORMED"), r"stop \(Spark's mode FAILFAST\)"),
        (source(onBadRow="skip", Mode="PERMISSIVE"), r"both mode and onBadRow.*leave mode out"),
        (source("parquet", onBadRow="skip"), r"'parquet' has no rows.*csv, json, xml"),
    ],
)
def test_what_cannot_be_is_refused(wrong: SourceDescription, said: str) -> None:
    """With the name of the source, and what Spark's words come to."""
    with pytest.raises(InvalidUsage, match=rf"INVALID_OPTION.*'s'.*{said}|INVALID_OPTION.*{said}"):
        on_bad_row(wrong)


def test_the_error_of_a_stop_names_a_row_and_its_file() -> None:
    """One of them, cut where it is long, and the ways out in Spark's words as well."""
    one = stopped_error("s", 1, "4,many", "file:///in/a%20b.csv")
    assert "1 row cannot be decoded in /in/a b.csv: 4,many" in one.detail
    many = stopped_error("s", 7, "x" * 500, None)
    assert "7 rows cannot be decoded, one of them: xxx" in many.detail
    assert len(many.detail) < 400
    for word in ("correct the file", "'skip'", "DROPMALFORMED", "'keep'"):
        assert word in one.hint


def test_lines_are_told_only_where_they_are_certain(tmp_path: Path) -> None:
    """The only line with the text; of a file that is here, whatever ends its lines."""
    file = tmp_path / "a b.csv"
    file.write_bytes(b"id,price\r\n1,x\r\n2,y\r\n2,y\r\n3,\xff\r\n")
    url = file.as_uri()
    asked = [
        (url, "1,x"),
        (str(file), "1,x"),
        (url, "2,y"),
        (url, "9,z"),
        (url, None),
        (None, "1,x"),
        ("s3://bucket/a.csv", "1,x"),
        ((tmp_path / "gone.csv").as_uri(), "1,x"),
    ]
    assert find_lines(asked) == [2, 2, None, None, None, None, None, None]

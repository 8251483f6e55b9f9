"""Rows come back as they were put, through files that are used again."""

from __future__ import annotations

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from shardline.datasource.scratch_folder import ScratchFolder
from shardline.datasource.spark_native import row_files
from shardline.datasource.spark_native.row_files import RowFiles

LONG = pa.table({"k": list(range(1_000))})
SHORT = pa.table({"name": ["a", None]})


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files of this test alone."""
    made = ScratchFolder("rows", tmp_path)
    monkeypatch.setattr(row_files, "_folders", [made])
    monkeypatch.setattr(row_files, "_free", type(row_files._free)())
    return made.path


def answer(files: RowFiles, table: pa.Table) -> int:
    """Write a table as the JVM does: over what is there. Its bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    rows = sink.getvalue().to_pybytes()
    with Path(files.prefix + "result").open("r+b") as file:
        file.write(rows)
    return len(rows)


def put(files: RowFiles, place: int) -> pa.Table:
    """The table that the JVM finds at a place."""
    return pa.ipc.open_stream(Path(f"{files.prefix}{place}").read_bytes()).read_all()


def test_what_is_shorter_has_nothing_of_what_was_longer() -> None:
    """The same files, with more tables and with fewer."""
    used = set()
    for tables in ([LONG], [SHORT, LONG], [SHORT], [LONG.slice(0, 0), SHORT]):
        with row_files.row_files() as files:
            used.add(files.prefix)
            files.put(tables)
            assert [put(files, place) for place in range(len(tables))] == tables
            for table in (LONG, SHORT):
                assert files.take(answer(files, table)) == table
    assert len(used) == 1


def test_two_at_once_have_files_of_their_own() -> None:
    with row_files.row_files() as one, row_files.row_files() as other:
        one.put([LONG])
        other.put([SHORT])
        assert (put(one, 0), put(other, 0)) == (LONG, SHORT)


@pytest.mark.parametrize("gone", ["result", "0", "folder"])
def test_what_was_removed_is_made_anew(folder: Path, gone: str) -> None:
    """A cleaner of temporary folders takes what has not been used for days."""
    with row_files.row_files() as files:
        files.put([SHORT])
    if gone == "folder":
        shutil.rmtree(folder)
    else:
        Path(files.prefix + gone).unlink()
    with row_files.row_files() as files:
        files.put([LONG])
        assert put(files, 0) == LONG
        assert files.take(answer(files, SHORT)) == SHORT


def test_nothing_large_is_kept(folder: Path) -> None:
    large = pa.table({"k": list(range(200_000))})
    with row_files.row_files() as files:
        files.put([large, SHORT])
        assert put(files, 0) == large
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1_000


def test_after_an_error_files_are_new(folder: Path) -> None:
    """Whoever has failed may still write to them."""
    with pytest.raises(pa.ArrowInvalid), row_files.row_files() as files:
        files.take(0)
    assert [left.name for left in folder.iterdir()] == ["lock"]
    with row_files.row_files() as other:
        assert other.prefix != files.prefix

"""Sources of files: which files Spark finds, and what becomes of those that it does not find."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

from shardline.app.protocol.objects import SourceDescription
from shardline.app.storage.commit import Timeline
from shardline.app.storage.envelope import Staging
from support.profiles import one_of
from support.spark.ingestions import Runtime, Source, contents, running
from support.waiting import wait_until

pytestmark = pytest.mark.spark

COLUMNS = "id INT, s STRING, day INT"


def files(inbox: Path, kind: str = "csv", **options: str) -> SourceDescription:
    given = {"path": str(inbox), **options}
    return SourceDescription(name="flights", format=kind, schema=COLUMNS, options=given)


def put_row(inbox: Path, number: int, kind: str = "csv") -> Path:
    """Put a whole file of one row where a source looks for files."""
    path = inbox / f"day={number}" / f"{number} %20 ü #.{kind}"
    hidden = inbox / f".{number}"
    if kind == "csv":
        hidden.write_text(f"{number},a\n")
    else:
        pq.write_table(pa.table({"id": pa.array([number], pa.int32()), "s": ["a"]}), hidden)
    path.parent.mkdir()
    return hidden.rename(path)


def rows(*numbers: int) -> list[tuple[int, str, int]]:
    return [(number, "a", number) for number in numbers]


def fail_after(runtime: Runtime, description: SourceDescription, step: Callable[..., Any]) -> None:
    """Run a source until a micro-batch has done a step; it does no other."""
    kind = Timeline if step.__name__ == "_bind" else Staging

    def run(self: Any, *given: Any) -> None:
        step(self, *given)
        raise RuntimeError("the disk fell off")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, step.__name__, run)
        with running(runtime, description) as source:
            failure_of(source)


def failure_of(source: Source) -> str:
    """Wait until a source fails, and return its error."""
    wait_until("a failure", lambda: bool(source.failures()), 60)
    return source.failures()[0].error


@pytest.mark.parametrize("kind", one_of(2, ["csv", "parquet"]))
def test_a_bound_file_that_is_gone_is_waited_for(runtime: Runtime, inbox: Path, kind: str) -> None:
    """Spark leaves it out without a word, and takes it for read."""
    put_row(inbox, 0, kind)
    with running(runtime, files(inbox, kind)) as source:
        source.wait_for_rows(*rows(0))
    path, _ = (put_row(inbox, number, kind) for number in (1, 2))
    fail_after(runtime, files(inbox, kind), Timeline._bind)
    away = path.rename(inbox.parent / "away")
    with running(runtime, files(inbox, kind)) as source:
        error = failure_of(source)
        assert error.startswith(f"[FAILED_READ_FILE] {path} is not there any more"), error
    away.rename(path)
    with running(runtime, files(inbox, kind)) as source:
        source.wait_for_rows(*rows(0, 1, 2))


@pytest.mark.parametrize("name", one_of(4, ["[1].csv", "1?.csv", "1*.csv", "{1}.csv"]))
def test_rows_do_not_come_twice_beside_a_name_like_a_glob(
    runtime: Runtime, inbox: Path, name: str
) -> None:
    """Spark lists all files again for it: it is named, and once it is renamed all goes on."""
    plain = replace(files(inbox), schema="id INT, s STRING")
    odd = inbox / name
    odd.write_text("1,a\n")
    (inbox / "2.csv").write_text("2,a\n")
    with running(runtime, plain) as source:
        said = f"[FAILED_READ_FILE] {odd} has one of the characters"
        assert failure_of(source).startswith(said)
    odd.rename(inbox / "1.csv")
    with running(runtime, plain) as source:
        source.wait_for_rows((1, "a"), (2, "a"))
        # Alone in its micro-batch it is read once.
        odd.write_text("3,a\n")
        source.wait_for_rows((1, "a"), (2, "a"), (3, "a"))


def test_a_bound_file_that_is_gone_is_left_out_on_request(runtime: Runtime, inbox: Path) -> None:
    """With Spark's own option for it."""
    path, _ = (put_row(inbox, number) for number in (1, 2))
    fail_after(runtime, files(inbox), Timeline._bind)
    path.unlink()
    with running(runtime, files(inbox, IgnoreMissingFiles="TRUE")) as source:
        source.wait_for_rows(*rows(2))


def test_a_file_that_is_gone_before_it_is_bound_is_new_when_it_comes_back(
    runtime: Runtime, inbox: Path
) -> None:
    """A plan without a binding is made again, of the files that are there."""
    put_row(inbox, 0)
    with running(runtime, files(inbox)) as source:
        source.wait_for_rows(*rows(0))
    path = put_row(inbox, 1)
    fail_after(runtime, files(inbox), Staging.stage)
    away = path.rename(inbox.parent / "away")
    with running(runtime, files(inbox)) as source:
        assert "1 %20 ü #.csv is not there any more" in failure_of(source)
    with running(runtime, files(inbox)) as source:
        put_row(inbox, 2)
        source.wait_for_rows(*rows(0, 2))
        away.rename(path)
        source.wait_for_rows(*rows(0, 1, 2))


def test_files_of_any_time_are_read(runtime: Runtime, inbox: Path) -> None:
    """One that was moved in keeps its old time; a clock that is ahead hides no later file.

    Spark by itself passes over what is a week older than the newest file, without a word.
    """
    put_row(inbox, 0)
    with running(runtime, files(inbox)) as source:
        source.wait_for_rows(*rows(0))
        for number, days in enumerate((30, 0, -10_000), 1):
            made = put_row(inbox.parent, number)
            at = made.stat().st_mtime + days * 86_400
            os.utime(made, (at, at))
            made.parent.rename(inbox / made.parent.name)
            source.wait_for_rows(*rows(*range(number + 1)))


def test_whole_files_are_files(runtime: Runtime, inbox: Path) -> None:
    """Of format binaryFile: an old one is read, and a bound one that is gone is waited for."""
    columns = "path STRING, modificationTime TIMESTAMP, length BIGINT, content BINARY"
    whole = SourceDescription(
        name="flights", format="binaryFile", schema=columns, options={"path": str(inbox)}
    )

    def are_there(*numbers: int) -> bool:
        found = contents(runtime.client, "flights")
        return sorted(row[3] for row in found) == [b"%d,a\n" % number for number in numbers]

    put_row(inbox, 0)
    with running(runtime, whole) as source:
        source.wait_for("the first file", lambda: are_there(0))
        old = put_row(inbox.parent, 1)
        os.utime(old, (0, 0))
        old.parent.rename(inbox / old.parent.name)
        source.wait_for("the old file", lambda: are_there(0, 1))
    path = put_row(inbox, 2)
    fail_after(runtime, whole, Timeline._bind)
    path.unlink()
    with running(runtime, whole) as source:
        assert "2 %20 ü #.csv is not there any more" in failure_of(source)

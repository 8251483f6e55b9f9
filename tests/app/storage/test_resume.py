"""Checkpoints: kept where they agree with the bindings, made again from them where they do not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

from shardline.app.storage.reclock import EMPTY_SNAPSHOT, Binding, BoundOffsets, SourceFile
from shardline.app.storage.resume import (
    Checkpoint,
    PlannedMicroBatch,
    forget_unbound_plan,
    reconcile_checkpoint,
)
from shardline.datasource.errors import Corrupt
from support.profiles import examples

QUERY = "0123-4567"


def entry(number: int, name: str) -> SourceFile:
    line = {"path": f"file:///in/{name}", "timestamp": 7, "batchId": number}
    return SourceFile(str(number), json.dumps(line, separators=(",", ":")))


def bound(last: int, files: frozenset[SourceFile] = frozenset()) -> BoundOffsets:
    made = [Binding(n, 10 * n, json.dumps({"logOffset": n})) for n in (last - 1, last) if n >= 0]
    before, newest = [None, *made][-2:]
    assert newest is not None
    return BoundOffsets(10 * last + 1, newest, before, files)


def rebuilt(folder: Path, given_bound: BoundOffsets, *, committed: bool = True) -> Path:
    assert reconcile_checkpoint(folder, given_bound, committed=committed, query=QUERY) == "rebuilt"
    return folder


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("last", [0, 1, 7])
def test_what_is_rebuilt_is_kept(tmp_path: Path, last: int, committed: bool) -> None:
    """A checkpoint made from bindings agrees with them, and says where they end."""
    given_bound = bound(last, frozenset({entry(0, "a")}))
    folder = rebuilt(tmp_path / "c", given_bound, committed=committed)
    assert reconcile_checkpoint(folder, given_bound, committed=committed, query="other") == "kept"
    assert json.loads((folder / "metadata").read_text()) == {"id": QUERY}
    assert Checkpoint(folder).planned(last).offset == json.dumps({"logOffset": last})
    commits = {int(path.name) for path in (folder / "commits").iterdir()}
    assert commits == {last if committed else last - 1} - {EMPTY_SNAPSHOT}


def test_nothing_bound_is_a_new_checkpoint(tmp_path: Path) -> None:
    """What Spark planned before anything was bound is forgotten."""
    folder = rebuilt(tmp_path / "c", bound(0))
    assert reconcile_checkpoint(folder, BoundOffsets(), committed=False, query=QUERY) == "new"
    assert not folder.exists()


HARMS: dict[str, Callable[[Path], object]] = {
    "no metadata": lambda f: (f / "metadata").unlink(),
    "no offsets": lambda f: shutil.rmtree(f / "offsets"),
    "the newest offset is gone": lambda f: (f / "offsets" / "7").unlink(),
    "the one before is gone": lambda f: (f / "offsets" / "6").unlink(),
    "another offset": lambda f: (f / "offsets" / "7").write_text('v1\n{}\n{"logOffset":70}'),
    "half an offset": lambda f: (f / "offsets" / "7").write_text("v1\n"),
    "another version": lambda f: (f / "offsets" / "7").write_text('v2\n{}\n{"logOffset": 7}'),
    "two ahead": lambda f: [(f / "offsets" / n).write_text("v1\n{}\n1") for n in ("8", "9")],
    "one committed that is not bound": lambda f: (f / "commits" / "8").write_text("v1\n{}"),
    "a plan without contents": lambda f: (f / "offsets" / "8").write_text(""),
    "half a plan": lambda f: (f / "offsets" / "8").write_text('v1\n{}\n{"logOff'),
    "a plan of zeros": lambda f: (f / "offsets" / "8").write_bytes(b"\0" * 80),
    "a plan that is no text": lambda f: (f / "offsets" / "8").write_bytes(b"v1\n{}\n\xff"),
    "a commit without contents": lambda f: (f / "commits" / "7").write_text(""),
    "half a commit": lambda f: (f / "commits" / "7").write_text("v1\n{"),
    "metadata without contents": lambda f: (f / "metadata").write_text(""),
    "half of metadata": lambda f: (f / "metadata").write_text('{"id":"01'),
    "a newer file of the source without contents": lambda f: (f / "sources" / "0" / "9").write_text(
        ""
    ),
    "half a newer file of the source": lambda f: (f / "sources" / "0" / "9").write_text(
        'v1\n{"path":"file:///in/b","times'
    ),
    "a file of the source is gone": lambda f: shutil.rmtree(f / "sources"),
    "another file of a bound micro-batch": lambda f: (f / "sources" / "0" / "7").write_text(
        f"v1\n{entry(7, 'b').text}"
    ),
    "a commit is missing that one ahead needs": lambda f: (
        (f / "commits" / "7").rename(f / "commits" / "6"),
        (f / "offsets" / "8").write_text("v1\n{}\n8"),
    ),
}


@pytest.mark.parametrize("harm", HARMS)
def test_what_disagrees_is_made_again(tmp_path: Path, harm: str) -> None:
    """Behind, ahead, damaged or foreign: the bindings say what is right."""
    given_bound = bound(7, frozenset({entry(3, "a")}))
    folder = rebuilt(tmp_path / "c", given_bound)
    assert reconcile_checkpoint(folder, given_bound, committed=True, query=QUERY) == "kept"
    whole = {p: p.read_text() for p in folder.rglob("*") if p.is_file()}
    HARMS[harm](folder)
    rebuilt(folder, given_bound)
    assert {p: p.read_text() for p in folder.rglob("*") if p.is_file()} == whole


def test_one_that_is_planned_and_not_bound_is_kept(tmp_path: Path) -> None:
    """Spark stopped between planning and binding: it runs what it has planned."""
    folder = rebuilt(tmp_path / "c", bound(7))
    (folder / "offsets" / "8").write_text('v1\n{}\n{"logOffset":8}')
    assert reconcile_checkpoint(folder, bound(7), committed=True, query=QUERY) == "kept"


def test_files_that_are_planned_and_not_bound_are_kept(tmp_path: Path) -> None:
    """They are behind what is bound: the next micro-batch binds them."""
    given_bound = bound(7, frozenset({entry(3, "a")}))
    folder = rebuilt(tmp_path / "c", given_bound)
    (folder / "sources" / "0" / "8").write_text(f"v1\n{entry(8, 'b').text}")
    assert reconcile_checkpoint(folder, given_bound, committed=True, query=QUERY) == "kept"


def test_files_of_a_source_without_a_log_are_kept(tmp_path: Path) -> None:
    """Offsets that are no positions in a log say nothing of the files of such a source."""
    last = Binding(0, 70, '{"orders":{"0":5}}')
    given_bound = BoundOffsets(71, last, None, frozenset({SourceFile("0", "v1\n1700")}))
    folder = rebuilt(tmp_path / "c", given_bound)
    (folder / "sources" / "0" / "1").write_text("v1\n1800")
    assert reconcile_checkpoint(folder, given_bound, committed=True, query=QUERY) == "kept"


def test_committed_in_spark_alone_is_run_again(tmp_path: Path) -> None:
    """A commit that Spark has noted, of rows that are not there, is not believed."""
    folder = rebuilt(tmp_path / "c", bound(7), committed=True)
    rebuilt(folder, bound(7), committed=False)
    assert [p.name for p in (folder / "commits").iterdir()] == ["6"]


@given(numbers=st.integers(1, 45), each=st.integers(1, 2))
@examples(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_log_of_files(tmp_path: Path, numbers: int, each: int) -> None:
    """Every tenth file of the log has all lines before it, as Spark reads it; none is lost."""
    files = frozenset(entry(n, f"{n}-{k}") for n in range(numbers) for k in range(each))
    folder = tmp_path / f"{numbers}-{each}"
    shutil.rmtree(folder, ignore_errors=True)
    rebuilt(folder, bound(3, files))
    assert Checkpoint(folder).planned(3).files == files
    names = {path.name for path in (folder / "sources" / "0").iterdir()}
    compact = numbers // 10 * 10
    wanted = {str(n) for n in range(compact, numbers)}
    assert names == (wanted | {f"{compact - 1}.compact"} if compact else wanted)


def test_a_compacted_log_is_read_as_the_lines_that_are_in_it(tmp_path: Path) -> None:
    """What Spark compacts is not taken for news: each line belongs to the number it names."""
    folder = rebuilt(tmp_path / "c", bound(3, frozenset(entry(n, "f") for n in range(9))))
    before = Checkpoint(folder).planned_files().files
    lines = [file.text for file in sorted(before)] + [entry(9, "new").text]
    (folder / "sources" / "0" / "9.compact").write_text("\n".join(["v1", *lines]))
    assert Checkpoint(folder).planned_files().files - before == {entry(9, "new")}


def test_a_snapshot_of_nothing(tmp_path: Path) -> None:
    """Without a micro-batch there are no offsets; what the source wrote comes back."""
    nothing = BoundOffsets(
        1, Binding(EMPTY_SNAPSHOT, 0, None), None, frozenset({SourceFile("0", "v1\n17")})
    )
    folder = rebuilt(tmp_path / "c", nothing)
    assert list((folder / "offsets").iterdir()) == []
    assert (folder / "sources" / "0" / "0").read_text() == "v1\n17"
    (folder / "offsets" / ".0.1d2c.tmp").touch()  # of a kill while Spark wrote its first plan
    assert reconcile_checkpoint(folder, nothing, committed=True, query=QUERY) == "kept"
    assert not list((folder / "offsets").glob("*")), "beside it Spark would refuse to begin"
    more = replace(nothing, last=Binding(0, 5, "o"), before=nothing.last)
    rebuilt(folder, more)
    assert [path.name for path in (folder / "offsets").iterdir()] == ["0"]


@pytest.mark.parametrize("log", ["", "\0\0\0", 'v1\n{"path":"file:///in/a","times', "v1\n"])
def test_a_torn_log_of_the_first_files_is_forgotten(tmp_path: Path, log: str) -> None:
    """The folder was empty, so nothing that is bound tells that the source logs files."""
    nothing = BoundOffsets(1, Binding(EMPTY_SNAPSHOT, 0, None))
    folder = rebuilt(tmp_path / "c", nothing)
    assert reconcile_checkpoint(folder, nothing, committed=True, query=QUERY) == "kept"
    planned, logged = folder / "offsets" / "0", folder / "sources" / "0" / "0"
    for path in (planned, logged):
        path.parent.mkdir(parents=True, exist_ok=True)
    planned.write_text('v1\n{}\n{"logOffset":0}')
    logged.write_text(log)
    rebuilt(folder, nothing)
    assert not planned.exists()
    assert not logged.exists()


def test_a_micro_batch_that_is_not_there(tmp_path: Path) -> None:
    """A checkpoint that loses what is under way is damaged."""
    with pytest.raises(Corrupt, match="CHECKPOINT_DAMAGED"):
        Checkpoint(rebuilt(tmp_path / "c", bound(3))).planned(9)


@pytest.mark.parametrize("committed", [True, False])
def test_the_files_of_a_micro_batch(tmp_path: Path, committed: bool) -> None:
    """Of a log with all that was ever read: those between its two offsets, compacted or not."""
    files = frozenset(entry(n, f"{n}{part}") for n in range(12) for part in "ab")
    for last in (0, 9, 11):
        given_bound = bound(last, frozenset(f for f in files if int(f.name) <= last))
        folder = rebuilt(tmp_path / str(last), given_bound, committed=committed)
        planned = Checkpoint(folder).planned(last)
        assert planned.paths() == [f"file:///in/{last}{part}" for part in "ab"]


def test_the_files_of_a_plan_of_several_logs() -> None:
    """One that was logged before a crash and not planned is planned with the next."""
    files = frozenset({entry(0, "a"), entry(1, "b"), entry(2, "c"), entry(10, "d")})
    begin, end = '{"logOffset":0}', '{"logOffset":2}'
    assert PlannedMicroBatch(end, files, begin).paths() == ["file:///in/b", "file:///in/c"]
    others = frozenset({SourceFile("0", "v1\n1700000000000")})
    assert not PlannedMicroBatch("5", others, "4").paths(), "a source without files"


def test_a_plan_is_forgotten_unless_it_is_bound(tmp_path: Path) -> None:
    """What is bound stays as it is planned; what is not is planned again."""
    folder = rebuilt(tmp_path / "c", bound(7))
    forget_unbound_plan(folder, bound(7))
    assert folder.exists()
    (folder / "offsets" / "8").write_text('v1\n{}\n{"logOffset":8}')
    forget_unbound_plan(folder, bound(7))
    assert not folder.exists()

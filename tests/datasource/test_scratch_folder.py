"""Scratch folders go with their process, and no others go with them."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shardline.datasource.scratch_folder import ScratchFolder

MAKER = """
import sys, time
from pathlib import Path
from shardline.datasource.scratch_folder import ScratchFolder
made = ScratchFolder("rows-", Path(sys.argv[1]))
(made.path / "data").write_bytes(bytes(1000))
print(made.path, flush=True)
sys.stdin.read()
"""


def names(parent: Path) -> set[str]:
    return {entry.name for entry in parent.iterdir()}


def test_a_folder_stays_until_it_is_removed(tmp_path: Path) -> None:
    """Whatever else is made beside it; a second removal finds nothing to do."""
    one = ScratchFolder("rows-", tmp_path)
    (one.path / "data").write_text("x")
    other = ScratchFolder("rows-", tmp_path)
    assert one.is_there()
    assert names(tmp_path) == {one.path.name, other.path.name}
    assert one.path.stat().st_mode & 0o077 == 0
    for _ in range(2):
        one.remove()
    assert not one.is_there()
    assert names(tmp_path) == {other.path.name}


def test_what_is_not_known_to_be_abandoned_stays(tmp_path: Path) -> None:
    """A folder without a lock may be one that is just made; a link may lead anywhere."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "lock").touch()
    place = tmp_path / "place"
    place.mkdir()
    (place / "rows-link").symlink_to(elsewhere)
    (place / "rows-new").mkdir()
    (place / "rows-linked").mkdir()
    (place / "rows-linked" / "lock").symlink_to(elsewhere / "lock")
    (place / "rows-file").touch()
    (place / "other-kind").mkdir()
    (place / "other-kind" / "lock").touch()
    before = names(place)
    made = ScratchFolder("rows-", place)
    assert names(place) == before | {made.path.name}
    assert names(elsewhere) == {"lock"}


def test_a_folder_that_somebody_has_removed(tmp_path: Path) -> None:
    """Cleaners of temporary folders do so; there is nothing to remove then."""
    made = ScratchFolder("rows-", tmp_path)
    (made.path / "lock").unlink()
    made.path.rmdir()
    assert not made.is_there()
    made.remove()
    assert names(tmp_path) == set()


def test_another_users_folder_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even one that this process could remove."""
    (tmp_path / "rows-theirs").mkdir()
    (tmp_path / "rows-theirs" / "lock").touch()
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    ScratchFolder("rows-", tmp_path)
    assert "rows-theirs" in names(tmp_path)
    monkeypatch.undo()
    ScratchFolder("rows-", tmp_path)
    assert "rows-theirs" not in names(tmp_path)


def test_where_there_are_no_locks_nothing_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock has its name only once it is held: before, the next one would take it for free."""

    def refused(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    with monkeypatch.context() as patch:
        patch.setattr(fcntl, "flock", refused)
        made = ScratchFolder("rows-", tmp_path)
    ScratchFolder("rows-", tmp_path)
    assert made.is_there()


@pytest.mark.process
def test_the_next_one_removes_what_a_killed_process_left(tmp_path: Path) -> None:
    """And nothing of a process that lives."""
    makers = []
    for _ in range(2):
        words = [sys.executable, "-c", MAKER, str(tmp_path)]
        makers.append(
            subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        )
    paths = []
    for maker in makers:
        assert maker.stdout is not None
        paths.append(Path(maker.stdout.readline().strip()))
    try:
        makers[0].send_signal(signal.SIGKILL)
        makers[0].wait()
        assert all(path.is_dir() for path in paths)
        ScratchFolder("rows-", tmp_path)
        assert [(path / "data").is_file() for path in paths] == [False, True]
    finally:
        for maker in makers:
            maker.kill()
            maker.communicate()

"""Folders and locks of the main job."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardline.app.demo.place import Place, lock_folder
from shardline.datasource.clock import SystemClock
from shardline.datasource.errors import InvalidUsage
from support.fakes.clock import ManualClock


def test_one_run_at_a_time(tmp_path: Path) -> None:
    """A second run waits for its timeout and is refused; once the first is over, it may."""
    with lock_folder(tmp_path / "data", SystemClock(), 0):
        second = lock_folder(tmp_path / "data", ManualClock(), 5_000)
        with pytest.raises(InvalidUsage, match="ALREADY_RUNNING"):
            second.__enter__()
        with lock_folder(tmp_path / "other", SystemClock(), 0):
            pass
    with lock_folder(tmp_path / "data", SystemClock(), 0):
        pass


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    """The error names the folder and says how to choose another one."""
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidUsage, match="FOLDER_NOT_WRITABLE") as refused:
        lock_folder(tmp_path / "file" / "data", SystemClock(), 0).__enter__()
    assert "--data" in refused.value.hint


def test_each_location_has_its_own_work(tmp_path: Path) -> None:
    """Clearing one leaves the other, and the package's files, as they are."""
    one, other = Place(tmp_path, "l1"), Place(tmp_path, "l2")
    for place in (one, other):
        place.make()
        (place.landing / "2013-01-01.csv").touch()
        (place.out / "carrier_ranking").mkdir(parents=True)
        place.checkpoints.mkdir(parents=True)
        place.dropping.touch()
    one.clear()
    assert one.dropping.exists(), "the run that has cleared it takes the mark away"
    for folder in (one.landing, one.out, one.checkpoints):
        assert not folder.exists()
    assert other.checkpoints.exists()
    assert (other.landing / "2013-01-01.csv").exists()

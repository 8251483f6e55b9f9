"""Two benchmarks do not share a working folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench.__main__ import main
from bench.working_folder import working_folder
from shardline.datasource.errors import InvalidUsage


def test_a_folder_is_free_again_when_a_benchmark_has_ended(tmp_path: Path) -> None:
    """It is made where it is missing; another folder is another matter."""
    place = tmp_path / "deep" / "bench"
    for _ in range(2):
        with working_folder(str(place)) as folder, working_folder(str(tmp_path)):
            assert folder.is_dir()
            with (
                pytest.raises(InvalidUsage, match=f"process {os.getpid()}") as refused,
                working_folder(str(place)),
            ):
                pass
            assert refused.value.code == "FOLDER_IN_USE"


def test_the_second_benchmark_leaves_the_files_of_the_first_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both work in the folder `run`, and remove it before and after."""
    with working_folder(str(tmp_path)):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "rows").touch()
        assert main(["open", "--opened", "1", "--folder", str(tmp_path)]) == 2
        assert (tmp_path / "run" / "rows").exists()
    assert "[FOLDER_IN_USE]" in capsys.readouterr().err
    assert main(["open", "--opened", "1", "--folder", str(tmp_path)]) == 0
    assert not (tmp_path / "run").exists()

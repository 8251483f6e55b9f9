"""Temporary files of tests are in memory only where there is room for them, and then go."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.temporary import folder_in_memory
from support.tree import TESTS

MODULE = """
def test_a(tmp_path):
    print(f"\\nfile: {tmp_path}/it")
    (tmp_path / "it").touch()
    assert tmp_path.name == "test_a%d"
"""


def test_a_folder_needs_room_and_permission(tmp_path: Path) -> None:
    """A container's own 64 MiB are not enough, and a folder that is not there is none."""
    assert folder_in_memory(tmp_path, free_bytes=0) == tmp_path
    assert folder_in_memory(tmp_path, free_bytes=1 << 60) is None
    assert folder_in_memory(tmp_path / "none", free_bytes=0) is None


@pytest.mark.process
@pytest.mark.parametrize(("number", "is_kept"), [(0, False), (1, True)])
def test_files_of_failed_tests_are_kept(tmp_path: Path, number: int, is_kept: bool) -> None:
    """Somebody will look at them; those of passed tests would only take memory."""
    memory = folder_in_memory()
    if memory is None:
        pytest.skip("there is no folder in memory with room for a run")
    (tmp_path / "test_it.py").write_text(MODULE % number, encoding="utf-8")
    words = [sys.executable, "-m", "pytest", "-s", "-p", "temporary", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(TESTS / "support")}
    environment.pop("PYTEST_DEBUG_TEMPROOT", None)
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode == 1) is is_kept
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("file: "))
    file = Path(line.removeprefix("file: "))
    assert file.is_relative_to(memory)
    assert file.exists() is is_kept

"""The temporary files of a run are kept in memory, where there is enough of it.

What a shard has acknowledged was synced to its disk, files and folders, so tests of shards in
`tmp_path` wait for a disk that nothing is ever read from again: half of the time of a fast run
where a sync takes 17 ms. The syncs are made as before, and cost nothing in a file system in memory.
What has to fail on a disk is tried with disks of its own (`faults/power_cut`).

Files of a process whose tests have all passed are deleted at its end, since they take memory. A
`--basetemp` or a `PYTEST_DEBUG_TEMPROOT` of the caller's is used as it is.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

__all__ = ["folder_in_memory"]

_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - pytest makes its own folder in it
_VARIABLE: Final = "PYTEST_DEBUG_TEMPROOT"
"""Read by pytest, which makes `pytest-of-USER/pytest-N` there. Other processes inherit it."""

_FREE_BYTES: Final = 8 << 30
"""Room that has to be there: a container has 64 MiB unless it was given more."""


def folder_in_memory(memory: Path = _MEMORY, free_bytes: int = _FREE_BYTES) -> Path | None:
    """A folder whose files are kept in memory, if there is one with room for a run.

    Args:
        memory: Where such a folder is, if there is one.
        free_bytes: Room that it must have.
    """
    if not os.access(memory, os.W_OK | os.X_OK):
        return None
    return memory if shutil.disk_usage(memory).free >= free_bytes else None


def pytest_configure(config: pytest.Config) -> None:
    """Choose the folder before pytest asks for it, which it does at the first `tmp_path`."""
    folder = None if config.option.basetemp else folder_in_memory()
    if folder is not None:
        os.environ.setdefault(_VARIABLE, str(folder))


@pytest.fixture(scope="session", autouse=True)
def _files_of_passed_tests(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Delete what passed tests have left in memory; set up first, so that all others have ended."""
    yield
    base = tmp_path_factory.getbasetemp()
    if base.is_relative_to(_MEMORY) and not request.session.testsfailed:
        shutil.rmtree(base, ignore_errors=True)

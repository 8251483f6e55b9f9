"""Distribution of tests over the processes of a parallel run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.distribution import GROUPS, LONG, choose_unit, needs_session, unit_of
from support.tree import ROOT

SHARED = """
import os, pathlib, pytest

@pytest.fixture(scope="module")
def shared():
    with pathlib.Path("made.txt").open("a") as made:
        made.write(f"{os.environ['PYTEST_XDIST_WORKER']} {__name__}\\n")

@pytest.mark.parametrize("number", range(6))
def test_it(shared, number):
    pass
"""


def test_a_file_is_one_unit_and_so_is_a_group() -> None:
    """Whatever is in brackets; a group has files of a folder, or of several names."""
    assert (
        unit_of("tests/spark/shard_source/test_batch.py::test_a[b::c.py]")
        == "tests/spark/shard_source/test_batch.py"
    )
    assert unit_of("tests/submit/test_start.py::test_a") == "submit"
    assert unit_of("tests/submit/test_wheel.py::TestB::test_c") == "submit"
    assert unit_of("tests/spark/cli/test_run.py::test_a") == unit_of(
        "tests/spark/demo/test_main_job.py::b"
    )


def test_what_takes_long_is_there() -> None:
    """A file that was renamed would begin last again, and nobody would see why a run ends late."""
    others = {one for one in LONG if not (ROOT / one).is_file()}
    assert others <= set(GROUPS.values())
    assert all((ROOT / start).exists() for start in GROUPS)


def test_a_process_stays_with_its_kind_and_begins_with_what_takes_long() -> None:
    """Units in a session, or all others, while there are any; then what is left of the others."""
    jobs, long = ([one for one in LONG if needs_session(one) is kind] for kind in (False, True))
    files = {"tests/spark/test_a.py": range(3), "tests/spark/test_b.py": range(9)}
    waiting = {"tests/test_c.py": range(5), **files, **dict.fromkeys(reversed(LONG), range(2))}
    in_session = [*long, "tests/spark/test_b.py", "tests/spark/test_a.py"]
    for kind, expected in {
        True: [*in_session, *jobs, "tests/test_c.py"],
        False: [*jobs, "tests/test_c.py", *in_session],
    }.items():
        left, taken = dict(waiting), []
        while left:
            taken.append(choose_unit(left, for_session=kind))
            del left[taken[-1]]
        assert taken == expected


@pytest.mark.process
def test_a_fixture_of_a_module_is_made_once(tmp_path: Path) -> None:
    """A run with two processes and three files makes each file's once, and leaves nobody idle."""
    (tmp_path / "conftest.py").write_text("pytest_plugins = ['support.distribution']\n")
    for name in "abc":
        (tmp_path / f"test_{name}.py").write_text(SHARED)
    words = ["-m", "pytest", "-q", "-n", "2", "--dist", "loadgroup", "-c", os.devnull]
    done = subprocess.run(
        [sys.executable, *words, "--rootdir", str(tmp_path), "-p", "no:cacheprovider"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "tests")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "18 passed" in done.stdout, done.stdout + done.stderr
    made = [line.split() for line in (tmp_path / "made.txt").read_text().splitlines()]
    assert sorted(module for _, module in made) == ["test_a", "test_b", "test_c"]
    assert {worker for worker, _ in made} == {"gw0", "gw1"}

"""Profiles: how many examples properties get, and who decides it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from support.profiles import PROFILES, one_of, some_of

pytestmark = pytest.mark.process

PROPERTY = """
from hypothesis import given, settings, strategies as st
from profiles import examples

counts = {1: 0, 2: 0, 0.001: 0}


def counted(share):
    @given(st.integers())
    @examples(share)
    def count(number):
        counts[share] += 1

    return count


def test_it():
    for share in counts:
        counted(share)()
    current = settings()
    print("seen:", *counts.values(), current.derandomize, current.database is not None)
"""


@pytest.mark.parametrize(
    ("options", "variable", "profile", "ci"),
    [
        ((), "", "default", "true"),
        (("--hypothesis-profile=night",), "", "night", ""),
        ((), "night", "night", "true"),
        (("--hypothesis-profile=default",), "night", "default", ""),
    ],
)
def test_a_profile_decides(
    tmp_path: Path, options: tuple[str, ...], variable: str, profile: str, ci: str
) -> None:
    """The option before the variable; shares of it; only `night` is new in every run."""
    (tmp_path / "test_it.py").write_text(PROPERTY, encoding="utf-8")
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["profiles"]', encoding="utf-8")
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-s", *options]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent / "support")}
    environment.pop("CI", None)
    environment |= {"CI": ci} if ci else {}
    environment |= {"HYPOTHESIS_PROFILE": variable} if variable else {}
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    count, is_night = PROFILES[profile], profile == "night"
    expected = f"seen: {count} {2 * count} 1 {not is_night} {is_night}"
    assert expected in done.stdout, done.stdout + done.stderr


CASES = """
import pytest
from profiles import one_of, some_of


@pytest.mark.parametrize("n", one_of(2, range(5)))
def test_seeds(n):
    pass


@pytest.mark.parametrize(("name", "n"), some_of([("a", 1), ("a", 2), ("b", 1)], ["b", ("a", 2)]))
def test_names(name, n):
    pass
"""


@pytest.mark.parametrize(
    ("asked", "passed"),
    [
        ([], {"seeds": [0, 2, 4], "names": ["a-2", "b-1"]}),
        (
            ["--hypothesis-profile=night"],
            {"seeds": [0, 1, 2, 3, 4], "names": ["a-1", "a-2", "b-1"]},
        ),
        (["-m", "night"], {"seeds": [1, 3], "names": ["a-1"]}),
        (["test_it.py::test_seeds[3]"], {"seeds": [3]}),
    ],
    ids=["each run", "night", "by the marker", "by id"],
)
def test_most_cases_are_for_the_night(
    tmp_path: Path, asked: list[str], passed: dict[str, list[object]]
) -> None:
    """Each run has some of the cases, and whoever asks for the others gets them."""
    (tmp_path / "test_it.py").write_text(CASES, encoding="utf-8")
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["profiles"]', encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = night: at night", encoding="utf-8")
    words = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", *asked]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent / "support")}
    environment.pop("HYPOTHESIS_PROFILE", None)
    done = subprocess.run(
        words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    ran = re.findall(r"::test_(\w+)\[(\S+)\] PASSED", done.stdout)
    assert ran == [(name, str(one)) for name, ones in passed.items() for one in ones], done.stdout


@pytest.mark.parametrize("case", [(), ("a",)])
def test_a_tuple_for_one_parameter_is_refused(case: tuple[str, ...]) -> None:
    """Pytest would take it apart, and the parameter would be another value at night."""
    with pytest.raises(ValueError, match="parameters"):
        one_of(2, ["first", case])


def test_a_case_that_is_not_there_is_refused() -> None:
    """Somebody has renamed one: what each run has of it is said anew."""
    with pytest.raises(ValueError, match="no case is 'c'"):
        some_of(["a", "b"], ["a", "c"])

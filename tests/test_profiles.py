"""Profiles: how many examples properties get, and who decides it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.profiles import PROFILES

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


@pytest.mark.parametrize("ci", ["", "true"], ids=["here", "CI"])
@pytest.mark.parametrize(
    ("options", "variable", "profile"),
    [
        ((), "", "default"),
        (("--hypothesis-profile=night",), "", "night"),
        ((), "night", "night"),
        (("--hypothesis-profile=default",), "night", "default"),
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

"""`spark-submit.sh` makes its environment once, whole, and never uses half of one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from support.profiles import one_of

if TYPE_CHECKING:
    from support.processes.checkout import Checkout, SetupStory

pytestmark = [pytest.mark.submit, pytest.mark.slow]


def test_a_killed_set_up_leaves_nothing_that_counts_as_complete(setup_story: SetupStory) -> None:
    """A set-up killed while it installs packages has not marked its environment as complete."""
    assert not setup_story.ruin_was_complete


def test_two_starts_at_the_same_time_make_one_environment(setup_story: SetupStory) -> None:
    """Of two simultaneous starts one sets up, over the ruin, and the other waits and uses it."""
    said = [t.stderr for t in setup_story.twins]
    assert [t.returncode for t in setup_story.twins] == [0, 0], said
    assert sorted("setting up" in s for s in said) == [False, True], said
    assert (setup_story.ruin / "complete").exists()


def test_a_set_up_removes_environments_of_its_own_checkout_only(setup_story: SetupStory) -> None:
    """Those of others in the same folder stay, and those that do not say whose they are."""
    assert {env: not env.exists() for env in setup_story.others} == setup_story.others
    assert (setup_story.ruin / "checkout").is_file()


def test_a_second_start_is_offline_and_silent(ready: Checkout) -> None:
    """Once set up, a start downloads nothing, installs nothing and says nothing."""
    again = ready.run("setup")
    assert (again.returncode, again.stdout, again.stderr) == (0, "", "")


def test_the_environment_holds_the_project(ready: Checkout, tmp_path: Path) -> None:
    """Any process of the environment imports this checkout's packages, from any folder."""
    code = "import shardline.datasource.errors as e, pyspark_shard; print(e.__file__)"
    seen = ready.run("python", "-c", code, cwd=tmp_path)
    expected = ready.root / "src/shardline/datasource/errors.py"
    assert seen.stdout.strip() == str(expected), seen.stderr


def test_what_is_compiled_is_kept(ready: Checkout, tmp_path: Path) -> None:
    """Whatever the shell says: set-up compiles nothing, and processes start all the time."""
    code = "import sys, shardline.extras as e; print(sys.dont_write_bytecode, e.__cached__)"
    seen = ready.run("python", "-c", code, cwd=tmp_path, env={"PYTHONDONTWRITEBYTECODE": "1"})
    refused, _, kept = seen.stdout.strip().partition(" ")
    assert refused == "False", seen.stderr
    assert Path(kept).is_file()


def test_a_zip_of_another_spark_stays_on_the_path(ready: Checkout, tmp_path: Path) -> None:
    """That of the environment goes, since its packages have the same modules, compiled."""
    own = next((ready.root / ".venv/current").glob("lib/python3*/site-packages/pyspark"))
    zips = [own / "python/lib/pyspark.zip", tmp_path / "spark/python/lib/pyspark.zip"]
    assert zips[0].is_file()
    python = own.parents[3] / "bin/python"
    asked = [str(python), "-c", "import sys; print(sys.path)"]
    env = {"PYTHONPATH": os.pathsep.join(map(str, zips))}
    seen = subprocess.check_output(asked, env=env, text=True)
    assert str(zips[0]) not in seen
    assert str(zips[1]) in seen


def test_the_packages_are_those_of_the_lock(ready: Checkout) -> None:
    """Every package of the lock that this platform needs is there, in exactly its version."""
    locked = {}
    for line in (ready.root / "requirements.lock").read_text().splitlines():
        requirement, _, marker = line.rstrip(" \\").partition(";")
        name, equals, version = requirement.partition("==")
        if equals and not line.startswith((" ", "#")) and not marker:
            locked[name.strip().lower()] = version.strip()
    listed = ready.run("python", "-m", "pip", "list", "--format=freeze").stdout
    installed = dict(line.lower().replace("_", "-").split("==") for line in listed.splitlines())
    assert len(locked) > 20
    assert {name: installed.get(name) for name in locked} == locked


@pytest.mark.parametrize("name", one_of(2, ["requirements.lock", "requirements-java.lock"]))
def test_a_changed_lock_gives_a_new_environment_and_spares_one_in_use(
    ready: Checkout, name: str
) -> None:
    """A lock that changes never pulls the environment from under a program that runs in it.

    Nor the Java of it, which is in there where the machine has none.
    """
    lock = ready.root / name
    before = lock.read_bytes()
    code = "import sys; print(sys.prefix, flush=True); sys.stdin.read(); import duckdb_is_not_here"
    reader = subprocess.Popen(
        [str(ready.script), "python", "-c", code],
        env=ready.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True,
    )  # fmt: skip
    assert reader.stdout is not None
    try:
        prefix = reader.stdout.readline().strip()
        lock.write_bytes(before + b"\n# changed\n")
        refused = ready.run("setup")
        assert refused.returncode == 2, "offline, so a changed lock cannot be installed"
        assert "setting up" in refused.stderr
        assert "nothing half made is used" in refused.stderr
        assert (ready.root / ".venv").joinpath(prefix.rsplit("/", 1)[1], "complete").exists()
    finally:
        lock.write_bytes(before)
        reader.communicate("", timeout=30)
    assert ready.run("setup").stderr == "", "the first environment is as good as ever"


def test_what_lies_in_the_working_directory_is_not_imported(
    checkout: Checkout, tmp_path: Path
) -> None:
    """A file named like a module of Python's own says nothing of whether Python can be used."""
    tools, here = tmp_path / "bin", tmp_path / "here"
    tools.mkdir()
    here.mkdir()
    for name in ("logging", "types", "os"):
        (here / f"{name}.py").write_text("raise SystemExit('imported')")
    # It makes no environment: that would take a minute, and comes after what is tested.
    python = tools / "python3.11"
    refuse = 'for word in "$@"; do [ "$word" != --clear ] || exit 3; done'
    python.write_text(f'#!/bin/sh\n{refuse}\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    venvs = tmp_path / "environments"
    env = {"PATH": f"{tools}:{os.environ['PATH']}", "SHARDLINE_VENV": str(venvs)}
    refused = checkout.run("setup", cwd=here, env=env, timeout_s=60)
    assert refused.returncode == 2
    assert "python3.11 could not make" in refused.stderr
    assert "imported" not in refused.stderr


def test_each_python_of_the_script_leaves_the_working_directory_alone(checkout: Checkout) -> None:
    """But for the user's own program, and the tests, which run in the repository."""
    script = checkout.script.read_text()
    start = r'^[^#\n]*"\$(?:python|base_python|candidate|3)" (-.*)'
    starts = re.findall(start, script, re.MULTILINE)
    assert len(starts) > 10
    allowed = ("-I", "-P", "--version", "-m pytest")
    assert [words for words in starts if not words.startswith(allowed)] == []


def test_no_python_is_a_clear_refusal(checkout: Checkout, tmp_path: Path) -> None:
    """Without a Python from 3.11 on PATH the script says so, and makes nothing."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for tool in ("bash", "cat", "cut", "mkdir", "readlink", "sha256sum", "env"):
        path = subprocess.run(["which", tool], capture_output=True, text=True, check=True).stdout
        (tools / tool).symlink_to(path.strip())
    venvs = tmp_path / "environments"
    refused = checkout.run(
        "setup", env={"PATH": str(tools), "SHARDLINE_VENV": str(venvs)}, timeout_s=30
    )
    assert refused.returncode == 2
    assert "found no Python from 3.11 to 3.14 on PATH" in refused.stderr
    assert not list(venvs.glob("*/"))

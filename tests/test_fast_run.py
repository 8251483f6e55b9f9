"""The fast run: what is in it, what it refuses, and when its alarm rings."""

from __future__ import annotations

import gc
import multiprocessing
import os
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from support import fast_run
from support.fast_run import REASONS, Refused, guarded
from support.profiles import one_of

SUPPORT = Path(__file__).parent / "support"

MARKERS = f"[tool.pytest]\nmarkers = {[f'{name}: …' for name in sorted(REASONS)]}\n"


def test_every_marker_keeps_a_test_out() -> None:
    """A marker that did not would say of a slow test that it is fast."""
    config = tomllib.loads((SUPPORT.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    names = {line.partition(":")[0] for line in config["tool"]["pytest"]["markers"]}
    # `night` says that a case is one of many, `s3a` and `disk` where else a test runs, and not what
    # it takes.
    assert names == REASONS | {"night", "s3a", "disk"}


def start_a_command() -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)


def fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def spawn_a_worker() -> None:
    process = multiprocessing.get_context("spawn").Process(target=print)
    process.start()
    process.join()


def listen() -> None:
    socket.create_server(("127.0.0.1", 0)).close()


def reach_another_machine() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"", ("192.0.2.1", 9))


@pytest.mark.parametrize(
    ("attempt", "marker"),
    [
        (start_a_command, "process"),
        (lambda: os.system("true"), "process"),  # noqa: S605 - never gets there
        (fork, "process"),
        (spawn_a_worker, "process"),
        (listen, "server"),
        (reach_another_machine, "server"),
    ],
)
def test_what_the_fast_run_has_not_is_refused(attempt: Callable[[], object], marker: str) -> None:
    """Before it happens, with the marker that would allow it."""
    with guarded() as refusals, pytest.raises(Refused, match=f"pytest.mark.{marker}"):
        attempt()
    assert len(refusals) == 1


def test_sockets_of_one_process_are_allowed(tmp_path: Path) -> None:
    """Event loops have pairs of sockets, and the introspection a file of its own."""
    with guarded() as refusals:
        for end in socket.socketpair():
            end.close()
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(str(tmp_path / "s"))
    assert refusals == []


def test_the_machine_is_measured_without_what_is_in_memory() -> None:
    """A collection goes through it; the collector is as it was afterwards."""
    collections: list[str] = []

    def note(phase: str, _: object) -> None:
        collections.append(phase)

    # What was made before would be due for one in the midst of it.
    gc.collect(0)
    gc.callbacks.append(note)
    try:
        assert fast_run._work() > 0
    finally:
        gc.callbacks.remove(note)
    assert collections == []
    assert gc.isenabled()


def ran(folder: Path, text: str, *options: str) -> tuple[dict[str, int], str]:
    """How a run of one module of tests ends: how many of each outcome, and what it prints."""
    (folder / "pyproject.toml").write_text(MARKERS, encoding="utf-8")
    (folder / "test_it.py").write_text("import pytest, time\n" + text, encoding="utf-8")
    words = [sys.executable, "-m", "pytest", "-p", "fast_run", "-p", "no:cacheprovider", *options]
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT)}
    done = subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.stderr == ""
    words = done.stdout.splitlines()[-1].strip("= ").replace(",", "").split()
    counts = {word: int(n) for n, word in pairwise(words) if n.isdigit()}
    return counts, done.stdout


SLOW = "import itertools\ndef work(seconds=1.2):\n    end = time.process_time() + seconds\n"
SLOW += "    while time.process_time() < end: pass\n"
"""A piece of work, by default twice what `LIMITED` allows and a little more."""

LIMITED = "import fast_run\nfast_run._limit_s = lambda: 0.5\n"
"""The limit as it is on no machine, so that none is too slow for a test to ring there."""


@pytest.mark.process
class TestRuns:
    """Of modules made for it, in processes of their own."""

    def test_markers_decide(self, tmp_path: Path) -> None:
        """Each test is in the fast run or in the rest, and in the run of all."""
        text = "def test_a(): pass\n@pytest.mark.s3\ndef test_b(): pass\n"
        text += "@pytest.mark.parametrize('n', [1, pytest.param(2, marks=pytest.mark.sim)])\n"
        text += "def test_c(n): pass\n"
        assert ran(tmp_path, text)[0] == {"passed": 4}
        assert ran(tmp_path, text, "--fast")[0] == {"passed": 2, "deselected": 2}
        assert ran(tmp_path, text, "--rest")[0] == {"passed": 2, "deselected": 2}

    def test_a_module_that_is_not_fast_is_not_even_imported(self, tmp_path: Path) -> None:
        """Its imports may be what takes long."""
        text = "pytestmark = [\n    pytest.mark.spark,\n]\nraise SystemError\n"
        assert "no tests ran" in ran(tmp_path, text, "--fast")[1]
        assert "SystemError" in ran(tmp_path, text, "--rest")[1]

    def test_a_refusal_that_is_swallowed_fails(self, tmp_path: Path) -> None:
        """What is under test may take it for an outage; without --fast it is allowed."""
        text = "import subprocess\ndef test_a():\n    try: subprocess.run(['true'])\n"
        text += "    except Exception: pass\n"
        assert ran(tmp_path, text)[0] == {"passed": 1}
        counts, printed = ran(tmp_path, text, "--fast")
        assert counts == {"failed": 1}
        assert "may not start a process" in printed

    @pytest.mark.parametrize("place", one_of(2, ["fixture", "call"]))
    def test_a_slow_test_rings(self, tmp_path: Path, place: str) -> None:
        """Its own fixtures are a part of it; the message says what to do."""
        text = SLOW + LIMITED + "@pytest.fixture\ndef own():\n    return work\n"
        if place == "fixture":
            text += "@pytest.fixture\ndef own():\n    work()\n    return lambda: None\n"
        counts, printed = ran(tmp_path, text + "def test_a(own): own()\n", "--fast")
        assert counts == {"failed": 1}
        assert "Make it cheaper" in printed
        assert "pytest.mark.slow" in printed

    def test_a_little_slow_is_told_and_passes(self, tmp_path: Path) -> None:
        """A shared processor gives and takes as much."""
        text = SLOW + LIMITED + "def test_a(): work(0.7)\n"
        counts, printed = ran(tmp_path, text, "--fast")
        assert counts == {"passed": 1}
        assert "test_a - too slow for the fast run: 0.7" in printed

    @pytest.mark.night
    def test_only_the_tests_own_work_rings(self, tmp_path: Path) -> None:
        """Neither waiting, nor fixtures of the module, nor a cache that the first test fills."""
        text = SLOW + LIMITED + "import functools, threading\n"
        text += "def test_a(): threading.Event().wait(1.5)\n"
        text += "filled = functools.cache(work)\ndef test_b(): filled()\n"
        # The last test of its module: looked at twice, it would make the fixture twice.
        text += "@pytest.fixture(scope='module')\ndef shared(): work()\n"
        text += "def test_c(shared): pass\n"
        assert ran(tmp_path, text, "--fast")[0] == {"passed": 3}

    def test_both_options_are_refused(self, tmp_path: Path) -> None:
        """Together they would be everything, with the guards of the fast run."""
        with pytest.raises(AssertionError, match="give neither"):
            ran(tmp_path, "def test_a(): pass", "--fast", "--rest")

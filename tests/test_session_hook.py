"""A function is called with each session that starts, whenever the hook was set."""

from __future__ import annotations

import importlib
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from shardline import session_hook
from shardline.session_hook import call_with_sessions

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = '''
class SparkSession:
    _instantiatedSession = None

    def __init__(self, context, java=None):
        """Makes a session."""
        self._sc, self.java = context, java
'''


class Context:
    def __init__(self, *, stopped: bool = False) -> None:
        self._jsc = None if stopped else object()


@pytest.fixture
def name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module that looks like PySpark's, which has not been imported."""
    name = f"session_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(session_hook, "_MODULE", name)
    # Without the hook of the package itself, which this process has imported.
    others = [one for one in sys.meta_path if not isinstance(one, session_hook._Finder)]
    monkeypatch.setattr(sys, "meta_path", others)
    return name


def test_sessions_that_start_later(name: str) -> None:
    """The module is imported after the hook was set, and once."""
    seen: list[Any] = []
    finders = len(sys.meta_path)
    call_with_sessions(seen.append)
    importlib.import_module("json")
    module = importlib.import_module(name)
    assert len(sys.meta_path) == finders
    assert not seen
    one = module.SparkSession(Context(), java=3)
    assert one.java == 3
    assert seen == [one]
    assert module.SparkSession.__init__.__doc__ == "Makes a session."
    assert type(module.__loader__).__module__ != "shardline.session_hook"


def test_a_session_that_runs_and_the_next_one(name: str) -> None:
    """The session was there first."""
    module = importlib.import_module(name)
    running = module.SparkSession(Context())
    module.SparkSession._instantiatedSession = running
    seen: list[Any] = []
    call_with_sessions(seen.append)
    assert seen == [running]
    after = module.SparkSession(Context())
    assert seen == [running, after]


def test_a_session_that_was_stopped_gets_no_call(name: str) -> None:
    module = importlib.import_module(name)
    module.SparkSession._instantiatedSession = module.SparkSession(Context(stopped=True))
    seen: list[Any] = []
    call_with_sessions(seen.append)
    assert not seen


def test_a_session_starts_though_the_function_fails(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_session: object) -> None:
        raise RuntimeError("no native reads")

    call_with_sessions(fail)
    session = importlib.import_module(name).SparkSession(Context())
    assert session.java is None
    assert "a session is used as it is" in caplog.text


def test_a_helper_process_of_spark_is_left_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = type(sys)("__main__")
    main.__spec__ = importlib.machinery.ModuleSpec("pyspark.daemon", None)
    monkeypatch.setitem(sys.modules, "__main__", main)
    seen: list[Any] = []
    call_with_sessions(seen.append)
    importlib.import_module(name).SparkSession(Context())
    assert not seen


@pytest.mark.parametrize(
    ("command", "is_wrapped"),
    [
        (["-m", "pyspark.sql.streaming.python_streaming_source_runner"], False),
        (["-P", "-m", "shardline.planner_fork_server", "7"], False),
        (["-m", "shardline", "run"], True),
        (["job.py", "-m", "pyspark.daemon"], True),
        ([], True),
    ],
)
def test_a_planner_is_left_alone_before_its_module_runs(
    name: str, monkeypatch: pytest.MonkeyPatch, command: list[str], is_wrapped: bool
) -> None:
    monkeypatch.setattr(sys, "orig_argv", ["python", *command])
    seen: list[Any] = []
    call_with_sessions(seen.append)
    importlib.import_module(name).SparkSession(Context())
    assert bool(seen) == is_wrapped


@pytest.mark.process
def test_importing_the_package_sets_the_hook_and_loads_nothing() -> None:
    code = (
        "import shardline, sys; assert 'pyspark' not in sys.modules; "
        "import pyspark.sql; print(pyspark.sql.SparkSession.__init__.__module__, "
        "pyspark.sql.SparkSession.__init__.__wrapped__.__qualname__, "
        "'shardline.datasource.spark_native' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["pyspark.sql.session", "SparkSession.__init__", "False"]

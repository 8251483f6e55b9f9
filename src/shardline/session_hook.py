"""Calls a function with each session that PySpark starts, without importing PySpark.

`import shardline` loads no PySpark, and may come before or after a session is started. So the
function is called by the constructor of `SparkSession`, which is wrapped as soon as its module is
there: at once, or after it has been imported. A session that runs already gets its call at once.

Spark's helper processes start no sessions, so nothing is wrapped there.

Invariants:
    A session starts whatever the function does: its exceptions are logged.
    The function is called after the constructor, and in its thread.
"""

from __future__ import annotations

import functools
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

__all__ = ["call_with_sessions"]

_MODULE: Final = "pyspark.sql.session"

_FORK_SERVER: Final = "shardline.planner_fork_server"
"""From which planners are forked."""


def call_with_sessions(function: Callable[[Any], object]) -> None:
    """Call `function` with each PySpark session of this process that is not of Spark Connect."""
    if _is_process_of_spark():
        return
    module = sys.modules.get(_MODULE)
    if module is None:
        finder: Any = _Finder(function)
        sys.meta_path.insert(0, finder)
        return
    _wrap(module, function)
    running = module.SparkSession._instantiatedSession  # noqa: SLF001 - no public door
    if running is not None and running._sc._jsc is not None:  # noqa: SLF001
        _call(function, running)


def _wrap(module: ModuleType, function: Callable[[Any], object]) -> None:
    start = module.SparkSession.__init__

    @functools.wraps(start)
    def start_and_call(session: Any, *args: Any, **kwargs: Any) -> None:
        start(session, *args, **kwargs)
        _call(function, session)

    module.SparkSession.__init__ = start_and_call


def _call(function: Callable[[Any], object], session: object) -> None:
    try:
        function(session)
    except Exception:  # noqa: BLE001 - a session that starts outranks what comes with it
        _log().exception("a session is used as it is")


def _log() -> Any:
    import logging  # noqa: PLC0415 - planners import this package, and shall do so fast

    return logging.getLogger(__name__)


def _is_process_of_spark() -> bool:
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    # A planner imports this package before Python has begun to run its module.
    names = str(getattr(spec, "name", "")), _module_of_the_command()
    return any(name.startswith("pyspark.") or name == _FORK_SERVER for name in names)


def _module_of_the_command() -> str:
    """The module that `python -m` was told to run; "" if it was told something else."""
    for number, word in enumerate(sys.orig_argv[1:-1], start=1):
        if word == "-m":
            return sys.orig_argv[number + 1]
        if not word.startswith("-"):
            break
    return ""


class _Finder:
    """Stands before the finders of the import system, for one import of one module."""

    def __init__(self, function: Callable[[Any], object]) -> None:
        self._function = function

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _MODULE:
            return None
        # It looks for itself only once: what the others find is what would have been loaded.
        ours: Any = self
        sys.meta_path.remove(ours)
        spec = importlib.util.find_spec(fullname)
        if spec is not None and spec.loader is not None:
            loader: Any = _Loader(spec.loader, self._function)
            spec.loader = loader
        return spec


class _Loader:
    """Loads the module as its own loader does, then wraps the class in it."""

    def __init__(self, own: Any, function: Callable[[Any], object]) -> None:
        self._own = own
        self._function = function

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._own.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._own.exec_module(module)
        # Tools that read a module's source ask its loader.
        module.__loader__ = self._own
        if module.__spec__ is not None:
            module.__spec__.loader = self._own
        try:
            _wrap(module, self._function)
        except AttributeError:
            _log().debug("this PySpark has no SparkSession to wrap", exc_info=True)

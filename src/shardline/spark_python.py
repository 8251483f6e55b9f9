"""Spark's helper processes run this very Python: chosen at import, where that is not too late.

Spark starts processes for a data source written in Python: to find, to plan, to read, to write.
Unless told otherwise it takes whatever `python3` is on PATH, in the JVM's environment. Run as
`venv/bin/python script.py` from an editor or by cron, with no activated environment, that is
another Python without Shardline, and the format is not found (`DATA_SOURCE_NOT_FOUND`).

The JVM inherits the environment of the process that starts it. So `choose_python` has to come
before a session starts; `import shardline` calls it. A JVM that runs already keeps its choice: then
`warn_if_too_late` says so, and `use_this_python` repairs what can be repaired (`register` calls
it).

Nothing is changed where somebody has chosen (PYSPARK_PYTHON, PYSPARK_DRIVER_PYTHON), where
`spark-submit` has started this process and chosen with it, or where `python3` is this Python: on a
cluster the same name then means each machine's own, which the path of this one might not.
"""

from __future__ import annotations

import os
import re
import sys
import warnings
from pathlib import Path
from typing import Any, Final

__all__ = ["choose_python", "is_python_of_jvm", "use_this_python", "warn_if_too_late"]

_CHOICES: Final = ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON")

_STARTED_BY_SPARK: Final = "PYSPARK_GATEWAY_PORT"
"""Set where the JVM was there first and has started this process."""

_SIMPLE: Final = re.compile(r"[\w./+-]+", re.ASCII)
"""Paths that a shell takes for one word: Spark looks for the driver's Python by an unquoted one."""

_ONE_MACHINE: Final = re.compile(r"local(\[|$)")
"""Masters whose executors are this machine's; `local-cluster[…]` is for tests of what is not."""

_ASK: Final = "import importlib.util as u, sys; sys.exit(u.find_spec('shardline') is None)"
_ASK_TIMEOUT_S: Final = 30.0


def choose_python() -> None:
    """Let a JVM that this process starts use this Python, unless a choice was made already."""
    if any(name in os.environ for name in (*_CHOICES, _STARTED_BY_SPARK)):
        return
    if not sys.executable or _is_this_python("python3"):
        return
    os.environ["PYSPARK_PYTHON"] = sys.executable
    if not _SIMPLE.fullmatch(sys.executable):
        folder, name = os.path.split(sys.executable)
        os.environ["PYSPARK_DRIVER_PYTHON"] = name
        os.environ["PATH"] = os.pathsep.join([folder, os.environ.get("PATH", os.defpath)])


def warn_if_too_late() -> None:
    """Warn if this process has a session whose Python does not find Shardline."""
    context = _active_context()
    if context is None:
        return
    chosen = _choice_of_the_jvm(context)
    if _finds_shardline(chosen):
        return
    warnings.warn(
        f"a Spark session runs already, and looks for data sources with '{chosen}', which has no "
        f"shardline: format('shard') is not found. Import shardline before the session starts, or "
        f"set PYSPARK_PYTHON={sys.executable} before that, or call shardline.register(spark)",
        RuntimeWarning,
        stacklevel=3,  # whoever imports the package, as far as the import system shows him
    )


def is_python_of_jvm(context: Any) -> bool:
    """True if the JVM of a `SparkContext` looks for data sources with this very Python."""
    return _is_this_python(_choice_of_the_jvm(context))


def use_this_python(context: Any) -> str | None:
    """Let what is registered from now on run in this Python, where the session's has no Shardline.

    Args:
        context: The session's `SparkContext`.

    Returns:
        None if that is so now; else the Python that a cluster's machines would run, and that has
        no Shardline here. A path of this machine may mean nothing there, so it is left alone.
    """
    chosen: str = context.pythonExec
    if _finds_shardline(chosen):
        return None
    if not _ONE_MACHINE.match(context.master):
        return chosen
    context.pythonExec = sys.executable
    return None


def _active_context() -> Any:
    """The session of this process, if any. Imports nothing: without pyspark there is none."""
    module = sys.modules.get("pyspark.core.context")
    return None if module is None else module.SparkContext._active_spark_context  # noqa: SLF001


def _choice_of_the_jvm(context: Any) -> str:
    """The Python that the JVM starts to look for data sources, by its environment."""
    environment = context._jvm.System  # noqa: SLF001 - PySpark has no other door to the JVM
    for name in reversed(_CHOICES):
        if chosen := environment.getenv(name):
            return str(chosen)
    return "python3"


def _finds_shardline(python: str) -> bool:
    """True if a Python, named as for a shell, has this package; starts it if it is another one."""
    if _is_this_python(python):
        return True
    import subprocess  # noqa: PLC0415 - hardly ever needed, and slow to import

    try:
        done = subprocess.run(  # noqa: S603 - the one that Spark starts
            [python, "-c", _ASK], check=False, capture_output=True, timeout=_ASK_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def _is_this_python(python: str) -> bool:
    """True if a name leads to this environment: to the same folder, by whichever link."""
    found = _path_of(python)
    if found is None or not sys.executable:
        return False
    # The folder counts, too: the files of many environments are links to one and the same program.
    ours = Path(sys.executable)
    return (ours.parent.resolve(), ours.resolve()) == (found.parent.resolve(), found.resolve())


def _path_of(python: str) -> Path | None:
    """The file that a shell would start. `shutil` costs more to import than all of this."""
    folders = [""] if os.sep in python else os.environ.get("PATH", os.defpath).split(os.pathsep)
    paths = (Path(folder, python) for folder in folders)
    return next((path for path in paths if path.is_file() and os.access(path, os.X_OK)), None)

"""Runs what other projects offer in environments of their own, which are made once.

Each comes by its ordinary client (pip here; jars and crates by those who know them), and what
cannot be had is an `Unavailable` that says why.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from pathlib import Path

__all__ = ["Unavailable", "call", "environment"]

_OURS = ("SPARK_", "PYSPARK_", "PYTHON")
"""Beginnings of the names of what `spark-submit.sh` sets for this project's own Spark."""

_MOST = 2000
"""Characters of an error: its end tells most."""


class Unavailable(Exception):
    """A program cannot be had or has failed; the message is what it said."""


def environment(place: Path, packages: Sequence[str]) -> Path:
    """The Python of an environment with these packages, which is made if it is not whole.

    Raises:
        Unavailable: A package cannot be had.
    """
    python = place / "bin" / "python"
    if not (place / "whole").exists():
        shutil.rmtree(place, ignore_errors=True)
        venv.create(place, with_pip=True)
        call([str(python), "-m", "pip", "install", "-q", *packages])
        (place / "whole").touch()
    return python


def call(command: Sequence[str], **settings: str) -> str:
    """What a command prints.

    Args:
        command: Its program is this Python, which keeps the variables of this project's Spark, or
            any other one, which gets none of them.
        **settings: Further variables of its environment.

    Raises:
        Unavailable: It cannot be started, or has failed.
    """
    own = command[0] == sys.executable
    variables = {k: v for k, v in os.environ.items() if own or not k.startswith(_OURS)}
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        variables[name] = command[0]
    try:
        done = subprocess.run(
            command, env=variables | settings, capture_output=True, text=True, check=True
        )
    except OSError as error:
        raise Unavailable(str(error)) from error
    except subprocess.CalledProcessError as error:
        raise Unavailable((error.stderr or str(error)).strip()[-_MOST:]) from error
    return done.stdout

"""The application: the unified runtime, projects of SQL or Python, and the server over both.

    from shardline.app import Project          a project from SQL files or from Python

Start at `coordinator.application` for the whole, at `runtime` and `lane` for how objects run.

`Application` and `Project` are imported at their first use: a command that only asks a running
application over HTTP does not load Spark.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from shardline.app.coordinator.application import Application
    from shardline.app.project.project import Project

if __name__ != "shardline.app":
    # A second name would make a second copy of every class, which no `except` and no `isinstance`
    # of the first would know.
    raise ImportError(f"'{__name__}' is part of Shardline: import it as 'shardline.app'")

__all__ = ["Application", "Project"]

_MODULES: Final = {
    "Application": "shardline.app.coordinator.application",
    "Project": "shardline.app.project.project",
}


def __getattr__(name: str) -> object:
    if name in _MODULES:
        return getattr(importlib.import_module(_MODULES[name]), name)
    raise AttributeError(f"module 'shardline.app' has no attribute '{name}'")

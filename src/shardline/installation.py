"""Installation knows what is installed beside the code: settings, and the name of the command.

The same package runs from a clone (`src/shardline/conf` is a link there) and from a wheel, which
has the files themselves. Everything else asks here and looks for no folder of the repository.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["CONF", "DATA_FOLDER", "PROGRAM", "folder_of_paths", "program_version"]

_PACKAGE: Final = Path(__file__).resolve().parent

CONF: Final = (_PACKAGE / "conf").resolve()
"""The folder with the defaults: `app.toml`, `spark-defaults.conf`, `log4j2.properties`, `demo/`."""

_IS_CLONE: Final = CONF.parent != _PACKAGE

PROGRAM: Final = "./spark-submit.sh" if _IS_CLONE else "shardline"
"""What a reader of a message types in front of a command."""


DATA_FOLDER: Final = "data/ of this checkout" if _IS_CLONE else "data/ in the working directory"
"""Where programs keep what is theirs by default, in words for a help text (`folder_of_paths`)."""


def program_version() -> str:
    """The version of the installed package."""
    from importlib.metadata import version  # noqa: PLC0415 - takes longer than all the rest

    return version("shardline")


def folder_of_paths(settings: Path) -> Path:
    """The folder that relative paths of a settings file count from.

    It is the one above the file's own, so that it does not matter where a program is started. For
    the defaults of a wheel it is the working directory: nothing is written beside installed code.
    """
    folder = settings.resolve().parent
    return Path.cwd() if folder == CONF and not _IS_CLONE else folder.parent

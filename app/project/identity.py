"""The settings of a project, `project.toml` in its folder, give it a name.

    name = "flights"

A project with a name may be moved, renamed and cloned: a location that runs it knows it by the
name. Without one it is known by its folder.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Final

from shardline.app.protocol.project_identity import ProjectIdentity
from shardline.app.settings.config import FILE_ENCODING
from shardline.datasource.errors import InvalidUsage, unknown_name

__all__ = ["SETTINGS", "read_identity"]

SETTINGS: Final = "project.toml"
"""The file of a project's own settings."""

_KNOWN: Final = ("name",)


def read_identity(folder: Path) -> ProjectIdentity:
    """The identity of the project in `folder`.

    Raises:
        InvalidUsage: Its settings cannot be read, or one of them is unknown or no text.
    """
    file = folder / SETTINGS
    place = str(folder.resolve())
    if not file.is_file():
        return ProjectIdentity(folder=place)
    try:
        settings = tomllib.loads(file.read_text(encoding=FILE_ENCODING))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InvalidUsage(
            f"the project's settings '{file}' cannot be read: {error}",
            code="SETTINGS_UNREADABLE",
            hint='write name = "…"',
        ) from error
    for name in settings:
        if name not in _KNOWN:
            unknown = unknown_name("setting", name, _KNOWN)
            raise InvalidUsage(
                f"{unknown.detail} in '{file}'", code=unknown.code, hint=unknown.hint
            )
    name = settings.get("name", "")
    if not isinstance(name, str) or name != name.strip() or "\n" in name:
        raise InvalidUsage(
            f"setting 'name' in '{file}' is {name!r}",
            code="INVALID_SETTING",
            hint='write a line of text in quotes: name = "flights"',
        )
    return ProjectIdentity(name=name, folder=place)

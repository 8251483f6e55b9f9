"""A project's identity tells it from another project that is sent to the same location.

What is no longer written in a project is dropped. So two projects that were run with the same data
folder by mistake would each drop the other's objects. The location remembers whose objects run.

    ProjectIdentity(name="flights", folder="…/flights")

The name is what the project's own settings say, and stays when its folder is moved or cloned. A
project without a name is known by its folder.
"""

from __future__ import annotations

import msgspec
from typing_extensions import override

__all__ = ["ProjectIdentity", "is_same_project"]


class ProjectIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """A project.

    Attributes:
        name: As its settings have it; "" if they have none.
        folder: Absolute path of the folder that it was last read from.
    """

    name: str = ""
    folder: str = ""

    @override
    def __str__(self) -> str:
        """The project as it is called in a sentence: `'flights' of data/flights`."""
        return f"'{self.name}' of {self.folder}" if self.name else f"of {self.folder}"


def is_same_project(one: ProjectIdentity, other: ProjectIdentity) -> bool:
    """True if both are one project: of one name, or, if either has none, of one folder."""
    if one.name and other.name:
        return one.name == other.name
    return one.folder == other.folder

"""The origin of a project says where its texts are, to compare what they say now with what runs.

A folder is read anew each time; texts that were sent over a connection are what they were.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shardline.app.protocol.project_identity import ProjectIdentity

__all__ = ["ProjectOrigin"]


@dataclass(frozen=True, slots=True)
class ProjectOrigin:
    """Where a project was read from.

    Attributes:
        folder: Its folder; None if its texts were given.
        variables: Values of `${name}` in the files of the folder, by name.
        texts: Its texts by file name, if it has no folder.
        identity: Of given texts: which project they are; None if nobody has said.
    """

    folder: Path | None = None
    # Both may have secrets, and a project may be logged.
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)
    texts: Mapping[str, str] = field(default_factory=dict, repr=False)
    identity: ProjectIdentity | None = None

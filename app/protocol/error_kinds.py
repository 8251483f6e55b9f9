"""Kinds of errors say to other processes what classes say in Python: what to do next.

    kind_of(Indeterminate)          "indeterminate"
    class_of("indeterminate")       Indeterminate

A status of HTTP cannot: 503 stands for a store that is away (ask again) and for a part that is
damaged (stop), and which of them it is decides what a program does.
"""

from __future__ import annotations

from typing import Final

from shardline.datasource.errors import (
    Corrupt,
    Determinate,
    Fenced,
    Indeterminate,
    InvalidUsage,
    LeaseExpired,
    MissingBlob,
    ShardError,
)

__all__ = ["KINDS", "class_of", "kind_of"]

_CLASSES: Final[dict[str, type[ShardError]]] = {
    "invalid_usage": InvalidUsage,
    "determinate": Determinate,
    "indeterminate": Indeterminate,
    "fenced": Fenced,
    "lease_expired": LeaseExpired,
    "missing_blob": MissingBlob,
    "corrupt": Corrupt,
}

KINDS: Final = tuple(_CLASSES)
"""All kinds; their meanings are those of the classes of `shardline.datasource.errors`."""


def kind_of(made: type[ShardError]) -> str:
    """The kind of a class of errors; of an error of no class it is not known what has happened."""
    found = (kind for kind, known in _CLASSES.items() if issubclass(made, known))
    return next(found, "indeterminate")


def class_of(kind: object) -> type[ShardError] | None:
    """The class of a kind; None if there is no such kind."""
    return _CLASSES.get(kind) if isinstance(kind, str) else None

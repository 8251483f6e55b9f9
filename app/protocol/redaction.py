"""Options as they may be shown: without what lets somebody in.

    shown("password", "x")                              "(secret)"
    shown("url", "jdbc:x://me:pw@host/db")              "jdbc:x://(secret)@host/db"
    shown("kafka.sasl.jaas.config", "… password='x';")  "… password=(secret);"
    bare(description)                                   a source or sink with such options

Invariants:
    Whatever leaves the process to be looked at (plans, relations, logs) has gone through here.
    What is shown says that there is a secret, and is the same for each.
"""

from __future__ import annotations

import re
from typing import Final, TypeVar

from msgspec.structs import replace

from shardline.app.protocol.objects import Description, SinkDescription, SourceDescription

__all__ = ["HIDDEN", "bare", "shown"]

T = TypeVar("T", bound=Description)

HIDDEN: Final = "(secret)"
"""What stands where a secret was."""

_WORDS: Final = r"secret|password|passwd|pwd|token|access[._-]?key|account[._-]?key|credential"
_SECRET: Final = re.compile(_WORDS, re.IGNORECASE)
"""Options whose values are shown to nobody: Spark's own rule, and some words more."""

_INSIDE: Final = re.compile(
    rf"""((?:{_WORDS})[\w.-]*["']?\s*[=:]\s*)("[^"]*"|'[^']*'|[^\s;,&"']+)""", re.IGNORECASE
)
"""`password=…` in a value, such as that of `sasl.jaas.config`, a connection string or JSON."""

_LOGIN: Final = re.compile(r"(://)[^/?#\s@]*:[^/?#\s]*@")
"""`user:password@` of a URL."""


def shown(option: str, value: str) -> str:
    """The value of an option, without secrets."""
    if not value:
        return value
    if _SECRET.search(option):
        return HIDDEN
    return _LOGIN.sub(rf"\1{HIDDEN}@", _INSIDE.sub(rf"\1{HIDDEN}", value))


def bare(description: T) -> T:
    """A description without secrets."""
    if isinstance(description, SourceDescription | SinkDescription):
        options = {key: shown(key, value) for key, value in description.options.items()}
        return replace(description, options=options)
    return description

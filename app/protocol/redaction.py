"""Redaction replaces secrets in the options of sources and sinks before anybody sees them.

    shown("password", "x")                              "(secret)"
    shown("url", "jdbc:x://me:pw@host/db")              "jdbc:x://(secret)@host/db"
    shown("kafka.sasl.jaas.config", "… password='x';")  "… password=(secret);"
    bare(description)                                   a source or sink with such options
    redact_text("password 'x',")                        "password (secret),"

Invariants:
    All options that leave the process to be looked at (plans, relations, logs) went through here.
    Every secret becomes the same text, so that not even its length is shown.
"""

from __future__ import annotations

import re
from typing import Final, TypeVar

from msgspec.structs import replace

from shardline.app.protocol.objects import Description, SinkDescription, SourceDescription

__all__ = ["HIDDEN", "redact_description", "redact_option", "redact_text"]

T = TypeVar("T", bound=Description)

HIDDEN: Final = "(secret)"
"""The text in place of a secret."""

_WORDS: Final = (
    r"secret|password|passwd|pwd|passphrase|token|credential|authorization"
    r"|(?:access|account|api|private|shared|signing|encryption)[._-]?key"
)
_SECRET: Final = re.compile(_WORDS, re.IGNORECASE)
"""Names of options whose whole value is a secret: Spark's own rule, and some words more."""

_INSIDE: Final = re.compile(
    rf"""((?:{_WORDS})[\w.-]*["']?\s*[=:]\s*)("[^"]*"|'[^']*'|[^\s;,&"']+)""", re.IGNORECASE
)
"""`password=…` in a value, such as that of `sasl.jaas.config`, a connection string or JSON."""

_TEXT: Final = r"""'(?:[^'\\]|''|\\.)*(?:'|\Z)|"(?:[^"\\]|""|\\.)*(?:"|\Z)"""
"""A text in quotes, whose end may be missing."""

_QUOTED: Final = re.compile(
    rf"""((?:{_WORDS})[\w.-]*[`"']?\s*[=:]?\s*)({_TEXT})""", re.IGNORECASE | re.DOTALL
)
"""`password 'x'` of a statement's OPTIONS."""

_LOGIN: Final = re.compile(r"(://)[^/?#\s@]*:[^/?#\s]*@")
"""`user:password@` in a URL."""


def redact_option(option: str, value: str) -> str:
    """Return the value of an option, without secrets."""
    if not value:
        return value
    if _SECRET.search(option):
        return HIDDEN
    return _LOGIN.sub(rf"\1{HIDDEN}@", _INSIDE.sub(rf"\1{HIDDEN}", value))


def redact_text(text: str) -> str:
    """Return a piece of a project's text, without secrets."""
    return _LOGIN.sub(rf"\1{HIDDEN}@", _QUOTED.sub(rf"\1{HIDDEN}", text))


def redact_description(description: T) -> T:
    """Return a description without secrets in its options."""
    if isinstance(description, SourceDescription | SinkDescription):
        options = {key: redact_option(key, value) for key, value in description.options.items()}
        return replace(description, options=options)
    return description

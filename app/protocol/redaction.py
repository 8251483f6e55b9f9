"""Redaction replaces secrets in the options of sources and sinks before anybody sees them.

    redact_option("password", "x")                              "(secret)"
    redact_option("url", "jdbc:x://me:pw@host/db")              "jdbc:x://(secret)@host/db"
    redact_option("kafka.sasl.jaas.config", "… password='x';")  "… password=(secret);"
    redact_description(description)                             a source or sink with such options
    redact_text("password 'x',")                                "password (secret),"

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
    r"|(?:access|account|api|private|shared|signing|encryption|keystore)[._-]?key"
    r"|auth[._-]?user[._-]?info"
)
_SECRET: Final = re.compile(_WORDS, re.IGNORECASE)
"""Names of options whose whole value is a secret: Spark's own rule, and some words more.

`ssl.keystore.key` of Kafka is a private key in PEM. `basic.auth.user.info` of its schema registry
is `user:password`. Certificates, and the files of key stores, are none.
"""

_PRIVATE_KEY: Final = re.compile(
    r"-----BEGIN (?P<kind>[\w ]*PRIVATE KEY[\w ]*)-----.*?(?:-----END (?P=kind)-----|\Z)", re.DOTALL
)
"""A private key in PEM, whose end may be missing; a certificate is none."""

_HEADER: Final = re.compile(
    r"""(authorization["']?\s*[=:](?!\s*["'])\s*)(?:="[^"\r\n]*"?|[^"'\r\n])+""", re.IGNORECASE
)
"""`Authorization: Bearer …`: of a header all is secret, as its scheme may have any number of parts.
It ends with its line, or with a quote that is not that of a part (`Digest username="…"`)."""

_INSIDE: Final = re.compile(
    rf"""((?:{_WORDS})[\w.-]*["']?\s*[=:]\s*)("[^"]*(?:"|\Z)|'[^']*(?:'|\Z)|[^\s;,&"']+)""",
    re.IGNORECASE,
)
"""`password=…` in a value, such as that of `sasl.jaas.config`, a connection string or JSON."""

_TEXT: Final = r"""'(?:[^'\\]|''|\\.)*(?:'|\Z)|"(?:[^"\\]|""|\\.)*(?:"|\Z)"""
"""A text in quotes, whose end may be missing."""

_VALUE: Final = re.compile(_TEXT, re.DOTALL)

_QUOTED: Final = re.compile(
    rf"""((?:{_WORDS})[\w.-]*[`"']?\s*[=:]?\s*)({_TEXT})""", re.IGNORECASE | re.DOTALL
)
"""`password 'x'` of a statement's OPTIONS."""

_LOGIN: Final = re.compile(
    r"(://)(?:[^/?#\s@:]*:[^/?#\s]*@|[^/?#\s@:\[]*:(?!\d{2,5}[/?#,;])[^\s\"']{1,512}?@)"
    r"|(jdbc:oracle:\w+:)[^/@\s]{1,128}/[^\s\"']{1,512}?@"
)
"""`user:password@` in a URL, and `user/password@` in one of Oracle.

A slash belongs into a URL's path, and yet keys of S3 have some, and are written so. What could be
the port of a host, with an @ in the path behind it, is none. (Lengths have a limit, so that a long
text without an @ is not searched to its end again and again.)
"""


def redact_option(option: str, value: str) -> str:
    """Return the value of an option, without secrets."""
    if not value:
        return value
    if _SECRET.search(option):
        return HIDDEN
    without_headers = _HEADER.sub(rf"\1{HIDDEN}", _PRIVATE_KEY.sub(HIDDEN, value))
    return _without_logins(_INSIDE.sub(rf"\1{HIDDEN}", without_headers))


def redact_text(text: str) -> str:
    """Return a piece of a project's text, without secrets."""
    named = _QUOTED.sub(rf"\1{HIDDEN}", _PRIVATE_KEY.sub(HIDDEN, text))
    # Only in quotes: elsewhere `token = x` is a condition of a query, and no secret.
    return _without_logins(_VALUE.sub(lambda value: redact_option("", value[0]), named))


def _without_logins(text: str) -> str:
    return _LOGIN.sub(lambda login: f"{login[1] or login[2]}{HIDDEN}@", text)


def redact_description(description: T) -> T:
    """Return a description without secrets in its options."""
    if isinstance(description, SourceDescription | SinkDescription):
        options = {key: redact_option(key, value) for key, value in description.options.items()}
        return replace(description, options=options)
    return description

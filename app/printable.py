"""Texts of data are shown to people without what a terminal takes for commands to itself.

    printable(value)                  each such character as Python escapes it
    without_controls(text)            without them: for text whose width was measured already

Values, errors and names of files come from whoever wrote the data. An escape sequence in one would
move the cursor, clear what is above it or hide what follows: an operator would read "all is well".
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["printable", "without_controls"]

_CONTROLS: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""All control characters but tab and newline; no terminal gives them a width."""


def printable(text: str, *, keep: str = "") -> str:
    """The text with each character that is not printed escaped.

    Args:
        text: Of data.
        keep: Characters that stay as they are, as newlines where a text may have lines.
    """
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text
    )


def without_controls(text: str) -> str:
    """The text without control characters, but for tabs and newlines."""
    return _CONTROLS.sub("", text)

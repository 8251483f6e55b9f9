"""Error lines find where in its file a row stands that could not be decoded.

    find_lines([("file:///data/orders/b.csv", "4,2,x")])     [3]

Spark hands over the text of a bad row and its file, and no line. A person who is to mend the file
looks for the line first. So it is looked up when a row is shown: the file may have been mended, or
be gone, and then there is none.

Invariants:
    A line is named only if it is the only one of the file with that text.
    Files are read on this machine only, and each once for all rows of a call.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

__all__ = ["find_lines"]

_BYTES_MAX: Final = 64 << 20
"""Largest file that is read, in bytes."""


def find_lines(rows: Iterable[tuple[str | None, str | None]]) -> list[int | None]:
    """The line of each row in its file, from 1; None where it is not known.

    Args:
        rows: The file of each row, as Spark names it, and its text.
    """
    listed = list(rows)
    wanted: dict[str, set[str]] = {}
    for file, raw in listed:
        if file is not None and raw is not None:
            wanted.setdefault(file, set()).add(raw)
    found = {file: _lines_of(file, raws) for file, raws in wanted.items()}
    return [None if f is None or raw is None else found[f].get(raw) for f, raw in listed]


def _lines_of(file: str, raws: set[str]) -> dict[str, int]:
    """The lines of those of `raws` that occur once."""
    parts = urlsplit(file)
    if parts.scheme not in {"", "file"} or parts.netloc:
        return {}
    path = Path(unquote(parts.path))
    seen: dict[str, list[int]] = {}
    try:
        if path.stat().st_size > _BYTES_MAX:
            return {}
        with path.open(encoding="utf-8", errors="replace", newline=None) as lines:
            for number, line in enumerate(lines, start=1):
                text = line.rstrip("\n")
                if text in raws:
                    seen.setdefault(text, []).append(number)
    except OSError:
        # Mended, moved or deleted since: then nobody needs the line.
        return {}
    return {raw: numbers[0] for raw, numbers in seen.items() if len(numbers) == 1}

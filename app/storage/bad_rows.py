"""The option `onBadRow` of a source says what becomes of a row that cannot be decoded.

    keep    the row is an error of the source: reads of it fail until it is retracted or skipped
    skip    the row is left out, and noted in the shard `<source>_skipped`
    stop    the source stops before the micro-batch, of which nothing is committed

Whether one bad row may stop everything, or be missing from every answer, only the owner of the data
can say. Keeping it is the default: it neither loses a row in silence nor holds up those behind it.

Spark's own option is `mode`. Its FAILFAST is `stop` without a name of the row, its DROPMALFORMED is
`skip` without a note, and its PERMISSIVE, which makes nulls of what it cannot decode, has no
counterpart: such a null is not what the source has said. A source that sets `mode` itself gets what
Spark does by it, and cannot set `onBadRow` as well.
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias, get_args
from urllib.parse import unquote, urlsplit

from shardline.app.protocol.objects import SourceDescription
from shardline.datasource.errors import Determinate, InvalidUsage

__all__ = ["DECODED_FORMATS", "ON_BAD_ROW", "OnBadRow", "on_bad_row", "plain_path", "stopped_error"]

OnBadRow: TypeAlias = Literal["stop", "keep", "skip"]

ON_BAD_ROW: Final = "onbadrow"
"""Name of the option, in lower case."""

DECODED_FORMATS: Final = frozenset({"csv", "json", "xml"})
"""Formats whose rows may fail to be decoded one by one."""

_SHOWN_MAX: Final = 200
"""Longest text of a row that an error quotes, in characters."""

_MAPPING: Final = (
    "onBadRow is stop (Spark's mode FAILFAST), skip (DROPMALFORMED, with a note of each row) or "
    "keep, the default; PERMISSIVE, which makes nulls of bad values, has no counterpart"
)


def on_bad_row(description: SourceDescription) -> OnBadRow:
    """Return the treatment of rows of this source that cannot be decoded.

    Raises:
        InvalidUsage: The option has another value; or the format has no such rows; or `mode` is
            set as well.
    """
    options = {name.lower(): value for name, value in description.options.items()}
    value = options.get(ON_BAD_ROW)
    if value is None:
        return "keep"
    if description.format.lower() not in DECODED_FORMATS:
        raise InvalidUsage(
            f"source '{description.name}' has onBadRow, and format '{description.format}' has no "
            "rows that fail to be decoded one by one",
            code="INVALID_OPTION",
            hint=f"leave it out; it is for {', '.join(sorted(DECODED_FORMATS))}",
        )
    if "mode" in options:
        raise InvalidUsage(
            f"source '{description.name}' has both mode and onBadRow",
            code="INVALID_OPTION",
            hint=f"leave mode out: {_MAPPING}",
        )
    for known in get_args(OnBadRow):
        if value.lower() == known:
            found: OnBadRow = known
            return found
    raise InvalidUsage(
        f"source '{description.name}': onBadRow '{value}' is not known",
        code="INVALID_OPTION",
        hint=_MAPPING,
    )


def plain_path(url: str) -> str:
    """A file as a person types it: Spark names one of this machine with the escapes of a URL."""
    return unquote(urlsplit(url).path) if url.startswith("file:") else url


def stopped_error(source: str, count: int, raw: str, file: str | None) -> Determinate:
    """The error of a source that stops at a micro-batch because of bad rows.

    Args:
        source: Its name.
        count: How many rows of the micro-batch cannot be decoded.
        raw: One of them, as it came.
        file: The file that has it; None if that is not known.
    """
    shown = raw if len(raw) <= _SHOWN_MAX else f"{raw[:_SHOWN_MAX]}…"
    plain = plain_path(file) if file else None
    place = f" in {plain}" if plain else ""
    rows = "1 row cannot be decoded" if count == 1 else f"{count} rows cannot be decoded, one of"
    said = f"{rows}{place}: {shown}" if count == 1 else f"{rows} them{place}: {shown}"
    return Determinate(
        f"source '{source}' stops (onBadRow stop) before a micro-batch in which {said}",
        code="BAD_ROWS",
        hint="correct the file, and the source goes on by itself; or set onBadRow to 'skip' "
        "(Spark's DROPMALFORMED, with a note) or 'keep' (an error that reads fail with)",
    )

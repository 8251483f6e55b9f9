"""Subscription lines show the changes of an object to a person, a line for each update.

    time (UTC)               diff  carrier  flights
    2026-11-23 08:10:41.000    +1  YV            18
    2026-11-23 08:10:43.000    -1  YV            18

Batches come one by one and for ever, so columns are as wide as what has come so far; when one grows
the head is printed again. Batches without updates are no news to a person and print nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from shardline.app.printable import printable

__all__ = ["SubscriptionLines"]

_TIME: Final = "_ts"
_DIFF: Final = "_diff"
_GAP: Final = "  "
_DAY_MS: Final = 86_400_000
_YEAR_9999_MS: Final = 253_402_300_799_999


class SubscriptionLines:
    """The lines of one subscription."""

    def __init__(self, print_line: Callable[[str], object]) -> None:
        """Begin without a line; `print_line` takes each."""
        self._print = print_line
        self._columns: list[str] = []
        self._widths: list[int] = []

    def show(self, batch: Mapping[str, Any]) -> None:
        """Print what a batch says, as `follow_subscription` yields it."""
        if "error" in batch:
            self._print(f"ended by an error: {printable(str(batch['error']))}")
        elif "dropped_at" in batch:
            self._print(
                f"ended by the application, complete before {time_text(batch['dropped_at'])}"
            )
        else:
            self._show_updates(batch["updates"])

    def _show_updates(self, updates: Sequence[Mapping[str, Any]]) -> None:
        if not updates:
            return
        columns = [name for name in updates[0] if name not in {_TIME, _DIFF}]
        rows = [_cells(update, columns) for update in updates]
        head = [f"time ({_zone(updates[0][_TIME])})", "diff", *map(printable, columns)]
        before = self._widths if columns == self._columns else [0] * len(head)
        widths = [max(map(len, cells)) for cells in zip(head, *rows, strict=True)]
        widths = [max(pair) for pair in zip(widths, before, strict=True)]
        numbers = [False, True, *_numbers(updates, columns)]
        if widths != before:
            self._columns, self._widths = columns, widths
            self._print(_line(head, widths, numbers))
        for row in rows:
            self._print(_line(row, widths, numbers))


def time_text(ms: int | None) -> str:
    """A time as a date and time of this machine's zone; a number if it is none of the clock."""
    if ms is None:
        return "the end"
    if not _DAY_MS <= ms <= _YEAR_9999_MS:
        return str(ms)
    return _local(ms).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _local(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1000, UTC).astimezone()


def _zone(ms: int) -> str:
    return (_local(ms).tzname() or "local") if _DAY_MS <= ms <= _YEAR_9999_MS else "local"


def _cells(update: Mapping[str, Any], columns: Iterable[str]) -> list[str]:
    values = (_text(update.get(name)) for name in columns)
    return [time_text(update[_TIME]), f"{update[_DIFF]:+d}", *values]


def _text(value: object) -> str:
    if value is None:
        return "NULL"
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _numbers(updates: Sequence[Mapping[str, Any]], columns: Iterable[str]) -> list[bool]:
    """For each column True if it has numbers, which go to the right."""
    return [
        any(isinstance(update[name], int | float) for update in updates)
        and not any(isinstance(update[name], str | bool | dict | list) for update in updates)
        for name in columns
    ]


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    aligned = (
        cell.rjust(width) if is_right else cell.ljust(width)
        for cell, width, is_right in zip(cells, widths, right, strict=True)
    )
    return _GAP.join(aligned).rstrip()

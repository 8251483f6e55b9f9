"""The words that verdicts are made of: names, spans of time, numbers, lists."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["amount", "name_of", "names_of", "sentence", "span"]

_UNITS = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))
_BYTES = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB")
_NAMED_MAX = 3
_KIB = 1024


def span(milliseconds: float) -> str:
    """A span of time in its two largest units: `12 s`, `3 min 20 s`, `2 d 4 h`; `0.4 s` below 1."""
    left = max(0, int(milliseconds))
    if left < 1000:  # noqa: PLR2004 - a second
        return f"{left / 1000:.1f} s"
    for position, (unit, length) in enumerate(_UNITS):
        count, rest = divmod(left, length)
        if count:
            finer = _UNITS[position + 1 : position + 2]
            more = [f" {rest // size} {name}" for name, size in finer if rest >= size]
            return f"{count} {unit}{''.join(more)}"
    raise AssertionError(milliseconds)


def amount(count: float) -> str:
    """A number of bytes with a unit: `4.2 GiB`."""
    value = float(count)
    for unit in _BYTES[:-1]:
        if value < _KIB:
            return f"{value:.0f} {unit}" if unit == _BYTES[0] else f"{value:.1f} {unit}"
        value /= _KIB
    return f"{value:.1f} {_BYTES[-1]}"


def name_of(name: str) -> str:
    """An object's name in a sentence."""
    return f"`{name}`"


def names_of(names: Sequence[str]) -> str:
    """Names in a sentence, at most three of them: `a`, `b` and 4 more."""
    shown = [name_of(name) for name in names[:_NAMED_MAX]]
    more = len(names) - len(shown)
    if more:
        return f"{', '.join(shown)} and {more} more"
    return " and ".join([", ".join(shown[:-1]), shown[-1]] if len(shown) > 1 else shown)


def sentence(text: str) -> str:
    """A text with a full stop at its end; "" stays."""
    return text if not text or text.endswith((".", "!", "?")) else f"{text}."

"""Extracts literals of Spark's SQL from the parser's nodes, exactly or not at all.

    literal_of(expression) -> Literal | None

Numbers with their suffixes, text, typed text such as `date '2026-01-31'`, intervals of days and
less, and casts of these that change the type and nothing else. A literal that Spark would round,
cut or refuse would make the filter another one.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from shardline.datasource.filters.comparisons import DIGITS_MAX, Literal, LiteralKind, as_float
from shardline.datasource.filters.sql_tree import UnsupportedSql, kind_of_node

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["literal_of"]


def literal_of(node: exp.Expr) -> Literal | None:
    """The literal that a node stands for; None if it is anything else.

    Raises:
        UnsupportedSql: Spark refuses the literal, or it would not be exact.
    """
    make = _MAKE.get(kind_of_node(node))
    return None if make is None else make(node)


_NUMERIC: Final = ("integer", "decimal", "double", "float")
_ROUNDED: Final = ("double", "float")

_DOUBLE_MAX: Final = Decimal("1.7976931348623157E308")
_FLOAT_MAX: Final = Decimal("3.4028234663852886E38")
"""The largest numbers that Spark accepts: it refuses any above, also those that round to them."""

_NUMBER = re.compile(r"(?:(\d+)(?:\.(\d*))?|\.(\d+))([eE][+-]?\d+)?", re.ASCII)


def _number(text: str) -> Literal:
    """Read a number without a sign or a suffix.

    Raises:
        UnsupportedSql: It is not a number, or too large for its type.
    """
    found = _NUMBER.fullmatch(text)
    if found is None:
        raise UnsupportedSql(f"'{text:.50}' is no number")
    whole, behind, only_behind, exponent = found.groups()
    if exponent is not None:
        if Decimal(text) > _DOUBLE_MAX:
            raise UnsupportedSql(f"{text:.50} is beyond the largest double")
        return Literal("double", text)
    scale = len(behind or only_behind or "")
    digits = len(f"{whole or ''}{behind or only_behind or ''}".lstrip("0"))
    if max(digits, scale) > DIGITS_MAX:
        raise UnsupportedSql(f"{text:.50} has more than the {DIGITS_MAX} digits of a decimal")
    return Literal("decimal" if "." in text else "integer", text)


def _negated(literal: Literal | None) -> Literal | None:
    if literal is None or literal.kind not in _NUMERIC:
        return None
    text = str(literal.value)
    return replace(literal, value=text[1:] if text.startswith("-") else f"-{text}")


_TEXT_CASTS: Final[Mapping[str, LiteralKind]] = {
    "DATE": "date",
    "TIMESTAMPTZ": "timestamp",
    "TIMESTAMPLTZ": "timestamp",
    "TIMESTAMPNTZ": "timestamp_ntz",
    "TIME": "time",
    "TEXT": "string",
}
_INTEGER_BITS: Final[Mapping[str, int]] = {"TINYINT": 8, "SMALLINT": 16, "INT": 32, "BIGINT": 64}
_FLOATS: Final[Mapping[str, LiteralKind]] = {"DOUBLE": "double", "FLOAT": "float"}
_NOT_FINITE: Final[Mapping[str, str]] = {
    "nan": "NaN",
    "inf": "inf",
    "+inf": "inf",
    "-inf": "-inf",
    "infinity": "inf",
    "+infinity": "inf",
    "-infinity": "-inf",
}


def _cast(node: exp.Expr) -> Literal | None:
    """A literal cast to a type, if that changes its type and nothing else; None otherwise."""
    literal, to = literal_of(node.this), node.args["to"]
    if literal is None or literal.kind not in (*_NUMERIC, "string"):
        return None
    name = str(getattr(to.this, "name", "")) if kind_of_node(to) == "DataType" else ""
    if to.expressions and name != "DECIMAL":
        return None  # a precision rounds
    if literal.kind == "string" and name in _TEXT_CASTS:
        return Literal(_TEXT_CASTS[name], literal.value)
    if name in _FLOATS:
        return _as_float(literal, _FLOATS[name])
    # What is exact is what was written, not what it was rounded to.
    return None if literal.kind in _ROUNDED else _as_exact(literal, name, to)


def _as_exact(literal: Literal, name: str, to: exp.Expr) -> Literal | None:
    text = str(literal.value).strip(" ")
    if name in _INTEGER_BITS:
        return Literal("integer", text) if _is_integer(text, _INTEGER_BITS[name]) else None
    digits = _digits_of(to) if name == "DECIMAL" else None
    if digits is None or not _is_decimal(text, *digits):
        return None
    return Literal("decimal", text)


def _as_float(literal: Literal, kind: LiteralKind) -> Literal | None:
    """A number, or a text of one, as a double or a float; None if the text is something else.

    Raises:
        UnsupportedSql: It is too large for a float, or would be rounded twice on the way to one.
    """
    text = str(literal.value).strip(" ")
    if literal.kind == "string":
        text = _NOT_FINITE.get(text.lower(), text)
    if text in _NOT_FINITE.values():
        return Literal(kind, text)
    if not _is_number(text):
        return None
    number = float(text) if literal.kind != "float" else as_float(float(text))
    if kind == "float" and literal.kind != "string" and abs(Decimal(text)) > _FLOAT_MAX:
        raise UnsupportedSql(f"{text:.50} is beyond the largest float")
    if literal.kind in _ROUNDED:
        return Literal(kind, repr(number))
    if kind == "float" and _is_between_floats(number) and Fraction(text) != Fraction(number):
        raise UnsupportedSql(f"{text:.50} is too near to the middle between two floats")
    return Literal(kind, text)


_HALF_BITS: Final = 1 << 28
_LOW_BITS: Final = (1 << 29) - 1


def _is_between_floats(number: float) -> bool:
    """True if a double is halfway between two floats: the number rounded to it may not be."""
    (bits,) = struct.unpack("<q", struct.pack("<d", number))
    return bool(bits & _LOW_BITS == _HALF_BITS)


def _digits_of(to: exp.Expr) -> list[int] | None:
    """Precision and scale of a decimal's type."""
    found = []
    for part in to.expressions:
        if kind_of_node(part) != "DataTypeParam" or kind_of_node(part.this) != "Literal":
            return None
        text = str(part.this.this)
        if re.fullmatch(r"\d{1,2}", text, re.ASCII) is None:
            return None
        found.append(int(text))
    found = found or [10, 0]
    return found if found[0] <= DIGITS_MAX else None


def _is_number(text: str) -> bool:
    pattern = r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?"
    return re.fullmatch(pattern, text, re.ASCII) is not None


def _is_integer(text: str, bits: int) -> bool:
    top = 1 << (bits - 1)
    return re.fullmatch(r"[+-]?\d+", text, re.ASCII) is not None and -top <= int(text) < top


def _is_decimal(text: str, precision: int, scale: int = 0) -> bool:
    units = Fraction(Decimal(text)) * 10**scale if _is_number(text) else Fraction(1, 3)
    return units.denominator == 1 and abs(units.numerator) < 10**precision


_UNITS_US: Final[Mapping[str, int]] = {
    "DAY": 86_400_000_000,
    "HOUR": 3_600_000_000,
    "MINUTE": 60_000_000,
    "SECOND": 1_000_000,
}
_DAY_TO_SECOND = re.compile(r"([+-])?(\d+) (\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,6}))?", re.ASCII)
_FIELDS_MAX: Final = (106_751_991, 23, 59, 59)
"""The greatest days, hours, minutes and seconds in an interval's text."""
_INTERVAL_MAX: Final = (1 << 63) - 1
"""The longest interval, in microseconds."""


def _interval(node: exp.Expr) -> Literal | None:
    """`interval '5' hour` and the like, and `interval '1 02:03:04.5' day to second`."""
    unit, number = node.args.get("unit"), node.args.get("this")
    # With a sign before the number the node is not a literal, and Spark's meaning is not checked.
    if kind_of_node(number) != "Literal" or unit is None or number is None:
        return None
    total = _interval_us(unit, str(number.this))
    if total is None or abs(total) > _INTERVAL_MAX:
        return None
    return Literal("interval", total)


def _interval_us(unit: exp.Expr, text: str) -> int | None:
    if kind_of_node(unit) == "IntervalSpan":
        ends = (_word(unit.this), _word(unit.args.get("expression")))
        found = _DAY_TO_SECOND.fullmatch(text)
        if ends != ("DAY", "SECOND") or found is None:
            return None
        sign, *fields, fraction = found.groups()
        numbers = list(map(int, fields))
        if any(n > most for n, most in zip(numbers, _FIELDS_MAX, strict=True)):
            return None
        parts = zip(numbers, _UNITS_US.values(), strict=True)
        total = sum(n * us for n, us in parts) + int((fraction or "0").ljust(6, "0"))
        return -total if sign == "-" else total
    one = _UNITS_US.get(_word(unit).removesuffix("S"))
    if one is None or re.fullmatch(r"[+-]?\d+", text, re.ASCII) is None:
        return None
    return int(text) * one


def _word(node: exp.Expr | None) -> str:
    """A bare word in upper case; empty if the node is anything else."""
    if node is None or kind_of_node(node) != "Var":
        return ""
    return node.this.upper() if isinstance(node.this, str) else ""


def _text_or_number(node: exp.Expr) -> Literal:
    text = str(node.this)
    return Literal("string", text) if node.args.get("is_string") else _number(text)


def _bytes(node: exp.Expr) -> Literal | None:
    digits = str(node.this)
    if re.fullmatch(r"[0-9a-fA-F]*", digits) is None:
        return None
    return Literal("binary", bytes.fromhex("0" * (len(digits) % 2) + digits))


_MAKE: Final[Mapping[str, Callable[[exp.Expr], Literal | None]]] = {
    "Null": lambda _: Literal("null", ""),
    "Boolean": lambda node: Literal("boolean", bool(node.this)),
    "Literal": _text_or_number,
    "Neg": lambda node: _negated(literal_of(node.this)),
    "HexString": _bytes,
    "Interval": _interval,
    "Cast": _cast,
    "TryCast": _cast,
}

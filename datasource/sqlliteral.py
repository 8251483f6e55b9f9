"""Literals of Spark's SQL, out of the parser's expressions.

    literal_of(expression) -> Literal | None

Numbers with their suffixes, text, typed text such as `date '2026-01-31'`, intervals of days and
less, and casts of these that change the type and nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Final

from datasource.literals import Literal, LiteralKind

if TYPE_CHECKING:
    from sqlglot import exp

__all__ = ["literal_of"]


def literal_of(node: exp.Expr) -> Literal | None:
    """The literal that an expression is; None if it is anything else."""
    make = _MAKE.get(type(node).__name__)
    return None if make is None else make(node)


_NUMERIC: Final = ("integer", "decimal", "double", "float")


def _number(text: str) -> Literal:
    kind: LiteralKind = "decimal" if "." in text else "integer"
    return Literal("double" if "e" in text.lower() else kind, text)


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
    literal = literal_of(node.this)
    if literal is None or literal.kind not in (*_NUMERIC, "string"):
        return None
    to = node.args["to"]
    name = to.this.name
    if literal.kind == "string" and name in _TEXT_CASTS:
        return Literal(_TEXT_CASTS[name], literal.value)
    text = str(literal.value).strip()
    if name in _FLOATS:
        text = _NOT_FINITE.get(text.lower(), text)
    elif name in _INTEGER_BITS:
        return Literal("integer", text) if _is_integer(text, _INTEGER_BITS[name]) else None
    elif name == "DECIMAL" and literal.kind != "float":
        digits = [int(part.name) for part in to.expressions] or [10, 0]
        return Literal("decimal", text) if _is_decimal(text, *digits) else None
    if name in _FLOATS and (text in _NOT_FINITE.values() or _is_number(text)):
        return Literal(_FLOATS[name], text)
    return None


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d{1,3})?", text) is not None


def _is_integer(text: str, bits: int) -> bool:
    top = 1 << (bits - 1)
    return re.fullmatch(r"[+-]?\d+", text) is not None and -top <= int(text) < top


def _is_decimal(text: str, precision: int, scale: int = 0) -> bool:
    units = Fraction(Decimal(text)) * 10**scale if _is_number(text) else Fraction(1, 3)
    return units.denominator == 1 and abs(units.numerator) < 10**precision


_UNITS_US: Final[Mapping[str, int]] = {
    "DAY": 86_400_000_000,
    "HOUR": 3_600_000_000,
    "MINUTE": 60_000_000,
    "SECOND": 1_000_000,
}
_DAY_TO_SECOND = re.compile(r"([+-])?(\d+) (\d{1,2}):(\d{1,2}):(\d{1,2})(?:\.(\d{1,6}))?")


def _interval(node: exp.Expr) -> Literal | None:
    """`interval '5' hour` and the like, and `interval '1 02:03:04.5' day to second`."""
    unit, text = node.args.get("unit"), node.this.name if node.this else ""
    if unit is None:
        return None
    if type(unit).__name__ == "IntervalSpan":
        ends = (unit.this.name.upper(), unit.expression.name.upper())
        found = _DAY_TO_SECOND.fullmatch(text)
        if ends != ("DAY", "SECOND") or found is None:
            return None
        sign, *numbers, fraction = found.groups()
        parts = zip(map(int, numbers), _UNITS_US.values(), strict=True)
        total = sum(n * us for n, us in parts) + int((fraction or "0").ljust(6, "0"))
        return Literal("interval", -total if sign == "-" else total)
    one = _UNITS_US.get(unit.name.upper().removesuffix("S"))
    if one is None or re.fullmatch(r"[+-]?\d+", text) is None:
        return None
    return Literal("interval", int(text) * one)


def _text_or_number(node: exp.Expr) -> Literal:
    return Literal("string", str(node.this)) if node.is_string else _number(str(node.this))


def _bytes(node: exp.Expr) -> Literal:
    digits = str(node.this)
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

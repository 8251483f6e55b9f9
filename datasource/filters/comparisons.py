"""Compares columns with SQL literals, with the result that Spark's type coercion would give.

    compare(column, operator, literal, zone) -> Predicate
    compare_in(column, literals, zone, null=null) -> Predicate

A literal is converted to the column's own type, so that no row is cast, and bounds of parts can be
compared with it: a literal between two values of the column is rounded to the side that the
operator needs, and one outside of its range makes the answer the same for all values.

Invariants:
    The predicate has Spark's result for every value of the column. Where Spark would round the
    column to a double, or in some sessions the column or a literal to a float, literals for which
    that matters are refused.
"""

from __future__ import annotations

import datetime as dt
import functools
import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Final, NoReturn
from typing import Literal as OneOf
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from shardline.datasource.filters.predicates import Compare, In, Not, Operator, Path, Predicate
from shardline.datasource.types.spark_types import Atomic, Field, decimal_of, path_text, type_text
from shardline.datasource.types.stats import Bound, Kind, kind_of

__all__ = [
    "DIGITS_MAX",
    "Column",
    "Literal",
    "LiteralKind",
    "NotComparable",
    "as_float",
    "compare",
    "compare_in",
    "time_zone",
    "timestamp_us",
]

LiteralKind = OneOf[
    "null",
    "boolean",
    "integer",
    "decimal",
    "double",
    "float",
    "string",
    "binary",
    "date",
    "timestamp",
    "timestamp_ntz",
    "time",
    "interval",
]


_CHAR: Final = re.compile(r'"__CHAR_VARCHAR_TYPE_STRING"\s*:\s*"char\(')
"""In the metadata of a column that was a CHAR in a table of Spark's catalog."""


class NotComparable(ValueError):
    """Raised if a literal cannot be compared with a column; the text is for a message."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A literal of SQL, not yet converted to any column's type.

    Attributes:
        kind: Its SQL type. integer: a number without an exponent or a point; decimal: with a
            point; double: with an exponent or a D; float: with an F.
        value: bool for boolean, bytes for binary, microseconds for interval; otherwise its text.
    """

    kind: LiteralKind
    value: bool | bytes | int | str


@dataclass(frozen=True, slots=True)
class Column:
    """A column or a field inside of one."""

    path: Path
    field: Field

    @property
    def kind(self) -> Kind | None:
        """The kind of its values' bounds; None if they have no order."""
        return kind_of(self.field)


def compare(column: Column, operator: Operator, literal: Literal, zone: str) -> Predicate:
    """Make `column operator literal`; the literal is not null.

    Raises:
        NotComparable: The two cannot be compared exactly.
    """
    kind = _comparable(column)
    if kind in ("int", "dec"):
        _check_digits(column, [literal])
        if kind == "int" and operator != "=":
            _check_within_longs(literal)
        return _stepped(column, kind, operator, _exact(column, literal))
    return Compare(column.path, kind, operator, _value(column, kind, literal, zone))


def compare_in(column: Column, literals: Sequence[Literal], zone: str, *, null: bool) -> Predicate:
    """Make `column in (literals)`; none of them is null, but `null` adds one to the list.

    Raises:
        NotComparable: One of them cannot be compared exactly with the column.
    """
    kind = _comparable(column)
    if kind in ("date", "ts", "ntz"):
        _check_listed_text(kind, literals)
    if kind not in ("int", "dec"):
        values = [_value(column, kind, literal, zone) for literal in literals]
        return In(column.path, kind, tuple(values), null)
    if len({literal.kind in ("double", "float") for literal in literals}) > 1:
        raise NotComparable("the list mixes doubles with exact numbers, which rounds them all")
    # Numbers that are no value of the column equal no row, and `_stepped` gives no `Compare`.
    _check_digits(column, literals)
    equal = [_stepped(column, kind, "=", _exact(column, literal)) for literal in literals]
    found = tuple(one.value for one in equal if isinstance(one, Compare))
    return In(column.path, kind, found, null)


def _check_listed_text(kind: Kind, literals: Sequence[Literal]) -> None:
    """Refuse text in a list, for a column of days or timestamps.

    Without `spark.sql.ansi.enabled` Spark compares the column's own text with those in a list, but
    not with one behind `=` or `<`. Only for days written as Spark writes them is that the same.

    Raises:
        NotComparable: Text is in the list, and is no such day.
    """
    for literal in literals:
        text = str(literal.value)
        if literal.kind == "string" and not (kind == "date" and _WRITTEN_DATE.fullmatch(text)):
            typed = "date" if kind == "date" else "timestamp"
            raise NotComparable(f"'{text}' in a list may be compared as text: write {typed} '...'")


def _comparable(column: Column) -> Kind:
    if column.kind == "coll":
        raise NotComparable(f"'{path_text(column.path)}' has a collation")
    if _CHAR.search(column.field.metadata):
        # Spark pads both sides to the column's length, and what is stored may be shorter.
        raise NotComparable(f"'{path_text(column.path)}' is a CHAR: filter the frame that is read")
    if column.kind is None:
        raise _of_type(column)
    return column.kind


def _of_type(column: Column) -> NotComparable:
    return NotComparable(f"'{path_text(column.path)}' is of type {type_text(column.field.type)}")


# --- whole and decimal numbers -------------------------------------------------------------------

_BITS: Final[Mapping[str, int]] = {"byte": 8, "short": 16, "integer": 32, "long": 64}

_EXACT_BITS: Final[Mapping[str, int]] = {"double": 53, "float": 24}
"""Whole numbers of at most so many bits are exact, and no other number is rounded to one of them.

To compare a whole column with a float Spark takes both as doubles with `spark.sql.ansi.enabled`,
and as floats without it.
"""

_DOUBLE_DIGITS: Final = 15
"""Decimals of at most this many digits stay distinct, and in order, as doubles."""

DIGITS_MAX: Final = 38
"""Most digits of Spark's decimals, on both sides of the point together."""


def _check_digits(column: Column, literals: Sequence[Literal]) -> None:
    """Refuse literals that Spark could compare only as decimals with too many digits.

    Column and literals are compared as decimals with the digits of all of them, on both sides of
    the point. If those are too many Spark cuts some, or fails on the rows.

    Raises:
        NotComparable: More than `DIGITS_MAX` digits are needed.
    """
    written = [Decimal(str(one.value)) for one in literals if one.kind in ("integer", "decimal")]
    scale, _, high = _steps(column)
    before, behind = len(str(high)) - scale, scale
    for number in written:
        _, digits, exponent = number.as_tuple()
        assert isinstance(exponent, int), number
        before = max(before, len(digits) + exponent)
        behind = max(behind, -exponent)
    if before + behind > DIGITS_MAX:
        raise NotComparable(f"both together need more than the {DIGITS_MAX} digits of a decimal")


def _exact(column: Column, literal: Literal) -> Fraction:
    """The exact number that a column of whole or decimal numbers is compared with."""
    if literal.kind in ("integer", "decimal"):
        return Fraction(Decimal(str(literal.value)))
    if literal.kind not in ("double", "float"):
        raise _of_type(column)
    number = _float(literal)
    if not math.isfinite(number):
        raise _of_type(column)
    name = _name(column)
    precision_and_scale = decimal_of(name)
    if precision_and_scale is None:
        exact = _EXACT_BITS[literal.kind]
        if _BITS[name] > exact and abs(number) >= 1 << exact:
            raise NotComparable(f"a {name} may be rounded, beside a {literal.kind} of this size")
        return Fraction(number)
    # To Spark a number that is too small for a double is 0.
    written = Decimal(str(literal.value)) if number else Decimal(0)
    digits = max(precision_and_scale[0], len(written.normalize().as_tuple().digits))
    if literal.kind == "float" or digits > _DOUBLE_DIGITS:
        raise NotComparable(f"a {name} would be rounded to be compared with a {literal.kind}")
    return Fraction(written)


def _check_within_longs(literal: Literal) -> None:
    """Refuse `<` and `>` with numbers beyond a long, for which Spark takes null for true or false.

    Raises:
        NotComparable: The literal is such a number.
    """
    if literal.kind in ("integer", "decimal"):
        low, high = -(1 << 63), (1 << 63) - 1
        if not low <= Decimal(str(literal.value)) <= high:
            raise NotComparable("whole numbers are put in order only with what a long can hold")


def _stepped(column: Column, kind: Kind, operator: Operator, literal: Fraction) -> Predicate:
    """A comparison of whole or decimal values, with `literal` rounded to one of them."""
    scale, low, high = _steps(column)
    units = literal * 10**scale
    floor = math.floor(units)
    if units != floor:
        if operator == "=":
            return In(column.path, kind, ())
        operator = "<=" if operator in ("<", "<=") else ">"
    never, always = _beyond(operator, floor, low, high)
    if never or always:
        nothing = In(column.path, kind, ())
        return nothing if never else Not(nothing)
    value = floor if kind == "int" else _scaled(floor, scale)
    return Compare(column.path, kind, operator, value)


def _steps(column: Column) -> tuple[int, int, int]:
    """Digits behind the point, and the least and greatest value in units of the last one."""
    name = _name(column)
    precision_and_scale = decimal_of(name)
    if precision_and_scale is None:
        top = 1 << (_BITS[name] - 1)
        return 0, -top, top - 1
    precision, scale = precision_and_scale
    return scale, 1 - 10**precision, 10**precision - 1


def _beyond(operator: Operator, value: int, low: int, high: int) -> tuple[bool, bool]:
    """Two flags: no number from `low` to `high` relates so to `value`, and every one does."""
    match operator:
        case "=":
            return not low <= value <= high, False
        case "<":
            return value <= low, value > high
        case "<=":
            return value < low, value >= high
        case ">":
            return value >= high, value < low
        case _:
            return value > high, value <= low


def _scaled(units: int, scale: int) -> Decimal:
    return Decimal((int(units < 0), tuple(map(int, str(abs(units)))), -scale))


def _name(column: Column) -> str:
    assert isinstance(column.field.type, Atomic), column
    return column.field.type.name


def _float(literal: Literal) -> float:
    number = float(str(literal.value))
    return number if literal.kind != "float" else as_float(number)


def as_float(number: float) -> float:
    """A double rounded to a float, as a double again."""
    try:
        (single,) = struct.unpack("f", struct.pack("f", number))
    except OverflowError:
        return math.copysign(math.inf, number)
    return float(single)


# --- everything else -----------------------------------------------------------------------------


def _value(column: Column, kind: Kind, literal: Literal, zone: str) -> Bound:
    """The literal as a value of the column."""
    convert = _CONVERT.get((kind, literal.kind))
    if convert is None:
        raise _of_type(column)
    if literal.kind == "integer" and _name(column) == "float":
        _check_single(int(str(literal.value)))
    return convert(literal, zone)


def _check_single(number: int) -> None:
    """Refuse whole numbers that are no floats, for a column of floats.

    With `spark.sql.ansi.enabled` Spark compares both as doubles, and without it as floats. What is
    beyond a long is a decimal, and compared as a double in any session.

    Raises:
        NotComparable: It is such a number.
    """
    if -(1 << 63) <= number < 1 << 63 and as_float(float(number)) != number:
        raise NotComparable(f"{number} may be rounded to a float: write {number}D")


def _as_is(literal: Literal, zone: str) -> Bound:
    del zone
    return literal.value


def _number(literal: Literal, zone: str) -> float:
    del zone
    return _float(literal)


# ASCII: Spark knows no other digits and letters here.
_DATE = re.compile(r"(\d{4})-(\d{1,2})-(\d{1,2})", re.ASCII)
_WRITTEN_DATE = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_CLOCK = re.compile(r"(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,6}))?)?", re.ASCII)
_TIMESTAMP = re.compile(
    rf"({_DATE.pattern})(?:[ T]({_CLOCK.pattern}) *([A-Za-z+-][\w/+:-]*)?)?", re.ASCII
)
_OFFSET = re.compile(
    r"(?:UTC|GMT|UT)?([+-])"
    r"(?:(\d\d?)(?::(\d\d?))?|(\d\d?):(\d\d):(\d\d)|(\d\d)(\d\d)(\d\d)?)",
    re.ASCII,
)
_SIXTY: Final = 60
_OFFSET_MAX: Final = dt.timedelta(hours=18)
_NO_REGIONS: Final = ("posix/", "right/")
"""Prefixes of the system's time zones that Java does not know."""

_SHORT_NAMES: Final[Mapping[str, str]] = {
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo",
    "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "EST": "-05:00",
    "HST": "-10:00",
    "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "MST": "-07:00",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
}
"""Java's `ZoneId.SHORT_IDS`, which Spark looks names up in; some mean other places elsewhere."""

_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - stands for timestamps without a zone
_EPOCH_UTC: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_MICROSECOND: Final = dt.timedelta(microseconds=1)


def _days(literal: Literal, zone: str) -> int:
    del zone
    return _date(str(literal.value)).toordinal() - _EPOCH.toordinal()


def _date(text: str) -> dt.date:
    found = _DATE.fullmatch(text.strip(" "))
    if found is None:
        _unreadable(text, "a date such as 2026-01-31")
    try:
        return dt.date(*map(int, found.groups()))
    except ValueError as error:
        raise NotComparable(f"'{text}' is no date: {error}") from error


def _instant(literal: Literal, zone: str) -> int:
    return timestamp_us(str(literal.value), zone)


def timestamp_us(text: str, zone: str) -> int:
    """Microseconds since the epoch of a date or a date and time; in `zone` if it names none.

    As in Spark, a local time that a clock change skips is moved later by the length of the gap, and
    of one that occurs twice the first is taken.
    """
    local, own = _local(text)
    return _in_zone(local, own or zone)


def _midnight(literal: Literal, zone: str) -> int:
    return _in_zone(_start_of_day(literal), zone)


def _in_zone(local: dt.datetime, zone: str) -> int:
    return (local.replace(tzinfo=time_zone(zone)) - _EPOCH_UTC) // _MICROSECOND


def _wall_clock(literal: Literal, zone: str) -> int:
    del zone
    return (_without_zone(literal) - _EPOCH) // _MICROSECOND


def _wall_clock_midnight(literal: Literal, zone: str) -> int:
    del zone
    return (_start_of_day(literal) - _EPOCH) // _MICROSECOND


def _start_of_day(literal: Literal) -> dt.datetime:
    return dt.datetime.combine(_date(str(literal.value)), dt.time())


def _instant_of_wall_clock(literal: Literal, zone: str) -> int:
    return _in_zone(_without_zone(literal), zone)


def _without_zone(literal: Literal) -> dt.datetime:
    """The date and time of a literal that names no time zone.

    Spark takes one in the text of a `timestamp_ntz` for nothing at all, which its author cannot
    have meant.

    Raises:
        NotComparable: It names one.
    """
    text = str(literal.value)
    local, own = _local(text)
    if own is not None:
        raise NotComparable(f"'{text}' has a time zone, and a timestamp without one is needed")
    return local


def _local(text: str) -> tuple[dt.datetime, str | None]:
    """The local date and time, and the zone that the text names after them, if any."""
    found = _TIMESTAMP.fullmatch(text.strip(" "))
    if found is None:
        _unreadable(text, "a timestamp such as 2026-01-31 12:00:00")
    day, clock, zone = found[1], found[5], found[10]
    time = _time(clock) if clock else dt.time()
    return dt.datetime.combine(_date(day), time), zone


def _time(text: str) -> dt.time:
    found = _CLOCK.fullmatch(text.strip(" "))
    if found is None:
        _unreadable(text, "a time such as 07:30:00")
    hour, minute, second, fraction = found.groups()
    micros = int((fraction or "0").ljust(6, "0"))
    try:
        return dt.time(int(hour), int(minute), int(second or 0), micros)
    except ValueError as error:
        raise NotComparable(f"'{text}' is no time: {error}") from error


@functools.cache
def time_zone(name: str) -> dt.tzinfo:
    """The time zone that Spark knows by this name: a region, an offset, or a short name of Java.

    Raises:
        NotComparable: There is none, or only the JVM's list of regions has it.
    """
    name = _SHORT_NAMES.get(name, name)
    if name in ("Z", "UTC", "GMT", "UT"):
        return dt.UTC
    if found := _OFFSET.fullmatch(name):
        hours, minutes, seconds = (*(int(n) for n in found.groups()[1:] if n), 0, 0)[:3]
        span = dt.timedelta(hours=hours, minutes=minutes, seconds=seconds)
        if max(minutes, seconds) >= _SIXTY or span > _OFFSET_MAX:
            raise NotComparable(f"there is no time zone '{name}': offsets are up to 18 hours")
        return dt.timezone(span if found[1] == "+" else -span)
    try:
        region = ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise NotComparable(f"Python knows no time zone '{name}'") from error
    if name.startswith(_NO_REGIONS):
        raise NotComparable(f"there is no time zone '{name}'")
    return region


def _nanos_of_day(literal: Literal, zone: str) -> int:
    del zone
    time = _time(str(literal.value))
    seconds = (time.hour * 60 + time.minute) * 60 + time.second
    return (seconds * 1_000_000 + time.microsecond) * 1000


def _unreadable(text: str, wanted: str) -> NoReturn:
    raise NotComparable(f"'{text}' is not {wanted}")


_CONVERT: Final[Mapping[tuple[Kind, LiteralKind], Callable[[Literal, str], Bound]]] = {
    ("bool", "boolean"): _as_is,
    ("float", "integer"): _number,
    ("float", "decimal"): _number,
    ("float", "double"): _number,
    ("float", "float"): _number,
    ("str", "string"): _as_is,
    ("bin", "binary"): _as_is,
    ("date", "date"): _days,
    ("date", "string"): _days,
    ("ts", "timestamp"): _instant,
    ("ts", "timestamp_ntz"): _instant_of_wall_clock,
    ("ts", "date"): _midnight,
    ("ts", "string"): _instant,
    ("ntz", "timestamp_ntz"): _wall_clock,
    ("ntz", "date"): _wall_clock_midnight,
    ("ntz", "string"): _wall_clock,
    ("time", "time"): _nanos_of_day,
    ("dt", "interval"): _as_is,
}
"""Conversions by kinds of column and literal; those of whole and decimal numbers are `_exact`."""

"""Settings of a session that decide what a query means, as part of a view's definition.

    meaning_of(spark)      ("spark.sql.session.timeZone=Europe/Paris",)

The same text gives other rows in another time zone, without ANSI, or with names that are compared
by case. A view whose session has changed so is another definition: its old contents are corrected.

Invariants:
    Equal settings give equal values, whether they are set or left to their defaults, and whatever
    else is set. Settings as they are by default, in UTC, give nothing: the name of a writer says
    only what is unusual.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["meaning_of"]

_USUAL: Final = {
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.enforceReservedKeywords": "false",
    "spark.sql.ansi.relationPrecedence": "false",
    "spark.sql.caseSensitive": "false",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.groupByAliases": "true",
    "spark.sql.groupByOrdinal": "true",
    "spark.sql.lateralColumnAlias.enableImplicitResolution": "true",
    "spark.sql.mapKeyDedupPolicy": "EXCEPTION",
    "spark.sql.orderByOrdinal": "true",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
}
"""The value of each that is not worth telling."""

_LEGACY: Final = "spark.sql.legacy."
"""How settings start that bring back what a query meant in an older version."""

_UTC: Final = frozenset({"UTC", "Etc/UTC", "GMT", "Z", "+00:00"})


def meaning_of(spark: SparkSession) -> tuple[str, ...]:
    """What is unusual about what queries mean in a session, sorted."""
    found = {name: _value(name, str(spark.conf.get(name, usual))) for name, usual in _USUAL.items()}
    found |= {
        name: value.strip() for name, value in spark.conf.getAll.items() if name.startswith(_LEGACY)
    }
    return tuple(
        f"{name}={value}" for name, value in sorted(found.items()) if value != _USUAL.get(name)
    )


def _value(name: str, value: str) -> str:
    """A value as `_USUAL` spells it."""
    value = value.strip()
    usual = _USUAL[name]
    if usual == "UTC":
        return usual if value in _UTC else value
    return value.lower() if usual in {"true", "false"} else value.upper()

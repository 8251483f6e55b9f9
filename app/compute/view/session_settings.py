"""Settings of a session that decide what a query means are part of a view's definition.

The same text gives other rows in another time zone, without ANSI mode, or with case-sensitive
names. A view whose session has changed in this way has another definition: its old contents must be
corrected, or they would silently mix two meanings.

Versions are of the same kind. A row that leaves a view is found by evaluating the query's
expressions once more; with other rules of time zones (they come with Java) or another `lower` that
is another row, and the old one would stay for ever.

    query_settings(spark)       ("spark.sql.session.timeZone=Europe/Paris",)
    engine_versions(spark)      ("Spark 4.3.0", "Java 17.0.13")

One setting is made here: without it the optimizer could hide an error of a query.

    evaluate_beside_empty(session)

Invariants:
    Equal settings give equal values, whether they are set or left to their defaults, and whatever
    else is set. Default settings, in UTC, give nothing: so a setting that joins `_USUAL` later
    changes no writer's name where it has its default.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from shardline.datasource.frames import settings_of
from shardline.datasource.java_names import java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["engine_versions", "evaluate_beside_empty", "query_settings"]

_ZONE: Final = "spark.sql.session.timeZone"

_USUAL: Final = {
    "spark.sql.ansi.doubleQuotedIdentifiers": "false",
    "spark.sql.ansi.enabled": "true",
    "spark.sql.ansi.enforceReservedKeywords": "false",
    "spark.sql.ansi.relationPrecedence": "false",
    "spark.sql.caseSensitive": "false",
    "spark.sql.charAsVarchar": "false",
    "spark.sql.chunkBase64String.enabled": "true",
    "spark.sql.columnNameOfCorruptRecord": "_CORRUPT_RECORD",
    "spark.sql.csv.parser.columnPruning.enabled": "true",
    "spark.sql.decimalOperations.allowPrecisionLoss": "true",
    "spark.sql.function.concatBinaryAsString": "false",
    "spark.sql.function.eltOutputAsString": "false",
    "spark.sql.groupByAliases": "true",
    "spark.sql.groupByOrdinal": "true",
    "spark.sql.icu.caseMappings.enabled": "true",
    "spark.sql.json.enableExactStringParsing": "true",
    "spark.sql.json.enablePartialResults": "true",
    "spark.sql.jsonGenerator.ignoreNullFields": "true",
    "spark.sql.jsonGenerator.writeNullIfWithDefaultValue": "true",
    "spark.sql.lateralColumnAlias.enableImplicitResolution": "true",
    "spark.sql.mapKeyDedupPolicy": "EXCEPTION",
    "spark.sql.orderByOrdinal": "true",
    "spark.sql.parser.escapedStringLiterals": "false",
    "spark.sql.parser.quotedRegexColumnNames": "false",
    "spark.sql.preserveCharVarcharTypeInfo": "false",
    "spark.sql.readSideCharPadding": "true",
    _ZONE: "UTC",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
}
"""Settings with a say in a query's meaning, and the value of each that is left out."""

_EXCLUDED: Final = "spark.sql.optimizer.excludedRules"
_PROPAGATE: Final = "org.apache.spark.sql.catalyst.optimizer.PropagateEmptyRelation"

_LEGACY: Final = "spark.sql.legacy."
"""Prefix of settings that bring back the meaning of an older version of Spark."""

_defaults: Final[dict[str, str]] = {}
"""Spark's own values of settings that are not set: to ask for them takes a call for each."""

_UTC: Final = frozenset({"UTC", "Etc/UTC", "GMT", "Z", "+00:00"})


def query_settings(spark: SparkSession) -> tuple[str, ...]:
    """The settings of a session by which queries mean something unusual: `name=value`, sorted."""
    given = settings_of(spark)
    found = {name: _value(name, _in_effect(spark, name, given)) for name in _USUAL}
    found |= {name: value.strip() for name, value in given.items() if name.startswith(_LEGACY)}
    return tuple(
        f"{name}={value}" for name, value in sorted(found.items()) if value != _USUAL.get(name)
    )


def evaluate_beside_empty(session: SparkSession) -> None:
    """Let Spark evaluate what a query says of rows also where what they are joined with is empty.

    A table that is empty is read, and found to be so too late to leave anything out. Rows that a
    step has looked up are a local relation instead: where there are none the optimizer would leave
    out the join and each filter over its other side, and with them the error of a row that fails.
    """
    excluded = session.conf.get(_EXCLUDED, "") or ""
    if _PROPAGATE not in excluded:
        session.conf.set(_EXCLUDED, ",".join(filter(None, [excluded, _PROPAGATE])))


def engine_versions(spark: SparkSession) -> tuple[str, ...]:
    """The versions of what evaluates expressions."""
    java = java_class(spark, "java.lang.System").getProperty("java.version")
    return f"Spark {spark.version}", f"Java {java}"


def _in_effect(spark: SparkSession, name: str, given: Mapping[str, str]) -> str:
    """The value of a setting of a session in which `given` is set."""
    # Not set, the zone is that of the machine, and that of the next machine is another one; a
    # program may set it at any time.
    if name in given or name == _ZONE:
        return str(spark.conf.get(name))
    if name not in _defaults:
        _defaults[name] = str(spark.conf.get(name))
    return _defaults[name]


def _value(name: str, value: str) -> str:
    """A setting's value in the spelling of `_USUAL`."""
    value = value.strip()
    usual = _USUAL[name]
    if usual == "UTC":
        return usual if value in _UTC else value
    return value.lower() if usual in {"true", "false"} else value.upper()

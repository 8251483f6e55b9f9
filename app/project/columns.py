"""Derives the columns of sources and views, and checks them before a shard is made with them.

Spark takes results with two columns of one name, with invented names, or of types that a shard
cannot hold; a shard with them could never be read again by name.

    contents_columns(source, schema)          the columns of the contents, of those that are read
    find_columns_problem(schema, spelt)       duplicates, missing names, types no shard can hold
    find_key_problem(name, schema)            columns that cannot tell the rows of a shard apart

Schemas are Spark's JSON of a `StructType`: its analyzer returns them so, and shards keep them so.

Invariants:
    Names are compared without case, as Spark does.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from typing import Final

from shardline.app.protocol.objects import SourceDescription
from shardline.app.sql.problems import did_you_mean
from shardline.app.storage.formats import ADDED, ONLY_READ
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.schema import DIFF, RESERVED, ShardSchema

__all__ = [
    "ColumnProblem",
    "contents_columns",
    "diff_hint",
    "find_columns_problem",
    "find_key_problem",
    "find_taken_name",
    "names_of",
    "spell_key",
]

ColumnProblem = tuple[str, str, str]
"""A problem with columns: its code, a message and a hint."""


_DIFF_OPTIONS: Final = {
    "counter": "OPTIONS (maxCardinality '1000'), by which old rows are retracted, or leave out "
    "ENVELOPE DIFF",
    "shard": "OPTIONS (readChangeFeed true)",
}
"""Hints for formats, in lower case, whose rows have a column `_diff` by an option."""


def names_of(schema: str) -> list[str]:
    """Names of the columns."""
    return [field["name"] for field in json.loads(schema)["fields"]]


def contents_columns(source: SourceDescription, schema: str) -> str:
    """The columns of a source's contents, derived from those of the rows that it reads.

    Raises:
        InvalidUsage: Rows of the source's envelope must have other columns.
    """
    fields = json.loads(schema)["fields"]
    kept = fields
    match source.envelope:
        case "none" | "upsert":
            pass
        case "diff":
            # Where the source runs the query's own frame is asked, and each attempt fails.
            if not any(field["name"] == DIFF for field in fields):
                raise InvalidUsage(
                    f"rows of '{source.name}' have no column '{DIFF}', which envelope DIFF needs",
                    code="MISSING_COLUMN",
                    hint=_DIFF_OPTIONS.get(source.format.lower())
                    or _columns_hint(source, f"SCHEMA (…, {DIFF} BIGINT)"),
                )
            kept = [field for field in fields if field["name"].lower() not in RESERVED]
        case "debezium":
            after = next((f["type"] for f in fields if f["name"].lower() == "after"), None)
            if not isinstance(after, dict) or after.get("type") != "struct":
                raise InvalidUsage(
                    f"a change event of '{source.name}' has no column 'after' that is a struct",
                    code="WRONG_TYPE",
                    hint=_columns_hint(
                        source, "SCHEMA (before STRUCT<…>, after STRUCT<…>, op STRING)"
                    ),
                )
            kept = after["fields"]
    return json.dumps({"type": "struct", "fields": kept}, ensure_ascii=False)


def _columns_hint(source: SourceDescription, schema: str) -> str:
    """The hint for a source whose rows lack what its envelope needs: `schema`, if it takes one."""
    if source.format in ONLY_READ:
        envelope = source.envelope.upper()
        return f"leave out ENVELOPE {envelope}: '{source.format}' has its own columns"
    return schema


def diff_hint(source: SourceDescription) -> str:
    """The hint for a source without ENVELOPE DIFF whose rows have a column `_diff`."""
    if source.format == "counter":
        return "write ENVELOPE DIFF, or leave out maxCardinality: old rows are retracted by it"
    return "write ENVELOPE DIFF if it says by how many copies a row changes, or rename it"


def find_columns_problem(schema: str, spelt: Iterable[str] = ()) -> ColumnProblem | None:
    """The first reason why these columns cannot be those of a shard; None if there is none.

    Args:
        schema: The columns.
        spelt: Names that the user wrote: they are not invented by Spark, however odd they are.
    """
    fields = json.loads(schema)["fields"]
    known: dict[str, str] = {}
    given = {name.lower() for name in spelt}
    for field in fields:
        name = field["name"]
        if re.fullmatch(r"\w+", name) is None and name.lower() not in given:
            hint = "give it a name with AS: Spark's own would change with the text"
            return "UNNAMED_COLUMN", f"column '{name}' has no name of its own", hint
        if name.lower() in known:
            hint = "names are compared without case; rename one of them with AS, or leave it out"
            return "DUPLICATE_COLUMN", f"there are two columns '{name}'", hint
        if field["type"] == "void":
            hint = f"say which: CAST(NULL AS type) AS {name}"
            return "UNSUPPORTED_TYPE", f"column '{name}' has no type", hint
        known[name.lower()] = name
    try:
        ShardSchema.parse(schema)
    except InvalidUsage as error:
        return error.code, error.detail, error.hint
    return None


def spell_key(key: Sequence[str], schema: str) -> tuple[tuple[str, ...], list[tuple[str, str]]]:
    """The columns of a key in the schema's spelling.

    Returns:
        The columns, and those of the key that do not exist, each with a hint.
    """
    columns = {name.lower(): name for name in names_of(schema)}
    unknown = [
        (name, did_you_mean(name, columns.values())) for name in key if name.lower() not in columns
    ]
    return tuple(columns.get(name.lower(), name) for name in key), unknown


def find_taken_name(schema: str) -> ColumnProblem | None:
    """The problem of a source's column that has a name of those that the runtime adds; or None."""
    taken = [name for name in names_of(schema) if name.lower().startswith(ADDED)]
    if not taken:
        return None
    message = f"column '{taken[0]}' has a name that the runtime gives to columns of its own"
    return "RESERVED_NAME", message, f"give it another name: none begins with {ADDED}"


def find_key_problem(name: str, schema: str) -> ColumnProblem | None:
    """The reason why a column cannot be of the key of a shard with these columns, or None."""
    try:
        ShardSchema.parse(schema).check_key([name])
    except InvalidUsage as error:
        return error.code, error.detail, error.hint
    return None

"""Rows that are decoded and do not fit: they lack a value that the source needs.

    with_unfit_marked(stream, …)     of a text format: they are rows that cannot be decoded
    with_unfit_refused(stream, …)    of other files: the micro-batch fails, and names the file

Spark gives such rows without a word: to it all columns of files may be NULL, whatever is declared.
The write behind it would fail for all rows of a micro-batch, for ever, and name neither row nor
file; or it would leave the row out, or take the NULL for true.

    a column NOT NULL     it is NULL; so is a field of a struct, in an array or a map as well. Not
                          in a row that deletes its key, which needs no other column, nor in the
                          image before an event: many databases log its key alone
    envelope diff         `_diff` is NULL
    envelope debezium     an event without the images that it needs: above all those that a
                          connector has wrapped in a `payload`, of which no column is read
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from shardline.app.protocol.objects import SourceDescription
from shardline.app.storage.json_texts import exact_json
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frames import quoted
from shardline.datasource.schema import DIFF
from shardline.datasource.sink import AFTER, BEFORE, NEED_AFTER, OP

__all__ = ["unfit_clause", "with_unfit_marked", "with_unfit_refused"]

_NEED_NO_IMAGE: Final = ("d", "m", "t")
"""Operations of events without images: a message, which says nothing of rows; and a truncation and
a delete, which are refused by their own names."""


def unfit_clause(description: SourceDescription) -> str:
    """What else than a text that cannot be decoded is wrong with a marked row, as a clause."""
    silent = ", or is an event without the images that it needs"
    needed = " or ".join(_needed(description))
    return (silent if description.envelope == "debezium" else "") + (
        f", or has NULL in {needed}" if needed else ""
    )


def with_unfit_marked(stream: DataFrame, description: SourceDescription, mark: str) -> DataFrame:
    """`stream`, with rows that do not fit as rows that cannot be decoded.

    Args:
        stream: Of a text format.
        description: Of the source.
        mark: Column with the text of a row that cannot be decoded.
    """
    found = _silent_event(stream) if description.envelope == "debezium" else None
    found = _either(found, _null(description, stream))
    if found is None:
        return stream
    own = [quoted(name) for name in stream.columns if name != mark]
    marked = F.coalesce(F.col(mark), F.when(found, exact_json(own)))
    return stream.withColumn(mark, marked)


def with_unfit_refused(stream: DataFrame, description: SourceDescription, file: str) -> DataFrame:
    """`stream`, which fails at a row that does not fit, with the name of its file.

    Args:
        stream: Of files whose rows are not decoded one by one.
        description: Of the source.
        file: Column with the file that has the row.
    """
    found = _null(description, stream)
    if found is None:
        return stream
    mark = "\0"
    refusal = InvalidUsage(
        f"a row of {mark} has NULL in {' or '.join(_needed(description))}",
        code="NULL_VALUE",
        hint="correct the file; or, of a column that is NOT NULL in SCHEMA, take that out",
    )
    before, after = str(refusal).split(mark)
    text = F.concat(F.lit(before), F.col(file), F.lit(after))
    return stream.where(F.when(found, F.raise_error(text).cast("boolean")).otherwise(F.lit(True)))


def _null(description: SourceDescription, stream: DataFrame) -> Column | None:
    """True for a row without a value that it must have; None if all may be NULL."""
    found = None
    if description.envelope == "diff" and DIFF in stream.columns:
        found = F.col(DIFF).isNull()
    key = {name.lower() for name in description.key}
    for field in _declared(description):
        null = _null_within(quoted(field.name), field)
        if null is not None and description.envelope == "upsert" and field.name.lower() not in key:
            null = null & _puts_row(description)
        found = _either(found, null)
    return found


def _needed(description: SourceDescription) -> list[str]:
    """Names of what must not be NULL; of fields of structs with the way to them."""
    found = [name for field in _declared(description) for name in _names_within(field)]
    return [DIFF, *found] if description.envelope == "diff" and DIFF not in found else found


def _declared(description: SourceDescription) -> list[StructField]:
    """The columns as they are declared, but for those of which nothing is needed."""
    if not description.schema:
        return []
    columns = StructType.fromDDL(description.schema)
    assert isinstance(columns, StructType), columns
    return [f for f in columns if description.envelope != "debezium" or f.name != BEFORE]


def _null_within(column: Column, field: StructField) -> Column | None:
    """True if a column, or something in it, is NULL and must not be; None if all may be NULL."""
    within = _null_below(column, field.dataType)
    inner = None if within is None else column.isNotNull() & within
    return inner if field.nullable else _either(column.isNull(), inner)


def _null_below(column: Column, kind: DataType) -> Column | None:
    """The same of what is in a value that is not NULL itself."""
    found = None
    match kind:
        case StructType():
            for inner in kind:
                found = _either(found, _null_within(column.getField(inner.name), inner))
        case ArrayType():
            found = _null_among(column, kind.elementType)
        case MapType():
            found = _either(
                _null_among(F.map_keys(column), kind.keyType),
                _null_among(F.map_values(column), kind.valueType),
            )
    return found


def _null_among(values: Column, kind: DataType) -> Column | None:
    """The same of what is in any of the values in an array; they themselves may be NULL."""
    if _null_below(F.lit(None), kind) is None:
        return None

    def is_unfit(value: Column) -> Column:
        null = _null_below(value, kind)
        assert null is not None, kind
        return value.isNotNull() & null

    return F.exists(values, is_unfit)


def _names_within(field: StructField) -> list[str]:
    names = [f"{field.name}.{name}" for name in _names_below(field.dataType)]
    return names if field.nullable else [field.name, *names]


def _names_below(kind: DataType) -> list[str]:
    """Names of what must not be NULL in a value, as Spark calls the parts of arrays and maps."""
    match kind:
        case StructType():
            return [name for inner in kind for name in _names_within(inner)]
        case ArrayType():
            return [f"element.{name}" for name in _names_below(kind.elementType)]
        case MapType():
            kinds = (("key", kind.keyType), ("value", kind.valueType))
            return [f"{part}.{name}" for part, one in kinds for name in _names_below(one)]
    return []


def _puts_row(description: SourceDescription) -> Column:
    """False for a row of the envelope upsert that deletes its key."""
    options = {name.lower(): text for name, text in description.options.items()}
    if "deletecolumn" in options:
        return ~F.coalesce(quoted(options["deletecolumn"]).cast("boolean"), F.lit(False))
    silent = {*description.key, options.get("orderingcolumn", "")}
    silent = {name.lower() for name in silent}
    telling = [f.name for f in _declared(description) if f.name.lower() not in silent]
    found = F.lit(not telling)
    for name in telling:
        found = found | quoted(name).isNotNull()
    return found


def _silent_event(stream: DataFrame) -> Column | None:
    """True for an event that lacks the images which it needs."""
    names = stream.columns
    if AFTER not in names:
        return None  # refused where the shard is made
    nothing = F.col(BEFORE).isNull() if BEFORE in names else F.lit(True)
    op = F.coalesce(F.col(OP).cast("string"), F.lit("")) if OP in names else F.lit("")
    return F.col(AFTER).isNull() & (op.isin(*NEED_AFTER) | (nothing & ~op.isin(*_NEED_NO_IMAGE)))


def _either(one: Column | None, other: Column | None) -> Column | None:
    if one is None or other is None:
        return other if one is None else one
    return one | other

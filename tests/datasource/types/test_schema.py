"""A shard's schema against PySpark's own reading of the same JSON."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.types.schema import ShardSchema
from support.strategies.rows import bounded, schemas

DAY_TIME = [t.DayTimeIntervalType(a, b) for a in range(4) for b in range(a, 4)]
ATOMS = [
    t.BooleanType(),
    t.ByteType(),
    t.ShortType(),
    t.IntegerType(),
    t.LongType(),
    t.FloatType(),
    t.DoubleType(),
    t.DecimalType(38, 18),
    t.DecimalType(5, 0),
    t.StringType(),
    t.StringType("UNICODE_CI"),
    t.StringType("UTF8_LCASE"),
    t.BinaryType(),
    t.DateType(),
    t.TimestampType(),
    t.TimestampNTZType(),
    t.TimeType(0),
    t.TimeType(6),
    t.VariantType(),
    t.NullType(),
    t.GeometryType(4326),
    t.GeometryType(3857),
    t.GeometryType("ANY"),
    t.GeographyType(4326),
    t.GeographyType("ANY"),
    *DAY_TIME,
]


def nested(kind: t.DataType) -> list[t.DataType]:
    if kind == t.NullType():
        return [t.ArrayType(kind), t.MapType(t.StringType(), kind), struct_of(kind)]
    return [
        t.ArrayType(kind, False),
        t.ArrayType(t.ArrayType(kind)),
        t.MapType(t.StringType(), kind, False),
        t.StructType([t.StructField("in", kind, False, {"comment": "x"})]),
        t.ArrayType(t.StructType([t.StructField("in", kind)])),
    ]


def struct_of(kind: t.DataType, **metadata: object) -> t.StructType:
    return t.StructType([t.StructField("c", kind, True, metadata)])


@pytest.mark.parametrize("atom", ATOMS, ids=repr)
def test_arrow_schema_is_what_pyspark_derives(atom: t.DataType) -> None:
    """Plain and nested, types, nullability, child names and metadata are PySpark's."""
    for kind in [atom, *nested(atom)]:
        struct = struct_of(kind, comment="ü")
        expected = to_arrow_schema(t.StructType.fromJson(struct.jsonValue()), timezone="UTC")
        found = ShardSchema.parse(struct.json()).arrow
        assert found.equals(expected, check_metadata=True), (found, expected)


@pytest.mark.parametrize("atom", ATOMS, ids=repr)
def test_json_is_what_pyspark_writes(atom: t.DataType) -> None:
    """The canonical text is StructType.json(), so Spark gets back exactly what it gave."""
    for kind in [atom, *nested(atom)]:
        struct = struct_of(kind, b=1, a=[2])
        text = ShardSchema.parse(struct.json()).json
        assert text == struct.json()
        assert t.StructType.fromJson(json.loads(text)) == struct


@given(schemas())
@bounded
def test_parsing_the_canonical_text_changes_nothing(schema: ShardSchema) -> None:
    """A schema survives its own text, and PySpark reads the same Arrow schema from it."""
    assert ShardSchema.parse(schema.json) == schema
    struct = t.StructType.fromJson(json.loads(schema.json))
    assert schema.arrow.equals(to_arrow_schema(struct, timezone="UTC"), check_metadata=True)


def test_key_order_and_blanks_do_not_matter() -> None:
    """Two spellings of one schema are equal."""
    spelled = (
        '{"fields": [{"type":"decimal( 10 , 2 )", "name":"a", "nullable":true}], "type":"struct"}'
    )
    canonical = t.StructType().add("a", t.DecimalType(10, 2)).json()
    assert ShardSchema.parse(spelled) == ShardSchema.parse(canonical)


@pytest.mark.parametrize(
    "kind",
    [
        '"interval"',
        '"interval year to month"',
        '"varchar(10)"',
        '"char(3)"',
        '"decimal(39,0)"',
        '"decimal(3,-2)"',
        '"geometry(EPSG:1)"',
        '{"type":"array","elementType":"void","containsNull":false}',
        '{"type":"map","keyType":"void","valueType":"long","valueContainsNull":true}',
        '{"type":"struct","fields":[]}',
        '{"type":"udt","class":"x","sqlType":"long"}',
    ],
)
def test_types_that_cannot_be_carried_are_refused_by_path(kind: str) -> None:
    """The message names the column, however deep it is."""
    inner = f'{{"type":"struct","fields":[{{"name":"x.y","type":{kind},"nullable":true}}]}}'
    text = (
        '{"type":"struct","fields":[{"name":"a","nullable":true,"type":'
        f'{{"type":"array","containsNull":true,"elementType":{inner}}}}}]}}'
    )
    with pytest.raises(InvalidUsage, match=r"a\.element\.`x\.y`") as refused:
        ShardSchema.parse(text)
    assert refused.value.code == "UNSUPPORTED_TYPE"


@pytest.mark.parametrize("text", ["", "{", "[]", '"long"', '{"type":"struct"}', '{"type":"array"}'])
def test_what_is_no_schema_is_refused(text: str) -> None:
    """Any other text is a clear error and no crash."""
    with pytest.raises(InvalidUsage) as refused:
        ShardSchema.parse(text)
    assert refused.value.code in ("SCHEMA_UNREADABLE", "UNSUPPORTED_TYPE")


@pytest.mark.parametrize(
    ("names", "code"),
    [
        (["a", "A"], "DUPLICATE_COLUMN"),
        (["_ts"], "RESERVED_COLUMN"),
        (["_DIFF"], "RESERVED_COLUMN"),
        ([], "NO_COLUMNS"),
    ],
)
def test_names_a_shard_cannot_have_are_refused(names: list[str], code: str) -> None:
    """Names that differ by case only, reserved ones and none at all."""
    struct = t.StructType([t.StructField(n, t.LongType()) for n in names])
    with pytest.raises(InvalidUsage) as refused:
        ShardSchema.parse(struct.json())
    assert refused.value.code == code


@pytest.mark.parametrize("atom", ATOMS, ids=repr)
def test_from_arrow_finds_the_type_again(atom: t.DataType) -> None:
    """Except what Arrow does not carry: interval ranges, time precisions and collations."""
    for kind in [atom, *nested(atom)]:
        schema = ShardSchema.parse(struct_of(kind, comment="x").json())
        again = ShardSchema.from_arrow(schema.arrow)
        assert again.arrow.equals(schema.arrow, check_metadata=True)
        if not isinstance(atom, t.DayTimeIntervalType | t.TimeType | t.StringType):
            assert again == schema


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (pa.large_string(), "string"),
        (pa.string_view(), "string"),
        (pa.dictionary(pa.int32(), pa.string()), "string"),
        (pa.binary(3), "binary"),
        (pa.timestamp("s"), "timestamp_ntz"),
        (pa.timestamp("ms", "Europe/Paris"), "timestamp"),
        (pa.time32("ms"), "time(6)"),
        (pa.decimal64(7, 2), "decimal(7,2)"),
    ],
)
def test_from_arrow_takes_types_of_the_same_values(kind: pa.DataType, expected: str) -> None:
    """Encodings and coarser units mean a Spark type."""
    schema = ShardSchema.from_arrow(pa.schema([("c", kind)]))
    assert json.loads(schema.json)["fields"][0]["type"] == expected


@pytest.mark.parametrize(
    "kind",
    [pa.uint64(), pa.uint8(), pa.timestamp("ns"), pa.float16(), pa.decimal256(40, 2), pa.date64()],
)
def test_from_arrow_refuses_what_would_lose_values(kind: pa.DataType) -> None:
    """With the path of the column."""
    with pytest.raises(InvalidUsage, match=r"outer\.c") as refused:
        ShardSchema.from_arrow(pa.schema([("outer", pa.struct([("c", kind)]))]))
    assert refused.value.code == "UNSUPPORTED_TYPE"


def test_key_columns_must_exist_once_and_have_an_order() -> None:
    """A misspelt key column gets the nearest name as a hint."""
    schema = ShardSchema.parse(
        t.StructType().add("id", "long").add("tags", t.ArrayType(t.StringType())).json()
    )
    schema.check_key(["id"])
    with pytest.raises(InvalidUsage, match="did you mean 'tags'"):
        schema.check_key(["tag"])
    for bad in (["tags"], ["id", "id"]):
        with pytest.raises(InvalidUsage) as refused:
            schema.check_key(bad)
        assert refused.value.code == "BAD_KEY"


def test_a_text_with_a_collation_is_no_key() -> None:
    """A shard tells keys apart by their bytes: a query would find one key several times."""
    collated = t.StructType().add("name", t.StringType("UTF8_LCASE"))
    schema = ShardSchema.parse(collated.json())
    assert schema.has_order("name")
    with pytest.raises(InvalidUsage, match=r"BAD_KEY.*'name' has a collation \(UTF8_LCASE\)"):
        schema.check_key(["name"])
    plain = t.StructType().add("name", t.StringType("UTF8_BINARY"))
    ShardSchema.parse(plain.json()).check_key(["name"])


def test_select_keeps_the_given_order() -> None:
    """A projection is a schema of its own."""
    schema = ShardSchema.parse(t.StructType().add("a", "long").add("b", "string").json())
    assert schema.select(["b"]).names == ("b",)
    assert schema.select(["b", "a"]).arrow.names == ["b", "a"]

"""Schema changes are allowed if old data means the same under the new schema."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.rows.sorting import order_rows
from shardline.datasource.rows.updates import sort_rows, stamp
from shardline.datasource.types.cast_to_schema import check_data, migrate_rows
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.types.schema_evolution import Incompatible, evolve
from support.profiles import wide_examples
from support.strategies.rows import (
    Case,
    bounded,
    cases,
    cut,
    identity,
    plain_rows,
    row_identity,
    rows,
    to_table,
)

WIDENINGS = [
    ("byte", "short"),
    ("byte", "long"),
    ("short", "integer"),
    ("integer", "long"),
    ("byte", "double"),
    ("integer", "double"),
    ("float", "double"),
    ("byte", "decimal(10,0)"),
    ("integer", "decimal(12,2)"),
    ("long", "decimal(20,0)"),
    ("decimal(5,2)", "decimal(7,2)"),
    ("decimal(5,2)", "decimal(8,4)"),
    ("decimal(18,18)", "decimal(38,18)"),
]
REFUSED = [
    ("long", "integer"),
    ("long", "double"),
    ("integer", "float"),
    ("integer", "decimal(9,0)"),
    ("long", "decimal(20,1)"),
    ("decimal(5,2)", "decimal(5,3)"),
    ("decimal(5,2)", "decimal(6,1)"),
    ("double", "float"),
    ("date", "timestamp"),
    ("string", "binary"),
    ("long", "string"),
]


def schema_of(kind: Any, **more: Any) -> ShardSchema:
    field = {"name": "c", "type": kind, "nullable": True, "metadata": {}, **more}
    return ShardSchema.parse(json.dumps({"type": "struct", "fields": [field]}))


def nestings(kind: Any) -> list[Any]:
    inner = {"name": "x", "type": kind, "nullable": True, "metadata": {}}
    record = {"type": "struct", "fields": [inner]}
    return [
        kind,
        record,
        {"type": "array", "elementType": kind, "containsNull": True},
        {"type": "map", "keyType": kind, "valueType": record, "valueContainsNull": True},
    ]


@pytest.mark.parametrize(("old", "new"), [*WIDENINGS, ("date", "timestamp_ntz")])
def test_widening_is_allowed_at_any_depth(old: str, new: str) -> None:
    """In columns, structs, lists, map keys and values."""
    for a, b in zip(nestings(old), nestings(new), strict=True):
        assert evolve(schema_of(a), schema_of(b)) == schema_of(b)


@pytest.mark.parametrize(("old", "new"), REFUSED)
def test_other_type_changes_are_refused_with_column_and_types(old: str, new: str) -> None:
    """At any depth, too; the error says all three."""
    for a, b in zip(nestings(old), nestings(new), strict=True):
        refusal = evolve(schema_of(a), schema_of(b))
        assert isinstance(refusal, Incompatible)
        assert refusal.column.startswith("c")
        assert f"from {old} to {new}" in str(refusal.error())


@pytest.mark.parametrize(("old", "new"), WIDENINGS)
def test_widening_keeps_identity_and_order(old: str, new: str) -> None:
    """Migrated rows are distinct and sorted exactly as they were, at every depth."""

    @given(st.data())
    @wide_examples(0.4)
    def holds(data: st.DataObject) -> None:
        at = data.draw(st.integers(0, 3))
        before, after = schema_of(nestings(old)[at]), schema_of(nestings(new)[at])
        some = data.draw(rows(before))
        table = sort_rows(cut(to_table(some, before), data.draw(st.lists(st.integers(0, 9)))))
        wide = migrate_rows(table, before, after)
        assert wide.schema.equals(after.arrow, check_metadata=True)
        wide.validate(full=True)
        assert order_rows(wide, ["c"]).indices is None
        narrow_ids = [row_identity(r, before) for r in plain_rows(table)]
        wide_ids = [row_identity(r, after) for r in plain_rows(wide)]
        assert len(set(zip(narrow_ids, wide_ids, strict=True))) == len(set(narrow_ids))
        assert len(set(wide_ids)) == len(set(narrow_ids))

    holds()


def test_a_date_beyond_timestamps_is_refused_and_others_are_exact() -> None:
    """No wrap-around: the value and the column are named."""
    old, new = schema_of("date"), schema_of("timestamp_ntz")
    fits = pa.table({"c": pa.array([-100_000, 0, 20_000], pa.int32()).view(pa.date32())})
    assert plain_rows(migrate_rows(fits, old, new)) == [
        (-8640000000000000,),
        (0,),
        (1728000000000000,),
    ]
    too_late = pa.table({"c": pa.array([2**31 - 1], pa.int32()).view(pa.date32())})
    with pytest.raises(InvalidUsage, match="'c'") as refused:
        migrate_rows(too_late, old, new)
    assert refused.value.code == "LOSSY_VALUE"


def test_decimals_are_rescaled_exactly() -> None:
    """More digits after the point, the same number."""
    table = pa.table({"c": pa.array([Decimal("-999.99"), None], pa.decimal128(5, 2))})
    wide = migrate_rows(table, schema_of("decimal(5,2)"), schema_of("decimal(8,4)"))
    assert wide.column("c").to_pylist() == [Decimal("-999.9900"), None]


def with_fields(*fields: tuple[str, Any, bool]) -> ShardSchema:
    return ShardSchema.parse(
        json.dumps(
            {
                "type": "struct",
                "fields": [
                    {"name": n, "type": t, "nullable": null, "metadata": {}}
                    for n, t, null in fields
                ],
            }
        )
    )


def test_structure_changes() -> None:
    """Append nullable, relax to nullable; nothing else."""
    base = with_fields(("a", "long", False), ("b", "string", True))
    assert evolve(base, base) is base
    added = with_fields(("a", "long", False), ("b", "string", True), ("n", "date", True))
    assert evolve(base, added) == added
    relaxed = with_fields(("a", "long", True), ("b", "string", True))
    assert evolve(base, relaxed) == relaxed
    refused = {
        "n": with_fields(("a", "long", False), ("b", "string", True), ("n", "date", False)),
        "b": with_fields(("a", "long", False)),
        "n ": with_fields(("n ", "date", True), ("a", "long", False), ("b", "string", True)),
    }
    for column, requested in refused.items():
        refusal = evolve(base, requested)
        assert isinstance(refusal, Incompatible)
        assert refusal.column == column
    back = evolve(relaxed, base)
    assert isinstance(back, Incompatible)
    assert back.column == "a"


def test_a_collation_cannot_change_but_a_comment_can() -> None:
    """Collations decide what queries mean; other metadata is the user's."""
    plain = schema_of("string")
    collated = schema_of("string", metadata={"__COLLATIONS": {"c": "icu.UNICODE_CI"}})
    commented = schema_of("string", metadata={"comment": "x"})
    assert isinstance(evolve(plain, collated), Incompatible)
    assert evolve(plain, commented) == commented


def appended(value: Any) -> Any:
    """The same type with a nullable column appended to every struct in it, map keys excepted."""
    if not isinstance(value, dict):
        return value
    if value["type"] == "array":
        return {**value, "elementType": appended(value["elementType"])}
    if value["type"] == "map":
        return {**value, "valueType": appended(value["valueType"])}
    fields = [{**f, "type": appended(f["type"])} for f in value["fields"]]
    return {
        **value,
        "fields": [*fields, {"name": "new", "type": "date", "nullable": True, "metadata": {}}],
    }


def widened(value: Any, old: Any) -> Any:
    """What a plain value becomes under `appended`; `old` is the type's JSON."""
    if value is None or not isinstance(old, dict):
        return value
    if old["type"] == "array":
        return [widened(v, old["elementType"]) for v in value]
    if old["type"] == "map":
        return [(k, widened(v, old["valueType"])) for k, v in value]
    inner = (widened(v, f["type"]) for v, f in zip(value, old["fields"], strict=True))
    return (*inner, None)


@given(cases())
@bounded
def test_added_columns_are_null_at_every_depth_and_migration_composes(case: Case) -> None:
    """Twice one step is one double step; updates keep their times and diffs."""
    old = json.loads(case.schema.json)
    middle = ShardSchema.parse(json.dumps(appended(old)))
    assert evolve(case.schema, middle) == middle
    updates = stamp(case.table, 7, -2)
    once = migrate_rows(updates, case.schema, middle)
    once.validate(full=True)
    assert once.column_names[-2:] == ["_ts", "_diff"]
    expected = [widened(r, old) for r in case.rows]
    found = plain_rows(once, middle.names)
    assert [row_identity(r, middle) for r in found] == [row_identity(r, middle) for r in expected]
    text = json.dumps(appended(json.loads(middle.json))).replace('"new"', '"newer"', 0)
    last = ShardSchema.parse(_renamed(text))
    twice, direct = migrate_rows(once, middle, last), migrate_rows(updates, case.schema, last)
    assert twice.schema == direct.schema
    assert [row_identity(r, last) for r in plain_rows(twice, last.names)] == [
        row_identity(r, last) for r in plain_rows(direct, last.names)
    ]


def _renamed(text: str) -> str:
    """Give the second column called "new" of each struct a name of its own."""

    def fix(value: Any) -> Any:
        if isinstance(value, list):
            return [fix(v) for v in value]
        if not isinstance(value, dict):
            return value
        value = {k: fix(v) for k, v in value.items()}
        if value.get("type") == "struct" and value["fields"][-1]["name"] == "new":
            news = [f for f in value["fields"] if f["name"] == "new"]
            if len(news) > 1:
                value["fields"][-1]["name"] = "newer"
        return value

    return json.dumps(fix(json.loads(text)))


def test_migrating_to_a_projection_drops_the_other_columns() -> None:
    """A reader asks for some columns of the newest schema."""
    old = with_fields(("a", "long", False), ("b", "string", True))
    new = with_fields(("a", "long", False), ("b", "string", True), ("n", "date", True))
    table = pa.table({"a": pa.array([1, 2]), "b": ["x", None]})
    found = migrate_rows(table, old, new.select(["n", "a"]))
    assert plain_rows(found) == [(None, 1), (None, 2)]


# --- checks of a writer's data -----------------------------------------------------------------


@given(cases())
@bounded
def test_data_of_the_schema_passes_unchanged(case: Case) -> None:
    """Whatever the chunks; the values are the same afterwards."""
    checked = check_data(case.table, case.schema)
    assert checked.schema.equals(case.schema.arrow, check_metadata=True)
    assert [row_identity(r, case.schema) for r in plain_rows(checked)] == [
        row_identity(r, case.schema) for r in case.rows
    ]


def test_equivalent_arrow_types_are_cast() -> None:
    """Large strings, dictionaries, other names of list elements, milliseconds, any column order."""
    schema = ShardSchema.from_arrow(
        pa.schema([("s", pa.string()), ("l", pa.list_(pa.int32())), ("t", pa.timestamp("us"))])
    )
    data = pa.table(
        {
            "t": pa.array([5], pa.timestamp("ms")),
            "l": pa.array([[1, 2]], pa.large_list(pa.int32())),
            "s": pa.array(["x"]).dictionary_encode(),
        }
    )
    checked = check_data(data, schema)
    assert checked.schema.equals(schema.arrow, check_metadata=True)
    assert plain_rows(checked) == [("x", [1, 2], 5000)]


@pytest.mark.parametrize(
    ("data", "code", "column"),
    [
        ({"a": pa.array([1])}, "MISSING_COLUMN", "b"),
        ({"a": pa.array([1]), "b": ["x"], "z": ["x"]}, "EXTRA_COLUMN", "z"),
        ({"a": pa.array([1], pa.int32()), "b": ["x"]}, "WRONG_TYPE", "a"),
        ({"a": pa.array([None], pa.int64()), "b": ["x"]}, "NULL_VALUE", "a"),
        ({"a": pa.array([1]), "b": ["x"], "_ts": ["x"]}, "WRONG_TYPE", "_ts"),
    ],
)
def test_wrong_data_is_refused_with_the_column(data: Any, code: str, column: str) -> None:
    """Missing, extra, wrong type, null where none may be."""
    schema = with_fields(("a", "long", False), ("b", "string", True))
    with pytest.raises(InvalidUsage, match=f"'{column}'") as refused:
        check_data(pa.table(data), schema)
    assert refused.value.code == code


def test_nulls_inside_are_found_but_not_those_below_null_parents() -> None:
    """A null struct may have null fields, a null list any garbage."""
    inner = {"name": "x", "type": "long", "nullable": False, "metadata": {}}
    record = {"type": "struct", "fields": [inner]}
    schema = with_fields(
        ("c", {"type": "array", "elementType": record, "containsNull": True}, True)
    )
    kind = pa.list_(pa.struct([("x", pa.int64())]))
    fine = pa.table({"c": pa.array([None, [], [None, {"x": 1}]], kind)})
    assert check_data(fine, schema).num_rows == 3
    bad = pa.table({"c": pa.array([[{"x": None}], [{"x": 1}]], kind)})
    assert check_data(bad.slice(1), schema).num_rows == 1
    with pytest.raises(InvalidUsage, match=r"c\.element\.x"):
        check_data(bad, schema)


def test_time_finer_than_the_schema_is_refused_not_truncated() -> None:
    """A coarser unit is multiplied exactly or refused when it overflows."""
    schema = ShardSchema.from_arrow(pa.schema([("t", pa.timestamp("us"))]))
    with pytest.raises(InvalidUsage) as refused:
        check_data(pa.table({"t": pa.array([2**62], pa.timestamp("s"))}), schema)
    assert refused.value.code == "LOSSY_VALUE"
    with pytest.raises(InvalidUsage) as other:
        check_data(pa.table({"t": pa.array([1], pa.timestamp("ns"))}), schema)
    assert other.value.code == "WRONG_TYPE"


def test_identity_of_the_model_tells_zeros_apart() -> None:
    """The oracle itself: -0.0 is not 0.0, any NaN is NaN."""
    kind = schema_of("double").record.fields[0].type
    assert identity(0.0, kind) != identity(-0.0, kind)
    assert identity(float("nan"), kind) == identity(-float("nan"), kind)

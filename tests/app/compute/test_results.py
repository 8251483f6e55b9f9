"""Results as bytes and as text: nothing is lost, nothing is rounded, nothing is reordered."""

from __future__ import annotations

import datetime as dt
import io
import json
import math
from decimal import Decimal

import msgspec
import pyarrow as pa
import pytest
from rich.console import Console

from shardline.app.cli.result_table import result_table
from shardline.app.compute.results import as_csv, as_json, from_ipc, json_rows, relabel, to_ipc

TABLE = pa.table(
    {
        "i": pa.array([2**62, None, 3]),
        "f": pa.array([float("nan"), -0.0, float("-inf")]),
        "s": pa.array(['ä,"b"', "", None]),
        "d": pa.array([Decimal("1.50"), None, Decimal("-0.01")], pa.decimal128(20, 2)),
        "t": pa.array([0, 1, -(10**17)], pa.timestamp("us", tz="UTC")),
        "day": pa.array([dt.date(2020, 1, 2), None, None]),
        "b": pa.array([b"\x00", None, b""]),
        "ok": pa.array([True, False, None]),
        "r": pa.array([{"x": 1.5}, None, {"x": None}]),
        "m": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
    }
)


def test_a_stream_of_bytes_is_the_table() -> None:
    """Types, nullability and order survive; an empty table keeps its columns."""
    strict = pa.table([pa.array([1])], schema=pa.schema([pa.field("i", pa.int64(), False)]))
    for table in (TABLE, TABLE.slice(0, 0), strict):
        back = from_ipc(to_ipc(table))
        assert back.schema == table.schema
        found, wanted = ([c.combine_chunks().to_string() for c in t.columns] for t in (back, table))
        assert found == wanted


def test_json_has_a_form_for_every_value() -> None:
    """Each line is strict JSON; what JSON cannot say is text."""

    def refuse(word: str) -> None:
        raise AssertionError(word)

    first, second, third = (json.loads(line, parse_constant=refuse) for line in as_json(TABLE))
    assert first == {
        "i": 2**62,
        "f": "NaN",
        "s": 'ä,"b"',
        "d": "1.50",
        "t": "1970-01-01 00:00:00.000000Z",
        "day": "2020-01-02",
        "b": "AA==",
        "ok": True,
        "r": {"x": 1.5},
        "m": [{"key": "k", "value": 1}],
    }
    assert (second["i"], second["f"], second["m"]) == (None, -0.0, [])
    assert (third["f"], third["d"], third["r"]) == ("-Infinity", "-0.01", {"x": None})
    assert third["t"].startswith("-1199-")


NUMBERS = ["NaN", "Infinity", "-Infinity", 1.5, None]


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (pa.array([math.nan, math.inf, -math.inf, 1.5, None]), NUMBERS),
        (pa.array([math.nan, math.inf, -math.inf, 1.5, None], pa.float32()), NUMBERS),
        (pa.array([[math.nan], None]), [["NaN"], None]),
        (pa.array([{"x": math.inf}]), [{"x": "Infinity"}]),
        (
            pa.array([[("k", math.nan)]], pa.map_(pa.string(), pa.float64())),
            [[["k", "NaN"]]],
        ),
        (pa.array([2**62, None]), [2**62, None]),
        (pa.array([Decimal("1.50")]), ["1.50"]),
        (pa.array([0], pa.timestamp("us", tz="UTC")), ["1970-01-01T00:00:00Z"]),
        (pa.array([-(10**17), None], pa.timestamp("us")), ["-1199-02-15T14:13:20.000000", None]),
        (pa.array([3_000_000, 0], pa.date32()), ["10183-09-21", "1970-01-01"]),
    ],
)
def test_an_encoder_loses_no_value(column: pa.Array, values: list[object]) -> None:
    """A number that JSON has not is text and no null, which is NULL."""
    table = pa.Table.from_arrays([column, column], names=["a", "a"])
    encoded = msgspec.json.encode(list(json_rows(table)))
    assert msgspec.json.decode(encoded) == [[value, value] for value in values]


FAR = pa.array([3_000_000, None], pa.int32())
"""Days since 1970, of which the first is in a year that Python does not have."""


@pytest.mark.parametrize(
    ("column", "values"),
    [
        (
            pa.array([{"d": 3_000_000}, None], pa.struct([("d", pa.int32())])).cast(
                pa.struct([("d", pa.date32())])
            ),
            [{"d": "10183-09-21"}, None],
        ),
        (pa.ListArray.from_arrays([0, 2, 2], FAR.cast(pa.date32())), [["10183-09-21", None], []]),
        (
            pa.ListArray.from_arrays(
                [0, 1, 1],
                pa.array([253_402_300_800_000_000], pa.timestamp("us", "UTC")),
                mask=pa.array([False, True]),
            ),
            [["10000-01-01 00:00:00.000000Z"], None],
        ),
        (
            pa.MapArray.from_arrays(
                pa.array([0, 1, 2], pa.int32()), ["a", "b"], FAR.cast(pa.date32())
            ),
            [[{"key": "a", "value": "10183-09-21"}], [{"key": "b", "value": None}]],
        ),
        (
            pa.Array.from_buffers(pa.string(), 2, pa.array([b"a\xff", b""], pa.binary()).buffers()),
            ["a\ufffd", ""],
        ),
    ],
)
def test_what_python_has_no_value_for_is_shown(column: pa.Array, values: list[object]) -> None:
    """Also inside of others: a page of rows is never refused because of one of them."""
    table = pa.table({"a": column})
    assert [json.loads(line)["a"] for line in as_json(table)] == values
    assert len(as_csv(table).splitlines()) == 3
    shown = [row[0] for row in msgspec.json.decode(msgspec.json.encode(list(json_rows(table))))]
    assert len(shown) == 2


def test_an_interval_is_its_three_numbers() -> None:
    """Months, days and nanoseconds, which do not add up to one."""
    table = pa.table({"i": pa.array([(1, 2, 3)], pa.month_day_nano_interval())})
    assert list(as_json(table)) == ['{"i": [1, 2, 3]}']
    assert as_csv(table) == 'i\r\n"[1, 2, 3]"\r\n'


def test_two_columns_of_one_name_are_both_there() -> None:
    """A join may give a name twice; JSON would keep one of them."""
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
    assert list(as_json(table)) == ['{"a": 1, "a_2": 2}']
    assert as_csv(table) == "a,a\r\n1,2\r\n"


def test_csv_is_quoted() -> None:
    """Commas and quotes are quoted; null is an empty field."""
    assert as_csv(TABLE.select(["s", "ok"])).splitlines() == [
        "s,ok",
        '"ä,""b""",true',
        ",false",
        ",",
    ]


def test_a_terminal_shows_what_fits() -> None:
    """Markup in values is text, numbers stand to the right, and what is left out is counted."""
    table = pa.table({"n": [1, 22], "s": ["[red]x", None]})
    out = io.StringIO()
    Console(file=out, width=60).print(result_table(table, rows_max=1))
    text = " ".join(out.getvalue().split())
    assert "[red]x" in text
    assert "22" not in text
    assert "and 1 more" in text


def test_values_are_no_commands_to_a_terminal() -> None:
    """Escape sequences in data are shown; what stands to their right stays in its column."""
    table = pa.table({"a\x1b[5m": ["x\x1b[2J", "long enough"], "b": ["B", "B"]})
    out = io.StringIO()
    Console(file=out, width=60).print(result_table(table))
    assert "\x1b" not in out.getvalue()
    head, first, second = out.getvalue().splitlines()[:3]
    assert (head.split()[0], first.split()[0]) == ("a\\x1b[5m", "x\\x1b[2J")
    assert first.index("B") == second.index("B")


def test_columns_get_other_labels_and_keep_their_values() -> None:
    """Also a struct that is NULL and has a field that never is, which Arrow casts to no type."""
    struct = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    structs = pa.chunked_array([pa.array([None, {"x": 1}], struct)])
    times = pa.chunked_array([pa.array([0, 1], pa.timestamp("us", "Europe/Berlin"))])
    schema = pa.schema([("s", struct), ("t", pa.timestamp("us", "UTC"))])
    found = relabel([structs, times], schema)
    assert found.schema == schema
    assert found["s"].to_pylist() == [None, {"x": 1}]
    assert found["t"].cast(pa.int64()).to_pylist() == [0, 1]

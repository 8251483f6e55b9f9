"""Engines are compared by tables that name each, and never by a view with wrong contents."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

from bench import engines
from bench.engines import Measured, WrongContents, check_contents, outcome, table
from bench.environments import Unavailable
from bench.orders import Orders

ROWS = ["1,customer 1 0,2,30", "2,customer 2 0,1,5"]


def test_the_table_has_a_line_for_each_engine_and_for_parts_of_its_rounds() -> None:
    found = table(
        {
            "DuckDB": Measured(100.0, [4.0, 2.0, 3.0], 250.4),
            "ours": Measured(12_349.0, [80.0, 90.0], 1234.5, {"the step": [60.0, 70.0]}),
        }
    )
    assert found.splitlines() == [
        "| | first contents, s | a round, median, ms | best, ms | memory, MiB |",
        "|---|---|---|---|---|",
        "| DuckDB | 0.10 | 3.0 | 2.0 | 250 |",
        "| ours | 12.35 | 85.0 | 80.0 | 1,234 |",
        "| of it the step | | 65.0 | 60.0 | |",
    ]


def test_an_engine_that_is_missing_or_wrong_is_named_below_the_table() -> None:
    failed = {"dbsp": Unavailable("there is no cargo on PATH"), "other": WrongContents("1 row")}
    said = outcome({"DuckDB": Measured(1.0, [1.0], 1.0)}, failed).splitlines()
    assert said[-2:] == [
        "dbsp could not be had: there is no cargo on PATH",
        "other is wrong: 1 row",
    ]


def test_contents_are_compared_in_any_order() -> None:
    check_contents(ROWS, reversed(ROWS))


@pytest.mark.parametrize(
    ("found", "message"),
    [
        ([ROWS[0]], "1 rows are missing, such as '2,customer 2 0,1,5'"),
        ([*ROWS, ROWS[1]], "1 rows are too many, such as '2,customer 2 0,1,5'"),
        ([ROWS[0], "2,customer 2 0,1,6"], "missing, such as .* and 1 rows are too many"),
        ([], "2 rows are missing"),
    ],
)
def test_wrong_contents_are_refused(found: list[str], message: str) -> None:
    with pytest.raises(WrongContents, match=message):
        check_contents(ROWS, found)


def test_crates_are_unavailable_without_cargo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "which", lambda _: None)
    work = engines._Work(10, 1, 1, tmp_path, tmp_path)
    with pytest.raises(Unavailable, match="no cargo on PATH"):
        engines._run_crate("dbsp", work, tmp_path / "contents.csv", 1)


def test_all_draw_the_same_orders_and_changes() -> None:
    first, second = Orders(1_000), Orders(1_000)
    assert first.customers() == second.customers()
    assert list(first.orders()) == list(second.orders())
    (gone, come), again = first.change_prices(10), second.change_prices(10)
    assert (gone, come) == again
    assert gone.drop(["price"]) == come.drop(["price"])
    assert gone["price"] != come["price"]


@pytest.mark.parametrize(("name", "crate"), [("dbsp", "dbsp"), ("differential", "timely")])
def test_crates_are_locked_as_they_are_asked_for(name: str, crate: str) -> None:
    folder = Path(engines.__file__).with_name("engine_jobs") / name
    asked = tomllib.loads((folder / "Cargo.toml").read_text())["dependencies"][crate]
    lock = tomllib.loads((folder / "Cargo.lock").read_text())["package"]
    [locked] = (each["version"] for each in lock if each["name"] == crate)
    assert locked.startswith(f"{asked}.")

"""Functions as a user writes them, with mistakes. The numbers of their lines are expected."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

__all__ = ["check_city", "collect_all", "crash", "hand_over", "hand_over_shares", "open_prices"]


def check_city(number: int) -> int:
    """Refuse one number."""
    if number == 3:
        raise ValueError(f"no such city: {number}")
    return number


def parse(number: int) -> int:
    """Fail in a function that this one calls."""
    return _digits(f"x{number}")


def _digits(text: str) -> int:
    return int(text)


def hand_over(_frame: DataFrame, _number: int) -> None:
    """Fail before Spark is asked for anything."""
    prices = {"a": 1}
    del prices["b"]


def hand_over_shares(frame: DataFrame, _number: int) -> None:
    """Fail because of a value in a row."""
    frame.selectExpr("1 div (k - k)").collect()


def open_prices(_number: int) -> int:
    """Read a file that is not there."""
    with open("/nowhere/prices.csv", encoding="utf-8") as prices:  # noqa: PTH123 - as users do
        return len(prices.read())


def crash(_number: int) -> int:
    """End Spark's Python process."""
    os._exit(3)


def collect_all(frame: DataFrame, _number: int) -> None:
    """Read all rows."""
    frame.collect()

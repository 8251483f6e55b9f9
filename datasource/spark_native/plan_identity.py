"""Tells whether two analysed plans are one and the same, but for numbers and names of columns.

    plan_identity(spark, plan, leaves)      a text that equal plans have in common, in any session

Spark numbers columns anew whenever it analyses a query, and its own comparison of plans needs both
of them. A text can be kept, and compared with that of a plan of another process. It says of each
operator and expression all that it was made of (`PlanIdentity.java`), but for the names that a
query gives to columns and tables: analysed expressions refer to columns by numbers.

Invariants:
    Plans with one text give the same rows of the same inputs, in sessions with the same settings.
    A plan has no text if one would not say all of it: with functions of users, or rows of a frame.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from pyspark.sql import SparkSession

from shardline.datasource.java_names import jvm_of
from shardline.datasource.spark_native.compiled_java import java_object

__all__ = ["plan_identity"]

_CLASS: Final = "PlanIdentity"


def plan_identity(spark: SparkSession, plan: Any, leaves: Mapping[int, str]) -> str | None:
    """The text of a plan over temporary views and tables that stand for rows; None if it has none.

    Args:
        spark: A session of the plan's JVM.
        plan: Spark's logical plan, analysed.
        leaves: What is written in the place of each of these, by the number of its first column:
            which rows it stands for, and not by which name the plan reads them.
    """
    told = "\0".join(f"{number}\0{rows}" for number, rows in leaves.items())
    text = _teller(jvm_of(spark)).of(plan, told)
    return None if text is None else str(text)


@cache
def _teller(_jvm: Any) -> Any:
    return java_object(SparkSession.active(), _CLASS)

"""Lets sessions load the rule of native reads when they first read a shard, and no earlier.

    import shardline ---> hook ---> offer_native_reads: a loader in the session's optimizer
    first query with a scan of ours ---> the loader asks Python ---> plan_rule makes the rule
    first append to a shard ---> the loader asks Python ---> write_rule makes that of appends

The loader is a small Java class (`ShardRuleLoader.java`) that costs a session without shards next
to nothing. This module imports neither pyarrow nor anything that plans.

Invariants:
    A session whose setting is `false` when it starts is not touched at all.
    A session has one loader, and copies of the session share it.
"""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final

import pyspark
from pyspark.sql import SparkSession

from shardline.datasource.java_names import jvm_of, remember_names
from shardline.datasource.spark_native.compiled_java import java_object
from shardline.datasource.spark_native.driver_source import offer_driver_source
from shardline.datasource.spark_native.interrupts import CANCELLED, call_interruptibly, is_interrupt

__all__ = [
    "SETTING",
    "install_loader",
    "is_checked",
    "loader_of",
    "offer_native_reads",
]

_log = logging.getLogger(__name__)

SETTING: Final = "spark.shardline.nativeReads"
"""Setting of a session. With `false` when it starts, its reads are left to the Python workers for
good; with `false` later, those of frames that are planned from then on."""

_CHECKED: Final = "4.3.0"
"""The version of Spark whose internal classes the rule was checked against."""

_LOADER: Final = "ShardRuleLoader"

_RULES: Final = "shardline.datasource.spark_native.plan_rule"

_known: list[tuple[Any, Any]] = []
"""A JVM and a loader in it, by which the loaders of other sessions are found in one call."""


def offer_native_reads(spark: SparkSession) -> None:
    """Let the reads of a session that has just started be planned natively.

    It is called with every session object, those that PySpark makes for each micro-batch of a
    `foreachBatch` included, so it makes two calls to the JVM where there is nothing to do.
    """
    if getattr(spark, "_jsparkSession", None) is None:
        return  # Spark Connect: its sessions have no optimizer here
    if spark.conf.get(SETTING, "true") == "false" or loader_of(spark) is not None:
        return
    remember_names(spark)
    if is_checked(spark):
        install_loader(spark, partial(_make_rule, spark))
        offer_driver_source(spark)
    else:
        _log.info("format('shard') is read by Python workers: Spark is not %s", _CHECKED)


def is_checked(spark: SparkSession) -> bool:
    """True if this is the Spark that the Java classes were checked against."""
    return pyspark.__version__ == spark.version == _CHECKED


def loader_of(spark: SparkSession) -> Any:
    """The loader in a session's optimizer; None if there is none."""
    jvm = jvm_of(spark)
    for known, loader in _known:
        if known is jvm:
            return loader.loaderOf(spark._jsparkSession)  # noqa: SLF001 - no public door
    return None


def install_loader(spark: SparkSession, make_rule: Callable[[], Any]) -> Any:
    """The loader in a session's optimizer, which is put there if there is none.

    Args:
        spark: The session.
        make_rule: Makes the rule when the first scan is there; returns None if it cannot.
    """
    reads = _RuleMaker(make_rule, "read")
    writes = _RuleMaker(partial(_make_write_rule, spark), "written")
    made = java_object(spark, _LOADER, reads, writes)
    found = made.install(spark._jsparkSession)  # noqa: SLF001 - no public door
    _known[:] = [(jvm_of(spark), found)]
    return found


def _make_rule(spark: SparkSession) -> Any:
    # Not before it is needed: what plans imports pyarrow.
    return importlib.import_module(_RULES).make_rule(spark)


def _make_write_rule(spark: SparkSession) -> Any:
    # Not before it is needed: what writes imports pyarrow.
    from shardline.datasource.spark_native.write_rule import make_write_rule  # noqa: PLC0415

    return make_write_rule(spark)


@dataclass(frozen=True, slots=True)
class _RuleMaker:
    """Makes a rule for a loader, which calls it from the thread that optimizes a query."""

    _make_rule: Callable[[], Any]
    _act: str

    def apply(self, request: Any) -> Any:
        """The rule; None, with a reason in `request` if it may be asked for again."""
        try:
            return call_interruptibly(self._make_rule)
        except KeyboardInterrupt:
            request["cancelled"] = CANCELLED
        except Exception as error:  # noqa: BLE001 - Python workers need no rule
            if is_interrupt(error):
                request["interrupted"] = True
            else:
                _log.warning('format("shard") is %s by Python workers', self._act, exc_info=True)
        return None

    class Java:
        """The Java interface that py4j gives the object in the JVM."""

        implements: ClassVar = ["java.util.function.Function"]

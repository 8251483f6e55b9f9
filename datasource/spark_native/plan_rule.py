"""Plans reads of `format("shard")` natively, by a rule in Spark's optimizer.

Spark 4.3 takes rows only from a Python source, and prunes none of its columns: a plain `.select` of
two columns decodes all of them in Python. The rule (`ShardScanRule.java`) puts a native plan in the
place of each scan of ours, under the same expression ids, so that Spark prunes and filters in its
own Parquet reader. The plan is what `shardline.snapshot` and `changes` make of the same options.

    optimizer ---> ShardScanRule ---> Planner.apply ---> load_plans: partitions of the reader
                        |                                        |
                        |  native plan, or none  <---------------+  frames, leases
                        v
                  scan of Parquet files, or the Python workers as before

Invariants:
    A loaded frame has one plan in all sessions: it is asked for once, and what is left to the
    Python workers stays left to them.
    All scans of the latest contents of a shard in one query show the same time.
    No query fails because of the rule: after any exception it keeps the plan that it had. One is
    refused, as Python workers would answer it with wrong rows: it reads two shards by the name of
    one table.
    No rows are read natively before a small shard was, and had the rows that it should have.

See docs/native-plans.md for what is planned natively and what is not.
"""

from __future__ import annotations

import json
import logging
import threading
import traceback
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from shardline.datasource.clock import SystemClock
from shardline.datasource.errors import ShardError
from shardline.datasource.spark_native.compiled_java import java_object
from shardline.datasource.spark_native.interrupts import CANCELLED, call_interruptibly, is_interrupt
from shardline.datasource.spark_native.jvm import (
    from_folder_of_jvm,
    read_array,
    read_map,
    session_of,
)
from shardline.datasource.spark_native.load_plans import (
    NOT_SETTLED,
    NotNativeError,
    plan_load,
    plan_micro_batch,
)
from shardline.datasource.spark_native.part_errors import explain_part_errors
from shardline.datasource.spark_native.read_counts import READ_COUNTS, ReadCounts, ReadPath
from shardline.datasource.spark_native.rule_loader import (
    install_loader,
    is_checked,
    loader_of,
)
from shardline.datasource.spark_native.self_check import FAILED, SelfTest

__all__ = ["NativeReads", "make_rule", "plan_reads_natively"]

_log = logging.getLogger(__name__)

_RULE: Final = "ShardScanRule"

_OFF: Final = "turned off"
_REFUSED: Final = "refused: "
_QUIET: Final = (_OFF, _REFUSED, "the range is ", NOT_SETTLED, FAILED)
"""Reasons that are counted and not logged: somebody's choice, or an error that somebody sees; or
that was logged as the reason of all reads."""


@dataclass(frozen=True, slots=True)
class NativeReads:
    """The rule of one session."""

    _spark: SparkSession
    _loader: Any

    def counts(self) -> dict[str, int]:
        """How many scans were planned natively, or left to the Python workers and why."""
        return {name: int(number) for name, number in read_map(self._rule.counts()).items()}

    def remembered(self) -> int:
        """The number of loaded frames whose plan is remembered: those that can be read again.

        In all sessions of the process, which may share them.
        """
        return int(self._rule.remembered())

    def remove(self) -> None:
        """Take the rule away: Python workers read what is planned from now on."""
        self._loader.remove(self._spark._jsparkSession)  # noqa: SLF001 - no public door

    @property
    def _rule(self) -> Any:
        return self._loader.load()


def plan_reads_natively(spark: SparkSession) -> NativeReads | None:
    """Let `spark` read `format("shard")` by its own Parquet reader; None if it cannot.

    A session that has started in a process with `import shardline` does so without being asked;
    this is for one that was started with `spark.shardline.nativeReads=false`, and says at once if
    it can.

    Reads of shards on local disk, and on S3 where Spark has s3a with credentials, are planned
    natively from then on. Everything else is read as before: other locations, sessions of Spark
    Connect, and frames that have been run already. Queries mean the same, except for what Spark
    does not promise (the order of rows, the number of partitions) and `input_file_name`, which
    names a part. The setting `spark.shardline.nativeReads=false` turns it off.

    Calling it again changes nothing.
    """
    try:
        return _install(spark)
    except NotNativeError as why:
        reason = str(why)
    except Exception as error:  # noqa: BLE001 - reads work without it
        reason = f"the rule cannot be installed: {error}"
    _say_not_installed(reason)
    return None


def _install(spark: SparkSession) -> NativeReads:
    if getattr(spark, "_jsparkSession", None) is None:
        raise NotNativeError("a session of Spark Connect has no optimizer of its own")
    if not is_checked(spark):
        raise NotNativeError(
            f"this is Spark {spark.version}, and not the one that it was checked against"
        )
    loader = loader_of(spark) or install_loader(spark, partial(make_rule, spark))
    if loader.load() is None:
        loader.remove(spark._jsparkSession)  # noqa: SLF001 - no public door
        raise NotNativeError("the rule could not be made")
    return NativeReads(spark, loader)


def make_rule(spark: SparkSession) -> Any:
    """The rule of a session, made when its first scan is optimized; None if it cannot be."""
    planner = _Planner(spark, SelfTest(spark, partial(_read_by_own_rule, spark)))
    rule = java_object(spark, _RULE, planner)
    one, other = (spark.range(1)._jdf for _ in range(2))  # noqa: SLF001 - no public door
    if not rule.selfTest(one, other):
        _say_not_installed("a plan did not fit in the place of another one")
        return None
    explain_part_errors()
    return rule


def _say_not_installed(reason: str) -> None:
    READ_COUNTS.add("not installed", reason)
    _log.warning('format("shard") is read by Python workers: %s', reason)


def _read_by_own_rule(spark: SparkSession, path: str) -> pa.Table:
    """The rows of a shard, natively, by a rule of their own in a copy of the session.

    Raises:
        NotNativeError: Python workers have read them.
    """
    java = spark._jsparkSession.cloneSession()  # noqa: SLF001 - no public door
    session = session_of(spark, java)
    loader_of(session).remove(java)
    session.conf.set("spark.sql.session.timeZone", "UTC")
    counts = ReadCounts(SystemClock())
    planner = _Planner(session, None, counts)
    install_loader(session, partial(java_object, session, _RULE, planner))
    # A filter and a projection, as queries have them: both are pushed into the plan.
    frame = session.read.format("shard").load(path)
    found = frame.where("n >= 0").select(frame.columns[::-1]).toArrow()
    if reasons := [one.reason or "native twice" for one in counts.all() if one.path != "native"]:
        raise NotNativeError(", ".join(reasons))
    if not counts.all():
        raise NotNativeError("the rule was not asked")
    return found


@dataclass(frozen=True, slots=True)
class _Planner:
    """Plans one load, when the rule calls back from the thread that optimizes a query.

    Attributes:
        spark: The session of the rule.
        self_test: What every native plan has to wait for; None in that test itself.
        counts: Where reads are counted; None for the process's counts.
    """

    spark: SparkSession
    self_test: SelfTest | None
    counts: ReadCounts | None = None
    _logged: set[str] = field(default_factory=set)
    _lock: Any = field(default_factory=threading.Lock)

    def apply(self, request: Any) -> Any:
        """A Java Dataset of the load's rows; None, with a reason in `request`, to leave it."""
        try:
            made = call_interruptibly(lambda: self._tested(self._frame(request)))._jdf  # noqa: SLF001
        except KeyboardInterrupt:
            request["cancelled"] = CANCELLED
            return None
        except NotNativeError as why:
            reason = str(why)
            details = str(request.get("details") or why)
        except ShardError as refusal:
            # The Python path refuses it too, in the words that users know.
            reason = details = f"{_REFUSED}{refusal.code}"
        except Exception as error:  # noqa: BLE001 - the Python path works without the rule
            if is_interrupt(error):
                # A query that is stopped: its thread must not forget that it is.
                request["interrupted"] = True
                request["reason"] = "stopped"
                self._count("python workers", "stopped")
                return None
            reason = f"failed: {type(error).__name__}"
            details = "".join(traceback.format_exception(error))
        else:
            self._count("native")
            return made
        self._count("python workers", reason, was_native=bool(request.get("planned")))
        if self._is_new(reason) and not reason.startswith(_QUIET):
            _log.warning('reads of format("shard") are left to Python workers: %s', details)
        request["reason"] = reason
        return None

    def _frame(self, request: Any) -> DataFrame:
        asked = request.get("asked")
        if asked is None:
            raise NotNativeError(request.get("reason"))  # the rule itself has left it
        given = json.loads(asked)
        if reason := given.get("reason"):
            raise NotNativeError(reason)
        if given["off"]:
            raise NotNativeError(_OFF)
        spark = session_of(self.spark, request.get("session"))
        options, schema, times = given["options"], given["schema"], given.get("times")
        if times is None:
            pickled = read_array(request.get("partitions"))
            return plan_micro_batch(spark, options, schema, pickled, is_first=given["first"])
        before = set(times)
        try:
            return plan_load(spark, from_folder_of_jvm(spark, options), schema, times)
        finally:
            for place in times.keys() - before:
                request.get("times").put(place, times[place])

    def _count(self, path: ReadPath, reason: str = "", *, was_native: bool = False) -> None:
        counts = READ_COUNTS if self.counts is None else self.counts
        counts.add(path, reason, was_native=was_native)

    def _tested(self, frame: DataFrame) -> DataFrame:
        # After the plan: a session whose reads cannot be native needs no test.
        failure = None if self.self_test is None else self.self_test.failure()
        if failure is None:
            return frame
        if self._is_new(failure):
            _say_not_installed(failure)
        raise NotNativeError(failure)

    def _is_new(self, reason: str) -> bool:
        """True for the first read that is left for this reason; False if the self-test reads."""
        with self._lock:
            new = reason not in self._logged
            self._logged.add(reason)
        return new and self.self_test is not None

    class Java:
        """The Java interface that py4j gives the object in the JVM."""

        implements: ClassVar = ["java.util.function.Function"]

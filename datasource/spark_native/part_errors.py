"""Says of a part that Spark could not read what the Python workers would say of it.

Spark names the file and what its reader met. What a user has to know is in the shard's state: was
the part deleted under a living lease, or collected after the lease was lost; of which shard and
which times is it. Python workers put that into their error, under a stable code. Here the driver
does the same after the fact: it fetches that part as they do, and the error that it meets takes the
place of Spark's.

    [LEASE_LOST] part '…' (100 rows) is not there (shard 'orders', times 1 to 9): lease … — hint: …

So it does where the driver found another file in the place of a part and sent no task to read it
(`NativeRelations.java`); of that error Spark keeps only the text.

PySpark turns every error of the JVM into one of Python's in one function, which is wrapped. It asks
nothing unless that error is about a file, and if the part can be fetched after all, Spark's own
error stays.

What the header of a page says has no checksum. Of one that is damaged Spark decodes values until a
buffer ends, some of them only when an expression asks for them: that exception of Java names no
file. So the parts that plans still read are fetched, the newest plan's first, until one is found
damaged.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol
from urllib.parse import unquote

from pyspark.errors.exceptions import captured

from shardline.datasource.errors import Corrupt, ShardError
from shardline.datasource.shard.plan import PlannedPart
from shardline.datasource.shard_source.fetch_task import ShardPartition, error_of_part
from shardline.datasource.shard_source.partition_planner import open_client
from shardline.datasource.spark_native.interrupts import CANCELLED, CANCELLED_WRITE
from shardline.datasource.spark_native.jvm import java_causes

__all__ = ["cause_of", "explain_part_errors", "remember_plan"]

_log = logging.getLogger(__name__)

_FILE_ERROR: Final = "FAILED_READ_FILE"
"""The condition of Spark's errors about one file; it has `path` among its parameters."""

_DECODED: Final = re.compile(
    r"\n\s+at org\.apache\.(?:parquet|spark\.sql\.execution\.(?:datasources\.parquet|vectorized))\."
)
"""A line of a stack trace in what decodes pages."""

_IN_TASK: Final = "\n\tat org.apache.spark.scheduler.Task.run("
"""A line of the stack trace of a task: no other code decodes pages. What looks at options and
columns is of the same packages, and fails in the driver."""

_SHORT_OF_MEMORY: Final = "java.lang.OutOfMemoryError"

_FETCHED_BYTES_MAX: Final = 1 << 30
"""Most bytes of parts that are fetched to find the damaged one: some seconds."""

_OTHER_FILE: Final = re.compile("the file '(.+?)' is not that of the part: ")
"""The words of `NativeRelations.java` about a file, in the text of an error of Spark's."""

_SWEPT_AT_LEAST: Final = 64
"""Plans that are remembered before any of them is looked at again."""


class _Reader(Protocol):
    def is_alive(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class _Plan:
    partitions: tuple[ShardPartition, ...]
    readers: tuple[_Reader, ...]


class _Plans:
    """The plans that can still be run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._plans: list[_Plan] = []
        self._sweep_at = _SWEPT_AT_LEAST

    def add(self, plan: _Plan) -> None:
        with self._lock:
            self._plans.append(plan)
            if len(self._plans) < self._sweep_at:
                return
            alive = [one for one in self._plans if any(r.is_alive() for r in one.readers)]
            self._plans = alive
            self._sweep_at = max(_SWEPT_AT_LEAST, 2 * len(alive))

    def part_at(self, path: str) -> tuple[ShardPartition, PlannedPart] | None:
        """The part whose file is at `path`, in the newest partition that reads it."""
        names = [_without_scheme(one) for one in (path, unquote(path))]
        with self._lock:
            plans = list(reversed(self._plans))
        found = [
            (partition, planned)
            for plan in plans
            for partition in plan.partitions
            for planned in partition.parts
            if any(name.endswith(f"/{planned.part.key}") for name in names)
        ]
        # A copied directory has parts of the same names. Where none is in that location, which may
        # have several names, the end of the path is enough.
        here = [one for one in found if _name_of(*one) in names]
        return next(iter(here or found), None)

    def find_damage(self) -> ShardError | None:
        """The error of a part that is damaged, of those that can still be read."""
        with self._lock:
            plans = list(reversed(self._plans))
        read = (
            (partition, planned)
            for plan in plans
            if any(reader.is_alive() for reader in plan.readers)
            for partition in plan.partitions
            for planned in partition.parts
            if planned.part.inline is None
        )
        known: set[str] = set()
        left = _FETCHED_BYTES_MAX
        for partition, planned in read:
            name = _name_of(partition, planned)
            if name in known:
                continue
            known.add(name)
            left -= planned.part.size_bytes
            found = error_of_part(partition, planned) if left >= 0 else None
            if left < 0 or isinstance(found, Corrupt):
                return found
        return None


def _name_of(partition: ShardPartition, planned: PlannedPart) -> str:
    location = open_client(partition.options).location.url
    return _without_scheme(f"{location}/{planned.part.key}")


def _without_scheme(url: str) -> str:
    """The part of a URL that Spark and we write alike: schemes and slashes before it differ."""
    return re.sub(r"^(\w+:)?/+", "", url)


_PLANS: Final = _Plans()


def remember_plan(partitions: Sequence[ShardPartition], readers: Sequence[_Reader]) -> None:
    """Remember which files Spark reads for which partitions, as long as one of `readers` lives.

    Errors of these files are in our words from then on.
    """
    if readers and partitions:
        explain_part_errors()
        _PLANS.add(_Plan(tuple(partitions), tuple(readers)))


def cause_of(error: Any) -> ShardError | None:
    """The error that a Python worker would have met in place of `error`, an exception of the JVM.

    None if it is about something else, or the part can be read now.
    """
    path = _path_in(error)
    found = None if path is None else _PLANS.part_at(path)
    return None if found is None else error_of_part(*found)


def _path_in(error: Any) -> str | None:
    """The file that an exception of the JVM is about."""
    for condition, parameters, text in java_causes(error):
        if condition is not None and condition.startswith(_FILE_ERROR):
            return parameters.get("path", "")
        if (other := _OTHER_FILE.search(text)) is not None:
            return other[1]
    return None


def explain_part_errors() -> None:
    """Let PySpark raise errors of parts in the words of `format("shard")`, from now on."""
    convert = captured.convert_exception
    if not isinstance(convert, _Explained):
        captured.convert_exception = _Explained(convert)  # type: ignore[assignment]


class _Explained:
    """Stands for PySpark's function that makes a Python exception of one of the JVM."""

    def __init__(self, convert: Callable[[Any], captured.CapturedException]) -> None:
        self._convert = convert
        self._state = threading.local()

    def __call__(self, error: Any) -> captured.CapturedException:
        if any(text in str(error.getMessage()) for text in (CANCELLED, CANCELLED_WRITE)):
            # Pressed while Python was called: it ends the query, as anywhere else in it.
            return KeyboardInterrupt()  # type: ignore[return-value]
        converted = self._convert_all(error)
        if getattr(self._state, "inside", False):
            return converted  # a cause of the exception that is being converted
        try:
            self._state.inside = True
            cause = cause_of(error) or _cause_of_values(converted)
        except Exception:  # noqa: BLE001 - Spark's own error is better than none
            _log.debug("the cause of an error of Spark's was not found", exc_info=True)
            return converted
        finally:
            self._state.inside = False
        return converted if cause is None else _worded(converted, cause)

    def _convert_all(self, error: Any) -> captured.CapturedException:
        outer = getattr(self._state, "inside", False)
        try:
            self._state.inside = True
            return self._convert(error)
        finally:
            self._state.inside = outer


def _cause_of_values(converted: captured.CapturedException) -> ShardError | None:
    """The error of a damaged part, if values of a page could not be decoded; else None."""
    trace = converted._stackTrace or ""  # noqa: SLF001
    innermost = trace.rpartition("\nCaused by: ")[2]
    if _FILE_ERROR in trace or _SHORT_OF_MEMORY in trace:
        return None
    if _IN_TASK not in innermost or not _DECODED.search(innermost):
        return None
    return _PLANS.find_damage()


def _worded(converted: captured.CapturedException, cause: ShardError) -> captured.CapturedException:
    """`converted` with the words of `cause` before its own."""
    # The kind that an error of a Python worker has, where PySpark has none for Spark's.
    unknown = isinstance(converted, captured.UnknownException)
    kind = captured.PythonException if unknown else type(converted)
    made = kind(
        desc=f"{_name(cause)}: {cause}\n\n{converted._desc}",  # noqa: SLF001
        stackTrace=converted._stackTrace or "",  # noqa: SLF001
    )
    made.__cause__ = cause
    return made


def _name(error: ShardError) -> str:
    """The name of an error's class, as a stack trace has it."""
    return f"{type(error).__module__}.{type(error).__qualname__}"

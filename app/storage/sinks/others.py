"""Other targets give a sink's rows to a terminal, to memory, to a function, or to Spark's writers.

Most of them cannot tell what they have, so rows may come again after a crash (`target.guarantee`).

    console        prints the rows
    memory         keeps them in this process, for tests: `collected(sink)`
    foreachBatch   calls a function that was registered: `register_function(name, function)`
    anything else  `rows.write.format(…)`

Invariants:
    `memory` keeps at most `MEMORY_ROWS` rows of a sink, and refuses more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from pyspark import cloudpickle
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.datasource import DataSource

from shardline.app.protocol.fingerprint import fingerprint
from shardline.app.protocol.objects import SinkDescription
from shardline.app.storage.sinks.interval import Interval
from shardline.app.storage.sinks.rows import as_messages
from shardline.app.storage.sinks.target import Written, cached_rows, console_options
from shardline.datasource.errors import InvalidUsage, unknown_name
from shardline.datasource.frontier import Frontier

__all__ = [
    "MEMORY_ROWS",
    "ConsoleTarget",
    "Function",
    "FunctionTarget",
    "MemoryTarget",
    "WriterTarget",
    "collected",
    "find_function",
    "forget_collected",
    "has_no_writer",
    "register_function",
]

Function: TypeAlias = Callable[[DataFrame, int], None]
"""Takes the rows of a micro-batch and a number that grows, and is the same if they come again."""

MEMORY_ROWS: Final = 1_000_000


@dataclass(slots=True)
class _MemoryRows:
    """The rows of a memory sink, and how far they go."""

    rows: list[Row]
    committed: Frontier | None = None


_functions: dict[str, Function] = {}
_memory: dict[tuple[str, str], _MemoryRows] = {}


def register_function(name: str, function: Function) -> None:
    """Register a function of this process for sinks USING foreachBatch.

    Args:
        name: The value of their option `function`; an earlier function of that name is replaced.
        function: Called with the rows and a number. It may be called again with the same number:
            its effects are exactly once if it remembers the greatest number that it has done.
    """
    _functions[name] = function


def find_function(options: Mapping[str, str]) -> Function:
    """The function that options of a sink name.

    Raises:
        InvalidUsage: They name none, or none of that name was registered.
    """
    name = next((text for option, text in options.items() if option.lower() == "function"), "")
    if name not in _functions:
        unknown = unknown_name("function", name, _functions)
        raise InvalidUsage(
            f"{unknown.detail}: the program that runs the application has not registered it",
            code=unknown.code,
            hint=f"call register_function('{name}', …) there before the project is applied; "
            f"{unknown.hint}",
        )
    return _functions[name]


def has_no_writer(spark: SparkSession, format: str) -> bool:  # noqa: A002 - Spark's name
    """True if a format is of a Python source that certainly writes nothing.

    Spark itself takes it for one that does until a query asks it for its writer.
    """
    sources = spark._jsparkSession.sessionState().dataSourceManager()  # noqa: SLF001 - as Spark does
    if not sources.dataSourceExists(format):
        return False
    pickled = bytes(sources.lookupDataSource(format).dataSourceCls().command().unsafeArray())
    try:
        found = cloudpickle.loads(pickled)
    except Exception:  # noqa: BLE001 - the class may need what only Spark's workers have
        return False
    # A large class is a broadcast here.
    return isinstance(found, type) and getattr(found, "writer", None) is DataSource.writer


def collected(sink: SinkDescription) -> list[Row]:
    """The rows of a memory sink of this process, in order of micro-batches."""
    found = _memory.get((sink.name, fingerprint(sink)))
    return [] if found is None else list(found.rows)


def forget_collected() -> None:
    """Free the rows of all memory sinks of this process but of those that run."""
    _memory.clear()


class MemoryTarget:
    """Rows in a list of this process; exactly once, until the process ends."""

    input = ""

    def __init__(self, sink: SinkDescription) -> None:
        self._name = sink.name
        self._collected_rows = _memory.setdefault((sink.name, fingerprint(sink)), _MemoryRows([]))

    def committed(self) -> Frontier | None:
        """The upper of the rows in the list."""
        return self._collected_rows.committed

    def has_taken(self, upper: Frontier) -> bool:  # noqa: ARG002 - of the contract
        """True: it cannot tell."""
        return True

    def write(self, rows: DataFrame, interval: Interval) -> Written:
        """Collect the rows into the list.

        Raises:
            InvalidUsage: There are more than `MEMORY_ROWS`.
        """
        room = MEMORY_ROWS - len(self._collected_rows.rows)
        found = rows.limit(room + 1).collect()
        if len(found) > room:
            raise InvalidUsage(
                f"memory sink '{self._name}' has more than {MEMORY_ROWS} rows",
                code="MEMORY_FULL",
                hint="it is there for tests: write to files or to a shard",
            )
        self._collected_rows.rows += found
        self._collected_rows.committed = interval.upper
        return Written(len(found))

    def skip(self, interval: Interval) -> None:
        """Remember the upper."""
        self._collected_rows.committed = interval.upper


class ConsoleTarget:
    """Rows on the terminal; at least once."""

    input = ""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Parse the options, which are those of Spark's own console sink.

        Raises:
            InvalidUsage: One has a value that it cannot have.
        """
        self._rows, self._truncate = console_options(options)

    def committed(self) -> Frontier | None:
        """None: a terminal does not remember."""
        return None

    def has_taken(self, upper: Frontier) -> bool:  # noqa: ARG002 - of the contract
        """True: it cannot tell."""
        return True

    def write(self, rows: DataFrame, interval: Interval) -> Written:
        """Print the rows."""
        del interval
        with cached_rows(rows) as frame:
            frame.show(self._rows, truncate=self._truncate)
            return Written(frame.count())

    def skip(self, interval: Interval) -> None:
        """Do nothing."""


class FunctionTarget:
    """A function of a user; at least once, with a number by which it can be exactly once."""

    input = ""

    def __init__(self, options: Mapping[str, str]) -> None:
        """Look up the function.

        Raises:
            InvalidUsage: No function of that name was registered.
        """
        self._function = find_function(options)

    def committed(self) -> Frontier | None:
        """None: only the function knows."""
        return None

    def has_taken(self, upper: Frontier) -> bool:  # noqa: ARG002 - of the contract
        """True: it cannot tell."""
        return True

    def write(self, rows: DataFrame, interval: Interval) -> Written:
        """Call the function."""
        with cached_rows(rows) as frame:
            self._function(frame, interval.number)
            return Written(frame.count())

    def skip(self, interval: Interval) -> None:
        """Do nothing: the function is called for rows only."""


class WriterTarget:
    """Any format that Spark can write in batches; at least once."""

    input = ""

    def __init__(self, sink: SinkDescription, options: Mapping[str, str]) -> None:
        self._sink = sink
        self._options: dict[str, Any] = dict(options)

    def committed(self) -> Frontier | None:
        """None: Spark's writers cannot be asked."""
        return None

    def has_taken(self, upper: Frontier) -> bool:  # noqa: ARG002 - of the contract
        """True: it cannot tell."""
        return True

    def write(self, rows: DataFrame, interval: Interval) -> Written:
        """Append the rows."""
        del interval
        if self._sink.format == "kafka":
            rows = as_messages(rows, self._sink)
        with cached_rows(rows) as frame:
            frame.write.format(self._sink.format).options(**self._options).mode("append").save()
            return Written(frame.count())

    def skip(self, interval: Interval) -> None:
        """Do nothing."""

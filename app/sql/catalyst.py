"""Catalyst calls Spark's analyzer from Python: the one module of this room that knows Spark.

A query's columns, and whether it is valid at all, depend on Spark's version, functions and
settings. Only Spark can decide them, so a project is checked by the analyzer of the session that
will run it, over empty views of its objects.

    with Catalyst(spark, ids) as catalyst:
        catalyst.add("flights", json)            an empty temporary view for an object
        catalyst.query("SELECT … FROM `…`")      the query's columns and plan

Invariants:
    Nothing runs. Data is read only by a format that knows its columns from its data alone.
    A query reads the views and nothing else, whatever Spark could find under other names.
    Temporary views have fresh names and are gone at the end, whatever happens in between.
    A statement that is no query is never carried out, even if our parser took it for one.
    A refusal of Spark is raised as `RefusedBySpark`. PySpark's own log of it is kept off the
    terminal, for this thread and until the end.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Self

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql.classic.dataframe import DataFrame

from shardline.app.spark_session import read_as_written
from shardline.app.sql.determinism import (
    chosen_values,
    constants_read_as_times,
    has_computed_times,
    is_clock_text,
)
from shardline.app.sql.format_calls import InvalidOption
from shardline.app.sql.normal_form import normal_form
from shardline.app.sql.parsed_relations import refuse_foreign_relations
from shardline.app.sql.plan_nodes import below, deepest
from shardline.app.sql.plan_tree import Node, plan_tree
from shardline.app.sql.session_fingerprint import SessionFingerprint
from shardline.app.sql.sink_options import FileSinkOptions
from shardline.app.sql.source_options import SourceOptions
from shardline.app.sql.spark_errors import SparkProblem, read_spark_error
from shardline.app.sql.strategy import Verdict
from shardline.app.sql.temporal_filters import (
    find_subqueries_beside,
    refused_clocks,
    uses_clock,
)
from shardline.app.sql.touched_keys import judge
from shardline.datasource.clock import IdGenerator
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frames import (
    as_active,
    children_of,
    clone_of,
    is_plan,
    kind_of,
    number_of,
    read_sequence,
)
from shardline.datasource.java_names import java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = [
    "Catalyst",
    "NondeterministicExpression",
    "QueryPlan",
    "RefusedBySpark",
    "SourceColumns",
]

_SQL: Final = "org.apache.spark.sql"

_GUESSING: Final = frozenset({"csv", "json", "xml"})
"""Formats whose columns Spark would guess from the files that happen to be there."""


_READ_AS_TIME: Final = frozenset({"Cast", "ParseToDate", "ParseToTimestamp"})


class RefusedBySpark(Exception):
    """Spark refuses a query, columns or a format.

    Attributes:
        problem: Spark's error.
        option: The option of a source whose value it is about; "" for none.
    """

    def __init__(self, problem: SparkProblem, option: str = "") -> None:
        super().__init__(problem.message)
        self.problem = problem
        self.option = option


@dataclass(frozen=True, slots=True)
class NondeterministicExpression:
    """An expression by which two runs of a query over the same inputs can differ.

    Attributes:
        name: The function's name in SQL.
        offset: Its place in the query's text; None if Spark does not know it.
        current: True if it depends on when, where or by whom the query is run, and is constant
            within one run (`now()`, `current_user()`); False if it differs by row (`rand()`).
        hint: What to write in its place, where that depends on where it stands.
    """

    name: str
    offset: int | None
    current: bool
    hint: str = ""


@dataclass(frozen=True, slots=True)
class QueryPlan:
    """The analysis of a query that Spark accepts.

    Attributes:
        schema: Columns of the result, in Spark's JSON.
        tree: The analysed plan.
        normal_tree: The same in its normal form, by which the strategy of a view is chosen.
        verdicts: On each aggregate, window and join of the normal form.
        culprits: The expressions by which two runs can differ, in the order of the query.
        special: A text made of constants that is read as the current time; "" if there is none.
        temporal: True if it has comparisons with now() that are kept.
    """

    schema: str
    tree: Node
    normal_tree: Node
    verdicts: tuple[Verdict, ...]
    culprits: tuple[NondeterministicExpression, ...]
    special: str = ""
    temporal: bool = False


@dataclass(frozen=True, slots=True)
class SourceColumns:
    """The columns of the rows that a source reads.

    Attributes:
        schema: The columns, in Spark's JSON.
        must_be_given: True if they must be given to the format when it is read.
        unreachable: Why the source cannot be opened where it is now; None if it can.
    """

    schema: str
    must_be_given: bool
    unreachable: SparkProblem | None = None


class Catalyst:
    """A session's analyzer, with views for objects. A context manager; for one thread."""

    def __init__(self, spark: SparkSession, ids: IdGenerator) -> None:
        # As views run in: with what is registered in the session, and without its variables, which
        # are in no definition.
        self._spark = clone_of(spark)
        read_as_written(self._spark)
        # The analyzer is on that side.
        self._session: Any = self._spark._jsparkSession  # noqa: SLF001
        self._prefix = f"_check_{ids.token().hex()}"
        self._stack = contextlib.ExitStack()
        self._fingerprint: SessionFingerprint | None = None
        self._writers: dict[str, bool] = {}
        self.views: dict[str, str] = {}

    def __enter__(self) -> Self:
        self._stack.enter_context(_without_query_log())
        # A query must mean the same whatever this thread has done before.
        self._stack.enter_context(as_active(self._spark))
        return self

    def __exit__(self, *_: object) -> None:
        # Its views go with its session.
        self._stack.close()

    def add(self, name: str, schema: str) -> None:
        """Make an empty temporary view for an object, with columns in JSON; its name: `views`.

        Raises:
            Refused: A type of these columns is switched off in the session, as TIME is by default.
        """
        view = f"{self._prefix}_{len(self.views)}"
        self.rows(schema).createOrReplaceTempView(view)
        self.views[name] = view

    def rows(self, schema: str) -> DataFrame:
        """A frame without rows, with columns in Spark's JSON.

        Raises:
            Refused: A type of these columns is switched off in the session.
        """
        columns = java_class(self._spark, f"{_SQL}.types.DataType").fromJson(schema)
        rows = java_class(self._spark, "java.util.ArrayList")()
        with _refusing(schema):
            return DataFrame(self._session.createDataFrame(rows, columns), self._spark)

    @property
    def sink_options(self) -> FileSinkOptions:
        """Checks of what sinks of files write."""
        return FileSinkOptions(self._spark)

    def fingerprint(self, text: str) -> str | None:
        """The fingerprint of this session, as it was first asked for; see `SessionFingerprint`."""
        if self._fingerprint is None:
            self._fingerprint = SessionFingerprint(self._spark)
        return self._fingerprint.of(text)

    def ddl(self, schema: str) -> str:
        """Convert columns from Spark's JSON to DDL."""
        return str(java_class(self._spark, f"{_SQL}.types.DataType").fromJson(schema).toDDL())

    def columns(self, ddl: str) -> str:
        """Convert columns from DDL to Spark's JSON.

        Raises:
            Refused: Spark does not understand them.
        """
        with _refusing(ddl):
            return str(java_class(self._spark, f"{_SQL}.types.StructType").fromDDL(ddl).json())

    def query(self, text: str) -> QueryPlan:
        """Analyse a query over the views.

        Raises:
            Refused: Spark does not accept it.
        """
        state = self._session.sessionState()
        # Not `spark.sql`: it carries commands out at once. Here a DROP that a parser before has
        # taken for a query is analysed and nothing more.
        skip = java_class(self._spark, f"{_SQL}.execution.CommandExecutionMode").SKIP()
        with _refusing(text):
            parsed = state.sqlParser().parsePlan(text)
            # Before it is analysed: the analyzer would look into a file for its columns.
            refuse_foreign_relations(parsed.toJSON(), self.views.values(), text)
            execution = state.executePlan(parsed, skip)
            execution.assertAnalyzed()
        plan = execution.analyzed()
        tree = plan_tree(plan.toJSON())
        special = _special_text(plan) if has_computed_times(tree) else ""
        normal = normal_form(self._spark, plan)
        normal_tree = tree if normal is plan else plan_tree(normal.toJSON())
        if not special and (named := constants_read_as_times(normal_tree)):
            special = _special_text(normal, named)
        verdicts = tuple(judge(self._spark, normal))
        culprits = self._culprits(plan, normal)
        return QueryPlan(
            schema=str(plan.schema().json()),
            tree=tree,
            normal_tree=normal_tree,
            verdicts=verdicts,
            culprits=culprits,
            special=special,
            temporal=uses_clock(self._spark, plan) and not culprits,
        )

    def reads(self, name: str, options: Mapping[str, str], ddl: str) -> SourceColumns:
        """The columns of a format's rows.

        Args:
            name: Name of the format.
            options: Its options.
            ddl: Columns that the user has written; "" for none.

        Raises:
            Refused: There is no such format, it does not take these columns or a value of an
                option, or its columns cannot be found out.
        """
        check = SourceOptions(self._spark)
        invalid = check.find_invalid(name, options)
        if invalid is not None:
            raise RefusedBySpark(invalid.problem, invalid.option)
        if ddl:
            given = self.columns(ddl)
            unreadable = check.find_unreadable(name, given)
            if unreadable is not None:
                raise RefusedBySpark(unreadable)
            if name == "shard":
                return self._of_shard(check, options, given)
            return SourceColumns(given, True, _not_there(check.open_stream(name, options, ddl)))
        if name.lower() in _GUESSING:
            what = f"format '{name}' has no columns of its own"
            raise RefusedBySpark(SparkProblem("NO_SCHEMA", what, self._guess(name, options), None))
        own = check.open_stream(name, options, "")
        if isinstance(own, str):
            return SourceColumns(own, must_be_given=False)
        if "schema must be specified" not in own.problem.message:
            raise RefusedBySpark(own.problem, own.option)
        with _refusing(""):
            read = self._spark.read.format(name).options(**options).load()
        return SourceColumns(str(read.schema.json()), must_be_given=True)

    def _of_shard(
        self, check: SourceOptions, options: Mapping[str, str], given: str
    ) -> SourceColumns:
        """The columns of a shard of which some are given, with which Spark does not open it."""
        own = check.open_stream("shard", options, "")
        unlike = check.find_unlike(own, given) if isinstance(own, str) else None
        if unlike is not None:
            raise RefusedBySpark(unlike)
        return SourceColumns(given, True, _not_there(own))

    def _guess(self, name: str, options: Mapping[str, str]) -> str:
        """A hint for the columns of files: Spark's guess from those that are there."""
        reader = self._spark.read.format(name).options(**{"inferSchema": "true", **options})
        try:
            with _refusing(""):
                found = str(reader.load().schema.json())
        except RefusedBySpark:
            return "write SCHEMA (name TYPE, …): a guess from some files is none for the others"
        return f"write SCHEMA ({self.ddl(found)}), or what else it is: that is a guess"

    def writes(self, name: str) -> bool:
        """True if there is a format of this name, in the JVM or in Python."""
        # Spark reads the lists of all archives for it, and most sinks of a project are of one kind.
        if name not in self._writers:
            self._writers[name] = self._finds_format(name)
        return self._writers[name]

    def _finds_format(self, name: str) -> bool:
        state = self._session.sessionState()
        if state.dataSourceManager().dataSourceExists(name):
            return True
        try:
            java_class(self._spark, f"{_SQL}.execution.datasources.DataSource").lookupDataSource(
                name, state.conf()
            )
        except (PySparkException, Py4JJavaError):
            return False
        return True

    def _culprits(self, plan: Any, normal: Any) -> tuple[NondeterministicExpression, ...]:
        found: list[NondeterministicExpression] = []
        if not plan.deterministic():
            found += map(_culprit, deepest(plan, lambda node: not node.deterministic()))
        for clocks in (refused_clocks, find_subqueries_beside):
            found += [
                _culprit(one.expression, current=True, hint=one.hint)
                for one in clocks(self._spark, normal)
            ]
        # A node that Spark has copied into several places is one expression of the query.
        known = {(one.name, one.offset): one for one in reversed(found)}
        return tuple(sorted(known.values(), key=lambda one: one.offset or 0))


def _culprit(node: Any, *, current: bool = False, hint: str = "") -> NondeterministicExpression:
    """An operator or expression, as a query's author knows it."""
    if is_plan(node):
        name = node.nodeName()
    else:
        python = kind_of(node).startswith("Python")
        name = node.name() if python else node.prettyName()
    start = node.origin().startIndex()
    offset = int(start.get()) if start.isDefined() else None
    return NondeterministicExpression(str(name), offset, current, hint)


def _special_text(plan: Any, named: Collection[object] = ()) -> str:
    """The first text made of constants that is read as now by a date or timestamp; or "".

    Args:
        plan: An analysed plan.
        named: Ids of columns that are read so: else only texts within a cast count.
    """
    ahead = [plan]
    while ahead:
        node = ahead.pop()
        ahead += below(node)
        found = next(filter(is_clock_text, _texts_read_as_time(node, named)), "")
        if found:
            return found
    return ""


def _texts_read_as_time(node: Any, named: Collection[object]) -> Iterator[str]:
    """Texts of a node, made of constants, that are read as dates or timestamps."""
    kind = kind_of(node)
    if kind == "LocalRelation":
        columns = enumerate(read_sequence(node.output()))
        places = [at for at, one in columns if number_of(one) in named and _is_text(one)]
        rows = read_sequence(node.data()) if places else ()
        yield from (str(row.getUTF8String(place)).strip() for row in rows for place in places)
    elif kind in _READ_AS_TIME or (kind == "Alias" and number_of(node) in named):
        text, *formats = children_of(node)
        if not formats and _is_text(text):
            for value in filter(lambda one: one.foldable(), _values(text)):
                with contextlib.suppress(Py4JJavaError):  # fails when the query is run, each time
                    yield str(value.eval(None)).strip()


def _values(expression: Any) -> Iterator[Any]:
    """The expressions of which one has the value of another as it is; that itself for most."""
    children = children_of(expression)
    if not (places := chosen_values(kind_of(expression), len(children))):
        yield expression
    for place in places:
        yield from _values(children[place])


def _is_text(expression: Any) -> bool:
    return bool(expression.dataType().typeName() == "string")


def _not_there(found: str | InvalidOption) -> SparkProblem | None:
    """The problem of a source that cannot be opened at its place; None if it can be.

    Raises:
        RefusedBySpark: The source would not work at any place: its format has columns of its own,
            does not exist, or refuses an option.
    """
    if isinstance(found, str):
        return None
    problem = found.problem
    if "user-specified schema" in problem.message:
        hint = "leave out SCHEMA: the format has columns of its own"
        raise RefusedBySpark(SparkProblem(problem.code, problem.message, hint, None))
    if found.option or problem.code == "DATA_SOURCE_NOT_FOUND":
        raise RefusedBySpark(problem, found.option)
    return problem


@contextlib.contextmanager
def _refusing(text: str) -> Iterator[None]:
    """Raise errors of Spark as `RefusedBySpark`, with places in `text`."""
    try:
        yield
    except (PySparkException, Py4JJavaError) as error:
        raise RefusedBySpark(read_spark_error(error, text)) from None
    except InvalidUsage as error:
        problem = SparkProblem(error.code, error.detail, error.hint, None)
        raise RefusedBySpark(problem) from None


@contextlib.contextmanager
def _without_query_log() -> Iterator[None]:
    """Keep PySpark from printing refused queries of this thread: they are shown as problems."""
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    thread = threading.get_ident()

    def others(record: logging.LogRecord) -> bool:
        return record.thread != thread

    logger.addFilter(others)
    try:
        yield
    finally:
        logger.removeFilter(others)

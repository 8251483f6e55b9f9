"""The analysis completes a project's objects by Spark: columns, strategies, and problems.

A query that Spark would refuse, that is not deterministic or that a shard cannot hold must be
refused before anything starts, with its place in the user's file: later it would be the failure of
a streaming query.

    analyse(catalyst, written) -> Analysis(objects, problems)
    analyse(catalyst, written, [analysis]) -> …      views as in an earlier one, where that is right

Each view's query is analysed over empty views of its inputs, in the order of dependencies.

Invariants:
    A place that Spark names is shown as one in the script, also where names were replaced.
    An object whose input has a problem is not analysed: its problems would only repeat that one.
    An earlier analysis of a view is taken only for the same text over the same columns, in a
    session that means the same by it. What depends on the world outside, as a source does, is
    always analysed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as with_fields
from typing import Final

from msgspec.structs import replace

from shardline.app.project.columns import (
    contents_columns,
    diff_hint,
    find_columns_problem,
    find_key_problem,
    find_taken_name,
    names_of,
    spell_key,
)
from shardline.app.project.option_problems import (
    invalid_option,
    unreachable_problem,
    value_problem,
)
from shardline.app.project.sink_problems import (
    find_row_problems,
    find_target_problem,
    is_only_read,
)
from shardline.app.project.statements import ObjectDescription, WrittenObject
from shardline.app.protocol.objects import (
    IndexDescription,
    SinkDescription,
    SourceDescription,
    ViewDescription,
)
from shardline.app.sql.catalyst import (
    Catalyst,
    NondeterministicExpression,
    QueryPlan,
    RefusedBySpark,
    SourceColumns,
)
from shardline.app.sql.determinism import find_clock_literal, find_nondeterminism
from shardline.app.sql.problems import Problem
from shardline.app.sql.references import BoundQuery, Query
from shardline.app.sql.strategy import choose_strategy
from shardline.app.sql.temporal_filters import has_clock_word
from shardline.app.sql.tokens import compact_text, quoted_names
from shardline.app.storage.bad_rows import ON_BAD_ROW, on_bad_row
from shardline.app.storage.formats import (
    KNOWN_FORMATS,
    OWN_SINKS,
    Use,
    invalid_values,
    missing_option,
    package_of,
    unknown_options,
)
from shardline.datasource.errors import InvalidUsage, nearest_name
from shardline.datasource.schema import DIFF

__all__ = ["AnalysedObject", "Analysis", "analyse"]

_NEAR: Final = re.compile(r"(?<=^syntax error )at or near '[^']*'")
"""The place in a message of Spark's parser."""

_TOKEN: Final = re.compile(r"\w+|\S")


@dataclass(frozen=True, slots=True)
class _Basis:
    """All that the analysis of a view depends on.

    Attributes:
        written: Its description, as the user wrote it.
        columns: Those of its inputs, as the analyzer has had them, in the order of `inputs`.
        session: Fingerprint of the session.
    """

    written: ObjectDescription
    columns: tuple[str, ...]
    session: str


@dataclass(frozen=True, slots=True)
class AnalysedObject:
    """An object that Spark accepts.

    Attributes:
        description: Its complete description, with columns, strategy and the compact query.
        schema: Columns of its contents in JSON, as its shard has them; "" for objects without
            contents.
        ddl: The same in DDL.
        unreachable: Why a source or sink cannot be opened where it is now; None if it can.
        columns: The columns in JSON, as the analyzer has them of what reads it.
        basis: What this follows from; None if that is not all known.
    """

    description: ObjectDescription
    schema: str = ""
    ddl: str = ""
    unreachable: Problem | None = None
    columns: str = ""
    basis: _Basis | None = None


@dataclass(slots=True)
class Analysis:
    """The result for a whole project.

    Attributes:
        objects: Objects by name, in the given order, without those that have problems.
        problems: Everything that Spark, or a shard, refuses.
    """

    objects: dict[str, AnalysedObject] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


class _ObjectRefused(Exception):
    """An object has problems, and is left out."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__(*map(str, problems))
        self.problems = problems


def analyse(
    catalyst: Catalyst, written: Sequence[WrittenObject], earlier: Sequence[Analysis] = ()
) -> Analysis:
    """Analyse objects in order.

    Args:
        catalyst: The analyzer of a session like the one that will run them: its settings decide
            what a query means.
        written: Objects that have passed `names.check_names`, inputs first.
        earlier: Analyses from which views are taken that have not changed.
    """
    analysis = Analysis()
    for one in written:
        if any(name not in analysis.objects for name in one.reads):
            continue
        try:
            analysis.objects[one.name] = _analysed(catalyst, analysis, one, earlier)
        except _ObjectRefused as flawed:
            analysis.problems += flawed.problems
    return analysis


def _analysed(
    catalyst: Catalyst, analysis: Analysis, one: WrittenObject, earlier: Sequence[Analysis]
) -> AnalysedObject:
    match one.description:
        case SourceDescription() as source:
            return _source(catalyst, one, source)
        case ViewDescription() as view:
            assert one.query is not None, one
            inputs = {name: analysis.objects[name] for name in one.reads}
            basis = _basis(catalyst, view, inputs)
            for known in earlier if basis is not None else ():
                found = known.objects.get(one.name)
                if found is not None and found.basis == basis:
                    return found
            return with_fields(_view(catalyst, one, view, one.query, inputs), basis=basis)
        case IndexDescription() as index:
            return AnalysedObject(replace(index, key=_key(one, analysis.objects[index.on].schema)))
        case SinkDescription() as sink:
            return _sink(catalyst, one, sink, analysis.objects[sink.on].schema)


def _basis(
    catalyst: Catalyst, view: ViewDescription, inputs: Mapping[str, AnalysedObject]
) -> _Basis | None:
    session = catalyst.fingerprint(view.query)
    if session is None:
        return None
    return _Basis(view, tuple(inputs[name].columns for name in view.inputs), session)


def _sink(
    catalyst: Catalyst, one: WrittenObject, sink: SinkDescription, schema: str
) -> AnalysedObject:
    _check_options(one, sink.format, sink.options, "sink")
    # Both, as the options of a format whose package is not there are wrong with it as well.
    flaws = [*_format_problems(catalyst, one, sink), *_sink_problems(one, sink, schema)]
    if flaws:
        raise _ObjectRefused(*flaws)
    description = replace(sink, key=_key(one, schema))
    problems = find_row_problems(catalyst, one, description, schema)
    if problems:
        raise _ObjectRefused(*problems)
    return AnalysedObject(description, unreachable=find_target_problem(catalyst, one, sink))


def _format_problems(
    catalyst: Catalyst, one: WrittenObject, sink: SinkDescription
) -> Iterator[Problem]:
    """The reason why nothing writes the format of a sink."""
    if is_only_read(catalyst, sink):
        what = f"format '{sink.format}' is one of sources: nothing writes it"
        hint = "use a format that is written, such as parquet, json or shard"
        yield one.problem("format", "UNKNOWN_FORMAT", what, hint)
    elif sink.format not in OWN_SINKS and not catalyst.writes(sink.format):
        yield _unknown_format(one, sink.format)


def _sink_problems(one: WrittenObject, sink: SinkDescription, schema: str) -> Iterator[Problem]:
    """The first reason why a sink cannot work by what its statement says."""
    # Loading what writes takes time that projects without sinks need not spend.
    from shardline.app.storage.sinks.rows import check_names  # noqa: PLC0415
    from shardline.app.storage.sinks.target import check_sink  # noqa: PLC0415

    try:
        check_sink(sink)
        check_names(sink, names_of(schema))
    except InvalidUsage as error:
        piece = "ENVELOPE" if error.code in ("ENVELOPE_MISMATCH", "RESERVED_NAME") else "OPTIONS"
        # An error of an option has its name in quotes.
        named = (name for name in sink.options if f"option '{name}'" in error.detail)
        piece = next((f"option {name.lower()}" for name in named), piece)
        yield one.problem(piece, error.code, error.detail, error.hint)


def _check_options(one: WrittenObject, name: str, options: Mapping[str, str], use: Use) -> None:
    unknown = unknown_options(name, options, use)
    if not unknown and (use == "source" or name == "kafka"):
        wrong = invalid_values(name, options)
        if wrong:
            raise _ObjectRefused(
                *(value_problem(one, option, options[option], hint) for option, hint in wrong)
            )
    if unknown:
        raise _ObjectRefused(
            *(
                one.problem(
                    f"option {option.lower()}",
                    "UNKNOWN_OPTION",
                    f"format '{name}' has no option '{option}'",
                    hint,
                )
                for option, hint in unknown
            )
        )


def _source(catalyst: Catalyst, one: WrittenObject, source: SourceDescription) -> AnalysedObject:
    _check_options(one, source.format, source.options, "source")
    if package_of(source.format) is not None and not catalyst.writes(source.format):
        raise _ObjectRefused(_unknown_format(one, source.format))
    try:
        on_bad_row(source)
    except InvalidUsage as error:
        piece = f"option {ON_BAD_ROW}"
        raise _ObjectRefused(one.problem(piece, error.code, error.detail, error.hint)) from None
    needed = missing_option(source.format, source.options, "source")
    if needed is not None:
        what = f"option '{needed[0]}' of source '{one.name}' is missing"
        raise _ObjectRefused(one.problem("OPTIONS", "MISSING_OPTION", what, needed[1]))
    read = _read_columns(catalyst, one, source)
    try:
        schema = contents_columns(source, read.schema)
    except InvalidUsage as error:
        raise _ObjectRefused(one.problem("columns", error.code, error.detail, error.hint)) from None
    flaw = find_columns_problem(schema, names_of(schema)) or find_taken_name(read.schema)
    if flaw is not None:
        code, message, hint = flaw
        if code == "RESERVED_COLUMN" and source.envelope == "none" and DIFF in names_of(schema):
            hint = diff_hint(source)
        raise _ObjectRefused(one.problem("columns", code, message, hint))
    kept = catalyst.ddl(read.schema) if read.must_be_given else ""
    description = replace(source, schema=kept, key=_key(one, schema))
    _check_roles(one, description, read.schema)
    unreachable = None
    if read.unreachable is not None:
        unreachable = unreachable_problem(one, source, read.unreachable)
    return _with_contents(catalyst, description, schema, unreachable)


def _check_roles(one: WrittenObject, source: SourceDescription, columns: str) -> None:
    # They know Spark's types, which a check of names alone need not load.
    from pyspark.sql.types import StructType  # noqa: PLC0415

    from shardline.app.storage.reading import check_roles  # noqa: PLC0415

    try:
        check_roles(source, StructType.fromJson(json.loads(columns)))
    except InvalidUsage as error:
        words = f"{error.detail} {error.hint}"
        named = (name for name in source.options if f"'{name.lower()}'" in words.lower())
        piece = next((f"option {name.lower()}" for name in named), "columns")
        raise _ObjectRefused(one.problem(piece, error.code, error.detail, error.hint)) from None


def _read_columns(
    catalyst: Catalyst, one: WrittenObject, source: SourceDescription
) -> SourceColumns:
    """Columns of the rows that a source reads."""
    # Loading the generators takes time that projects without them need not spend.
    from shardline.app.storage.generators import FORMATS, schema_of  # noqa: PLC0415

    try:
        if source.format.lower() not in FORMATS:
            return catalyst.reads(source.format, source.options, source.schema)
        if source.schema:
            what = f"generator '{source.format}' makes its own columns"
            raise _ObjectRefused(one.problem("SCHEMA", "INVALID_SCHEMA", what, "leave out SCHEMA"))
        made = catalyst.columns(schema_of(source.format.lower(), source.options))
        return SourceColumns(made, must_be_given=False)
    except InvalidUsage as error:
        raise _ObjectRefused(one.problem("OPTIONS", error.code, error.detail, error.hint)) from None
    except RefusedBySpark as refused:
        problem = refused.problem
        if problem.code == "DATA_SOURCE_NOT_FOUND":
            raise _ObjectRefused(_unknown_format(one, source.format)) from None
        if refused.option:
            raise _ObjectRefused(invalid_option(one, refused.option, problem)) from None
        if problem.code == "PATH_NOT_FOUND":
            raise _ObjectRefused(unreachable_problem(one, source, problem)) from None
        piece = "format" if problem.offset is None else "columns"
        raise _ObjectRefused(
            one.problem(piece, problem.code, problem.message, problem.hint, problem.offset or 0)
        ) from None


def _view(
    catalyst: Catalyst,
    one: WrittenObject,
    view: ViewDescription,
    query: Query,
    inputs: Mapping[str, AnalysedObject],
) -> AnalysedObject:
    # From the text, before Spark sees it: its parser replaces these literals by the present time,
    # and the plan would look like that of a constant.
    literal = find_clock_literal(query.text)
    if literal is not None:
        what = "this literal means the time at which the query runs"
        raise _ObjectRefused(
            _not_deterministic(one, what, "write the date or timestamp itself", literal)
        )
    _add_inputs(catalyst, one, inputs)
    bound = query.bind(catalyst.views)
    try:
        plan = catalyst.query(bound.text)
    except RefusedBySpark as refused:
        raise _ObjectRefused(_spark_problem(one, bound, refused, catalyst)) from None
    if plan.culprits:
        raise _ObjectRefused(*(_determinism_problem(one, bound, each) for each in plan.culprits))
    if plan.temporal and not has_clock_word(compact_text(query.text)):
        what = "a function of this query uses now(), which depends on when the query is run"
        raise _ObjectRefused(_not_deterministic(one, what, "write now() in the query itself"))
    if plan.special:
        what = f"'{plan.special}' as a date or timestamp means the time at which the query runs"
        raise _ObjectRefused(_not_deterministic(one, what, "write the date or timestamp itself"))
    undecided = find_nondeterminism(plan.tree)
    if undecided is not None:
        raise _ObjectRefused(_not_deterministic(one, *undecided))
    # Those of its inputs, too: `SELECT *` brings them along as somebody has written them.
    inherited = [name for found in inputs.values() for name in names_of(found.schema)]
    flaw = find_columns_problem(plan.schema, [*quoted_names(query.text), *inherited])
    if flaw is not None:
        raise _ObjectRefused(one.problem("query", *flaw))
    _check_comparable(one, plan)
    return _with_contents(catalyst, _kept(view, plan, catalyst), plan.schema)


def _add_inputs(
    catalyst: Catalyst, one: WrittenObject, inputs: Mapping[str, AnalysedObject]
) -> None:
    for name, found in inputs.items():
        # Only now: what no new query reads needs no view, each of which is some calls to the JVM.
        if name in catalyst.views:
            continue
        try:
            catalyst.add(name, found.columns)
        except RefusedBySpark as refused:
            problem = refused.problem
            message = f"Spark refuses the columns of '{name}': {problem.message}"
            raise _ObjectRefused(
                one.problem("query", problem.code, message, problem.hint)
            ) from None


def _with_contents(
    catalyst: Catalyst,
    description: ObjectDescription,
    schema: str,
    unreachable: Problem | None = None,
) -> AnalysedObject:
    """An object with contents, whose columns are those that its shard gets."""
    ddl = catalyst.ddl(schema)
    # Not `schema`: a shard is made from DDL, which cannot say that an array or a map holds no
    # nulls. With Spark's own columns a plan would find that the shard of `split(…)` does not fit.
    return AnalysedObject(description, catalyst.columns(ddl), ddl, unreachable, schema)


def _check_comparable(one: WrittenObject, plan: QueryPlan) -> None:
    # It knows Spark's types, which projects without views need not load.
    from pyspark.sql.types import StructType  # noqa: PLC0415

    from shardline.app.compute.view.correction import check_comparable  # noqa: PLC0415

    try:
        check_comparable(one.name, StructType.fromJson(json.loads(plan.schema)))
    except InvalidUsage as error:
        raise _ObjectRefused(one.problem("query", error.code, error.detail, error.hint)) from None


def _kept(view: ViewDescription, plan: QueryPlan, catalyst: Catalyst) -> ViewDescription:
    query = compact_text(view.query)
    strategy, reason = choose_strategy(plan.normal_tree, plan.verdicts)
    return replace(
        view,
        query=query,
        schema=catalyst.ddl(plan.schema),
        strategy=strategy,
        reason=reason,
    )


def _spark_problem(
    one: WrittenObject, bound: BoundQuery, refused: RefusedBySpark, catalyst: Catalyst
) -> Problem:
    """Spark's error as a problem, with the project's names and places."""
    problem = refused.problem
    message, hint = problem.message, problem.hint
    # The longest first: the name of a view may be the beginning of that of another.
    views = sorted(catalyst.views.items(), key=lambda pair: len(pair[1]), reverse=True)
    for name, view in views:
        message, hint = message.replace(view, name), hint.replace(view, name)
    shift = 0 if problem.offset is None else bound.origin(problem.offset)
    if problem.offset is not None and one.query is not None:
        # It may be a word that was put into the text with the name of a view.
        met = _TOKEN.match(one.query.text, shift)
        if met is not None:
            message = _NEAR.sub(lambda _: f"at or near '{met[0]}'", message)
    return one.problem("query", problem.code, message, hint, shift)


def _determinism_problem(
    one: WrittenObject, bound: BoundQuery, culprit: NondeterministicExpression
) -> Problem:
    shift = 0 if culprit.offset is None else bound.origin(culprit.offset)
    if culprit.hint:
        what = f"{culprit.name}() depends on when the query is run"
        return _not_deterministic(one, what, culprit.hint, shift)
    if culprit.current:
        what = f"{culprit.name}() depends on when, where or by whom the query is run"
        return _not_deterministic(one, what, "compare with a column, or ask with `sql`", shift)
    what = f"{culprit.name}() gives another value each time the query is run"
    return _not_deterministic(one, what, "take the value from a column of a source", shift)


def _not_deterministic(one: WrittenObject, what: str, hint: str, shift: int = 0) -> Problem:
    message = f"{what}: the contents at a time would not be decided"
    return one.problem("query", "NOT_DETERMINISTIC", message, hint, shift)


def _key(one: WrittenObject, schema: str) -> tuple[str, ...]:
    """The object's key in the spelling of the columns.

    Raises:
        _ObjectRefused: A column of the key does not exist, or its values cannot tell rows apart.
    """
    assert not isinstance(one.description, ViewDescription), one
    key, unknown = spell_key(one.description.key, schema)
    if unknown:
        raise _ObjectRefused(
            *(
                one.problem(f"key {name}", "UNKNOWN_COLUMN", f"key '{name}' is no column", hint)
                for name, hint in unknown
            )
        )
    if isinstance(one.description, SourceDescription):
        for name, written in zip(key, one.description.key, strict=True):
            problem = find_key_problem(name, schema)
            if problem is not None:
                raise _ObjectRefused(one.problem(f"key {written}", *problem))
    return key


def _unknown_format(one: WrittenObject, name: str) -> Problem:
    package = package_of(name)
    if package is not None:
        what, hint = (
            f"format '{name}' is not on the class path",
            f"start with --packages {package[1]}",
        )
        return one.problem("format", "PACKAGE_MISSING", what, hint)
    near = nearest_name(name, [known for known in KNOWN_FORMATS if known != name])
    hint = f"did you mean '{near}'?" if near else _ELSEWHERE
    if name in OWN_SINKS:
        hint = "it is a format of sinks alone"
    return one.problem("format", "UNKNOWN_FORMAT", f"there is no format '{name}'", hint)


_ELSEWHERE = "put its package on the class path, or register it in this session"

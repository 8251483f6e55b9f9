"""Columns that a format cannot have, and sinks of files whose options it cannot write by."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql.datasource import DataSource, DataSourceWriter
from typing_extensions import override

from shardline.app.project.option_problems import HOME_HINT, hadoop_hint
from shardline.app.project.project import CheckedProject, Project
from shardline.app.sql.problems import InvalidProject
from shardline.app.storage.formats import ONLY_READ
from shardline.app.storage.generators import FORMATS as GENERATORS
from shardline.app.storage.sinks.others import register_function
from shardline.datasource.client import ShardClient
from shardline.datasource.spark_native.jvm import as_active
from shardline.datasource.types.schema import ShardSchema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

pytestmark = pytest.mark.spark

COLUMNS = "a INT NOT NULL, s STRING, at TIMESTAMP, m ARRAY<INT>, `a b` INT"


def check(spark: SparkSession, folder: Path, *sinks: str) -> CheckedProject:
    (folder / "in").mkdir()
    text = f"CREATE SOURCE t USING json OPTIONS (path '{folder}/in') SCHEMA ({COLUMNS});\n"
    text += "CREATE MATERIALIZED VIEW v AS SELECT a, s FROM t;\n"
    text += "CREATE MATERIALIZED VIEW u AS SELECT a AS _UPPER FROM t;\n"
    text += "\n".join(f"CREATE SINK k{n} FROM {sink};" for n, sink in enumerate(sinks))
    return Project.parse({"p.sql": text}).check(spark)


def test_each_is_refused_at_its_option(spark: SparkSession, tmp_path: Path) -> None:
    """By Spark's own writers, before anything runs."""
    options = {
        "t USING parquet": {
            "compression 'zipp'": ("option 'compression' cannot be 'zipp'", "Available codecs"),
            "compression 'lzo'": ("option 'compression' cannot be 'lzo'", "LzoCodec"),
            "partitionBy 'zz'": ("'zz' is no column of the rows that sink", "known: _diff, _ts"),
            "partitionBy 's,m'": ('cannot use "ARRAY<INT>" for partition', "divide by columns"),
            "partitionBy '_deleted'": ("'_deleted' is no column", "known"),
            "maxRecordsPerFile 'x'": ("option 'maxRecordsPerFile' cannot be 'x'", "most rows"),
            "parquet.block.size 'x'": ("option 'parquet.block.size' cannot be 'x'", "page"),
            "interval '0s'": ("option 'interval' cannot be '0s'", "longer than 0"),
            "interval '99999999 days'": (
                "option 'interval' cannot be '99999999 days'",
                "100 years",
            ),
        },
        "v USING csv": {
            "header 'maybe'": ("option 'header' cannot be 'maybe'", "can be true or false"),
            "quote 'xx'": ("option 'quote' cannot be 'xx'", "more than one character"),
        },
        "t USING json": {
            "timestampFormat 'QQQQQQ'": ("option 'timestampFormat' cannot be", "reduce pattern"),
            "encoding 'foo'": ("option 'encoding' cannot be 'foo'", "utf-8"),
        },
        "v USING orc": {"compression 'gzip'": ("'compression' cannot be 'gzip'", "zlib")},
        "u USING json": {
            "interval '1s'": ("sink 'k14' writes a column '_upper'", "another name for it")
        },
        "t USING csv": {"header 'true'": ("cannot write the rows of sink", "make a view")},
    }
    cases = [
        (f"{head} OPTIONS (path '{tmp_path}/{head[0]}{n}-{head[8:]}', {option})", option, expected)
        for head, each in options.items()
        for n, (option, expected) in enumerate(each.items())
    ]
    with pytest.raises(InvalidProject) as error:
        check(spark, tmp_path, *(sink for sink, _, _ in cases))
    problems = error.value.problems
    assert len(problems) == len(cases), "\n".join(map(str, problems))
    for problem, (sink, option, (message, hint)) in zip(problems, cases, strict=True):
        assert message in problem.message, sink
        assert hint in problem.hint, sink
        assert problem.place is not None
        at = problem.place.text[problem.place.column - 1 :]
        assert at.startswith((option.split()[0], "csv", "u USING")), sink
    assert list(tmp_path.rglob("*")) == [tmp_path / "in"], "a check has written where a sink writes"


def test_what_spark_writes_passes(spark: SparkSession, tmp_path: Path) -> None:
    """Among it columns of the envelope, and names in another case."""
    sinks = [
        "t USING parquet OPTIONS (path '{}', partitionBy 'A, _diff', compression 'zstd')",
        "t USING json OPTIONS (path '{}', partitionBy 'a b')",
        "v USING csv OPTIONS (path '{}', sep '||', header 'true') ENVELOPE UPSERT KEY (a)",
        "v USING orc OPTIONS (path '{}', partitionBy 'op', compression 'zlib') ENVELOPE DEBEZIUM",
        "v USING text OPTIONS (path '{}', partitionBy 'a') ENVELOPE NONE",
        "v USING xml OPTIONS (path '{}', rowTag 'r', interval '500ms', maxRecordsPerFile '10')",
    ]
    placed = [sink.format(tmp_path / str(n)) for n, sink in enumerate(sinks)]
    assert check(spark, tmp_path, *placed).unreachable == {}


def test_where_no_folder_can_be_is_told_apart(spark: SparkSession, tmp_path: Path) -> None:
    """A sink that runs already waits for its folder; a new one is refused by the plan."""
    for name in ("k0", "k1"):
        (tmp_path / name).write_text("x")
    sinks = [
        f"v USING parquet OPTIONS (path '{tmp_path}/k0')",
        f"v USING parquet OPTIONS (path 'file://{tmp_path}/k1/below')",
        "v USING parquet OPTIONS (path 'foo://x/y')",
        "v USING parquet OPTIONS (path '')",
        f"v USING parquet OPTIONS (path '{tmp_path}/new/below')",
        "v USING parquet OPTIONS (path '~/out')",
        "v USING parquet OPTIONS (path 's3://bucket/out')",
    ]
    unreachable = check(spark, tmp_path, *sinks).unreachable
    assert {name: (one.message, one.hint) for name, one in unreachable.items()} == {
        **{
            name: (
                f"'{tmp_path}/{name}' is a file, and the sink needs a folder",
                "move the file away, or give another path",
            )
            for name in ("k0", "k1")
        },
        "k2": ("option 'path' cannot be 'foo://x/y'", 'No FileSystem for scheme "foo"'),
        "k3": ("option 'path' cannot be ''", "can not create a Path from an empty string"),
        "k5": ("option 'path' cannot be '~/out'", HOME_HINT),
        "k6": (
            "option 'path' cannot be 's3://bucket/out'",
            hadoop_hint('No FileSystem for scheme "s3"'),
        ),
    }


@pytest.mark.parametrize(
    ("source", "message", "hint"),
    [
        ("json S (a INT, m MAP<INT, STRING>)", "map 'm' are texts in json, and no integer", "k AS"),
        ("json S (a ARRAY<STRUCT<m: MAP<DATE, INT>>>)", "map 'a.element.m' are texts", "MAP<STR"),
        ("xml S (m MAP<STRING, MAP<BINARY, INT>>)", "map 'm.value' are texts in xml, and", "MAP<S"),
        ("csv S (a INT, b ARRAY<INT>)", 'column `b` of the type "ARRAY<INT>"', "declare a STRING"),
        ("text S (a INT)", "one column, which is a STRING", "SCHEMA (value STRING)"),
        ("binaryFile S (a INT)", "has columns of its own", "leave out SCHEMA"),
        ("json S (a INT, _Shardline_x INT)", "column '_Shardline_x'", "another name"),
    ],
)
def test_columns_that_a_format_cannot_have_are_refused(
    spark: SparkSession, tmp_path: Path, source: str, message: str, hint: str
) -> None:
    """Spark would fail at the first row, or make NULL of all of them."""
    kind, columns = source.split(" S ")
    options = f"path '{tmp_path}'" + (", rowTag 'r'" if kind == "xml" else "")
    text = f"CREATE SOURCE s USING {kind} OPTIONS ({options})\n  SCHEMA {columns};"
    with pytest.raises(InvalidProject) as error:
        Project.parse({"p.sql": text}).check(spark)
    (problem,) = error.value.problems
    assert f"{problem.place}" == "p.sql:2:11"
    assert message in problem.message
    assert hint in problem.hint


def test_columns_that_a_format_can_have_are_taken(spark: SparkSession, tmp_path: Path) -> None:
    """Keys that are texts, in all places, and any keys where files have them."""
    columns = "a MAP<STRING, ARRAY<MAP<STRING, INT>>>, s STRUCT<x: STRING COLLATE UTF8_LCASE>"
    text = f"CREATE SOURCE j USING json OPTIONS (path '{tmp_path}') SCHEMA ({columns});\n"
    text += f"CREATE SOURCE t USING text OPTIONS (path '{tmp_path}') SCHEMA (v STRING, day INT);\n"
    text += f"CREATE SOURCE b USING binaryFile OPTIONS (path '{tmp_path}');\n"
    text += f"CREATE SOURCE p USING parquet OPTIONS (path '{tmp_path}') SCHEMA (m MAP<INT, INT>);"
    assert Project.parse({"p.sql": text}).check(spark).descriptions.keys() == {"j", "t", "b", "p"}


@pytest.mark.parametrize(
    ("option", "rest", "expected"),
    [
        (
            "orderingColumn 'zz'",
            "(f INT) ENVELOPE UPSERT KEY (f)",
            ("orderingColumn", "column 'zz'"),
        ),
        ("orderingColumn 'f'", "(f INT)", ("orderingColumn", "means nothing with envelope")),
        (
            "orderingColumn 'm'",
            "(f INT, m MAP<STRING, INT>) ENVELOPE UPSERT KEY (f)",
            ("f INT", "has no order"),
        ),
        (
            "deleteColumn 'f'",
            "(f INT, g INT) ENVELOPE UPSERT KEY (g)",
            ("deleteColumn", "is int, not boolean"),
        ),
        ("deleteColumn 'z'", "(f INT) ENVELOPE UPSERT KEY (f)", ("deleteColumn", "column 'z'")),
        ("mode 'FAILFAST'", "(a INT, _diff STRING) ENVELOPE DIFF", ("a INT", "'_diff' is string")),
        (
            "mode 'FAILFAST'",
            "(after STRUCT<x: INT>) ENVELOPE DEBEZIUM",
            ("after", "lacks column 'before'"),
        ),
    ],
)
def test_what_an_envelope_needs_is_looked_for_before_anything_runs(
    spark: SparkSession, tmp_path: Path, option: str, rest: str, expected: tuple[str, str]
) -> None:
    """The source would stall at its start, with the same words."""
    text = f"CREATE SOURCE s USING json OPTIONS (path '{tmp_path}', {option}) SCHEMA {rest};"
    with pytest.raises(InvalidProject) as error:
        Project.parse({"p.sql": text}).check(spark)
    (problem,) = error.value.problems
    at, message = expected
    assert problem.place is not None
    assert problem.place.text[problem.place.column - 1 :].startswith(at)
    assert message in problem.message


def test_a_format_of_sinks_is_none_of_sources(spark: SparkSession) -> None:
    """It is there, and is not misspelt."""
    with pytest.raises(InvalidProject) as error:
        Project.parse({"p.sql": "CREATE SOURCE s USING memory;"}).check(spark)
    (problem,) = error.value.problems
    assert problem.message == "there is no format 'memory'"
    assert "sinks alone" in problem.hint


@pytest.mark.parametrize(
    ("sink", "at", "message"),
    [
        ("console OPTIONS (numRows 'x')", "numRows", "option 'numRows' cannot be 'x'"),
        ("console OPTIONS (truncate 'maybe')", "truncate", "option 'truncate' cannot be 'maybe'"),
        ("jdbc OPTIONS (dbtable 't')", "OPTIONS", "option 'url' of sink 'k' is missing"),
        ("shard OPTIONS (shard 'a/../b')", "OPTIONS", "'a/../b' cannot name a shard"),
        ("rate", "rate", "format 'rate' is one of sources: nothing writes it"),
        ("Counter", "Counter", "format 'counter' is one of sources: nothing writes it"),
        ("foreachBatch", "k FROM", "option 'function' of sink 'k' is missing"),
    ],
)
def test_sinks_that_are_no_files_are_refused_as_early(
    spark: SparkSession, sink: str, at: str, message: str
) -> None:
    """Each would stall at its start, with the same words."""
    text = f"CREATE SOURCE c USING counter;\nCREATE SINK k FROM c USING {sink};"
    with pytest.raises(InvalidProject) as error:
        Project.parse({"p.sql": text}).check(spark)
    (problem,) = error.value.problems
    assert problem.message == message
    assert problem.place is not None
    assert problem.place.text[problem.place.column - 1 :].startswith(at)


class ReadSource(DataSource):
    """A source of Python that has no writer."""

    @classmethod
    @override
    def name(cls) -> str:
        return "read_by_python"

    @override
    def schema(self) -> str:
        return "a INT"


class WrittenSource(ReadSource):
    """One that has a writer, or says so."""

    @classmethod
    @override
    def name(cls) -> str:
        return "written_by_python"

    @override
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        raise NotImplementedError


@pytest.mark.parametrize("by_value", [False, True])
def test_a_python_source_without_a_writer_is_no_format_of_sinks(
    spark: SparkSession, *, by_value: bool
) -> None:
    """Spark takes it for one until a micro-batch asks for its writer; one that has one passes.

    A class of a program's main module is pickled by value.
    """
    module = sys.modules[__name__]
    if by_value:
        cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        for source in (ReadSource, WrittenSource):
            spark.dataSource.register(source)
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)  # type: ignore[no-untyped-call]
    # Spark looks formats of Python up in the active session, which may be that of another test.
    with as_active(spark), pytest.raises(PySparkException, match="NOT_IMPLEMENTED"):
        spark.range(1).write.format("read_by_python").mode("append").save()
    text = (
        "CREATE SOURCE c USING counter;\n"
        "CREATE SINK a FROM c USING read_by_python;\n"
        "CREATE SINK b FROM c USING written_by_python;"
    )
    with pytest.raises(InvalidProject) as error:
        Project.parse({"p.sql": text}).check(spark)
    (problem,) = error.value.problems
    assert problem.message == "format 'read_by_python' is one of sources: nothing writes it"
    assert f"{problem.place}".startswith("p.sql:2:")


@pytest.mark.parametrize("name", sorted(ONLY_READ - set(GENERATORS)))
def test_formats_of_sources_alone_are_those_that_spark_does_not_write(
    spark: SparkSession, tmp_path: Path, name: str
) -> None:
    """A sink of one would stall at each of its micro-batches."""
    with pytest.raises(PySparkException):
        spark.range(1).write.format(name).mode("append").save(str(tmp_path / "out"))


def test_options_of_kafka_are_found_without_its_package(spark: SparkSession) -> None:
    """Each run of the check says all of it: the package, and what is missing beside it."""
    text = "CREATE SOURCE c USING counter;\nCREATE SINK k FROM c USING kafka OPTIONS ({});"
    given = {
        "topic 't'": "option 'kafka.bootstrap.servers' of sink 'k' is missing",
        "kafka.bootstrap.servers 'h:1'": "option 'topic' of sink 'k' is missing",
        "kafka.bootstrap.servers 'h', topic 't'": "option 'kafka.bootstrap.servers' cannot be 'h'",
        "kafka.bootstrap.servers 'h:1', topic 'a,b'": "option 'topic' cannot be 'a,b'",
    }
    for options, expected in given.items():
        with pytest.raises(InvalidProject) as error:
            Project.parse({"p.sql": text.format(options)}).check(spark)
        assert expected in [problem.message for problem in error.value.problems]


def test_a_function_that_nobody_has_registered_is_told_apart(spark: SparkSession) -> None:
    """A sink that runs already waits for the program that has it; a new one is refused."""
    register_function("known_to_the_plan", lambda _, __: None)
    text = (
        "CREATE SOURCE c USING counter;\n"
        "CREATE SINK a FROM c USING foreachBatch OPTIONS (function 'known_to_the_plan');\n"
        "CREATE SINK b FROM c USING foreachBatch OPTIONS (Function 'known_to_the_plam');"
    )
    unreachable = Project.parse({"p.sql": text}).check(spark).unreachable
    assert {name: (one.code, f"{one.place}") for name, one in unreachable.items()} == {
        "b": ("UNKNOWN_FUNCTION", "p.sql:3:50")
    }
    assert "did you mean 'known_to_the_plan'?" in unreachable["b"].hint


def test_a_shard_where_no_location_can_be_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """At its option, as far as that is known without a look; one that is there passes."""
    places = {
        "location 'nope://a/b', shard 's'": ("INVALID_LOCATION", "is the fsspec file system for"),
        "path 'nope://a/b/other'": ("INVALID_LOCATION", "cannot open 'nope://a/b'"),
        "Path 'local://a/s'": ("STORE_NOT_ATOMIC", "create a file only if it is absent"),
        "location '~/x', shard 's'": ("INVALID_LOCATION", "'~' is not expanded"),
        "location 's3://', shard 's'": ("INVALID_LOCATION", "no empty segment"),
        "S3.endpont 'x', path 's3://b/c/s'": ("UNKNOWN_OPTION", "did you mean 's3.endpoint'"),
        "`s3.access-key-id` 'x', path 's3://b/c/t'": ("", ""),
        f"path '{tmp_path}/later/s'": ("", ""),
        "shard 's'": ("", ""),
    }
    text = "CREATE SOURCE c USING counter;\n" + "\n".join(
        f"CREATE SINK k{n} FROM c USING shard OPTIONS ({one});" for n, one in enumerate(places)
    )
    unreachable = Project.parse({"p.sql": text}).check(spark).unreachable
    for n, (given, (code, said)) in enumerate(places.items()):
        problem = unreachable.get(f"k{n}")
        assert (problem.code if problem else "") == code, given
        if problem is not None:
            assert said in f"{problem.message} {problem.hint}", given
            assert problem.place is not None
            written = problem.place.text[problem.place.column - 1 :]
            assert written.startswith(given.partition(" ")[0]), given


def test_files_are_divided_by_a_column_in_another_case_where_case_matters(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Columns of a project have no case, and Spark's writer has to be given their own."""
    session = spark.newSession()
    session.conf.set("spark.sql.caseSensitive", "true")
    text = (
        f"CREATE SOURCE t USING json OPTIONS (path '{tmp_path}') SCHEMA (N INT, a INT);\n"
        "CREATE SINK k FROM t USING parquet "
        f"OPTIONS (path '{tmp_path}-out', partitionBy 'n,_DIFF');"
    )
    assert Project.parse({"p.sql": text}).check(session).descriptions.keys() == {"t", "k"}


@pytest.mark.parametrize(
    ("source", "at", "expected"),
    [
        ("csv O (path 'in', timestampFormat 'qqqqqqq') S (t TIMESTAMP)", "timestamp", ("", "qqq")),
        (
            "json O (path 'in', dateFormat 'YYYY') S (d DATE)",
            "dateFormat",
            ("'YYYY'", "datetime pat"),
        ),
        ("csv O (path 'in', sep '') S (a INT)", "sep", ("option 'sep' cannot be ''", "one char")),
        ("csv O (path '~/in') S (a INT)", "path", ("'~/in', which is not there", HOME_HINT)),
        ("csv O (path 's3://b/in') S (a INT)", "OPTIONS", ('scheme "s3"', "write s3a://…")),
        ("csv O (path 'in') S (a INT, _diff INT)", "a INT", ("'_diff'", "write ENVELOPE DIFF")),
        ("counter O (maxCardinality '3')", "s USING", ("'_diff'", "leave out maxCardinality")),
        ("counter ENVELOPE DIFF", "s USING", ("no column '_diff'", "OPTIONS (maxCardinality")),
        ("rate ENVELOPE DIFF", "s USING", ("no column '_diff'", "leave out ENVELOPE DIFF")),
        ("counter ENVELOPE DEBEZIUM", "s USING", ("'after'", "leave out ENVELOPE DEBEZIUM")),
    ],
)
def test_a_source_that_could_read_no_row_is_refused(
    spark: SparkSession, tmp_path: Path, source: str, at: str, expected: tuple[str, str]
) -> None:
    """Its first row was an error, or its file was called damaged."""
    text = source.replace(" O (", " OPTIONS (").replace(" S (", " SCHEMA (")
    text = f"CREATE SOURCE s USING {text};".replace("'in'", f"'{tmp_path}'")
    project = Project.parse({"p.sql": text})
    try:
        (problem,) = project.check(spark).unreachable.values()
    except InvalidProject as error:
        (problem,) = error.problems
    assert problem.place is not None
    assert problem.place.text[problem.place.column - 1 :].startswith(at)
    message, hint = expected
    assert message in problem.message
    assert hint in problem.hint


def test_patterns_of_times_that_spark_knows_are_taken(spark: SparkSession, tmp_path: Path) -> None:
    """With optional parts and texts, for all types."""
    patterns = {
        "timestampFormat": "yyyy-MM-dd''T''HH:mm:ss[.SSS][X]",
        "timestampNTZFormat": "dd/MM/yyyy HH:mm",
        "dateFormat": "E d MMM yyyy",
    }
    options = ", ".join(f"{name} '{pattern}'" for name, pattern in patterns.items())
    text = f"CREATE SOURCE s USING csv OPTIONS (path '{tmp_path}', {options})"
    project = Project.parse({"p.sql": f"{text} SCHEMA (t TIMESTAMP, n TIMESTAMP_NTZ, d DATE);"})
    # `E` is refused by Spark in patterns that are parsed, as days of a week mean no date.
    assert project.problems == []
    with pytest.raises(InvalidProject, match="option 'dateFormat' cannot be 'E d MMM yyyy'"):
        project.check(spark)
    text = text.replace("E d", "d")
    assert Project.parse({"p.sql": f"{text} SCHEMA (d DATE);"}).check(spark).unreachable == {}


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ("s STRING", None),
        ("s STRING, m ARRAY<INT>, a INT NOT NULL", None),
        ("s STRING, b INT", ("the shard has no column 'b'", "known: a, m, s")),
        ("A INT", ("the shard has no column 'A'", "did you mean 'a'?")),
        ("a BIGINT", ("column 'a' of the shard is integer, and not long", "a shard says")),
    ],
)
def test_columns_of_a_shard_are_those_that_it_has(
    spark: SparkSession, tmp_path: Path, columns: str, expected: tuple[str, str] | None
) -> None:
    """Some of them, in any order: Spark takes whatever is written, and the source stalled."""
    schema = pa.schema([("a", pa.int32()), ("s", pa.string()), ("m", pa.list_(pa.int32()))])
    ShardClient.open(str(tmp_path)).create("t", ShardSchema.from_arrow(schema))
    text = "CREATE SOURCE s USING shard OPTIONS (path '{}') SCHEMA ({});"
    project = Project.parse({"p.sql": text.format(tmp_path / "t", columns)})
    if expected is None:
        assert project.check(spark).unreachable == {}
    else:
        with pytest.raises(InvalidProject) as error:
            project.check(spark)
        (problem,) = error.value.problems
        assert (problem.message, problem.hint[: len(expected[1])]) == expected
    gone = Project.parse({"p.sql": text.format(tmp_path / "u", columns)}).check(spark).unreachable
    assert [problem.code for problem in gone.values()] == ["SHARD_NOT_FOUND"]

"""The statements of a project: what they mean, and what is said of those that mean nothing."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.app.project.statements import WrittenObject, read_statements
from shardline.app.protocol.objects import (
    IndexDescription,
    SinkDescription,
    SourceDescription,
    ViewDescription,
)
from shardline.app.sql.problems import Problem, Script, TextProblem
from shardline.app.sql.tokens import compact_text


def read(text: str) -> list[WrittenObject]:
    reading = read_statements(Script("a.sql", text))
    assert reading.problems == []
    return reading.written


def wrong(text: str) -> Problem:
    (problem,) = read_statements(Script("a.sql", text)).problems
    return problem


def test_a_source_has_every_clause_in_any_order() -> None:
    """Clauses may come in any order, options with and without =, comments anywhere."""
    text = """
    -- where planes come from
    CREATE SOURCE Planes KEY (tail, `no`) ENVELOPE upsert /* ; */
      RETAIN HISTORY '7 days' COMMENT 'it''s; all' USING csv
      OPTIONS (path 'a b', header = true, maxFilesPerTrigger 1, kafka.bootstrap.servers "x",
               `odd key` 'y', 'quoted' -5)
      SCHEMA (tail STRING, `no` INT, price DECIMAL(10, 2), more STRUCT<a: INT, b: ARRAY<INT>>);
    """
    (one,) = read(text)
    assert one.description == SourceDescription(
        name="planes",
        format="csv",
        options={
            "path": "a b",
            "header": "true",
            "maxFilesPerTrigger": "1",
            "kafka.bootstrap.servers": "x",
            "odd key": "y",
            "quoted": "-5",
        },
        schema="tail STRING, `no` INT, price DECIMAL(10, 2), more STRUCT<a: INT, b: ARRAY<INT>>",
        envelope="upsert",
        key=("tail", "no"),
        retain_ms=7 * 86_400_000,
    )
    assert one.comment == "it's; all"


def test_a_view_keeps_its_query_as_written() -> None:
    """The text up to the semicolon is the query; its inputs are lower case and sorted."""
    (one,) = read(
        "CREATE MATERIALIZED VIEW V RETAIN HISTORY FOR '1h' AS\n"
        "  SELECT ';' AS s FROM Zed z JOIN `A` ON z.x = a.x ;"
    )
    assert one.description == ViewDescription(
        name="v",
        query="SELECT ';' AS s FROM Zed z JOIN `A` ON z.x = a.x",
        inputs=("a", "zed"),
        schema="",
        retain_ms=3_600_000,
    )
    assert str(one.place("query")) == "a.sql:2:3"


def test_indexes_and_sinks() -> None:
    """An index without a name is called after what it is on and its columns."""
    written = read(
        "CREATE INDEX ON Delays; CREATE INDEX ON delays (A, b);"
        "CREATE INDEX quick ON delays (a);"
        "CREATE SINK o FROM Delays USING parquet WITHOUT SNAPSHOT OPTIONS (path 'out');"
        "CREATE SINK p FROM delays USING shard ENVELOPE DEBEZIUM KEY (a)"
    )
    assert [one.description for one in written] == [
        IndexDescription(name="delays_idx", on="delays"),
        IndexDescription(name="delays_a_b_idx", on="delays", key=("A", "b")),
        IndexDescription(name="quick", on="delays", key=("a",)),
        SinkDescription(
            name="o", on="delays", format="parquet", options={"path": "out"}, snapshot=False
        ),
        SinkDescription(name="p", on="delays", format="shard", envelope="debezium", key=("a",)),
    ]


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("'key' 'value'", {"key": "value"}),
        ("'a.b' 'c', \"d\" \"e\"", {"a.b": "c", "d": "e"}),
        ("'key' = 'value', other 1", {"key": "value", "other": "1"}),
        ("'it''s' 'that''s'", {"it's": "that's"}),
        ("'key' 'one, ' 'two'", {"key": "one, two"}),
        ("'key''value' 'x'", {"key'value": "x"}),
        ("'key' \"value\"", {"key": "value"}),
        ("'key'\"value\"", {"key": "value"}),
        ("`k y` 'value'", {"k y": "value"}),
    ],
)
def test_a_key_in_quotes_has_its_value_beside_it(text: str, options: dict[str, str]) -> None:
    """As in Spark, where adjacent texts are one text: those of a value are, a key is one alone."""
    [one] = read(f"CREATE SOURCE a USING csv OPTIONS ({text})")
    assert isinstance(one.description, SourceDescription)
    assert one.description.options == options


@pytest.mark.parametrize(
    ("text", "at", "said", "hint"),
    [
        ("CREATE SOURCE a USNG csv", "1:17", "'USNG' starts no clause", "did you mean 'USING'?"),
        ("CREATE SOURCE a", "1:16", "has no format", "write USING and a format"),
        ("CREATE SOURCE a USING csv\n  ENVELOPE UPSRT", "2:12", "'UPSRT' is no", "'UPSERT'"),
        ("CREATE SOURCE a USING csv ENVELOPE UPSERT", "1:27", "no key", "write KEY"),
        ("CREATE SOURCE a USING csv KEY (b)", "1:27", "has a key", "ENVELOPE UPSERT"),
        (
            "CREATE SOURCE a USING csv SCHEMA (`a,b` INT) ENVELOPE UPSERT KEY (`a,b`)",
            "1:67",
            "'a,b' cannot be a column of a key: it has a comma, or a blank at an end",
            "give the column another name",
        ),
        ("CREATE SOURCE a USING csv USING b", "1:27", "USING stands there twice", "leave one"),
        ("CREATE SOURCE a USING csv OPTIONS (p 'x', P 'y')", "1:43", "option 'P'", "case"),
        ("CREATE SOURCE a USING csv OPTIONS ('p')", "1:39", "value of option 'p'", "quotes"),
        ("CREATE SOURCE a USING csv OPTIONS (p x)", "1:38", "value of option 'p'", "quotes"),
        ("CREATE SOURCE a USING csv SCHEMA (b INT", "1:34", "never closed", "close it"),
        ("CREATE SOURCE a USING csv SCHEMA ( )", "1:36", "SCHEMA has no column", "write SCHEMA"),
        ("CREATE SOURCE a USING csv RETAIN HISTORY 'soon'", "1:42", "'soon' is no", "write"),
        ("CREATE MATERIALIZED VIEW v SELECT 1", "1:28", "'SELECT' starts no clause", "AS"),
        (
            "CREATE MATERIALIZED VIEW v AS\n SELECT a b c FROM t",
            "2:13",
            "'c' is not",
            "Spark's SQL",
        ),
        ("CREATE MATERIALIZED VIEW v AS SELECT 1 a\nCREATE", "2:1", "'CREATE' is not", "with ;"),
        ("CREATE SOURCE a USING csv\nCREATE INDEX", "2:1", "'CREATE' starts no", "with ;"),
        ("CREATE SOURCE a.b USING csv", "1:16", "'.' starts no clause", "one part"),
        ("CREATE SOURCE a (b INT) USING csv", "1:17", "'(' starts no clause", "SCHEMA (name TYPE"),
        ("CREATE SOURCE a FROM csv", "1:17", "'FROM' starts no clause", "behind USING"),
        ("CREATE SINK a FROM b LOCATION 'o'", "1:22", "'LOCATION' starts no", "OPTIONS (path"),
        ("CREATE MATERIALIZED VIEW v (x) AS SELECT 1", "1:28", "'(' starts no", "SELECT a AS x"),
        ("CREATE INDEX ON s (lower(b))", "1:25", "expected , or )", "name columns alone"),
        ("CREATE SOURCE a USING csv KEY b", "1:31", "expected ( after KEY", "write KEY (…)"),
        (
            "CREATE MATERIALIZED VIEW v AS SELECT a FROM b COMMENT 'x'",
            "1:55",
            "''x'' is not expected",
            "before its AS",
        ),
        (
            "CREATE MATERIALIZED VIEW v AS SELECT a FROM b RETAIN HISTORY '1 day'",
            "1:54",
            "'HISTORY' is not expected",
            "before its AS",
        ),
        (
            "CREATE MATERIALIZED VIEW v AS SELECT a FROM b AS OF '2026-01-01'",
            "1:53",
            "is not expected here",
            "at every time",
        ),
        (
            "CREATE MATERIALIZED VIEW v AS SELECT a FROM b WHERE",
            "1:47",
            "something is missing behind 'WHERE'",
            "Spark's SQL",
        ),
        (
            "CREATE MATERIALIZED VIEW v AS SELECT a FROM b JOIN",
            "1:47",
            "expected table name at 'JOIN'",
            "Spark's SQL",
        ),
        ("CREATE MATERIALIZED VIEW v AS DROP TABLE x", "1:31", "no query", "SELECT"),
        ("CREATE MATERIALIZED VIEW v AS SELECT 1 FROM a.b", "1:45", "several parts", "CREATE SOU"),
        ("CREATE VIEW v AS SELECT 1", "1:8", "'VIEW' is nothing", "MATERIALIZED VIEW"),
        ("CREATE OR REPLACE SOURCE a USING b", "1:19", "OR REPLACE", "leave it out"),
        ("CREATE SINK s FROM USING csv", "1:26", "'csv' starts no clause", ""),
        ("CREATE INDEX i ON", "1:18", "the name of what is indexed", "backticks"),
        ("DROP SOURCE a", "1:1", "starts no statement", "dropped"),
        ("CREATE SOURCE a USING 'csv", "1:23", "what ' opens here does not end", "close it"),
        ("SELECT 1 /* x", "1:10", "a comment does not end", "close it"),
    ],
)
def test_what_means_nothing_is_placed_and_explained(
    text: str, at: str, said: str, hint: str
) -> None:
    """Each problem has line and column, names what it met and says what to do."""
    problem = wrong(text)
    assert str(problem.place) == f"a.sql:{at}"
    assert said in problem.message
    assert hint in problem.hint


def test_a_wrong_statement_hides_no_other() -> None:
    """Reading goes on behind the semicolon, and knows what was meant to be there."""
    reading = read_statements(
        Script("a.sql", "CREATE SOURCE Bad USNG x; CREATE SOURCE good USING y; CREATE x;")
    )
    assert [one.name for one in reading.written] == ["good"]
    assert [str(problem.place) for problem in reading.problems] == ["a.sql:1:19", "a.sql:1:62"]
    assert reading.broken == {"bad"}


def test_a_problem_shows_its_line() -> None:
    """The line and a caret under the column, also behind tabs."""
    assert str(wrong("\n\tCREATE SOURCE a USNG csv -- x")) == (
        "a.sql:2:18: 'USNG' starts no clause of a source\n"
        "    \tCREATE SOURCE a USNG csv -- x\n"
        "    \t                ^\n"
        "    hint: did you mean 'USING'?"
    )


PIECES = st.sampled_from(["SELECT", "a", ",", "'x  -- y'", "`b /* c`", "(", ")", "1.5", "<=>"])
GAPS = st.sampled_from([" ", "\n", "  \t", " -- note\n", " /* a\nb */ "])


@given(st.lists(st.tuples(PIECES, GAPS), min_size=1))
def test_layout_and_comments_make_no_difference(pieces: list[tuple[str, str]]) -> None:
    """A compact text is the tokens with single spaces, and is its own compact text."""
    text = "".join(piece + gap for piece, gap in pieces)
    assert compact_text(text) == " ".join(piece for piece, _ in pieces)
    assert compact_text(compact_text(text)) == compact_text(text)


@pytest.mark.parametrize("text", ["SELECT 1L, -1D, 2.5BD, 3S, 1e3F, 0x1F, a.1b FROM t", "x-1L"])
def test_numbers_with_a_type_stay_as_they_are(text: str) -> None:
    """A literal that a parser reads as a cast is written once, as it was."""
    assert compact_text(text) == text


HIDDEN = [
    # Spark's grammar: behind a backslash a line comment goes on in the next line.
    "SELECT 1 -- a \\\n, 2",
    "SELECT 1 -- C:\\in\\\nWHERE false",
    # In a comment `/*+` opens nothing, so that the first `*/` closes it.
    "SELECT 1 /* /*+ */ , 2 -- */",
    "SELECT id FROM t /* a /*+ b */ WHERE id > 5 -- */",
    "/* /*+ */ SELECT 2; -- */ SELECT 1",
    # Neither is a comment.
    "SELECT 1 {# , 2 #}",
    "SELECT 1 + /*+ 2 */ 3",
]


@pytest.mark.parametrize("text", HIDDEN)
def test_a_comment_that_spark_reads_otherwise_is_refused(text: str) -> None:
    """What would be kept is another query than the one that is analysed."""
    with pytest.raises(TextProblem, match="Spark reads a comment here otherwise"):
        compact_text(text)
    # In parentheses: what follows the last token of a query is no part of it.
    whole = f"CREATE MATERIALIZED VIEW v AS ({text}\n)"
    assert "Spark reads a comment" in wrong(whole).message


def test_a_comment_that_spark_never_gets_is_not_refused() -> None:
    """Around statements, and in those that are not Spark's, as in a heading or a Windows path."""
    written = read(
        "-- files are in C:\\in\\\n"
        "CREATE SOURCE a /* /*+ */ */ USING csv OPTIONS (path 'C:\\in') -- \\\n"
        "SCHEMA (-- \\\n show STRING, b INT);\n"
        "-- ====== \\\n"
        "CREATE MATERIALIZED VIEW v AS -- \\\n SELECT b FROM a; -- \\\n"
        "CREATE INDEX ON v (b); -- {# \\\n"
    )
    assert [one.description.name for one in written] == ["a", "v", "v_b_idx"]
    source, view, _ = (one.description for one in written)
    assert isinstance(source, SourceDescription)
    assert source.schema == "show STRING, b INT"
    assert isinstance(view, ViewDescription)
    assert view.query == "SELECT b FROM a"


def test_a_command_is_named_and_hides_no_other_statement() -> None:
    """Its words between the first and the last are no comment, as the tokens have it."""
    text = "CREATE SOURCE a USING rate; EXPLAIN SELECT * FROM a; CREATE INDEX ON a (b)"
    reading = read_statements(Script("a.sql", text))
    assert [str(problem).splitlines()[0] for problem in reading.problems] == [
        "a.sql:1:29: 'EXPLAIN' starts no statement of a project"
    ]
    assert [one.description.name for one in reading.written] == ["a", "a_b_idx"]


def test_a_comment_in_a_schema_is_what_spark_takes_for_one() -> None:
    """A column would be missing, and nothing would say so."""
    text = "CREATE SOURCE a USING csv SCHEMA (a INT -- C:\\in\\\n, b INT)"
    problem = wrong(text)
    assert "Spark reads a comment here otherwise" in problem.message
    assert problem.place is not None
    assert problem.place.column == text.index("--") + 1


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 1 -- a\\ \n, 2",
        "SELECT 1 -- a\\\r\n, 2",
        "SELECT 1 /* a /* b */ -- c */ , 2",
        "SELECT 1 /***/ , 2 -- /*+ a */ \\",
    ],
)
def test_comments_as_spark_reads_them_are_left_out(text: str) -> None:
    """Blanks and carriage returns end the backslash's meaning; comments nest."""
    assert compact_text(text) == "SELECT 1 , 2"

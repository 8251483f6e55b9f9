"""Spark is asked again about what has changed since an earlier check, and about nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Self

import pytest

from shardline.app.project.project import CheckedProject, Project
from shardline.app.sql.catalyst import QueryPlan, RefusedBySpark, SourceColumns
from shardline.app.sql.plan_tree import Node
from shardline.app.sql.problems import InvalidProject
from shardline.app.sql.spark_errors import SparkProblem

TEXT = """
CREATE SOURCE t USING csv OPTIONS (path 'in') SCHEMA (n INT);
CREATE SOURCE u USING csv OPTIONS (path 'in') SCHEMA (n INT);
CREATE MATERIALIZED VIEW one AS SELECT n FROM t;
CREATE MATERIALIZED VIEW two AS SELECT n FROM one;
CREATE MATERIALIZED VIEW other AS SELECT n FROM u;
CREATE INDEX fast ON two (n);
"""


class FakeCatalyst:
    """An analyzer to which each query gives the columns of what it reads, as they are.

    Attributes:
        fingerprint_of: Fingerprint of the session.
        undecided: A word of which it does not decide the meaning.
        asked: The queries that it was asked for.
    """

    fingerprint_of = "a"
    undecided = "mine"
    asked: list[str]

    def __init__(self, *_: object) -> None:
        self.views: dict[str, str] = {}
        self._columns: dict[str, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def fingerprint(self, text: str) -> str | None:
        return None if self.undecided in text else self.fingerprint_of

    def add(self, name: str, schema: str) -> None:
        assert name not in self.views
        self.views[name] = f"v_{len(self.views)}"
        self._columns[self.views[name]] = schema

    def ddl(self, schema: str) -> str:
        return ", ".join(f"{one['name']} {one['type']}" for one in json.loads(schema)["fields"])

    def columns(self, ddl: str) -> str:
        spelt = {"INT": "integer", "BIGINT": "long"}
        fields = [part.split() for part in ddl.split(", ")]
        return json.dumps(
            {
                "type": "struct",
                "fields": [
                    {"name": name, "type": spelt.get(kind, kind), "nullable": True, "metadata": {}}
                    for name, kind in fields
                ],
            }
        )

    def reads(self, name: str, options: Mapping[str, str], ddl: str) -> SourceColumns:
        del name, options
        return SourceColumns(self.columns(ddl), must_be_given=True)

    def query(self, text: str) -> QueryPlan:
        read = text.split("`")[1]
        self.asked.append(text)
        tree = Node("LocalRelation", "logical", {}, (), {})
        return QueryPlan(self._columns[read], tree, tree, (), ())


@pytest.fixture
def catalyst(monkeypatch: pytest.MonkeyPatch) -> type[FakeCatalyst]:
    """In the place of Spark's analyzer, for this test."""

    class Fake(FakeCatalyst):
        asked: list[str] = []  # noqa: RUF012 - of all that are made

    monkeypatch.setattr("shardline.app.sql.catalyst.Catalyst", Fake)
    return Fake


def check(text: str, *earlier: CheckedProject) -> CheckedProject:
    return Project.parse({"a.sql": text}).check(None, earlier=earlier)  # type: ignore[arg-type]


@contextmanager
def asking(catalyst: type[FakeCatalyst], *wanted: str) -> Iterator[None]:
    """Within, the queries are asked for of views that read these, and of no others."""
    catalyst.asked.clear()
    yield
    assert [text.partition("` AS ")[2] for text in catalyst.asked] == list(wanted)


def test_what_has_not_changed_is_not_asked_again(catalyst: type[FakeCatalyst]) -> None:
    """And is what it was, wherever in the text it stands now."""
    with asking(catalyst, "t", "one", "u"):
        first = check(TEXT)
    with asking(catalyst):
        again = check(f"\n\n-- moved\n{TEXT}", first)
    assert again == check(f"\n\n-- moved\n{TEXT}")
    assert again.places["two"].line == first.places["two"].line + 3
    with asking(catalyst):
        assert check(TEXT, again) == first


@pytest.mark.parametrize(
    ("before", "after", "wanted"),
    [
        # The query, and nothing that reads it, as its columns are the same.
        ("SELECT n FROM t", "SELECT n FROM t WHERE n > 1", ["t WHERE n > 1"]),
        ("SELECT n FROM t", "SELECT n FROM u", ["u"]),
        # Columns of what is read, through all that takes them over.
        ("SCHEMA (n INT);\nCREATE SOURCE u", "SCHEMA (n BIGINT);\nCREATE SOURCE u", ["t", "one"]),
        ("VIEW other AS", "VIEW other RETAIN HISTORY '3 days' AS", ["u"]),
        ("VIEW other AS", "VIEW another AS", ["u"]),
    ],
    ids=["query", "input", "columns", "retention", "name"],
)
def test_what_has_changed_is_asked_again(
    catalyst: type[FakeCatalyst], before: str, after: str, wanted: list[str]
) -> None:
    """The result is that of a check which knows of nothing earlier."""
    first = check(TEXT)
    assert before in TEXT
    changed = TEXT.replace(before, after)
    with asking(catalyst, *wanted):
        found = check(changed, first)
    assert found == check(changed)
    assert found != first


def test_another_session_is_asked_for_all(catalyst: type[FakeCatalyst]) -> None:
    """The same text may mean something else there, or after a setting has changed."""
    first = check(TEXT)
    catalyst.fingerprint_of = "b"
    with asking(catalyst, "t", "one", "u"):
        second = check(TEXT, first)
    # Each is known for its own session, in whatever order they are given.
    for fingerprint in ("a", "b"):
        catalyst.fingerprint_of = fingerprint
        with asking(catalyst):
            check(TEXT, first, second)


def test_what_no_fingerprint_decides_is_always_asked(catalyst: type[FakeCatalyst]) -> None:
    """And what reads it is not, as long as its columns stay."""
    text = TEXT.replace("SELECT n FROM t", "SELECT mine(n) AS n FROM t")
    first = check(text)
    for _ in range(2):
        with asking(catalyst, "t"):
            first = check(text, first)


def test_a_problem_is_found_again(catalyst: type[FakeCatalyst]) -> None:
    """A project with one is no result that anything is known from; a later one may still be it."""
    first = check(TEXT)
    wrong = TEXT.replace("fast ON two (n)", "fast ON two (gone)")
    for _ in range(2):
        with asking(catalyst), pytest.raises(InvalidProject, match="gone"):
            check(wrong, first)


def test_a_message_names_the_object_and_not_its_view(
    catalyst: type[FakeCatalyst], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more than ten views the name of one is the beginning of that of another."""

    def refuse(self: FakeCatalyst, _: str) -> QueryPlan:
        names = ", ".join(self.views.values())
        raise RefusedBySpark(SparkProblem("WRONG", f"one of {names}", "", None))

    monkeypatch.setattr(catalyst, "query", refuse)
    names = [f"s{number}" for number in range(12)]
    source = "CREATE SOURCE {} USING csv OPTIONS (path 'in') SCHEMA (n INT);"
    sources = "".join(source.format(name) for name in names)
    unions = " UNION ALL ".join(f"TABLE {name}" for name in names)
    with pytest.raises(InvalidProject) as error:
        check(f"{sources} CREATE MATERIALIZED VIEW v AS {unions};")
    (problem,) = error.value.problems
    assert sorted(problem.message.removeprefix("one of ").split(", ")) == sorted(names)

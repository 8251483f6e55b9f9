"""Places of sinks: two in one, and a sink that would feed the source which it is made of."""

# ruff: noqa: S608 - statements of tests, put together from their own words

from __future__ import annotations

from pathlib import Path

import pytest

from shardline.app.project.project import Project

SOURCE = "CREATE SOURCE t USING csv OPTIONS (path 'in') SCHEMA (a INT);\n"


def found(text: str) -> list[str]:
    return [f"{p.place}: {p.message} ({p.hint})" for p in Project.parse({"p": text}).problems]


def sinks(*targets: str) -> str:
    return SOURCE + "\n".join(f"CREATE SINK s{n} FROM t {x};" for n, x in enumerate(targets))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        ("parquet OPTIONS (path 'o')", "csv OPTIONS (Path './o/')", "folder '{cwd}/o'"),
        ("csv OPTIONS (path 'file://{cwd}/o')", "csv OPTIONS (path 'o')", "folder '{cwd}/o'"),
        ("csv OPTIONS (path 'o')", "csv OPTIONS (path 'link/o')", "folder '{cwd}/o'"),
        ("csv OPTIONS (path 's3://b/o')", "csv OPTIONS (path 's3://b/o/')", "folder 's3://b/o'"),
        ("shard OPTIONS (shard 'x')", "shard OPTIONS (shard 'x') ENVELOPE NONE", "shard 'x'"),
        (
            "shard OPTIONS (location 'l/', shard 'x')",
            "shard OPTIONS (path './l/x')",
            "shard '{cwd}/l/x'",
        ),
    ],
)
def test_two_sinks_in_one_place_are_refused(
    one: str, other: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only one of them could ever begin."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    names = {"cwd": str(tmp_path.resolve())}
    (problem,) = found(sinks(*(f"USING {text.format(**names)}" for text in (one, other))))
    assert f"sink 's1' writes to {expected.format(**names)}, as sink 's0' at p:2:13" in problem
    assert "of its own" in problem


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("parquet OPTIONS (path 'o')", "parquet OPTIONS (path 'o2')"),
        ("parquet OPTIONS (path 's3://b/o')", "parquet OPTIONS (path 's3://c/o')"),
        ("shard OPTIONS (shard 'x') ENVELOPE NONE", "shard OPTIONS (shard 'x') ENVELOPE NONE"),
        ("shard OPTIONS (shard 'x')", "shard OPTIONS (location 'l', shard 'x')"),
        ("console", "console"),
    ],
)
def test_other_places_are_no_problem(one: str, other: str) -> None:
    """Nor is a shard that takes rows of several sinks as they arrive."""
    assert found(sinks(f"USING {one}", f"USING {other}")) == []


@pytest.mark.parametrize(
    ("read", "written", "feeds"),
    [
        ("o", "o", True),
        ("o", "./o/", True),
        ("o/_upper=*", "o", True),
        ("o/*/*.file", "o", True),
        ("*", "o", True),
        ("o", "o2", False),
        ("o/*.csv", "o2", False),
    ],
)
def test_a_sink_that_would_feed_itself_is_refused(read: str, written: str, feeds: bool) -> None:
    """It would grow for ever: each of its micro-batches is one of the source it is made of."""
    text = (
        f"CREATE SOURCE t USING csv OPTIONS (path '{read}') SCHEMA (a INT);\n"
        "CREATE MATERIALIZED VIEW v AS SELECT a + 1 AS b FROM t;\n"
        f"CREATE SINK s FROM v USING csv OPTIONS (path '{written}');"
    )
    problems = found(text)
    assert ["it would feed itself" in each for each in problems] == [True] * feeds


def test_a_sink_may_feed_a_source_that_it_is_not_made_of() -> None:
    """So a project may hand rows on by files."""
    text = sinks("USING csv OPTIONS (path 'o')")
    text += "CREATE SOURCE u USING csv OPTIONS (path 'o/_upper=*') SCHEMA (a INT);"
    assert found(text) == []


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        ("parquet OPTIONS (path 'o')", "csv OPTIONS (path 'o/x')"),
        ("parquet OPTIONS (path './o/')", "csv OPTIONS (path 'o/a/b=1/x')"),
        ("parquet OPTIONS (path 'o')", "parquet OPTIONS (path 'o/_upper=1')"),
        ("json OPTIONS (path 's3://b')", "json OPTIONS (path 's3://b/o')"),
        ("parquet OPTIONS (path 'o')", "shard OPTIONS (path 'o/x')"),
    ],
)
def test_a_sink_within_the_folder_of_another_one_is_refused(outer: str, inner: str) -> None:
    """Readers of the outer folder would find the files of both."""
    (problem,) = found(sinks(f"USING {outer}", f"USING {inner}"))
    assert problem.startswith("p:3:"), "the inner one is to be moved"
    assert "sink 's1' writes to" in problem
    assert "', where sink 's0' at p:2:13 writes: what reads" in problem


@pytest.mark.parametrize(
    ("source", "sink", "expected"),
    [
        ("in", "in/out", "p:4:45: sink 's' writes to '{cwd}/in/out', within '{cwd}/in', where"),
        ("i*", "in/out", "p:4:45: sink 's' writes to '{cwd}/in/out', within '{cwd}/i*', where"),
        (
            "o/in",
            "o",
            "p:1:36: source 't' reads '{cwd}/o/in', within '{cwd}/o', where sink 's' at ",
        ),
        (
            "o/*.csv",
            "o",
            "p:1:36: source 't' reads '{cwd}/o/*.csv', within '{cwd}/o', where sink 's'",
        ),
        ("in", "in/_out", ""),
        ("in", "in/.out/x", ""),
        ("in/*.csv", "in/out", ""),
        ("in', pathGlobFilter '*.csv", "in/out", ""),
        ("o/_upper=*", "o", ""),
    ],
)
def test_a_sink_and_a_source_of_which_one_is_within_the_other_are_refused(
    source: str, sink: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for names that Spark hides, and a source that chooses its files."""
    monkeypatch.chdir(tmp_path)
    text = (
        f"CREATE SOURCE t USING csv OPTIONS (path '{source}') SCHEMA (a INT);\n"
        "CREATE SOURCE u USING counter;\n"
        "CREATE MATERIALIZED VIEW v AS SELECT counter FROM u;\n"
        f"CREATE SINK s FROM v USING parquet OPTIONS (path '{sink}');"
    )
    problems = found(text)
    assert len(problems) == bool(expected)
    for problem in problems:
        assert problem.startswith(expected.format(cwd=tmp_path.resolve()))

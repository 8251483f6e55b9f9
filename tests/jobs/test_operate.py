"""`errors` asks the application, or where none runs the location, and has a status for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage
from shardline.jobs import operate

URL = "s3://bucket/lake"
LIVE = {"id": "s", "act": "show", "commit": False, "live": 2, "sources": []}
FREE = {**LIVE, "live": 0}


@pytest.mark.parametrize(
    ("words", "answer", "status"),
    [
        ([], LIVE, 1),
        ([], FREE, 0),
        (["--skip"], {**LIVE, "act": "skip", "chosen": 2}, 1),
        (["--skip"], {**FREE, "act": "skip", "chosen": 0}, 0),
        (["--skip", "--commit"], {**LIVE, "act": "skip", "chosen": 1, "retracted": 1}, 0),
    ],
)
def test_the_status_says_whether_there_is_something_to_do(
    words: list[str], answer: dict[str, Any], status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 for errors that are shown; 0 once it is done, whatever was not chosen."""
    monkeypatch.setattr(operate, "application_address", lambda _: None)
    monkeypatch.setattr(operate, "ask_errors", lambda *_: answer)
    assert operate.main(["errors", "s", "--json", *words]) == status


@pytest.mark.parametrize(
    ("words", "code", "status", "asked"),
    [
        ([], "NOT_RUNNING", 0, True),
        (["--url", "http://127.0.0.1:1"], "NOT_RUNNING", 2, False),
        ([], "UNKNOWN_OBJECT", 2, False),
    ],
)
def test_the_location_is_asked_only_where_no_application_runs(
    words: list[str], code: str, status: int, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for an application elsewhere, whose location is another one."""
    offline = list[str]()

    def refuse(*_: object) -> Any:
        raise InvalidUsage("no", code=code)

    def answer_offline(*_: object) -> dict[str, Any]:
        offline.append("asked")
        return FREE

    monkeypatch.setattr(operate, "application_address", lambda _: None)
    monkeypatch.setattr(operate, "ask_errors", refuse)
    monkeypatch.setattr(operate, "_answer_offline", answer_offline)
    assert operate.main(["errors", "s", "--json", *words]) == status
    assert bool(offline) is asked


def test_a_location_that_is_not_there_is_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder that is mistyped is said to have no shards, and stays away."""
    for words in (["--data", str(tmp_path / "dta")], ["--location", str(tmp_path / "lak")]):
        given = ["--data", str(tmp_path), *words]
        assert operate.main(["errors", "s", *given]) == 2
        assert "LOCATION_NOT_FOUND" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("location", "words", "expected"),
    [
        ("s3://lake", [], "s3://lake"),
        ("s3://lake", ["--data", "{}/app"], "s3://lake"),
        ("s3://lake", ["--data", "{}/app", "--location", "s3://pond"], "s3://pond"),
        ("", ["--data", "{}/app"], "{}/app/shards"),
    ],
)
def test_the_location_that_is_asked_is_that_of_a_run_with_the_same_arguments(
    location: str, words: list[str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder for the application is none for its shards, where the settings name a location."""
    opened = list[str]()

    def refuse(url: str, *_: object, **__: object) -> Any:
        opened.append(url)
        raise InvalidUsage("no", code="LOCATION_NOT_FOUND")

    monkeypatch.setattr(ShardClient, "open", refuse)
    file = tmp_path / "app.toml"
    file.write_text(f'[demo]\ndata = "{tmp_path}/none"\nlocation = "{location}"\n')
    given = ["--config", str(file), *(word.format(tmp_path) for word in words)]
    assert operate.main(["errors", "s", *given]) == 2
    assert opened == [expected.format(tmp_path)]


def test_no_url_is_taken_for_the_folder_of_an_application(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Neither to find the application, nor to find its shards without one."""
    for words in (["pause", "v"], ["errors", "s"], ["errors", "s", "--location", URL]):
        assert operate.main([*words, "--data", URL]) == 2
        assert "[NOT_A_FOLDER]" in capsys.readouterr().err


def test_a_name_that_is_refused_keeps_nobody_else_from_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those behind it are paused, and what was refused is said once for each reason."""
    asked = list[str]()

    def act(_: object, verb: str, name: str) -> dict[str, bool]:
        asked.append(f"{verb} {name}")
        if name.startswith("no"):
            raise InvalidUsage(f"there is no object '{name}'", code="UNKNOWN_OBJECT")
        return {"changed": True}

    monkeypatch.setattr(operate, "application_address", lambda _: None)
    monkeypatch.setattr(operate, "run_action", act)
    assert operate.main(["pause", "a", "no", "b", "no", "nor"]) == 2
    assert asked == ["pause a", "pause no", "pause b", "pause no", "pause nor"]
    told = capsys.readouterr()
    assert told.out.splitlines() == [
        "paused a: `resume a` lets it go on",
        "paused b: `resume b` lets it go on",
    ]
    assert [line.split("'")[1] for line in told.err.splitlines()] == ["no", "nor"]
    assert operate.main(["resume", "a"]) == 0

"""A program that runs Spark itself says which variable would have it reach one elsewhere.

And its end is told by what has ended it.
"""

from __future__ import annotations

from unittest.mock import MagicMock

import pytest

from shardline import commands
from shardline.app.spark_session import stop_session
from shardline.jobs import compact

VARIABLES = [
    ("SPARK_REMOTE", "sc://elsewhere"),
    ("SPARK_REMOTE", "local"),
    ("SPARK_API_MODE", "Connect"),
]


@pytest.mark.parametrize(("name", "value"), VARIABLES)
def test_a_session_of_spark_connect_is_refused_by_the_variable_that_asks_for_it(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In one line, with status 2, and not by a package that is missing or a JVM that is not."""
    monkeypatch.setenv(name, value)
    assert compact.main(["nowhere"]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: [CLASSIC_SESSION_NEEDED] {name} is '{value}'")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize("words", [["--remote", "sc://elsewhere"], ["--remote=sc://elsewhere"]])
def test_a_command_that_starts_spark_takes_no_remote(
    words: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor does it start anything."""
    monkeypatch.setenv("JAVA_HOME", "/somewhere")
    assert commands.main([*words, "compact", "nowhere"]) == 2
    assert "[CLASSIC_SESSION_NEEDED] option '--remote'" in capsys.readouterr().err


def test_what_stopping_raises_hides_no_other_error(caplog: pytest.LogCaptureFixture) -> None:
    """It may be the answer of the call to the JVM that a signal has interrupted."""
    spark = MagicMock()
    spark.stop.side_effect = KeyError("m")
    stop_session(spark)
    assert [one.message for one in caplog.records] == ["Spark was not stopped in order"]

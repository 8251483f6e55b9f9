"""The main job's command line, before there is a JVM: what is refused, and how."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shardline.jobs.demo import main
from support.tree import ROOT

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # the log file of each run


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--days", "366"], "setting 'demo.days' is 366"),
        (["--config", "{tmp}/no.toml"], "[SETTINGS_UNREADABLE]"),
        (["--config", "{tmp}/wrong.toml"], "did you mean 'demo.days'?"),
        (["--location", "memory://here"], "Spark runs in several"),
        (["--location", "{tmp}/a/../b"], "[INVALID_LOCATION]"),
        (["--location", "{tmp}/file"], "{tmp}/file"),
        (["--data", "{tmp}/file"], "--data"),
        (["--data", "s3://bucket/lake"], "[NOT_A_FOLDER]"),
        (["--option", "s3.endpoint"], "--option NAME=VALUE"),
        (["--option", "s3.endpont=http://127.0.0.1"], "did you mean 's3.endpoint'?"),
    ],
)
def test_what_cannot_work_is_refused_in_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    said: str,
) -> None:
    """Status 2 and one sentence with a hint, no stack trace, before Spark is started."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    (tmp_path / "wrong.toml").write_text("[demo]\nday = 3\n")
    words = [word.format(tmp=tmp_path) for word in arguments]
    if "--data" not in words:
        words += ["--data", str(tmp_path / "data")]
    assert main(words) == 2
    err = capsys.readouterr().err
    assert said.format(tmp=tmp_path) in err
    assert err.startswith("error: [")
    assert "hint: " in err
    assert len(err.splitlines()) == 1


def test_the_settings_file_names_no_url_as_a_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As on the command line: nobody looks for a folder `s3:` beside the settings."""
    (tmp_path / "app.toml").write_text('[demo]\ndata = "s3://bucket/lake"\n')
    assert main(["--config", str(tmp_path / "app.toml")]) == 2
    assert "[NOT_A_FOLDER]" in capsys.readouterr().err


def test_the_help_of_the_script_names_a_location_for_a_url() -> None:
    """What newcomers copy puts the data where it says."""
    usage = (ROOT / "spark-submit.sh").read_text(encoding="utf-8")
    assert "--location s3://" in usage
    assert not re.search(r"--data[ =]\w+://", usage)

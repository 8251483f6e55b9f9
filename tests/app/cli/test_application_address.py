"""A command finds its application, and reads secrets from files or the environment."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from shardline.app.cli.application_address import (
    TOKEN_VARIABLE,
    add_address_arguments,
    application_address,
)
from shardline.app.cli.storage_options import storage_options
from shardline.datasource.errors import InvalidUsage

URL = ["--url", "http://127.0.0.1:1/"]


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_address_arguments(parser)
    return parser.parse_args([*URL, *words])


def seen_with(*words: str, **environment: str) -> str:
    """The token that the application would see."""
    return application_address(parsed(*words), environment).token


def test_a_token_comes_from_a_file_or_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither is seen in a list of processes; the file comes first."""
    file = tmp_path / "token"
    file.write_text("of the file\n")
    environment = {TOKEN_VARIABLE: "of the variable"}
    found = application_address(parsed(), environment)
    assert (found.url, found.token) == ("http://127.0.0.1:1", "of the variable")
    assert seen_with("--token-file", str(file), **environment) == "of the file"
    assert not seen_with()
    assert capsys.readouterr().err == ""
    with pytest.raises(InvalidUsage, match="TOKEN_FILE"):
        application_address(parsed("--token-file", str(tmp_path / "none")), {})


def test_a_token_on_the_command_line_is_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    """It works, and the warning does not repeat it."""
    assert seen_with("--token", "hunter2") == "hunter2"
    said = capsys.readouterr().err
    assert "--token-file" in said
    assert "hunter2" not in said


def test_a_byte_order_mark_is_no_part_of_a_secret(tmp_path: Path) -> None:
    """Editors on Windows put one in front, which nobody sees."""
    file = tmp_path / "secret"
    file.write_bytes(b"\xef\xbb\xbfhunter2\r\n")
    assert seen_with("--token-file", str(file)) == "hunter2"
    assert storage_options([f"s3.secret_key=@{file}"]) == {"s3.secret_key": "hunter2"}


def test_secrets_of_a_store_come_from_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`@` names a file; a secret that is written out is warned of, other options are not."""
    file = tmp_path / "key"
    file.write_text("hunter2\n")
    words = ["s3.region=eu", f"s3.secret_key=@{file}"]
    assert storage_options(words) == {"s3.region": "eu", "s3.secret_key": "hunter2"}
    assert capsys.readouterr().err == ""
    assert storage_options(["s3.secret_key=hunter2"]) == {"s3.secret_key": "hunter2"}
    said = capsys.readouterr().err
    assert "'s3.secret_key' on the command line" in said
    assert "hunter2" not in said
    with pytest.raises(InvalidUsage, match="INVALID_OPTION"):
        storage_options(["s3.secret_key=@/no/such/file"])

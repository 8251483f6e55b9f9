"""Commands find the running application."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from shardline.app.server.discovery import ApplicationAddress, announce, find, last_port, withdraw
from shardline.datasource.errors import InvalidUsage

HERE, OTHER = (
    ApplicationAddress(url=f"http://127.0.0.1:{number}", token=str(number), pid=number)
    for number in (1, 2)
)


def test_what_was_announced_is_found_until_it_is_withdrawn(tmp_path: Path) -> None:
    """Only its user can read the token."""
    announce(tmp_path, HERE)
    assert find(tmp_path) == HERE
    file = tmp_path / "application.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    withdraw(tmp_path, HERE)
    with pytest.raises(InvalidUsage, match="NOT_RUNNING"):
        find(tmp_path)


def test_a_newer_application_keeps_its_file(tmp_path: Path) -> None:
    """The end of an older one does not hide it."""
    announce(tmp_path, HERE)
    announce(tmp_path, OTHER)
    withdraw(tmp_path, HERE)
    assert find(tmp_path) == OTHER


def test_the_port_is_known_to_the_next_application(tmp_path: Path) -> None:
    """However this one ends."""
    assert last_port(tmp_path) == 0
    announce(tmp_path, HERE)
    assert last_port(tmp_path) == 1
    withdraw(tmp_path, HERE)
    announce(tmp_path, OTHER)
    assert last_port(tmp_path) == 2


@pytest.mark.parametrize("content", ["", "nonsense", "-1", "0", "65536", "１"])
def test_what_is_no_port_is_none(tmp_path: Path, content: str) -> None:
    """Any port will do then."""
    (tmp_path / "port").write_text(content, encoding="utf-8")
    assert last_port(tmp_path) == 0


@pytest.mark.parametrize("content", ["", "{}", "nonsense", '{"url": 1}'])
def test_a_torn_file_is_no_application(tmp_path: Path, content: str) -> None:
    """Whatever is in it, the answer is a sentence."""
    (tmp_path / "application.json").write_text(content)
    with pytest.raises(InvalidUsage, match=r"spark-submit\.sh run"):
        find(tmp_path)

"""Commands find the running application."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from shardline.app.server.discovery import (
    Announcement,
    ApplicationAddress,
    announce,
    find,
    last_port,
    withdraw,
)
from shardline.app.server.start_mark import start_mark
from shardline.datasource.errors import InvalidUsage
from support.fakes.clock import ManualClock

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


def test_one_that_starts_is_told_of(tmp_path: Path) -> None:
    """Also where one that was killed has left its file; what answers is found all the same."""
    folder = tmp_path / "data"
    said = rf"NOT_RUNNING.*is starting \(process {os.getpid()}\).*ask again in a moment"
    with start_mark(folder):
        with pytest.raises(InvalidUsage, match=said):
            find(folder)
        announce(folder, HERE)
        with pytest.raises(InvalidUsage, match=said), start_mark(folder):
            find(folder)
    assert find(folder) == HERE
    withdraw(folder, HERE)
    with pytest.raises(InvalidUsage, match=r"NOT_RUNNING.*no application runs.*start one"):
        find(folder)


@pytest.mark.server
def test_one_that_answers_is_found_while_another_one_starts(
    tmp_path: Path, served: ApplicationAddress
) -> None:
    """As when a start takes a location over, and ends what runs only then."""
    announce(tmp_path, served)
    with start_mark(tmp_path):
        assert find(tmp_path) == served


def test_a_newer_application_keeps_its_file(tmp_path: Path) -> None:
    """The end of an older one does not hide it."""
    announce(tmp_path, HERE)
    announce(tmp_path, OTHER)
    withdraw(tmp_path, HERE)
    assert find(tmp_path) == OTHER


@pytest.fixture
def served() -> Iterator[ApplicationAddress]:
    """An application that answers, of another location in the same folder."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        yield ApplicationAddress(url=url, token="t", pid=3)  # noqa: S106 - nobody asks for it


def announcement(
    folder: Path, where: ApplicationAddress, follows: Callable[[], bool] = lambda: False
) -> Announcement:
    # Its own thread never looks: a test does.
    return Announcement(folder, where, follows, ManualClock())


@pytest.mark.server
def test_the_end_of_another_application_of_the_folder_hides_none(
    tmp_path: Path, served: ApplicationAddress
) -> None:
    """Be it an orderly one, or one that leaves its file. While it answers it is found."""
    with announcement(tmp_path, HERE) as one:
        with announcement(tmp_path, served):
            one.renew()
            assert find(tmp_path) == served
        one.renew()
        assert find(tmp_path) == HERE
        announce(tmp_path, OTHER)
        one.renew()
        assert find(tmp_path) == HERE
    with pytest.raises(InvalidUsage, match="NOT_RUNNING"):
        find(tmp_path)


def test_one_that_follows_is_found_where_there_is_no_other(tmp_path: Path) -> None:
    """Commands would be refused by it; and when it ends the other one is still there."""
    with announcement(tmp_path, HERE):
        with announcement(tmp_path, OTHER, lambda: True):
            assert find(tmp_path) == HERE
            assert last_port(tmp_path) == 1
        assert find(tmp_path) == HERE
    with announcement(tmp_path, OTHER, lambda: True):
        assert find(tmp_path) == OTHER
        assert stat.S_IMODE((tmp_path / "following.json").stat().st_mode) == 0o600
    assert not list(tmp_path.glob("*.json"))


def test_one_that_has_become_the_holder_is_found_as_such(tmp_path: Path) -> None:
    """Once the one that it has pushed aside is gone."""
    follows = True
    with announcement(tmp_path, OTHER, lambda: follows) as other:
        with announcement(tmp_path, HERE):
            follows = False
        other.renew()
        assert find(tmp_path) == OTHER
        assert [file.name for file in tmp_path.glob("*.json")] == ["application.json"]


@pytest.mark.server
def test_one_that_has_pushed_another_one_aside_is_found_though_that_one_answers(
    tmp_path: Path, served: ApplicationAddress
) -> None:
    """One that hangs accepts connections, too; and at its orderly end there is no gap."""
    follows, mine = True, replace(served, pid=4)
    with (
        announcement(tmp_path, served) as former,
        announcement(tmp_path, mine, lambda: follows) as promoted,
    ):
        promoted.renew()
        assert find(tmp_path) == served
        follows = False
        promoted.renew()
        former.renew()
        assert find(tmp_path) == mine
        assert [file.name for file in tmp_path.glob("*.json")] == ["application.json"]
        announce(tmp_path, served)  # a third one of the location takes over
        promoted.renew()
        assert find(tmp_path) == served


@pytest.mark.server
def test_one_of_two_that_follow_is_found_once_it_is_promoted(
    tmp_path: Path, served: ApplicationAddress
) -> None:
    """Both have written the one file of those that follow; the last one is there."""
    follows = True
    mine = replace(served, pid=6)
    with (
        announcement(tmp_path, served),  # it hangs, and accepts connections still
        announcement(tmp_path, mine, lambda: follows) as promoted,
        announcement(tmp_path, replace(served, pid=7), lambda: True),
    ):
        follows = False
        promoted.renew()
        assert find(tmp_path) == mine


@pytest.mark.server
def test_one_that_was_promoted_leaves_the_file_of_another_location_and_has_its_own(
    tmp_path: Path, served: ApplicationAddress
) -> None:
    """Without any it would be taken for ended once the other one ends."""
    follows = True
    elsewhere = replace(served, location="elsewhere")
    with announcement(tmp_path, OTHER, lambda: follows) as promoted:
        with announcement(tmp_path, elsewhere):
            follows = False
            promoted.renew()
            assert find(tmp_path) == elsewhere
        assert find(tmp_path) == OTHER


@pytest.mark.server
def test_one_that_follows_is_found_once_the_holder_was_killed(
    tmp_path: Path, served: ApplicationAddress
) -> None:
    """The file of that one stays, and nobody answers there."""
    announce(tmp_path, HERE)
    with announcement(tmp_path, served, lambda: True) as following:
        assert find(tmp_path) == HERE
        following.renew()
        assert find(tmp_path) == served
        with announcement(tmp_path, replace(served, pid=4)) as holder:
            following.renew()
            assert find(tmp_path).pid == 4
            (tmp_path / "application.json").unlink()  # as if it had been too slow to answer
            holder.renew()
            assert find(tmp_path).pid == 4


@pytest.mark.server
def test_one_that_has_the_port_of_a_killed_holder_is_found(
    tmp_path: Path, served: ApplicationAddress
) -> None:
    """It answers there itself, and not to the token of that one."""
    for follows in (lambda: True, lambda: False):
        with announcement(tmp_path, served, follows) as taken:
            announce(tmp_path, replace(served, pid=4, token="of the killed one"))  # noqa: S106
            taken.renew()
            assert find(tmp_path) == served


@pytest.mark.server
def test_one_that_has_lost_its_location_gives_way(
    tmp_path: Path, served: ApplicationAddress
) -> None:
    """Its file stays until the new holder has written its own, and is not written over that."""
    lost = False
    with announcement(tmp_path, HERE, lambda: lost) as former:
        lost = True
        former.renew()
        assert [file.name for file in tmp_path.glob("*.json")] == ["application.json"]
        announce(tmp_path, served)
        former.renew()
        assert find(tmp_path) == served
        withdraw(tmp_path, served)
        assert find(tmp_path) == HERE


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


@pytest.mark.parametrize("name", ["application.json", "following.json"])
@pytest.mark.parametrize("content", ["", "{}", "nonsense", '{"url": 1}'])
def test_a_torn_file_is_not_taken_for_none(tmp_path: Path, name: str, content: str) -> None:
    """Its application may run, and writes it anew soon."""
    (tmp_path / name).write_text(content)
    with pytest.raises(InvalidUsage, match=rf"ADDRESS_UNREADABLE.*{name}.*run the command again"):
        find(tmp_path)


def test_what_is_no_file_is_not_taken_for_none(tmp_path: Path) -> None:
    """Whatever the system refuses to read it for."""
    (tmp_path / "application.json").mkdir()
    with pytest.raises(InvalidUsage, match=r"ADDRESS_UNREADABLE.*application\.json"):
        find(tmp_path)


def test_a_file_of_another_user_is_not_taken_for_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The application runs, and this user may not talk to it."""
    announce(tmp_path, HERE)

    def refused(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refused)  # root may read every file
    with pytest.raises(InvalidUsage, match=r"ADDRESS_UNREADABLE.*as the user that runs"):
        find(tmp_path)

"""The command that maintains a location: what it says, and how it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from shardline.datasource import maintainer
from shardline.datasource.client import ShardClient
from shardline.datasource.clock import SystemClock
from shardline.datasource.errors import Determinate
from shardline.datasource.maintainer import RoundResult
from shardline.datasource.settings import ShardSettings
from shardline.jobs.compact import main as compact_main
from shardline.jobs.maintain import _round_summary, main
from support.models.merging import contents, expected, filled, sizes
from support.models.shards import SETTINGS, table
from support.tree import ROOT

QUIET = replace(SETTINGS, inline_part_bytes=0, compact_inline_bytes=0)


@pytest.fixture
def client(tmp_path: Path) -> ShardClient:
    return ShardClient.open(str(tmp_path / "lake"), settings=QUIET)


def default(client: ShardClient) -> ShardClient:
    return ShardClient.open(client.location.url, settings=ShardSettings())


def test_rounds_merge_and_collect_and_say_so(
    client: ShardClient, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line for a shard that there was something to do for, and none for one at rest."""
    filled(filled(client, 20, "a"), 1, "b")
    for _ in range(20):
        client.writer("a").append_now(None)
    assert main([client.location.url, "--rounds", "1"]) == 0
    out = capsys.readouterr().out
    assert "  a: 1 merge, 20 blobs of garbage deleted" in out
    assert "  b:" not in out
    assert sizes(default(client), "a") == [40, 0]
    assert contents(default(client), "a") == expected(20)
    assert main([client.location.url, "--rounds", "1"]) == 0
    out = capsys.readouterr().out
    assert "  a:" not in out
    assert out.splitlines()[-1].endswith("  nothing to do")


@pytest.mark.parametrize(("count", "said"), [(1, "1 blob of"), (1_200, "1,200 blobs of")])
def test_one_is_no_plural(count: int, said: str) -> None:
    """Of what is deleted in a round."""
    assert _round_summary(RoundResult(collected=count)) == f"{said} garbage deleted"


def test_names_in_brackets_are_printed_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a folder and of a shard: nothing in them is a command to the printer of the lines."""
    url = str(tmp_path / "[prod]" / "lake")
    filled(ShardClient.open(url, settings=QUIET), 20, "x[/y]")
    assert main([url, "--rounds", "1"]) == 0
    out = capsys.readouterr().out.replace("\n", "")
    assert "/[prod]/lake" in out
    assert "  x[/y]: 1 merge" in out


def test_a_shard_that_fails_is_named_and_makes_the_status(
    client: ShardClient, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are maintained all the same."""
    filled(filled(client, 20, "a"), 20, "b")
    next((Path(client.location.url.removeprefix("file://")) / "a" / "part").iterdir()).unlink()
    assert main([client.location.url, "--rounds", "1"]) == 1
    out = capsys.readouterr().out
    assert "  a: failed: compaction" in out
    assert "  b: 1 merge" in out


def test_a_shard_that_cannot_be_read_makes_the_status(
    client: ShardClient, capsys: pytest.CaptureFixture[str]
) -> None:
    """A timer that runs one round each time would report success for ever."""
    filled(filled(client, 20, "a"), 1, "b")
    folder = Path(client.location.url.removeprefix("file://"))
    for record in (folder / "b" / "log").iterdir():
        record.write_bytes(b"nonsense")
    assert main([client.location.url, "--rounds", "1"]) == 1
    out, err = capsys.readouterr()
    assert "  a: 1 merge" in out
    assert "  b: failed: state" in out
    # Why, in one line: of a foreign shard without its permission, it was a stack trace.
    assert err.startswith("warning: shard not maintained (shard 'b'): [")
    assert len(err.splitlines()) == 1


def test_of_a_bug_the_stack_trace_is_shown(
    client: ShardClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has no sentence that would say where it is."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    filled(client, 1, "a")
    monkeypatch.setattr(maintainer, "apply_retention", fail)
    assert main([client.location.url, "--rounds", "1"]) == 1
    out, err = capsys.readouterr()
    assert "  a: failed: retention" in out
    assert err.startswith("warning: maintenance step failed (shard 'a', step 'retention')\n")
    assert err.endswith("ZeroDivisionError\n")


def test_a_location_that_cannot_be_listed_makes_the_status(
    client: ShardClient, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing was maintained: that no shard has failed is no success."""

    def fail(_: ShardClient) -> list[str]:
        raise Determinate("connection lost")

    filled(client, 1, "a")
    monkeypatch.setattr(ShardClient, "shards", fail)
    assert main([client.location.url, "--rounds", "1"]) == 1
    assert "  all shards: failed: listing" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--every", "often"], "INVALID_DURATION"),
        (["--every", "0s"], "INVALID_ARGUMENT"),
        (["--rounds", "0"], "INVALID_ARGUMENT"),
        (["nobody"], "SHARD_NOT_FOUND"),
    ],
)
def test_what_cannot_be_done_is_refused_before_the_first_round(
    client: ShardClient, arguments: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With status 2 and what to do instead."""
    filled(client, 1, "a")
    assert main([client.location.url, *arguments]) == 2
    assert code in capsys.readouterr().err


@pytest.mark.parametrize("run", [main, compact_main], ids=["maintain", "compact"])
def test_a_missing_location_is_all_that_is_asked_for(
    capsys: pytest.CaptureFixture[str], run: Callable[[list[str]], int]
) -> None:
    """Without a shard they take all; `argparse` has asked for one beside the location."""
    with pytest.raises(SystemExit, match="2"):
        run([])
    assert capsys.readouterr().err.endswith("required: LOCATION\n")


def test_a_location_that_is_not_there_is_not_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A slip of the finger leaves nothing behind."""
    assert main([str(tmp_path / "nowhere"), "--rounds", "1"]) == 2
    assert "error: [" in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()


def test_a_signal_that_comes_while_an_event_is_locked_ends_it(
    client: ShardClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its handler runs in the thread that has the lock, which would wait for itself for ever."""

    def wait(_clock: object, stopped: threading.Event, _ms: float) -> bool:
        if threading.current_thread() is threading.main_thread():
            with stopped._cond:  # type: ignore[attr-defined]
                signal.raise_signal(signal.SIGTERM)
        return stopped.wait()

    monkeypatch.setattr(SystemClock, "wait", wait)

    assert main([client.location.url, "--every", "10ms"]) == 0


@pytest.mark.process
@pytest.mark.parametrize("kind", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_between_two_shards(client: ShardClient, kind: signal.Signals) -> None:
    """With status 0, after it has begun; what others write meanwhile is there."""
    filled(client, 20, "a")
    process = subprocess.Popen(
        [sys.executable, "-u", "jobs/maintain.py", client.location.url, "--every", "10ms"],
        cwd=ROOT,
        env={"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any("  a: 1 merge" in line for line in lines)
        client.writer("a").append_now(table((99, "z")))
        process.send_signal(kind)
        assert process.wait(60) == 0
    assert contents(default(client), "a") == expected(20) + Counter([(99, "z")])

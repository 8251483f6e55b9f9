"""`admin`: its words, exit statuses and output, and the real command in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from rich.console import Console
from rich.progress import TextColumn

from shardline.app.cli.admin import command
from shardline.app.cli.admin.command import VERBS
from shardline.app.settings.durations import parse_duration_ms
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.types.schema import ShardSchema
from shardline.jobs import admin, show
from shardline.jobs.admin import main
from support.fakes.engine import Checkpoint, Killed, Query, options_of

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = pa.schema([pa.field("carrier", pa.string(), nullable=False), ("delay", pa.int64())])


def rows(count: int) -> pa.Table:
    names = [f"carrier {i * 7919 % 1000}" * 5 for i in range(count)]
    return pa.table({"carrier": names, "delay": list(range(count))}, schema=SCHEMA)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A location with a shard of three parts that are held, and one that was dropped."""
    client = ShardClient.open(str(tmp_path / "lake"))
    for name in ("flights", "old"):
        client.create(name, ShardSchema.from_arrow(SCHEMA), key=("carrier",))
    client.hold("flights", "reports", purpose="query 'monthly reports' on host:12")
    for _ in range(3):
        client.writer("flights").append_now(rows(100))
    client.drop("old")
    return str(tmp_path / "lake")


def contents(folder: str) -> dict[str, bytes]:
    from pathlib import Path

    return {str(p): p.read_bytes() for p in Path(folder).rglob("*") if p.is_file()}


def part_of(url: str) -> str:
    """Path of a part of `flights`."""
    from pathlib import Path

    return str(next(Path(url, "flights", "part").iterdir()))


def ask_json(capsys: pytest.CaptureFixture[str], status: int, *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == status
    said = json.loads(capsys.readouterr().out)
    assert isinstance(said, dict)
    return said


LOOKS = [
    ("holders", 0),
    ("holders flights", 0),
    ("usage", 0),
    ("usage flights", 0),
    ("usage old", 0),
    ("fsck", 0),
    ("fsck flights --shallow", 0),
    ("expire-reader flights reports", 1),
    ("compact flights", 0),
    ("compact flights --force", 1),
    ("gc flights", 0),
    ("sweep flights", 0),
    ("sweep --orphans", 0),
    ("set-retention flights 7d", 1),
    ("finalise flights", 1),
    ("finalise flights --despite reports", 1),
    ("finalise old", 0),
]
"""What can be asked without a change, and with which status it is answered."""


@pytest.mark.parametrize(("words", "status"), LOOKS)
def test_every_look_fits_into_80_columns_and_changes_nothing(
    url: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    words: str,
    status: int,
) -> None:
    """Status 0 if there is nothing to do, 1 if there is; no file is touched; JSON says the same."""
    monkeypatch.setattr(admin, "open_console", lambda: Console(highlight=False, width=80))
    before = contents(url)
    assert main([url, *words.split()]) == status
    out = capsys.readouterr().out
    assert out.strip()
    shown = [line for line in out.splitlines() if url not in line]
    assert max(map(len, shown)) <= 80
    ask_json(capsys, status, url, *words.split())
    assert contents(url) == before


def test_every_verb_is_looked_at_here() -> None:
    """Whoever adds a verb adds it to a test."""
    shown = {words.split()[0] for words, _ in LOOKS}
    assert shown | {"state", "diff"} == set(VERBS)


def test_states_and_records_are_told_as_json(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Now and earlier; and what one record changed."""
    newest = ask_json(capsys, 0, url, "state", "flights")
    assert (newest["name"], newest["seqno"]) == ("flights", 5)
    assert ask_json(capsys, 0, url, "state", "flights", "--seqno", "2")["seqno"] == 2
    record = ask_json(capsys, 0, url, "diff", "flights", "2")
    assert set(record["diff"]["critical"]) == {"reports"}
    assert main([url, "diff", "flights", "9"]) == 2
    assert "[SEQNO_UNKNOWN]" in capsys.readouterr().err


def test_what_is_committed_is_done(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Expire, merge, collect, drop: each says what it did, with status 0."""
    client = ShardClient.open(url)
    steps = (
        ("expire-reader flights reports", "expired 1: reports"),
        ("compact flights --force", "1 merge; 1 batch now"),
        ("set-retention flights 1d", "the policy is set"),
        ("gc flights", "deleted 3 blobs"),
        ("sweep flights", "deleted 0 blobs"),
        ("finalise flights", "dropped shard 'flights'"),
    )
    for words, said in steps:
        assert main([url, *words.split(), "--commit"]) == 0
        assert said in capsys.readouterr().out
    assert not client.exists("flights")
    assert main([url, "fsck"]) == 0


@pytest.mark.parametrize("killed", ["latest", "offset log", "plan"])
def test_the_hold_of_a_stream_that_has_not_begun_says_so(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, killed: str
) -> None:
    """It was killed before its first offset; of one that is planning nobody says it."""
    monkeypatch.setattr(admin, "open_console", lambda: Console(highlight=False, width=200))
    monkeypatch.setattr(show, "open_console", lambda: Console(highlight=False, width=200))
    options, client = options_of(shard="flights"), ShardClient.open(url)
    query = Query(client, Checkpoint(), options, kill=lambda step, _batch: step == killed)
    with pytest.raises(Killed):
        query.step()
    begun = killed == "plan"
    assert main([url, "holders"]) == 0
    told = capsys.readouterr().out
    assert show.main([url, "flights"]) == 0
    for out in (told, capsys.readouterr().out):
        assert ("its stream has not run a micro-batch" in out) != begun
    report = ask_json(capsys, 0, url, "holders")
    [shard] = [one for one in report["shards"] if one["name"] == "flights"]
    confirmed = {one["name"]: one["confirmed"] for one in shard["holders"]}
    assert confirmed.pop("reports")
    assert confirmed.pop(query.run._inputs.hold) == begun
    assert all(confirmed.values()), "leases"
    query.run.release()


def test_damage_is_shown_with_code_and_hint(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 1; the table counts, the findings name the object and what to do."""
    from pathlib import Path

    Path(part_of(url)).unlink()
    assert main([url, "fsck"]) == 1
    out = capsys.readouterr().out
    for said in ("PART_MISSING  damage, 1", "flights/part/p", "hint: restore the part"):
        assert said in out
    report = ask_json(capsys, 1, url, "fsck", "flights")
    [shard] = report["shards"]
    [finding] = shard["findings"]
    assert (finding["code"], finding["severity"]) == ("PART_MISSING", "damage")


def test_a_name_that_is_no_utf_8_is_told_by_escapes(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A name on a disk can have any bytes; neither a terminal nor JSON can."""
    odd = f"{url}/flights/part/caf".encode() + b"\xe9"
    with open(odd, "wb") as file:  # noqa: PTH123 - a path has no bytes
        file.write(b"x")
    os.utime(odd, (1, 1))
    said = r"flights/part/caf\udce9"

    [shard, _] = ask_json(capsys, 1, url, "fsck")["shards"]
    assert [one["subject"] for one in shard["findings"]] == [said]
    assert main([url, "fsck"]) == 1
    assert said in capsys.readouterr().out
    assert main([url, "sweep", "flights", "--commit"]) == 0


def test_a_location_without_its_marker_is_checked(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing else can open it; fsck says why."""
    from pathlib import Path

    Path(url, "_shardline").unlink()
    assert main([url, "fsck"]) == 1
    assert "MARKER_MISSING" in capsys.readouterr().out
    assert main([url, "usage"]) == 2


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("fsk", "did you mean 'fsck'?"),
        ("", "[BAD_ARGUMENTS]"),
        ("gc", "[BAD_ARGUMENTS]"),
        ("gc flihgts", "did you mean 'flights'?"),
        ("fsck flihgts", "did you mean 'flights'?"),
        ("compact old", "[SHARD_DROPPED]"),
        ("expire-reader flights report", "did you mean 'reports'?"),
        ("set-retention flights 7w", "[INVALID_DURATION]"),
        ("set-retention old 7d", "[SHARD_DROPPED]"),
        ("sweep", "[BAD_ARGUMENTS]"),
        ("sweep flights --orphans", "[BAD_ARGUMENTS]"),
        ("finalise flights --commit", "[SHARD_IN_USE]"),
        ("usage --option s3.endpont=x", "did you mean 's3.endpoint'?"),
        ("usage --option s3.endpoint", "--option NAME=VALUE"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_one_line(
    url: str, capsys: pytest.CaptureFixture[str], words: str, said: str
) -> None:
    """Status 2, the error with its code and hint on stderr, nothing on stdout, nothing changed."""
    before = contents(url)
    assert main([url, *words.split()]) == 2
    out, err = capsys.readouterr()
    assert said in err
    assert len(err.splitlines()) == 1
    assert out == ""
    assert contents(url) == before


def test_durations_have_units() -> None:
    """As in options; and no sign, no fraction."""
    said = {
        "7d": 604_800_000,
        "36h": 129_600_000,
        "90 min": 5_400_000,
        "10s": 10_000,
        "1500": 1500,
        "7 weeks": 7 * 604_800_000,
        "1d2h": 93_600_000,
    }
    assert {text: parse_duration_ms(text) for text in said} == said
    assert parse_duration_ms("00106751991167 days") < 1 << 63
    for wrong in (
        "",
        "d",
        "-1d",
        "1.5h",
        "7 fortnights",
        "none",
        "106751991168d",
        "9" * 5000 + "h",
    ):
        with pytest.raises(InvalidUsage, match="INVALID_DURATION"):
            parse_duration_ms(wrong)
    with pytest.raises(InvalidUsage, match="at most 106751991167 days"):
        parse_duration_ms("9" * 5000 + "h")


@pytest.mark.process
def test_the_command_starts_no_spark(url: str) -> None:
    """In a process of its own: neither Spark nor S3 is imported, and the status comes out."""
    code = (
        "import sys; from shardline.jobs.admin import main; status = main(sys.argv[1:]); "
        "print([m for m in ('pyspark', 'pandas', 'starlette', 's3fs') if m in sys.modules]); "
        "sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, url, "compact", "flights", "--force"],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    lines = done.stdout.splitlines()
    assert lines[-2:] == ["dry run: nothing was changed; --commit does it", "[]"]
    assert done.stderr == ""


def test_inspect_tells_usage(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What every byte is there for, beside the state; in JSON under a name of its own."""
    from shardline.jobs.show import main as show

    assert show([url, "flights", "--usage"]) == 0
    assert "rows of the newest state" in capsys.readouterr().out
    assert show([url, "--usage"]) == 0
    assert "leaked: sweep" in capsys.readouterr().out
    assert show([url, "flights", "--usage", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["usage"]["parts"]["count"] == said["shards"][0]["part_count"] == 3


@pytest.mark.parametrize("verb", ["compact", "gc"])
def test_a_shard_with_brackets_in_its_name_is_looked_after(verb: str, tmp_path: Path) -> None:
    """The line that says what is done has the name as it is."""
    client = ShardClient.open(str(tmp_path / "lake"))
    client.create("x[/y]", ShardSchema.from_arrow(SCHEMA))
    client.writer("x[/y]").append_now(rows(10))
    assert main([str(tmp_path / "lake"), verb, "x[/y]", "--commit"]) == 0


def test_the_progress_of_fsck_has_names_as_they_are() -> None:
    """On a terminal, where it is drawn."""
    progress = command._progress()
    progress.add_task("", total=None, shard="x[/y]", looked=3)
    (task,) = progress.tasks
    (text,) = (column for column in progress.columns if isinstance(column, TextColumn))
    assert str(text(task)) == "3 records and parts, x[/y]"


def test_an_interrupt_is_no_stack_trace_and_leaves_the_outcome_open(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("shardline.jobs.admin.run", interrupted)

    assert main([url, "compact", "flights", "--commit"]) == 130
    assert "may have been made" in capsys.readouterr().err

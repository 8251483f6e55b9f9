"""`inspect`: what it says of a location, that it only reads, and how it refuses."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from rich.console import Console

from shardline.datasource.client import ShardClient
from shardline.datasource.followers import follow
from shardline.datasource.frontier import Frontier
from shardline.datasource.settings import ShardSettings
from shardline.datasource.types.schema import ShardSchema
from shardline.jobs import show
from shardline.jobs.show import main

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SCHEMA = pa.schema([pa.field("carrier", pa.string(), nullable=False), ("delay", pa.int64())])


def rows(*carriers: str) -> pa.Table:
    return pa.table({"carrier": list(carriers), "delay": list(range(len(carriers)))}, schema=SCHEMA)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """A location with a shard `flights` (five rows, upper 300, a hold at 120) and one dropped."""
    client = ShardClient.open(str(tmp_path / "lake"))
    client.create("flights", ShardSchema.from_arrow(SCHEMA), key=("carrier",), comment="late ones")
    writer = client.writer("flights", "loader")
    writer.compare_and_append(rows("AA", "UA"), Frontier(0), Frontier(100), sequence=7)
    client.hold("flights", "reports", since=20, purpose="monthly reports").downgrade(Frontier(120))
    writer.compare_and_append(rows("B6", "DL", "UA"), Frontier(100), Frontier(300), sequence=8)
    client.create("old", ShardSchema.from_arrow(SCHEMA))
    client.drop("old")
    return str(tmp_path / "lake")


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def ask_json(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main([*arguments, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert isinstance(report, dict)
    return report


def test_a_location_is_one_line_per_shard(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every shard has a line with its rows, and fits into 80 columns."""
    monkeypatch.setattr(show, "open_console", lambda: Console(highlight=False, width=80))
    assert main([url]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "".join(lines).startswith(f"file://{url}")
    flights = next(line for line in lines if line.startswith("flights"))
    assert flights.split()[1:3] == ["5", "2"], "rows, parts"
    assert "300" in flights
    assert any(line.startswith("old") and "dropped" in line for line in lines)
    assert all(len(line) <= 80 for line in lines)


def test_a_shard_tells_everything_in_80_columns(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view of one shard names its schema, key, comment, holder and writer."""
    monkeypatch.setattr(show, "open_console", lambda: Console(highlight=False, width=80))
    assert main([url, "flights", "--parts"]) == 0
    out = capsys.readouterr().out
    for said in (
        "carrier STRING NOT NULL, delay BIGINT", "late ones", "hold reports", "monthly reports",
        "never expires", "loader", "inside the state",
    ):  # fmt: skip
        assert said in out
    assert all(len(line) <= 80 for line in out.splitlines())


def test_shards_of_the_runtime_are_shown_when_asked_for(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is kept beside an object, or begins with _; one of a user's own name is his own."""
    client = ShardClient.open(url)
    for name in ("_lane", "flights_progress", "flights_errors", "my_errors"):
        client.create(name, ShardSchema.from_arrow(SCHEMA))

    def names(*arguments: str) -> set[str]:
        assert main([url, *arguments]) == 0
        out = capsys.readouterr().out
        assert ("3 that the runtime keeps for itself (--all shows them)" in out) == (not arguments)
        return {line.split()[0] for line in out.splitlines()[3:] if line[:1].strip()}

    assert names() == {"shard", "flights", "my_errors", "old"}
    assert names("--all") - names() == {"_lane", "flights_progress", "flights_errors"}


def test_json_has_the_numbers(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Programs get the state of the shard as numbers, computed here by hand."""
    report = ask_json(capsys, url, "flights")
    (shard,) = report["shards"]
    assert (shard["name"], shard["key"], shard["comment"]) == ("flights", ["carrier"], "late ones")
    assert (shard["since"], shard["upper"], shard["dropped"]) == (120, 300, False)
    assert (shard["rows"], shard["diff_sum"], shard["batches"], shard["part_count"]) == (5, 5, 2, 2)
    assert shard["size_bytes"] == shard["inline_bytes"] > 0
    assert [(level["level"], level["rows"]) for level in shard["levels"]] == [(1, 2), (2, 3)]
    # Records: made, first append, hold registered, hold moved, second append.
    assert shard["seqno"] == 5
    (holder,) = shard["holders"]
    assert (holder["kind"], holder["name"], holder["owner"]) == (
        "hold",
        "reports",
        "monthly reports",
    )
    assert (holder["since"], holder["behind_ms"], holder["gain_ms"]) == (120, 180, 179)
    assert (holder["seqno"], holder["behind_seqnos"], holder["only_bytes"]) == (None, 0, 0)
    (writer,) = shard["writers"]
    assert (writer["name"], writer["last"], writer["upper"], writer["lease_ms"]) == (
        "loader", 8, 300, None,
    )  # fmt: skip
    assert shard["parts"] is None


def test_a_follower_names_its_leader(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its own upper may be of long ago, and nothing is wrong."""
    client = ShardClient.open(url)
    client.create("notes", ShardSchema.from_arrow(SCHEMA))
    follow(client, "notes", "flights")
    (shard,) = ask_json(capsys, url, "notes")["shards"]
    assert (shard["upper"], shard["follows"]) == (0, "flights")
    assert main([url, "notes"]) == 0
    assert "0, or that of 'flights', if it is later" in capsys.readouterr().out


def test_json_names_are_stable(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The names that programs rely on: more may come, none of these goes."""
    report = ask_json(capsys, url, "flights", "--parts")
    assert set(report) >= {"location", "location_id", "at_ms", "shards", "problems"}
    (shard,) = report["shards"]
    assert set(shard) >= {
        "id", "name", "dropped", "schema", "schema_id", "key", "comment", "since", "upper", "seqno",
        "walltime_ms", "created_ms", "version", "rows", "size_bytes", "diff_sum", "batches",
        "empty_batches", "levels", "part_count", "inline_parts", "inline_bytes",
        "retracting_parts", "dropped_bytes", "rollups", "holders", "writers", "parts",
    }  # fmt: skip
    assert set(shard["holders"][0]) >= {
        "name", "kind", "owner", "since", "seqno", "heard_ms", "silent_ms", "made_ms", "lease_ms",
        "overdue", "behind_ms", "behind_seqnos", "gain_ms", "only_bytes",
    }  # fmt: skip
    assert set(shard["parts"][0]) >= {
        "key", "lower", "upper", "level", "rows", "size_bytes", "inline", "schema_id", "sorted",
        "ts_min", "ts_max", "diff_sum", "diff_min", "diff_max",
    }  # fmt: skip


@contextmanager
def read_since_its_first_record(location: Path) -> Iterator[None]:
    """A shard `flights` whose log is longer than a rollup's span, while a reader holds it all."""
    client = ShardClient.open(str(location), settings=ShardSettings(rollup_every=4))
    client.create("flights", ShardSchema.from_arrow(SCHEMA))
    writer = client.writer("flights", "loader")
    with client.reader("flights"):
        for time in range(10):
            writer.compare_and_append(rows("AA"), Frontier(time), Frontier(time + 1))
        yield


def test_old_states_are_looked_through_from_a_rollup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What only an old lease keeps is known although the log is longer than one rollup's span."""
    with read_since_its_first_record(tmp_path):
        (shard,) = ask_json(capsys, str(tmp_path), "flights")["shards"]
    assert len(shard["rollups"]) >= 2
    assert shard["dropped_bytes"] == 0, "nothing was merged, and that is known"
    (holder,) = shard["holders"]
    assert holder["kind"] == "lease"
    assert (holder["seqno"], holder["only_bytes"]) == (2, 0)
    assert holder["behind_seqnos"] == shard["seqno"] - 2


def test_a_shard_whose_usage_cannot_be_told_makes_the_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a reader holds is found by older records, without which its state can still be read."""
    with read_since_its_first_record(tmp_path):
        sorted((tmp_path / "flights" / "log").iterdir())[2].unlink()
        assert main([str(tmp_path)]) == 0
        assert main([str(tmp_path), "--usage"]) == 1
    assert "flights: [MISSING_STATE]" in capsys.readouterr().out


def test_looking_changes_nothing(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No file is written, changed or removed, whatever is asked."""
    before = contents(tmp_path)
    for arguments in ([url], [url, "flights"], [url, "flights", "--json", "--parts"], [url, "no"]):
        main(arguments)
    capsys.readouterr()
    assert contents(tmp_path) == before


def test_a_dropped_shard_is_shown_as_such(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A tombstone is a shard too: it says that it was dropped, and has nothing in it."""
    (shard,) = ask_json(capsys, url, "old")["shards"]
    assert (shard["dropped"], shard["since"], shard["upper"], shard["rows"]) == (
        True,
        None,
        None,
        0,
    )
    assert main([url, "old"]) == 0
    assert "(dropped)" in capsys.readouterr().out


def test_a_damaged_shard_does_not_hide_the_others(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others are shown, the damaged one is named with its error, and the status is 1."""
    client = ShardClient.open(url)
    client.create("torn", ShardSchema.from_arrow(SCHEMA))
    (record,) = (tmp_path / "lake" / "torn" / "log").iterdir()
    record.write_bytes(record.read_bytes()[:-9])
    assert main([url, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert [shard["name"] for shard in report["shards"]] == ["flights", "old"]
    assert [problem["shard"] for problem in report["problems"]] == ["torn"]
    assert main([url]) == 1
    assert "torn: [" in capsys.readouterr().out
    assert main([url, "torn"]) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{url}/nowhere"], "[LOCATION_NOT_FOUND]"),
        (
            ["{url}/flights"],
            "shard's folder: the location is 'file://{url}', the shard 'flights'",
        ),
        (["{url}", "flihgts"], "did you mean 'flights'?"),
        (["{url}", "../flights"], "[INVALID_NAME]"),
        (["gopher://lake"], "gopher"),
        (["{url}", "--option", "s3.endpont=x"], "did you mean 's3.endpoint'?"),
        (["{url}", "--option", "s3.endpoint"], "--option NAME=VALUE"),
    ],
)
def test_what_cannot_be_answered_is_refused_in_one_line(
    url: str, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    """Status 2, the error with its code and hint on stderr, and nothing on stdout."""
    assert main([word.format(url=url) for word in arguments]) == 2
    out, err = capsys.readouterr()
    assert said.format(url=url) in err
    assert "Traceback" not in err
    assert len(err.splitlines()) == 1
    assert out == ""


@pytest.mark.process
def test_a_look_needs_no_spark(url: str) -> None:
    """Neither PySpark nor what only writers need is imported: a look starts at once."""
    code = (
        "import sys; from shardline.jobs.show import main; status = main(sys.argv[1:]); "
        "print([m for m in ('pyspark', 'pandas', 'starlette', 's3fs') if m in sys.modules]); "
        "sys.exit(status)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, url], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"


def test_an_interrupt_is_no_stack_trace(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(show, "inspect_location", interrupted)

    assert main([url]) == 130

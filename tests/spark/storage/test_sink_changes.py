"""Sinks whose input or target changes while they run, or between two runs."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from shardline.app.execution.host import Host
from shardline.app.execution.observations import Failed
from shardline.app.protocol.objects import SinkDescription
from shardline.app.storage.sink_holds import drop_sink, hold_name
from shardline.app.storage.sinks.progress import SinkProgress
from shardline.datasource.frontier import Frontier
from shardline.datasource.shard.commands.readers import expire_leased
from shardline.datasource.shard.commands.retention import apply_policy
from support.spark.sinks import Input, diffs, life, parquet, running

pytestmark = pytest.mark.spark


def copy(**changes: Any) -> SinkDescription:
    given: dict[str, Any] = {"name": "out", "on": "in", "format": "shard", "envelope": "diff"}
    return SinkDescription(**(given | {"options": {"shard": "copy"}} | changes))


def contents(host: Host, shard: str, as_of: int) -> Counter[tuple[Any, ...]]:
    with host.client.reader(shard) as reader:
        return Counter(tuple(row.values()) for row in reader.snapshot(as_of).to_pylist())


# --- columns that the input gets ------------------------------------------------------------------


def test_a_copy_gets_the_columns_of_its_input_with_all_that_is_in_them(
    host: Host, source: Input
) -> None:
    """Rows that an input corrects as it gets a column differ in that alone."""
    host.client.hold("in", "of this test")
    with running(host, copy()) as reports:
        reports.reached(source.step(10, (1, "a", 1), (2, "b", 1)))
        host.client.hold("copy", "of this test")
        source.gets("name")
        source.step(
            20, (1, "a", None, -1), (1, "a", "n1", 1), (2, "b", None, -1), (2, "b", "n2", 1)
        )
        assert "SCHEMA_CHANGED" in reports.failure().error
    with running(host, copy(), life(2)) as reports:
        reports.reached(source.step(30, (1, "a", "n1", -1), (3, "c", "n3", 1)))

    for time in (10, 20, 30):
        assert contents(host, "copy", time) == contents(host, "in", time), time
    assert contents(host, "copy", 30) == Counter([(2, "b", "n2"), (3, "c", "n3")])


def test_files_get_the_columns_of_their_input(host: Host, source: Input, tmp_path: Path) -> None:
    """No change of nothing comes out, and what is taken back is what was written."""
    sink = parquet(tmp_path)
    with running(host, sink) as reports:
        reports.reached(source.step(10, (1, "a", 1)))
        source.gets("name")
        source.step(20, (1, "a", None, -1), (1, "a", "n1", 1))
        assert "SCHEMA_CHANGED" in reports.failure().error
    with running(host, sink, life(2)) as reports:
        reports.reached(source.step(30, (1, "a", "n1", -1)))

    files = host.spark.read.option("mergeSchema", "true").parquet(sink.options["path"])
    sums: Counter[tuple[Any, ...]] = Counter()
    for row in files.collect():
        sums[(row.k, row.v, row.name)] += row._diff
    assert set(sums) == {(1, "a", None), (1, "a", "n1")}
    assert not any(sums.values())


def test_a_shard_without_rows_of_the_sink_is_not_given_columns(host: Host, source: Input) -> None:
    """It may have been named by mistake."""
    Input(host.client, "copy")
    source.gets("name")
    source.step(10, (1, "a", "n1", 1))
    with running(host, copy()) as reports:
        assert "EXTRA_COLUMN" in reports.failure().error
    assert host.client.state("copy").upper == Frontier(0)


def test_a_user_may_refuse_that_a_target_gets_columns(host: Host, source: Input) -> None:
    """By the option that a write has for it."""
    sink = copy(options={"shard": "copy", "MERGESCHEMA": "false"})
    with running(host, sink) as reports:
        reports.reached(source.step(10, (1, "a", 1)))
    source.gets("name")
    source.step(20, (1, "a", None, -1), (1, "a", "n1", 1))
    with running(host, sink, life(2)) as reports:
        assert "EXTRA_COLUMN" in reports.failure().error
    assert contents(host, "copy", 10) == Counter([(1, "a")])


# --- a target that is emptied while the sink runs -------------------------------------------------


@pytest.mark.parametrize("kind", ["files", "copy", "upsert"])
def test_a_target_that_is_emptied_while_a_sink_runs_is_not_given_more(
    host: Host, source: Input, tmp_path: Path, kind: str
) -> None:
    """More rows would hide that the earlier ones are missing."""
    sink = parquet(tmp_path)
    if kind != "files":
        sink = copy() if kind == "copy" else copy(envelope="upsert", key=("k",))
    with running(host, sink) as reports:
        reports.reached(source.step(10, (1, "a", 1)))
        if kind == "files":
            shutil.rmtree(sink.options["path"])
        else:
            host.client.drop("copy")
        source.step(20, (2, "b", 1))
        assert reports.stalled().error.startswith("[TARGET_WENT_BACK]")
    assert not any(isinstance(one, Failed) for one in reports.all), "it would be started again"
    with running(host, sink, life(2)) as reports:
        assert reports.stalled().error.startswith("[TARGET_WENT_BACK]")


def test_a_target_that_was_away_goes_on_when_it_is_back(
    host: Host, source: Input, tmp_path: Path
) -> None:
    """A folder that was moved, or not mounted: nobody has to restart the sink."""
    sink, folder = parquet(tmp_path), Path(parquet(tmp_path).options["path"])
    with running(host, sink) as reports:
        reports.reached(source.step(10, (1, "a", 1)))
        folder.rename(tmp_path / "away")
        folder.write_text("in its place")
        source.step(20, (2, "b", 1))
        assert reports.stalled().error.startswith("[TARGET_WENT_BACK]")
        folder.unlink()
        (tmp_path / "away").rename(folder)
        assert "TARGET_CAME_BACK" in reports.failure().error
    with running(host, sink, life(2)) as reports:
        reports.reached(source.step(30, (3, "c", 1)))
    assert diffs(host.spark, sink) == [(1, "a", 10, 1), (2, "b", 20, 1), (3, "c", 30, 1)]


def test_a_folder_that_is_emptied_before_its_first_rows_is_taken_anew(
    host: Host, source: Input, tmp_path: Path
) -> None:
    """Nothing is lost; but rows without an owner would be refused by the next start."""
    sink = parquet(tmp_path, snapshot=False)
    source.step(10, (1, "a", 1))
    with running(host, sink) as reports:
        reports.reached(11)
        shutil.rmtree(sink.options["path"])
        reports.reached(source.step(20, (2, "b", 1)))
    with running(host, sink, life(2)) as reports:
        reports.reached(source.step(30, (3, "c", 1)))
    assert diffs(host.spark, sink) == [(2, "b", 20, 1), (3, "c", 30, 1)]


# --- a crash, and what its user or another machine has done before the next start -----------------


def test_a_sub_folder_that_is_used_up_before_progress_has_it_does_not_come_again(
    host: Host, source: Input, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its name is still in `_newest-…`."""
    sink = parquet(tmp_path)
    with running(host, sink) as reports:
        reports.reached(source.step(10, (1, "a", 1)))

    def killed(*_: object, **__: object) -> None:
        raise OSError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(SinkProgress, "record", killed)
        source.step(20, (2, "b", 1))
        with running(host, sink, life(2)) as reports:
            assert "killed" in reports.failure().error
    (used,) = Path(sink.options["path"]).glob("_upper=21")
    shutil.rmtree(used)
    with running(host, sink, life(3)) as reports:
        reports.reached(source.step(30, (3, "c", 1)))
    assert diffs(host.spark, sink) == [(1, "a", 10, 1), (3, "c", 30, 1)]


def test_a_checkpoint_of_before_another_machine_had_the_sink_is_made_anew(
    host: Host, source: Input, tmp_path: Path
) -> None:
    """The input has forgotten what it would repeat: the hold has moved on with the other one."""
    sink, other = parquet(tmp_path), replace(host, checkpoints=tmp_path / "another machine")
    with running(host, sink) as reports:
        reports.reached(source.step(10, (1, "a", 1)))
    with running(other, sink, life(2)) as reports:
        for time in (20, 30):
            reports.reached(source.step(time, (time, "b", 1)))
    source.step(40, (4, "d", 1))
    with running(other, sink, life(3)) as reports:
        reports.reached(41)
    assert (host.client.state("in").critical[hold_name("out")].since or 0) > 11
    with running(host, sink, life(4)) as reports:
        reports.reached(source.step(50, (5, "e", 1)))
    assert [row[0] for row in diffs(host.spark, sink)] == [1, 4, 5, 20, 30]


@pytest.mark.parametrize("damage", [b"\xff\xfe{", b'"x"', b"{"])
def test_an_owner_that_is_damaged_is_read_from_its_copy(
    host: Host, source: Input, tmp_path: Path, damage: bytes
) -> None:
    """And of two that are damaged the error names the file, and what to do."""
    sink = parquet(tmp_path)
    with running(host, sink) as reports:
        reports.reached(source.step(10, (1, "a", 1)))
    owner = Path(sink.options["path"]) / "_shardline.json"
    owner.write_bytes(damage)
    (owner.parent / f".{owner.name}.crc").unlink(missing_ok=True)
    with running(host, sink, life(2)) as reports:
        reports.reached(source.step(20, (2, "b", 1)))
    (owner.parent / "_shardline-copy.json").write_bytes(damage)
    (owner.parent / "._shardline-copy.json.crc").unlink(missing_ok=True)
    with running(host, sink, life(3)) as reports:
        error = reports.failure().error
    assert "_shardline.json is not there, or is damaged" in error
    assert diffs(host.spark, sink) == [(1, "a", 10, 1), (2, "b", 20, 1)]


# --- a sink that was away for longer than its input keeps history ---------------------------------


def away(source: Input) -> int:
    """Let the input forget what was before its newest contents; where its history begins then."""
    for reader in source.client.state("in").leased:  # of the stream, which may not have ended yet
        source.client.machine("in").apply(partial(expire_leased, reader=reader))
    source.client.set_retention("in", 0)
    source.client.machine("in").apply(apply_policy)
    since = source.client.state("in").since.time
    assert since is not None
    return since


def test_a_sink_that_was_away_without_a_change_goes_on(
    host: Host, source: Input, tmp_path: Path
) -> None:
    """Its input has forgotten times that the target lacks, and nothing had happened then."""
    sink = parquet(tmp_path)
    with running(host, sink) as reports:
        reports.reached(source.step(10, (1, "a", 1)))
    drop_sink(host.client, sink)
    shutil.rmtree(host.checkpoints)
    source.step(500)
    assert away(source) > 11
    with running(host, sink, life(2)) as reports:
        reports.reached(source.step(600, (1, "a", -1)))
    assert diffs(host.spark, sink) == [(1, "a", 10, 1), (1, "a", 600, -1)]


def test_a_sink_that_misses_what_its_input_has_forgotten_is_stalled(
    host: Host, source: Input, tmp_path: Path
) -> None:
    """A person decides: nothing is left out, and it holds nothing meanwhile."""
    sink = parquet(tmp_path)
    with running(host, sink) as reports:
        reports.reached(source.step(10, (1, "a", 1)))
    drop_sink(host.client, sink)
    shutil.rmtree(host.checkpoints)
    source.step(20, (2, "b", 1))
    source.step(500, (2, "b", -1))
    assert away(source) == 500
    with running(host, sink, life(2)) as reports:
        said = reports.stalled()
        assert said.error.startswith("[HISTORY_GONE] the target of sink 'out' has everything up to")
        assert "empty its target" in said.hint
        assert "RETAIN HISTORY" in said.hint
        assert reports.all == [said], "it does not fail: it would be started again for ever"
        assert hold_name("out") not in source.client.state("in").critical
    assert diffs(host.spark, sink) == [(1, "a", 10, 1)]


def test_a_hold_that_a_crash_has_left_ahead_of_the_target_proves_nothing(
    host: Host, source: Input, tmp_path: Path
) -> None:
    """Killed between its new hold and the look behind it, a sink does not skip what it lacks."""
    sink = parquet(tmp_path)
    with running(host, sink) as reports:
        reports.reached(source.step(10, (1, "a", 1)))
    drop_sink(host.client, sink)
    shutil.rmtree(host.checkpoints)
    source.step(20, (2, "b", 1))
    source.step(500, (2, "b", -1))
    assert away(source) == 500
    source.client.hold("in", hold_name("out"))
    with running(host, sink, life(2)) as reports:
        assert reports.stalled().error.startswith("[HISTORY_GONE] the target of sink 'out'")
        assert hold_name("out") not in source.client.state("in").critical
    assert diffs(host.spark, sink) == [(1, "a", 10, 1)]

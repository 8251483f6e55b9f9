"""SIGKILL in the middle of a micro-batch that is read natively: every row comes out once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from shardline.datasource.client import ShardClient
from shardline.datasource.frontier import Frontier
from support.faults.kills import EXECUTOR, PLANNER, kill, processes_of
from support.faults.native_stream import EACH
from support.processes.checkout import kill_all_of
from support.profiles import one_of
from support.spark.native import client_at, put
from support.tree import ROOT
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.spark, pytest.mark.process, pytest.mark.slow]

PATIENCE_S = 180
PARTS = 4


@contextmanager
def copying(folder: Path, *master: str) -> Iterator[subprocess.Popen[str]]:
    """The process that copies; it is gone after the block."""
    with (folder / "said.txt").open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "support.faults.native_stream", str(folder), *master],
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            text=True,
        )
        try:
            yield process
        finally:
            kill_all_of(process)


def fill(folder: Path) -> ShardClient:
    client = client_at(f"{folder}/lake", inline_part_bytes=0)
    for number in range(PARTS):
        ids = pa.array(range(number * EACH, (number + 1) * EACH), pa.int64())
        put(client, "in", number + 1, pa.table({"id": ids}))
    return client


def counts(folder: Path, moment: str) -> dict[str, int]:
    found: dict[str, int] = json.loads((folder / f"counts-{moment}").read_text())
    return found


def wait_for(folder: Path, process: subprocess.Popen[str], name: str) -> None:
    def happened() -> bool:
        said = (folder / "said.txt").read_text(errors="replace")[-5000:]
        assert (folder / name).exists() or process.poll() is None, said
        return (folder / name).exists()

    wait_until(name, happened, PATIENCE_S)


def finish(folder: Path, process: subprocess.Popen[str]) -> int:
    wait_until("it ends", lambda: process.poll() is not None, PATIENCE_S)
    (folder / "reading").unlink(missing_ok=True)
    return process.returncode


def copied(client: ShardClient) -> dict[int, int]:
    """How many rows of each part are in the copy."""
    if client.state("out").upper == Frontier(0):
        return {}
    with client.reader("out") as out:
        return dict(Counter(number // EACH for number in out.snapshot()["id"].to_pylist()))


def assert_copied(folder: Path, client: ShardClient) -> None:
    """Each row once, in one micro-batch for each part."""
    with client.reader("out") as out:
        assert sorted(out.snapshot()["id"].to_pylist()) == list(range(PARTS * EACH))
    ends = list(Path(folder, "checkpoint", "commits").glob("[0-9]*"))
    assert len(ends) == PARTS


@pytest.mark.parametrize("whom", one_of(2, ["driver", "planner"]))
def test_a_stream_goes_on_where_it_was_killed(tmp_path: Path, whom: str) -> None:
    """The driver with its JVM and workers, or the process that plans the stream's ranges."""
    client = fill(tmp_path)
    with copying(tmp_path) as process:
        wait_for(tmp_path, process, "counts-reading")
        begun = counts(tmp_path, "reading")
        assert begun.keys() == {"native"}
        if whom == "driver":
            kill_all_of(process)
            (tmp_path / "go").touch()
        else:
            planners = processes_of(process.pid, PLANNER)
            assert planners
            for pid in planners:
                kill(pid)
            (tmp_path / "go").touch()
            assert finish(tmp_path, process) != 0, "its next range could not be planned"
    # Pieces of a snapshot come in any order: the one that was being read is the last that begun.
    done = begun["native"] - (whom == "driver")
    found = copied(client)
    assert len(found) == done
    assert set(found.values()) <= {EACH}, "no half of a part"
    assert (1 in found) == (whom == "planner")
    (tmp_path / "reading").unlink(missing_ok=True)
    with copying(tmp_path) as process:
        assert finish(tmp_path, process) == 0
    assert counts(tmp_path, "end").get("native", 0) == PARTS - done
    assert_copied(tmp_path, client)


@pytest.mark.night
def test_a_frozen_stream_is_killed_and_never_passes(tmp_path: Path) -> None:
    """In the middle of a part before the missing one, and while it is frozen; each row once."""
    client = fill(tmp_path)
    [missing] = [
        part
        for batch in client.state("in").trace.batches
        for part in batch.parts
        if part.time_bounds == (3, 3)
    ]
    gone = tmp_path / "lake" / missing.key
    data = gone.read_bytes()
    gone.unlink()
    freezing = ("local[2]", "freeze")
    with copying(tmp_path, *freezing) as process:
        wait_for(tmp_path, process, "counts-reading")
        assert counts(tmp_path, "reading")["native"] == 2
        assert copied(client) == {0: EACH}
        kill_all_of(process)
    (tmp_path / "reading").unlink()
    (tmp_path / "go").touch()
    with copying(tmp_path, *freezing) as process:
        wait_for(tmp_path, process, "counts-frozen")
        assert process.poll() is None
        assert counts(tmp_path, "frozen")["native"] == 1
        assert copied(client) == {0: EACH, 1: EACH}
        kill_all_of(process)
    gone.write_bytes(data)
    with copying(tmp_path, *freezing) as process:
        wait_until("all is copied", lambda: len(copied(client)) == PARTS, PATIENCE_S)
        (tmp_path / "done").touch()
        assert finish(tmp_path, process) == 0
    assert counts(tmp_path, "end")["native"] == 2
    assert copied(client) == dict.fromkeys(range(PARTS), EACH)


@pytest.mark.night
@pytest.mark.cluster
def test_a_stream_survives_the_loss_of_its_executor(tmp_path: Path) -> None:
    """The task reads the part again, from its start, in another executor; the driver goes on."""
    client = fill(tmp_path)
    with copying(tmp_path, "local-cluster[1,1,1024]") as process:
        wait_for(tmp_path, process, "counts-reading")
        executors = processes_of(process.pid, EXECUTOR)
        assert len(executors) == 1
        kill(executors[0])
        wait_until(
            "there is another executor",
            lambda: set(processes_of(process.pid, EXECUTOR)) - set(executors) != set(),
            PATIENCE_S,
        )
        (tmp_path / "go").touch()
        assert finish(tmp_path, process) == 0
    assert counts(tmp_path, "end") == {"native": PARTS}
    assert_copied(tmp_path, client)

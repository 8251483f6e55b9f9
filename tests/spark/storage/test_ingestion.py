"""Sources taken in by Spark: snapshots, envelopes, errors, restarts, lost checkpoints."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardline.app.execution.observations import Failed, Health, Hydrated, Measured, Started
from shardline.app.protocol.objects import SourceDescription
from shardline.app.storage import ingestion
from shardline.app.storage.commit import Timeline
from shardline.app.storage.envelope import Staging
from shardline.app.storage.errors import retract_errors
from shardline.app.storage.reclock import EMPTY_SNAPSHOT
from shardline.app.storage.source_holds import end_dropped
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Fenced
from support.profiles import one_of, some_of
from support.spark.ingestions import (
    Runtime,
    Source,
    bindings,
    changes,
    contents,
    drop,
    running,
)
from support.spark.native import ids, put
from support.tree import ROOT
from support.waiting import wait_until

pytestmark = pytest.mark.spark


def csv(inbox: Path, **chosen: Any) -> SourceDescription:
    given: dict[str, Any] = {"name": "flights", "format": "csv", "schema": "id INT, s STRING"}
    options = {"path": str(inbox), "maxFilesPerTrigger": "1"}
    return SourceDescription(**given | {"options": options} | chosen)


def test_the_snapshot_is_one_binding(runtime: Runtime, inbox: Path) -> None:
    """All files that are there come at one time, whatever the rate limit; later ones one by one."""
    for i in range(3):
        drop(inbox, f"{i}.csv", f"{i},row {i}")
    snapshot = [(i, f"row {i}") for i in range(3)]
    with running(runtime, csv(inbox)) as source:
        source.wait_for_rows(*snapshot)
        assert len(source.bindings()) == 1
        drop(inbox, "3.csv", "3,row 3")
        drop(inbox, "4.csv", "4,row 4")
        source.wait_for_rows(*snapshot, (3, "row 3"), (4, "row 4"))
        assert len(source.bindings()) == 3
        times = [time for _, time in sorted(source.bindings())]
        assert [time % runtime.interval_ms for time in times] == [0, 0, 0]
        data = changes(runtime.client, "flights")
        assert [row["_ts"] for row in data] == [times[0]] * 3 + times[1:]
        state = runtime.client.state("flights")
        assert all(part.inline for batch in state.trace.batches for part in batch.parts), "no files"
        source.wait_for("ticks", lambda: runtime.client.state("flights").upper > state.upper)
    assert [o.took_ms >= 0 for o in source.told(Hydrated)] == [True]
    assert len(source.told(Started)) == 2
    received = sum(o.added.get("messages_received", 0) for o in source.told(Measured))
    assert received == 5
    assert not source.told(Failed)


LOSSES = ["nothing", "all", "commits", "offsets", "sources", "foreign", "torn"]


def test_restarts_go_on_where_the_bindings_end(runtime: Runtime, inbox: Path) -> None:
    """Whatever became of the checkpoint: no row twice, none lost, no offset bound again."""
    rows = [(i, f"row {i}") for i in range(12 + len(LOSSES))]
    drop(inbox, "0.csv", "0,row 0")
    with running(runtime, csv(inbox)) as source:
        source.wait_for_rows(*rows[:1])
        for i in range(1, 12):
            drop(inbox, f"{i}.csv", f"{i},row {i}")
        source.wait_for_rows(*rows[:12])
    bound = bindings(runtime.client, "flights")
    assert len(bound) == 12, "past the first compaction of the source's log"
    for number, lost in enumerate(LOSSES, 12):
        folder = runtime.checkpoints / "u-flights-1"
        (folder / ".mark").touch()
        if lost != "nothing":
            harm(folder, lost)
        drop(inbox, f"{number}.csv", f"{number},row {number}")
        with running(runtime, csv(inbox)) as source:
            source.wait_for_rows(*rows[: number + 1])
            after = source.bindings()
        assert bound.items() <= after.items(), lost
        kept = (folder / ".mark").exists()
        assert kept == (lost == "nothing"), "what Spark itself has written is not made again"
        assert sorted(n for n, _ in after) == list(range(number + 1)), lost
        bound = after


def harm(folder: Path, lost: str) -> None:
    """Do to a checkpoint what may be done to one."""
    newest = max(int(path.name) for path in (folder / "offsets").glob("[0-9]*"))
    match lost:
        case "torn":  # by a power cut, since Spark syncs nothing
            for name in (f"offsets/{newest + 1}", f"sources/0/{newest + 1}", f"commits/{newest}"):
                (folder / name).write_text("")
        case "all":
            shutil.rmtree(folder)
        case "commits":  # rolled back
            for log in ("offsets", "commits"):
                for number in range(newest - 3, newest + 1):
                    (folder / log / str(number)).unlink(missing_ok=True)
        case "offsets":  # ahead
            text = (folder / "offsets" / str(newest)).read_text()
            (folder / "offsets" / str(newest + 1)).write_text(text)
            (folder / "commits" / str(newest + 1)).write_text('v1\n{"nextBatchWatermarkMs":0}')
        case "sources":
            shutil.rmtree(folder / "sources")
        case "foreign":
            text = (folder / "offsets" / str(newest)).read_text().replace('":', '": ')
            (folder / "offsets" / str(newest)).write_text(text)
        case _:
            raise AssertionError(lost)


STEPS = ["stage", "_bind", "errors", "rows", "told"]


@pytest.mark.parametrize(
    ("step", "kept"),
    some_of(
        [*((step, ("kept", "lost")[i % 2]) for i, step in enumerate(STEPS)), ("_bind", "kept")],
        {("_bind", "lost"), ("errors", "kept"), ("rows", "lost")},
    ),
)
def test_a_crash_after_each_step(
    runtime: Runtime, inbox: Path, step: str, kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was done before a failure is not done again, and what was not is."""
    drop(inbox, "0.csv", "0,a", "bad,b")
    armed = [True]
    break_after(monkeypatch, step, armed)
    with running(runtime, csv(inbox)) as source:
        wait(lambda: bool(source.failures()))
    bound = bindings(runtime.client, "flights")
    assert len(bound) == (0 if step == "stage" else 1)
    assert contents(runtime.client, "flights") == ({(0, "a"): 1} if step in STEPS[3:] else {})
    armed.clear()
    if kept == "lost":
        shutil.rmtree(runtime.checkpoints)
    with running(runtime, csv(inbox)) as source:
        source.wait_for_rows((0, "a"))
        drop(inbox, "1.csv", "1,c")
        source.wait_for_rows((0, "a"), (1, "c"))
        assert list(source.errors) == [(source_error(), "bad,b", None)]
        assert bound.items() <= source.bindings().items()
        assert sorted(number for number, _ in source.bindings()) == [0, 1]
        assert {row["_ts"] for row in changes(runtime.client, "flights")} == {
            time for _, time in source.bindings()
        }


def source_error() -> str:
    return "a row cannot be decoded as (id int, s string)"


def wait(happened: object) -> None:
    wait_until("it happened", happened, 60)  # type: ignore[arg-type]


def break_after(patch: pytest.MonkeyPatch, step: str, armed: list[bool]) -> None:
    """Let the ingestion fail right after a step, while `armed` has something in it."""

    def boom(real: Callable[..., Any], only: str = "") -> Callable[..., Any]:
        def run(self: Any, *args: Any, **named: Any) -> Any:
            found = real(self, *args, **named)
            if armed and (not only or args[0].name.endswith(only)):
                raise RuntimeError(f"the disk fell off after {step}")
            return found

        return run

    match step:
        case "stage":
            patch.setattr(Staging, "stage", boom(Staging.stage))
        case "_bind":
            patch.setattr(Timeline, "_bind", boom(Timeline._bind))
        case "errors":
            patch.setattr(Timeline, "_append_errors", boom(Timeline._append_errors))
        case "rows":
            patch.setattr(Timeline, "_append", boom(Timeline._append, "flights"))
        case "told":
            patch.setattr(Timeline, "commit", boom(Timeline.commit))
        case _:
            raise AssertionError(step)


def test_an_upserted_key_has_its_latest_row_or_its_error(runtime: Runtime, inbox: Path) -> None:
    """The last row of a key in a file wins; a bad one is an error until a good one or a delete."""
    source_of = csv(inbox, envelope="upsert", key=("id",), schema="id INT, s STRING, n INT")
    drop(inbox, "0.csv", "1,a,1", "2,b,1", "1,c,2", "3,d,x", "?,e,3")
    with running(runtime, source_of) as source:
        source.wait_for_rows((1, "c", 2), (2, "b", 1))
        raws = sorted(raw for _, raw, _ in source.errors)
        assert raws == ["3,d,x", "?,e,3"]
        source.wait_for("stalled", lambda: decoding(source) == "stalled")
        drop(inbox, "1.csv", "3,d,7", "2,,", "1,bad,z")
        source.wait_for_rows((1, "c", 2), (3, "d", 7))
        assert sorted(raw for _, raw, _ in source.errors) == ["1,bad,z", "?,e,3"]
        drop(inbox, "2.csv", "1,,", "4,bad,?", "4,good,4")
        source.wait_for_rows((3, "d", 7), (4, "good", 4))
        assert [raw for _, raw, _ in source.errors] == ["?,e,3"]
        assert retract_errors(runtime.client, "flights") == 1
        assert not source.errors
        source.wait_for("running", lambda: decoding(source) == "running")
        drop(inbox, "3.csv", "5,f,5")
        source.wait_for_rows((3, "d", 7), (4, "good", 4), (5, "f", 5))
    assert not source.told(Failed)


def decoding(source: Source) -> str:
    """What the source has last said of its decoding."""
    said = [o for o in source.runtime.told if isinstance(o, Health) and o.namespace == "decode"]
    return said[-1].status if said else ""


@pytest.mark.parametrize("order", ["ts", "at.ms"])
def test_a_row_whose_order_cannot_be_decoded_is_an_error_of_its_key(
    runtime: Runtime, inbox: Path, order: str
) -> None:
    """Nobody knows whether it is the latest, so no other row of its micro-batch passes over it.

    One whose order can be decoded has its place among the others, as a good row has. So with a dot
    in the name of the column, which is no path.
    """
    options = {"path": str(inbox), "maxFilesPerTrigger": "1", "orderingColumn": order}
    columns = f"id INT, n INT, `{order}` BIGINT"
    source_of = csv(inbox, options=options, envelope="upsert", key=("id",), schema=columns)
    drop(inbox, "0.csv", "1,1,5", "1,2,six", "2,x,5", "2,1,6", "3,1,5", "3,x,6", "4,one,first")
    with running(runtime, source_of) as source:
        source.wait_for_rows((1, 1, 5), (2, 1, 6), (3, 1, 5))
        assert sorted(raw for _, raw, _ in source.errors) == ["1,2,six", "3,x,6", "4,one,first"]
        drop(inbox, "1.csv", "1,3,7", "1,4,eight", "3,3,7", "4,4,7")
        source.wait_for_rows((1, 3, 7), (2, 1, 6), (3, 3, 7), (4, 4, 7))
        assert [raw for _, raw, _ in source.errors] == ["1,4,eight"]


def test_changes_of_another_shard(runtime: Runtime) -> None:
    """A shard as a source: its history so far comes as one snapshot, retractions follow."""
    put(runtime.client, "there", 5, ids(1, 2))
    put(runtime.client, "there", 7, ids(3))
    options = {"path": f"{runtime.location}/there", "readChangeFeed": "true"}
    description = SourceDescription(
        name="here", format="shard", options=options, envelope="diff", key=("id",)
    )
    with running(runtime, description) as source:
        source.wait_for_rows((1,), (2,), (3,))
        assert len(source.bindings()) == 1
    shutil.rmtree(runtime.checkpoints)
    gone = ids(2).append_column("_diff", pa.array([-1], pa.int64()))
    put(runtime.client, "there", 9, gone)
    with running(runtime, description) as source:
        source.wait_for_rows((1,), (3,))


def test_a_source_of_a_shard_has_one_hold_on_it_however_often_it_starts(
    runtime: Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While nothing is bound each start begins anew, and a hold that is left would never end.

    Once it has begun, that on the shard which the definition before has read ends.
    """
    other = ShardClient.open(str(tmp_path / "other"))
    own = f"source:here:{runtime.client.location.id}"

    def reads(shard: str) -> SourceDescription:
        options = {"path": f"{tmp_path}/other/{shard}", "readChangeFeed": "true"}
        return SourceDescription(name="here", format="shard", options=options, envelope="diff")

    def holds(shard: str) -> list[str]:
        state = other.machine(shard).refresh()
        assert state is not None
        return list(state.critical)

    def fail(*_: object) -> None:
        raise RuntimeError("the disk is full")

    for shard in ("former", "there"):
        put(other, shard, 5, ids(1))
    with monkeypatch.context() as broken:
        broken.setattr(Staging, "stage", fail)
        for shard in ("former", "former", "there"):
            with running(runtime, reads(shard)) as source:
                wait_until("it fails", lambda: source.failures() != [], 60)
            assert holds(shard) == [own]
    runtime.former_sources = (reads("former"), reads("there"))
    with running(runtime, reads("there")) as source:
        source.wait_for_rows((1,))
        source.wait_for("the former hold ends", lambda: holds("former") == [])
        assert holds("there") == [own]
        put(other, "there", 7, ids(2))
        source.wait_for_rows((1,), (2,))
    assert holds("there") == [own]
    end_dropped(runtime.client, "here", [reads("there")], lambda: None)
    assert holds("there") == []


@pytest.mark.parametrize("kind", one_of(2, ["counter", "rate"]))
def test_a_generator_loses_its_checkpoint(runtime: Runtime, kind: str) -> None:
    """Event numbers go on without a gap and without a repetition."""
    options = {"counter": {"rate": "50", "seed": "1"}, "rate": {"rowsPerSecond": "50"}}[kind]
    description = SourceDescription(name="events", format=kind, options=options)
    for _ in range(2):
        with running(runtime, description) as source:
            reached = max((number for number, _ in source.bindings()), default=0)
            source.wait_for_bindings(reached + 3)
        shutil.rmtree(runtime.checkpoints)
    numbers = Counter(row[-1] for row in contents(runtime.client, "events"))
    first = min(numbers)
    assert len(numbers) > 20
    assert numbers == Counter(range(first, first + len(numbers)))


def test_an_empty_snapshot_is_bound(runtime: Runtime, inbox: Path) -> None:
    """A source of nothing has nothing at a time; what comes later comes later."""
    with running(runtime, csv(inbox)) as source:
        source.wait_for("a binding", lambda: len(source.bindings()) == 1)
        ((number, at),) = source.bindings()
        assert number == EMPTY_SNAPSHOT
    with running(runtime, csv(inbox)) as source:
        drop(inbox, "0.csv", "0,a")
        source.wait_for_rows((0, "a"))
        assert changes(runtime.client, "flights")[0]["_ts"] > at


def test_a_crash_after_the_binding_of_nothing(
    runtime: Runtime, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty snapshot that was bound becomes readable, though no row ever comes."""
    armed = [True]
    break_after(monkeypatch, "_bind", armed)
    with running(runtime, csv(inbox)) as source:
        wait(lambda: bool(source.failures()))
    armed.clear()
    with running(runtime, csv(inbox)) as source:
        source.wait_for("an upper", lambda: runtime.client.state("flights").upper.time != 0)
        assert len(source.bindings()) == 1


def test_read_only_follows_and_then_goes_on(runtime: Runtime, inbox: Path) -> None:
    """A second runtime commits nothing, tells how far the first is, and takes over."""
    drop(inbox, "0.csv", "0,a")
    second = Runtime(runtime.spark, runtime.location, runtime.checkpoints.with_name("second"))
    second.writes.clear()
    with running(second, csv(inbox)) as follower:
        with running(runtime, csv(inbox)) as source:
            source.wait_for_rows((0, "a"))
            follower.wait_for("hydration", lambda: bool(follower.told(Hydrated)))
        state = runtime.client.state("flights")
        drop(inbox, "1.csv", "1,b")
        follower.ingestion._check()
        assert runtime.client.state("flights").seqno == state.seqno
        second.writes.set()
        follower.wait_for_rows((0, "a"), (1, "b"))
        assert sorted(number for number, _ in follower.bindings()) == [0, 1]


def test_two_at_once_write_everything_once(runtime: Runtime, inbox: Path) -> None:
    """A runtime that does not know of another one adds nothing twice; at most it fails."""
    drop(inbox, "0.csv", "0,a")
    second = Runtime(runtime.spark, runtime.location, runtime.checkpoints.with_name("2"), epoch=9)
    wanted = Counter({(i, "a"): 1 for i in range(4)})
    with running(runtime, csv(inbox)) as one:
        one.wait_for_rows((0, "a"))
        with running(second, csv(inbox)) as other:
            for i in range(1, 4):
                drop(inbox, f"{i}.csv", f"{i},a")
            wait(lambda: contents(runtime.client, "flights") == wanted)
            failed = [*one.failures(), *other.failures()]
            assert {o.error.split("]")[0] for o in failed} <= {"[BOUND_OTHERWISE", "[CONTENTION"}
    assert contents(runtime.client, "flights") == wanted


def test_a_fence_ends_it(runtime: Runtime, inbox: Path) -> None:
    """Once another runtime has taken over nothing is committed, and that is told."""
    drop(inbox, "0.csv", "0,a")
    with running(runtime, csv(inbox)) as source:
        source.wait_for_rows((0, "a"))

        def fenced() -> None:
            raise Fenced("the location is held by another runtime")

        runtime.fence = fenced
        wait(lambda: bool(source.failures()))
        seqno = runtime.client.state("flights").seqno
        drop(inbox, "1.csv", "1,b")
    assert [o.fenced for o in source.failures()] == [True]
    assert runtime.client.state("flights").seqno == seqno


def test_stop_does_not_wait_for_a_blocked_function(
    runtime: Runtime, inbox: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It commits nothing later; the next one has another checkpoint, until the blocked one ends."""
    blocked, release = threading.Event(), threading.Event()
    real = Staging.stage

    def slow(self: Staging, *args: Any) -> Any:
        staged = real(self, *args)
        if not blocked.is_set():
            blocked.set()
            release.wait(300)
        return staged

    monkeypatch.setattr(Staging, "stage", slow)
    monkeypatch.setattr(ingestion, "_STOP_MS", 500)
    drop(inbox, "0.csv", "0,a")
    with running(runtime, csv(inbox)):
        assert blocked.wait(120)
    with running(runtime, csv(inbox)) as source:
        source.wait_for_rows((0, "a"))
        release.set()
        drop(inbox, "1.csv", "1,b")
        source.wait_for_rows((0, "a"), (1, "b"))
        assert len(source.bindings()) == 2
    assert len(list(runtime.checkpoints.iterdir())) == 2
    wait(lambda: not ingestion._ABANDONED)
    with running(runtime, csv(inbox)):
        wait(lambda: len(list(runtime.checkpoints.iterdir())) == 1)


def test_among_equal_orders_the_later_row_counts(runtime: Runtime, inbox: Path) -> None:
    """As with events; a row without an order is before all that have one."""
    options = {"path": str(inbox), "orderingColumn": "n"}
    source_of = csv(
        inbox, options=options, envelope="upsert", key=("id",), schema="id INT, s STRING, n INT"
    )
    drop(inbox, "0.csv", "1,z,5", "1,a,5", "2,b,5", "2,,5", "3,b,", "3,a,", "4,a,5", "4,z,")
    with running(runtime, source_of) as source:
        source.wait_for_rows((1, "a", 5), (3, "a", None), (4, "a", 5))


def test_a_path_that_is_a_file(runtime: Runtime, inbox: Path) -> None:
    """One file is taken in as it is named; a second one beside it is none of the source's."""
    drop(inbox, "only (1).csv", "1,a", "2,b")
    drop(inbox, "only (2).csv", "3,c")
    description = csv(inbox, options={"path": str(inbox / "only (1).csv")})
    for _ in range(2):
        with running(runtime, description) as source:
            source.wait_for_rows((1, "a"), (2, "b"))


def test_a_file_that_is_not_written_yet_is_waited_for(runtime: Runtime, inbox: Path) -> None:
    """Spark takes one of 0 bytes for read; of formats whose files have a head it is no file."""
    for name, row in (("a", 1), ("b", 2)):
        pq.write_table(pa.table({"id": pa.array([row], pa.int32()), "s": [name]}), inbox / name)
    whole = (inbox / "b").read_bytes()
    (inbox / "b").write_bytes(b"")
    parquet = csv(inbox, format="parquet", options={"path": str(inbox)})
    with running(runtime, parquet) as source:
        wait_until("a failure", lambda: bool(source.failures()), 60)
        said = f"[FAILED_READ_FILE] {inbox}/b has 0 bytes"
        assert said in source.failures()[0].error
        assert not source.bindings()
    lenient = {"path": str(inbox), "ignoreCorruptFiles": "true"}
    with running(runtime, csv(inbox, name="lenient", format="parquet", options=lenient)) as source:
        source.wait_for_rows((1, "a"))
    (inbox / "b").write_bytes(whole)
    with running(runtime, parquet) as source:
        source.wait_for_rows((1, "a"), (2, "b"))


@pytest.mark.parametrize("step", one_of(2, ["_bind", "_append_errors"]))
def test_a_killed_process(runtime: Runtime, inbox: Path, step: str) -> None:
    """SIGKILL right after the binding, and right after the errors: the next process goes on."""
    drop(inbox, "0.csv", "0,a", "bad,b")
    place = [runtime.location, str(runtime.checkpoints), str(inbox), step]
    done = subprocess.run(
        [sys.executable, "-m", "support.processes.ingestion_worker", *place],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        stdin=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        check=False,
        timeout=200,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    bound = bindings(runtime.client, "flights")
    assert len(bound) == 1
    assert not contents(runtime.client, "flights")
    with running(runtime, csv(inbox)) as source:
        source.wait_for_rows((0, "a"))
        assert source.bindings() == bound
        assert source.errors == {(source_error(), "bad,b", None): 1}

"""Sinks on Spark: what arrives, in each envelope; exactly once through crashes; and the hold."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import pytest

from shardline.app.execution.host import Host
from shardline.app.execution.observations import (
    Ended,
    Health,
    Hydrated,
    Measured,
    Progress,
    Started,
)
from shardline.app.protocol.objects import SinkDescription
from shardline.app.storage import sink_query as sink_module
from shardline.app.storage.sink_holds import drop_sink, hold_name
from shardline.app.storage.sink_query import run_sink
from shardline.app.storage.sinks.interval import may_continue
from shardline.app.storage.sinks.others import collected, register_function
from shardline.datasource.errors import Fenced
from shardline.datasource.frontier import EMPTY, Frontier
from support.profiles import one_of
from support.spark.sinks import Input, Reports, diffs, life, parquet, read, running

if TYPE_CHECKING:
    from shardline.datasource.spark_native.plan_rule import NativeReads

pytestmark = pytest.mark.spark


def hold_of(source: Input) -> int | None:
    return source.client.state("in").critical[hold_name("out")].since


def test_files_get_every_update_once(
    host: Host, source: Input, tmp_path: Path, native_reads: NativeReads
) -> None:
    """The snapshot, then each change; plain `read.parquet` sees all of it, with times and diffs.

    The frame that Spark makes is not executed, and not planned natively.
    """
    sink = parquet(tmp_path)
    source.step(10, (1, "a", 1), (2, "b", 2))
    with running(host, sink) as reports:
        reports.reached(11)
        reports.reached(source.step(20, (1, "a", -1), (3, "c", 1)))

    assert not native_reads.counts()
    assert diffs(host.spark, sink) == [
        (1, "a", 10, 1),
        (1, "a", 20, -1),
        (2, "b", 10, 2),
        (3, "c", 20, 1),
    ]
    kinds = [type(o) for o in reports.all]
    assert kinds.count(Started) == kinds.count(Hydrated) == 1
    health = [o for o in reports.all if isinstance(o, Health)]
    assert {(o.namespace, o.status) for o in health} == {("sink", "running")}
    uppers = [o.write for o in reports.all if isinstance(o, Progress)]
    assert uppers == [11, 21]
    measured = [o.added for o in reports.all if isinstance(o, Measured)]
    assert [m["messages_committed"] for m in measured] == [2, 2]
    assert all(m["bytes_staged"] > 0 for m in measured)
    kept = Frontier(hold_of(source))
    assert may_continue(host.checkpoints / "u1-1", Frontier(21), kept), "as Spark writes it"


def test_a_lost_checkpoint_costs_nothing(host: Host, source: Input, tmp_path: Path) -> None:
    """Without its checkpoint a sink goes on where its target is, and repeats nothing."""
    sink = parquet(tmp_path)
    source.step(10, (1, "a", 1))
    with running(host, sink) as reports:
        reports.reached(11)
        reports.reached(source.step(20, (2, "b", 1)))
    shutil.rmtree(host.checkpoints)
    source.step(30, (3, "c", 1))
    source.step(40, (3, "c", -1))
    with running(host, sink, life(2)) as reports:
        reports.reached(41)

    assert diffs(host.spark, sink) == [
        (1, "a", 10, 1),
        (2, "b", 20, 1),
        (3, "c", 30, 1),
        (3, "c", 40, -1),
    ]


@pytest.mark.parametrize("lost", ["commits", "both"])
def test_a_crash_between_two_steps(host: Host, source: Input, tmp_path: Path, lost: str) -> None:
    """A target that has more than its accounts, or than Spark knows, is not given it again."""
    sink = parquet(tmp_path)
    source.step(10, (1, "a", 1))
    with running(host, sink) as reports:
        reports.reached(11)
    with running(host, sink, life(2)) as reports:
        reports.reached(source.step(20, (2, "b", 1)))
    if lost == "both":
        host.client.drop("out_progress")
    commits = [p for p in (host.checkpoints / "u1-1" / "commits").iterdir() if p.name.isdigit()]
    max(commits, key=lambda p: int(p.name)).unlink()
    with running(host, sink, life(3)) as reports:
        reports.reached(source.step(30, (3, "c", 1)))

    assert diffs(host.spark, sink) == [(1, "a", 10, 1), (2, "b", 20, 1), (3, "c", 30, 1)]


def test_a_target_behind_its_checkpoint(host: Host, source: Input, tmp_path: Path) -> None:
    """A checkpoint that is ahead of an emptied target is thrown away: the contents come again."""
    sink = parquet(tmp_path)
    with running(host, sink) as reports:
        reports.reached(source.step(10, (1, "a", 1)))
    shutil.rmtree(sink.options["path"])
    host.client.drop("out_progress")
    with running(host, sink, life(2)) as reports:
        reports.reached(source.step(20, (2, "b", 1)))

    assert sorted((r.k, r._diff) for r in read(host.spark, sink).collect()) == [(1, 1), (2, 1)]


def test_a_folder_that_alone_went_back(host: Host, source: Input, tmp_path: Path) -> None:
    """An older copy of it stalls the sink; the newest one, put back, lets it go on.

    So does one whose sub-folders somebody has moved away since.
    """
    sink, folder = parquet(tmp_path), Path(parquet(tmp_path).options["path"])
    with running(host, sink) as reports:
        reports.reached(source.step(10, (1, "a", 1)))
        shutil.copytree(folder, tmp_path / "copy")
        reports.reached(source.step(20, (2, "b", 1)))
        reports.reached(source.step(30))
    folder.rename(tmp_path / "newest")
    shutil.copytree(tmp_path / "copy", folder)
    source.step(40, (3, "c", 1))
    with running(host, sink, life(2)) as reports:
        assert reports.stalled().error.startswith("[TARGET_WENT_BACK]")
    shutil.rmtree(folder)
    (tmp_path / "newest").rename(folder)
    for done in folder.glob("_upper=*"):
        shutil.rmtree(done)
    with running(host, sink, life(3)) as reports:
        reports.reached(41)

    assert diffs(host.spark, sink) == [(3, "c", 40, 1)]


def test_what_was_not_committed_is_not_read(host: Host, source: Input, tmp_path: Path) -> None:
    """Files of a micro-batch that a crash has left unfinished are invisible, and cleared away."""
    sink = parquet(tmp_path)
    source.step(10, (1, "a", 1))
    with running(host, sink) as reports:
        reports.reached(11)
    path = Path(sink.options["path"])
    (done,) = path.glob("_upper=*")
    shutil.copytree(done, path / ".staging-99")

    assert len(diffs(host.spark, sink)) == 1
    with running(host, sink, life(2)) as reports:
        reports.reached(11)
    assert list(path.glob(".staging*")) == []


def test_maintenance_cannot_outrun_a_stopped_sink(
    host: Host, source: Input, tmp_path: Path
) -> None:
    """The hold keeps history until the sink has it, however long it is down; a drop ends that."""
    sink = parquet(tmp_path)
    source.step(10, (1, "a", 1))
    with running(host, sink) as reports:
        reports.reached(11)
    source.step(20, (1, "a", -1), (2, "b", 1))
    source.step(30, (2, "b", -1), (3, "c", 1))
    client = source.client
    client.set_retention("in", 0)
    for _ in range(2):
        client.compact("in", force=True)
        client.collect_garbage("in")
    since = client.state("in").since.time
    assert since is not None
    assert since <= 10
    shutil.rmtree(host.checkpoints)
    with running(host, sink, life(2)) as reports:
        reports.reached(31)

    assert diffs(host.spark, sink)[1:] == [
        (1, "a", 20, -1),
        (2, "b", 20, 1),
        (2, "b", 30, -1),
        (3, "c", 30, 1),
    ]
    drop_sink(client, sink)
    drop_sink(client, sink)
    assert client.state("in").critical == {}
    assert not client.exists("out_progress")


def test_upserts(host: Host, source: Input) -> None:
    """One row per changed key, the newest; a key that is gone is marked, one that came back not."""
    sink = SinkDescription(name="out", on="in", format="memory", envelope="upsert", key=("k",))
    source.step(10, (1, "a", 1), (2, "b", 1), (3, "c", 1))
    with running(host, sink) as reports:
        reports.reached(11)
    source.step(20, (1, "a", -1), (1, "A", 1), (2, "b", -1), (3, "c", -1))
    source.step(30, (1, "A", -1), (1, "AA", 1), (3, "c", 1))
    with running(host, sink, life(2)) as reports:
        reports.reached(31)

    rows = [(r.k, r.v, r._ts, r._deleted) for r in collected(sink)]
    assert sorted(rows[:3]) == [(1, "a", 10, False), (2, "b", 10, False), (3, "c", 10, False)]
    assert sorted(rows[3:]) == [(1, "AA", 30, False), (2, None, 20, True)]


@pytest.mark.parametrize("envelope", ["upsert", "debezium"])
def test_a_key_that_is_none_is_refused(
    host: Host, source: Input, envelope: Literal["upsert", "debezium"]
) -> None:
    """Two rows of one key stall a sink with a key, which says what to do."""
    sink = SinkDescription(name="out", on="in", format="memory", envelope=envelope, key=("k",))
    source.step(10, (1, "a", 1), (1, "b", 1))
    with running(host, sink) as reports:
        failed = reports.failure()

    assert failed.error.startswith("[KEY_NOT_UNIQUE]")
    assert "identifies rows" in failed.hint
    assert collected(sink) == []


def test_change_events(host: Host, source: Input) -> None:
    """Without a key there is a change event for each copy of a row that comes or goes."""
    sink = SinkDescription(name="out", on="in", format="memory", envelope="debezium")
    source.step(10, (1, "a", 1), (2, "c", 2))
    with running(host, sink) as reports:
        reports.reached(11)
        reports.reached(source.step(20, (2, "c", -1), (2, "d", 1)))

    events = Counter(
        (r.ts_ms, r.op, r.before and r.before.v, r.after and r.after.v) for r in collected(sink)
    )
    assert events == Counter(
        {
            (10, "c", None, "a"): 1,
            (10, "c", None, "c"): 2,
            (20, "d", "c", None): 1,
            (20, "c", None, "d"): 1,
        }
    )


def test_change_events_of_a_key(host: Host, source: Input) -> None:
    """An update of a key is one event with both rows."""
    sink = SinkDescription(name="out", on="in", format="memory", envelope="debezium", key=("k",))
    source.step(10, (1, "a", 1))
    with running(host, sink) as reports:
        reports.reached(11)
    source.step(20, (1, "a", -1), (1, "b", 1))
    source.step(30, (1, "b", -1))
    with running(host, sink, life(2)) as reports:
        reports.reached(31)

    assert sorted(
        (r.ts_ms, r.op, r.before and r.before.v, r.after and r.after.v) for r in collected(sink)
    ) == [(10, "c", None, "a"), (20, "u", "a", "b"), (30, "d", "b", None)]


def test_added_rows_only(host: Host, source: Input) -> None:
    """Envelope none repeats rows as often as they are there, and fails at a retraction."""
    sink = SinkDescription(name="out", on="in", format="memory", envelope="none")
    source.step(10, (1, "a", 3))
    with running(host, sink) as reports:
        reports.reached(11)
        source.step(20, (1, "a", -1))
        failed = reports.failure()

    assert [tuple(r) for r in collected(sink)] == [(1, "a")] * 3
    assert failed.error.startswith("[RETRACTION_IN_APPEND_ONLY_SINK]")
    assert "diff, upsert or debezium" in failed.hint
    stalled = [o for o in reports.all if isinstance(o, Health)][-1]
    assert (stalled.namespace, stalled.status, stalled.hint) == ("sink", "stalled", failed.hint)


def test_a_copy_equals_its_original_at_every_time(
    host: Host, source: Input, tmp_path: Path
) -> None:
    """A shard is copied with its times, into another location; its upper follows when idle.

    Also if it has a column of the name that rows of upserts have.
    """
    other = str(tmp_path / "other")
    source.gets("_deleted")
    sink = SinkDescription(
        name="out", on="in", format="shard", options={"location": other, "shard": "copy"}
    )
    source.step(10, (1, "a", "no", 1), (2, "b", "no", 1))
    with running(host, sink) as reports:
        reports.reached(11)
        reports.reached(source.step(20, (1, "a", "no", -1), (3, "c", "yes", 2)))
    shutil.rmtree(host.checkpoints)
    host.client.drop("out_progress")
    with running(host, sink, life(2)) as reports:
        reports.reached(source.step(30, (2, "b", "no", -1)))

    reader = host.spark.read.format("shard")
    contents = [
        sorted(
            (r.k, r.v) for r in reader.option("timestampAsOf", t).load(f"{other}/copy").collect()
        )
        for t in (10, 19, 20, 30)
    ]
    assert contents == [
        [(1, "a"), (2, "b")],
        [(1, "a"), (2, "b")],
        [(2, "b"), (3, "c"), (3, "c")],
        [(3, "c"), (3, "c")],
    ]


def test_upserts_into_a_shard(host: Host, source: Input) -> None:
    """A shard with a key follows by upserts and deletes, once each, also without its accounts."""
    sink = SinkDescription(
        name="out", on="in", format="shard", envelope="upsert", key=("k",), options={"shard": "now"}
    )
    source.step(10, (1, "a", 1), (2, "b", 1))
    with running(host, sink) as reports:
        reports.reached(11)
        reports.reached(source.step(20, (1, "a", -1), (1, "A", 1), (2, "b", -1)))

    rows = host.spark.read.format("shard").load(f"{host.client.location.url}/now").collect()
    assert [(r.k, r.v) for r in rows] == [(1, "A")]


def test_without_the_snapshot(host: Host, source: Input) -> None:
    """Only what changes after the start goes out, also if the sink dies before its first change."""
    sink = SinkDescription(name="out", on="in", format="memory", snapshot=False)
    source.step(10, (1, "a", 1))
    with running(host, sink) as reports:
        reports.reached(11)
    shutil.rmtree(host.checkpoints)
    source.step(20, (2, "b", 1))
    with running(host, sink, life(2)) as reports:
        reports.reached(21)

    assert [(r.k, r._ts) for r in collected(sink)] == [(2, 20)]


def test_a_function(host: Host, source: Input) -> None:
    """A function of the user's gets the rows and a number that grows."""
    calls: list[tuple[int, int]] = []
    register_function("remember", lambda rows, number: calls.append((number, rows.count())))
    sink = SinkDescription(
        name="out", on="in", format="foreachBatch", options={"function": "remember"}
    )
    with running(host, sink) as reports:
        reports.reached(source.step(10, (1, "a", 1)))
        reports.reached(source.step(20, (2, "b", 1), (3, "c", 1)))

    assert calls == [(11, 1), (21, 2)]


def test_nothing_is_written_before_it_may_be(host: Host, source: Input) -> None:
    """A read-only sink touches neither target nor hold nor progress; promoted, it starts."""
    sink = SinkDescription(name="out", on="in", format="memory")
    source.step(10, (1, "a", 1))
    reports, writes = Reports(), threading.Event()
    run = run_sink(replace(host, report=reports, writes=writes), life(), sink)
    try:
        assert host.client.state("in").critical == {}
        assert host.client.shards() == ["in"]
        writes.set()
        reports.reached(11)
    finally:
        run.stop()
    run.stop()

    assert len(collected(sink)) == 1


def test_a_fenced_sink_commits_nothing(host: Host, source: Input) -> None:
    """Once another runtime has taken over, a sink ends before it writes, and says why."""
    sink = SinkDescription(name="out", on="in", format="memory")
    fence = threading.Event()

    def check() -> None:
        if fence.is_set():
            raise Fenced("another runtime has taken over", hint="stop")

    source.step(10, (1, "a", 1))
    with running(replace(host, check_fence=check), sink) as reports:
        reports.reached(11)
        fence.set()
        source.step(20, (2, "b", 1))
        failed = reports.failure()

    assert failed.fenced
    assert len(collected(sink)) == 1


def test_the_end(host: Host, source: Input) -> None:
    """A sink of a finished input has everything, and ends; started again it ends at once."""
    sink = SinkDescription(name="out", on="in", format="memory")
    upper = source.step(10, (1, "a", 1))
    for epoch in (1, 2):
        with running(host, sink, life(epoch)) as reports:
            if epoch == 1:
                reports.reached(upper)
                state = host.client.state("in")
                host.client.writer("in").compare_and_append(None, state.upper, EMPTY)
            reports.wait(lambda o: isinstance(o, Ended))
        assert [o.write for o in reports.all if isinstance(o, Progress)][-1] is None

    assert len(collected(sink)) == 1


def test_a_query_that_somebody_stops_has_failed(host: Host, source: Input) -> None:
    """It is started again; without a word of it the sink would seem to run, and write nothing."""
    sink = parquet(host.checkpoints.parent)
    upper = source.step(10, (1, "a", 1))
    with running(host, sink) as reports:
        reports.reached(upper)
        for query in host.spark.streams.active:
            if query.name == life().query_name:
                query.stop()
        assert reports.failure().error.startswith("[QUERY_STOPPED] ")
    with running(host, sink, life(2)) as reports:
        reports.reached(source.step(20, (2, "b", 1)))
    assert diffs(host.spark, sink) == [(1, "a", 10, 1), (2, "b", 20, 1)]


def test_another_definition_starts_anew(host: Host, source: Input, tmp_path: Path) -> None:
    """A sink that is defined anew gives its new target everything; a foreign folder is refused."""
    source.step(10, (1, "a", 1))
    first, second = parquet(tmp_path), parquet(tmp_path / "b")
    Path(tmp_path / "b").mkdir()
    with running(host, first) as reports:
        reports.reached(11)
    source.step(20, (2, "b", 1))
    with running(host, second, life(2, dataflow=2)) as reports:
        reports.reached(21)
    taken = parquet(tmp_path, envelope="upsert", key=("k",))
    with running(host, taken, life(3, dataflow=3)) as reports:
        failed = reports.failure()

    assert sorted(r.k for r in read(host.spark, second).collect()) == [1, 2]
    assert failed.error.startswith("[TARGET_TAKEN]")


@pytest.mark.parametrize("format_", one_of(2, ["parquet", "shard"]))
def test_a_tuned_sink_goes_on_and_another_definition_is_refused(
    host: Host, source: Input, tmp_path: Path, format_: Literal["shard", "parquet"]
) -> None:
    """An option that changes no row brings none again; a definition that would is refused."""
    place = {"shard": {"shard": "copy"}, "parquet": {"path": str(tmp_path / "out")}}[format_]
    tuned = {"shard": {"partBufferBytes": "1000000"}, "parquet": {"compression": "none"}}[format_]
    sink = SinkDescription(name="out", on="in", format=format_, options=place)
    source.step(10, (1, "a", 1))
    with running(host, sink) as reports:
        reports.reached(11)
    source.step(20, (2, "b", 1))
    sink = SinkDescription(name="out", on="in", format=format_, options={**place, **tuned})
    with running(host, sink, life(2, dataflow=2)) as reports:
        reports.reached(21)
    source.step(30, (1, "a", -1))
    other = SinkDescription(name="out", on="in", format=format_, options=place, key=("k",))
    with running(host, other, life(3, dataflow=3)) as reports:
        assert reports.failure().error.startswith("[TARGET_TAKEN]")
    with running(host, sink, life(4, dataflow=4)) as reports:
        reports.reached(31)

    expected = [(1, "a", 10, 1), (1, "a", 30, -1), (2, "b", 20, 1)]
    if format_ == "parquet":
        assert diffs(host.spark, sink) == expected
    else:
        with host.client.reader("copy", since=10) as reader:
            rows = [tuple(row.values()) for row in reader.snapshot().to_pylist()]
        assert rows == [(2, "b")]


def test_a_definition_that_wrote_nothing_can_be_corrected(
    host: Host, source: Input, tmp_path: Path
) -> None:
    """Its first micro-batch failed: the folder has no row of it, and takes the one that is right.

    The folder of another sink is left alone: that one may be about to write.
    """
    source.step(10, (1, "a", 1), (1, "b", 1))
    wrong = parquet(tmp_path, envelope="upsert", key=("k",))
    with running(host, wrong) as reports:
        assert "[KEY_NOT_UNIQUE]" in reports.failure().error
    other = parquet(tmp_path, name="other")
    with running(host, other, life(2, dataflow=2)) as reports:
        assert reports.failure().error.startswith("[TARGET_TAKEN]")
    right = parquet(tmp_path)
    with running(host, right, life(3, dataflow=3)) as reports:
        reports.reached(11)

    assert diffs(host.spark, right) == [(1, "a", 10, 1), (1, "b", 10, 1)]


def test_holds_on_former_inputs_are_given_up(
    host: Host, source: Input, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a definition that was killed before its first micro-batch, and of one that was followed.

    A definition that is refused leaves the hold of the one before, as a user may go back to it.
    """
    other, third = Input(host.client, "other"), Input(host.client, "third")
    for one in (source, other, third):
        one.step(10, (1, "a", 1))
    wrong = Input(host.client, "in_errors")
    wrong.step(10)

    def held() -> list[str]:
        there = [n for n in host.client.shards() if host.client.exists(n)]
        return [n for n in there if host.client.state(n).critical]

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as kill:
        kill.setattr(sink_module._SinkRun, "_query_from", killed)
        with running(host, parquet(tmp_path / "first")) as reports:
            reports.failure()
    assert held() == ["in", "in_errors"]
    with running(host, parquet(tmp_path, on="other"), life(2, dataflow=2)) as reports:
        reports.reached(11)
    assert held() == ["other"]
    refused = parquet(tmp_path, on="third")
    with running(host, refused, life(3, dataflow=3)) as reports:
        assert reports.failure().error.startswith("[TARGET_TAKEN]")
    assert held() == ["other"]
    drop_sink(host.client, refused)
    assert held() == []


def test_files_are_divided_by_a_column_in_another_case_where_case_matters(
    host: Host, source: Input, tmp_path: Path
) -> None:
    """Columns of a project have no case, and Spark's writer is given them as they are."""
    session = host.spark.newSession()
    session.conf.set("spark.sql.caseSensitive", "true")
    options = {"path": str(tmp_path / "out"), "partitionBy": "K, _DIFF"}
    sink = SinkDescription(name="out", on="in", format="parquet", options=options)
    source.step(10, (1, "a", 1))
    with running(replace(host, spark=session), sink) as reports:
        reports.reached(11)
    assert diffs(host.spark, sink) == [(1, "a", 10, 1)]
    assert list(Path(sink.options["path"]).glob("_upper=11/k=1/_diff=1/*.parquet"))

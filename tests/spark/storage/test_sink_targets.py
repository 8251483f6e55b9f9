"""Sinks on Spark: each format, and what happens to them: kills, lost parts, inputs made again."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrameWriter

from shardline.app.execution.host import Host
from shardline.app.execution.observations import Failed, Health, Progress
from shardline.app.protocol.objects import SinkDescription
from shardline.app.storage import sink_query as sink_module
from shardline.app.storage.sink_holds import drop_sink
from shardline.app.storage.sink_query import run_sink
from shardline.app.storage.sinks import delta
from shardline.app.storage.sinks.files import FileTarget
from shardline.app.storage.sinks.interval import Interval
from shardline.app.storage.sinks.progress import SinkProgress
from shardline.app.storage.sinks.target import Written
from shardline.datasource.errors import Fenced, InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.java_names import java_class
from shardline.datasource.types.schema import ShardSchema
from support.processes.sink_worker import CHANGES, described, incarnation
from support.profiles import one_of, some_of
from support.spark.sinks import SCHEMA, Input, diffs, life, parquet, parts, read, running
from support.tree import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.parametrize("format_", some_of(["json", "csv", "orc", "xml"], {"json"}))
def test_other_files(host: Host, source: Input, tmp_path: Path, format_: str) -> None:
    """Every format of files has every update once, also when its process has lost all it knew."""
    path = str(tmp_path / "out")
    tag = {"rowTag": "line"} if format_ == "xml" else {}
    sink = SinkDescription(name="out", on="in", format=format_, options={"path": path, **tag})
    source.step(10, (1, "a", 1), (2, "b, c", 2))
    with running(host, sink) as reports:
        reports.reached(11)
    host.client.drop("out_progress")
    shutil.rmtree(host.checkpoints)
    with running(host, sink, life(2)) as reports:
        reports.reached(source.step(20, (1, "a", -1)))

    reader = host.spark.read.schema("k BIGINT, v STRING, _ts BIGINT, _diff BIGINT")
    rows = reader.format(format_).options(**tag).load(path)
    found = rows.select("k", "v", "_ts", "_diff").collect()
    assert sorted(tuple(row) for row in found) == [
        (1, "a", 10, 1),
        (1, "a", 20, -1),
        (2, "b, c", 10, 2),
    ]


@pytest.mark.parametrize("given", [{}, {"TIMESTAMPFORMAT": "yyyy"}])
@pytest.mark.parametrize("format_", one_of(2, ["json", "csv", "xml"]))
def test_texts_have_all_of_a_timestamp(
    host: Host, tmp_path: Path, format_: str, given: dict[str, str]
) -> None:
    """Spark writes milliseconds; a format that somebody asks for is left as it is."""
    at = datetime(2026, 1, 1, 0, 0, 0, 123456, UTC)
    schema = pa.schema([("at", pa.timestamp("us", "UTC")), ("ntz", pa.timestamp("us"))])
    host.client.create("times", ShardSchema.from_arrow(schema))
    rows = pa.Table.from_pylist([{"at": at, "ntz": at.replace(tzinfo=None)}], schema)
    upper = host.client.writer("times").append_now(rows).upper.time or 0
    tag = {"rowTag": "line"} if format_ == "xml" else {}
    options = {"path": str(tmp_path / "out"), **tag, **given}
    sink = SinkDescription(name="out", on="times", format=format_, options=options)
    with running(host, sink) as reports:
        reports.reached(upper)
    reader = host.spark.read.schema("at TIMESTAMP, ntz TIMESTAMP_NTZ").format(format_)
    (row,) = reader.options(**tag).load(str(tmp_path / "out")).collect()
    assert row["at"].astimezone(UTC) == (datetime(2026, 1, 1, tzinfo=UTC) if given else at)
    assert row["ntz"] == at.replace(tzinfo=None)


class ObjectStore:
    """A file system whose renames copy one sub-folder after the other, and delete them after that.

    The first rename ends early: after `copied` of the sub-folders, and `deleted` of the originals.
    """

    def __init__(self, real: Any, ends: str, copied: int, deleted: int) -> None:
        self._real, self._ends, self._copied, self._deleted = real, ends, copied, deleted

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def rename(self, source: Any, target: Any) -> bool:
        old, new = (Path(path.toUri().getPath()) for path in (source, target))
        folders = sorted(folder.name for folder in old.glob("k=*"))
        assert len(folders) == 3, folders
        for name in folders[: self._copied]:
            shutil.copytree(old / name, new / name)
        for name in folders[: self._deleted]:
            shutil.rmtree(old / name)
        if self._ends == "killed":
            raise KeyboardInterrupt
        return False


@pytest.mark.parametrize(
    ("ends", "moved"),
    one_of(6, itertools.product(["killed", "false"], [(2, 0), (2, 1), (3, 2)])),
)
def test_a_rename_that_ends_halfway_loses_nothing(
    host: Host,
    source: Input,
    monkeypatch: pytest.MonkeyPatch,
    ends: str,
    moved: tuple[int, int],
) -> None:
    """On an object store a micro-batch that is in place in part is written again, as a whole."""
    copied, deleted = moved
    path = host.checkpoints.parent / "out"
    options = {"path": str(path), "partitionBy": "k"}
    sink = SinkDescription(name="out", on="in", format="parquet", options=options)
    source.step(10, (1, "a", 1))
    with running(host, sink) as reports:
        reports.reached(11)
    source.step(20, (1, "a", -1), (2, "b", 1), (3, "c", 1))
    with monkeypatch.context() as store:
        write = FileTarget.write

        def interrupted(self: FileTarget, *arguments: Any) -> Written:
            self._fs = ObjectStore(self._fs, ends, copied, deleted)
            return write(self, *arguments)

        store.setattr(FileTarget, "write", interrupted)
        with running(host, sink, life(2)) as reports:
            reports.failure()
    assert len(list((path / "_upper=21").glob("k=*"))) == copied, "a part of it is in place"
    with running(host, sink, life(3)) as reports:
        reports.reached(21)

    assert diffs(host.spark, sink) == [
        (1, "a", 10, 1),
        (1, "a", 20, -1),
        (2, "b", 20, 1),
        (3, "c", 20, 1),
    ]
    assert not list(path.glob(".staging*"))


def test_what_progress_has_is_not_deleted(host: Host, source: Input, tmp_path: Path) -> None:
    """Files whose times are recorded stay, though something of their hidden folder is there."""
    sink = parquet(tmp_path)
    with running(host, sink) as reports:
        reports.reached(source.step(10, (1, "a", 1)))
    path = Path(sink.options["path"])
    (path / ".staging-11").mkdir()
    with running(host, sink, life(2)) as reports:
        reports.reached(source.step(20, (2, "b", 1)))

    assert diffs(host.spark, sink) == [(1, "a", 10, 1), (2, "b", 20, 1)]
    assert not list(path.glob(".staging*"))


def test_a_micro_batch_of_a_runtime_that_was_fenced_meanwhile_is_not_put_in_place(
    host: Host, tmp_path: Path
) -> None:
    """Its job is done when another runtime has the same times in the folder, and more."""
    rows = host.spark.createDataFrame([(1, "a")], "k BIGINT, v STRING")
    sink = parquet(tmp_path)

    def target(check_fence: Callable[[], None]) -> FileTarget:
        return FileTarget(
            host.spark,
            sink,
            sink.options,
            "shard",
            None,
            location="here",
            ids=host.ids,
            check_fence=check_fence,
        )

    # It was opened before a file of the first was there, so it has found nothing to delete.
    second = target(lambda: None)

    def taken_over() -> None:
        second.write(rows, Interval(0, Frontier(21)))
        raise Fenced("another runtime")

    with pytest.raises(Fenced):
        target(taken_over).write(rows, Interval(0, Frontier(11)))
    found = read(host.spark, sink).select("k", "v").collect()
    assert [tuple(row) for row in found] == [(1, "a")]


def test_files_survive_a_power_cut_before_they_count(
    host: Host, source: Input, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When progress has a micro-batch its files, folders and all their names are synced."""
    sink = parquet(tmp_path, key=())
    path = Path(sink.options["path"])
    synced: list[tuple[int, int]] = []
    genuine, record = os.fsync, SinkProgress.record

    def fsync(descriptor: int) -> None:
        # Renames keep the number of a file; a folder is synced as it was then.
        synced.append((os.fstat(descriptor).st_ino, len(list(path.glob("_upper=*")))))
        genuine(descriptor)

    def recorded(self: SinkProgress, interval: Interval, rows: int) -> None:
        done = path / f"_upper={interval.number}"
        files = {file for file in done.rglob("*") if file.is_file()}
        assert any(file.suffix == ".parquet" for file in files)
        before = {inode for inode, _ in synced}
        assert not [p for p in (*done.rglob("*"), done) if p.stat().st_ino not in before]
        assert (path.stat().st_ino, len(list(path.glob("_upper=*")))) in synced
        assert {place.stat().st_ino for place in (tmp_path, tmp_path.parent)} <= before
        owner = path / "_shardline.json"
        assert owner.stat().st_ino in before
        record(self, interval, rows)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(SinkProgress, "record", recorded)
    source.step(10, (1, "a", 1))
    with running(host, sink) as reports:
        reports.reached(11)
        reports.reached(source.step(20, (2, "b", 1)))


class DeltaTable:
    """A table that takes an append as Delta does, and answers for itself as its classes do.

    Delta's own are not here. What this stands for is told by its protocol (`txn`) and its sources.
    """

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []
        self.numbers: dict[str, int] = {}

    def append(self, frame: DataFrame, options: dict[str, str]) -> None:
        app, number = options["txnAppId"], int(options["txnVersion"])
        if number > self.numbers.get(app, -1):
            self.rows += map(tuple, frame.collect())
            self.numbers[app] = number

    def forTable(self, *_: Any) -> DeltaTable:  # noqa: N802 - Delta's name
        return self

    def startTransaction(self) -> DeltaTable:  # noqa: N802
        return self

    def txnVersion(self, app: str) -> int:  # noqa: N802
        return self.numbers.get(app, -1)


@pytest.fixture
def table(monkeypatch: pytest.MonkeyPatch) -> DeltaTable:
    """The table that sinks of Delta write to."""
    found, given = DeltaTable(), dict[str, Any]()

    def options(self: DataFrameWriter, **named: Any) -> DataFrameWriter:
        given.update(named)
        return self

    def java(spark: SparkSession, name: str) -> Any:
        return found if name.endswith("DeltaLog") else java_class(spark, name)

    monkeypatch.setattr(sink_module, "check_package", lambda *_: None)
    monkeypatch.setattr(delta, "java_class", java)
    monkeypatch.setattr(DataFrameWriter, "options", options)
    monkeypatch.setattr(DataFrameWriter, "save", lambda self: found.append(self._df, given))
    return found


@pytest.mark.parametrize(
    ("snapshot", "lost"), [(True, "checkpoint"), (False, "nothing"), (False, "checkpoint")]
)
def test_delta_is_asked_what_it_has(
    host: Host, source: Input, table: DeltaTable, snapshot: bool, lost: str
) -> None:
    """Rows that were written right before a kill do not come again with those that came since."""
    sink = SinkDescription(
        name="out", on="in", format="delta", options={"path": "t"}, snapshot=snapshot
    )
    source.step(10, (1, "a", 1))
    source.step(20, (2, "b", 1))
    record = SinkProgress.record

    def killed(self: SinkProgress, interval: Interval, rows: int) -> None:
        if interval.upper == Frontier(21):
            raise KeyboardInterrupt
        record(self, interval, rows)

    with pytest.MonkeyPatch.context() as kill:
        kill.setattr(SinkProgress, "record", killed)
        with running(host, sink, life(1, as_of=10)) as reports:
            reports.failure()
    first = [(1, "a", 10, 1)] if snapshot else []
    assert table.rows == [*first, (2, "b", 20, 1)]
    source.step(30, (3, "c", 1))
    if lost == "checkpoint":
        shutil.rmtree(host.checkpoints)
    with running(host, sink, life(2)) as reports:
        reports.reached(31)

    assert table.rows == [*first, (2, "b", 20, 1), (3, "c", 30, 1)]


def test_lines_of_text(host: Host, tmp_path: Path) -> None:
    """One column of text without times goes to text files, a line for each row that is added."""
    lines = pa.schema([("v", pa.string())])
    host.client.create("in", ShardSchema.from_arrow(lines))
    rows = pa.Table.from_pydict({"v": ["a", "b", "b"]}, schema=lines)
    host.client.writer("in").compare_and_append(rows, Frontier(0), Frontier(11))
    sink = parquet(tmp_path, format="text", envelope="none")
    with running(host, sink) as reports:
        reports.reached(11)

    found = host.spark.read.text(sink.options["path"])
    assert sorted(row.value for row in found.collect()) == ["a", "b", "b"]


def test_a_terminal(host: Host, source: Input, capfd: pytest.CaptureFixture[str]) -> None:
    """What changes is shown, as wide and as long as the options say."""
    sink = SinkDescription(
        name="out", on="in", format="console", options={"NUMROWS": "1", "truncate": "false"}
    )
    with running(host, sink) as reports:
        reports.reached(source.step(10, (1, "a" * 40, 1), (2, "b" * 40, 1)))

    shown = capfd.readouterr().out
    assert "only showing top 1 row" in shown
    assert ("a" * 40 in shown) != ("b" * 40 in shown)


def test_a_long_absence_is_made_up_in_steps(
    host: Host, source: Input, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sink that comes back to many changes commits several times on the way, each change once."""
    monkeypatch.setattr(sink_module, "_IN_STEPS", {"maxFilesPerTrigger": "2"})
    sink = parquet(tmp_path)
    source.step(10, (0, "a", 1))
    with running(host, sink) as reports:
        reports.reached(11)
    for time in range(20, 80, 10):
        source.step(time, *((k, f"{k * time:x}" * 20, 1) for k in range(300)))
    with running(host, sink, life(2)) as reports:
        reports.reached(71)

    assert len(list(Path(sink.options["path"]).glob("_upper=*"))) > 2
    found = Counter((row.k, row.v) for row in read(host.spark, sink).collect())
    wanted = Counter((k, f"{k * t:x}" * 20) for t in range(20, 80, 10) for k in range(300))
    assert found == wanted + Counter([(0, "a")])


def test_what_rests_runs(host: Host, source: Input, tmp_path: Path) -> None:
    """A sink that is started again and finds nothing new says that it runs, without a change."""
    sink = parquet(tmp_path)
    source.step(10, (1, "a", 1))
    for epoch in (1, 2):
        with running(host, sink, life(epoch)) as reports:
            reports.wait(lambda o: isinstance(o, Health) and o.status == "running")

    assert diffs(host.spark, sink) == [(1, "a", 10, 1)]


def test_idle_time_is_passed_at_the_start(host: Host, source: Input, tmp_path: Path) -> None:
    """The first that is heard of a sink that comes back to no change is that it is up to date."""
    sink = parquet(tmp_path)
    source.step(10, (1, "a", 1))
    with running(host, sink) as reports:
        reports.reached(11)
    source.step(500)
    with running(host, sink, life(2)) as reports:
        first = reports.wait(lambda o: isinstance(o, Progress))
        assert isinstance(first, Progress)
        assert first.write == 501
        reports.reached(source.step(600, (1, "a", -1)))

    assert diffs(host.spark, sink) == [(1, "a", 10, 1), (1, "a", 600, -1)]


def test_what_has_failed_is_not_called_well_before_it_is(host: Host, source: Input) -> None:
    """Started again, a sink whose next change will fail again does not say that it runs."""
    sink = SinkDescription(name="out", on="in", format="memory", envelope="none")
    source.step(10, (1, "a", 1))
    with running(host, sink) as reports:
        reports.reached(11)
    source.step(20, (1, "a", -1))
    with running(host, sink, life(2)) as reports:
        reports.failure()

    assert {o.status for o in reports.all if isinstance(o, Health)} == {"stalled"}


@pytest.mark.parametrize("lost", one_of(2, ["damaged", "missing"]))
def test_a_part_that_cannot_be_read_freezes(
    host: Host, source: Input, tmp_path: Path, lost: str
) -> None:
    """Nothing passes a part that is gone or damaged, the status names it; put back, it goes on."""
    sink = parquet(tmp_path)
    rows = [(k, f"{k * 7919:x}" * 9, 1) for k in range(2_000)]
    source.step(10, (1, "a", 1))
    with running(host, sink) as reports:
        reports.reached(11)
    source.step(20, *rows)
    upper = source.step(30, (1, "a", -1))
    (part,) = parts(host.client, "in")
    whole = part.read_bytes()
    if lost == "missing":
        part.unlink()
    else:
        part.write_bytes(whole[:2_000] + b"x" * 2_000 + whole[4_000:])
    with running(host, sink, life(2)) as reports:
        failed = reports.failure()
    health = [o for o in reports.all if isinstance(o, Health)]
    assert [(o.namespace, o.status) for o in health] == [("sink", "frozen")]
    assert part.name in health[0].error
    assert health[0].hint
    assert not failed.fenced
    assert diffs(host.spark, sink) == [(1, "a", 10, 1)]
    part.write_bytes(whole)
    with running(host, sink, life(3)) as reports:
        reports.reached(upper)

    assert diffs(host.spark, sink) == sorted(
        [(1, "a", 10, 1), (1, "a", 30, -1), *((k, v, 20, d) for k, v, d in rows)]
    )


def test_an_input_that_was_made_again(host: Host, source: Input, tmp_path: Path) -> None:
    """Its changes are not added to the old one's, with or without a checkpoint; a new target is."""
    sink = parquet(tmp_path)
    source.step(10, (1, "a", 1))
    with running(host, sink) as reports:
        reports.reached(11)
    state = host.client.state("in")
    host.client.drop("in", despite_holders=[*state.critical, *state.leased])
    again = Input(host.client)
    again.step(20, (2, "b", 1))
    for epoch in (2, 3):
        with running(host, sink, life(epoch)) as reports:
            said = reports.stalled()
        assert said.error.startswith("[INPUT_REPLACED] 'in' was dropped and made again")
        assert "empty its target" in said.hint
        assert "`restart out`" in said.hint
        assert reports.all == [said], "it does not fail: it would be started again for ever"
        shutil.rmtree(host.checkpoints, ignore_errors=True)
    assert diffs(host.spark, sink) == [(1, "a", 10, 1)]
    drop_sink(host.client, sink)
    with running(host, sink, life(4)) as reports:
        assert reports.stalled().error.startswith("[INPUT_REPLACED]")
    for folder in Path(sink.options["path"]).glob("_upper=*"):
        shutil.rmtree(folder)
    with running(host, sink, life(5)) as reports:
        reports.reached(21)

    assert diffs(host.spark, sink) == [(2, "b", 20, 1)]


def test_an_input_that_is_made_again_under_a_running_sink(
    host: Host, source: Input, tmp_path: Path
) -> None:
    """It says so at once, and only that: not what its stream says of a shard that is another."""
    sink = parquet(tmp_path)
    with running(host, sink) as reports:
        reports.reached(source.step(10, (1, "a", 1)))
        state = host.client.state("in")
        host.client.drop("in", despite_holders=[*state.critical, *state.leased])
        Input(host.client).step(20, (2, "b", 1))
        assert reports.stalled().error.startswith("[INPUT_REPLACED]")
        assert not any(isinstance(one, Failed) for one in reports.all)

    assert diffs(host.spark, sink) == [(1, "a", 10, 1)]


def test_a_sink_that_was_put_back(host: Host, source: Input, tmp_path: Path) -> None:
    """Dropped and created again, a sink goes on where its folder is, if history allows it."""
    sink = parquet(tmp_path)
    with running(host, sink) as reports:
        reports.reached(source.step(10, (1, "a", 1)))
    drop_sink(host.client, sink)
    shutil.rmtree(host.checkpoints)
    with running(host, sink, life(2)) as reports:
        reports.reached(source.step(20, (1, "a", -1)))

    assert diffs(host.spark, sink) == [(1, "a", 10, 1), (1, "a", 20, -1)]


def test_a_large_snapshot(host: Host, tmp_path: Path) -> None:
    """A million rows that are there at the start arrive as one micro-batch, each once."""
    count = 1_000_000
    keys = pa.array(range(count), pa.int64())
    rows = pa.table({"k": keys, "v": pc.binary_join_element_wise("v", keys.cast("string"), "-")})
    host.client.create("in", ShardSchema.from_arrow(SCHEMA))
    host.client.writer("in").compare_and_append(rows, Frontier(0), Frontier(11))
    sink = parquet(tmp_path)
    with running(host, sink) as reports:
        reports.reached(11)

    (found,) = (
        duckdb.read_parquet(f"{sink.options['path']}/*/*.parquet")
        .aggregate("count(*), count(DISTINCT k), sum(k), min(v), sum(_diff)")
        .fetchall()
    )
    assert found == (count, count, count * (count - 1) // 2, "v-0", count)
    assert len(list(Path(sink.options["path"]).glob("_upper=*"))) == 1


@pytest.mark.parametrize(
    ("format_", "package"),
    [
        ("kafka", "spark-sql-kafka"),
        ("delta", "io.delta:delta-spark"),
        ("iceberg", "org.apache.iceberg:iceberg-spark-runtime"),
        ("avro", "spark-avro"),
    ],
)
def test_a_missing_package_is_named(host: Host, format_: str, package: str) -> None:
    """A format that is not there is refused before anything starts, with its package."""
    options = {"path": "t"}
    if format_ == "kafka":
        options = {"kafka.bootstrap.servers": "h:1", "topic": "t"}
    sink = SinkDescription(name="out", on="in", format=format_, options=options)
    with pytest.raises(InvalidUsage, match=rf"PACKAGE_MISSING.*{package}"):
        run_sink(host, life(), sink)


KILLS = [
    ("shard", "save"),  # appended; its upper does not follow yet
    ("files", "save"),  # written beside, not renamed
    ("files", "record"),  # accounted for, and Spark knows nothing of it
]
"""Whose process is killed, and after which step."""


@pytest.mark.slow
@pytest.mark.parametrize(
    "kills", [KILLS[:2], pytest.param(KILLS, marks=pytest.mark.night)], ids=["some", "all"]
)
def test_killed_processes(
    host: Host, source: Input, tmp_path: Path, kills: list[tuple[str, str]]
) -> None:
    """SIGKILL after each step of a commit, one process after the other: every change comes once."""
    out = str(tmp_path / "out")
    (first, updates), *later = CHANGES
    source.step(first, *updates)
    for victim, step in kills:
        place = [host.client.location.url, str(host.checkpoints), out, victim, step]
        done = subprocess.run(
            [sys.executable, "-m", "support.processes.sink_worker", *place],
            env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            check=False,
            timeout=200,
        )
        assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    upper = source.client.state("in").upper
    for time, updates in later:
        if not upper.is_beyond(time):
            source.step(time, *updates)
    sinks = described(out)
    with ExitStack() as stack:
        for kind, sink in sinks.items():
            reports = stack.enter_context(running(host, sink, incarnation(kind, 2)))
            reports.reached(later[-1][0] + 1)

    model = Counter[tuple[int, str]]()
    for _, updates in CHANGES:
        for k, v, diff in updates:
            model[k, v] += diff
    written = Counter[tuple[int, str]]()
    for k, v, _, diff in diffs(host.spark, sinks["files"]):
        written[k, v] += diff
    with host.client.reader("copy") as reader:
        copy = Counter((row["k"], row["v"]) for row in reader.snapshot().to_pylist())
    assert +written == copy == +model
    assert all(count >= 0 for count in written.values())
    assert not list(Path(out).glob(".staging*"))

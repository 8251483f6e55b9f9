"""`format("shard")` as a sink of rows by key, of diffs and of change events."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

from shardline.datasource.client import ShardClient
from support.processes.job import BRIEF

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ROW = "id bigint, v string"
CHANGE = f"{ROW}, seq bigint"
EVENT = f"before struct<{ROW}>, after struct<{ROW}>, op string, source struct<lsn: bigint>"

Json = dict[str, Any]


class Feed:
    """JSON files that a stream reads one per micro-batch."""

    def __init__(self, spark: SparkSession, folder: Path, columns: str) -> None:
        self._spark = spark
        self._folder = folder
        self._columns = columns
        folder.mkdir()

    def put(self, *rows: Json) -> None:
        """One more micro-batch; its rows go to two tasks or more."""
        number = len(list(self._folder.iterdir()))
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        file = self._folder / f"{number:03}.json"
        file.write_text(lines)
        # Spark reads files in the order of these times, and several are written in one millisecond.
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))

    def load(self) -> DataFrame:
        reader = self._spark.readStream.schema(self._columns).option("maxFilesPerTrigger", 1)
        return reader.json(str(self._folder)).repartition(2)


@pytest.fixture
def feed(spark: SparkSession, tmp_path: Path) -> Callable[[str], Feed]:
    """Makes a feed of the columns given."""
    return lambda columns: Feed(spark, tmp_path / "feed", columns)


def write(
    frame: DataFrame, location: str, checkpoint: str, mode: str = "append", **options: str
) -> None:
    """Stream all that is there into the shard, in micro-batches."""
    writer = frame.writeStream.format("shard").outputMode(mode).options(**options)
    query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    assert query.start(f"{location}/out").awaitTermination(120), "the query did not end"


def forget_last_commit(checkpoint: str) -> None:
    """Make Spark believe that the last micro-batch was planned and not committed."""
    commits = [p for p in Path(checkpoint, "commits").iterdir() if p.name.isdigit()]
    max(commits, key=lambda p: int(p.name)).unlink()


def contents(spark: SparkSession, location: str) -> Counter[tuple[Any, ...]]:
    return Counter(map(tuple, spark.read.format("shard").load(f"{location}/out").collect()))


def asked(query: str, rows: pa.Table) -> list[tuple[Any, ...]]:
    """The answer to a query of `rows`, by DuckDB."""
    with duckdb.connect() as connection:
        return connection.register("rows", rows).execute(query).fetchall()


def latest(changes: Sequence[Json]) -> Counter[tuple[Any, ...]]:
    """The table after these changes."""
    query = "select id, arg_max(coalesce(v, ''), seq) from rows group by id"
    found = asked(query, pa.Table.from_pylist(list(changes)))
    return Counter((key, v) for key, v in found if v)


def change(key: int, v: str | None, seq: int) -> Json:
    return {"id": key, "v": v, "seq": seq}


FIRST = [change(n % 7, f"first {n}", n) for n in range(20)]
SECOND = [change(n % 5, None if n % 5 == 2 else f"second {n}", n) for n in range(20, 40)]


def test_rows_replace_rows_by_key(
    spark: SparkSession, location: str, checkpoint: str, feed: Callable[[str], Feed]
) -> None:
    """The latest row of each key stays, a null row deletes, and a replay changes nothing."""
    files = feed(CHANGE)
    ShardClient.open(location).create("out", schema_of(ROW), key=("id",))
    files.put(*FIRST)
    files.put(*SECOND)
    options = {"envelope": "upsert", "orderingColumn": "seq"}
    write(files.load(), location, checkpoint, **options)
    assert contents(spark, location) == latest([*FIRST, *SECOND])

    before = ShardClient.open(location).state("out")
    forget_last_commit(checkpoint)
    write(files.load(), location, checkpoint, **options)
    assert ShardClient.open(location).state("out") == before


def schema_of(columns: str) -> Any:
    from pyspark.sql.types import StructType

    from shardline.datasource.types.schema import ShardSchema

    return ShardSchema.parse(StructType.fromDDL(columns).json())


def test_an_aggregate_is_kept_by_its_key(
    spark: SparkSession, location: str, checkpoint: str, feed: Callable[[str], Feed]
) -> None:
    """Output mode update sends the groups that changed, and each replaces its row, once."""
    files = feed(CHANGE)

    def replace(frame: DataFrame, number: int) -> None:
        writer = frame.write.format("shard").mode("append").options(envelope="upsert", key="id")
        writer = writer.option("txnAppId", "counts").option("txnVersion", number)
        writer.save(f"{location}/out")

    def run() -> None:
        counts = files.load().groupBy("id").count()
        writer = counts.writeStream.outputMode("update").foreachBatch(replace)
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        assert query.awaitTermination(120), "the query did not end"

    files.put(*FIRST)
    files.put(*SECOND)
    run()
    forget_last_commit(checkpoint)
    run()
    stale = spark.createDataFrame([(0, -1)], "id bigint, count bigint")
    replace(stale, 0)

    every = pa.Table.from_pylist([*FIRST, *SECOND])
    expected = asked("select id, count(*) from rows group by id", every)
    assert contents(spark, location) == Counter(expected)


@pytest.mark.parametrize("options", [{}, {"key": "id", "orderingColumn": "source.lsn"}])
def test_change_events(
    spark: SparkSession,
    location: str,
    checkpoint: str,
    feed: Callable[[str], Feed],
    options: Mapping[str, str],
) -> None:
    """The shard is the table whose events were streamed, with a key or without one."""
    files = feed(EVENT)
    table: dict[int, str] = {}
    for changes in (FIRST, SECOND):
        events = []
        for item in changes:
            key, v = item["id"], item["v"]
            before = {"id": key, "v": table.pop(key)} if key in table else None
            if v is not None:
                table[key] = v
            op = ("u" if v else "d") if before else "c"
            after = None if v is None else {"id": key, "v": v}
            if before or after:
                source = {"lsn": item["seq"]}
                events.append({"before": before, "after": after, "op": op, "source": source})
        files.put(*events)
    write(files.load(), location, checkpoint, envelope="debezium", **options)

    assert contents(spark, location) == Counter(table.items())


def test_diffs_are_streamed(
    spark: SparkSession, location: str, checkpoint: str, feed: Callable[[str], Feed]
) -> None:
    """Rows with `_diff` come and go; an empty micro-batch is fine."""
    files = feed(f"{ROW}, _diff int")
    files.put(*({"id": n, "v": "a", "_diff": 2} for n in range(4)))
    files.put()
    files.put({"id": 1, "v": "a", "_diff": -2}, {"id": 2, "v": "a", "_diff": -1})
    write(files.load(), location, checkpoint, envelope="diff")

    assert contents(spark, location) == Counter({(0, "a"): 2, (2, "a"): 1, (3, "a"): 2})


@pytest.mark.parametrize("failure", ["error", "killed"])
def test_a_task_that_fails_once(
    spark: SparkSession,
    location: str,
    checkpoint: str,
    feed: Callable[[str], Feed],
    failure: str,
) -> None:
    """A task that fails midway, or whose worker is killed, is run again and counts once."""
    files = feed(CHANGE)
    files.put(*FIRST)

    def fails(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        yield from batches
        context = TaskContext.get()
        if context is not None and context.attemptNumber() == 0:
            if failure == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            raise RuntimeError("on purpose")

    frame = files.load().mapInArrow(fails, CHANGE).drop("seq")
    last = frame.selectExpr("id", "v", f"cast(substr(v, 7) as int) >= {len(FIRST) - 7} as last")
    options = {"envelope": "upsert", "key": "id"}
    write(last.where("last").drop("last"), location, checkpoint, **options)

    assert contents(spark, location) == latest(FIRST)


DRIVER = """
    import os, signal, sys
    from pyspark.sql import SparkSession

    location, folder, checkpoint, seen, brief = sys.argv[1:]

    def slow(batches):
        # The first executor that gets here is lost, with everything it runs.
        for batch in batches:
            if not os.path.exists(seen):
                open(seen, "w").close()
                daemon = os.getppid()
                with open(f"/proc/{daemon}/stat") as stat:
                    executor = int(stat.read().rsplit(")", 1)[1].split()[1])
                os.kill(executor, signal.SIGKILL)
            yield batch

    builder = SparkSession.builder.master("local-cluster[2,1,512]")
    for name, value in {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": brief,
        "spark.sql.shuffle.partitions": "2",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    reader = spark.readStream.schema("id bigint, v string, seq bigint")
    frame = reader.option("maxFilesPerTrigger", 1).json(folder).repartition(2)
    writer = frame.mapInArrow(slow, frame.schema).writeStream.format("shard")
    writer = writer.option("envelope", "upsert").option("orderingColumn", "seq")
    writer = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True)
    writer.start(location + "/out").awaitTermination()
    spark.stop()
"""


@pytest.mark.cluster
@pytest.mark.slow
def test_an_executor_is_lost_and_the_driver_killed(
    spark: SparkSession, location: str, checkpoint: str, feed: Callable[[str], Feed], tmp_path: Path
) -> None:
    """On two executors one is lost, then the driver is killed; this one, alone, goes on."""
    files = feed(CHANGE)
    changes = [[change(n % 9, f"v {n}", n) for n in range(k * 10, k * 10 + 10)] for k in range(4)]
    for some in changes:
        files.put(*some)
    client = ShardClient.open(location)
    client.create("out", schema_of(ROW), key=("id",))
    script = tmp_path / "driver.py"
    script.write_text(textwrap.dedent(DRIVER))
    seen = tmp_path / "seen"
    given = [location, str(tmp_path / "feed"), checkpoint, str(seen), BRIEF]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}

    with (tmp_path / "log").open("wb") as log:
        first = subprocess.Popen(
            [sys.executable, str(script), *given],
            env=environment,
            start_new_session=True,
            stdout=log,
            stderr=log,
        )
        # The first of four micro-batches is in; the next one is under way somewhere.
        settled = client.machine("out").wait_for_upper_past(0, 240_000)
        assert settled is not None, (tmp_path / "log").read_text()[-3000:]
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
        assert seen.exists(), "no executor was lost"
    write(files.load(), location, checkpoint, envelope="upsert", orderingColumn="seq")

    assert contents(spark, location) == latest([item for some in changes for item in some])
    writers = client.state("out").writers
    # Killed between Spark's log of files and that of offsets, its next micro-batch has two files.
    lasts = [writer.last for name, writer in writers.items() if name.startswith("query:")]
    assert lasts in ([2], [3])


def test_two_queries_replace_rows_of_one_shard(
    spark: SparkSession, location: str, checkpoint: str, feed: Callable[[str], Feed]
) -> None:
    """Two sinks at once: for each key the row of one of them stays, never both, never none."""
    files = feed(CHANGE)
    for n in range(4):
        files.put(*(change(key, f"v {key}", n) for key in range(6)))
    options = {"envelope": "upsert", "key": "id", "orderingColumn": "seq"}
    queries = []
    for number in range(2):
        frame = files.load().selectExpr("id", f"concat(v, ' of {number}') as v", "seq")
        writer = frame.writeStream.format("shard").options(**options)
        writer = writer.option("checkpointLocation", f"{checkpoint}-{number}")
        queries.append(writer.trigger(availableNow=True).start(f"{location}/out"))
    for query in queries:
        assert query.awaitTermination(120), "the query did not end"

    found = contents(spark, location)
    assert Counter(row[0] for row in found.elements()) == Counter(range(6))
    assert {row[1][:3] for row in found} == {f"v {key}" for key in range(6)}
    assert {row[1][3:] for row in found} in ({" of 0"}, {" of 1"})

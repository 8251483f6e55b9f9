"""The archive of `spark-submit.sh package` carries the project to executors in other processes."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from support.processes.checkout import SETUP_TIMEOUT_S, Checkout
from support.processes.job import BRIEF
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.spark,
    pytest.mark.submit,
    pytest.mark.slow,
]

PROBE = """
import sys
from pyspark.sql.datasource import DataSource, DataSourceReader


class Reader(DataSourceReader):
    def read(self, partition):
        import shardline.datasource.errors
        yield (shardline.datasource.errors.__file__, sys.executable)


class DefaultSource(DataSource):
    @classmethod
    def name(cls):
        return "probe"

    def schema(self):
        import shardline.datasource.errors
        return "module string, python string"

    def reader(self, schema):
        return Reader()
"""
"""A source that Spark finds by itself, as it finds ours, and that says who reads it."""

JOB = """
import json, sys
from pyspark.sql import SparkSession, functions as F

spark = SparkSession.builder.getOrCreate()
place = sys.argv[1]


def drain():
    query = (
        spark.readStream.format("shard").option("readChangeFeed", "true").load(f"{place}/in")
        .groupBy((F.col("id") % 3).alias("k")).agg(F.sum("_diff").alias("n"))
        .writeStream.outputMode("complete").format("shard").option("inlinePartBytes", "0")
        .option("checkpointLocation", f"{place}/checkpoint").trigger(availableNow=True)
        .start(f"{place}/out")
    )
    query.awaitTermination()


# A sink whose tasks stage parts, a stream that reads them on executors, and a sink behind it.
for first, last in ((0, 1000), (1000, 1500)):
    numbers = spark.range(first, last, 1, 2)
    numbers.write.format("shard").mode("append").option("inlinePartBytes", "0").save(f"{place}/in")
    drain()
counts = spark.read.format("shard").load(f"{place}/out").sort("k").collect()
seen = spark.read.format("probe").load().first().asDict()
print(json.dumps({**seen, "counts": [list(row) for row in counts]}))
"""

LOSSES = """
import json, os, signal, sys
from pathlib import Path
from pyspark import TaskContext
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
place, rows = sys.argv[1], 1_000_000


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def grandparent(pid):
    try:
        return parent(parent(pid))
    except (FileNotFoundError, ProcessLookupError):
        return None


def lose(what):
    # Once per kind of loss, early in a task: the worker that reads the shard for it is at work.
    try:
        os.close(os.open(f"{place}/lost {what}", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    executor = parent(os.getppid())
    if what == "executor":
        os.kill(executor, signal.SIGKILL)
    # All are found before any is killed: who has lost its parent is nobody's any more.
    others = {n for n in os.listdir("/proc") if n.isdigit()} - {str(os.getpid())}
    for pid in [int(n) for n in others if executor == grandparent(n)]:
        os.kill(pid, signal.SIGKILL)


def through(what):
    def read(batches):
        if TaskContext.get().attemptNumber() > 0:
            Path(f"{place}/again after {what}").touch()
        for batch in batches:
            lose(what)
            yield batch
    return read


for number, what in enumerate(("worker", "executor")):
    numbers = spark.range(number * rows, (number + 1) * rows, 1, 4)
    numbers.write.format("shard").mode("append").option("inlinePartBytes", "0").save(f"{place}/in")
    query = (
        spark.readStream.format("shard").load(f"{place}/in").mapInArrow(through(what), "id bigint")
        .writeStream.format("shard").option("inlinePartBytes", "0")
        .option("checkpointLocation", f"{place}/checkpoint").trigger(availableNow=True)
        .start(f"{place}/out")
    )
    query.awaitTermination()
out = spark.read.format("shard").load(f"{place}/out")
counts = out.selectExpr("count(*) n", "count(distinct id) d", "max(id) m").first()
seen = spark.read.format("probe").load().first().asDict()
print(json.dumps({**seen, "counts": list(counts)}))
"""


@pytest.fixture(scope="module")
def archive(ready: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive, made once, of what is installed: nothing is downloaded."""
    out = tmp_path_factory.mktemp("an archive") / "environment.tar.gz"
    made = ready.run("package", str(out), timeout_s=SETUP_TIMEOUT_S)
    assert made.returncode == 0, made.stderr
    return out


def run(ready: Checkout, job: str, cwd: Path, *options: str) -> Any:
    """Run a job with a place for its shards; what it printed."""
    path, probes, place = cwd / "job.py", cwd / "probes", cwd / "läke"
    path.write_text(job)
    probes.mkdir()
    (probes / "pyspark_probe.py").write_text(PROBE)
    place.mkdir()
    done = ready.run(
        *options, "--conf", "spark.executor.memory=512m",
        "--conf", f"spark.executor.extraJavaOptions={BRIEF}", str(path), str(place),
        cwd=cwd, env={"PYTHONPATH": str(probes)},
    )  # fmt: skip
    # The driver's own errors are on stdout: spark-submit gives its Python one stream.
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def archived(archive: Path) -> list[str]:
    """Options for executors that use the archive."""
    return ["--archives", f"{archive}#environment"]


@pytest.mark.night
def test_the_archive_holds_the_project_but_no_jars(archive: Path) -> None:
    """What executors import is inside, as installed files; Spark's jars are not."""
    with tarfile.open(archive) as tar:
        names = tar.getnames()
    assert [n for n in names if n.endswith("site-packages/shardline/datasource/errors.py")]
    assert [n for n in names if n.endswith("bin/python")]
    assert not [n for n in names if "/pyspark/jars/" in n or n.endswith("_shardline.pth")]
    assert not [n for n in names if n.endswith("/checkout")], "it is nobody's"
    # Each executor begins with a new copy, and would compile all that it imports.
    compiled = ("datasource/__pycache__/errors.", "pandas/core/__pycache__/frame.")
    assert all([n for n in names if part in n and n.endswith(".pyc")] for part in compiled)


@pytest.mark.night
def test_a_stream_survives_the_loss_of_workers_and_executors(
    ready: Checkout, archive: Path, tmp_path: Path
) -> None:
    """A Python worker and an executor that are killed while they read cost no row and add none.

    All of them run the archive's Python and project, that of the executor that comes instead, too.
    """
    master = ["--master", "local-cluster[2,1,1024]"]
    seen = run(ready, LOSSES, tmp_path, *master, *archived(archive))
    assert seen["counts"] == [2_000_000, 2_000_000, 1_999_999]
    assert {path.name for path in (tmp_path / "läke").glob("again *")} == {
        "again after worker",
        "again after executor",
    }, "tasks did fail"
    assert str(ready.root / "src") not in seen["module"]
    assert "environment/lib/python3" in seen["module"]
    assert seen["python"].endswith("environment/bin/python")


@pytest.fixture
def standalone(ready: Checkout, tmp_path: Path) -> Iterator[str]:
    """A master and a worker on loopback, stopped at the end; yields the master's URL."""
    pyspark = next((ready.root / ".venv").glob("current/lib/python3*/site-packages/pyspark"))
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    env = {
        **ready.env, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(pyspark),
        "SPARK_DAEMON_JAVA_OPTS": BRIEF,
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        for name, command in {
            "master": [f"{deploy}.master.Master", "--host", "127.0.0.1", "--port", str(port)],
            "worker": [
                f"{deploy}.worker.Worker", "--host", "127.0.0.1", "-c", "1", "-m", "1g",
                "-d", str(tmp_path / "work"), url,
            ],
        }.items():  # fmt: skip
            log = stack.enter_context((tmp_path / f"{name}.log").open("wb"))
            process = subprocess.Popen(
                [str(pyspark / "bin/spark-class"), *command, "--webui-port", "0"],
                env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
            stack.callback(stop, process)
            if name == "master":
                wait_until("the master listens", lambda: is_open(port), 60)
        yield url


def free_port() -> int:
    """A port of loopback nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_open(port: int) -> bool:
    """Whether somebody listens on `port` of loopback."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a daemon, and the executors it started."""
    process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(30)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


@pytest.mark.night
def test_standalone_executors_use_the_archive(
    ready: Checkout, archive: Path, standalone: str, tmp_path: Path
) -> None:
    """On a standalone master and worker, shards are written and read out of the archive."""
    master = ["--master", standalone, "--conf", "spark.cores.max=1"]
    seen = run(ready, JOB, tmp_path, *master, *archived(archive))
    assert seen["counts"] == [[0, 500], [1, 500], [2, 500]]
    for shard in ("in", "out"):
        assert list((tmp_path / "läke" / shard).glob("**/*.parquet")), "executors staged parts"
    assert Path(seen["module"]).is_relative_to(tmp_path / "work")
    assert seen["python"].endswith("environment/bin/python")

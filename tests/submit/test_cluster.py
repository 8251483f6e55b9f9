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
from typing import TYPE_CHECKING

import pytest

from support.checkout import SETUP_TIMEOUT_S, Checkout, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.spark,
    pytest.mark.submit,
    pytest.mark.slow,
    pytest.mark.xdist_group("submit"),
]

JOB = """
import json
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader


class Reader(DataSourceReader):
    def read(self, partition):
        import datasource.errors
        yield (datasource.errors.__file__, __import__("sys").executable)


class Source(DataSource):
    # Planned by a helper process of the driver, read on an executor: both must import the project.
    def schema(self):
        import datasource.errors
        return "module string, python string"

    def reader(self, schema):
        return Reader()


spark = SparkSession.builder.getOrCreate()
spark.dataSource.register(Source)
print(json.dumps(spark.read.format("Source").load().first().asDict()))
"""


@pytest.fixture(scope="module")
def archive(checkout: Checkout, ready: Checkout, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive, made once."""
    out = tmp_path_factory.mktemp("an archive") / "environment.tar.gz"
    made = Checkout(ready.root, checkout.env).run("package", str(out), timeout_s=SETUP_TIMEOUT_S)
    assert made.returncode == 0, made.stderr
    return out


def run_on(ready: Checkout, master: str, archive: Path, cwd: Path) -> dict[str, str]:
    """Run the job above on `master` with the archive; what the executor saw."""
    path = cwd / "job.py"
    path.write_text(JOB)
    done = ready.run(
        "--master", master, "--archives", f"{archive}#environment",
        "--conf", "spark.cores.max=1", "--conf", "spark.executor.memory=512m", str(path),
        cwd=cwd,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen: dict[str, str] = json.loads(done.stdout)
    return seen


def test_the_archive_holds_the_project_but_no_jars(archive: Path) -> None:
    """What executors import is inside, as installed files; Spark's jars are not."""
    with tarfile.open(archive) as tar:
        names = tar.getnames()
    assert [n for n in names if n.endswith("site-packages/datasource/errors.py")]
    assert [n for n in names if n.endswith("bin/python")]
    assert not [n for n in names if "/pyspark/jars/" in n or n.endswith("_shardline.pth")]


def test_local_cluster_executors_use_the_archive(
    ready: Checkout, archive: Path, tmp_path: Path
) -> None:
    """Under local-cluster an executor imports the project out of its unpacked archive."""
    seen = run_on(ready, "local-cluster[2,1,1024]", archive, tmp_path)
    assert str(ready.root / "datasource") not in seen["module"]
    assert "environment/lib/python3" in seen["module"]
    assert seen["python"].endswith("environment/bin/python")


@pytest.fixture
def standalone(ready: Checkout, tmp_path: Path) -> Iterator[str]:
    """A master and a worker on loopback, stopped at the end; yields the master's URL."""
    pyspark = next((ready.root / ".venv").glob("current/lib/python3*/site-packages/pyspark"))
    port = free_port()
    url = f"spark://127.0.0.1:{port}"
    deploy = "org.apache.spark.deploy"
    env = {**ready.env, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_HOME": str(pyspark)}
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


def test_standalone_executors_use_the_archive(
    ready: Checkout, archive: Path, standalone: str, tmp_path: Path
) -> None:
    """On a standalone master and worker an executor imports the project out of its archive."""
    seen = run_on(ready, standalone, archive, tmp_path)
    assert Path(seen["module"]).is_relative_to(tmp_path / "work")
    assert seen["python"].endswith("environment/bin/python")

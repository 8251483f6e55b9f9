"""The built wheel in environments of its own, beside a user's own packages of the same old names.

An environment has the wheel, and of the packages of this one those that an extra asks for, by
links: no network, seconds instead of minutes, and what an extra forgets is missed. The `python3` on
PATH is another one, and nothing is activated.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import stat
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from packaging.requirements import Requirement

from support.processes.checkout import FOREIGN, JOB_TIMEOUT_S
from support.tree import ROOT

pytestmark = [pytest.mark.submit, pytest.mark.slow]

USERS: Final = ("app", "datasource", "jobs")
"""What a user may call packages of his own."""

SCRIPTS: Final = {
    "shardline/jobs/copy_packages.py",
    "shardline/jobs/train_class_archive.py",
}
"""Modules that only `spark-submit.sh` can use, which are in no wheel."""

JOB: Final = """
import app.own, datasource.own, jobs.own
import shardline
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").getOrCreate()
frame = spark.createDataFrame([(1, "a"), (2, "b")], "id INT, name STRING")
frame.write.format("shard").mode("append").save("lake/people")
assert spark.read.format("shard").load("lake/people").count() == 2
assert shardline.snapshot(spark, "lake/people").count() == 2
native = shardline.datasource.plan_reads_natively(spark)  # compiled of what the wheel brings
assert spark.read.format("shard").load("lake/people").select("name").count() == 2
assert native.counts() == {"native": 2}  # and the first read: it is on by default
native.remove()
stream = spark.readStream.format("shard").load("lake/people").writeStream.format("shard")
stream = stream.option("checkpointLocation", "c").trigger(availableNow=True)
stream.start("lake/copy").awaitTermination()
filtered = spark.read.format("shard").option("where", "id = 2").load("lake/people")
assert [row.name for row in filtered.collect()] == ["b"]
rows = spark.read.format("shard").load("lake/copy").collect()
print(sorted(map(tuple, rows)), app.own.WHO, datasource.own.WHO, jobs.own.WHO)
"""

LATE: Final = """
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[1]").getOrCreate()
import shardline

shardline.register(spark)
frame = spark.createDataFrame([(1,)], "id INT")
frame.write.format("shard").mode("append").save("lake/late")
print(spark.read.format("shard").load("lake/late").count())
"""

LOCAL: Final = """
import pyarrow as pa

import app.own
from shardline.client import ShardClient, ShardSchema

table = pa.table({"id": [1, 2], "price": [10, 60]})
client = ShardClient.open("lake")
client.create("orders", ShardSchema.from_arrow(table.schema), key=("id",))
client.writer("orders").append_now(table)
with client.reader("orders") as reader:
    print(reader.snapshot().num_rows)
"""


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment with the wheel, and a folder of the user's."""

    folder: Path
    home: Path
    env: dict[str, str]

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment, by its path, in the user's folder."""
        return subprocess.run(
            [str(self.folder / "bin" / command[0]), *command[1:]],
            cwd=self.home, env=self.env, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, check=False, timeout=JOB_TIMEOUT_S,
        )  # fmt: skip

    def script(self, code: str) -> subprocess.CompletedProcess[str]:
        """Run a script of the user's, as an editor or cron does."""
        (self.home / "script.py").write_text(code)
        return self.run("python", "script.py")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the repository, by way of the source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (source,) = folder.glob("*.tar.gz")
    pip = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "-q", "-w", str(folder), str(source)], check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def requirements(name: str, wheel: Path) -> list[str]:
    """What a distribution asks for: the wheel by its own words, others as they are installed."""
    if name != "shardline":
        return importlib.metadata.requires(name) or []
    (folder,) = (p for p in zipfile.Path(wheel).iterdir() if p.name.endswith(".dist-info"))
    return importlib.metadata.PathDistribution(folder).requires or []


def closure(wheel: Path, extras: frozenset[str]) -> set[str]:
    """Names of all distributions that the wheel with these extras needs on this machine."""
    found: set[str] = set()
    left = [("shardline", extras)]
    while left:
        name, wanted = left.pop()
        for line in requirements(name, wheel):
            need = Requirement(line)
            marker = need.marker
            if marker is None or any(marker.evaluate({"extra": e}) for e in (*wanted, "")):
                if need.name not in found or need.extras:
                    left.append((need.name, frozenset(need.extras)))
                found.add(need.name)
    return found


def link_packages(target: Path, names: set[str]) -> None:
    """Make the installed files of distributions importable from `target`."""
    target.mkdir()
    for name in names:
        files = importlib.metadata.distribution(name).files or []
        tops = {file.parts[0] for file in files if file.parts[0] not in {"..", "__pycache__"}}
        for top in tops:
            place = Path(str(importlib.metadata.distribution(name).locate_file(top)))
            if place.exists() and not (target / top).exists():
                (target / top).symlink_to(place.resolve())


def make_environment(folder: Path, wheel: Path, *extras: str) -> Environment:
    """A fresh one, with a user's folder beside it."""
    folder.mkdir()
    venv = folder / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(venv)], check=True)
    (site,) = venv.glob("lib/python3.*/site-packages")
    link_packages(folder / "packages", closure(wheel, frozenset(extras)))
    (site / "packages.pth").write_text(f"{folder / 'packages'}\n")
    pip = [sys.executable, "-m", "pip", "--python", str(venv / "bin" / "python"), "install"]
    install = [*pip, "-q", "--no-deps", "--no-index", "--disable-pip-version-check", str(wheel)]
    subprocess.run(install, check=True, capture_output=True)
    home = folder / "home"
    for name in USERS:
        (home / name).mkdir(parents=True)
        (home / name / "own.py").write_text(f"WHO = 'my {name}'\n")
    (home / "app" / "__init__.py").touch()
    other = folder / "other"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(other)], check=True)
    env = {k: v for k, v in os.environ.items() if k not in FOREIGN or k == "JAVA_HOME"}
    env |= {"PATH": f"{other / 'bin'}{os.pathsep}{env['PATH']}", "SPARK_LOCAL_IP": "127.0.0.1"}
    return Environment(venv, home, env)


@pytest.fixture(scope="module")
def bare(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Without any extra."""
    return make_environment(tmp_path_factory.mktemp("bare") / "e", wheel)


@pytest.fixture(scope="module")
def sparkling(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """With PySpark, and nothing else that the data source could do without."""
    return make_environment(tmp_path_factory.mktemp("spark") / "e", wheel, "spark")


def test_the_wheel_holds_files_and_no_tests(wheel: Path) -> None:
    """One package and Spark's one module; what links lead to; defaults, licence and type marker."""
    with zipfile.ZipFile(wheel) as archive:
        infos = archive.infolist()
    names = {info.filename for info in infos}
    tops = {name.partition("/")[0] for name in names}
    assert {t for t in tops if not t.endswith(".dist-info")} == {"shardline", "pyspark_shard.py"}
    assert [i.filename for i in infos if stat.S_ISLNK(i.external_attr >> 16)] == []
    folders = [ROOT / name for name in ("app", "datasource", "jobs", "conf")]
    files = [p for folder in folders for p in folder.rglob("*") if p.is_file()]
    code = {p.relative_to(ROOT).as_posix() for p in files if "__pycache__" not in p.parts}
    assert {f"shardline/{name}" for name in code} - names == SCRIPTS
    assert {
        "shardline/py.typed",
        "shardline/conf/app.toml",
        "shardline/conf/demo/views.sql",
    } <= names
    assert {n.rpartition("/")[2] for n in names if "dist-info/licenses" in n} == {
        "LICENSE",
        "NOTICE",
    }


def test_the_wheel_holds_the_page(wheel: Path) -> None:
    """Every file of it, the vendored ones with their licences among them, as in the repository."""
    folder = ROOT / "app" / "server" / "page"
    prefix = "shardline/app/server/page/"
    with zipfile.ZipFile(wheel) as archive:
        held = {
            name.removeprefix(prefix): archive.read(name)
            for name in archive.namelist()
            if name.startswith(prefix)
        }
    there = {
        p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()
    }
    assert held == there
    assert {"page.html", "page.css", "main.js", "icon.svg", "vendor/vendor.json"} <= held.keys()


def test_the_data_source_needs_no_activated_environment(sparkling: Environment) -> None:
    """`venv/bin/python script.py`, another `python3` on PATH: batch, native and stream."""
    done = sparkling.script(JOB)
    expected = "[(1, 'a'), (2, 'b')] my app my datasource my jobs"
    assert done.stdout.strip() == expected, done.stderr[-3000:]


@pytest.mark.night
def test_a_session_that_runs_already_is_repaired_by_registering(sparkling: Environment) -> None:
    """And the import says that this is what to do."""
    done = sparkling.script(LATE)
    assert done.stdout.strip() == "1", done.stderr[-3000:]
    assert "RuntimeWarning: a Spark session runs already" in done.stderr
    assert "shardline.register(spark)" in done.stderr


def test_the_readme_runs_as_it_is_copied(sparkling: Environment) -> None:
    """All of its Python, in a fresh process that nobody has prepared."""
    text = (ROOT / "README.md").read_text()
    section = text[text.index("## Using it") : text.index("## SQL views")]
    blocks = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    assert blocks[0].startswith("import shardline")
    done = sparkling.script("\n".join(blocks))
    assert done.returncode == 0, done.stderr[-3000:]
    shown = {"read": 1, "snapshot": 2, "changes": 2, "micro_batch": 2}
    assert done.stdout.count("bob") == sum(shown.values()), "saved twice, appended once"


def test_a_client_needs_no_extra(bare: Environment) -> None:
    """Shards on local disk, written and read without Spark."""
    done = bare.script(LOCAL)
    assert done.stdout.strip() == "2", done.stderr


@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ("shardline.snapshot", "spark"),
        ("shardline.Application", "(spark|runtime)"),
        ("shardline.testing", "(spark|runtime)"),
    ],
)
def test_what_needs_an_extra_says_which(bare: Environment, code: str, extra: str) -> None:
    """As the import that failed."""
    done = bare.script(f"import shardline\n{code}")
    assert re.search(rf"MissingPackage: {code} needs .*'shardline\[{extra}\][ ']", done.stderr)


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        ("inspect", "cli"),
        ("admin", "cli"),
        ("maintain", "cli"),
        ("status", "runtime"),
        ("run", "spark,runtime"),
        ("demo", "spark,runtime,demo"),
    ],
)
def test_a_command_says_which_extra_it_needs(
    bare: Environment, wheel: Path, command: str, extra: str
) -> None:
    """With status 2 and one line, and from the wheel that was installed: no index need have it."""
    done = bare.run("shardline", command, "lake")
    assert done.returncode == 2
    wanted = re.escape(f"'shardline[{extra}] @ {wheel.as_uri()}'")
    assert re.fullmatch(rf"error: '{command}' needs .*: pip install {wanted}\n", done.stderr)


def test_the_command_says_its_version_without_any_extra(bare: Environment) -> None:
    """By both of its names."""
    version = importlib.metadata.version("shardline")
    for words in (["shardline"], ["python", "-m", "shardline"]):
        done = bare.run(*words, "--version")
        assert (done.returncode, done.stdout) == (0, f"shardline {version}\n"), done.stderr


def test_the_commands_that_look_need_one_extra(
    wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """`cli` alone is enough to look into shards, and to look after them."""
    env = make_environment(tmp_path_factory.mktemp("cli") / "e", wheel, "cli")
    assert env.script(LOCAL).returncode == 0
    seen = env.run("shardline", "inspect", "lake")
    assert seen.returncode == 0, seen.stderr
    assert re.search(r"^orders +2 ", seen.stdout, re.MULTILINE)
    assert env.run("shardline", "admin", "lake", "fsck").returncode == 0
    assert env.run("shardline", "maintain", "lake", "--rounds", "1").returncode == 0
    assert "usage: shardline inspect" in env.run("shardline", "inspect", "--help").stdout


def test_a_project_is_planned_and_asked_for(
    wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """With `spark` and `runtime`: the defaults are found, and what is written is the user's."""
    env = make_environment(tmp_path_factory.mktemp("run") / "e", wheel, "spark", "runtime")
    project = env.home / "project"
    project.mkdir()
    (project / "all.sql").write_text(
        "CREATE SOURCE s USING csv OPTIONS (path 'in') SCHEMA (id INT);\n"
        "CREATE MATERIALIZED VIEW v AS SELECT id FROM s WHERE id > 1;\n"
    )
    (env.home / "in").mkdir()
    planned = env.run("shardline", "--master", "local[1]", "plan", "project")
    assert planned.returncode == 0, planned.stderr[-3000:]
    assert re.search(r"\bv\b", planned.stdout)
    assert (env.home / "data").is_dir(), "beside the user, not beside the code"
    asked = env.run("shardline", "sql", "SELECT 1")
    assert asked.returncode == 2
    assert "start one with shardline run" in asked.stderr
    missing = env.run("shardline", "demo", "--days", "1")
    assert "shardline[demo]" in missing.stdout + missing.stderr


def test_a_source_distribution_holds_files(wheel: Path) -> None:
    """What the wheel was built from has the code itself and no links."""
    (source,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        members = archive.getmembers()
    assert [m.name for m in members if m.issym() or m.islnk()] == []
    assert [m for m in members if m.name.endswith("src/shardline/datasource/errors.py")]

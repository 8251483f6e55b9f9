"""Tests chosen by a change, in a small repository that is made for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.profiles import one_of

pytestmark = pytest.mark.process

SUPPORT = Path(__file__).parent / "support"

REPOSITORY = {
    "pyproject.toml": (
        '[tool.importlinter]\nroot_packages = ["shop", "till"]\n'
        '[tool.pytest]\npythonpath = ["tests"]\naddopts = ["--import-mode=importlib"]\n'
    ),
    "spark-submit.sh": 'exec python "$root/till/open.py"\n',
    "conf/till.conf": "",
    "README.md": "",
    "shop/__init__.py": 'HOMES = {"sell": "shop.selling"}\n',
    "shop/money.py": "",
    "shop/selling.py": "import shop.money\n",
    "shop/hints.py": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import shop.selling\n"
    ),
    "shop/alone.py": "",
    "till/__init__.py": "",
    "till/open.py": 'from shop import selling\nCONF = "conf"\n',
    "tests/conftest.py": "",
    "tests/aids/prices.py": "",
    "tests/aids/worker.py": "import shop.money\n",
    "tests/golden/v1/sale.json": "",
    "tests/shop/conftest.py": "import aids.prices\n",
    "tests/shop/test_money.py": "import shop.money\n",
    "tests/shop/test_hints.py": "import shop.hints\n",
    "tests/shop/test_golden.py": 'GOLDEN = "golden"\n',
    "tests/till/test_worker.py": 'COMMAND = ["-m", "aids.worker"]\n',
    "tests/till/test_lazy.py": "from shop import HOMES\n",
    "tests/till/test_script.py": 'SCRIPT = "spark-submit.sh"\n',
    "tests/till/test_program.py": 'PROGRAM = """\nimport aids.worker\n"""\n',
    "tests/till/test_nothing.py": '"""Says "aids.worker", and "shop/money.py"."""\n',
}
ALL = {Path(name).stem.removeprefix("test_") for name in REPOSITORY if "/test_" in name}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one commit."""
    for name, text in REPOSITORY.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        is_test = "/test_" in name
        file.write_text(text + ("def test_it(): pass\n" if is_test else ""), encoding="utf-8")
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    commit(tmp_path)
    return tmp_path


def git(root: Path, *words: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *who, *words], cwd=root, check=True)


def commit(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message=change")


def run(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-B", "-m", "pytest", "-p", "changed", "-p", "no:cacheprovider", "-rA"]
    environment = {**os.environ, "PYTHONPATH": str(SUPPORT)}
    return subprocess.run(
        [*words, *options], cwd=root, env=environment, capture_output=True, text=True, check=False
    )


def chosen(root: Path, *options: str) -> set[str]:
    """The modules of tests that ran."""
    done = run(root, *(options or ["--changed"]))
    assert done.returncode == 0, done.stdout + done.stderr
    passed = [line for line in done.stdout.splitlines() if line.startswith("PASSED")]
    return {line.split("test_")[1].split(".py")[0] for line in passed}


@pytest.mark.parametrize(
    ("changed", "expected"),
    one_of(
        3,
        [
            # `script` starts a program that imports selling; the name in `HOMES` is resolved later.
            ("shop/money.py", {"money", "worker", "program", "lazy", "script"}),
            ("shop/selling.py", {"lazy", "script"}),
            ("shop/hints.py", {"hints"}),
            ("shop/__init__.py", {"money", "hints", "worker", "program", "lazy", "script"}),
            ("shop/alone.py", ALL),
            ("tests/aids/prices.py", {"money", "hints", "golden"}),
            ("tests/aids/worker.py", {"worker", "program"}),
            ("tests/shop/conftest.py", {"money", "hints", "golden"}),
            ("tests/till/test_nothing.py", {"nothing"}),
            ("tests/golden/v1/sale.json", {"golden"}),
            ("conf/till.conf", {"script"}),
            ("README.md", ALL),
            ("tests/conftest.py", ALL),
            ("spark-submit.sh", ALL),
            ("pyproject.toml", ALL),
        ],
    ),
)
def test_a_change_chooses_what_it_can_break(
    repository: Path, changed: str, expected: set[str]
) -> None:
    """By imports, names in strings, conftest files and folders; all if nothing can be said."""
    file = repository / changed
    file.write_text(file.read_text() + "\n", encoding="utf-8")
    assert chosen(repository) == expected


def test_files_that_git_does_not_know_count(repository: Path) -> None:
    """And those that it is told to ignore do not."""
    (repository / "tests/till/test_new.py").write_text("def test_it(): pass\n", encoding="utf-8")
    (repository / ".gitignore").write_text("*.log\n.gitignore\n", encoding="utf-8")
    (repository / "noise.log").write_text("", encoding="utf-8")
    assert chosen(repository) == {"new"}


def test_what_is_gone(repository: Path) -> None:
    """No import leads to a module that is gone; a test that is gone breaks nothing."""
    (repository / "tests/till/test_nothing.py").unlink()
    assert chosen(repository) == set()
    (repository / "shop/alone.py").unlink()
    assert chosen(repository) == ALL - {"nothing"}


def test_without_a_change_it_is_the_branchs(repository: Path) -> None:
    """Since it left main; on main itself there is nothing to run, which is no failure."""
    assert chosen(repository) == set()
    git(repository, "checkout", "--quiet", "-b", "mine")
    (repository / "shop/hints.py").write_text("", encoding="utf-8")
    commit(repository)
    (repository / "tests/aids/worker.py").write_text("", encoding="utf-8")
    commit(repository)
    assert chosen(repository) == {"hints", "worker", "program"}
    assert chosen(repository, "--changed=HEAD~1") == {"worker", "program"}
    assert chosen(repository, "--changed", "HEAD~1") == {"worker", "program"}


def test_it_says_what_it_chose_and_why(repository: Path) -> None:
    """The numbers of each changed file, in a quiet run too."""
    (repository / "shop/hints.py").write_text("X = 1\n", encoding="utf-8")
    for options in ([], ["-q"]):
        printed = run(repository, "--changed", *options).stdout
        assert f"changed since HEAD: 1 files, which choose 1 of {len(ALL)} modules" in printed
        assert "shop/hints.py: 1" in printed


def test_processes_choose_the_same(repository: Path) -> None:
    """Worker processes are told the choice."""
    (repository / "shop/hints.py").write_text("X = 1\n", encoding="utf-8")
    assert chosen(repository, "--changed", "-n", "2") == {"hints"}


def test_a_path_is_no_commit(repository: Path) -> None:
    """An option that takes a value may swallow a path: it says where paths go."""
    done = run(repository, "--changed", "tests/shop")
    assert done.returncode == 4
    assert "paths come before --changed" in done.stderr

"""`--changed` chooses the tests that a change can have broken, by who imports or names what.

    ./spark-submit.sh test --changed             since the last commit; if there is nothing new,
                                                 since the branch left main
    ./spark-submit.sh test --changed=v1.2 -k …   since a commit

A test module is chosen if a way leads from it to a changed file. One file leads to another if it

    imports it. Imports for type checkers only do not count: they cannot break a run;
    names it in a string, as module (`"shardline.datasource.spark_native.save"`, for what is
    imported when it is asked for or started with `-m`) or as file (`"jobs/run.py"`,
    `"spark-defaults.conf"`);
    is a module of tests, and the other one a conftest.py above it;
    names, in a string, a folder that the other one is in and that holds no Python: `"golden"`.

A change of a package's `__init__.py` is one of all its modules, since importing those runs it. What
decides about every test (`EVERYTHING`), and what nobody leads to, chooses all of them. Modules in
`ALWAYS` read the whole repository.

Too many are chosen rather than too few, and what only exists at run time is not seen: a name put
together from pieces, a file that is found by a pattern. Before a change is accepted all tests run.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["Choice", "choose"]

EVERYTHING: Final = ("pyproject.toml", "*.lock", "spark-submit.sh", "tests/conftest.py")
ALWAYS: Final = ("tests/test_tidy.py",)
NAMELESS: Final = frozenset({"__init__.py", "__main__.py", "conftest.py"})
"""File names that say nothing: those that name them mean another one of them."""


@dataclass
class Choice:
    """Which modules of tests to run, and why.

    Attributes:
        since: The commit that is compared with.
        modules: Paths from the root of the repository; None for all there are.
        of: How many there are.
        reasons: How many modules each changed file chose, None for all.
    """

    since: str
    modules: frozenset[str] | None
    of: int
    reasons: dict[str, int | None] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """What people are told."""
        number = self.of if self.modules is None else len(self.modules)
        head = f"changed since {self.since}: {len(self.reasons)} files, which choose {number} of "
        ranked = sorted(
            self.reasons.items(), key=lambda each: (each[1] is not None, -(each[1] or 0))
        )
        told = [f"  {name}: {'all' if n is None else n}" for name, n in ranked[:10]]
        more = len(ranked) - len(told)
        return [
            f"{head}{self.of} modules of tests",
            *told,
            *([f"  and {more} more"] if more else []),
        ]


def choose(root: Path, since: str = "") -> Choice:
    """The modules of tests of the repository at `root` that changes since a commit can break.

    Raises:
        ValueError: There is no such commit, or this is no repository of git.
    """
    base = since or _default_base(root)
    changed = _changed(root, base)
    sources = _Sources(root)
    reasons: dict[str, int | None] = {}
    chosen: set[str] = set()
    for path, is_there in sorted(changed.items()):
        found = sources.tests_of(path, is_there=is_there)
        reasons[path] = None if found is None else len(found)
        chosen |= found or set()
    tests = sources.tests
    is_all = any(number is None for number in reasons.values())
    if reasons:
        chosen |= tests & set(ALWAYS)
    return Choice(base, None if is_all else frozenset(chosen), len(tests), reasons)


# -------------------------------------------------------------------------------------- git


def _git(root: Path, *words: str) -> list[str]:
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(done.stderr.strip() or "no such commit")
    return [word for word in done.stdout.split("\0") if word]


def _default_base(root: Path) -> str:
    if _git(root, "status", "--porcelain", "-z"):
        return "HEAD"
    return "".join(_git(root, "merge-base", "HEAD", "main")).strip()[:12]


def _changed(root: Path, base: str) -> dict[str, bool]:
    """Changed files, those that git does not know yet too, and whether they are still there."""
    _git(root, "rev-parse", "--verify", "--quiet", f"{base}^{{commit}}")
    names = _git(root, "diff", "--name-only", "--no-renames", "-z", base, "--")
    names += _git(root, "ls-files", "--others", "--exclude-standard", "-z")
    return {name: (root / name).is_file() for name in names}


# ---------------------------------------------------------------------------------- who uses what

_QUOTED: Final = re.compile(r"\"([^\"\n]*)\"|'([^'\n]*)'")
_DOCSTRING: Final = re.compile(r"^[ ]*(\"{3})(?:.|\n)*?\1", re.MULTILINE)
_PROGRAM: Final = re.compile(r"(\"{3})((?:.|\n)*?)\1")
"""Every word of a longer text counts, which may be a program that a test starts; prose does not."""
_TOKEN: Final = re.compile(r"[\w./-]+")


class _Sources:
    """The Python files and scripts of a repository, and what leads from one to another."""

    def __init__(self, root: Path) -> None:
        config = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["tool"]
        self._root = root
        self._packages: list[str] = config["importlinter"]["root_packages"]
        self._searched = [root, *(root / p for p in config["pytest"].get("pythonpath", []))]
        self._files = self._find_files()
        self.tests = {f for f in self._files if fnmatch(Path(f).name, "test_*.py")}
        self._tokens = {name: self._tokens_of(name) for name in self._files}
        self._users: defaultdict[str, set[str]] = defaultdict(set)
        self._add_imports()
        self._add_names()
        self._add_conftests()

    def _find_files(self) -> list[str]:
        tops = [self._root / name for name in (*self._packages, "tests")]
        found = [path for top in tops for path in top.rglob("*.py")]
        found += [*self._root.glob("*.py"), *self._root.glob("*.sh")]
        return sorted(path.relative_to(self._root).as_posix() for path in found)

    def _tokens_of(self, name: str) -> set[str]:
        text = (self._root / name).read_text(encoding="utf-8")
        if name.endswith(".py"):
            code = _DOCSTRING.sub("", text)
            words = [a or b for a, b in _QUOTED.findall(code)]
            text = "\n".join([*words, *(program for _, program in _PROGRAM.findall(code))])
        return set(_TOKEN.findall(text))

    def tests_of(self, path: str, *, is_there: bool) -> set[str] | None:
        """Modules of tests that a change of a file can break; None if nothing can be said."""
        if any(fnmatch(path, pattern) for pattern in EVERYTHING):
            return None
        if not path.endswith(".py"):
            return (self._reached(self._naming(path)) & self.tests) or None
        if not is_there:
            # Of what is gone only the users can tell, and no import leads there any more.
            return set() if fnmatch(Path(path).name, "test_*.py") else None
        found = self._reached(self._run_by(path)) & self.tests
        return found or None

    def _run_by(self, path: str) -> set[str]:
        """What a change of a module is a change of."""
        if not path.endswith("/__init__.py"):
            return {path}
        folder = path.removesuffix("__init__.py")
        return {name for name in self._files if name.startswith(folder)}

    def _reached(self, starts: Iterable[str]) -> set[str]:
        """The files from which a way leads to one of `starts`."""
        found, left = set(starts), list(starts)
        while left:
            new = self._users[left.pop()] - found
            found |= new
            left += new
        return found

    def _naming(self, path: str) -> set[str]:
        """Files that name a file that is no module, or a folder that it is in."""
        name = path.rsplit("/", 1)[-1]
        folders = [str(folder) for folder in reversed(Path(path).parents)][1:]
        plain = [folder for folder in folders if not self._holds_python(folder)][:1]
        # A name without a suffix is a word like any other; the outermost folder says most.
        named = {Path(each).name for each in (*plain, *([name] if "." in name else []))}
        # Documents are read by tests alone: a program names one to tell a person where to look.
        users = (
            self._tokens
            if not path.endswith(".md")
            else [f for f in self._files if f.startswith("tests/")]
        )
        return {
            user
            for user in users
            if path in (tokens := self._tokens[user])
            or any(not named.isdisjoint(t.split("/")) for t in tokens)
        }

    def _holds_python(self, folder: str) -> bool:
        return any(name.startswith(f"{folder}/") for name in self._files)

    def _add_imports(self) -> None:
        import grimp

        # All that is below tests/, once as a part of it and once as what tests import by.
        on_path = [p for path in self._searched[1:] for p in path.iterdir() if _holds_modules(p)]
        roots = {*self._packages, "tests", *(path.name for path in on_path)}
        with _searching(self._searched):
            graph = grimp.build_graph(
                *sorted(roots), cache_dir=None, exclude_type_checking_imports=True
            )
        self._modules = {m: f for m in graph.modules if (f := self._file_of(m))}
        for module, file in self._modules.items():
            for used in graph.find_modules_directly_imported_by(module):
                if used in self._modules:
                    self._users[self._modules[used]].add(file)

    def _file_of(self, module: str) -> str:
        path = module.replace(".", "/")
        for folder in self._searched:
            for candidate in (folder / f"{path}.py", folder / path / "__init__.py"):
                if candidate.is_file():
                    return str(candidate.relative_to(self._root).as_posix())
        return ""

    def _add_names(self) -> None:
        by_name: defaultdict[str, set[str]] = defaultdict(set)
        # Tests are named where they are listed, and used by nobody.
        for file in set(self._files) - self.tests:
            name = file.rsplit("/", 1)[-1]
            by_name[file].add(file)
            if name not in NAMELESS:
                by_name[name].add(file)
        for module, file in self._modules.items():
            if "." in module and file not in self.tests:
                by_name[module].add(file)
        for user, tokens in self._tokens.items():
            # This module names what it looks for, and is behind every test.
            for token in tokens if user != "tests/support/changed.py" else ():
                # "$root/jobs/run.py" in a script is jobs/run.py.
                for used in by_name.get(token) or by_name.get(token.rsplit("/", 1)[-1]) or ():
                    if used != user:
                        self._users[used].add(user)

    def _add_conftests(self) -> None:
        for file in self._files:
            if file.endswith("/conftest.py"):
                folder = file.removesuffix("conftest.py")
                self._users[file] |= {test for test in self.tests if test.startswith(folder)}


def _holds_modules(folder: Path) -> bool:
    return folder.is_dir() and next(folder.glob("*.py"), None) is not None


@contextmanager
def _searching(folders: list[Path]) -> Iterator[None]:
    """Let these folders come first where packages are looked for."""
    before = sys.path[:]
    sys.path[:0] = [str(folder) for folder in folders]
    try:
        yield
    finally:
        sys.path[:] = before


# ---------------------------------------------------------------------------------- plugin hooks


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("shardline").addoption(
        "--changed",
        nargs="?",
        const="",
        default=None,
        metavar="REF",
        help="only tests that changes since REF can break (default: uncommitted, or of the branch)",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.option.changed is None:
        return
    if hasattr(config, "workerinput"):
        config.option.chosen = config.workerinput["chosen"]
        return
    try:
        choice = choose(config.rootpath, config.option.changed)
    except ValueError as error:
        raise pytest.UsageError(
            f"--changed {config.option.changed}: {error} "
            "(paths come before --changed, or after --changed=REF)"
        ) from None
    config.option.chosen = None if choice.modules is None else sorted(choice.modules)
    config.option.chosen_lines = choice.lines()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Hand the choice to a worker process: all of them must collect the same."""
    node.workerinput["chosen"] = getattr(node.config.option, "chosen", None)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    chosen: list[str] | None = getattr(config.option, "chosen", None)
    if chosen is None or not fnmatch(collection_path.name, "test_*.py"):
        return None
    name = collection_path.relative_to(config.rootpath).as_posix()
    return None if name in chosen else True


def pytest_report_header(config: pytest.Config) -> list[str]:
    return getattr(config.option, "chosen_lines", [])


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say it where a quiet run does, too."""
    if config.option.verbose < 0:
        for line in getattr(config.option, "chosen_lines", []):
            terminalreporter.write_line(line)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A change that can break no test is no failure."""
    chosen = getattr(session.config.option, "chosen", None)
    if chosen is not None and session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK

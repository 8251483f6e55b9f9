"""The fast run keeps what starts anything, or takes long, out of itself: `--fast`, and `--rest`.

`--fast` runs the tests without a marker of `REASONS`, `--rest` all others; without either, all run.
A marker says why a test is not fast, where it stands. Two guards keep that true, so that the fast
run stays one that is started after every change:

    A test without a marker starts no process and listens on no socket, nor reaches another machine.
    It is refused at once, and fails even if the code under test swallowed the refusal.

    A test without a marker takes at most `LIMIT_S` of the processor. It is named at the end of the
    run if it takes more, and fails if it takes `FAILS_AT` times as much.

The second is an alarm that must never ring by chance, so between what is allowed and what fails is
room for a machine whose processor shares its caches and its clock with others, and it measures
neither time on the clock nor the luck of an order:

    The processor's time of all threads counts, which other programs on the machine do not lengthen.
    Imports are made at collection; fixtures of a module or a session belong to many tests, and
    which of them comes first is chance: neither is counted. A test's own fixtures are.
    Collections of garbage take long where the heap is large, whoever's turn it is. What collection
    has made is out of the collector's sight (`uncollected`), so that nobody pays for it.
    A cache that is filled once, or a module imported in a function, makes the first test slow and
    no other: a test above the limit runs once more, and only one that is slow twice is told.
    On a slower machine all is slower, and where others use the same caches, too: the limit grows
    with the time that a piece of work takes right then, which takes `REFERENCE_S` on the machine
    that `LIMIT_S` was chosen on. It never shrinks.
"""

from __future__ import annotations

import gc
import re
import socket
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest
from _pytest.runner import runtestprotocol

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["REASONS", "Refused", "guarded"]

REASONS: Final = frozenset(
    {"browser", "cluster", "exhaustive", "process", "s3", "server", "sim", "slow", "spark"}
    | {"submit"}
)
"""Markers that keep a test out of the fast run. pyproject.toml says what each means."""

LIMIT_S: Final = 0.5
FAILS_AT: Final = 2.0
REFERENCE_S: Final = 0.027
REFERENCE_OBJECTS: Final = 100_000

_SLOW: Final = "slow"

_READS_ALL: Final = "test_tidy.py"
"""Each process that has one of its tests would read the whole tree: one process has them all."""

_PROCESSES: Final = frozenset(
    {"os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"}
    | {"pty.spawn", "subprocess.Popen"}
)
_LOOPBACK: Final = re.compile(r"127\.|::1$|localhost$|$")


class Refused(RuntimeError):
    """A test without a marker tried to start or to reach what the fast run has not."""


class _Guard:
    """What this process refuses at the moment. Audit hooks are for ever, so there is one."""

    def __init__(self) -> None:
        self.is_on = False
        self.is_installed = False
        self.refusals: list[str] = []

    def install(self) -> None:
        if self.is_installed:
            return
        self.is_installed = True
        sys.addaudithook(self._audit)
        # multiprocessing's `spawn` calls this without telling the audit hooks; subprocess has it
        # under a name of its own, and tells them.
        import _posixsubprocess

        real = _posixsubprocess.fork_exec

        def fork_exec(*args: Any) -> Any:
            self._check(True, "start a process", "process")
            return real(*args)

        _posixsubprocess.fork_exec = fork_exec

    def _audit(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        if event in _PROCESSES:
            self._check(True, f"start a process ({event})", "process")
        elif event == "socket.bind":
            is_served = args[0].family in (socket.AF_INET, socket.AF_INET6)
            self._check(is_served, f"listen at {args[1]}", "server")
        elif event in {"socket.connect", "socket.sendto"}:
            is_remote = isinstance(args[1], tuple) and not _LOOPBACK.match(str(args[1][0]))
            self._check(is_remote, f"reach {args[1]}", "server")

    def _check(self, is_wrong: bool, what: str, marker: str) -> None:
        if self.is_on and is_wrong:
            message = (
                f"a test of the fast run may not {what}: mark it, with why, for example "
                f"`pytestmark = pytest.mark.{marker}`, or do without"
            )
            self.refusals.append(message)
            raise Refused(message)


_GUARD: Final = _Guard()


@contextmanager
def guarded() -> Iterator[list[str]]:
    """Refuse processes and sockets in the block; the list has what was refused."""
    _GUARD.install()
    _GUARD.refusals, before = [], _GUARD.is_on
    _GUARD.is_on = True
    try:
        yield _GUARD.refusals
    finally:
        _GUARD.is_on = before


class FastRun:
    """The hooks of one run that is asked to be fast."""

    def __init__(self) -> None:
        self._counted_s = 0.0
        self._shared_depth = 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self) -> Generator[None, Any, Any]:
        return (yield from self._counting())

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Generator[None, Any, Any]:
        return (yield from self._counting())

    def _counting(self) -> Generator[None, Any, Any]:
        started = time.process_time()
        try:
            with guarded() as refusals:
                result = yield
        finally:
            self._counted_s += time.process_time() - started
        if refusals:
            # What is under test may have taken the refusal for an outage, and carried on.
            pytest.fail(refusals[0], pytrace=False)
        return result

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, Any, Any]:
        if fixturedef.scope == "function" or self._shared_depth:
            return (yield)
        self._shared_depth += 1
        started = time.process_time()
        try:
            return (yield)
        finally:
            self._counted_s -= time.process_time() - started
            self._shared_depth -= 1

    @pytest.hookimpl
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        """Run a test; once more if it was slow; then say so."""
        hook, place = item.ihook, item.location
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=place)
        reports, taken = self._run(item, nextitem)
        if taken > LIMIT_S and taken > _limit_s() and all(r.passed for r in reports):
            reports, again = self._run(item, nextitem)
            _tell(reports, min(taken, again), _limit_s())
        for report in reports:
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=place)
        return True

    def _run(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> tuple[list[pytest.TestReport], float]:
        self._counted_s = 0.0
        reports = runtestprotocol(item, log=False, nextitem=nextitem)
        return reports, self._counted_s


def _tell(reports: list[pytest.TestReport], taken: float, limit: float) -> None:
    """Note what a passed test took above the limit; fail it where no chance explains it."""
    for report in reports:
        if taken > limit and report.when == "call" and report.passed:
            told = (
                f"too slow for the fast run: {taken:.2f} s of the processor, twice; {limit:.2f} s "
                "are allowed here and now. Make it cheaper (fewer examples, smaller data, a shared "
                "fixture), or mark it `pytest.mark.slow`: it then runs with the rest"
            )
            if taken > FAILS_AT * limit:
                report.outcome = "failed"
                report.longrepr = told
            else:
                report.user_properties.append((_SLOW, told))


def _limit_s() -> float:
    """What is allowed on this machine at this moment."""
    return LIMIT_S * max(1.0, _reference_s() / REFERENCE_S)


def _reference_s() -> float:
    """How long a fixed piece of work takes, in the middle of three times."""
    return sorted(_work() for _ in range(3))[1]


def _work() -> float:
    """Makes and sorts objects, as tests do: a loop over numbers feels nothing of others' load.

    Without collections of garbage: each goes through all that tests have left in memory, so the
    same work took ten times as long beside some large objects, and the alarm was deaf.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        started = time.process_time()
        found = {str(number): [number] for number in range(REFERENCE_OBJECTS)}
        sorted(found, key=found.__getitem__, reverse=True)
        return time.process_time() - started
    finally:
        if was_enabled:
            gc.enable()


# ---------------------------------------------------------------------------------- plugin hooks


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("shardline")
    group.addoption(
        "--fast", action="store_true", help="only what needs no JVM, server or other process"
    )
    group.addoption("--rest", action="store_true", help="only what --fast leaves out")


def pytest_configure(config: pytest.Config) -> None:
    if config.option.fast and config.option.rest:
        raise pytest.UsageError("--fast and --rest together are everything: give neither")
    if config.option.fast:
        config.pluginmanager.register(FastRun(), "fast-run")


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Name the tests that are slow and have not failed for it."""
    for report in terminalreporter.stats.get("passed", ()):
        for told in (text for name, text in report.user_properties if name == _SLOW):
            terminalreporter.write_line(f"{report.nodeid} - {told}")


_MODULE_MARKS: Final = re.compile(r"^pytestmark\s*=\s*(\[[^\]]*\]|[^\n]*)", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Do not even import a module whose marker keeps all of it out of the fast run."""
    if not config.option.fast or collection_path.suffix != ".py":
        return None
    marks = _MODULE_MARKS.search(collection_path.read_text(encoding="utf-8"))
    is_slow = marks and set(re.findall(r"\bmark\.(\w+)", marks.group(1))) & REASONS
    return True if is_slow else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not (config.option.fast or config.option.rest):
        return
    fast = [i for i in items if not any(i.get_closest_marker(name) for name in REASONS)]
    chosen = set(fast) if config.option.fast else set(items) - set(fast)
    config.hook.pytest_deselected(items=[i for i in items if i not in chosen])
    items[:] = [i for i in items if i in chosen]
    # Each of them reads every module, and what one has parsed the others of its process have, too.
    # Workers steal from the end of each other's lists: what comes last is torn apart.
    items.sort(key=lambda item: item.path.name != _READS_ALL)

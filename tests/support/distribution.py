"""The distribution of a parallel run gives each process whole files of tests, the longest first.

A fixture of a module is made once in each process that runs a test of the module, and a JVM answers
its first hundred queries at a fraction of its later pace. Handed out one by one, the tests of a
file were run by all processes: four worlds of shards, four browsers, four JVMs that each learned
what the file needs. So:

    A unit is a file, or the files of a group (`GROUPS`); one process runs it, in the file's order.
    Half of the processes take units that need this process's Spark session first, and the others
    all else first: as long as there is enough of both, two JVMs do what four would have learned.
    Units that take long (`LONG`) go first: one that begins last is waited for by all.

pytest-xdist puts `xdist_group` into the ids of tests, where pytest 9.2 does not look any more, so
groups are named here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any, Final

import pytest
from typing_extensions import override
from xdist.scheduler import LoadScopeScheduling

__all__ = ["GROUPS", "LONG", "UnitScheduling", "choose_unit", "needs_session", "unit_of"]

GROUPS: Final = {
    "tests/submit/": "submit",
    "tests/spark/demo/test_main_job.py": "main-job",
    "tests/spark/cli/test_run.py": "main-job",
    "tests/spark/cli/test_terminal.py": "main-job",
    "tests/spark/spark_native/test_native_kills.py": "native-kills",
    "tests/spark/cli/test_plans.py": "plans",
    "tests/spark/shard_source/test_connect.py": "connect",
}
"""Unit by the beginning of a test's id, where it is not the test's file.

Those of `tests/spark/` that are here start processes of their own and use no session.
"""

LONG: Final = (
    "submit",
    "main-job",
    "plans",
    "native-kills",
    "tests/datasource/test_memory.py",
    "tests/spark/server/test_page_of_an_application.py",
    "tests/spark/coordinator/test_application.py",
    "tests/spark/coordinator/test_kills.py",
    "tests/spark/compute/test_session_groups.py",
    "tests/spark/compute/test_read_paths.py",
    "tests/spark/coordinator/test_isolation.py",
    "tests/spark/cli/test_operate.py",
    "tests/spark/introspection/test_verdicts.py",
    "tests/spark/compute/test_in_and_null.py",
)
"""Units that are begun before others of their kind, in this order.

They have few tests, of which one takes 15 s at least, and would begin last by their number.
"""

_IN_SESSION: Final = "tests/spark/"
_MANY: Final = 1_000_000


def unit_of(test_id: str) -> str:
    """The unit that a test is run with."""
    for start, name in GROUPS.items():
        if test_id.startswith(start):
            return name
    return test_id.partition("::")[0]


def needs_session(unit: str) -> bool:
    """True if tests of a unit use the Spark session of their process; no group's do."""
    return unit.startswith(_IN_SESSION)


def choose_unit(waiting: Mapping[str, Sized], *, for_session: bool) -> str:
    """The unit that a process is given next.

    Args:
        waiting: Tests by unit, in the order of their files; not empty.
        for_session: True for a process that takes those for its session first.
    """

    def rank(unit: str) -> tuple[bool, int]:
        is_long = unit in LONG
        tests = _MANY - LONG.index(unit) if is_long else len(waiting[unit])
        return needs_session(unit) is for_session, tests

    return max(waiting, key=rank)


class UnitScheduling(LoadScopeScheduling):  # type: ignore[misc]  # without types
    """The scheduler of `--dist loadgroup`; see the module."""

    @override
    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    @override
    def _assign_work_unit(self, node: Any) -> None:
        # The first, third … process: the units that take longest are in no session.
        for_session = self.nodes.index(node) % 2 == 1
        self.workqueue.move_to_end(choose_unit(self.workqueue, for_session=for_session), last=False)
        super()._assign_work_unit(node)


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """Schedule by units where groups are asked for."""
    return UnitScheduling(config, log) if config.getvalue("dist") == "loadgroup" else None

"""For all tests: which of them one process runs, one after the other.

pytest-xdist puts `xdist_group` into the ids of tests, where pytest 9.2 does not look any more: the
groups that matter are told here, by file. A fixture of a module that takes minutes is made once.
"""

from __future__ import annotations

from typing import Any

import pytest
from typing_extensions import override
from xdist.scheduler import LoadScopeScheduling

pytest_plugins = ["support.profiles", "support.fast_run", "support.changed"]

GROUPS = {
    "tests/submit/": "submit",
    "tests/spark/test_main_job.py": "main-job",
    "tests/spark/test_run.py": "main-job",
    "tests/spark/test_terminal.py": "main-job",
    "tests/spark/test_relations.py": "relations",
    "tests/spark/test_connect.py": "connect",
}
"""Group by the beginning of a test's id."""


class Grouped(LoadScopeScheduling):  # type: ignore[misc]  # without types
    """Tests of a group go to one process, all others one by one to whoever is free."""

    @override
    def _split_scope(self, nodeid: str) -> str:
        return next((name for start, name in GROUPS.items() if nodeid.startswith(start)), nodeid)


@pytest.hookimpl(tryfirst=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """Schedule by these groups where groups are asked for."""
    return Grouped(config, log) if config.getvalue("dist") == "loadgroup" else None

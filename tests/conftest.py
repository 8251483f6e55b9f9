"""For all tests: what takes longest begins first, so that no process is left alone with it."""

from __future__ import annotations

import pytest

GROUPS = ("submit", "main-job")
"""Groups of tests that one process runs one after the other, for minutes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put long groups first; else the order stays, which every process must agree on."""
    items.sort(key=_rank)


def _rank(item: pytest.Item) -> int:
    group = item.get_closest_marker("xdist_group")
    return 0 if group is not None and group.args[0] in GROUPS else 1

"""For all tests: the plugins that choose, count and hand out tests."""

from __future__ import annotations

pytest_plugins = [
    "support.profiles",
    "support.temporary",
    "support.fast_run",
    "support.changed",
    "support.distribution",
]

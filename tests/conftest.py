"""For all tests: the plugins that choose, count and hand out tests; and the log as it was."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

pytest_plugins = [
    "support.profiles",
    "support.temporary",
    "support.probed",
    "support.uncollected",
    "support.fast_run",
    "support.changed",
    "support.distribution",
]


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    """Take away what a job has added to the log, which it does for the rest of its process."""
    logger = logging.getLogger("shardline")
    handlers, propagate, level = logger.handlers[:], logger.propagate, logger.level
    yield
    for handler in logger.handlers[:]:
        if handler not in handlers:
            logger.removeHandler(handler)
            handler.close()
    logger.propagate = propagate
    logger.setLevel(level)

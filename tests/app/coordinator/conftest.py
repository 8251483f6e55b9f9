"""A location in memory whose source `t` has a row, for applications without Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fakes.sites import Site


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """The location; applications come and go over it."""
    found = Site(tmp_path, monkeypatch)
    found.put([((1, "a"), 1, 1)], 10)
    yield found
    found.place.close()

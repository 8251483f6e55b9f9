"""A JSON interface over a small project, for the tests of its routes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardline.app.server.access import Access
from support.fakes.json_interface import TOKEN, Site

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def site() -> Iterator[Site]:
    """It listens until the test ends."""
    made = Site(Access(TOKEN))
    yield made
    made.served.close()


@pytest.fixture
def public() -> Iterator[Site]:
    """One that is listened to from elsewhere: each request needs its token."""
    made = Site(Access(TOKEN, "elsewhere"))
    yield made
    made.served.close()

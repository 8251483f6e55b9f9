"""Every transport, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.fakes.wires import Wire, inprocess, websocket

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=["inprocess", pytest.param("websocket", marks=pytest.mark.server)])
def wire(request: pytest.FixtureRequest) -> Iterator[Wire]:
    """A runtime's two endpoints, and a way to connect to them."""
    with inprocess() if request.param == "inprocess" else websocket() as made:
        yield made

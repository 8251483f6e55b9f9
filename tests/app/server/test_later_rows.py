"""Rows that occurred at a moment or later are asked for, over a real socket."""

from __future__ import annotations

import msgspec
import pytest

from support.fakes.introspection import FLIGHTS
from support.fakes.json_interface import Site

pytestmark = pytest.mark.server


def test_what_occurred_from_a_moment_on_is_asked_for(site: Site) -> None:
    """With how many others there are; of a relation of what occurs, and combined with filters."""
    path = "/api/v1/relations/events"
    began = site.world.clock.now_ms()
    for name in ("flights", "delays", "weather"):
        site.world.run(msgspec.structs.replace(FLIGHTS, name=name))
        site.world.clock.advance(1_000)
    _, answer = site.ask("GET", path)
    rows = answer["rows"]
    assert [row["object_id"] for row in rows] == ["flights", "delays", "weather"]
    for begin_ms, earlier in ((0, 0), (began, 0), (began + 1, 1), (began + 2_000, 2), (10**14, 3)):
        _, answer = site.ask("GET", f"{path}?from={begin_ms}")
        assert answer == {"earlier": earlier, "rows": rows[earlier:]}
    _, answer = site.ask("GET", f"{path}?from={began + 1}&object=delays")
    assert answer == {"earlier": 0, "rows": rows[1:2]}
    definitions = path.replace("events", "definition_history")
    _, answer = site.ask("GET", f"{definitions}?from={began + 1}&as_of={began + 1_500}")
    assert (answer["earlier"], [row["object_id"] for row in answer["rows"]]) == (1, ["delays"])
    for query, code in (("events?from=x", "INVALID_TIME"), ("objects?from=1", "NO_TIME_COLUMN")):
        status, answer = site.ask("GET", f"/api/v1/relations/{query}")
        assert (status, answer["error"]["code"]) == (400, code), query
    _, described = site.ask("GET", "/api/v1/openapi.json")
    found = described["paths"][path]["get"]["parameters"]
    assert {one["name"] for one in found} == {"where", "object", "as_of", "from"}

"""Records of what a person asks a running application to do, with what came of it."""

from __future__ import annotations

import json
from dataclasses import replace
from http.client import HTTPConnection
from typing import Any

import pytest
from starlette.routing import Route

from shardline.app.introspection.events import Acted
from shardline.app.server import errors_route as bad_rows
from shardline.app.server.access import Access
from shardline.app.server.api import create_app
from shardline.app.server.http_server import serve
from shardline.datasource.errors import Determinate
from support.fakes.json_interface import JSON, TOKEN, Site

pytestmark = pytest.mark.server


def test_what_was_asked_for_is_recorded_with_its_outcome(site: Site) -> None:
    """What only says what it would do is not; an error of no class may come after an effect."""
    seen: list[object] = []

    def refuse(_target: str) -> None:
        raise Determinate("not now", code="CONTENTION")

    def fail(_target: str) -> None:
        raise OSError("the disk is gone")

    services = replace(
        site.services,
        actions={"restart": lambda _target: None, "pause": refuse, "resume": fail},
        confirmed={"drop": lambda name, commit: [name, commit]},
        observe=seen.append,
    )
    with serve(create_app(services, Access(TOKEN))) as served:
        for name, more in (
            ("restart", {}),
            ("pause", {}),
            ("resume", {}),
            ("drop", {}),
            ("drop", {"commit": True}),
            ("unheard_of", {}),
        ):
            connection = HTTPConnection("127.0.0.1", served.port, timeout=30)
            body = json.dumps({"target": "t", **more})
            connection.request("POST", f"/api/v1/actions/{name}", body, JSON)
            connection.getresponse().read()
            connection.close()
    acted = [one for one in seen if isinstance(one, Acted)]
    assert [(one.action, one.target, one.outcome, one.message) for one in acted] == [
        ("restart", "t", "done", ""),
        ("pause", "t", "refused", "[CONTENTION] not now"),
        ("resume", "t", "unknown", "the disk is gone"),
        ("drop", "t", "done", ""),
    ]


def test_taking_bad_rows_away_is_recorded(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """To look at them is not, nor to ask what would be taken."""
    seen: list[object] = []
    monkeypatch.setattr(bad_rows, "answer_errors", lambda _repairs, asked: {"id": asked.id})
    repairs: Any = None
    route = Route("/api/v1/errors", bad_rows.errors_route(repairs, seen.append), methods=["POST"])
    site.served.close()
    site.served = serve(create_app(replace(site.services, routes=[route]), Access(TOKEN)))
    for more in ({}, {"act": "retract"}, {"act": "skip", "commit": True}):
        assert site.ask("POST", "/api/v1/errors", {"id": "t", **more}, JSON)[0] == 200
    (one,) = seen
    assert isinstance(one, Acted)
    assert (one.action, one.target, one.outcome) == ("skip_errors", "t", "done")

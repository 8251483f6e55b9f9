"""The JSON interface over made relations, served on a real socket, and what it has been asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from http.client import HTTPConnection
from typing import Any

import pyarrow as pa

from shardline.app.server.access import Access
from shardline.app.server.api import Services, create_app
from shardline.app.server.http_server import RunningServer, serve
from shardline.datasource.errors import Corrupt, Determinate, Fenced, Indeterminate, InvalidUsage
from support.fakes.introspection import World

__all__ = ["JSON", "TOKEN", "Site"]

TOKEN = "s3cret"  # noqa: S105 - of the test
JSON = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}


FAILURES = {
    "store is away": Determinate("the store is away"),
    "outcome is unknown": Indeterminate("nobody knows"),
    "part is damaged": Corrupt("a part is damaged"),
    "another has taken over": Fenced("another has taken over"),
}


class Site:
    """A served application, and what it has been asked."""

    def __init__(self, access: Access) -> None:
        self.world = World()
        self.asked: list[str] = []
        self.given_up: list[threading.Event] = []
        self.release = threading.Event()
        self.unready = ""
        self.services = Services(
            self.world.relations,
            self.run_sql,
            {"compact": lambda name: {"merges": len(name)}},
            {"drop": lambda name, commit: [name, "dropped" if commit else "planned"]},
            lambda: self.unready,
            timeout_s=0.2,
        )
        self.served: RunningServer = serve(create_app(self.services, access))

    def run_sql(self, query: str, given_up: threading.Event) -> pa.Table:
        self.asked.append(query)
        if query == "slow":
            self.given_up.append(given_up)
            given_up.wait(30)
            self.release.set()
        if query == "wrong":
            raise InvalidUsage(
                "no such column 'x'", code="UNKNOWN_COLUMN", hint="did you mean 'y'?"
            )
        if query == "odd":
            values = [float("nan"), float("inf"), None]
            return pa.table({"f": values, "day": pa.array([3_000_000, None, 0], pa.date32())})
        if query in FAILURES:
            raise FAILURES[query]
        if query == "broken":
            raise RuntimeError("a defect")
        return pa.Table.from_arrays([pa.array([1]), pa.array(["a"])], names=["n", "n"])

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:
        """Status and body of an answer."""
        connection = HTTPConnection("127.0.0.1", self.served.port, timeout=30)
        try:
            encoded = body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, None if body is None else encoded, dict(headers or {}))
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        kind = answer.getheader("content-type") or ""
        return answer.status, json.loads(text) if "json" in kind else text.decode()

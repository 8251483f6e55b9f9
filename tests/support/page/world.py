"""A served world is a real server over made objects, in any situation, changed while looked at.

    with ServedWorld("demo") as world:
        world.url                          to open; world.token for what needs it
        world.become("flights", "frozen")  and "well" again; see `Mode`
        world.stop_server()                the application is gone
        world.start_server()               and back, on the same port, as another process would be

Only the objects are made: relations, verdicts, publisher, routes and access are the real ones.
Statements are answered by `answer`, actions are kept in `world.acted` and, for some, carried out.
"""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

import anyio
import pyarrow as pa
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from shardline.app.introspection.events import Event, ShardSeen
from shardline.app.introspection.publisher import Publisher
from shardline.app.protocol.objects import Description
from shardline.app.server.access import Access
from shardline.app.server.api import Query, Services, create_app, read_body
from shardline.app.server.http_server import RunningServer, serve
from shardline.app.server.session_codes import SessionCodes, session_route
from shardline.app.transport.session import Limits
from shardline.app.transport.websocket_server import server_options
from shardline.datasource.background import PeriodicThread
from shardline.datasource.clock import SystemClock, SystemIds
from shardline.datasource.errors import InvalidUsage
from support.page.life import Life, Mode, MovingClock
from support.page.objects import HOSTILE_NAMES, PROJECTS
from support.page.past import past_of, shard_report

__all__ = ["SITUATIONS", "TOKEN", "ServedWorld", "Situation"]

TOKEN: Final = "s3cret/+ш"  # noqa: S105 - of the tests

_PACE_MS: Final = 250.0
"""Time between two moments: quicker than the product's second, so that tests wait less."""


@dataclass(frozen=True, slots=True)
class Situation:
    """What a world begins with.

    Attributes:
        project: Name of a maker of `PROJECTS`.
        modes: Objects that are not well.
        seconds: How long they have been so: as long as a trend needs, unless there are very many.
        hours: Of history; 0 for none.
    """

    project: str
    modes: dict[str, Mode] = field(default_factory=dict)
    seconds: int = 40
    hours: int = 24


SITUATIONS: Final = {
    "empty": Situation("none"),
    "one": Situation("one"),
    "fresh": Situation("one", seconds=1, hours=0),
    "demo": Situation("demo"),
    "deep": Situation("deep", seconds=1, hours=0),
    "idle": Situation("demo", {"airlines": "quiet", "planes": "quiet", "airports": "quiet"}),
    "healthy": Situation("demo"),
    "quiet": Situation("one", {"flights": "quiet"}),
    "finished": Situation("demo", {"airlines": "finished"}),
    "starting": Situation("demo", {"delays_by_carrier": "starting"}),
    "catching up": Situation("demo", {"flights": "catching up"}),
    "backlog": Situation("demo", {"flights": "backlog"}),
    "falling behind": Situation("demo", {"busiest_planes": "falling behind"}),
    "frozen": Situation("demo", {"flights": "frozen"}),
    "stalled": Situation("demo", {"delays_by_carrier": "stalled"}),
    "paused": Situation("demo", {"weather": "paused"}),
    "unreadable": Situation("demo", {"flights": "unreadable"}),
    "uncreated": Situation("demo", {"busiest_planes": "uncreated"}),
    "fire": Situation(
        "demo",
        {
            "flights": "frozen",
            "planes": "quiet",
            "busiest_planes": "falling behind",
            "weather": "unreadable",
            "carrier_ranking": "stalled",
            "planes_out": "paused",
        },
    ),
    "large": Situation("large", {"stock_summary_10": "stalled"}, seconds=12, hours=6),
    "large well": Situation("large", seconds=12, hours=6),
    "hostile": Situation("hostile", {HOSTILE_NAMES[0]: "stalled"}, seconds=12),
}
"""Situations by name; one for each verdict of an object, and of the whole."""


class ServedWorld:
    """A life that goes on by itself, and its server. Close it, or use it as a context manager."""

    def __init__(
        self,
        situation: str | Situation = "demo",
        *,
        port: int = 0,
        pace_ms: float = _PACE_MS,
        access: Access | None = None,
        routes: Sequence[BaseRoute] = (),
        more: Callable[[Life], dict[str, Any]] = lambda _: {},
    ) -> None:
        """Let a world begin and serve it.

        Args:
            situation: One of `SITUATIONS`, or another.
            port: To listen on; 0 for any that is free.
            pace_ms: Time between two moments.
            access: Rules of access; on loopback with `TOKEN` if None.
            routes: More routes, before all others.
            more: Returns more arguments of `Services`, for what a test serves besides.
        """
        chosen = SITUATIONS[situation] if isinstance(situation, str) else situation
        self.life = Life(PROJECTS[chosen.project](), MovingClock())
        self.life.begin(chosen.modes, seconds=chosen.seconds)
        self.clock = self.life.clock
        if chosen.hours:
            living = list(self.life.objects.values())
            self.tell(*past_of(living, self.clock.now_ms(), hours=chosen.hours))
        self.token = TOKEN
        self.acted: list[tuple[str, str]] = []
        self._access = access or Access(TOKEN)
        self.codes = SessionCodes(TOKEN, self.clock, SystemIds())
        served = [
            session_route(self.codes),
            Route("/api/v1/subscribe", _subscribe, methods=["POST"]),
        ]
        self._routes = [*routes, *served]
        self._more = more
        self._pace_ms = pace_ms
        self._seconds = 0
        self.publisher: Publisher = self._new_publisher()
        self._served: RunningServer | None = None
        self.port = port
        self.start_server()
        self._thread = PeriodicThread("made-life", self._step, SystemClock(), first_ms=200)
        self._thread.start()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    @property
    def url(self) -> str:
        """Address of the page, without a slash at its end."""
        return f"http://127.0.0.1:{self.port}"

    def close(self) -> None:
        """End the life and the server."""
        self._thread.stop(5_000)
        self.stop_server()

    def start_server(self) -> None:
        """Serve, on the same port as before; to a client this is another run."""
        if self._served is not None:
            return
        self.publisher = self._new_publisher()
        given: dict[str, Any] = {
            "run_sql": answer,
            "actions": {name: self._action(name) for name in ("pause", "resume", "restart")},
            "confirmed": {"drop": lambda target, commit: {"names": [target], "done": commit}},
            "routes": self._routes,
            "publisher": self.publisher,
        }
        given |= self._more(self.life)
        services = Services(self.life.relations, **given)
        app = create_app(services, self._access)
        self._served = serve(app, port=self.port, sockets=server_options(Limits()))
        self.port = self._served.port

    def stop_server(self) -> None:
        """Be gone, as an application that was killed: connections end, and none is accepted."""
        served, self._served = self._served, None
        if served is not None:
            served.close()

    def become(self, name: str, mode: Mode, error: str = "", hint: str = "") -> None:
        """Bring an object into a mode, with its usual error unless another one is given."""
        self.life.become(name, mode, error, hint)

    def tell(self, *events: Event) -> None:
        """Let events of any kind happen."""
        self.life.tell(*events)

    def rows(self, relation: str) -> list[dict[str, Any]]:
        """Rows of a relation, as the page is given them."""
        return self.life.relations.rows(relation)

    def verdict(self, name: str) -> str:
        """The present verdict on an object."""
        return str(next(r["verdict"] for r in self.rows("verdicts") if r["object_id"] == name))

    def install(self, description: Description) -> None:
        """Create one more object."""
        self.life.add(description)

    def _new_publisher(self) -> Publisher:
        return Publisher(
            self.life.relations, SystemClock(), SystemIds(), pace_ms=self._pace_ms, gap_ms=50
        )

    def _action(self, name: str) -> Callable[[str], object]:
        def act(target: str) -> object:
            if target not in self.life.objects:
                raise InvalidUsage(f"there is no object '{target}'", code="UNKNOWN_OBJECT")
            self.acted.append((name, target))
            self.become(target, "paused" if name == "pause" else "well")
            return {"object": target}

        return act

    def _step(self) -> float:
        self.life.step()
        self._seconds += 1
        if self._seconds % 15 == 0:
            self._look_into_shards()
        return 1000.0

    def _look_into_shards(self) -> None:
        now = self.clock.now_ms()
        stored = [o for o in self.life.objects.values() if o.upper and o.has_shard]
        self.tell(*(ShardSeen(report=shard_report(one, now), at_ms=now) for one in stored))


def answer(query: str, given_up: threading.Event) -> pa.Table:
    """Answer a statement with made rows; among them some that a page must not obey.

    `EXPLAIN` gives a plan, `SELECT count(*)` a number, what contains `slow` waits to be given up,
    what contains `wrong` is refused, and everything else are rows of several types.
    """
    text = query.strip().lower()
    if "wrong" in text:
        raise InvalidUsage(
            "column 'wrong' does not exist (line 1, column 8)",
            code="UNKNOWN_COLUMN",
            hint="did you mean 'carrier'?",
        )
    if "slow" in text:
        given_up.wait()
        raise InvalidUsage("it was cancelled", code="CANCELLED")
    if text.startswith("explain"):
        return pa.table({"plan": EXPLAINED.splitlines()})
    if "count(*)" in text:
        return pa.table({"count": [336_776]})
    return pa.table(
        {
            "carrier": ["UA", "AA", HOSTILE_NAMES[0], HOSTILE_NAMES[2], HOSTILE_NAMES[4], None],
            "flights": [58_665, 32_729, 1, 2, 3, None],
            "mean_delay": [3.5580111, 0.3642909, float("nan"), -1e300, 0.0, None],
            "note": ["", "a,b", HOSTILE_NAMES[3], "z" * 10_000, "two\nlines", None],
        }
    )


EXPLAINED: Final = """\
view delays_by_carrier: linear
  Correction: linear
    Aggregate: linear, by carrier: count, sum, count_if
      Source flights: append-only
reads:
  flights
"""


async def _subscribe(request: Request) -> Response:
    """Answer a `SUBSCRIBE` with a batch of made changes for as long as somebody reads."""
    await read_body(request, Query)

    async def lines() -> AsyncIterator[str]:
        lower: int | None = None
        for number in range(100_000):
            upper = 1_764_000_000_000 + number * 1000
            updates = [
                {"_ts": upper - 1, "_diff": 1, "carrier": "UA", "flights": 100 + number},
                {"_ts": upper - 1, "_diff": -1, "carrier": "UA", "flights": 99 + number},
            ]
            yield json.dumps({"lower": lower, "upper": upper, "updates": updates}) + "\n"
            lower = upper
            await anyio.sleep(0.5)

    return StreamingResponse(lines(), media_type="application/x-ndjson")

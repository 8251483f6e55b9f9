"""A served world whose shards, lane and project are made, and that answers SQL as the product does.

    with ToolsWorld("many") as world:
        world.done        actions that were carried out: name and target
        world.tried       actions that have only said what they would do
        world.followed    subscriptions that somebody listens to
        world.given_up    queries whose client was gone before their answer
    world.shard       id of the shard that is subscribed to; with another one it is another object

Statements are parsed by the product, so that errors of syntax and their places are real ones. What
contains `wrong` is refused at that word, what contains `slow` waits to be given up, what contains
`many` has 2,500 rows, what reads `object_details` has one with a strategy.

What is subscribed to has a history that goes on whether it is served or not: two copies of a row of
`AA`, and one row of `UA` whose number grows by one each 200 ms.
"""

from __future__ import annotations

import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import anyio
import pyarrow as pa
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from shardline.app.introspection.publisher import Publisher
from shardline.app.server.access import error_response
from shardline.app.server.api import Query, read_body
from shardline.app.sql.problems import InvalidProject, Problem, Script
from shardline.app.sql.queries import (
    SubscribeRequest,
    parse_explain,
    parse_select,
    parse_subscribe,
)
from shardline.datasource.clock import SystemClock, SystemIds
from shardline.datasource.errors import ShardError
from support.page.browser import Seen
from support.page.life import Life
from support.page.made_tables import MadeTables
from support.page.made_tools import HOSTILE, PLANS, made_rows
from support.page.world import ServedWorld, Situation

__all__ = ["BIG", "ROWS", "ToolsWorld", "made_world"]

BIG: Final = 9_007_199_254_740_993
"""An integer that a number of JavaScript cannot hold: it would be shown as one less."""

ROWS: Final = 2_500
"""Rows of a large result."""

_PACE_MS: Final = 200.0
_STEP_MS: Final = 200
_SITUATION: Final = Situation("one", seconds=1, hours=0)
_DRY: Final = ("compact", "collect", "sweep", "expire_hold")


class ToolsWorld(ServedWorld):
    """See the module."""

    def __init__(self, kind: str, **options: Any) -> None:
        """Let it begin; `kind` is one of those of `made_rows`."""
        # The parser takes seconds to load: not while a browser waits.
        parse_select("SELECT 1")
        self.kind = kind
        self.done: list[tuple[str, str]] = []
        self.tried: list[tuple[str, str]] = []
        self.followed: list[str] = []
        self.given_up: list[str] = []
        self.shard = "s-made"
        routes = [
            Route("/api/v1/project", self._project),
            Route("/api/v1/subscribe", self._subscribe, methods=["POST"]),
        ]
        super().__init__(_SITUATION, more=self._services, routes=routes, **options)

    def _services(self, life: Life) -> dict[str, Any]:
        if not isinstance(life.relations, MadeTables):
            made, now = made_rows(self.kind), life.clock.now_ms()
            life.relations = MadeTables(life.relations, made, now)
        publisher = Publisher(
            life.relations, SystemClock(), SystemIds(), pace_ms=_PACE_MS, gap_ms=50
        )
        return {
            "run_sql": self._answer,
            "confirmed": {name: self._dry(name) for name in _DRY},
            "actions": {"allow_writes": lambda target: self.done.append(("allow_writes", target))},
            "publisher": publisher,
        }

    @property
    def tables(self) -> MadeTables:
        """What stands in the place of relations."""
        assert isinstance(self.life.relations, MadeTables)
        return self.life.relations

    def _dry(self, name: str) -> Callable[[str, bool], object]:
        def act(target: str, commit: bool) -> object:
            (self.done if commit else self.tried).append((name, target))
            if "in use" in target:
                raise ShardError(
                    "an object of this application needs this hold",
                    code="HOLD_IN_USE",
                    hint="pause it first",
                )
            says = [f"{name} frees 1.2 MiB of {target[:60]}", "readers see no difference"]
            return {"says": says, "done": commit}

        return act

    def _answer(self, query: str, given_up: threading.Event) -> pa.Table:
        explained = parse_explain(query)
        if isinstance(explained, str):
            operators = ["Filter (flights.arr_delay > 120)", "  flights"]
            rules = ["row by row", "its changes"]
            part, item = ["view", "operator", "operator"], ["linear", *operators]
            return pa.table({"part": part, "item": item, "detail": ["", *rules]})
        if explained is not None:
            reason = "avg() and GROUP BY are Spark's"
            return pa.table({"strategy": ["standard"], "reason": [reason]})
        parse_select(query)
        if "wrong" in query:
            place = Script("sql", query).place(query.index("wrong"))
            hint = "did you mean 'origin'?"
            raise InvalidProject([Problem(place, "UNRESOLVED_COLUMN", "no column 'wrong'", hint)])
        if "object_details" in query:
            kept = {"object_id": ["flights"], "strategy": ["linear"], "reason": ["its changes"]}
            return pa.table({**kept, "checkpoint": ["/d/c/u1-1"]})
        if "slow" in query:
            given_up.wait()
            self.given_up.append(query)
            raise ShardError("it was cancelled", code="CANCELLED")
        if "nothing" in query:
            return pa.table({"carrier": pa.array([], pa.string())})
        rows = ROWS if "many" in query else 6
        carriers = ["UA", "AA", HOSTILE if "hostile" in query else "DL", None, "", "two\nlines"]
        return pa.table(
            {
                "carrier": [carriers[at % 6] for at in range(rows)],
                "flights": pa.array([BIG, -1, None, *range(rows - 3)], pa.int64()),
                "delay": [at / 7 for at in range(rows)],
            }
        )

    async def _project(self, _request: Request) -> Response:
        plan = PLANS[self.kind]
        if plan is None:
            hint = "start it with the folder of one"
            return error_response(404, "NO_PROJECT", "the application has no project", hint)
        return JSONResponse(plan)

    async def _subscribe(self, request: Request) -> Response:
        asked = parse_subscribe((await read_body(request, Query)).query)
        return StreamingResponse(self._lines(asked), media_type="application/x-ndjson")

    async def _lines(self, asked: SubscribeRequest) -> AsyncIterator[str]:
        self.followed.append(asked.on)
        try:
            now = self.clock.now_ms()
            as_of = now if asked.as_of is None else asked.as_of
            if asked.shard not in {"", self.shard}:
                yield _line(as_of, None, error="[HISTORY_GONE] it was dropped and made again")
                return
            number, lower = as_of // _STEP_MS, as_of
            if asked.snapshot:
                both = [_update(as_of, 2, "AA", BIG), _update(as_of, 1, "UA", number)]
                lower = (number + 1) * _STEP_MS
                yield _line(as_of, lower, shard=self.shard, updates=both)
            for later in range(number + 1, number + 100_000):
                at = later * _STEP_MS
                await anyio.sleep(max(at - self.clock.now_ms(), 0) / 1000)
                changed = [_update(at, 1, "UA", later), _update(at, -1, "UA", later - 1)]
                # Up to the next change: who begins there without a snapshot has lost it.
                yield _line(lower, at + _STEP_MS, shard=self.shard, updates=changed)
                lower = at + _STEP_MS
                if asked.on == "ending":
                    yield _line(lower, None, error="it has failed")
                    return
        finally:
            self.followed.remove(asked.on)


def _line(lower: int, upper: int | None, **more: object) -> str:
    return json.dumps({"lower": lower, "upper": upper, **more}) + "\n"


def _update(at: int, diff: int, carrier: str, flights: int) -> dict[str, object]:
    return {"_ts": at, "_diff": diff, "carrier": carrier, "flights": flights}


def made_world(seen: Seen) -> ToolsWorld:
    """The world that a page looks at."""
    assert isinstance(seen.world, ToolsWorld), seen.world
    return seen.world

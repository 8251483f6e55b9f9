"""The API serves relations, objects, SQL, actions, metrics and health over HTTP.

    app = create_app(Services(relations, run_sql, actions, ready), Access(token))

Answers are JSON, errors `{"error": {"kind", "code", "message", "hint"}}`. Queries and actions run
in a few threads, for a bounded time; the event of a query is set when its client has gone or has
waited long enough, so that it ends early.

Invariants:
    GET changes nothing.
    No answer waits for anything but its own work: a slow query leaves the relations readable.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, TypeVar

import anyio
import anyio.to_thread
import msgspec
import pyarrow as pa
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from shardline.app.compute.results import json_rows, to_ipc
from shardline.app.introspection.events import Acted, ClientsSeen
from shardline.app.introspection.publisher import Publisher
from shardline.app.introspection.relation import Scalar
from shardline.app.introspection.store import Relations
from shardline.app.protocol.error_kinds import kind_of
from shardline.app.server.access import BODY_MAX, Access, Guard, error_response
from shardline.app.server.action_log import recorded_action
from shardline.app.server.any_text import ANY_TEXT
from shardline.app.server.metrics import CONTENT_TYPE, encode_metrics
from shardline.app.server.open_clients import OpenClients
from shardline.app.server.openapi import openapi
from shardline.app.server.page_routes import page_not_found, page_routes
from shardline.app.server.subscription_socket import relation_subscriptions_route
from shardline.datasource.clock import SystemClock, SystemIds
from shardline.datasource.errors import (
    Determinate,
    Indeterminate,
    InvalidUsage,
    ShardError,
    unknown_name,
)

__all__ = [
    "ARROW",
    "Action",
    "ConfirmedAction",
    "Query",
    "RunSql",
    "Services",
    "create_app",
    "read_body",
]

_log = logging.getLogger(__name__)

T = TypeVar("T")

RunSql = Callable[[str, threading.Event], pa.Table]
"""Runs a query and returns its result, of bounded size. Ends early when the event is set.

Raises `ShardError` for a problem of the query or the system.
"""

Action = Callable[[str], object]
ConfirmedAction = Callable[[str, bool], object]
"""Does something to the named target, and returns what JSON can encode. Raises `ShardError`."""

ARROW: Final = "application/vnd.apache.arrow.stream"
"""Media type of a query's result with its types, for clients that accept it; JSON otherwise."""

_MOMENT_DIGITS: Final = 15
"""Of a time in ms since the epoch: more of them are later than any calendar."""

_QUERIES: Final = 8
"""Queries and actions that run at a time; more wait."""


@dataclass(frozen=True, slots=True)
class Services:
    """The services that the routes use.

    Attributes:
        relations: The relations of the introspection sink.
        run_sql: Runs a query.
        actions: Actions by name.
        confirmed: Actions that lose something, by name: they are given if the request has said
            `commit`, and only say what they would do if it has not.
        ready: Returns the reason why the application cannot serve queries yet; "" if it can.
        timeout_s: How long a query or an action may take.
        routes: More routes, such as those of controllers' connections; each checks its own token.
        publisher: Computes the relations that are followed; None to make one over `relations`.
        observe: Takes the clients that follow relations whenever they change, and the actions that
            were asked for; returns at once.
    """

    relations: Relations
    run_sql: RunSql
    actions: Mapping[str, Action] = field(default_factory=dict)
    confirmed: Mapping[str, ConfirmedAction] = field(default_factory=dict)
    ready: Callable[[], str] = lambda: ""
    timeout_s: float = 60.0
    routes: Sequence[BaseRoute] = ()
    publisher: Publisher | None = None
    observe: Callable[[ClientsSeen | Acted], None] = lambda _: None


class Query(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request with a statement in SQL."""

    query: str


class _Target(msgspec.Struct, forbid_unknown_fields=True):
    target: str
    commit: bool | None = None


def create_app(services: Services, access: Access) -> Starlette:
    """Make the ASGI application that serves `services` to the requests that `access` allows."""
    routes = _Routes(services)
    publisher = services.publisher or Publisher(services.relations, SystemClock(), SystemIds())
    clients = OpenClients(services.observe, SystemClock())
    return Starlette(
        routes=[
            Route("/healthz", routes.healthz),
            Route("/readyz", routes.readyz),
            Route("/metrics", routes.metrics),
            Route("/api/v1/openapi.json", routes.openapi),
            Route("/api/v1/relations", routes.catalog),
            Route("/api/v1/relations/{name}", routes.relation),
            relation_subscriptions_route("/api/v1/subscriptions", publisher, access, clients),
            Route("/api/v1/objects", routes.objects),
            Route(f"/api/v1/objects/{{name:{ANY_TEXT}}}", routes.object),
            Route("/api/v1/sql", routes.sql, methods=["POST"]),
            Route("/api/v1/actions/{name}", routes.action, methods=["POST"]),
            *services.routes,
            *page_routes(),
        ],
        middleware=[Middleware(Guard, access=access)],
        exception_handlers={
            404: _not_found,
            405: _not_allowed,
            ShardError: _failed,
            Exception: _broken,
        },
    )


class _Routes:
    """The handlers of the routes."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._clock = SystemClock()
        self._limit: anyio.CapacityLimiter | None = None

    async def healthz(self, _request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def readyz(self, _request: Request) -> Response:
        why_not = self._services.ready()
        if why_not:
            return error_response(503, "NOT_READY", why_not, "", "determinate")
        return JSONResponse({"status": "ready"})

    async def metrics(self, _request: Request) -> Response:
        text = await asyncio.to_thread(encode_metrics, self._services.relations)
        return Response(text, headers={"content-type": CONTENT_TYPE})

    async def openapi(self, request: Request) -> Response:
        routed = [route.path_format for route in request.app.routes]
        return JSONResponse(openapi(self._services.relations.declared, routed))

    async def catalog(self, request: Request) -> Response:
        _parameters(request)
        declared = self._services.relations.declared.values()
        return _json(
            {
                "relations": [
                    {
                        "name": relation.name,
                        "comment": relation.comment,
                        "columns": [
                            {"name": c.name, "type": str(c.type), "comment": c.comment}
                            for c in relation.columns
                        ],
                    }
                    for relation in declared
                ]
            }
        )

    async def relation(self, request: Request) -> Response:
        asked = _parameters(request, "object", "where", "as_of", "from")
        relations, name = self._services.relations, request.path_params["name"]
        about, where = asked.get("object"), _filter_of(asked.get("where"))
        as_of = _moment_of("as_of", asked.get("as_of"))
        begin_ms = _moment_of("from", asked.get("from"))

        def read() -> dict[str, object]:
            if begin_ms is None:
                return {"rows": relations.rows(name, object=about, where=where, as_of=as_of)}
            earlier, rows = relations.later_rows(
                name, begin_ms, object=about, where=where, as_of=as_of
            )
            return {"earlier": earlier, "rows": rows}

        return _json(await asyncio.to_thread(read))

    async def objects(self, request: Request) -> Response:
        _parameters(request)
        rows = await asyncio.to_thread(self._services.relations.rows, "objects")
        return _json({"objects": rows})

    async def object(self, request: Request) -> Response:
        name = request.path_params["name"]
        _parameters(request)
        return _json(await asyncio.to_thread(_about, self._services.relations, name))

    async def sql(self, request: Request) -> Response:
        query = (await read_body(request, Query)).query
        given_up = threading.Event()
        run = partial(self._services.run_sql, query, given_up)
        gone = asyncio.create_task(_disconnected(request, given_up))
        try:
            table = await self._run(run)
        finally:
            given_up.set()
            gone.cancel()
        # In a thread, as large as it may be: the loop serves all clients. Not within the query's
        # time: it has its answer.
        if ARROW in request.headers.get("accept", ""):
            return Response(await asyncio.to_thread(to_ipc, table), media_type=ARROW)
        encoded = await asyncio.to_thread(_table_json, table)
        return Response(encoded, media_type="application/json")

    async def action(self, request: Request) -> Response:
        name = request.path_params["name"]
        actions, confirmed = self._services.actions, self._services.confirmed
        if name not in actions and name not in confirmed:
            raise unknown_name("action", name, {*actions, *confirmed})
        asked = await read_body(request, _Target)
        if name in confirmed:
            act = partial(confirmed[name], asked.target, bool(asked.commit))
        elif asked.commit is None:
            act = partial(actions[name], asked.target)
        else:
            # Not passed over: without it the action would seem to have been tried only.
            raise InvalidUsage(
                f"action '{name}' has no dry run, and takes no 'commit'",
                code="BODY_UNREADABLE",
                hint="leave 'commit' out: it is done at once",
            )
        if name in confirmed and not asked.commit:
            return _json({"result": await self._run(act)})
        with recorded_action(self._services.observe, self._clock, name, asked.target):
            return _json({"result": await self._run(act, changes=True)})

    async def _run(self, work: Callable[[], T], *, changes: bool = False) -> T:
        """Do work in a thread, and give up waiting after `timeout_s`.

        Args:
            work: The work.
            changes: True if it changes something: it may still do so after the time is over.

        Raises:
            Determinate: `TIMEOUT`. The thread is abandoned, not ended: the work has to see its
                event.
            Indeterminate: `TIMEOUT`, of work that changes something.
        """
        if self._limit is None:
            self._limit = anyio.CapacityLimiter(_QUERIES)
        seconds = self._services.timeout_s
        try:
            with anyio.fail_after(seconds):
                return await anyio.to_thread.run_sync(
                    work, abandon_on_cancel=True, limiter=self._limit
                )
        except TimeoutError:
            if changes:
                raise Indeterminate(
                    f"there was no answer within {seconds:g} s: it may have been done, or may be "
                    "done yet",
                    code="TIMEOUT",
                    hint="look at what it was about before you ask for it again",
                ) from None
            raise Determinate(
                f"there was no answer within {seconds:g} s",
                code="TIMEOUT",
                hint="ask for less, or ask again when the system is less busy",
            ) from None


async def _disconnected(request: Request, given_up: threading.Event) -> None:
    """Set `given_up` when the client of a request, whose body was read, has disconnected."""
    while not given_up.is_set():
        message = await request.receive()
        if message["type"] == "http.disconnect":
            given_up.set()


def _parameters(request: Request, *known: str) -> Mapping[str, str]:
    """The query parameters of a request, each of them known and given once.

    One that was passed over would have chosen rows: an answer without it is another one.
    """
    given = request.query_params.multi_items()
    for name, _ in given:
        if name not in known:
            raise unknown_name("parameter", name, known)
        if sum(name == other for other, _ in given) > 1:
            raise InvalidUsage(
                f"parameter '{name}' is given twice", code="DUPLICATE_PARAMETER", hint="give one"
            )
    return dict(given)


def _filter_of(text: str | None) -> dict[str, Scalar] | None:
    """The parameter `where`: columns with the values that rows must have."""
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, Scalar])
    except msgspec.DecodeError as error:
        raise InvalidUsage(
            f"'where' is not as described: {error}",
            code="INVALID_FILTER",
            hint="""give an object of columns and values, such as {"type": "view"}""",
        ) from None


def _moment_of(parameter: str, text: str | None) -> int | None:
    """A parameter with a moment: ms since the epoch."""
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > _MOMENT_DIGITS:
        raise InvalidUsage(
            f"'{text[:80]}' is no time",
            code="INVALID_TIME",
            hint=f"{parameter} is in milliseconds since the epoch, such as 1764000000000",
        )
    return int(text)


def _about(relations: Relations, name: str) -> dict[str, object]:
    """All rows about one object, by relation."""
    known = {str(row["id"]) for row in relations.rows("objects")}
    if name not in known:
        raise unknown_name("object", name, known)
    return {
        relation.name: relations.rows(relation.name, object=name)
        for relation in relations.declared.values()
        if relation.object
    }


async def read_body(request: Request, kind: type[T], bytes_max: int = BODY_MAX) -> T:
    """Read and decode the body of a request.

    Args:
        request: The request.
        kind: The type of the body.
        bytes_max: Largest body, in bytes.

    Raises:
        InvalidUsage: It is too large, or not of that type.
    """
    # Counted while it is read: a Content-Length may be missing, or wrong.
    read = bytearray()
    async for chunk in request.stream():
        read += chunk
        if len(read) > bytes_max:
            raise InvalidUsage(f"a body may have {bytes_max} bytes", code="TOO_LARGE")
    try:
        return msgspec.json.decode(bytes(read), type=kind)
    except msgspec.DecodeError as error:
        raise InvalidUsage(
            f"the body is not as described: {error}",
            code="BODY_UNREADABLE",
            hint="GET /api/v1/openapi.json describes it",
        ) from None


def _table_json(table: pa.Table) -> bytes:
    """Encode the columns and rows of a query's result."""
    encoder = msgspec.json.Encoder(enc_hook=str)
    columns = [{"name": f.name, "type": str(f.type)} for f in table.schema]
    # Row by row: one call for all would keep the interpreter's lock, and so the loop, for seconds.
    rows = b",".join(encoder.encode(row) for row in json_rows(table))
    return b'{"columns":%b,"rows":[%b]}' % (encoder.encode(columns), rows)


def _json(value: object) -> Response:
    encoded = msgspec.json.encode(value, enc_hook=str)
    return Response(encoded, media_type="application/json")


async def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, ShardError), error
    context = {"path": request.url.path, "code": error.code, "error": error.detail}
    _log.info("a request was refused", extra={"context": context})
    if error.code == "TIMEOUT" or isinstance(error, Indeterminate):
        # 504 for whatever may have been done, or may be yet: 503 says that it was not.
        status = 504
    elif error.code in {"UNKNOWN_RELATION", "UNKNOWN_OBJECT", "UNKNOWN_ACTION", "NO_PROJECT"}:
        status = 404
    elif error.code in {"CODE_UNKNOWN", "CODE_USED", "CODE_EXPIRED", "TOKEN_WRONG"}:
        status = 403
    elif error.code == "TOO_LARGE":
        status = 413
    else:
        status = 400 if isinstance(error, InvalidUsage) else 503
    return error_response(status, error.code, error.detail, error.hint, kind_of(type(error)))


async def _broken(request: Request, error: Exception) -> Response:
    if not isinstance(error, ClientDisconnect):
        context = {"path": request.url.path}
        _log.error("a request failed", exc_info=error, extra={"context": context})
    message, hint = "the application failed to answer", "its log says more"
    return error_response(500, "INTERNAL", message, hint, "indeterminate")


async def _not_found(request: Request, _error: Exception) -> Response:
    return page_not_found(request) or error_response(
        404, "NOT_FOUND", "there is nothing here", "see /api/v1/openapi.json"
    )


async def _not_allowed(_request: Request, _error: Exception) -> Response:
    return error_response(
        405, "METHOD", "this method does nothing here", "see /api/v1/openapi.json"
    )

"""The application server serves a running application, and announces its address in a file.

    with serving(application, settings, folder) as whereabouts:
        …

Besides the routes of `shardline.app.server.api` there are `POST /api/v1/subscribe`, a line of JSON
for each interval for as long as the client listens; `POST /api/v1/project`, which applies a
project, or, with `dry_run`, only plans it; `POST /api/v1/drop`, which says what a drop deletes and,
with `commit`, does it; `POST /api/v1/errors` (`errors_route`); the actions `pause`, `resume`,
`restart`, `allow_writes` and `configure` (`NAME=VALUE`), and `drop`, which is that route for one
object; and the two sockets by which controllers elsewhere may connect, `/v1/compute` and
`/v1/storage`.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import BaseRoute, Route

from shardline.app.compute.peek.results import as_json, from_ipc
from shardline.app.controller.subscription import Subscription, is_last
from shardline.app.coordinator.application import Application
from shardline.app.project.dropping import drop_plan_json
from shardline.app.project.permission import Permissions
from shardline.app.project.plan import plan_json
from shardline.app.protocol.codec import COMPUTE, STORAGE
from shardline.app.protocol.compute import SubscribeDropped, SubscribeResponse
from shardline.app.protocol.project_identity import ProjectIdentity
from shardline.app.server.access import Access
from shardline.app.server.api import Query, Services, create_app, read_body
from shardline.app.server.discovery import ApplicationAddress, announce, withdraw
from shardline.app.server.errors_route import errors_route
from shardline.app.server.http_server import serve
from shardline.app.settings.config import RuntimeSettings
from shardline.app.transport.websocket_server import server_options, websocket_route
from shardline.datasource.errors import InvalidUsage

if TYPE_CHECKING:
    import pyarrow as pa
    from starlette.requests import Request
    from starlette.responses import Response

__all__ = ["application_routes", "batch_line", "serve_application"]

_TAKE_MS: Final = 500.0
_PROJECT_MAX: Final = 8 << 20
"""Largest body of a request that brings a project, in bytes."""

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


@contextmanager
def serve_application(
    application: Application, settings: RuntimeSettings, folder: Path
) -> Iterator[ApplicationAddress]:
    """Serve `application` until the block ends.

    Args:
        application: A started application with introspection.
        settings: The address and the token.
        folder: The folder in which other commands look for it.

    Raises:
        InvalidUsage: The address is invalid or taken; or the application has no introspection.
    """
    if application.observing is None:
        raise InvalidUsage(
            "without introspection there is nothing to answer with",
            code="NO_INTROSPECTION",
            hint="turn runtime.introspection on",
        )
    host, port = _address(settings.listen)
    token = settings.token or application.token()
    services = Services(
        relations=application.observing.relations,
        run_sql=lambda text, given_up: _run_sql(application, text, given_up),
        actions={
            "pause": application.control.pause,
            "resume": application.control.resume,
            "restart": application.control.restart,
            "allow_writes": lambda _: application.allow_writes(),
            "configure": lambda text: _configure(application, text),
        },
        confirmed={"drop": lambda name, commit: _dropped(application, [name], commit=commit)},
        ready=lambda: application.not_ready,
        timeout_s=application.timeout_ms / 1000,
        routes=application_routes(application, token),
    )
    access = Access(token, "loopback" if host in _LOOPBACK else "elsewhere")
    sockets = server_options(application.runtime.compute.limits)
    with serve(create_app(services, access), host, port, sockets) as served:
        whereabouts = ApplicationAddress(
            url=served.url, token=token, pid=os.getpid(), location=application.location_id
        )
        announce(folder, whereabouts)
        try:
            yield whereabouts
        finally:
            withdraw(folder, whereabouts)


def application_routes(application: Application, token: str) -> list[BaseRoute]:
    """The routes besides those of `shardline.app.server.api`; the sockets check `token`."""
    compute, storage = application.runtime.compute, application.runtime.storage
    return [
        Route("/api/v1/subscribe", _subscribe(application), methods=["POST"]),
        Route("/api/v1/project", _project(application), methods=["POST"]),
        Route("/api/v1/drop", _drop(application), methods=["POST"]),
        Route("/api/v1/errors", errors_route(application.repairs), methods=["POST"]),
        websocket_route("/v1/compute", compute, COMPUTE, _is(token)),
        websocket_route("/v1/storage", storage, STORAGE, _is(token)),
    ]


def batch_line(batch: SubscribeResponse | SubscribeDropped) -> str:
    """Encode a batch of a subscription as a line of JSON."""
    if isinstance(batch, SubscribeDropped):
        return json.dumps({"dropped_at": batch.upper}) + "\n"
    head: dict[str, object] = {"lower": batch.lower, "upper": batch.upper}
    if batch.error:
        return json.dumps({**head, "error": batch.error}) + "\n"
    rows = [] if batch.updates is None else list(as_json(from_ipc(batch.updates)))
    return f'{json.dumps(head)[:-1]}, "updates": [{", ".join(rows)}]}}\n'


def _run_sql(application: Application, text: str, given_up: threading.Event) -> pa.Table:
    return application.sql(text, cancelled=given_up)


def _configure(application: Application, text: str) -> None:
    name, found, value = text.partition("=")
    if not found:
        raise InvalidUsage(
            f"'{text}' is no setting", code="INVALID_SETTING", hint="write index_limit=1g"
        )
    application.configure({name.strip(): value.strip()})


def _is(token: str) -> Callable[[str], bool]:
    return lambda given: hmac.compare_digest(given.encode(), token.encode())


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit():
        raise InvalidUsage(
            f"'{text}' is no address", code="INVALID_SETTING", hint="write 127.0.0.1:4200"
        )
    return host.strip("[]"), int(port)


def _subscribe(application: Application) -> Callable[[Request], Awaitable[Response]]:
    """Make the route that streams a subscription, and closes it when its client is gone."""

    async def subscribe(request: Request) -> Response:
        query = (await read_body(request, Query)).query
        subscription = await run_in_threadpool(application.subscribe, query)
        return StreamingResponse(_lines(subscription), media_type="application/x-ndjson")

    return subscribe


class _Drop(msgspec.Struct, forbid_unknown_fields=True):
    """Objects to drop; without `commit` it is only said what that would delete."""

    names: list[str]
    commit: bool = False


def _drop(application: Application) -> Callable[[Request], Awaitable[Response]]:
    """Make the route by which a drop is shown and carried out."""

    async def answer(request: Request) -> Response:
        asked = await read_body(request, _Drop)
        drop = partial(_dropped, application, asked.names, commit=asked.commit)
        return JSONResponse(await run_in_threadpool(drop))

    return answer


def _dropped(application: Application, names: list[str], *, commit: bool) -> dict[str, object]:
    """Say what a drop deletes and, with `commit`, do it."""
    # Before it, also with `commit`: afterwards nobody can say what there was.
    plan = application.plan_drop(names)
    dropped = application.drop(names) if commit else []
    return {"plan": drop_plan_json(plan), "dropped": dropped}


class _Texts(msgspec.Struct, forbid_unknown_fields=True):
    """A project: its texts by file name, variables put in, which it is, and what it may lose."""

    files: dict[str, str]
    dry_run: bool = False
    project: ProjectIdentity | None = None
    allow_replace: bool = False
    adopt: bool = False


def _project(application: Application) -> Callable[[Request], Awaitable[Response]]:
    """Make the route by which a project is planned and applied.

    A project is applied to its end, even if its client stops waiting.
    """

    async def project(request: Request) -> Response:
        sent = await read_body(request, _Texts, _PROJECT_MAX)
        change = partial(
            application.change,
            sent.files,
            dry_run=sent.dry_run,
            identity=sent.project,
            allowed=Permissions(replace=sent.allow_replace, adopt=sent.adopt),
        )
        plan = await run_in_threadpool(change)
        return JSONResponse({"plan": plan_json(plan)})

    return project


async def _lines(subscription: Subscription) -> AsyncIterator[str]:
    try:
        while True:
            batch = await asyncio.to_thread(subscription.take, _TAKE_MS)
            if batch is None:
                continue
            yield batch_line(batch)
            if is_last(batch):
                return
    finally:
        subscription.close()

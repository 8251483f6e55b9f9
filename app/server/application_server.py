"""The application server serves a running application, and announces its address in a file.

    with serve_application(application, settings, folder) as served:
        served.url, served.page_link()

Besides the routes of `shardline.app.server.api` there are

    POST /api/v1/subscribe    a line of JSON for each interval, for as long as the client listens
    POST /api/v1/project      applies a project, or, with `dry_run`, only plans it
    GET  /api/v1/project      the project's files as they are now against what runs
    POST /api/v1/drop         says what a drop deletes and, with `commit`, does it
    POST /api/v1/errors       bad rows: see `errors_route`
    POST /api/v1/session      the token for a printed link's code: see `session_codes`
    /v1/compute, /v1/storage  the sockets by which controllers elsewhere may connect

and the actions `pause`, `resume`, `restart`, `allow_writes` and `configure` (`NAME=VALUE`). Others
only say what they would do, without `commit`: `drop` (that route for one object), `compact`,
`collect` and `sweep` (of a shard), and `expire_hold` (`SHARD/HOLD`).
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import BaseRoute, Route

from shardline.app.compute.results import as_json, from_ipc
from shardline.app.controller.subscription import Subscription, is_last
from shardline.app.coordinator.application import Application
from shardline.app.coordinator.change_steps import steps_of
from shardline.app.introspection.events import ServerSeen
from shardline.app.project.dropping import drop_plan_json
from shardline.app.project.permission import Permissions
from shardline.app.project.plan import Plan, plan_json
from shardline.app.protocol.codec import COMPUTE, STORAGE
from shardline.app.protocol.compute import SubscribeDropped, SubscribeResponse
from shardline.app.protocol.project_identity import ProjectIdentity
from shardline.app.server.access import Access
from shardline.app.server.action_log import Observe, recorded_action
from shardline.app.server.api import Query, Services, create_app, read_body
from shardline.app.server.discovery import Announcement, ApplicationAddress
from shardline.app.server.errors_route import errors_route
from shardline.app.server.http_server import RunningServer
from shardline.app.server.introspection_needed import no_introspection_error
from shardline.app.server.listening import reserve_address
from shardline.app.server.session_codes import SessionCodes, session_route
from shardline.app.server.shared_answer import SharedAnswer
from shardline.app.settings.config import RuntimeSettings
from shardline.app.transport.token_header import is_token
from shardline.app.transport.websocket_server import server_options, websocket_route
from shardline.datasource.background import DaemonPool
from shardline.datasource.clock import SystemClock, SystemIds
from shardline.datasource.errors import InvalidUsage

if TYPE_CHECKING:
    import pyarrow as pa
    from starlette.requests import Request
    from starlette.responses import Response

__all__ = ["ServedApplication", "application_routes", "batch_line", "serve_application"]

_PROJECT_MAX: Final = 8 << 20
"""Largest body of a request that brings a project, in bytes."""

_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})

_MORE_S: Final = 2.0
"""Added to the application's own time-out: it gives up first, and its error has the reason."""

_CLOSED_S: Final = 5.0
"""Time that the closes of subscriptions may take after the server's end."""

_LOOK: Final = "look at `status` before you repeat it"
"""Hint for a change that may have been done in part."""


class ServedApplication(ApplicationAddress, frozen=True, kw_only=True):
    """The address of an application that this process serves.

    Attributes:
        codes: Stand for its token in links.
    """

    codes: SessionCodes

    def page_link(self) -> str:
        """Make a link to the page that gives it the token, once and for ten minutes."""
        return f"{self.url}/#code={self.codes.issue()}"


@contextmanager
def serve_application(
    application: Application,
    settings: RuntimeSettings,
    folder: Path,
    listening: socket.socket | None = None,
) -> Iterator[ServedApplication]:
    """Serve `application` until the block ends.

    Args:
        application: A started application with introspection.
        settings: The address and the token.
        folder: The folder in which other commands look for it.
        listening: As of `reserve_address`; None to listen now.

    Raises:
        InvalidUsage: The address is taken; or the application has no introspection.
    """
    if application.feeds is None:
        raise no_introspection_error()
    token = settings.token or application.token()
    codes = SessionCodes(token, SystemClock(), SystemIds())
    acts = application.shard_actions
    closes = _closing_thread()
    services = Services(
        relations=application.feeds.relations,
        run_sql=lambda text, given_up: _run_sql(application, text, given_up),
        actions={
            "pause": application.control.pause,
            "resume": application.control.resume,
            "restart": application.control.restart,
            "allow_writes": lambda _: _allow_writes(application),
            "configure": lambda text: _configure(application, text),
        },
        confirmed={
            "drop": lambda name, commit: _dropped(application, [name], commit=commit),
            "compact": lambda name, commit: acts.compact(name, commit=commit),
            "collect": lambda name, commit: acts.collect(name, commit=commit),
            "sweep": lambda name, commit: acts.sweep(name, commit=commit),
            "expire_hold": lambda name, commit: acts.expire_hold(name, commit=commit),
        },
        ready=lambda: application.not_ready,
        timeout_s=application.timeout_ms / 1000 + _MORE_S,
        routes=[
            session_route(codes),
            *application_routes(application, token, application.feeds.put, closes),
        ],
        observe=application.feeds.put,
    )
    is_local = settings.listen.host in _LOOPBACK
    access = Access(token, "loopback" if is_local else "elsewhere", application.location_id)
    sockets = server_options(application.runtime.compute.limits)
    app = create_app(services, access)
    listening = listening or reserve_address(settings, folder)
    assert listening is not None, "nothing is to be pushed aside"
    with _waited_for(closes), RunningServer(app, listening, sockets) as served:
        whereabouts = ApplicationAddress(
            url=served.url, token=token, pid=os.getpid(), location=application.location_id
        )

        def follows() -> bool:
            return application.follows or application.lost is not None

        with Announcement(folder, whereabouts, follows, SystemClock()):
            application.feeds.put(ServerSeen(served.url))
            try:
                # What is announced has no codes: a file is no place for them.
                yield ServedApplication(**msgspec.structs.asdict(whereabouts), codes=codes)
            finally:
                application.feeds.put(ServerSeen(""))


def _closing_thread() -> DaemonPool:
    """The thread in which subscriptions are closed whose clients have gone.

    Not one of the loop's, which all requests share: each waits for whoever sends to the runtime,
    and for the store. One: they wait for the same lock, one after the other.
    """
    return DaemonPool("subscription-close", 1)


@contextmanager
def _waited_for(closes: DaemonPool) -> Iterator[None]:
    try:
        yield
    finally:
        closes.wait_until_done(_CLOSED_S)
        closes.close()


def application_routes(
    application: Application,
    token: str,
    observe: Observe = lambda _: None,
    closes: DaemonPool | None = None,
) -> list[BaseRoute]:
    """The routes besides those of `shardline.app.server.api`.

    Args:
        application: What they serve.
        token: What the sockets ask for.
        observe: Takes what was done.
        closes: Closes subscriptions; None for a thread that ends with the process.
    """
    closes = closes or _closing_thread()
    compute, storage = application.runtime.compute, application.runtime.storage
    return [
        Route("/api/v1/subscribe", _subscribe(application, closes), methods=["POST"]),
        Route("/api/v1/project", _project(application, observe), methods=["GET", "POST"]),
        Route("/api/v1/drop", _drop(application, observe), methods=["POST"]),
        Route("/api/v1/errors", errors_route(application.repairs, observe), methods=["POST"]),
        websocket_route("/v1/compute", compute, COMPUTE, _is(token)),
        websocket_route("/v1/storage", storage, STORAGE, _is(token)),
    ]


def batch_line(batch: SubscribeResponse | SubscribeDropped) -> str:
    """Encode a batch of a subscription as a line of JSON."""
    if isinstance(batch, SubscribeDropped):
        return json.dumps({"dropped_at": batch.upper}) + "\n"
    head: dict[str, object] = {"lower": batch.lower, "upper": batch.upper}
    if batch.shard:
        head["shard"] = batch.shard
    if batch.error:
        return json.dumps({**head, "error": batch.error}) + "\n"
    rows = [] if batch.updates is None else list(as_json(from_ipc(batch.updates)))
    return f'{json.dumps(head)[:-1]}, "updates": [{", ".join(rows)}]}}\n'


def _run_sql(application: Application, text: str, given_up: threading.Event) -> pa.Table:
    return application.sql(text, cancelled=given_up)


def _allow_writes(application: Application) -> None:
    # Outside of the steps: where another controller is in charge nothing is done.
    application.check_in_charge()
    hint = "it goes on by itself: look at `status`, or ask again"
    with steps_of("the take-over of the location", hint):
        application.allow_writes()


def _configure(application: Application, text: str) -> None:
    name, found, value = text.partition("=")
    if not found:
        raise InvalidUsage(
            f"'{text}' is no setting", code="INVALID_SETTING", hint="write index_limit=1g"
        )
    application.configure({name.strip(): value.strip()})


def _is(token: str) -> Callable[[str], bool]:
    return lambda given: is_token(given, token)


def _subscribe(
    application: Application, closes: DaemonPool
) -> Callable[[Request], Awaitable[Response]]:
    """Make the route that streams a subscription, and closes it when its client is gone."""

    async def subscribe(request: Request) -> Response:
        query = (await read_body(request, Query)).query
        subscription = await run_in_threadpool(application.subscribe, query)
        return StreamingResponse(_lines(subscription, closes), media_type="application/x-ndjson")

    return subscribe


class _Drop(msgspec.Struct, forbid_unknown_fields=True):
    """Objects to drop; without `commit` it is only said what that would delete."""

    names: list[str]
    commit: bool = False


def _drop(application: Application, observe: Observe) -> Callable[[Request], Awaitable[Response]]:
    """Make the route by which a drop is shown and carried out."""
    clock = SystemClock()

    def drop(asked: _Drop) -> dict[str, object]:
        # In the thread that does it: what came of it is known also if the client has gone.
        with ExitStack() as recorded:
            for name in asked.names if asked.commit else ():
                recorded.enter_context(recorded_action(observe, clock, "drop", name))
            return _dropped(application, asked.names, commit=asked.commit)

    async def answer(request: Request) -> Response:
        asked = await read_body(request, _Drop)
        return JSONResponse(await run_in_threadpool(drop, asked))

    return answer


def _dropped(application: Application, names: list[str], *, commit: bool) -> dict[str, object]:
    """Say what a drop deletes and, with `commit`, do it."""
    # Before it, also with `commit`: afterwards nobody can say what there was.
    plan = application.plan_drop(names)
    dropped: list[str] = []
    if commit:
        with steps_of(f"the drop of {', '.join(names)}", _LOOK):
            dropped = application.drop(names)
    return {"plan": drop_plan_json(plan), "dropped": dropped}


class _Texts(msgspec.Struct, forbid_unknown_fields=True):
    """A project: its texts by file name, variables put in, which it is, and what it may lose."""

    files: dict[str, str]
    dry_run: bool = False
    project: ProjectIdentity | None = None
    allow_replace: bool = False
    allow_shorten: bool = False
    adopt: bool = False


def _project(
    application: Application, observe: Observe
) -> Callable[[Request], Awaitable[Response]]:
    """Make the route by which a project is compared, planned and applied.

    A project is applied to its end, even if its client stops waiting.
    """
    clock = SystemClock()
    compare = SharedAnswer(lambda: msgspec.to_builtins(application.comparison.compare()))

    async def project(request: Request) -> Response:
        if request.method != "POST":
            return JSONResponse(await compare.get())
        sent = await read_body(request, _Texts, _PROJECT_MAX)
        if not sent.dry_run and not any(text.strip() for text in sent.files.values()):
            # A client that has failed to read its files would stop everything that runs.
            raise InvalidUsage(
                "the project has no text",
                code="EMPTY_PROJECT",
                hint="send its files; one with a comment alone stops everything, if that is meant",
            )
        change = partial(
            application.change,
            sent.files,
            dry_run=sent.dry_run,
            identity=sent.project,
            allowed=Permissions(
                replace=sent.allow_replace, shorten=sent.allow_shorten, adopt=sent.adopt
            ),
        )
        named = "" if sent.project is None else sent.project.name or sent.project.folder
        applied = partial(_applied, change, partial(recorded_action, observe, clock), named)
        plan = await run_in_threadpool(change if sent.dry_run else applied)
        return JSONResponse({"plan": plan_json(plan)})

    return project


def _applied(
    change: Callable[[], Plan],
    recorded: Callable[[str, str], AbstractContextManager[None]],
    named: str,
) -> Plan:
    with recorded("apply_project", named), steps_of("the change of the project", _LOOK):
        return change()


async def _lines(subscription: Subscription, closes: DaemonPool) -> AsyncIterator[str]:
    loop, readable = asyncio.get_running_loop(), asyncio.Event()

    def notify() -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody reads any more
            loop.call_soon_threadsafe(readable.set)

    try:
        subscription.watch(notify)
        while True:
            await readable.wait()
            # Before it is read empty: a batch that comes meanwhile sets it again.
            readable.clear()
            # A thread only for a batch that is there. The loop has few of them, for all requests: a
            # few dozen subscriptions that wait in threads would keep all other requests waiting.
            while (batch := await asyncio.to_thread(subscription.take, 0.0)) is not None:
                yield await asyncio.to_thread(batch_line, batch)
                if is_last(batch):
                    return
    finally:
        # Nothing is awaited: the server cancels that again and again once a client is gone.
        closes.run(subscription.close)

"""The HTTP client sends the requests of other commands to the running application.

    where = find(folder)
    check_running(where)                   raises unless the application itself answers
    table = run_query(where, "SELECT …", timeout_ms=60_000)
    for line in follow_subscription(where, "SUBSCRIBE delays"): …
    run_action(where, "configure", "index_limit=1g")
    drop_plan_from_json(drop_objects(where, ["delays"], commit=False)["plan"])
    plan_from_json(send_project(where, files, dry_run=True, timeout_ms=60_000)["plan"])

An error in an answer is raised here with its code and hint, and one of a read as what it was
there: a part that is damaged is `Corrupt`, and no reason to ask again. Where something was to
change, and no answer says whether it has, the error is `Indeterminate`: it may have been done.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from typing import Any, Final
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, ProxyHandler, Request, build_opener

import msgspec
import pyarrow as pa
from typing_extensions import override

from shardline.app.compute.results import from_ipc
from shardline.app.project.permission import Permissions
from shardline.app.protocol.error_kinds import class_of
from shardline.app.protocol.project_identity import ProjectIdentity
from shardline.app.server.api import ARROW
from shardline.app.server.discovery import (
    LOCATION_HEADER,
    ApplicationAddress,
    request_headers,
)
from shardline.datasource.errors import Determinate, Indeterminate, InvalidUsage, ShardError

__all__ = [
    "answers",
    "ask_errors",
    "check_running",
    "drop_objects",
    "follow_subscription",
    "get_json",
    "has_failed",
    "run_action",
    "run_query",
    "send_project",
]

_MORE_MS: Final = 5000.0
"""Added to each time-out: the application gives up first, and its answer has the reason."""

_PROBE_S: Final = 10.0
"""Time in which an application says which one it is."""

_READ_BACK: Final = "it may have been done, or may be yet: look at `status` before you repeat it"


class _NoRedirect(HTTPRedirectHandler):
    """Follows nothing: an application never redirects, and the next request has the token, too."""

    @override
    def redirect_request(self, *_: object) -> None:
        """Make no request; the answer is then an error like any other."""


_OPENER: Final = build_opener(ProxyHandler({}), _NoRedirect)
"""Asks the application itself. A proxy of the environment is for the web outside; it would get the
token in clear text, and in its own network this address is another machine, or none."""

_ASK_AGAIN: Final = "it may be busy: ask again, or look at its log"
"""Hint for a read that has no answer in time; only `sql` has an option to wait for longer."""

_WAIT_LONGER: Final = (
    "wait for longer with --timeout; the application ends a query after its runtime.query_timeout"
)

_CLIENT_ERROR: Final = 400
_SERVER_ERROR: Final = 500


def check_running(where: ApplicationAddress) -> None:
    """Make sure that the application itself answers at its address, before it gets its token.

    It is asked without that: since it was killed another program may have got its port. An address
    that names no location, such as one of a command line, is taken as it is.

    Raises:
        InvalidUsage: `NOT_RUNNING`: nothing answers there, or another program does.
        Determinate: It did not answer in time, or failed to.
    """
    if not where.location:
        return
    request = Request(f"{where.url}/healthz")  # noqa: S310 - the address is the application's own
    location = None
    try:
        with _answered(request, where.url, _PROBE_S, changes=False) as response:
            location = response.headers.get(LOCATION_HEADER)
    except InvalidUsage as error:
        # Any other code is of a program that has no such address.
        if error.code == "NOT_RUNNING":
            raise
    if location != where.location:
        raise InvalidUsage(
            f"the application that is meant does not run: another program answers at {where.url}",
            code="NOT_RUNNING",
            hint="it has ended, or was killed: start it again",
        )


def answers(where: ApplicationAddress) -> bool:
    """True if the application itself answers at its address; see `check_running`."""
    try:
        check_running(where)
    except ShardError:
        return False
    return True


def run_query(where: ApplicationAddress, query: str, timeout_ms: float) -> pa.Table:
    """Run a query and return its result.

    Raises:
        InvalidUsage: The query cannot be run, or nothing answers there.
        Determinate: It was not answered in time, or failed.
        ShardError: It failed there by another error.
    """
    body = {"query": query}
    with _post(
        where, "sql", body, timeout_ms, changes=False, accept=ARROW, late=_WAIT_LONGER
    ) as response:
        return from_ipc(response.read())


def follow_subscription(where: ApplicationAddress, query: str) -> Iterator[dict[str, Any]]:
    """Yield the intervals of a subscription, as `POST /api/v1/subscribe` sends them, to its end.

    The last one has no upper, or is one of which `has_failed` is true.

    Raises:
        InvalidUsage: There is no such object, or nothing answers there, or no more.
    """
    with _post(where, "subscribe", {"query": query}, None, changes=False) as response:
        for line in response:
            # The end of a process closes its connections like an answer that is complete, and the
            # library takes chunks that do not come for the end: what is cut is a line, or nothing.
            if not line.endswith(b"\n"):
                break
            batch = json.loads(line)
            yield batch
            if has_failed(batch) or batch["upper"] is None:
                return
        raise _not_running(where.url, "the subscription has broken off")


def has_failed(batch: Mapping[str, Any]) -> bool:
    """True if a subscription ends with this interval before it has what it asked for.

    That is an error, or a drop of what is followed.
    """
    return "error" in batch or "dropped_at" in batch


def run_action(
    where: ApplicationAddress, action: str, target: str, timeout_ms: float = 60_000
) -> Any:
    """Run an action and return its result.

    Raises:
        InvalidUsage: It cannot be done, or nothing answers there.
        Indeterminate: It may have been done: there was no answer, or an error.
    """
    body = {"target": target}
    with _post(where, f"actions/{action}", body, timeout_ms, changes=True) as response:
        return _read_object(response, "result")["result"]


def drop_objects(
    where: ApplicationAddress, names: Sequence[str], *, commit: bool, timeout_ms: float = 60_000
) -> Mapping[str, Any]:
    """Say what a drop deletes and, with `commit`, do it.

    Returns:
        In `plan` what goes, for `shardline.app.project.dropping.drop_plan_from_json`; in `dropped`
        the shards that are gone.

    Raises:
        InvalidUsage: It cannot be done, or nothing answers there.
        Determinate: There was no answer in time, or it failed; without `commit`.
        Indeterminate: It may have been done: there was no answer, or an error.
    """
    body = {"names": list(names), "commit": commit}
    with _post(where, "drop", body, timeout_ms, changes=commit) as response:
        return _read_object(response, "plan")


def ask_errors(
    where: ApplicationAddress, request: Mapping[str, object], timeout_ms: float = 60_000
) -> Mapping[str, Any]:
    """Return the answer of `POST /api/v1/errors`.

    Raises:
        InvalidUsage: There is no such object or error, or nothing answers there.
        Determinate: It was not answered in time, or failed; without `commit`.
        Indeterminate: It may have been done: there was no answer, or an error.
    """
    changes = bool(request.get("commit"))
    with _post(where, "errors", request, timeout_ms, changes=changes) as response:
        return _read_object(response)


def send_project(
    where: ApplicationAddress,
    files: Mapping[str, str],
    *,
    identity: ProjectIdentity | None = None,
    dry_run: bool,
    allowed: Permissions | None = None,
    timeout_ms: float,
) -> Mapping[str, Any]:
    """Apply a project, or only plan it.

    Args:
        where: The application.
        files: The project's texts by file name, with variables replaced.
        identity: Which project it is; None for no claim.
        dry_run: Plan only; change nothing.
        allowed: What it may lose; None for nothing.
        timeout_ms: How long to wait; a project is applied to its end all the same.

    Returns:
        In `plan` the plan, for `shardline.app.project.plan.plan_from_json`.

    Raises:
        InvalidUsage: The project has problems, all of which are in the error; or nothing answers
            there.
        Determinate: There was no answer in time, or it failed; of a dry run.
        Indeterminate: It may have been applied: there was no answer, or an error.
    """
    allowed = allowed or Permissions()
    body = {
        "files": dict(files),
        "dry_run": dry_run,
        "project": None if identity is None else msgspec.to_builtins(identity),
        "allow_replace": allowed.replace,
        "allow_shorten": allowed.shorten,
        "adopt": allowed.adopt,
    }
    with _post(where, "project", body, timeout_ms, changes=not dry_run) as response:
        return _read_object(response, "plan")


@contextmanager
def _post(
    where: ApplicationAddress,
    route: str,
    body: Mapping[str, object],
    timeout_ms: float | None,
    *,
    changes: bool,
    accept: str = "application/json",
    late: str = _ASK_AGAIN,
) -> Iterator[HTTPResponse]:
    headers = {**request_headers(where), "Content-Type": "application/json", "Accept": accept}
    request = Request(  # noqa: S310 - the address is the application's own
        f"{where.url}/api/v1/{route}", json.dumps(body).encode(), headers
    )
    timeout_s = None if timeout_ms is None else (timeout_ms + _MORE_MS) / 1000
    with _answered(request, where.url, timeout_s, changes=changes, late=late) as response:
        yield response


@contextmanager
def _answered(
    request: Request,
    url: str,
    timeout_s: float | None,
    *,
    changes: bool,
    late: str = _ASK_AGAIN,
) -> Iterator[HTTPResponse]:
    """The answer to a request; its errors, and those of an answer that does not come."""
    try:
        with _OPENER.open(request, timeout=timeout_s) as response:
            yield response
    except HTTPError as error:
        raise _answered_error(error, changes=changes) from None
    except TimeoutError:
        what = f"the application at {url} did not answer in time"
        if changes:
            raise Indeterminate(what, code="TIMEOUT", hint=_READ_BACK) from None
        raise Determinate(what, code="TIMEOUT", hint=late) from None
    except (URLError, ConnectionError, HTTPException) as error:
        # `open` wraps what it meets before the request is sent whole, and nothing after that.
        if changes and not isinstance(error, URLError):
            raise Indeterminate(
                f"the application at {url} ended before it had answered",
                code="NO_ANSWER",
                hint=_READ_BACK,
            ) from None
        raise _not_running(url, getattr(error, "reason", error)) from None
    except ValueError:  # it was read as JSON, or as Arrow's format
        what, code = f"what answers at {url} is no answer of an application", "HTTP_ERROR"
        if changes:
            raise Indeterminate(what, code=code, hint=_READ_BACK) from None
        hint = "the application was perhaps killed, and another program has got its port"
        raise Determinate(what, code=code, hint=hint) from None


def _read_object(response: HTTPResponse, *names: str) -> Mapping[str, Any]:
    """The object of an answer, which has these names.

    Raises:
        ValueError: It is none.
    """
    answer = json.loads(response.read())
    if not isinstance(answer, dict) or not answer.keys() >= set(names):
        raise ValueError("not an answer of an application")
    return answer


def _not_running(url: str, reason: object) -> InvalidUsage:
    return InvalidUsage(
        f"nothing answers at {url}: {reason}",
        code="NOT_RUNNING",
        hint="the application has ended, or was killed: start it again",
    )


def get_json(where: ApplicationAddress, path: str, timeout_ms: float = 10_000) -> Any:
    """Return the answer of `GET /api/v1/{path}`.

    Raises:
        InvalidUsage: It is refused, or nothing answers there.
        Determinate: There was no answer in time, or it failed.
    """
    address = f"{where.url}/api/v1/{path}"
    request = Request(address, headers=request_headers(where))  # noqa: S310 - as below
    with _answered(request, where.url, timeout_ms / 1000, changes=False) as response:
        return json.load(response)


def _answered_error(error: HTTPError, *, changes: bool) -> ShardError:
    """The error of an answer; one that is not of our form, or cut, becomes `HTTP_ERROR`."""
    answered: type[ShardError] | None = None
    try:
        problem = json.loads(error.read())["error"]
        code, message, hint = problem["code"], problem["message"], problem["hint"]
        answered = class_of(problem.get("kind"))
    except (ValueError, KeyError, TypeError, AttributeError, HTTPException, OSError):
        code, message, hint = "HTTP_ERROR", f"the application answered {error.code}", ""
    made: type[ShardError]
    if _CLIENT_ERROR <= error.code < _SERVER_ERROR:
        made = InvalidUsage
    elif changes:
        # Whatever has failed: it may be the second of two steps, and the first one was done.
        made = Indeterminate
    else:
        # A read has no outcome but its answer.
        made = answered if answered not in (None, Indeterminate) else Determinate
    return made(message, code=code, hint=hint)

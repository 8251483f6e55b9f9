"""The route `POST /api/v1/errors` shows the bad rows of an object, and has them taken away.

    {"id": "flights"}                                                     what there is
    {"id": "flights", "act": "retract", "errors": ["3f9c2a1b"]}           what would be done
    {"id": "flights", "act": "retract", "errors": […], "commit": true}    done

The answer has the sources that the object is made of, each with its live errors and its skipped
rows, the newest thousand of either and how many there are, the number of the chosen ones, and, when
it was done, how many were retracted.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.responses import JSONResponse

from shardline.app.coordinator.change_steps import steps_of
from shardline.app.coordinator.error_repairs import ErrorRepairs, SourceErrors
from shardline.app.coordinator.offline_repairs import OfflineRepairs
from shardline.app.server.action_log import Observe, recorded_action
from shardline.app.server.api import read_body
from shardline.app.storage.error_lines import find_lines
from shardline.app.storage.repair import BadRow, BadRows
from shardline.datasource.clock import SystemClock
from shardline.datasource.errors import InvalidUsage, unknown_names

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

__all__ = ["ErrorsRequest", "answer_errors", "errors_route"]

_LOOK: Final = "show the errors again: those that are gone were taken away"
"""Hint for a repair after which nothing could be shown."""


class ErrorsRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The body of a request.

    Attributes:
        id: Name of an object; of a source, to do something.
        act: What to do with its live errors.
        errors: Ids of those that are meant; empty for all.
        commit: True to do it; otherwise it is only shown.
    """

    id: str
    act: Literal["show", "retract", "skip"] = "show"
    errors: list[str] = []
    commit: bool = False


def errors_route(
    repairs: ErrorRepairs, observe: Observe
) -> Callable[[Request], Awaitable[Response]]:
    """Make the handler of the route; `observe` takes what was done."""
    clock = SystemClock()

    async def errors(request: Request) -> Response:
        asked = await read_body(request, ErrorsRequest)
        answer = partial(answer_errors, repairs, asked)
        if asked.act == "show" or not asked.commit:
            return JSONResponse(await run_in_threadpool(answer))
        with recorded_action(observe, clock, f"{asked.act}_errors", asked.id):
            return JSONResponse(await run_in_threadpool(answer))

    return errors


def answer_errors(repairs: ErrorRepairs | OfflineRepairs, asked: ErrorsRequest) -> dict[str, Any]:
    """Show bad rows, or have them taken away.

    Raises:
        Indeterminate: As of `ErrorRepairs`; or what is left cannot be shown after a repair.
        ShardError: As of `ErrorRepairs`.
    """
    shown = repairs.show(asked.id, asked.errors)
    answer: dict[str, Any] = {"id": asked.id, "act": asked.act, "commit": asked.commit}
    if asked.act != "show":
        own = next((one for one in shown if one.source == asked.id), None)
        if own is None:
            names = ", ".join(f"`errors {one.source}`" for one in shown) or "none"
            raise InvalidUsage(
                f"'{asked.id}' is no source: its errors are those of what it reads",
                code="NO_SOURCE",
                hint=f"act on its sources: {names}",
            )
        meant = _meant(own, asked.errors)
        answer["chosen"] = meant.count
        if asked.commit and meant.count:
            # The ids, if they were given, and the time that was shown: nothing that comes
            # meanwhile is taken away unseen.
            answer["retracted"] = repairs.repair(asked.id, asked.act, own.live.as_of, asked.errors)
            with steps_of(f"the repair of '{asked.id}'", _LOOK):
                shown = repairs.show(asked.id)
        else:
            shown = [SourceErrors(own.source, meant, own.skipped)]
    answer["sources"] = [_source(one) for one in shown]
    answer["live"] = sum(one.live.count for one in shown)
    return answer


def _meant(own: SourceErrors, ids: Sequence[str]) -> BadRows:
    if not ids:
        return own.live
    known = {row.id: row for row in own.live.rows}
    unknown = [one for one in ids if one not in known]
    if unknown:
        raise unknown_names("error", unknown, known)
    wanted = set(ids)
    rows = tuple(row for row in own.live.rows if row.id in wanted)
    return replace(own.live, rows=rows, count=sum(row.count for row in rows))


def _source(one: SourceErrors) -> dict[str, Any]:
    return {
        "source": one.source,
        "live": _rows(one.live.rows),
        "live_count": one.live.count,
        "skipped": _rows(one.skipped.rows),
        "skipped_count": one.skipped.count,
    }


def _rows(rows: Iterable[BadRow]) -> list[dict[str, Any]]:
    listed = list(rows)
    lines = find_lines((row.file, row.raw) for row in listed)
    return [{**asdict(row), "line": line} for row, line in zip(listed, lines, strict=True)]

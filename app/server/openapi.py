"""The OpenAPI description is made of the declared relations and of the routes that are served.

A relation that is added is described by its own columns; a path that is not served is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
import pyarrow as pa

from shardline.app.introspection.relation import Relation
from shardline.app.protocol.error_kinds import KINDS
from shardline.app.server.access import TOKEN_PROTOCOL
from shardline.app.server.subscription_messages import PROTOCOL, Request, ServerMessage

__all__ = ["openapi"]

_TEXT: Final = {"type": "string"}
_OBJECT: Final = {"type": "object"}
_OBJECTS: Final = {"type": "array", "items": _OBJECT}
_QUERY: Final = {"query": _TEXT}
_ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["kind", "code", "message", "hint"],
            "properties": {
                "kind": {
                    "type": "string",
                    "enum": list(KINDS),
                    "description": "what to do next: determinate, ask again; indeterminate, look "
                    "whether it was done; invalid_usage, ask for something else; others, stop",
                },
                **{name: {"type": "string"} for name in ("code", "message", "hint")},
            },
        }
    },
}


def _answer(**fields: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of an answer that has these fields."""
    return {"type": "object", "required": list(fields), "properties": fields}


_STATUS: Final = _answer(status=_TEXT)
_RESULT: Final = _answer(
    columns={"type": "array", "items": _answer(name=_TEXT, type=_TEXT)},
    rows={
        "type": "array",
        "items": {"type": "array", "items": {}},
        "description": (
            "values in the order of columns; numbers that JSON has not are the texts NaN, Infinity "
            "and -Infinity, decimals are text, binary is base64, dates and times are ISO 8601"
        ),
    },
)
_LINE: Final = {"type": "integer", "description": "from 1; 0: none"}
_COMPARED: Final = _answer(
    name=_TEXT,
    folder=_TEXT,
    changes={
        "type": "array",
        "items": _answer(
            object=_TEXT,
            change={"type": "string", "enum": ["create", "change", "replace", "drop", "none"]},
            now={"type": ["string", "null"], "description": "the definition that runs"},
            wanted={"type": ["string", "null"], "description": "that of the project"},
            why={"type": "array", "items": _TEXT},
            file=_TEXT,
            line=_LINE,
        ),
    },
    problems={
        "type": "array",
        "items": _answer(
            file=_TEXT, line=_LINE, column=_LINE, code=_TEXT, message=_TEXT, hint=_TEXT
        ),
    },
    refused={**_TEXT, "description": "why a run of it would be refused; empty: it would not"},
)
_TIME: Final = {"type": ["integer", "null"], "description": "ms since the epoch; null: the end"}
_INTERVAL: Final = {
    "type": "object",
    "properties": {
        "lower": _TIME,
        "upper": _TIME,
        "shard": {**_TEXT, "description": "id of what they are of, for OF SHARD when going on"},
        "updates": {**_OBJECTS, "description": "rows, with their _ts and _diff"},
        "error": {**_TEXT, "description": "what has ended it"},
        "dropped_at": {**_TIME, "description": "ended by the application before this time"},
    },
}


def openapi(relations: Mapping[str, Relation], routed: Iterable[str]) -> dict[str, Any]:
    """Make the description in OpenAPI 3.1.

    Args:
        relations: Declared relations by name; each has a path of its own with its columns.
        routed: Paths that are served; descriptions of others are left out.
    """
    served = set(routed)
    paths = {path: item for path, item in _paths().items() if path in served}
    for relation in relations.values():
        paths[f"/api/v1/relations/{relation.name}"] = {"get": _relation(relation)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Shardline", "version": "1"},
        "paths": paths,
        "components": {
            "schemas": {
                "Error": _ERROR,
                **_message_schemas(),
                **{relation.name: _schema(relation) for relation in relations.values()},
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _changing_paths() -> dict[str, Any]:
    """The paths by which a project, its objects and their errors are changed."""
    return {
        "/api/v1/project": {
            "get": _get(
                "The project's files as they are now against what runs; nothing is changed",
                _COMPARED,
            ),
            "post": _post(
                "Make a project run, or, with dry_run, only say what that would do",
                {"files": {"type": "object", "additionalProperties": _TEXT}},
                _answer(plan=_OBJECT),
                optional={
                    **{
                        name: {"type": "boolean", "default": False}
                        for name in ("dry_run", "allow_replace", "allow_shorten", "adopt")
                    },
                    "project": {
                        "type": ["object", "null"],
                        "properties": {"name": _TEXT, "folder": _TEXT},
                        "additionalProperties": False,
                    },
                },
            ),
        },
        "/api/v1/drop": {
            "post": _post(
                "Say what a drop of objects deletes for good and, with commit, do it",
                {"names": {"type": "array", "items": _TEXT}},
                _answer(plan=_OBJECT, dropped={"type": "array", "items": _TEXT}),
                optional={"commit": {"type": "boolean", "default": False}},
            )
        },
        "/api/v1/errors": {
            "post": _post(
                "Rows that could not be decoded: show them, or, with commit, take them away",
                {"id": _TEXT},
                _OBJECT,
                optional={
                    "act": {"type": "string", "enum": ["show", "retract", "skip"]},
                    "errors": {"type": "array", "items": _TEXT},
                    "commit": {"type": "boolean", "default": False},
                },
            )
        },
    }


def _paths() -> dict[str, Any]:
    """All paths that an application may serve, besides its relations."""
    name = [_parameter("name", "path")]
    return {
        "/api/v1/openapi.json": {"get": _get("This description", _OBJECT)},
        "/api/v1/relations": {
            "get": _get("Names, columns and meanings of all relations", _answer(relations=_OBJECTS))
        },
        "/api/v1/objects": {
            "get": _get("All objects, with their status", _answer(objects=_OBJECTS))
        },
        "/api/v1/objects/{name}": {
            "get": {
                **_get(
                    "One object: its rows of every relation that is about objects",
                    {**_OBJECT, "additionalProperties": _OBJECTS},
                ),
                "parameters": name,
            }
        },
        "/api/v1/sql": {"post": _post("Run a query once", _QUERY, _RESULT)},
        "/api/v1/subscribe": {
            "post": _post(
                "Follow an object: a line of JSON for each interval, until the client leaves",
                _QUERY,
                _INTERVAL,
                content="application/x-ndjson",
            )
        },
        **_changing_paths(),
        "/api/v1/session": {"post": _session()},
        "/api/v1/actions/{name}": {
            "post": {
                **_post(
                    "Run an action, such as a pause of an object; drop, compact, collect, sweep "
                    "and expire_hold only say what they would do, unless commit is true",
                    {"target": _TEXT},
                    _answer(result={"description": "what the action returns"}),
                    optional={
                        "commit": {
                            "type": "boolean",
                            "description": "do it, and not only say so; of these five only",
                        }
                    },
                ),
                "parameters": name,
            }
        },
        "/api/v1/subscriptions": {"get": _relations_socket()},
        "/v1/compute": {"get": _socket("The compute controller of a runtime elsewhere")},
        "/v1/storage": {"get": _socket("The storage controller of a runtime elsewhere")},
        "/metrics": {"get": _get("The same numbers for Prometheus", _TEXT, "text/plain")},
        "/healthz": {"get": _get("Whether the process answers", _STATUS)},
        "/readyz": {"get": _get("Whether the application can serve queries", _STATUS)},
    }


def _session() -> dict[str, Any]:
    """The description of the path by which a page gets the token; whoever asks has none yet."""
    summary = "The token, for a one-time code, or checked: exactly one of both is sent"
    described = _post(summary, {}, _answer(token=_TEXT), optional={"code": _TEXT, "token": _TEXT})
    return {**described, "security": [{}]}


def _relation(relation: Relation) -> dict[str, Any]:
    rows = {"type": "array", "items": {"$ref": f"#/components/schemas/{relation.name}"}}
    is_timed = any(column.name == "occurred_at" for column in relation.columns)
    answer = _answer(rows=rows)
    if is_timed:
        answer["properties"]["earlier"] = {"type": "integer", "minimum": 0}
    described = _get(f"{relation.comment}.", answer)
    where = {
        "type": "object",
        "additionalProperties": {"type": ["string", "number", "boolean", "null"]},
    }
    described["parameters"] = [
        {
            "name": "where",
            "in": "query",
            "required": False,
            "description": "columns with the values that rows must have",
            "content": {"application/json": {"schema": where}},
        }
    ]
    if relation.object:
        described["parameters"].append(_parameter("object", "query"))
    if relation.past is not None:
        described["parameters"].append(
            _moment(
                "as_of",
                "rows as of an earlier moment, in ms since the epoch, as far as the histories "
                f"have it ({', '.join(relation.past.histories)}); refused with BEFORE_HISTORY, "
                "NOT_RECORDED or NOT_YET where they do not",
            )
        )
    if is_timed:
        described["parameters"].append(
            _moment(
                "from",
                "only rows that occurred at this moment or later, in ms since the epoch; `earlier` "
                "of the answer is how many others there are",
            )
        )
    return described


def _moment(name: str, description: str) -> dict[str, Any]:
    """A parameter with a moment."""
    return {
        "name": name,
        "in": "query",
        "required": False,
        "description": description,
        "schema": {"type": "integer", "minimum": 0},
    }


def _schema(relation: Relation) -> dict[str, Any]:
    return {
        "type": "object",
        "description": relation.comment,
        "properties": {
            column.name: {**_type(column.type), "description": column.comment}
            for column in relation.columns
        },
    }


def _type(kind: pa.DataType) -> dict[str, Any]:
    if pa.types.is_list(kind):
        return {"type": ["array", "null"], "items": _type(kind.value_type)}
    if pa.types.is_timestamp(kind):
        return {"type": ["string", "null"], "format": "date-time"}
    names = {pa.int64(): "integer", pa.float64(): "number", pa.bool_(): "boolean"}
    return {"type": [names.get(kind, "string"), "null"]}


def _get(
    summary: str, schema: Mapping[str, Any], content: str = "application/json"
) -> dict[str, Any]:
    return {
        "summary": summary,
        "responses": {
            "200": {"description": "the answer", "content": {content: {"schema": schema}}},
            "default": _failure(),
        },
    }


def _post(
    summary: str,
    fields: Mapping[str, Any],
    answer: Mapping[str, Any],
    *,
    content: str = "application/json",
    optional: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    body = {
        "type": "object",
        "required": list(fields),
        "additionalProperties": False,
        "properties": {**fields, **(optional or {})},
    }
    return {
        **_get(summary, answer, content),
        "security": [{"token": []}],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
    }


def _socket(summary: str) -> dict[str, Any]:
    """The description of a path on which a WebSocket is opened."""
    return {
        "summary": f"{summary}, over a WebSocket",
        "security": [{"token": []}],
        "responses": {"101": {"description": "a WebSocket"}, "default": _failure()},
    }


def _relations_socket() -> dict[str, Any]:
    """The description of the WebSocket by which relations are followed."""
    described = _socket("Follow any relations on one connection: a snapshot, then what changes")
    return {
        **described,
        "description": (
            "The client sends components/schemas/Request, the server ServerMessage; each message "
            "has one field. Needs the token only where reading needs it; a browser may offer it as "
            f"the subprotocol {TOKEN_PROTOCOL}BASE64URL beside {PROTOCOL}."
        ),
        "security": [{}, {"token": []}],
    }


def _message_schemas() -> dict[str, Any]:
    """The schemas of the messages of that WebSocket, by name."""
    _, found = msgspec.json.schema_components(
        (Request, ServerMessage), ref_template="#/components/schemas/{name}"
    )
    return found


def _failure() -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Error"}
    return {"description": "an error", "content": {"application/json": {"schema": schema}}}


def _parameter(name: str, place: str) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": {"type": "string"}}

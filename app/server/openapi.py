"""The description of the JSON interface, made of the declared relations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from app.introspection.relation import Relation

__all__ = ["openapi"]

_ERROR: Final = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "hint"],
            "properties": {name: {"type": "string"} for name in ("code", "message", "hint")},
        }
    },
}


def openapi(relations: Mapping[str, Relation]) -> dict[str, Any]:
    """The description, as OpenAPI 3.1."""
    paths: dict[str, Any] = {
        "/api/v1/relations": {"get": _get("Names, columns and meanings of all relations")},
        "/api/v1/objects": {"get": _get("All objects, with their status")},
        "/api/v1/objects/{name}": {
            "get": {
                **_get("One object: its rows of every relation that is about objects"),
                "parameters": [_parameter("name", "path")],
            }
        },
        "/api/v1/sql": {"post": _post("Run a query once", "query")},
        "/api/v1/actions/{name}": {
            "post": {
                **_post("Run an action, such as compaction of a shard", "target"),
                "parameters": [_parameter("name", "path")],
            }
        },
        "/metrics": {"get": _get("The same numbers for Prometheus", "text/plain")},
        "/healthz": {"get": _get("Whether the process answers")},
        "/readyz": {"get": _get("Whether the application can serve queries")},
    }
    for relation in relations.values():
        paths[f"/api/v1/relations/{relation.name}"] = {"get": _relation(relation)}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Shardline", "version": "1"},
        "paths": paths,
        "components": {
            "schemas": {"Error": _ERROR, **{r.name: _schema(r) for r in relations.values()}},
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _relation(relation: Relation) -> dict[str, Any]:
    rows = {"type": "array", "items": {"$ref": f"#/components/schemas/{relation.name}"}}
    described = _get(
        f"{relation.comment}.", schema={"type": "object", "properties": {"rows": rows}}
    )
    if relation.object:
        described["parameters"] = [_parameter("object", "query")]
    return described


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
    summary: str, content: str = "application/json", schema: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "summary": summary,
        "responses": {
            "200": {"description": "the answer", "content": {content: {"schema": schema or {}}}},
            "default": _failure(),
        },
    }


def _post(summary: str, field: str) -> dict[str, Any]:
    body = {
        "type": "object",
        "required": [field],
        "additionalProperties": False,
        "properties": {field: {"type": "string"}},
    }
    return {
        **_get(summary),
        "security": [{"token": []}],
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
    }


def _failure() -> dict[str, Any]:
    schema = {"$ref": "#/components/schemas/Error"}
    return {"description": "an error", "content": {"application/json": {"schema": schema}}}


def _parameter(name: str, place: str) -> dict[str, Any]:
    return {"name": name, "in": place, "required": place == "path", "schema": {"type": "string"}}

"""Rendering turns the description of a source or sink into something that runs.

It is the one function of the room that the lane calls. Ingestions and sinks load PySpark, so their
modules are imported when there is the first object of their kind.
"""

from __future__ import annotations

from typing import assert_never

from shardline.app.execution.host import Host, Incarnation, Running
from shardline.app.execution.live_errors import EMPTY_CATALOG, Catalog
from shardline.app.protocol.objects import SinkDescription, SourceDescription

__all__ = ["render"]


def render(
    host: Host,
    incarnation: Incarnation,
    description: SourceDescription | SinkDescription,
    catalog: Catalog = EMPTY_CATALOG,
) -> Running:
    """Start a source or a sink; its state and errors come through `host.report`.

    Args:
        host: What all objects share.
        incarnation: The number of this start.
        description: Of the source or sink.
        catalog: The inputs of objects, direct and indirect: a sink waits for their errors.

    Raises:
        InvalidUsage: The description cannot work.
    """
    match description:
        case SourceDescription():
            from shardline.app.storage.ingestion import run_ingestion  # noqa: PLC0415

            return run_ingestion(host, incarnation, description)
        case SinkDescription():
            from shardline.app.storage.sink_query import run_sink  # noqa: PLC0415

            return run_sink(host, incarnation, description, catalog)
        case _:
            assert_never(description)

"""How the lane makes a source or a sink run."""

from __future__ import annotations

from typing import assert_never

from shardline.app.execution.host import Host, Incarnation, Running
from shardline.app.protocol.objects import SinkDescription, SourceDescription

__all__ = ["render"]


def render(
    host: Host, incarnation: Incarnation, description: SourceDescription | SinkDescription
) -> Running:
    """Start it; what becomes of it is told through `host.report`."""
    # Each loads only when there is one of its kind.
    match description:
        case SourceDescription():
            from shardline.app.storage.ingestion import run_ingestion  # noqa: PLC0415

            return run_ingestion(host, incarnation, description)
        case SinkDescription():
            from shardline.app.storage.sink_query import run_sink  # noqa: PLC0415

            return run_sink(host, incarnation, description)
        case _:
            assert_never(description)

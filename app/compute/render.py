"""How the lane makes a dataflow run: a view, an index or a subscription.

    render(host, incarnation, description) -> Running

Invariants:
    Those of `app.rendering`.
"""

from __future__ import annotations

from typing import assert_never

from app.bounds import Bounds
from app.compute.following import UNCONNECTED, Catalog
from app.protocol.objects import (
    Dataflow,
    IndexDescription,
    SubscribeDescription,
    ViewDescription,
)
from app.rendering import Host, Incarnation, Running

__all__ = ["render"]


def render(
    host: Host,
    incarnation: Incarnation,
    description: Dataflow,
    catalog: Catalog = UNCONNECTED,
    bounds: Bounds | None = None,
) -> Running:
    """Start a dataflow at the incarnation's as_of; may take seconds.

    Args:
        host: What all share.
        incarnation: Its life.
        description: What it is.
        catalog: Knows what objects are made of: their errors end a subscription.
        bounds: Of indexes and subscriptions; None for the defaults.

    Raises:
        InvalidUsage: An input is not there, or the definition cannot be kept.
        ShardError: A store's.
    """
    chosen = bounds or Bounds()
    # Each kind is loaded when it is first used: a runtime without indexes does not pay for them.
    match description:
        case ViewDescription(inputs=()):
            from app.compute.constant import run_constant  # noqa: PLC0415

            return run_constant(host, incarnation, description)
        case ViewDescription():
            from app.compute.dataflow import run_view  # noqa: PLC0415

            return run_view(host, incarnation, description)
        case IndexDescription():
            from app.compute.index import run_index  # noqa: PLC0415

            return run_index(host, incarnation, description, settings=chosen.indexes)
        case SubscribeDescription():
            from app.compute.subscribe import run_subscribe  # noqa: PLC0415

            return run_subscribe(host, incarnation, description, catalog, chosen.subscribes)
    assert_never(description)

"""Rendering starts the dataflow of a view, an index or a subscription for the lane.

The lane knows descriptions and incarnations, and nothing of Spark; this is the one function by
which a description becomes something that runs. Materialize's `render` has the same place.

    render(host, incarnation, description) -> Running

Invariants:
    Those of `shardline.app.execution.host`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from shardline.app.execution.host import Host, Incarnation, Running
from shardline.app.execution.live_errors import EMPTY_CATALOG, Catalog
from shardline.app.protocol.objects import (
    Dataflow,
    IndexDescription,
    SubscribeDescription,
    ViewDescription,
)

if TYPE_CHECKING:
    from shardline.app.compute.index.index import IndexSettings
    from shardline.app.compute.subscribe.subscription import SubscribeSettings

__all__ = ["render"]


def render(
    host: Host,
    incarnation: Incarnation,
    description: Dataflow,
    catalog: Catalog = EMPTY_CATALOG,
    *,
    indexes: IndexSettings | None = None,
    subscribes: SubscribeSettings | None = None,
) -> Running:
    """Start a dataflow at the incarnation's as_of; may take seconds.

    Args:
        host: Shared by all objects that run.
        incarnation: The life of the object that begins here.
        description: Its definition.
        catalog: The inputs of objects, direct and indirect: their errors end a subscription.
        indexes: Settings of an index; None for the defaults.
        subscribes: Settings of a subscription; None for the defaults.

    Raises:
        InvalidUsage: An input is not there, or the definition cannot be kept.
        ShardError: A store's.
    """
    # Each kind is loaded when it is first used: a runtime without indexes does not pay for them.
    match description:
        case ViewDescription(inputs=()):
            from shardline.app.compute.view.constant import run_constant  # noqa: PLC0415

            return run_constant(host, incarnation, description)
        case ViewDescription():
            from shardline.app.compute.view.streaming_query import run_view  # noqa: PLC0415

            return run_view(host, incarnation, description)
        case IndexDescription():
            from shardline.app.compute.index.index import IndexSettings, run_index  # noqa: PLC0415

            return run_index(host, incarnation, description, settings=indexes or IndexSettings())
        case SubscribeDescription():
            from shardline.app.compute.subscribe.subscription import (  # noqa: PLC0415
                SubscribeSettings,
                run_subscription,
            )

            return run_subscription(
                host, incarnation, description, catalog, subscribes or SubscribeSettings()
            )
    assert_never(description)

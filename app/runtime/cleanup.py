"""What a dropped object has left: checkpoints on this machine, holds on what it read."""

from __future__ import annotations

import shutil
from pathlib import Path

from shardline.app.compute.holds import forget_holds
from shardline.app.lane.state import LaneObject
from shardline.app.protocol.objects import (
    IndexDescription,
    SinkDescription,
    SubscribeDescription,
    ViewDescription,
)
from shardline.app.storage.sink_query import drop_sink
from shardline.datasource.client import ShardClient

__all__ = ["forget"]


def forget(client: ShardClient, checkpoints: Path, dropped: LaneObject) -> None:
    """Remove what an object has left of which nothing runs any more; harmless again.

    Args:
        client: Of the location.
        checkpoints: Folder of the runtime's checkpoints.
        dropped: The object.
    """
    for folder in checkpoints.glob(f"{dropped.global_id}-*"):
        shutil.rmtree(folder, ignore_errors=True)
    match dropped.description:
        case ViewDescription(name=name, inputs=inputs):
            forget_holds(client, name, inputs)
        case IndexDescription(name=name, on=on) | SubscribeDescription(name=name, on=on):
            forget_holds(client, name, [on])
        case SinkDescription() as sink:
            drop_sink(client, sink)
        case _:
            pass

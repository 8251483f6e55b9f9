"""Opening gives a sink its target, by its format."""

from __future__ import annotations

from shardline.app.execution.host import Host
from shardline.app.protocol.objects import SinkDescription
from shardline.app.storage.formats import FILES
from shardline.app.storage.sinks.delta import DeltaTarget
from shardline.app.storage.sinks.files import FileTarget
from shardline.app.storage.sinks.others import (
    ConsoleTarget,
    FunctionTarget,
    MemoryTarget,
    WriterTarget,
)
from shardline.app.storage.sinks.progress import SinkProgress
from shardline.app.storage.sinks.shards import ShardTarget
from shardline.app.storage.sinks.target import Target, options_of

__all__ = ["open_target"]


def open_target(host: Host, sink: SinkDescription, progress: SinkProgress) -> Target:
    """Open the target of a sink.

    Args:
        host: Of the sink.
        sink: Says the format and the options.
        progress: The sink's accounts: how far its target is, and which definition came before.

    Raises:
        InvalidUsage: The target cannot be used, or is somebody else's.
    """
    options, recorded = options_of(sink), progress.committed
    target: Target
    match sink.format:
        case "shard":
            target = ShardTarget(host, sink, options, recorded)
        case "delta":
            target = DeltaTarget(host.spark, sink, options, progress.previous_definition)
        case "memory":
            target = MemoryTarget(sink)
        case "console":
            target = ConsoleTarget(options)
        case "foreachBatch":
            target = FunctionTarget(options)
        case name if name in FILES:
            target = FileTarget(
                host.spark,
                sink,
                options,
                host.client.state(sink.on).shard,
                recorded,
                location=host.client.location.id,
                ids=host.ids,
                check_fence=host.check_fence,
            )
        case _:
            target = WriterTarget(sink, options)
    return target

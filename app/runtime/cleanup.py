"""The cleanup removes what a dropped object has left: its checkpoints, and holds on what it read.

A hold outlives every process until it is given up: one that is left behind keeps the history of its
shard for ever. The lane calls this in the second phase of a drop, when nothing of the object runs.

By then another runtime may have taken the lane over, and run an object of that name: what it has
taken over or changed stays. Holds and accounts end only as they were before a look at the fence, by
the same write that ends them (`shardline.app.execution.ending_holds`).

The object's own shard stays: dropping data is a command of its own.
"""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

from shardline.app.compute.holds import end_view_holds
from shardline.app.execution.ending_holds import do_all
from shardline.app.lane.state import LaneObject
from shardline.app.protocol.objects import SinkDescription
from shardline.app.storage.sink_holds import drop_sink
from shardline.app.storage.source_holds import end_dropped
from shardline.datasource.client import ShardClient

__all__ = ["forget"]


def forget(
    client: ShardClient,
    checkpoints: Path,
    dropped: LaneObject,
    check_fence: Callable[[], None],
) -> None:
    """Remove what a dropped object has left. Nothing of it may run any more; harmless to repeat.

    Args:
        client: Of the location.
        checkpoints: Folder of the runtime's checkpoints.
        dropped: The object.
        check_fence: Raises if another runtime has taken the lane over.

    Raises:
        Fenced: One has; what was not removed by then stays.
        Determinate: Something is not removed yet: it is to be tried again.
        Indeterminate: The same.
        ShardError: An input is damaged, or of a newer version; all else is removed.
        OSError: The same of the folder of checkpoints.
    """
    # Each by itself: nobody looks again for what can never be removed, nor for what is behind it.
    do_all(
        (
            lambda: _delete_checkpoints(checkpoints, dropped),
            lambda: _end_holds(client, dropped, check_fence),
        )
    )


def _delete_checkpoints(checkpoints: Path, dropped: LaneObject) -> None:
    # By the global id, for all of the object's dataflow numbers: an object that was changed has a
    # folder for each definition.
    do_all(partial(_remove, folder) for folder in checkpoints.glob(f"{dropped.global_id}-*"))


def _remove(folder: Path) -> None:
    # As much as possible of it, and then by what is there: what is gone meanwhile is no failure.
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        raise OSError(errno.ENOTEMPTY, "files of a dropped object are not removed", str(folder))


def _end_holds(client: ShardClient, dropped: LaneObject, check_fence: Callable[[], None]) -> None:
    # Also those of former definitions: the runtime that has changed the object ends them once the
    # new one reads by itself, and may have died before that.
    last, read = dropped.description, dropped.inputs_so_far
    acts = [partial(end_view_holds, client, last.name, read, check_fence)]
    if isinstance(last, SinkDescription):
        acts.append(partial(drop_sink, client, last, check_fence))
    # Last: what a source has read may be in another location, which may not answer.
    if dropped.sources_so_far:
        acts.append(partial(end_dropped, client, last.name, dropped.sources_so_far, check_fence))
    do_all(acts)

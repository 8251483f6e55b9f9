"""Makes room in a shard's state for the inline parts of a commit that was refused for want of it.

What is inline belongs to other commits, which may be what no merge can read: a damaged part, a sum
of diffs that is no int64. The commit that needs the room is to blame for none of that, and has a
way out: its own parts can be blobs. So no error of this attempt is ever that of the commit.
"""

from __future__ import annotations

import logging

from shardline.datasource.errors import ShardError
from shardline.datasource.maintenance.compact import flush_inline
from shardline.datasource.shard.machine import Machine
from shardline.datasource.stores.location import LOG_REPLACED

__all__ = ["make_room"]

_log = logging.getLogger(__name__)


def make_room(machine: Machine) -> None:
    """Move inline parts of the shard to the blob store, if that is possible.

    Raises:
        InvalidUsage: The log was replaced, and is known as it is now: the caller, who was answered
            by the one before, would go on in another one without a word.
    """
    try:
        flush_inline(machine)
    except ShardError as error:
        if error.code == LOG_REPLACED:
            raise
        # Without a traceback: it may be each small append from now on.
        context = {"shard": machine.name, "code": error.code}
        _log.warning("inline parts cannot be moved: %s", error, extra={"context": context})

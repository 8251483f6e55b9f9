"""A process that takes a location's lane, appends to it, and says on its output what became of it.

    python -m support.processes.lane_worker '{"url": …, "name": …, "how": …, "count": …, "lease_ms":
    …}'

It prints `held` once it holds the lane, then one position per append. With `count` -1 it holds the
lane and waits to be killed.
"""

from __future__ import annotations

import json
import sys
import threading

from shardline.app.lane.commands import Submission, UpdateConfiguration
from shardline.app.lane.holder import describe_process
from shardline.app.lane.log import LaneLog
from shardline.app.lane.settings import LaneSettings
from shardline.datasource.client import ShardClient
from shardline.datasource.clock import SystemClock, SystemIds
from shardline.datasource.errors import Fenced, InvalidUsage


def _say(word: object) -> None:
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def main() -> None:
    asked = json.loads(sys.argv[1])
    client = ShardClient.open(asked["url"])
    holder = describe_process(asked["name"], SystemClock(), SystemIds())
    settings = LaneSettings(lease_ms=asked.get("lease_ms", 60_000))
    try:
        log = LaneLog.open(client, holder, settings, how=asked["how"])
    except InvalidUsage as error:
        _say(error.code)
        return
    _say("held")
    if asked["count"] < 0:
        threading.Event().wait()
    for number in range(1, asked["count"] + 1):
        command = UpdateConfiguration({asked["name"]: str(number)})
        try:
            log.append([Submission(asked["name"], number, command)])
        except Fenced:
            _say("fenced")
            return
        _say(log.position(asked["name"], number))
    log.close()


if __name__ == "__main__":
    main()

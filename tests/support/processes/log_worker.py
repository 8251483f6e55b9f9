"""A process that appends to a shard and tells what became of it, one JSON line per append.

    python -m support.processes.log_worker '{"url": …, "options": {…}, "shard": …, "name": …,
    "count": …}'

It is started by tests that need real processes: to race them, and to kill them.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

from shardline.datasource.clock import SystemClock, SystemIds
from shardline.datasource.errors import Indeterminate
from shardline.datasource.stores.location import Committed, Consensus
from shardline.datasource.stores.open import open_location
from support.models.check_log import Ack

__all__ = ["append_many"]


def append_many(
    consensus: Consensus, shard: str, name: str, count: int, *, patience: int = 10_000
) -> list[Ack]:
    """Append `count` distinct records against whatever competition there is; what was acknowledged.

    An append of unknown outcome is looked up in the log, as every caller must, and counts as
    acknowledged when it is there.
    """
    clock = SystemClock()
    acks: list[Ack] = []
    head = consensus.head(shard)
    expected = None if head is None else head.seqno
    began_ms = clock.elapsed_ms()
    for _ in range(patience):
        if len(acks) == count:
            return acks
        data = f"{name}-{len(acks)}".encode()
        try:
            outcome = consensus.compare_and_set(shard, expected, data)
        except Indeterminate:
            seqno = (expected or 0) + 1
            found = consensus.scan(shard, seqno, 1)
            landed = bool(found) and found[0].data == data
        else:
            landed = isinstance(outcome, Committed)
            seqno = (expected or 0) + 1
        if landed:
            acks.append(Ack(seqno, data, began_ms, clock.elapsed_ms()))
            expected = seqno
            began_ms = clock.elapsed_ms()
        else:
            head = consensus.head(shard)
            expected = None if head is None else head.seqno
    raise AssertionError(f"{name}: {len(acks)} of {count} appends in {patience} attempts")


def _main(task: dict[str, Any]) -> None:
    clock, ids = SystemClock(), SystemIds()
    location = open_location(task["url"], task["options"], clock=clock, ids=ids)
    print("ready", flush=True)  # noqa: T201 - the tests read it
    sys.stdin.readline()
    if task["count"] is not None:
        for ack in append_many(location.consensus, task["shard"], task["name"], task["count"]):
            fields = [ack.seqno, ack.data.decode(), ack.began_ms, ack.ended_ms]
            print(json.dumps(fields), flush=True)  # noqa: T201
        return
    expected = None
    while not threading.Event().is_set():
        data = f"{task['name']}-{expected}".encode() * task.get("repeat", 1)
        outcome = location.consensus.compare_and_set(task["shard"], expected, data)
        assert isinstance(outcome, Committed), outcome
        expected = outcome.seqno
        print(json.dumps([expected]), flush=True)  # noqa: T201


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))

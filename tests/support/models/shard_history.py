"""Clients that write down what they ask of a shard and what they are told: threads and processes.

python -m support.models.shard_history '{"url": …, "options": {…}, "shard": …, "client": …, …}'
"""

from __future__ import annotations

import json
import random
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from shardline.datasource.client import ShardClient
from shardline.datasource.clock import SystemClock
from shardline.datasource.errors import Determinate, Indeterminate, InvalidUsage
from shardline.datasource.frontier import Frontier
from shardline.datasource.parts.part_file import decode_inline
from shardline.datasource.settings import ShardSettings
from shardline.datasource.shard.commands.append import Appended, UpperMismatch
from shardline.datasource.types.schema import ShardSchema
from support.models.linearizability import UNKNOWN, Call, Kind

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardline.datasource.write import WriteHandle
    from support.models.linearizability import Held

__all__ = ["MARKS", "SETTINGS", "held", "record"]

SETTINGS = ShardSettings(compact_inline_bytes=0, rollup_every=16, commit_timeout_ms=20_000)
"""Appends stay as they were made."""

MARKS = ShardSchema.from_arrow(pa.schema([pa.field("mark", pa.string())]))
"""One row for each append."""


def record(client: ShardClient, shard: str, name: str, count: int) -> list[Call]:
    """Ask `count` things of a shard, drawn from a seed that is the client's name.

    An outcome that is not known stays so: nothing is repeated by hand.
    """
    clock, chance = SystemClock(), random.Random(name)
    writer = client.writer(shard)
    calls: list[Call] = []
    upper = 0
    for number in range(count):
        mark = f"{name}-{number}"
        ask: Kind = chance.choice(_KINDS)
        began = clock.elapsed_ms()
        try:
            call = _ASK[ask](client, shard, writer, mark, upper)
        except Indeterminate:
            lower = upper if ask == "cas" else 0
            calls.append(Call(ask, began, UNKNOWN, mark, lower, lower + 10))
            writer = client.writer(shard)
            continue
        except (Determinate, InvalidUsage) as error:
            if ask != "snapshot" and not isinstance(error, Determinate):
                raise
            continue  # it did not happen, and says nothing of the shard
        call = replace(call, began_ms=began, ended_ms=clock.elapsed_ms())
        upper = call.upper if call.done else call.current
        calls.append(call)
    return calls


def _cas(_: ShardClient, __: str, writer: WriteHandle, mark: str, upper: int) -> Call:
    lower = Frontier(upper)
    outcome = writer.compare_and_append(_row(mark), lower, Frontier(upper + 10))
    if isinstance(outcome, UpperMismatch):
        current = outcome.current.time or 0
        return Call("cas", 0, 0, mark, upper, upper + 10, done=False, current=current)
    return Call("cas", 0, 0, mark, upper, upper + 10)


def _now(_: ShardClient, __: str, writer: WriteHandle, mark: str, upper: int) -> Call:
    del upper
    outcome = writer.append_now(_row(mark))
    assert isinstance(outcome, Appended), outcome
    return Call("now", 0, 0, mark, outcome.lower, outcome.upper.time or 0)


def _upper(_: ShardClient, __: str, writer: WriteHandle, mark: str, upper: int) -> Call:
    del mark, upper
    return Call("upper", 0, 0, upper=writer.upper().time or 0)


def _snapshot(client: ShardClient, shard: str, _: WriteHandle, mark: str, upper: int) -> Call:
    del mark, upper
    with client.reader(shard) as reader:
        at = (client.state(shard).upper.time or 0) - 1
        if at < 0:
            return Call("snapshot", 0, 0, upper=0)
        found = reader.snapshot(at)
    return Call("snapshot", 0, 0, upper=at + 1, marks=tuple(found.column(0).to_pylist()))


_KINDS: tuple[Kind, ...] = ("cas", "cas", "now", "upper", "snapshot")

_ASK: dict[str, Callable[[ShardClient, str, WriteHandle, str, int], Call]] = {
    "cas": _cas,
    "now": _now,
    "upper": _upper,
    "snapshot": _snapshot,
}


def _row(mark: str) -> pa.Table:
    return pa.Table.from_arrays([pa.array([mark])], schema=MARKS.arrow)


def held(client: ShardClient, shard: str) -> list[Held]:
    """What a shard has: the mark and the interval of each append, as `SETTINGS` leave them.

    Each append brings one row, and nothing is merged, so that each batch is one append.
    """
    state = client.state(shard)
    found: list[Held] = []
    for batch in state.trace.batches:
        for part in batch.parts:
            schema = ShardSchema.parse(state.schemas[part.schema])
            marks = decode_inline(part, schema).column(0).to_pylist()
            found += [(mark, batch.desc.lower, batch.desc.upper or 0) for mark in marks]
    return found


def _main(task: dict[str, Any]) -> None:
    client = ShardClient.open(task["url"], task["options"], settings=SETTINGS)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()
    for call in record(client, task["shard"], task["client"], task["count"]):
        sys.stdout.write(json.dumps(asdict(call)) + "\n")


if __name__ == "__main__":
    _main(json.loads(sys.argv[1]))

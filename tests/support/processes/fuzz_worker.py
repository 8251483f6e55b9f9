"""Damages parts and reads them, in a process of its own: a crash of a decoder is a finding too.

    python -m support.processes.fuzz_worker '{"seed": 0, "rounds": 1000, "progress": "/path"}'

Before each round it writes the round's number to the file `progress`, so that whoever started it
knows what killed it. Its memory is limited. The last line it prints is JSON: how many rounds were
refused, how many gave the same rows, and which ones gave others.
"""

from __future__ import annotations

import json
import os
import random
import resource
import sys
import zlib
from collections import Counter
from dataclasses import replace
from typing import Any, Final, TypeAlias

import msgspec
import pyarrow as pa

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import ShardError
from shardline.datasource.parts.fetch import Fetcher
from shardline.datasource.parts.part_file import decode_inline
from shardline.datasource.parts.verify import verify_part
from shardline.datasource.read import contents_of
from shardline.datasource.shard.batch import Part
from shardline.datasource.shard.plan import PlannedPart, TimeFilter
from shardline.datasource.types.schema import ShardSchema
from support.faults.fuzz import damaged_bytes
from support.models.shards import SETTINGS, World

Rows: TypeAlias = "Counter[tuple[Any, ...]]"

_SHARD: Final = "s"
_MEMORY_MAX: Final = 4 << 30
_BLOBS: Final = replace(SETTINGS, inline_part_bytes=0, row_group_rows=50)
_INLINE: Final = replace(SETTINGS, inline_part_bytes=1 << 20)

_WIDE: Final = pa.table(
    {
        "id": pa.array(range(200), pa.int64()),
        "twin": pa.array(range(1000, 1200), pa.int64()),
        "text": [None if i % 7 == 0 else f"text {i % 13}" for i in range(200)],
        "price": pa.array([f"{i}.25" for i in range(200)]).cast(pa.decimal128(12, 2)),
        "list": [[i, None, i + 1] if i % 3 else None for i in range(200)],
        "deep": [{"a": i, "b": [f"{i}"] * (i % 3)} for i in range(200)],
        "map": pa.array([[(f"k{i}", i)] for i in range(200)], pa.map_(pa.string(), pa.int64())),
        "flag": [i % 2 == 0 for i in range(200)],
        "real": [i / 3 for i in range(200)],
    }
)


class Target:
    """One shard with one part, of files or in the state."""

    def __init__(self, *, inline: bool) -> None:
        self.client: ShardClient = World(3 + inline).client(_INLINE if inline else _BLOBS)
        self.client.create(_SHARD, ShardSchema.from_arrow(_WIDE.schema), key=("id",))
        self.client.writer(_SHARD).append_now(_WIDE)
        state = self.client.state(_SHARD)
        [self.part] = state.trace.batches[0].parts
        self.fetcher: Fetcher = contents_of(self.client.machine(_SHARD), state).fetcher
        self.bytes = self.part.inline or self.client.location.blob.get(self.part.key) or b""
        self.rows = self.read(self.part)
        assert sum(self.rows.values()) == _WIDE.num_rows

    def read(self, part: Part) -> Rows:
        planned = PlannedPart(part, TimeFilter(None, None), ordered=True)
        found: Rows = Counter()
        for batch in self.fetcher.fetch(planned, with_ts=True, with_diff=True):
            columns = (column.to_pylist() for column in batch.columns)
            found.update(map(repr, zip(*columns, strict=True)))  # type: ignore[arg-type]
        return found


def _file(target: Target, value: bytes) -> str:
    """A part file that is damaged: refused by its checksum; read anyway, refused or the same."""
    target.client.location.blob.set(target.part.key, value)
    assert verify_part(target.client.location.blob, target.part) is not None, "not noticed"
    return _outcome(target, target.part)


def _file_unsummed(target: Target, value: bytes) -> str:
    """One of which only the footer has a checksum, as of what Spark wrote and what is large."""
    # Of the same length: a part of another one is refused before anything of it is looked at.
    size = len(target.bytes)
    target.client.location.blob.set(target.part.key, (value + target.bytes)[:size])
    return _outcome(target, msgspec.structs.replace(target.part, crc32=None))


def _message(target: Target, value: bytes) -> str:
    """A part in the state with its checksum: refused."""
    assert zlib.crc32(value) != target.part.crc32
    return _outcome(target, msgspec.structs.replace(target.part, inline=value))


def _message_unsummed(target: Target, value: bytes) -> str:
    """One without: no crash, whatever comes out."""
    part = msgspec.structs.replace(target.part, inline=value, crc32=None)
    try:
        decode_inline(part, next(iter(target.fetcher.schemas.values())))
    except ShardError:
        return "refused"
    return "unsummed"


def _outcome(target: Target, part: Part) -> str:
    try:
        found = target.read(part)
    except ShardError:
        return "refused"
    return "same" if found == target.rows else "wrong"


def _round(number: int, files: Target, messages: Target) -> str:
    chance = random.Random(number)
    name, target, check = chance.choice(
        (
            ("file", files, _file),
            ("file without a checksum", files, _file_unsummed),
            ("message", messages, _message),
            ("message without a checksum", messages, _message_unsummed),
        )
    )
    value = damaged_bytes(chance, target.bytes, [target.bytes])
    if value == target.bytes:
        return f"{name}: untouched"
    return f"{name}: {check(target, value)}"


def _main(seed: int, rounds: int, progress: str) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_MAX, _MEMORY_MAX))
    files, messages = Target(inline=False), Target(inline=True)
    outcomes: Counter[str] = Counter()
    wrong: list[int] = []
    fd = os.open(progress, os.O_CREAT | os.O_WRONLY)
    for number in range(seed, seed + rounds):
        os.pwrite(fd, f"{number:20}".encode(), 0)
        outcome = _round(number, files, messages)
        outcomes[outcome] += 1
        if outcome.endswith("wrong"):
            wrong.append(number)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    said = {"outcomes": outcomes, "wrong": wrong, "peak_bytes": peak}
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    _main(**json.loads(sys.argv[1]))

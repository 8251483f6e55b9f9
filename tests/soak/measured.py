"""Measures what a soak takes, in the store and in memory, against its bounds.

Bounds, at every measurement:
    bytes of parts stored   <= 4 x those that the state refers to, and 16 MiB
    records of a log        <= 2 x `rollup_every`, and those of the last leases and graces
    rollups                 <= 8
    leased readers          <= 24, and none was heard of for longer than two leases
    since holds, writers    as many as there are queries and writers
    memory of a kind of process   <= 1.5 x what it was in the first half, and 64 MiB; not of the
                            soak itself, which holds the oracle
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from shardline.datasource.client import ShardClient
from shardline.datasource.settings import ShardSettings
from shardline.datasource.stores.entry import is_entry
from shardline.datasource.stores.objects import Objects
from soak.known import SHARDS, SOURCE

__all__ = ["Footprint", "Sample", "broken", "look", "memory_bytes"]

_MIB: Final = 1 << 20
_STORED_FACTOR: Final = 4
_STORED_MORE: Final = 16 * _MIB
_ROLLUPS_MAX: Final = 8
_LEASED_MAX: Final = 24
_MEMORY_FACTOR: Final = 1.5
_MEMORY_MORE: Final = 64 * _MIB


@dataclass(frozen=True, slots=True)
class Footprint:
    """What one shard takes.

    Attributes:
        live_bytes: Of the parts that the state refers to and that are files.
        stored_bytes: Of all part files.
        log: Records that are stored.
        rollups: Rollups that are stored.
        batches: In the trace.
        leased: Leased readers, and `silent_ms`: how long the oldest was not heard of.
        holds: Since holds.
        writers: Durable writers.
        seqno: Of the state.
    """

    live_bytes: int
    stored_bytes: int
    log: int
    rollups: int
    batches: int
    leased: int
    silent_ms: int
    holds: int
    writers: int
    seqno: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One measurement.

    Attributes:
        round: After which round.
        elapsed_ms: Since the soak began.
        appended: Appends so far.
        shards: By name.
        memory: Resident bytes of the largest process of each kind.
    """

    round: int
    elapsed_ms: float
    appended: int
    shards: Mapping[str, Footprint]
    memory: Mapping[str, int]


_MERGING: Final = ShardSettings().compact_memory_bytes + ShardSettings().part_buffer_bytes
"""What a process has besides in the middle of a merge, by its settings."""


def look(client: ShardClient, objects: Objects) -> dict[str, Footprint]:
    """The footprints of all shards."""
    return {name: _footprint(client, objects, name) for name in SHARDS}


def _footprint(client: ShardClient, objects: Objects, name: str) -> Footprint:
    sizes: dict[str, list[int]] = {"part": [], "log": [], "rollup": [], "floor": []}
    for entry in objects.entries(f"{name}/"):
        kind = entry.key.split("/")[1]
        if kind != "log" or is_entry(entry.key):
            sizes[kind].append(entry.size_bytes)
    state = client.state(name)
    parts = [part for batch in state.trace.batches for part in batch.parts]
    heard = [reader.heartbeat_ms for reader in state.leased.values()]
    return Footprint(
        live_bytes=sum(part.size_bytes for part in parts if part.inline is None),
        stored_bytes=sum(sizes["part"]),
        log=len(sizes["log"]),
        rollups=len(sizes["rollup"]),
        batches=len(state.trace.batches),
        leased=len(heard),
        silent_ms=client.clock.now_ms() - min(heard) if heard else 0,
        holds=len(state.critical),
        writers=sum(writer.lease_ms is None for writer in state.writers.values()),
        seqno=state.seqno,
    )


def memory_bytes(pid: int) -> int:
    """Resident memory of a process; 0 if it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return 0
    found = [line.split()[1] for line in text.splitlines() if line.startswith("VmRSS:")]
    return int(found[0]) * 1024 if found else 0


def broken(
    samples: Sequence[Sample], *, writers: int, lease_ms: int, rollup_every: int, window_ms: float
) -> list[str]:
    """The bounds that the newest of `samples` breaks, in words.

    Args:
        window_ms: How long a lease and the graces keep records at most.
    """
    newest = samples[-1]
    found = []
    for name, print_ in newest.shards.items():
        before = [
            s.shards[name].seqno for s in samples if newest.elapsed_ms - s.elapsed_ms >= window_ms
        ]
        recent = print_.seqno - max(before, default=0)
        source = name == SOURCE
        bounds: tuple[tuple[str, float, float], ...] = (
            (
                "bytes stored",
                print_.stored_bytes,
                _STORED_FACTOR * print_.live_bytes + _STORED_MORE,
            ),
            ("records", print_.log, 2 * rollup_every + recent),
            ("rollups", print_.rollups, _ROLLUPS_MAX + recent / rollup_every),
            ("leased readers", print_.leased, _LEASED_MAX),
            ("ms of silence", print_.silent_ms, 2 * lease_ms),
            ("holds", print_.holds, len(newest.shards) - 1 if source else 0),
            ("writers", print_.writers, writers if source else 1),
        )
        found += [
            f"shard '{name}': {value} {what}, of {most:.0f} allowed"
            for what, value, most in bounds
            if value > most
        ]
    return found + _grown(samples)


def _grown(samples: Sequence[Sample]) -> list[str]:
    """Kinds of processes whose memory has grown since the first half of the soak."""
    half = samples[-1].elapsed_ms / 2
    first = [sample for sample in samples if sample.elapsed_ms <= half]
    if not first:
        return []
    found = []
    for kind, size in samples[-1].memory.items():
        was = max((sample.memory.get(kind, 0) for sample in first), default=0)
        more = _MERGING if kind == "keeper" else _MEMORY_MORE
        if kind != "soak" and was and size > _MEMORY_FACTOR * was + more:
            found.append(f"{kind}: {size >> 20} MiB of memory, {was >> 20} MiB in the first half")
    return found

"""The codec encodes states as log records, which carry differences, and as rollups, whole states.

A state may be megabytes, and a change of it a few hundred bytes: a record holds only the change.
Both encodings are JSON, readable for people and for any later version; a rollup is compressed with
zstd behind a magic number and a checksum, and the log frames and checksums its own entries. Field
names in either are for ever: every encoding ever released stays readable, and `tests/golden` keeps
one of each.

Versions: every record and rollup names the newest code version that ever wrote the shard. This code
reads state of any older version, and of one minor version ahead, so that an upgrade can be rolled
back by one step; anything newer is refused. A new minor version may therefore add fields only if
the version before it may drop them without harm.

Invariants:
    apply_diff(diff(a, b), a) == b, for any two states of one shard.
    What is encoded can be decoded: it was, before it is written.
    Decoding never guesses: damaged bytes raise `Corrupt`, newer ones `InvalidUsage`.
"""

from __future__ import annotations

import zlib
from typing import Final, TypeVar

import msgspec
import pyarrow as pa
from msgspec import UNSET, UnsetType

from shardline.datasource.errors import Corrupt, InvalidUsage
from shardline.datasource.shard.batch import Batch
from shardline.datasource.shard.state import (
    Claim,
    CriticalReader,
    Leader,
    LeasedReader,
    Registration,
    RollupRef,
    ShardState,
    Writer,
)

__all__ = [
    "CODE_VERSION",
    "Diff",
    "Record",
    "apply_diff",
    "decode_record",
    "decode_rollup",
    "diff",
    "encode_checked",
    "encode_record",
    "encode_rollup",
]

CODE_VERSION: Final = (1, 9)
"""Version of the state this code writes: `(major, minor)`.

1.1 added `cleaned_seqno`; code that drops it makes the next collector begin further back.
1.2 was never used: code of 1.1 would read it, drop `registered`, and write past transactions.
1.3 added `claims`, `retain_ms`, `swept_ms` and `registered`.
1.4 added a part's `footer` and `nan_safe`, and `covers` of a writer. Code that drops them checks
less as it reads, as code did before, and takes a number as committed for any range.
1.5 added a part's `closes`. Code that drops it compares rows as it reads, as code did before.
1.6 added `times_by`. Code that drops it registers such a shard at a transaction's first use of it,
as code did before; the next rows of its writer bring it back.
1.7 added `swept_before_ms`. Code that drops it goes by the clock of whoever commits, as before.
1.8 added `leader`. Code that drops it shows the follower's own upper, which may be long before that
of its leader; the next start of its writer sets it again.
1.9 added a record's `after`. Code that drops it checks less as it follows a log, as before."""

_ROLLUP_MAGIC: Final = b"SHRDROL1"

_ROLLUP_BYTES_MAX: Final = 4 << 30
"""No state is so large uncompressed: a million parts with all their statistics are 1 GB. A damaged
rollup that claims to be larger is refused before it can fill the memory."""

_UNENCODABLE: Final = (
    msgspec.MsgspecError,
    TypeError,
    ValueError,
    OverflowError,
    RecursionError,
)
"""What encoding raises for a value that has no encoding, such as half of a surrogate pair in a text
(a ValueError). Any other error would be taken for one of the store, and so for everybody's
whose command is in the same record."""

V = TypeVar("V")


class Splice(msgspec.Struct, frozen=True, array_like=True):
    """Batches `[start, start + removed)` of the trace are replaced by `added`."""

    start: int
    removed: int
    added: tuple[Batch, ...]


class Diff(msgspec.Struct, frozen=True, omit_defaults=True):
    """The change that one record makes. An entry set to None in a map is removed."""

    since: int | UnsetType | None = UNSET
    batches: Splice | None = None
    inline_bytes: int | None = None
    schemas: dict[int, str] = {}
    leased: dict[str, LeasedReader | None] = {}
    critical: dict[str, CriticalReader | None] = {}
    writers: dict[str, Writer | None] = {}
    rollups: dict[int, RollupRef | None] = {}
    gc_seqno: int | None = None
    cleaned_seqno: int | None = None
    claims: dict[str, Claim | None] = {}
    retain_ms: int | UnsetType | None = UNSET
    swept_ms: int | None = None
    swept_before_ms: int | None = None
    registered: Registration | UnsetType | None = UNSET
    times_by: str | None = None
    leader: Leader | UnsetType | None = UNSET


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of a shard's log: a difference to the state before it, or a whole state.

    Attributes:
        seqno: The entry's own number, repeated so that a misplaced entry is noticed.
        token: Random; by it a writer recognises its own attempt after a lost answer.
        walltime_ms: When it was made; greater than in the record before.
        version: Newest code version that ever wrote the shard.
        rollup: Newest rollup at the time, so that a reader of the newest record knows its start.
        base: Where to start without one: seqno of the last record that carries a whole state.
        diff: The change; None if `state` is set.
        state: The whole state: in the first record of a shard, and in a tombstone.
        after: Token of the record before it, so that who knows another one there notices
            (`shardline.datasource.shard.known`); empty if it is the first, or of older code.
    """

    seqno: int
    token: str
    walltime_ms: int
    version: tuple[int, int]
    rollup: tuple[int, RollupRef] | None = None
    base: int = 1
    diff: Diff | None = None
    state: ShardState | None = None
    after: str = ""


class _Header(msgspec.Struct):
    """The fields of a record or rollup that any version must be able to read."""

    version: tuple[int, int]


_encoder: Final = msgspec.json.Encoder()
_records: Final = msgspec.json.Decoder(Record)
_states: Final = msgspec.json.Decoder(ShardState)
_headers: Final = msgspec.json.Decoder(_Header)


def diff(old: ShardState, new: ShardState) -> Diff:
    """The difference that turns `old` into `new`; both must be states of one shard."""
    return Diff(
        since=UNSET if old.trace.since == new.trace.since else new.trace.since,
        batches=_splice(old.trace.batches, new.trace.batches),
        inline_bytes=_changed(old.trace.inline_bytes, new.trace.inline_bytes),
        schemas={k: v for k, v in new.schemas.items() if k not in old.schemas},
        leased=_map_diff(old.leased, new.leased),
        critical=_map_diff(old.critical, new.critical),
        writers=_map_diff(old.writers, new.writers),
        rollups=_map_diff(old.rollups, new.rollups),
        gc_seqno=_changed(old.gc_seqno, new.gc_seqno),
        cleaned_seqno=_changed(old.cleaned_seqno, new.cleaned_seqno),
        claims=_map_diff(old.claims, new.claims),
        retain_ms=UNSET if old.retain_ms == new.retain_ms else new.retain_ms,
        swept_ms=_changed(old.swept_ms, new.swept_ms),
        swept_before_ms=_changed(old.swept_before_ms, new.swept_before_ms),
        registered=UNSET if old.registered == new.registered else new.registered,
        times_by=_changed(old.times_by, new.times_by),
        leader=UNSET if old.leader == new.leader else new.leader,
    )


def apply_diff(state: ShardState, record: Record) -> ShardState:
    """The state that `record` makes of `state`, its predecessor."""
    if record.state is not None:
        return record.state
    change = record.diff
    if change is None or record.seqno != state.seqno + 1:
        raise Corrupt(
            f"record {record.seqno} of shard '{state.name}' cannot follow seqno {state.seqno}",
            code="CORRUPT_STATE",
            hint="the log was changed by something else than a shard's writers",
        )
    batches = state.trace.batches
    if change.batches is not None:
        start, removed = change.batches.start, change.batches.removed
        batches = (*batches[:start], *change.batches.added, *batches[start + removed :])
    trace = msgspec.structs.replace(
        state.trace,
        since=state.trace.since if change.since is UNSET else change.since,
        batches=batches,
        inline_bytes=_or(change.inline_bytes, state.trace.inline_bytes),
    )
    return msgspec.structs.replace(
        state,
        seqno=record.seqno,
        walltime_ms=record.walltime_ms,
        version=record.version,
        schemas={**state.schemas, **change.schemas} if change.schemas else state.schemas,
        leased=_map_apply(state.leased, change.leased),
        critical=_map_apply(state.critical, change.critical),
        writers=_map_apply(state.writers, change.writers),
        rollups=_map_apply(state.rollups, change.rollups),
        gc_seqno=_or(change.gc_seqno, state.gc_seqno),
        cleaned_seqno=_or(change.cleaned_seqno, state.cleaned_seqno),
        claims=_map_apply(state.claims, change.claims),
        retain_ms=state.retain_ms if change.retain_ms is UNSET else change.retain_ms,
        swept_ms=_or(change.swept_ms, state.swept_ms),
        swept_before_ms=_or(change.swept_before_ms, state.swept_before_ms),
        registered=state.registered if change.registered is UNSET else change.registered,
        times_by=_or(change.times_by, state.times_by),
        leader=state.leader if change.leader is UNSET else change.leader,
        trace=trace,
    )


def encode_record(record: Record) -> bytes:
    """The bytes of a log entry; errors as `encode_checked`."""
    return encode_checked(record, _records)


def encode_checked(value: object, decoder: msgspec.json.Decoder[V]) -> bytes:
    """Encode a value as JSON that `decoder` takes back, in some microseconds.

    Encoding checks no types, and decoding does: a float where a whole number belongs, or True,
    would be written, acknowledged, and make everything behind it unreadable for ever.

    Raises:
        InvalidUsage: `decoder` would not take it; the message says which field.
    """
    try:
        data = _encoder.encode(value)
        decoder.decode(data)
    except _UNENCODABLE as error:
        raise InvalidUsage(
            f"an argument is of the wrong kind, and nothing was written: {error}",
            code="INVALID_ARGUMENT",
            hint="give times, sizes and numbers as whole numbers (int), names and comments as text",
        ) from error
    return data


def decode_record(data: bytes, what: str) -> Record:
    """The record in a log entry.

    Args:
        what: Names the entry in errors.

    Raises:
        Corrupt: The bytes are not a record.
        InvalidUsage: They are of a version this code must not touch.
    """
    record = _decode(_records, data, what)
    _check_version(record.version, what)
    return record


def encode_rollup(state: ShardState) -> bytes:
    """The bytes of a rollup blob."""
    raw = _encoder.encode(state)
    packed: bytes = pa.compress(raw, codec="zstd", asbytes=True)
    body = len(raw).to_bytes(8, "big") + packed
    return _ROLLUP_MAGIC + zlib.crc32(body).to_bytes(4, "big") + body


def decode_rollup(data: bytes, what: str) -> ShardState:
    """The state in a rollup blob; errors as `decode_record`."""
    if data[:8] != _ROLLUP_MAGIC or zlib.crc32(data[12:]).to_bytes(4, "big") != data[8:12]:
        raise _corrupt(what, "wrong magic number or checksum")
    size = int.from_bytes(data[12:20], "big")
    if size > _ROLLUP_BYTES_MAX:
        raise _corrupt(what, f"{size} bytes unpacked, of {_ROLLUP_BYTES_MAX} allowed")
    try:
        raw = pa.decompress(data[20:], size, codec="zstd", asbytes=True)
    except (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError) as error:
        raise _corrupt(what, str(error)) from error
    state = _decode(_states, raw, what)
    _check_version(state.version, what)
    return state


def _decode(decoder: msgspec.json.Decoder[V], data: bytes, what: str) -> V:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        # A newer version may have changed anything but the header: the error must say "newer" then,
        # as "damaged" would send its reader to a backup.
        try:
            version = _headers.decode(data).version
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise _corrupt(what, str(error)) from error
        _check_version(version, what)
        raise _corrupt(what, str(error)) from error


def _check_version(version: tuple[int, int], what: str) -> None:
    major, minor = CODE_VERSION
    if version[0] > major or (version[0] == major and version[1] > minor + 1):
        raise InvalidUsage(
            f"{what} was written by state version {version[0]}.{version[1]}, "
            f"this code is {major}.{minor}",
            code="NEWER_VERSION",
            hint="upgrade Shardline here; nothing was changed",
        )


def _corrupt(what: str, why: str) -> Corrupt:
    return Corrupt(
        f"{what} is damaged or not a shard's: {why}",
        code="CORRUPT_STATE",
        hint="restore it from a backup of the location; nothing was changed",
    )


def _splice(old: tuple[Batch, ...], new: tuple[Batch, ...]) -> Splice | None:
    if old is new:
        return None
    # By identity, not by value: batches that a transition left alone are the same objects, and to
    # compare the parts of 10,000 batches would make each commit as slow as the shard is large.
    start = _common_prefix(old, new)
    tail = 0
    limit = min(len(old), len(new)) - start
    while tail < limit and old[-1 - tail] is new[-1 - tail]:
        tail += 1
    removed, added = len(old) - start - tail, new[start : len(new) - tail]
    return Splice(start, removed, added) if removed or added else None


def _common_prefix(old: tuple[Batch, ...], new: tuple[Batch, ...]) -> int:
    """The number of first batches that are the same objects.

    An append to 10,000 batches shares all but the last: one comparison of slices, which runs in C
    and takes identity for equality, settles that case without a loop.
    """
    shared = min(len(old), len(new))
    start = max(shared - 1, 0)
    if old[:start] != new[:start]:
        start = 0
    while start < shared and old[start] is new[start]:
        start += 1
    return start


K = TypeVar("K")


def _map_diff(old: dict[K, V], new: dict[K, V]) -> dict[K, V | None]:
    if old is new:
        return {}
    change: dict[K, V | None] = {k: v for k, v in new.items() if old.get(k) != v}
    change.update((k, None) for k in old if k not in new)
    return change


def _map_apply(old: dict[K, V], change: dict[K, V | None]) -> dict[K, V]:
    if not change:
        return old
    merged = {**old, **change}
    return {k: v for k, v in merged.items() if v is not None}


def _changed(old: V, new: V) -> V | None:
    return None if old == new else new


def _or(new: V | None, old: V) -> V:
    return old if new is None else new

"""Encodings: what is written is read back, today and for ever; what is damaged is refused."""

from __future__ import annotations

import json
import random
from contextlib import suppress
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from shardline.datasource.errors import Corrupt, InvalidUsage
from shardline.datasource.shard.batch import Batch, Footer, Part, Run
from shardline.datasource.shard.codec import (
    CODE_VERSION,
    Diff,
    Record,
    Splice,
    apply_diff,
    decode_record,
    decode_rollup,
    diff,
    encode_record,
    encode_rollup,
)
from shardline.datasource.shard.description import Description
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
from shardline.datasource.shard.trace import Trace
from shardline.datasource.types.stats import ColumnStats, PartStats, encode_stats
from support.strategies.commands import SCHEMAS, first_state, histories
from support.strategies.rows import bounded
from support.tree import GOLDEN

GOLDEN_1 = GOLDEN / "v1"
GOLDEN_1_1 = GOLDEN / "v1.1"
GOLDEN_1_3 = GOLDEN / "v1.3"
GOLDEN_1_4 = GOLDEN / "v1.4"
GOLDEN_1_5 = GOLDEN / "v1.5"
GOLDEN_1_6 = GOLDEN / "v1.6"
GOLDEN_1_7 = GOLDEN / "v1.7"
GOLDEN_1_8 = GOLDEN / "v1.8"
GOLDEN_1_9 = GOLDEN / "v1.9"


def record_of(old: ShardState, new: ShardState) -> Record:
    return Record(
        seqno=new.seqno,
        token="0" * 32,
        walltime_ms=new.walltime_ms,
        version=new.version,
        diff=diff(old, new),
    )


def cold(state: ShardState) -> ShardState:
    """The state as another process has it: equal, and not one object of it the same."""
    return msgspec.json.decode(msgspec.json.encode(state), type=ShardState)


# --- properties --------------------------------------------------------------------------------


@given(histories())
@bounded
def test_records_replay_a_history(states: list[ShardState]) -> None:
    """A process that reads the differences of a history arrives at every state of it."""
    replayed = states[0]
    for old, new in pairwise(states):
        if new.base == new.seqno:
            replayed = new  # such a record carries the whole state
            continue
        data = encode_record(record_of(old, new))
        replayed = apply_diff(replayed, decode_record(data, "a record"))
        assert replayed == new


@given(histories(), st.data())
@bounded
def test_any_two_states_of_a_shard_have_a_difference(
    states: list[ShardState], data: st.DataObject
) -> None:
    """Whatever became of a shard between two moments is one difference, also between copies."""
    lives = [state for state in states if state.base == states[0].base]
    old, new = sorted(
        data.draw(st.tuples(st.sampled_from(lives), st.sampled_from(lives))), key=lambda s: s.seqno
    )
    target = msgspec.structs.replace(cold(new), seqno=old.seqno + 1)
    record = decode_record(encode_record(record_of(old, target)), "a record")
    assert apply_diff(cold(old), record) == target


@given(histories())
@bounded
def test_a_rollup_holds_the_whole_state(states: list[ShardState]) -> None:
    """A state comes out of a rollup as it went in."""
    assert decode_rollup(encode_rollup(states[-1]), "a rollup") == states[-1]


def test_an_append_to_many_batches_is_a_small_record() -> None:
    """A record names what changed, not what is there."""
    batches = tuple(Batch(Description(i, i + 1)) for i in range(10_000))
    old = msgspec.structs.replace(first_state(), trace=Trace(0, batches))
    more = (*batches, Batch(Description(10_000, 10_001)))
    new = msgspec.structs.replace(old, seqno=2, trace=Trace(0, more))
    assert len(encode_record(record_of(old, new))) < 300


# --- golden files ------------------------------------------------------------------------------

STATS = PartStats(
    3,
    {
        "id": ColumnStats(0, "int", -5, 7),
        "price": ColumnStats(1, "float", "-inf", "1.5", nans=1),
        "tags": ColumnStats(2),
    },
)
BLOB = Part(
    key="orders/part/p0123456789abcdef0123456789abcdef.parquet",
    rows=3,
    size_bytes=1234,
    schema=1,
    ts_min=12,
    ts_max=19,
    diff_sum=-1,
    diff_min=-2,
    diff_max=3,
    crc32=4294967295,
    encoded_stats=encode_stats(STATS),
)
INLINE = Part(
    key="pfedcba9876543210fedcba9876543210",
    rows=1,
    size_bytes=3,
    schema=0,
    ts=5,
    diff_sum=1,
    inline=b"\x00\xff ",
)
FIRST = Batch(Description(0, 10, 0), (Run((INLINE,)),), level=0)
SECOND = Batch(Description(10, 20, 4), (Run((BLOB, BLOB)), Run((BLOB,), "none")), level=2)
LAST = Batch(Description(20, None, 0))

STATE = ShardState(
    shard="s00112233445566778899aabbccddeeff",
    name="örders/2026",
    seqno=42,
    walltime_ms=1_700_000_000_042,
    version=(1, 0),
    created_ms=1_700_000_000_000,
    key=("a",),
    comment="what was ordered",
    schemas={0: SCHEMAS[0].json, 1: SCHEMAS[1].json},
    leased={"r" + "1" * 32: LeasedReader(4, 17, 1_700_000_000_001, 900_000, "a notebook")},
    critical={
        "query:1": CriticalReader(4, "e1", 1, 2, "a query", 21, confirmed=False),
        "report": CriticalReader(None, "e2", 3, 4, ""),
    },
    writers={
        "etl": Writer(7, None, 1_700_000_000_041, attempt="t1", abandoned={"t0": 8}),
        "w" + "2" * 32: Writer(1, 20, 1_700_000_000_040, 3_600_000, "t2"),
    },
    rollups={40: RollupRef("orders/rollup/0000000000000028-aa", 999)},
    base=3,
    gc_seqno=16,
    trace=Trace(4, (FIRST, SECOND, LAST), inline_bytes=3),
)

DIFF = Record(
    seqno=43,
    token="0123456789abcdef0123456789abcdef",  # noqa: S106 - no password: makes a record recognisable
    walltime_ms=1_700_000_000_043,
    version=(1, 0),
    rollup=(40, RollupRef("orders/rollup/0000000000000028-aa", 999)),
    base=3,
    diff=Diff(
        since=None,
        batches=Splice(1, 2, (SECOND, LAST)),
        inline_bytes=0,
        schemas={2: SCHEMAS[2].json},
        leased={"r" + "1" * 32: None, "r" + "3" * 32: LeasedReader(None, 42, 1, 2, "")},
        critical={"report": None},
        writers={"etl": Writer(9, 20, 5, attempt="t9")},
        rollups={8: None, 40: RollupRef("orders/rollup/0000000000000028-aa", 999)},
        gc_seqno=20,
    ),
)
WHOLE = Record(
    seqno=1,
    token="ffffffffffffffffffffffffffffffff",  # noqa: S106 - no password: makes a record recognisable
    walltime_ms=1_700_000_000_042,
    version=(1, 0),
    state=STATE,
)

assert DIFF.diff is not None
COLLECTED = msgspec.structs.replace(STATE, version=(1, 1), cleaned_seqno=12)
CLEANING = msgspec.structs.replace(
    DIFF, version=(1, 1), diff=msgspec.structs.replace(DIFF.diff, cleaned_seqno=16)
)
MAINTAINED = msgspec.structs.replace(
    COLLECTED,
    version=(1, 3),
    claims={"m1": Claim(5, 20, 1_700_000_000_040, 60_000, "a merge on host:1")},
    retain_ms=3_600_000,
    swept_ms=1_700_000_000_041,
    registered=Registration("_txns", "s0123456789abcdef0123456789abcdef", 19),
)
assert CLEANING.diff is not None
MAINTAINING = msgspec.structs.replace(
    CLEANING,
    version=(1, 3),
    diff=msgspec.structs.replace(
        CLEANING.diff,
        claims={"m1": None, "m2": Claim(5, None, 1_700_000_000_042, 60_000, "a merge on host:2")},
        retain_ms=None,
        swept_ms=1_700_000_000_043,
        registered=None,
    ),
)
SUMMED_PART = msgspec.structs.replace(BLOB, footer=Footer(567, 4294967294), nan_safe=True)
SUMMED_BATCH = Batch(Description(10, 20, 4), (Run((SUMMED_PART, BLOB)),), level=2)
COVERING = msgspec.structs.replace(
    MAINTAINED,
    version=(1, 4),
    trace=msgspec.structs.replace(MAINTAINED.trace, batches=(FIRST, SUMMED_BATCH, LAST)),
    writers={
        **MAINTAINED.writers,
        "query:1": Writer(3, 20, 1_700_000_000_041, attempt="t2", covers="query:0123:4567"),
    },
)
assert MAINTAINING.diff is not None
COVERING_DIFF = msgspec.structs.replace(
    MAINTAINING,
    version=(1, 4),
    diff=msgspec.structs.replace(
        MAINTAINING.diff,
        batches=Splice(1, 2, (SUMMED_BATCH, LAST)),
        writers={"query:1": Writer(4, 21, 5, attempt="t9", covers="query:0123:")},
    ),
)

CLOSING_PART = msgspec.structs.replace(SUMMED_PART, diff_min=-1, closes=True)
CLOSING_BATCH = Batch(Description(10, 20, 4), (Run((CLOSING_PART, BLOB)),), level=2)
CLOSING = msgspec.structs.replace(
    COVERING,
    version=(1, 5),
    trace=msgspec.structs.replace(COVERING.trace, batches=(FIRST, CLOSING_BATCH, LAST)),
)
assert COVERING_DIFF.diff is not None
CLOSING_DIFF = msgspec.structs.replace(
    COVERING_DIFF,
    version=(1, 5),
    diff=msgspec.structs.replace(COVERING_DIFF.diff, batches=Splice(1, 2, (CLOSING_BATCH, LAST))),
)

CHOOSING = msgspec.structs.replace(
    CLOSING, version=(1, 6), registered=None, times_by="view:0123456789abcdef"
)
assert CLOSING_DIFF.diff is not None
CHOOSING_DIFF = msgspec.structs.replace(
    CLOSING_DIFF,
    version=(1, 6),
    diff=msgspec.structs.replace(CLOSING_DIFF.diff, times_by="", registered=UNSET),
)

SWEPT = msgspec.structs.replace(CHOOSING, version=(1, 7), swept_before_ms=1_700_000_000_007)
assert CHOOSING_DIFF.diff is not None
SWEEPING_DIFF = msgspec.structs.replace(
    CHOOSING_DIFF,
    version=(1, 7),
    diff=msgspec.structs.replace(CHOOSING_DIFF.diff, swept_before_ms=1_700_000_000_008),
)

LED = msgspec.structs.replace(
    SWEPT, version=(1, 8), leader=Leader("totals", "s0123456789abcdef0123456789abcde0")
)
assert SWEEPING_DIFF.diff is not None
LEADING_DIFF = msgspec.structs.replace(
    SWEEPING_DIFF,
    version=(1, 8),
    diff=msgspec.structs.replace(SWEEPING_DIFF.diff, leader=LED.leader),
)

NEWEST = msgspec.structs.replace(LED, version=(1, 9))
NEWEST_DIFF = msgspec.structs.replace(
    LEADING_DIFF, version=(1, 9), after="fedcba9876543210fedcba9876543210"
)

FILES = {
    GOLDEN_1 / "record-diff.json": DIFF,
    GOLDEN_1 / "record-whole.json": WHOLE,
    GOLDEN_1_1 / "record-diff.json": CLEANING,
    GOLDEN_1_1 / "record-whole.json": msgspec.structs.replace(
        WHOLE, version=(1, 1), state=COLLECTED
    ),
    GOLDEN_1_3 / "record-diff.json": MAINTAINING,
    GOLDEN_1_3 / "record-whole.json": msgspec.structs.replace(
        WHOLE, version=(1, 3), state=MAINTAINED
    ),
    GOLDEN_1_4 / "record-diff.json": COVERING_DIFF,
    GOLDEN_1_4 / "record-whole.json": msgspec.structs.replace(
        WHOLE, version=(1, 4), state=COVERING
    ),
    GOLDEN_1_5 / "record-diff.json": CLOSING_DIFF,
    GOLDEN_1_5 / "record-whole.json": msgspec.structs.replace(WHOLE, version=(1, 5), state=CLOSING),
    GOLDEN_1_6 / "record-diff.json": CHOOSING_DIFF,
    GOLDEN_1_6 / "record-whole.json": msgspec.structs.replace(
        WHOLE, version=(1, 6), state=CHOOSING
    ),
    GOLDEN_1_7 / "record-diff.json": SWEEPING_DIFF,
    GOLDEN_1_7 / "record-whole.json": msgspec.structs.replace(WHOLE, version=(1, 7), state=SWEPT),
    GOLDEN_1_8 / "record-diff.json": LEADING_DIFF,
    GOLDEN_1_8 / "record-whole.json": msgspec.structs.replace(WHOLE, version=(1, 8), state=LED),
    GOLDEN_1_9 / "record-diff.json": NEWEST_DIFF,
    GOLDEN_1_9 / "record-whole.json": msgspec.structs.replace(
        WHOLE, version=(1, 9), state=NEWEST, after=NEWEST_DIFF.after
    ),
}


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_records_of_every_version_stay_readable(path: Path, request: pytest.FixtureRequest) -> None:
    """A record that a version wrote is read as what it meant, and written the same today."""
    name, expected = path.name, FILES[path]
    if request.config.getoption("--rewrite", default=False) and not path.exists():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encode_record(expected))
    recorded = path.read_bytes()
    assert decode_record(recorded, name) == expected
    assert encode_record(expected) == recorded, (
        f"{path} is released and never changes: raise CODE_VERSION, keep this file and its test, "
        "and add the new encoding in a folder of its own"
    )


@pytest.mark.parametrize(
    ("folder", "state"),
    [
        (GOLDEN_1, STATE),
        (GOLDEN_1_1, COLLECTED),
        (GOLDEN_1_3, MAINTAINED),
        (GOLDEN_1_4, COVERING),
        (GOLDEN_1_5, CLOSING),
        (GOLDEN_1_6, CHOOSING),
        (GOLDEN_1_7, SWEPT),
        (GOLDEN_1_8, LED),
        (GOLDEN_1_9, NEWEST),
    ],
)
def test_rollups_of_every_version_stay_readable(
    folder: Path, state: ShardState, request: pytest.FixtureRequest
) -> None:
    """A rollup that a version wrote is read as what it meant; compression may differ."""
    path = folder / "rollup.bin"
    if request.config.getoption("--rewrite", default=False) and not path.exists():
        path.write_bytes(encode_rollup(state))
    assert decode_rollup(path.read_bytes(), "rollup") == state


def test_golden_states_leave_no_field_at_its_default() -> None:
    """A field that no golden file shows could be renamed without a test noticing."""
    shown = "".join(path.read_text() for path in FILES)
    kinds = (Record, Diff, ShardState, Trace, Part, CriticalReader, LeasedReader, Writer)
    for kind in (*kinds, Claim, Leader, Registration):
        for field in msgspec.structs.fields(kind):
            assert f'"{field.encode_name}"' in shown, (kind, field.name)


# --- versions ----------------------------------------------------------------------------------


def with_version(version: tuple[int, int], **extra: object) -> bytes:
    data = json.loads(encode_record(DIFF))
    return json.dumps({**data, "version": version, **extra}).encode()


def test_one_minor_version_ahead_is_read() -> None:
    """The next version may run first and be rolled back: what it adds is passed over."""
    major, minor = CODE_VERSION
    data = json.loads(encode_record(DIFF))
    data["diff"]["from_the_future"] = {"a": [1]}
    data["diff"]["batches"][2][0]["desc"].append("more")
    ahead = json.dumps(
        {**data, "version": [major, minor + 1], "novel": 1}, separators=(",", ":")
    ).encode()
    decoded = decode_record(ahead, "a record")
    assert decoded == msgspec.structs.replace(DIFF, version=(major, minor + 1))
    state = msgspec.structs.replace(STATE, version=(major, minor + 1))
    assert decode_rollup(encode_rollup(state), "a rollup") == state


@pytest.mark.parametrize("version", [(1, CODE_VERSION[1] + 2), (2, 0), (99, 99)])
@pytest.mark.parametrize("extra", [{}, {"diff": "another shape"}, {"seqno": None}])
def test_newer_versions_are_refused_whatever_they_look_like(
    version: tuple[int, int], extra: dict[str, object]
) -> None:
    """State of a version too far ahead is refused with what to do, and not called damaged."""
    with pytest.raises(InvalidUsage, match=r"NEWER_VERSION.*upgrade"):
        decode_record(with_version(version, **extra), "a record")
    state = msgspec.structs.replace(STATE, version=version)
    with pytest.raises(InvalidUsage, match="NEWER_VERSION"):
        decode_rollup(encode_rollup(state), "a rollup")


# --- damage ------------------------------------------------------------------------------------

FOREIGN = [
    b"",
    b"{}",
    b"[]",
    b"null",
    b"PAR1",
    b"\xff" * 64,
    b"SHRDROL1",
    b"SHRDROL1" + b"\0" * 12,
    b'{"version":[1,0]}',
    b'{"version":"1.0","seqno":1}',
    b"[" * 100_000,
    b'{"version":[1,0],"diff":' + b"{" * 100_000,
    encode_rollup(STATE)[::-1],
]


@pytest.mark.parametrize("data", FOREIGN, ids=range(len(FOREIGN)))
def test_foreign_bytes_are_corrupt(data: bytes) -> None:
    """Bytes that a shard never wrote are refused as such, neither as a bug nor with a hang."""
    with pytest.raises(Corrupt, match="CORRUPT_STATE"):
        decode_record(data, "a record")
    with pytest.raises(Corrupt, match="CORRUPT_STATE"):
        decode_rollup(data, "a rollup")


def test_a_record_cut_anywhere_is_corrupt() -> None:
    """No beginning of a record is a record."""
    data = encode_record(WHOLE)
    for end in range(len(data)):
        with pytest.raises(Corrupt):
            decode_record(data[:end], "a record")


def test_a_rollup_cut_anywhere_or_with_any_bit_flipped_is_corrupt() -> None:
    """Every bit of a rollup is under its checksum."""
    data = encode_rollup(STATE)
    for end in range(len(data)):
        with pytest.raises(Corrupt):
            decode_rollup(data[:end], "a rollup")
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            decode_rollup(bytes(damaged), "a rollup")
    with pytest.raises(Corrupt):
        decode_rollup(data + b"\0", "a rollup")


def test_a_record_with_bytes_exchanged_is_a_record_or_corrupt() -> None:
    """What the log's checksum would let through by chance never ends in another exception."""
    chance = random.Random(7)
    data = encode_record(DIFF)
    for _ in range(3000):
        damaged = bytearray(data)
        for _ in range(chance.randint(1, 3)):
            damaged[chance.randrange(len(data))] = chance.randrange(256)
        with suppress(Corrupt, InvalidUsage):
            decode_record(bytes(damaged), "a record")


def test_a_record_out_of_sequence_is_corrupt() -> None:
    """A difference applies to the state right before it and to no other."""
    record = msgspec.structs.replace(DIFF, seqno=44)
    with pytest.raises(Corrupt, match="cannot follow"):
        apply_diff(STATE, record)
    with pytest.raises(Corrupt, match="cannot follow"):
        apply_diff(STATE, msgspec.structs.replace(DIFF, diff=None))

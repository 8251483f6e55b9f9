"""Damaged and forged values of every encoding: a clear error or the same value, and an end.

What carries a checksum comes back as it was written or not at all. What does not (a record inside
of its entry, an offset, an option) may come back as something else that is well-formed, but raises
nothing but a `ShardError`. Parts have a file of their own, `test_fuzz_parts.py`.

    ./spark-submit.sh test tests/datasource/test_fuzz.py --fuzz-rounds 100000
"""

from __future__ import annotations

import contextlib
import json
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

from shardline.datasource.errors import InvalidUsage, ShardError
from shardline.datasource.ids import check_owner_name
from shardline.datasource.offsets import (
    ShardOffset,
    check_advance,
    check_shards,
    parse_offset,
)
from shardline.datasource.settings import ShardSettings
from shardline.datasource.shard.codec import apply_diff, decode_record, decode_rollup
from shardline.datasource.shard.state import ShardState
from shardline.datasource.shard_source.options import parse_sink, parse_source
from shardline.datasource.stores.entry import decode_entry, encode_entry
from shardline.datasource.stores.log import NumberedLog
from shardline.datasource.stores.memory import MemoryObjects
from shardline.datasource.stores.open import canonical_url, compose_location
from shardline.datasource.stores.options import parse_options
from shardline.datasource.stores.shard_names import shard_directory, shard_name
from shardline.datasource.types.schema import ShardSchema
from support.fakes.clock import ManualClock, SeededIds
from support.faults.fuzz import damaged_bytes, damaged_json, damaged_text, within
from support.models.shards import TINY, World, schema_of, table

ROUNDS = 400
SECONDS = 120
"""Of one kind, however slow the machine; long runs get more in proportion."""

Check = Callable[[random.Random], bool]
"""Damages something and decodes it: whether it was refused."""


@dataclass
class Corpus:
    """Values of every encoding as a shard really writes them.

    Attributes:
        entries: Of the log, by key.
        records: The payloads of those, with the state before each.
        rollups: And the state in each.
    """

    entries: dict[str, bytes] = field(default_factory=dict)
    records: list[tuple[bytes, ShardState]] = field(default_factory=list)
    rollups: list[tuple[bytes, ShardState]] = field(default_factory=list)
    marker: bytes = b""
    schema: str = ""


def live(world: World) -> None:
    """Everything that a state can hold: appends, holds, leases, claims of merges, an evolution."""
    client = world.client(TINY)
    client.create("s", schema_of(), key=("id",), comment="für alle")
    handle = client.writer("s", "etl")
    client.hold("s", "everything", purpose="zürich")
    reader = client.reader("s", purpose="a reader")
    for number in range(14):
        some = [(number * 40 + i, f"row {i} \u2028") for i in range(1 if number % 3 else 30)]
        handle.append_now(table(*some), sequence=number)
        if number == 7:
            client.compact("s", force=True)
    assert reader.lease.reader in client.state("s").leased
    client.compact("s")
    client.collect_garbage("s")


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    world, found = World(), Corpus()
    live(world)
    objects = world.objects()
    found.marker = objects.get("_shardline") or b""
    state: ShardState | None = None
    for entry in sorted(objects.entries("s/log/"), key=lambda e: e.key, reverse=True):
        value = objects.get(entry.key) or b""
        found.entries[entry.key] = value
        _, payload = decode_entry("memory", entry.key, value)
        record = decode_record(payload, "a record")
        if state is not None:
            found.records.append((payload, state))
        state = record.state if state is None else apply_diff(state, record)
    assert state is not None
    for entry in objects.entries("s/rollup/"):
        value = objects.get(entry.key) or b""
        found.rollups.append((value, decode_rollup(value, "a rollup")))
    found.schema = state.schemas[0]
    assert len(found.records) > 15
    assert found.rollups
    world.close()
    return found


def fuzz(request: pytest.FixtureRequest, check: Check, *, refused: float) -> None:
    """Run `check` many times; at least the share `refused` of the damage must be noticed."""
    given = request.config.getoption("--fuzz-rounds", default=None)
    rounds: int = given or ROUNDS
    count = number = 0
    with within(SECONDS * max(1, rounds // ROUNDS), lambda: f"round {number}"):
        for number in range(rounds):
            try:
                count += check(random.Random(number))
            except ShardError:
                count += 1
            except Exception as error:  # everything else is the finding
                raise AssertionError(f"round {number}: {type(error).__name__}: {error}") from error
    assert count >= refused * rounds, f"{count} of {rounds} were refused"


def test_log_entries(request: pytest.FixtureRequest, corpus: Corpus) -> None:
    """An entry is what was written at its place, or refused."""
    entries = list(corpus.entries.items())
    values = [value for _, value in entries]

    def check(chance: random.Random) -> bool:
        key, value = chance.choice(entries)
        _, payload = decode_entry("memory", key, value)
        if chance.random() < 0.2:
            key = chance.choice(entries)[0]
        assert decode_entry("memory", key, damaged_bytes(chance, value, values))[1] == payload
        return False

    fuzz(request, check, refused=0.8)


def test_rollups(request: pytest.FixtureRequest, corpus: Corpus) -> None:
    """A rollup is the state that was written, or refused."""
    values = [value for value, _ in corpus.rollups]

    def check(chance: random.Random) -> bool:
        value, state = chance.choice(corpus.rollups)
        assert decode_rollup(damaged_bytes(chance, value, values), "a rollup") == state
        return False

    fuzz(request, check, refused=0.9)


def applied(data: bytes, state: ShardState) -> None:
    """Decode a record and apply it, as whoever reads the log does."""
    record = decode_record(data, "a record")
    if record.state is None:
        apply_diff(state, record)


def test_records_of_damaged_bytes(request: pytest.FixtureRequest, corpus: Corpus) -> None:
    """Without the checksum around it a record is a record or an error, never something else."""
    values = [value for value, _ in corpus.records]

    def check(chance: random.Random) -> bool:
        value, state = chance.choice(corpus.records)
        applied(damaged_bytes(chance, value, values), state)
        return False

    fuzz(request, check, refused=0.3)


def test_records_of_other_values(request: pytest.FixtureRequest, corpus: Corpus) -> None:
    """Types swapped, numbers beyond all ranges, deep nesting, names twice."""

    def check(chance: random.Random) -> bool:
        value, state = chance.choice(corpus.records)
        applied(damaged_json(chance, value), state)
        return False

    fuzz(request, check, refused=0.3)


def forged_rollup(raw: bytes, size: int | None = None) -> bytes:
    """A rollup around `raw`, checksum and all."""
    packed = pa.compress(raw, codec="zstd", asbytes=True)
    body: bytes = (len(raw) if size is None else size).to_bytes(8, "big") + packed
    return b"SHRDROL1" + zlib.crc32(body).to_bytes(4, "big") + body


def test_states_of_other_values(request: pytest.FixtureRequest, corpus: Corpus) -> None:
    """A whole state with other values in it, correctly packed."""
    raws = [
        pa.decompress(v[20:], int.from_bytes(v[12:20], "big"), codec="zstd", asbytes=True)
        for v, _ in corpus.rollups
    ]

    def check(chance: random.Random) -> bool:
        decode_rollup(forged_rollup(damaged_json(chance, chance.choice(raws))), "a rollup")
        return False

    fuzz(request, check, refused=0.3)


@pytest.mark.parametrize("size", [0, 1, 99, 10**9, 2**31, 2**40, 2**63, 2**64 - 1])
def test_a_rollup_that_lies_about_its_size_is_refused(size: int) -> None:
    """If no state can have it, before anything of that size is allocated."""
    expected = "of 4294967296 allowed" if size > 4 << 30 else "rollup"
    with pytest.raises(ShardError, match=expected):
        decode_rollup(forged_rollup(b"{}" * 50, size), "a rollup")


def test_floors(request: pytest.FixtureRequest) -> None:
    """A floor is eight bytes in an entry; forged ones of another length are refused."""
    log = NumberedLog(MemoryObjects("floors", ManualClock()), clock=ManualClock(), ids=SeededIds())
    key = "s/floor/7ffffffffffffffe"
    value = encode_entry(key, b"t" * 16, (5).to_bytes(8, "big"))

    def check(chance: random.Random) -> bool:
        if chance.random() < 0.5:
            assert log._decode_floor(key, damaged_bytes(chance, value, [value])) == 5
            return False
        payload = chance.randbytes(chance.choice((0, 1, 7, 9, 64)))
        log._decode_floor(key, encode_entry(key, b"t" * 16, payload))
        return False

    fuzz(request, check, refused=0.9)


def test_markers(request: pytest.FixtureRequest, corpus: Corpus) -> None:
    """`_shardline` is one of ours, or refused; nothing is written over it."""
    clock, ids = ManualClock(), SeededIds()
    objects = MemoryObjects("markers", clock)

    def check(chance: random.Random) -> bool:
        how = chance.choice((damaged_json, partial(damaged_bytes, others=[corpus.marker])))
        stored = how(chance, corpus.marker)
        objects.put("_shardline", stored)
        try:
            compose_location(objects, clock=clock, ids=ids, if_missing="create")
        finally:
            assert objects.get("_shardline") == stored
        return False

    fuzz(request, check, refused=0.3)


SHARDS = ["s" + "1" * 32, "s" + "2" * 32]
OFFSETS: list[dict[str, Any]] = [
    {"v": 1, "init": True},
    {"v": 1, "shard": SHARDS[0], "hold": "h", "as_of": 17, "frontier": 42},
    {"v": 1, "shard": SHARDS[0], "hold": "h", "as_of": 17, "frontier": None},
    {"v": 1, "shard": SHARDS[0], "hold": "h", "as_of": 17, "frontier": 18, "begins": "snapshot"},
    {"v": 2, "shards": SHARDS, "hold": "h", "as_of": 17, "frontier": 42},
    {
        "v": 2,
        "shards": SHARDS[:1],
        "hold": "h",
        "as_of": 17,
        "frontier": 17,
        "snapshot": {"seqnos": [5], "done": 3},
    },
]


def test_offsets(request: pytest.FixtureRequest) -> None:
    """What a checkpoint says is an offset, or refused; and so is a range of two."""
    texts = [json.dumps(offset).encode() for offset in OFFSETS]

    def check(chance: random.Random) -> bool:
        text = chance.choice(texts)
        how = chance.choice((damaged_json, partial(damaged_bytes, others=texts)))
        try:
            value = json.loads(how(chance, text))
        except (ValueError, RecursionError):
            return True  # Spark's own parser, before us
        found, other = parse_offset(value), parse_offset(chance.choice(OFFSETS))
        if isinstance(found, ShardOffset):
            assert parse_offset(json.loads(json.dumps(found.json()))) == found
            check_shards(found, [("a", SHARDS[0])], "a query")
        check_advance(other, found, "a query")
        return False

    fuzz(request, check, refused=0.4)


def test_schemas(request: pytest.FixtureRequest, corpus: Corpus) -> None:
    """The text of a schema is one, or refused with the place."""
    text = corpus.schema.encode()

    def check(chance: random.Random) -> bool:
        how = chance.choice((damaged_json, partial(damaged_bytes, others=[text])))
        try:
            ShardSchema.parse(how(chance, text).decode())
        except UnicodeDecodeError:
            return True
        return False

    fuzz(request, check, refused=0.3)


SOURCE = {
    "location": "memory://x", "shard": "s", "readChangeFeed": "true", "timestampAsOf": "17",
    "startingTimestamp": "2026-11-20 12:00:00", "columns": "id,v", "where": "id > 3 and v like 'a'",
    "maxBytesPerTrigger": "10m", "maxRowsPerTrigger": "7", "progressInterval": "10s",
    "hold": "h", "onMissingPart": "freeze", "leaseMs": "1000", "timeZone": "UTC",
}  # fmt: skip
SINK = {
    "location": "memory://x", "shard": "s", "key": "id", "envelope": "upsert",
    "orderingColumn": "v", "comment": "c", "mergeSchema": "true", "txnAppId": "a",
    "txnVersion": "5", "partBufferBytes": "100",
}  # fmt: skip
STORAGE = {"s3.endpoint": "http://127.0.0.1:9", "s3.pool-size": "3", "s3.path-style": "true"}
SETTINGS = {"lease_ms": "5", "validate": "true", "part_buffer_bytes": "1_000"}


def test_options(request: pytest.FixtureRequest) -> None:
    """Names and values of options, of every kind."""
    parsers: list[tuple[Callable[[Any], object], dict[str, str]]] = [
        (parse_source, SOURCE),
        (parse_sink, SINK),
        (parse_options, STORAGE),
        (ShardSettings.parse, SETTINGS),
    ]

    def check(chance: random.Random) -> bool:
        parse, whole = chance.choice(parsers)
        must = [name for name in whole if name in {"location", "shard"}]
        some = chance.sample(list(whole), chance.randrange(1, len(whole)))
        given = {name: whole[name] for name in (*must, *some)}
        name = chance.choice(list(given))
        if chance.random() < 0.1:
            given[damaged_text(chance, name)] = given.pop(name)
        else:
            given[name] = damaged_text(chance, given[name])
        parse(given)
        return False

    fuzz(request, check, refused=0.3)


@pytest.mark.parametrize(
    "where",
    [
        "(" * 3000 + "id > 1" + ")" * 3000,
        " and ".join(["id > 1"] * 5000),
        "not " * 3000 + "id > 1",
        "id in (" + ",".join(map(str, range(20_000))) + ")",
        "id > " + "9" * 10_000,
        "v like '" + "%" * 10_000 + "'",
    ],
)
def test_a_filter_without_end_is_read_or_refused(where: str) -> None:
    """However long or deep it is: an error of ours, or a filter."""
    with within(60, lambda: where[:40]), contextlib.suppress(ShardError):
        parse_source({"location": "memory://x", "shard": "s", "where": where})


@pytest.mark.parametrize("zone", ["America", "x" * 5000, "../../etc/passwd", "Z\x00"])
def test_a_zone_that_is_no_file_is_refused(zone: str) -> None:
    """Zones are looked up as files; whatever goes wrong there is about the option."""
    given = {"location": "memory://x", "shard": "s", "timeZone": zone}
    with pytest.raises(InvalidUsage, match="timeZone"):
        parse_source(given | {"timestampAsOf": "2026-11-20 12:00:00"})


def test_names(request: pytest.FixtureRequest) -> None:
    """Names of shards, of owners and of places: kept exactly, or refused."""
    urls = ["s3://bucket/a/b", "file:///data/x y", "/data/shards", "memory://m", "gs://b/ü"]

    def check(chance: random.Random) -> bool:
        name = damaged_text(chance, chance.choice(("orders", "a/b c", "ü%41", "_x", ".y")))
        match chance.randrange(4):
            case 0:
                assert shard_name(shard_directory(name)) == name
            case 1:
                assert shard_directory(shard_name(name)) == name
            case 2:
                assert check_owner_name("reader", name) == name
            case _:
                url = canonical_url(damaged_text(chance, chance.choice(urls)))
                assert canonical_url(url) == url
        return False

    fuzz(request, check, refused=0.1)

"""Parts that are missing, cut, damaged or foreign: an error that names them, and no wrong row."""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from dataclasses import replace

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Corrupt, InvalidUsage, MissingBlob
from shardline.datasource.frontier import Frontier
from shardline.datasource.parts.fetch import Fetcher
from shardline.datasource.parts.part_file import decode_inline
from shardline.datasource.parts.verify import verify_part
from shardline.datasource.read import contents_of
from shardline.datasource.shard.batch import Part
from support.fakes.ranged_store import OpenedByRanges
from support.models.shards import SETTINGS, World, rows, schema_of, table, updates

SHARD = "orders"
BLOBS = replace(SETTINGS, inline_part_bytes=0, row_group_rows=3)
SOME = table(*((i, f"value {i}" * 3) for i in range(10)))


@pytest.fixture
def client(world: World) -> ShardClient:
    """See `filled`."""
    return filled(world)


def filled(world: World) -> ShardClient:
    """A shard of ten rows, in one blob of several row groups."""
    made = world.client(BLOBS)
    made.create(SHARD, schema_of(), key=["id"])
    made.writer(SHARD).append_now(SOME)
    made.hold(SHARD, "everything")
    return made


def only_part(client: ShardClient) -> Part:
    [part] = client.state(SHARD).trace.batches[0].parts
    return part


def everything(client: ShardClient) -> list[pa.Table]:
    """What every way of reading says."""
    with client.reader(SHARD) as reader:
        whole = reader.snapshot()
        narrow = reader.snapshot(columns=["v"])
        [step] = reader.listen(0, timeout_ms=1)
    return [whole, narrow, step.updates]


def ways(client: ShardClient) -> list[object]:
    """Each way of reading by itself, to be called."""

    def snapshot() -> object:
        with client.reader(SHARD) as reader:
            return reader.snapshot()

    def narrow() -> object:
        with client.reader(SHARD) as reader:
            return reader.snapshot(columns=["v"])

    def listen() -> object:
        with client.reader(SHARD) as reader:
            return list(reader.listen(0, timeout_ms=1))

    return [snapshot, narrow, listen]


def fetcher(client: ShardClient) -> Fetcher:
    return contents_of(client.machine(SHARD), client.state(SHARD)).fetcher


@pytest.mark.parametrize("way", range(3))
def test_a_missing_part_is_an_error_in_every_way_of_reading(client: ShardClient, way: int) -> None:
    """Nothing is skipped: the error names the part and says what to do."""
    part = only_part(client)
    client.location.blob.delete(part.key)
    with pytest.raises(MissingBlob, match=rf"MISSING_BLOB.*{part.key}.*10 rows.*restore"):
        ways(client)[way]()  # type: ignore[operator]
    assert isinstance(verify_part(client.location.blob, part), MissingBlob)


@pytest.mark.parametrize("way", range(3))
def test_a_part_that_may_not_be_read_is_not_damaged(
    client: ShardClient, way: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store's refusal comes as it is: to restore the part from a backup would not help."""

    def refuse(*_: object, **__: object) -> None:
        raise InvalidUsage("cannot open it", code="ACCESS_DENIED", hint="check the owner")

    monkeypatch.setattr(type(client.location.blob), "open", refuse)
    with pytest.raises(InvalidUsage, match=r"^\[ACCESS_DENIED\] cannot open it.*check the owner$"):
        ways(client)[way]()  # type: ignore[operator]


@pytest.mark.parametrize("summed", [True, False])
@pytest.mark.parametrize("left", [0, 0.5, 0.99])
def test_a_remote_part_that_is_gone_or_short_is_an_answer(summed: bool, left: float) -> None:
    """Not an error of the check: a stream that may stand still would end by it."""
    world = World(objects=lambda here: OpenedByRanges(here._name, here.clock))
    client = filled(world)
    part = only_part(client)
    if not summed:
        part = msgspec.structs.replace(part, crc32=None)  # as of a part that Spark has written
    data = world.objects().get(part.key)
    assert data is not None
    assert verify_part(client.location.blob, part) is None
    world.objects().delete(part.key)
    if left:
        world.objects().put(part.key, data[: int(len(data) * left)])
    error = verify_part(client.location.blob, part)
    assert isinstance(error, MissingBlob)
    assert part.key in str(error)


@pytest.mark.parametrize("way", range(3))
@pytest.mark.parametrize(
    "foreign", [b"", b"PAR1", b"hello" * 1000, b"PAR1" + b"\0" * 900 + b"PAR1"]
)
def test_a_foreign_file_is_corrupt(client: ShardClient, foreign: bytes, way: int) -> None:
    """What was never a part is refused by name."""
    part = only_part(client)
    client.location.blob.set(part.key, foreign)
    with pytest.raises(Corrupt, match=rf"CORRUPT_PART.*{part.key}.*nothing is skipped"):
        ways(client)[way]()  # type: ignore[operator]
    assert isinstance(verify_part(client.location.blob, part), Corrupt)


def test_another_part_of_the_same_size_is_corrupt(client: ShardClient) -> None:
    """A whole Parquet file with other columns is not the one that was written."""
    part = only_part(client)
    sink = io.BytesIO()
    pq.write_table(pa.table({"other": [1]}), sink)
    padding = part.size_bytes - len(sink.getvalue())
    assert padding > 0
    client.location.blob.set(part.key, b"\0" * padding + sink.getvalue())
    with pytest.raises(Corrupt):
        everything(client)


@pytest.mark.exhaustive
def test_a_part_cut_anywhere_is_corrupt(client: ShardClient) -> None:
    """No beginning of a part is a part."""
    part = only_part(client)
    whole = client.location.blob.get(part.key) or b""
    for end in range(0, len(whole), 7):
        client.location.blob.set(part.key, whole[:end])
        with pytest.raises(Corrupt):
            ways(client)[0]()  # type: ignore[operator]


@pytest.mark.exhaustive
def test_a_part_without_a_checksum_is_verified_by_its_pages(client: ShardClient) -> None:
    """Spark's writer keeps none of the whole file: what would change a row is found anyway."""
    part = msgspec.structs.replace(only_part(client), crc32=None)
    expected = [rows(one) for one in everything(client)]
    whole = client.location.blob.get(part.key) or b""
    assert verify_part(client.location.blob, part) is None
    noticed = 0
    for bit in range(0, 8 * len(whole), 37):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        client.location.blob.set(part.key, bytes(damaged))
        if verify_part(client.location.blob, part) is not None:
            noticed += 1
            continue
        with contextlib.suppress(Corrupt):  # in the names of columns: not a matter of the pages
            assert [rows(one) for one in everything(client)] == expected
    client.location.blob.set(part.key, whole[:-1])
    assert isinstance(verify_part(client.location.blob, part), Corrupt)
    assert noticed > 10


@pytest.mark.slow
def test_no_flipped_bit_makes_a_wrong_row(client: ShardClient) -> None:
    """Wherever a bit of a part flips, reading it is an error, or right."""
    part = only_part(client)
    expected = [rows(one) for one in everything(client)]
    whole = client.location.blob.get(part.key) or b""
    noticed = 0
    for bit in range(0, 8 * len(whole), 37):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        client.location.blob.set(part.key, bytes(damaged))
        assert isinstance(verify_part(client.location.blob, part), Corrupt)
        try:
            found = [rows(one) for one in everything(client)]
        except Corrupt:
            noticed += 1
        else:
            assert found == expected, f"bit {bit % 8} of byte {bit // 8}"
    assert noticed > 100


def test_an_inline_part_is_checked(world: World) -> None:
    """A message that does not say what was written is corrupt, whatever Arrow makes of it."""
    client = world.client(SETTINGS)
    client.create(SHARD, schema_of())
    client.writer(SHARD).append_now(SOME)
    part = only_part(client)
    assert part.inline is not None
    schema = schema_of()
    for bit in range(0, 8 * len(part.inline), 5):
        damaged = bytearray(part.inline)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt):
            decode_inline(msgspec.structs.replace(part, inline=bytes(damaged)), schema)
    for end in range(len(part.inline)):
        with pytest.raises(Corrupt):
            decode_inline(msgspec.structs.replace(part, inline=part.inline[:end]), schema)


def test_damage_is_found_before_a_row_of_its_batch_comes_out(world: World) -> None:
    """A listener gets a step whole or not at all."""
    client = world.client(BLOBS)
    client.create(SHARD, schema_of())
    writer = client.writer(SHARD)
    for time in (1, 2, 3):
        writer.compare_and_append(
            updates((time, "x", time, 1)), Frontier(time - (time == 1)), Frontier(time + 1)
        )
    middle = list(client.state(SHARD).trace.batches)[1]
    [part] = middle.parts
    client.location.blob.delete(part.key)
    with client.reader(SHARD) as reader:
        steps = reader.listen(0, until=Frontier(4))
        with pytest.raises(MissingBlob):
            next(steps)
        assert rows(reader.snapshot(1)) == Counter({(1, "x"): 1})
        with pytest.raises(MissingBlob):
            reader.snapshot(2)

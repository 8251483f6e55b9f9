"""Damaged footers and messages are errors before a library trusts them, whoever opens the part."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typing_extensions import override

from shardline.datasource.errors import Corrupt
from shardline.datasource.inspect.fsck import check_location
from shardline.datasource.parts.part_file import (
    decode_inline,
    footer_bytes,
    open_part,
    read_end,
)
from shardline.datasource.parts.verify import verify_part
from shardline.datasource.read import contents_of
from shardline.datasource.shard.batch import Part
from shardline.datasource.shard.plan import PlannedPart, TimeFilter
from shardline.datasource.stores.memory import MemoryObjects
from shardline.datasource.stores.ranged import open_ranged
from shardline.datasource.types.schema import ShardSchema
from support.fakes.clock import ManualClock
from support.models.shards import SETTINGS, World, schema_of

if TYPE_CHECKING:
    from collections.abc import Callable

FILES = replace(SETTINGS, inline_part_bytes=0, row_group_rows=10_000, compact_inline_bytes=0)
RANDOM = random.Random(11)
LARGE = pa.table(
    {
        "id": pa.array(range(60_000), pa.int64()),
        "v": [f"{RANDOM.getrandbits(200):x}" for _ in range(60_000)],
    }
)
"""More than the megabyte up to which a part is read, and checked, as a whole."""


class Lake:
    """A location with one part in a file, as its writer or as Spark's described it."""

    def __init__(self, *, summed: bool, rows: pa.Table) -> None:
        self.world = World()
        self.client = self.world.client(FILES)
        self.client.create("s", schema_of())
        self.client.writer("s").append_now(rows)
        self.state = self.client.state("s")
        [part] = self.state.trace.batches[-1].parts
        self.part: Part = part if summed else msgspec.structs.replace(part, crc32=None)
        self.data: bytes = self.client.location.blob.get(part.key) or b""

    def damage(self, at: int, bit: int = 2) -> None:
        """Flip one bit, counted from the end."""
        value = bytearray(self.data)
        value[-at] ^= 1 << bit
        self.client.location.blob.set(self.part.key, bytes(value))

    def read(self) -> int:
        fetcher = contents_of(self.client.machine("s"), self.state).fetcher
        planned = PlannedPart(self.part, TimeFilter(None, None), ordered=True)
        return sum(b.num_rows for b in fetcher.fetch(planned, with_ts=True, with_diff=True))


@pytest.fixture(scope="module", params=[pytest.param("large", marks=pytest.mark.slow), "by Spark"])
def lake(request: pytest.FixtureRequest) -> Lake:
    large = request.param == "large"
    found = Lake(summed=large, rows=LARGE if large else LARGE.slice(0, 500))
    assert (found.part.size_bytes > 1 << 20) == large
    return found


def forbid_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """From here on the Parquet library may not be reached."""

    def reached(*_: Any, **__: Any) -> None:
        raise AssertionError("the library was handed a footer that nobody had looked at")

    monkeypatch.setattr(pq, "ParquetFile", reached)
    monkeypatch.setattr(pq, "read_metadata", reached)


@pytest.fixture
def unseen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The Parquet library is not reached."""
    forbid_library(monkeypatch)


@pytest.mark.usefixtures("unseen")
def test_any_bit_of_a_footer_is_noticed(lake: Lake) -> None:
    """Every byte of it, its length and the magic number: an error that names the part."""
    assert lake.part.footer is not None
    for at in range(1, lake.part.footer.size_bytes + 1):
        lake.damage(at, at % 8)
        with pytest.raises(Corrupt, match=rf"{lake.part.key}.* checksum of its footer"):
            lake.read()


def test_the_end_of_a_part_is_all_that_follows_its_pages(lake: Lake) -> None:
    """The byte before it is a page's, whose checksum is in the file; so no byte has none."""
    assert lake.part.footer is not None
    footer = footer_bytes(lake.data)
    assert lake.part.footer.size_bytes > footer, "there is a page index"
    lake.damage(lake.part.footer.size_bytes + 1)
    with pytest.raises(Corrupt, match=lake.part.key) as found:
        lake.read()
    assert "footer" not in str(found.value)


def by_verify(lake: Lake) -> None:
    error = verify_part(lake.client.location.blob, lake.part)
    assert isinstance(error, Corrupt)
    assert lake.part.key in str(error)


def by_check(lake: Lake) -> None:
    [check] = check_location(lake.world.objects(), ManualClock(), shard="s", deep=True).shards
    codes = {finding.code for finding in check.findings if finding.subject == lake.part.key}
    assert codes == {"PART_CHECKSUM"}


def by_merge(lake: Lake) -> None:
    seqno = lake.client.state("s").trace.batches
    with pytest.raises(Corrupt, match=lake.part.key):
        lake.client.compact("s", force=True)
    assert lake.client.state("s").trace.batches == seqno


@pytest.mark.parametrize("look", [by_verify, by_check, by_merge], ids=lambda one: one.__name__)
def test_whoever_opens_a_part_looks_first(
    look: Callable[[Lake], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Verification, a deep check, a merge; which leaves the shard as it was."""
    found = Lake(summed=True, rows=LARGE)
    if look is by_merge:
        found.client.writer("s").append_now(LARGE.slice(0, 1))  # something to merge with
    forbid_library(monkeypatch)
    found.damage(40)
    look(found)


def test_a_footer_that_says_too_much_is_an_error(lake: Lake) -> None:
    """A description whose footer is larger than the file is refused."""
    footer = lake.part.footer
    assert footer is not None
    forged = msgspec.structs.replace(footer, size_bytes=len(lake.data) + 1)
    part = msgspec.structs.replace(lake.part, footer=forged)
    with pytest.raises(Corrupt, match="shorter than its footer"):
        open_part(pa.BufferReader(lake.data), part)


def test_parts_of_older_versions_are_read_as_they_were(lake: Lake) -> None:
    """Without a footer in the description nothing is checked, and nothing is missed."""
    old = msgspec.structs.replace(lake.part, footer=None)
    file = open_part(pa.BufferReader(lake.data), old)
    assert sum(batch.num_rows for batch in file.iter_batches()) == lake.part.rows


class Counted(MemoryObjects):
    """Remembers which ranges were asked for."""

    def __init__(self, value: bytes) -> None:
        super().__init__("counted", ManualClock())
        self.value = value
        self.asked: list[tuple[int, int | None]] = []

    @override
    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes | None:
        self.asked.append((start, end))
        return self.value[start:end]


def test_the_check_costs_no_request(lake: Lake) -> None:
    """What is read of the end of the file is checked, and is what the library then parses."""
    store = Counted(lake.data)
    size = len(lake.data)
    source = open_ranged(store, "part", size)
    file = open_part(source, lake.part, pre_buffer=True)
    assert lake.part.footer is not None
    assert store.asked == [(size - lake.part.footer.size_bytes, size)]
    rows = sum(batch.num_rows for batch in file.iter_batches(use_threads=False))
    assert rows == lake.part.rows
    assert all(end <= size - lake.part.footer.size_bytes for _, end in store.asked[1:] if end)


@pytest.mark.parametrize("columns", [1, 2000])
def test_the_end_of_a_file_is_found(columns: int) -> None:
    """In one request, or in two if the footer is larger than what is guessed."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({f"c{i}": [i] for i in range(columns)}), sink)
    data: bytes = sink.getvalue().to_pybytes()
    store = Counted(data)
    end, _ = read_end(open_ranged(store, "part", len(data)))
    assert pq.read_metadata(pa.BufferReader(end)).num_columns == columns
    assert data.endswith(end.to_pybytes())
    assert len(store.asked) == (1 if len(end) <= 64 << 10 else 2)
    with pytest.raises(ValueError, match="Parquet"):
        read_end(pa.BufferReader(data[:-1]))


def test_a_part_claims_no_order_to_other_readers(world: World) -> None:
    """Parquet's way to say so counts leaves, and stands for an order of values that is not ours."""
    client = world.client(FILES)
    at = pa.array([{"a": number % 7, "b": number % 5} for number in range(40)])
    rows = pa.table({"at": at, "k": [None, *range(39)]})
    client.create("keyed", schema_of(rows.schema), key=["k"])
    client.writer("keyed").append_now(rows)
    [part] = client.state("keyed").trace.batches[-1].parts
    footer = pq.read_metadata(pa.BufferReader(world.objects().get(part.key)))
    assert footer.row_group(0).sorting_columns == ()


def not_utf_8() -> pa.Array:
    """Two texts as Spark can make them, and a null."""
    raw = pa.array([b"a\xff", b"\xfe\xfe", None], pa.binary())
    return pa.Array.from_buffers(pa.string(), 3, raw.buffers())


@pytest.mark.parametrize("inline", [True, False])
def test_text_that_is_no_utf_8_is_no_damage(inline: bool) -> None:
    """At any depth: what was appended can be read for ever."""
    text = not_utf_8()
    rows = pa.table(
        {
            "text": text,
            "list": pa.ListArray.from_arrays([0, 2, 2, 3], text),
            "row": pa.StructArray.from_arrays([text], ["x"]),
            "map": pa.MapArray.from_arrays(pa.array([0, 1, 2, 2], pa.int32()), text[:2], text[:2]),
        }
    )
    client = World().client(SETTINGS if inline else FILES)
    client.create("s", ShardSchema.from_arrow(rows.schema))
    client.writer("s").append_now(rows)
    [part] = client.state("s").trace.batches[-1].parts
    assert (part.inline is not None) == inline
    with client.reader("s") as reader:
        found = reader.snapshot()

    def raw(table: pa.Table, name: str) -> list[bytes | None]:
        column = table[name].combine_chunks()
        while not pa.types.is_string(column.type):
            column = column.flatten()[0] if pa.types.is_struct(column.type) else column.flatten()
        values: list[bytes | None] = column.view(pa.binary()).to_pylist()
        return values

    for name in ("text", "list", "row"):
        assert Counter(raw(found, name)) == Counter(raw(rows, name))
    keys = found["map"].combine_chunks().keys.view(pa.binary()).to_pylist()
    assert sorted(keys) == [b"a\xff", b"\xfe\xfe"]


def test_damage_of_a_part_in_the_state_is_noticed() -> None:
    """Also of a part of an older version, which has no checksum."""
    client = World().client(SETTINGS)
    rows = pa.table({"text": pa.array(["a", "bc", "def"])})
    client.create("s", ShardSchema.from_arrow(rows.schema))
    client.writer("s").append_now(rows)
    state = client.state("s")
    [part] = state.trace.batches[-1].parts
    assert part.inline is not None
    ends = part.inline.index((1).to_bytes(4, "little") + (3).to_bytes(4, "little"))
    message = bytearray(part.inline)
    message[ends + 1] = 0xFF  # a text that ends beyond all texts
    for damaged in (
        msgspec.structs.replace(part, inline=bytes(message)),
        msgspec.structs.replace(part, inline=bytes(message), crc32=None),
    ):
        with pytest.raises(Corrupt, match="CORRUPT_PART"):
            decode_inline(damaged, ShardSchema.from_arrow(rows.schema))

"""Laws of objects and blobs, on every backend alike."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardline.datasource.errors import InvalidUsage, MissingBlob
from shardline.datasource.stores.objects import CREATED, EXISTS

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.processes.places import Place

_KIB, _MIB = 1 << 10, 1 << 20


def _pattern(size: int) -> bytes:
    return bytes(range(251)) * (size // 251) + bytes(range(size % 251))


@pytest.mark.parametrize("size", [0, 1, 10 * _KIB, 5 * _MIB])
def test_a_created_object_is_read_back_whole(place: Place, size: int) -> None:
    """Any size from nothing to megabytes comes back byte for byte, through another handle too."""
    value = _pattern(size)

    assert place.objects().create("a/b", value) is CREATED
    assert place.objects().get("a/b") == value


def test_the_first_create_wins(place: Place) -> None:
    """A second create of a key is refused and changes nothing, whatever it brings."""
    objects = place.objects()

    assert objects.create("a/b", b"first") is CREATED
    assert objects.create("a/b", b"second") is EXISTS
    assert place.objects().create("a/b", b"first") is EXISTS
    assert objects.create("a/b", b"") is EXISTS
    assert objects.get("a/b") == b"first"


def test_of_racing_creates_one_wins(place: Place) -> None:
    """Of eight threads that create one key, one is told so, and its value is what is stored."""
    objects = place.objects()
    for round_number in range(10):
        key = f"race/{round_number}"
        start = threading.Barrier(8)
        winners: list[bytes] = []

        def run(value: bytes, key: str = key, start: threading.Barrier = start) -> None:
            start.wait()
            if objects.create(key, value) is CREATED:
                winners.append(value)  # noqa: B023 - the threads end within the round

        threads = [threading.Thread(target=run, args=(bytes([n]) * 1000,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert winners == [objects.get(key)]


def test_a_put_replaces_the_whole_value(place: Place) -> None:
    """A put stores over what is there, longer or shorter, and takes views of memory."""
    objects = place.objects()
    for value in (b"long value", b"", b"short", memoryview(b"view")):
        objects.put("dir/key", value)

        assert place.objects().get("dir/key") == bytes(value)


def test_what_is_not_there_reads_as_none(place: Place) -> None:
    """Absence is an answer, not an error, before and after the place exists."""
    objects = place.objects()

    assert objects.get("no/such") is None
    assert objects.get("no/such", 2, 2) is None
    assert objects.open("no/such") is None
    assert objects.delete("no/such") is False
    assert list(objects.entries("")) == []
    assert objects.directories() == []
    objects.put("dir/key", b"x")
    assert objects.get("dir") is None
    assert objects.get("dir/key/below") is None
    assert list(objects.entries("dir/key/below/")) == []


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (0, None, b"0123456789"),
        (3, None, b"3456789"),
        (0, 4, b"0123"),
        (3, 5, b"34"),
        (9, 10, b"9"),
        (5, 5, b""),
        (8, 100, b"89"),
        (10, 12, b""),
        (99, None, b""),
    ],
)
def test_a_range_is_cut_at_the_end(
    place: Place, start: int, end: int | None, expected: bytes
) -> None:
    """`[start, end)` means what it means for a slice of the whole value."""
    objects = place.objects()
    objects.put("k", b"0123456789")

    assert objects.get("k", start, end) == expected


def test_many_are_read_at_once_in_the_order_asked(place: Place) -> None:
    """`get_many` answers each key in its place, None where nothing is."""
    objects = place.objects()
    for number in range(0, 100, 2):
        objects.put(f"many/{number}", b"%d" % number)

    values = objects.get_many([f"many/{number}" for number in range(100)])

    assert values == [None if n % 2 else b"%d" % n for n in range(100)]
    assert objects.get_many([]) == []


def test_a_deleted_object_is_gone_and_can_be_created_again(place: Place) -> None:
    """Delete says whether it found something; afterwards the key is free."""
    objects = place.objects()
    objects.put("a/b", b"x")
    objects.put("a/c", b"y")

    assert objects.delete("a/b") is True
    assert objects.delete("a/b") is False
    objects.delete_many(["a/b", "a/c", "a/d"])
    assert list(objects.entries("")) == []
    assert objects.create("a/b", b"z") is CREATED


_KEYS = ["a-b", "a/b", "a/b c", "a/b/c", "a0", "b/ü", "b/日本", "b/z", "c"]


def test_a_listing_is_in_key_order(place: Place) -> None:
    """Keys sort as strings do, so `a-b` comes before everything below `a/`."""
    objects = place.objects()
    keys = [key for key in _KEYS if key != "a/b"]  # a disk cannot have both a/b and a/b/c
    for key in reversed(keys):
        objects.put(key, key.encode())

    entries = list(objects.entries(""))

    assert [entry.key for entry in entries] == sorted(keys)
    assert [entry.size_bytes for entry in entries] == [len(k.encode()) for k in sorted(keys)]
    # Any year of this century: the clock of a server is its own.
    assert all(946_684_800_000 < entry.modified_ms < 4_102_444_800_000 for entry in entries)
    assert objects.directories() == ["a", "b"]


def test_a_listing_obeys_prefix_start_and_limit(place: Place) -> None:
    """A listing is what a filter over the sorted keys gives."""
    objects = place.objects()
    keys = sorted(key for key in _KEYS if key != "a/b")
    for key in keys:
        objects.put(key, b"")
    for prefix, start_after, limit in itertools.product(
        ["", "a", "a/", "a/b", "a/b ", "b/", "b/日", "c", "zz", "a/b/c/"],
        ["", "a", "a/b", "a/b c", "a/zz", "b/ü"],
        [None, 1, 2],
    ):
        expected = [key for key in keys if key.startswith(prefix) and key > start_after]

        found = [entry.key for entry in objects.entries(prefix, start_after, limit)]

        assert found == expected[:limit], (prefix, start_after, limit)


@pytest.mark.s3
def test_an_s3_listing_goes_on_over_pages(s3_place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """More objects than one page holds are all listed, once, from any start."""
    monkeypatch.setattr("shardline.datasource.stores.s3._PAGE_MAX", 5)
    objects = s3_place.objects()
    keys = [f"page/{number:02d}" for number in range(23)]
    for key in keys:
        objects.put(key, b"x")

    assert [e.key for e in objects.entries("page/")] == keys
    assert [e.key for e in objects.entries("page/", keys[3], 11)] == keys[4:15]
    assert [e.key for e in objects.entries("page/", keys[-2])] == keys[-1:]
    assert list(objects.entries("page/", limit=0)) == []


# ------------------------------------------------------------------------------------------- blob


def test_a_blob_is_set_got_listed_and_deleted(place: Place) -> None:
    """The life of a blob, seen through two handles."""
    writer, reader = place.open().blob, place.open().blob
    key = "orders/part/a pärt.parquet"

    writer.set(key, b"0123456789")
    writer.set(key, b"0123456789")

    assert reader.get(key) == b"0123456789"
    assert reader.get(key, 2, 4) == b"23"
    assert [(e.key, e.size_bytes) for e in reader.list("orders/part/")] == [(key, 10)]
    assert reader.delete(key) is True
    assert writer.delete(key) is False
    assert writer.get(key) is None


def test_parquet_is_read_through_an_open_blob(place: Place) -> None:
    """An open blob serves a Parquet reader, with and without its size known."""
    table = pa.table({"n": list(range(10_000)), "s": [f"row {n}" for n in range(10_000)]})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, row_group_size=1000)
    value = sink.getvalue().to_pybytes()
    blob = place.open().blob
    blob.set("t/part/p", value)

    for size_bytes in (None, len(value)):
        opened = blob.open("t/part/p", size_bytes)
        assert opened is not None
        with opened, pq.ParquetFile(opened) as file:
            assert file.read().equals(table)
            assert file.read_row_group(3, columns=["s"])["s"][0].as_py() == "row 3000"


@pytest.mark.s3
def test_a_blob_that_is_gone_fails_its_first_read(s3_place: Place) -> None:
    """With a known size nobody looks first, so a missing object shows when it is read."""
    blob = s3_place.open().blob
    opened = blob.open("t/part/p", 100)
    assert opened is not None

    with opened, pytest.raises(MissingBlob, match="t/part/p"):
        opened.read(10)


@pytest.mark.parametrize(
    "key",
    ["", "/a", "a/", "a//b", "..", "a/../b", "a/./b", "a\nb", "a\x00b", "\ud800", "_shardline",
     "_probe/x", "s/log/7fffffffffffffff", "s/floor/x"],
)  # fmt: skip
def test_a_key_that_is_no_blobs_is_refused(memory_place: Place, key: str) -> None:
    """Empty steps, `..`, control characters and other objects' places are refused untouched."""
    blob = memory_place.open().blob

    calls: list[Callable[[], object]] = [
        lambda: blob.set(key, b"x"),
        lambda: blob.get(key),
        lambda: blob.delete(key),
        lambda: blob.open(key),
    ]
    for call in calls:
        with pytest.raises(InvalidUsage, match=r"\[INVALID_KEY\]"):
            call()
    with pytest.raises(InvalidUsage, match=r"bytes \[3, 2\)"):
        blob.get("a", 3, 2)


def test_a_listing_of_blobs_hides_what_is_none(memory_place: Place) -> None:
    """Neither the location's own objects nor logs are blobs, nor what others put at odd keys."""
    location = memory_place.open()
    location.consensus.compare_and_set("s", None, b"x")
    location.blob.set("s/part/p", b"x")
    for key in ("s/part//p", "s/part/caf\udce9", "s/part/a\nb", "s/part/./x", "/s/part/p"):
        memory_place.objects().put(key, b"x")

    assert [entry.key for entry in location.blob.list("")] == ["s/part/p"]
    with pytest.raises(InvalidUsage):
        location.blob.list("a/../b")

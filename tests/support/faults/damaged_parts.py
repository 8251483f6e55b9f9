"""Damages of parts: blobs that are gone or changed, and rows that are not as they are described."""

from __future__ import annotations

import io
import math

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from shardline.datasource.types.stats import encode_stats
from support.faults.damage import SHARD, Lake
from support.faults.damages import DAMAGES, damage
from support.models.shards import schema_of

__all__ = ["DAMAGES"]

replace = msgspec.structs.replace


# --- blobs ---------------------------------------------------------------------------------------


@damage("PART_MISSING")
def part_deleted(lake: Lake) -> None:
    lake.delete(lake.part().key)


@damage("PART_MISSING")
def part_of_a_held_state_deleted(lake: Lake) -> None:
    lake.delete(lake.held_part())


@damage("PART_SIZE")
def part_cut(lake: Lake) -> None:
    lake.cut(lake.part().key)


@damage("PART_SIZE")
def part_emptied(lake: Lake) -> None:
    lake.objects.put(lake.part().key, b"")


@damage("PART_SIZE")
def parts_swapped(lake: Lake) -> None:
    lake.swap(lake.part(0).key, lake.part(7).key)


@damage("PART_CHECKSUM", deep=True)
def bit_flipped_in_the_data(lake: Lake) -> None:
    lake.flip(lake.part(1).key, 100)


@damage("PART_CHECKSUM", deep=True)
def bit_flipped_in_the_footer(lake: Lake) -> None:
    lake.flip(lake.part(1).key, -40)


@damage("PART_UNREADABLE", deep=True)
def bit_flipped_in_a_part_without_checksum(lake: Lake) -> None:
    part = lake.part(1)
    lake.forge_part(part, crc32=None)
    for at in range(60, 260, 20):
        lake.flip(part.key, at)


@damage("PART_UNREADABLE", deep=True)
def bit_flipped_in_the_footer_of_a_part_without_checksum(lake: Lake) -> None:
    lake.forge_part(lake.part(1), crc32=None)
    lake.flip(lake.part(1).key, -40)


@damage("PART_NAN_BOUNDS")
def part_of_an_older_version(lake: Lake) -> None:
    lake.client.evolve(SHARD, schema_of(pa.schema([*schema_of().arrow, ("f", pa.float64())])))
    ids = range(100, 140)
    rows = pa.table({"id": ids, "v": [f"{i * 7919 % 1000}" for i in ids], "f": [math.nan] * 40})
    lake.client.writer(SHARD).append_now(rows)
    part = next(iter(lake.batches()[-1].parts))
    lake.forge_part(part, footer=None, nan_safe=False)


@damage("PART_ROWS", deep=True)
def another_part_in_its_place(lake: Lake) -> None:
    part, other = lake.part(0), lake.part(7)
    data = lake.get(other.key)
    lake.objects.put(part.key, data)
    lake.forge_part(part, size_bytes=len(data), crc32=None, footer=None)


@damage("PART_CHECKSUM", deep=True)
def inline_part_changed(lake: Lake) -> None:
    part = lake.inline()
    payload = bytearray(part.inline or b"")
    payload[-3] ^= 1
    lake.forge_part(part, inline=bytes(payload))


@damage("PART_SIZE", "INLINE_BYTES")
def inline_part_of_another_size(lake: Lake) -> None:
    lake.forge_part(lake.inline(), size_bytes=7)


# --- rows against what is said of them -----------------------------------------------------------


def put_table(lake: Lake, rows: pa.Table) -> int:
    """Write other rows into the first part; the size of the file."""
    sink = io.BytesIO()
    pq.write_table(rows, sink)
    lake.objects.put(lake.part().key, sink.getvalue())
    return len(sink.getvalue())


def read_table(lake: Lake) -> pa.Table:
    return pq.read_table(io.BytesIO(lake.get(lake.part().key)))


@damage("PART_STATISTICS", deep=True)
def bounds_too_narrow(lake: Lake) -> None:
    part = lake.part()
    assert part.stats is not None
    column = replace(part.stats.columns["id"], hi=-1)
    lake.forge_part(part, encoded_stats=encode_stats(replace(part.stats, columns={"id": column})))


@damage("PART_STATISTICS", deep=True)
def nulls_that_are_not_there(lake: Lake) -> None:
    part = lake.part()
    assert part.stats is not None
    column = replace(part.stats.columns["id"], nulls=part.rows)
    lake.forge_part(part, encoded_stats=encode_stats(replace(part.stats, columns={"id": column})))


@damage("PART_STATISTICS", deep=True)
def statistics_of_no_column(lake: Lake) -> None:
    part = lake.part()
    assert part.stats is not None
    columns = {"nobody": part.stats.columns["id"]}
    lake.forge_part(part, encoded_stats=encode_stats(replace(part.stats, columns=columns)))


@damage("PART_TIMES", deep=True)
def times_that_are_not_there(lake: Lake) -> None:
    part = lake.part()
    lake.forge_part(part, ts_min=(part.ts_min or 0) - 5)


@damage("PART_INTERVAL")
def part_in_the_wrong_batch(lake: Lake) -> None:
    part = lake.batches()[3].runs[0].parts[0]
    lake.forge_part(part, ts=(part.ts or 0) + 1000)


@damage("PART_DIFFS", deep=True)
def wrong_sum_of_diffs(lake: Lake) -> None:
    lake.forge_part(lake.part(), diff_sum=lake.part().diff_sum + 1)


@damage("PART_ROWS", deep=True)
def wrong_number_of_rows(lake: Lake) -> None:
    lake.forge_part(lake.part(), rows=lake.part().rows + 1)


@damage("PART_COLUMNS", deep=True)
def column_missing(lake: Lake) -> None:
    size = put_table(lake, read_table(lake).drop_columns(["v"]))
    lake.forge_part(lake.part(), size_bytes=size, crc32=None, footer=None)


@damage("PART_UNREADABLE", deep=True)
def column_of_another_type(lake: Lake) -> None:
    rows = read_table(lake)
    size = put_table(lake, rows.set_column(0, "id", rows["v"]))
    lake.forge_part(lake.part(), size_bytes=size, crc32=None, footer=None)


@damage("RUN_NOT_SORTED", deep=True)
def rows_out_of_order(lake: Lake) -> None:
    rows = read_table(lake)
    assert rows["id"][0] != rows["id"][-1]
    size = put_table(lake, rows.take(list(reversed(range(rows.num_rows)))))
    lake.forge_part(lake.part(), size_bytes=size, crc32=None, footer=None)


@damage("RUN_NOT_SORTED", deep=True)
def parts_of_a_run_out_of_order(lake: Lake) -> None:
    first, *others = lake.batches()
    [run] = first.runs
    turned = replace(first, runs=(replace(run, parts=run.parts[::-1]),))
    lake.forge_trace(batches=(turned, *others))


@damage("NEGATIVE_ROWS", deep=True)
def more_taken_away_than_there_was(lake: Lake) -> None:
    gone = pa.table({"id": [999], "v": ["never there"], "_diff": [-1]})
    lake.client.writer(SHARD).append_now(gone)


@damage("DIFF_OVERFLOW", deep=True)
def more_copies_than_an_int64_holds(lake: Lake) -> None:
    many = pa.table({"id": [999] * 2, "v": ["often"] * 2, "_diff": [2**63 - 1, -1]})
    for _ in range(2):
        lake.client.writer(SHARD).append_now(many.slice(0, 1))
    lake.client.writer(SHARD).append_now(many.slice(1, 1))

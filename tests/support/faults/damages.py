"""A table of damages: how to spoil a location, and what a check must then find, all of it.

Here those of the log, the state and the location; `damaged_parts` enters those of parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
import pyarrow as pa

from shardline.datasource.shard.batch import Batch
from shardline.datasource.shard.codec import (
    CODE_VERSION,
    Record,
    decode_record,
    decode_rollup,
    encode_rollup,
)
from shardline.datasource.shard.description import Description
from shardline.datasource.shard.state import Registration, RollupRef
from shardline.datasource.stores.entry import decode_entry
from shardline.datasource.transactions.rows import TRANSACTIONS, Payload, Row, updates_table
from shardline.datasource.types.stats import NO_STATS
from support.faults.damage import OTHER, SHARD, Lake, some

__all__ = [
    "DAMAGES",
    "Damage",
    "commits_blob",
    "damage",
    "part_of_a_transaction_that_waits",
]

replace = msgspec.structs.replace


@dataclass(frozen=True)
class Damage:
    """One way to spoil a location, and the codes of what must be found, all of them."""

    name: str
    plant: Callable[[Lake], object]
    codes: frozenset[str]
    deep: bool = False
    """Whether only a look at the rows shows it."""


DAMAGES: Final[list[Damage]] = []


def damage(
    *codes: str, deep: bool = False
) -> Callable[[Callable[[Lake], object]], Callable[[Lake], object]]:
    """Enter a function that spoils a lake into the table."""

    def enter(plant: Callable[[Lake], object]) -> Callable[[Lake], object]:
        DAMAGES.append(Damage(plant.__name__, plant, frozenset(codes), deep))
        return plant

    return enter


# --- the log -------------------------------------------------------------------------------------


@damage("RECORD_MISSING", "HOLD_UNREADABLE")
def record_in_the_middle_deleted(lake: Lake) -> None:
    lake.delete(lake.record_key(28))


@damage("RECORD_MISSING")
def record_before_every_hold_deleted(lake: Lake) -> None:
    lake.delete(lake.record_key(20))


@damage("RECORD_MISSING")
def oldest_record_deleted(lake: Lake) -> None:
    lake.delete(lake.record_key(16))


@damage("RECORD_MISSING", "STATE_UNREADABLE")
def record_after_the_last_rollup_deleted(lake: Lake) -> None:
    lake.delete(lake.record_key(lake.state.seqno - 1))


@damage("HEAD_MISSING")
def newest_records_deleted(lake: Lake) -> None:
    for seqno in range(30, lake.state.seqno + 1):
        lake.delete(lake.record_key(seqno))


@damage("RECORD_DAMAGED", "HOLD_UNREADABLE")
def record_with_a_flipped_bit(lake: Lake) -> None:
    lake.flip(lake.record_key(28), 60)


@damage("RECORD_DAMAGED", "HOLD_UNREADABLE")
def record_cut(lake: Lake) -> None:
    lake.cut(lake.record_key(28))


@damage("RECORD_DAMAGED")
def record_copied_to_another_place(lake: Lake) -> None:
    lake.objects.put(lake.record_key(20), lake.get(lake.record_key(19)))


@damage("RECORD_MISPLACED")
def record_forged_at_another_place(lake: Lake) -> None:
    record = Record(seqno=19, token="", walltime_ms=5, version=CODE_VERSION)
    lake.put_record(record, at=20)


@damage("RECORD_UNFIT", "HOLD_UNREADABLE")
def record_of_another_shard(lake: Lake) -> None:
    for _ in range(30):
        lake.client.writer(OTHER, "elsewhere").append_now(None)
    key = lake.record_key(28)
    lake.objects.put(key, lake.get(lake.record_key(28, OTHER)))


@damage("RECORD_UNFIT", "STATE_UNREADABLE")
def history_moved_back(lake: Lake) -> None:
    lake.forge_trace(since=7)


@damage("NEWER_VERSION")
def newer_version(lake: Lake) -> None:
    lake.forge_state(version=(CODE_VERSION[0] + 1, 0))


@damage("NEWER_VERSION")
def version_that_can_be_read_but_not_judged(lake: Lake) -> None:
    lake.forge_state(version=(CODE_VERSION[0], CODE_VERSION[1] + 1))


@damage("RECORD_UNFIT")
def record_of_another_history(lake: Lake) -> None:
    """As if a copy had been written to, and a later record of the original had come back."""
    seqno = lake.state.seqno + 1
    for number in (90, 91):
        lake.client.writer(SHARD, "loader").append_now(some(number, 1), sequence=number)
    key = lake.record_key(seqno)
    record = decode_record(decode_entry("", key, lake.get(key))[1], key)
    lake.put_record(replace(record, token="f" * 32))


@damage("FOREIGN_LOG_OBJECT")
def foreign_file_in_the_log(lake: Lake) -> None:
    lake.objects.put(f"{SHARD}/log/README", b"hello")


# --- floors --------------------------------------------------------------------------------------


@damage("FLOOR_BEYOND_HEAD")
def floor_beyond_the_head(lake: Lake) -> None:
    lake.put_floor(2, lake.state.seqno + 100)


@damage("FLOOR_PAST_NEEDED")
def floor_past_what_is_needed(lake: Lake) -> None:
    lake.put_floor(2, 30)


@damage("FLOOR_GAP")
def floor_missing(lake: Lake) -> None:
    lake.put_floor(3, 16)


@damage("FLOOR_BACKWARDS")
def floor_moved_back(lake: Lake) -> None:
    lake.put_floor(2, 3)


@damage("FLOOR_DAMAGED", "RECORD_MISSING")
def floor_with_a_flipped_bit(lake: Lake) -> None:
    [entry] = lake.objects.entries(f"{SHARD}/floor/")
    lake.flip(entry.key, -1)


# --- rollups -------------------------------------------------------------------------------------


def rollup_keys(lake: Lake) -> list[str]:
    return [ref.key for _, ref in sorted(lake.state.rollups.items())]


@damage("ROLLUP_MISSING")
def rollup_deleted(lake: Lake) -> None:
    lake.delete(rollup_keys(lake)[1])


@damage("ROLLUP_MISSING", "STATE_UNREADABLE")
def every_rollup_deleted(lake: Lake) -> None:
    for key in rollup_keys(lake):
        lake.delete(key)


@damage("ROLLUP_DAMAGED")
def rollup_with_a_flipped_bit(lake: Lake) -> None:
    lake.flip(rollup_keys(lake)[1], 50)


@damage("ROLLUP_MISPLACED")
def rollup_of_another_seqno(lake: Lake) -> None:
    first, second = rollup_keys(lake)[:2]
    lake.objects.put(second, lake.get(first))


@damage("ROLLUP_DIFFERS")
def rollup_of_another_state(lake: Lake) -> None:
    key = rollup_keys(lake)[1]
    state = decode_rollup(lake.get(key), key)
    lake.objects.put(key, encode_rollup(replace(state, comment="another one")))


@damage("ROLLUP_AHEAD", "ROLLUP_MISSING")
def rollup_of_the_future(lake: Lake) -> None:
    rollups = lake.state.rollups
    ref = RollupRef(f"{SHARD}/rollup/{99:016x}-{0:032x}", 9)
    lake.forge_state(rollups={**rollups, 99: ref})


# --- the state -----------------------------------------------------------------------------------


@damage("BATCH_GAP")
def gap_between_batches(lake: Lake) -> None:
    batches = lake.batches()
    desc = replace(batches[2].desc, lower=batches[2].desc.lower + 1)
    lake.forge_trace(batches=(*batches[:2], replace(batches[2], desc=desc), *batches[3:]))


@damage("BATCH_INTERVAL", "BATCH_GAP", "EMPTY_NEIGHBOURS", "PART_INTERVAL")
def batch_without_any_time(lake: Lake) -> None:
    *batches, last = lake.batches()
    end = last.desc.upper or 0
    empty = Batch(Description(end, end))
    lake.forge_trace(batches=(*batches, replace(last, desc=empty.desc), empty, empty))


@damage("BATCH_SINCE")
def batch_compacted_too_far(lake: Lake) -> None:
    *batches, last = lake.batches()
    desc = replace(last.desc, since=(lake.state.since.time or 0) + 5)
    lake.forge_trace(batches=(*batches, replace(last, desc=desc)))


@damage("INLINE_BYTES")
def wrong_sum_of_inline_bytes(lake: Lake) -> None:
    lake.forge_trace(inline_bytes=lake.state.trace.inline_bytes + 1)


@damage("PART_UNDESCRIBED")
def part_without_a_time(lake: Lake) -> None:
    lake.forge_part(lake.batches()[3].runs[0].parts[0], ts=None)


@damage("SCHEMA_UNKNOWN")
def part_of_an_unknown_schema(lake: Lake) -> None:
    lake.forge_part(lake.part(), schema=5)


@damage("SCHEMA_IDS")
def schema_skipped(lake: Lake) -> None:
    schemas = lake.state.schemas
    lake.forge_state(schemas={**schemas, 2: schemas[0]})


@damage("SCHEMA_UNREADABLE")
def schema_that_is_none(lake: Lake) -> None:
    lake.forge_state(schemas={**lake.state.schemas, 1: "{}"})


@damage("FOREIGN_PART", "PART_MISSING")
def part_of_another_shard(lake: Lake) -> None:
    key = next(iter(lake.objects.entries(f"{OTHER}/part/"))).key
    lake.forge_part(lake.part(), key=key)


@damage("SINCE_PAST_HOLDER")
def since_beyond_a_holder(lake: Lake) -> None:
    lake.forge_trace(since=(lake.state.since.time or 0) + 1)


@damage("GC_PAST_HOLD")
def collected_beyond_a_hold(lake: Lake) -> None:
    lake.forge_state(gc_seqno=30)


@damage("GC_MARKS")
def cleaned_beyond_what_was_given_up(lake: Lake) -> None:
    lake.forge_state(cleaned_seqno=lake.state.gc_seqno + 2)


@damage("READER_INCONSISTENT")
def hold_of_a_state_to_come(lake: Lake) -> None:
    report = lake.state.critical["report"]
    lake.forge_state(critical={"report": replace(report, seqno=999)})


@damage("WRITER_INCONSISTENT")
def writer_ahead_of_the_shard(lake: Lake) -> None:
    loader = lake.state.writers["loader"]
    lake.forge_state(writers={"loader": replace(loader, upper=(loader.upper or 0) + 1)})


@damage("WRITER_INCONSISTENT")
def writer_that_gave_up_what_it_did(lake: Lake) -> None:
    loader = lake.state.writers["loader"]
    lake.forge_state(writers={"loader": replace(loader, abandoned={"t1": loader.last})})


# --- transactions --------------------------------------------------------------------------------


@damage("TXNS_MISSING")
def transactions_shard_missing(lake: Lake) -> None:
    lake.forge_state(registered=Registration("nowhere", "s" + "0" * 32, 5))


@damage("TXNS_OTHER")
def transactions_shard_made_again(lake: Lake) -> None:
    lake.forge_state(registered=Registration(OTHER, "s" + "0" * 32, 5))


@damage("NEWER_VERSION", "TXNS_NEWER_VERSION")
def transactions_shard_of_newer_code(lake: Lake) -> None:
    lake.client.transactions().register(OTHER)
    newer = (CODE_VERSION[0], CODE_VERSION[1] + 1)
    lake.forge(lambda state: replace(state, version=newer), TRANSACTIONS)


@damage("RECORD_DAMAGED", "STATE_UNREADABLE", "TXNS_UNREADABLE")
def record_of_the_transactions_shard_cut(lake: Lake) -> None:
    lake.client.transactions().register(OTHER)
    lake.cut(next(iter(lake.objects.entries("%5Ftransactions/log/"))).key)


def restore_older_copy(lake: Lake, folder: str) -> None:
    """Put a shard's directory back to what it was before something was committed and tidied."""
    txns = lake.client.transactions()
    txns.register(OTHER)
    before = {entry.key for entry in lake.objects.entries(folder)}
    with lake.client.transaction() as transaction:
        transaction.append(OTHER, some(1, 2))
    txns.tidy()
    for entry in list(lake.objects.entries(folder)):
        if entry.key not in before:
            lake.delete(entry.key)


@damage("TXNS_BEHIND")
def transactions_shard_of_an_older_copy(lake: Lake) -> None:
    restore_older_copy(lake, "%5Ftransactions/")


@damage("SHARD_BEHIND_TXNS")
def registered_shard_of_an_older_copy(lake: Lake) -> None:
    restore_older_copy(lake, f"{OTHER}/")


@damage("REGISTERED_SHARD_MISSING")
def registered_shard_deleted(lake: Lake) -> None:
    lake.client.transactions().register(OTHER)
    for entry in list(lake.objects.entries(f"{OTHER}/")):
        lake.delete(entry.key)


def commit(lake: Lake, data: bytes) -> None:
    """Commit a row for the other shard as somebody who dies before applying it."""
    txns = lake.client.transactions()
    txns.register(OTHER)
    ledger = txns.reader.read()
    assert ledger is not None
    shard = lake.client.state(OTHER).shard
    row = Row("r" * 32, "append", OTHER, shard, ledger.upper, data)
    txns._committer._append(ledger, ledger.upper, updates_table([row], ()), None, None)


def committed_part(lake: Lake, padding: int = 0) -> str:
    """Commit rows in a blob that is not applied; its key.

    With some padding what says so is in a blob, too, instead of the transactions shard's state.
    """
    staged = lake.client.writer(OTHER).stager(may_inline=False).stage([some(1, 20)])
    commit(lake, Payload(staged.runs).encode() + b" " * padding)
    return staged.blob_keys[0]


@damage("TXNS_PART_MISSING")
def part_of_a_transaction_deleted(lake: Lake) -> None:
    lake.delete(committed_part(lake))


@damage("PART_SIZE")
def part_of_a_transaction_cut(lake: Lake) -> None:
    lake.cut(committed_part(lake), 100)


@damage("PART_CHECKSUM", deep=True)
def bit_flipped_in_a_part_of_a_transaction(lake: Lake) -> None:
    lake.flip(committed_part(lake), 100)


@damage("PART_ROWS", deep=True)
def part_of_a_transaction_with_more_rows_than_the_row_says(lake: Lake) -> None:
    [run] = lake.client.writer(OTHER).stager(may_inline=False).stage([some(1, 20)]).runs
    parts = tuple(replace(part, rows=part.rows - 1, encoded_stats=NO_STATS) for part in run.parts)
    commit(lake, Payload((replace(run, parts=parts),)).encode())


@damage()
def part_of_a_transaction_that_waits(lake: Lake) -> None:
    """No damage at all."""
    committed_part(lake)


def commits_blob(lake: Lake) -> str:
    """The key of a blob of the transactions shard, in which rows were committed."""
    committed_part(lake, padding=1 << 16)
    batches = lake.client.state(TRANSACTIONS).trace.batches
    return next(part.key for batch in batches for part in batch.parts if part.inline is None)


@damage("PART_MISSING", "TXNS_UNREADABLE")
def part_of_the_transactions_shard_deleted(lake: Lake) -> None:
    lake.delete(commits_blob(lake))


@damage("PART_SIZE", "TXNS_UNREADABLE")
def part_of_the_transactions_shard_cut(lake: Lake) -> None:
    lake.cut(commits_blob(lake))


@damage("TXNS_ROW_DAMAGED")
def row_of_a_transaction_in_another_form(lake: Lake) -> None:
    commit(lake, b'{"runs": 5}')


# --- what else is there --------------------------------------------------------------------------


@damage("FOREIGN_OBJECT")
def foreign_file_among_the_parts(lake: Lake) -> None:
    lake.objects.put(f"{SHARD}/part/data.csv", b"1,2")


@damage("FOREIGN_OBJECT")
def foreign_file_among_the_rollups(lake: Lake) -> None:
    lake.objects.put(f"{SHARD}/rollup/0000000000000010", b"x")


@damage("FOREIGN_OBJECT")
def foreign_file_in_the_directory(lake: Lake) -> None:
    lake.objects.put(f"{SHARD}/notes/README", b"x")


@damage("LEFT_BEHIND")
def part_that_came_back(lake: Lake) -> None:
    """A collected part is there again, as after a careless restore of a backup."""
    lake.client.compact(SHARD, force=True)
    key = lake.part().key
    data = lake.get(key)
    lake.expire_readers()
    lake.client.writer(SHARD).append_now(pa.table({"id": [5], "v": ["x" * 50]}))
    lake.client.compact(SHARD, force=True)
    lake.client.collect_garbage(SHARD)
    assert lake.objects.get(key) is None
    lake.objects.put(key, data)


# --- the location --------------------------------------------------------------------------------


@damage("MARKER_MISSING")
def marker_deleted(lake: Lake) -> None:
    lake.delete("_shardline")


@damage("MARKER_DAMAGED")
def marker_cut(lake: Lake) -> None:
    lake.cut("_shardline", 20)


@damage("FOREIGN_DIRECTORY")
def foreign_directory(lake: Lake) -> None:
    lake.objects.put("my%20notes and more/README", b"x")


@damage("SHARD_WITHOUT_LOG")
def log_deleted(lake: Lake) -> None:
    for kind in ("log", "floor"):
        lake.objects.delete_many([e.key for e in lake.objects.entries(f"{OTHER}/{kind}/")])


@damage("NAME_MISMATCH")
def directory_renamed(lake: Lake) -> None:
    for entry in list(lake.objects.entries(f"{OTHER}/")):
        lake.objects.put(entry.key.replace(OTHER, "renamed", 1), lake.get(entry.key))
        lake.delete(entry.key)

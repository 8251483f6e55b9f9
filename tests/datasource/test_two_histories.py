"""A process that follows a log which is of another history from some record on.

Somebody has emptied a shard's folder or put an older copy in its place, and others have written
past what the process remembers. Its state and their records make no state that the shard ever had.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.shard.codec import CODE_VERSION, Record, decode_record, encode_record
from shardline.datasource.shard.known import Known
from shardline.datasource.stores.log import NumberedLog
from support.models.shards import SETTINGS, rows, schema_of, table

SHARD = "orders"
QUIET = replace(SETTINGS, compact_inline_bytes=0, rollup_every=8)


def opened(url: Path) -> ShardClient:
    return ShardClient.open(str(url), settings=QUIET)


def append(client: ShardClient, *numbers: int) -> None:
    for number in numbers:
        client.writer(SHARD).append_now(table((number, "x")))


def contents(client: ShardClient) -> list[int]:
    with client.reader(SHARD) as reader:
        return sorted(key[0] for key in rows(reader.snapshot()).elements())


def by_its_own_commits(url: Path) -> ShardClient:
    client = opened(url)
    append(client, 2, 3)
    return client


def by_following(url: Path) -> ShardClient:
    client = opened(url)
    client.state(SHARD)
    append(opened(url), 2, 3)
    client.state(SHARD)
    return client


def from_the_first_record(url: Path) -> ShardClient:
    append(opened(url), 2, 3)
    client = opened(url)
    client.state(SHARD)
    return client


def from_a_rollup(url: Path) -> ShardClient:
    client = opened(url)
    append(client, 2)
    machine = client.machine(SHARD)
    assert machine.write_rollup(machine.state())
    client = opened(url)
    client.state(SHARD)
    return client


@pytest.mark.parametrize(
    "knows", [by_its_own_commits, by_following, from_the_first_record, from_a_rollup]
)
def test_records_after_an_older_copy_are_not_applied_to_what_is_gone(
    tmp_path: Path, knows: Callable[[Path], ShardClient]
) -> None:
    """However the process came to its state; and no rollup makes a mixture true for others."""
    url = tmp_path / "shards"
    client = opened(url)
    client.create(SHARD, schema_of())
    append(client, 1)
    shutil.copytree(url, tmp_path / "copy")
    client = knows(url)
    shutil.rmtree(url)
    (tmp_path / "copy").rename(url)
    append(opened(url), *range(10, 15))
    with pytest.raises(InvalidUsage, match="LOG_REPLACED"):
        client.state(SHARD)
    assert contents(client) == [1, *range(10, 15)]
    append(client, *range(20, 40))
    assert contents(client) == contents(opened(url)) == [1, *range(10, 15), *range(20, 40)]


def test_records_of_a_shard_that_was_made_again_are_not_applied_to_the_one_before(
    tmp_path: Path,
) -> None:
    """Its folder was emptied, and it has more records by now than it had."""
    url = tmp_path / "shards"
    client = opened(url)
    client.create(SHARD, schema_of())
    append(client, 1, 2)
    shutil.rmtree(url / SHARD)
    other = opened(url)
    other.create(SHARD, schema_of())
    append(other, *range(10, 15))
    with pytest.raises(InvalidUsage, match="LOG_REPLACED"):
        client.state(SHARD)
    assert contents(client) == contents(opened(url)) == [*range(10, 15)]


def test_a_lost_race_is_not_caught_up_with_by_a_record_of_another_history(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that is far away is not asked each time if the newest record is still there."""
    monkeypatch.setattr(NumberedLog, "_check_still_there", lambda *_: None)
    url = tmp_path / "shards"
    client = opened(url)
    client.create(SHARD, schema_of())
    shutil.copytree(url, tmp_path / "copy")
    append(client, 1)
    writer = client.writer(SHARD)
    shutil.rmtree(url)
    (tmp_path / "copy").rename(url)
    append(opened(url), *range(10, 15))
    with pytest.raises(InvalidUsage, match="LOG_REPLACED"):
        writer.append_now(table((2, "x")))
    writer.append_now(table((3, "x")))
    assert contents(client) == contents(opened(url)) == [3, *range(10, 15)]


def test_a_rollup_of_what_is_gone_is_not_recorded_in_what_is_there(tmp_path: Path) -> None:
    """An older copy has the same id, and writing a rollup takes its time."""
    url = tmp_path / "shards"
    client = opened(url)
    client.create(SHARD, schema_of())
    shutil.copytree(url, tmp_path / "copy")
    append(client, 1)
    machine = client.machine(SHARD)
    gone, life = machine.state(), machine.life
    shutil.rmtree(url)
    (tmp_path / "copy").rename(url)
    append(opened(url), 10, 11)
    with pytest.raises(InvalidUsage, match="LOG_REPLACED"):
        client.state(SHARD)
    assert client.state(SHARD).shard == gone.shard
    assert not machine.write_rollup(gone, life)
    assert not list(url.glob(f"{SHARD}/rollup/*"))
    assert machine.write_rollup(client.state(SHARD))
    assert contents(opened(url)) == [10, 11]


def test_a_shard_that_was_dropped_and_made_again_is_followed(tmp_path: Path) -> None:
    """It has another id and the same log."""
    url = tmp_path / "shards"
    client, other = opened(url), opened(url)
    client.create(SHARD, schema_of())
    append(client, 1)
    before = client.state(SHARD)
    other.drop(SHARD)
    other.create(SHARD, schema_of())
    append(other, 2)
    assert client.state(SHARD).shard != before.shard
    assert contents(client) == [2]


def test_records_of_older_code_are_followed(tmp_path: Path) -> None:
    """They do not say which record is before them, and neither does code that drops that."""
    client, other = opened(tmp_path), opened(tmp_path)
    client.create(SHARD, schema_of())
    append(other, 1)
    log = client.location.consensus
    head = log.head(SHARD)
    assert head is not None
    older = decode_record(head.data, "the head")
    assert older.after
    plain = msgspec.structs.replace(
        older, seqno=head.seqno + 1, token="0" * 32, walltime_ms=older.walltime_ms + 1, after=""
    )
    assert plain.diff is not None
    idle = msgspec.structs.replace(plain, diff=type(plain.diff)(), version=(1, 8))
    log.compare_and_set(SHARD, head.seqno, encode_record(idle))
    append(client, 2)
    assert contents(client) == contents(other) == contents(opened(tmp_path)) == [1, 2]


@pytest.mark.parametrize(
    ("known", "after", "follows"),
    [("a", "a", True), ("a", "b", False), ("a", "", True), ("", "b", True), ("", "", True)],
)
def test_a_record_follows_the_one_that_it_names(known: str, after: str, follows: bool) -> None:
    """Where either does not say which, as of older code, it follows by its number."""
    record = Record(seqno=2, token="", walltime_ms=1, version=CODE_VERSION, after=after)
    assert Known(None, known).is_followed_by(record) is follows


def commit(client: ShardClient, number: int) -> None:
    with client.transaction() as transaction:
        transaction.append(SHARD, table((number, "x")))


@pytest.mark.parametrize("ahead", [False, True])
def test_transactions_go_by_the_ledger_that_is_there(tmp_path: Path, *, ahead: bool) -> None:
    """An older copy has fewer rows and an upper that is before: what is remembered is not true."""
    url = tmp_path / "shards"
    client = opened(url)
    client.create(SHARD, schema_of())
    commit(client, 1)
    shutil.copytree(url, tmp_path / "copy")
    for number in (2, 3):
        commit(client, number)
    if ahead:
        client.transactions().advance(client.clock.now_ms() + 1_800_000)
    gone = client.transactions().upper()
    shutil.rmtree(url)
    (tmp_path / "copy").rename(url)
    with pytest.raises(InvalidUsage, match="LOG_REPLACED"):
        commit(client, 4)
    for number in (5, 6):
        commit(client, number)
    other = opened(url)
    assert client.transactions().upper() == other.transactions().upper()
    assert not ahead or client.transactions().upper() < gone
    with contextlib.suppress(InvalidUsage):
        client.state(SHARD)
    assert contents(client) == contents(other) == [1, 5, 6]


def test_what_was_an_upper_of_a_log_that_is_gone_is_none_of_the_one_that_is_there(
    tmp_path: Path,
) -> None:
    """A state is shown up to an upper that was seen, without a look, only if it is of that log."""
    url = tmp_path / "shards"
    client = opened(url)
    client.create(SHARD, schema_of())
    commit(client, 1)
    views, machine = client.shard_views, client.machine(SHARD)
    shutil.copytree(url, tmp_path / "copy")
    client.transactions().advance(client.clock.now_ms() + 1_800_000)
    gone = views.state(SHARD).upper
    assert views.extended_to_known_upper(machine.state()).upper == gone
    shutil.rmtree(url)
    (tmp_path / "copy").rename(url)
    with pytest.raises(InvalidUsage, match="LOG_REPLACED"):
        commit(client, 2)
    known = views.extended_to_known_upper(machine.state())
    assert known.upper == machine.state().upper != gone

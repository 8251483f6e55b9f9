"""A repair takes errors of a source away, exactly once, while the source runs or not.

    bad_rows(client, "flights").rows                             what there is: the newest thousand
    repair_errors(client, "flights", Repair("retract", as_of), writer=REPAIR, number=8)

One bad row takes down every read above it, and most bad rows will never come again in a better
form. So a person decides: the errors are retracted, as if the rows had never come, or they are
skipped, which is the same with a note of each row in `<source>_skipped`.

The source that runs writes the same shards. A repair takes a time of its own in the bindings first
(`errors.settle_time`), at which no micro-batch can be bound any more, and appends there: neither
can lose anything of the other.

    step                                  a crash right after it leaves
    1  a time is settled                  a time without rows
    2  skipped rows are noted             notes of rows that are errors still; the repetition finds
                                          them by its number, and goes on
    3  the errors are retracted           all is done; the repetition finds it by its number

Invariants:
    A repair with a number has an effect once, however often it is repeated and by whomever: the
    shard remembers the last number of the writer, and the append takes place even if there is
    nothing to retract. Equal errors that come after it are other errors.
    Only errors that were live at `as_of` are taken away: nobody has seen those that came later.
    Notes are appended only while everything bound is committed: a micro-batch that is not could no
    more be told from one whose notes are there.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable
from contextlib import closing
from dataclasses import dataclass
from heapq import nlargest
from typing import Any, Final, Literal, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from shardline.app.execution.shard_follower import ShardFollower
from shardline.app.protocol.objects import errors_shard, skipped_shard
from shardline.app.storage.errors import (
    ERRORS,
    SETTLE_RETRIES,
    are_rows_there,
    live_errors,
    may_retract,
    open_errors,
    open_skipped,
    retractions,
    settle_time,
)
from shardline.app.storage.reclock import Remap
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Determinate, InvalidUsage, unknown_name
from shardline.datasource.frontier import Frontier
from shardline.datasource.schema import DIFF, TS, python_values
from shardline.datasource.state import AlreadyCommitted, ShardState, UpperMismatch
from shardline.datasource.write import WriteHandle

__all__ = [
    "REPAIR",
    "SHOWN_MAX",
    "Act",
    "BadRow",
    "BadRows",
    "Repair",
    "bad_rows",
    "repair_errors",
    "skipped_rows",
]

Act: TypeAlias = Literal["retract", "skip"]

REPAIR: Final = "repair"
"""Durable writer of repairs; its numbers are positions in the lane's order, from 1."""

SHOWN_MAX: Final = 1000
"""Most bad rows that are read for a person, equal ones as one; a wrong list of columns makes all
rows of a source bad."""


@dataclass(frozen=True, slots=True)
class BadRow:
    """Equal rows that could not be decoded.

    Attributes:
        id: Short name of the row, made of its contents.
        count: How many there are.
        since_ms: The time at which the first of them came, ms since the epoch, or one at which it
            was there already: older times are merged.
        error: What is wrong.
        raw: The row as it came.
        key: Its key as JSON; None if it has none that can be decoded.
        file: Its file; None if it has none, or an older version has noted it.
    """

    id: str
    count: int
    since_ms: int
    error: str
    raw: str | None
    key: str | None
    file: str | None


@dataclass(frozen=True, slots=True)
class BadRows:
    """What there is of bad rows.

    Attributes:
        rows: Those that came last, `SHOWN_MAX` at most, and those that were asked for; the oldest
            first.
        count: How many there are of all, each of equal ones.
        as_of: The newest time of which that is true; -1 for none yet.
    """

    rows: tuple[BadRow, ...] = ()
    count: int = 0
    as_of: int = -1


@dataclass(frozen=True, slots=True)
class Repair:
    """The errors to take away.

    Attributes:
        act: What to do with them.
        as_of: The time at which they were live.
        errors: Ids of those that are meant; empty for all.
    """

    act: Act
    as_of: int
    errors: tuple[str, ...] = ()


def bad_rows(client: ShardClient, source: str, ids: Collection[str] = ()) -> BadRows:
    """The live errors of a source; those with these ids are among them, however old they are."""
    return _rows_of(client, errors_shard(source), ids)


def skipped_rows(client: ShardClient, source: str) -> BadRows:
    """The rows that a source has left out; those of times before its retention are still there."""
    name = skipped_shard(source)
    return _rows_of(client, name) if client.exists(name) else BadRows()


def repair_errors(
    client: ShardClient, source: str, repair: Repair, *, writer: str, number: int
) -> int | None:
    """Take errors of a source away; harmless to repeat with the same number.

    Args:
        client: Of the location.
        source: Name of the source.
        repair: Which ones.
        writer: `REPAIR`, or a writer of one repair only.
        number: Of this repair, greater than those of all before of the writer.

    Returns:
        How many errors were retracted; None if an earlier attempt has done it.

    Raises:
        InvalidUsage: There is no such source or error, or the history of `as_of` is gone: nothing
            has been done, nor will be.
        Determinate: Not yet: others changed the shards all the time, or a micro-batch that is bound
            is not committed. Repeat it.
        Indeterminate: It may have happened. Repeat it.
    """
    remap = Remap.attach(client, source)
    # One of an older version lacks columns until its source has started under this one.
    handle = client.writer(open_errors(client, source), writer)
    # In the order that followers need: the time is taken in the bindings before the append.
    handle.writes_leader = True
    skips = repair.act == "skip"
    for _ in SETTLE_RETRIES.begin(client.clock, client.ids).attempts():
        if handle.committed(number) is not None:
            return None
        lower = _upper(handle)
        if lower == 0:
            raise InvalidUsage(
                f"source '{source}' has taken nothing in yet",
                code="NOTHING_APPENDED",
                hint="wait until it has",
            )
        gone = retractions(live_errors(client, source), _chosen(client, source, repair))
        bound = remap.read()
        # Not before the upper of the bindings, which that of the rows has not passed: the errors'
        # own one may be long behind it. It is moved by this, which the source notices.
        at = max(lower, bound.upper)
        if skips:
            # Another repair may have ended between its notes and its retraction, for good.
            at = max(at, _notes_upper(client, source))
        # The bindings first: one that is older than the rows' upper is committed, and one that is
        # made after this look gets a time after `at`.
        if skips:
            ready = are_rows_there(client, source, bound)
        else:
            ready = may_retract(client, source, bound, lower)
        ready = ready and settle_time(remap, bound, at)
        if ready and skips:
            # Before the errors go: a row must never be in neither shard.
            notes = client.writer(open_skipped(client, source), writer)
            ready = _note(notes, gone, number=number, at=at)
        if ready:
            outcome = handle.compare_and_append(
                _at(gone, at), Frontier(lower), Frontier(at + 1), sequence=number
            )
            if isinstance(outcome, AlreadyCommitted):
                return None
            if not isinstance(outcome, UpperMismatch):
                return -int(pc.sum(gone.column(DIFF)).as_py() or 0)
    raise Determinate(
        f"no time was found to take errors of source '{source}' away at",
        code="CONTENTION",
        hint="see whether the source is paused, or a micro-batch of it fails again and again",
    )


def _notes_upper(client: ShardClient, source: str) -> int:
    name = skipped_shard(source)
    return _upper(client.writer(name)) if client.exists(name) else 0


def _note(handle: WriteHandle, gone: pa.Table, *, number: int, at: int) -> bool:
    """Note the rows that `gone` retracts as skipped, unless an earlier attempt has.

    Returns:
        False if the source was first: it may note rows of its own at any time after `at`.
    """
    lower = _upper(handle)
    if handle.committed(number) is not None or not gone.num_rows:
        return True
    if lower > at:
        return False
    index = gone.schema.get_field_index(DIFF)
    notes = gone.set_column(index, gone.schema.field(DIFF), pc.negate(gone.column(DIFF)))
    outcome = handle.compare_and_append(
        _at(notes, at), Frontier(lower), Frontier(at + 1), sequence=number
    )
    return not isinstance(outcome, UpperMismatch)


def _chosen(client: ShardClient, source: str, repair: Repair) -> pa.Table:
    """The errors that are meant, as they were at `as_of`.

    Raises:
        InvalidUsage: One that is named was not live then.
    """
    with client.reader(errors_shard(source), purpose="errors to take away") as reader:
        there = reader.snapshot(repair.as_of).select(ERRORS.names)
    if not repair.errors:
        return there
    ids = [_id(row) for row in _listed(there, *ERRORS.names)]
    for wanted in repair.errors:
        if wanted not in ids:
            raise unknown_name("error", wanted, set(ids))
    return there.filter(pa.array([one in repair.errors for one in ids], pa.bool_()))


def _at(updates: pa.Table, time: int) -> pa.Table:
    at = pa.repeat(pa.scalar(time, pa.int64()), updates.num_rows)
    return updates.append_column(pa.field(TS, pa.int64(), nullable=False), at)


def _upper(handle: WriteHandle) -> int:
    upper = handle.upper().time
    assert upper is not None, "the shards of a source are never finished"
    return upper


def _rows_of(client: ShardClient, name: str, ids: Collection[str] = ()) -> BadRows:
    """Read a shard twice, in pieces: the texts of all of its rows may not fit into memory."""
    with closing(
        ShardFollower.open(client, name, since=None, purpose="errors for a person")
    ) as shard:
        # Under the lease: the since cannot pass it.
        [state] = client.readable(name)
        upper = state.upper.time
        if not upper:
            return BadRows()
        # From the since on updates tell when a live row has come.
        since = min(state.since.time or 0, upper - 1)
        live = _live(shard, state, since)
        wanted = set(nlargest(SHOWN_MAX, live, key=lambda digest: live[digest][1]))
        shown: dict[bytes, BadRow] = {}
        for batch in shard.every_update(state, since):
            for row in _listed(batch, *ERRORS.names):
                digest = _digest(row)
                if digest in live and (digest in wanted or _id(row) in ids):
                    shown.setdefault(digest, _bad_row(row, *live[digest]))
    rows = sorted(shown.values(), key=lambda row: (row.since_ms, row.file or "", row.id))
    return BadRows(tuple(rows), sum(count for count, _ in live.values()), upper - 1)


def _live(shard: ShardFollower, state: ShardState, since: int) -> dict[bytes, tuple[int, int]]:
    """The number of each row at the upper, and since when it is there, by its digest."""
    updates = [
        (max(time, since), diff < 0, _digest(row), diff)
        for batch in shard.every_update(state, since)
        for *row, time, diff in _listed(batch, *ERRORS.names, TS, DIFF)
    ]
    found: dict[bytes, tuple[int, int]] = {}
    # What is added at a time comes before what is taken away then.
    for time, _, digest, diff in sorted(updates):
        count, first = found.get(digest, (0, time))
        # A row that was gone and comes again is a new error.
        found[digest] = (count + diff, first if count else time)
    return {digest: value for digest, value in found.items() if value[0]}


def _bad_row(key: tuple[Any, ...], count: int, since_ms: int) -> BadRow:
    error, raw, its_key, file = key
    return BadRow(_id(key), count, since_ms, error, raw, its_key, file)


def _listed(rows: pa.Table | pa.RecordBatch, *names: str) -> list[tuple[Any, ...]]:
    """The rows as values of Python; None for a column that an older version has not noted."""
    nothing = [None] * rows.num_rows
    columns = [
        python_values(rows.column(name)) if name in rows.schema.names else nothing for name in names
    ]
    return list(zip(*columns, strict=True))


def _id(row: Iterable[Any]) -> str:
    """The name of a row for a person."""
    return _digest(row, 4).hex()


def _digest(row: Iterable[Any], size: int = 16) -> bytes:
    return hashlib.blake2b(json.dumps(list(row)).encode(), digest_size=size).digest()

"""Each envelope takes, refuses or changes a frame's rows as it promises; errors name the column."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from shardline.datasource import difference
from shardline.datasource.errors import ShardError
from shardline.datasource.frontier import Frontier
from shardline.datasource.parts import fetch
from shardline.datasource.shard.machine import Machine
from shardline.datasource.write import WriteHandle, WriteResult
from support.fakes.sink import SHARD, engine
from support.models.shards import TINY, rows, schema_of, table, updates

if TYPE_CHECKING:
    from shardline.datasource.shard.state import ShardState
    from support.fakes.sink import Engine

ROWS = table((0, "")).schema
IMAGE = pa.struct(list(ROWS))
EVENTS = pa.schema([("before", IMAGE), ("after", IMAGE), ("op", pa.string())])
UPSERT = {"envelope": "upsert", "key": "id"}


def contents(spark: Engine) -> Counter[tuple[Any, ...]]:
    with spark.world.client(TINY).reader(SHARD) as reader:
        return rows(reader.snapshot())


def feed(spark: Engine) -> Counter[tuple[Any, ...]]:
    """All updates without their times."""
    with spark.world.client(TINY).reader(SHARD) as reader:
        steps = list(reader.listen(0, timeout_ms=0))
    return sum((rows(step.updates.drop_columns(["_ts"])) for step in steps), Counter())


def frame(kind: pa.Schema, *some: tuple[Any, ...]) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(kind.names, row, strict=True)) for row in some], kind)


def event(before: str | None, after: str | None, op: str | None = None) -> tuple[Any, ...]:
    """The event of a change to the row with id 1."""
    images = ({"id": 1, "v": v} if v is not None else None for v in (before, after))
    return (*images, op)


# --- append, diff ------------------------------------------------------------------------------


@pytest.mark.parametrize("envelope", ["append", "diff"])
@pytest.mark.parametrize("number", [pa.int8(), pa.int32(), pa.int64()])
def test_diffs_are_used(envelope: str, number: pa.DataType) -> None:
    """`_diff` says how many copies come or go; any whole number does."""
    kind = ROWS.append(pa.field("_diff", number))
    with engine(kind, {"envelope": envelope}) as spark:
        spark.micro_batch(0, frame(kind, (1, "a", 2), (2, "b", 1)), frame(kind, (1, "a", -1)))

        assert contents(spark) == Counter([(1, "a"), (2, "b")])


def test_a_frame_of_diffs_needs_them() -> None:
    """Envelope diff refuses a frame that does not say what it changes; `_ts` is not needed."""
    with (
        engine(ROWS, {"envelope": "diff"}) as spark,
        pytest.raises(ShardError, match=r"\[MISSING_COLUMN\].*'_diff'.*'diff'"),
    ):
        spark.writer()


def test_times_are_used() -> None:
    """`_ts` says when; the upper is right after the last one."""
    kind = updates((0, "", 0, 0)).schema
    with engine(kind, {"envelope": "diff"}) as spark:
        spark.micro_batch(0, updates((1, "a", 5, 1), (2, "b", 9, 1)), updates((1, "a", 7, -1)))

        assert spark.client.state(SHARD).upper == Frontier(10)
        with spark.client.reader(SHARD) as reader:
            assert rows(reader.snapshot(6)) == Counter([(1, "a")])


def test_a_time_before_the_upper_is_refused() -> None:
    """The error names the least bad time and the upper; nothing is appended and no part is left."""
    kind = updates((0, "", 0, 0)).schema
    some = [(n, "x" * 50, 3 + n, 1) for n in range(20)]
    with engine(kind) as spark:
        spark.micro_batch(0, updates((1, "a", 9, 1)))
        with pytest.raises(ShardError, match=r"\[TIME_OUT_OF_RANGE\].* 3 on, .* is 10 "):
            spark.micro_batch(1, updates((1, "b", 12, 1)), updates(*some))

        assert contents(spark) == Counter([(1, "a")])
        assert spark.blobs() == set()


def test_a_replay_of_old_times_is_no_error() -> None:
    """The times of a micro-batch that was committed lie before the upper, and that is fine."""
    kind = updates((0, "", 0, 0)).schema
    with engine(kind) as spark:
        for _ in range(2):
            spark.micro_batch(0, updates((1, "a", 9, 1)))

        assert contents(spark) == Counter([(1, "a")])


def test_no_rows_leave_a_users_clock_alone() -> None:
    """An empty micro-batch of rows with times is committed, and does not move the upper."""
    kind = updates((0, "", 0, 0)).schema
    with engine(kind) as spark:
        spark.micro_batch(0, updates((1, "a", 9, 1)))
        for _ in range(2):
            spark.micro_batch(1, updates())
        spark.micro_batch(2, updates((2, "b", 10, 1)))

        assert contents(spark) == Counter([(1, "a"), (2, "b")])
        assert spark.client.state(SHARD).writers["query:query-1"].last == 2


@pytest.mark.parametrize("options", [{}, UPSERT], ids=["append", "upsert"])
def test_no_rows_are_progress(options: dict[str, str]) -> None:
    """An empty micro-batch adds nothing and moves the upper to now."""
    with engine(ROWS, options) as spark:
        spark.micro_batch(0, table((1, "a")))
        spark.world.clock.advance(1000)
        spark.micro_batch(1, table(), table())

        upper = spark.client.state(SHARD).upper
        assert upper == Frontier(spark.world.clock.now_ms() + 1)
        assert contents(spark) == Counter([(1, "a")])


# --- upsert ------------------------------------------------------------------------------------


def test_an_upsert_is_one_difference() -> None:
    """The old row goes and the new one comes, at one time; what is the same costs nothing."""
    with engine(ROWS, UPSERT) as spark:
        spark.client.create(SHARD, schema_of(ROWS), key=("id",))
        spark.client.writer(SHARD).append_now(None)
        spark.micro_batch(0, table((1, "a"), (2, "b"), (3, "c")))
        spark.micro_batch(1, table((1, "a"), (2, "B")), table((3, None), (4, None)))

        changes = [(2, "b", -1), (2, "B", 1), (3, "c", -1)]
        assert feed(spark) == Counter([(1, "a", 1), (2, "b", 1), (3, "c", 1), *changes])
        assert spark.client.state(SHARD).trace.batches[-1].rows == len(changes)


def test_all_rows_of_a_key_are_replaced() -> None:
    """Copies and other rows that an append put under a key go as well."""
    with engine(ROWS, UPSERT) as spark:
        client = spark.client
        client.create(SHARD, schema_of(ROWS), key=("id",))
        client.writer(SHARD).append_now(table((1, "a"), (1, "a"), (1, "b"), (2, "c"), (2, "c")))
        spark.micro_batch(0, table((1, "a")))

        assert contents(spark) == Counter([(1, "a"), (2, "c"), (2, "c")])


@pytest.mark.parametrize(
    ("there", "new", "closes"),
    [
        ([(1, "a"), (1, "b"), (2, "c")], [(1, "c")], True),
        ([(1, "a"), (2, "b")], [(1, "a"), (2, "c"), (3, "d")], True),
        ([(1, "a"), (1, "b")], [(1, None)], True),
        ([(1, "a"), (1, "b"), (2, "c")], [(1, "a"), (2, "d")], False),
        ([(1, "a"), (1, "a")], [(1, "a")], False),
    ],
)
def test_parts_say_if_whole_keys_are_taken_back(
    there: list[tuple[int, str]], new: list[tuple[int, str | None]], closes: bool
) -> None:
    """A row that stays because the new one is equal to it is not taken back, its key not closed."""
    with engine(ROWS, UPSERT) as spark:
        spark.client.create(SHARD, schema_of(ROWS), key=("id",))
        spark.client.writer(SHARD).append_now(table(*there))
        spark.micro_batch(0, table(*new))

        (part,) = spark.client.state(SHARD).trace.batches[-1].parts
        assert part.retracts
        assert part.closes == closes


def test_a_key_is_not_closed_over_a_row_that_was_retracted_too_often() -> None:
    """Its sum hides a copy of another row, which stays, and a filter may hide what it lacks."""
    with engine(ROWS, UPSERT) as spark:
        spark.client.create(SHARD, schema_of(ROWS), key=("id",))
        writer = spark.client.writer(SHARD)
        upper = spark.client.state(SHARD).upper.time or 0
        history = updates((1, "r", upper, 2), (1, "s", upper + 1, -1))
        writer.compare_and_append(history, Frontier(upper), Frontier(upper + 2))
        spark.micro_batch(0, table((1, "r")))

        assert contents(spark) == Counter([(1, "r")])
        (part,) = spark.client.state(SHARD).trace.batches[-1].parts
        assert part.retracts
        assert not part.closes


def test_rows_within_the_state_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many shares of a file they would be: there is no file."""
    monkeypatch.setattr(difference, "BATCH_ROWS", 2)
    monkeypatch.setattr(difference, "_SHARE_ROWS", 1)
    with engine(ROWS, UPSERT) as spark:
        spark.client.create(SHARD, schema_of(ROWS), key=("id",))
        spark.client.writer(SHARD).append_now(table((1, "a"), (2, "b"), (3, "c")))
        (part,) = spark.client.state(SHARD).trace.batches[-1].parts
        assert part.inline
        spark.micro_batch(0, table((2, "x")))
        assert contents(spark) == Counter([(1, "a"), (2, "x"), (3, "c")])
        spark.micro_batch(1, table((1, "y"), (3, "z")))
        assert contents(spark) == Counter([(1, "y"), (2, "x"), (3, "z")])


def test_keys_are_not_closed_if_others_append_meanwhile() -> None:
    """A row that came in between may equal a new one, and stays in spite of its retraction."""
    with engine(ROWS, UPSERT) as spark:
        spark.micro_batch(0, table((1, "a")))
        commit_at = WriteHandle.commit_at

        def late(handle: WriteHandle, *args: Any, **kwargs: Any) -> WriteResult:
            spark.patch.setattr(WriteHandle, "commit_at", commit_at)
            spark.world.client(TINY).writer(SHARD).append_now(table((1, "b")))
            return commit_at(handle, *args, **kwargs)

        spark.patch.setattr(WriteHandle, "commit_at", late)
        spark.micro_batch(1, table((1, "b")))

        assert contents(spark) == Counter([(1, "b")])
        assert not any(p.closes for b in spark.client.state(SHARD).trace.batches for p in b.parts)


@pytest.mark.parametrize("key", ["id", "id,v", "v"])
def test_row_groups_without_a_sought_key_are_not_decoded(key: str) -> None:
    """Keys are looked at first, whatever lies between the bounds of a row group's statistics."""
    with engine(ROWS, {"envelope": "upsert", "key": key, "inlinePartBytes": "0"}) as spark:
        spark.micro_batch(0, table(*((n, f"{n:03}") for n in range(0, 200, 2))))
        decoded: list[int] = []
        decode = fetch._decoded

        def counted(
            file: Any, groups: Any, some: Sequence[int], columns: Sequence[str]
        ) -> Iterator[pa.RecordBatch]:
            if "_diff" in columns and groups.count > 3:
                decoded.extend(some)
            return decode(file, groups, some, columns)

        spark.patch.setattr(fetch, "_decoded", counted)
        spark.micro_batch(1, table((31, "031"), (50, "050"), (177, "177")))

        assert len(decoded) == 1
        assert contents(spark).total() == 102


def test_only_parts_with_these_keys_are_read() -> None:
    """A part whose keys are elsewhere may even be missing."""
    with engine(ROWS, UPSERT) as spark:
        spark.micro_batch(0, table(*((n, "x" * 60) for n in range(20))))
        spark.micro_batch(1, table(*((n, "x" * 60) for n in range(100, 120))))
        state = spark.client.state(SHARD)
        first, *_ = (p for b in state.trace.batches for p in b.parts)
        spark.world.objects().delete(first.key)
        spark.micro_batch(2, table((110, "new")))

        with pytest.raises(ShardError, match=r"MISSING_BLOB"):
            spark.micro_batch(3, table((0, "new")))


def test_a_key_is_needed() -> None:
    """Without a key there is nothing to replace by."""
    with engine(ROWS, {"envelope": "upsert"}) as spark:
        with pytest.raises(ShardError, match=r"\[KEY_NEEDED\].*'out'.*'key'"):
            spark.writer()
        assert not spark.client.exists(SHARD)


def test_rows_of_one_key_need_an_order() -> None:
    """Two different rows of a key are refused, with the key; two equal ones are one."""
    with engine(ROWS, UPSERT) as spark:
        spark.micro_batch(0, table((1, "a"), (2, "b")), table((1, "a")))
        with pytest.raises(ShardError, match=r"\[AMBIGUOUS_KEY\].*id=2.*orderingColumn"):
            spark.micro_batch(1, table((2, "x")), table((2, "y")))

        assert contents(spark) == Counter([(1, "a"), (2, "b")])


def test_an_ordering_column_is_kept_where_it_is_wanted() -> None:
    """A shard that the write makes keeps the ordering column; one that is there does not get it."""
    kind = ROWS.append(pa.field("at", pa.int32()))
    options = {**UPSERT, "orderingColumn": "at", "mergeSchema": "true"}
    some = frame(kind, (1, "new", 2), (1, "old", 1), (2, None, 7))
    with engine(kind, options) as spark:
        spark.micro_batch(0, some)
        assert contents(spark) == Counter([(1, "new", 2)])
    with engine(kind, options) as spark:
        spark.client.create(SHARD, schema_of(ROWS), key=("id",))
        spark.micro_batch(0, some)
        assert contents(spark) == Counter([(1, "new")])


def test_a_delete_column_deletes_and_is_not_kept() -> None:
    """With it, null rows are rows; rows that may hold no null can be deleted all the same."""
    kind = pa.schema(
        [pa.field("id", pa.int64()), pa.field("v", pa.string()), pa.field("gone", pa.bool_())]
    )
    with engine(kind, {**UPSERT, "deleteColumn": "gone"}) as spark:
        spark.micro_batch(0, frame(kind, (1, "a", False), (2, None, None), (3, "c", False)))
        spark.micro_batch(1, frame(kind, (1, "x", True), (3, None, True)))

        assert contents(spark) == Counter([(2, None)])


def test_columns_that_may_not_be_null() -> None:
    """A delete needs the key only; a row needs what the shard needs, and the error names it."""
    strict = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string(), nullable=False)])
    loose = pa.schema([*ROWS, pa.field("gone", pa.bool_())])
    with engine(loose, {**UPSERT, "deleteColumn": "gone"}) as spark:
        spark.client.create(SHARD, schema_of(strict), key=("id",))
        spark.micro_batch(0, frame(loose, (1, "a", False), (2, "b", False)))
        spark.micro_batch(1, frame(loose, (1, None, True)))
        with pytest.raises(ShardError, match=r"\[NULL_VALUE\].*'v'"):
            spark.micro_batch(2, frame(loose, (3, None, True), (2, None, False)))

        assert contents(spark) == Counter([(2, "b")])


@pytest.mark.parametrize(
    ("options", "kind", "error"),
    [
        (UPSERT, ROWS.append(pa.field("_diff", pa.int64())), r"ENVELOPE_MISMATCH.*'_diff'"),
        ({**UPSERT, "orderingColumn": "idd"}, ROWS, r"UNKNOWN_COLUMN.*orderingColumn.*'idd'.*'id'"),
        ({**UPSERT, "deleteColumn": "v"}, ROWS, r"WRONG_TYPE.*'v' is string, not boolean"),
        (
            {**UPSERT, "orderingColumn": "o"},
            ROWS.append(pa.field("o", pa.list_(pa.int64()))),
            r"WRONG_TYPE.*'o'.*array<bigint>",
        ),
        (
            {**UPSERT, "key": "id"},
            ROWS.append(pa.field("_shardline_live", pa.bool_())),
            r"RESERVED_COLUMN.*'_shardline_live'",
        ),
        ({"orderingColumn": "v"}, ROWS, r"INVALID_OPTION.*'orderingColumn'.*'append'"),
        ({"envelope": "debezium", "deleteColumn": "v"}, EVENTS, r"INVALID_OPTION.*'deleteColumn'"),
        ({"envelope": "debezium"}, ROWS, r"MISSING_COLUMN.*'before'"),
        (
            {"envelope": "debezium"},
            pa.schema([("before", pa.null()), ("after", pa.string())]),
            r"WRONG_TYPE.*'after' is string, not a struct",
        ),
        (
            {"envelope": "debezium"},
            pa.schema([("before", pa.struct([("id", pa.string())])), ("after", IMAGE)]),
            r"WRONG_TYPE.*'before.id' is string in the frame",
        ),
        (
            {"envelope": "debezium"},
            pa.schema([("before", pa.struct([("idd", pa.int64())])), ("after", IMAGE)]),
            r"EXTRA_COLUMN.*'before.idd'",
        ),
        (
            {"envelope": "debezium", "key": "id"},
            pa.schema([("before", pa.struct([("v", pa.string())])), ("after", IMAGE)]),
            r"MISSING_COLUMN.*'before.id'.*key",
        ),
        (
            {"envelope": "debezium", "key": "id", "orderingColumn": "op.lsn"},
            EVENTS,
            r"UNKNOWN_COLUMN.*'op.lsn'.*'op' has no fields",
        ),
        ({"envelope": "upserts"}, ROWS, r"INVALID_OPTION.*'envelope'.*append, diff, upsert"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, str], kind: pa.Schema, error: str) -> None:
    """Before any row is read, with the name of the column or option."""
    with engine(kind, options) as spark, pytest.raises(ShardError, match=error):
        spark.writer()


@pytest.mark.parametrize("envelope", ["diff", "upsert", "debezium"])
def test_an_envelope_does_not_overwrite(envelope: str) -> None:
    """Replacing everything and changing something exclude each other."""
    with (
        engine(ROWS, {"envelope": envelope}) as spark,
        pytest.raises(ShardError, match=rf"\[INVALID_OPTION\] envelope '{envelope}'.*overwrite"),
    ):
        spark.writer(overwrite=True)


# --- debezium ----------------------------------------------------------------------------------


def test_events_without_a_key_are_diffs() -> None:
    """`before` goes and `after` comes; the shard's columns are those of `after`."""
    with engine(EVENTS, {"envelope": "debezium"}) as spark:
        spark.micro_batch(0, frame(EVENTS, event(None, "a", "r"), event(None, "a", "c")))
        spark.micro_batch(
            1, frame(EVENTS, event("a", "b", "u"), event("b", "c", "u"), event("a", None, "d"))
        )

        assert contents(spark) == Counter([(1, "c")])


@pytest.mark.parametrize("options", [{}, {"key": "id"}], ids=["plain", "keyed"])
@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (event(None, None, "t"), r"\[TRUNCATE_EVENT\]"),
        (event(None, None, "d"), r"\[NO_BEFORE\].*REPLICA IDENTITY"),
        (event(None, None, "c"), r"\[NO_AFTER\]"),
        (event(None, None, "r"), r"\[NO_AFTER\]"),
        (event("a", None, "u"), r"\[NO_AFTER\]"),
    ],
)
def test_events_that_cannot_be_followed(
    options: dict[str, str], bad: tuple[Any, ...], error: str
) -> None:
    """An event that takes away or puts there nobody knows what is refused, not skipped."""
    with engine(EVENTS, {"envelope": "debezium", **options}) as spark:
        spark.micro_batch(0, frame(EVENTS, event(None, "a", "c")))
        with pytest.raises(ShardError, match=error):
            spark.micro_batch(1, frame(EVENTS, bad))
        assert contents(spark) == Counter([(1, "a")])


def test_an_update_without_before_needs_a_key() -> None:
    """With a key `after` is enough; without one the old row would stay, so it is refused."""
    update = frame(EVENTS, event(None, "b", "u"))
    with engine(EVENTS, {"envelope": "debezium", "key": "id"}) as spark:
        spark.micro_batch(0, frame(EVENTS, event(None, "a", "c")))
        spark.micro_batch(1, update)
        assert contents(spark) == Counter([(1, "b")])
    with (
        engine(EVENTS, {"envelope": "debezium"}) as spark,
        pytest.raises(ShardError, match="NO_BEFORE"),
    ):
        spark.micro_batch(0, update)


def test_events_that_say_nothing_are_left_out() -> None:
    """Tombstones and messages have neither image."""
    for options in ({}, {"key": "id"}):
        with engine(EVENTS, {"envelope": "debezium", **options}) as spark:
            spark.micro_batch(0, frame(EVENTS, event(None, "a", "c"), event(None, None, "m")))
            spark.micro_batch(1, frame(EVENTS, event(None, None)))
            assert contents(spark) == Counter([(1, "a")])


# --- all of them -------------------------------------------------------------------------------


def wider(envelope: str) -> tuple[pa.Schema, pa.Table]:
    """A frame with a new column `w` and an `id` of a narrower type."""
    columns = [("ID", pa.int32()), ("v", pa.string()), ("w", pa.float64())]
    row = {"ID": 2, "v": "b", "w": 0.5}
    if envelope == "debezium":
        kind = pa.schema([("before", pa.null()), ("after", pa.struct(columns))])
        return kind, pa.Table.from_pylist([{"before": None, "after": row}], kind)
    if envelope == "diff":
        columns.append(("_diff", pa.int64()))
    kind = pa.schema(columns)
    return kind, pa.Table.from_pylist([{**row, "_diff": 1}], kind)


@pytest.mark.parametrize("envelope", ["append", "diff", "upsert", "debezium"])
@pytest.mark.parametrize("merge", ["true", "false"])
def test_new_columns(envelope: str, merge: str) -> None:
    """`mergeSchema` takes the frame's new columns in every envelope; else they are refused."""
    kind, some = wider(envelope)
    with engine(kind, {"envelope": envelope, "mergeSchema": merge}) as spark:
        spark.client.create(SHARD, schema_of(ROWS), key=("id",))
        spark.client.writer(SHARD).append_now(table((1, "a")))
        if merge == "true":
            spark.micro_batch(0, some)
            assert contents(spark) == Counter([(1, "a", None), (2, "b", 0.5)])
        else:
            prefix = "after." if envelope == "debezium" else ""
            with pytest.raises(ShardError, match=rf"\[EXTRA_COLUMN\].*'{prefix}w'"):
                spark.micro_batch(0, some)


@pytest.mark.parametrize("options", [{}, UPSERT], ids=["append", "upsert"])
def test_the_schema_may_be_evolved_between_staging_and_commit(options: dict[str, str]) -> None:
    """Rows that were staged for the older schema are committed under the newer one."""
    newer = schema_of(ROWS.append(pa.field("w", pa.float64())))
    with engine(ROWS, options) as spark:
        spark.micro_batch(0, table((1, "a"), (2, "b")))
        messages = spark.stage(spark.writer(), table((2, "B"), (3, "c")))
        spark.world.client(TINY).evolve(SHARD, newer)
        spark.process()
        spark.writer().commit(messages, 1)

        replaced = [] if options == UPSERT else [(2, "b", None)]
        assert contents(spark) == Counter(
            [(1, "a", None), (2, "B", None), (3, "c", None), *replaced]
        )


@pytest.mark.parametrize(
    ("options", "overwrite"), [({}, False), ({}, True), (UPSERT, False)], ids=["add", "all", "key"]
)
def test_batch_writes_have_an_identity(options: dict[str, str], overwrite: bool) -> None:
    """A write with a `txnVersion` that its `txnAppId` has committed does nothing."""
    with engine(ROWS, options) as spark:
        spark.save(table((1, "a")), overwrite=overwrite, txnAppId="job", txnVersion="1")
        spark.save(table((2, "b")), overwrite=overwrite, txnAppId="job", txnVersion="2")
        spark.save(table((1, "x")), overwrite=overwrite, txnAppId="job", txnVersion="1")
        spark.save(table((1, "x")), overwrite=overwrite, txnAppId="job", txnVersion="2")

        first = [] if overwrite else [(1, "a")]
        assert contents(spark) == Counter([*first, (2, "b")])


def test_a_shard_dropped_meanwhile_is_not_written_to() -> None:
    """What was staged for a shard goes to no other one of the same name."""
    with engine(ROWS) as spark:
        messages = spark.stage(spark.writer(), table((1, "a")))
        spark.client.drop(SHARD)
        with pytest.raises(ShardError, match=r"\[SHARD_CHANGED\]"):
            spark.writer().commit(messages, 0)


def test_a_micro_batch_reads_the_state_once_to_plan_and_once_to_commit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each look at the shard is a request to the store."""
    looks: list[str] = []
    refresh = Machine.refresh

    def counted(machine: Machine) -> ShardState | None:
        looks.append(machine.name)
        return refresh(machine)

    monkeypatch.setattr(Machine, "refresh", counted)
    with engine(ROWS) as spark:
        spark.micro_batch(0, table((1, "a")))
        looks.clear()
        spark.micro_batch(1, table((2, "b")))

        assert len(looks) == 2

"""Upserts and change events against a dictionary: any micro-batches, replays, tasks and keys."""

from __future__ import annotations

import math
from collections import Counter
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.datasource.shard.commands.append import Appended
from shardline.datasource.write import WriteHandle, WriteResult
from support.fakes.sink import SHARD, engine
from support.models.shards import TINY, schema_of, table, updates
from support.profiles import examples

if TYPE_CHECKING:
    from support.fakes.sink import Engine

Row = dict[str, Any]
Model = dict[Any, Row]

few = examples()


def frozen(value: Any) -> Any:
    """A value that is equal exactly when a shard takes it for the same."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else repr(value)
    if isinstance(value, dict):
        return tuple((name, frozen(item)) for name, item in sorted(value.items()))
    return tuple(map(frozen, value)) if isinstance(value, list) else value


def contents(spark: Engine) -> Counter[Any]:
    with spark.world.client(TINY).reader(SHARD) as reader:
        return Counter(map(frozen, reader.snapshot().to_pylist()))


def expected(model: Model) -> Counter[Any]:
    return Counter(map(frozen, model.values()))


def news(spark: Engine) -> int:
    """How many updates the last append brought."""
    return spark.client.state(SHARD).trace.batches[-1].rows


def tasks_of(rows: list[Row], cut: int, kind: pa.Schema) -> list[pa.Table]:
    """The rows spread over two tasks."""
    return [pa.Table.from_pylist(some, kind) for some in (rows[:cut], rows[cut:])]


def commit(spark: Engine, number: int, tasks: list[pa.Table], *, replays: int) -> None:
    for _ in range(1 + replays):
        spark.process()
        spark.micro_batch(number, *tasks)


# --- which row wins ----------------------------------------------------------------------------

ORDERED = pa.schema([("seq", pa.float64()), ("id", pa.int64()), ("v", pa.int64())])
orders = st.sampled_from([None, float("-inf"), -0.0, 0.0, 1.5, 2.0, float("nan")])
ordered_rows = st.lists(
    st.fixed_dictionaries(
        {
            "seq": orders,
            "id": st.sampled_from([None, 0, 1, 2, 3]),
            "v": st.sampled_from([None, 7, 8]),
        }
    ),
    max_size=12,
)


def rank(row: Row) -> tuple[Any, ...]:
    """Null first, then numbers, -0.0 before 0.0, then NaN; of equals the row that sorts last."""
    seq, v = row["seq"], row["v"]
    if seq is None:
        place: tuple[Any, ...] = (0,)
    elif math.isnan(seq):
        place = (2,)
    else:
        place = (1, seq, math.copysign(1, seq))
    return place, v is not None, v or 0


@pytest.mark.slow
@few
@given(st.lists(st.tuples(ordered_rows, st.integers(0, 12), st.integers(0, 1)), max_size=5))
def test_the_latest_row_of_a_key_wins(batches: list[tuple[list[Row], int, int]]) -> None:
    """Whatever tasks rows are in, the greatest order wins; null rows delete; the rest stays."""
    model: Model = {}
    kept = ORDERED.remove(0)
    with engine(ORDERED, {"envelope": "upsert", "orderingColumn": "SEQ"}) as spark:
        spark.client.create(SHARD, schema_of(kept), key=("id",))
        for number, (some, cut, replays) in enumerate(batches):
            before = expected(model)
            for row in sorted(some, key=rank):
                model.pop(row["id"], None)
                if row["v"] is not None:
                    model[row["id"]] = {"id": row["id"], "v": row["v"]}
            commit(spark, number, tasks_of(some, cut, ORDERED), replays=replays)

            after = expected(model)
            assert contents(spark) == after
            assert news(spark) == ((after - before) + (before - after)).total()


# --- keys and values of all kinds --------------------------------------------------------------

TYPED = pa.schema(
    [
        ("s", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.string()))])),
        ("k1", pa.decimal128(12, 2)),
        ("k2", pa.float64()),
        ("k3", pa.string()),
        ("gone", pa.bool_()),
    ]
)
KEY = ("k1", "k2", "k3")
keys = st.tuples(
    st.sampled_from([None, Decimal("-1.50"), Decimal("0.00"), Decimal("1234567890.12")]),
    st.sampled_from([None, float("nan"), -0.0, 0.0, 1e300]),
    st.sampled_from([None, "", "a", "ä" * 70]),
)
values = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {
            "a": st.sampled_from([None, 1, 2]),
            "b": st.one_of(st.none(), st.lists(st.sampled_from([None, "x", ""]), max_size=2)),
        }
    ),
)
typed_batches = st.lists(
    st.tuples(
        st.dictionaries(
            keys.map(lambda key: (key, frozen(list(key)))),
            st.tuples(values, st.sampled_from([None, False, True])),
            max_size=8,
        ),
        st.integers(0, 8),
    ),
    max_size=4,
)


@pytest.mark.slow
@few
@given(typed_batches)
def test_keys_and_values_of_all_kinds(batches: list[tuple[dict[Any, Any], int]]) -> None:
    """Null, NaN, decimals and text are keys like any other; structs, lists and nulls are values."""
    model: Model = {}
    options = {"envelope": "upsert", "key": ",".join(KEY), "deleteColumn": "gone"}
    with engine(TYPED, options) as spark:
        for number, (some, cut) in enumerate(batches):
            rows: list[Row] = []
            by_key = {same: (key, value) for (key, same), value in some.items()}
            for same, (key, (value, gone)) in by_key.items():
                row = {"s": value, **dict(zip(KEY, key, strict=True))}
                model.pop(same, None)
                if not gone:
                    model[same] = row
                rows.append({**row, "gone": gone})
            commit(spark, number, tasks_of(rows, cut, TYPED), replays=0)
            assert contents(spark) == expected(model)


WIDE = pa.schema([("k", pa.float64()), ("v", pa.string())])
wide_keys = st.one_of(
    st.none(), st.just(float("nan")), st.just(-0.0), st.integers(0, 99).map(float)
)


@pytest.mark.slow
@few
@given(
    st.lists(st.lists(st.tuples(wide_keys, st.integers(0, 2)), max_size=60), min_size=1, max_size=4)
)
def test_many_parts_and_row_groups(batches: list[list[tuple[float | None, int]]]) -> None:
    """Whichever parts and row groups are passed over, no old row of a new key is left."""
    model: Model = {}
    options = {"envelope": "upsert", "key": "k", "inlinePartBytes": "0"}
    with engine(WIDE, options) as spark:
        for number, some in enumerate(batches):
            by_key = {frozen(k): {"k": k, "v": "x" * 9 * n or None} for k, n in some}
            for same, row in by_key.items():
                model.pop(same, None)
                if row["v"] is not None:
                    model[same] = row
            commit(spark, number, tasks_of(list(by_key.values()), 20, WIDE), replays=0)
            assert contents(spark) == expected(model)


# --- change events -----------------------------------------------------------------------------

PLAIN = pa.schema([("id", pa.int64()), ("v", pa.string())])
EVENTS = pa.schema(
    [
        ("before", pa.struct(list(PLAIN))),
        ("after", pa.struct(list(PLAIN))),
        ("op", pa.string()),
        ("source", pa.struct([("lsn", pa.int64())])),
    ]
)
# What a client of the database does: set a row, delete it, or give it another key.
actions = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from([None, "a", "b", "c"]), st.integers(0, 3)),
    max_size=10,
)


def recorded(model: Model, action: tuple[int, str | None, int], lsn: int) -> Row:
    """Do `action` in the database; the event that its connector makes of it."""
    key, value, moved = action
    before = model.pop(key, None)
    after = None
    if value is not None:
        to = moved if before is not None and moved not in model else key
        after = model[to] = {"id": to, "v": value}
    op = "u" if before and after else "c" if after else "d" if before else "m"
    return {"before": before, "after": after, "op": op, "source": {"lsn": lsn}}


@pytest.mark.slow
@few
@given(
    st.lists(st.tuples(actions, st.integers(0, 10), st.integers(0, 1)), max_size=4), st.booleans()
)
def test_change_events_follow_the_database(
    batches: list[tuple[list[tuple[int, str | None, int]], int, int]], keyed: bool
) -> None:
    """With a key or without one, the shard is the table whose events it was given."""
    model: Model = {}
    options = {"key": "id", "orderingColumn": "source.lsn"} if keyed else {}
    lsn = 0
    with engine(EVENTS, {"envelope": "debezium", **options}) as spark:
        for number, (some, cut, replays) in enumerate(batches):
            events = []
            for action in some:
                lsn += 1
                events.append(recorded(model, action, lsn))
            # Later events in the first task: order is what the column says.
            commit(spark, number, tasks_of(events[::-1], cut, EVENTS), replays=replays)
            assert contents(spark) == expected(model)


@pytest.mark.slow
@few
@given(actions, st.integers(0, 10), st.data())
def test_events_delivered_again_change_nothing(
    some: list[tuple[int, str | None, int]], until: int, data: st.DataObject
) -> None:
    """With a key and an order, a connector that repeats its last events does no harm."""
    model: Model = {}
    events = [recorded(model, action, lsn) for lsn, action in enumerate(some)]
    start = data.draw(st.integers(0, min(until, len(events))))
    options = {"envelope": "debezium", "key": "id", "orderingColumn": "source.lsn"}
    with engine(EVENTS, options) as spark:
        spark.micro_batch(0, pa.Table.from_pylist(events[:until], EVENTS))
        spark.micro_batch(1, pa.Table.from_pylist(events[start:], EVENTS))
        assert contents(spark) == expected(model)


# --- other writers meanwhile -------------------------------------------------------------------

strangers = st.lists(
    st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from(["p", "q"]), st.sampled_from([-1, 1, 2])),
        max_size=4,
    ),
    max_size=3,
)


@pytest.mark.slow
@few
@given(
    first=st.dictionaries(st.integers(0, 4), st.sampled_from(["p", "q"])),
    meanwhile=strangers,
    second=st.dictionaries(st.integers(0, 4), st.sampled_from([None, "p", "q"])),
    upserting=st.booleans(),
)
def test_others_append_while_the_difference_is_made(
    first: dict[int, str],
    meanwhile: list[list[tuple[int, str, int]]],
    second: dict[int, str | None],
    upserting: bool,
) -> None:
    """Each append that comes in between is followed, not lost and not left in place."""
    there: Counter[tuple[int, str | None]] = Counter(first.items())
    options = {"envelope": "upsert"} if upserting else {}
    with engine(PLAIN, {"key": "id", **options}) as spark:
        spark.micro_batch(0, table(*first.items()))
        left = [legal(there, some) for some in meanwhile]
        calls = meddle(spark, left)
        spark.micro_batch(1, table(*second.items()), overwrite=not upserting)

        wanted = {item for item in second.items() if item[1] is not None or not upserting}
        untouched = {row: n for row, n in there.items() if upserting and row[0] not in second}
        assert len(calls) == 1 + len(left)
        assert contents(spark) == Counter(
            {frozen(dict(zip(("id", "v"), row, strict=True))): n for row, n in untouched.items()}
        ) + Counter(frozen({"id": k, "v": v}) for k, v in wanted)
        assert spark.blobs() == spark.parts()


def legal(
    there: Counter[tuple[int, str | None]], some: list[tuple[int, str, int]]
) -> list[tuple[int, str, int, int]]:
    """The changes that are possible, as updates without their time; done to `there`."""
    done = []
    for key, value, diff in some:
        if there[key, value] + diff >= 0:
            there[key, value] += diff
            done.append((key, value, 0, diff))
    return done


def meddle(spark: Engine, appends: list[list[tuple[int, str, int, int]]]) -> list[object]:
    """Let another writer append right before each of the next commits; gets an item for each."""
    calls: list[object] = []
    commit_at = WriteHandle.commit_at

    def late(handle: WriteHandle, *args: Any, **kwargs: Any) -> WriteResult:
        if len(calls) < len(appends):
            other = spark.world.client(TINY).writer(SHARD)
            some = updates(*appends[len(calls)]).drop_columns(["_ts"])
            assert isinstance(other.append_now(some), Appended)
        calls.append(handle)
        return commit_at(handle, *args, **kwargs)

    spark.patch.setattr(WriteHandle, "commit_at", late)
    return calls

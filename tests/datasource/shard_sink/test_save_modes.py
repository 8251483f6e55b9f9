"""Options of batch writes: a write that must be the first, its rivals; and what streams refuse."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any, Final

import pyarrow as pa
import pytest

from shardline.datasource.errors import Determinate, InvalidUsage
from support.fakes.sink import SHARD, Engine, engine
from support.models.shards import TINY, Mortal, rows, schema_of, table

ROWS: Final = table((0, "")).schema
EVENTS: Final = pa.schema([("before", pa.struct([ROWS.field("v")])), ("after", pa.struct(ROWS))])
FIRST_ONLY: Final = ("errorifexists", "ignore")
MANY: Final = table(*((n, "x" * 50) for n in range(20)))
ENVELOPES: Final[dict[str, dict[str, str]]] = {
    "append": {},
    "upsert": {"envelope": "upsert", "key": "id"},
}


def contents(spark: Engine) -> Counter[tuple[Any, ...]]:
    with spark.world.client(TINY).reader(SHARD) as reader:
        return rows(reader.snapshot())


@pytest.mark.parametrize("mode", FIRST_ONLY)
def test_a_write_that_failed_is_written_by_its_repetition(mode: str) -> None:
    """It has left a shard without rows, which is none to the next attempt."""
    with engine(ROWS, {"saveMode": mode}) as spark:
        failed = spark.batch_writer()
        failed.abort([*spark.stage(failed, MANY), None])
        spark.save(table((1, "a")))

        assert contents(spark) == Counter([(1, "a")])


@pytest.mark.parametrize("empty", [False, True], ids=["rows", "no rows"])
def test_a_shard_that_was_written_is_left_alone(empty: bool) -> None:
    """Also if what was written is nothing; with ignore its schema stays, too."""
    kind = ROWS.append(pa.field("w", pa.float64()))
    with engine(kind, {"mergeSchema": "true"}) as spark:
        spark.client.create(SHARD, schema_of(ROWS))
        spark.client.writer(SHARD).append_now(None if empty else table((1, "a")))
        before = spark.client.state(SHARD)
        spark.save(MANY.append_column("w", pa.nulls(20, pa.float64())), saveMode="ignore")
        with pytest.raises(InvalidUsage, match=rf"\[SHARD_EXISTS\] shard '{SHARD}'"):
            spark.batch_writer(saveMode="errorifexists")

        assert spark.client.state(SHARD) == before


@pytest.mark.parametrize("owner", ["a view", "transactions"])
def test_an_empty_shard_of_somebody_else_is_left_alone(owner: str) -> None:
    """One whose times others choose, or that transactions write, is theirs before it has rows."""
    with engine(ROWS, {"saveMode": "ignore"}) as spark:
        spark.client.create(SHARD, schema_of(ROWS), times_by="view v" if owner == "a view" else "")
        if owner == "transactions":
            spark.client.transactions().register(SHARD)
        before = spark.client.state(SHARD)
        spark.save(table((1, "a")))

        assert spark.client.state(SHARD) == before


@pytest.mark.parametrize("options", ENVELOPES.values(), ids=ENVELOPES)
@pytest.mark.parametrize("mode", FIRST_ONLY)
def test_one_of_two_writes_is_the_first(mode: str, options: dict[str, str]) -> None:
    """Both found no shard. The second one to commit adds nothing, and leaves no part."""
    with engine(ROWS, {"saveMode": mode, **options}) as spark:
        ours, theirs = spark.batch_writer(), spark.batch_writer()
        staged = spark.stage(ours, table(*((n, "ours" * 20) for n in range(20))))
        theirs.commit(spark.stage(theirs, MANY))
        if mode == "ignore":
            ours.commit(staged)
        else:
            with pytest.raises(InvalidUsage, match=r"\[SHARD_EXISTS\]"):
                ours.commit(staged)
            ours.abort(staged)

        assert contents(spark) == rows(MANY)
        assert spark.blobs() == spark.parts()


def test_a_first_write_whose_answer_was_lost_is_not_refused_by_its_own_rows() -> None:
    """The commit is repeated within the call, and finds that it has happened."""
    lost = []
    for at in itertools.count():
        with engine(ROWS, {"saveMode": "errorifexists"}) as spark:
            writer = spark.batch_writer()
            staged = spark.stage(writer, MANY)
            store = Mortal(spark.world.objects(), at, "done", lasts=1)
            spark.process(store)
            try:
                writer.commit(staged)
            except Determinate:
                # A read that failed is no answer that was lost.
                assert not store.failed.startswith("create")
                continue
            assert contents(spark) == rows(MANY)
            if not store.failed:
                break
            lost.append(store.failed)
    assert any(name.startswith("create") for name in lost)


def test_a_refused_write_makes_no_shard() -> None:
    """The frame lacks a column of the key in one of its images, which is known before."""
    with engine(EVENTS, {"envelope": "debezium", "key": "id"}) as spark:
        with pytest.raises(InvalidUsage, match=r"\[MISSING_COLUMN\].*'before.id'"):
            spark.batch_writer()

        assert not spark.client.exists(SHARD)


def test_a_refused_write_evolves_no_schema() -> None:
    """`before` has a column that no row has; the columns that `after` would add are not added."""
    kind = pa.schema(
        [
            ("before", pa.struct([*ROWS, pa.field("z", pa.int64())])),
            ("after", pa.struct([*ROWS, pa.field("w", pa.int64())])),
        ]
    )
    with engine(kind, {"envelope": "debezium", "key": "id", "mergeSchema": "true"}) as spark:
        spark.client.create(SHARD, schema_of(ROWS), key=("id",))
        before = spark.client.state(SHARD)
        with pytest.raises(InvalidUsage, match=r"\[EXTRA_COLUMN\].*'before.z'"):
            spark.batch_writer()

        assert spark.client.state(SHARD) == before


TXN: Final = {"txnAppId": "etl", "txnVersion": "1"}


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"saveMode": "errorifexists"}, "'saveMode' is 'errorifexists'"),
        ({"saveMode": "ignore"}, "'saveMode' is 'ignore'"),
        ({"saveMode": "overwrite"}, "'saveMode' is 'overwrite'"),
        (TXN, "'txnAppId'"),
        ({**TXN, "txnRange": "monday"}, "'txnRange'"),
    ],
)
def test_a_stream_refuses_what_it_cannot_keep(options: dict[str, str], named: str) -> None:
    """Before it makes a shard. What its output mode says anyway may be said."""
    with engine(ROWS, options) as spark:
        with pytest.raises(InvalidUsage, match=rf"\[INVALID_OPTION\].*{named}"):
            spark.writer()
        assert not spark.client.exists(SHARD)


def test_a_stream_may_say_its_output_mode() -> None:
    """The save mode of that name means nothing else."""
    with engine(ROWS, {"saveMode": "append"}) as spark:
        spark.micro_batch(0, table((1, "a")))
        assert contents(spark) == Counter([(1, "a")])

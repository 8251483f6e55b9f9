"""Merges spread over executors: the same contents as a merge in one process, in one sorted run."""

from __future__ import annotations

import argparse
import datetime as dt
import io
import random
import shutil
import threading
from collections import Counter
from dataclasses import replace
from decimal import Decimal
from functools import partial
from itertools import pairwise, product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from rich.console import Console
from typing_extensions import override

from shardline.datasource.client import ShardClient
from shardline.datasource.clock import SystemClock, SystemIds
from shardline.datasource.errors import Corrupt
from shardline.datasource.frontier import Frontier
from shardline.datasource.maintenance.compaction_claim import CLAIM_LEASE_MS, MergeClaim
from shardline.datasource.parts.collect_stats import collect_part_stats
from shardline.datasource.settings import ShardSettings
from shardline.datasource.shard.batch import Part, Run
from shardline.datasource.shard.commands.claims import release_claim
from shardline.datasource.spark_compaction import driver, job_watch
from shardline.datasource.spark_compaction.driver import compact_on_spark, plan_tasks
from shardline.datasource.spark_compaction.job_watch import JobWatch
from shardline.datasource.spark_compaction.ranges import (
    WeightedSpan,
    cut_kind,
    known_of_part,
    plan_cuts,
    ranges_between,
    weighted_span,
)
from shardline.datasource.types.row_keys import contiguous, surrogate
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.types.stats import encode_stats
from shardline.jobs.compact import merge_shards
from support.fakes.clock import ManualClock
from support.models.shards import rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

SHARD = "orders"
SETTINGS = ShardSettings(
    row_group_rows=50, inline_part_bytes=300, part_buffer_bytes=20_000, compact_inline_bytes=0
)
SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64()), ("f", pa.float64())])


def table(some: Sequence[tuple[Any, ...]], schema: pa.Schema = SCHEMA) -> pa.Table:
    timed = pa.schema([*schema, ("_ts", pa.int64()), ("_diff", pa.int64())])
    columns = [pa.array([row[i] for row in some], field.type) for i, field in enumerate(timed)]
    return pa.Table.from_arrays(columns, schema=timed)


def history(seed: int = 1) -> list[list[tuple[Any, ...]]]:
    """Appends of updates at times 0, 1, 2 …: additions, copies, retractions, nulls and NaN."""
    chance = random.Random(seed)
    there: list[tuple[Any, ...]] = []
    appends = []
    for time in range(12):
        some = []
        for _ in range(400 if time % 3 else 3):
            key = chance.choice([None, "", *(f"k{n:03}" for n in range(150))])
            row = (key, chance.randrange(9), chance.choice([None, 0.0, -0.0, 1.5, float("nan")]))
            copies = chance.choice([1, 1, 1, 2])
            some.append((*row, time, copies))
            there += [row] * copies
        gone = 100 if time % 3 == 2 else 0
        some += [(*there.pop(chance.randrange(len(there))), time, -1) for _ in range(gone)]
        appends.append(some)
    return appends


def filled(url: str, *, key: tuple[str, ...] = ("k",)) -> ShardClient:
    client = ShardClient.open(url, settings=SETTINGS)
    client.create(SHARD, ShardSchema.from_arrow(SCHEMA), key=key)
    client.hold(SHARD, "all")
    writer = client.writer(SHARD)
    for time, some in enumerate(history()):
        writer.compare_and_append(table(some), Frontier(time), Frontier(time + 1))
    return client


def shown(updates: pa.Table) -> Counter[Any]:
    """Rows with what Python takes for equal told apart: NaN, and zeros of both signs."""
    return Counter({tuple(map(repr, row)): n for row, n in rows(updates).items()})


def meaning(client: ShardClient) -> list[object]:
    with client.reader(SHARD) as reader:
        last = (client.state(SHARD).upper.time or 0) - 1
        said: list[object] = [shown(reader.snapshot(at)) for at in (5, 8, last)]
        changes: Counter[Any] = Counter()
        for step in reader.listen(5, until=Frontier(last + 1), timeout_ms=1):
            for *row, diff in zip(*(c.to_pylist() for c in step.updates), strict=True):
                changes[tuple(map(repr, row))] += diff
        return [*said, {update: diff for update, diff in changes.items() if diff}]


def on_spark(spark: SparkSession, client: ShardClient, **options: Any) -> int:
    given: dict[str, Any] = {"storage": {}, "force": True, "range_bytes": 10_000}
    return compact_on_spark(spark, client, SHARD, **(given | options))


# --- ranges, without Spark -----------------------------------------------------------------------


def test_cuts_are_even_and_apart() -> None:
    """Half the weight of a piece is at each end; nothing is cut at the least value."""
    pieces = [WeightedSpan(n, n + 1, 10) for n in range(100)]
    assert plan_cuts(pieces, 4) == [25, 50, 75]
    assert plan_cuts([WeightedSpan(7, 7, 10)] * 50, 4) == []
    assert plan_cuts([], 4) == []
    assert plan_cuts(pieces, 1) == []
    lopsided = plan_cuts([WeightedSpan(0, 0, 1000), *pieces], 4)
    assert lopsided == sorted(set(lopsided))
    assert len(lopsided) <= 3


VALUES: list[tuple[pa.DataType, list[Any]]] = [
    (pa.bool_(), [True, False]),
    (pa.int32(), [-5, 0, 3, 2**31 - 1]),
    (pa.int64(), [-(2**63), -1, 0, 2**53 + 1, 2**63 - 1]),
    (pa.float64(), [float("-inf"), -1.5, -0.0, 0.0, 2.5, float("inf"), float("nan")]),
    (pa.float32(), [-0.0, 0.0, 0.1, float("nan")]),
    (pa.decimal128(9, 2), [Decimal("-1.50"), Decimal("0.00"), Decimal("9.99")]),
    (pa.decimal128(38, 10), [Decimal("-1e20"), Decimal(0), Decimal("1e20")]),
    (pa.string(), ["", "a", "a\0", "ab", "é", "\U0001f600", "\uffff"]),
    (pa.binary(), [b"", b"\0", b"a", b"\xff"]),
    (pa.date32(), [dt.date(1969, 1, 1), dt.date(2024, 2, 29)]),
    (
        pa.timestamp("us", "UTC"),
        [dt.datetime(1969, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 2, 29, tzinfo=dt.UTC)],
    ),
]


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=lambda v: str(v) if v is None else None)
def test_every_row_is_in_one_range_and_ranges_are_in_order(
    kind: pa.DataType, values: list[Any]
) -> None:
    """Of every type that can be cut, at every bound that statistics may give, nulls included."""
    schema = ShardSchema.from_arrow(pa.schema([("c", kind)]))
    bound_kind = cut_kind(schema.field("c"))
    assert bound_kind is not None
    data = pa.table({"c": pa.array([None, *values], kind)})
    keys = surrogate(contiguous(data.column("c")))
    plain = [v for v in values if v == v]  # noqa: PLR0124 - NaN is no bound
    ends: list[Any] = plain
    if bound_kind in ("bool", "date", "ts"):
        ends = [keys[values.index(v) + 1].as_py() for v in plain]
    for first in ends:
        for second in ends:
            if not first < second:
                continue
            found = [
                r.mask(data).to_pylist() for r in ranges_between("c", bound_kind, [first, second])
            ]
            assert [sum(column) for column in zip(*found, strict=True)] == [1] * data.num_rows
            order = [pc.filter(keys, pa.array(mask)) for mask in found]
            assert found[0][0], "null is in the first one"
            for one, other in pairwise(order):
                if len(one) - one.null_count and len(other):
                    assert pc.max(one).as_py() < pc.min(other).as_py()


@pytest.mark.parametrize(("kind", "values"), VALUES, ids=lambda v: str(v) if v is None else None)
def test_no_part_with_a_row_in_the_range_is_left_out(kind: pa.DataType, values: list[Any]) -> None:
    """Whatever its statistics tell: of every row alone, null and NaN among them."""
    schema = ShardSchema.from_arrow(pa.schema([("c", kind)]))
    bound_kind = cut_kind(schema.field("c"))
    singles = [pa.table({"c": pa.array([value], kind)}) for value in (None, *values)]
    stats = [encode_stats(collect_part_stats(one, schema)) for one in singles]
    parts = [known_of_part(Part("p", 1, 1, 0, encoded_stats=one), "c") for one in stats]
    assert bound_kind is not None
    told = [piece for part in parts if (piece := weighted_span(part, bound_kind, 1))]
    ranges = [
        r
        for first, second in product(told, told)
        if first.lo < second.lo  # type: ignore[operator]  # two of one kind
        for r in ranges_between("c", bound_kind, [first.lo, second.lo])
    ]
    left_out = 0
    for each, (one, part) in product(ranges, zip(singles, parts, strict=True)):
        inside = each.mask(one).to_pylist() == [True]
        assert each.may_hold(part) or not inside, (each, one)
        left_out += not each.may_hold(part)
    assert left_out >= len(ranges) / 2


def test_what_has_no_order_is_one_range(tmp_path: Any) -> None:
    """Nested columns, and strings that are compared by a collation."""
    nested = ShardSchema.from_arrow(pa.schema([("c", pa.list_(pa.int64()))]))
    assert cut_kind(nested.field("c")) is None
    client = ShardClient.open(str(tmp_path), settings=SETTINGS)
    client.create(SHARD, nested)
    for number in range(3):
        client.writer(SHARD).append_now(pa.table({"c": [[number, n] for n in range(200)]}))
    state = client.state(SHARD)
    [task] = plan_tasks(client.machine(SHARD), {}, state, state.trace.batches, 100)
    assert not task.rows.is_cut


def test_a_task_reads_what_may_be_in_its_range(tmp_path: Any) -> None:
    """Parts beside it are not even named."""
    client = ShardClient.open(str(tmp_path), settings=SETTINGS)
    client.create(SHARD, ShardSchema.from_arrow(SCHEMA), key=("k",))
    for number in range(8):
        some = [(f"k{number}{n:03}", 1, 1.0, number, 1) for n in range(300)]
        client.writer(SHARD).append_now(table(some))
    state = client.state(SHARD)
    tasks = plan_tasks(client.machine(SHARD), {}, state, state.trace.batches, 4000)
    assert len(tasks) >= 4
    assert all(len([p for s in task.sources for p in s.parts]) <= 4 for task in tasks)


def test_a_damaged_footer_ends_no_plan(tmp_path: Any) -> None:
    """Of a part of before 1.4, whose footer has no checksum: the task that reads it reports it."""
    settings = replace(SETTINGS, inline_part_bytes=0)
    client = ShardClient.open(str(tmp_path), settings=settings)
    client.create(SHARD, ShardSchema.from_arrow(SCHEMA), key=("k",))
    client.writer(SHARD).append_now(table([(f"k{n:03}", 1, 1.0, n, 1) for n in range(300)]))
    state = client.state(SHARD)
    [batch] = state.trace.batches
    [run] = batch.runs
    [part] = [msgspec.structs.replace(one, footer=None) for one in run.parts]
    old = msgspec.structs.replace(batch, runs=(msgspec.structs.replace(run, parts=(part,)),))
    file = tmp_path / part.key
    data = bytearray(file.read_bytes())
    start = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    data[start : start + 40] = b"\xff" * 40
    file.write_bytes(data)
    tasks = plan_tasks(client.machine(SHARD), {}, state, (old,), 100)
    read = [one.part for task in tasks for source in task.sources for one in source.parts]
    assert read == [part] * len(tasks)


# --- as a job ------------------------------------------------------------------------------------


@pytest.mark.spark
@pytest.mark.parametrize(
    "key",
    [
        ("k",),
        pytest.param(("n", "k"), marks=pytest.mark.night),
        pytest.param(("f",), marks=pytest.mark.night),
        pytest.param((), marks=pytest.mark.night),
    ],
)
def test_it_means_the_same_as_a_merge_in_one_process(
    spark: SparkSession, location: str, key: tuple[str, ...]
) -> None:
    """Contents at several times, changes, retractions; one sorted run of bounded parts."""
    client = filled(location, key=key)
    other = filled(f"{location}-2", key=key)
    before = meaning(client)
    for each in (client, other):
        each.hold(SHARD, "all").downgrade(Frontier(5))
    assert other.compact(SHARD, force=True) == 1
    assert on_spark(spark, client) == 1
    [batch] = client.state(SHARD).trace.batches
    [run] = batch.runs
    [theirs] = other.state(SHARD).trace.batches
    assert (run.order, batch.rows, batch.desc) == ("sorted", theirs.rows, theirs.desc)
    assert len(run.parts) > 2 or key == ("n", "k")
    assert_in_order(client, run, key[0] if key else "k")
    assert meaning(client) == meaning(other) == before
    # The next merge reads the run as sorted, and says so if it is not.
    client.hold(SHARD, "all").downgrade(Frontier(9))
    assert client.compact(SHARD, force=True) == 1
    assert client.state(SHARD).claims == {}


def assert_in_order(client: ShardClient, run: Run, column: str) -> None:
    """The parts of a run, one after the other, are sorted by this column."""
    stored = [pq.read_table(io.BytesIO(client.location.blob.get(p.key) or b"")) for p in run.parts]
    column_keys = surrogate(contiguous(pa.concat_tables(stored).column(column))).to_pylist()
    ranks = [(key is not None, key) for key in column_keys]
    assert all(one <= other for one, other in pairwise(ranks) if one[0] and other[0])
    assert [known for known, _ in ranks] == sorted(known for known, _ in ranks)


@pytest.mark.spark
def test_a_task_that_fails_leaves_the_shard_and_the_claim(
    spark: SparkSession, location: str
) -> None:
    """The error of the task is told, with its class; the next run begins anew."""
    client = filled(location)
    before = meaning(client)
    key = next(p.key for b in client.state(SHARD).trace.batches for p in b.parts if not p.inline)
    blob = client.location.blob
    data = blob.get(key) or b""
    blob.set(key, data[:-1])
    with pytest.raises(Corrupt, match="CORRUPT_PART"):
        on_spark(spark, client)
    assert client.state(SHARD).claims == {}
    assert len(client.state(SHARD).trace.batches) == 12
    blob.set(key, data)
    assert on_spark(spark, client) == 1
    assert meaning(client) == before


class Killed(BaseException):
    """The driver was killed."""


@pytest.mark.spark
def test_a_driver_that_is_killed_leaves_a_claim_that_runs_out(
    spark: SparkSession, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Right before it would apply what the tasks made: contents stay, others wait for its lease."""
    client = filled(location)
    before = meaning(client)

    def die(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(driver, "apply_merged", die)
        patch.setattr(MergeClaim, "__exit__", lambda *_: None)
        with pytest.raises(Killed):
            on_spark(spark, client)
    clock = ManualClock(client.clock.now_ms())
    later = ShardClient(client.location, SETTINGS, clock, SystemIds())
    assert len(later.state(SHARD).claims) == 1
    said: list[str] = []
    assert on_spark(spark, later, report=said.append) == 0
    assert "is left to merge on Spark by" in said[0]
    assert meaning(client) == before
    clock.advance(CLAIM_LEASE_MS + 1000)
    assert later.compact(SHARD, force=True) == 1
    assert meaning(client) == before


@pytest.mark.spark
def test_a_job_whose_claim_is_lost_is_cancelled(
    spark: SparkSession, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else took it over: the tasks stop, and what is left to do is theirs."""
    client = filled(location)
    monkeypatch.setattr(job_watch, "_LOOK_MS", 1)
    monkeypatch.setattr("shardline.datasource.maintenance.compaction_claim._BEATS", 10**9)
    taken = threading.Event()
    keep = MergeClaim.keep

    def stolen(self: MergeClaim) -> None:
        if not taken.is_set():
            taken.set()
            other = ShardClient.open(location, settings=SETTINGS)
            state = other.state(SHARD)
            assert other.machine(SHARD).apply(partial(release_claim, name=self.name))
            MergeClaim.on(other.machine(SHARD), state.trace.batches, "a thief").__enter__()
        keep(self)

    monkeypatch.setattr(MergeClaim, "keep", stolen)
    monkeypatch.setattr(driver, "merge_range", hanging())
    assert on_spark(spark, client) == 0
    assert [claim.purpose for claim in client.state(SHARD).claims.values()] == ["a thief"]
    assert len(client.state(SHARD).trace.batches) == 12


class Leaping(SystemClock):
    """The machine's clock, ahead by what a test lets pass."""

    ahead_ms = 0

    @override
    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms

    @override
    def elapsed_ms(self) -> float:
        return super().elapsed_ms() + self.ahead_ms


@pytest.mark.spark
def test_a_job_that_hangs_leaves_its_batches_to_others(
    spark: SparkSession, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its claim runs out although its driver lives; when others have merged it is cancelled."""
    before = meaning(filled(location))
    clock = Leaping()
    made: list[int] = []

    def client() -> ShardClient:
        return ShardClient(ShardClient.open(location).location, SETTINGS, clock, SystemIds())

    look = JobWatch.look

    def others_look_as_well(self: JobWatch) -> float:
        clock.ahead_ms += CLAIM_LEASE_MS // 3
        if 1 not in made:
            made.append(client().compact(SHARD, force=True))
        return look(self)

    monkeypatch.setattr(job_watch, "_LOOK_MS", 1)
    monkeypatch.setattr(job_watch, "_STALLED_MS", 0)
    monkeypatch.setattr(JobWatch, "look", others_look_as_well)
    monkeypatch.setattr(driver, "merge_range", hanging())
    said: list[str] = []
    assert on_spark(spark, client(), report=said.append) == 0
    assert "no task has finished" in said[1]
    assert (made[0], made[-1]) == (0, 1)
    assert len(client().state(SHARD).trace.batches) == 1
    assert meaning(client()) == before


def hanging() -> Callable[[object], object]:
    """A task that ends when it is killed; no name of this module, which workers cannot import."""

    def wait(task: object) -> object:
        del task
        threading.Event().wait(60)
        raise AssertionError

    return wait


@pytest.mark.spark
def test_the_job_says_what_it_does(spark: SparkSession, location: str) -> None:
    """All shards or those that are named; progress, result, and a status."""
    filled(location)

    def run(*shards: str, force: bool) -> tuple[int, str]:
        given = argparse.Namespace(
            location=location, shards=list(shards), force=force, option=[], range_bytes=10_000
        )
        out = io.StringIO()
        return merge_shards(spark, given, Console(file=out, width=200)), out.getvalue()

    assert run("nobody", force=False)[0] == 2
    status, said = run(force=False)
    assert status == 0
    assert f"{SHARD}: " in said
    status, said = run(SHARD, force=True)
    assert status == 0
    assert "batches are merged by" in said
    assert "now 1 batches" in said
    shutil.copytree(Path(location) / SHARD, Path(location) / "a_copy")
    status, said = run(force=False)
    assert status == 1
    assert f"{SHARD}: " in said, "the copy is refused, and the others are merged"

"""Every way of reading the rows of a condition gives those of plain Spark over the same rows."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pytest
from hypothesis import Phase, example, given, settings
from pyspark.errors import PySparkException

from shardline.app.compute.index.index import IndexRegistry, IndexSettings, run_index
from shardline.app.compute.peek.answer import PeekSettings
from shardline.app.compute.peek.peek import PeekServer
from shardline.app.compute.results import from_ipc
from shardline.app.execution.observations import Hydrated
from shardline.app.protocol.compute import Peek, PeekResponse
from shardline.app.protocol.objects import IndexDescription
from shardline.app.sql.queries import bind
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.filters.parser import Condition
from shardline.datasource.frontier import Frontier
from shardline.datasource.settings import ShardSettings
from shardline.datasource.types.schema import ShardSchema
from support.fakes.reads import Inputs, Place, incarnation
from support.profiles import is_night
from support.strategies.conditions import conditions, rows_sql
from support.strategies.rows import bounded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ZONE: Final = "Europe/Berlin"
AS_OF: Final = 15
KEYS: Final = ((), ("n",), ("s", "ts"), ("price",), ("d", "b"))

SEEN: Final = [
    "f = float('NaN') and ts in ('2026-10-25 02:00:00+01:00', '1970-01-01 01:00:00')",
    "f > 100",
    "not (x <= 100)",
    "x in (double('nan'), 0)",
    "x = -0.0",
    "f < 1e400",
    "n = 1.5",
    "n in (1.5, 2.5)",
    "s not like 'a%'",
    "price = 10.560",
    "d < date '1582-10-10'",
]
"""What some way of reading has answered otherwise, and its neighbours."""

BY_SPARK: Final = ("cached frame", "native", "native, parts")
JOBS: Final = (*BY_SPARK, "option where")
"""Ways that run a job of Spark; the last one has none of what only Spark understands."""

Ids = list[int] | str
"""The rows that pass, or that it fails."""


@pytest.fixture(scope="module")
def berlin(spark: SparkSession) -> Iterator[SparkSession]:
    """The session, in a zone whose clocks change."""
    before = spark.conf.get("spark.sql.session.timeZone")
    spark.conf.set("spark.sql.session.timeZone", ZONE)
    yield spark
    spark.conf.set("spark.sql.session.timeZone", str(before))


class Paths:
    """A place with the rows in one shard, and everything that reads them."""

    def __init__(self, location: str, spark: SparkSession, stack: ExitStack) -> None:
        self.spark = spark
        self.place = Place(location, spark)
        self.frame = spark.sql(rows_sql()).coalesce(1)
        self.schema = ShardSchema.parse(self.frame.schema.json())
        self._write("small", ShardSettings(inline_part_bytes=1 << 20))
        # Nothing inside of the state: parts of few rows, of which there are statistics.
        self._write("parts", ShardSettings(inline_part_bytes=0, row_group_rows=3))
        self._stack = stack
        self.asked: Counter[str] = Counter()

    def _write(self, name: str, settings: ShardSettings) -> None:
        rows = self.frame.toArrow()
        client = ShardClient.open(self.place.url, settings=settings)
        client.create(name, self.schema)
        writer = client.writer(name)
        times = pa.array([11] * rows.num_rows, pa.int64())
        diffs = pa.array([1] * rows.num_rows, pa.int64())
        updates = rows.append_column("_ts", times).append_column("_diff", diffs)
        writer.compare_and_append(updates, writer.upper(), Frontier(20))

    def _peeks(self, key: tuple[str, ...] | None, *, shard_bytes: int) -> Callable[[str], pa.Table]:
        """Ask the runtime, whose object `small` has an index by `key`, or none."""
        indexes = IndexRegistry()
        if key is not None:
            on = IndexDescription(name="i", on="small", key=key)
            chosen = IndexSettings(poll_ms=2)
            running = run_index(self.place.host, incarnation("i", 11), on, indexes, chosen)
            self._stack.callback(running.stop)
            self.place.next(Hydrated)
        chosen_peeks = PeekSettings(poll_ms=2, shard_bytes=shard_bytes)
        peeks = PeekServer(
            self.place.host,
            Inputs(),
            lambda *_: pa.table({}),
            bind,
            indexes=indexes,
            settings=chosen_peeks,
            decided=lambda _, strategy: self.asked.update([strategy]),
        )
        self._stack.callback(peeks.stop)

        def ask(query: str) -> pa.Table:
            uuid = self.place.host.ids.token().hex()
            inputs = ("small",) if " FROM small " in query else ("parts",)
            peeks.start(
                Peek(uuid=uuid, query=query, inputs=inputs, as_of=AS_OF, limit_bytes=1 << 20)
            )
            found = self.place.next(PeekResponse)
            assert found.uuid == uuid
            if found.error:
                raise Refused(found.error)
            return from_ipc(found.rows or b"")

        return ask

    def ways(self) -> dict[str, Callable[[str], pa.Table]]:
        """Everything that gives the rows of a condition."""
        index = {key: self._peeks(key, shard_bytes=0) for key in KEYS}
        direct = self._peeks(None, shard_bytes=8 << 20)
        by_spark = self._peeks(None, shard_bytes=-1)
        found = {f"index by {key}": _of(ask, "id", "small") for key, ask in index.items()}
        return found | {
            "inline part": _of(direct, "id", "small"),
            "parts": _of(direct, "id", "parts"),
            # More than a simple query: Spark's, over the frame that an index keeps, and none.
            "cached frame": _of(index[()], "id + 0 AS id", "small"),
            "native": _of(by_spark, "id + 0 AS id", "small"),
            "native, parts": _of(by_spark, "id + 0 AS id", "parts"),
            "option where": self._filtered,
        }

    def _filtered(self, condition: str) -> pa.Table:
        reader = self.spark.read.format("shard").option("timeZone", ZONE).option("columns", "id")
        return reader.option("where", condition).load(f"{self.place.url}/parts").toArrow()

    def plainly(self, condition: str) -> pa.Table:
        """The rows by Spark, from what was written."""
        return self.frame.where(condition).select("id").toArrow()


def _of(ask: Callable[[str], pa.Table], column: str, name: str) -> Callable[[str], pa.Table]:
    return lambda condition: ask(f"SELECT {column} FROM {name} WHERE {condition}")  # noqa: S608


class Refused(Exception):
    """A query was answered by an error."""


def ids(read: Callable[[str], pa.Table], condition: str) -> Ids:
    """What a way of reading gives for a condition."""
    try:
        return sorted(read(condition).column("id").to_pylist())
    except (PySparkException, Refused):
        return "refused"


def is_taken(condition: str, schema: ShardSchema) -> bool:
    """Whether readers without Spark understand a condition."""
    try:
        Condition(condition, ZONE).bind(schema)
    except InvalidUsage:
        return False
    return True


def test_every_way_of_reading_gives_sparks_rows(berlin: SparkSession, location: str) -> None:
    """Indexes by several keys, shards by plain Python, cached frames, native reads, a filter.

    Over a grammar of conditions and the edges of every type: NaN, both zeros, infinities, nulls,
    decimals of another scale, dates before 1582, clocks that change.
    """
    with ExitStack() as stack:
        paths = Paths(location, berlin, stack)
        ways = paths.ways()

        @example(SEEN)
        @given(conditions())
        @settings(
            bounded, max_examples=1, derandomize=True, phases=[Phase.explicit, Phase.generate]
        )
        def check(texts: list[str]) -> None:
            for number, text in enumerate(texts):
                wanted = ids(paths.plainly, text)
                # What no reader of ours takes is Spark's, whichever of them is asked.
                is_ours = is_taken(text, paths.schema)
                asked, jobs = (ways, JOBS) if is_ours else (BY_SPARK, BY_SPARK)
                # A job of Spark costs more than all else: but for the night its ways take turns.
                turn = jobs[number % len(jobs)]
                for name in asked:
                    if name in jobs and name != turn and not is_night():
                        continue
                    read = ways[name]
                    assert (name, text, ids(read, text)) == (name, text, wanted)

        check()
    assert paths.asked["index"] > 50
    assert paths.asked["shard"] > 20
    assert paths.asked["standard"] > (50 if is_night() else 20)

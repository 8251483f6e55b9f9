"""Introspection of real streaming queries, and relations as tables of the session."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from pyspark.logger import SPARK_LOG_SCHEMA
from typing_extensions import override

from shardline.app.introspection.events import Dropped, Event, Polled, QueryProgress, QueryStarted
from shardline.app.introspection.feeds import RuntimeFeeds
from shardline.app.introspection.inbox import Inbox
from shardline.app.introspection.listener import QueryListener
from shardline.app.introspection.live import DATABASE, LiveTables
from shardline.app.logs import add_log_file
from shardline.datasource.client import ShardClient
from shardline.datasource.clock import SystemClock
from support.fakes.introspection import DELAYS, FLIGHTS, World
from support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.spark

PATIENCE_S = 60.0


class Watch(Inbox):
    """An inbox that tells when a predicate over what came has become true."""

    def __init__(self, capacity: int = 10_000) -> None:
        super().__init__(SystemClock(), capacity)
        self.came: list[Event] = []
        self._changed = threading.Condition()

    @override
    def put(self, event: Event) -> None:
        super().put(event)
        with self._changed:
            self.came.append(event)
            self._changed.notify_all()

    def wait(self, wanted: Callable[[list[Event]], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: wanted(self.came), PATIENCE_S), self.came


def progressed(*names: str) -> Callable[[list[Event]], bool]:
    """Whether each of the queries has done a micro-batch."""
    return lambda events: set(names) <= {e.name for e in events if isinstance(e, QueryProgress)}


def start(spark: SparkSession, name: str, folder: Path) -> StreamingQuery:
    """A streaming query that does a micro-batch whenever it can."""
    return (
        spark.readStream.format("rate-micro-batch")
        .option("rowsPerBatch", "1")
        .load()
        .writeStream.format("noop")
        .queryName(name)
        .option("checkpointLocation", str(folder / name.replace(":", "-")))
        .trigger(processingTime="100 milliseconds")
        .start()
    )


@pytest.fixture
def listening(spark: SparkSession) -> Iterator[Watch]:
    """What a listener of the session hears."""
    watch = Watch()
    listener = QueryListener(watch)
    spark.streams.addListener(listener)
    yield watch
    for query in spark.streams.active:
        query.stop()
    spark.streams.removeListener(listener)


def seen(world: World, watch: Watch) -> set[object]:
    """Names of the dataflows that have taken time."""
    world.tell(*watch.came)
    homes = {r["id"]: r["dataflow_name"] for r in world.rows("dataflow_operator_dataflows")}
    return {homes[row["id"]] for row in world.rows("scheduling_elapsed")}


def test_storage_and_compute_appear_alike_in_one_session(
    spark: SparkSession, listening: Watch, tmp_path: Path
) -> None:
    """A source's query and a view's have the same relations filled by the one listener."""
    world = World()
    world.tell(world.installed(FLIGHTS), world.installed(DELAYS))
    names = ("flights:u1:1", "delays:u2:1")
    for name in names:
        start(spark, name, tmp_path)
    listening.wait(progressed(*names))
    assert seen(world, listening) == {"Dataflow: flights", "Dataflow: delays"}
    assert {row["id"] for row in world.rows("objects") if row["run_id"]} == {"flights", "delays"}


def test_with_a_session_each_storage_is_not_seen(
    spark: SparkSession, listening: Watch, tmp_path: Path
) -> None:
    """What unification improves on: a listener hears of its own session's queries only."""
    world = World()
    # Not the first incarnation: news of the test before may still be on their way.
    world.tell(world.installed(FLIGHTS, epoch=2), world.installed(DELAYS, epoch=2))
    other, elsewhere = Watch(), spark.newSession()
    there = QueryListener(other)
    elsewhere.streams.addListener(there)
    hidden = start(elsewhere, "flights:u1:2", tmp_path)
    try:
        # It has done a micro-batch, and its own session has heard of it.
        other.wait(progressed("flights:u1:2"))
        start(spark, "delays:u2:2", tmp_path)
        listening.wait(progressed("delays:u2:2"))
    finally:
        hidden.stop()
        elsewhere.streams.removeListener(there)
    assert seen(world, listening) == {"Dataflow: delays"}


def listeners(spark: SparkSession) -> int:
    """How many listeners the session has."""
    return len(spark._jsparkSession.streams().listListeners())


def batch_of(query: StreamingQuery) -> int:
    """The number of its newest micro-batch; -1 before the first."""
    progress = query.lastProgress
    return -1 if progress is None else progress.batchId


def watching() -> set[str]:
    """Names of the threads that watch."""
    # Not py4j's for the JVM's calls: it stays, with its name, for whatever the JVM calls next.
    threads = {t.name for t in threading.enumerate() if t.name.startswith("introspection")}
    return threads - {"introspection-listener"}


def test_a_pause_leaves_nothing_that_watches_and_all_that_is_known(
    spark: SparkSession, tmp_path: Path
) -> None:
    """No listener, no thread, no event; afterwards the query that ran all the while is heard."""
    observing = RuntimeFeeds(ShardClient.open(str(tmp_path / "shards")), SystemClock())
    # That of a test before this may still go on.
    wait_until("nobody registers", lambda: "introspection-register" not in watching(), PATIENCE_S)
    others, before = watching(), listeners(spark)
    name = "delays:u1:1"

    def rows() -> list[dict[str, object]]:
        return observing.relations.rows("scheduling_elapsed")

    def events() -> object:
        return observing.relations.rows("listener")[0]["events"]

    def heard() -> bool:
        return bool(rows()) and "introspection-register" not in watching()

    observing.put(World().installed(DELAYS))
    observing.attach(spark)
    observing.start(threading.Event(), lambda: None)
    query = start(spark, name, tmp_path)
    try:
        wait_until("it is heard, and SQL knows it", heard, PATIENCE_S)
        assert listeners(spark) == before + 1
        observing.pause()
        assert (listeners(spark), watching()) == (before, others)
        known, told = rows(), events()
        observing.put(World().installed(FLIGHTS))
        batch = batch_of(query)
        wait_until("it runs on", lambda: batch_of(query) > batch + 1, PATIENCE_S)
        assert known
        assert (rows(), events()) == (known, told)
        observing.watch()
        observing.watch()
        assert listeners(spark) == before + 1
        wait_until("it is heard again", lambda: rows() != known, PATIENCE_S)
    finally:
        query.stop()
        observing.stop()
    assert listeners(spark) == before
    assert watching() < others


def test_an_inbox_that_raises_does_not_hurt_a_query(spark: SparkSession, tmp_path: Path) -> None:
    """Starts succeed, micro-batches go on, and other listeners hear of them."""

    class Broken(Inbox):
        @override
        def put(self, event: Event) -> None:
            raise RuntimeError("no room in here")

    broken, watch = Broken(SystemClock()), Watch()
    listeners = [QueryListener(broken), QueryListener(watch)]
    for listener in listeners:
        spark.streams.addListener(listener)
    try:
        query = start(spark, "x", tmp_path)
        watch.wait(lambda events: sum(isinstance(event, QueryProgress) for event in events) >= 3)
        assert query.isActive
        query.stop()
    finally:
        for listener in listeners:
            spark.streams.removeListener(listener)
    assert broken.unconverted >= 4


def test_a_full_inbox_does_not_hold_a_query_up(spark: SparkSession, tmp_path: Path) -> None:
    """Nobody takes anything out: progress is dropped and counted, the start is kept."""
    full = Watch(capacity=1)
    listener = QueryListener(full)
    spark.streams.addListener(listener)
    try:
        query = start(spark, "y", tmp_path)
        full.wait(lambda events: sum(isinstance(event, QueryProgress) for event in events) >= 3)
        assert query.isActive
        query.stop()
    finally:
        spark.streams.removeListener(listener)
    assert full.dropped >= 2
    assert any(isinstance(event, QueryStarted) for _, event in full.drain())


def test_our_log_is_read_like_sparks(spark: SparkSession, tmp_path: Path) -> None:
    """Under the schema of Spark's own structured log, exceptions and all."""
    handler = add_log_file(tmp_path / "log.jsonl", "INFO")
    logger = logging.getLogger("shardline.app.introspection")
    try:
        logger.info("landed", extra={"context": {"day": "2013-01-05", "rows": 3}})
        try:
            int("two\nlines")
        except ValueError:
            logger.exception("it failed")
    finally:
        ours = logging.getLogger("shardline")
        ours.removeHandler(handler)
        ours.propagate = True
        ours.setLevel(logging.NOTSET)
        handler.close()
    read = spark.read.schema(SPARK_LOG_SCHEMA).json(str(tmp_path / "log.jsonl"))
    landed, failed = sorted(read.collect(), key=lambda row: str(row["level"]), reverse=True)
    assert (landed["level"], landed["logger"], landed["msg"]) == (
        "INFO",
        "shardline.app.introspection",
        "landed",
    )
    assert landed["context"] == {"day": "2013-01-05", "rows": "3"}
    assert landed["ts"] is not None
    exception = failed["exception"]
    assert exception["class"] == "ValueError"
    assert "two\\nlines" in exception["msg"]
    (frame,) = exception["stacktrace"]
    assert frame["method"] == "test_our_log_is_read_like_sparks"
    assert frame["line"].isdigit()


@pytest.fixture(scope="module")
def world(spark: SparkSession) -> Iterator[World]:
    """A world whose relations are tables of the session."""
    made = World()
    with LiveTables(made.relations) as live:
        live.register(spark)
        yield made
        spark.sql(f"DROP DATABASE {DATABASE} CASCADE")


def test_a_relation_is_a_table_with_live_rows(spark: SparkSession, world: World) -> None:
    """Each statement sees what is known when it is planned; what is dropped is gone."""
    assert spark.sql("SELECT * FROM introspection.frontiers").collect() == []
    world.run(DELAYS)
    world.tell(Polled(id="delays", since=0, upper=7))
    query = "SELECT object_id, write_frontier FROM introspection.frontiers"
    assert [tuple(row) for row in spark.sql(query).collect()] == [("delays", 7)]
    world.tell(Polled(id="delays", since=0, upper=9))
    assert [tuple(row) for row in spark.sql(query).collect()] == [("delays", 9)]
    world.tell(Dropped(id="delays", at_ms=0))
    assert spark.sql(query).collect() == []


def test_relations_can_be_joined_and_filtered_in_sql(spark: SparkSession, world: World) -> None:
    """They are tables like others: which operators does the view's dataflow have?"""
    world.run(DELAYS)
    rows = spark.sql("""
        SELECT o.name FROM introspection.dataflow_operators o
        JOIN introspection.lir_mapping l ON o.id >= l.operator_id_start AND o.id < l.operator_id_end
        JOIN introspection.objects b USING (global_id)
        WHERE b.id = 'delays' ORDER BY o.id
    """).collect()
    names = [row["name"] for row in rows]
    assert names == ["Source", "Aggregate", "Project", "Correction", "Persist"]
    world.tell(Dropped(id="delays", at_ms=0))


def test_another_current_catalog_is_left_alone(spark: SparkSession, world: World) -> None:
    """The tables are in Spark's own catalog; one that is current is not so much as loaded.

    Another session knows data sources of the same names.
    """
    session = spark.newSession()
    session.conf.set("spark.sql.catalog.other", "no.such.Catalog")
    session.conf.set("spark.sql.defaultCatalog", "other")
    with LiveTables(world.relations) as live:
        live.register(session)
        assert session.table(f"spark_catalog.{DATABASE}.frontiers").collect() == []


def test_every_relation_is_there_with_its_types_and_meanings(
    spark: SparkSession, world: World
) -> None:
    """The declared columns are the table's, comments included, and rows pass unchanged."""
    world.run(FLIGHTS)
    listed = {row["tableName"] for row in spark.sql(f"SHOW TABLES IN {DATABASE}").collect()}
    assert listed == set(world.relations.declared)
    for name, relation in world.relations.declared.items():
        frame = spark.table(f"{DATABASE}.{name}")
        comments = [(f.name, f.metadata.get("comment")) for f in frame.schema.fields]
        assert comments == [(c.name, c.comment) for c in relation.columns], name
    for name in ("objects", "dataflow_addresses"):
        table = spark.table(f"{DATABASE}.{name}").toArrow()
        assert table.to_pylist() == world.relations.relation(name).to_pylist()
    (made,) = spark.sql("SELECT created_at FROM introspection.objects").toArrow().to_pylist()
    assert made["created_at"] == datetime.fromtimestamp(world.clock.now_ms() / 1000, UTC)
    world.tell(Dropped(id="flights", at_ms=0))
    assert isinstance(world.relations.relation("objects"), pa.Table)

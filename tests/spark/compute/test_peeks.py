"""Peeks over real Spark: equal to a batch oracle in every way that they may be answered."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest
import sqlglot
from sqlglot import exp

from shardline.app.compute.index.arrangement import Arrangement
from shardline.app.compute.index.index import Index, IndexRegistry, IndexSettings, run_index
from shardline.app.compute.peek.answer import PeekSettings
from shardline.app.compute.peek.explain import explain_peek
from shardline.app.compute.peek.peek import PeekServer
from shardline.app.compute.results import from_ipc
from shardline.app.execution.observations import Failed, Hydrated
from shardline.app.protocol.compute import Peek, PeekResponse
from shardline.app.protocol.objects import IndexDescription
from shardline.app.spark_session import open_session
from shardline.datasource.errors import unknown_name
from shardline.datasource.frontier import Frontier
from shardline.datasource.types.schema import ShardSchema
from support.fakes.reads import Inputs, Place, Row, contents, incarnation, model_at, updates_of
from support.profiles import one_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

FLIGHTS = pa.schema(
    [
        ("carrier", pa.string()),
        ("number", pa.int64()),
        ("delay", pa.float64()),
        ("at", pa.timestamp("us", tz="UTC")),
    ]
)
CARRIERS = pa.schema([("carrier", pa.string()), ("name", pa.string())])

FLOWN: list[tuple[Row, int, int]] = [
    (("AA", 1, 1.5, 1_000_000), 5, 1),
    (("AA", 2, None, None), 5, 2),
    (("UA", 3, -0.0, 2_000_000), 6, 1),
    ((None, 4, float("nan"), 3_000_000), 6, 1),
    (("AA", 1, 1.5, 1_000_000), 8, -1),
    (("DL", 5, 0.0, 4_000_000), 9, 1),
]
NAMES: list[tuple[Row, int, int]] = [(("AA", "American"), 2, 1), (("UA", "United"), 7, 1)]
LIMIT = 1 << 20


def bind(query: str, views: Mapping[str, str]) -> str:
    """Views in the place of tables, known by their whole names."""
    tree = sqlglot.parse_one(query, read="spark")
    for table in tree.find_all(exp.Table):
        name = f"{table.db}.{table.name}" if table.db else table.name
        if name in views:
            table.set("db", None)
            table.set("alias", table.args.get("alias") or exp.TableAlias(this=table.this.copy()))
            table.set("this", exp.to_identifier(views[name]))
    return tree.sql(dialect="spark")


def relations(name: str, as_of: int | None) -> pa.Table:
    if name != "objects" or as_of is not None:
        raise unknown_name("relation", name, ["objects"])
    return pa.table({"name": ["flights", "carriers"], "kind": ["source", "source"]})


class Desk:
    """A place with two objects, and peeks over it."""

    def __init__(self, location: str, spark: SparkSession, **chosen: Any) -> None:
        self.place = Place(location, spark)
        self.place.put("flights", FLOWN, 10, FLIGHTS)
        self.place.put("carriers", NAMES, 10, CARRIERS)
        self.indexes = IndexRegistry()
        self.peeks = PeekServer(
            self.place.host,
            Inputs(flights=("raw",)),
            relations,
            bind,
            indexes=self.indexes,
            settings=PeekSettings(poll_ms=2, **chosen),
        )

    def start(self, query: str, as_of: int, *inputs: str, limit: int = LIMIT) -> str:
        uuid = self.place.host.ids.token().hex()
        peek = Peek(uuid=uuid, query=query, inputs=inputs, as_of=as_of, limit_bytes=limit)
        self.peeks.start(peek)
        return uuid

    def ask(self, query: str, as_of: int, *inputs: str, limit: int = LIMIT) -> PeekResponse:
        """The response to a query."""
        uuid = self.start(query, as_of, *inputs, limit=limit)
        found = self.place.next(PeekResponse)
        assert found.uuid == uuid
        return found

    def rows(self, query: str, as_of: int, *inputs: str) -> pa.Table:
        found = self.ask(query, as_of, *inputs)
        assert found.error == ""
        assert found.rows is not None
        return from_ipc(found.rows)

    def strategies(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for one in self.peeks.durations():
            total[one.strategy] += one.count
        return total


@pytest.fixture
def desk(location: str, spark: SparkSession) -> Iterator[Desk]:
    found = Desk(location, spark)
    yield found
    found.peeks.stop()


def plain(table: pa.Table) -> Counter[str]:
    """Rows as text: NaN is NaN, and -0.0 is not 0.0."""
    return Counter(map(repr, zip(*(c.to_pylist() for c in table.columns), strict=True)))


def oracle(spark: SparkSession, query: str, as_of: int) -> pa.Table:
    """What Spark gives over plain local rows."""
    for name, rows, schema in (("flights", FLOWN, FLIGHTS), ("carriers", NAMES, CARRIERS)):
        there: Counter[int] = Counter()
        for index, (row, time, diff) in enumerate(rows):
            same = next(i for i, (other, _, _) in enumerate(rows) if repr(other) == repr(row))
            there[same] += diff if time <= as_of else 0
            assert same <= index
        expanded = [(rows[i][0], 0, 1) for i, count in there.items() for _ in range(count)]
        table = updates_of(expanded, schema).drop_columns(["_ts", "_diff"])
        spark.createDataFrame(table).createOrReplaceTempView(name)
    try:
        return spark.sql(query).toArrow()
    finally:
        for name in ("flights", "carriers"):
            spark.catalog.dropTempView(name)


def explained(desk: Desk, query: str, index: IndexDescription | None) -> str:
    """The strategy that `EXPLAIN` says."""
    indexes = () if index is None else (index,)
    client = desk.place.client
    found = explain_peek(
        client, query, ("flights",), 9, indexes=indexes, zone="UTC", shard_bytes=8 << 20
    )
    return found.strategy


SIMPLE = [
    "SELECT * FROM flights",
    "SELECT number, carrier c FROM flights WHERE carrier = 'AA'",
    "SELECT f.number FROM flights AS f WHERE f.carrier = 'AA' AND f.number = 2",
    "SELECT number FROM flights WHERE carrier IN ('UA', 'DL')",
    "SELECT number, delay, at FROM flights WHERE carrier IS NULL",
    "SELECT number FROM flights WHERE delay = 0.0D",
    "SELECT number FROM flights WHERE isnan(delay) OR at > timestamp '1970-01-01 00:00:03'",
    "SELECT number, number AS n FROM flights WHERE NOT (carrier <=> 'AA')",
    "SELECT number FROM flights WHERE carrier = 'XX'",
    "SELECT number FROM flights WHERE carrier = null",
    "SELECT number FROM flights WHERE number = 1.5 AND carrier = 'AA'",
    "SELECT number FROM flights WHERE carrier NOT LIKE 'A%'",
]
OTHER = [
    "SELECT carrier, count(*) n, max(number) m FROM flights GROUP BY carrier",
    "SELECT NUMBER FROM flights WHERE number + 1 = 3",
    "SELECT DISTINCT carrier FROM flights",
    "SELECT number FROM flights ORDER BY number DESC LIMIT 2",
    "WITH flights2 AS (SELECT * FROM flights) SELECT number FROM flights2",
    "SELECT number FROM flights WHERE carrier = 'it''s' OR number = 1",
]


@pytest.mark.parametrize("indexed", one_of(2, ["", "carrier", "number carrier"]))
def test_simple_queries_are_answered_as_spark_answers_them(
    desk: Desk, spark: SparkSession, indexed: str
) -> None:
    """Without a Spark job: the same rows, under the same schema, from an index and from a shard."""
    running = None
    on = IndexDescription(name="i", on="flights", key=tuple(indexed.split()))
    if indexed:
        running = run_index(
            desk.place.host, incarnation("i", 5), on, desk.indexes, IndexSettings(poll_ms=2)
        )
        desk.place.next(Hydrated)
    for query in SIMPLE:
        for as_of in (5, 9):
            found, wanted = desk.rows(query, as_of, "flights"), oracle(spark, query, as_of)
            assert plain(found) == plain(wanted), (query, as_of)
            # What Spark knows of its own local rows' nullability is not the object's.
            assert found.schema.names == wanted.schema.names
            assert found.schema.types == wanted.schema.types, query
        assert explained(desk, query, on if indexed else None) == ("index" if indexed else "shard")
    assert set(desk.strategies()) == {"index" if indexed else "shard"}
    if running is not None:
        running.stop()


def test_a_fast_answer_has_the_schema_of_a_slow_one(location: str, spark: SparkSession) -> None:
    """Types and nullability of a query do not depend on how it is answered."""
    fast, slow = Desk(location, spark), Desk(location + "2", spark, shard_bytes=-1)
    for query in SIMPLE:
        one, other = fast.rows(query, 9, "flights"), slow.rows(query, 9, "flights")
        assert one.schema == other.schema
        assert plain(one) == plain(other)
    assert set(slow.strategies()) == {"standard"}
    for desk in (fast, slow):
        desk.peeks.stop()


def test_other_queries_are_answered_by_spark(desk: Desk, spark: SparkSession) -> None:
    """Whatever is not certainly simple is Spark's."""
    for query in OTHER:
        assert plain(desk.rows(query, 9, "flights")) == plain(oracle(spark, query, 9)), query
        assert explained(desk, query, None) == "standard"
    assert set(desk.strategies()) == {"standard"}


@pytest.mark.parametrize("indexed", [False, True])
def test_stars_are_the_columns_of_the_object(
    desk: Desk, spark: SparkSession, indexed: bool
) -> None:
    """No expression over all columns sees a time or a diff, of a shard or of an index."""
    running = None
    if indexed:
        on = IndexDescription(name="i", on="flights", key=("carrier",))
        running = run_index(
            desk.place.host, incarnation("i", 5), on, desk.indexes, IndexSettings(poll_ms=2)
        )
        desk.place.next(Hydrated)
    for query in (
        "SELECT xxhash64(*) AS h, to_json(struct(*)) AS j FROM flights",
        "SELECT number, typeof(struct(f.*)) AS t FROM flights f WHERE pmod(hash(f.*), 2) = 0",
    ):
        assert plain(desk.rows(query, 9, "flights")) == plain(oracle(spark, query, 9)), query
    assert set(desk.strategies()) == {"standard"}
    if running is not None:
        running.stop()


def test_a_query_over_objects_and_relations_sees_one_time(desk: Desk) -> None:
    """Joins of several objects at one time equal DuckDB; `introspection` joins in."""
    query = (
        "SELECT c.name, count(*) AS n FROM flights f JOIN carriers c ON f.carrier = c.carrier "
        "GROUP BY c.name"
    )
    for as_of in (5, 7, 9):
        flights = list(model_at(FLOWN, as_of).elements())
        names = list(model_at(NAMES, as_of).elements())
        duck = duckdb.connect()
        duck.execute("CREATE TABLE flights (carrier TEXT, number BIGINT)")
        duck.execute("CREATE TABLE carriers (carrier TEXT, name TEXT)")
        duck.executemany("INSERT INTO flights VALUES (?, ?)", [row[:2] for row in flights])
        duck.executemany("INSERT INTO carriers VALUES (?, ?)", names)
        wanted = Counter(duck.execute(query).fetchall())
        assert contents(desk.rows(query, as_of, "flights", "carriers")) == wanted
    joined = (
        "SELECT o.kind, count(*) FROM introspection.objects o CROSS JOIN carriers GROUP BY o.kind"
    )
    assert contents(desk.rows(joined, 9, "carriers", "introspection.objects")) == Counter(
        {("source", 4): 1}
    )
    only = desk.rows(
        "SELECT name FROM introspection.objects WHERE name = 'flights'", 0, "introspection.objects"
    )
    assert contents(only) == Counter({("flights",): 1})


def test_a_query_without_objects_is_a_constant(desk: Desk) -> None:
    """It needs no shard and no time."""
    assert contents(desk.rows("SELECT 1 + 1 AS two", 0)) == Counter({(2,): 1})
    assert set(desk.strategies()) == {"constant"}


def test_errors_of_spark_are_sentences(desk: Desk, spark: SparkSession) -> None:
    """A wrong query, a failing one and an unknown relation: a code, a sentence, no stack."""
    wrong = desk.ask("SELECT nmber FROM flights", 9, "flights")
    assert wrong.error.startswith("[UNRESOLVED_COLUMN")
    assert "number" in wrong.error
    zero = desk.ask("SELECT number / (number - number) FROM flights", 9, "flights")
    assert zero.error.startswith("[DIVIDE_BY_ZERO]")
    unknown = desk.ask("SELECT * FROM introspection.objcts", 0, "introspection.objcts")
    assert "did you mean 'objects'" in unknown.error
    assert not any("\n" in one.error for one in (wrong, zero, unknown))
    assert {one.kind for one in (wrong, zero, unknown)} == {"invalid_usage"}
    assert not [t.name for t in spark.catalog.listTables() if t.name.startswith("peek_")]


ELSEWHERE = [
    "SELECT * FROM IDENTIFIER('text.`{path}`')",
    "SELECT * FROM IDENTIFIER('te' || 'xt.`{path}`')",
    "SELECT (SELECT max(value) FROM IDENTIFIER('text.`{path}`')) AS a FROM carriers",
    "WITH c AS (SELECT * FROM IDENTIFIER('text.`{path}`')) SELECT * FROM c, carriers",
    "WITH `text, {path}` AS (SELECT 1) SELECT * FROM IDENTIFIER('text.`{path}`')",
    "SELECT * FROM IDENTIFIER('spark_catalog.default.elsewhere')",
    "SELECT * FROM carriers, LATERAL (SELECT * FROM IDENTIFIER('elsewhere'))",
    (
        "SELECT x.* FROM IDENTIFIER('elsewhere') x, "
        "(WITH elsewhere AS (SELECT 1) SELECT * FROM elsewhere) y"
    ),
    (
        "SELECT count(*) OVER w AS n FROM carriers WINDOW w AS "
        "(ORDER BY CAST((SELECT max(value) FROM IDENTIFIER('text.`{path}`')) AS INT))"
    ),
]


@pytest.mark.parametrize("query", one_of(3, ELSEWHERE))
def test_a_query_reads_its_objects_and_nothing_else(
    desk: Desk, spark: SparkSession, tmp_path: Path, query: str
) -> None:
    """Neither files nor tables of a catalog, however their names are made."""
    (tmp_path / "secret").write_text("hunter2\n")
    spark.sql("CREATE TABLE elsewhere USING parquet AS SELECT 'hunter2' AS value")
    try:
        names = ("carriers",) if "FROM carriers" in query or ", carriers" in query else ()
        asked = desk.ask(query.format(path=tmp_path / "secret"), 9, *names)
    finally:
        spark.sql("DROP TABLE elsewhere")
    assert asked.rows is None
    assert "UNKNOWN_OBJECT" in asked.error
    own = "WITH `C` AS (SELECT carrier FROM carriers) SELECT count(*), max(c.carrier) FROM c"
    assert contents(desk.rows(own, 9, "carriers")) == Counter({(2, "UA"): 1})


def test_a_text_of_sql_means_what_it_says(desk: Desk, spark: SparkSession) -> None:
    """A session of ours puts nothing of its settings or surroundings into it."""
    assert open_session("tests") is spark
    text = "${env:HOME} ${system:user.name} ${spark.app.name}"
    assert contents(desk.rows(f"SELECT '{text}' AS a", 9)) == Counter({(text,): 1})


def test_a_query_that_leaves_sql_is_refused_before_it_runs(desk: Desk, spark: SparkSession) -> None:
    """What differs by row may be asked for: it is no view's to have, but a query is run once."""
    error = desk.ask(
        "SELECT reflect('java.lang.System', 'setProperty', 'shardline.peeked', 'yes') AS x "
        "FROM flights",
        9,
        "flights",
    ).error
    assert error.startswith("[FUNCTION_REFUSED] reflect() runs a method of Java")
    jvm = spark._jvm
    assert jvm is not None
    assert jvm.java.lang.System.getProperty("shardline.peeked") is None
    assert desk.rows("SELECT number FROM flights WHERE rand() < 2", 9, "flights").num_rows == 5


def test_a_result_beyond_its_limit_is_refused(desk: Desk) -> None:
    """The jobs end early, and the error says what to do."""
    query = "SELECT id, repeat('x', 100) s FROM range(2000000)"
    for ask in (query, query + " ORDER BY id % 1000 LIMIT 5000"):
        error = desk.ask(ask, 0, limit=100_000).error
        assert error.startswith("[RESULT_TOO_LARGE] the result is larger than its limit of 100,000")
        assert "LIMIT" in error
    assert desk.ask("SELECT * FROM flights", 9, "flights", limit=10).error.startswith("[RESULT_TOO")


def _sent_bytes(spark: SparkSession, uuid: str) -> int:
    """What the tasks of a query have sent to the driver, as Spark's status store has it."""
    context: Any = spark.sparkContext
    tracker, store = context.statusTracker(), context._jsc.sc().statusStore()
    jobs = [
        tracker.getJobInfo(job)
        for n in range(8)
        for job in tracker.getJobIdsForGroup(f"peek-{uuid}-{n}")
    ]
    stages = [stage for job in jobs if job is not None for stage in job.stageIds]
    return sum(int(store.lastStageAttempt(stage).resultSize()) for stage in set(stages))


def test_rows_in_order_are_bounded_while_they_come(desk: Desk, spark: SparkSession) -> None:
    """A large result is refused before most of it is made; one that fits comes whole, in order."""
    limit = 1 << 20
    many = "SELECT id, repeat('x', 100) AS s FROM range(0, 400000, 1, 8) ORDER BY hash(id), id"
    for query in (many, "WITH a AS (SELECT 7) " + many):
        uuid = desk.start(query, 0, limit=limit)
        found = desk.place.next(PeekResponse)
        assert found.error.startswith("[RESULT_TOO_LARGE]"), found.error
        assert 0 < _sent_bytes(spark, uuid) < 20 * limit, "all of it are more than 40"
    three = desk.start("SELECT id FROM range(0, 1000000, 1, 8) ORDER BY id DESC LIMIT 3", 0)
    found = desk.place.next(PeekResponse)
    assert from_ipc(found.rows or b"").column("id").to_pylist() == [999999, 999998, 999997]
    assert _sent_bytes(spark, three) < 100_000, "no more than the first three of each task"
    query = (
        "SELECT id, cast(id AS DECIMAL(20, 2)) d, array(id) a, timestamp_micros(id) t, '' AS s, "
        "named_struct('x', id) n, NULL AS v FROM range(0, 8000, 1, 8) ORDER BY id % 7, id"
    )
    table = desk.rows(query, 0)
    assert table.schema == spark.sql(query).toArrow().schema
    assert table == spark.sql(query).toArrow()
    assert desk.rows("SELECT id FROM range(0) ORDER BY id", 0).num_rows == 0
    failing = desk.ask("SELECT 1 / (id - 5) AS x FROM range(10) ORDER BY id", 0).error
    assert failing.startswith("[DIVIDE_BY_ZERO]")


def test_a_cancelled_query_ends_its_jobs(desk: Desk, spark: SparkSession) -> None:
    """A query that would run for ever is gone; the others never notice."""
    query = "SELECT count(*) FROM range(1000000000000) a WHERE a.id % 7 = 3 AND hash(a.id) = 5"
    uuid = desk.start(query, 0)
    tracker = spark.sparkContext.statusTracker()
    waited = threading.Event()
    while not tracker.getJobIdsForGroup(f"peek-{uuid}-0"):
        waited.wait(0.01)
    (active,) = desk.peeks.active()
    assert (active.uuid, active.strategy) == (uuid, "constant")
    desk.peeks.cancel(uuid)
    assert desk.place.next(PeekResponse) == PeekResponse(uuid=uuid, cancelled=True)
    assert contents(desk.rows("SELECT 3", 0)) == Counter({(3,): 1})
    assert desk.peeks.active() == []


def test_look_ups_run_no_spark_job(desk: Desk, spark: SparkSession) -> None:
    """Neither in an index nor in a shard, while a query that is Spark's runs some."""
    tracker = spark.sparkContext.statusTracker()

    def jobs(number: int, uuid: str) -> list[int]:
        """Jobs of the peek that came as this one, and all that belong to nothing."""
        groups = (f"peek-{uuid}-{number}", None)
        return sorted(job for group in groups for job in tracker.getJobIdsForGroup(group))

    def asked(number: int, query: str) -> list[int]:
        before = jobs(number, "")
        uuid = desk.start(query, 9, "flights")
        assert desk.place.next(PeekResponse).error == ""
        return sorted(set(jobs(number, uuid)) - set(before))

    look_up = "SELECT number FROM flights WHERE carrier = 'AA'"
    assert asked(0, look_up) == []
    on = IndexDescription(name="i", on="flights", key=("carrier",))
    chosen = IndexSettings(poll_ms=2)
    running = run_index(desk.place.host, incarnation("i", 9), on, desk.indexes, chosen)
    desk.place.next(Hydrated)
    assert asked(1, look_up) == []
    assert desk.strategies() == {"shard": 1, "index": 1}
    assert asked(2, "SELECT count(*) FROM flights") != []
    running.stop()


def test_objects_that_are_being_written_are_read_at_one_time(desk: Desk) -> None:
    """A row comes to both at each time, to one after the other: each query sees as many of both."""
    first, last = 10, 30
    before = (sum(model_at(FLOWN, 9).values()), sum(model_at(NAMES, 9).values()))

    def write() -> None:
        for time in range(first, last):
            desk.place.put("flights", [(("XX", time, None, None), time, 1)], time + 1, FLIGHTS)
            desk.place.put("carriers", [((f"c{time}", "x"), time, 1)], time + 1, CARRIERS)

    writer = threading.Thread(target=write)
    writer.start()
    query = "SELECT (SELECT count(*) FROM flights) f, (SELECT count(*) FROM carriers) c"
    for as_of in (9, 11, 17, 28):
        new = as_of - first + 1
        wanted = Counter({(before[0] + new, before[1] + new): 1})
        assert contents(desk.rows(query, as_of, "flights", "carriers")) == wanted
    writer.join()


def test_queries_are_answered_side_by_side(desk: Desk) -> None:
    """Many at once: each has one response, and its own rows."""
    query = "SELECT 0 + count(*) FROM flights"
    uuids = [desk.start(query.replace("0", str(n)), 9, "flights") for n in range(6)]
    found = {one.uuid: one for one in (desk.place.next(PeekResponse) for _ in uuids)}
    total = sum(model_at(FLOWN, 9).values())
    for n, uuid in enumerate(uuids):
        assert found[uuid].error == ""
        assert contents(from_ipc(found[uuid].rows or b"")) == Counter({(n + total,): 1})


def test_an_index_serves_scans_by_a_cached_frame(desk: Desk) -> None:
    """Spark's queries over an indexed object read the cache, with what was added since beside it.

    Contents are exact at each time, also after retractions, when a new frame is needed.
    """
    on = IndexDescription(name="i", on="carriers", key=("carrier",))
    chosen = IndexSettings(poll_ms=2, frame_every_ms=0)
    rows = [((f"c{i}", f"name {i}"), 11, 1) for i in range(20)]
    desk.place.put("carriers", rows, 20, CARRIERS)
    running = run_index(desk.place.host, incarnation("i", 9), on, desk.indexes, chosen)
    desk.place.next(Hydrated)
    query = "SELECT count(*), max(name) FROM carriers"
    for as_of in (10, 11, 15):
        wanted = Counter({(2, "United"): 1} if as_of < 11 else {(22, "name 9"): 1})
        assert contents(desk.rows(query, as_of, "carriers")) == wanted
    assert not [one for one in desk.place.seen if isinstance(one, Failed)]
    (index,) = desk.indexes.of(desk.place.client.location.url, "carriers")
    base = index.frame(15)
    assert base is not None
    assert index.frame(19) is base
    assert base.storageLevel.useMemory
    # As a view hands them on: what was changed in columns that it does not read cancels.
    cancelled = [(("c1", "name 1"), 25, -1), (("c1", "name 1"), 25, 1)]
    desk.place.put("carriers", [*cancelled, (("zz", "zz"), 25, 1)], 30, CARRIERS)
    asked = desk.rows(query, 26, "carriers")
    assert contents(asked) == Counter({(23, "zz"): 1})
    while not index.is_readable(29):
        threading.Event().wait(0.01)
    added = index.frame(26)
    assert added is not None
    assert added is not base
    assert added.count() == 23
    desk.place.put("carriers", [(("zz", "zz"), 35, -1)], 40, CARRIERS)
    while not index.is_readable(39):
        threading.Event().wait(0.01)
    after = index.frame(36)
    assert after is not None
    assert after.count() == 22
    assert contents(desk.rows(query, 30, "carriers")) == Counter({(23, "zz"): 1})
    assert contents(desk.rows(query, 36, "carriers")) == Counter({(22, "name 9"): 1})
    running.stop()
    # A reader that has found it before: nobody would give up what it makes now.
    assert index.frame(36) is None


def test_a_cached_frame_of_former_columns_is_not_read(desk: Desk) -> None:
    """Until its index looks again, which then ends, queries read the shard."""
    on = IndexDescription(name="i", on="carriers", key=("carrier",))
    arranged = Arrangement(ShardSchema.from_arrow(CARRIERS), on.key, 9)
    arranged.append(updates_of([(row, 9, diff) for row, _, diff in NAMES], CARRIERS), Frontier(10))
    shard = desk.place.client.state("carriers").shard
    index = Index(desk.place.host, on, shard, arranged, IndexSettings())
    desk.indexes.add(desk.place.client.location.url, index)
    assert index.frame(9) is not None
    wider = ShardSchema.from_arrow(CARRIERS.append(pa.field("since", pa.int32())))
    desk.place.client.evolve("carriers", wider)
    found = desk.rows("SELECT * FROM carriers ORDER BY name", 9, "carriers")
    assert found.column_names == ["carrier", "name", "since"]
    index.close()


def test_rows_that_spark_cannot_sum_are_added_by_a_new_cached_frame(desk: Desk) -> None:
    """Maps have no order in Spark: what cancels among them is not known before they are read."""
    schema = pa.schema([("k", pa.int64()), ("m", pa.map_(pa.string(), pa.int64()))])
    rows: list[tuple[tuple[object, ...], int, int]] = [((i, [("a", i)]), 11, 1) for i in range(20)]
    desk.place.put("maps", rows, 20, schema)
    on = IndexDescription(name="i", on="maps", key=("k",))
    chosen = IndexSettings(poll_ms=2, frame_every_ms=0)
    running = run_index(desk.place.host, incarnation("i", 11), on, desk.indexes, chosen)
    desk.place.next(Hydrated)
    (index,) = desk.indexes.of(desk.place.client.location.url, "maps")
    base = index.frame(15)
    assert base is not None
    one: tuple[object, ...] = (1, [("a", 1)])
    later = [(one, 25, -1), (one, 25, 1), ((20, [("a", 20)]), 25, 1)]
    desk.place.put("maps", later, 30, schema)
    while not index.is_readable(29):
        threading.Event().wait(0.01)
    added = index.frame(26)
    assert added is not None
    assert (base.count(), added.count()) == (20, 21)
    running.stop()


def test_rows_with_nan_are_found_in_a_cached_frame(desk: Desk) -> None:
    """Spark leaves cached rows out by bounds that do not count NaN, which is above all numbers."""
    schema = pa.schema([("k", pa.int64()), ("x", pa.float64()), ("f", pa.float32())])
    rows: list[tuple[tuple[object, ...], int, int]] = [
        ((i, float(i), float(i)), 11, 1) for i in range(10)
    ]
    rows += [((10 + i, math.nan, math.nan), 11, 1) for i in range(8)]
    rows += [((18, None, None), 11, 1), ((19, -0.0, -0.0), 11, 1)]
    desk.place.put("numbers", rows, 20, schema)
    on = IndexDescription(name="i", on="numbers", key=("k",))
    running = run_index(
        desk.place.host, incarnation("i", 11), on, desk.indexes, IndexSettings(poll_ms=2)
    )
    desk.place.next(Hydrated)
    (index,) = desk.indexes.of(desk.place.client.location.url, "numbers")
    frame = index.frame(15)
    assert frame is not None
    assert frame.schema.simpleString() == "struct<k:bigint,x:double,f:float>"
    for where, wanted in [
        ("x = double('NaN')", 8),
        ("f = double('NaN') AND k IN (11, 12, 3)", 2),
        ("f > 100", 8),
        ("x >= double('NaN')", 8),
        ("NOT (x <= 100)", 8),
        ("x IN (double('NaN'), 3D)", 9),
        ("f <=> float('NaN')", 8),
        ("x BETWEEN 100 AND double('NaN')", 8),
        ("x = 0", 2),
        ("x IS NULL", 1),
    ]:
        query = f"SELECT count(*) FROM numbers WHERE {where}"  # noqa: S608 - above
        assert contents(desk.rows(query, 15, "numbers")) == Counter({(wanted,): 1}), where
    assert index.frame(15) is frame, "all were answered from it"
    assert set(desk.strategies()) == {"standard"}
    running.stop()

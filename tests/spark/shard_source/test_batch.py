"""`format("shard")` in batch: contents, change feeds, save modes, schemas, and refusals."""

from __future__ import annotations

import datetime as dt
import json
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from chispa import assert_df_equality

from shardline import datasource
from shardline.datasource.client import ShardClient
from shardline.datasource.frontier import Frontier
from shardline.datasource.types.schema import ShardSchema
from support.profiles import some_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

    from shardline.datasource.spark_native.plan_rule import NativeReads

    Read = Callable[..., DataFrame]

pytestmark = pytest.mark.spark

COMPARED_ROWS = 1000


def rows(frame: DataFrame) -> Counter[Any]:
    return Counter(frame.collect())


def arrow_read(spark: SparkSession, location: str, shard: str, **options: object) -> DataFrame:
    reader = spark.read.format("shard")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load(f"{location}/{shard}")


def native(spark: SparkSession, location: str, shard: str, **options: object) -> DataFrame:
    others = {name: value for name, value in options.items() if name != "readChangeFeed"}
    feed = options.get("readChangeFeed") == "true"
    make = datasource.changes if feed else datasource.snapshot
    return make(spark, f"{location}/{shard}", options=others if feed else options)


def native_read(spark: SparkSession, location: str, shard: str, **options: object) -> DataFrame:
    """A native read, compared with the other one as far as that is cheap."""
    frame = native(spark, location, shard, **options)
    expected = arrow_read(spark, location, shard, **options)
    assert frame.schema == expected.schema
    if expected.count() < COMPARED_ROWS:
        assert shown(frame) == shown(expected)
    return frame


def shown(frame: DataFrame) -> list[str]:
    """Rows as text, which tells -0.0 from 0.0 and shows NaN."""
    return sorted(map(repr, frame.collect()))


@pytest.fixture(params=["arrow", "native"])
def fetch(request: pytest.FixtureRequest) -> str:
    """Who decodes the parts."""
    return str(request.param)


@pytest.fixture(params=some_of(["arrow", "native"], {"native"}))
def read(request: pytest.FixtureRequest) -> Read:
    """In each run the native one, which compares itself with the other."""
    return {"arrow": arrow_read, "native": native_read}[request.param]


@pytest.fixture(params=some_of(["arrow", "native", "rule"], {"native"}))
def read_rows(request: pytest.FixtureRequest) -> Iterator[Read]:
    """As `read`, and plain reads that are planned natively; for tests that read some rows."""
    if request.param != "rule":
        yield {"arrow": arrow_read, "native": native_read}[request.param]
        return
    rule: NativeReads = request.getfixturevalue("native_reads")
    yield arrow_read
    assert rule.counts().keys() == {"native"}


def write(
    frame: DataFrame, location: str, shard: str, mode: str = "append", **options: object
) -> None:
    writer = frame.write.format("shard").mode(mode)
    for name, value in options.items():
        writer = writer.option(name, str(value))
    writer.save(f"{location}/{shard}")


def people(spark: SparkSession, *data: tuple[int, str | None]) -> DataFrame:
    return spark.createDataFrame(list(data), "id bigint, name string")


def test_what_is_written_is_read(spark: SparkSession, location: str, read_rows: Read) -> None:
    """A frame comes back as it was, rows and schema."""
    frame = people(spark, (1, "a"), (2, None), (2, None), (3, ""))
    write(frame, location, "people")

    assert_df_equality(read_rows(spark, location, "people"), frame, ignore_row_order=True)


def test_every_type_survives(spark: SparkSession, location: str, read_rows: Read) -> None:
    """Every type that Arrow carries comes back with the same schema and the same values."""
    frame = spark.sql(
        """select true b, 1Y i8, 2S i16, 3 i32, 4L i64, float(1.5) f, double('NaN') d,
        cast(-0.0 as double) z, cast('123.45' as decimal(20, 2)) dec, 'ü' s, '' e,
        cast(null as string) n, X'00ff' bin, date'2020-02-29' day,
        timestamp'2020-02-29 12:00:00.123456' ts, timestamp_ntz'2020-02-29 12:00:00' ntz,
        interval '1 02:03:04.5' day to second dt, array(1, null) a, array() ea,
        map('k', array(1)) m, named_struct('x', 1, 'y', cast(null as string)) st,
        named_struct('inner', array(named_struct('z', 1.5BD))) deep, parse_json('{"a":[1,2]}') v
        """
    ).drop("ea")
    write(frame, location, "types")
    back = read_rows(spark, location, "types")

    # The optimizer knows that a literal is never null, the analyzer does not.
    assert [(f.name, f.dataType) for f in back.schema] == [
        (f.name, f.dataType) for f in frame.schema
    ]
    shown = {"v": "to_json(v) v", "bin": "hex(bin) bin"}
    as_text = [shown.get(name, name) for name in frame.columns]
    # repr tells -0.0 from 0.0 and shows NaN, which equality does not.
    assert repr(back.selectExpr(*as_text).collect()) == repr(frame.selectExpr(*as_text).collect())


def test_column_comments_and_nullability_survive(
    spark: SparkSession, location: str, read: Read
) -> None:
    """Metadata and nullability of a column are part of its schema."""
    frame = people(spark, (1, "a")).select("id", "name")
    from pyspark.sql.types import LongType, StructField, StructType

    schema = StructType([StructField("id", LongType(), nullable=False, metadata={"comment": "k"})])
    write(spark.createDataFrame(frame.select("id").rdd, schema), location, "people")

    assert read(spark, location, "people").schema.json() == schema.json()


def test_retractions_cancel(spark: SparkSession, location: str, read_rows: Read) -> None:
    """A row with a negative diff takes one copy of that row away."""
    write(people(spark, (1, "a"), (1, "a"), (2, None)), location, "people")
    gone = people(spark, (1, "a"), (2, None)).selectExpr("*", "-1L as _diff")
    write(gone, location, "people")

    assert rows(read_rows(spark, location, "people")) == Counter({(1, "a"): 1})


def test_time_travel(spark: SparkSession, location: str, read_rows: Read) -> None:
    """Contents at a time are those at that time, whatever came later."""
    write(people(spark, (1, "a")), location, "people")
    first = ShardClient.open(location).state("people").upper.time
    assert first is not None
    write(people(spark, (2, "b")), location, "people")

    assert rows(read_rows(spark, location, "people", timestampAsOf=first - 1)) == Counter(
        [(1, "a")]
    )
    assert rows(read_rows(spark, location, "people")) == Counter([(1, "a"), (2, "b")])


NOON = int(dt.datetime(2020, 1, 1, 12, tzinfo=dt.UTC).timestamp() * 1000)


@pytest.fixture
def old_people(location: str) -> ShardClient:
    """A shard `people` with one row of 2020: older than the shard itself."""
    client = ShardClient.open(location)
    table = pa.table({"id": pa.array([1], pa.int64())})
    client.create("people", ShardSchema.from_arrow(table.schema))
    handle = client.writer("people")
    handle.compare_and_append(
        table.append_column("_ts", pa.array([NOON], pa.int64())), Frontier(0), Frontier(NOON + 1)
    )
    handle.compare_and_append(None, Frontier(NOON + 1), Frontier(NOON + 10_000_000))
    return client


@pytest.mark.usefixtures("old_people")
def test_time_travel_by_date(spark: SparkSession, location: str, read_rows: Read) -> None:
    """A date-time counts in the time zone that is given, UTC without one."""
    at = {"timestampAsOf": "2020-01-01 12:00:00"}
    assert read_rows(spark, location, "people", **at).count() == 1
    assert read_rows(spark, location, "people", **at, timeZone="Atlantic/Azores").count() == 1


@pytest.mark.usefixtures("old_people")
@pytest.mark.parametrize(
    "at",
    [
        {"timestampAsOf": "2020-01-01 11:59:59.999"},
        {"timestampAsOf": "2020-01-01 12:00:00", "timeZone": "Asia/Tokyo"},
    ],
)
def test_a_date_before_the_shard_began_is_refused(
    spark: SparkSession, location: str, read: Read, at: dict[str, str]
) -> None:
    """It would have no row. A number is a time of the shard, and may be any."""
    began = r"\[BEFORE_FIRST_CHANGE\].*'people' began at 2020-01-01 12:00:00.000"
    with pytest.raises(Exception, match=began):
        read(spark, location, "people", **at).count()
    assert read(spark, location, "people", timestampAsOf="5").count() == 0


def test_a_date_at_which_the_shard_was_empty_is_read(
    spark: SparkSession, location: str, old_people: ShardClient, read_rows: Read
) -> None:
    """After it was made and before its first row, or when what it had at first is compacted."""
    schema = ShardSchema.from_arrow(pa.schema([("id", pa.int64())]))
    old_people.create("later", schema)
    made_ms = old_people.state("later").created_ms
    old_people.writer("later").compare_and_append(
        pa.table({"id": [1], "_ts": [made_ms + 10]}), Frontier(0), Frontier(made_ms + 11)
    )
    made = dt.datetime.fromtimestamp(made_ms / 1000, dt.UTC).isoformat()
    assert read_rows(spark, location, "later", timestampAsOf=made).count() == 0

    old_people.hold("people", "a-reader").downgrade(Frontier(NOON - 5))
    assert old_people.state("people").since == Frontier(NOON - 5)
    assert (
        read_rows(spark, location, "people", timestampAsOf="2020-01-01 11:59:59.999").count() == 0
    )


def test_change_feed(spark: SparkSession, location: str, read_rows: Read) -> None:
    """The change feed has every update with its time and diff."""
    write(people(spark, (1, "a"), (2, "b")), location, "people")
    write(people(spark, (2, "b"), (3, "c")), location, "people", mode="overwrite")
    feed = read_rows(spark, location, "people", readChangeFeed="true")

    assert feed.columns == ["id", "name", "_ts", "_diff"]
    changes = Counter((r.id, r.name, r._diff) for r in feed.collect())
    assert changes == Counter([(1, "a", 1), (2, "b", 1), (1, "a", -1), (3, "c", 1)])


def test_change_feed_of_an_interval(spark: SparkSession, location: str, read_rows: Read) -> None:
    """`startingTimestamp` is inclusive, `endingTimestamp` is not."""
    uppers = []
    for number in range(3):
        write(people(spark, (number, "x")), location, "people")
        uppers.append(ShardClient.open(location).state("people").upper.time)
    times = [upper - 1 for upper in uppers if upper is not None]
    feed = read_rows(
        spark,
        location,
        "people",
        readChangeFeed="true",
        startingTimestamp=times[1],
        endingTimestamp=times[2],
    )

    assert [(r.id, r._ts) for r in feed.collect()] == [(1, times[1])]


def test_columns_prune(spark: SparkSession, location: str, read_rows: Read) -> None:
    """Only the columns asked for are read, in the order asked for."""
    write(people(spark, (1, "a")), location, "people")
    frame = read_rows(spark, location, "people", columns="name,id")

    assert frame.columns == ["name", "id"]
    assert frame.collect() == [("a", 1)]
    assert read_rows(spark, location, "people", columns="name").collect() == [("a",)]


def test_projection_does_not_change_what_equal_rows_are(
    spark: SparkSession, location: str, read_rows: Read
) -> None:
    """Rows that differ only in a column that is not read stay two rows."""
    write(people(spark, (1, "a"), (1, "b")), location, "people")
    write(people(spark, (1, "b")).selectExpr("*", "-1L as _diff"), location, "people")

    assert read_rows(spark, location, "people", columns="id").collect() == [(1,)]


def test_overwrite_is_one_difference(spark: SparkSession, location: str, read: Read) -> None:
    """Overwriting changes only what differs, at one time; equal rows cost nothing."""
    write(people(spark, *((n, "x") for n in range(100))), location, "people", key="id")
    write(people(spark, *((n, "x") for n in range(1, 101))), location, "people", mode="overwrite")

    assert read(spark, location, "people").count() == 100
    last = ShardClient.open(location).state("people").trace.batches[-1]
    assert last.rows == 2


@pytest.mark.parametrize(
    ("mode", "expected"), [("ignore", [(1, "a")]), ("append", [(1, "a"), (2, "b")])]
)
def test_save_modes(
    spark: SparkSession, location: str, mode: str, expected: list[tuple[int, str]], read: Read
) -> None:
    """`saveMode` gives the modes that Spark does not let a Python source see."""
    write(people(spark, (1, "a")), location, "people", saveMode=mode)
    write(people(spark, (2, "b")), location, "people", saveMode=mode)

    assert rows(read(spark, location, "people")) == Counter(expected)


def test_errorifexists(spark: SparkSession, location: str, read: Read) -> None:
    """`saveMode=errorifexists` refuses a shard that is there, and leaves it alone."""
    write(people(spark, (1, "a")), location, "people", saveMode="errorifexists")

    with pytest.raises(Exception, match=r"\[SHARD_EXISTS\] shard 'people'"):
        write(people(spark, (2, "b")), location, "people", saveMode="errorifexists")
    assert read(spark, location, "people").count() == 1


def test_numbered_writes_happen_once(spark: SparkSession, location: str, read: Read) -> None:
    """A write with a `txnVersion` that has been committed does nothing."""
    for version in (1, 1, 2, 1):
        write(people(spark, (version, "x")), location, "people", txnAppId="etl", txnVersion=version)

    assert rows(read(spark, location, "people")) == Counter([(1, "x"), (2, "x")])


def test_a_write_that_was_there_leaves_no_parts(spark: SparkSession, location: str) -> None:
    """What a repeated write staged is deleted: every part on disk is referenced."""
    for _ in range(3):
        write(
            people(spark, *((n, "x" * 100) for n in range(1000))),
            location,
            "people",
            txnAppId="etl",
            txnVersion=1,
            inlinePartBytes=0,
        )
    state = ShardClient.open(location).state("people")
    known = {Path(p.key).name for b in state.trace.batches for p in b.parts}

    assert {p.name for p in Path(location).rglob("*.parquet")} == known


def test_merge_schema(spark: SparkSession, location: str, read_rows: Read) -> None:
    """New columns are null in old rows, and a wider type holds old values."""
    write(spark.createDataFrame([(1,)], "id int"), location, "people")
    wider = spark.createDataFrame([(2**40, "b")], "id bigint, name string")
    with pytest.raises(Exception, match=r"\[EXTRA_COLUMN\] column 'name'"):
        write(wider, location, "people")
    write(wider, location, "people", mergeSchema="true")

    assert (
        read_rows(spark, location, "people").schema.simpleString()
        == "struct<id:bigint,name:string>"
    )
    assert rows(read_rows(spark, location, "people")) == Counter([(1, None), (2**40, "b")])


def test_missing_columns_are_null(spark: SparkSession, location: str, read: Read) -> None:
    """A frame may leave out columns that may be null, and spell names in another case."""
    write(people(spark, (1, "a")), location, "people")
    write(spark.createDataFrame([(2,)], "ID bigint"), location, "people")

    assert rows(read(spark, location, "people")) == Counter([(1, "a"), (2, None)])


def test_a_temporary_view(spark: SparkSession, location: str) -> None:
    """A view `USING shard` reads the shard; a catalog table is refused with what to do."""
    write(people(spark, (1, "a")), location, "people")
    options = f"using shard options (path '{location}/people')"
    with pytest.raises(Exception, match=r"\[CATALOG_TABLE\].*TEMPORARY VIEW"):
        spark.sql(f"create table people_table {options}")
    spark.sql(f"create temporary view people_view {options}")

    assert spark.sql("select name from people_view where id = 1").collect() == [("a",)]
    spark.catalog.dropTempView("people_view")


def test_two_scans_of_one_frame_are_independent(
    spark: SparkSession, location: str, read_rows: Read
) -> None:
    """A filter on one use of a frame does not leak into another (a bug of Spark's pushdown)."""
    write(people(spark, *((n, str(n)) for n in range(10))), location, "people")
    frame = read_rows(spark, location, "people")
    union = frame.where("id = 1").union(frame.where("id = 2")).union(frame)

    assert frame.where("id = 3").count() == 1
    assert frame.count() == 10
    assert union.count() == 12


@pytest.mark.parametrize("read_rows", some_of(["arrow", "native", "rule"], {"rule"}), indirect=True)
def test_a_large_frame(spark: SparkSession, location: str, read_rows: Read) -> None:
    """Many parts, some retracted, equal what plain Spark makes of the same rows."""
    frame = spark.range(200_000).selectExpr("id", "id % 7 as k", "cast(id as string) as s")
    options: dict[str, Any] = {"partBufferBytes": 1 << 18, "rowGroupRows": 10_000}
    write(frame, location, "numbers", key="id", **options)
    write(
        frame.where("id between 5000 and 150000").selectExpr("*", "-1L as _diff"),
        location,
        "numbers",
        **options,
    )
    left = frame.where("id < 5000 or id > 150000")
    back = read_rows(spark, location, "numbers", partitionBytes=1 << 18)

    found, expected = (one.toArrow().sort_by("id") for one in (back, left))
    assert found.cast(expected.schema).equals(expected)
    assert back.rdd.getNumPartitions() > 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timestampAsof": 1, "colums": "id"}, r"\[UNKNOWN_OPTION\].*'colums'.*'columns'"),
        ({"timestampAsOf": "yesterday"}, r"\[INVALID_OPTION\] option 'timestampAsOf'"),
        ({"columns": "nam"}, r"\[UNKNOWN_COLUMN\].*'nam'.*'name'"),
        ({"readChangeFeed": "maybe"}, r"\[INVALID_OPTION\].*true or false"),
        ({"startingTimestamp": 5}, r"\[INVALID_OPTION\] option 'startingTimestamp' means nothing"),
        ({"leaseMs": "0"}, r"\[INVALID_SETTING\]"),
        ({"s3.endpont": "x"}, r"did you mean 's3.endpoint'"),
        ({"maxRowsPerTrigger": "0"}, r"\[INVALID_OPTION\].*at least 1"),
        (
            {"startingTimestamp": 5, "endingTimestamp": 5, "readChangeFeed": "true"},
            r"\[INVALID_OPTION\].*exclusive",
        ),
        ({"timestampAsOf": 99999999999999, "waitTimeout": "10ms"}, r"\[NOT_YET_READABLE\].*upper"),
    ],
)
def test_bad_read_options(
    spark: SparkSession, location: str, options: dict[str, object], message: str, read: Read
) -> None:
    """A wrong option is refused with its name and what would be right."""
    write(people(spark, (1, "a")), location, "people")

    with pytest.raises(Exception, match=message) as refused:
        read(spark, location, "people", **options).collect()
    assert not any(line.startswith("  File ") for line in str(refused.value).splitlines())


def test_unknown_shard_and_location(spark: SparkSession, location: str, read: Read) -> None:
    """A missing shard is told with its nearest name, a missing location with what to do."""
    with pytest.raises(Exception, match=r"\[LOCATION_NOT_FOUND\]"):
        read(spark, location, "people")
    write(people(spark, (1, "a")), location, "people")

    with pytest.raises(Exception, match=r"\[SHARD_NOT_FOUND\] no shard 'peple'.*'people'"):
        read(spark, location, "peple")
    with pytest.raises(Exception, match=r"\[INVALID_LOCATION\]"):
        read(spark, location + "/..", "people")


@pytest.mark.parametrize(
    ("ddl", "row", "message"),
    [
        ("id string, name string", ("1", "a"), r"\[WRONG_TYPE\] column 'id' is string"),
        ("id bigint, nme string", (1, "a"), r"\[EXTRA_COLUMN\] column 'nme'.*'name'"),
        ("id bigint, _ts string", (1, "a"), r"\[WRONG_TYPE\] column '_ts'"),
        ("id bigint, name string, _ts bigint", (1, "a", 3), r"\[TIME_OUT_OF_RANGE\]"),
    ],
)
def test_bad_frames(
    spark: SparkSession, location: str, ddl: str, row: tuple[object, ...], message: str
) -> None:
    """A frame that does not fit is refused with the column, and nothing is written."""
    write(people(spark, (1, "a")), location, "people")
    before = ShardClient.open(location).state("people").upper

    with pytest.raises(Exception, match=message) as refused:
        write(spark.createDataFrame([row], ddl), location, "people")
    assert not any(line.startswith("  File ") for line in str(refused.value).splitlines())
    assert ShardClient.open(location).state("people").upper == before


def test_unsupported_type(spark: SparkSession, location: str) -> None:
    """A type that Arrow cannot carry is refused with the column's name."""
    with pytest.raises(Exception, match=r"\[UNSUPPORTED_TYPE\].*'y'"):
        write(spark.sql("select interval '1' year as y"), location, "types")


def test_a_failed_task_leaves_nothing(spark: SparkSession, location: str, read: Read) -> None:
    """A write whose task fails is not committed, and its parts are deleted."""
    write(people(spark, (1, "a")), location, "people", inlinePartBytes=0)
    parts = set(Path(location).rglob("*.parquet"))
    failing = spark.range(0, 2000, 1, 2).selectExpr(
        "id", "if(id = 1999, raise_error('boom'), 'x') as name"
    )

    with pytest.raises(Exception, match="boom"):
        write(failing, location, "people", inlinePartBytes=0)
    assert read(spark, location, "people").collect() == [(1, "a")]
    assert set(Path(location).rglob("*.parquet")) == parts


def test_a_missing_part_is_an_error(spark: SparkSession, location: str, fetch: str) -> None:
    """A part that somebody deleted is never skipped: the error names it and the lease."""
    write(people(spark, (1, "a")), location, "people", inlinePartBytes=0)
    write(people(spark, (2, "b")), location, "people", inlinePartBytes=0)
    victim = min(Path(location).rglob("*.parquet"))
    victim.unlink()

    told = rf"\[BLOB_DELETED\].*{victim.name}" if fetch == "arrow" else victim.name
    make = arrow_read if fetch == "arrow" else native
    with pytest.raises(Exception, match=told):
        make(spark, location, "people").collect()


def test_a_damaged_part_is_an_error(spark: SparkSession, location: str, fetch: str) -> None:
    """A part with a flipped bit is never read as something else."""
    write(
        people(spark, *((n, "x" * 50) for n in range(500))), location, "people", inlinePartBytes=0
    )
    victim = min(Path(location).rglob("*.parquet"))
    data = bytearray(victim.read_bytes())
    data[40] ^= 1
    victim.chmod(0o644)
    victim.write_bytes(data)

    told = r"\[CORRUPT_PART\]" if fetch == "arrow" else victim.name
    make = arrow_read if fetch == "arrow" else native
    with pytest.raises(Exception, match=told):
        make(spark, location, "people").collect()


def test_decimals_keep_their_scale(spark: SparkSession, location: str, read_rows: Read) -> None:
    """A decimal comes back digit by digit."""
    value = Decimal("12345678901234567890.123456789012345678")
    frame = spark.createDataFrame([(value,)], "d decimal(38,18)")
    write(frame, location, "decimals")

    assert read_rows(spark, location, "decimals").collect() == [(value,)]
    assert json.loads(read_rows(spark, location, "decimals").schema.json())["fields"][0][
        "type"
    ] == ("decimal(38,18)")

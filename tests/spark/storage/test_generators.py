"""Load generators in Spark: batches and streams give the same rows, through a restart too."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardline.app.storage.generators import register, schema_of, spark_format
from shardline.app.storage.generators.catalog import open_generator
from shardline.datasource.frames import as_active

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

TABLES = [
    ("counter", {"maxCardinality": "5"}),
    ("auction", {"table": "bids"}),
    ("nexmark", {"table": "person"}),
]


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    register(spark)
    register(spark)
    return spark


def test_each_session_knows_the_formats(session: SparkSession) -> None:
    """Also if another one that knows them is the thread's active session."""
    other = session.newSession()
    with as_active(session):
        register(other)
    name, options = TABLES[0]
    frame = other.read.format(spark_format(name)).options(**options, pace="none", limit="3").load()
    assert frame.count() == 3


@pytest.mark.parametrize(("name", "options"), TABLES)
def test_a_batch_has_the_generators_rows(
    session: SparkSession, name: str, options: dict[str, str]
) -> None:
    """What executors make is what the generator makes in this process, under the columns' types."""
    given = {**options, "pace": "none", "limit": "1000"}
    frame = session.read.format(spark_format(name)).options(**given).load()
    made = open_generator(name, given)[1].rows(0, 1000).to_pydict()

    assert frame.schema == session.createDataFrame([], schema_of(name, given)).schema
    key = frame.columns[0]
    assert Counter(row[key] for row in frame.collect()) == Counter(made[key])


def test_a_stream_goes_on_where_it_was(
    session: SparkSession, location: str, checkpoint: str
) -> None:
    """Micro-batches keep to their limit, and a restart neither skips nor repeats a row."""
    options = {"table": "bid", "pace": "none", "maxRowsPerTrigger": "230"}

    def run(limit: int) -> None:
        stream = session.readStream.format("shardline_nexmark").options(**options, limit=limit)
        query = (
            stream.load()
            .writeStream.format("shard")
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start(f"{location}/bids")
        )
        assert query.awaitTermination(120)

    run(500)
    run(800)
    ends = [
        json.loads(p.read_text().splitlines()[2])["event"]
        for p in sorted(Path(checkpoint, "offsets").glob("[0-9]*"), key=lambda p: int(p.name))
    ]
    # 230 bids are five rounds, and the four events before the next bid have none.
    assert ends == [254, 500, 754, 800]
    assert rows(session.read.format("shard").load(f"{location}/bids")) == rows(
        session.read.format("shardline_nexmark").options(table="bid", limit="800").load()
    )


def rows(frame: DataFrame) -> Counter[tuple[object, ...]]:
    return Counter(map(tuple, frame.select("auction", "bidder", "price", "dateTime").collect()))


def test_columns_may_be_left_out(session: SparkSession) -> None:
    """Given a schema of some columns, only they are made, in its order."""
    frame = (
        session.read.format("shardline_nexmark")
        .schema("price BIGINT, auction BIGINT")
        .options(table="bid", limit="50")
        .load()
    )
    made = open_generator("nexmark", {"table": "bid"})[1].rows(0, 50).to_pylist()

    assert [(r.price, r.auction) for r in frame.collect()] == [
        (r["price"], r["auction"]) for r in made
    ]


def test_an_unknown_option_is_refused_at_load(session: SparkSession) -> None:
    """A misspelt option fails where it is given, with the nearest name."""
    with pytest.raises(Exception, match=r"UNKNOWN_OPTION.*did you mean 'seed'"):
        session.readStream.format("shardline_counter").options(sed="1").load()

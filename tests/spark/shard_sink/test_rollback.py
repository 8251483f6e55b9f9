"""A checkpoint that is rolled back by hand: a number is committed for its range, and no other."""

from __future__ import annotations

import json
import os
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shardline import datasource
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.shard.commands.append import AlreadyCommitted, Appended
from support.profiles import some_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

REFUSED = r"\[OTHER_RANGE\].*hint: "


class Files:
    """Rows in JSON files: a source that is not ours, whose offsets only count its files."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._spark = spark
        self._folder = folder
        folder.mkdir()

    def put(self, *ids: int) -> None:
        number = len(list(self._folder.iterdir()))
        file = self._folder / f"{number:03}.json"
        file.write_text("".join(json.dumps({"id": n}) + "\n" for n in ids))
        os.utime(file, (1_700_000_000 + number, 1_700_000_000 + number))

    def load(self) -> DataFrame:
        return self._spark.readStream.schema("id bigint").json(str(self._folder))


class Shard:
    """A shard as the source, with the option that is there for rolling back."""

    def __init__(self, spark: SparkSession, location: str) -> None:
        self._spark = spark
        self._path = f"{location}/in"

    def put(self, *ids: int) -> None:
        rows = self._spark.createDataFrame([(n,) for n in ids], "id bigint")
        rows.write.format("shard").mode("append").save(self._path)

    def load(self) -> DataFrame:
        reader = self._spark.readStream.format("shard").option("holdBehind", "1h")
        return reader.load(self._path)


Source = Shard | Files
Run = Callable[["DataFrame", str, str], None]


def run_sink(frame: DataFrame, out: str, checkpoint: str, mode: str = "append") -> None:
    """`format("shard")` as the query's own sink."""
    writer = frame.writeStream.format("shard").outputMode(mode)
    finish(writer.option("checkpointLocation", checkpoint).option("path", out))


def run_complete(frame: DataFrame, out: str, checkpoint: str) -> None:
    """Each micro-batch replaces the contents."""
    run_sink(frame.groupBy("id").agg({"*": "count"}).select("id"), out, checkpoint, "complete")


def run_batches(frame: DataFrame, out: str, checkpoint: str) -> None:
    """A numbered batch write in `foreachBatch`, which says where the checkpoint is."""

    def each(rows: DataFrame, number: int) -> None:
        writer = rows.write.format("shard").mode("append").option("checkpointLocation", checkpoint)
        writer.options(txnAppId="copy", txnVersion=number).save(out)

    finish(frame.writeStream.foreachBatch(each).option("checkpointLocation", checkpoint))


def run_save(frame: DataFrame, out: str, checkpoint: str) -> None:
    """The same natively, where the driver asks Spark for the checkpoint."""

    def each(rows: DataFrame, number: int) -> None:
        datasource.save(rows, out, txn=("copy", number))

    finish(frame.writeStream.foreachBatch(each).option("checkpointLocation", checkpoint))


def run_arrow_save(frame: DataFrame, out: str, checkpoint: str) -> None:
    """The same where Spark's own writer cannot."""

    def each(rows: DataFrame, number: int) -> None:
        keyed = {"envelope": "upsert", "key": "id"}
        datasource.save(rows.selectExpr("id", "id as v"), out, txn=("copy", number), options=keyed)

    finish(frame.writeStream.foreachBatch(each).option("checkpointLocation", checkpoint))


def run_transaction(frame: DataFrame, out: str, checkpoint: str) -> None:
    """Into a shard and another one at once."""
    location, _, shard = out.rpartition("/")

    def each(rows: DataFrame, number: int) -> None:
        spark = rows.sparkSession
        with datasource.transaction(spark, location, txn=("copy", number)) as t:
            t.append(shard, rows)
            t.append("other", rows)

    finish(frame.writeStream.foreachBatch(each).option("checkpointLocation", checkpoint))


def run_registered(frame: DataFrame, out: str, checkpoint: str) -> None:
    """The sink, into a shard that is written through a transactions shard."""
    location, _, shard = out.rpartition("/")
    client = ShardClient.open(location, create=True)
    if not client.exists(shard):
        frame.sparkSession.createDataFrame([], "id bigint").write.format("shard").mode(
            "append"
        ).save(out)
        client.transactions().register(shard)
    run_sink(frame, out, checkpoint)


def finish(writer: Any) -> None:
    query = writer.trigger(availableNow=True).start()
    assert query.awaitTermination(120), "the query did not end"


def contents(spark: SparkSession, out: str) -> Counter[int]:
    return Counter(row.id for row in spark.read.format("shard").load(out).collect())


def numbers(checkpoint: str, log: str) -> list[int]:
    names = (p.name for p in Path(checkpoint, log).iterdir())
    return sorted(int(name) for name in names if name.isdigit())


def parts_on_disk(location: str) -> set[str]:
    return {str(p.relative_to(location)) for p in Path(location).rglob("*.parquet")}


def parts_known(location: str) -> set[str]:
    state = ShardClient.open(location).state("out")
    return {p.key for b in state.trace.batches for p in b.parts if p.inline is None}


def roll_back(checkpoint: str, count: int = 1) -> None:
    """Remove the last `count` micro-batches from the checkpoint, as people do by hand."""
    for log in ("offsets", "commits"):
        for number in numbers(checkpoint, log)[-count:]:
            Path(checkpoint, log, str(number)).unlink()
            Path(checkpoint, log, f".{number}.crc").unlink(missing_ok=True)


def forget_last_commit(checkpoint: str) -> None:
    """As a crash between the commit of the sink and that of Spark leaves it."""
    last = numbers(checkpoint, "commits")[-1]
    Path(checkpoint, "commits", str(last)).unlink()
    Path(checkpoint, "commits", f".{last}.crc").unlink(missing_ok=True)


WAYS: list[tuple[Run, type[Source]]] = [
    (run_sink, Shard),
    (run_sink, Files),
    (run_complete, Files),
    (run_batches, Files),
    (run_save, Shard),
    (run_arrow_save, Files),
    (run_transaction, Files),
    (run_registered, Files),
]


@pytest.fixture
def make(spark: SparkSession, tmp_path: Path, location: str) -> Callable[[type[Source]], Source]:
    """Makes a source of a kind."""
    return lambda kind: Files(spark, tmp_path / "feed") if kind is Files else Shard(spark, location)


@pytest.fixture
def out(location: str) -> str:
    """The shard that is written to."""
    return f"{location}/out"


@pytest.mark.parametrize(
    ("run", "kind"),
    some_of(WAYS, [(run_sink, Shard)]),
    ids=lambda one: one.__name__.removeprefix("run_"),
)
def test_a_number_is_committed_for_its_range_only(  # noqa: PLR0917  # fixtures
    spark: SparkSession,
    out: str,
    checkpoint: str,
    make: Callable[[type[Source]], Source],
    run: Run,
    kind: type[Source],
) -> None:
    """Rolled back with news it is an error, and nothing is lost or doubled; without, it goes on."""
    source = make(kind)
    source.put(1, 2)
    run(source.load(), out, checkpoint)
    source.put(3)
    run(source.load(), out, checkpoint)
    roll_back(checkpoint)
    run(source.load(), out, checkpoint)
    assert contents(spark, out) == Counter([1, 2, 3])
    forget_last_commit(checkpoint)
    source.put(4)
    run(source.load(), out, checkpoint)
    assert contents(spark, out) == Counter([1, 2, 3, 4])

    kept = f"{checkpoint}-kept"
    shutil.copytree(checkpoint, kept)
    roll_back(checkpoint)
    source.put(5)
    for _ in range(2):
        with pytest.raises(Exception, match=REFUSED):
            run(source.load(), out, checkpoint)
    assert contents(spark, out) == Counter([1, 2, 3, 4])

    shutil.rmtree(checkpoint)
    shutil.copytree(kept, checkpoint)
    run(source.load(), out, checkpoint)
    assert contents(spark, out) == Counter([1, 2, 3, 4, 5])


def test_an_older_number_is_an_error(
    spark: SparkSession, out: str, checkpoint: str, make: Callable[[type[Source]], Source]
) -> None:
    """A checkpoint restored from a copy that is several micro-batches old: nothing is lost."""
    source = make(Files)
    for number in range(4):
        source.put(number)
        run_sink(source.load(), out, checkpoint)
    roll_back(checkpoint, 3)
    source.put(4)
    with pytest.raises(Exception, match=REFUSED):
        run_sink(source.load(), out, checkpoint)
    assert contents(spark, out) == Counter(range(4))

    run_sink(source.load(), f"{out}_again", f"{checkpoint}-new")
    assert contents(spark, f"{out}_again") == Counter(range(5))


def test_several_numbers_of_one_micro_batch(
    spark: SparkSession, out: str, checkpoint: str, make: Callable[[type[Source]], Source]
) -> None:
    """The earlier of two numbers for one range is known by the later one: a replay goes on."""
    source = make(Files)

    def run() -> None:
        def each(rows: DataFrame, number: int) -> None:
            datasource.save(rows, out, txn=("copy", 2 * number))
            datasource.save(rows.selectExpr("id + 100 as id"), out, txn=("copy", 2 * number + 1))

        writer = source.load().writeStream.foreachBatch(each)
        finish(writer.option("checkpointLocation", checkpoint))

    source.put(1)
    run()
    forget_last_commit(checkpoint)
    source.put(2)
    run()
    assert contents(spark, out) == Counter([1, 101, 2, 102])


def test_a_name_of_another_query(
    spark: SparkSession, out: str, checkpoint: str, make: Callable[[type[Source]], Source]
) -> None:
    """A new checkpoint counts from 0 again, under the name that the old one has counted under.

    A batch write that does not say where the checkpoint is knows the query all the same.
    """
    source = make(Files)

    def run(folder: str, **options: str) -> None:
        def each(rows: DataFrame, number: int) -> None:
            writer = rows.write.format("shard").mode("append").options(**options)
            writer.options(txnAppId="copy", txnVersion=number).save(out)

        finish(source.load().writeStream.foreachBatch(each).option("checkpointLocation", folder))

    for number in range(2):
        source.put(number)
        run(checkpoint)
    source.put(2)
    forget_last_commit(checkpoint)
    run(checkpoint)
    assert contents(spark, out) == Counter(range(3))
    with pytest.raises(Exception, match=REFUSED):
        run(f"{checkpoint}-new")
    run(f"{checkpoint}-old-numbers", txnRange="")
    assert contents(spark, out) == Counter(range(3))


def test_the_checkpoint_location_of_the_session(
    spark: SparkSession, out: str, checkpoint: str, make: Callable[[type[Source]], Source]
) -> None:
    """Tasks know it, and so a batch write does, too; and a sink whose query has a name."""
    source = make(Files)

    def run_named(name: str) -> None:
        def each(rows: DataFrame, number: int) -> None:
            writer = rows.write.format("shard").mode("append")
            writer.options(txnAppId=name, txnVersion=number).save(f"{out}_{name}")

        writer = source.load().writeStream.queryName(name)
        if name == "batches":
            writer = writer.foreachBatch(each)
        else:
            writer = writer.format("shard").option("path", f"{out}_{name}")
        finish(writer)

    spark.conf.set("spark.sql.streaming.checkpointLocation", checkpoint)
    try:
        source.put(1)
        for name in ("batches", "sink"):
            run_named(name)
            roll_back(f"{checkpoint}/{name}")
        source.put(2)
        for name in ("batches", "sink"):
            with pytest.raises(Exception, match=REFUSED):
                run_named(name)
    finally:
        spark.conf.unset("spark.sql.streaming.checkpointLocation")


def test_the_log_of_a_file_source_rolled_back_too(
    spark: SparkSession, out: str, checkpoint: str, make: Callable[[type[Source]], Source]
) -> None:
    """Its offsets only count: the same ones mean other files then, and the files decide."""
    source = make(Files)
    source.put(1)
    run_sink(source.load(), out, checkpoint)
    source.put(2)
    run_sink(source.load(), out, checkpoint)

    def roll_back_all() -> None:
        roll_back(checkpoint)
        Path(checkpoint, "sources", "0", "1").unlink()
        Path(checkpoint, "sources", "0", ".1.crc").unlink(missing_ok=True)

    roll_back_all()
    run_sink(source.load(), out, checkpoint)
    assert contents(spark, out) == Counter([1, 2])
    before = Path(checkpoint, "offsets", "1").read_text().splitlines()[2:]
    roll_back_all()
    source.put(3)
    with pytest.raises(Exception, match=REFUSED):
        run_sink(source.load(), out, checkpoint)
    assert Path(checkpoint, "offsets", "1").read_text().splitlines()[2:] == before


def test_news_in_one_of_two_sources(
    spark: SparkSession, out: str, checkpoint: str, make: Callable[[type[Source]], Source]
) -> None:
    """Each source's offsets are part of the range."""
    one, other = make(Shard), make(Files)
    one.put(1)
    other.put(11)

    def both() -> DataFrame:
        return one.load().union(other.load())

    run_sink(both(), out, checkpoint)
    roll_back(checkpoint)
    run_sink(both(), out, checkpoint)
    other.put(12)
    roll_back(checkpoint)
    with pytest.raises(Exception, match=REFUSED):
        run_sink(both(), out, checkpoint)
    assert contents(spark, out) == Counter([1, 11])


def test_an_interval_is_what_its_number_stands_for(
    spark: SparkSession, location: str, out: str
) -> None:
    """`compare_and_append` of a number with another interval is an error, of the same one none."""
    ShardClient.open(location, create=True)
    spark.range(0).write.format("shard").mode("append").save(out)
    lower = ShardClient.open(location).state("out").upper.time
    assert lower is not None

    def append(upper: int, *, number: int = 7) -> Any:
        rows = spark.range(3)
        return datasource.compare_and_append(
            rows, out, lower=lower, upper=upper, writer=("copy", number)
        )

    assert isinstance(append(lower + 10), Appended)
    assert isinstance(append(lower + 10), AlreadyCommitted)
    with pytest.raises(InvalidUsage, match=REFUSED):
        append(lower + 20)
    assert parts_on_disk(location) == parts_known(location)
    with pytest.raises(InvalidUsage, match=REFUSED):
        append(lower + 20, number=6)
    assert contents(spark, out) == Counter(range(3))

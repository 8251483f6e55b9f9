"""Sources of `format("shard")` are made in the driver, as a helper process would have made them."""

from __future__ import annotations

import base64
import json
import os
import pickle
import signal
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import AnalysisException

from shardline.datasource.errors import Indeterminate, InvalidUsage
from shardline.datasource.format import ShardDataSource
from shardline.datasource.java_names import scala_object
from shardline.datasource.spark_native import driver_source
from shardline.datasource.spark_native.compiled_java import java_object
from shardline.datasource.spark_native.jvm import make_active
from shardline.datasource.spark_native.rule_loader import SETTING
from support.spark.native import client_at, collected, ids, put

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

MANAGER = "org.apache.spark.sql.execution.datasources.DataSourceManager"


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the JVM has asked for; not by the self-test, before the first native read of all."""
    found: list[dict[str, Any]] = []
    make = driver_source._make_source

    def note(asked: dict[str, Any]) -> dict[str, str]:
        if not asked["options"]["path"].endswith("/self-test"):
            found.append(asked)
        return make(asked)

    monkeypatch.setattr(driver_source, "_make_source", note)
    return found


@pytest.fixture
def helped(spark: SparkSession) -> SparkSession:
    """A session whose sources are made by helper processes."""
    found = spark.newSession()
    found.conf.set(SETTING, "false")
    return found


def load(spark: SparkSession, path: str, **options: str) -> DataFrame:
    return spark.read.format("shard").options(**options).load(path)


def test_reads_and_appends_need_no_helper_process(
    spark: SparkSession, helped: SparkSession, location: str, made: list[dict[str, Any]]
) -> None:
    """Batches and streams; an append makes no source, and a schema of the user's one for tasks."""
    path = f"{location}/in"
    put(client_at(location, inline_part_bytes=0), "in", 1, ids(1, 2))
    frame = load(spark, path)
    assert collected(frame) == [(1,), (2,)]
    spark.range(3, 4).write.format("shard").mode("append").save(path)
    stream = spark.readStream.format("shard").load(path)
    assert stream.schema == frame.schema
    given = spark.read.format("shard").schema("id BIGINT").option("nativeReads", "false")
    assert collected(given.load(path)) == [(1,), (2,), (3,)]
    assert [one["schema"] is None for one in made] == [True, True, False]
    assert collected(load(helped, path)) == [(1,), (2,), (3,)]
    assert len(made) == 3


def test_python_workers_read_by_a_source_of_the_driver(
    spark: SparkSession, location: str, made: list[dict[str, Any]]
) -> None:
    """The pickled object goes to tasks, and the class that has made it does not."""
    put(client_at(location, inline_part_bytes=0), "in", 1, ids(1, 2))
    frame = load(spark, f"{location}/in", nativeReads="false", where="id > 1")
    assert collected(frame) == [(2,)]
    assert len(made) == 1
    jvm: Any = spark._jvm
    written = jvm.java.io.ByteArrayOutputStream()
    jvm.java.io.ObjectOutputStream(written).writeObject(known_sources(spark).get().apply("shard"))
    assert b"shardline_jvm" not in bytes(written.toByteArray())


@pytest.mark.parametrize(
    "options", [{}, {"Columns": "id", "WHERE": "id > 1"}, {"readChangeFeed": "true"}]
)
def test_a_source_is_what_the_helper_process_makes(
    spark: SparkSession,
    helped: SparkSession,
    location: str,
    options: dict[str, str],
) -> None:
    """The pickled object and the schema."""
    put(client_at(location), "in", 1, ids(1, 2))
    found = []
    for session in (spark, helped):
        frame = load(session, f"{location}/in", **options)
        table = frame._jdf.queryExecution().analyzed().collectLeaves().head().table()
        source = field(table, "ds")
        made = field(source, "dataSourceInPython")
        one = unpickled(bytes(made.dataSource()))
        found.append((type(one), vars(one), made.schema().json()))
    assert found[0] == found[1]
    assert found[0][0] is ShardDataSource


def unpickled(data: bytes) -> Any:
    return pickle.loads(data)  # noqa: S301 - our own


def field(owner: Any, name: str) -> Any:
    """A private field of an object of the JVM."""
    found = owner.getClass().getDeclaredField(name)
    found.setAccessible(True)
    return found.get(owner)


def test_relative_paths_are_taken_from_the_folder_of_the_jvm(
    spark: SparkSession,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    made: list[dict[str, Any]],
) -> None:
    """Wherever this process has gone meanwhile: tasks count from there, too."""
    put(client_at(str(tmp_path / "lake")), "in", 1, ids(1, 2))
    monkeypatch.chdir(tmp_path)
    jvm: Any = spark._jvm
    with pytest.raises(AnalysisException, match="LOCATION_NOT_FOUND"):
        load(spark, "lake/in")
    assert [one["folder"] for one in made] == [jvm.java.lang.System.getProperty("user.dir")]
    answer = driver_source._make_source({**made[0], "folder": str(tmp_path)})
    assert unpickled(base64.b64decode(answer["source"])).options["path"] == "lake/in"


@pytest.mark.parametrize("native", ["true", "false"])
def test_a_path_beside_a_location_is_the_name_of_a_shard(
    spark: SparkSession, location: str, native: str
) -> None:
    """For reads, appends and streams; a name without a location is refused."""
    put(client_at(location), "in", 1, ids(1, 2))
    spark.range(3, 4).write.format("shard").option("location", location).option(
        "nativeWrites", native
    ).mode("append").save("in")
    read = spark.read.format("shard").option("nativeReads", native).option("location", location)
    assert collected(read.load("in")) == [(1,), (2,), (3,)]
    stream = spark.readStream.format("shard").option("location", location).load("in")
    sink = stream.writeStream.format("shard").option("nativeWrites", native)
    sink = sink.option("location", location).option("checkpointLocation", f"{location}-out")
    sink.trigger(availableNow=True).start("out").awaitTermination()
    assert list(client_at(location).shards()) == ["in", "out"]
    assert collected(read.load("out")) == [(1,), (2,), (3,)]
    with pytest.raises(AnalysisException, match="does not name a location and a shard"):
        load(spark, "in")
    with pytest.raises(AnalysisException, match="does not name a location and a shard"):
        spark.range(1).write.format("shard").option("nativeWrites", native).mode("append").save(
            "shardline-in"
        )


# --- errors ------------------------------------------------------------------------------------

REFUSED: list[tuple[str, dict[str, str]]] = [
    ("none", {}),
    ("in", {"bogus": "1"}),
    ("in", {"where": "nothing = 1"}),
    ("in", {"where": "id ="}),
    ("in", {"shards": "in,none"}),
]


@pytest.mark.parametrize(("shard", "options"), REFUSED, ids=str)
def test_a_refusal_has_the_words_of_the_helper_process(
    spark: SparkSession,
    helped: SparkSession,
    location: str,
    shard: str,
    options: dict[str, str],
) -> None:
    put(client_at(location), "in", 1, ids(1, 2))
    said = []
    for session in (spark, helped):
        with pytest.raises(AnalysisException) as refused:
            load(session, f"{location}/{shard}", **options)
        said.append((refused.value.getCondition(), str(refused.value)))
    assert said[0] == said[1]


def test_a_failure_of_the_store_keeps_its_frames(
    spark: SparkSession, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are for whoever repairs it; it is asked once, and not by a helper process again."""
    asked: list[str] = []

    def fail(_self: ShardDataSource) -> None:
        asked.append("schema")
        raise Indeterminate("the store does not answer") from OSError("no route")

    monkeypatch.setattr(ShardDataSource, "schema", fail)
    with pytest.raises(AnalysisException) as failed:
        load(spark, f"{location}/in")
    assert "Traceback" in str(failed.value)
    assert "OSError: no route" in str(failed.value)
    assert asked == ["schema"]


def test_what_is_no_error_of_the_shard_is_left_to_a_helper_process(
    spark: SparkSession, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(client_at(location), "in", 1, ids(1, 2))

    def fail(_asked: object) -> dict[str, str]:
        raise RuntimeError("not here")

    monkeypatch.setattr(driver_source, "_make_source", fail)
    assert collected(load(spark, f"{location}/in")) == [(1,), (2,)]


def test_ctrl_c_ends_the_load(
    spark: SparkSession, location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And no helper process goes on with it; the next load works."""
    put(client_at(location), "in", 1, ids(1, 2))
    schema = ShardDataSource.schema

    def press(self: ShardDataSource) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return schema(self)

    with monkeypatch.context() as patch:
        patch.setattr(ShardDataSource, "schema", press)
        try:
            with pytest.raises((KeyboardInterrupt, Py4JJavaError)) as ended:
                load(spark, f"{location}/in")
        finally:
            make_active(spark)  # PySpark may call from another thread of the JVM now, without one
    assert "KeyboardInterrupt" in f"{type(ended.value).__name__} {ended.value}"
    assert collected(load(spark, f"{location}/in")) == [(1,), (2,)]


# --- which sources Spark knows -----------------------------------------------------------------


def known_sources(spark: SparkSession) -> Any:
    """Those that Spark has found by itself, or was told of."""
    return scala_object(spark, MANAGER).dataSourceBuilders()


@pytest.fixture
def manager(spark: SparkSession) -> Iterator[Any]:
    """What knows Spark's sources; it has not looked for any yet."""
    found = scala_object(spark, MANAGER)
    before = found.dataSourceBuilders()
    nothing = scala_object(spark, "scala.None")
    getattr(found, "dataSourceBuilders_$eq")(nothing)
    yield found
    getattr(found, "dataSourceBuilders_$eq")(before)


def source_of(spark: SparkSession) -> Any:
    return java_object(
        spark, "DriverSource", driver_source._REFERENCE, driver_source._SourceMaker()
    )


def test_spark_looks_for_sources_where_there_may_be_others(
    spark: SparkSession, manager: Any
) -> None:
    """Once it has found them, ours takes the place of its own, and others stay."""
    source = source_of(spark)
    assert not source.install(False)
    assert manager.dataSourceBuilders().isEmpty()
    other = java_object(spark, "DriverSource", b"", driver_source._SourceMaker())
    assert other.install(True)
    both = manager.dataSourceBuilders().get().updated("other", other)
    some = scala_object(spark, "scala.Some").apply(both)
    getattr(manager, "dataSourceBuilders_$eq")(some)
    assert source.install(False)
    found = manager.dataSourceBuilders().get()
    assert (found.size(), found.apply("shard").equals(source)) == (2, True)
    assert found.apply("other").equals(other)


def a_module(folder: Path) -> str:
    (folder / "pyspark_x.py").touch()
    return str(folder)


def a_package(folder: Path) -> str:
    (folder / "pyspark_x").mkdir()
    return str(folder)


def an_archive(folder: Path) -> str:
    with zipfile.ZipFile(folder / "modules.zip", "w") as archive:
        archive.writestr("pyspark_x.py", "")
    return str(folder / "modules.zip")


def none_at_all(folder: Path) -> str:
    """What the file system refuses to look at."""
    return str(folder / ("x" * 300))


def no_module(folder: Path) -> str:
    (folder / "pyspark_x-1.0.dist-info").mkdir()
    (folder / "xpyspark_y.py").touch()
    return str(folder)


@pytest.mark.parametrize(
    ("place", "found"),
    [
        (a_module, True),
        (a_package, True),
        (an_archive, True),
        (no_module, False),
        (none_at_all, False),
    ],
)
def test_modules_of_other_sources_are_found(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    place: Callable[[Path], str],
    found: bool,
) -> None:
    """On Python's path and in the folder of the process: helper processes look there, too."""
    path = place(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, path])
    assert set(driver_source._modules_of_sources()) == {"pyspark_shard", *["pyspark_x"] * found}
    monkeypatch.setattr(sys, "path", [one for one in sys.path if one != path])
    assert set(driver_source._modules_of_sources()) == {"pyspark_shard"}
    if place is not none_at_all and Path(path).is_dir():
        monkeypatch.chdir(path)
        here = {"pyspark_shard", *["pyspark_x"] * found}
        assert set(driver_source._modules_of_sources()) == here


def test_another_python_finds_sources_by_itself(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered: list[Any] = []
    monkeypatch.setattr(driver_source, "_offered", offered)
    monkeypatch.setattr(driver_source, "is_python_of_jvm", lambda _: False)
    driver_source.offer_driver_source(spark)
    assert not offered
    monkeypatch.setattr(driver_source, "is_python_of_jvm", lambda _: True)
    driver_source.offer_driver_source(spark)
    assert offered == [spark._jvm]


def test_the_class_is_pickled_by_its_name() -> None:
    assert unpickled(driver_source._REFERENCE) is ShardDataSource


def test_an_answer_is_text(location: str) -> None:
    """What the JVM is told, without it."""
    put(client_at(location), "in", 1, ids(1, 2))
    asked = {"options": {"path": f"{location}/in"}, "folder": "/", "schema": None}
    answer = json.loads(str(driver_source._SourceMaker().apply(json.dumps(asked))))
    made = unpickled(base64.b64decode(answer["source"]))
    assert made.options == asked["options"]
    assert json.loads(answer["schema"])["fields"][0]["name"] == "id"
    asked["options"] = {"path": f"{location}/none"}
    refused = json.loads(str(driver_source._SourceMaker().apply(json.dumps(asked))))["refused"]
    assert refused.startswith(f"{InvalidUsage.__module__}.InvalidUsage: [SHARD_NOT_FOUND]")

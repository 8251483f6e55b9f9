"""Objects that fail or block when a test says so, beside healthy ones; and what DuckDB says.

A file tells what is to go wrong, since what goes wrong does so in processes of Spark's: `<x>.fails`
makes what reads `<x>` raise, `<x>.blocks` makes it wait, and `<x>.is_blocked` tells that it does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import duckdb
from py4j.protocol import Py4JJavaError
from typing_extensions import override

from shardline.app.coordinator.application import Application
from shardline.app.lane.process_state import PhaseChange
from shardline.app.project.project import Project
from shardline.app.runtime.runtime import Runtime
from shardline.datasource.client import ShardClient
from support.spark.projects import rows
from support.waiting import wait_until

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession
    from pyspark.sql.datasource import DataSourceStreamReader
    from pyspark.sql.streaming.datasource import ReadLimit

__all__ = [
    "PATIENCE_S",
    "Yard",
    "condition",
    "phases_of",
    "pools_of_jobs",
    "register_mood",
    "register_patient",
    "relation",
]

PATIENCE_S: Final = 90
"""For one thing to happen, on two cores that are busy with other tests."""


class Yard:
    """A folder with files that arrive, shards, and switches for what is to go wrong.

    Args:
        queries: For each view what DuckDB is to be asked, over tables named as the folders are.
    """

    def __init__(self, folder: Path, tables: dict[str, str], queries: dict[str, str]) -> None:
        self.folder = folder
        self._tables = tables
        self._queries = queries
        self._client: ShardClient | None = None
        for name in tables:
            (folder / name).mkdir()

    def put(self, table: str, name: str, text: str) -> None:
        """Let a file arrive whole."""
        fresh = self.folder / f"{table}-{name}.new"
        fresh.write_text(text)
        fresh.rename(self.folder / table / f"{name}.csv")

    def switch(self, what: str, where: str = "") -> None:
        """Let something go wrong at `where`, or be right again."""
        flag = self.folder / what
        if where:
            fresh = flag.with_name(f"{flag.name}.new")
            fresh.write_text(where)
            fresh.rename(flag)
        else:
            flag.unlink(missing_ok=True)

    def until_blocked(self, what: str) -> None:
        """Wait until something waits because of `<what>.blocks`."""
        mark = self.folder / f"{what}.is_blocked"
        wait_until(f"{what} is blocked", mark.exists, PATIENCE_S)

    def project(self, text: str) -> Project:
        """The project over these files."""
        return Project.parse({"all.sql": text.replace("${in}", str(self.folder))})

    def expected(self, view: str) -> list[tuple[object, ...]]:
        """What DuckDB says of the files."""
        with duckdb.connect() as duck:
            for table, columns in self._tables.items():
                if not any((self.folder / table).iterdir()):
                    continue
                files = str(self.folder / table / "*.csv")
                typed = ", ".join(f"'{c.split()[0]}': '{c.split()[1]}'" for c in columns.split(","))
                # Later files sort behind earlier ones: the newest row of a key counts.
                key = columns.split()[0]
                duck.execute(
                    f"CREATE TABLE {table} AS SELECT * EXCLUDE (filename) "  # noqa: S608 - ours
                    f"FROM read_csv('{files}', columns = {{{typed}}}, header = true, "
                    f"filename = true) QUALIFY filename = max(filename) OVER (PARTITION BY {key})"
                )
            return sorted(duck.sql(self._queries[view]).fetchall())

    def client(self) -> ShardClient:
        """A client of its own of the location."""
        return ShardClient.open(str(self.folder / "shards"))

    def contents(self, name: str) -> list[tuple[object, ...]] | None:
        """What a shard holds; None if it has nothing yet."""
        self._client = self._client or self.client()
        client = self._client
        if not client.exists(name) or not client.state(name).upper.time:
            return None
        with client.reader(name) as reader:
            return rows(reader.snapshot())

    def until_right(self, *views: str, patience_s: float = PATIENCE_S) -> None:
        """Wait until views hold what DuckDB says of the files as they are now."""
        wanted = {view: self.expected(view) for view in views}
        wait_until(
            f"contents are {wanted}",
            lambda: all(self.contents(view) == rows for view, rows in wanted.items()),
            patience_s,
        )


def relation(application: Application, query: str) -> list[tuple[object, ...]]:
    """What a query over introspection relations gives."""
    return [tuple(row.values()) for row in application.sql(query).to_pylist()]


def condition(application: Application, name: str) -> tuple[str, str, str]:
    """Status, error and hint of an object, as relation `objects` says."""
    query = f"SELECT status, error, hint FROM introspection.objects WHERE id = '{name}'"  # noqa: S608
    for found in relation(application, query):
        status, error, hint = (str(value or "") for value in found)
        return status, error, hint
    return "", "", ""


def phases_of(patch: pytest.MonkeyPatch) -> list[PhaseChange]:
    """Every phase that lanes of this process tell from now on, in order."""
    told: list[PhaseChange] = []
    real = Runtime.on_phase

    def on_phase(self: Runtime, change: PhaseChange) -> None:
        told.append(change)
        real(self, change)

    patch.setattr(Runtime, "on_phase", on_phase)
    return told


def pools_of_jobs(spark: SparkSession) -> dict[str, set[str]]:
    """Scheduler pools of all jobs that Spark still knows, by their group: a query's run id."""
    store: Any = spark.sparkContext._jsc.sc().statusStore()
    found: dict[str, set[str]] = {}
    jobs = store.jobsList(None)
    for job in (jobs.apply(i) for i in range(jobs.size())):
        stages = [job.stageIds().apply(i) for i in range(job.stageIds().size())]
        if job.jobGroup().isEmpty() or not stages:
            continue
        # The last stage is the job's own; those before it may be another job's, left out here.
        try:
            attempt = store.lastStageAttempt(max(stages))
        except Py4JJavaError:
            continue  # Spark has forgotten it since the jobs were listed
        found.setdefault(str(job.jobGroup().get()), set()).add(str(attempt.schedulingPool()))
    return found


def _checker() -> Callable[[Path, str], None]:
    """What fails or waits at a place if it is to; made here, so that it travels by value."""

    def check(folder: Path, place: str) -> None:
        # Workers need not find this module, and have none of its names.
        from threading import Event

        fails, blocks = (folder.with_suffix(f".{what}") for what in ("fails", "blocks"))
        if fails.exists() and fails.read_text() == place:
            raise ValueError(f"no mood for {place}")
        while blocks.exists() and blocks.read_text() == place:
            folder.with_suffix(".is_blocked").touch()
            Event().wait(0.02)

    return check


def register_mood(spark: SparkSession) -> None:
    """Make format `mood` known: a stream of the numbers in the files of folder `<x>`.

    It raises where `<x>.fails` says (open, latest or read), and waits where `<x>.blocks` says.
    """
    from pyspark.sql.datasource import DataSource

    reader = _mood_reader()

    class Mood(DataSource):
        @classmethod
        @override
        def name(cls) -> str:
            return "mood"

        @override
        def schema(self) -> str:
            return "n INT"

        @override
        def streamReader(self, schema: Any) -> Any:
            return reader(Path(self.options["path"]))

    spark.dataSource.register(Mood)


def _mood_reader() -> Callable[[Path], DataSourceStreamReader]:
    from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

    check = _checker()

    class Named(InputPartition):
        def __init__(self, name: str) -> None:
            self.name = name

    class Reader(DataSourceStreamReader):
        def __init__(self, folder: Path) -> None:
            self.folder = folder
            check(folder, "open")

        @override
        def initialOffset(self) -> dict[str, int]:
            return {"files": 0}

        @override
        def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
            check(self.folder, "latest")
            return {"files": len(list(self.folder.glob("*.csv")))}

        @override
        def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[Named]:
            names = sorted(path.name for path in self.folder.glob("*.csv"))
            return [Named(name) for name in names[start["files"] : end["files"]]]

        @override
        def read(self, partition: InputPartition) -> Iterator[tuple[int]]:
            assert isinstance(partition, Named)
            check(self.folder, "read")
            for line in (self.folder / partition.name).read_text().splitlines()[1:]:
                yield (int(line),)

    return Reader


def register_patient(spark: SparkSession, folder: Path) -> None:
    """Make SQL function `patient` known: an INT itself; 500 once file `patient.blocks` is gone.

    One number, so one task: what is blocked keeps its core.
    """
    from pyspark.sql.functions import udf

    flag, mark = (str(folder / f"patient.{what}") for what in ("blocks", "is_blocked"))

    def patient(value: int) -> int:
        from pathlib import Path as Place
        from threading import Event

        while value == 500 and Place(flag).exists():
            Place(mark).touch()
            Event().wait(0.02)
        return value

    spark.udf.register("patient", udf(patient, "int", useArrow=False))

"""A look at a source, with a JVM that a test controls."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError, Py4JJavaError
from typing_extensions import override

from shardline.app.protocol.objects import SourceDescription
from shardline.app.storage.source_look import SourceLook
from support.fakes.clock import ManualClock

CSV = SourceDescription(name="s", format="CSV", options={"Path": "/in/orders"})
GLOB = SourceDescription(name="s", format="csv", options={"path": "/in/*.csv"})
KAFKA = SourceDescription(name="s", format="kafka")


class Denied(Py4JJavaError):  # type: ignore[misc]
    """An exception of Hadoop's, as Py4J hands it over."""

    def __init__(self) -> None:
        pass

    @override
    def __str__(self) -> str:
        return (
            "An error occurred while calling o71.exists.\n"
            ": java.nio.file.AccessDeniedException: s3a://in/orders: Forbidden\n"
            "\tat x.Y.z(Y.java:1)"
        )


class Files:
    """Hadoop's file system, as far as a look needs it."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.there = True
        self.denies = False
        self.asked = 0
        self.took_ms = 0
        self.scheme, self.local = "s3a", ""

    def exists(self, path: str) -> bool:
        self.asked += 1
        self.clock.advance(self.took_ms)
        if self.denies:
            raise Denied
        return self.there and path == "/in/orders"


class HadoopPath:
    """Hadoop's `Path`."""

    def __init__(self, files: Files, path: str) -> None:
        self.files, self.path = files, path

    def getFileSystem(self, _conf: object) -> Any:  # noqa: N802 - Java's
        return SimpleNamespace(
            exists=lambda place: self.files.exists(place.path),
            getScheme=lambda: self.files.scheme,
            makeQualified=lambda _: SimpleNamespace(
                toUri=lambda: SimpleNamespace(getPath=lambda: self.files.local)
            ),
        )


class Unread:
    """Scala's sequence of the files that wait."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes

    def mkString(self, separator: str) -> str:  # noqa: N802 - Scala's
        names = (f"NewFileEntry(file:///in/a, b({n}).csv,{n},179)" for n in self.sizes)
        return separator.join(names)


class Query:
    """A streaming query with one source of files."""

    def __init__(
        self, message: str, unread: Unread | None = None, *, has_news: bool = True
    ) -> None:
        self.status = {
            "message": message, "isDataAvailable": has_news, "isTriggerActive": False
        }  # fmt: skip
        self.looks = 0

        def field(name: str) -> Any:
            assert name == "unreadFiles"
            self.looks += 1
            return SimpleNamespace(setAccessible=lambda _: None, get=lambda _: unread)

        source = SimpleNamespace(getClass=lambda: SimpleNamespace(getDeclaredField=field))
        sources = SimpleNamespace(isEmpty=lambda: False, head=lambda: source)
        execution = SimpleNamespace(sources=lambda: sources)
        self._jsq = SimpleNamespace(streamingQuery=lambda: execution)


class Jvm:
    """Has one class."""

    def __init__(self, files: Files) -> None:
        setattr(self, "org.apache.hadoop.fs.Path", lambda path: HadoopPath(files, path))


class Place:
    """A look at a source, and what it looks at."""

    def __init__(self, description: SourceDescription = CSV) -> None:
        self.clock = ManualClock()
        self.files = Files(self.clock)
        state = SimpleNamespace(newHadoopConf=lambda: None)
        session = SimpleNamespace(sessionState=lambda: state)
        spark: Any = SimpleNamespace(_jvm=Jvm(self.files), _jsparkSession=session)
        self.look = SourceLook(spark, description, self.clock, lambda query: query.status)

    def seen(self, query: Query) -> Any:
        asked: Any = query
        return self.look.look(asked)


@pytest.mark.parametrize(
    ("message", "state"),
    [
        ("Waiting for data to arrive", "asked"),
        ("Processing new data", "asked"),
        ("Getting offsets from FileStreamSource[file:/in/orders]", "asking"),
        ("Initializing sources", "asking"),
        ("Stopped", "asking"),
        ("Terminated with exception: boom", "asking"),
    ],
)
def test_spark_has_asked_or_it_has_not(message: str, state: str) -> None:
    """While it waits for an answer, starts or has ended, nothing is known of the source."""
    assert Place().seen(Query(message)).state == state
    assert Place(KAFKA).seen(Query(message)).state == state


def test_a_folder_that_is_not_there_is_no_empty_one() -> None:
    """It is looked for each time until it is back; a glob may find nothing, and Kafka has none."""
    place = Place()
    place.files.there, place.files.took_ms = False, 10
    for _ in range(2):
        found = place.seen(Query("Waiting for data to arrive"))
        assert (found.state, found.error) == (
            "absent",
            "'/in/orders', which it reads, is not there",
        )
    assert place.files.asked == 2
    place.files.there = True
    assert place.seen(Query("Waiting for data to arrive")).state == "asked"
    for description in (GLOB, KAFKA):
        other = Place(description)
        other.files.there = False
        assert other.seen(Query("Waiting for data to arrive")).state == "asked"
        assert other.files.asked == 0


def test_a_folder_that_cannot_be_looked_at_is_none_that_is_there(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The source says why, until it can be seen again; the log has it once."""
    place = Place()
    idle = Query("Waiting for data to arrive")
    place.files.denies, place.files.took_ms = True, 10
    for _ in range(3):
        found = place.seen(idle)
        assert found.state == "absent"
        assert "'/in/orders', which it reads, cannot be looked at: no permission" in found.error
        assert "right to read" in found.hint
    assert len(caplog.records) == 1
    place.files.denies = False
    assert place.seen(idle).state == "asked"


def test_a_folder_of_this_machine_is_looked_at_without_the_jvm(tmp_path: Path) -> None:
    """By the path that Hadoop makes of the source's."""
    place = Place()
    folder = tmp_path / "orders"
    place.files.scheme, place.files.local = "file", str(folder)
    idle = Query("Waiting for data to arrive")
    assert place.seen(idle).state == "absent"
    folder.mkdir()
    assert place.seen(idle).state == "asked"
    folder.rmdir()
    place.clock.advance(1)
    assert place.seen(idle).state == "absent"
    assert place.files.asked == 0


def test_a_slow_store_is_asked_less_often() -> None:
    """For a twentieth of the time at most."""
    place = Place()
    place.files.took_ms = 500
    idle = Query("Waiting for data to arrive")
    for _ in range(100):
        place.seen(idle)
        place.clock.advance(1000)
    assert place.files.asked == 10


def test_files_that_wait_are_counted_with_their_size() -> None:
    """As Spark has listed them, at most every two seconds; none, if it keeps none."""
    place = Place()
    query = Query("Processing new data", Unread(10, 20, 300))
    found = place.seen(query)
    assert (found.files, found.size_bytes) == (3, 330)
    place.seen(query)
    assert query.looks == 1
    place.clock.advance(2_000)
    found = place.seen(Query("Processing new data"))
    assert (found.files, found.size_bytes) == (0, 0)


def test_where_nothing_is_new_no_file_waits_and_none_is_looked_for() -> None:
    """A hundred sources at rest would ask the JVM for nothing hundreds of times a second."""
    for message in (
        "Waiting for data to arrive",
        "Waiting for next trigger",
        "Getting offsets from FileStreamSource[file:/in/orders]",
    ):
        idle = Query(message, Unread(10), has_news=False)
        found = Place().seen(idle)
        assert (found.files, found.size_bytes, idle.looks) == (0, 0, 0)
        busy = Query(message, Unread(10))
        found = Place().seen(busy)
        assert (found.files, found.size_bytes, busy.looks) == (1, 10, 1)
        found = Place(KAFKA).seen(idle)
        assert (found.files, found.size_bytes) == (None, None)
    place = Place()
    assert place.seen(Query("Processing new data", Unread(*[1] * 500))).files == 500
    assert place.seen(Query("Waiting for next trigger", has_news=False)).files == 0
    assert place.seen(Query("Processing new data", Unread(1))).files == 0, "not what was before"
    begins = Query("Initializing sources", Unread(10), has_news=False)
    assert Place().seen(begins).files == 1


def test_what_cannot_be_found_out_is_not_known() -> None:
    """Another version of Spark, or a source that is none of files: never 0."""

    class Other(Query):
        def __init__(self) -> None:
            super().__init__("Processing new data")

            def fails() -> Any:
                raise Py4JError("no such field")

            self._jsq = SimpleNamespace(streamingQuery=fails)

    for place in (Place(), Place(KAFKA)):
        found = place.seen(Other())
        assert (found.state, found.files, found.size_bytes) == ("asked", None, None)

"""A look at a source finds out whether Spark has really asked it, and what waits outside.

    look = SourceLook(spark, description, clock, status_reader(spark))
    seen = look.look(query)
    seen.state            "asked": the upper may follow the clock; "asking": not yet; "absent"
    seen.files, seen.size_bytes

Ticks move the upper of a quiet source with the clock. That says: nothing came until now. It is true
only if Spark has asked the source meanwhile, and an answer of "nothing" means something only if the
source is there: Spark's file source lists a folder that was moved away as an empty one, without an
error, for ever; a broker that does not answer keeps Spark asking for minutes; a JVM that stands
still asks nobody. Each of these would look as fresh as a source to which nothing comes. What Spark
has been told and has not brought yet is not seen here: `Timeline.begin` notes it.

What is known of the backlog is Spark's own knowledge: the files that its file source has listed and
not yet given to a micro-batch (`unreadFiles`, which it keeps while `maxFilesPerTrigger` or
`maxBytesPerTrigger` bounds a micro-batch). It has no public face, so it is read by reflection, and
is unknown where that fails.

Invariants:
    Nothing here changes what Spark does.
    A look costs one call of the JVM, and two where the folder is not on this machine; the folder
        and the backlog are looked at less often the longer that takes, for a twentieth of the time
        at most.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from py4j.protocol import Py4JError, Py4JJavaError

from shardline.app.execution.spark_errors import describe_failure
from shardline.app.protocol.objects import SourceDescription
from shardline.app.storage.formats import READ_FILES, path_option
from shardline.datasource.clock import Clock
from shardline.datasource.frames import ReadStatus
from shardline.datasource.java_names import java_class

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["LookState", "SourceLook", "SourceSeen"]

_log = logging.getLogger(__name__)

LookState: TypeAlias = Literal["asked", "asking", "absent"]

_ASKS: Final = "Getting offsets"
"""Beginning of the message of a query that waits for an answer of its source."""

_ASKING: Final = (_ASKS, "Initializing", "Stopped", "Terminated")
"""Beginnings of the messages of a query that has not got its source's answer."""

_SHARE: Final = 20
"""A look at the folder or the backlog is followed by a rest of so many times its duration."""

_BACKLOG_MS: Final = 2_000.0
"""Shortest time between two looks at the backlog."""

_FILE: Final = re.compile(r"^NewFileEntry\(.*,(\d+),-?\d+\)$", re.MULTILINE)

_GLOB: Final = frozenset("{}[]*?\\")


@dataclass(frozen=True, slots=True)
class SourceSeen:
    """The outcome of a look.

    Attributes:
        state: "asked": Spark has had an answer of the source; "asking": it waits for one, or does
            not run; "absent": what the source reads is not there.
        error: What is not there, in a sentence.
        hint: What to do about it.
        files: Files that wait outside; None if that is not known.
        size_bytes: Their size.
    """

    state: LookState
    error: str = ""
    hint: str = ""
    files: int | None = None
    size_bytes: int | None = None


class SourceLook:
    """Looks at one source while its query runs; for one thread at a time."""

    def __init__(
        self,
        spark: SparkSession,
        description: SourceDescription,
        clock: Clock,
        read_status: ReadStatus,
    ) -> None:
        """Look at nothing yet.

        Args:
            spark: Session of the source.
            description: Of the source.
            clock: Of the process.
            read_status: Asks Spark for the status of the source's query.
        """
        self._spark = spark
        self._clock = clock
        self._read_status = read_status
        self._name = description.name
        self._is_files = description.format.lower() in READ_FILES
        self._path = _plain_path(description) if self._is_files else None
        self._is_there: Callable[[], bool] | None = None
        self._absence: tuple[str, str] | None = None
        self._there_again_ms = self._backlog_again_ms = float("-inf")
        self._backlog: tuple[int | None, int | None] = (None, None)

    def look(self, query: StreamingQuery) -> SourceSeen:
        """Look at the source and at its query; waits for the JVM.

        Raises:
            Py4JError: The JVM does not answer.
        """
        absence = self._find_absence()
        if absence is not None:
            return SourceSeen("absent", *absence)
        status = self._read_status(query)
        message = str(status["message"])
        asking = message.startswith(_ASKING)
        # The last answer was that nothing is new: no file that Spark has listed waits. It says so
        # before the first answer, too, and goes on to say so after the end.
        rests = not status["isDataAvailable"] and (not asking or message.startswith(_ASKS))
        if rests and self._is_files:
            self._backlog = (0, 0)
        files, size_bytes = self._backlog if rests else self._look_outside(query)
        return SourceSeen("asking" if asking else "asked", "", "", files, size_bytes)

    def _find_absence(self) -> tuple[str, str] | None:
        """Say what is wrong with the folder or file, and a hint; None if it was there a moment ago.

        Also None for a source that has none.
        """
        began_ms = self._clock.elapsed_ms()
        known = self._absence
        if self._path is None or (known is None and began_ms < self._there_again_ms):
            return None
        self._absence = None
        try:
            if not self._exists(self._path):
                what = f"'{self._path}', which it reads, is not there"
                self._absence = what, "put it back and it goes on, or drop the source"
        except Py4JJavaError as error:
            # Of the file system: that it is there is not known, and the upper must not say so.
            sentence, hint = describe_failure(error)
            what = f"'{self._path}', which it reads, cannot be looked at: {sentence}"
            self._absence = what, hint
            if known != self._absence:
                context = {"source": self._name}
                _log.warning(
                    "a source cannot be looked at", exc_info=error, extra={"context": context}
                )
        ended_ms = self._clock.elapsed_ms()
        self._there_again_ms = ended_ms + _SHARE * (ended_ms - began_ms)
        return self._absence

    def _exists(self, path: str) -> bool:
        if self._is_there is None:
            # PySpark has no other door to file systems.
            session: Any = self._spark._jsparkSession  # noqa: SLF001
            place = java_class(self._spark, "org.apache.hadoop.fs.Path")(path)
            system = place.getFileSystem(session.sessionState().newHadoopConf())
            if str(system.getScheme()) == "file":
                # The driver's machine is this one. Relative to the JVM's folder, and not to ours.
                local = str(system.makeQualified(place).toUri().getPath())
                self._is_there = partial(os.path.exists, local)
            else:
                self._is_there = lambda: bool(system.exists(place))
        return self._is_there()

    def _look_outside(self, query: StreamingQuery) -> tuple[int | None, int | None]:
        """The files that wait and their size, as of a moment ago."""
        began_ms = self._clock.elapsed_ms()
        if not self._is_files or began_ms < self._backlog_again_ms:
            return self._backlog
        try:
            self._backlog = _unread_files(query)
        except (Py4JError, AttributeError, TypeError):
            # Of another version of Spark, or of a query that has just ended: not known is true.
            _log.debug("a backlog is not known", exc_info=True)
            self._backlog = (None, None)
        ended_ms = self._clock.elapsed_ms()
        self._backlog_again_ms = ended_ms + max(_BACKLOG_MS, _SHARE * (ended_ms - began_ms))
        return self._backlog


def _plain_path(description: SourceDescription) -> str | None:
    """The path of a source of files; None for a glob, which may well find nothing for a while."""
    path = path_option(description.options)
    return None if path is None or set(path) & _GLOB else path


def _unread_files(query: StreamingQuery) -> tuple[int | None, int | None]:
    wrapped: Any = query._jsq  # noqa: SLF001 - see the module
    sources = wrapped.streamingQuery().sources()
    if sources.isEmpty():
        return None, None
    source = sources.head()
    field = source.getClass().getDeclaredField("unreadFiles")
    field.setAccessible(True)
    unread = field.get(source)
    if unread is None:
        return 0, 0
    # One text and not an element at a time: each would be a call of the JVM.
    sizes = [int(size) for size in _FILE.findall(unread.mkString("\n"))]
    return len(sizes), sum(sizes)

"""A project states the objects that are to exist, from SQL files or Python, checked as a whole.

An object alone cannot be checked: its columns depend on its inputs', and mistakes in one file show
in another. A project that passes can be started without a failure that Spark knew of before.

    Project.load(Path("project")).check(spark)          a folder of `*.sql` files
    Project.parse({"all.sql": text}).check(spark)       texts
    Project().source("flights", "csv", …).view("late", "SELECT …").check(spark)

`check` returns descriptions in an order in which they can be made, or raises one error with every
problem that can be found: those of the text, those of names, and, for objects without either, those
of Spark's analyzer.

Invariants:
    Objects from Python are checked like those from SQL; equal objects have equal descriptions.
    Checking twice gives the same result, and changes neither the project nor the session.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from shardline.app.project.identity import read_identity
from shardline.app.project.names import check_names
from shardline.app.project.origin import ProjectOrigin
from shardline.app.project.python_objects import make_index, make_sink, make_source, make_view
from shardline.app.project.sink_places import check_places
from shardline.app.project.statements import (
    ObjectDescription,
    ParsedStatements,
    WrittenObject,
    read_statements,
)
from shardline.app.project.variables import check_all_used, substitute_variables
from shardline.app.protocol.graph import Graph
from shardline.app.protocol.objects import Envelope
from shardline.app.protocol.project_identity import ProjectIdentity
from shardline.app.settings.config import FILE_ENCODING
from shardline.app.sql.problems import InvalidProject, Place, Problem, Script
from shardline.datasource.clock import IdGenerator, SystemIds
from shardline.datasource.errors import InvalidUsage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from shardline.app.project.analyze import Analysis

__all__ = ["CheckedProject", "Project", "check_variables", "read_texts"]


def read_texts(folder: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """The texts of every `*.sql` file below `folder`, in the order of their paths.

    Args:
        folder: The project's folder.
        variables: Values of `${name}` in the files, by name.

    Raises:
        InvalidUsage: There is no such folder, it has no such file, one cannot be read, or a
            variable has no value.
    """
    texts = _texts(folder)
    return {name: substitute_variables(text, variables, name) for name, text in texts.items()}


def check_variables(folder: Path, variables: Mapping[str, str]) -> None:
    """Refuse variables that no `*.sql` file below `folder` has, by one who has just named them.

    Raises:
        InvalidUsage: As of `read_texts`, or a variable is in no file.
    """
    check_all_used(_texts(folder).values(), variables)


def _texts(folder: Path) -> dict[str, str]:
    """The texts of `read_texts`, as they are written."""
    files = sorted(folder.rglob("*.sql")) if folder.is_dir() else []
    if not files:
        raise InvalidUsage(
            f"'{folder}' is no folder with *.sql files",
            code="NO_PROJECT",
            hint="name the folder of a project",
        )
    return {str(file.relative_to(folder)): _text(file) for file in files}


@dataclass(frozen=True, slots=True)
class CheckedProject:
    """A project that has passed all checks.

    Attributes:
        descriptions: Descriptions by name, inputs first, else in the order of the text.
        places: Place of each object in the texts.
        schemas: Columns of the contents of sources and views, in Spark's DDL.
        comments: Comments of the objects that have one.
        columns: The same in Spark's JSON.
        identity: The project that this is; None if nobody has said.
        unreachable: Sources and sinks that cannot be opened where they are now: no folder, no
            answer. One that runs already waits for it; one that is new or changed is refused.
        origin: Where its texts are; None if it, or a part of it, was made in Python.
        analysis: What Spark has found, for a later check; None if it was not asked.
    """

    descriptions: dict[str, ObjectDescription]
    places: dict[str, Place] = field(default_factory=dict)
    schemas: dict[str, str] = field(default_factory=dict)
    comments: dict[str, str] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    identity: ProjectIdentity | None = None
    unreachable: dict[str, Problem] = field(default_factory=dict)
    origin: ProjectOrigin | None = field(default=None, compare=False)
    analysis: Analysis | None = field(default=None, compare=False, repr=False)


class Project:
    """A set of objects that are to exist; its methods add to it and return it."""

    def __init__(self, identity: ProjectIdentity | None = None) -> None:
        """An empty project.

        Args:
            identity: Which project this is, for a location that runs another one; None for no
                claim, which is never refused.
        """
        self._reading = ParsedStatements()
        self._identity = identity
        self._origin: ProjectOrigin | None = None

    @classmethod
    def read(cls, origin: ProjectOrigin) -> Project:
        """Read a project again, as it is now; errors as of `load`."""
        if origin.folder is None:
            return cls.parse(origin.texts, origin.identity)
        return cls.load(origin.folder, origin.variables)

    @classmethod
    def load(cls, folder: Path | str, variables: Mapping[str, str] | None = None) -> Project:
        """Read every `*.sql` file below `folder`, and its settings.

        See `read_texts` and `read_identity`.
        """
        given, place = dict(variables or {}), Path(folder)
        # Absolute: it may be read again when the process works elsewhere.
        origin = ProjectOrigin(place.absolute(), given)
        return cls._parse(read_texts(place, given), read_identity(place), origin)

    @classmethod
    def parse(cls, texts: Mapping[str, str], identity: ProjectIdentity | None = None) -> Project:
        """Read the objects that texts create; problems are kept for `check`.

        Args:
            texts: Texts by the file name for errors.
            identity: As of `Project`.
        """
        return cls._parse(texts, identity, ProjectOrigin(texts=dict(texts), identity=identity))

    @classmethod
    def _parse(
        cls, texts: Mapping[str, str], identity: ProjectIdentity | None, origin: ProjectOrigin
    ) -> Project:
        project = cls(identity)
        for file, text in texts.items():
            project._add(read_statements(Script(file, text)))
        project._origin = origin
        return project

    def source(
        self,
        name: str,
        format: str,  # noqa: A002 - what Spark calls it
        *,
        options: Mapping[str, object] | None = None,
        schema: str = "",
        envelope: Envelope = "none",
        key: Iterable[str] = (),
        retain: str | int | None = None,
        comment: str = "",
    ) -> Project:
        """Add a source.

        Args:
            name: Its name, in any case.
            format: A format of `spark.readStream.format`, or a load generator.
            options: Options of the format; numbers and booleans are written as Spark reads them.
            schema: Columns in DDL; "" for those of the format.
            envelope: Meaning of a row.
            key: Columns that identify a row; for upsert and debezium.
            retain: How far back contents stay readable: `'7 days'`, or milliseconds.
            comment: A text for people.

        Returns:
            The project.
        """
        return self._add(
            make_source(
                name,
                format,
                options=options or {},
                schema=schema,
                envelope=envelope,
                key=key,
                retain=retain,
                comment=comment,
            )
        )

    def view(
        self, name: str, query: str, *, retain: str | int | None = None, comment: str = ""
    ) -> Project:
        """Add a materialized view of `query`; other arguments as in `source`."""
        return self._add(make_view(name, query, retain, comment))

    def index(self, on: str, key: Iterable[str] = (), *, name: str = "") -> Project:
        """Add an index on an object, for look-ups by `key`, or by all columns."""
        return self._add(make_index(on, key, name))

    def sink(
        self,
        name: str,
        on: str,
        format: str,  # noqa: A002 - what Spark calls it
        *,
        options: Mapping[str, object] | None = None,
        envelope: Envelope = "diff",
        key: Iterable[str] = (),
        snapshot: bool = True,
    ) -> Project:
        """Add a sink.

        Args:
            name: Its name, in any case.
            on: Name of the source or view whose changes it writes.
            format: A format of `DataFrameWriter.format`.
            options: Options of the format.
            envelope: The form in which changes are written.
            key: Columns that identify a row; for upsert and debezium.
            snapshot: True to write the contents at the start first.

        Returns:
            The project.
        """
        return self._add(
            make_sink(
                name,
                on,
                format,
                options=options or {},
                envelope=envelope,
                key=key,
                snapshot=snapshot,
            )
        )

    @property
    def problems(self) -> list[Problem]:
        """Problems of texts and names, found without Spark."""
        reading = self._reading
        written = reading.written
        return [
            *reading.problems,
            *check_names(written, reading.broken),
            *check_places(written),
        ]

    def check(
        self,
        spark: SparkSession,
        ids: IdGenerator | None = None,
        earlier: Iterable[CheckedProject] = (),
    ) -> CheckedProject:
        """Check the whole project by Spark's analyzer.

        Args:
            spark: A session with the settings, functions and formats of the one that will run it.
            ids: Source of names of temporary views; None for random ones.
            earlier: Projects that were checked before: of views that have not changed since, Spark
                is not asked again.

        Raises:
            InvalidProject: Something is wrong; every problem that was found is in it.
        """
        # Checking names needs no Spark, and must not wait for its modules.
        from shardline.app.project.analyze import analyse  # noqa: PLC0415
        from shardline.app.sql.catalyst import Catalyst  # noqa: PLC0415

        problems = self.problems
        known: dict[str, WrittenObject] = {}
        for one in self._reading.written:
            known.setdefault(one.name, one)
        graph = Graph({name: one.reads for name, one in known.items()})
        ordered = [known[name] for name in graph.order()]
        with Catalyst(spark, ids or SystemIds()) as catalyst:
            analyses = [one.analysis for one in earlier if one.analysis is not None]
            analysis = analyse(catalyst, ordered, analyses)
        problems += analysis.problems
        if problems:
            raise InvalidProject(problems)
        return CheckedProject(
            descriptions={name: found.description for name, found in analysis.objects.items()},
            places={one.name: one.place() for one in ordered},
            schemas={n: found.ddl for n, found in analysis.objects.items() if found.ddl},
            comments={one.name: one.comment for one in ordered if one.comment},
            columns={n: found.schema for n, found in analysis.objects.items() if found.schema},
            identity=self._identity,
            unreachable={
                name: found.unreachable
                for name, found in analysis.objects.items()
                if found.unreachable is not None
            },
            origin=self._origin,
            analysis=analysis,
        )

    def _add(self, reading: ParsedStatements) -> Project:
        self._reading.written += reading.written
        self._reading.problems += reading.problems
        self._reading.broken |= reading.broken
        # Read again, the texts would not have what is added here.
        self._origin = None
        return self


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding=FILE_ENCODING)
    except (OSError, UnicodeDecodeError) as error:
        # `str` of an error of the operating system would name the file a second time.
        why = error.strerror if isinstance(error, OSError) else None
        raise InvalidUsage(
            f"'{file}' cannot be read: {why or error}",
            code="PROJECT_UNREADABLE",
            hint="files of a project are text in UTF-8"
            if isinstance(error, UnicodeDecodeError)
            else "each *.sql in the folder is a file of the project: mend it, or take it away",
        ) from error

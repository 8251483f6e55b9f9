"""A project: what somebody wants to exist, from SQL files or from Python, checked as a whole.

    Project.load(Path("project")).check(spark)          a folder of `*.sql` files
    Project.parse({"all.sql": text}).check(spark)       texts
    Project().source("flights", "csv", …).view("late", "SELECT …").check(spark)

`check` returns descriptions in an order in which they can be made, or raises one error with every
problem that can be found: those of the text, of the names, and, of what has neither, those that
Spark's analyzer finds.

Invariants:
    What Python gives is checked as what SQL says; equal objects have equal descriptions.
    Checking twice gives the same, and changes neither the project nor the session.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from shardline.app.project.names import check_names
from shardline.app.project.python_objects import made_index, made_sink, made_source, made_view
from shardline.app.project.statements import Kept, Reading, Written, read_statements
from shardline.app.project.variables import substituted
from shardline.app.protocol.graph import Graph
from shardline.app.protocol.objects import Envelope
from shardline.app.sql.problems import InvalidProject, Place, Problem, Script
from shardline.datasource.clock import IdGenerator, SystemIds
from shardline.datasource.errors import InvalidUsage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Project", "Resolved", "read_texts"]


def read_texts(folder: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """The texts of every `*.sql` file below `folder`, in the order of their paths.

    Args:
        folder: Of the project.
        variables: What `${name}` in the files stands for.

    Raises:
        InvalidUsage: There is no such folder, or no such file in it, one cannot be read, or a
            variable has no value.
    """
    files = sorted(folder.rglob("*.sql")) if folder.is_dir() else []
    if not files:
        raise InvalidUsage(
            f"'{folder}' is no folder with *.sql files",
            code="NO_PROJECT",
            hint="name the folder of a project",
        )
    texts = {str(file.relative_to(folder)): _text(file) for file in files}
    return {name: substituted(text, variables, name) for name, text in texts.items()}


@dataclass(frozen=True, slots=True)
class Resolved:
    """A project that can run.

    Attributes:
        descriptions: By name, inputs first, else in the order of the text.
        places: Where each is written.
        schemas: Columns of the contents of sources and views, in Spark's DDL.
        comments: Of the objects that have one.
    """

    descriptions: dict[str, Kept]
    places: dict[str, Place] = field(default_factory=dict)
    schemas: dict[str, str] = field(default_factory=dict)
    comments: dict[str, str] = field(default_factory=dict)


class Project:
    """Objects that somebody wants; see the module."""

    def __init__(self) -> None:
        self._reading = Reading()

    @classmethod
    def load(cls, folder: Path, variables: Mapping[str, str] | None = None) -> Project:
        """Every `*.sql` file below `folder`: see `read_texts`."""
        return cls.parse(read_texts(folder, variables or {}))

    @classmethod
    def parse(cls, texts: Mapping[str, str]) -> Project:
        """The objects that texts create; problems are kept for `check`.

        Args:
            texts: By file name, as errors are to name it.
        """
        project = cls()
        for file, text in texts.items():
            project._add(read_statements(Script(file, text)))
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
            name: In any case.
            format: As `spark.readStream.format` takes it, or a load generator.
            options: Of the format; numbers and booleans are written as Spark reads them.
            schema: Columns in DDL; "" for those of the format.
            envelope: What a row says.
            key: Columns that identify a row; for upsert and debezium.
            retain: How far back contents stay readable: `'7 days'`, or milliseconds.
            comment: For people.

        Returns:
            The project.
        """
        return self._add(
            made_source(
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
        """Add a view of the result of `query`; the rest as of a source."""
        return self._add(made_view(name, query, retain, comment))

    def index(self, on: str, key: Iterable[str] = (), *, name: str = "") -> Project:
        """Add an index on an object, for look-ups by `key`, or by all columns."""
        return self._add(made_index(on, key, name))

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
            name: In any case.
            on: Source or view that goes out.
            format: As `DataFrameWriter.format` takes it.
            options: Of the format.
            envelope: How changes are written.
            key: Columns that identify a row; for upsert and debezium.
            snapshot: Whether the contents at the start go out first.

        Returns:
            The project.
        """
        return self._add(
            made_sink(
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
        """What is wrong with texts and names, without asking Spark."""
        reading = self._reading
        return [*reading.problems, *check_names(reading.written, reading.broken)]

    def check(self, spark: SparkSession, ids: IdGenerator | None = None) -> Resolved:
        """What can run.

        Args:
            spark: A session with the settings, functions and formats of the one that will run it.
            ids: For names of temporary views.

        Raises:
            InvalidProject: Something is wrong; every problem that was found is in it.
        """
        # Checking names needs no Spark, and must not wait for its modules.
        from shardline.app.project.analyze import analyse  # noqa: PLC0415
        from shardline.app.sql.catalyst import Catalyst  # noqa: PLC0415

        problems = self.problems
        known: dict[str, Written] = {}
        for one in self._reading.written:
            known.setdefault(one.name, one)
        graph = Graph({name: one.reads for name, one in known.items()})
        ordered = [known[name] for name in graph.order()]
        with Catalyst(spark, ids or SystemIds()) as catalyst:
            analysis = analyse(catalyst, ordered)
        problems += analysis.problems
        if problems:
            raise InvalidProject(problems)
        return Resolved(
            descriptions={name: found.description for name, found in analysis.objects.items()},
            places={one.name: one.place() for one in ordered},
            schemas={n: found.ddl for n, found in analysis.objects.items() if found.ddl},
            comments={one.name: one.comment for one in ordered if one.comment},
        )

    def _add(self, reading: Reading) -> Project:
        self._reading.written += reading.written
        self._reading.problems += reading.problems
        self._reading.broken |= reading.broken
        return self


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidUsage(
            f"'{file}' cannot be read: {error}",
            code="PROJECT_UNREADABLE",
            hint="files of a project are text in UTF-8",
        ) from error

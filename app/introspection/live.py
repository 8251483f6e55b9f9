"""Live tables make relations readable as `introspection.<name>` in the SQL of a Spark session.

    with LiveTables(relations) as live:
        live.register(spark)
        spark.sql("SELECT * FROM introspection.frontiers")

Each relation is a table of the database `introspection`, over a Python data source of its own.
Spark looks a table up anew for each statement; while it plans, the data source requests the rows
from this process, over a Unix socket in a folder that only this user can enter, and puts them into
its one partition. So they are as of the planning of the statement, executors need no connection,
and a relation that is not read costs nothing.

(Spark gives a Python data source no options of its table, so the name of the relation and the
socket are part of the class. A temporary view would not do: it keeps what its data source planned
first.)

A `DataFrame` keeps the rows of its first action; make a new one for new rows. A relation that is
read twice in one statement is read at two moments.
"""

from __future__ import annotations

import os
import socket
import socketserver
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar, Final, Self

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructField, StructType
from typing_extensions import override

from shardline.app.introspection.relation import Relation
from shardline.app.introspection.store import Relations
from shardline.datasource.background import BackgroundThread
from shardline.datasource.frames import as_active, make_table
from shardline.datasource.scratch_folder import ScratchFolder

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["DATABASE", "LiveTables", "RelationSource"]

DATABASE: Final = "introspection"

_CATALOG: Final = "spark_catalog"
"""Spark's own catalog, in which `make_table` makes tables."""

_NAME_MAX: Final = 200
_CHUNK: Final = 1 << 16
_TIMEOUT_S: Final = 30.0

_STOP_LOOK_S: Final = 0.05
"""Pause between two looks of the server whether it should end: a stop waits no longer."""


class LiveTables:
    """Serves rows of relations to Spark's tables. Close it when the last session has ended."""

    def __init__(self, relations: Relations) -> None:
        """Listen for requests of the tables."""
        self._relations = relations
        self._scratch = ScratchFolder("shardline-tables-")
        self._folder = self._scratch.path
        self._server = _Server(self._folder / "socket", relations)
        BackgroundThread("introspection-tables", self._serve).start()

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close."""
        self.close()

    def register(self, spark: SparkSession) -> None:
        """Make the database, and a table for each relation."""
        # Spark refuses the name of a data source that the thread's active session has already.
        with as_active(spark):
            self._register(spark)

    def _register(self, spark: SparkSession) -> None:
        folder = (self._folder / "database").as_uri()
        # Another catalog may be the session's current one, and knows no data sources of Python.
        name = f"{_CATALOG}.{DATABASE}"
        spark.sql(f"CREATE DATABASE IF NOT EXISTS {name} LOCATION '{folder}'")
        for relation in self._relations.declared.values():
            source = _source(relation.name, self._folder / "socket")
            spark.dataSource.register(source)
            make_table(
                spark,
                DATABASE,
                relation.name,
                _columns(relation),
                provider=source.name(),
                comment=relation.comment,
            )

    def _serve(self) -> None:
        self._server.serve_forever(poll_interval=_STOP_LOOK_S)

    def close(self) -> None:
        """End: a statement that reads a relation later fails."""
        self._server.shutdown()
        self._server.server_close()
        self._scratch.remove()


class _Server(socketserver.ThreadingUnixStreamServer):
    """Answers the name of a relation with an Arrow stream of its rows."""

    daemon_threads = True

    def __init__(self, path: Path, relations: Relations) -> None:
        self.relations = relations
        super().__init__(os.fspath(path), _Answer)


class _Answer(socketserver.StreamRequestHandler):
    timeout = _TIMEOUT_S
    server: _Server

    @override
    def handle(self) -> None:
        name = self.rfile.readline(_NAME_MAX).decode().strip()
        table = self.server.relations.relation(name)
        with pa.ipc.new_stream(self.wfile, table.schema) as stream:
            stream.write_table(table)


class RelationSource(DataSource):
    """A relation as a data source of Spark; subclasses set `relation` and `address`."""

    relation: ClassVar[str] = ""
    address: ClassVar[str] = ""

    @classmethod
    @override
    def name(cls) -> str:
        """Provider of the table."""
        return f"{DATABASE}_{cls.relation}"

    @override
    def reader(self, schema: StructType) -> DataSourceReader:
        """Called in a helper process on the driver's machine, once per statement."""
        return _Reader(self.address, self.relation)


def _source(name: str, path: Path) -> type[RelationSource]:
    """The data source of one relation: a class of its own, which Spark takes by value."""

    class OneRelation(RelationSource):
        relation = name
        address = str(path)

    return OneRelation


class _Rows(InputPartition):
    """All rows, as an Arrow stream."""

    def __init__(self, stream: bytes) -> None:
        self.stream = stream


class _Reader(DataSourceReader):
    def __init__(self, address: str, relation: str) -> None:
        self._address = address
        self._relation = relation

    @override
    def partitions(self) -> Sequence[InputPartition]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
            asked.settimeout(_TIMEOUT_S)
            asked.connect(self._address)
            asked.sendall(f"{self._relation}\n".encode())
            return [_Rows(b"".join(iter(lambda: asked.recv(_CHUNK), b"")))]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, _Rows), partition
        yield from pa.ipc.open_stream(partition.stream)


def _columns(relation: Relation) -> StructType:
    return StructType(
        [
            StructField(one.name, from_arrow_type(one.type), metadata={"comment": one.comment})
            for one in relation.columns
        ]
    )

"""Makes entries of a session's catalog by one call each, without a command of Spark's.

    analyse_query(session, text, frames)      the frame of a text that reads these frames by name
    make_table(session, database, name, …)    a table over a data source

Spark's own ways, `createOrReplaceTempView` and `CREATE TABLE`, are commands: parsed, analysed,
planned and run as an execution of their own, which every listener hears of. In a JVM that has just
started that is 25 ms and more for one, and an application makes hundreds. An entry is a line in a
map. (The commands' own code is in Spark's classes CreateViewCommand and V2SessionCatalog.)

Invariants:
    The entries are those that Spark's commands make, apart from the owner.
    A query's views are gone when it is analysed, and also if it is refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import DataFrame

from shardline.datasource.spark_native.compiled_java import shared_object

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

__all__ = ["analyse_query", "make_table"]

_CLASS: Final = "CatalogEntries"


def analyse_query(session: SparkSession, text: str, frames: Mapping[str, DataFrame]) -> DataFrame:
    """The result of a query; nothing of it is run yet.

    Args:
        session: The query's, which the frames must be of, too.
        text: SQL as the user wrote it.
        frames: What it reads, by the names that it has there, in any case: they come before tables
            and other views of these names.

    Raises:
        AnalysisException: Of Spark: the text is no query over these frames.
    """
    java: Any = session._jsparkSession  # noqa: SLF001 - no public door
    # By the names that the gateway has for them: a list would take a call for each of its elements.
    kept = " ".join(frame._jdf._target_id for frame in frames.values())  # noqa: SLF001 - as above
    return DataFrame(_entries(session).analysed(java, text, kept, "\0".join(frames)), session)


def make_table(
    session: SparkSession,
    database: str,
    name: str,
    columns: StructType,
    *,
    provider: str,
    comment: str,
) -> None:
    """Make a table, if it is not there; it has a folder in that of the database.

    Args:
        session: Any of those that share the catalog.
        database: Where it is to be; it must be there.
        name: Its name.
        columns: With comments.
        provider: Name of its data source, which the session knows.
        comment: For people.
    """
    java: Any = session._jsparkSession  # noqa: SLF001 - no public door
    _entries(session).makeTable(java, database, name, columns.json(), provider, comment)


def _entries(session: SparkSession) -> Any:
    java: Any = session._jsparkSession  # noqa: SLF001 - no public door
    return shared_object(java._gateway_client, _CLASS)  # noqa: SLF001 - as above

"""The registry lists all relations by name; documentation and interfaces are made from it.

`listener` is about one sink, so it is made with the sink; the one here has its columns.
`native_reads` is about the counts that it is made with: in an application those of the process.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import pyarrow as pa

from shardline.app.introspection.inbox import Inbox
from shardline.app.introspection.relation import (
    AT,
    FLAG,
    NUMBER,
    NUMBERS,
    REAL,
    TEXT,
    TEXTS,
    Relation,
)
from shardline.app.introspection.relations.details import DETAILS
from shardline.app.introspection.relations.health import HEALTH
from shardline.app.introspection.relations.lag_distribution import LAG_DISTRIBUTION
from shardline.app.introspection.relations.marks import MARKS
from shardline.app.introspection.relations.movement import MOVEMENT
from shardline.app.introspection.relations.native_reads import native_reads_relation
from shardline.app.introspection.relations.process import PROCESS
from shardline.app.introspection.relations.progress import PROGRESS
from shardline.app.introspection.relations.structure import STRUCTURE
from shardline.app.introspection.relations.system import SYSTEM
from shardline.app.introspection.relations.verdicts import VERDICTS
from shardline.app.introspection.relations.view_steps import VIEW_STEPS
from shardline.app.introspection.sink import listener_relation
from shardline.datasource.report import ReadCounts

__all__ = ["documentation", "relations_with", "sql_type"]

_SQL: Final = {
    TEXT: "STRING",
    NUMBER: "BIGINT",
    REAL: "DOUBLE",
    FLAG: "BOOLEAN",
    AT: "TIMESTAMP",
    TEXTS: "ARRAY<STRING>",
    NUMBERS: "ARRAY<BIGINT>",
}

_ALL: Final = (
    *STRUCTURE,
    *DETAILS,
    *VERDICTS,
    *MARKS,
    *PROGRESS,
    *LAG_DISTRIBUTION,
    *MOVEMENT,
    *VIEW_STEPS,
    *HEALTH,
    *SYSTEM,
    *PROCESS,
)


def relations_with(inbox: Inbox, reads: ReadCounts) -> Mapping[str, Relation]:
    """All relations, in the order of the documentation.

    Args:
        inbox: The queue that the relation `listener` is about.
        reads: What the relation `native_reads` is about.
    """
    every = (*_ALL, native_reads_relation(reads), listener_relation(inbox))
    return MappingProxyType({relation.name: relation for relation in every})


def documentation(relations: Mapping[str, Relation]) -> str:
    """All relations with their columns, as Markdown."""
    lines: list[str] = []
    for relation in relations.values():
        kept = " Kept over restarts." if relation.histories else ""
        lines += [f"### {relation.name}", "", f"{relation.comment}.{kept}", ""]
        lines += ["| column | type | meaning |", "|---|---|---|"]
        lines += [f"| `{c.name}` | {sql_type(c.type)} | {c.comment} |" for c in relation.columns]
        lines.append("")
    return "\n".join(lines)


def sql_type(kind: pa.DataType) -> str:
    """The name of a column's type in Spark SQL."""
    return _SQL[kind]

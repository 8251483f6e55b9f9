"""Three hundred objects over small files: sources, three layers of views, indexes and sinks.

Objects of one part of a firm have names that begin with it, as in real projects. All views have the
columns `id` and `n`, so that each can be made of any other.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

__all__ = ["DEPARTMENTS", "LargeProject", "large_project"]

DEPARTMENTS: Final = ("billing", "fleet", "sales", "stock", "web")

_SOURCES, _SINKS, _INDEXES = 4, 4, 4
_LAYERS: Final = (24, 16, 8)
"""Views of each layer: the first is over sources, each other one over the layer before."""

_KINDS: Final = (
    "SELECT id, n * {j} AS n FROM {one} a WHERE n % 5 <> {k}",
    "SELECT id % {j} AS id, sum(n) AS n FROM {one} a GROUP BY id % {j}",
    "SELECT a.id AS id, a.n + b.n AS n FROM {one} a JOIN {other} b ON a.id = b.id",
    "SELECT id, max(n) AS n FROM {one} a WHERE id > {k} GROUP BY id",
)


@dataclass(slots=True)
class LargeProject:
    """A project, and what can be asked of it.

    Attributes:
        statements: Its SQL; `${in}` is the folder of the sources' files.
        names: Of all objects, by kind.
        tables: Columns of each source.
        queries: Of each view, over the sources alone.
    """

    statements: list[str] = field(default_factory=list)
    names: dict[str, list[str]] = field(
        default_factory=lambda: {kind: [] for kind in ("source", "view", "index", "sink")}
    )
    tables: dict[str, str] = field(default_factory=dict)
    queries: dict[str, str] = field(default_factory=dict)

    def add(self, kind: str, name: str, statement: str) -> None:
        """Add an object."""
        self.names[kind].append(name)
        self.statements.append(statement)


def large_project() -> LargeProject:
    """Make it: of each department 4 sources, 48 views, 4 indexes and 4 sinks."""
    made = LargeProject()
    for department in DEPARTMENTS:
        below = [f"{department}_raw_{i}" for i in range(_SOURCES)]
        for name in below:
            made.tables[name] = "id INT, n INT"
            made.add(
                "source",
                name,
                f"CREATE SOURCE {name} USING csv OPTIONS (path '${{in}}/{name}', header 'true') "
                "SCHEMA (id INT, n INT);",
            )
        for layer, many in enumerate(_LAYERS, 1):
            below = [_view(made, f"{department}_l{layer}_{i:02}", i, below) for i in range(many)]
        for i, on in enumerate(below[:_INDEXES]):
            name = f"{department}_by_id_{i}"
            made.add("index", name, f"CREATE INDEX {name} ON {on} (id);")
        for i, on in enumerate(below[-_SINKS:]):
            name = f"{department}_out_{i}"
            made.add(
                "sink",
                name,
                f"CREATE SINK {name} FROM {on} USING parquet OPTIONS (path '${{in}}/out/{name}');",
            )
    return made


def _view(made: LargeProject, name: str, number: int, below: list[str]) -> str:
    """Add a view over two of what is below it."""
    one, other = below[number % len(below)], below[(number + 1) % len(below)]
    query = _KINDS[number % len(_KINDS)]
    numbers = {"j": number + 2, "k": number % 5}
    made.add(
        "view",
        name,
        f"CREATE MATERIALIZED VIEW {name} AS {query.format(one=one, other=other, **numbers)};",
    )
    inner = {
        given: f"({made.queries[given]})" if given in made.queries else given for given in below
    }
    made.queries[name] = query.format(one=inner[one], other=inner[other], **numbers)
    return name

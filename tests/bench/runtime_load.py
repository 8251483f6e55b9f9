"""Makes the projects that the runtime is measured with, of any size, in the project's own SQL.

    streaming   bids and auctions of Nexmark at a rate, with views that follow them
    resting     files that never change, with objects of all kinds

Views come in turns of four: a linear one, an aggregation, another linear one, and an aggregation
over a join of both sources. Each differs from the others of its kind by a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["STAMP", "STAMPED", "Load", "resting", "streaming"]

STAMPED: Final = "bids"
"""The source whose rows say when they were made."""

STAMP: Final = "dateTime"
"""The column that says it."""

_BIDS, _ROUND = 46, 50
"""Of so many events of Nexmark so many are bids."""

_KINDS: Final = (
    "SELECT auction, bidder, price, dateTime FROM bids WHERE auction % 128 = {n}",
    (
        "SELECT bidder % 64 AS who, count(*) AS bids, max(price) AS most FROM bids "
        "WHERE bidder % 32 <> {n} GROUP BY bidder % 64"
    ),
    "SELECT auction, price * {n} AS dollars, channel FROM bids WHERE bidder % 128 = {n}",
    (
        "SELECT a.category, count(*) AS bids, sum(b.price) AS volume FROM bids b "
        "JOIN auctions a ON b.auction = a.id WHERE b.bidder % 32 <> {n} GROUP BY a.category"
    ),
)

_RESTING: Final = (
    "SELECT id, kind FROM {one} WHERE id > {n}",
    "SELECT kind, count(*) AS rows FROM {one} WHERE id > {n} GROUP BY kind",
    (
        "SELECT a.kind, sum(b.id) AS total FROM {one} a JOIN {other} b ON a.id = b.id "
        "WHERE a.id > {n} GROUP BY a.kind"
    ),
)


@dataclass(frozen=True, slots=True)
class Load:
    """A project, and what of it is looked at.

    Attributes:
        sql: The project.
        views: Names of its views.
        sources: Names of its sources.
        objects: How many objects there are.
    """

    sql: str
    views: Sequence[str]
    sources: Sequence[str]
    objects: int


def streaming(views: int, rate: int) -> Load:
    """Views over bids that come at `rate` rows a second, and the auctions that belong to them."""
    events = rate * _ROUND // _BIDS
    statements = [
        f"CREATE SOURCE {name} USING nexmark OPTIONS (table '{table}', rate '{events}');"
        for name, table in ((STAMPED, "bid"), ("auctions", "auction"))
    ]
    made = [f"view_{number}" for number in range(views)]
    for number, name in enumerate(made):
        query = _KINDS[number % len(_KINDS)].format(n=number + 1)
        statements.append(f"CREATE MATERIALIZED VIEW {name} AS {query};")
    return Load("\n".join(statements), made, (STAMPED, "auctions"), len(statements))


def resting(folder: Path, views: int, others: int) -> Load:
    """Views over files that never change; `others` counts sources, indexes and sinks together.

    Args:
        folder: Where the files are made.
        views: How many.
        others: At least 2: sources first, then an index and a sink in turns of four.
    """
    sources: list[str] = []
    statements: list[str] = []
    for number in range(others):
        on = f"view_{number % max(views, 1)}"
        match number % 4:
            case 2 if views:
                statements.append(f"CREATE INDEX index_{number} ON {on};")
            case 3 if views:
                out = folder / f"out_{number}"
                statements.append(
                    f"CREATE SINK sink_{number} FROM {on} USING parquet OPTIONS (path '{out}');"
                )
            case _:
                sources.append(_file_source(folder, number))
                statements.insert(0, _source_sql(sources[-1], folder))
    made = [f"view_{number}" for number in range(views)]
    for number, name in enumerate(made):
        one, other = sources[number % len(sources)], sources[(number + 1) % len(sources)]
        statements.insert(len(sources) + number, _resting_view(name, number, one, other))
    return Load("\n".join(statements), made, sources, len(statements))


def _file_source(folder: Path, number: int) -> str:
    name = f"source_{number}"
    (folder / name).mkdir(parents=True)
    rows = "".join(f"{row},{row % 7}\n" for row in range(1000))
    (folder / name / "rows.csv").write_text(f"id,kind\n{rows}", encoding="utf-8")
    return name


def _source_sql(name: str, folder: Path) -> str:
    return (
        f"CREATE SOURCE {name} USING csv OPTIONS (path '{folder / name}', header 'true') "
        "SCHEMA (id INT, kind INT);"
    )


def _resting_view(name: str, number: int, one: str, other: str) -> str:
    query = _RESTING[number % len(_RESTING)].format(one=one, other=other, n=number)
    return f"CREATE MATERIALIZED VIEW {name} AS {query};"

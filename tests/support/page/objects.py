"""Definitions of made projects: one object, a demo of fifteen, three hundred, and hostile names."""

from __future__ import annotations

from typing import Final

from shardline.app.protocol.objects import (
    Description,
    IndexDescription,
    SinkDescription,
    SourceDescription,
    ViewDescription,
)

__all__ = ["HOSTILE_NAMES", "PROJECTS", "demo_project", "hostile_project", "large_project"]

_FLIGHT_COLUMNS: Final = "year INT, month INT, day INT, carrier STRING, tailnum STRING, delay INT"

HOSTILE_NAMES: Final = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "\u202egnp.exe",
    "mail\nof\tlast\u0000night",
    "قاعدة البيانات",
    "${alert(1)} {{constructor}}",
    "../../etc/passwd?at=1#x%2F",
    "x" * 10_000,
)
"""Names that a page must show and must not obey. The last one has 10 kB."""


def source(
    name: str, *, form: str = "csv", schema: str = _FLIGHT_COLUMNS, **options: str
) -> SourceDescription:
    """A source of files."""
    return SourceDescription(name=name, format=form, schema=schema, options=options)


def view(
    name: str, inputs: tuple[str, ...], query: str = "", *, linear: bool = True
) -> ViewDescription:
    """A view that reads `inputs`; its query joins them unless another one is given."""
    joined = " JOIN ".join(f"`{one}`" for one in inputs)
    return ViewDescription(
        name=name,
        query=query or f"SELECT carrier, count(*) AS n FROM {joined} GROUP BY 1",  # noqa: S608
        inputs=tuple(sorted(inputs)),
        schema="carrier STRING, n BIGINT",
        strategy="linear" if linear else "recompute",
        reason="" if linear else "a window function (row_number)",
    )


def demo_project() -> list[Description]:
    """Fifteen objects as a real project has them: every kind, and paths of up to five steps."""
    return [
        source("flights", path="/landing", maxFilesPerTrigger="24"),
        source("airlines", schema="carrier STRING, name STRING"),
        source("planes", schema="tailnum STRING, manufacturer STRING, seats INT"),
        source("airports", schema="faa STRING, name STRING, lat DOUBLE, lon DOUBLE"),
        SourceDescription(
            name="weather", format="kafka", options={"subscribe": "weather"}, schema="value STRING"
        ),
        view(
            "delays_by_carrier",
            ("flights",),
            "SELECT carrier, count(*) AS flights, sum(delay) AS delay_sum,\n"
            "       count_if(delay > 15) AS late\nFROM flights\nGROUP BY carrier",
        ),
        view(
            "carrier_ranking",
            ("airlines", "delays_by_carrier"),
            "WITH means AS (\n  SELECT d.carrier, a.name, d.delay_sum / d.flights AS mean_delay\n"
            "  FROM delays_by_carrier d LEFT JOIN airlines a ON d.carrier = a.carrier\n)\n"
            "SELECT *, row_number() OVER (ORDER BY mean_delay DESC, carrier) AS place FROM means",
            linear=False,
        ),
        view(
            "very_late",
            ("flights",),
            "SELECT carrier, tailnum, delay FROM flights WHERE delay > 120",
        ),
        view(
            "busiest_planes",
            ("flights", "planes"),
            "SELECT f.tailnum, max(p.manufacturer) AS manufacturer, count(*) AS flights\n"
            "FROM flights f JOIN planes p ON f.tailnum = p.tailnum\n"
            "GROUP BY f.tailnum\nHAVING count(*) > 100",
            linear=False,
        ),
        view(
            "storms",
            ("airports", "weather"),
            "SELECT a.faa, w.value FROM weather w JOIN airports a ON w.value = a.faa",
        ),
        view(
            "late_in_storms",
            ("storms", "very_late"),
            "SELECT v.carrier, s.value FROM very_late v JOIN storms s ON s.faa = v.carrier",
        ),
        IndexDescription(name="carrier_ranking_by_carrier", on="carrier_ranking", key=("carrier",)),
        SinkDescription(
            name="ranking_out", on="carrier_ranking", format="parquet", options={"interval": "2s"}
        ),
        SinkDescription(name="planes_out", on="busiest_planes", format="delta"),
        SinkDescription(name="alerts_out", on="late_in_storms", format="kafka"),
    ]


def single_project() -> list[Description]:
    """One source."""
    return [source("flights", path="/landing")]


def deep_project() -> list[Description]:
    """A chain of views that nobody reads, beside a sink of its source, and a view of nothing."""
    return [
        source("flights"),
        view("first", ("flights",)),
        view("second", ("first",)),
        view("third", ("second",)),
        SinkDescription(name="flights_out", on="flights", format="parquet"),
        view("constant", ()),
    ]


def large_project(count: int = 300) -> list[Description]:
    """Many objects of several departments: sources, layers of views, indexes and sinks."""
    departments = ("sales", "stock", "billing", "web", "support", "fleet")
    found: list[Description] = []
    readable: dict[str, list[str]] = {one: [] for one in departments}
    for number in range(count):
        department = departments[number % len(departments)]
        own, place = readable[department], number // len(departments)
        if place < 8:
            name = f"{department}_events_{place:02d}"
            own.append(name)
            found.append(source(name))
        elif place % 7 == 5:
            found.append(IndexDescription(name=f"{department}_by_key_{place:02d}", on=own[-1]))
        elif place % 7 == 6:
            found.append(
                SinkDescription(name=f"{department}_out_{place:02d}", on=own[-1], format="parquet")
            )
        else:
            inputs = {own[-1], own[(place * 5) % len(own)]}
            if place % 9 == 0:
                inputs.add(readable[departments[(number + 1) % len(departments)]][0])
            name = f"{department}_summary_{place:02d}"
            own.append(name)
            found.append(view(name, tuple(sorted(inputs)), linear=place % 3 != 0))
    return found


def hostile_project() -> list[Description]:
    """Objects whose names, definitions and options are attacks."""
    names = HOSTILE_NAMES
    found: list[Description] = [source(names[0]), source(names[1]), source(names[2])]
    found += [
        view(names[3], (names[0], names[1]), "SELECT '</script><script>alert(1)</script>' AS x"),
        view(names[4], (names[2],), "SELECT '" + "y" * 10_000 + "' AS x"),
        view(names[5], (names[3], names[4])),
        SinkDescription(name=names[6], on=names[5], format="<b>parquet</b>"),
        view(names[7], (names[5],)),
    ]
    return found


PROJECTS: Final = {
    "none": list,
    "one": single_project,
    "demo": demo_project,
    "deep": deep_project,
    "large": large_project,
    "hostile": hostile_project,
}
"""Makers of projects, by name."""

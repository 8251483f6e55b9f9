"""A world of inputs with a history, and what views of them hold at each time by other engines."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TYPE_CHECKING, Final, get_args

import duckdb
import pyarrow as pa
from msgspec.structs import replace

from shardline.app.compute.view.maintained_view import View
from shardline.app.compute.view.step_costs import StepCosts
from shardline.app.execution.observations import Measured
from shardline.app.project.project import Project
from shardline.app.protocol.objects import Strategy, ViewDescription
from shardline.datasource.spark_native.time_interval import Interval
from support.spark.views import Bench, Following, Input, Row, comparable, contents, no_fence
from support.strategies.rows import plain_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession

__all__ = ["ORDERS", "START", "Killed", "SteppedView", "ViewWorld", "World"]

WAYS: Final = get_args(Strategy)

START: Final = 10
TIMES: Final = (10, 20, 40)
"""When inputs change."""

LATE: Final = 20
"""At this time, and a little after it, in one part."""

END: Final = 50

ORDERS: Final = pa.schema(
    [
        ("id", pa.int64()),
        ("who", pa.string()),
        ("price", pa.int32()),
        ("weight", pa.float64()),
        ("cost", pa.decimal128(10, 2)),
        ("tags", pa.list_(pa.string())),
    ]
)
PEOPLE: Final = pa.schema([("name", pa.string()), ("city", pa.string())])
VISITS: Final = pa.schema([("who", pa.string()), ("day", pa.int32())])


NUMBERS: Final = pa.schema([("a", pa.int64()), ("b", pa.int64()), ("c", pa.int64())])


class ViewWorld:
    """Inputs with a history, a session to run views in, and what plain Spark makes of each time.

    Attributes:
        inputs: By name; filled by whoever makes it.
        plain: The session in which plain Spark answers.
    """

    def __init__(
        self, spark: SparkSession, folder: Path, cuts: Sequence[int], looks: Sequence[int]
    ) -> None:
        """No inputs yet, in a location in `folder`.

        Args:
            cuts: Where the steps of views end; the last is what inputs are settled to.
            looks: The times at which contents are compared.
        """
        self.bench = Bench(spark, str(folder / "lake"), folder / "checkpoints")
        self.session = spark.newSession()
        self.plain = spark.newSession()
        self.inputs: dict[str, Input] = {}
        self._cuts = cuts
        self._looks = looks
        self._plain: list[_Plain] = []
        self._ducks: dict[int, duckdb.DuckDBPyConnection] = {}

    def kept(self, name: str, query: str) -> ViewDescription:
        """The view as a project that is checked keeps it."""
        project = Project()
        project.view(name, query)
        # Those alone that may be meant: a check takes as long for each as for a view.
        text = query.lower()
        for source, found in self.inputs.items():
            if source in text:
                project.source(source, "json", options={"path": "later"}, schema=_ddl(found))
        kept = project.check(self.bench.spark).descriptions[name]
        assert isinstance(kept, ViewDescription)
        return kept

    def follow(self, kept: ViewDescription, expected: Callable[[int], Counter[Row]]) -> set[str]:
        """Keep a view through all of history, and compare its contents at each time.

        Whatever it says of itself, it is tried first what follows from changes.

        Returns:
            The ways in which its steps were taken.
        """
        bench, name = self.bench, kept.name
        tried = replace(kept, strategy="incremental")
        run = View(bench.host, bench.incarnation(name, START), tried, no_fence, Following())
        run.advance(self.session, Interval(START, self._cuts[0], starts=True))
        for lower, upper in itertools.pairwise(self._cuts):
            run.advance(self.session, Interval(lower, upper))
        for time in self._looks:
            found, right = contents(bench.client, name, time), expected(time)
            assert found == right, (time, found - right, right - found)
        assert not self.session.catalog.listTables()
        return set(self.steps(name))

    def steps(self, name: str) -> Counter[str]:
        """How many steps of a view were taken in each way."""
        steps = [one for one in self.bench.told(Measured) if one.id == name]
        ways = ((way, one.added.get(f"evaluations_{way}", 0)) for one in steps for way in WAYS)
        found: Counter[str] = Counter()
        for way, count in ways:
            found[way] += int(count)
        return +found

    def by_spark(self, query: str, time: int) -> Counter[Row]:
        """What Spark makes of the model's rows at `time`, as plain tables without a history."""
        there = {name: found.at(time) for name, found in self.inputs.items()}
        plain = next((one for one in self._plain if one.rows == there), None)
        if plain is None:
            frames = {
                name: self.plain.createDataFrame(_table(found, time))
                for name, found in self.inputs.items()
            }
            plain = _Plain(there, frames)
            self._plain.append(plain)
        if query not in plain.answers:
            for name, frame in plain.frames.items():
                frame.createOrReplaceTempView(name)
            rows = plain_rows(self.plain.sql(query).toArrow())
            plain.answers[query] = Counter(comparable(row) for row in rows)
        return plain.answers[query]

    def by_duck(self, query: str, time: int) -> Counter[Row]:
        """What DuckDB makes of the model's rows at `time`."""
        if time not in self._ducks:
            self._ducks[time] = connection = duckdb.connect()
            for name, found in self.inputs.items():
                connection.register(f"{name}_rows", self.for_duck(_table(found, time)))
                connection.table(f"{name}_rows").create(name)
        return Counter(comparable(row) for row in self._ducks[time].execute(query).fetchall())

    def for_duck(self, rows: pa.Table) -> pa.Table:
        """Rows of an input as DuckDB gets them."""
        return rows

    def close(self) -> None:
        """End DuckDB's part."""
        for connection in self._ducks.values():
            connection.close()


class Killed(Exception):
    """The process has ended here."""


class SteppedView:
    """A view that is kept step by step, and started again where it ends.

    Attributes:
        view: The present process's.
    """

    def __init__(self, world: ViewWorld, name: str, query: str, costs: StepCosts) -> None:
        """Begin to keep a view; it is tried first what follows from changes."""
        self.world, self.name, self.query, self._costs = world, name, query, costs
        self._description = replace(world.kept(name, query), strategy="incremental")
        self.start()

    def start(self) -> None:
        """Begin a process that knows nothing of the one before."""
        bench = self.world.bench
        incarnation = bench.incarnation(self.name, START)
        self.view = View(bench.host, incarnation, self._description, no_fence, self._costs)

    def step(self, lower: int, upper: int) -> None:
        """Take a step; again, by another process, if it is killed in the middle."""
        interval = Interval(lower, upper, starts=lower == START)
        try:
            self.view.advance(self.world.session, interval)
        except Killed:
            self.start()
            self.view.advance(self.world.session, interval)


class World(ViewWorld):
    """Inputs that were updated at random, and a session to run views in."""

    def __init__(
        self,
        spark: SparkSession,
        folder: Path,
        times: Sequence[int] = TIMES,
        apart: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        """Inputs in a location in `folder`.

        Args:
            times: When they change: some of `TIMES`.
            apart: Those that change at other times, and these.
        """
        looks = sorted({t + d for t in times for d in (0, 2, 3)} | {END - 1})
        super().__init__(spark, folder, (START + 1, LATE, 22, END), looks)
        draw = random.Random(7)
        makers: dict[str, Callable[[random.Random], Row]] = {
            "orders": _order,
            "people": lambda draw: (_who(draw), draw.choice([None, "Rome", "Oslo"])),
            "visits": lambda draw: (_who(draw), draw.randrange(5)),
            "numbers": _numbers,
        }
        schemas = {"orders": ORDERS, "people": PEOPLE, "visits": VISITS, "numbers": NUMBERS}
        for name, make in makers.items():
            self.inputs[name] = found = self.bench.input(name, schemas[name])
            for time in (apart or {}).get(name, times):
                rows = [(make(draw), 1) for _ in range(6 if time == START else 2)]
                there = found.at(time - 1)
                gone = [(row, -1) for row in draw.sample(there, min(2, len(there)))]
                late = [0, 3] if time == LATE else [0]
                changes = [(time + draw.choice(late), row, d) for row, d in rows + gone]
                found.append(changes, time + 5)
            found.idle(END)


@dataclass
class _Plain:
    """Plain tables of some rows, which several times have: made once, and each query asked once."""

    rows: dict[str, list[Row]]
    frames: dict[str, DataFrame]
    answers: dict[str, Counter[Row]] = field(default_factory=dict)


def _table(found: Input, time: int) -> pa.Table:
    rows = found.at(time)
    return pa.Table.from_pylist(
        [dict(zip(found.schema.names, row, strict=True)) for row in rows], found.schema
    )


def _ddl(found: Input) -> str:
    from pyspark.sql.pandas.types import from_arrow_schema

    types = from_arrow_schema(found.schema)
    return ", ".join(f"{field.name} {field.dataType.simpleString()}" for field in types)


def _who(draw: random.Random) -> str | None:
    return draw.choice([None, "ada", "bob", "cyd", "dan"])


def _order(draw: random.Random) -> Row:
    return (
        draw.randrange(6),
        _who(draw),
        draw.randrange(5, 30),
        draw.choice([None, math.nan, 0.25, 1.5, -2.0]),
        draw.choice([None, Decimal("1.10"), Decimal("20.05")]),
        draw.choice([None, (), ("x",), ("x", "y", "x")]),
    )


def _numbers(draw: random.Random) -> Row:
    # 1 is a diff, and the tens are times: what mistakes one for a value finds it.
    return tuple(draw.choice([None, -1, 0, 1, 2, 10, 20, 40]) for _ in NUMBERS)

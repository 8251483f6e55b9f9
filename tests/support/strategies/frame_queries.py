"""Strategies for queries over frames, as functions of PySpark's own API and of SQL.

A query is a value, so that the same one can be asked of frames that were made in different ways: of
`now` and `then`, the contents of one shard at two times, and of `other`, another shard. All have
the columns `id` (bigint), `t` (string) and `x` (double), and so has every result.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from hypothesis import strategies as st
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame

BASES: Final = ("now", "then", "other")

_CONDITIONS: Final = (
    "id > 10",
    "id in (3, 4, 25) or t = 't1'",
    "x > 1",
    "x = 0",
    "x is null",
    "not (x <= 1)",
    "isnan(x) or id % 3 = 0",
    "t like 't%' and id between 2 and 30",
    "id < 0",
)


def _by_functions(frame: DataFrame) -> DataFrame:
    is_odd = F.udf(lambda n: n is not None and n % 2 == 1, "boolean")
    loud = F.udf(lambda t: t if t is None else t.upper(), "string")
    return frame.where(is_odd("id")).select("id", loud("t").alias("t"), "x")


_STEPS: Final[dict[str, Callable[[DataFrame], DataFrame]]] = {
    "distinct": lambda f: f.distinct(),
    "sums": lambda f: f.groupBy("t").agg(F.sum("id").alias("id"), F.max("x").alias("x")),
    "first ones": lambda f: f.orderBy("id", "t", F.col("x") + 0.0).limit(5),
    "functions": _by_functions,
    "other columns": lambda f: f.selectExpr("x as y", "id + 1 as id", "t").select(
        "id", "t", F.col("y").alias("x")
    ),
    "cached": lambda f: f.cache(),
    "maximum": lambda f: f.where(F.col("id") >= f.select(F.max("id") - 5).scalar()),
    "window": lambda f: f.selectExpr(
        "count(*) over (partition by t order by id range 2 preceding) as id",
        "t",
        "x",
    ),
    "arrow": lambda f: f.mapInArrow(lambda batches: batches, f.schema),
    "exploded": lambda f: f.selectExpr("explode(array(id, -id)) as id", "t", "x"),
    "repartitioned": lambda f: f.repartition(3, "t"),
}

_PAIRS: Final[dict[str, Callable[[DataFrame, DataFrame], DataFrame]]] = {
    "union": lambda a, b: a.union(b),
    "except": lambda a, b: a.exceptAll(b),
    "intersect": lambda a, b: a.intersect(b),
    "join": lambda a, b: a.alias("a").join(b.alias("b"), "id").selectExpr("id", "b.t", "a.x"),
    "left join": lambda a, b: (
        a.alias("a")
        .join(b.alias("b"), F.expr("a.id = b.id + 1"), "left")
        .selectExpr("a.id", "b.t", "b.x")
    ),
    "semi-join": lambda a, b: a.join(b, "t", "left_semi").select("id", "t", "x"),
    "anti-join": lambda a, b: a.join(b, "id", "left_anti").select("id", "t", "x"),
}

_SQL: Final = (
    "select id, t, x from {a} where id in (select id from {b} where x is not null)",
    "select id, t, x from {a} where exists (select 1 from {b} b where b.id = {a}.id and t = 't1')",
    "with c as (select * from {a} where id > 5) select id, r.t, r.x from c l join c r using (id)",
    "select (select count(*) from {b}) as id, t, x from {a} where id > (select min(id) from {b})",
    "select id, t, x from {a} union all select max(id), t, min(x) from {b} group by t",
)


@dataclass(frozen=True, slots=True)
class Query:
    """A step over the results of other queries; a base has none."""

    name: str
    of: tuple[Query, ...] = ()

    def ask(self, frames: dict[str, DataFrame]) -> DataFrame:
        """The query over frames by the names in `BASES`, which are temporary views, too."""
        found = [query.ask(frames) for query in self.of]
        if not found:
            return frames[self.name]
        if self.name in _STEPS:
            return _STEPS[self.name](*found)
        if self.name in _PAIRS:
            return _PAIRS[self.name](*found)
        if self.name in _CONDITIONS:
            return found[0].where(self.name)
        names = [f"asked_{id(frame)}" for frame in found]
        for name, frame in zip(names, found, strict=True):
            frame.createOrReplaceTempView(name)
        try:
            return found[0].sparkSession.sql(self.name.format(a=names[0], b=names[-1]))
        finally:
            for name in set(names):
                found[0].sparkSession.catalog.dropTempView(name)


_bases = st.sampled_from(BASES).map(Query)


def _steps(inner: st.SearchStrategy[Query]) -> st.SearchStrategy[Query]:
    one = st.builds(Query, st.sampled_from([*_STEPS, *_CONDITIONS]), st.tuples(inner))
    two = st.builds(Query, st.sampled_from([*_PAIRS, *_SQL]), st.tuples(inner, inner))
    return one | two


queries: Final[st.SearchStrategy[Query]] = _steps(st.recursive(_bases, _steps, max_leaves=4))
"""Queries of one step at least."""


def shown(frame: DataFrame) -> Counter[Any]:
    """The rows of a result; of zeros, the sign is not compared, which grouping does not keep."""
    rows = (tuple(0.0 if value == 0 else value for value in row) for row in frame.collect())
    return Counter(map(repr, rows))

"""The check compares all shards with plain Spark over the raw CSV files.

Two tables are equal if, with the rows of one counted as +1 and those of the other as -1, all rows
cancel, nulls included: this compares multisets, so neither order nor duplicates can hide a
difference. Contents of views are computed a second time, by other queries and from the package's
files; neither the shards nor the project's queries are used on that side.

All shards are read at one time, as any query over them would be.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from shardline import datasource
from shardline.app.demo.data import FLIGHTS, TABLES
from shardline.app.demo.place import Place

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["Check", "Finding"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One comparison.

    Attributes:
        what: The number that is compared, in words.
        expected: Its value by plain Spark.
        found: Its value by the shards.
    """

    what: str
    expected: int
    found: int

    @property
    def agrees(self) -> bool:
        """True if the shards are right."""
        return self.expected == self.found


_DELAYS: Final = """
SELECT carrier,
       count(*)                                       AS flights,
       count_if(dep_time IS NULL)                     AS cancelled,
       count(dep_delay)                               AS departed,
       coalesce(sum(dep_delay), 0)                    AS dep_delay_sum,
       count(arr_delay)                               AS arrived,
       coalesce(sum(arr_delay), 0)                    AS arr_delay_sum,
       count_if(arr_delay > 15)                       AS arrived_late
FROM {flights} GROUP BY carrier
"""

_RANKING: Final = """
WITH means AS (
  SELECT d.carrier, a.name, d.flights, d.arr_delay_sum / d.arrived AS mean
  FROM {delays} d LEFT JOIN {airlines} a ON d.carrier = a.carrier
  WHERE d.arrived > 0
)
SELECT m.carrier, m.name, m.flights, m.mean AS mean_arr_delay,
       CAST(1 + count(w.carrier) AS INT) AS place
FROM means m LEFT JOIN means w
  ON w.mean > m.mean OR (w.mean = m.mean AND w.carrier < m.carrier)
GROUP BY m.carrier, m.name, m.flights, m.mean
"""


@dataclass(frozen=True, slots=True)
class Check:
    """The comparison of one run.

    Attributes:
        spark: The session.
        url: Of the location.
        storage: Options of its store.
        place: Has the raw files.
        schemas: Columns of every source and view, in DDL.
    """

    spark: SparkSession
    url: str
    storage: Mapping[str, str]
    place: Place
    schemas: Mapping[str, str]

    def findings(self, days: Sequence[str], at: int) -> Iterator[Finding]:
        """Compare every shard, and the sink's files, with plain Spark over the raw files.

        Args:
            days: The days that have arrived.
            at: The time to read at; the upper of every object is past it.
        """
        for name in TABLES:
            yield _equal(f"{name}: rows that differ", self._raw(name), self._shard(name, at))
        raw = _arrived(self._raw(FLIGHTS), days).cache()
        flights = self._shard(FLIGHTS, at).cache()
        yield from _counts(raw, flights)
        yield _equal("flights: rows that differ", raw, flights)
        yield from self._views(raw, at)

    def _views(self, raw: DataFrame, at: int) -> Iterator[Finding]:
        late = raw.where("arr_delay > 120").select(
            "time_hour", "carrier", "flight", "origin", "dest", "arr_delay"
        )
        yield _equal("very_late: rows that differ", late, self._shard("very_late", at))

        planes = self._raw("planes").select("tailnum", "manufacturer")
        busiest = (
            raw.join(planes, "tailnum")
            .groupBy("tailnum", "manufacturer")
            .agg(F.count(F.lit(1)).alias("flights"), F.sum("distance").alias("miles"))
            .where("flights > 100")
        )
        yield _equal("busiest_planes: rows that differ", busiest, self._shard("busiest_planes", at))

        delays = self.spark.sql(_DELAYS, flights=raw).cache()
        found = self._shard("delays_by_carrier", at).cache()
        yield from _totals(delays, found)
        yield _equal("delays_by_carrier: rows that differ", delays, found)

        ranking = self.spark.sql(_RANKING, delays=delays, airlines=self._raw("airlines")).cache()
        contents = self._shard("carrier_ranking", at)
        yield _equal("carrier_ranking: rows that differ", ranking, contents)
        written = self.spark.read.parquet(str(self.place.out / "carrier_ranking"))
        yield _equal("files of ranking_out: rows that differ", ranking, _folded(written, at))

    def _raw(self, name: str) -> DataFrame:
        """Read a CSV file by Spark's own reader."""
        path = str(self.place.source / f"{name}.csv")
        return self.spark.read.csv(path, schema=self.schemas[name], header=True, nullValue="NA")

    def _shard(self, name: str, at: int) -> DataFrame:
        return datasource.snapshot(
            self.spark, location=self.url, shard=name, as_of=at, storage=self.storage
        )


def _arrived(flights: DataFrame, days: Sequence[str]) -> DataFrame:
    """The flights of `days`, which are dates such as `2013-01-05`."""
    dates = [int(day.replace("-", "")) for day in days]
    return flights.where((F.col("year") * 10_000 + F.col("month") * 100 + F.col("day")).isin(dates))


def _equal(what: str, raw: DataFrame, shard: DataFrame) -> Finding:
    """Count the rows that one table has more often than the other; 0 is expected."""
    plus, minus = raw.withColumn("_n", F.lit(1)), shard.withColumn("_n", F.lit(-1))
    differing = (
        plus.unionByName(minus).groupBy(*raw.columns).agg(F.sum("_n").alias("_n")).where("_n <> 0")
    )
    return Finding(what, 0, differing.count())


def _folded(changes: DataFrame, at: int) -> DataFrame:
    """Add up the changes up to a time to the contents at that time."""
    columns = [name for name in changes.columns if name not in {"_ts", "_diff", "_upper"}]
    sums = changes.where(F.col("_ts") <= at).groupBy(*columns).agg(F.sum("_diff").alias("_diff"))
    copies = F.expr("array_repeat(0, CAST(_diff AS INT))")
    return sums.where("_diff <> 0").withColumn("_copy", F.explode(copies)).select(*columns)


def _counts(raw: DataFrame, shard: DataFrame) -> Iterable[Finding]:
    """Compare a few numbers of the flights that are easy to check by hand."""
    numbers = {
        "flights: number of rows": F.count(F.lit(1)),
        "flights: sum of distances, miles": F.coalesce(F.sum("distance"), F.lit(0)),
        "flights: sum of arrival delays, minutes": F.coalesce(F.sum("arr_delay"), F.lit(0)),
    }
    yield from _numbers(numbers.keys(), raw.agg(*numbers.values()), shard.agg(*numbers.values()))


def _totals(raw: DataFrame, shard: DataFrame) -> Iterable[Finding]:
    names = ("flights", "cancelled", "arrived_late")
    sums = [F.coalesce(F.sum(name), F.lit(0)) for name in names]
    words = [f"delays_by_carrier: sum of {name}" for name in names]
    yield from _numbers(words, raw.agg(*sums), shard.agg(*sums))


def _numbers(words: Iterable[str], raw: DataFrame, shard: DataFrame) -> Iterable[Finding]:
    expected, found = raw.first(), shard.first()
    assert expected is not None
    assert found is not None
    for word, one, other in zip(words, expected, found, strict=True):
        yield Finding(word, int(one), int(other))

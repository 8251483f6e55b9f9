"""Is it all true? The same questions asked of plain Spark over the raw CSV files.

Two tables are equal when one counted with +1 and the other with -1 cancel to nothing, row by row,
nulls included: this compares multisets, so neither order nor duplicates can fool it. What queries
made is computed here a second time, in SQL and from the package's files; nothing of the shards or
of the queries' code is used on that side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its name everywhere

from app.demo.data import AIRLINES, DELAYS, FLIGHTS, RANKING, TABLES
from app.demo.lake import Lake
from app.demo.place import Place
from app.demo.queries import LATE_MINUTES

__all__ = ["Finding", "check"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One comparison.

    Attributes:
        what: In words.
        expected: What plain Spark says.
        found: What the shards say.
        agrees: Whether these are the same.
    """

    what: str
    expected: int
    found: int

    @property
    def agrees(self) -> bool:
        """Whether the shards are right."""
        return self.expected == self.found


_DELAYS_SQL = """
SELECT carrier,
       count(*)                                       AS flights,
       count_if(dep_time IS NULL)                     AS cancelled,
       count(dep_delay)                               AS departed,
       coalesce(sum(dep_delay), 0)                    AS dep_delay_sum,
       count(arr_delay)                               AS arrived,
       coalesce(sum(arr_delay), 0)                    AS arr_delay_sum,
       count_if(arr_delay > {late})                   AS arrived_late
FROM {flights} GROUP BY carrier
"""

_RANKING_SQL = """
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


def check(lake: Lake, place: Place, days: Sequence[str]) -> Iterable[Finding]:
    """Compare every shard with plain Spark over the raw files.

    Args:
        lake: The shards.
        place: Where the raw files are.
        days: The days that have arrived.
    """
    for dataset in TABLES:
        raw = lake.csv(str(place.source / dataset.file), dataset)
        yield _equal(f"{dataset.name}: rows that differ", raw, lake.contents(dataset))

    raw = _arrived(lake.csv(str(place.source / FLIGHTS.file), FLIGHTS), days).cache()
    flights = lake.contents(FLIGHTS).cache()
    yield from _counts(raw, flights)
    yield _equal("flights: rows that differ", raw, flights)

    delays = lake.spark.sql(_DELAYS_SQL, flights=raw, late=LATE_MINUTES).cache()
    found = lake.contents(DELAYS).cache()
    yield from _totals(delays, found)
    yield _equal("delays_by_carrier: rows that differ", delays, found)
    # The history is all there, so the changes alone must add up to the contents.
    replayed = _consolidated(lake.changes(DELAYS, startingTimestamp=0).drop("_ts"))
    yield _equal("delays_by_carrier: rows its changes lack", found, replayed)

    airlines = lake.csv(str(place.source / AIRLINES.file), AIRLINES)
    ranking = lake.spark.sql(_RANKING_SQL, delays=delays, airlines=airlines)
    yield _equal("carrier_ranking: rows that differ", ranking, lake.contents(RANKING))


def _arrived(flights: DataFrame, days: Sequence[str]) -> DataFrame:
    """The flights of `days`, which are dates such as `2013-01-05`."""
    dates = [int(day.replace("-", "")) for day in days]
    return flights.where((F.col("year") * 10_000 + F.col("month") * 100 + F.col("day")).isin(dates))


def _equal(what: str, raw: DataFrame, shard: DataFrame) -> Finding:
    """How many rows one has more often than the other: none are expected."""
    plus, minus = raw.withColumn("_n", F.lit(1)), shard.withColumn("_n", F.lit(-1))
    differing = (
        plus.unionByName(minus).groupBy(*raw.columns).agg(F.sum("_n").alias("_n")).where("_n <> 0")
    )
    return Finding(what, 0, differing.count())


def _consolidated(changes: DataFrame) -> DataFrame:
    """The rows that changes leave; each at most once, as in any shard with a true key."""
    columns = [name for name in changes.columns if name != "_diff"]
    sums = changes.groupBy(*columns).agg(F.sum("_diff").alias("_diff"))
    copies = F.expr("array_repeat(0, CAST(_diff AS INT))")
    return sums.where("_diff <> 0").withColumn("_copy", F.explode(copies)).select(*columns)


def _counts(raw: DataFrame, shard: DataFrame) -> Iterable[Finding]:
    """A few plain numbers of the flights, which anybody can ask of the files."""
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

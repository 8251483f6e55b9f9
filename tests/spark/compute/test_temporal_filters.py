"""Views with temporal filters hold at every time what their query says with now() as that time."""

from __future__ import annotations

import itertools
import operator
import random
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

from shardline.app.compute.view.maintained_view import View
from shardline.app.compute.view.output import ViewSink
from shardline.app.compute.view.state_shard import StateShard
from shardline.app.compute.view.temporal_rule import between_bounds
from shardline.app.compute.view.view_states import ViewStates
from shardline.app.execution.observations import Measured
from shardline.app.project.project import Project
from shardline.app.protocol.objects import ViewDescription, state_shards
from shardline.app.sql.problems import InvalidProject
from shardline.app.sql.temporal_filters import Bound
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import EMPTY, Frontier
from shardline.datasource.spark_native.time_interval import Interval
from support.profiles import some_of
from support.spark.timed_world import CUTS, END, EVENTS, START, TimedWorld, at_us
from support.spark.view_world import Killed, SteppedView
from support.spark.views import Following, contents, no_fence

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from shardline.app.project.project import CheckedProject
    from support.spark.kept_plans import Compared

pytestmark = pytest.mark.spark

# ruff: noqa: S608 - queries are put together here


class Case(NamedTuple):
    """A view's query.

    Attributes:
        query: For Spark.
        duck: The same for DuckDB, where timestamps are µs, and `{now}` those of the time.
        how: The strategy.
        way: How its steps were taken after the first one.
    """

    query: str
    duck: str
    how: str = "incremental"
    way: str = "incremental"


CASES = {
    "until": Case(
        "SELECT id, who FROM events WHERE ends > now()",
        "SELECT id, who FROM events WHERE ends > {now}",
    ),
    "window": Case(
        "SELECT id, price FROM events "
        "WHERE begins > now() - INTERVAL '0.0054' SECOND AND price > 6 AND begins <= now()",
        "SELECT id, price FROM events "
        "WHERE begins > {now} - 5400 AND price > 6 AND begins <= {now}",
    ),
    "between": Case(
        "SELECT * FROM events WHERE now() BETWEEN begins AND ends",
        "SELECT * FROM events WHERE {now} BETWEEN begins AND ends",
    ),
    "exactly": Case(
        "SELECT e.id FROM events e WHERE now() = e.begins "
        "UNION ALL SELECT price FROM events WHERE ends >= now() AND now() <=> begins",
        "SELECT e.id FROM events e WHERE e.begins = {now} "
        "UNION ALL SELECT price FROM events WHERE ends >= {now} AND begins = {now}",
    ),
    "computed": Case(
        "SELECT id, price + 1 AS p FROM (SELECT *, timestamp_millis(price + id) AS due "
        "FROM events) WHERE due < now() AND date_add(DATE '1970-01-01', 0) <= now()",
        "SELECT id, price + 1 FROM events WHERE (price + id) * 1000 < {now}",
    ),
    "groups": Case(
        "SELECT who, count(*) AS n, sum(price) AS total, max(id) AS most FROM events "
        "WHERE begins BETWEEN current_timestamp() - INTERVAL '0.012' SECOND "
        "AND current_timestamp() + INTERVAL '0.0001' SECOND GROUP BY who",
        "SELECT who, count(*), sum(price), max(id) FROM events "
        "WHERE begins BETWEEN {now} - 12000 AND {now} + 100 GROUP BY who",
    ),
    "all_rows": Case(
        "SELECT count(*) AS n, sum(price) AS total FROM events WHERE ends > now()",
        "SELECT count(*), sum(price) FROM events WHERE ends > {now}",
    ),
    "distinct": Case(
        "SELECT DISTINCT who FROM events WHERE ends > now()",
        "SELECT DISTINCT who FROM events WHERE ends > {now}",
    ),
    "joined": Case(
        "SELECT e.id, p.city, f.price FROM events e JOIN people p ON e.who = p.name "
        "JOIN events f ON f.id = e.id WHERE e.begins <= now() AND f.ends > now()",
        "SELECT e.id, p.city, f.price FROM events e JOIN people p ON e.who = p.name "
        "JOIN events f ON f.id = e.id WHERE e.begins <= {now} AND f.ends > {now}",
    ),
    "outer_join": Case(
        "SELECT p.name, e.id FROM people p LEFT JOIN "
        "(SELECT * FROM events WHERE ends > now() AND begins <= now()) e ON e.who = p.name",
        "SELECT p.name, e.id FROM people p LEFT JOIN "
        "(SELECT * FROM events WHERE ends > {now} AND begins <= {now}) e ON e.who = p.name",
    ),
    "members": Case(
        "SELECT name, city FROM people p WHERE name IN "
        "(SELECT who FROM events WHERE now() BETWEEN begins AND ends) AND NOT EXISTS "
        "(SELECT 1 FROM events e WHERE e.who = p.name AND e.price > 20 AND e.ends > now())",
        "SELECT name, city FROM people p WHERE name IN "
        "(SELECT who FROM events WHERE {now} BETWEEN begins AND ends) AND NOT EXISTS "
        "(SELECT 1 FROM events e WHERE e.who = p.name AND e.price > 20 AND e.ends > {now})",
    ),
    "ranked": Case(
        "SELECT who, price, rank() OVER (PARTITION BY who ORDER BY price) AS place FROM events "
        "WHERE ends > now()",
        "SELECT who, price, rank() OVER (PARTITION BY who ORDER BY price) FROM events "
        "WHERE ends > {now}",
    ),
    "limited": Case(
        "SELECT id, price, ends FROM events WHERE ends > now() "
        "ORDER BY ends, id, price, who NULLS FIRST LIMIT 4",
        "SELECT id, price, ends FROM events WHERE ends > {now} "
        "ORDER BY ends, id, price, who NULLS FIRST LIMIT 4",
    ),
    "having": Case(
        "SELECT who, max(ends) AS last FROM events GROUP BY who HAVING max(ends) > now()",
        "SELECT who, max(ends) FROM events GROUP BY who HAVING max(ends) > {now}",
    ),
    "nested": Case(
        "SELECT id, first_end FROM (SELECT id, min(ends) AS first_end FROM events "
        "WHERE begins <= now() GROUP BY id) WHERE first_end > now()",
        "SELECT id, first_end FROM (SELECT id, min(ends) AS first_end FROM events "
        "WHERE begins <= {now} GROUP BY id) WHERE first_end > {now}",
    ),
    "run_anew": Case(
        "SELECT id, n FROM (SELECT id, ends, count(*) OVER () AS n FROM events "
        "WHERE begins < now()) WHERE ends > now()",
        "SELECT id, n FROM (SELECT id, ends, count(*) OVER () AS n FROM events "
        "WHERE begins < {now}) WHERE ends > {now}",
        "recompute",
        "recompute",
    ),
}

IN_EACH_RUN = {"groups"}
"""Cases of each run; all of them at night."""


@pytest.fixture(scope="module")
def world(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TimedWorld]:
    made = TimedWorld(spark, tmp_path_factory.mktemp("timed"))
    yield made
    made.close()


@pytest.mark.parametrize("name", some_of(CASES, IN_EACH_RUN))
def test_contents_at_every_time(world: TimedWorld, name: str, compared_plans: Compared) -> None:
    """Rows come and go at their times, with and without changes of inputs."""
    case = CASES[name]
    kept = world.kept(f"v_{name}", case.query)
    ways = world.follow(kept, partial(world.by_duck, case.duck))
    assert kept.strategy == case.how
    assert ways == {"recompute", case.way}
    # A plan that is run anew has its time in it, and is not kept.
    assert (compared_plans.runs > 0) == (case.way == "incremental"), compared_plans


class Kept(SteppedView):
    """A view, its states, and what DuckDB says of it."""

    def __init__(self, world: TimedWorld, name: str, case: Case) -> None:
        super().__init__(world, name, case.query, Following())
        self.case = case

    def check(self, last: int = END) -> None:
        for time in range(START, last):
            found = contents(self.world.bench.client, self.name, time)
            assert found == self.world.by_duck(self.case.duck, time), time

    def state(self, place: int = 0) -> str:
        return state_shards(self.name)[place]

    def ways(self) -> Counter[str]:
        return self.world.steps(self.name)


STEPS = tuple(pairwise((START, *CUTS)))

KILLS = {
    "before a state is written": (StateShard, "append", False),
    "after a state is written": (StateShard, "append", True),
    "after the output is written": (ViewSink, "append", True),
}


@pytest.mark.night
@pytest.mark.parametrize("kill", KILLS)
def test_a_step_that_is_killed_is_taken_once(
    world: TimedWorld, kill: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At its first append and at its second one, with changes of inputs and without."""
    cls, name, after = KILLS[kill]
    given: Callable[..., Any] = getattr(cls, name)
    left, kills = [0], [0]

    def wrapped(*args: Any, **more: Any) -> Any:
        left[0] -= 1
        if left[0] == 0 and not after:
            kills[0] += 1
            raise Killed
        outcome = given(*args, **more)
        if left[0] == 0:
            kills[0] += 1
            raise Killed
        return outcome

    monkeypatch.setattr(cls, name, wrapped)
    kept = Kept(world, f"killed_{list(KILLS).index(kill)}", CASES["groups"])
    for turn, (lower, upper) in enumerate(STEPS):
        left[0] = 0 if lower == START else 1 + turn % 2
        kept.step(lower, upper)
    kept.check()
    assert kills[0] >= 2
    assert kept.ways()["incremental"]


@pytest.mark.night
def test_each_step_by_another_process_some_of_them_run_anew(
    world: TimedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two steps nothing is remembered but what shards say; states are left behind."""
    # Without max: groups whose greatest value goes are made anew, which mends what is wrong.
    case = CASES["groups"]
    query, duck = case.query.replace(", max(id) AS most", ""), case.duck.replace(", max(id)", "")
    kept = Kept(world, "restarted", Case(query, duck))
    for turn, (lower, upper) in enumerate(STEPS):
        kept.start()
        with monkeypatch.context() as patched:
            if turn == 3:
                # No input changes in it: it is by the time alone that states are behind.
                patched.setattr(ViewStates, "follow", lambda *_: False)
            kept.step(lower, upper)
    kept.check()
    assert kept.ways() > Counter(incremental=2, recompute=3)


def test_what_is_over_is_dropped_from_the_state(world: TimedWorld) -> None:
    """A window keeps what is in it, and what will be."""
    query = (
        "SELECT id FROM events WHERE begins > now() - INTERVAL '0.004' SECOND AND begins < now()"
    )
    kept = Kept(world, "small", Case(query, ""))
    for lower, upper in STEPS:
        kept.step(lower, upper)
    client = world.bench.client
    for time in (21, 30, 44):
        held = contents(client, kept.state(), time).total()
        moments = [row[3] for row in world.inputs["events"].at(time)]
        still = [at for at in moments if at is not None and at > at_us(time * 1000 - 4000)]
        assert held == len(still) < len(moments)


def test_a_look_is_all_that_a_time_without_changes_costs(world: TimedWorld) -> None:
    """Between two steps an idle view follows its inputs up to the next row's time, not further."""
    bench = world.bench
    found = world.inputs["lone"] = bench.input("lone", EVENTS)
    there = ((n, "ann", 5, None, at_us(n * 1_000_000 + 1)) for n in (30, 31, 33, 99))
    found.push(10_000, *((row, 1) for row in there), until=20_000)
    kept = world.kept("idle", "SELECT id FROM lone WHERE ends >= now()")
    del world.inputs["lone"]
    view = View(bench.host, bench.incarnation("idle", 10_000), kept, no_fence, Following())
    view.advance(world.session, Interval(10_000, 10_001, starts=True))
    view.advance(world.session, Interval(10_001, 20_000))
    found.idle(30_001)
    before = bench.told(Measured)
    # The first row is there at 30,000 for the last time: nothing is due before 30,001.
    assert view.follow(bench.client.readable("lone"))
    assert (bench.upper("idle"), view.is_due) == (30_001, False)
    found.idle(32_000)
    assert not view.follow(bench.client.readable("lone"))
    assert view.is_due
    assert bench.told(Measured) == before
    view.advance(world.session, Interval(20_000, 32_000))
    assert [view.is_due_within(ms) for ms in (500, 1_001, 1_002)] == [False, False, True]
    found.idle(33_001)
    assert view.follow(bench.client.readable("lone"))
    assert not view.is_due
    # More than an hour at once is not looked up.
    found.idle(9_999_999)
    assert not view.follow(bench.client.readable("lone"))
    view.advance(world.session, Interval(32_000, 9_999_999))
    times = (10_000, 30_000, 30_001, 31_000, 31_001, 33_000, 33_001, 99_000, 99_001, 9_999_998)
    rows = [contents(bench.client, "idle", time).total() for time in times]
    assert rows == [4, 4, 3, 3, 2, 2, 1, 1, 0, 0]
    assert contents(bench.client, state_shards("idle")[0], 9_999_998).total() == 0


def test_inputs_that_have_ended_settle_the_whole_future(world: TimedWorld) -> None:
    """What is to come is known, and nothing else can."""
    bench = world.bench
    for name, over in (
        ("ended", "lasts"),
        ("ended_anew", "(SELECT *, count(*) OVER () AS n FROM lasts)"),
    ):
        if name == "ended":
            found = world.inputs["lasts"] = bench.input("lasts", EVENTS)
            moments = [(at_us(n * 1000), at_us(n * 1000 + 3_000_000)) for n in (15, 25)]
            found.push(10, *(((1, "ann", 5, *both), 1) for both in moments), until=20)
        kept = world.kept(name, f"SELECT ends FROM {over} WHERE now() BETWEEN begins AND ends")
        view = View(bench.host, bench.incarnation(name, 10), kept, no_fence, Following())
        view.advance(world.session, Interval(10, 20, starts=True))
        if name == "ended":
            bench.client.writer("lasts").compare_and_append(None, Frontier(20), EMPTY)
        view.advance(world.session, Interval(20, None))
        assert bench.upper(name) is None
        times = (14, 15, 24, 25, 3015, 3016, 3025, 3026, 10**15)
        assert [contents(bench.client, name, time).total() for time in times] == [
            *(0, 1, 1, 2, 2, 1, 1, 0, 0)
        ]
    del world.inputs["lasts"]


def test_bounds_are_the_first_times_at_which_a_comparison_changes(spark: SparkSession) -> None:
    """For timestamps before and after the epoch and far away, and intervals of parts of a ms."""
    draw = random.Random(3)
    moments = [draw.choice([1, 10**6, 10**15]) * draw.randint(-9000, 9000) for _ in range(60)]
    moments += [-1, 0, 1, 999, 1000, -1000, -1001, 2**63 - 1, -(2**63)]
    frame = spark.createDataFrame([(one,) for one in moments], "m BIGINT")
    rows = frame.selectExpr("m", "timestamp_micros(m) AS b1", "timestamp_micros(m) AS b2")
    rows.createOrReplaceTempView("bounded_moments")
    means = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
    means["="] = operator.eq
    try:
        asked = [*itertools.product(means, (0, 1, -1, -3_600_000_000, 1999, -1500))]
        texts = []
        for place, (sign, shift) in enumerate(asked):
            text = between_bounds(["m"], [Bound(None, sign, shift)], "bounded_moments")
            texts.append(f"SELECT {place} AS place, m, begins, ends FROM {text}")
        rows = spark.sql(" UNION ALL ".join(texts)).toArrow().to_pylist()
    finally:
        spark.catalog.dropTempView("bounded_moments")
    found = {(row["place"], row["m"]): (row["begins"], row["ends"]) for row in rows}
    for (place, (sign, shift)), moment in itertools.product(enumerate(asked), moments):
        begins, ends = found.get((place, moment), (0, 0))
        near = (moment - shift) // 1000
        for time in range(near - 2, near + 3):
            there = means[sign](moment, 1000 * time + shift)
            assert (begins <= time < ends) == there, (moment, sign, shift, time)


REFUSED = {
    "now() AS n FROM t": "ask with `sql`",
    "a, count(*) AS n FROM t GROUP BY a, date_trunc('hour', current_timestamp())": "ask with `sql`",
    "a FROM t ORDER BY ts > now(), a LIMIT 2": "ask with `sql`",
    "a FROM t WHERE ts > now() OR a > 1": "UNION ALL",
    "a FROM t WHERE NOT (ts > now())": "joined by AND",
    "a FROM t WHERE ts BETWEEN ts AND now() OR a IS NULL": "UNION ALL",
    "a FROM t WHERE CASE WHEN a > 1 THEN ts > now() END": "joined by AND",
    "a FROM t WHERE ts <> now()": "joined by AND",
    "a FROM t WHERE now() - ts < INTERVAL 1 HOUR": "ts > now() - INTERVAL 1 HOUR",
    "a FROM t WHERE ms > unix_millis(now())": "timestamp_millis(ms) > now()",
    "a FROM t WHERE now() > now() - INTERVAL 1 HOUR": "compare a TIMESTAMP of the row",
    "a FROM t WHERE ts > now() - a * INTERVAL 1 HOUR": "compare a TIMESTAMP of the row",
    "a FROM t WHERE ts > now() - INTERVAL 1 MONTH": "ts + INTERVAL 1 DAY > now()",
    "a FROM t WHERE ts > now() - make_interval(0, 0, 0, 1)": "ts + INTERVAL 1 DAY > now()",
    "a FROM t WHERE d >= current_date()": "date_add(d, 1) > now()",
    "a FROM t WHERE d > curdate() - INTERVAL 1 DAY": "d > now() for d > current_date()",
    "a FROM t WHERE n > localtimestamp()": "CAST(ts AS TIMESTAMP) > now()",
    "t.a FROM t JOIN u ON t.a = u.id AND t.ts > now()": "move the comparison to WHERE",
    "a FROM t UNION ALL SELECT x FROM VALUES (1) v(x) WHERE now() > DATE '2030-01-01'": (
        "filter rows of an input"
    ),
    "a FROM t WHERE ts > now() AND a > (SELECT id FROM u WHERE id = 1)": "a view of its own",
    "a FROM t WHERE EXISTS (SELECT 1 FROM t WHERE ts > now())": "a view of its own",
    "id, (SELECT a FROM t WHERE ts > now()) AS a FROM u": "a view of its own",
    "a FROM (WITH RECURSIVE r(a) AS (SELECT id FROM u UNION ALL SELECT t.a FROM r JOIN t "
    "ON t.ms = r.a WHERE t.ts > now()) SELECT a FROM r)": "what the recursion reads",
}
"""Queries that a view cannot keep, and a piece of what to do instead."""

TAKEN = (
    "a FROM t WHERE ts > now() - INTERVAL 23 HOURS",
    "a FROM t WHERE ts + INTERVAL 1 MONTH > now() AND d > now() AND n < now()",
    "a FROM t WHERE ts + a * INTERVAL 1 HOUR > now() + INTERVAL '90' MINUTE",
    "a FROM t WHERE a IN (SELECT id FROM u WHERE s > now())",
)
TABLES = (
    "CREATE SOURCE t USING csv OPTIONS (path 'later')"
    "  SCHEMA (a INT, ts TIMESTAMP, d DATE, n TIMESTAMP_NTZ, ms BIGINT);"
    "CREATE SOURCE u USING csv OPTIONS (path 'later') SCHEMA (id INT, s STRING);"
)


def _check(spark: SparkSession, text: str) -> CheckedProject:
    return Project.parse({"p.sql": text}).check(spark)


def test_every_other_use_of_the_time_is_refused_with_what_to_do(spark: SparkSession) -> None:
    """At its place in the query, each with a hint of its own; what can be kept is not."""
    zone = str(spark.conf.get("spark.sql.session.timeZone"))
    made = [f"CREATE MATERIALIZED VIEW v{n} AS SELECT {q};" for n, q in enumerate(REFUSED)]
    kept = [f"CREATE MATERIALIZED VIEW k{n} AS SELECT {q};" for n, q in enumerate(TAKEN)]
    a_day = "CREATE MATERIALIZED VIEW day AS SELECT a FROM t WHERE ts > now() - INTERVAL 1 DAY;"
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        found: dict[int, str] = {}
        with pytest.raises(InvalidProject) as caught:
            _check(spark, "\n".join([TABLES, *made, a_day, *kept]))
        for problem in caught.value.problems:
            assert problem.code == "NOT_DETERMINISTIC"
            assert problem.place is not None
            assert problem.message.startswith(("now()", "current_", "localtimestamp()"))
            assert found.setdefault(problem.place.line, problem.hint) == problem.hint
        hints = [found.get(line, "") for line in range(2, len(made) + 3)]
        wanted = [*REFUSED.values(), "ts + INTERVAL 1 DAY > now()"]
        assert [w for w, hint in zip(wanted, hints, strict=True) if w not in hint] == [], hints
        assert max(found) == len(made) + 2
        # In a time zone of one offset a day has 24 hours.
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        described = _check(spark, TABLES + a_day + "".join(kept)).descriptions
    finally:
        spark.conf.set("spark.sql.session.timeZone", zone)
    ways = {one.strategy for one in described.values() if isinstance(one, ViewDescription)}
    assert ways == {"incremental"}


def test_a_row_that_the_query_fails_at_goes_by_itself(world: TimedWorld) -> None:
    """The view is failed while the row is there, and heals when its time is over."""
    bench = world.bench
    found = world.inputs["bad"] = bench.input("bad", EVENTS)
    good, bad = (1, "ann", 5, None, at_us(34_000)), (2, "bob", 0, None, at_us(25_000))
    found.push(10, (good, 1), until=15)
    kept = world.kept("heals", "SELECT id, 10 div price AS n FROM bad WHERE ends > now()")
    del world.inputs["bad"]
    view = View(bench.host, bench.incarnation("heals", 10), kept, no_fence, Following())
    view.advance(world.session, Interval(10, 15, starts=True))
    found.push(20, (bad, 1), until=40)
    view.advance(world.session, Interval(15, 40))
    failing = [contents(bench.client, "heals_errors", time).total() for time in (19, 20, 24, 25)]
    assert failing == [0, 1, 1, 0]
    rows = [contents(bench.client, "heals", time).total() for time in (19, 25, 33, 34)]
    assert rows == [1, 1, 1, 0]


def _views_of(world: TimedWorld, name: str, query: str) -> Callable[[], View]:
    """Makes a view, again and again, of the input of its name, which no other test has."""
    kept = world.kept(name, query)
    del world.inputs[f"{name}_in"]
    bench = world.bench
    return lambda: View(bench.host, bench.incarnation(name, 10), kept, no_fence, Following())


def test_a_change_does_not_hide_the_ends_behind_it(world: TimedWorld) -> None:
    """In one micro-batch: a row comes, and two go, where what is above is run at each time."""
    bench = world.bench
    found = world.inputs["ends_in"] = bench.input("ends_in", EVENTS)
    moments = (30, 40, 90, 95)
    found.push(10, *(((n, "", 1, None, at_us(n * 1000)), 1) for n in moments), until=11)
    view = _views_of(
        world, "ends", "SELECT id FROM ends_in WHERE ends > now() ORDER BY ends, id LIMIT 2"
    )()
    view.advance(world.session, Interval(10, 11, starts=True))
    found.push(20, ((99, "", 1, None, at_us(99_000)), 1), until=60)
    view.advance(world.session, Interval(11, 60))
    for time in range(10, 60):
        right = [n for n in (*moments, 99) if n > time][:2]
        assert contents(bench.client, "ends", time) == Counter((n,) for n in right), time


def test_a_killed_step_that_is_taken_again_with_more_misses_no_row(
    world: TimedWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state has the step, the output has not; inputs have gone on meanwhile."""
    bench = world.bench
    found = world.inputs["more_in"] = bench.input("more_in", EVENTS)
    found.push(10, *(((n, "a", 1, None, at_us(n * 1000)), 1) for n in (40, 80)), until=20)
    query = "SELECT who, count(*) AS n FROM more_in WHERE ends > now() GROUP BY who"
    make = _views_of(world, "more", query)
    view = make()
    view.advance(world.session, Interval(10, 20, starts=True))
    found.push(20, ((70, "a", 1, None, at_us(70_000)), 1), until=30)

    def killed(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(ViewSink, "append", killed)
        with pytest.raises(Killed):
            view.advance(world.session, Interval(20, 30))
    found.idle(60)
    again = make()
    again.advance(world.session, Interval(20, 60))
    found.idle(95)
    again.advance(world.session, Interval(60, 95))
    for time in range(10, 95):
        count = sum(n > time for n in (40, 80, *([70] if time >= 20 else [])))
        right = Counter([("a", count)] if count else [])
        assert contents(bench.client, "more", time) == right, time


def test_a_comparison_that_fails_where_the_query_does_not_stops_no_other(
    world: TimedWorld,
) -> None:
    """A row that what stands in front keeps away has a text that is no time."""
    bench = world.bench
    found = world.inputs["texts_in"] = bench.input("texts_in", EVENTS)
    good = [(1, "1970-01-01 01:00:00", 5, None, at_us(30_000))]
    over = [(2, "no time", 5, None, at_us(5_000)), (3, "none", 4, None, at_us(50_000))]
    found.push(10, *((row, 1) for row in good + over), until=20)
    view = _views_of(
        world,
        "texts",
        "SELECT id FROM texts_in "
        "WHERE ends > now() AND price = 5 AND CAST(who AS TIMESTAMP) > now()",
    )()
    view.advance(world.session, Interval(10, 20, starts=True))
    found.idle(60)
    view.advance(world.session, Interval(20, 60))
    rows = [contents(bench.client, "texts", time).total() for time in (10, 29, 30, 59)]
    assert rows == [1, 1, 0, 0]
    assert contents(bench.client, "texts_errors", 59).total() == 0


def _rows_that_come(world: TimedWorld, name: str, query: str, *uppers: int) -> list[int]:
    """How many rows a self-join has before `uppers`: one from 15 on; -1 as it fails, from 40 on."""
    bench, late = world.bench, (1, "a", 7, at_us(40_000), None)
    found = world.inputs[f"{name}_in"] = bench.input(f"{name}_in", EVENTS)
    soon = (2, "a", 3, at_us(15_000), None)
    found.push(10, *((row, 1) for row in (late, soon, (3, "a", 7, None, None))), until=12)
    view = _views_of(world, name, query)()
    view.advance(world.session, Interval(10, 12, starts=True))
    for lower, upper in pairwise((12, *uppers)):
        found.idle(upper)
        view.advance(world.session, Interval(lower, upper))
    fails = [contents(bench.client, f"{name}_errors", upper - 1).total() for upper in uppers]
    rows = [contents(bench.client, name, upper - 1).total() for upper in uppers]
    return [-1 if failed else count for failed, count in zip(fails, rows, strict=True)]


def test_a_row_that_spark_leaves_out_by_its_time_hides_no_other_time(world: TimedWorld) -> None:
    """What is in front of the comparison fails for it; but Spark asks for the time first."""
    query = (
        "SELECT e.id FROM early_in e JOIN early_in o ON e.who = o.who "
        "WHERE o.id = 3 AND 10 div (e.price - o.price) > -20 AND e.begins <= now()"
    )
    assert _rows_that_come(world, "early", query, 15, 16, 40, 41) == [0, 1, 1, -1]


def test_times_that_no_look_finds_are_asked_for_again(world: TimedWorld) -> None:
    """Rows fail below the filter, where Spark does not evaluate them: the next step looks again."""
    query = (
        "SELECT e.id FROM below_in e JOIN below_in o ON e.who = o.who AND o.id = 3 "
        "AND 10 div (e.price - o.price) > -20 WHERE e.begins <= now()"
    )
    assert _rows_that_come(world, "below", query, 15, 16, 40, 41) == [0, 1, 1, -1]


def test_rows_that_cannot_be_compared_are_run_anew(world: TimedWorld) -> None:
    """A state would have to tell them apart."""
    bench = world.bench
    found = world.inputs["variants_in"] = bench.input("variants_in", EVENTS)
    found.push(10, ((1, '{"a": 7}', 5, None, at_us(30_000)), 1), until=20)
    query = (
        "SELECT variant_get(v, '$.a', 'int') AS a FROM "
        "(SELECT ends, parse_json(who) AS v FROM variants_in) WHERE ends > now()"
    )
    view = _views_of(world, "variants", query)()
    view.advance(world.session, Interval(10, 20, starts=True))
    found.push(25, ((2, '{"a": 8}', 5, None, at_us(40_000)), 1), until=60)
    view.advance(world.session, Interval(20, 60))
    rows = [contents(bench.client, "variants", time) for time in (10, 24, 25, 29, 30, 39, 40)]
    one, two = (7,), (8,)
    assert rows == [
        *(Counter(found) for found in ([one], [one], [one, two], [one, two], [two], [two], []))
    ]


def test_a_session_in_which_the_filter_means_something_else_is_refused(
    world: TimedWorld,
) -> None:
    """A view is never computed by the clock of a machine."""
    query = "SELECT id FROM events WHERE ends > now() - INTERVAL 1 DAY"
    kept = world.kept("zoned", query)
    bench, zone = world.bench, str(world.bench.spark.conf.get("spark.sql.session.timeZone"))
    bench.spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    try:
        view = View(bench.host, bench.incarnation("zoned", START), kept, no_fence)
        with pytest.raises(InvalidUsage, match="depends on when the query is run"):
            view.advance(world.session, Interval(START, 11, starts=True))
    finally:
        bench.spark.conf.set("spark.sql.session.timeZone", zone)

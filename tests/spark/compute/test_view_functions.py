"""Views whose queries call Python functions that raise: at a row, or because of their process."""

from __future__ import annotations

import itertools
import os
import signal
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from msgspec.structs import replace

from shardline.app.compute.holds import end_view_holds
from shardline.app.compute.view.maintained_view import View
from shardline.app.compute.view.streaming_query import run_view
from shardline.app.execution.observations import Failed, Health, Stepped
from shardline.datasource.frames import clone_of
from shardline.datasource.frontier import Frontier
from shardline.datasource.spark_native.time_interval import Interval
from shardline.testing import Lab
from support.profiles import one_of
from support.spark.views import Bench, Following, Input, contents, no_fence, view
from support.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

    from shardline.app.protocol.objects import Strategy, ViewDescription

pytestmark = pytest.mark.spark

ORDERS = pa.schema([("id", pa.int64()), ("who", pa.string()), ("price", pa.int32())])
ROW = (3, "eve", 13)
"""The row at which functions raise."""

BAD_AT = 10


class Unlucky(Exception):
    """A class of a user's own."""


def checked(price: int) -> int:
    if price == ROW[2]:
        raise Unlucky("thirteen\nof all prices")
    return price


def checked_by_arrow(prices: pa.Array) -> pa.Array:
    if ROW[2] in prices.to_pylist():
        raise ValueError("thirteen")
    return prices


def misread(price: int) -> Any:
    return object() if price == ROW[2] else price


@pytest.fixture(scope="module")
def functions(spark: SparkSession) -> None:
    """Functions of a project's author, in the application's session."""
    from pyspark import cloudpickle
    from pyspark.sql.functions import arrow_udf, udf

    # By value: workers cannot import the tests' modules.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # type: ignore[no-untyped-call]
    spark.udf.register("checked", udf(checked, "int", useArrow=False))
    spark.udf.register("checked_in_arrow", udf(checked, "int", useArrow=True))
    spark.udf.register("checked_by_arrow", arrow_udf(checked_by_arrow, "int"))  # type: ignore[call-overload]
    spark.udf.register("misread", udf(misread, "int", useArrow=True))


@pytest.fixture
def bench(spark: SparkSession, location: str, tmp_path: Path, functions: None) -> Bench:
    del functions
    return Bench(spark, location, tmp_path / "checkpoints")


@pytest.fixture
def orders(bench: Bench) -> Input:
    found = bench.input("orders", ORDERS)
    found.push(5, ((1, "ada", 10), 1), ((2, "bob", 20), 1))
    return found


def each_price(function: str) -> ViewDescription:
    query = f"SELECT id, {function}(price) AS price FROM orders"  # noqa: S608 - made here
    return view("prices", query, "id BIGINT, price INT", "orders", strategy="linear")


def sum_of_prices(function: str) -> ViewDescription:
    query = f"SELECT who, sum({function}(price)) AS total FROM orders GROUP BY who"  # noqa: S608 - made here
    return view("prices", query, "who STRING, total BIGINT", "orders")


def expected(orders: Input, kept: ViewDescription, time: int) -> Counter[Any]:
    """What the view holds at a time at which it works."""
    if kept.strategy == "linear":
        return Counter((number, price) for number, _, price in orders.at(time))
    sums: Counter[str] = Counter()
    for _, who, price in orders.at(time):
        sums[who] += price
    return Counter(dict.fromkeys(sums.items(), 1))


def errors(bench: Bench, time: int) -> list[str]:
    return [row[0] for row in contents(bench.client, "prices_errors", time).elements()]


def correct(orders: Input) -> None:
    orders.push(20, (ROW, -1), ((3, "eve", 14), 1), until=30)


def take_back(orders: Input) -> None:
    orders.push(20, (ROW, -1), until=30)


@pytest.mark.parametrize(
    ("function", "define", "mend"),
    one_of(
        3,
        [
            ("checked", sum_of_prices, take_back),
            ("checked", each_price, correct),
            ("checked_in_arrow", each_price, take_back),
            ("checked_by_arrow", sum_of_prices, correct),
            ("misread", each_price, take_back),
        ],
    ),
)
def test_a_row_at_which_a_function_raises_is_an_error_until_it_is_mended(
    bench: Bench,
    orders: Input,
    function: str,
    define: Callable[[str], ViewDescription],
    mend: Callable[[Input], None],
) -> None:
    """The view says so from that time on, goes on, and is right again from the mended one on."""
    kept = define(function)
    orders.push(BAD_AT, (ROW, 1))
    orders.push(12, ((4, "fay", 6), 1))
    mend(orders)
    run = View(bench.host, bench.incarnation("prices", 5), kept, no_fence, Following())
    for cuts in itertools.pairwise([5, 6, 11, 30]):
        run.advance(bench.spark, Interval(*cuts, starts=cuts[0] == 5))

    assert errors(bench, BAD_AT - 1) == errors(bench, 20) == errors(bench, 29) == []
    for time in (BAD_AT, 12, 19):
        [error] = errors(bench, time)
        assert error.startswith("[PYTHON_EXCEPTION] ")
        assert "0x" not in error
        assert contents(bench.client, "prices", time) == expected(orders, kept, 9)
    for time in (5, 9, 20, 29):
        assert contents(bench.client, "prices", time) == expected(orders, kept, time)
    assert [h.status for h in bench.told(Health)] == ["running", "stalled", "running"]


@pytest.mark.parametrize("define", one_of(2, [sum_of_prices, each_price]))
def test_a_view_that_was_put_in_again_begins_after_its_row(
    bench: Bench, orders: Input, define: Callable[[str], ViewDescription]
) -> None:
    """As a streaming query: it lives on at the row, and another incarnation is right at once."""
    kept = define("checked")
    orders.push(BAD_AT, (ROW, 1))
    run = run_view(bench.host, bench.incarnation("prices", 5), kept)
    try:
        reaches(bench, BAD_AT + 1)
        [error] = errors(bench, BAD_AT)
        assert error == "[PYTHON_EXCEPTION] " + error.rpartition("] ")[2]
        assert "Unlucky: thirteen, in function 'checked' (test_view_functions.py, line " in error
    finally:
        run.stop()
    end_view_holds(bench.client, "prices", ["orders"])
    for name in ("prices", "prices_errors"):
        bench.client.drop(name, despite_holders=list(bench.client.state(name).leased))
    bench.client.hold("orders", "later").downgrade(Frontier(BAD_AT))
    run = run_view(bench.host, bench.incarnation("prices", BAD_AT, dataflow=2), kept)
    try:
        reaches(bench, BAD_AT + 1)
        assert len(errors(bench, BAD_AT)) == 1
        orders.push(20, (ROW, -1))
        reaches(bench, 21)
    finally:
        run.stop()
    assert errors(bench, 20) == []
    assert contents(bench.client, "prices", 20) == expected(orders, kept, 20)
    assert not bench.told(Failed)


def reaches(bench: Bench, time: int) -> None:
    def there() -> bool:
        assert not bench.told(Failed), bench.told(Failed)
        return (bench.upper("prices") or 0) >= time

    wait_until(f"prices at {time}", there, 60)


def kill_process(folder: str) -> Callable[[int], int]:
    def kill(price: int) -> int:
        if Path(folder, "armed").exists():
            os.kill(os.getpid(), signal.SIGKILL)
        return price

    return kill


def miss_a_file(folder: str) -> Callable[[int], int]:
    def read(price: int) -> int:
        if Path(folder, "armed").exists():
            Path(folder, "missing").read_text()
        return price

    return read


@pytest.mark.parametrize(
    ("maker", "define"), [(kill_process, sum_of_prices), (miss_a_file, each_price)]
)
def test_what_befalls_the_process_of_a_function_is_not_data(
    bench: Bench,
    orders: Input,
    tmp_path: Path,
    maker: Callable[[str], Callable[[int], int]],
    define: Callable[[str], ViewDescription],
) -> None:
    """Nothing is written of a time at which it was killed or lacked a file; later it is right."""
    from pyspark.sql.functions import udf

    bench.spark.udf.register("armed", udf(maker(str(tmp_path)), "int", useArrow=False))
    kept = define("armed")
    run = View(bench.host, bench.incarnation("prices", 5), kept, no_fence, Following())
    run.advance(bench.spark, Interval(5, 6, starts=True))
    orders.push(BAD_AT, ((4, "fay", 6), 1))
    armed = tmp_path / "armed"
    armed.touch()
    with pytest.raises(Exception, match=r"Python worker exited|FileNotFoundError"):
        run.advance(bench.spark, Interval(6, 11))
    assert bench.upper("prices") == bench.upper("prices_errors") == 6
    armed.unlink()
    run = View(bench.host, bench.incarnation("prices", 5), kept, no_fence, Following())
    run.advance(bench.spark, Interval(6, 11))
    assert errors(bench, BAD_AT) == []
    assert contents(bench.client, "prices", BAD_AT) == expected(orders, kept, BAD_AT)


@pytest.mark.parametrize(
    ("value", "kind", "condition"),
    [
        ("map(id, 1, price - 10L, 2)", "MAP<BIGINT, INT>", "DUPLICATED_MAP_KEY"),
        (
            "size(sequence(1L, if(price = 13, 100000000000L, 3L)))",
            "INT",
            "COLLECTION_SIZE_LIMIT_EXCEEDED",
        ),
    ],
)
def test_rows_decide_conditions_whose_state_does_not_say_so(
    bench: Bench, orders: Input, value: str, kind: str, condition: str
) -> None:
    """They are errors of the view as a division by zero is, and end with the row."""
    query = f"SELECT id, {value} AS v FROM orders"  # noqa: S608 - made here
    kept = view("prices", query, f"id BIGINT, v {kind}", "orders", strategy="linear")
    orders.push(BAD_AT, (ROW, 1))
    take_back(orders)
    run = View(bench.host, bench.incarnation("prices", 5), kept, no_fence, Following())
    for cuts in itertools.pairwise([5, 6, 30]):
        run.advance(bench.spark, Interval(*cuts, starts=cuts[0] == 5))
    [error] = errors(bench, BAD_AT)
    assert error.startswith(f"[{condition}")
    assert errors(bench, 20) == []
    with bench.client.reader("prices", purpose="test") as reader:
        assert sorted(reader.snapshot(20)["id"].to_pylist()) == [1, 2]


@pytest.mark.parametrize("strategy", ["linear", "incremental"])
def test_a_function_that_has_changed_is_taken_for_all_rows(
    spark: SparkSession, tmp_path: Path, strategy: Strategy
) -> None:
    """From the next change on: its body is in no definition, and it retracts what the old one made.

    The query is run anew once; from then on its changes are followed.
    """
    bench = Bench(spark, str(tmp_path / "lake"), tmp_path / "checkpoints")
    orders = bench.input("orders", ORDERS)
    if strategy == "linear":
        kept = view("v", "SELECT id, times(price) AS p FROM orders", "id BIGINT, p INT", "orders")
    else:
        query = "SELECT who, sum(times(price)) AS total FROM orders GROUP BY who"
        kept = view("v", query, "who STRING, total BIGINT", "orders")
    kept = replace(kept, strategy=strategy)
    orders.push(5, ((1, "ada", 10), 1), ((2, "bob", 20), 1))
    # Each is a process of its own: they run after each other.
    for factor, changes in (
        (1, [((3, "cyd", 30), 1)]),
        (2, [((2, "bob", 20), -1), ((2, "bob", 21), 1)]),
        (3, [((1, "ada", 10), -1)]),
    ):
        register_times(spark, factor)
        run = View(bench.host, bench.incarnation("v", 5), kept, no_fence, Following())
        if factor == 1:
            run.advance(clone_of(spark), Interval(5, orders.upper, starts=True))
        for change in (changes, [((7 + factor, "dan", 1), 1)]):
            lower = orders.upper
            orders.push(lower, *change)
            run.advance(clone_of(spark), Interval(lower, lower + 1))
            rows = [(number, who, factor * price) for number, who, price in orders.at(lower)]
            sums: Counter[str] = Counter()
            for _, who, price in rows:
                sums[who] += price
            right = [(n, price) for n, _, price in rows] if strategy == "linear" else sums.items()
            assert contents(bench.client, "v", lower) == Counter(right)
    told = Counter((one.way, one.reason) for one in bench.told(Stepped))
    assert told["recompute", "its users' functions may be others than when it last ran"] == 2
    assert told[strategy, ""] == 4


def register_times(spark: SparkSession, factor: int) -> None:
    spark.udf.register("times", lambda price: factor * price, "int")


def test_functions_of_sql_called_with_one_column(spark: SparkSession) -> None:
    """Their parameters have the column's name: Spark's plan has it twice, above a UNION of ours."""
    session = spark.newSession()
    session.sql("CREATE TEMPORARY FUNCTION fee(price INT) RETURNS INT RETURN price * 2")
    session.sql("CREATE TEMPORARY FUNCTION tax(price INT) RETURNS INT RETURN price + 1")
    project = """
        CREATE SOURCE sales USING csv OPTIONS (path 'in') SCHEMA (who STRING, price INT);
        CREATE MATERIALIZED VIEW dues AS
          SELECT who, sum(fee(price)) AS fees, max(tax(price)) AS most FROM sales GROUP BY who;
    """
    with Lab(session, project, follow_changes=True) as lab:
        lab.push("sales", [("ada", 3), ("ada", 1), ("bob", 2)], at=10)
        lab.advance(11)
        # The greatest value goes: its group is made anew of its rows.
        lab.push("sales", [("ada", 3)], at=20, diff=-1)
        lab.push("sales", [("ada", 0), ("bob", 1)], at=21)
        lab.push("sales", [("bob", 2)], at=24, diff=-1)
        lab.advance(30)
        assert Counter(lab.contents("dues").collect()) == Counter([("ada", 2, 2), ("bob", 2, 2)])
        assert Counter(lab.contents("dues", as_of=20).collect()) == Counter(
            [("ada", 2, 2), ("bob", 4, 3)]
        )
        assert {step.way for step in lab.steps("dues")[1:]} == {"incremental"}

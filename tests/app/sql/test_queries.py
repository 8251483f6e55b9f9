"""Queries and subscriptions: what is read, at which time, and the same over other names."""

from __future__ import annotations

import pytest

from shardline.app.sql.problems import InvalidProject
from shardline.app.sql.queries import (
    SelectRequest,
    SubscribeRequest,
    bind,
    parse_explain,
    parse_select,
    parse_subscribe,
)
from shardline.app.sql.references import read_query

NAMES = {"flights": "x1", "planes": "x2", "introspection.objects": "x3"}


@pytest.mark.parametrize(
    ("text", "bound"),
    [
        ("SELECT flights.a FROM flights", "SELECT flights.a FROM `x1` AS flights"),
        ("TABLE flights", "TABLE `x1`"),
        ("((TABLE flights)) EXCEPT TABLE planes", "((TABLE `x1`)) EXCEPT TABLE `x2`"),
        ("TABLE /* c */ flights", "TABLE /* c */ `x1`"),
        ("(table -- c\n`flights`) UNION TABLE planes", "(table -- c\n`x1`) UNION TABLE `x2`"),
        (
            "SELECT * FROM (TABLE flights) f UNION ALL table planes",
            "SELECT * FROM (TABLE `x1`) f UNION ALL table `x2`",
        ),
        (
            "SELECT window.start AS w FROM flights GROUP BY window(at, '1 hour')",
            "SELECT window.start AS w FROM `x1` AS flights GROUP BY window(at, '1 hour')",
        ),
        (
            "SELECT window ( at, '1 hour') AS w, count(*) OVER v AS n FROM flights WINDOW v AS ()",
            (
                "SELECT window ( at, '1 hour') AS w, count(*) OVER v AS n FROM `x1` AS flights "
                "WINDOW v AS ()"
            ),
        ),
        (
            "SELECT flights.v:a[0].b::int AS select, x.from FROM flights, x",
            "SELECT flights.v:a[0].b::int AS select, x.from FROM `x1` AS flights, x",
        ),
        ("SELECT f.a FROM Flights AS f", "SELECT f.a FROM `x1` AS f"),
        ("SELECT f.a FROM `flights` f", "SELECT f.a FROM `x1` f"),
        ("SELECT `Flights`.a FROM `Flights`", "SELECT `Flights`.a FROM `x1` AS `Flights`"),
        (
            "WITH flights AS (SELECT * FROM flights) SELECT * FROM flights",
            "WITH flights AS (SELECT * FROM `x1` AS flights) SELECT * FROM flights",
        ),
        (
            "WITH RECURSIVE flights AS (SELECT * FROM flights) SELECT * FROM flights",
            "WITH RECURSIVE flights AS (SELECT * FROM flights) SELECT * FROM flights",
        ),
        (
            "SELECT 1 FROM (WITH flights AS (SELECT 1) SELECT * FROM flights) x, flights",
            "SELECT 1 FROM (WITH flights AS (SELECT 1) SELECT * FROM flights) x, `x1` AS flights",
        ),
        (
            "SELECT a FROM planes WHERE EXISTS (SELECT 1 FROM flights WHERE flights.a = planes.a)",
            (
                "SELECT a FROM `x2` AS planes WHERE EXISTS "
                "(SELECT 1 FROM `x1` AS flights WHERE flights.a = planes.a)"
            ),
        ),
        (
            "SELECT /*+ BROADCAST(flights) */ 'flights', flights FROM t AS flights, flights f",
            "SELECT /*+ BROADCAST(flights) */ 'flights', flights FROM t AS flights, `x1` f",
        ),
        (
            "SELECT introspection.objects.id FROM introspection.objects -- flights",
            "SELECT objects.id FROM `x3` AS objects -- flights",
        ),
        (
            "SELECT e FROM flights LATERAL VIEW explode(m) planes AS e",
            "SELECT e FROM `x1` AS flights LATERAL VIEW explode(m) planes AS e",
        ),
        (
            "SELECT * FROM flights PIVOT (sum(a) FOR b IN (1)) UNION ALL FROM planes",
            (
                "SELECT * FROM `x1` AS flights PIVOT (sum(a) FOR b IN (1)) UNION ALL "
                "FROM `x2` AS planes"
            ),
        ),
        ("FROM flights |> WHERE a > 1", "FROM `x1` AS flights |> WHERE a > 1"),
        ("SELECT 1 FROM range(3), VALUES (1) flights",
         "SELECT 1 FROM range(3), VALUES (1) flights"),
    ],
)  # fmt: skip
def test_binding_changes_references_and_nothing_else(text: str, bound: str) -> None:
    """Tables that are objects are renamed; names of anything else stay."""
    assert bind(text, NAMES) == bound


def test_what_is_no_query_cannot_be_bound() -> None:
    """A description's query always is one; another caller is told."""
    with pytest.raises(InvalidProject, match="is not expected here"):
        bind("WITH a AS (SELECT 1) SELECT * FROM a FROM", NAMES)


def test_odd_names_are_quoted() -> None:
    """A backtick in a name is doubled."""
    assert bind("SELECT 1 FROM a", {"a": "x`y"}) == "SELECT 1 FROM `x``y` AS a"


def test_a_place_in_a_bound_query_leads_back() -> None:
    """Every character that was kept leads to itself, what was put in to what it replaced."""
    text = "SELECT flights.x FROM flights JOIN planes p ON flights.y = p.y WHERE z"
    query = read_query(text)
    bound = query.bind({"flights": "a_much_longer_name", "planes": "q"})
    for piece in ("SELECT", "flights.x", "JOIN", "p ON", "flights.y", "WHERE z"):
        assert bound.origin(bound.text.index(piece)) == text.index(piece)
    assert bound.origin(bound.text.index("a_much")) == text.index("flights JOIN")
    assert bound.origin(len(bound.text)) == len(text)


@pytest.mark.parametrize(
    ("text", "selected"),
    [
        ("SELECT * FROM B, a;", SelectRequest("SELECT * FROM B, a", ("a", "b"))),
        ("SELECT 1 AS OF", SelectRequest("SELECT 1 AS OF", ())),
        ("select * from t as of 17 ", SelectRequest("select * from t", ("t",), 17)),
        (
            "SELECT * FROM t AS OF '1970-01-01 00:00:01.5'",
            SelectRequest("SELECT * FROM t", ("t",), 1500, as_of_date=True),
        ),
        (
            "SELECT * FROM introspection.Objects",
            SelectRequest("SELECT * FROM introspection.Objects", ("introspection.objects",)),
        ),
    ],
)
def test_a_query_has_inputs_and_perhaps_a_time(text: str, selected: SelectRequest) -> None:
    """AS OF at the end is ours; everything before it is Spark's."""
    assert parse_select(text) == selected


@pytest.mark.parametrize(
    ("text", "subscribed"),
    [
        ("SUBSCRIBE delays", SubscribeRequest("delays")),
        (
            "subscribe to `Delays` as of 5 up to '1970-01-01 00:00:01' without snapshot;",
            SubscribeRequest("delays", snapshot=False, as_of=5, up_to=1000),
        ),
        ("SUBSCRIBE TO d UP TO 9", SubscribeRequest("d", up_to=9)),
        (
            "SUBSCRIBE d OF SHARD 's0f' WITHOUT SNAPSHOT AS OF 5",
            SubscribeRequest("d", snapshot=False, as_of=5, shard="s0f"),
        ),
    ],
)
def test_a_subscription_has_an_object_and_times(text: str, subscribed: SubscribeRequest) -> None:
    """Parts stand in any order."""
    assert parse_subscribe(text) == subscribed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SELECT a FROM t VERSION AS OF 3", "sql:1:17: an object has times, and no versions"),
        ("SELECT a FROM t AS OF 'soon'", "sql:1:23: 'soon' is no time"),
        ("SELECT a FROM t AS OF 9223372036854775807", "'9223372036854775807' is no time"),
        ("SELECT a FROM t AS OF " + "9" * 5000, "is no time"),
        ("SELECT 1; SELECT 2", "sql:1:11: expected one statement"),
        ("DROP TABLE t", "sql:1:1: this is no query"),
        # Commands of which sqlglot's tokens have only the first and the last word.
        ("SHOW TABLES IN x", "sql:1:1: this is no query"),
        ("show tables", "hint: objects: `status`, or SELECT * FROM introspection.objects"),
        ("-- all\nEXPLAIN SELECT * FROM t", "sql:2:1: this is no query"),
        ("VACUUM t RETAIN 3 HOURS", "sql:1:1: "),
        ("SELECT 1 -- \\\n, 2", "sql:1:10: Spark reads a comment here otherwise"),
        ("", "there is no statement"),
        ("SELECT a\nFROM t.u.v", "sql:2:6: 't.u.v' is no object"),
        ("SELECT a FROM t TABLESAMPLE (3 ROWS)", "a clause that objects do not have"),
        ("FROM t |> UNION ALL TABLE u", "sql:1:1: the query is not understood"),
        ("FROM t |> INTERSECT VALUES (1)", "hint: some operators behind |> are not known here"),
        ("FROM t |> LIMIT 2+3", "the query is not understood"),
        ("FROM t |> DROP a", "hint: some operators behind |> are not known here"),
    ],
)
def test_what_is_no_query_is_refused(text: str, expected: str) -> None:
    """The error names the place."""
    with pytest.raises(InvalidProject) as refused:
        parse_select(text)
    assert expected in str(refused.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("SUBSCRIBE TO t UP TO 3 AS OF 3", "UP TO 3 is not behind AS OF 3"),
        (f"SUBSCRIBE TO t UP TO {2**63 - 1}", f"sql:1:22: '{2**63 - 1}' is no time"),
        (f"SUBSCRIBE TO t AS OF {2**64}", "is no time"),
        ("SUBSCRIBE TO t WITH x", "'WITH' is not expected here"),
        ("SUBSCRIBE TO t AS OF 1 AS OF 2", "'AS' is not expected here"),
        ("SUBSCRIBE TO t OF SHARD", "expected the id of a shard"),
        ("SUBSCRIBE TO t OF SHARD 'a' OF SHARD 'b'", "'OF' is not expected here"),
        ("SELECT 1", "expected SUBSCRIBE"),
        ("SUBSCRIBE TO", "the name of what is followed"),
    ],
)
def test_what_is_no_subscription_is_refused(text: str, expected: str) -> None:
    """So does this one."""
    with pytest.raises(InvalidProject) as refused:
        parse_subscribe(text)
    assert expected in str(refused.value)


@pytest.mark.parametrize(
    ("text", "of"),
    [
        ("EXPLAIN VIEW Late", "late"),
        (" explain materialized view `late` ;", "late"),
        ("EXPLAIN SELECT a FROM t AS OF 7", SelectRequest("SELECT a FROM t", ("t",), 7)),
        ("SELECT a FROM explain", None),
        ("explained", None),
    ],
)
def test_what_is_to_be_explained(text: str, of: SelectRequest | str | None) -> None:
    """A view by its name, or a query; anything else is no EXPLAIN."""
    assert parse_explain(text) == of


def test_what_cannot_be_explained_shows_its_place() -> None:
    """In the text as it was written."""
    with pytest.raises(InvalidProject, match=r"sql:2:1"):
        parse_explain("EXPLAIN\nDROP TABLE t")

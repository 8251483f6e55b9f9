"""Trees of the parser are read whole or refused, whatever its releases put into them."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from sqlglot import exp
from sqlglot.dialects.spark import Spark

from shardline.app.compute.peek.fast_path import read_simple_select
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.filters.parser import Condition
from shardline.datasource.filters.sql_tree import READ_ARGUMENTS, UnsupportedSql, parse_sql
from shardline.datasource.types.schema import ShardSchema

if TYPE_CHECKING:
    from collections.abc import Iterator

DEEP = pa.struct([("c", pa.struct([("d", pa.struct([("e", pa.int64())]))]))])
SCHEMA = ShardSchema.from_arrow(
    pa.schema(
        [
            ("n", pa.int32()),
            ("price", pa.decimal128(10, 2)),
            ("x", pa.float64()),
            ("s", pa.string()),
            ("b", pa.bool_()),
            ("y", pa.binary()),
            ("i", pa.duration("us")),
            ("ts", pa.timestamp("us", "UTC")),
            ("at", pa.struct([("a", DEEP)])),
        ]
    )
)

CONDITIONS = [
    "(n = 5)",
    "not n <> -5",
    "n < 5 and n <= 6L and b",
    "n > 5 or n >= 6 or null",
    "n <=> 5 or n is distinct from 5",
    "b is not true",
    "n is null and false",
    "n between 1 and 2",
    "n in (1, 2, null)",
    "s like 'a%'",
    "s not like 'a%'",
    "startswith(s, 'a')",
    "isnan(x)",
    "isnull(x)",
    "`at`.a.c.d.e = 1",
    "y = X'00ff'",
    "i > interval '1 02:03:04.5' day to second",
    "i > interval '5' hours",
    "x = double('nan') or x = -1.5F",
    "price = cast('1.5' as decimal(3, 1)) or price = try_cast('1.5' as decimal(3, 1))",
    "ts > timestamp '2026-01-01 00:00:00'",
]
QUERIES = [
    "SELECT * FROM t",
    "SELECT u.n AS k, s FROM t AS u WHERE u.n = 5 LIMIT 3",
]


def parsed(text: str) -> exp.Expr:
    [tree] = Spark().parse(text)
    assert tree is not None
    return tree


SAMPLES = [(text, parsed(text)) for text in (*CONDITIONS, *QUERIES)]

_texts = itertools.count()


def take(tree: exp.Expr, monkeypatch: pytest.MonkeyPatch) -> Any:
    """What a tree is understood as when the parser gives it; None if it is refused."""

    class Parser:
        def parse(self, *_: object) -> list[exp.Expr]:
            return [tree]

    monkeypatch.setattr(Spark, "parser", lambda *_, **__: Parser())
    # A text of its own each time: what a text is bound to is remembered.
    text = f"true -- {next(_texts)}"
    if isinstance(tree, exp.Select):
        found = read_simple_select(text, "t", SCHEMA, "UTC")
        return found and (
            found.columns,
            found.names,
            found.limit,
            found.where and found.where.predicate,
        )
    try:
        return Condition(text).bind(SCHEMA).predicate
    except InvalidUsage as error:
        return None if error.code in {"INVALID_WHERE", "UNKNOWN_COLUMN"} else error


def places(tree: exp.Expr) -> Iterator[tuple[int, exp.Expr]]:
    """Each node of a tree with its number."""
    yield from enumerate(tree.walk())


def changed(tree: exp.Expr, number: int, name: str, value: object) -> exp.Expr:
    """The tree with an argument of a node set."""
    copy = tree.copy()
    list(copy.walk())[number].set(name, value)
    return copy


def test_the_samples_have_every_node_that_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """And all of them are taken as they are."""
    assert {type(node).__name__ for _, tree in SAMPLES for node in tree.walk()} == set(
        READ_ARGUMENTS
    )
    for text, tree in SAMPLES:
        assert take(tree, monkeypatch) is not None, text
    for kind, read in READ_ARGUMENTS.items():
        assert read <= set(getattr(exp, kind).arg_types), kind


@pytest.mark.parametrize("kind", READ_ARGUMENTS)
def test_an_argument_that_is_not_read_is_refused(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every one that the parser's own list has, and one that it may have some day."""
    tried = 0
    for text, tree in SAMPLES:
        for number, node in places(tree):
            if type(node).__name__ != kind:
                continue
            for name in {*node.arg_types, "of_the_future"} - READ_ARGUMENTS[kind]:
                for value in (True, "x", exp.to_identifier("x"), [exp.to_identifier("x")]):
                    other = changed(tree, number, name, value)
                    assert take(other, monkeypatch) is None, (text, name, value)
                    tried += 1
                assert take(changed(tree, number, name, None), monkeypatch) is not None
    assert tried


@pytest.mark.parametrize("kind", READ_ARGUMENTS)
def test_an_argument_that_is_read_counts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a minus or a NOT before it, it is refused or means something else.

    A reader that takes the text of whatever stands there would not see them.
    """
    for text, tree in SAMPLES:
        for number, node in places(tree):
            if type(node).__name__ != kind:
                continue
            plain = take(tree, monkeypatch)
            for name in READ_ARGUMENTS[kind]:
                value = node.args.get(name)
                for wrap in (exp.Neg, exp.Not):
                    if isinstance(value, exp.Expr):
                        other = changed(tree, number, name, wrap(this=value.copy()))
                        assert take(other, monkeypatch) != plain, (text, name, wrap)
                    elif isinstance(value, list) and value:
                        some = [wrap(this=value[0].copy()), *(one.copy() for one in value[1:])]
                        other = changed(tree, number, name, some)
                        assert take(other, monkeypatch) != plain, (text, name, wrap)


def test_any_other_node_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every type of node that the parser has and the list has not, in the place of a condition."""
    kinds = [one for one in vars(exp).values() if isinstance(one, type)]
    kinds = [one for one in kinds if issubclass(one, exp.Expression)]
    others = {one.__name__: one for one in kinds if one.__name__ not in READ_ARGUMENTS}
    assert len(others) > 500
    for name, kind in others.items():
        node = kind(this=exp.column("b"))
        assert take(node, monkeypatch) is None, name
        assert take(exp.Not(this=node), monkeypatch) is None, name


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("b is unknown", "write is null"),
        ("n in (1, 2,)", "comma"),
        ("y = 0x1F", "X'…'"),
        ("s = '${env:HOME}'", "setting"),
        ("s = 'a\\nb'", "backslash"),
        ("n = 1; n = 2", "not one"),
        ("n =", "no SQL expression"),
    ],
)
def test_what_the_tree_does_not_show_is_refused(text: str, why: str) -> None:
    """The parser gives the tree of something else, or drops it."""
    with pytest.raises(UnsupportedSql, match=why):
        parse_sql(text)

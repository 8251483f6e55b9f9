"""Parsed relations are what a query reads by Spark's own parser, before anything is looked up.

The objects of a query are found by another parser (`references`), which does not see a name that
Spark makes of an expression: ``IDENTIFIER('text.`/etc/passwd`')`` reads a file of the application's
machine, or a table of any catalog, with the application's rights. So Spark's parsed plan has to
read nothing but the views that stand for objects, and the query's own common table expressions;
the latter only if no name in it is computed.

    refuse_foreign_relations(plan.toJSON(), {"peek_7"}, text)

Invariants:
    Nothing is resolved for it: to resolve a file is to read it.
    What the query means is judged by Spark's plan. Where the plan's JSON does not show it, the text
    has to be without IDENTIFIER and TABLE, so that `references` has seen every name.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Any, Final

from sqlglot import TokenType

from shardline.app.sql.tokens import tokens_of, word_of
from shardline.datasource.errors import InvalidUsage

__all__ = ["refuse_foreign_relations"]

_RELATION: Final = "org.apache.spark.sql.catalyst.analysis.UnresolvedRelation"
_COMPUTED: Final = "org.apache.spark.sql.catalyst.analysis.PlanWithUnresolvedIdentifier"
_WITH: Final = "org.apache.spark.sql.catalyst.plans.logical.UnresolvedWith"
_WINDOWS: Final = "org.apache.spark.sql.catalyst.plans.logical.WithWindowDefinition"
"""A WINDOW clause. Its windows are in a map, and Spark writes null for any map: what their
expressions read is not in the JSON."""


def refuse_foreign_relations(parsed: str, views: Collection[str], text: str) -> None:
    """Refuse a query that reads anything but `views`.

    Args:
        parsed: The parsed plan, in Spark's JSON.
        views: Names of the temporary views of its objects.
        text: The query, as Spark has parsed it.

    Raises:
        InvalidUsage: `UNKNOWN_OBJECT`.
    """
    nodes = list(_nodes(json.loads(parsed)))
    makes_names = _has_word_before(text, "IDENTIFIER", bracket=True)
    hides_names = makes_names or _has_word_before(text, "TABLE", bracket=False)
    ctes = {cte["_1"] for node in nodes if node["class"] == _WITH for cte in node["cteRelations"]}
    if makes_names:
        # Outside of its WITH such a name is that of a table. `references` knows where it is, but
        # not of a name that is made.
        ctes = set()
    # Spark's JSON has the parts of a name in one text. Of two parts it has a comma, as a quoted
    # name of one part may have, which is refused with them: nothing else tells the two apart.
    known = {f"[{name}]".lower() for name in (*views, *ctes) if "," not in name}
    for node in nodes:
        if node["class"] == _WINDOWS and hides_names:
            # Of `(TABLE x)` the other parser makes a column in an expression.
            raise InvalidUsage(
                "what IDENTIFIER or TABLE names in a WINDOW clause is not known to be an object",
                code="UNKNOWN_OBJECT",
                hint="write names as they are, behind FROM, or the windows behind OVER",
            )
        if node["class"] == _COMPUTED:
            raise _foreign("a name that IDENTIFIER computes")
        if node["class"] == _RELATION and node["multipartIdentifier"].lower() not in known:
            raise _foreign(f"'{node['multipartIdentifier'][1:-1].replace(', ', '.')}'")


def _has_word_before(text: str, word: str, *, bracket: bool) -> bool:
    """True if an unquoted `word` stands before an opening bracket, or before anything else."""
    # Compared in upper case, as by Spark's lexer, to which a dotless i is an I.
    return any(
        word_of(one, text) == word and (behind.token_type is TokenType.L_PAREN) == bracket
        for one, behind in pairwise(tokens_of(text))
    )


def _nodes(value: Any) -> Iterator[dict[str, Any]]:
    """All operators and expressions, wherever in the fields of others they stand."""
    ahead = [value]
    while ahead:
        one = ahead.pop()
        if isinstance(one, dict):
            if "class" in one:
                yield one
            ahead += one.values()
        elif isinstance(one, list):
            ahead += one


def _foreign(what: str) -> InvalidUsage:
    return InvalidUsage(
        f"the query reads {what}, which is no object",
        code="UNKNOWN_OBJECT",
        hint="write the names of sources and views as they are, without IDENTIFIER; anything else, "
        "such as files or a catalog's tables, becomes readable with CREATE SOURCE",
    )

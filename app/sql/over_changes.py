"""A linear query is rewritten to run over changes: every SELECT passes `_ts` and `_diff` on.

    SELECT id, price * 2 AS twice FROM orders WHERE price > 10
    SELECT id, price * 2 AS twice , _ts, _diff FROM orders WHERE price > 10

A query Q is linear if Q(a + b) = Q(a) + Q(b) (DBSP's linear operators). Then the change of its
result is Q over its input's change, row by row, at the same time and with the same diff: the cost
of an update follows the change, and not the size of the input.

Text is inserted between tokens, and nothing is generated anew: what the user wrote stays, down to
the last literal. That the new text means the same is not taken for granted: `compare_plans` proves
it from Spark's plans, or the view is recomputed.

Invariants:
    Every SELECT is followed by a FROM on its own level, before which the columns can be added.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import Token, TokenType

from shardline.app.sql.tokens import query_tokens
from shardline.datasource.types.schema import DIFF, TS

__all__ = ["NotLinear", "rewrite_over_changes"]


@dataclass(frozen=True, slots=True)
class NotLinear:
    """The refusal of a query that cannot run over changes.

    Attributes:
        reason: The reason, for a person.
    """

    reason: str


def rewrite_over_changes(query: str) -> str | NotLinear:
    """The text of `query` for inputs that have `_ts` and `_diff`, with both at the end of its rows.

    It is right only for a query whose plan has no operators but those of `strategy.LINEAR`.
    """
    tokens = query_tokens(query)
    depths = _depths(tokens)
    inserts: list[tuple[int, str]] = []
    for place, token in enumerate(tokens):
        if token.token_type is not TokenType.SELECT:
            continue
        end = _end_of_list(tokens, depths, place)
        if end is None:
            return NotLinear("a SELECT that no FROM follows")
        inserts += _stars(tokens, depths, place, end)
        inserts.append((tokens[end].start, f", {TS}, {DIFF} "))
    if not inserts:
        return NotLinear("no SELECT")
    # From the end: an insertion moves every offset behind it.
    for position, text in sorted(inserts, reverse=True):
        query = query[:position] + text + query[position:]
    return query


def _depths(tokens: Sequence[Token]) -> list[int]:
    """The number of parentheses around each token."""
    depths, depth = [], 0
    for token in tokens:
        depth -= token.token_type is TokenType.R_PAREN
        depths.append(depth)
        depth += token.token_type is TokenType.L_PAREN
    return depths


def _end_of_list(tokens: Sequence[Token], depths: Sequence[int], place: int) -> int | None:
    """The FROM of the SELECT at `place`; None if its level ends before there is one."""
    for other in range(place + 1, len(tokens)):
        if depths[other] < depths[place]:
            return None
        if depths[other] == depths[place]:
            kind = tokens[other].token_type
            if kind is TokenType.FROM and tokens[other - 1].token_type is not TokenType.DISTINCT:
                return other  # and not the one of IS DISTINCT FROM
            if kind in {TokenType.SELECT, TokenType.UNION}:
                return None
    return None


def _stars(
    tokens: Sequence[Token], depths: Sequence[int], start: int, end: int
) -> list[tuple[int, str]]:
    """The insertions that keep stars of a select list from returning the two columns as well."""
    found = []
    for place in range(start + 1, end):
        before = tokens[place - 1].token_type
        if (
            tokens[place].token_type is not TokenType.STAR
            or depths[place] != depths[start]
            or before not in {TokenType.SELECT, TokenType.COMMA, TokenType.DOT}
        ):
            continue
        if tokens[place + 1].token_type is TokenType.EXCEPT:
            closing = next(
                other
                for other in range(place + 2, end)
                if tokens[other].token_type is TokenType.R_PAREN and depths[other] == depths[start]
            )
            found.append((tokens[closing].start, f", {TS}, {DIFF}"))
        else:
            found.append((tokens[place].end + 1, f" EXCEPT ({TS}, {DIFF})"))
    return found

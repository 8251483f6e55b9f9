"""A linear query over changes instead of contents: every SELECT hands `_ts` and `_diff` on.

    SELECT id, price * 2 AS twice FROM orders WHERE price > 10
    SELECT id, price * 2 AS twice , _ts, _diff FROM orders WHERE price > 10

A query is linear if what it makes of the sum of two collections is the sum of what it makes of
each. Then its change is what it makes of its input's change, row by row, at the same time and with
the same diff. Text is inserted at the places of tokens, and nothing is generated anew: what the
user wrote keeps its meaning, down to the last literal.

Invariants:
    Every SELECT has a FROM behind it, on its own level, where the columns can be handed on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import Token, TokenType

from shardline.app.sql.tokens import query_tokens
from shardline.datasource.types.schema import DIFF, TS

__all__ = ["NotLinear", "over_changes"]


@dataclass(frozen=True, slots=True)
class NotLinear:
    """The query cannot be taken over changes.

    Attributes:
        reason: Why, in a person's words.
    """

    reason: str


def over_changes(query: str) -> str | NotLinear:
    """The text of `query` for inputs that have `_ts` and `_diff`, with both at the end of its rows.

    Right only for a query whose plan has no operators but those of `strategy.LINEAR`.
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
    for position, text in sorted(inserts, reverse=True):
        query = query[:position] + text + query[position:]
    return query


def _depths(tokens: Sequence[Token]) -> list[int]:
    """How many parentheses each token is inside of."""
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
    """What keeps stars of a select list from giving the two columns as well."""
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

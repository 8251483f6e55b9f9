"""References are the places of a query that read an object; they can be bound to other names.

A view's inputs must be known before Spark is asked, and must be replaced by temporary views when
the query runs. A generator of SQL would write the whole text anew, and could change its meaning:
here only the names are replaced, in the text as written.

    query = read_query("WITH d AS (SELECT * FROM flights) SELECT * FROM d")
    query.inputs                                ("flights",)
    query.bind({"flights": "_tmp_7"}).text      "WITH d AS (SELECT * FROM `_tmp_7` AS flights) …"

Names follow Spark's rules: they are compared without case, a common table expression hides an
object of its name from there on inward, and inside of itself it sees the object (unless RECURSIVE).
A name has one part, or is `introspection.` and one part.

Invariants:
    Binding changes references and nothing else of the text: no function, literal, alias, column or
    hint. A reference without an alias gets its own name as one, so that `flights.x` still works.
    Every offset of a bound text maps back to an offset of the original (`Bound.origin`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from sqlglot import Token, TokenType, exp
from sqlglot.dialects.databricks import Databricks
from sqlglot.errors import ParseError

from shardline.app.sql.problems import TextProblem
from shardline.app.sql.tokens import check_comments, query_tokens, word_of

__all__ = ["INTROSPECTION", "BoundQuery", "Query", "Reference", "quote_name", "read_query"]

INTROSPECTION: Final = "introspection"
"""The only qualifier that a name may have: that of the runtime's own relations."""

_PLAIN: Final = frozenset({"this", "db", "alias", "joins", "laterals", "pivots"})
"""Arguments of sqlglot's `Table` that objects may have."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A place of a query that reads an object.

    Attributes:
        name: Name of the object in lower case; `introspection.x` for a relation.
        start: Offset of its first character in the query's text.
        end: Offset after its last one.
        own: Its last part as written, with its backticks.
        aliased: True if no alias may be added: there is one, or none is possible (`TABLE x`).
    """

    name: str
    start: int
    end: int
    own: str
    aliased: bool


@dataclass(frozen=True, slots=True)
class _Edit:
    start: int
    end: int
    text: str


@dataclass(frozen=True, slots=True)
class BoundQuery:
    """A query with other names.

    Attributes:
        text: The text of the query.
    """

    text: str
    _edits: tuple[_Edit, ...]

    def origin(self, offset: int) -> int:
        """The offset in the original text that corresponds to `offset` in this one."""
        moved = 0
        for edit in self._edits:
            start = edit.start + moved
            if offset < start:
                break
            if offset < start + len(edit.text):
                return edit.start
            moved += len(edit.text) - (edit.end - edit.start)
        return offset - moved


@dataclass(frozen=True, slots=True)
class Query:
    """A query as written, and its references.

    Attributes:
        text: The text as written.
        references: References in the order of the text.
        qualified: Start and end of each `introspection.` in front of a column, which is removed:
            the relation is known by its last part once it is bound.
    """

    text: str
    references: tuple[Reference, ...]
    qualified: tuple[tuple[int, int], ...] = ()

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the objects that it reads, sorted, each once."""
        return tuple(sorted({reference.name for reference in self.references}))

    def bind(self, names: Mapping[str, str]) -> BoundQuery:
        """The query over other names.

        Args:
            names: The name to read instead, by each name that it reads in lower case. New names
                have one part, without backticks. Names that are missing stay as they are.
        """
        edits = [_Edit(start, end, "") for start, end in self.qualified]
        for reference in self.references:
            if reference.name in names:
                alias = "" if reference.aliased else f" AS {reference.own}"
                bound = quote_name(names[reference.name]) + alias
                edits.append(_Edit(reference.start, reference.end, bound))
        edits.sort(key=lambda edit: edit.start)
        assert all(a.end <= b.start for a, b in pairwise(edits)), edits
        pieces, end = [], 0
        for edit in edits:
            pieces += [self.text[end : edit.start], edit.text]
            end = edit.end
        return BoundQuery("".join([*pieces, self.text[end:]]), tuple(edits))


def quote_name(name: str) -> str:
    """The name in backticks, as Spark's SQL takes any name."""
    return f"`{name.replace('`', '``')}`"


def read_query(text: str) -> Query:
    """Read a query and find its references.

    Raises:
        TextProblem: The text is not one query, reads something that is no object, or Spark reads
            one of its comments otherwise.
    """
    tokens = query_tokens(text)
    tree = _parsed(tokens, text)
    # Now that it is known to be a query: of a command the tokens have only a part.
    check_comments(text, tokens)
    # Behind the word TABLE no alias may stand, whatever comments are between it and the name.
    bare_starts = {b.start for a, b in pairwise(tokens) if word_of(a, text) == "TABLE"}
    references: list[Reference] = []
    columns: list[exp.Column] = []
    for node, hidden in _nodes(tree):
        if isinstance(node, exp.Column) and node.args.get("db") is not None:
            columns.append(node)
        if isinstance(node, exp.Table) and isinstance(node.this, exp.Identifier):
            if node.args.get("db") is None and node.name.lower() in hidden:
                continue
            references.append(_reference(node, text, bare_starts))
    references.sort(key=lambda reference: reference.start)
    bare = {r.name for r in references if not r.aliased}
    qualified = [q for column in columns if (q := _qualifier(column, bare)) is not None]
    return Query(text, tuple(references), tuple(qualified))


def _parsed(tokens: list[Token], text: str) -> exp.Expr:
    if not tokens:
        raise TextProblem(0, "there is no query", "write SELECT …")
    try:
        # Databricks' dialect, not Spark's: it has the same SQL, and knows paths into a variant
        # (`v:a.b`), which Spark's of sqlglot does not.
        found = Databricks().parser().parse(tokens, text)
    except ParseError as error:
        raise _parse_problem(error, tokens) from None
    except RecursionError:
        raise TextProblem(tokens[0].start, "the query is nested too deeply", "split it") from None
    except Exception as error:
        # The parser fails at some texts by errors of its own. One such query must not hide the
        # place of its problem, nor all other problems of its project.
        raise TextProblem(tokens[0].start, "the query is not understood", _hint(tokens)) from error
    if len(found) > 1:
        raise TextProblem(
            tokens[0].start, "expected one query, found several", "leave out the others"
        )
    tree = found[0]
    if not isinstance(tree, exp.Query | exp.Values):
        raise TextProblem(tokens[0].start, "this is no query", "start it with SELECT or WITH")
    return tree


def _parse_problem(error: ParseError, tokens: list[Token]) -> TextProblem:
    first = error.errors[0] if error.errors else {}
    where = first.get("line"), first.get("col")
    place = next((n for n, token in enumerate(tokens) if (token.line, token.col) == where), None)
    offset = tokens[-1].end + 1 if place is None else tokens[place].start
    message = _without_internals(
        str(first.get("description") or "the query is not understood").rstrip("."),
        str(first.get("highlight") or ""),
    )
    return TextProblem(offset, message, _hint(tokens, place))


def _without_internals(message: str, shown: str) -> str:
    """An error of the parser without the names of its classes, and with the token that it is at."""
    if message.startswith("Invalid expression") and shown:
        return f"'{shown}' is not expected here"
    if message.startswith("Required keyword") and shown:
        return f"something is missing behind '{shown}'"
    message = message.partition(" but got ")[0]
    at = f" at '{shown}'" if shown else ""
    return f"{message[:1].lower()}{message[1:]}{at}"


def _hint(tokens: list[Token], place: int | None = None) -> str:
    """What to do about a token that is not expected; `place` is its index, None if unknown."""
    if any(token.token_type is TokenType.PIPE_GT for token in tokens):
        return "some operators behind |> are not known here: write them as a subquery"
    words = () if place is None else [one.text.upper() for one in tokens[: place + 1]]
    match words:
        case [*_, "CREATE"]:
            return "close the statement before it with ;"
        case [*_, "RETAIN", "HISTORY"] | [*_, "COMMENT", _]:
            return "COMMENT and RETAIN HISTORY of a view stand before its AS"
        case [*_, "AS", "OF", _]:
            return "a view has its contents at every time: AS OF is for those who read it"
        case _:
            return "a query is Spark's SQL"


def _nodes(tree: exp.Expr) -> Iterator[tuple[exp.Expr, frozenset[str]]]:
    """Every node that can be a reference, with the names of the CTEs that hide objects there."""
    open_nodes: list[tuple[exp.Expr, frozenset[str]]] = [(tree, frozenset())]
    while open_nodes:
        node, hidden = open_nodes.pop()
        if isinstance(node, exp.Hint):
            continue  # a hint names aliases, in sqlglot's tree as if they were tables
        with_ = node.args.get("with_")
        if with_ is not None:
            for cte in with_.expressions:
                name = frozenset({cte.alias.lower()})
                open_nodes.append((cte.this, hidden | name if with_.recursive else hidden))
                hidden |= name
        yield node, hidden
        for key, value in node.args.items():
            if key != "with_":
                values = value if isinstance(value, list) else [value]
                open_nodes += [(child, hidden) for child in values if isinstance(child, exp.Expr)]


def _reference(table: exp.Table, text: str, bare_starts: set[int]) -> Reference:
    parts = table.parts
    start, end = _span(parts[0], text)[0], _span(parts[-1], text)[1]
    if len(parts) > 2 or (len(parts) == 2 and parts[0].name.lower() != INTROSPECTION):  # noqa: PLR2004
        raise TextProblem(
            start,
            f"'{text[start:end]}' is no object: its name has several parts",
            f"read a source or view by its name, or {INTROSPECTION}.relation; anything else, such "
            "as files or a catalog's tables, becomes readable with CREATE SOURCE",
            "UNKNOWN_OBJECT",
        )
    strange = [key for key, value in table.args.items() if value and key not in _PLAIN]
    if strange:
        raise TextProblem(
            end,
            f"'{text[start:end]}' is followed by a clause that objects do not have ({strange[0]})",
            "write the name with an alias or none; AS OF stands at the end of a SELECT",
        )
    name = ".".join(part.name.lower() for part in parts)
    own_start, own_end = _span(parts[-1], text)
    aliased = bool(table.args.get("alias")) or start in bare_starts
    return Reference(name, start, end, text[own_start:own_end], aliased)


def _span(part: exp.Expr, text: str) -> tuple[int, int]:
    """Offsets of an identifier in the text.

    Raises:
        TextProblem: The text there is another: sqlglot has made the name up, and binding would
            damage it.
    """
    start, last = part.meta.get("start"), part.meta.get("end")
    if start is None or last is None:
        raise TextProblem(
            0, f"the place of '{part.name}' is not known", "write the query more plainly"
        )
    written = text[start : last + 1]
    if written.strip("`").replace("``", "`").lower() != part.name.lower():
        raise TextProblem(start, f"'{part.name}' is not understood here", "give it another alias")
    return start, last + 1


def _qualifier(column: exp.Column, bare: set[str]) -> tuple[int, int] | None:
    """Start and end of a column's `introspection.` if its relation has no alias; else None."""
    parts = column.parts
    name = ".".join(part.name.lower() for part in parts[:2])
    if name not in bare:
        return None
    return parts[0].meta["start"], parts[1].meta["start"]

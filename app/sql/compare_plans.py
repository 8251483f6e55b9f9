"""Plans are compared here: a query's, and that of its text over changes (`over_changes`).

Over changes the inputs have two more columns, `_ts` and `_diff`, that the query's author knows
nothing of. A text that passes them on does not show which other expressions see them: `hash(*)`
takes them among its values, a name may now mean one of them instead of an alias. The view would be
wrong, silently. Spark's analyzer resolves all of that: so the plan over changes must be the plan of
the query itself, operator by operator and expression by expression, once the two columns have been
taken out of the lists that pass columns on.

    compare_plans(plan, changed) -> ""        the same query, with `_ts` and `_diff` passed on
    compare_plans(plan, changed) -> "an expression that sees …"

Invariants:
    Two plans are the same only if everything in them was compared: an operator that is not known
    here, or a field that differs, makes them different. A view is then recomputed, which is right.
    A hidden column is never the partner of a column of the query: only lists of columns that are
    passed on (`_HANDING_ON`) may name one, by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, Final

from shardline.app.sql.plan_tree import Node
from shardline.app.sql.strategy import INPUT
from shardline.datasource.types.schema import DIFF, TS

__all__ = ["compare_plans"]

_HIDDEN: Final = (TS, DIFF)

_HANDING_ON: Final = frozenset({"Project.projectList", "Expand.output", "Expand.projections"})
"""Lists of an operator's output columns, in which hidden ones may be beside the query's."""

_AS_BELOW: Final = frozenset(
    {
        "CTERelationDef",
        "Filter",
        "PipeOperator",
        "Repartition",
        "RepartitionByExpression",
        "ResolvedHint",
        "Sort",
        "SubqueryAlias",
        "WithCTE",
    }
)
"""Operators whose output is that of their last child."""

_LEAVES: Final = frozenset({"LocalRelation", "LogicalRDD"})
"""Spark's operators for a table of rows, which every input is here."""

_EXPR_ID: Final = "org.apache.spark.sql.catalyst.expressions.ExprId"

_Columns = list[tuple[int | None, int]]
"""Output columns of an operator: the id of each in the query's plan (None: it is hidden), and in
the plan over changes."""


class _Different(Exception):
    """The plans are not the same."""


def compare_plans(plan: Node, changed: Node) -> str:
    """The first difference between a query's plan and its plan over changes; "" if there is none.

    Args:
        plan: The query's plan, over temporary views of tables of rows.
        changed: The plan of its text over changes. The views have the same names and columns, and
            after them `_ts` and `_diff`.
    """
    comparison = _Comparison()
    try:
        columns = comparison.operator(plan, changed)
    except _Different as different:
        return str(different)
    except RecursionError:
        return "a plan that is too deep to be looked through"
    if comparison.roles(columns[-len(_HIDDEN) :]) != list(_HIDDEN):
        return "columns of changes that are not handed on at the end"
    if any(comparison.roles(columns[: -len(_HIDDEN)])):
        return "a column of changes among those of the query"
    return ""


class _Comparison:
    """One walk through two plans at once; pairs the column ids of one with those of the other."""

    def __init__(self) -> None:
        self._partners: dict[int, int] = {}
        self._taken: dict[int, int] = {}
        self._hidden: dict[int, str] = {}
        self._ctes: dict[int, tuple[int, _Columns]] = {}

    def roles(self, columns: _Columns) -> list[str | None]:
        """Name of the hidden column that each column is; None for columns of the query."""
        return [self._hidden.get(changed) for _, changed in columns]

    def operator(self, plain: Node, changed: Node) -> _Columns:
        """Compare two operators and all below them; returns their output columns.

        Raises:
            _Different: They are not the same.
        """
        same = (plain.kind, plain.family) == (changed.kind, changed.family)
        if not same or len(plain.children) != len(changed.children):
            raise _Different(f"the operator {changed.kind} in the place of {plain.kind}")
        if plain.kind == INPUT:
            return self._input(plain, changed)
        if plain.kind == "CTERelationRef":
            return self._reference(plain, changed)
        pairs = zip(plain.children, changed.children, strict=True)
        # Children first: an operator's expressions name columns that are paired below it.
        below = [self.operator(*pair) for pair in pairs]
        self._fields(plain, changed)
        columns = self._columns(plain, changed, below)
        if plain.kind == "CTERelationDef":
            self._ctes[plain.fields["id"]] = (changed.fields["id"], columns)
        return columns

    def _columns(self, plain: Node, changed: Node, below: Sequence[_Columns]) -> _Columns:
        """The output columns of two operators whose fields are the same."""
        match plain.kind:
            case "Project":
                return self._given(plain, changed, "projectList")
            case "Expand":
                return self._expanded(plain, changed)
            case "Generate" if plain.fields.get("unrequiredChildIndex") == []:
                return below[0] + self._given(plain, changed, "generatorOutput")
            case "Union":
                return self._union(below)
            case kind if kind in _AS_BELOW:
                return below[-1]
            case kind:
                raise _Different(f"the operator {kind}")

    def _input(self, plain: Node, changed: Node) -> _Columns:
        """Pair the columns of an input, and note its hidden ones."""
        if _view_name(plain) != _view_name(changed):
            raise _Different("another input")
        ours, theirs = _leaf_columns(plain), _leaf_columns(changed)
        names = [name for name, _ in ours]
        if [name for name, _ in theirs] != [*names, *_HIDDEN]:
            raise _Different("other columns of an input")
        for name, number in theirs[len(ours) :]:
            self._hidden[number] = name
        pairs = list(zip((number for _, number in ours), (n for _, n in theirs), strict=False))
        for pair in pairs:
            self._pair(*pair)
        return [*pairs, *((None, number) for _, number in theirs[len(ours) :])]

    def _reference(self, plain: Node, changed: Node) -> _Columns:
        """Pair the columns of a CTE where it is read: they have new ids there."""
        known = self._ctes.get(plain.fields["cteId"])
        if known is None or known[0] != changed.fields["cteId"]:
            raise _Different("another CTE")
        ours, theirs = plain.trees.get("output", []), changed.trees.get("output", [])
        roles = self.roles(known[1])
        if len(theirs) != len(roles) or len(ours) != roles.count(None):
            raise _Different("other columns of a CTE")
        for column, role in zip(theirs, roles, strict=True):
            if role is not None:
                self._hidden[_id_of(column)] = role
        columns = self._given(plain, changed, "output")
        if self.roles(columns) != roles:
            raise _Different("columns of a CTE in another order")
        return columns

    def _union(self, below: Sequence[_Columns]) -> _Columns:
        """The output of a union, which is that of its first branch; all have the same order."""
        first = below[0]
        for other in below[1:]:
            if self.roles(other) != self.roles(first):
                raise _Different("branches of a union that hand columns on in different places")
        return first

    def _expanded(self, plain: Node, changed: Node) -> _Columns:
        """The output of an `Expand`, which makes several rows of one, each by its own list."""
        columns = self._given(plain, changed, "output")
        for row in changed.trees["projections"]:
            handed = [self._hidden[_id_of(one)] if self._hands_on(one) else None for one in row]
            if handed != self.roles(columns):
                raise _Different("rows that hand columns on in different places")
        return columns

    def _given(self, plain: Node, changed: Node, field: str) -> _Columns:
        """The output columns that a list of an operator defines; it has been compared before."""
        ours = iter(plain.trees.get(field, []))
        columns: _Columns = []
        for column in changed.trees.get(field, []):
            number = _id_of(column)
            mine = None if number in self._hidden else _id_of(next(ours))
            if mine is not None:
                self._pair(mine, number)
            columns.append((mine, number))
        return columns

    def _fields(self, plain: Node, changed: Node) -> None:
        """Compare all fields of two nodes, without their children."""
        for name in plain.trees.keys() | changed.trees.keys():
            ours, theirs = plain.trees.get(name), changed.trees.get(name)
            if f"{plain.kind}.{name}" in _HANDING_ON:
                theirs = self._without_hidden(theirs)
            self._values(ours, theirs, declares=name in {"generatorOutput", "output"})
        mine, other = dict(plain.fields), dict(changed.fields)
        if plain.kind == "CTERelationDef":
            mine["id"] = other["id"] = None
        self._values(mine, other)

    def _without_hidden(self, nested: Any) -> Any:
        """A list, or a list of lists, without the hidden columns that it passes on."""
        if not isinstance(nested, list):
            return nested
        return [self._without_hidden(one) for one in nested if not self._hands_on(one)]

    def _hands_on(self, node: Any) -> bool:
        """True if an element of a list is a hidden column and nothing else."""
        if not isinstance(node, Node):
            return False
        if node.kind == "AttributeReference":
            return _id_of(node) in self._hidden
        # Where an input is read twice, Spark renames the columns of one of them by such an alias.
        if node.kind != "Alias" or node.children[0].kind != "AttributeReference":
            return False
        role = self._hidden.get(_id_of(node.children[0]))
        if role is None or node.fields.get("name") != role:
            return False
        self._hidden[_id_of(node)] = role
        return True

    def _values(self, ours: Any, theirs: Any, *, declares: bool = False) -> None:
        """Compare two fields: trees, lists, or other values of Spark's JSON."""
        if isinstance(ours, Node) and isinstance(theirs, Node):
            self._expression(ours, theirs, declares=declares)
        elif isinstance(ours, list) and isinstance(theirs, list):
            for mine, other in zip_longest(ours, theirs):
                self._values(mine, other, declares=declares)
        elif isinstance(ours, dict) and isinstance(theirs, dict):
            if ours.get("product-class") == theirs.get("product-class") == _EXPR_ID:
                self._pair(ours["id"], theirs["id"])
                return
            for name in ours.keys() | theirs.keys():
                self._values(ours.get(name), theirs.get(name))
        elif ours != theirs:
            raise _Different(_shown(ours, theirs))

    def _expression(self, ours: Node, theirs: Node, *, declares: bool) -> None:
        if (ours.kind, ours.family) != (theirs.kind, theirs.family):
            raise _Different(_shown(ours, theirs))
        if len(ours.children) != len(theirs.children):
            raise _Different(
                f"{_name_of(ours)} over all columns, which would see the time and diff of changes"
            )
        if (
            ours.kind == "AttributeReference"
            and not declares
            and self._partners.get(_id_of(ours)) != _id_of(theirs)
        ):
            raise _Different(_shown(ours, theirs))
        for pair in zip(ours.children, theirs.children, strict=True):
            self._expression(*pair, declares=False)
        self._fields(ours, theirs)

    def _pair(self, ours: int, theirs: int) -> None:
        """Pair two ids, for good and one to one.

        Raises:
            _Different: One of them is hidden, or has another partner.
        """
        if (
            theirs in self._hidden
            or self._partners.setdefault(ours, theirs) != theirs
            or self._taken.setdefault(theirs, ours) != ours
        ):
            raise _Different("a name that means a column of changes")


def _id_of(node: Node) -> int:
    return int(node.fields["exprId"]["id"])


def _view_name(node: Node) -> Any:
    return node.fields["desc"]["identifier"]


def _leaf_columns(view: Node) -> list[tuple[str, int]]:
    """Name and id of each column of the table of rows behind an input."""
    (leaf,) = view.children
    if leaf.kind not in _LEAVES:
        raise _Different("an input that is no table of rows")
    return [(column.fields["name"], _id_of(column)) for column in leaf.trees["output"]]


def _shown(ours: Any, theirs: Any) -> str:
    for value in (theirs, ours):
        if isinstance(value, Node):
            name = value.fields.get("name")
            if name in _HIDDEN:
                return f"an expression that sees {name}"
            return f"{_name_of(value)}, which would mean something else over changes"
    return "a property that would be another one over changes"


def _name_of(node: Node) -> str:
    return str(node.fields.get("name") or node.kind)

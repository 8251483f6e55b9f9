"""Look-ups of a step: of which inputs only rows with certain keys are needed, and which keys.

A side of a join is needed only as far as its rows match a row that is there: of the change, or of
a side that was looked up before. Where a column of an input has to be equal to a column of another
one, values of the second are the keys of the first:

    found = LookUps(spark, changed)
    with found.part():                                         a term of a join
        leaves = found.restrict(side, conditions, earlier)     what the side's inputs stand for
    found.made                                                 look-ups, each after those it needs

Each term of a join begins with the change of another side, and has other rows of the same inputs:
of ten million line items those of the orders that have changed, or those of the suppliers. So what
is there is known for each part of the plan by itself. Were the keys of one term taken from the rows
of another, each term would find what all of them need, and much more by that.

Which rows match is still decided by Spark's own join, over the rows that were found. So a look-up
may find others as well, and anything that is not known to be a plain equality of columns is left
out: then more rows are found than match, or all of the input is read.

Invariants:
    Each row that can match is found: keys are compared by types that have one form of each value.
    A column is followed down through operators that hand rows on one by one, and no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from pyspark.sql.types import IntegralType, StringType

from shardline.app.compute.view.join_tree import INNER, are_disjoint, flatten, join_kind
from shardline.app.compute.view.kept_plan import Leaf
from shardline.app.sql.kept_aggregates import has_one_form, spark_type
from shardline.app.sql.plan_nodes import kind_of
from shardline.app.sql.touched_keys import WITH_COLUMNS_BELOW
from shardline.datasource.spark_native.java_names import read_sequence

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from shardline.app.sql.query_tree import QueryNode

__all__ = ["KeySource", "LookUp", "LookUps"]

T = TypeVar("T")

_INTEGERS: Final = ("tinyint", "smallint", "int", "bigint")


class KeySource(NamedTuple):
    """Where the values of a key come from: rows of `leaf`, in these columns."""

    leaf: Leaf
    columns: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class LookUp:
    """Rows of an input that are needed.

    Attributes:
        leaf: What they are called in the plan.
        key: Columns of the input.
        sources: Where the values of these come from; all of them are wanted.
        nulls: For each column of the key, True if NULL is a value of it as any other.
    """

    leaf: Leaf
    key: tuple[str, ...]
    sources: tuple[KeySource, ...]
    nulls: tuple[bool, ...]


class _Column(NamedTuple):
    """A column of an input."""

    input: QueryNode
    name: str


@dataclass(frozen=True, slots=True)
class _Equality:
    """A condition by which a column of a side equals one of another side."""

    mine: tuple[_Column, ...]
    theirs: tuple[_Column, ...]
    nulls: bool


@dataclass(slots=True)
class _Part:
    """A part of a plan, and the rows that it has of inputs.

    Attributes:
        changed: Inputs whose changes are in it.
        found: What was looked up of inputs for it.
        all_read: Inputs that it reads whole.
    """

    changed: set[QueryNode] = field(default_factory=set)
    found: dict[QueryNode, list[Leaf]] = field(default_factory=dict)
    all_read: set[QueryNode] = field(default_factory=set)

    def add(self, other: _Part) -> None:
        """Take in a part of this one."""
        self.changed |= other.changed
        self.all_read |= other.all_read
        for node, leaves in other.found.items():
            mine = self.found.setdefault(node, [])
            mine += [leaf for leaf in leaves if leaf not in mine]


@dataclass(slots=True)
class LookUps:
    """Collects the look-ups of one plan.

    Attributes:
        spark: Any session of the application.
        changed: Names of inputs that change.
        by_key: False if nothing is to be looked up, and all of each input is read.
        made: The look-ups, each after those whose rows it needs.
    """

    spark: SparkSession
    changed: frozenset[str]
    by_key: bool = True
    made: list[LookUp] = field(default_factory=list)
    _part: _Part = field(default_factory=_Part)

    @contextmanager
    def part(self) -> Iterator[None]:
        """In the block: a part of the plan, which has other rows of inputs than the rest.

        After it: what the rest may have of these inputs is what the part had, too.
        """
        outer, self._part = self._part, _Part()
        try:
            yield
        finally:
            outer.add(self._part)
            self._part = outer

    @contextmanager
    def undone_if_refused(self, *refused: type[Exception]) -> Iterator[None]:
        """In the block: what is collected is forgotten if the block raises one of `refused`."""
        known, part = len(self.made), _Part()
        part.add(self._part)
        try:
            yield
        except refused:
            del self.made[known:]
            self._part = part
            raise

    def has_change_of(self, node: QueryNode) -> None:
        """Note that the part has an input's change."""
        self._part.changed.add(node)

    def restrict(
        self, side: QueryNode, conditions: Sequence[Any], earlier: Sequence[QueryNode]
    ) -> dict[QueryNode, Leaf]:
        """What inputs of a side stand for before the step: those left out, for all of their rows.

        Args:
            side: A side of a join.
            conditions: All of them must hold of a row of the join.
            earlier: The sides that are there already. Of each input of these the rows are those
                that the part has.
        """
        best: list[_Equality] = []
        for other in earlier:
            found = [one for condition in conditions for one in self._equal(side, other, condition)]
            if len(found) > len(best) and self._are_known(found):
                best = found
        leaves = self._looked_up(best) if best else {}
        for node in _inputs(side):
            if node not in leaves:
                self._part.all_read.add(node)
        return leaves

    def touched(
        self,
        node: QueryNode,
        keys: Sequence[Any],
        sources: Sequence[tuple[QueryNode, Sequence[Any]]],
    ) -> dict[QueryNode, Leaf]:
        """What inputs stand for if only rows are needed of keys that have changed.

        Args:
            node: An operator, perhaps an inner join: of one side of it the key is, and the others
                are looked up by what connects them with that side.
            keys: The key: expressions over its columns. NULL is a key.
            sources: Operators whose changes are there, each with the key over its own columns.
        """
        sides, conditions = flatten(node)
        if not are_disjoint(sides):
            self._part.all_read.update(_inputs(node))
            return {}
        found = [one for one in self._keyed(keys, sources, sides) if self._are_known([one])]
        first = next((side for side in sides if _owns(side, found)), None)
        if first is None:
            self._part.all_read.update(_inputs(node))
            return {}
        leaves = self._looked_up([one for one in found if _owns(first, [one])])
        self._part.all_read.update(set(_inputs(first)) - set(leaves))
        there, left = [first], [side for side in sides if side is not first]
        while left:
            # One that is connected with what is there; if none is, any, which is read whole.
            tried = [side for side in left if self._is_connected(side, conditions, there)] or left
            leaves |= self.restrict(tried[0], conditions, there)
            there.append(tried[0])
            left.remove(tried[0])
        return leaves

    def from_output(
        self,
        leaf_of: str,
        columns: Sequence[str],
        sources: Sequence[tuple[QueryNode, Sequence[Any]]],
    ) -> Leaf:
        """What stands for the rows of something that is no input, of keys that have changed.

        Args:
            leaf_of: Its name.
            columns: Its columns of the key.
            sources: As of `touched`; their keys have the types of the columns.
        """
        found: list[tuple[str, list[_Column]]] = []
        for place, name in enumerate(columns):
            values = self._values(place, sources)
            if values:
                found.append((name, values))
        known = [(n, v) for n, v in found if all(c.input not in self._part.all_read for c in v)]
        if not known or not self.by_key:
            return Leaf(leaf_of, before=True)
        together = _of_the_same_inputs(known, lambda one: one[1])
        return self._add(leaf_of, [(name, values, True) for name, values in together])

    def _keyed(
        self,
        keys: Sequence[Any],
        sources: Sequence[tuple[QueryNode, Sequence[Any]]],
        sides: Sequence[QueryNode],
    ) -> Iterator[_Equality]:
        """The columns of a key as equalities with columns of what has changed."""
        for place, key in enumerate(keys):
            column, values = _plain(key), self._values(place, sources)
            if column is None or not values:
                continue
            for side in sides:
                mine = _trace(side, column)
                if mine:
                    yield _Equality(tuple(mine), tuple(values), nulls=True)

    def _values(
        self, place: int, sources: Sequence[tuple[QueryNode, Sequence[Any]]]
    ) -> list[_Column]:
        """The columns of inputs that have the values of a key's column; none if not all do."""
        found: list[_Column] = []
        for node, keys in sources:
            column = _plain(keys[place])
            if column is None or not self._are_comparable(column, column):
                return []
            traced = _trace(node, column, joins=True)
            if not traced:
                return []
            found += traced
        return found

    def _is_connected(
        self, side: QueryNode, conditions: Sequence[Any], there: Sequence[QueryNode]
    ) -> bool:
        return any(
            True for other in there for one in conditions for _ in self._equal(side, other, one)
        )

    def _equal(self, side: QueryNode, other: QueryNode, condition: Any) -> Iterator[_Equality]:
        kind = kind_of(condition)
        if kind not in {"EqualTo", "EqualNullSafe"}:
            return
        left, right = _plain(condition.left()), _plain(condition.right())
        if left is None or right is None or not self._are_comparable(left, right):
            return
        for mine, their in ((left, right), (right, left)):
            columns, values = _trace(side, mine), _trace(other, their, joins=True)
            if columns and values:
                yield _Equality(tuple(columns), tuple(values), kind == "EqualNullSafe")
                return

    def _are_comparable(self, left: Any, right: Any) -> bool:
        mine, their = spark_type(self.spark, left), spark_type(self.spark, right)
        if isinstance(mine, IntegralType) and isinstance(their, IntegralType):
            return True
        same = mine == their or (isinstance(mine, StringType) and isinstance(their, StringType))
        return same and has_one_form(mine) and has_one_form(their)

    def _are_known(self, equalities: Sequence[_Equality]) -> bool:
        """True if no input that the values come from was read as a whole."""
        if not self.by_key:
            return False
        # One without any rows here is an input of the change that has none itself.
        return all(c.input not in self._part.all_read for one in equalities for c in one.theirs)

    def _tables(self, node: QueryNode) -> list[Leaf]:
        """The rows of an input that the part has."""
        changes = [Leaf(node.input)] if node in self._part.changed else []
        return changes + self._part.found.get(node, [])

    def _looked_up(self, equalities: Sequence[_Equality]) -> dict[QueryNode, Leaf]:
        # Each row that an equality gives a side comes from one input of it: of a union from one
        # branch, whose own columns are then the key.
        inputs = {column.input for column in equalities[0].mine}
        equalities = [one for one in equalities if {c.input for c in one.mine} == inputs]
        equalities = _of_the_same_inputs(equalities, lambda one: one.theirs)
        leaves = {
            node: self._add(
                node.input, [(_of(one.mine, node), one.theirs, one.nulls) for one in equalities]
            )
            for node in inputs
        }
        # Afterwards: one branch of a union is not looked up by what was found of another one.
        for node, leaf in leaves.items():
            mine = self._part.found.setdefault(node, [])
            mine += [leaf] if leaf not in mine else []
        return leaves

    def _add(self, name: str, key: Sequence[tuple[str, Sequence[_Column], bool]]) -> Leaf:
        """Add a look-up: its columns, where their values come from, and if NULL is one."""
        # In one order, so that views with the same key share an arrangement. A column that is equal
        # to two others is found by the first of them.
        chosen = {column: (values, nulls) for column, values, nulls in reversed(key)}
        order = sorted(chosen)
        sources: dict[QueryNode, list[str]] = {}
        for column in order:
            for value in chosen[column][0]:
                sources.setdefault(value.input, []).append(value.name)
        tables = tuple(
            KeySource(table, tuple(columns))
            for source, columns in sources.items()
            for table in self._tables(source)
        )
        nulls = tuple(chosen[column][1] for column in order)
        for known in self.made:
            same = (known.leaf.name, known.key, known.sources, known.nulls)
            if same == (name, tuple(order), tables, nulls):
                return known.leaf
        leaf = Leaf(name, before=True, place=len(self.made) + 1)
        self.made.append(LookUp(leaf, tuple(order), tables, nulls))
        return leaf


def _of_the_same_inputs(
    found: Sequence[T], theirs: Callable[[T], Sequence[_Column]]
) -> Sequence[T]:
    """As many as have values of the same inputs: a key has all of its columns from one row."""
    groups: dict[frozenset[QueryNode], list[T]] = {}
    for one in found:
        groups.setdefault(frozenset(column.input for column in theirs(one)), []).append(one)
    return max(groups.values(), key=len)


def _owns(side: QueryNode, equalities: Sequence[_Equality]) -> bool:
    """True if one of the equalities is of inputs of a side."""
    inputs = set(_inputs(side))
    return any(column.input in inputs for one in equalities for column in one.mine)


def _of(columns: Sequence[_Column], node: QueryNode) -> str:
    return next(column.name for column in columns if column.input is node)


def _trace(node: QueryNode, column: Any, *, joins: bool = False) -> list[_Column]:
    """The columns of inputs that a column is, one of each branch; none if it is not known.

    Args:
        node: An operator.
        column: One of its columns.
        joins: True if it may come out of an inner join: its values are some of the input's, but
            the input's rows are not all that the operator needs.
    """
    if node.input:
        number = column.exprId()
        return [
            _Column(node, str(one.name())) for one in node.output if one.exprId().equals(number)
        ]
    match node.kind:
        case "Project":
            given = _projected(node, column)
            return [] if given is None else _trace(node.children[0], given, joins=joins)
        case "Union":
            return _trace_union(node, column, joins=joins)
        case "Join" if joins and join_kind(node) in INNER:
            for child in node.children:
                if any(one.exprId().equals(column.exprId()) for one in child.output):
                    return _trace(child, column, joins=joins)
        case kind if kind in WITH_COLUMNS_BELOW and len(node.children) == 1:
            return _trace(node.children[0], column, joins=joins)
    return []


def _projected(node: QueryNode, column: Any) -> Any | None:
    """The column below a projection that one of its columns is."""
    for one in read_sequence(node.plan.projectList()):
        if not one.exprId().equals(column.exprId()):
            continue
        return _plain(one.child() if kind_of(one) == "Alias" else one)
    return None


def _plain(expression: Any) -> Any | None:
    """The column that an expression is; a cast to a wider integer changes no value."""
    while kind_of(expression) == "Cast":
        given, wanted = (_width(one) for one in (expression.child(), expression))
        if given < 0 or given > wanted:
            return None
        expression = expression.child()
    return expression if kind_of(expression) == "AttributeReference" else None


def _trace_union(node: QueryNode, column: Any, *, joins: bool) -> list[_Column]:
    """A column of each branch: it has one place in all of them."""
    places = [p for p, one in enumerate(node.output) if one.exprId().equals(column.exprId())]
    found: list[_Column] = []
    for child in node.children if places else ():
        if not child.inputs:
            if joins:
                return []  # constants are keys, too, which no input has
            continue  # its rows are constants, and all there
        below = _trace(child, child.output[places[0]], joins=joins)
        if not below:
            return []
        found += below
    return found


def _inputs(node: QueryNode) -> Iterator[QueryNode]:
    if node.input:
        yield node
    for child in node.children:
        yield from _inputs(child)


def _width(expression: Any) -> int:
    """The place of an expression's type among the integers, the widest last; -1 of others."""
    name = str(expression.dataType().simpleString())
    return _INTEGERS.index(name) if name in _INTEGERS else -1

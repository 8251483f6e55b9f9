"""Finds of which inputs a step needs only rows with certain keys, and which keys: its look-ups.

A side of a join is needed only as far as its rows match a row that is there: of the change, or of
a side that was looked up before. Where a column of an input has to be equal to a column of another
one, values of the second are the keys of the first:

    found = LookUps(changed, traces)
    with found.part():                                         a term of a join
        leaves = found.restrict(side, conditions, earlier)     what the side's inputs stand for
    found.ordered                                              look-ups, each after those it needs

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

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, TypeVar

from pyspark.sql.types import IntegralType, StringType

from shardline.app.compute.view.column_trace import ColumnTraces, InputColumn, inputs_of
from shardline.app.compute.view.join_tree import (
    are_disjoint,
    flatten,
    is_around_a_join,
    join_conditions,
)
from shardline.app.compute.view.kept_plan import Leaf
from shardline.app.compute.view.plan_part import Needed, PlanPart
from shardline.app.sql.kept_aggregates import has_one_form
from shardline.app.sql.plan_nodes import implied_equalities, plain
from shardline.app.sql.query_tree import join_kind
from shardline.datasource.frames import kind_of, number_of, type_of

if TYPE_CHECKING:
    from shardline.app.compute.view.first_look_up import FirstLookUp
    from shardline.app.compute.view.row_conditions import Conditions
    from shardline.app.sql.query_tree import QueryNode

__all__ = ["FanOut", "KeySource", "LookUp", "LookUps", "one_row"]

T = TypeVar("T")

FanOut: TypeAlias = Callable[[str, Sequence[str]], float]
"""Estimates how many rows of an input, by its name, have one key of these columns."""

_FILTERED: Final = 0.1
"""The share of rows that satisfy what is known of them, as long as nothing else is known."""


def one_row(_name: str, _columns: Sequence[str]) -> float:
    """The estimate of those that know nothing of sizes: inputs are looked up in their order."""
    return 1.0


class KeySource(NamedTuple):
    """Where the values of a key come from.

    Attributes:
        leaf: Rows that have them.
        columns: In these columns.
        where: What holds of the rows that are meant.
        matches: What each of them has to match: rows that were looked up by it.
    """

    leaf: Leaf
    columns: tuple[str, ...]
    where: Conditions = ()
    matches: tuple[Match, ...] = ()


class Match(NamedTuple):
    """A row counts only if it has a partner.

    Attributes:
        columns: Columns of the row.
        partners: Where its values in these may be found; columns of each in the same order.
    """

    columns: tuple[str, ...]
    partners: tuple[KeySource, ...]


@dataclass(frozen=True, slots=True)
class LookUp:
    """Rows of an input that are needed.

    Attributes:
        leaf: What they are called in the plan.
        key: Columns of the input.
        sources: Where the values of these come from; all of them are wanted.
        nulls: For each column of the key, True if NULL is a value of it as any other.
        where: What holds of the rows that are needed.
        first: Which rows of each key are needed, beside those that go; None for all.
    """

    leaf: Leaf
    key: tuple[str, ...]
    sources: tuple[KeySource, ...]
    nulls: tuple[bool, ...]
    where: Conditions = ()
    first: FirstLookUp | None = None


class _Compared(NamedTuple):
    """Two columns, by their numbers, that a condition compares; NULL may be equal to NULL."""

    left: int
    right: int
    nulls: bool


@dataclass(frozen=True, slots=True)
class _Equality:
    """A condition by which a column of a side equals one of another side.

    Attributes:
        mine: The column of the side.
        theirs: That of the other.
        nulls: True if NULL is equal to NULL.
        is_all: True if the side has no other value in it than these inputs: no constant.
    """

    mine: tuple[InputColumn, ...]
    theirs: tuple[InputColumn, ...]
    nulls: bool
    is_all: bool = False


@dataclass(slots=True)
class LookUps:
    """Collects the look-ups of one plan.

    Attributes:
        changed: Names of inputs that change.
        traces: Columns of the query's operators, which its plans share.
        known: What is known of the rows of inputs that come to anything.
        fan_out: By which the order of look-ups is chosen.
        by_key: False if nothing is to be looked up, and all of each input is read.
        ordered: The look-ups, each after those whose rows it needs.
    """

    changed: frozenset[str]
    traces: ColumnTraces
    known: Mapping[QueryNode, Conditions] = field(default_factory=dict)
    fan_out: FanOut = one_row
    by_key: bool = True
    ordered: list[LookUp] = field(default_factory=list)
    _part: PlanPart = field(default_factory=PlanPart)
    _read: dict[int, tuple[Any, Sequence[_Compared]]] = field(default_factory=dict)

    @contextmanager
    def part(self) -> Iterator[None]:
        """In the block: a part of the plan, which has other rows of inputs than the rest.

        After it: what the rest may have of these inputs is what the part had, too.
        """
        outer, self._part = self._part, PlanPart()
        try:
            yield
        finally:
            outer.add(self._part)
            self._part = outer

    @contextmanager
    def within(self, known: Mapping[QueryNode, Conditions]) -> Iterator[None]:
        """In the block: what is computed has all rows that it reads, but for what `known` says.

        So has a region, whose keys and rows are added up before what is above it leaves some out.
        """
        outer, self.known = self.known, known
        try:
            yield
        finally:
            self.known = outer

    @contextmanager
    def undone_if_refused(self, *refused: type[Exception]) -> Iterator[None]:
        """In the block: what is collected is forgotten if the block raises one of `refused`."""
        known, part = len(self.ordered), PlanPart()
        part.add(self._part)
        try:
            yield
        except refused:
            del self.ordered[known:]
            self._part = part
            raise

    def has_change_of(self, node: QueryNode) -> None:
        """Note that the part has an input's change."""
        self._part.changed.add(node)

    def restrict(
        self,
        side: QueryNode,
        conditions: Sequence[Any],
        earlier: Sequence[QueryNode],
        *,
        needed: bool = True,
    ) -> dict[QueryNode, Leaf]:
        """What inputs of a side stand for before the step: those left out, for all of their rows.

        Args:
            side: A side of a join.
            conditions: All of them must hold of a row of the join.
            earlier: The sides that are there already. Of each input of these the rows are those
                that the part has.
            needed: True if rows that are there come to nothing without a row of the side.
        """
        best = self._best(side, conditions, earlier)
        leaves = self._looked_up(best, needed=needed) if best else {}
        self._look_up_inside(side, leaves)
        return leaves

    def next_side(
        self, sides: Sequence[QueryNode], conditions: Sequence[Any], earlier: Sequence[QueryNode]
    ) -> QueryNode | None:
        """The side that has the fewest rows for each row that is there; None if none has a key.

        Args:
            sides: Those that are left; of equals the first is taken.
            conditions: All of them must hold of a row of the join.
            earlier: The sides that are there already.
        """
        costs = [(self._cost(self._best(one, conditions, earlier)), one) for one in sides]
        keyed = [(cost, one) for cost, one in costs if cost is not None]
        return min(keyed, key=lambda pair: pair[0])[1] if keyed else None

    def _best(
        self, side: QueryNode, conditions: Sequence[Any], earlier: Sequence[QueryNode]
    ) -> list[_Equality]:
        """The equalities by which most columns of a side are known; none if there are none."""
        best: list[_Equality] = []
        for other in earlier:
            found = [one for condition in conditions for one in self._equal(side, other, condition)]
            if len(found) > len(best) and self._are_known(found):
                best = found
        return best

    def _cost(self, equalities: Sequence[_Equality]) -> float | None:
        """Rows for each key; None without a key."""
        if not equalities:
            return None
        cost = 0.0
        for node in _inputs_of(equalities[0].mine):
            key = [_of(one.mine, node) for one in equalities if node in _inputs_of(one.mine)]
            rows = self.fan_out(node.input, list(dict.fromkeys(key)))
            cost += rows * (_FILTERED if self.known.get(node) else 1.0)
        return cost

    def _look_up_inside(self, node: QueryNode, leaves: dict[QueryNode, Leaf]) -> None:
        """Look up what joins inside of an operator need beside what is looked up of it.

        What is not connected with that is read whole.

        Args:
            node: The operator.
            leaves: What its inputs stand for, as far as they are looked up; more are added.
        """
        if node.input:
            if node not in leaves:
                self._part.all_read.add(node)
            return
        inner = is_around_a_join(node)
        if node.kind != "Join" and not inner:
            for child in node.children:
                self._look_up_inside(child, leaves)
            return
        # What connects the sides of an inner join is often said in a filter above.
        sides, conditions = flatten(node) if inner else ([*node.children], join_conditions(node))
        first = next(
            (side for side in sides if not leaves.keys().isdisjoint(inputs_of(side))), None
        )
        if first is None or not are_disjoint(sides):
            self._part.all_read.update(set(inputs_of(node)) - leaves.keys())
            return
        self._look_up_inside(first, leaves)
        needed = inner or join_kind(node) == "LeftSemi"
        self._others(first, sides, conditions, leaves, needed=needed)

    def _others(
        self,
        first: QueryNode,
        sides: Sequence[QueryNode],
        conditions: Sequence[Any],
        leaves: dict[QueryNode, Leaf],
        *,
        needed: bool = True,
    ) -> None:
        """Look up the other sides of a join, each by those that are there; add them to `leaves`."""
        there, left = [first], [side for side in sides if side is not first]
        while left:
            # If none is connected with what is there, any is next, which is read whole.
            chosen = self.next_side(left, conditions, there) or left[0]
            leaves |= self.restrict(chosen, conditions, there, needed=needed)
            there.append(chosen)
            left.remove(chosen)

    def touched(
        self,
        node: QueryNode,
        keys: Sequence[Any],
        sources: Sequence[tuple[QueryNode, Sequence[Any]]],
        first: FirstLookUp | None = None,
    ) -> dict[QueryNode, Leaf]:
        """What inputs stand for if only rows are needed of keys that have changed.

        Args:
            node: An operator, perhaps an inner join: of one side of it the key is, and the others
                are looked up by what connects them with that side.
            keys: The key: expressions over its columns. NULL is a key.
            sources: Operators whose changes are there, each with the key over its own columns.
            first: Which rows of each key are needed; None for all.
        """
        sides, conditions = flatten(node)
        if not are_disjoint(sides):
            self._part.all_read.update(inputs_of(node))
            return {}
        found = [one for one in self._keyed(keys, sources, sides) if self._are_known([one])]
        side = next((side for side in sides if _owns(side, found)), None)
        if side is None:
            self._part.all_read.update(inputs_of(node))
            return {}
        mine = [one for one in found if _owns(side, [one])]
        leaves = self._looked_up(mine, first=first if len(mine) == len(keys) else None)
        self._look_up_inside(side, leaves)
        self._others(side, sides, conditions, leaves)
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
        found: list[tuple[str, list[InputColumn]]] = []
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
            column, values = plain(key), self._values(place, sources)
            if column is None or not values:
                continue
            for side in sides:
                mine = self.traces.of(side, number_of(column))
                if mine:
                    yield _Equality(mine, tuple(values), nulls=True)

    def _values(
        self, place: int, sources: Sequence[tuple[QueryNode, Sequence[Any]]]
    ) -> list[InputColumn]:
        """The columns of inputs that have the values of a key's column; none if not all do."""
        found: list[InputColumn] = []
        for node, keys in sources:
            column = plain(keys[place])
            if column is None or not self._are_comparable(column, column):
                return []
            traced = self.traces.of(node, number_of(column), all_values=True)
            if not traced:
                return []
            found += traced
        return found

    def _equal(self, side: QueryNode, other: QueryNode, condition: Any) -> Iterator[_Equality]:
        """The equalities between columns of two sides without which a condition is not true."""
        for left, right, nulls in self._compared(condition):
            for mine, their in ((left, right), (right, left)):
                columns = self.traces.of(side, mine)
                values = self.traces.of(other, their, all_values=True)
                if columns and values:
                    is_all = bool(self.traces.of(side, mine, all_values=True))
                    yield _Equality(columns, values, nulls, is_all)
                    break

    def _compared(self, condition: Any) -> Sequence[_Compared]:
        """The equalities of columns without which a condition is not true."""
        # Asked for each pair of sides of a join, and for each of its terms. The condition is kept:
        # as long as it is, no other one has its id.
        if id(condition) not in self._read:
            found = [self._columns_of(one) for one in implied_equalities(condition)]
            self._read[id(condition)] = condition, [one for one in found if one is not None]
        return self._read[id(condition)][1]

    def _columns_of(self, equality: Any) -> _Compared | None:
        left, right = plain(equality.left()), plain(equality.right())
        if left is None or right is None or not self._are_comparable(left, right):
            return None
        nulls = kind_of(equality) == "EqualNullSafe"
        return _Compared(number_of(left), number_of(right), nulls)

    def _are_comparable(self, left: Any, right: Any) -> bool:
        mine, their = type_of(left), type_of(right)
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

    def _looked_up(
        self,
        equalities: Sequence[_Equality],
        *,
        needed: bool = False,
        first: FirstLookUp | None = None,
    ) -> dict[QueryNode, Leaf]:
        # Each row that an equality gives a side comes from one input of it: of a union from one
        # branch, whose own columns are then the key.
        inputs = _inputs_of(equalities[0].mine)
        equalities = [one for one in equalities if _inputs_of(one.mine) == inputs]
        equalities = _of_the_same_inputs(equalities, lambda one: one.theirs)
        leaves = {
            node: self._add(
                node.input,
                [(_of(one.mine, node), one.theirs, one.nulls) for one in equalities],
                self.known.get(node, ()),
                first,
            )
            for node in inputs
        }
        if needed and len(leaves) == 1 and all(one.is_all for one in equalities):
            self._note_needed(*next(iter(leaves.items())), equalities)
        # Afterwards: one branch of a union is not looked up by what was found of another one.
        for node, leaf in leaves.items():
            mine = self._part.found.setdefault(node, [])
            mine += [leaf] if leaf not in mine else []
        return leaves

    def _note_needed(self, node: QueryNode, leaf: Leaf, equalities: Sequence[_Equality]) -> None:
        """Note that rows by which an input was looked up come to nothing without what was found.

        Args:
            node: The input.
            leaf: Its rows.
            equalities: By which it was looked up.
        """
        for source in _inputs_of(equalities[0].theirs):
            pairs = {_of(one.mine, node): _of(one.theirs, source) for one in reversed(equalities)}
            needed = Needed(node, leaf, tuple(pairs), tuple(pairs.values()))
            for table in self._tables(source):
                known = self._part.look_ups.get((source, table), ())
                if needed not in known:
                    self._part.look_ups[source, table] = (*known, needed)

    def _source(self, node: QueryNode, leaf: Leaf, columns: Sequence[str]) -> KeySource:
        """Rows of an input, in columns, with what is known of those that come to anything."""
        matches = []
        for one in self._part.look_ups.get((node, leaf), ()):
            partners = [self._source(one.input, one.leaf, one.key)]
            if one.input.input in self.changed:
                # What these need themselves is left out: it may be these rows again.
                where = self.known.get(one.input, ())
                partners.append(KeySource(Leaf(one.input.input), one.key, where))
            matches.append(Match(one.columns, tuple(partners)))
        return KeySource(leaf, tuple(columns), self.known.get(node, ()), tuple(matches))

    def _add(
        self,
        name: str,
        key: Sequence[tuple[str, Sequence[InputColumn], bool]],
        where: Conditions = (),
        first: FirstLookUp | None = None,
    ) -> Leaf:
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
            self._source(source, table, columns)
            for source, columns in sources.items()
            for table in self._tables(source)
        )
        changes = KeySource(Leaf(name), tuple(order), where)
        if tables != (changes,):
            first = None  # known of the keys of the input's own changes, and of no others
        nulls = tuple(chosen[column][1] for column in order)
        leaf = Leaf(name, before=True, place=len(self.ordered) + 1)
        made = LookUp(leaf, tuple(order), tables, nulls, where, first)
        for known in self.ordered:
            if known.leaf.name == name and known == replace(made, leaf=known.leaf):
                return known.leaf
        self.ordered.append(made)
        return leaf


def _of_the_same_inputs(
    found: Sequence[T], theirs: Callable[[T], Sequence[InputColumn]]
) -> Sequence[T]:
    """As many as have values of the same inputs: a key has all of its columns from one row."""
    groups: dict[frozenset[QueryNode], list[T]] = {}
    for one in found:
        groups.setdefault(frozenset(column.input for column in theirs(one)), []).append(one)
    return max(groups.values(), key=len)


def _owns(side: QueryNode, equalities: Sequence[_Equality]) -> bool:
    """True if one of the equalities is of inputs of a side."""
    inputs = set(inputs_of(side))
    return any(column.input in inputs for one in equalities for column in one.mine)


def _of(columns: Sequence[InputColumn], node: QueryNode) -> str:
    return next(column.name for column in columns if column.input is node)


def _inputs_of(columns: Sequence[InputColumn]) -> set[QueryNode]:
    return {column.input for column in columns}

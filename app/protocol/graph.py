"""The dependency graph orders objects, finds cycles, and reaches what is above or below an object.

    graph = Graph({"flights": (), "delays": ("flights",)})
    graph.order()     graph.cycles()     graph.upstream("delays")     graph.downstream("flights")

Invariants:
    The order is that of the mapping, except where a dependency demands otherwise; equal graphs have
    equal orders. Inputs that are not in the mapping are ignored.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping

__all__ = ["Graph", "reachable_names"]


class Graph:
    """A graph of names, made of the inputs of each."""

    def __init__(self, inputs: Mapping[str, Iterable[str]]) -> None:
        self._inputs = {
            name: tuple(dict.fromkeys(other for other in others if other in inputs))
            for name, others in inputs.items()
        }
        self._outputs: dict[str, list[str]] = {name: [] for name in self._inputs}
        for name, others in self._inputs.items():
            for other in others:
                self._outputs[other].append(name)

    def order(self) -> list[str]:
        """Sort all names, inputs first; names on a cycle, and what is below them, are left out."""
        position = {name: number for number, name in enumerate(self._inputs)}
        missing = {name: len(others) for name, others in self._inputs.items()}
        ready = [(position[name], name) for name, count in missing.items() if count == 0]
        heapq.heapify(ready)
        order: list[str] = []
        while ready:
            _, name = heapq.heappop(ready)
            order.append(name)
            for output in self._outputs[name]:
                missing[output] -= 1
                if missing[output] == 0:
                    heapq.heappush(ready, (position[output], output))
        return order

    def cycles(self) -> list[list[str]]:
        """Find one cycle for each group of names that depend on each other.

        Each starts with the first name of the mapping that is on it, follows the inputs, and ends
        before it would return to its start.
        """
        left = set(self._inputs) - set(self.order())
        cycles = []
        for name in self._inputs:
            if name in left and name in (above := self.upstream(name)):
                cycles.append(self._way_back(name))
                left -= above & self.downstream(name)
        return cycles

    def upstream(self, name: str) -> set[str]:
        """All names that it depends on, directly or not; itself only if it is on a cycle."""
        return reachable_names(name, self._inputs.__getitem__)

    def downstream(self, name: str) -> set[str]:
        """All names that depend on it, directly or not."""
        return reachable_names(name, self._outputs.__getitem__)

    def _way_back(self, start: str) -> list[str]:
        """The shortest way from a name on a cycle along inputs back to it."""
        ways = [[start]]
        seen: set[str] = set()
        for way in ways:
            for other in self._inputs[way[-1]]:
                if other == start:
                    return way
                if other not in seen:
                    seen.add(other)
                    ways.append([*way, other])
        raise AssertionError((start, self._inputs))


def reachable_names(name: str, edges: Callable[[str], Iterable[str]]) -> set[str]:
    """All names that are reached from `name`, which is among them only if it is on a cycle.

    Args:
        name: The start.
        edges: Returns the names that a name leads to.
    """
    found: set[str] = set()
    ahead = list(edges(name))
    while ahead:
        other = ahead.pop()
        if other not in found:
            found.add(other)
            ahead += edges(other)
    return found

"""Verdict lines tell on the terminal of an application when an object's verdict has changed.

    lines = VerdictLines(describe_change, console.print)
    lines.show({"orders": before})
    lines.show({"orders": after})          one line, if the two differ

What a verdict is, and how a change of one reads, is not decided here: verdicts are compared, and
`describe_change(name, before, after)` returns the line, or "" where a change is worth none, as the
steps of an orderly start are. An object is told of again only when something else is said of it.

    read_conditions(relations)             the verdicts of today: an object's status, with why
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from shardline.app.introspection.store import Relations

__all__ = ["Condition", "VerdictLines", "condition_of", "describe_change", "read_conditions"]

V = TypeVar("V")

_GOOD: Final = "good"
_BAD: Final = "bad"

_BAD_STATUSES: Final = frozenset({"stalled", "frozen", "ceased"})
_LASTING_MS: Final = 3_000
"""For so long an object runs before it counts as well: one that fails again and again is started in
between, and fails with its first micro-batch."""


@dataclass(frozen=True, slots=True)
class Condition:
    """How an object is.

    Attributes:
        words: The verdict, in a few words.
        tone: `good`, `bad`, or anything else for what passes by itself.
        hint: What to do about it; "" if there is nothing to do.
    """

    words: str
    tone: str
    hint: str = ""


class VerdictLines(Generic[V]):
    """The lines about changes of one application."""

    def __init__(
        self,
        describe: Callable[[str, V | None, V | None], str],
        print_line: Callable[[str], object],
    ) -> None:
        """Begin without any object.

        Args:
            describe: Returns the line about a change of an object: its name, the verdict that was
                told last (None for one that is new) and the present one (None if it is gone). ""
                for no line; the verdict told last stays as it is then.
            print_line: Takes each line.
        """
        self._describe = describe
        self._print = print_line
        self._told: dict[str, V] = {}

    def show(self, verdicts: Mapping[str, V]) -> None:
        """Print a line for each object whose verdict has changed, in the order of the objects."""
        for name, after in verdicts.items():
            before = self._told.get(name)
            if before != after and self._said(name, before, after):
                self._told[name] = after
        for name in self._told.keys() - verdicts.keys():
            self._said(name, self._told.pop(name), None)

    def _said(self, name: str, before: V | None, after: V | None) -> bool:
        line = self._describe(name, before, after)
        if line:
            self._print(line)
        return bool(line)


def describe_change(name: str, before: Condition | None, after: Condition | None) -> str:
    """The line about an object that has become bad, or well again; "" for anything between.

    What passes by itself (starting, hydrating) is no news, and an object that was never well is
    told of as well once it is.
    """
    if after is None:
        return f"{name}: dropped"
    if after.tone == _BAD or (after.tone == _GOOD and (before is None or before.tone == _BAD)):
        hint = f" — {after.hint}" if after.hint and after.tone == _BAD else ""
        return f"{name}: {after.words}{hint}"
    return ""


def read_conditions(relations: Relations, now_ms: int) -> dict[str, Condition]:
    """The condition of each object of the project, by name; for `VerdictLines.show`."""
    table = relations.relation("objects").select(
        ["id", "type", "status", "error", "hint", "last_status_change_at"]
    )
    return {
        row["id"]: condition_of(
            row["status"],
            row["error"] or "",
            row["hint"] or "",
            _age_ms(row["last_status_change_at"], now_ms),
        )
        for row in table.to_pylist()
        if row["type"] != "subscribe"
    }


def condition_of(status: str, error: str, hint: str, age_ms: int) -> Condition:
    """The condition of an object that has had a status for `age_ms`."""
    if status in _BAD_STATUSES:
        return Condition(f"{status}: {error}" if error else status, _BAD, hint)
    if status == "running" and age_ms >= _LASTING_MS:
        return Condition(status, _GOOD)
    return Condition(status, "passing")


def _age_ms(since: datetime | None, now_ms: int) -> int:
    return 0 if since is None else now_ms - round(since.timestamp() * 1000)

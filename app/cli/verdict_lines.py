"""Verdict lines tell on the terminal of an application when an object's verdict has changed.

    lines = VerdictLines(describe_change, console.print)
    lines.show({"orders": before})
    lines.show({"orders": after})          one line, if the two differ

    read_conditions(relations, now_ms)     the verdict of each object, from the relation `verdicts`

`describe_change(name, before, after)` returns the line, or "" where a change is worth none, as the
steps of an orderly start are. An object is printed again only when its line would be another:
another verdict, another object to blame or another error, and not another number in the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from shardline.app.introspection.store import Relations
    from shardline.app.protocol.object_state import Tone, Verdict

__all__ = ["Condition", "VerdictLines", "condition_of", "describe_change", "read_conditions"]

V = TypeVar("V")

_GOOD: Final[Tone] = "good"
_BAD: Final[Tone] = "bad"

_LASTING_MS: Final = 3_000
"""Shortest time after which an object that is well is shown so: one that fails again and again is
started in between, and fails with its first micro-batch. And one that falls behind, which has no
time before it is noted: that has lasted for a while then."""


@dataclass(frozen=True, slots=True)
class Condition:
    """The state of an object. Two are equal if they say the same, whatever the numbers in it.

    Attributes:
        verdict: In a word or two.
        tone: `good`, `bad`, or `wait` for what passes by itself.
        error: What is wrong with the object itself, in words that stay.
        blame: The object that is the cause, if it is another one.
        because: Why, as of now.
        to_do: What to do about it; "" if there is nothing to do.
    """

    verdict: Verdict
    tone: Tone
    error: str = ""
    blame: str = ""
    because: str = field(default="", compare=False)
    to_do: str = field(default="", compare=False)


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
                printed last (None for one that is new) and the present one (None if it is gone). ""
                for no line; the verdict printed last stays as it is then.
            print_line: Takes each line.
        """
        self._describe = describe
        self._print = print_line
        self._printed: dict[str, V] = {}

    def show(self, verdicts: Mapping[str, V]) -> None:
        """Print a line for each object whose verdict has changed, in the order of the objects."""
        for name, after in verdicts.items():
            before = self._printed.get(name)
            if before != after and self._print_change(name, before, after):
                self._printed[name] = after
        for name in self._printed.keys() - verdicts.keys():
            self._print_change(name, self._printed.pop(name), None)

    def _print_change(self, name: str, before: V | None, after: V | None) -> bool:
        line = self._describe(name, before, after)
        if line:
            self._print(line)
        return bool(line)


def describe_change(name: str, before: Condition | None, after: Condition | None) -> str:
    """The line about an object that has become bad, or well again; "" for anything between.

    What passes by itself (starting, catching up, waiting for another object) is no news, and an
    object that was never well is told of as well once it is.
    """
    if after is None:
        return f"{name}: dropped"
    if after.tone == _GOOD and (before is None or before.tone == _BAD):
        return f"{name}: {after.verdict}"
    if after.tone != _BAD:
        return ""
    because = f": {after.because}" if after.because else ""
    to_do = f" — {after.to_do}" if after.to_do else ""
    return f"{name}: {after.verdict}{because}{to_do}"


def read_conditions(relations: Relations, now_ms: int) -> dict[str, Condition]:
    """The condition of each object of the project, by name; for `VerdictLines.show`."""
    errors = {row["id"]: row["error"] for row in relations.relation("objects").to_pylist()}
    return {
        row["object_id"]: condition_of(
            row["verdict"],
            row["tone"],
            _age_ms(row["since"], now_ms),
            error=errors.get(row["object_id"]) or "",
            blame=row["blame_id"] or "",
            because=row["because"] or "",
            to_do=row["to_do"] or "",
        )
        for row in relations.relation("verdicts").to_pylist()
        if row["type"] != "subscribe"
    }


def condition_of(verdict: Verdict, tone: Tone, age_ms: int, **fields: str) -> Condition:
    """The condition of an object that has had a verdict for `age_ms`.

    Args:
        verdict: As in the relation.
        tone: As in the relation.
        age_ms: Since when.
        fields: Further fields of the condition.
    """
    is_shown_late = tone in (_GOOD, "idle") or verdict == "falling behind"
    if is_shown_late and age_ms < _LASTING_MS:
        return Condition(verdict, "wait")
    return Condition(verdict, _GOOD if tone == "idle" else tone, **fields)


def _age_ms(since: datetime | None, now_ms: int) -> int:
    return 0 if since is None else now_ms - round(since.timestamp() * 1000)

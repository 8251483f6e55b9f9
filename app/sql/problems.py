"""What is wrong with a project, and where: as many problems at once as can be found.

    sources.sql:3:14: unknown source or view 'flihgts'
        SELECT * FROM flihgts
                      ^
        hint: did you mean 'flights'?

A caller relies on `InvalidProject.problems` being in the order of files and positions, and on the
error's text showing all of them.

Invariants:
    Lines and columns count from 1, in characters. A place is in its script, or right behind it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from typing_extensions import override

from shardline.datasource.errors import InvalidUsage, nearest

__all__ = ["InvalidProject", "Place", "Problem", "Script", "Wrong", "did_you_mean"]


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A position in a script.

    Attributes:
        file: As the project was given it: a path below its folder, or an object's name.
        line: From 1.
        column: From 1, in characters.
        text: The line.
    """

    file: str
    line: int
    column: int
    text: str = ""

    @override
    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def shown(self) -> str:
        """The line and, below it, a caret under the column; tabs stay tabs."""
        before = self.text[: self.column - 1]
        indent = "".join("\t" if character == "\t" else " " for character in before)
        return f"{self.text.rstrip()}\n{indent}^"


@dataclass(frozen=True, slots=True)
class Script:
    """A text with statements.

    Attributes:
        file: How a person knows it.
        text: All of it.
    """

    file: str
    text: str

    def place(self, offset: int) -> Place:
        """The position of the character at `offset`; an offset outside is moved to the edge."""
        offset = min(max(offset, 0), len(self.text))
        start = self.text.rfind("\n", 0, offset) + 1
        end = self.text.find("\n", offset)
        line = self.text[start : end if end >= 0 else len(self.text)]
        return Place(self.file, self.text.count("\n", 0, offset) + 1, offset - start + 1, line)


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong.

    Attributes:
        place: Where; None for what has no place.
        code: Stable upper-case name of the condition.
        message: What is wrong, with the values.
        hint: What to do about it.
    """

    place: Place | None
    code: str
    message: str
    hint: str = ""

    @override
    def __str__(self) -> str:
        where = "" if self.place is None else f"{self.place}: "
        lines = [f"{where}{self.message}"]
        if self.place is not None and self.place.text.strip():
            lines += ["    " + line for line in self.place.shown().splitlines()]
        if self.hint:
            lines.append(f"    hint: {self.hint}")
        return "\n".join(lines)


class InvalidProject(InvalidUsage):
    """A project that cannot run as it is written: every problem that was found.

    Attributes:
        problems: By file and position, at least one.
    """

    default_code = "INVALID_PROJECT"

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(sorted(set(problems), key=_position))
        assert self.problems, "no problem is no error"
        count = len(self.problems)
        head = f"{count} problems\n" if count > 1 else ""
        first = self.problems[0]
        super().__init__(
            head + "\n".join(map(str, self.problems)),
            code=first.code if count == 1 else self.default_code,
        )

    @override
    def __reduce__(self) -> tuple[object, ...]:
        return (InvalidProject, (self.problems,))


class Wrong(Exception):
    """A problem at an offset of a text whose script the finder does not know.

    Attributes:
        offset: In characters from the start of the text.
    """

    def __init__(self, offset: int, message: str, hint: str = "", code: str = "SYNTAX") -> None:
        super().__init__(message)
        self.offset = offset
        self.message = message
        self.hint = hint
        self.code = code

    def at(self, script: Script, base: int = 0) -> Problem:
        """The problem, where the text starts at offset `base` of `script`."""
        return Problem(script.place(base + self.offset), self.code, self.message, self.hint)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown name: the nearest known one, or all of them if none is near."""
    names = sorted(known)
    near = nearest(name, names)
    if near is not None:
        return f"did you mean '{near}'?"
    return f"known: {', '.join(names)}" if names else "there are none yet"


def _position(problem: Problem) -> tuple[str, int, int, str]:
    place = problem.place or Place("", 0, 0)
    return place.file, place.line, place.column, problem.message

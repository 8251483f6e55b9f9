"""Reports problems of a project or a query, each with its place, all of them at once.

One error at a time makes a project of fifty files fifty runs. So checks collect problems, and one
`InvalidProject` shows them all, as a compiler does.

    sources.sql:3:14: unknown source or view 'flihgts'
        SELECT * FROM flihgts
                      ^
        hint: did you mean 'flights'?

Invariants:
    `InvalidProject.problems` are in the order of files and positions; its text shows all of them.
    Lines and columns count from 1, in characters. A place is in its script, or right after its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from typing_extensions import override

from shardline.app.protocol.redaction import redact_text
from shardline.datasource.errors import InvalidUsage, nearest_name

__all__ = ["InvalidProject", "Place", "Problem", "Script", "TextProblem", "did_you_mean"]


@dataclass(frozen=True, slots=True, order=True)
class Place:
    """A position in a script.

    Attributes:
        file: A path below the project's folder, or an object's name.
        line: Number of the line, from 1.
        column: Number of the character in it, from 1.
        text: The whole line.
    """

    file: str
    line: int
    column: int
    text: str = ""

    @override
    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def shown(self) -> str:
        """The line without secrets and, on the next one, a caret under the column; tabs stay."""
        before = redact_text(self.text[: self.column - 1])
        indent = "".join("\t" if character == "\t" else " " for character in before)
        return f"{redact_text(self.text).rstrip()}\n{indent}^"


@dataclass(frozen=True, slots=True)
class Script:
    """A text with statements.

    Attributes:
        file: Its name for a person.
        text: The whole text.
    """

    file: str
    text: str

    def place(self, offset: int) -> Place:
        """The place of the character at `offset`; one outside of the text is moved to its edge."""
        offset = min(max(offset, 0), len(self.text))
        start = self.text.rfind("\n", 0, offset) + 1
        end = self.text.find("\n", offset)
        line = self.text[start : end if end >= 0 else len(self.text)]
        return Place(self.file, self.text.count("\n", 0, offset) + 1, offset - start + 1, line)


@dataclass(frozen=True, slots=True)
class Problem:
    """One error in a project or query.

    Attributes:
        place: Its place; None if it has none.
        code: Stable upper-case name of the condition.
        message: A sentence about it, with the values.
        hint: Advice for a repair; "" for none.
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
    """A project or query that cannot run as it is written, with every problem that was found.

    Attributes:
        problems: The problems by file and position, at least one.
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


class TextProblem(Exception):
    """A problem at an offset of a text, raised where the text's script is not known.

    Attributes:
        offset: Its place, in characters from the start of the text.
    """

    def __init__(self, offset: int, message: str, hint: str = "", code: str = "SYNTAX") -> None:
        super().__init__(message)
        self.offset = offset
        self.message = message
        self.hint = hint
        self.code = code

    def at(self, script: Script, base: int = 0) -> Problem:
        """The problem in `script`, in which the text starts at offset `base`."""
        return Problem(script.place(base + self.offset), self.code, self.message, self.hint)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint for an unknown name: the nearest known one, or all known if none is near."""
    names = sorted(known)
    near = nearest_name(name, names)
    if near is not None:
        return f"did you mean '{near}'?"
    return f"known: {', '.join(names)}" if names else "there are none yet"


def _position(problem: Problem) -> tuple[str, int, int, str]:
    place = problem.place or Place("", 0, 0)
    return place.file, place.line, place.column, problem.message

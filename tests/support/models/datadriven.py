"""Stories: scripts of directives with what each is expected to say.

    # a comment
    directive argument=value flag
    lines of input
    ----
    what it says

A blank line ends what it says; a directive that says nothing expects `ok`. An interpreter answers a
`Directive` with text. With `rewrite` the file is written anew from the answers: read the
difference before you commit it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["Directive", "run_story"]

_RULE = "----"


@dataclass(frozen=True, slots=True)
class Directive:
    """One step of a story.

    Attributes:
        name: What to do.
        arguments: `name=value` pairs; a bare word stands for itself with the value "".
        lines: The input.
        place: File and line, for failures.
    """

    name: str
    arguments: dict[str, str]
    lines: tuple[str, ...]
    place: str

    def text(self, name: str, default: str = "") -> str:
        """An argument, or `default`."""
        return self.arguments.get(name, default)

    def number(self, name: str) -> int | None:
        """An argument as a number; None if it is not given."""
        return int(self.arguments[name]) if name in self.arguments else None


def run_story(path: Path, answer: Callable[[Directive], str], *, rewrite: bool = False) -> None:
    """Run every directive of the script at `path`, and compare what is said."""
    written: list[str] = []
    for block, directive, expected in _blocks(path):
        said = answer(directive).strip() or "ok"
        written += [*block, _RULE, said, ""]
        if not rewrite:
            assert said == expected, f"{directive.place}: {directive.name}"
    if rewrite:
        path.write_text("\n".join(written), encoding="utf-8")


def _blocks(path: Path) -> Iterator[tuple[list[str], Directive, str]]:
    """Each step: its lines up to the rule, the directive, and what is expected."""
    lines = iter(enumerate(path.read_text(encoding="utf-8").splitlines(), 1))
    block: list[tuple[int, str]] = []
    for number, line in lines:
        if line != _RULE:
            block.append((number, line))
            continue
        expected: list[str] = []
        for _, said in lines:
            if not said:
                break
            expected.append(said)
        yield [text for _, text in block], _parse(path, block), "\n".join(expected)
        block = []
    assert not block, f"{path.name}:{block[0][0]}: no '{_RULE}' after {block[0][1]!r}"


def _parse(path: Path, block: list[tuple[int, str]]) -> Directive:
    code = [(number, text) for number, text in block if text.strip() and not text.startswith("#")]
    assert code, f"{path.name}: a rule without a directive"
    number, head = code[0]
    name, *words = head.split()
    arguments = dict(word.partition("=")[::2] for word in words)
    return Directive(name, arguments, tuple(text for _, text in code[1:]), f"{path.name}:{number}")

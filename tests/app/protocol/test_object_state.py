"""The words of object states are declared once, and nothing is compared with another one."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, get_args

import pytest

from shardline.app.protocol.object_state import (
    FAILED_VERDICTS,
    SHOWN_PHASES,
    SHOWN_STATUSES,
    UNCREATED,
    VERDICTS,
    Phase,
    ShownPhase,
    Status,
    Step,
    Tone,
    Verdict,
)

APP: Final = Path(__file__).parents[3] / "app"

AXES: Final[dict[str, set[str]]] = {
    "step": set(get_args(Step)),
    "phase": {*get_args(Phase), *get_args(ShownPhase), UNCREATED},
    "status": set(get_args(Status)),
    "verdict": set(get_args(Verdict)),
    "tone": set(get_args(Tone)),
}
"""The words that an attribute of this name can have."""


def compared(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Line, attribute and word of each comparison of an attribute of such a name with a word."""
    for node in ast.walk(tree):
        match node:
            case ast.Compare(left=ast.Attribute(attr=axis), comparators=against):
                patterns: list[Any] = list(against)
            case ast.Match(subject=ast.Attribute(attr=axis), cases=cases):
                patterns = [case.pattern for case in cases]
            case _:
                continue
        for pattern in patterns if axis in AXES else ():
            for one in ast.walk(pattern):
                if isinstance(one, ast.Constant) and isinstance(one.value, str):
                    yield one.lineno, axis, one.value


def test_nothing_is_compared_with_a_word_that_is_not_declared() -> None:
    """Where the type checker looks at types only, a word with an error in it would never be met."""
    found = [
        (f"{path.relative_to(APP)}:{line}", axis, word)
        for path in sorted(APP.rglob("*.py"))
        # Parsing takes long, and few modules have such an attribute at all.
        if re.search(rf"\.({'|'.join(AXES)})\b", text := path.read_text(encoding="utf-8"))
        for line, axis, word in compared(ast.parse(text))
    ]
    assert len(found) > 30, "the comparisons have another form now"
    assert [one for one in found if one[2] not in AXES[one[1]]] == []


@pytest.mark.parametrize(
    "source",
    ["x.status == 'ok'", "x.status in {'ok'}", "match x.status:\n case 'running' | 'ok': pass"],
)
def test_every_form_of_comparison_is_seen(source: str) -> None:
    """By the function above, which would else be silent."""
    assert ("status", "ok") in [(axis, word) for _, axis, word in compared(ast.parse(source))]


def test_each_phase_is_shown_but_that_of_what_is_gone() -> None:
    """A phase that the lane reports and relations do not know would end the feed."""
    assert SHOWN_PHASES.keys() == set(get_args(Phase)) - {"dropped"}
    assert set(SHOWN_PHASES.values()) == set(get_args(ShownPhase)) - {"created"}


def test_each_verdict_has_a_tone_and_those_of_failures_are_bad() -> None:
    """Alerts and exit codes go by the tone."""
    assert list(VERDICTS) == list(get_args(Verdict))
    assert set(VERDICTS.values()) == set(get_args(Tone))
    assert {VERDICTS[verdict] for verdict in FAILED_VERDICTS} == {"bad"}


def test_all_statuses_are_shown_but_that_of_what_is_gone() -> None:
    """In the order of an object's life, as metrics list them."""
    assert SHOWN_STATUSES == (
        "created", "starting", "running", "stalled", "frozen", "paused", "ceased"
    )  # fmt: skip

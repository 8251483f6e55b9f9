"""The page for the person on call knows every verb and every finding."""

from __future__ import annotations

import re

from shardline.app.cli.admin.command import VERBS
from shardline.datasource.inspect.fsck import KINDS
from support.tree import ROOT

PAGE = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")


def test_every_finding_is_explained() -> None:
    """In a table of codes, with what it means and what to do; and none that does not exist."""
    lines = [line for line in PAGE.splitlines() if re.match(r"\| `[A-Z]+_", line)]
    explained = [code for line in lines for code in re.findall(r"`([A-Z_]+)`", line.split("|")[1])]
    assert sorted(explained) == sorted(KINDS)
    assert all(cell.strip() for line in lines for cell in line.split("|")[1:4])


def test_every_verb_is_explained() -> None:
    """In the first table, in the order of the help, and whether it changes something."""
    lines = [line for line in PAGE.splitlines() if re.match(r"\| `[a-z-]+ ?[\[S]", line)]
    told = {re.match(r"\| `([a-z-]+)", line)[1]: "| yes |" in line for line in lines}  # type: ignore[index]
    assert told == {name: verb.changes for name, verb in VERBS.items()}

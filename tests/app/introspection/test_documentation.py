"""The documentation of relations is the declaration of relations."""

from __future__ import annotations

from shardline.app.introspection.inbox import Inbox
from shardline.app.introspection.registry import documentation, relations_with
from shardline.datasource.spark_native.read_counts import ReadCounts
from support.fakes.clock import ManualClock
from support.tree import ROOT

DOCUMENT = ROOT / "docs" / "introspection.md"


def test_the_document_lists_what_is_declared() -> None:
    """Its section of relations is `documentation(…)`, word for word: copy that when it changes."""
    clock = ManualClock()
    _, _, relations = DOCUMENT.read_text(encoding="utf-8").partition("## Relations\n\n")
    expected = documentation(relations_with(Inbox(clock), ReadCounts(clock)))
    assert relations.strip() == expected.strip()

"""Transcripts of connections, for a reader: what controllers say, and what it comes to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support.models.transcripts import told
from support.tree import GOLDEN

SESSIONS = sorted((GOLDEN / "protocol").glob("session-*.jsonl"))


@pytest.mark.parametrize("path", SESSIONS, ids=lambda path: path.stem)
def test_a_transcript_comes_out_as_it_was_read(path: Path) -> None:
    """What is to be done follows from what was said, to the letter."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert told(lines) == lines


def test_there_are_transcripts_of_both_protocols() -> None:
    """A folder without transcripts would pass any test of them."""
    words = [path.stem.split("-")[1] for path in SESSIONS]
    assert words.count("compute") >= 5
    assert words.count("storage") >= 3

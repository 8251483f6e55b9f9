"""Each story: one behaviour of a shard, told as directives and what they say."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.models.datadriven import run_story
from support.models.shards import World
from support.models.storyteller import Storyteller

STORIES = sorted((Path(__file__).parent / "stories").glob("*.td"))


@pytest.mark.parametrize("path", STORIES, ids=lambda path: path.stem)
def test_a_story(path: Path, world: World, request: pytest.FixtureRequest) -> None:
    """The script says what it said when somebody last read it."""
    teller = Storyteller(world)
    try:
        run_story(path, teller.answer, rewrite=request.config.getoption("--rewrite", default=False))
    finally:
        teller.close()

"""The benchmark of Nexmark's queries: which ones, and that its files have every event once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from bench.nexmark import Story, chosen_queries
from shardline.datasource.errors import InvalidUsage

if TYPE_CHECKING:
    from pathlib import Path


def test_queries_are_chosen_by_name() -> None:
    """In the order of the benchmark; all of them without a name."""
    assert chosen_queries(["q5", "q0"]) == ("q0", "q5")
    assert len(chosen_queries([])) == 24


def test_an_unknown_query_is_refused() -> None:
    """By its name."""
    with pytest.raises(InvalidUsage, match="q24"):
        chosen_queries(["q24"])


def test_too_few_events_are_refused(tmp_path: Path) -> None:
    """A micro-batch without an auction would be no micro-batch of the benchmark."""
    with pytest.raises(InvalidUsage, match="too few"):
        Story(tmp_path, 100)


def test_a_story_has_every_event_once(tmp_path: Path) -> None:
    """Of 50 events one is a person, three are auctions, and the others are bids, in their order."""
    story = Story(tmp_path / "events", 20_000)
    tables = {name: pa.concat_tables(story.batches(name)) for name in story.tables}
    assert tables["person"].num_rows == 400
    assert tables["auction"].num_rows == 1_200
    assert tables["bid"].num_rows == 18_400
    for name in ("person", "auction"):
        ids = tables[name]["id"].to_pylist()
        assert ids == sorted(set(ids)), name
    times = tables["bid"]["dateTime"].to_pylist()
    assert times == sorted(times)
    assert tables["side_input"].num_rows

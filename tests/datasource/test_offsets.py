"""Offsets: what a checkpoint holds for ever."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import EMPTY, Frontier
from shardline.datasource.offsets import (
    START,
    ShardOffset,
    SnapshotCut,
    Start,
    check_advance,
    parse_offset,
)
from support.tree import GOLDEN

SHARD = "s0123456789abcdef0123456789abcdef"
OTHER = "sfedcba9876543210fedcba9876543210"
OFFSETS = [GOLDEN / "v1" / "offsets.json", GOLDEN / "v1.5" / "offsets.json"]
RELEASED: list[Start | ShardOffset] = [
    START,
    ShardOffset((SHARD,), "copy", 17, Frontier(42)),
    ShardOffset((SHARD,), "stream-0f", 0, EMPTY),
    ShardOffset((SHARD, OTHER), "join", 17, Frontier(42)),
    ShardOffset((SHARD,), "copy", 17, Frontier(17), SnapshotCut((5,), 3)),
    ShardOffset((SHARD, OTHER), "join", 0, Frontier(0), SnapshotCut((5, 8), 120)),
    ShardOffset((SHARD,), "copy", 17, Frontier(18), begins="snapshot"),
    ShardOffset((SHARD, OTHER), "join", 0, Frontier(0), begins="changes"),
]


def piece(seqnos: object = (1,), done: object = 0, frontier: object = 1) -> dict[str, object]:
    """An offset inside of a snapshot, as JSON gives it."""
    cut = {"seqnos": list(seqnos) if isinstance(seqnos, tuple) else seqnos, "done": done}
    return {
        "v": 2,
        "shards": [SHARD],
        "hold": "h",
        "as_of": 1,
        "frontier": frontier,
        "snapshot": cut,
    }


def test_released_offsets_stay_readable() -> None:
    """Every offset ever written to a checkpoint is read as what it was, and written the same."""
    lines = [line for file in OFFSETS for line in file.read_text().splitlines()]

    assert [parse_offset(json.loads(line)) for line in lines] == RELEASED
    assert [json.dumps(offset.json()) for offset in RELEASED] == lines


@given(
    st.text(min_size=1),
    st.integers(0, 2**62),
    st.one_of(st.none(), st.integers(0, 2**62)),
)
def test_an_offset_survives_its_json(hold: str, as_of: int, frontier: int | None) -> None:
    """Any offset comes back from the text that Spark stores."""
    offset = ShardOffset((SHARD,), hold, as_of, Frontier(frontier))

    assert parse_offset(json.loads(json.dumps(offset.json()))) == offset


@pytest.mark.parametrize(
    ("value", "code"),
    [
        ({"v": 3, "init": True}, "NEWER_OFFSET"),
        ({"v": 3, "anything": "else"}, "NEWER_OFFSET"),
        ({"v": 2, "init": True}, "FOREIGN_OFFSET"),
        ({"v": 2, "shard": SHARD, "hold": "h", "as_of": 1, "frontier": 2}, "FOREIGN_OFFSET"),
        ({"v": 2, "shards": [], "hold": "h", "as_of": 1, "frontier": 2}, "FOREIGN_OFFSET"),
        (piece(seqnos=[1, 2]), "FOREIGN_OFFSET"),
        (piece(seqnos=["1"]), "FOREIGN_OFFSET"),
        (piece(done=None), "FOREIGN_OFFSET"),
        (piece(frontier=2), "FOREIGN_OFFSET"),
        ({}, "FOREIGN_OFFSET"),
        ({"v": True, "init": True}, "FOREIGN_OFFSET"),
        ({"v": "1", "init": True}, "FOREIGN_OFFSET"),
        ({"v": 1}, "FOREIGN_OFFSET"),
        ({"v": 1, "init": False}, "FOREIGN_OFFSET"),
        ({"v": 1, "init": True, "frontier": 3}, "FOREIGN_OFFSET"),
        ({"v": 1, "shard": SHARD, "hold": "h", "as_of": 1}, "FOREIGN_OFFSET"),
        ({"v": 1, "shard": SHARD, "hold": "h", "as_of": "1", "frontier": 2}, "FOREIGN_OFFSET"),
        ({"v": 1, "shard": SHARD, "hold": "h", "as_of": 1, "frontier": 2.0}, "FOREIGN_OFFSET"),
        (
            {"v": 1, "shard": SHARD, "hold": "h", "as_of": 1, "frontier": 2, "begins": "else"},
            "FOREIGN_OFFSET",
        ),
        ({**piece(), "begins": "snapshot"}, "FOREIGN_OFFSET"),
        ({"reservoirVersion": 3, "index": -1}, "FOREIGN_OFFSET"),
    ],
)
def test_what_is_no_offset_is_refused(value: dict[str, Any], code: str) -> None:
    """An offset of a newer version or of another source is refused, never guessed at."""
    with pytest.raises(InvalidUsage) as caught:
        parse_offset(value)

    assert caught.value.code == code


@pytest.mark.parametrize(
    ("start", "end", "code"),
    [
        (ShardOffset((SHARD,), "h", 1, Frontier(5)), START, "OFFSET_WENT_BACK"),
        (
            ShardOffset((SHARD,), "h", 1, Frontier(5)),
            ShardOffset((SHARD,), "h", 1, Frontier(4)),
            "OFFSET_WENT_BACK",
        ),
        (
            ShardOffset((SHARD,), "h", 1, EMPTY),
            ShardOffset((SHARD,), "h", 1, Frontier(4)),
            "OFFSET_WENT_BACK",
        ),
        (
            ShardOffset((SHARD,), "h", 1, Frontier(5)),
            ShardOffset(("s" + "f" * 32,), "h", 1, Frontier(6)),
            "FOREIGN_OFFSET",
        ),
        (
            ShardOffset((SHARD,), "h", 1, Frontier(5)),
            ShardOffset((SHARD,), "h", 2, Frontier(6)),
            "FOREIGN_OFFSET",
        ),
        (
            ShardOffset((SHARD,), "h", 1, Frontier(1), SnapshotCut((5,), 3)),
            ShardOffset((SHARD,), "h", 1, Frontier(1), SnapshotCut((5,), 2)),
            "OFFSET_WENT_BACK",
        ),
        (
            ShardOffset((SHARD,), "h", 1, Frontier(2)),
            ShardOffset((SHARD,), "h", 1, Frontier(1), SnapshotCut((5,), 4)),
            "OFFSET_WENT_BACK",
        ),
        (
            ShardOffset((SHARD,), "h", 1, Frontier(1), SnapshotCut((5,), 3)),
            ShardOffset((SHARD,), "h", 1, Frontier(1), SnapshotCut((6,), 4)),
            "FOREIGN_OFFSET",
        ),
    ],
)
def test_a_range_goes_forward_on_one_shard(
    start: ShardOffset, end: Start | ShardOffset, code: str
) -> None:
    """A range that goes back, or joins two streams, is refused."""
    with pytest.raises(InvalidUsage) as caught:
        check_advance(start, end, "stream of 'in'")

    assert caught.value.code == code


def test_ranges_that_go_forward_are_fine() -> None:
    """From the start to anywhere, to the same place, and to the end."""
    here = ShardOffset((SHARD,), "h", 1, Frontier(5))
    first = ShardOffset((SHARD,), "h", 1, Frontier(1), SnapshotCut((5,), 3))

    check_advance(START, START, "stream")
    check_advance(START, here, "stream")
    check_advance(here, here, "stream")
    check_advance(START, first, "stream")
    check_advance(first, replace(first, cut=SnapshotCut((5,), 4)), "stream")
    check_advance(first, here, "stream")
    check_advance(here, ShardOffset((SHARD,), "h", 1, EMPTY), "stream")

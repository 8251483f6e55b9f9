"""Spark's log of offsets, read from disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardline.app.execution.checkpoint_log import read_planned_offset, remove_unfinished_plan

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('v1\n{"batchWatermarkMs":0}\n{"at":7}', '{"at":7}'),
        ('v1\n{"batchWatermarkMs":0}\n{"at":7}\n', '{"at":7}'),
        ('v2\n{"batchWatermarkMs":0}\n{"at":7}', None),
        ('v1\n{"batchWatermarkMs":0}\n{"at":7}\n{"at":8}', None),
        ("v1\n{}", None),
        ("v1", None),
        ("", None),
    ],
)
def test_a_log_of_one_source_says_where_a_micro_batch_ends(
    tmp_path: Path, text: str, found: str | None
) -> None:
    """What is cut off, newer, or of several sources says nothing."""
    (tmp_path / "offsets").mkdir()
    (tmp_path / "offsets" / "3").write_text(text)
    assert read_planned_offset(tmp_path, 3) == found
    assert read_planned_offset(tmp_path, 4) is None


@pytest.mark.parametrize(("done", "left"), [(False, []), (True, [".1.a.tmp", "0"])])
def test_only_an_unfinished_first_plan_is_removed(
    tmp_path: Path, done: bool, left: list[str]
) -> None:
    """Spark would refuse it for ever; a later one does it no harm, and what is beside it counts."""
    remove_unfinished_plan(tmp_path)
    offsets = tmp_path / "offsets"
    offsets.mkdir()
    (tmp_path / "metadata").write_text("{}")
    for name in [".1.a.tmp", "0"] if done else [".0.a.tmp"]:
        (offsets / name).touch()
    remove_unfinished_plan(tmp_path)
    assert (sorted(path.name for path in offsets.iterdir()) if offsets.exists() else []) == left
    assert (tmp_path / "metadata").exists()

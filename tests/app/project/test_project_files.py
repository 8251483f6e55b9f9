"""Files of a project are read as editors write them."""

from __future__ import annotations

from pathlib import Path

from shardline.app.project.identity import read_identity
from shardline.app.project.project import Project


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path: Path) -> None:
    """It is invisible, so nobody would find what is wrong; places do not count it."""
    (tmp_path / "a.sql").write_text("CREATE SOURCE s USING rate; CREATE x", encoding="utf-8-sig")
    (tmp_path / "project.toml").write_text('name = "taxis"', encoding="utf-8-sig")
    (problem,) = Project.load(tmp_path).problems
    assert str(problem.place) == "a.sql:1:36"
    assert read_identity(tmp_path).name == "taxis"

"""Files of a project are read as editors write them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from shardline.app.project.identity import read_identity
from shardline.app.project.project import Project
from shardline.datasource.errors import InvalidUsage


def test_a_byte_order_mark_is_no_part_of_a_text(tmp_path: Path) -> None:
    """It is invisible, so nobody would find what is wrong; places do not count it."""
    (tmp_path / "a.sql").write_text("CREATE SOURCE s USING rate; CREATE x", encoding="utf-8-sig")
    (tmp_path / "project.toml").write_text('name = "taxis"', encoding="utf-8-sig")
    (problem,) = Project.load(tmp_path).problems
    assert str(problem.place) == "a.sql:1:36"
    assert read_identity(tmp_path).name == "taxis"


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    """An encoding is to blame only where it is to blame."""
    (tmp_path / "a.sql").mkdir()
    with pytest.raises(InvalidUsage, match=r"a\.sql' cannot be read: Is a directory") as no:
        Project.load(tmp_path)
    assert no.value.code == "PROJECT_UNREADABLE"
    assert "UTF-8" not in no.value.hint
    (tmp_path / "a.sql").rmdir()
    (tmp_path / "a.sql").write_bytes(b"\xff")
    with pytest.raises(InvalidUsage, match="cannot be read") as wrong:
        Project.load(tmp_path)
    assert "UTF-8" in wrong.value.hint


def test_an_unknown_setting_of_a_project_is_named_with_its_file(tmp_path: Path) -> None:
    """A runtime has settings in a file of its own, in which nobody would find it."""
    file = tmp_path / "project.toml"
    file.write_text('nmae = "taxis"')
    with pytest.raises(InvalidUsage, match=re.escape(f"unknown setting 'nmae' in '{file}'")):
        read_identity(tmp_path)

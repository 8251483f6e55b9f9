"""Kept files are there whole for later processes, or not at all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from shardline.datasource.spark_native.kept_files import read_kept, store_kept

if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_kept_is_given_back_whole(tmp_path: Path) -> None:
    kept = tmp_path / "folder" / "name"
    store_kept(kept, b"first")
    store_kept(kept, b"second\n")
    assert read_kept(kept) == b"second\n"
    assert list(kept.parent.iterdir()) == [kept]
    kept.write_bytes(kept.read_bytes()[:-1])
    assert read_kept(kept) is None


@pytest.mark.parametrize("act", ["fdopen", "chmod", "replace"])
def test_nothing_is_left_of_what_could_not_be_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """A full disk is full at the next start as well."""

    def fail(*_given: Any) -> None:
        raise OSError("no space left on device")

    store_kept(tmp_path / "name", b"first")
    monkeypatch.setattr(os, act, fail)
    store_kept(tmp_path / "name", b"second")
    monkeypatch.undo()
    assert read_kept(tmp_path / "name") == b"first"
    assert [one.name for one in tmp_path.iterdir()] == ["name"]

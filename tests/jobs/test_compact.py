"""The command that merges shards: its lines and its status, with the merges themselves left out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from shardline.datasource.client import ShardClient
from shardline.jobs import compact
from support.models.shards import schema_of


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A location with two shards; a session is not made, and each shard takes one merge."""

    def merge(*given: Any, report: Callable[[str], None], **_: Any) -> int:
        report(f"{given[2]}: merging")
        return 1

    session = SimpleNamespace(stop=lambda: None)
    monkeypatch.setattr(compact, "open_session", lambda *_: session)
    monkeypatch.setattr(compact, "compact_on_spark", merge)
    client = ShardClient.open(str(tmp_path / "lake"))
    for name in ("a", "x[/y]"):
        client.create(name, schema_of())
    return str(tmp_path / "lake")


def test_names_in_brackets_are_printed_as_they_are(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both by the job and by what merges."""
    assert compact.main([url]) == 0
    out = capsys.readouterr().out
    assert "x[/y]: merging\n" in out
    assert "x[/y]: 1 merges, now 0 batches" in out


def test_a_shard_that_cannot_be_read_after_its_merge_is_one_that_failed(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store may fail, or somebody drop the shard; the others are merged all the same."""

    def merge(_: object, client: ShardClient, name: str, **__: Any) -> int:
        if name == "a":
            client.drop(name)
        return 1

    monkeypatch.setattr(compact, "compact_on_spark", merge)
    assert compact.main([url]) == 1
    captured = capsys.readouterr()
    assert "error: a: [SHARD_DROPPED]" in captured.err
    assert "x[/y]: 1 merges, now 0 batches" in captured.out

"""A clean-up removes all that it can of what a dropped object has left, whatever it cannot."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from shardline.app.execution import ending_holds
from shardline.app.lane.state import LaneObject
from shardline.app.protocol.objects import SinkDescription, SourceDescription, ViewDescription
from shardline.app.runtime.cleanup import forget
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Corrupt, Determinate, Fenced, Indeterminate, ShardError
from support.faults.holds import damage_holds
from support.models.shards import World, schema_of

HOLDS = ["group:0123abcd:0a1b2c3d", "view:v:1:0a1b2c3d"]
INPUTS = ("a", "b", "c")


class NoFolder(type(Path())):  # type: ignore[misc]
    """A folder of checkpoints that cannot be read."""

    def glob(self, pattern: str) -> None:
        raise PermissionError(13, "Permission denied", pattern)


@pytest.fixture
def client() -> ShardClient:
    """Three inputs with what a view has held."""
    client = World().client()
    for name in INPUTS:
        client.create(name, schema_of())
        for hold in HOLDS:
            client.hold(name, hold)
    return client


def drop(client: ShardClient, checkpoints: Path, fence: ShardError | None = None) -> None:
    view = ViewDescription(name="v", query="SELECT 1", inputs=INPUTS, schema="k BIGINT")
    numbers: dict[str, Any] = {"dataflow": 1, "operators": (1, 1), "epoch": 1, "created": 1}
    dropped = LaneObject(description=view, as_of=9, global_id="u1", **numbers)

    def check_fence() -> None:
        if fence is not None:
            raise fence

    forget(client, checkpoints, dropped, check_fence)


def held(client: ShardClient) -> dict[str, list[str]]:
    return {name: sorted(client.state(name).critical) for name in INPUTS}


def test_a_damaged_input_keeps_no_hold_on_the_others(
    client: ShardClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would look at them again, and they would keep all of their history."""
    damage_holds(monkeypatch, {"a": Corrupt("no such blob")})
    with pytest.raises(Corrupt):
        drop(client, tmp_path)
    assert held(client) == {"a": HOLDS, "b": [], "c": []}


def test_what_former_definitions_have_held_is_let_go(client: ShardClient, tmp_path: Path) -> None:
    """Who has changed the object has died before it was known that the new one reads by itself."""
    numbers: dict[str, Any] = {"dataflow": 3, "operators": (1, 1), "epoch": 1, "created": 1}
    view = ViewDescription(name="v", query="SELECT 1", inputs=("b",), schema="k BIGINT")
    sink = SinkDescription(name="v", on="c", format="parquet")
    changed = LaneObject(
        description=view, as_of=9, global_id="u1", former_inputs=("a", "gone"), **numbers
    )
    forget(client, tmp_path, changed, lambda: None)
    assert held(client) == {"a": [], "b": [], "c": HOLDS}
    client.hold("a", HOLDS[1])
    forget(client, tmp_path, structs.replace(changed, description=sink), lambda: None)
    assert held(client) == {"a": [], "b": [], "c": HOLDS}


def test_a_dropped_source_of_shards_lets_go_of_what_it_has_read(
    client: ShardClient, tmp_path: Path
) -> None:
    """By its last definition, and by those before it; in whatever location."""
    other = ShardClient.open(str(tmp_path / "other"))
    own = f"source:s:{client.location.id}"
    for name in ("a", "b"):
        other.create(name, schema_of())
        other.hold(name, own)
    sources = [
        SourceDescription(
            name="s", format="shard", options={"path": str(tmp_path / "other" / name)}
        )
        for name in ("a", "b")
    ]
    numbers: dict[str, Any] = {"dataflow": 3, "operators": (1, 1), "epoch": 1, "created": 1}
    dropped = LaneObject(
        description=sources[0],
        as_of=None,
        global_id="u1",
        former_sources=(sources[1],),
        **numbers,
    )
    forget(client, tmp_path / "checkpoints", dropped, lambda: None)
    for name in ("a", "b"):
        state = other.machine(name).refresh()
        assert state is not None
        assert state.critical == {}


def test_an_input_that_does_not_answer_is_tried_again_beside_one_that_is_damaged(
    client: ShardClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lane repeats a clean-up by its error: it must be that of what can still be done."""
    with monkeypatch.context() as outage:
        damage_holds(outage, {"a": Corrupt("no such blob"), "b": Determinate("no answer")})
        with pytest.raises(Determinate):
            drop(client, tmp_path)
    damage_holds(monkeypatch, {"a": Corrupt("no such blob")})
    with pytest.raises(Corrupt):
        drop(client, tmp_path)
    assert held(client) == {"a": HOLDS, "b": [], "c": []}


@pytest.mark.parametrize("error", [Determinate, Indeterminate])
def test_a_store_that_does_not_answer_is_asked_once(
    client: ShardClient, error: type[ShardError], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request waits for its time-out, and whoever ends holds is waited for."""
    asked: list[str] = []

    def find_holds(_: ShardClient, shard: str) -> dict[str, str]:
        asked.append(shard)
        raise error("no answer")

    monkeypatch.setattr(ending_holds, "find_holds", find_holds)
    with pytest.raises(error):
        ending_holds.end_holds(client, INPUTS, lambda _: True)
    assert asked == ["a"]


def test_checkpoints_that_cannot_be_listed_keep_no_hold(client: ShardClient) -> None:
    """The disk is no reason for inputs to keep their history."""
    with pytest.raises(PermissionError):
        drop(client, NoFolder("checkpoints"))
    assert held(client) == {"a": [], "b": [], "c": []}


def test_nothing_ends_behind_a_fence(client: ShardClient, tmp_path: Path) -> None:
    """Not even where other shards could still be reached."""
    with pytest.raises(Fenced):
        drop(client, tmp_path, Fenced("another runtime"))
    assert held(client) == dict.fromkeys(INPUTS, HOLDS)


def test_a_folder_that_stays_is_told_and_the_others_go(
    client: ShardClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk may refuse to remove what is in it; nothing else is left because of that."""
    folders = [tmp_path / name for name in ("u1-1", "u1-2", "u1-2-7", "u10-1")]
    for folder in folders:
        folder.mkdir()
    real = shutil.rmtree

    def rmtree(folder: Path, **given: Any) -> None:
        if folder.name != "u1-1":
            real(folder, **given)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    with pytest.raises(OSError, match="u1-1"):
        drop(client, tmp_path)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["u1-1", "u10-1"]
    assert held(client) == {"a": [], "b": [], "c": []}

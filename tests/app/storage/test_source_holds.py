"""The holds of sources of shards: named after their source, and ended with it wherever they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from shardline.app.protocol.objects import SourceDescription
from shardline.app.storage.reclock import BoundOffsets, Origin, Remap
from shardline.app.storage.source_holds import end_dropped, end_former, hold_name, with_hold
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Corrupt, Determinate, Fenced, InvalidUsage, ShardError
from shardline.datasource.frontier import Frontier
from shardline.datasource.offsets import ShardOffset
from support.faults.holds import damage_holds
from support.models.shards import schema_of


@pytest.fixture
def client(tmp_path: Path) -> ShardClient:
    """The source's own location."""
    return ShardClient.open(str(tmp_path / "own"))


@pytest.fixture
def other(tmp_path: Path) -> ShardClient:
    """The location that the source reads."""
    made = ShardClient.open(str(tmp_path / "other"))
    for name in ("a", "b"):
        made.create(name, schema_of())
    return made


def reads(other: ShardClient, shard: str, **options: str) -> SourceDescription:
    place = {"Path": f"{other.location.url}/{shard}"}
    return SourceDescription(name="in", format="Shard", options={**place, **options})


def held(other: ShardClient) -> dict[str, list[str]]:
    # As of now: the holds were ended by another client.
    states = {name: other.machine(name).refresh() for name in ("a", "b")}
    return {name: sorted(state.critical) for name, state in states.items() if state is not None}


def bind(client: ShardClient, other: ShardClient, shard: str, hold: str) -> BoundOffsets:
    """Bind an offset of a shard, as the source does behind its snapshot."""
    offset = ShardOffset((other.state(shard).shard,), hold, 1, Frontier(2)).json()
    remap = Remap.open(client, "in", Origin("shard", 5))
    bound = remap.bind(remap.read(), number=0, offset=json.dumps(offset), files=(), at=9)
    assert bound is not None
    return bound


def let(_: str = "") -> None:
    """A fence that nobody else has passed."""


def test_a_hold_is_named_after_its_source_and_its_location() -> None:
    """Another location may have a source of that name that reads the same shard."""
    of = SourceDescription(name="in", format="shard", options={"path": "x/a"})
    names = [with_hold(of, place).options["hold"] for place in ("l1", "l2")]
    assert names == ["source:in:l1", "source:in:l2"]
    chosen = SourceDescription(name="in", format="shard", options={"path": "x/a", "Hold": "mine"})
    files = SourceDescription(name="in", format="csv", options={"path": "x/a"})
    assert [with_hold(one, "l1") for one in (chosen, files)] == [chosen, files]


def test_a_dropped_source_ends_its_holds_on_all_that_it_has_read(
    client: ShardClient, other: ShardClient
) -> None:
    """Also one whose name a former version has made up; not those of others, nor its user's."""
    own = hold_name("in", client.location.id)
    others = [hold_name("in", other.location.id), "mine", "stream-1"]
    for shard in ("a", "b"):
        for name in (own, "stream-0", *others):
            other.hold(shard, name)
    bind(client, other, "a", "stream-0")
    definitions = [reads(other, "a", hold="mine"), reads(other, "b", **{"no such": "option"})]
    for _ in range(2):
        end_dropped(client, "in", definitions, let)
        assert held(other) == dict.fromkeys(("a", "b"), sorted(others))


def test_a_drop_ends_the_holds_on_several_shards_that_are_read_as_one(
    client: ShardClient, other: ShardClient
) -> None:
    """Their option has another name, and the path is the location then."""
    own = hold_name("in", client.location.id)
    for shard in ("a", "b"):
        other.hold(shard, own)
    options = {"path": other.location.url, "shards": "a, b", "readChangeFeed": "true"}
    read = SourceDescription(name="in", format="shard", options=options)
    end_dropped(client, "in", [read], let)
    assert held(other) == {"a": [], "b": []}


def nowhere(other: ShardClient) -> SourceDescription:
    place = str(Path(other.location.url.removeprefix("file://")).with_name("gone"))
    return SourceDescription(name="in", format="shard", options={"path": f"{place}/a"})


def damaged(other: ShardClient) -> SourceDescription:
    return reads(other, "a")


@pytest.mark.parametrize(
    ("bad", "error"), [(nowhere, InvalidUsage), (damaged, Corrupt), (damaged, Determinate)]
)
def test_what_cannot_be_reached_keeps_no_hold_elsewhere(
    client: ShardClient,
    other: ShardClient,
    bad: Callable[[ShardClient], SourceDescription],
    error: type[ShardError],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The error says if it is to be tried again: of damage and absence nobody waits for the end."""
    own = hold_name("in", client.location.id)
    for shard in ("a", "b"):
        other.hold(shard, own)
    if bad is damaged:
        damage_holds(monkeypatch, {"a": error("damaged")})
    with pytest.raises(error):
        end_dropped(client, "in", [bad(other), reads(other, "b")], let)
    assert held(other) == {"a": [own], "b": []}


def test_no_hold_ends_behind_a_fence(client: ShardClient, other: ShardClient) -> None:
    """Another runtime may have created the source again, and go on by its hold."""
    own = hold_name("in", client.location.id)
    other.hold("a", own)

    def fenced() -> None:
        raise Fenced("another runtime")

    with pytest.raises(Fenced):
        end_dropped(client, "in", [reads(other, "a")], fenced)
    with pytest.raises(Fenced):
        end_former(client, reads(other, "b"), [reads(other, "a")], BoundOffsets(), fenced)

    def take_over() -> None:
        other.hold("a", own)

    end_dropped(client, "in", [reads(other, "a")], take_over)
    assert held(other)["a"] == [own]


def test_a_changed_source_that_has_begun_lets_go_of_what_it_reads_no_more(
    client: ShardClient,
    other: ShardClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not of the shard whose offsets are bound; what is damaged does not keep it from going on."""
    own = hold_name("in", client.location.id)
    for shard in ("a", "b"):
        other.hold(shard, own)
    bound = bind(client, other, "b", own)
    former = [reads(other, "a"), reads(other, "b")]
    with monkeypatch.context() as outage:
        damage_holds(outage, {"a": Determinate("no answer")})
        end_former(client, former[1], former, bound, let)
    assert held(other) == {"a": [own], "b": [own]}
    assert "until the source is dropped" in caplog.text
    end_former(client, former[1], former, bound, let)
    assert held(other) == {"a": [], "b": [own]}


def test_offsets_of_another_format_name_no_shard(client: ShardClient, other: ShardClient) -> None:
    """A source of files begins as well."""
    own = hold_name("in", client.location.id)
    other.hold("a", own)
    remap = Remap.open(client, "in", Origin("csv", 5))
    bound = remap.bind(remap.read(), number=0, offset='{"logOffset":0}', files=(), at=9)
    assert bound is not None
    files = SourceDescription(name="in", format="csv", options={"path": "x"})
    end_former(client, files, [reads(other, "a")], bound, let)
    assert held(other)["a"] == []

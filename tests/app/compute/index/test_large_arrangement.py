"""Large shards are arranged by a thread; there is no answer until that is done, or if it fails."""

from __future__ import annotations

import gc
import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest

from shardline.app.compute.index import large_arrangement, mapped_table, runs, shard_lookups
from shardline.app.compute.index.large_arrangement import LargeArrangement, has_room, least_bytes
from shardline.app.compute.index.shard_lookups import ShardLookups
from shardline.app.execution.shard_follower import ShardFollower
from shardline.datasource.background import BackgroundThread
from shardline.datasource.frontier import Frontier
from shardline.datasource.types.schema import ShardSchema
from support.models.changing_shard import ROWS, Shard, User, expected, found, updates
from support.models.shards import World
from support.waiting import wait_until

_TIMEOUT_S = 10.0


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


@pytest.fixture
def shard(world: World) -> Shard:
    return Shard(world.client())


@pytest.fixture
def lookups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ShardLookups]:
    """Any shard is large, and has many pieces."""
    monkeypatch.setattr(shard_lookups, "_UPDATES_MAX", 0)
    monkeypatch.setattr(runs, "PIECE_BYTES", 200)
    lookups = ShardLookups(tmp_path / "files")
    yield lookups
    _end(lookups)


def _end(lookups: ShardLookups) -> None:
    """Its threads would read a store that is gone."""
    threads = [one.large for one in lookups._arranged.values() if one.large is not None]
    lookups.forget(list(lookups._arranged))
    assert all(one.join(_TIMEOUT_S * 1000) for one in threads)


def _large(lookups: ShardLookups, name: str = "t") -> LargeArrangement:
    """What makes the arrangement of a shard, which is there now."""
    large = lookups._arranged[name].large
    assert large is not None
    assert large.ready.wait(_TIMEOUT_S)
    return large


def _found(
    lookups: ShardLookups, shard: Shard, keys: list[int], as_of: int, user: object
) -> Counter[tuple[int, str]] | None:
    return found(lookups, shard, [*keys], as_of, user)


def _is_held(shard: Shard) -> bool:
    return any("by key" in one.purpose for one in shard.client.state(shard.name).leased.values())


def test_it_is_there_once_it_is_made(shard: Shard, lookups: ShardLookups) -> None:
    """Until then there is no answer; then it follows the shard, request by request."""
    user = User()
    shard.append(*((0, (n, "a"), 1) for n in range(200)), until=1)
    assert _found(lookups, shard, [7], 0, user) is None
    large = _large(lookups)
    assert _found(lookups, shard, [7], 0, user) == Counter({(7, "a"): 1})
    shard.append((1, (7, "a"), -1), (1, (7, "b"), 1), until=2)
    assert _found(lookups, shard, [7, 8], 1, user) == Counter({(7, "b"): 1, (8, "a"): 1})
    assert large.arranged is not None
    assert len(large.arranged.view.runs[0].pieces) > 10
    ((_, told),) = lookups.arranged().items()
    assert told.updates == 202


def test_a_process_that_is_killed_leaves_no_file(
    shard: Shard, lookups: ShardLookups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None has a name, from its beginning on: there is nothing to be damaged or read by others."""
    monkeypatch.setattr(mapped_table, "IN_MEMORY_MAX", 0)
    seen: list[list[Path]] = []
    mapped = mapped_table.mapped

    def noted(table: pa.Table, folder: Path) -> pa.Table:
        made = mapped(table, folder)
        seen.append(list(folder.iterdir()))
        return made

    monkeypatch.setattr(mapped_table, "mapped", noted)
    user = User()
    shard.append(*((0, (n, "a"), 1) for n in range(50)), until=1)
    _found(lookups, shard, [7], 0, user)
    _large(lookups)
    assert _found(lookups, shard, [7], 0, user) == Counter({(7, "a"): 1})
    assert len(seen) > 5
    assert not any(seen)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_what_is_found_is_right_whatever_happens(
    world: World, lookups: ShardLookups, tmp_path: Path, seed: int
) -> None:
    """Appends, retractions, merges, history that goes, restarts; two processes at one folder."""
    draw = random.Random(seed)
    shard = Shard(world.client())
    shard.change(draw, 0)
    hold = shard.client.hold("t", "view")
    sides = [lookups, ShardLookups(tmp_path / "files")]
    users, read, answers = [User(), User(), User()], [0, 0, 0], 0
    for time in range(1, 60):
        shard.change(draw, time)
        what = draw.randrange(8)
        side = draw.randrange(2)
        if what == 0:
            shard.client.compact("t", force=draw.random() < 0.5)
        elif what == 1:
            hold.downgrade(Frontier(min(read)))
            shard.client.compact("t", force=True)
        elif what == 2 and (large := _large_of(sides[side])):
            large.wake.set()
        elif what == 3 and draw.random() < 0.3:
            _end(sides[side])
            sides[side] = ShardLookups(tmp_path / "files")
        elif (large := _large_of(sides[side])) is not None:
            assert large.ready.wait(_TIMEOUT_S)
        place = draw.randrange(3)
        read[place] = draw.randint(read[place], time)
        keys = [draw.randrange(9) for _ in range(draw.randrange(1, 5))]
        rows = _found(sides[side], shard, keys, read[place], users[place])
        if rows is not None:
            answers += 1
            assert rows == expected(shard, keys, read[place]), time
    _end(sides[1])
    assert answers > 15


def _large_of(lookups: ShardLookups) -> LargeArrangement | None:
    entry = lookups._arranged.get("t")
    return None if entry is None else entry.large


def test_history_is_kept_until_it_is_taken_in(shard: Shard, lookups: ShardLookups) -> None:
    """Else a shard in which little is looked up would have to be read anew each time."""
    user = User()
    shard.append((0, (1, "a"), 1), until=1)
    hold = shard.client.hold("t", "view")
    _found(lookups, shard, [1], 0, user)
    large = _large(lookups)
    for time in range(1, 6):
        shard.append((time, (1, "a"), 1), until=time + 1)
    hold.downgrade(Frontier(5))
    shard.client.compact("t", force=True)
    assert shard.client.state("t").since == Frontier(0)
    assert _found(lookups, shard, [1], 5, user) == Counter({(1, "a"): 6})
    assert _large(lookups) is large


def test_it_is_brought_along_though_nobody_asks(
    world: World, shard: Shard, lookups: ShardLookups
) -> None:
    """And lets go of the history behind it."""
    user = User()
    shard.append((0, (1, "a"), 1), until=1)
    hold = shard.client.hold("t", "view")
    _found(lookups, shard, [1], 0, user)
    large = _large(lookups)
    for time in range(1, 6):
        shard.append((time, (1, "a"), 1), until=time + 1)
    hold.downgrade(Frontier(5))
    world.clock.advance(5_000)
    large.wake.set()
    wait_until(
        "history goes", lambda: shard.client.state("t").since == Frontier(5), timeout_s=_TIMEOUT_S
    )
    assert large.arranged is not None
    assert large.arranged.view.upper == Frontier(6)
    assert _found(lookups, shard, [1], 5, user) == Counter({(1, "a"): 6})


def test_what_comes_while_it_is_made_is_there(
    shard: Shard, lookups: ShardLookups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """History behind its beginning may go meanwhile."""
    blocked = _Blocked(monkeypatch)
    user = User()
    shard.append((0, (1, "a"), 1), until=1)
    hold = shard.client.hold("t", "view")
    assert _found(lookups, shard, [1], 0, user) is None
    blocked.reached()
    for time in range(1, 4):
        shard.append((time, (1, "b"), 1), until=time + 1)
    hold.downgrade(Frontier(3))
    shard.client.compact("t", force=True)
    assert _found(lookups, shard, [1], 3, user) is None
    blocked.go_on.set()
    large = _large(lookups)
    assert large.arranged is not None
    assert large.arranged.view.upper == Frontier(4)
    assert _found(lookups, shard, [1], 3, user) == Counter({(1, "a"): 1, (1, "b"): 3})


class _Blocked:
    """Lets whoever puts a table into a file wait there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go_on, self._here = threading.Event(), threading.Event()
        store = mapped_table.mapped_if_large

        def blocked(table: pa.Table, folder: Path) -> pa.Table:
            self._here.set()
            assert self.go_on.wait(_TIMEOUT_S)
            return store(table, folder)

        monkeypatch.setattr(large_arrangement, "mapped_if_large", blocked)

    def reached(self) -> None:
        assert self._here.wait(_TIMEOUT_S)


def test_what_is_given_up_while_it_is_made_is_never_shown(
    shard: Shard, lookups: ShardLookups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next request begins a new one, and the lease of the old one goes."""
    blocked = _Blocked(monkeypatch)
    user = User()
    shard.append((0, (1, "a"), 1), until=1)
    _found(lookups, shard, [1], 0, user)
    blocked.reached()
    old = lookups._arranged["t"].large
    assert old is not None
    lookups.forget(["t"])
    blocked.go_on.set()
    assert old.join(_TIMEOUT_S * 1000)
    assert old.arranged is None
    assert not _is_held(shard)
    assert _found(lookups, shard, [1], 0, user) is None
    assert _large(lookups) is not old
    assert _found(lookups, shard, [1], 0, user) == Counter({(1, "a"): 1})


def test_one_is_made_at_a_time(
    world: World, lookups: ShardLookups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes the memory of a piece, and a core."""
    blocked = _Blocked(monkeypatch)
    user, shards = User(), [Shard(world.client(), name) for name in ("t", "u")]
    keys = pa.table({"k": [1]})

    def asked(shard: Shard) -> pa.Table | None:
        state = shard.client.state(shard.name)
        return lookups.rows(shard.client, state, ("k",), keys, as_of=0, user=user)

    for shard in shards:
        shard.append((0, (1, "a"), 1), until=1)
        assert asked(shard) is None
    blocked.reached()
    assert lookups._arranged["u"].large is None
    blocked.go_on.set()
    _large(lookups)
    assert asked(shards[1]) is None
    _large(lookups, "u")
    assert [asked(shard) is not None for shard in shards] == [True, True]


def test_it_ends_with_its_last_user(shard: Shard, lookups: ShardLookups) -> None:
    """And with the lease: the shard's history is nobody's any more."""
    user = User()
    shard.append((0, (1, "a"), 1), until=1)
    _found(lookups, shard, [1], 0, user)
    large = _large(lookups)
    assert _is_held(shard)
    large.wake.set()
    del user
    gc.collect()
    large.wake.set()
    assert large.join(_TIMEOUT_S * 1000)
    assert not _is_held(shard)
    assert lookups.arranged() == {}
    user = User()
    assert _found(lookups, shard, [1], 0, user) is None
    _large(lookups)
    assert _found(lookups, shard, [1], 0, user) == Counter({(1, "a"): 1})


def test_a_user_behind_it_costs_the_others_nothing(shard: Shard, lookups: ShardLookups) -> None:
    """It has no answer until it has come as far, and history waits for it from then on."""
    slow, fast = User(), User()
    for time in range(5):
        shard.append((time, (1, "a"), 1), until=time + 1)
    _found(lookups, shard, [1], 3, fast)
    large = _large(lookups)
    assert _found(lookups, shard, [1], 1, slow) is None
    assert _found(lookups, shard, [1], 4, fast) == Counter({(1, "a"): 5})
    assert _found(lookups, shard, [1], 3, slow) == Counter({(1, "a"): 4})
    assert _large(lookups) is large


def test_a_full_disk_is_tried_again_later(
    shard: Shard, lookups: ShardLookups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Be it full at the start, while it is made, or when it is brought along."""
    user = User()
    shard.append((0, (1, "a"), 1), until=1)
    full = mock.Mock(side_effect=OSError(28, "No space left on device"))
    with monkeypatch.context() as patched:
        patched.setattr(mapped_table, "IN_MEMORY_MAX", 0)
        patched.setattr(mapped_table, "mapped", full)
        assert _found(lookups, shard, [1], 0, user) is None
        wait_until("it fails", lambda: lookups._arranged["t"].pause == 1, _TIMEOUT_S)
    assert _found(lookups, shard, [1], 0, user) is None  # the pause
    assert _found(lookups, shard, [1], 0, user) is None
    _large(lookups)
    assert _found(lookups, shard, [1], 0, user) == Counter({(1, "a"): 1})
    shard.append((1, (1, "b"), 1), until=2)
    with monkeypatch.context() as patched:
        patched.setattr(mapped_table, "IN_MEMORY_MAX", 0)
        patched.setattr(mapped_table, "mapped", full)
        assert _found(lookups, shard, [1], 1, user) is None
    assert _large_of(lookups) is None
    monkeypatch.setattr(shard_lookups, "has_room", lambda *_: False)
    for _ in range(8):
        assert _found(lookups, shard, [1], 1, user) is None
    assert _large_of(lookups) is None


def test_what_is_too_large_is_not_tried_again(
    shard: Shard, lookups: ShardLookups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until it is smaller: to read all of it costs as much each time."""
    begun = mock.Mock(side_effect=LargeArrangement)
    monkeypatch.setattr(shard_lookups, "LargeArrangement", begun)
    user = User()
    shard.append(*((0, (n, "a" * 1_000), 1) for n in range(50)), until=1)
    monkeypatch.setattr(shard_lookups, "_BYTES_MAX", 20_000)
    assert _found(lookups, shard, [1], 0, user) is None
    wait_until("it ends", lambda: lookups._arranged["t"].refused == 50, _TIMEOUT_S)
    wait_until("history is free", lambda: not _is_held(shard), _TIMEOUT_S)
    for _ in range(8):
        assert _found(lookups, shard, [1], 0, user) is None
    assert begun.call_count == 1
    gone = [(1, (n, "a" * 1_000), -1) for n in range(45)]
    shard.append(*gone, until=2)
    shard.client.hold("t", "view").downgrade(Frontier(1))
    shard.client.compact("t", force=True)
    assert _found(lookups, shard, [47], 1, user) is None
    _large(lookups)
    assert _found(lookups, shard, [47], 1, user) == expected(shard, [47], 1)


def test_one_that_grows_too_large_is_given_up(
    shard: Shard, lookups: ShardLookups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it may take was told when it began."""
    monkeypatch.setattr(shard_lookups, "_BYTES_MAX", 20_000)
    user = User()
    shard.append((0, (1, "a"), 1), until=1)
    _found(lookups, shard, [1], 0, user)
    large = _large(lookups)
    assert _found(lookups, shard, [1], 0, user) == Counter({(1, "a"): 1})
    shard.append(*((1, (n, "a" * 1_000), 1) for n in range(50)), until=2)
    assert _found(lookups, shard, [1], 1, user) is None
    assert large.join(_TIMEOUT_S * 1000)
    assert not _is_held(shard)


def test_one_whose_lease_is_gone_is_made_anew(
    world: World, shard: Shard, lookups: ShardLookups
) -> None:
    """Nothing may be read without it: parts may have been deleted, and times merged."""
    user = User()
    shard.append((0, (1, "a"), 1), until=1)
    _found(lookups, shard, [1], 0, user)
    large = _large(lookups)
    world.clock.advance(10_000_000)
    shard.append((1, (1, "b"), 1), until=2)
    assert _found(lookups, shard, [1], 1, user) is None
    assert large.join(_TIMEOUT_S * 1000)
    for _ in range(2):  # the first one waits
        assert _found(lookups, shard, [1], 1, user) is None
    _large(lookups)
    assert _found(lookups, shard, [1], 1, user) == expected(shard, [1], 1)


@pytest.mark.parametrize("what", ["rows", "columns"])
def test_another_shard_or_columns_have_another(
    shard: Shard, lookups: ShardLookups, what: str
) -> None:
    """Its name is the same, and perhaps its times."""
    user = User()
    shard.append((0, (1, "a"), 1), until=1)
    _found(lookups, shard, [1], 0, user)
    old = _large(lookups)
    if what == "rows":
        shard.client.drop("t", despite_holders=list(shard.client.state("t").leased))
        shard = Shard(shard.client)
        shard.append((0, (1, "b"), 1), until=1)
    else:
        wider = ShardSchema.from_arrow(ROWS.append(pa.field("w", pa.int32())))
        shard.client.evolve("t", wider)
    assert _found(lookups, shard, [1], 0, user) is None
    assert old.join(_TIMEOUT_S * 1000)
    _large(lookups)
    rows = _found(lookups, shard, [1], 0, user)
    assert rows == Counter({(1, "b") if what == "rows" else (1, "a", None): 1})


def test_how_much_it_takes_is_known_before(tmp_path: Path) -> None:
    """At least: text takes more than its offset."""
    rows = updates([(0, (n, "abcd"), 1) for n in range(1_000)])
    least = least_bytes(ShardSchema.from_arrow(ROWS), 1_000)
    assert least == 1_000 * (8 + 4 + 8 + 8 + 8)
    assert least - 8_000 < rows.nbytes
    assert has_room(tmp_path / "not" / "there", 1)
    assert not has_room(tmp_path, 1 << 62)


def test_a_look_up_goes_on_when_somebody_else_gives_the_arrangement_up(
    shard: Shard, lookups: ShardLookups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the request reads what is new: its shard is read whole, and its view is not stopped."""
    user = User()
    shard.append(*((0, (n, "a"), 1) for n in range(50)), until=1)
    _found(lookups, shard, [7], 0, user)
    large = _large(lookups)
    shard.append((1, (7, "b"), 1), until=2)
    changes = ShardFollower.changes

    def forgotten(*given: Any) -> Iterator[pa.RecordBatch]:
        lookups.forget(["t"])
        yield from changes(*given)

    monkeypatch.setattr(ShardFollower, "changes", forgotten)
    assert _found(lookups, shard, [7], 1, user) is None
    assert large.join(_TIMEOUT_S * 1000)


def test_a_request_begins_none_for_an_entry_that_was_given_up(
    shard: Shard, lookups: ShardLookups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind its back: nobody would find the thread to end it, nor its lease."""
    user = User()
    shard.append(*((0, (n, "a"), 1) for n in range(50)), until=1)
    count, start = shard_lookups._updates_of, LargeArrangement.start
    started: list[LargeArrangement] = []

    def forgotten(state: Any) -> int:
        lookups.forget(["t"])
        return count(state)

    def noted(large: LargeArrangement) -> None:
        started.append(large)
        start(large)

    monkeypatch.setattr(LargeArrangement, "start", noted)
    with monkeypatch.context() as patched:
        patched.setattr(shard_lookups, "_updates_of", forgotten)
        assert _found(lookups, shard, [7], 0, user) is None
    assert not started
    _found(lookups, shard, [7], 0, user)
    _large(lookups)
    assert _found(lookups, shard, [7], 0, user) == Counter({(7, "a"): 1})


def test_a_thread_that_could_not_be_started_is_started_later(
    world: World, shard: Shard, lookups: ShardLookups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step goes on, and neither this shard nor another one waits for it for ever."""

    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    user = User()
    shard.append(*((0, (n, "a"), 1) for n in range(50)), until=1)
    with monkeypatch.context() as patched:
        patched.setattr(BackgroundThread, "start", refuse)
        assert _found(lookups, shard, [7], 0, user) is None
    assert lookups._arranged["t"].large is None
    other = Shard(world.client(), "other")
    other.append((0, (1, "a"), 1), until=1)
    state = other.client.state("other")
    lookups.rows(other.client, state, (), None, as_of=0, user=user)
    _large(lookups, "other")
    assert _found(lookups, shard, [7], 0, user) is None, "the pause after a failure"
    _found(lookups, shard, [7], 0, user)
    _large(lookups)
    assert _found(lookups, shard, [7], 0, user) == Counter({(7, "a"): 1})

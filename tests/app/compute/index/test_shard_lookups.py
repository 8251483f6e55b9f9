"""Rows of shards by key, against all rows of the shard; what is shared, and what is given up."""

from __future__ import annotations

import gc
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from msgspec.structs import replace
from typing_extensions import override

from shardline.app.compute.index import mapped_table, shard_lookups
from shardline.app.compute.index.arrangement import Arrangement
from shardline.app.compute.index.index import Index, IndexRegistry, IndexSettings
from shardline.app.compute.index.shard_lookups import ShardLookups, lookups_of
from shardline.app.protocol.objects import IndexDescription
from shardline.datasource.frontier import Frontier
from shardline.datasource.rows.updates import update_schema
from shardline.datasource.spark_native.read import updates_in_driver
from shardline.datasource.types.schema import ShardSchema
from support.models.changing_shard import ROWS, Shard, User, expected, found, updates
from support.models.shards import World

LAST = 30


@pytest.fixture
def shard() -> Iterator[Shard]:
    world = World()
    yield Shard(world.client())
    world.close()


@pytest.fixture
def lookups(tmp_path: Path) -> ShardLookups:
    return ShardLookups(tmp_path / "files")


@pytest.mark.parametrize("seed", range(5))
def test_rows_are_those_of_the_keys_at_each_time(
    shard: Shard, lookups: ShardLookups, seed: int
) -> None:
    """Of several users at times of their own, while the shard changes and is compacted."""
    draw = random.Random(seed)
    users = [User(), User()]
    read = [0, 0]
    shard.change(draw, 0)
    for time in range(1, LAST):
        shard.change(draw, time)
        place = draw.randrange(2)
        read[place] = draw.randint(read[place], time)
        keys = [draw.randrange(9) for _ in range(draw.randrange(4))]
        assert found(lookups, shard, [*keys, None], read[place], users[place]) == expected(
            shard, keys, read[place]
        )


def test_an_arrangement_is_made_once_and_brought_along(
    shard: Shard, lookups: ShardLookups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of the shard is read by the first request alone; later ones read what is new."""
    read: list[int | None] = []
    given = updates_in_driver

    def noted(*args: object, start: int | None, **more: object) -> pa.Table | None:
        read.append(start)
        return given(*args, start=start, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(shard_lookups, "updates_in_driver", noted)
    user = User()
    shard.append((5, (1, "a"), 1), until=6)
    found(lookups, shard, [1], 5, user)
    found(lookups, shard, [2], 5, User())
    shard.append((6, (1, "b"), 1), until=7)
    assert found(lookups, shard, [1], 6, user) == Counter({(1, "a"): 1, (1, "b"): 1})
    assert read == [None, 6]


@pytest.mark.parametrize("wrong", ["", "lower", "upper", "shard"])
def test_what_is_known_of_an_append_is_not_read(
    shard: Shard, lookups: ShardLookups, wrong: str
) -> None:
    """Where it is of just the interval that the arrangement lacks, and of this shard; and once."""
    user, read = User(), updates_in_driver
    with mock.patch.object(shard_lookups, "updates_in_driver", side_effect=read) as reads:
        shard.append((4, (1, "a"), 1), until=5)
        assert found(lookups, shard, [1], 4, user) == Counter({(1, "a"): 1})
        if wrong == "lower":
            shard.append((5, (1, "b"), 1), until=6)
        before = shard.client.state("t")
        known = (6, (1, "c"), 1)
        shard.append(known, until=7)
        if wrong == "upper":
            shard.append((7, (1, "d"), 1), until=8)
        if wrong == "shard":
            before = replace(before, shard="another")
        rows = updates([known]).cast(update_schema(ROWS))
        lookups.note_appended(shard.client, before, 7, rows)
        upper = shard.upper
        assert found(lookups, shard, [1], upper - 1, user) == expected(shard, [1], upper - 1)
        assert reads.call_count == (1 if not wrong else 2)
        shard.append(until=upper + 3)
        assert found(lookups, shard, [1], upper + 2, user) == expected(shard, [1], upper + 2)
        assert reads.call_count == (2 if not wrong else 3)


def test_a_shard_that_was_made_anew_is_read_anew(shard: Shard, lookups: ShardLookups) -> None:
    """By its id: name, times and columns are the same."""
    user = User()
    shard.append((5, (1, "a"), 1), until=6)
    assert found(lookups, shard, [1], 5, user) == Counter({(1, "a"): 1})
    shard.client.drop("t", despite_holders=list(shard.client.state("t").leased))
    again = Shard(shard.client)
    again.append((5, (1, "b"), 1), until=6)
    assert found(lookups, again, [1], 5, user) == Counter({(1, "b"): 1})


def test_columns_that_were_added_are_there(shard: Shard, lookups: ShardLookups) -> None:
    """Rows from before have NULL in them."""
    user = User()
    shard.append((5, (1, "a"), 1), until=6)
    found(lookups, shard, [1], 5, user)
    shard.client.evolve("t", ShardSchema.from_arrow(ROWS.append(pa.field("w", pa.int32()))))
    assert found(lookups, shard, [1], 5, user) == Counter({(1, "a", None): 1})


def test_the_past_of_a_user_that_is_gone_is_given_up(shard: Shard, lookups: ShardLookups) -> None:
    """Until then its last time stays readable, however far others are."""
    slow, fast = User(), User()
    for time in range(5):
        shard.append((time, (1, "a"), 1), until=time + 1)
    found(lookups, shard, [1], 1, slow)
    found(lookups, shard, [1], 4, fast)
    assert found(lookups, shard, [1], 1, slow) == Counter({(1, "a"): 2})
    [entry] = lookups._arranged.values()
    assert entry.arranged is not None
    assert entry.arranged.view.since == 1
    del slow
    gc.collect()
    found(lookups, shard, [1], 4, fast)
    assert entry.arranged.view.since == 4


def test_too_many_rows_are_left_to_spark(
    shard: Shard, lookups: ShardLookups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one answer, and of a shard."""
    shard.append(*((0, (1, "a"), 1) for _ in range(4)), (0, (2, "b"), 1), until=1)
    monkeypatch.setattr(shard_lookups, "ROWS_MAX", 3)
    assert found(lookups, shard, [2], 0, User()) == Counter({(2, "b"): 1})
    shard.append(*((1, (n, "a"), 1) for n in range(5)), until=2)
    monkeypatch.setattr(shard_lookups, "_UPDATES_MAX", 5)
    assert found(lookups, shard, [2], 1, User()) is None


def test_many_changes_are_taken_in(
    shard: Shard, lookups: ShardLookups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as they are fewer than what is arranged: all of it was read to arrange it."""
    shard.append(*((0, (n, "a"), 1) for n in range(8)), until=1)
    user, made = User(), mock.Mock(wraps=lookups._arrange)
    monkeypatch.setattr(lookups, "_arrange", made)
    monkeypatch.setattr(shard_lookups, "ROWS_MAX", 3)
    assert found(lookups, shard, [7], 0, user) == Counter({(7, "a"): 1})
    shard.append(*((1, (n, "b"), 1) for n in range(7)), until=2)
    assert found(lookups, shard, [6], 1, user) == Counter({(6, "a"): 1, (6, "b"): 1})
    made.assert_called_once()


def test_a_time_that_is_forgotten_meanwhile_has_no_answer(
    shard: Shard, lookups: ShardLookups
) -> None:
    """Later updates may be merged into it: rows would come that were not there, or be missing."""
    shard.append((0, (1, "a"), 1), (5, (1, "b"), 1), until=6)
    state = shard.client.state("t")
    shard.client.hold("t", "test").downgrade(Frontier(5))
    keys = pa.table({"k": pa.array([1], pa.int64())})
    assert lookups.rows(shard.client, state, ("k",), keys, as_of=3, user=User()) is None
    assert found(lookups, shard, [1], 5, User()) == Counter({(1, "a"): 1, (1, "b"): 1})


def test_one_update_of_very_many_rows_is_left_to_spark(
    shard: Shard, lookups: ShardLookups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By key and all of them: memory is for the copies, too."""
    monkeypatch.setattr(shard_lookups, "_ANSWER_BYTES_MAX", 1000)
    shard.append((0, (1, "a"), 10**9), (0, (2, "b"), 1), until=1)
    assert found(lookups, shard, [1], 0, User()) is None
    assert found(lookups, shard, [2], 0, User()) == Counter({(2, "b"): 1})
    state = shard.client.state("t")
    assert lookups.rows(shard.client, state, (), None, as_of=0, user=User()) is None


def test_all_rows_are_there_at_each_time(shard: Shard, lookups: ShardLookups) -> None:
    """As those of keys are, out of the same arrangement, and without another order of its rows."""
    draw, user = random.Random(3), User()
    for time in range(6):
        shard.change(draw, time)
        state = shard.client.state("t")
        rows = lookups.rows(shard.client, state, (), None, as_of=time, user=user)
        assert rows is not None
        there = Counter(zip(*(column.to_pylist() for column in rows.columns), strict=True))
        assert there == shard.at(time)
        assert found(lookups, shard, [1, 2], time, user) == expected(shard, [1, 2], time)
    assert {key for _, key in lookups.arranged()} == {(), ("k",)}


def test_a_full_disk_is_tried_again_later(
    shard: Shard, lookups: ShardLookups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not at each step: to decode a large shard costs as much each time."""
    shard.append((0, (1, "a"), 1), until=1)
    tries = []

    def full(*_: object) -> pa.Table:
        tries.append(1)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mapped_table, "IN_MEMORY_MAX", 0)
    with monkeypatch.context() as patched:
        patched.setattr(mapped_table, "mapped", full)
        answers = [found(lookups, shard, [1], 0, User()) for _ in range(6)]
    assert answers == [None] * 6
    assert len(tries) == 3  # the first, the third, and the sixth request
    rows = [found(lookups, shard, [1], 0, User()) for _ in range(6)]
    assert rows[-1] == Counter({(1, "a"): 1})


def test_what_was_not_asked_for_the_longest_makes_room(
    lookups: ShardLookups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The shard that is asked for stays, however large it is."""
    world = World()
    user, keys = User(), pa.table({"k": [1], "v": ["a"]})
    shards = [Shard(world.client(), name) for name in ("t", "u")]
    for shard in shards:
        shard.append(*((0, (n, "a"), 1) for n in range(50)), until=1)
        state = shard.client.state(shard.name)
        lookups.rows(shard.client, state, ("k",), keys, as_of=0, user=user)
    sizes = [one.nbytes for one in lookups._arranged.values()]
    assert all(sizes)
    monkeypatch.setattr(shard_lookups, "_BYTES_MAX", sum(sizes) - 1)
    state = shards[0].client.state("t")
    rows = lookups.rows(shards[0].client, state, ("k",), keys, as_of=0, user=user)
    assert rows is not None
    assert rows.num_rows == 1
    assert [bool(one.nbytes) for one in lookups._arranged.values()] == [True, False]
    world.close()


@pytest.mark.parametrize("seed", range(5))
def test_keys_of_a_shard_share_its_rows(shard: Shard, lookups: ShardLookups, seed: int) -> None:
    """They are read and kept once; what is found by each key is what the model has of it."""
    draw = random.Random(seed)
    user, columns = User(), [("k",), ("v",), ("k", "v"), ("v", "k")]
    for time in range(LAST):
        shard.change(draw, time)
        wanted = (draw.randrange(8), draw.choice("abc"))
        keys = pa.table({"k": [wanted[0]], "v": [wanted[1]]})
        for key in draw.sample(columns, 2):
            rows = lookups.rows(
                shard.client, shard.client.state("t"), key, keys, as_of=time, user=user
            )
            assert rows is not None
            places = [("k", "v").index(name) for name in key]
            there = {
                row: n
                for row, n in shard.at(time).items()
                if all(row[place] == wanted[place] for place in places)
            }
            assert Counter(zip(*(c.to_pylist() for c in rows.columns), strict=True)) == there
    [entry] = lookups._arranged.values()
    arranged = lookups.arranged()
    assert len(arranged) > 2
    assert entry.nbytes < sum(one.size_bytes for one in arranged.values())


def test_keys_of_columns_that_are_gone_are_not_told(shard: Shard, lookups: ShardLookups) -> None:
    """A shard of the same name may have other columns; what is told is of those there are."""
    user, keys = User(), pa.table({"k": [1], "v": ["a"]})
    shard.append((0, (1, "a"), 1), until=1)
    for key in (("k",), ("v",)):
        lookups.rows(shard.client, shard.client.state("t"), key, keys, as_of=0, user=user)
    assert set(lookups.arranged()) == {("t", ("k",)), ("t", ("v",))}
    [entry] = lookups._arranged.values()
    assert entry.arranged is not None
    entry.arranged = Arrangement(ShardSchema.from_arrow(pa.schema([ROWS.field("k")])), ("k",), 0)
    assert set(lookups.arranged()) == {("t", ("k",))}
    lookups.rows(shard.client, shard.client.state("t"), ("v",), keys, as_of=0, user=user)
    assert set(lookups.arranged()) == {("t", ("v",))}, "those of other columns are forgotten"


def test_a_user_that_asks_no_more_holds_nothing_back(
    shard: Shard, lookups: ShardLookups, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though it lives; one that comes back gets what it asks for."""
    monkeypatch.setattr(shard_lookups, "_IDLE_REQUESTS", 3)
    slow, fast = User(), User()
    for time in range(8):
        shard.append((time, (1, "a"), 1), until=time + 1)
    found(lookups, shard, [1], 1, slow)
    for time in range(2, 8):
        found(lookups, shard, [1], time, fast)
    [entry] = lookups._arranged.values()
    assert entry.arranged is not None
    assert entry.arranged.view.since == 7
    assert found(lookups, shard, [1], 2, slow) == Counter({(1, "a"): 3})


class Named(User):
    """A user with a name, as a view has."""

    @override
    def __str__(self) -> str:
        return "late"


def test_what_is_arranged_is_told(shard: Shard, lookups: ShardLookups) -> None:
    """Its size, and who uses it, as long as they live; nothing that was given up."""
    user = Named()
    shard.append((0, (1, "a"), 1), (0, (2, "b"), 1), until=1)
    assert lookups.arranged() == {}
    found(lookups, shard, [1], 0, user)
    (one,) = lookups.arranged().values()
    assert (one.updates, one.users) == (2, ("late",))
    assert one.size_bytes > 0
    del user
    gc.collect()
    assert [one.users for one in lookups.arranged().values()] == [()]
    lookups.forget(["other"])
    assert lookups.arranged()
    lookups.forget(["t"])
    assert lookups.arranged() == {}


def test_what_is_forgotten_is_made_anew(shard: Shard, lookups: ShardLookups) -> None:
    """Also if it was wrong: nothing of it is left."""
    user = User()
    shard.append((0, (1, "a"), 1), until=1)
    found(lookups, shard, [1], 0, user)
    ((_, wrong),) = lookups._arranged.items()
    assert wrong.arranged is not None
    wrong.arranged = Arrangement(wrong.arranged.schema, ("k",), 0)
    wrong.arranged.append(_NO_UPDATES, Frontier(1))
    assert found(lookups, shard, [1], 0, user) == Counter()
    lookups.forget(["t"])
    assert found(lookups, shard, [1], 0, user) == Counter({(1, "a"): 1})


_NO_UPDATES = pa.schema([*ROWS, ("_ts", pa.int64()), ("_diff", pa.int64())]).empty_table()


class Indexed:
    """Indexes of the shard that a test has made, as look-ups find them."""

    def __init__(self, shard: Shard, folder: Path) -> None:
        self.shard = shard
        self.registry = IndexRegistry()
        self.lookups = ShardLookups(folder, self.registry)

    def add(self, key: tuple[str, ...], since: int, upper: int, shard: str = "") -> Index:
        """An index with the model's history in `[since, upper)`."""
        schema = ShardSchema.from_arrow(ROWS)
        arranged = Arrangement(schema, key, since)
        rows = [change for change in self.shard.history if change[0] < upper]
        arranged.append(updates(rows), Frontier(upper))
        host: Any = None  # asked for cached frames only
        description = IndexDescription(name="mine", on="t", key=key)
        shard = shard or self.shard.client.state("t").shard
        index = Index(host, description, shard, arranged, IndexSettings())
        self.registry.add(self.shard.client.location.url, index)
        return index

    def answered_by(self) -> list[str]:
        """The index of each arrangement that there is."""
        return [one.index for one in self.lookups.arranged().values()]


@pytest.fixture
def indexed(shard: Shard, tmp_path: Path) -> Indexed:
    return Indexed(shard, tmp_path / "files")


def test_an_index_answers_at_the_times_that_it_has(shard: Shard, indexed: Indexed) -> None:
    """At others, and when it is dropped, there is an arrangement as if there were none."""
    draw = random.Random(3)
    for time in range(20):
        shard.change(draw, time)
    mine = indexed.add(("k",), since=8, upper=15)
    for time in range(20):
        keys = [draw.randrange(9) for _ in range(3)]
        assert found(indexed.lookups, shard, [*keys], time, User()) == expected(shard, keys, time)
        assert indexed.answered_by() == ["mine" if 8 <= time < 15 else ""], time
        indexed.lookups.forget([])
    assert found(indexed.lookups, shard, [1], 10, User()) == expected(shard, [1], 10)
    assert indexed.answered_by() == ["mine"]
    indexed.registry.remove(shard.client.location.url, mine)
    assert indexed.answered_by() == []
    assert found(indexed.lookups, shard, [1], 10, User()) == expected(shard, [1], 10)
    assert indexed.answered_by() == [""]


def test_an_index_by_the_same_columns_in_another_order_answers(
    shard: Shard, indexed: Indexed
) -> None:
    """One by fewer or more columns does not: it would find much, or nothing."""
    shard.append((0, (1, "a"), 1), (0, (2, "a"), 1), until=1)
    keys, state = pa.table({"k": [1], "v": ["a"]}), shard.client.state("t")

    def answered(*key: str) -> tuple[list[Any], list[str]]:
        rows = indexed.lookups.rows(shard.client, state, key, keys, as_of=0, user=User())
        assert rows is not None
        names = indexed.answered_by()
        indexed.lookups = ShardLookups(indexed.lookups._folder, indexed.registry)
        return rows.to_pylist(), names

    indexed.add(("v", "k"), since=0, upper=1)
    assert answered("k", "v") == ([{"k": 1, "v": "a"}], ["mine"])
    assert answered("v", "k") == ([{"k": 1, "v": "a"}], ["mine"])
    assert answered("k") == ([{"k": 1, "v": "a"}], [""])
    assert answered("v")[1] == [""]


def test_an_index_of_a_shard_that_was_there_before_answers_nothing(
    shard: Shard, indexed: Indexed
) -> None:
    """It has the same name, and other rows. Nor does one of earlier columns."""
    shard.append((0, (1, "a"), 1), until=1)
    indexed.add(("k",), since=0, upper=1, shard="another")
    assert found(indexed.lookups, shard, [1], 0, User()) == Counter({(1, "a"): 1})
    assert indexed.answered_by() == [""]
    indexed.add(("k",), since=0, upper=1)
    found(indexed.lookups, shard, [1], 0, User())
    assert indexed.answered_by() == ["mine"]
    shard.client.evolve("t", ShardSchema.from_arrow(ROWS.append(pa.field("w", pa.int32()))))
    assert found(indexed.lookups, shard, [1], 0, User()) == Counter({(1, "a", None): 1})
    assert indexed.answered_by() == [""]


def test_an_index_in_doubt_answers_no_look_up_any_more(shard: Shard, indexed: Indexed) -> None:
    """A self-check that differs gives up whatever may be wrong; a new index is as good as any."""
    shard.append((0, (1, "a"), 1), until=1)
    mine = indexed.add(("k",), since=0, upper=1)
    found(indexed.lookups, shard, [1], 0, User())
    indexed.lookups.forget(["t"])
    assert found(indexed.lookups, shard, [1], 0, User()) == Counter({(1, "a"): 1})
    assert indexed.answered_by() == [""]
    indexed.registry.remove(shard.client.location.url, mine)
    indexed.add(("k",), since=0, upper=1)
    found(indexed.lookups, shard, [1], 0, User())
    assert indexed.answered_by() == ["mine"]


def test_an_index_that_comes_later_takes_an_arrangements_place(
    shard: Shard, indexed: Indexed
) -> None:
    """The rows are there once, and who was answered before holds nothing back by it."""
    user, other, keys = User(), User(), pa.table({"k": [1], "v": ["a"]})
    for time in range(4):
        shard.append((time, (1, "a"), 1), until=time + 1)
    found(indexed.lookups, shard, [1], 1, user)
    [entry] = indexed.lookups._arranged.values()
    indexed.add(("k",), since=0, upper=4)
    assert found(indexed.lookups, shard, [1], 3, user) == Counter({(1, "a"): 4})
    assert entry.arranged is None
    for as_of in (2, 3):
        indexed.lookups.rows(
            shard.client, shard.client.state("t"), ("v",), keys, as_of=as_of, user=other
        )
    assert entry.arranged is not None
    assert entry.arranged.view.since == 3
    assert sorted(indexed.answered_by()) == ["", "mine"]


def test_too_many_rows_of_an_index_are_left_to_spark(
    shard: Shard, indexed: Indexed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is arranged for them: that would find as many."""
    shard.append(*((0, (1, "a"), 1) for _ in range(4)), (0, (1, "b"), 1), until=1)
    indexed.add(("k",), since=0, upper=1)
    monkeypatch.setattr(shard_lookups, "ROWS_MAX", 1)
    assert found(indexed.lookups, shard, [1], 0, User()) is None
    assert indexed.answered_by() == ["mine"]


def test_all_users_of_a_client_share_them(shard: Shard, tmp_path: Path) -> None:
    """And they go with the client."""
    assert lookups_of(shard.client, tmp_path) is lookups_of(shard.client, tmp_path / "other")

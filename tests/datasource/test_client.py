"""The front door: making, finding, evolving and dropping shards, and what each refusal says."""

from __future__ import annotations

import gc
import pickle
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import ref

import msgspec
import pyarrow as pa
import pytest

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Determinate, Fenced, InvalidUsage, ShardError
from shardline.datasource.frontier import Frontier
from shardline.datasource.read import WAIT_MS
from shardline.datasource.settings import ShardSettings
from shardline.datasource.shard.commands.append import Appended
from shardline.datasource.shard.commands.lifecycle import (
    Changed,
    Finalised,
    finalise_unchanged,
)
from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shared_client import shared_client
from support.models.shards import SETTINGS, World, rows, schema_of, table, updates

SHARD = "orders"
OTHER = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.int32())])
OK = table((1, "ok"))
NOT_NULL = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])


def test_making_a_shard_again_changes_nothing(world: World) -> None:
    """Creating is idempotent, in one process and in another."""
    first = world.client().create(SHARD, schema_of(), key=["id"], comment="orders")
    again = world.client().create(SHARD, schema_of(), key=["id"], comment="another")
    assert again == first
    assert world.client().shards() == [SHARD]


@pytest.mark.parametrize(
    ("arrow", "key", "error"),
    [
        (OTHER, ["id"], r"SCHEMA_MISMATCH.*column 'v' is string, not int.*evolve"),
        (OTHER.remove(1), ["id"], r"SCHEMA_MISMATCH.*column 'v' is string, not absent"),
        (NOT_NULL, ["id"], r"SCHEMA_MISMATCH.*column 'id' is (bigint|long), not .* not null"),
        (
            schema_of().arrow.append(pa.field("w", pa.int8())),
            ["id"],
            r"SCHEMA_MISMATCH.*column 'w' is absent",
        ),
        (pa.schema(list(schema_of().arrow)[::-1]), ["id"], r"SCHEMA_MISMATCH.*in this order"),
        (schema_of().arrow, ["v"], r"KEY_MISMATCH.*\(id\), not \(v\)"),
        (schema_of().arrow, [], r"KEY_MISMATCH"),
        (schema_of().arrow, ["nope"], r"UNKNOWN_COLUMN.*'nope'"),
        (schema_of().arrow, ["id", "id"], r"BAD_KEY.*'id'.*twice"),
    ],
)
def test_another_shape_is_refused_with_its_column(
    world: World, arrow: pa.Schema, key: list[str], error: str
) -> None:
    """A shard is what it was made as; the difference is named."""
    world.client().create(SHARD, schema_of(), key=["id"])
    with pytest.raises(InvalidUsage, match=error):
        world.client().create(SHARD, schema_of(arrow), key=key)


@pytest.mark.parametrize("name", ["", "..", "a/../b", "x\0y", "/", "\ud800", "n" * 300])
def test_names_that_cannot_be_kept_are_refused(client: ShardClient, name: str) -> None:
    """Before anything is written."""
    with pytest.raises(InvalidUsage, match="INVALID_NAME"):
        client.create(name, schema_of())


@pytest.mark.parametrize(
    "name", ["with space", "zürich/ö", "a.b", "_x", "100%", "日本", "~", "a:b"]
)
def test_names_of_all_kinds_are_kept(client: ShardClient, world: World, name: str) -> None:
    """A shard is found under the name it was given, through every part of the core."""
    client.create(name, schema_of())
    client.writer(name, name).append_now(table((1, "a")))
    with world.client().reader(name, purpose=name) as reader:
        assert rows(reader.snapshot()) == Counter({(1, "a"): 1})
    assert world.client().hold(name, name).since == Frontier(0)
    assert client.shards() == [name]


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", "\ud800", "\x85"])
def test_owners_have_names_that_can_be_stored(client: ShardClient, name: str) -> None:
    """Critical readers and durable writers are named by people, within reason."""
    client.create(SHARD, schema_of())
    with pytest.raises(InvalidUsage, match="INVALID_NAME"):
        client.hold(SHARD, name)
    with pytest.raises(InvalidUsage, match="INVALID_NAME"):
        client.writer(SHARD, name)


def test_no_machine_is_kept_for_a_name_without_a_shard(client: ShardClient) -> None:
    """Of misspelt names there is no end; those of shards that were seen are few."""
    client.create(SHARD, schema_of())
    kept = client.machine(SHARD)
    for act in (client.state, client.writer, client.reader, client.readable):
        wrong = client.machine("wrong")
        with pytest.raises(InvalidUsage, match="SHARD_NOT_FOUND"):
            act("wrong")
        assert client.machine("wrong") is not wrong
    with pytest.raises(InvalidUsage, match="SHARD_NOT_FOUND"):
        client.readable(SHARD, "wrong")
    assert client.machine(SHARD) is kept
    client.drop(SHARD)
    with pytest.raises(InvalidUsage, match="SHARD_DROPPED"):
        client.state(SHARD)
    assert client.machine(SHARD) is kept


def test_a_hold_below_the_since_is_refused(client: ShardClient) -> None:
    """History that is gone cannot be held; an existing hold stays where it is."""
    client.create(SHARD, schema_of())
    client.writer(SHARD).append_now(None)
    client.hold(SHARD, "one").downgrade(Frontier(50))
    with pytest.raises(InvalidUsage, match=r"HISTORY_GONE.*read at 50 or later"):
        client.hold(SHARD, "two", since=49)
    assert client.hold(SHARD, "two", since=60).since == Frontier(60)
    assert client.hold(SHARD, "two", since=70).since == Frontier(60)


def test_two_evolutions_at_once_end_in_one(world: World) -> None:
    """The one that comes second is told that the schema is not the one it looked at."""
    one, two = world.client(), world.client()
    one.create(SHARD, schema_of())
    state = two.state
    wider = [schema_of(schema_of().arrow.append(pa.field(n, pa.int32()))) for n in ("a", "b")]

    def late(name: str) -> object:
        found = state(name)
        one.evolve(SHARD, wider[0])
        return found

    two.state = late  # type: ignore[method-assign,assignment]
    with pytest.raises(Fenced, match="SCHEMA_CHANGED"):
        two.evolve(SHARD, wider[1])


def test_reading_columns_that_are_not_there(client: ShardClient) -> None:
    """The nearest column is the hint."""
    client.create(SHARD, schema_of())
    client.writer(SHARD).append_now(None)
    with client.reader(SHARD) as reader:
        with pytest.raises(InvalidUsage, match=r"UNKNOWN_COLUMN.*'V'.*did you mean 'v'"):
            reader.snapshot(columns=["V"])
        with pytest.raises(InvalidUsage, match="NO_COLUMNS"):
            reader.snapshot(columns=[])


def test_waiting_for_a_time_is_bounded_and_says_how_far_it_is(client: ShardClient) -> None:
    """A time that nobody reaches ends in an error with the upper in it."""
    client.create(SHARD, schema_of())
    client.writer(SHARD).compare_and_append(None, Frontier(0), Frontier(7))
    started = client.clock.elapsed_ms()
    with (
        client.reader(SHARD) as reader,
        pytest.raises(Determinate, match=r"NOT_YET_READABLE.*within 5000 ms.*upper is \[7\]"),
    ):
        reader.snapshot(7, timeout_ms=5000)
    assert client.clock.elapsed_ms() - started >= 5000


def test_a_time_of_a_shard_without_contents_says_that_it_has_none(client: ShardClient) -> None:
    """No time at all can be read, so none is named."""
    client.create(SHARD, schema_of())
    with (
        client.reader(SHARD) as reader,
        pytest.raises(Determinate, match=r"NOT_YET_READABLE.*nothing was ever appended; give"),
    ):
        reader.snapshot(client.clock.now_ms() + WAIT_MS + 1)


@pytest.mark.parametrize("upper", [7, 10**16])
def test_a_time_far_ahead_of_the_clock_is_waited_for_if_that_is_asked_for(
    client: ShardClient, upper: int
) -> None:
    """No wait of a minute for an error that is certain; times that are no clock's are not."""
    client.create(SHARD, schema_of())
    client.writer(SHARD).compare_and_append(None, Frontier(0), Frontier(upper))
    clock, own_times = client.clock, upper > 7
    with client.reader(SHARD) as reader:
        for ahead, asked, waits in (
            (WAIT_MS + 1, None, own_times),
            (WAIT_MS + 1, 5000, True),
            (WAIT_MS - 1, None, True),
        ):
            started, at = clock.elapsed_ms(), max(clock.now_ms(), upper) + ahead
            said = rf"NOT_YET_READABLE.*{'within' if waits else 'to come'}.*read at {upper - 1} or"
            with pytest.raises(Determinate, match=said):
                reader.snapshot(at, timeout_ms=asked)
            waited = clock.elapsed_ms() - started
            assert waited == 0 if not waits else waited >= (asked or WAIT_MS)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        (table((1, "a")).drop_columns("v"), "MISSING_COLUMN.*'v'"),
        (table((1, "a")).append_column("w", [[1]]), "EXTRA_COLUMN.*'w'"),
        (table((1, "a")).set_column(1, "v", [[1]]), "WRONG_TYPE.*'v'"),
        (table((None, "a")), "NULL_VALUE.*'id'"),
        (table((1, "a")).append_column("_ts", [["x"]]), "WRONG_TYPE.*'_ts'"),
        (table((1, "a")).append_column("_diff", pa.array([None], pa.int64())), "WRONG_TYPE.*_diff"),
    ],
)
def test_rows_that_do_not_fit_name_their_column(
    client: ShardClient, data: pa.Table, error: str
) -> None:
    """Nothing of a table is written when something of it does not fit."""
    client.create(SHARD, schema_of(NOT_NULL))
    with pytest.raises(InvalidUsage, match=error):
        client.writer(SHARD).append_now([data] if "_ts" in data.column_names else [OK, data])
    assert client.state(SHARD).upper == Frontier(0)
    assert list(client.location.blob.list(f"{SHARD}/part/")) == []


def test_a_location_that_is_not_there_is_not_made_by_reading(tmp_path: Path) -> None:
    """With `create=False` nothing is written."""
    with pytest.raises(InvalidUsage, match="LOCATION_NOT_FOUND"):
        ShardClient.open(f"file://{tmp_path}/nope", create=False)
    assert list(tmp_path.iterdir()) == []


def test_dropping_twice_and_dropping_nothing(client: ShardClient) -> None:
    """A dropped shard may be dropped again; one that never was cannot be."""
    with pytest.raises(InvalidUsage, match="SHARD_NOT_FOUND"):
        client.drop(SHARD)
    client.create(SHARD, schema_of())
    client.drop(SHARD)
    client.drop(SHARD)
    for act in (client.state, client.writer, client.reader):
        with pytest.raises(InvalidUsage, match=r"SHARD_DROPPED.*make it again"):
            act(SHARD)
    with pytest.raises(InvalidUsage, match="SHARD_DROPPED"):
        client.hold(SHARD, "h")
    with pytest.raises(InvalidUsage, match="SHARD_DROPPED"):
        client.evolve(SHARD, schema_of())


def test_a_drop_of_what_was_seen_is_refused_behind_any_change(client: ShardClient) -> None:
    """Also behind one of the same record, which is applied to a state of the number before it."""
    client.create("s", schema_of())
    seen = client.state("s")
    end = partial(finalise_unchanged, shard=seen.shard, despite_holders=frozenset(), seen=seen)
    changed = msgspec.structs.replace(seen, retain_ms=1)
    assert end(changed, 0) == Transition(None, Changed())
    assert end(seen, 0).result == Finalised()
    client.set_retention("s", 1)
    with pytest.raises(Determinate, match="SHARD_CHANGED"):
        client.drop("s", seen=seen)
    client.drop("s", seen=client.state("s"))
    assert not client.exists("s")


def test_a_dropped_shard_leaves_its_tombstone_and_no_blob(world: World) -> None:
    """The blobs go at once, the log after its grace; the name may be used again."""
    client = world.client(ShardSettings(validate=True, inline_part_bytes=0, rollup_every=2))
    client.create(SHARD, schema_of())
    for _ in range(5):
        client.writer(SHARD).append_now(table((1, "a")))
    client.drop(SHARD)
    assert list(client.location.blob.list(f"{SHARD}/")) == []
    world.clock.advance(10**9)
    client.drop(SHARD)
    fresh = world.client()
    assert not fresh.exists(SHARD)
    fresh.create(SHARD, schema_of(OTHER))
    assert isinstance(fresh.writer(SHARD).append_now(None), Appended)
    assert client.state(SHARD).schemas == fresh.state(SHARD).schemas


@pytest.mark.parametrize(("upper", "first"), [(0, 0), (7, 7), (None, 0)])
def test_a_shard_may_begin_where_a_dropped_one_of_its_name_has_ended(
    client: ShardClient, upper: int | None, first: int
) -> None:
    """Whoever has followed that one up to there is refused: the rows are other ones.

    One that was finished has nobody who goes on; one that is there already stays as it is.
    """
    client.create(SHARD, schema_of(), first_time="former-upper")
    assert client.state(SHARD).since == Frontier(0), "the name is new"
    if upper != 0:
        client.writer(SHARD).compare_and_append(None, Frontier(0), Frontier(upper))
    client.drop(SHARD)
    client.drop(SHARD)
    state = client.create(SHARD, schema_of(), first_time="former-upper")
    assert (state.since, state.upper) == (Frontier(first), Frontier(0))
    assert client.create(SHARD, schema_of(), first_time="former-upper") == state
    # Once more, before it has any time of its own: who has followed the first one is still away.
    client.drop(SHARD)
    again = client.create(SHARD, schema_of(), first_time="former-upper")
    assert (again.since, again.upper) == (Frontier(first), Frontier(0))
    if first:
        with pytest.raises(InvalidUsage, match="HISTORY_GONE"):
            client.reader(SHARD, since=first - 1)
    with closing(client.reader(SHARD, since=first)) as reader:
        client.writer(SHARD).compare_and_append(None, Frontier(0), Frontier(first + 2))
        assert reader.snapshot(first + 1).num_rows == 0
    client.drop(SHARD)
    assert client.create(SHARD, schema_of()).since == Frontier(0), "other shards begin anew"


def test_a_process_has_one_client_for_one_place(tmp_path: Path) -> None:
    """Equal settings and options share caches; other settings do not."""

    def at(settings: ShardSettings) -> ShardClient:
        return shared_client(f"file://{tmp_path}", {}, create=True, settings=settings)

    assert at(SETTINGS) is at(ShardSettings(validate=True))
    assert at(SETTINGS) is not at(ShardSettings())
    assert at(SETTINGS).machine(SHARD) is at(SETTINGS).machine(SHARD)


def test_a_client_that_is_open_does_not_wait_for_another_location(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that does not answer is waited for by who asks for it."""
    asked, answered = threading.Event(), threading.Event()
    open_client = ShardClient.open

    def slow(url: str, *args: Any, **given: Any) -> ShardClient:
        if url.endswith("slow"):
            asked.set()
            assert answered.wait(60)
        return open_client(url, *args, **given)

    monkeypatch.setattr(ShardClient, "open", slow)
    at = partial(shared_client, options={}, create=True, settings=SETTINGS)
    known = at(str(tmp_path / "a"))
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(at, str(tmp_path / "slow"))
        assert asked.wait(60)
        assert at(str(tmp_path / "a")) is known
        assert not other.done()
        answered.set()
        assert at(str(tmp_path / "slow")) is other.result()


def test_a_process_keeps_few_clients(tmp_path: Path) -> None:
    """Each token of a store's credentials is another option."""

    def at(number: int) -> ShardClient:
        settings = replace(SETTINGS, lease_ms=60_000 + number)
        return shared_client(str(tmp_path), {}, create=True, settings=settings)

    weak = [ref(at(number)) for number in range(200)]
    gc.collect()
    assert sum(one() is not None for one in weak) == 64
    assert weak[-1]() is not None


def test_errors_survive_the_way_from_an_executor(client: ShardClient) -> None:
    """Class, code, hint and text are the same after pickling."""
    with pytest.raises(ShardError) as caught:
        client.state("nope")
    copied = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - our own bytes
    assert type(copied) is InvalidUsage
    assert (str(copied), copied.code, copied.hint) == (
        str(caught.value),
        "SHARD_NOT_FOUND",
        caught.value.hint,
    )


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"leaseMs": "1"}, "UNKNOWN_SETTING.*'leaseMs'.*lease_ms"),
        ({"lease_ms": "soon"}, "INVALID_SETTING.*'soon'.*whole number"),
        ({"lease_ms": "-1"}, "INVALID_SETTING"),
        ({"lease_ms": str(10**30)}, "INVALID_SETTING.*at most"),
        ({"rollup_every": "0"}, "INVALID_SETTING.*at least 1"),
        ({"validate": "1"}, "INVALID_SETTING.*true or false"),
    ],
)
def test_settings_are_checked(values: dict[str, str], error: str) -> None:
    """An unknown setting or a value that cannot work is refused with what would."""
    with pytest.raises(InvalidUsage, match=error):
        ShardSettings.parse(values)
    parsed = ShardSettings.parse({"lease_ms": "1_000", "validate": "True", "stats_bytes": "0"})
    assert (parsed.lease_ms, parsed.validate, parsed.stats_bytes) == (1000, True, 0)


def test_diffs_of_nothing_are_nothing(client: ShardClient) -> None:
    """A diff of zero is legal, and shows nowhere but in what was appended."""
    client.create(SHARD, schema_of())
    client.writer(SHARD).append_now(updates((1, "a", 5, 0), (2, "b", 5, 2)))
    with client.reader(SHARD) as reader:
        assert rows(reader.snapshot()) == Counter({(2, "b"): 2})


def test_a_shard_is_not_made_of_a_location(tmp_path: Path) -> None:
    """Who forgets the last part of a path would mix its files with those of all shards there."""
    inner = ShardClient.open(tmp_path / "lake")
    inner.create(SHARD, schema_of())
    inner.writer(SHARD).append_now(OK)
    there = sorted(path.name for path in (tmp_path / "lake").iterdir())
    outer = ShardClient.open(tmp_path)
    with pytest.raises(InvalidUsage, match=r"IS_LOCATION.*lake' is a location.*LOCATION/SHARD"):
        outer.create("lake", schema_of())
    assert not outer.exists("lake")
    assert sorted(path.name for path in (tmp_path / "lake").iterdir()) == there
    outer.create("lake2", schema_of())
    assert outer.create("lake2", schema_of()).name == "lake2"

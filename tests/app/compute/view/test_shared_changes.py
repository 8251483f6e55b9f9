"""Changes that several views read are read once, and are each view's own if another one fails."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from shardline.app.compute.view import shared_changes
from shardline.app.compute.view.shared_changes import SharedChanges, changes_of, read_changes
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frames import updates_in_driver
from shardline.datasource.frontier import Frontier
from shardline.datasource.spark_native.leases import LEASE_KEEPER
from shardline.datasource.state import ShardState
from shardline.datasource.updates import update_schema
from support.models.shards import World, schema_of, updates
from support.waiting import wait_until

Read = Callable[..., pa.Table | None]


@pytest.fixture
def client() -> ShardClient:
    """Of a shard with a row at each time from 0 to 9, appended in pairs."""
    found = World().client()
    found.create("s", schema_of())
    handle = found.writer("s")
    for at in range(0, 10, 2):
        rows = updates((at, "row", at, 1), (at + 1, "row", at + 1, 1))
        handle.compare_and_append(rows, Frontier(at), Frontier(at + 2))
    return found


def state_of(client: ShardClient) -> ShardState:
    [state] = client.readable("s")
    return state


def counted(monkeypatch: pytest.MonkeyPatch, read: Read = updates_in_driver) -> list[int]:
    """The starts of all reads from now on."""
    starts: list[int] = []

    def noted(*given: Any, start: int, **named: Any) -> pa.Table | None:
        starts.append(start)
        return read(*given, start=start, **named)

    monkeypatch.setattr(shared_changes, "updates_in_driver", noted)
    return starts


def test_an_interval_is_read_once(client: ShardClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """By all users of a client; another interval is other rows."""
    starts, state = counted(monkeypatch), state_of(client)
    found = changes_of(client).updates(client, state, 2, 6)
    assert found is not None
    assert sorted(found.column("_ts").to_pylist()) == [2, 3, 4, 5]
    assert changes_of(client).updates(client, state, 2, 6) is found
    other = changes_of(client).updates(client, state, 3, 6)
    assert other is not None
    assert sorted(other.column("_ts").to_pylist()) == [3, 4, 5]
    assert starts == [2, 3]


def test_what_was_read_stays_right_when_history_is_given_up(client: ShardClient) -> None:
    """Updates of a settled interval never change: those that are kept have their own times."""
    changes = SharedChanges()
    before = changes.updates(client, state_of(client), 2, 6)
    client.set_retention("s", None)
    LEASE_KEEPER.beat()
    hold = client.hold("s", "test")
    hold.downgrade(Frontier(9))
    hold.expire()
    with pytest.raises(InvalidUsage, match="HISTORY_GONE"):
        SharedChanges().updates(client, state_of(client), 2, 6)
    assert changes.updates(client, state_of(client), 2, 6) is before


def test_many_changes_are_nobodys_to_keep(
    client: ShardClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_changes, "ROWS_MAX", 3)
    changes, state = SharedChanges(), state_of(client)
    assert changes.updates(client, state, 2, 6) is None
    assert changes.updates(client, state, 2, 4) is not None


@pytest.mark.parametrize("bound", ["_BYTES_MAX", "_KEPT_MAX"])
def test_what_was_not_asked_for_the_longest_is_forgotten(
    client: ShardClient, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    state = state_of(client)
    one = SharedChanges().updates(client, state, 0, 2)
    assert one is not None
    monkeypatch.setattr(shared_changes, bound, 2 * one.nbytes if bound == "_BYTES_MAX" else 2)
    starts, changes = counted(monkeypatch), SharedChanges()
    for lower in (0, 2, 0, 4, 6):
        changes.updates(client, state, lower, lower + 2)
    changes.updates(client, state, 6, 8)
    changes.updates(client, state, 2, 4)
    assert starts == [0, 2, 4, 6, 2]


def test_who_comes_meanwhile_waits_and_reads_for_itself_if_that_failed(
    client: ShardClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one may have been stopped, or have met what passes."""
    inside, go_on = threading.Event(), threading.Event()
    state = state_of(client)

    def read(*given: Any, **named: Any) -> pa.Table | None:
        if not inside.is_set():
            inside.set()
            go_on.wait(30)
            raise OSError("of the moment")
        return updates_in_driver(*given, **named)

    starts = counted(monkeypatch, read)
    changes = SharedChanges()
    errors: list[BaseException] = []
    found: list[pa.Table | None] = []

    def fail() -> None:
        try:
            changes.updates(client, state, 2, 6)
        except OSError as error:
            errors.append(error)

    first = threading.Thread(target=fail)
    second = threading.Thread(target=lambda: found.append(changes.updates(client, state, 2, 6)))
    first.start()
    assert inside.wait(30)
    second.start()
    [read_for_all] = changes._reads.values()
    # Concurrent futures tell nobody who waits; their condition has a list of waiters.
    wait_until("the second waits", lambda: bool(read_for_all._condition._waiters), 30)  # type: ignore[attr-defined]
    go_on.set()
    first.join(30)
    second.join(30)
    assert [str(error) for error in errors] == ["of the moment"]
    assert found[0] is not None
    assert found[0].num_rows == 4
    assert starts == [2, 2]
    # What failed is not kept.
    assert changes.updates(client, state, 2, 6) is not None
    assert starts == [2, 2, 2]


def test_the_last_read_is_kept_however_large(
    client: ShardClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Views that are behind have most to share."""
    monkeypatch.setattr(shared_changes, "_BYTES_MAX", 1)
    starts, changes, state = counted(monkeypatch), SharedChanges(), state_of(client)
    for lower in (0, 0, 2, 2, 0):
        changes.updates(client, state, lower, lower + 2)
    assert starts == [0, 2, 0]


def test_rows_of_a_shard_that_was_made_anew_are_nobody_elses(
    client: ShardClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard is read by its name: what was read last may be another one's."""

    def read(*given: Any, **named: Any) -> pa.Table | None:
        found = updates_in_driver(*given, **named)
        if len(starts) == 1:
            client.drop("s", despite_holders=[*client.state("s").leased])
            client.create("s", schema_of())
            client.writer("s").compare_and_append(None, Frontier(0), Frontier(10))
        return found

    state = state_of(client)
    starts, changes = counted(monkeypatch, read), SharedChanges()
    changes.updates(client, state, 2, 6)
    assert len(changes._reads) == 0
    changes.updates(client, state, 2, 6)
    assert starts == [2, 2]


def test_nobody_waits_for_ever_for_a_reader_that_is_stuck(
    client: ShardClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, go_on, state = threading.Event(), threading.Event(), state_of(client)

    def read(*given: Any, **named: Any) -> pa.Table | None:
        if not inside.is_set():
            inside.set()
            go_on.wait(30)
        return updates_in_driver(*given, **named)

    monkeypatch.setattr(shared_changes, "_PATIENCE_S", 0.01)
    starts, changes = counted(monkeypatch, read), SharedChanges()
    stuck = threading.Thread(target=lambda: changes.updates(client, state, 2, 6))
    stuck.start()
    assert inside.wait(30)
    found = changes.updates(client, state, 2, 6)
    go_on.set()
    stuck.join(30)
    assert found is not None
    assert starts == [2, 2]


@pytest.fixture
def wide() -> ShardClient:
    """Of a shard with three columns, of which one is never NULL."""
    found = World().client()
    number, text = pa.int64(), pa.string()
    columns = pa.schema([pa.field("a", number, nullable=False), ("b", text), ("c", text)])
    found.create("s", schema_of(columns))
    rows = {"a": [1, 2], "b": ["x", "y"], "c": ["v", "w"], "_ts": [0, 1], "_diff": [1, 1]}
    found.writer("s").compare_and_append(
        pa.table(rows, schema=update_schema(columns)), Frontier(0), Frontier(9)
    )
    return found


def shown(rows: pa.Table | None) -> list[tuple[Any, ...]]:
    assert rows is not None
    assert rows.column_names == ["a", "b", "c", "_ts", "_diff"]
    return [tuple(row.values())[:3] for row in rows.to_pylist()]


def test_only_columns_that_were_asked_for_are_read(
    wide: ShardClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By anybody so far, and those that cannot be NULL; who asks for more gets another read."""
    starts, changes, state = counted(monkeypatch), SharedChanges(), state_of(wide)
    for columns, right in (
        ((), [(1, None, None), (2, None, None)]),
        (("b",), [(1, "x", None), (2, "y", None)]),
        (("a", "b"), [(1, "x", None), (2, "y", None)]),
        (("c",), [(1, "x", "v"), (2, "y", "w")]),
        (None, [(1, "x", "v"), (2, "y", "w")]),
        (("b",), [(1, "x", "v"), (2, "y", "w")]),
    ):
        asked = None if columns is None else frozenset(columns)
        assert shown(changes.updates(wide, state, 0, 2, asked)) == right, columns
    assert starts == [0] * 5
    assert shown(changes.updates(wide, state, 0, 9, frozenset())) == [(1, "x", "v"), (2, "y", "w")]
    assert shown(read_changes(wide, state, 0, 9, frozenset("c")))[0] == (1, None, "v")


def test_what_was_forgotten_of_a_shard_is_learned_again(
    wide: ShardClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_changes, "_SHARDS_MAX", 1)
    wide.create("other", schema_of())
    wide.writer("other").compare_and_append(updates((1, "row", 1, 1)), Frontier(0), Frontier(9))
    [other], changes, state = wide.readable("other"), SharedChanges(), state_of(wide)
    changes.updates(wide, state, 0, 2, frozenset("b"))
    changes.updates(wide, other, 0, 2, frozenset("v"))
    assert len(changes._asked) == 1
    assert shown(changes.updates(wide, state, 0, 2, frozenset("c")))[0] == (1, None, "v")


def test_a_read_that_fails_takes_no_other_one_away(
    wide: ShardClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One with more columns may be in its place by then."""
    inside, go_on, state = threading.Event(), threading.Event(), state_of(wide)
    changes, failed = SharedChanges(), list[bool]()

    def read(*given: Any, **named: Any) -> pa.Table | None:
        if not inside.is_set():
            inside.set()
            go_on.wait(30)
            raise OSError("gone")
        return updates_in_driver(*given, **named)

    def first() -> None:
        with pytest.raises(OSError, match="gone"):
            changes.updates(wide, state, 0, 2, frozenset("b"))
        failed.append(True)

    starts = counted(monkeypatch, read)
    failing = threading.Thread(target=first)
    failing.start()
    assert inside.wait(30)
    found = changes.updates(wide, state, 0, 2, frozenset("c"))
    go_on.set()
    failing.join(30)
    assert failed
    assert changes.updates(wide, state, 0, 2, frozenset("b")) is found
    assert starts == [0, 0]

"""Arguments of a kind that a function does not take: named, and nothing is done."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from shardline.datasource.arguments import (
    append_number,
    names_of,
    option_text,
    place_options,
    time_text,
    whole_number,
    writer_number,
)
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage, LeaseExpired
from shardline.datasource.frontier import EMPTY, MINIMUM, TIME_MAX, Frontier
from shardline.datasource.settings import LONGEST_MS, ShardSettings
from shardline.datasource.shard.commands.append import Appended, committed_before
from shardline.datasource.stores.options import S3Options, parse_options
from shardline.datasource.transactions.commit_loop import Identity
from support.models.shards import SETTINGS, World, rows, schema_of, table

FAR = Frontier(2e15)  # type: ignore[arg-type]


def snapshot(client: ShardClient, as_of: Any) -> object:
    with client.reader("orders") as reader:
        return reader.snapshot(as_of)


def append_at(client: ShardClient, lower: Any, upper: Any) -> object:
    return client.writer("orders").compare_and_append(table((1, "a")), lower, upper)


def listen(client: ShardClient, as_of: Any, *, until: Any) -> object:
    with client.reader("orders") as reader:
        return list(reader.listen(as_of, until=until, timeout_ms=0))


def give_up(client: ShardClient, *, number: int) -> bool:
    """Give up an attempt at a first append of writer `w`."""
    handle = client.writer("orders", "w")
    staged = handle.stager().stage([table((1, "a"))])
    return handle.abandon(staged, sequence=number, attempt="t1")


def test_a_path_of_pathlib_opens_a_location(tmp_path: Path) -> None:
    """A location and a shard are found by a path as by its text."""
    made = ShardClient.open(tmp_path)
    assert made.location.id == ShardClient.open(str(tmp_path)).location.id
    assert place_options(tmp_path / "orders", None, None) == {"path": f"{tmp_path}/orders"}
    assert place_options(None, tmp_path, "orders") == {"location": str(tmp_path), "shard": "orders"}


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda _: ShardClient.open(None), "'url' cannot be None"),  # type: ignore[arg-type]
        (lambda _: ShardClient.open(b"/x"), "'url' cannot be b'/x'"),  # type: ignore[arg-type]
        (lambda _: ShardClient.open(Path("s3://lake/x")), "has lost its '//'"),
        (lambda c: c.create("new", schema_of(), key="id"), r"key=['id']"),
        (lambda c: c.create("new", schema_of().arrow), "ShardSchema.from_arrow"),
        (lambda c: snapshot(c, "2026-01-01"), "'as_of' cannot be '2026-01-01'"),
        (lambda c: snapshot(c, float("nan")), "'as_of' cannot be nan"),
        (lambda c: c.create("new", schema_of(), key=[1]), "'key' cannot be [1]"),
        (lambda c: c.create("new", schema_of(), retain_ms="1h"), "'retain_ms' cannot be '1h'"),
        (lambda c: c.state(None), "None cannot name a shard"),
        (lambda c: c.writer("orders", 7), "7 cannot name a writer"),
        (lambda c: c.hold("orders", None), "None cannot name"),
        (lambda c: c.reader("orders", since="2026"), "'since' cannot be '2026'"),
        (lambda c: c.hold("orders", "me", since=1.5), "'since' cannot be 1.5"),
        (lambda c: c.writer("orders").append_now([{"id": 1}]), "pyarrow Table"),
        (lambda c: c.writer("orders").append_now([table((1, "a")), None]), "cannot be None"),
        (lambda c: c.writer("orders").append_now(7), "'updates' cannot be 7"),
        (lambda c: c.evolve("orders", schema_of().arrow), "give ShardSchema.from_arrow"),
        (lambda _: ShardClient.open("x", {"s3.endpoint": None}), "'options['s3.endpoint']'"),  # type: ignore[dict-item]
        (lambda _: ShardClient.open("x", {7: "secret"}), "'options' cannot be 7"),  # type: ignore[dict-item]
        (lambda _: ShardClient.open("x", "s3.endpoint"), "'options' cannot be 'str'"),  # type: ignore[arg-type]
        (lambda c: append_at(c, 0, 10), "'lower' cannot be 0"),
        (lambda c: append_at(c, None, None), "'lower' cannot be None"),
        (lambda c: append_at(c, MINIMUM, None), "'upper' cannot be None"),
        (lambda c: append_at(c, MINIMUM, 10), "'upper' cannot be 10"),
        (lambda c: append_at(c, Frontier("0"), EMPTY), "'lower' cannot be '0'"),  # type: ignore[arg-type]
        (lambda c: c.writer("orders").append(None, 1, 10), "'lower' cannot be 1"),
        (lambda c: c.hold("orders", "me", since=0).downgrade(5), "'since' cannot be 5"),
        (lambda c: listen(c, 0, until=10), "'until' cannot be 10"),
        (lambda c: listen(c, None, until=EMPTY), "'as_of' cannot be None"),
    ],
)
def test_a_wrong_kind_is_refused_by_its_name(world: World, call: Any, told: str) -> None:
    """Nothing is made and nothing is appended."""
    client = world.client()
    client.create("orders", schema_of(), key=["id"])
    with pytest.raises(InvalidUsage, match=re.escape(told)):
        call(client)
    assert client.shards() == ["orders"]
    assert client.state("orders").upper.time == 0


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda t: t.append("orders", [{"id": 1}]), "pyarrow Table"),
        (lambda t: t.append("orders", None), "'updates' cannot be None"),
        (lambda t: t.overwrite("orders", 7), "'updates' cannot be 7"),
        (lambda t: t.upsert("orders", [{"id": 1}]), "'data' cannot be [{'id': 1}]"),
        (lambda t: t.delete("orders", [1]), "'keys' cannot be [1]"),
    ],
)
def test_a_transaction_takes_rows_of_arrow(world: World, call: Any, told: str) -> None:
    """Anything else ends it, with the argument's name; the shard stays as it is."""
    client = world.client()
    client.create("orders", schema_of(), key=["id"])
    client.create("others", schema_of())
    client.writer("orders").append_now(table((1, "a")))

    def run() -> None:
        with client.transaction() as t:
            t.append("others", table((2, "b")))
            call(t)

    with pytest.raises(InvalidUsage, match=re.escape(told)):
        run()
    assert client.state("others").upper.time == 0
    with client.reader("orders") as reader:
        assert rows(reader.snapshot()) == {(1, "a"): 1}
    with pytest.raises(InvalidUsage, match="'isolation' cannot be None"):
        client.transaction(isolation=None)  # type: ignore[arg-type]


def test_options_of_a_store_may_be_flags_and_numbers(tmp_path: Path) -> None:
    """As `df.write.option` takes them: `True` is `true`."""
    options: Any = {"s3.path-style": True, "s3.pool-size": 8}
    assert parse_options(options).s3 == S3Options(path_style=True, pool_size=8)
    assert ShardClient.open(tmp_path, options).shards() == []


def test_a_closed_reader_says_that_it_was_closed(world: World) -> None:
    """And not that its heartbeat has failed, which would send its user after a pause."""
    client = world.client()
    client.create("orders", schema_of(), key=["id"])
    client.writer("orders").append_now(table((1, "a")))
    with client.reader("orders") as reader:
        pass
    for read in (reader.snapshot, reader.look, lambda: list(reader.listen(0, timeout_ms=0))):
        with pytest.raises(LeaseExpired, match=r"\[READER_CLOSED\].*'orders'.*'with' block"):
            read()


def test_an_iterable_of_tables_is_appended(world: World) -> None:
    """What is checked one by one is still taken one by one."""
    client = world.client()
    client.create("orders", schema_of(), key=["id"])
    client.writer("orders").append_now(one for one in (table((1, "a")), table((2, "b"))))
    with client.reader("orders") as reader:
        assert rows(reader.snapshot()) == {(1, "a"): 1, (2, "b"): 1}


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.set_retention("orders", 7 * 86_400e3),
        lambda c: c.set_retention("orders", True),
        lambda c: c.hold("orders", "me", since=0.0),
        lambda c: c.hold("orders", "me", purpose=5),
        lambda c: c.reader("orders", since=0.0),
        lambda c: c.reader("orders", lease_ms=6e4),
        lambda c: c.reader("orders", purpose=5),
        lambda c: c.note_times_by("orders", 5),
        lambda c: c.create("orders", schema_of(), key=["id"], times_by=5),
        lambda c: c.create("new", schema_of(), comment=5),
        lambda c: c.writer("orders", "w").append_now(table((2, "b")), sequence=1.0),
        lambda c: c.writer("orders", "w").append_now(table((2, "b")), sequence=True),
        lambda c: c.writer("orders").compare_and_append(None, c.state("orders").upper, FAR),
        lambda c: c.transaction(writer="w", sequence=2.0),
        lambda c: c.transactions().advance(2e15),
        lambda c: c.transactions().commit([], identity=Identity("w", 1.0)),  # type: ignore[arg-type]
    ],
    ids=count(),
)
def test_nothing_is_written_that_cannot_be_read(world: World, call: Any) -> None:
    """JSON has no whole numbers: a log with `5.0` in it was acknowledged, and not readable."""
    client = world.client()
    client.create("orders", schema_of(), key=["id"])
    client.writer("orders").append_now(table((1, "a")))
    client.create("others", schema_of())
    client.transactions().register("others")
    before = client.state("orders")
    with pytest.raises(InvalidUsage, match=r"int|whole|text|str"):
        call(client)
    assert world.client().state("orders") == client.state("orders") == before
    for one in (world.client(), client):
        assert one.exists("new") is False
        one.transactions().advance()
        assert one.transactions().registered() == ["others"]
        with one.reader("orders") as reader:
            assert rows(reader.snapshot()) == {(1, "a"): 1}
    client.writer("orders").append_now(table((2, "b")))


def test_a_refused_number_is_not_counted_from(world: World) -> None:
    """The handle goes on, and what it had staged is deleted."""
    client = world.client(replace(SETTINGS, inline_part_bytes=0))
    client.create("orders", schema_of(), key=["id"])
    writer = client.writer("orders", "w")
    with pytest.raises(InvalidUsage, match=r"'sequence' cannot be 7\.0"):
        writer.append_now(table((1, "a")), sequence=7.0)  # type: ignore[arg-type]
    assert not [one for one in client.location.entries("orders") if "/part/" in one.key]
    writer.append_now(table((1, "a")))
    writer.append_now(table((2, "b")), sequence=np.int64(5))  # type: ignore[arg-type]
    assert world.client().state("orders").writers["w"].last == 5


@pytest.mark.parametrize(
    "call",
    [
        lambda c: c.writer("orders", "w").append_now(table((1, "a")), sequence=-1),
        lambda c: c.writer("orders", "w").compare_and_append(
            None, MINIMUM, Frontier(5), sequence=-1
        ),
        lambda c: give_up(c, number=-1),
        lambda c: c.transaction(writer="w", sequence=-1),
        lambda c: c.transactions().commit([], identity=Identity("w", -1)),
    ],
    ids=count(),
)
def test_a_number_below_0_is_refused(world: World, call: Any) -> None:
    """A writer that has committed nothing is at -1: rows under it were taken for committed."""
    client = world.client(replace(SETTINGS, inline_part_bytes=0))
    for name in ("orders", "others"):
        client.create(name, schema_of(), key=["id"])
    client.transactions().register("others")
    with pytest.raises(InvalidUsage, match=r"'sequence' cannot be -1"):
        call(client)
    assert "w" not in client.state("orders").writers


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda c: c.reader("orders", lease_ms=-1), "'lease_ms' cannot be -1"),
        (lambda c: c.reader("orders", lease_ms=0), "'lease_ms' cannot be 0"),
        (lambda c: c.reader("orders", lease_ms=10**30), f"at most {LONGEST_MS}"),
        (lambda c: c.reader("orders", since=-1), "'since' cannot be -1"),
        (lambda c: c.reader("orders", since=TIME_MAX + 1), f"at most {TIME_MAX}"),
        (lambda c: c.hold("orders", "new", since=-1), "'since' cannot be -1"),
        (lambda c: c.hold("orders", "new", since=10**30), f"at most {TIME_MAX}"),
        (lambda c: c.hold("orders", "me").downgrade(Frontier(TIME_MAX + 1)), f"at most {TIME_MAX}"),
        (lambda c: c.hold("orders", "me").downgrade(EMPTY), "'since' cannot be None"),
    ],
    ids=count(),
)
def test_no_hold_is_taken_that_nothing_can_reach(world: World, call: Any, told: str) -> None:
    """Nor a lease that nobody can renew: a since goes nowhere back, and nothing could be read."""
    client = world.client()
    client.create("orders", schema_of(), key=["id"])
    client.writer("orders").append_now(table((1, "a")))
    held = client.hold("orders", "me", since=0)
    with pytest.raises(InvalidUsage, match=re.escape(told)):
        call(client)
    state = client.state("orders")
    assert (state.since, set(state.critical), state.leased) == (MINIMUM, {"me"}, {})
    assert held.since == MINIMUM


def test_the_last_time_and_the_longest_lease_are_taken(world: World) -> None:
    """The bounds themselves: a thread waits for half of that lease."""
    client = world.client()
    client.create("orders", schema_of(), key=["id"])
    with client.reader("orders", since=TIME_MAX, lease_ms=LONGEST_MS) as reader:
        assert (reader.lease.since, reader.lease.lease_ms) == (Frontier(TIME_MAX), LONGEST_MS)
    assert LONGEST_MS / 1000 < threading.TIMEOUT_MAX
    held = client.hold("orders", "me")
    assert held.downgrade(Frontier(TIME_MAX)) == Frontier(TIME_MAX)


def test_an_attempt_that_was_given_up_is_no_commit(world: World) -> None:
    """The entry that remembers it says of no number that it was committed."""
    client = world.client(replace(SETTINGS, inline_part_bytes=0))
    client.create("orders", schema_of(), key=["id"])
    assert give_up(client, number=0)
    entry = client.state("orders").writers["w"]
    for number in (entry.last, 0):
        assert committed_before(entry, sequence=number, covers="") is None
    assert isinstance(
        client.writer("orders", "w").append_now(table((1, "a")), sequence=0), Appended
    )


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda: writer_number("txn", "x"), "'txn' cannot be 'x'"),
        (lambda: writer_number("txn", ("x", 1.0)), "cannot be ('x', 1.0)"),
        (lambda: writer_number("txn", ("x", True)), "cannot be ('x', True)"),
        (lambda: writer_number("txn", ("x", 1, 2)), "txn=("),
        (lambda: writer_number("txn", ("x", -1)), "'txn' cannot be -1"),
        (lambda: append_number("sequence", np.int64(-1)), "at least 0"),
        (lambda: whole_number("at", 8, least=0, most=7), "at most 7"),
        (lambda: names_of("columns", "id"), "columns=['id']"),
        (lambda: names_of("columns", {"id"}), "a list of names"),
        (lambda: whole_number("at", True), "'at' cannot be True"),
        (lambda: time_text("as_of", 1.5), "'as_of' cannot be 1.5"),
        (lambda: time_text("as_of", False), "'as_of' cannot be False"),
        (lambda: place_options(5, None, None), "'path' cannot be 5"),
        (lambda: names_of("columns", [7] * 500), "[7, 7, 7, 7"),
    ],
)
def test_each_kind_says_what_it_takes(call: Any, told: str) -> None:
    """The argument, what it was, and what it may be, in a few words."""
    with pytest.raises(InvalidUsage, match=re.escape(told)) as refused:
        call()
    assert refused.value.code == "INVALID_ARGUMENT"
    assert len(str(refused.value)) < 200


def test_what_is_right_is_taken() -> None:
    """Texts of options, and pairs, lists and times as they are."""
    assert writer_number("txn", ("in", 3)) == ("in", 3)
    assert names_of("key", ["a", "b"]) == ("a", "b")
    assert names_of("key", ()) == ()
    assert [option_text(one) for one in (True, False, 3, "x")] == ["true", "false", "3", "x"]
    moment = datetime(2026, 11, 28, 12, tzinfo=UTC)
    assert time_text("as_of", moment) == "2026-11-28T12:00:00+00:00"
    assert time_text("as_of", "2026-11-28") == "2026-11-28"
    assert time_text("as_of", 17) == time_text("as_of", np.int64(17)) == "17"
    assert type(whole_number("at", np.int64(17))) is int
    assert writer_number("txn", ("in", np.int32(3))) == ("in", 3)
    assert writer_number("txn", ("in", 0)) == ("in", 0)
    assert [whole_number("at", one, least=0, most=7) for one in (0, 7)] == [0, 7]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"lease_ms": 3.5}, "'lease_ms' is 3.5 — hint: use a whole number"),
        ({"lease_ms": True}, "'lease_ms' is True"),
        ({"lease_ms": "3"}, "'lease_ms' is '3'"),
        ({"lease_ms": None}, "'lease_ms' is None"),
        ({"lease_ms": 10**30}, f"at most {LONGEST_MS}"),
        ({"rollup_every": 10**30}, f"at most {2**63 - 1}"),
        ({"part_buffer_bytes": float("nan")}, "'part_buffer_bytes' is nan"),
        ({"validate": 3}, "'validate' is 3 — hint: use true or false"),
    ],
    ids=count(),
)
def test_a_setting_that_cannot_work_is_refused(given: Any, told: str) -> None:
    """From Python as from options: a lease of 3.5 ms would be in the log of a shard."""
    with pytest.raises(InvalidUsage, match=re.escape(told)):
        ShardSettings(**given)


def test_settings_are_a_value_of_their_own(tmp_path: Path) -> None:
    """A mapping has no attributes: it was an `AttributeError` once something was written."""
    given: Any = {"lease_ms": 3}
    with pytest.raises(InvalidUsage, match=r"'settings' cannot be .*ShardSettings\(lease_ms="):
        ShardClient.open(tmp_path / "here", settings=given)
    assert not (tmp_path / "here").exists()


def test_an_interval_that_ends_before_it_begins_is_refused(world: World) -> None:
    """Whatever the upper of the shard is, and before anything is staged."""
    client = world.client(replace(SETTINGS, inline_part_bytes=0))
    client.create("orders", schema_of(), key=["id"])
    writer = client.writer("orders")
    before = client.state("orders")
    for lower in (MINIMUM, Frontier(7)):
        for append in (writer.compare_and_append, writer.append):
            with pytest.raises(InvalidUsage, match=r"\[INVALID_INTERVAL\].* lies before the lower"):
                append(table((1, "a")), lower, Frontier(-3))
    assert client.state("orders") == before
    assert not [one for one in client.location.entries("orders") if "/part/" in one.key]

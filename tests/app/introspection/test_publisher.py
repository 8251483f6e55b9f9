"""Moments have the rows that the interfaces give, read together and computed once."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Any

import pyarrow as pa
import pytest
from typing_extensions import override

from shardline.app.execution.observations import Doubted
from shardline.app.introspection import publisher
from shardline.app.introspection.events import (
    Acted,
    Maintenance,
    PeekStarted,
    Polled,
    Recorded,
    Remembered,
)
from shardline.app.introspection.facts import RUN_HISTORY, Facts
from shardline.app.introspection.poll import ShardPoller
from shardline.app.introspection.publisher import Moment, Selection
from shardline.app.introspection.relation import Relation, Row
from shardline.app.introspection.store import Reading, Relations
from shardline.app.protocol.storage import StatisticsUpdates
from shardline.datasource.client import ShardClient
from shardline.datasource.types.schema import ShardSchema
from support.fakes.introspection import DELAYS, FLIGHTS, OUT, World, progress


class Counting(Relations):
    """Relations that count how often they are read."""

    def __init__(self, world: World) -> None:
        super().__init__(world.sink)
        self.read: Counter[str] = Counter()
        self.rows_read: dict[str, int] = {}

    @override
    def read_together(
        self,
        names: Iterable[str],
        about: Mapping[str, Collection[str]] = MappingProxyType({}),
        known: Mapping[str, int] = MappingProxyType({}),
    ) -> Reading:
        reading = super().read_together(names, about, known)
        self.read.update(reading.rows.keys())
        self.rows_read.update({name: len(rows) for name, rows in reading.rows.items()})
        return reading


def rows_of(moment: Moment, selection: Selection, world: World) -> list[dict[str, Any]]:
    """The rows of a moment as the JSON interface has them."""
    log = moment.log(selection)
    assert log is not None
    columns = world.relations.declared[selection.relation].schema.names
    return [dict(zip(columns, json.loads(row), strict=True)) for row in log.snapshot()]


def busy() -> World:
    """A world with something in most relations."""
    world = World()
    world.run(FLIGHTS)
    world.run(DELAYS)
    world.run(OUT)
    now = world.clock.now_ms()
    world.tell(
        Polled(id="delays", since=0, upper=now - 1500),
        Polled(id="flights", since=None, upper=None),
        StatisticsUpdates(sources={"flights": {"bytes_received": 7.0}}, sinks={}),
        progress("delays:u2:1", "r-delays-1", triggerExecution=250),
        PeekStarted(uuid="a", inputs=("delays",), time=1, at_ms=now),
        Maintenance(shard="delays", at_ms=now, took_ms=12.5, merges=1, failed=("sweep",)),
    )
    return world


def let_minutes_pass(world: World) -> None:
    """The lag of a whole minute is in the history."""
    for _ in range(3):
        world.clock.advance(60_000)
        world.tell()


def test_a_moment_has_the_rows_of_every_relation() -> None:
    """Value by value those of the JSON interface, whose way to them is another one."""
    world = busy()
    moment = Moment().advance(world.relations, [Selection(n) for n in world.relations.declared])
    filled = set()
    for name in world.relations.declared:
        rows = rows_of(moment, Selection(name), world)
        assert rows == world.relations.rows(name), name
        filled |= {name} if rows else set()
    assert {"verdicts", "maintenance", "frontiers", "objects", "listener"} <= filled


def test_rows_for_json_are_made_without_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 20,000 events Arrow's times alone took more than a second of the processor."""
    world = busy()
    before = {name: world.relations.relation(name).to_pylist() for name in ("objects", "frontiers")}
    monkeypatch.setattr(Relation, "table_of", None)
    for name, table in before.items():
        rows = world.relations.rows(name)
        assert [row.keys() for row in rows] == [row.keys() for row in table]
    (row,) = world.relations.rows("objects", where={"id": "delays"})
    (same,) = [row for row in before["objects"] if row["id"] == "delays"]
    assert row["definition"] == same["definition"]
    assert str(row["created_at"]).startswith(same["created_at"].strftime("%Y-%m-%dT%H:%M:%S"))


def test_a_relation_is_read_once_for_all_its_filters() -> None:
    """Each of them has the rows with its values, NULL among them."""
    world = busy()
    relations = Counting(world)
    wanted = [
        Selection("objects"),
        Selection("objects", (("id", "delays"),)),
        Selection("objects", (("domain", "storage"), ("type", "sink"))),
        Selection("objects", (("error", None),)),
        Selection("objects", (("id", "nobody"),)),
    ]
    moment = Moment().advance(relations, wanted)
    assert relations.read == {"objects": 1}
    ids = [[row["id"] for row in rows_of(moment, one, world)] for one in wanted]
    every = ["flights", "delays", "out"]
    assert ids == [every, ["delays"], ["out"], every, []]


def test_only_rows_that_were_chosen_are_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """And each of them once: a page of one object costs nothing for the others."""
    world = busy()
    encoded: list[object] = []
    encode = publisher._encode

    def note(row: list[object]) -> bytes:
        encoded.append(row[0])
        return encode(row)

    monkeypatch.setattr(publisher, "_encode", note)
    of_one = [Selection("objects", (("id", "out"),)), Selection("objects", (("type", "sink"),))]
    Moment().advance(world.relations, of_one)
    assert encoded == ["out"]


def test_moments_grow_whatever_the_clock_does() -> None:
    """A mark of an earlier moment must not be one of a later one; its time is the clock's."""
    world = busy()
    first = Moment().advance(world.relations, [Selection("objects")])
    world.clock.set_back(60_000)
    second = first.advance(world.relations, [Selection("objects")])
    assert second.at == first.at + 1
    assert second.read_ms == world.clock.now_ms() == first.read_ms - 60_000


def test_what_nobody_follows_is_not_read_and_can_be_resumed_for_a_while() -> None:
    """Its log stays, goes on from where it was, and is gone after five minutes."""
    world = busy()
    relations = Counting(world)
    both = [Selection("objects"), Selection("frontiers")]
    first = Moment().advance(relations, both)
    world.clock.advance(200_000)
    second = first.advance(relations, both[1:])
    assert relations.read == {"objects": 1, "frontiers": 2}
    assert second.log(both[0]) is None, "its rows are those of an earlier moment"
    world.tell(Polled(id="delays", since=0, upper=world.clock.now_ms()))
    resumed = second.advance(relations, both).log(both[0])
    assert resumed is not None
    assert resumed.since == first.at
    world.clock.advance(300_001)
    assert both[0] not in second.advance(relations, both[1:]).logs


def test_logs_that_nobody_follows_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever follows something else each second fills no memory; the newest can be resumed."""
    monkeypatch.setattr("shardline.app.introspection.publisher._SELECTIONS_MAX", 2)
    world = busy()
    one, *others = [Selection("objects", (("id", f"o{number}"),)) for number in range(5)]
    moment = Moment().advance(world.relations, [one])
    for other in others:
        moment = moment.advance(world.relations, [one, other])
    assert moment.logs.keys() == {one, *others[-3:]}
    resumed = moment.advance(world.relations, [one, others[-2]]).log(others[-2])
    assert resumed is not None
    assert resumed.since < moment.at


def test_rows_of_one_object_are_made_without_those_of_others() -> None:
    """As long as nobody follows all; they are the same rows as in the whole relation."""
    world = busy()
    world.tell(progress("flights:u1:1", "r-flights-1", addBatch=20, triggerExecution=30))
    world.tell(progress("delays:u2:1", "r-delays-1", addBatch=40, triggerExecution=50))
    relations = Counting(world)
    one = Selection("step_phases", (("object_id", "delays"),))
    other = Selection("step_phases", (("batch", 0), ("object_id", "flights")))
    nobody = Selection("step_phases", (("object_id", "gone"),))
    whole = Selection("step_phases")
    moment = Moment()
    for followed, count in (([one], 1), ([one, nobody], 1), ([one, other], 2), ([one, whole], 2)):
        moment = moment.advance(relations, followed)
        assert relations.rows_read["step_phases"] == count
        assert rows_of(moment, one, world) == world.rows("step_phases", "delays")
    assert len(rows_of(moment, whole, world)) == 2


def test_what_is_said_to_be_separable_is() -> None:
    """Rows about one object, or shard, do not change when the others are not there."""
    world = busy()
    for name in ("flights", "delays"):
        client = ShardClient.open(f"memory://separable-{name}", clock=world.clock)
        client.create(name, ShardSchema.from_arrow(pa.schema([("a", pa.int64())])))
        client.writer(name).append_now(pa.table({"a": [1, 2]}))
        ShardPoller(world.sink, client).step()
    world.tell(progress("delays:u2:1", "r-delays-1", addBatch=40, triggerExecution=50))
    now = world.clock.now_ms()
    world.tell(Doubted(id="delays", epoch=1, at_ms=now, finding="audit", shard="s"))
    let_minutes_pass(world)
    separable = {n: r for n, r in world.relations.declared.items() if r.separable}
    assert separable.keys() >= {"step_phases", "shard_batches", "wallclock_lag_percentiles"}
    one_of = {"source_status_history": "flights", "sink_status_history": "out"}
    for name, relation in separable.items():
        about = one_of.get(name, "delays")
        every = world.relations.read_together([name]).rows
        alone = world.relations.read_together([name], {name: {about}}).rows
        at = relation.schema.names.index(relation.object)
        assert alone[name] == [row for row in every[name] if row[at] == about] != [], name
        assert world.relations.read_together([name]).rows == every, "nothing of it is kept"
        if relation.past is not None:
            now = world.clock.now_ms()
            then = [r for r in world.relations.rows(name, as_of=now) if r[relation.object] == about]
            assert world.relations.rows(name, object=about, as_of=now) == then != []


def test_a_relation_of_histories_is_made_of_those_that_it_names() -> None:
    """It is read again only when they change: of anything else it must not depend."""
    world = busy()
    let_minutes_pass(world)
    now = world.clock.now_ms()
    world.tell(
        Acted(action="restart", target="flights", outcome="done", message="", at_ms=now),
        Doubted(id="delays", epoch=1, at_ms=now, finding="audit", shard="s"),
        Remembered(relation=RUN_HISTORY, rows=((now, ("start", ("flights",))),)),
        Recorded(index=0, producer="p", at_ms=now, kind="pause_dataflow", object_id="flights"),
    )
    made_of = {n: r for n, r in world.relations.declared.items() if r.histories}
    assert {name for r in made_of.values() for name in r.histories} == world.sink.read(
        lambda facts, _: {one.name for one in facts.histories()}
    )

    def alone(facts: Facts, relation: Relation) -> Facts:
        """Nothing but the histories that a relation names."""
        found = facts.until(1 << 60)
        for history in found.histories():
            if history.name not in relation.histories:
                history.rows.clear()
        return found

    for name, relation in made_of.items():

        def both(facts: Facts, now_ms: int, one: Relation = relation) -> tuple[list[Row], ...]:
            every = one.rows_about(facts, now_ms, None)
            return every, one.rows_about(alone(facts, one), 0, None)

        every, those = world.sink.read(both)
        assert those == every != [], name


def test_the_change_of_another_history_makes_no_rows() -> None:
    """A day of the lags of 300 objects is a hundred thousand of them."""
    world = busy()
    relations = Counting(world)
    lags = Selection("wallclock_lag_history", (("object_id", "delays"),))
    moment = Moment()
    for _ in range(3):
        world.clock.advance(60_000)
        world.tell(Maintenance(shard="flights", at_ms=world.clock.now_ms(), took_ms=1, merges=2))
    for _ in range(3):
        moment = moment.advance(relations, [lags])
        world.tell(Maintenance(shard="flights", at_ms=world.clock.now_ms(), took_ms=1, merges=2))
    assert relations.read == {"wallclock_lag_history": 1}
    assert relations.rows_read["wallclock_lag_history"] == len(rows_of(moment, lags, world)) > 0
    world.clock.advance(60_000)
    world.tell()
    moment = moment.advance(relations, [lags])
    assert relations.read == {"wallclock_lag_history": 2}
    assert rows_of(moment, lags, world) == world.rows("wallclock_lag_history", "delays")


def test_a_history_is_read_again_only_after_it_has_changed() -> None:
    """And by whoever follows it anew, or another part of it; what is shown is the same."""
    world = busy()
    relations = Counting(world)
    rounds, lags = Selection("maintenance"), Selection("wallclock_lag")
    moment = Moment()
    for _ in range(3):
        world.clock.advance(10)
        moment = moment.advance(relations, [rounds, lags])
    assert relations.read == {"maintenance": 1, "wallclock_lag": 3}
    world.tell(Maintenance(shard="flights", at_ms=world.clock.now_ms(), took_ms=1, merges=2))
    moment = moment.advance(relations, [rounds, lags])
    assert relations.read["maintenance"] == 2
    part = Selection("maintenance", (("shard", "flights"),))
    moment = moment.advance(relations, [part, lags])
    assert relations.read["maintenance"] == 3, "another part"
    assert [row["merges"] for row in rows_of(moment, part, world)] == [2]
    world.tell(Maintenance(shard="flights", at_ms=world.clock.now_ms(), took_ms=1, merges=3))
    moment = moment.advance(relations, [part])
    moment = moment.advance(relations, [part, rounds])
    assert relations.read["maintenance"] == 5, "one of them was not followed for a while"
    assert len(rows_of(moment, rounds, world)) == len(world.rows("maintenance")) == 3
    assert rows_of(moment, part, world) == world.relations.rows("maintenance", object="flights")

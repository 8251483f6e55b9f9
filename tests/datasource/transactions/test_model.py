"""Transactions, direct writes, readers and a stream against a model, under everything at once.

Random histories of several processes over several shards: transactions of two shards each, direct
writes, registering and forgetting, ticks, tidying, compaction and collection, processes that die at
any store operation, a stream over two shards that is killed and restarted. The model is a list of
updates. A reader of all shards at one time must see exactly what the model has at that time: never
half of a transaction.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, note
from hypothesis import strategies as st

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.shard.commands.append import Appended
from support.fakes.engine import STEPS, Checkpoint, Killed, Query, options_of
from support.models.shards import TINY, Crash, Mortal, World, rows, schema_of, table
from support.profiles import examples

NAMES = ("a", "b", "c")

_pairs = st.sampled_from([("a", "b"), ("b", "c"), ("a", "c"), ("a", "b", "c")])
_name = st.sampled_from(NAMES)
_events = st.one_of(
    st.tuples(st.just("transaction"), _pairs),
    st.tuples(st.just("transaction"), _pairs),
    st.tuples(
        st.just("dying"),
        st.tuples(_pairs, st.integers(0, 40), st.sampled_from(["none", "done", "late"])),
    ),
    st.tuples(st.just("replace"), _name),
    st.tuples(st.just("direct"), _name),
    st.tuples(st.just("register"), _name),
    st.tuples(st.just("forget"), _name),
    st.tuples(st.just("dying_register"), st.tuples(_name, st.integers(0, 25), st.booleans())),
    st.tuples(st.just("advance"), st.integers(0, 5)),
    st.tuples(st.just("tidy"), st.none()),
    st.tuples(st.just("compact"), st.sampled_from([*NAMES, "_transactions"])),
    st.tuples(st.just("collect"), st.sampled_from([*NAMES, "_transactions"])),
    st.tuples(st.just("read"), st.floats(0, 1)),
    st.tuples(st.just("restart"), st.integers(0, 1)),
    st.tuples(st.just("run"), st.integers(1, 3)),
    st.tuples(st.just("kill"), st.sampled_from(STEPS)),
)


class History:
    """The location, its processes, and what the model knows."""

    def __init__(self, inline: int) -> None:
        self.world = World()
        self.settings = dataclasses.replace(TINY, inline_part_bytes=inline)
        self.clients = [self.client(), self.client()]
        self.known: list[tuple[str, tuple[int, str], int, int]] = []
        self.number = 0
        self.turn = 0
        self.checkpoint = Checkpoint()
        self.query: Query | None = None
        self.dies: str | None = None
        for name in NAMES:
            self.clients[0].create(name, schema_of(), key=["id"])
            self.direct(name)

    def client(self) -> ShardClient:
        return self.world.client(self.settings)

    @property
    def process(self) -> ShardClient:
        """Both processes take turns."""
        self.turn += 1
        return self.clients[self.turn % 2]

    def happen(self, name: str, value: Any) -> None:
        note(f"{name} {value}")
        self.world.clock.advance(3)
        getattr(self, name)(value)

    def new_row(self) -> tuple[int, str]:
        self.number += 1
        return self.number, "v" * (self.number % 7)

    def transaction(self, names: tuple[str, ...]) -> None:
        row = self.new_row()
        with self.process.transaction() as t:
            for name in names:
                t.append(name, table(row))
        assert t.committed_at is not None
        self.known += [(name, row, t.committed_at, 1) for name in names]

    def dying(self, value: tuple[tuple[str, ...], int, Any]) -> None:
        """A process dies somewhere in a transaction; another one runs it again, to its end."""
        names, at, effect = value
        row, number = self.new_row(), self.number
        mortal = Mortal(self.world.objects(), at, effect)
        with contextlib.suppress(Crash):
            self._named(self.world.client(self.settings, mortal), names, row, number)
        self.world.clock.advance(3)
        found = self._named(self.process, names, row, number)
        mortal.deliver()
        assert self._named(self.process, names, row, number) == found
        self.known += [(name, row, found, 1) for name in names]

    def _named(
        self, client: ShardClient, names: tuple[str, ...], row: tuple[int, str], number: int
    ) -> int:
        with client.transaction(writer="etl", sequence=number) as t:
            for name in names:
                t.append(name, table(row))
        assert t.committed_at is not None
        return t.committed_at

    def replace(self, name: str) -> None:
        row = self.new_row()
        before = self.contents(name, None)
        with self.process.transaction() as t:
            assert rows(t.read(name)) == before
            t.overwrite(name, table(row))
        assert t.committed_at is not None
        self.known += [(name, old, t.committed_at, -n) for old, n in before.items()]
        self.known.append((name, row, t.committed_at, 1))

    def direct(self, name: str) -> None:
        client, row = self.process, self.new_row()
        if client.state(name).registered is not None:
            with pytest.raises(InvalidUsage, match="SHARD_REGISTERED"):
                client.writer(name).append_now(table(row))
            return
        done = client.writer(name).append_now(table(row))
        assert isinstance(done, Appended)
        assert done.upper.time is not None
        self.known.append((name, row, done.upper.time - 1, 1))

    def register(self, name: str) -> None:
        self.process.transactions().register(name)

    def forget(self, name: str) -> None:
        client = self.process
        client.transactions().forget(name)
        assert client.state(name).registered is None

    def dying_register(self, value: tuple[str, int, bool]) -> None:
        """Half of a registration, or of its undoing: anybody may go on in any direction."""
        name, at, forget = value
        mortal = Mortal(self.world.objects(), at)
        with contextlib.suppress(Crash):
            txns = self.world.client(self.settings, mortal).transactions()
            (txns.forget if forget else txns.register)(name)

    def advance(self, later: int) -> None:
        client = self.process
        if client.exists("_transactions"):
            client.transactions().advance(client.transactions().upper() + later)

    def tidy(self, _: None) -> None:
        self.process.transactions().tidy()

    def compact(self, name: str) -> None:
        client = self.process
        if client.exists(name):
            client.compact(name, force=True)

    def collect(self, name: str) -> None:
        client = self.process
        if client.exists(name):
            client.collect_garbage(name)

    def restart(self, index: int) -> None:
        self.clients[index] = self.client()

    def read(self, where: float) -> None:
        """All shards at one time that they can all be read at."""
        client = self.process
        states = client.readable(*NAMES)
        least = max(state.since.time or 0 for state in states)
        uppers = [state.upper.time for state in states]
        latest = min(upper for upper in uppers if upper is not None) - 1
        if latest < least:
            return
        as_of = least + round((latest - least) * where**0.05)
        for name in NAMES:
            with client.reader(name, since=as_of) as reader:
                assert rows(reader.snapshot(as_of)) == self.contents(name, as_of), (name, as_of)

    def contents(self, name: str, as_of: int | None) -> Counter[Any]:
        total: Counter[Any] = Counter()
        for shard, row, time, diff in self.known:
            if shard == name and (as_of is None or time <= as_of):
                total[row] += diff
        return Counter({row: count for row, count in total.items() if count})

    # -- the stream ----------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        for _ in range(steps):
            if not self.step():
                return

    def kill(self, step: str) -> None:
        self.dies = step
        self.step()

    def step(self) -> bool:
        if self.query is None:
            options = options_of(shards="a,b", progressInterval="0ms")
            self.query = Query(self.client(), self.checkpoint, options, kill=self._dies)
        try:
            return self.query.step()
        except Killed:
            self.query = None
            return True

    def _dies(self, step: str, _batch: int) -> bool:
        if step != self.dies:
            return False
        self.dies = None
        return True

    def streamed(self) -> Counter[Any]:
        total: Counter[Any] = Counter()
        for batch in self.checkpoint.sink.values():
            for shard, time, diff, *found in batch:
                (row,) = (one for one in found if one is not None)
                total[shard, row["id"], row["v"], time] += diff
        return Counter({row: count for row, count in total.items() if count})

    def expected_stream(self, as_of: int, frontier: int) -> Counter[Any]:
        total: Counter[Any] = Counter()
        for shard, row, time, diff in self.known:
            if shard in "ab" and time < frontier:
                total[shard, *row, max(time, as_of)] += diff
        return Counter({row: count for row, count in total.items() if count})

    def finish(self) -> None:
        self.dies = None
        self.read(1.0)
        for _ in range(60):
            if not self.step():
                break
        if self.checkpoint.offsets:
            begun, end = (json.loads(self.checkpoint.offsets[i]) for i in (0, -1))
            assert self.streamed() == self.expected_stream(begun["as_of"], end["frontier"])
        # In the end everything is told to the data shards, and they hold the same by themselves.
        client = self.client()
        client.transactions().register(*NAMES)
        client.transactions().forget(*NAMES)
        for name in NAMES:
            assert client.state(name).registered is None
            with client.reader(name) as reader:
                assert rows(reader.snapshot()) == self.contents(name, None)
        self.world.close()


@pytest.mark.slow
@given(st.lists(_events, max_size=25), st.sampled_from([0, 400]))
@examples()
def test_no_reader_ever_sees_half_of_a_transaction(
    events: list[tuple[str, Any]], inline: int
) -> None:
    """Whatever happened on the way."""
    history = History(inline)
    for name, value in events:
        history.happen(name, value)
    history.finish()

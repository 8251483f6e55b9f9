"""Writers: appends at any time or at one, named and anonymous, repeated until they are decided."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from typing_extensions import override

from shardline.datasource.errors import Indeterminate, LeaseExpired, MissingBlob, ShardError
from shardline.datasource.frontier import Frontier
from shardline.datasource.overwrite import overwrite
from shardline.datasource.parts.stage import Stager
from shardline.datasource.shard.commands.append import AlreadyCommitted, Appended, UpperMismatch
from shardline.datasource.shard.state import is_tombstone
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.upsert import CARRIER_ID, LIVE, carrier_schema, upsert
from simulation.actors import Actor
from simulation.model import Attempt, Model, Row, Update
from simulation.rows import table_of, timed
from simulation.scheduler import Violation

if TYPE_CHECKING:
    from shardline.datasource.write import WriteHandle
    from simulation.world import Process, World

__all__ = ["CasWriter", "IdenticalWriter", "NowWriter", "Overwriter", "Upserter"]

_KEYS: Final = 6

_TRIMS_MAX: Final = 16


class Writer(Actor):
    """Appends under a name that the shard remembers, or as nobody.

    Whatever an append raises but `Indeterminate` says that it has not happened, damage included.
    """

    def __init__(self, world: World, name: str, shard: str, *, identity: str = "") -> None:
        super().__init__(world, name, shard)
        self.identity = identity
        self.sequence = 0
        self.pending = False
        self.wanted: Any = None
        self.known = Counter[Row]()
        self.of = ""

    def handle(self, process: Process) -> WriteHandle:
        """A writer of the shard: the last one, or another."""
        kept: WriteHandle | None = self.memory.get("handle")
        if kept is None or self.chance.random() < 0.2:
            kept = process.client.writer(self.shard, self.identity or None)
            self.memory["handle"] = kept
        if self.of != kept.shard:
            self.of, self.known, self.pending = kept.shard, Counter(), False
        return kept

    def number(self, handle: WriteHandle) -> tuple[int, bool]:
        """The number of the append to ask for now; whether it was asked for before."""
        if not self.identity:
            return handle.sequence + 1, False
        again = self.pending
        if not again:
            self.sequence += 1
            self.pending = True
        return self.sequence, again

    def draw_rows(self) -> list[tuple[Row, int]]:
        """Rows to add, and now and then some to take away that this writer has added."""
        chance = self.chance
        tag = f"{self.name}/{self.sequence}" if chance.random() < 0.7 else "x"
        rows: list[tuple[Row, int]] = [
            ((chance.randrange(_KEYS), tag), chance.choice([1, 1, 1, 2]))
            for _ in range(chance.randrange(5))
        ]
        if self.known and not self.world.replacing and chance.random() < 0.4:
            row = chance.choice(sorted(self.known, key=repr))
            rows.append((row, -1))
            # At once, whatever becomes of it: it must not be taken away twice.
            self.learn([(row, -1)])
        return rows

    def decided(self, model: Model, handle: WriteHandle, number: int, outcome: Any) -> None:
        """Compare what the writer was told with what is in the log."""
        match outcome:
            case Appended(lower, upper):
                model.acknowledge(handle.writer, number, lower, upper.time)
            case AlreadyCommitted():
                model.acknowledge(handle.writer, number, None, None)
        self.world.note(f"told {outcome}")
        self.pending = False

    def asked(
        self, process: Process, handle: WriteHandle, number: int, attempt: Attempt
    ) -> tuple[Model, Attempt]:
        """Tell the model what will be asked for."""
        del process
        model = self.seen.models[handle.shard]
        self.world.note(f"append {number} of {handle.writer[:9]}: {attempt}")
        return model, model.intend(handle.writer, number, attempt)

    @override
    def finish(self, process: Process) -> None:
        """What was begun under a name is brought to its end, and an append works."""
        self.memory = {}
        if not is_tombstone(self.truth) and not self.attempt(process):
            raise Violation("progress", f"{self.name} cannot append though nothing fails")

    def learn(self, rows: Sequence[tuple[Row, int]]) -> None:
        for row, diff in rows:
            self.known[row] += diff
        self.known = +self.known


class NowWriter(Writer):
    """Appends at whatever time it is."""

    kind = "now"

    @override
    def act(self, process: Process) -> None:
        handle = self.handle(process)
        number, again = self.number(handle)
        if not again:
            self.wanted = self.draw_rows()
        rows = self.wanted
        model, attempt = self.asked(process, handle, number, Attempt("now", rows))
        try:
            outcome = handle.append_now(
                table_of(handle.schema, rows) if rows else None, sequence=number
            )
        except Indeterminate:
            raise
        except ShardError:
            model.refuse(handle.writer, number, attempt)
            raise
        self.decided(model, handle, number, outcome)
        self.learn([(row, diff) for row, diff in rows if diff > 0])


class CasWriter(Writer):
    """Appends the interval after the upper that it knows."""

    kind = "cas"

    @override
    def act(self, process: Process) -> None:
        handle = self.handle(process)
        number, again = self.number(handle)
        if not again or self.wanted is None:
            before = self.truth
            # At times somebody else has told it, and its own process does not know it yet.
            told = before.shard == handle.shard and self.chance.random() < 0.3
            upper = before.upper if told else handle.upper()
            if upper < before.upper and self.truth.shard == before.shard:
                raise Violation("stale", f"{self.name} sees upper {upper} after {before.upper}")
            if upper.time is None:
                return
            self.wanted = self._interval(process, upper.time)
        attempt = Attempt(
            "interval", updates=self.wanted[0], lower=self.wanted[1], upper=self.wanted[2]
        )
        model, attempt = self.asked(process, handle, number, attempt)
        updates, lower, upper_time = self.wanted
        known = self.truth
        try:
            outcome = handle.compare_and_append(
                timed(handle.schema, updates) if updates else None,
                Frontier(lower),
                Frontier(upper_time),
                sequence=number,
            )
        except Indeterminate:
            if not self.identity:
                self.wanted = None
            raise
        except ShardError:
            model.refuse(handle.writer, number, attempt)
            self.wanted = None
            raise
        if isinstance(outcome, UpperMismatch):
            model.refuse(handle.writer, number, attempt)
            self.world.note(f"told {outcome}")
            self.wanted = None
            if outcome.current == Frontier(lower):
                raise Violation("refused", f"{self.name}: {outcome}")
            if outcome.current < known.upper and known.shard == handle.shard:
                raise Violation("stale", f"{self.name}: {outcome} after {known.upper}")
            return
        self.decided(model, handle, number, outcome)
        self.learn([(row, diff) for row, _, diff in updates if diff > 0])
        self.wanted = None

    def _interval(self, process: Process, lower: int) -> tuple[list[Update], int, int | None]:
        length = self.chance.choice([0, 1, 5, 20, 200])
        upper = lower + length if lower else process.clock.now_ms()
        rows = self.draw_rows() if upper > lower else []
        # What goes must not go before it came: it is taken away at the end.
        updates = [
            (row, self.chance.randrange(lower, upper) if diff > 0 else upper - 1, diff)
            for row, diff in rows
        ]
        return updates, lower, upper


class IdenticalWriter(Writer):
    """One of several that append the same data, in steps of their own."""

    kind = "identical"

    def __init__(self, world: World, name: str, shard: str) -> None:
        super().__init__(world, name, shard)
        self.step = self.chance.choice([7, 10, 15])
        self.reached = 0

    @staticmethod
    def at(time: int) -> list[Update]:
        """What all of them know of a time."""
        if time % 3 == 0:
            return [((time % _KEYS, f"at {time}"), time, 1)]
        return []

    @override
    def act(self, process: Process) -> None:
        handle = self.handle(process)
        number, _ = self.number(handle)
        lower, upper = self.reached, self.reached + self.step
        updates = [update for time in range(lower, upper) for update in self.at(time)]
        attempt = Attempt("identical", updates=updates, lower=lower, upper=upper)
        model, _ = self.asked(process, handle, number, attempt)
        for later in range(1, _TRIMS_MAX):  # each time that it is trimmed is an append
            model.intend(handle.writer, number + later, attempt)
        outcome = handle.append(timed(handle.schema, updates), Frontier(lower), Frontier(upper))
        self.world.note(f"told {outcome}")
        if isinstance(outcome, UpperMismatch):
            raise Violation("refused", f"{self.name}: {outcome} for [{lower}, {upper})")
        if isinstance(outcome, Appended):
            model.acknowledge(handle.writer, handle.sequence, outcome.lower, outcome.upper.time)
        if model.upper is not None and model.upper < upper:
            raise Violation("acknowledged", f"[{lower}, {upper}) is not in: upper {model.upper}")
        self.reached = upper


class Overwriter(Writer):
    """Replaces all contents."""

    kind = "overwrite"
    actions = (1, 4)

    @override
    def act(self, process: Process) -> None:
        handle = self.handle(process)
        number, again = self.number(handle)
        if not again:
            count = self.chance.randrange(4)
            self.wanted = [
                ((self.chance.randrange(_KEYS), self.chance.choice("xyz")), 1) for _ in range(count)
            ]
        model, attempt = self.asked(process, handle, number, Attempt("overwrite", self.wanted))
        try:
            staged = handle.stager().stage(
                [table_of(handle.schema, self.wanted).drop_columns(["_diff"])]
            )
            outcome = overwrite(
                handle, staged, sequence=number, attempt=f"t{process.ids.token().hex()}"
            )
        except (Indeterminate, LeaseExpired):
            raise
        except ShardError:
            model.refuse(handle.writer, number, attempt)
            raise
        self.decided(model, handle, number, outcome)

    @override
    def refused(self, error: ShardError) -> None:
        # The lease is that of the reader which the writer opens for itself.
        lost = isinstance(error, LeaseExpired | MissingBlob) and self.may_lose_leases
        if not lost:
            super().refused(error)


class Upserter(Writer):
    """Replaces the rows of some keys."""

    kind = "upsert"
    actions = (1, 4)

    @override
    def act(self, process: Process) -> None:
        handle = self.handle(process)
        number, again = self.number(handle)
        if not again:
            keys = self.chance.sample(range(_KEYS), self.chance.randrange(1, 4))
            self.wanted = [((key, self.chance.choice("xyz")), 1) for key in keys]
        carriers = carrier_schema(handle.schema, handle.key)
        model, attempt = self.asked(process, handle, number, Attempt("upsert", self.wanted))
        data = {"id": [row[0] for row, _ in self.wanted], "v": [row[1] for row, _ in self.wanted]}
        data |= {LIVE: [True] * len(self.wanted)}
        columns = [
            pa.array(data.get(name, [None] * len(self.wanted)), carriers.arrow.field(name).type)
            for name in carriers.names
        ]
        try:
            stager = _carrying(handle, carriers)
            staged = stager.stage([pa.Table.from_arrays(columns, schema=carriers.arrow)])
            outcome = upsert(
                handle, staged, carriers, sequence=number, attempt=f"t{process.ids.token().hex()}"
            )
        except (Indeterminate, LeaseExpired):
            raise
        except ShardError:
            model.refuse(handle.writer, number, attempt)
            raise
        self.decided(model, handle, number, outcome)

    @override
    def refused(self, error: ShardError) -> None:
        # The lease is that of the reader which the writer opens for itself.
        lost = isinstance(error, LeaseExpired | MissingBlob) and self.may_lose_leases
        if not lost:
            super().refused(error)


def _carrying(handle: WriteHandle, carriers: ShardSchema) -> Stager:
    return replace(handle.stager(), schema=carriers, schema_id=CARRIER_ID)

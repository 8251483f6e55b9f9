"""Transactions over two shards: whatever happens, both have the same.

Every transaction adds one row to each of two shards, under a tag of its own. So at any one time
both shards must hold the same tags, each of them once, and all that were acknowledged before. Some
count instead: they read a number from one of the shards and put the next one into both. Where one
of them has not seen the other, the number is too small.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from typing_extensions import override

from shardline.datasource.errors import (
    Determinate,
    InvalidUsage,
    LeaseExpired,
    MissingBlob,
    ShardError,
)
from shardline.datasource.frontier import Frontier
from simulation.actors import Actor
from simulation.rows import rows_of, table_of
from simulation.scheduler import Violation
from support.models.shards import schema_of, table

if TYPE_CHECKING:
    from simulation.model import Row
    from simulation.world import Process, World

__all__ = ["PAIR", "Auditor", "Registrar", "Tally", "Transactor"]

PAIR: Final = ("b", "c")

_TALLY: Final = -1
"""Id of the row that holds the number."""


class _OfPair(Actor):
    """Works with both shards."""

    @override
    def refused(self, error: ShardError) -> None:
        if isinstance(error, LeaseExpired | MissingBlob) and self.may_lose_leases:
            return  # the leases that a transaction takes for itself are over
        if isinstance(error, Determinate | InvalidUsage) and error.code == "NOT_REGISTERED":
            return  # nobody has written a transaction yet, or the shards were just taken out
        super().refused(error)

    def compare(
        self, one: Counter[Row], other: Counter[Row], sure: set[str], counted: int, when: str
    ) -> None:
        """Both shards were read at one time: they say the same."""
        if one != other:
            raise Violation("half", f"{self.name} {when}: {one - other} against {other - one}")
        number = tally_of(one)
        if not counted <= number <= self.world.asked:
            raise Violation(
                "lost update",
                f"{self.name} {when}: {number}, of {counted} acknowledged and "
                f"{self.world.asked} asked for",
            )
        tags = Counter(row[1] for row in one.elements() if row[0] != _TALLY)
        twice = [tag for tag, count in tags.items() if count > 1]
        if twice:
            raise Violation("exactly once", f"{self.name} {when}: {twice} twice")
        missing = sure - tags.keys()
        if missing:
            raise Violation("acknowledged", f"{self.name} {when}: {sorted(missing)} not there")

    def audit(self, process: Process) -> None:
        """Read both at one time, outside of a transaction."""
        sure, counted = set(self.world.committed), self.world.counted
        states = process.client.readable(*PAIR)
        upper = min(state.upper for state in states)
        since = max(state.since for state in states)
        if upper.time is None or not Frontier(upper.time - 1) >= since or upper.time == 0:
            return
        found = []
        for name in PAIR:
            with process.client.reader(name) as reader:
                if Frontier(upper.time - 1) < reader.lease.since:
                    return
                found.append(rows_of(reader.snapshot(upper.time - 1, timeout_ms=2000)))
        self.compare(found[0], found[1], sure, counted, f"at {upper.time - 1}")


class Transactor(_OfPair):
    """Commits transactions, each until it knows that it happened."""

    kind = "txn"

    def __init__(self, world: World, name: str, shard: str) -> None:
        super().__init__(world, name, shard)
        self.sequence = 0
        self.pending = False

    @override
    def act(self, process: Process) -> None:
        if not self.pending:
            self.sequence += 1
            self.pending = True
        tag = f"{self.name}/{self.sequence}"
        strict = self.chance.random() < 0.4
        with process.client.transaction(
            isolation="serializable" if strict else "snapshot",
            writer=self.name,
            sequence=self.sequence,
        ) as t:
            if strict and not t.done_before():
                one, other = (rows_of(t.read(name)) for name in PAIR)
                self.compare(one, other, set(), 0, "in a transaction")
            for name in PAIR:
                t.append(name, table_of(schema_of(), [((self.sequence, tag), 1)]))
        self.world.note(
            f"told {tag} is committed at {t.committed_at}, before: {t.was_committed_before}"
        )
        self.world.committed.add(tag)
        self.pending = False

    @override
    def finish(self, process: Process) -> None:
        """A transaction works when nothing fails, and both shards have all of them."""
        self.memory = {}
        if not any(self.attempt(process) for _ in range(5)):
            raise Violation("progress", f"{self.name} cannot commit though nothing fails")
        self.audit(process)


class Tally(_OfPair):
    """Counts: reads a number, and lets the next one take its place."""

    kind = "tally"
    actions = (1, 5)

    def __init__(self, world: World, name: str, shard: str) -> None:
        super().__init__(world, name, shard)
        self.sequence = 0
        self.pending = False

    @override
    def act(self, process: Process) -> None:
        if not self.pending:
            self.sequence += 1
            self.pending = True
            self.world.asked += 1
        with process.client.transaction(writer=self.name, sequence=self.sequence) as t:
            if not t.done_before():
                number = tally_of(rows_of(t.read(self.chance.choice(PAIR))))
                process.think(self._thinking_ms())
                for name in PAIR:
                    t.upsert(name, table((_TALLY, str(number + 1))))
        self.world.note(
            f"told that it is counted at {t.committed_at}, before: {t.was_committed_before}"
        )
        self.world.counted += 1
        self.pending = False
        if self.chance.random() < 0.5:
            # From here on only the shards' own uppers say that they have changed.
            process.client.transactions().tidy()

    @override
    def finish(self, process: Process) -> None:
        """What was begun is counted when nothing fails, though others count, too."""
        self.memory = {}
        if not any(self.attempt(process) for _ in range(20)):
            raise Violation("progress", f"{self.name} cannot count though nothing fails")
        self.audit(process)


class Auditor(_OfPair):
    """Reads both shards at one time."""

    kind = "audit"

    @override
    def act(self, process: Process) -> None:
        if self.chance.random() < 0.3:
            process.forget_client()
        self.audit(process)


class Registrar(_OfPair):
    """Moves the transactions shard on, tidies it, and takes a shard out of it and in again."""

    kind = "registrar"

    @override
    def act(self, process: Process) -> None:
        txns = process.client.transactions()
        u = self.chance.random()
        if u < 0.3:
            txns.advance()
        elif u < 0.6:
            txns.tidy()
        elif u < 0.75:
            txns.apply()
        elif u < 0.9:
            txns.forget(*PAIR)
        else:
            txns.register(*PAIR)


def tally_of(contents: Counter[Row]) -> int:
    """The number that was counted up to, in the contents of one of the shards."""
    return max((int(v or 0) for id_, v in contents if id_ == _TALLY), default=0)

"""Reads a transactions shard as one value, the ledger, complete up to the shard's upper.

Every read of a registered shard and every commit needs to know what was committed and not applied
yet. The ledger is folded from the shard's rows once, and then kept up to date with what each commit
adds. Rows carry their own times, so the fold needs the current contents and no history: it takes no
hold and writes nothing. If a part is garbage-collected during the read, the read starts again.

Invariants:
    What is known is of the log that is there: none of it is used once that was found to be another
    one (`Machine.life`), such as an older copy, whose upper is before.
    A ledger with upper U holds every row that was added before U and not retracted before U.
    Whatever was committed before U and is not in it is in its data shard. So a state of the data
    shard read *after* the ledger, with the ledger's rows applied, has everything before U.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from shardline.datasource.errors import InvalidUsage, MissingBlob
from shardline.datasource.frontier import Frontier
from shardline.datasource.parts.contents import Contents
from shardline.datasource.read import contents_of, current_schema
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.plan import plan_changes
from shardline.datasource.shard.state import ShardState, is_tombstone
from shardline.datasource.transactions.rows import Row, schema
from shardline.datasource.types.schema import DIFF

__all__ = ["Ledger", "LedgerReader", "fold", "live_and_retracted"]

_LOOKS_MAX: Final = 16
"""How often in a row the parts may be collected during a read before it gives up."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """A transactions shard at one upper.

    Attributes:
        shard: Id of the transactions shard.
        upper: Complete for all times before this one.
        rows: Live rows by id.
        registered: The `register` row of each registered shard, by the data shard's id.
        life: Of which life of the log it was read, as this process counts them.
    """

    shard: str
    upper: int
    rows: Mapping[str, Row]
    registered: Mapping[str, Row]
    life: int = 0

    def pending(self, shard: str | None = None) -> list[Row]:
        """Rows that may not be applied yet, of one data shard or of all, in order of time."""
        found = [
            row
            for row in self.rows.values()
            if row.kind != "register" and shard in (None, row.shard)
        ]
        return sorted(found, key=lambda row: (row.at, row.id))

    def after_commit(self, upper: int, added: Iterable[Row], gone: Iterable[Row]) -> Ledger:
        """The ledger after a commit that moved it to `upper`."""
        taken_back = {row.id for row in gone}
        rows = {name: row for name, row in self.rows.items() if name not in taken_back}
        rows |= {row.id: row for row in added}
        return Ledger.of(self.shard, upper, rows, self.life)

    @classmethod
    def of(cls, shard: str, upper: int, rows: Mapping[str, Row], life: int = 0) -> Ledger:
        """The ledger with these live rows."""
        registered = {row.shard: row for row in rows.values() if row.kind == "register"}
        return cls(shard, upper, rows, registered, life)


@dataclass(slots=True)
class LedgerReader:
    """Reads the ledger of one transactions shard; may be shared between threads."""

    machine: Machine
    _known: Ledger | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def known(self) -> Ledger | None:
        """The newest ledger that this reader knows; may be out of date."""
        known = self._known
        return known if known is not None and known.life == self.machine.life else None

    def read(self) -> Ledger | None:
        """The ledger, no older than this call; None if there is no transactions shard.

        Raises:
            InvalidUsage: The shard of that name is not a transactions shard.
            MissingBlob: A part of it is lost.
        """
        for _ in range(_LOOKS_MAX):
            life = self.machine.life
            state = self.machine.refresh()
            if self.machine.life != life:
                continue  # another thread has found another log: of which one is the state?
            if state is None or is_tombstone(state):
                return None
            _check(state)
            try:
                ledger = self._bring_up_to(state, life)
            except MissingBlob:
                # If the state has moved on, the part may have been merged and collected.
                if self.machine.state().seqno == state.seqno:
                    raise
                continue
            self.learn(ledger)
            return ledger
        raise MissingBlob(
            f"the parts of transactions shard '{self.machine.name}' are collected faster than "
            "they can be read",
            hint="try again",
        )

    def learn(self, ledger: Ledger) -> None:
        """Remember `ledger`, unless a newer one is known."""
        with self._lock:
            newest = self._known
            if (
                newest is None
                or newest.shard != ledger.shard
                or (newest.life, newest.upper) < (ledger.life, ledger.upper)
            ):
                self._known = ledger

    def _bring_up_to(self, state: ShardState, life: int) -> Ledger:
        """The ledger of `state`: the known one with later updates, or all of it read again."""
        known, upper = self._known, state.upper.time
        assert upper is not None, state.name
        lower, rows = 0, dict[str, Row]()
        if known is not None and (known.shard, known.life) == (state.shard, life):
            if known.upper >= upper:
                return known
            # Otherwise compaction may have advanced updates that are known already to a time from
            # `known.upper` on, and they would be counted twice.
            if state.since < Frontier(known.upper):
                lower, rows = known.upper, dict(known.rows)
        live = fold(contents_of(self.machine, state), state, lower, rows)
        return Ledger.of(state.shard, upper, live, life)


def fold(
    contents: Contents, state: ShardState, lower: int, before: Mapping[str, Row]
) -> dict[str, Row]:
    """The live rows of a transactions shard in `state`, by id.

    Args:
        contents: Reads its parts.
        state: Its state.
        lower: Updates from this time on are read.
        before: The live rows right before `lower`.

    Raises:
        MissingBlob: A part is not there.
        Corrupt: A part is damaged.
    """
    return live_and_retracted(contents, state, lower, before)[0]


def live_and_retracted(
    contents: Contents, state: ShardState, lower: int, before: Mapping[str, Row]
) -> tuple[dict[str, Row], dict[str, Row]]:
    """The live rows, and those that were retracted; arguments and errors as `fold`.

    A row that was added and retracted is found until a merge has removed both.
    """
    # Counted, because updates come in any order: a retraction may be read before its addition.
    rows, counts = dict(before), Counter(dict.fromkeys(before, 1))
    for planned in plan_changes(state, lower, state.upper.time):
        for batch in contents.changes(planned):
            for values in batch.to_pylist():
                row = Row.of(values)
                counts[row.id] += values[DIFF]
                rows[row.id] = row
    # A row that was retracted without ever being added, as older code did, is not live.
    live = {name: row for name, row in rows.items() if counts[name] > 0}
    return live, {name: row for name, row in rows.items() if name not in live}


def _check(state: ShardState) -> None:
    if state.registered is None or state.registered.shard != state.shard:
        raise InvalidUsage(
            f"shard '{state.name}' is no transactions shard",
            code="NOT_A_TRANSACTIONS_SHARD",
            hint="name another one, or drop that shard if nobody needs it",
        )
    assert current_schema(state) == schema(), state.name

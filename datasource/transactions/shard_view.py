"""Gives readers the state of a shard, registered or not, complete up to its logical upper.

A registered shard's *logical* upper is that of its transactions shard: when that moves, so does
that of every registered shard, without a write to any of them (a thousand idle tables cost one
append per tick). A reader gets the data shard's state with one empty batch up to there, and plans
from it as from any other state.

    1. read the ledger                  everything before its upper U was committed by then
    2. read the data shard's state      after 1: rows that the ledger has no more are in it
    3. apply what 1 has and 2 lacks     seldom: the committer does it right away
    4. push an empty batch up to U      to the value that the reader gets, never to the shard

The order of 1 and 2 makes the empty batch true: nothing in its interval was committed for this
shard, or step 3 would have applied it, and nothing will be, since U has passed. With the state read
first, a row could be applied and retracted in between, and be in neither.

Invariants:
    Frontiers that readers of a shard see never go back: the ledger's upper does not; and when a
    shard is forgotten, its own upper is moved beyond that time in the same transition that admits
    direct writers again.
    Holds and leases are on the data shard's real state, by its real seqno, which the view keeps.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import msgspec

from shardline.datasource.errors import Determinate
from shardline.datasource.shard.batch import Batch
from shardline.datasource.shard.commands.orphan_sweep import write_barrier
from shardline.datasource.shard.description import Description
from shardline.datasource.shard.state import ShardState, is_tombstone
from shardline.datasource.shard.trace import push_batch
from shardline.datasource.transactions.applier import apply_ledger
from shardline.datasource.transactions.client_protocol import TransactionClient
from shardline.datasource.transactions.ledger import Ledger, LedgerReader

__all__ = ["ShardViews", "with_logical_upper"]

_LOOKS_MAX: Final = 64
"""How often a shard may be forgotten and registered again during one read of its state."""


def with_logical_upper(state: ShardState, upper: int) -> ShardState:
    """`state` with an empty batch up to `upper`, if its own upper is before that."""
    lower = state.upper.time
    if lower is None or lower >= upper:
        return state
    trace = push_batch(state.trace, Batch(Description(lower, upper)))
    return msgspec.structs.replace(state, trace=trace)


@dataclass(slots=True)
class ShardViews:
    """Reads shard states as the readers of one client see them; may be shared between threads."""

    client: TransactionClient
    _ledgers: dict[str, LedgerReader] = field(default_factory=dict)
    _uppers: dict[str, tuple[str, int, int]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def ledger(self, txns: str) -> LedgerReader:
        """The ledger reader of transactions shard `txns`; one for each."""
        with self._lock:
            if txns not in self._ledgers:
                self._ledgers[txns] = LedgerReader(self.client.machine(txns))
            return self._ledgers[txns]

    def state(self, name: str) -> ShardState:
        """The state of shard `name` that readers see, no older than this call.

        Raises:
            InvalidUsage: There is no such shard.
            ShardError: An error of the store, also while the transactions shard is read.
        """
        return self.states([name])[0]

    def states(self, names: Sequence[str], pool: Executor | None = None) -> list[ShardState]:
        """As `state`, for several shards; each transactions shard is read once.

        Args:
            names: The shards.
            pool: Runs the reads in parallel, if given.
        """
        # All ledgers before any state: see the module's docstring.
        read: dict[str, Ledger | None] = {}
        for name in names:
            cached = self.client.machine(name).cached
            txns = cached.registered.txns if cached is not None and cached.registered else None
            if txns is not None and txns not in read:
                read[txns] = self.ledger(txns).read()
        look = partial(self._state, read=read)
        return list(map(look, names) if pool is None else pool.map(look, names))

    def extended_to_known_upper(self, state: ShardState) -> ShardState:
        """`state` (a shard's own) up to the logical upper that this process knows; no I/O."""
        known = self._uppers.get(state.name)
        if known is None or known[0] != state.shard or state.seqno < known[1]:
            return state
        return with_logical_upper(state, known[2])

    def pending_parts(
        self, name: str, begun_before_ms: int | None, *, takes_back: bool = False
    ) -> set[str]:
        """Keys of blobs of shard `name` that are committed and may not be in its state yet.

        The orphan sweep must not delete these. The sweep has to call this *before* it reads the
        shard's state, which then has whatever was applied meanwhile.

        Args:
            name: The shard.
            begun_before_ms: Nothing that was begun before this may be committed any more, but for
                the keys of the answer: this call writes that to the transactions shard. None writes
                nothing: the answer is about this moment only.
            takes_back: As of `write_barrier`.

        Raises:
            Corrupt: A row cannot be read.
        """
        state = self.client.machine(name).refresh()
        mark = None if state is None else state.registered
        if state is None or mark is None or mark.shard == state.shard:
            # A shard is written directly again only when all that was committed for it is applied.
            return set()
        machine = self.client.machine(mark.txns)
        if machine.refresh() is None:
            return set()
        # The barrier before the ledger is read: each commit that came before it is in the ledger.
        if begun_before_ms is not None:
            barrier = partial(write_barrier, begun_before_ms=begun_before_ms, takes_back=takes_back)
            machine.apply(barrier)
        ledger = self.ledger(mark.txns).read()
        rows = [] if ledger is None else ledger.pending(state.shard)
        runs = (run for row in rows if row.data for run in row.commit().runs)
        return {part.key for run in runs for part in run.parts if part.inline is None}

    def _state(self, name: str, read: dict[str, Ledger | None]) -> ShardState:
        machine = self.client.machine(name)
        for _ in range(_LOOKS_MAX):
            state = machine.state()
            mark = state.registered
            if mark is None or is_tombstone(state) or mark.shard == state.shard:
                return state
            if mark.txns not in read:
                # The state has to be read after the ledger, so not this one is used.
                read = {mark.txns: self.ledger(mark.txns).read()}
                continue
            ledger = read[mark.txns]
            if ledger is None or ledger.shard != mark.shard:
                return state  # registering was interrupted: nothing was committed for it
            due = [row for row in ledger.pending(state.shard) if not state.upper.is_beyond(row.at)]
            if due:
                apply_ledger(self.client, ledger, {state.shard})
                continue
            if state.shard not in ledger.registered:
                return state  # interrupted as well; or registered after the ledger was read
            self._note_upper(state, ledger.upper)
            return with_logical_upper(state, ledger.upper)
        raise Determinate(
            f"shard '{name}' was registered and forgotten {_LOOKS_MAX} times during one look at it",
            code="CONTENTION",
            hint="try again",
        )

    def _note_upper(self, state: ShardState, upper: int) -> None:
        with self._lock:
            known = self._uppers.get(state.name)
            if known is None or known[0] != state.shard or known[2] < upper:
                self._uppers[state.name] = (state.shard, state.seqno, upper)

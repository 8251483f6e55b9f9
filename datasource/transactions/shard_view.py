"""Gives readers the state of a shard, complete up to its logical upper.

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

A *follower* has a leader instead, whose upper counts for it as well
(`shardline.datasource.shard.commands.leader`); its reader goes the same way:

    1. look at the leader's own state   everything before its upper U was appended here by then
    2. read the follower's state        after 1
    3. push an empty batch up to U      as above

Invariants:
    Frontiers that readers of a shard see never go back, as long as no log is replaced: the ledger's
    upper does not; and when a shard is forgotten, its own upper is moved beyond that time in the
    same transition that admits direct writers again.
    Holds and leases are on the data shard's real state, by its real seqno, which the view keeps.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

import msgspec

from shardline.datasource.errors import Determinate
from shardline.datasource.shard.batch import Batch
from shardline.datasource.shard.commands.orphan_sweep import write_barrier
from shardline.datasource.shard.description import Description
from shardline.datasource.shard.state import Leader, ShardState, is_tombstone
from shardline.datasource.shard.trace import push_batch
from shardline.datasource.transactions.applier import apply_ledger
from shardline.datasource.transactions.client_protocol import TransactionClient
from shardline.datasource.transactions.ledger import Ledger, LedgerReader
from shardline.datasource.transactions.loss import check_not_lost

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


class _KnownUpper(NamedTuple):
    """A logical upper that was seen, with the state's shard and seqno, and as of which logs."""

    logs: tuple[int, int]
    shard: str
    seqno: int
    upper: int


@dataclass(slots=True)
class ShardViews:
    """Reads shard states as the readers of one client see them; may be shared between threads."""

    client: TransactionClient
    _ledgers: dict[str, LedgerReader] = field(default_factory=dict)
    _uppers: dict[str, _KnownUpper] = field(default_factory=dict)
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
            ShardError: An error of the store, also while the transactions shard is read; or that
                was lost (`check_not_lost`).
        """
        return self.states([name])[0]

    def states(self, names: Sequence[str], pool: Executor | None = None) -> list[ShardState]:
        """As `state`, for several shards; each transactions shard and each leader is read once.

        Args:
            names: The shards.
            pool: Runs the reads in parallel, if given.
        """
        # All ledgers and leaders before any state: see the module's docstring.
        read: dict[str, Ledger | None] = {}
        leaders: set[str] = set()
        for name in names:
            cached = self.client.machine(name).cached
            if cached is None:
                continue
            if cached.registered and cached.registered.txns not in read:
                read[cached.registered.txns] = self.ledger(cached.registered.txns).read()
            if cached.leader:
                leaders.add(cached.leader.name)
        seen = {name: self.client.machine(name).refresh() for name in sorted(leaders)}
        look = partial(self._state, read=read, seen=seen)
        return list(map(look, names) if pool is None else pool.map(look, names))

    def look(self, name: str) -> ShardState | None:
        """A shard's own state, up to its leader's upper as it was seen before; None without one."""
        machine = self.client.machine(name)
        leader = None if machine.cached is None else machine.cached.leader
        seen = None if leader is None else self.client.machine(leader.name).cached
        state = machine.refresh()
        if state is None or state.leader is None or state.leader != leader:
            return state
        return self._as_its_leader(state, leader, seen)

    def extended_to_known_upper(self, state: ShardState) -> ShardState:
        """`state` (a shard's own) up to the logical upper that this process knows; no I/O."""
        known = self._uppers.get(state.name)
        if known is None or known.shard != state.shard or state.seqno < known.seqno:
            return state
        if known.logs != self._logs_of(state):
            return state  # a log was replaced since: what its upper was then is not true of it
        return with_logical_upper(state, known.upper)

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
            Corrupt: A row cannot be read; or as of `check_not_lost`.
            MissingBlob: As of `check_not_lost`.
        """
        state = self.client.machine(name).refresh()
        mark = None if state is None else state.registered
        if state is None or mark is None or mark.shard == state.shard:
            # A shard is written directly again only when all that was committed for it is applied.
            return set()
        machine = self.client.machine(mark.txns)
        check_not_lost(name, mark, machine.refresh())
        # The barrier before the ledger is read: each commit that came before it is in the ledger.
        if begun_before_ms is not None:
            barrier = partial(write_barrier, begun_before_ms=begun_before_ms, takes_back=takes_back)
            machine.apply(barrier)
        ledger = self.ledger(mark.txns).read()
        rows = [] if ledger is None else ledger.pending(state.shard)
        runs = (run for row in rows if row.data for run in row.commit().runs)
        return {part.key for run in runs for part in run.parts if part.inline is None}

    def _state(
        self, name: str, read: dict[str, Ledger | None], seen: Mapping[str, ShardState | None]
    ) -> ShardState:
        machine, first = self.client.machine(name), seen.get(name)
        if first is not None and first.leader is not None:
            first = None  # it may have been looked at before its own leader
        for _ in range(_LOOKS_MAX):
            # A leader that is asked for beside its follower was looked at already, by this call.
            state, first = first or machine.state(), None
            mark, leader = state.registered, state.leader
            if leader is not None:
                if leader.name in seen:
                    return self._as_its_leader(state, leader, seen[leader.name])
                # The state has to be read after the leader's, so not this one is used.
                seen = {leader.name: self.client.machine(leader.name).refresh()}
                continue
            if mark is None or is_tombstone(state) or mark.shard == state.shard:
                return state
            if mark.txns not in read:
                # The state has to be read after the ledger, so not this one is used.
                read = {mark.txns: self.ledger(mark.txns).read()}
                continue
            ledger = read[mark.txns]
            if ledger is None or ledger.shard != mark.shard:
                # The mark may be newer than the ledger, but never than the log that it is of.
                check_not_lost(name, mark, self.client.machine(mark.txns).refresh())
                return state  # registering was interrupted: nothing was committed for it
            due = [row for row in ledger.pending(state.shard) if not state.upper.is_beyond(row.at)]
            if due:
                apply_ledger(self.client, ledger, {state.shard})
                continue
            if state.shard not in ledger.registered:
                return state  # interrupted as well; or registered after the ledger was read
            logs = (machine.life, ledger.life)
            self._note_upper(state, _KnownUpper(logs, state.shard, state.seqno, ledger.upper))
            return with_logical_upper(state, ledger.upper)
        raise Determinate(
            f"shard '{name}' was registered and forgotten {_LOOKS_MAX} times during one look at it",
            code="CONTENTION",
            hint="try again",
        )

    def _as_its_leader(
        self, state: ShardState, leader: Leader, seen: ShardState | None
    ) -> ShardState:
        """A follower's `state`, up to the upper of its leader, whose state was `seen` before."""
        if seen is None or seen.shard != leader.shard or is_tombstone(seen):
            return state
        upper = seen.upper.time
        # A leader is finished after its followers are: they have that upper by themselves.
        if upper is None:
            return state
        known = _KnownUpper(self._logs_of(state), state.shard, state.seqno, upper)
        self._note_upper(state, known)
        return with_logical_upper(state, upper)

    def _logs_of(self, state: ShardState) -> tuple[int, int]:
        """How often the logs were replaced that a state and its logical upper are of."""
        source = state.leader.name if state.leader else state.name
        if state.leader is None and state.registered is not None:
            source = state.registered.txns
        return self.client.machine(state.name).life, self.client.machine(source).life

    def _note_upper(self, state: ShardState, seen: _KnownUpper) -> None:
        with self._lock:
            known = self._uppers.get(state.name)
            same = known is not None and (known.logs, known.shard) == (seen.logs, seen.shard)
            if known is None or not same or known.upper < seen.upper:
                self._uppers[state.name] = seen

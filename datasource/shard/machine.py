"""The machine: the one loop through which every change of a shard goes.

A command is a pure function of a state (`shardline.datasource.shard.commands`). The machine runs it
on the newest state it knows, writes the difference as the next record of the shard's log with a
compare-and-set, and, when somebody else was first, catches up and runs it again. Nothing else
touches Consensus.

What a caller relies on:
    `apply` returns once the command's effect is durable and ordered, or raises knowing that it is
    not (`Determinate`) or that it cannot tell (`Indeterminate`).
    An answer without an effect ("nothing to do", a refusal) is about a state no older than the
    call: a refusal found on a cached state is checked against a fresh one first.
    Threads share one machine per shard and process: commands that arrive while a compare-and-set
    is under way are committed together by the next one (group commit).
    An interrupt (Ctrl-C, a signal handler that raises) reaches its own thread only, which then does
    not know what became of its command. The others that it was committing for are answered by
    whoever commits next: with what was committed, with `Indeterminate` if a record was under way,
    or by running their commands.

Invariants:
    A command is answered once. Until then it is queued, and taken up by the next thread that
    commits, unless its caller has left.
    The cached state is a state the shard really had, and only moves forward.
    A command's time is read inside each attempt.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar, cast

import msgspec

from shardline.datasource.clock import Clock, IdGenerator
from shardline.datasource.errors import (
    Determinate,
    Indeterminate,
    InvalidUsage,
    MissingBlob,
    ShardError,
    nearest,
)
from shardline.datasource.settings import ShardSettings
from shardline.datasource.shard.backoff import Backoff
from shardline.datasource.shard.codec import (
    CODE_VERSION,
    Record,
    apply_diff,
    diff,
    encode_record,
    encode_rollup,
)
from shardline.datasource.shard.commands.rollups import add_rollup
from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.group_commit import Answer, Command, Flight, Pending, answer_all
from shardline.datasource.shard.merge_budget import Tank
from shardline.datasource.shard.replay import SCAN_MAX, LogReader
from shardline.datasource.shard.state import RollupRef, ShardState, check, expire, is_tombstone
from shardline.datasource.stores.location import (
    Committed,
    ExpectationMismatch,
    Location,
    VersionedData,
)
from shardline.datasource.stores.shard_names import shard_directory, shard_name

__all__ = ["Command", "Machine"]

_log = logging.getLogger(__name__)

R = TypeVar("R")

_RELOADS_MAX: Final = 8
"""Cold reads in a row that may find their rollup gone: each means that the shard moved on by
`rollup_every` records meanwhile, so more than a few mean that the state is damaged."""


@dataclass(slots=True)
class Machine:
    """Reads and changes the state of one shard.

    Attributes:
        name: The shard's name, as its user wrote it.
        location: Where it lives.
        tank: What this process's writers of the shard may spend on merging.
    """

    name: str
    location: Location
    clock: Clock
    ids: IdGenerator
    settings: ShardSettings
    tank: Tank = field(default_factory=Tank)
    _state: ShardState | None = None
    _directory: str = ""
    _queue: list[Pending] = field(default_factory=list)
    _flight: Flight | None = None
    _queue_lock: threading.Lock = field(default_factory=threading.Lock)
    _commit_lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def directory(self) -> str:
        """The shard's directory below the location."""
        if not self._directory:
            self._directory = shard_directory(self.name)
        return self._directory

    @property
    def cached(self) -> ShardState | None:
        """The newest state this process has seen; may be behind."""
        return self._state

    @property
    def log(self) -> LogReader:
        """Reads the shard's records and rollups."""
        return LogReader(self.name, self.location, self.directory)

    def state(self) -> ShardState:
        """The shard's state, no older than this call.

        Raises:
            InvalidUsage: There is no such shard.
        """
        state = self.refresh()
        if state is None:
            raise self.not_found()
        return state

    def refresh(self) -> ShardState | None:
        """As `state`, but None if the shard does not exist."""
        with self._commit_lock:
            return self._refresh()

    def initialise(self, initial: ShardState) -> ShardState:
        """The shard's state, made by writing `initial` as its first record if there is none."""
        with self._commit_lock:
            state = self._refresh()
            if state is not None:
                return state
            record = Record(
                seqno=1,
                token=self.ids.token().hex(),
                walltime_ms=initial.walltime_ms,
                version=initial.version,
                state=initial,
            )
            outcome = self._compare_and_set(None, record)
            if isinstance(outcome, Committed):
                self._install(initial)
                return initial
            state = self._refresh()
        if state is None:
            raise Indeterminate(
                f"making shard '{self.name}' lost a race to a record that cannot be read",
                hint="try again",
            )
        return state

    def apply(self, command: Command[R]) -> R:
        """Run `command` until its effect is committed or it finds that there is nothing to do.

        Raises:
            InvalidUsage: There is no such shard, or the command refuses its arguments.
            Determinate: It certainly did not happen.
            Indeterminate: It may have happened.
        """
        result = self._apply(command)
        self._maintain()
        return result

    def wait_for_upper_past(
        self, time: int, timeout_ms: float, look: Callable[[], ShardState] | None = None
    ) -> ShardState | None:
        """Wait until the upper is beyond `time`: the state then, or None after `timeout_ms`.

        Args:
            time: What is to be settled.
            timeout_ms: How long to wait.
            look: Gives the state that readers see, no older than the call; None for the shard's.
        """
        look = look or self.state
        deadline = self.clock.elapsed_ms() + timeout_ms
        pause = 1.0
        while True:
            state = look()
            if state.upper.is_beyond(time):
                return state
            left = deadline - self.clock.elapsed_ms()
            if left <= 0:
                return None
            self.clock.wait(threading.Event(), min(pause, left))
            pause = min(pause * 2, self.settings.wait_poll_ms)

    def not_found(self) -> InvalidUsage:
        """The error for a shard that does not exist, with what does as its hint."""
        shards = self.location.consensus.list_shards()
        return InvalidUsage(
            f"no shard '{self.name}' at {self.location.url}",
            code="SHARD_NOT_FOUND",
            hint=_shards_hint(self.name, [shard_name(shard) for shard in shards]),
        )

    # -- the commit loop ---------------------------------------------------------------------

    def _apply(self, command: Command[R]) -> R:
        pending = Pending(command)
        try:
            with self._queue_lock:
                self._queue.append(pending)
            with self._commit_lock:
                # Whoever held the lock before may have committed this one along with theirs.
                if pending.answer is None:
                    self._lead()
        except BaseException:
            # Who has left, and looked, and found nothing, must not find it done an hour later.
            pending.withdrawn = True
            raise
        answer = pending.answer
        assert answer is not None, "who leads answers everybody, or raises"
        if answer.error is not None:
            raise answer.error
        return cast("R", answer.result)

    def _lead(self) -> None:
        """Commit all that is queued; the commit lock is held.

        An interrupt may end this between any two instructions, also those of a handler. So nothing
        is left to handlers: what is not answered stays in the queue, and a record whose outcome is
        open in `_flight`, where the next leader finds it. That is soon, as everybody who waits for
        an answer waits for the lock.
        """
        self._land()
        group = self._waiting()
        if group:
            try:
                self._commit_group(group)
            except ShardError as error:
                # It is about the record that they shared, so it is true for each of them. Any other
                # exception is this thread's own: the others try for themselves.
                answer_all(group, [Answer(error=error)] * len(group))
        self._waiting()  # what is answered is not kept until the next command

    def _waiting(self) -> list[Pending]:
        """The commands that are to be run, in order; forgets the others."""
        with self._queue_lock:
            self._queue = [pending for pending in self._queue if pending.is_open]
            return list(self._queue)

    def _land(self) -> None:
        """Answer those whose record is committed, or may be; who lost a race tries again."""
        flight = self._flight
        if flight is None:
            return
        if isinstance(flight.outcome, Committed):
            self._install(flight.state)
            answer_all(flight.group, flight.answers)
        elif flight.outcome is None:
            unknown = Indeterminate(
                f"the thread that was writing record {flight.state.seqno} of shard '{self.name}' "
                "was interrupted",
                hint="read the shard back before repeating the commit",
            )
            answer_all(flight.group, [Answer(error=unknown)] * len(flight.group))
        # Last: until here the next leader would do all of it again, which changes nothing.
        self._flight = None

    def _commit_group(self, group: list[Pending]) -> None:
        backoff = Backoff(self.clock, self.ids, self.settings.conflict_pause_ms)
        deadline = self.clock.elapsed_ms() + self.settings.commit_timeout_ms
        fresh = self._state is None
        while True:
            old = self._state if self._state is not None else self._refresh()
            if old is None:
                raise self.not_found()
            now_ms = self.clock.now_ms()
            new, answers, idle = self._run(group, old, now_ms)
            if idle and not fresh:
                # Somebody's command found nothing to do, in a state that may be stale: whether
                # that is the truth can only be said of a fresh one.
                fresh = True
                if self._refresh() is not old:
                    continue
            if new is old:
                answer_all(group, answers)
                return
            record, new = self._record(old, new, now_ms)
            began_ms = self.clock.elapsed_ms()
            # Before the request: from here on it may happen, whatever becomes of this thread.
            self._flight = flight = Flight(group, answers, new)
            flight.outcome = outcome = self._compare_and_set(old.seqno, record)
            self._land()
            if isinstance(outcome, Committed):
                return
            if self.clock.elapsed_ms() > deadline:
                raise Determinate(
                    f"lost every race for the next record of shard '{self.name}' during "
                    f"{self.settings.commit_timeout_ms} ms",
                    code="CONTENTION",
                    hint="retry; use fewer writers per shard",
                )
            # Catching up comes after the pause: what was read before it would be stale again.
            paused = backoff.lost(self.clock.elapsed_ms() - began_ms)
            fresh = self._catch_up(None if paused else outcome.current)

    def _run(
        self, group: list[Pending], old: ShardState, now_ms: int
    ) -> tuple[ShardState, list[Answer], bool]:
        """All commands on `old`, one after the other; whether some had nothing to do."""
        new, idle = old, False
        answers: list[Answer] = []
        for pending in group:
            try:
                transition = pending.command(new, now_ms)
            except Exception as error:  # noqa: BLE001 - its own caller gets it, the others go on
                answers.append(Answer(error=error))
                idle = True
                continue
            idle = idle or transition.state is None
            new = transition.state or new
            answers.append(Answer(transition.result))
        return new, answers, idle

    def _record(self, old: ShardState, new: ShardState, now_ms: int) -> tuple[Record, ShardState]:
        """The log record that makes `new` of `old`, and the state it makes."""
        new = msgspec.structs.replace(
            expire(new, now_ms),
            seqno=old.seqno + 1,
            walltime_ms=max(now_ms, old.walltime_ms + 1),
            version=max(CODE_VERSION, old.version),
        )
        whole = is_tombstone(new) or new.shard != old.shard
        if whole:
            new = msgspec.structs.replace(new, base=new.seqno)
        if self.settings.validate:
            check(new)
        record = Record(
            seqno=new.seqno,
            token=self.ids.token().hex(),
            walltime_ms=new.walltime_ms,
            version=new.version,
            rollup=new.rollup,
            base=new.base,
            diff=None if whole else diff(old, new),
            state=new if whole else None,
        )
        return record, new

    def _compare_and_set(
        self, expected: int | None, record: Record
    ) -> Committed | ExpectationMismatch:
        data = encode_record(record)
        try:
            return self.location.consensus.compare_and_set(self.directory, expected, data)
        except Indeterminate as unknown:
            # The log's own deadline passed. One more look decides, or the caller must.
            try:
                found = self.location.consensus.scan(self.directory, record.seqno, 1)
            except ShardError as error:
                # That nothing was learnt must not be taken for "it did not happen".
                raise unknown from error
            if not found:
                raise
            if found[0].seqno == record.seqno and found[0].data == data:
                return Committed(record.seqno)
            if found[0].seqno > record.seqno:
                raise
            return ExpectationMismatch(found[0])

    # -- reading state -----------------------------------------------------------------------

    def _catch_up(self, current: VersionedData | None) -> bool:
        """Move on after a lost race; whether the state is now no older than this call."""
        state = self._state
        if state is not None and current is not None and current.seqno == state.seqno + 1:
            # The next record need not be the newest: enough to try again, not to refuse.
            self._install(apply_diff(state, self.log.decode(current)))
            return False
        self._refresh()
        return True

    def _refresh(self) -> ShardState | None:
        state = self._state
        if state is None:
            return self._load()
        while True:
            records = self.location.consensus.scan(self.directory, state.seqno + 1, SCAN_MAX)
            if records and records[0].seqno > state.seqno + 1:
                return self._load()  # truncated past what we know
            for data in records:
                state = apply_diff(state, self.log.decode(data))
            if records:
                self._install(state)
            if len(records) < SCAN_MAX:
                return state

    def _load(self) -> ShardState | None:
        """Read the state from the newest record, its rollup, and the records between."""
        missing = ""
        for _ in range(_RELOADS_MAX):
            head = self.location.consensus.head(self.directory)
            if head is None:
                return None
            record = self.log.decode(head)
            state = self.log.whole_before(record)
            if state is None:
                missing = record.rollup[1].key if record.rollup else f"record {record.base}"
                continue  # a newer head names a newer one
            state = self.log.replayed(state)
            if state.seqno < head.seqno:
                missing = f"the record after seqno {state.seqno}"
                continue
            self._install(state)
            return state
        raise MissingBlob(
            f"the state of shard '{self.name}' needs {missing}, which is not there",
            code="MISSING_STATE",
            hint="run inspect and restore it from a backup; nothing was changed",
        )

    def _install(self, state: ShardState) -> None:
        if self._state is None or state.seqno > self._state.seqno:
            self._state = state

    # -- rollups -----------------------------------------------------------------------------

    def _maintain(self) -> None:
        """Store a whole state when the last one is `rollup_every` records old."""
        state = self._state
        if state is None or is_tombstone(state):
            return
        newest = state.rollup[0] if state.rollup else state.base
        due = state.seqno - newest
        every = self.settings.rollup_every
        # Every handle of every process sees the threshold pass. Only the commit that lands on a
        # multiple takes the duty, and everybody once it has been neglected for three rounds.
        if due >= every and (state.seqno % every == 0 or due >= 3 * every):
            try:
                self.write_rollup(state)
            except Exception:  # noqa: BLE001 - of any kind
                # The command has committed; failing it for a rollup that the next one can write
                # would make its caller believe that it had not.
                _log.warning("rollup not written", exc_info=True, extra=self._context(state))

    def _context(self, state: ShardState) -> dict[str, object]:
        return {"context": {"shard": self.name, "shard_id": state.shard, "seqno": state.seqno}}

    def write_rollup(self, state: ShardState) -> bool:
        """Store `state` as a rollup and record it; False if another one of its seqno is known."""
        key = f"{self.directory}/rollup/{state.seqno:016x}-{self.ids.token().hex()}"
        data = encode_rollup(state)
        begun_ms = self.clock.now_ms()
        self.location.blob.set(key, data)
        ref = RollupRef(key, len(data))

        def command(current: ShardState, now_ms: int) -> Transition[bool]:
            if current.shard != state.shard or is_tombstone(current):
                return Transition(None, result=False)
            return add_rollup(current, now_ms, seqno=state.seqno, rollup=ref, begun_ms=begun_ms)

        recorded = self._apply(command)
        if not recorded:
            # Certainly not referenced: the answer came from a state read after the attempt.
            self.location.blob.delete(key)
        return recorded


def _shards_hint(name: str, shards: list[str]) -> str:
    if not shards:
        return "the location has no shards yet"
    near = nearest(name, shards)
    if near is not None:
        return f"did you mean '{near}'?"
    shown = ", ".join(f"'{shard}'" for shard in shards[:10])
    more = f" and {len(shards) - 10} more" if len(shards) > 10 else ""  # noqa: PLR2004
    return f"the location has {shown}{more}"

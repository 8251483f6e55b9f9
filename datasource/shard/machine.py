"""The machine applies commands to a shard's state and makes each change durable, in one order.

A shard is changed by many processes that share nothing but object storage. Here is the one loop
that keeps them from overwriting each other (Materialize: persist's `Machine` and `Applier`). A
command is a pure function of a state (`shardline.datasource.shard.commands`). The machine runs it
on the newest state it knows, writes the difference as the next record of the shard's log with a
compare-and-set, and, if another process wrote that record first, catches up and runs the command
again. Nothing else touches Consensus.

Guarantees to callers:
    `apply` returns once the command's effect is durable and ordered. It raises `Determinate` if the
    effect certainly did not happen, `Indeterminate` if it may have happened.
    An answer without an effect ("nothing to do", a refusal) is about a state no older than the
    call: a refusal found on a cached state is checked against a fresh one first.
    Threads share one machine per shard and process: commands that arrive while a compare-and-set
    is under way are committed together by the next one (group commit).
    An interrupt (Ctrl-C, a signal handler that raises) reaches its own thread only, and leaves that
    thread not knowing what became of its command. If it was committing for other threads too, the
    next thread that commits answers them: with the result if the record was committed, with
    `Indeterminate` if its outcome is unknown, and otherwise by running their commands again.

Invariants:
    A command is answered once. Until then it is queued, and the next thread that commits runs it,
    unless its caller was interrupted.
    The cached state is a state that the shard really had, and only moves forward, until the log is
    found to be another one (`shardline.datasource.shard.known`): then nothing is kept of it.
    The time that a command gets is read inside each attempt, never before the loop.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar, cast
from weakref import ref

import msgspec

from shardline.datasource.clock import Clock, IdGenerator
from shardline.datasource.errors import (
    Determinate,
    Indeterminate,
    InvalidUsage,
    ShardError,
)
from shardline.datasource.settings import ShardSettings
from shardline.datasource.shard.backoff import Backoff
from shardline.datasource.shard.codec import (
    CODE_VERSION,
    Record,
    diff,
    encode_record,
    encode_rollup,
)
from shardline.datasource.shard.commands.orphan_sweep import SWEEP_AGE_MS
from shardline.datasource.shard.commands.rollups import add_rollup
from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.drops_seen import DropsSeen
from shardline.datasource.shard.group_commit import (
    Answer,
    Command,
    Pending,
    RecordInFlight,
    answer_all,
    run_all,
)
from shardline.datasource.shard.known import Known
from shardline.datasource.shard.merge_budget import MergeBudget
from shardline.datasource.shard.merge_finder import MergeFinder
from shardline.datasource.shard.replay import SCAN_MAX, LogReader
from shardline.datasource.shard.rollup_attempts import RollupAttempts
from shardline.datasource.shard.state import (
    RollupRef,
    ShardState,
    check_invariants,
    expire_leases,
    is_tombstone,
)
from shardline.datasource.stores.location import (
    LOG_REPLACED,
    Committed,
    ExpectationMismatch,
    Location,
    VersionedData,
    log_replaced,
)
from shardline.datasource.stores.probe import find_leftover, lost_log, refuse_location
from shardline.datasource.stores.shard_names import names_hint, shard_directory, shard_name
from shardline.datasource.waiting import poll_until

__all__ = ["Command", "Machine"]

_log = logging.getLogger(__name__)

R = TypeVar("R")


@dataclass(slots=True)
class Machine:
    """Reads and changes the state of one shard; shared by all threads of a process.

    Attributes:
        name: The shard's name, as its user wrote it.
        location: Where the shard is stored.
        merge_budget: That which this process's writers of the shard share.
        finder: Finds the merges that are due, for all of them.
        drops: Tells which transitions have certainly dropped no part.
    """

    # Only the name is printed: the state has rows in it, and handles of all kinds have a machine.
    name: str
    location: Location = field(repr=False)
    clock: Clock = field(repr=False)
    ids: IdGenerator = field(repr=False)
    settings: ShardSettings = field(repr=False)
    merge_budget: MergeBudget = field(default_factory=MergeBudget, repr=False)
    finder: MergeFinder = field(default_factory=MergeFinder, repr=False)
    drops: DropsSeen = field(default_factory=DropsSeen, repr=False)
    _known: Known = field(default_factory=Known, repr=False)
    _directory: str = field(default="", repr=False)
    _rollups: RollupAttempts = field(default_factory=RollupAttempts, repr=False)
    _queue: list[Pending] = field(default_factory=list, repr=False)
    _flight: RecordInFlight | None = field(default=None, repr=False)
    _watchers: tuple[ref[threading.Event], ...] = field(default=(), repr=False)
    _queue_lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _commit_lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def directory(self) -> str:
        """The shard's directory below the location."""
        if not self._directory:
            self._directory = shard_directory(self.name)
        return self._directory

    @property
    def cached(self) -> ShardState | None:
        """The newest state this process has seen, without I/O; may be behind. None before any."""
        return self._known.state

    @property
    def life(self) -> int:
        """How often the log was found to be another one; what is kept beside a state is of one."""
        return self._known.life

    def watch(self, wake: threading.Event) -> None:
        """Set `wake`, while it lives, whenever this process sees a newer state than before.

        Of what another process has written nobody is told: who waits for that has to look.
        """
        with self._queue_lock:
            living = [one for one in self._watchers if one() is not None]
            # A new tuple: another thread may be going through the old one.
            self._watchers = (*living, ref(wake))

    @property
    def log(self) -> LogReader:
        """A reader of the shard's stored records and rollups."""
        return LogReader(self.name, self.location, self.directory)

    def state(self) -> ShardState:
        """The shard's state, no older than this call.

        Raises:
            InvalidUsage: There is no such shard.
        """
        state = self.refresh()
        if state is None:
            raise self.not_found_error()
        return state

    def refresh(self) -> ShardState | None:
        """The shard's state, no older than this call; None if the shard does not exist."""
        with self._commit_lock:
            return self._refresh()

    def initialise(self, initial: ShardState) -> ShardState:
        """Write `initial` as the shard's first record if it has none; return the shard's state.

        Raises:
            InvalidUsage: Its folder is that of a location.
            Corrupt: It had a log before, which is lost.
            Indeterminate: The record may have been written. Calling again is safe.
        """
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
            # A shard in a location without a marker is one that no other process finds.
            self.location.check()
            refuse_location(self.location, self.directory)
            before_ms = self.clock.now_ms() - SWEEP_AGE_MS
            leftover = find_leftover(self.location, self.directory, before_ms)
            if leftover is not None:
                # Unless another process has made the shard meanwhile: then it is that one's.
                state = self._refresh()
                if state is not None:
                    return state
                raise lost_log(self.location, self.directory, leftover)
            # No `_flight` as in `_commit_group`: no other thread's command depends on this record,
            # and a caller that is interrupted here finds it, or makes it, by calling again.
            outcome = self._compare_and_set(None, record)
            if isinstance(outcome, Committed):
                self._install(initial, record.token)
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

        Args:
            command: A pure function; it may run several times, on different states.

        Raises:
            InvalidUsage: There is no such shard, or the command refuses its arguments.
            Determinate: It certainly did not happen.
            Indeterminate: It may have happened.
        """
        result = self._apply(command)
        # After the commit lock is released: other threads commit while a rollup is written.
        self._write_rollup_if_due()
        return result

    def wait_for_upper_past(
        self, time: int, timeout_ms: float, look: Callable[[], ShardState] | None = None
    ) -> ShardState | None:
        """Wait until the upper is beyond `time`; return that state, or None after `timeout_ms`.

        Args:
            time: The time that is to be settled.
            timeout_ms: How long to wait; 0 looks once.
            look: Reads the state that readers see, no older than its call. None reads the shard's
                own; of a registered shard, readers see an upper that is further on.
        """
        look = look or self.state

        def look_for_time() -> ShardState | None:
            state = look()
            return state if state.upper.is_beyond(time) else None

        return poll_until(
            look_for_time,
            self.clock,
            threading.Event(),
            poll_ms=self.settings.wait_poll_ms,
            timeout_ms=timeout_ms,
        )

    def not_found_error(self) -> InvalidUsage:
        """The error for a shard that does not exist; its hint names the shards that do."""
        names = [shard_name(shard) for shard in self.location.consensus.list_shards()]
        return InvalidUsage(
            f"no shard '{self.name}' at {self.location.url}",
            code="SHARD_NOT_FOUND",
            hint=names_hint(self.name, names),
        )

    # -- the commit loop ---------------------------------------------------------------------

    def _apply(self, command: Command[R]) -> R:
        pending = Pending(command)
        try:
            with self._queue_lock:
                self._queue.append(pending)
            with self._commit_lock:
                # The thread that held the lock before may have committed this command with its own.
                if pending.answer is None:
                    self._commit_queued()
        except BaseException:
            # An interrupted caller may read the shard back to see if its command happened. If it
            # stayed in the queue, the next thread to commit would run it after that look.
            pending.withdrawn = True
            raise
        answer = pending.answer
        assert answer is not None, "who leads answers everybody, or raises"
        if answer.error is not None:
            raise answer.error
        return cast("R", answer.result)

    def _commit_queued(self) -> None:
        """Commit all queued commands; the caller holds the commit lock.

        An interrupt may end this between any two instructions, also inside of an `except` or
        `finally`. So no cleanup is left to handlers: commands without an answer stay in the queue,
        and a record whose outcome is open stays in `_flight`. The next thread that gets the lock
        finds both, and that is soon: every thread that waits for an answer waits for the lock.
        """
        # First: the commands of a record that an interrupted thread has committed are still in the
        # queue, unanswered. Collected before this, they would be run a second time.
        self._settle_in_flight()
        group = self._open_commands()
        if group:
            self._commit_or_fail(group)
        # Drops what is answered: it would keep states alive until the next command.
        self._open_commands()

    def _commit_or_fail(self, group: list[Pending]) -> None:
        try:
            self._commit_group(group)
        except ShardError as error:
            # A replaced log has refused all of them by now, also if only one was tried.
            if isinstance(error, InvalidUsage) and len(group) > 1:
                # Nothing was written, and one of them may be to blame, such as an append that makes
                # the record too large: the others would be refused for good by what is none of
                # theirs. The flight first, or they would be taken for commands of unknown outcome.
                self._flight = None
                for pending in group:
                    if pending.is_open:
                        self._commit_or_fail([pending])
                return
            # It is about the record that they share, so it is true for each of them. Any other
            # exception, such as an interrupt, belongs to this thread alone: it must not be
            # caught here, and the other commands stay queued for the next thread.
            answer_all(group, [Answer(error=error)] * len(group))

    def _open_commands(self) -> list[Pending]:
        """Drop answered and withdrawn commands from the queue; return the others, in order."""
        with self._queue_lock:
            self._queue = [pending for pending in self._queue if pending.is_open]
            return list(self._queue)

    def _settle_in_flight(self) -> None:
        """Answer the commands of `_flight`, if there is one, by the outcome of its record.

        Committed: with their results. Unknown: with `Indeterminate`. Lost to another record: not at
        all, so that they are run again. May be interrupted anywhere and repeated.
        """
        flight = self._flight
        if flight is None:
            return
        if isinstance(flight.outcome, Committed):
            self.drops.follow(self.cached, flight.record)
            self._install(flight.state, flight.record.token)
            answer_all(flight.group, flight.answers)
        elif flight.outcome is None:
            # The request may have been sent: to run the commands again could make them happen
            # twice. Commands that have their error already, by `_commit_queued`, keep it.
            unknown = Indeterminate(
                f"the thread that was writing record {flight.state.seqno} of shard '{self.name}' "
                "was interrupted",
                hint="read the shard back before repeating the commit",
            )
            answer_all(flight.group, [Answer(error=unknown)] * len(flight.group))
        # Last: after an interrupt before this line the next thread does all of it again, which
        # changes nothing. Cleared first, an interrupt would leave commands to be run twice.
        self._flight = None

    def _commit_group(self, group: list[Pending]) -> None:
        """Run `group` and write its record, again after every lost race, until it is committed."""
        backoff = Backoff(self.clock, self.ids, self.settings.conflict_pause_ms)
        deadline = self.clock.elapsed_ms() + self.settings.commit_timeout_ms
        fresh = self.cached is None
        while True:
            old = self.cached or self._refresh()
            if old is None:
                raise self.not_found_error()
            # Inside the loop: a heartbeat stamped before many lost races could be expired by the
            # time its record is written (materialize #38060).
            now_ms = self.clock.now_ms()
            new, answers, idle = run_all(group, old, now_ms)
            if idle and not fresh:
                # A command found nothing to do, in a cached state that may be stale. An effect is
                # checked by the compare-and-set; an answer without one is checked only here. To
                # answer from the cache would be quicker, and refuse appends for an old upper.
                fresh = True
                if self._refresh() is not old:
                    continue
            if new is old:
                answer_all(group, answers)
                return
            record, new = self._record(old, new, now_ms)
            began_ms = self.clock.elapsed_ms()
            # Before the request: from here on it may happen, whatever becomes of this thread.
            self._flight = flight = RecordInFlight(group, answers, new, record)
            # Into the flight by the same statement that ends the request: an interrupt between the
            # two would make a known outcome an unknown one.
            flight.outcome = outcome = self._compare_and_set(old.seqno, record)
            self._settle_in_flight()
            if isinstance(outcome, Committed):
                return
            # After the attempt: however short the timeout, there was one. `Determinate` is true as
            # our number is taken; an attempt of unknown outcome has raised above.
            if self.clock.elapsed_ms() > deadline:
                raise Determinate(
                    f"lost every race for the next record of shard '{self.name}' during "
                    f"{self.settings.commit_timeout_ms} ms",
                    code="CONTENTION",
                    hint="retry; use fewer writers per shard",
                )
            # Catching up comes after the pause: a state read before it would be stale again.
            paused = backoff.lost(self.clock.elapsed_ms() - began_ms)
            fresh = self._catch_up(None if paused else outcome.current)

    def _record(self, old: ShardState, new: ShardState, now_ms: int) -> tuple[Record, ShardState]:
        """The log record that turns `old` into `new`, and the state that it makes."""
        # Expiry comes after the commands: a late heartbeat renews its lease as long as nobody has
        # committed since the lease ended, and readers are cut off as seldom as possible.
        new = msgspec.structs.replace(
            expire_leases(new, now_ms),
            seqno=old.seqno + 1,
            # Clocks of several machines, and steps back of one: the order of records wins.
            walltime_ms=max(now_ms, old.walltime_ms + 1),
            # Not simply this code's: older code must not hide that newer code has written here.
            version=max(CODE_VERSION, old.version),
        )
        whole = is_tombstone(new) or new.shard != old.shard
        if whole:
            # Before `new.rollup` is read below: rollups older than the base are of another life.
            new = msgspec.structs.replace(new, base=new.seqno)
        if self.settings.validate:
            check_invariants(new)
        record = Record(
            seqno=new.seqno,
            token=self.ids.token().hex(),
            walltime_ms=new.walltime_ms,
            version=new.version,
            rollup=new.rollup,
            base=new.base,
            diff=None if whole else diff(old, new),
            state=new if whole else None,
            after=self._known.token,
        )
        return record, new

    def _compare_and_set(
        self, expected: int | None, record: Record
    ) -> Committed | ExpectationMismatch:
        """Write `record` after `expected`; None if it is to be the first.

        Raises:
            Determinate: It was certainly not written, and no other record was seen in its place.
            Indeterminate: It may have been written, or may still be.
        """
        data = encode_record(record)
        try:
            return self.location.consensus.compare_and_set(self.directory, expected, data)
        except InvalidUsage as error:
            if error.code == LOG_REPLACED:
                self._forget(error)
            raise
        except Indeterminate as unknown:
            # The log's own deadline has passed. One more look may settle it.
            try:
                found = self.location.consensus.scan(self.directory, record.seqno, 1)
            except ShardError as error:
                # The look failed, perhaps with `Determinate`: that is about the look. To let it out
                # would tell the caller that the write did not happen.
                raise unknown from error
            if not found:
                raise  # the request may be on its way still: absence proves nothing
            # Equal bytes are our own record, as they hold this attempt's random token; and a scan
            # answers only with records that are durable.
            if found[0].seqno == record.seqno and found[0].data == data:
                return Committed(record.seqno)
            if found[0].seqno > record.seqno:
                raise  # our number was truncated: whose record it was cannot be learnt any more
            # Another record has our number, and the first one counts: ours never can.
            return ExpectationMismatch(found[0])

    # -- reading state -----------------------------------------------------------------------

    def _catch_up(self, current: VersionedData | None) -> bool:
        """Move on after a lost race; True if the state is now no older than this call."""
        state = self.cached
        if state is not None and current is not None and current.seqno == state.seqno + 1:
            # Saves a request. But the next record need not be the newest one: that is enough to try
            # again, which the compare-and-set checks, and not enough to refuse.
            self._follow([current])
            return False
        self._refresh()
        return True

    def _refresh(self) -> ShardState | None:
        """Read the records that are new; the caller holds the commit lock."""
        # First, as in `_commit_queued`: what an interrupted thread has committed is of this log.
        self._settle_in_flight()
        while (state := self.cached) is not None:
            try:
                records = self.location.consensus.scan(self.directory, state.seqno + 1, SCAN_MAX)
            except InvalidUsage as error:
                if error.code == LOG_REPLACED:
                    self._forget(error)
                raise
            if records and records[0].seqno > state.seqno + 1:
                break  # the log was truncated beyond what this process knows
            self._follow(records)
            if len(records) < SCAN_MAX:
                return self.cached
        return self._load()

    def _follow(self, records: Sequence[VersionedData]) -> None:
        """Apply the next records of the log to what is known.

        Raises:
            InvalidUsage: One does not follow what is known (`LOG_REPLACED`): that is forgotten.
        """
        known = self._known
        for data in records:
            record = self.log.decode(data)
            assert known.state is not None, data.seqno
            if not known.is_followed_by(record):
                error = log_replaced(f"record {known.state.seqno} of shard '{self.name}'", data)
                self._forget(error)
                raise error
            known = known.moved_to(self.drops.apply(known.state, record), record.token)
        if records and known.state is not None:
            self._install(known.state, known.token)

    def _load(self) -> ShardState | None:
        """Read the newest state, whatever was known before."""
        found = self.log.newest()
        if found is None:
            return None
        self._install(*found)
        return found[0]

    def _forget(self, error: InvalidUsage) -> None:
        # First: run on what is there now, which this process has not seen when they were called,
        # the commands that wait would be acknowledged, and what it lacks be gone without a word.
        waiting = self._open_commands()
        answer_all(waiting, [Answer(error=error)] * len(waiting))
        # Another log may be in the place of the one that all of this was read of.
        self._known = self._known.forgotten()
        self.finder, self.drops, self._rollups = MergeFinder(), DropsSeen(), RollupAttempts()

    def _install(self, state: ShardState, token: str) -> None:
        # `_settle_in_flight` may be repeated after an interrupt, with a state that has been passed
        # since.
        known = self._known
        if known.state is None or state.seqno > known.state.seqno:
            self._known = known.moved_to(state, token)
            for watcher in self._watchers:
                wake = watcher()
                if wake is not None:
                    wake.set()

    # -- rollups -----------------------------------------------------------------------------

    def _write_rollup_if_due(self) -> None:
        """Write a rollup if the newest whole state is `rollup_every` records old; never raises."""
        known, every, now_ms = self._known, self.settings.rollup_every, self.clock.elapsed_ms()
        state = known.state
        if state is not None and self._rollups.begin_if_due(state, every, now_ms):
            try:
                self.write_rollup(state, known.life)
            except Exception:  # noqa: BLE001 - of any kind
                # The command has been committed. An error for the rollup, which a later commit can
                # write, would make the caller believe that the command had failed.
                context = {"shard": self.name, "shard_id": state.shard, "seqno": state.seqno}
                _log.warning("rollup not written", exc_info=True, extra={"context": context})

    def write_rollup(self, state: ShardState, life: int | None = None) -> bool:
        """Store `state` as a rollup and record it.

        Args:
            state: A state of the shard.
            life: The life of the log that it was read in; None for the present one.

        Returns:
            False if it was not recorded: another rollup of its seqno is known, the shard was
            dropped meanwhile, its log was replaced, or writing took so long that an orphan sweep
            may have taken the blob.
        """
        begun_in = self.life if life is None else life
        # The token keeps two writers of one seqno from sharing a blob: the loser deletes its own.
        key = f"{self.directory}/rollup/{state.seqno:016x}-{self.ids.token().hex()}"
        data = encode_rollup(state)
        # Read before the blob is written, as a sweep judges the blob by the time of its writing:
        # read after it, a slow write could be recorded when a sweep may have deleted it already.
        begun_ms = self.clock.now_ms()
        self.location.blob.set(key, data)
        ref = RollupRef(key, len(data))

        def command(current: ShardState, now_ms: int) -> Transition[bool]:
            # An older copy of the shard has the same id, and its state at this seqno is another.
            if self.life != begun_in or current.shard != state.shard or is_tombstone(current):
                return Transition(None, result=False)
            return add_rollup(current, now_ms, seqno=state.seqno, rollup=ref, begun_ms=begun_ms)

        # Not `apply`, which would call `_write_rollup_if_due` and so this again.
        recorded = self._apply(command)
        if not recorded:
            # Certainly not referenced: a refusal is about a state read after the attempt. An
            # outcome that is unknown raises instead, and leaves the blob to the sweep.
            self.location.blob.delete(key)
        return recorded

"""The lane's log keeps the order in a shard: one row per record, at the time of its position.

The order must outlive the process, and must end for a process that another one has replaced: a
paused runtime that wakes up would otherwise start objects that run elsewhere by now.

    log = LaneLog.open(client, describe_process(…), settings, how="if-free")
    log.append([Submission("compute", 1, command)])

An append names the upper that it expects, which is the position of its first record: nobody else
can have added anything in between. This is the fence. A runtime that takes over appends `Opened`;
from then on every append of the former holder is refused, and every look at the shard's upper
(`check_fence`) shows it.

The past is bounded. After `snapshot_every` records the whole state is recorded, and in the same
append the rows older than `keep_records`, and the state before, are retracted. Reading the lane is
one snapshot of the shard: a state, and the records after it (Delta: a checkpoint and the commits
after it).

Invariants:
    Rows of positions `[0, upper)` were there once, without a gap, each at the time of its position.
    The newest state and all records after it are there.
    A record is folded when it is durable, and only then. An append whose outcome is unknown is
    neither repeated under another position nor dropped: it is resolved before anything else.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec
import pyarrow as pa

from shardline.app.lane.commands import (
    LANE,
    Holder,
    HolderLease,
    LaneCommand,
    Opened,
    Record,
    Submission,
    check_recordable,
    command_kind,
)
from shardline.app.lane.holder import (
    HolderHeartbeat,
    follower_purpose,
    held_error,
    judge_liveness,
)
from shardline.app.lane.order_protocol import Role, Takeover
from shardline.app.lane.settings import LaneSettings
from shardline.app.lane.shared_poll import SharedPoll
from shardline.app.lane.state import EMPTY_STATE, LaneState, apply, without_repeated
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Corrupt, Determinate, Fenced, Indeterminate, ShardError
from shardline.datasource.frontier import TIME_MAX, Frontier
from shardline.datasource.schema import DIFF, TS, ShardSchema
from shardline.datasource.state import UpperMismatch, expire_leased
from shardline.datasource.write import WriteHandle

__all__ = ["LANE_SHARD", "LaneLog", "Row", "read_lane"]

_log = logging.getLogger(__name__)

LANE_SHARD: Final = "_lane"

_SNAPSHOT: Final = "snapshot"
_LAST_END: Final = TIME_MAX + 1
"""The last end of an interval of times, which is exclusive."""

_TAKEOVERS_MAX: Final = 64
"""Most tries of a take-over while another runtime keeps adding to the order."""

_COLUMNS: Final = pa.schema(
    [
        pa.field("index", pa.int64(), nullable=False),
        pa.field("producer", pa.string(), nullable=False),
        pa.field("sequence", pa.int64(), nullable=False),
        pa.field("epoch", pa.int64(), nullable=False),
        pa.field("at_ms", pa.int64(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("command", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class Row:
    """A row of the lane's shard; `kind` is a command's, or "snapshot" for a whole state."""

    index: int
    producer: str
    sequence: int
    epoch: int
    at_ms: int
    kind: str
    command: str


@dataclass(frozen=True, slots=True)
class _Append:
    """An append in the form in which it can be repeated: its new and retracted rows, its number.

    The number makes the repetition recognisable: with another one the same rows would be a second
    append.
    """

    added: tuple[Row, ...]
    retracted: tuple[Row, ...]
    sequence: int

    @property
    def lower(self) -> int:
        return self.added[0].index

    @property
    def upper(self) -> int:
        return self.added[-1].index + 1


def read_lane(client: ShardClient) -> tuple[LaneState, list[Record]]:
    """Read the state of a location's lane, and the records that are kept; writes nothing.

    Raises:
        InvalidUsage: There is no lane at this location.
        Corrupt: The rows are not what was written.
    """
    return _fold(_rows(client))


class LaneLog:
    """The order of one location. Its methods may be called from any thread.

    As a holder it has two capabilities. The end of the order, where it may append: losing it
    (another runtime has appended) is final, `Fenced`, and this process can only stop. A leased
    reader, by which other processes see that this one lives: losing it stops nothing, but until
    `keep` has taken another one, a runtime that starts elsewhere may take over without force.

    As a follower it has a leased reader from its first `poll` on, by which others see that it
    follows; losing it means that they do not see it until the next `poll`.
    """

    def __init__(self, client: ShardClient, holder: Holder, settings: LaneSettings) -> None:
        """Read the order, as a follower; `open` returns a holder."""
        client.create(
            LANE_SHARD,
            ShardSchema.from_arrow(_COLUMNS),
            key=("index",),
            comment="The order of everything that starts, changes or ends what runs",
        )
        self._client = client
        self._machine = client.machine(LANE_SHARD)
        self._settings = settings
        self._holder = holder
        self._lock = threading.RLock()
        self._writer: WriteHandle = client.writer(LANE_SHARD)
        self._attempts = 0
        self._unresolved: _Append | None = None
        self._fence: Fenced | None = None
        self._fence_look = SharedPoll(self._read_fence)
        self._heartbeat: HolderHeartbeat | None = None
        self._is_closed = False
        self._role: Role = "follower"
        self._kept: deque[Row] = deque()
        self._state = EMPTY_STATE
        self._load()

    @classmethod
    def open(
        cls,
        client: ShardClient,
        holder: Holder,
        settings: LaneSettings | None = None,
        *,
        how: Takeover = "if-free",
    ) -> LaneLog:
        """Open the order of `client`'s location, and become its holder.

        Raises:
            InvalidUsage: `LOCATION_HELD`: another runtime lives, and `how` is not "by-force".
            Determinate: The lane was not taken.
            Indeterminate: It may have been taken.
        """
        log = cls(client, holder, settings or LaneSettings())
        log.take_over(how, {})
        return log

    @property
    def role(self) -> Role:
        return self._role

    @property
    def state(self) -> LaneState:
        return self._state

    def records(self, start: int = 0) -> list[Record]:
        with self._lock:
            kept = [row for row in self._kept if row.index >= start and row.kind != _SNAPSHOT]
        return [_record(row) for row in kept]

    def position(self, producer: str, sequence: int) -> int | None:
        with self._lock:
            wanted = (producer, sequence)
            found = (row.index for row in self._kept if (row.producer, row.sequence) == wanted)
            return next(found, None)

    # -- adding ------------------------------------------------------------------------------

    def append(self, submissions: Sequence[Submission]) -> None:
        with self._lock:
            self._check_held()
            # First: the unresolved append may have these very submissions in it, and the state
            # that `without_repeated` compares them with is the one after it.
            self._resolve()
            # An append of its own: its state is the fold of everything before its position.
            if self._snapshot_due():
                self._commit(self._snapshot_append())
            fresh = without_repeated(self._state, submissions)
            if fresh:
                self._commit(self._append_of(fresh))

    def take_over(self, how: Takeover, epochs: Mapping[str, int]) -> None:
        with self._lock:
            assert self._role == "follower", self._role
            # Not resolved: if an earlier try of ours did land, `_load` finds this process as the
            # holder, and it takes the lane once more, with another epoch.
            self._unresolved = None
            self._load()
            self._refuse_if_held(how)
            purpose = f"the runtime '{self._holder.application}'"
            # The lease comes before the record that names it: a holder without one would look
            # silent to others, and could be replaced without force.
            heartbeat = HolderHeartbeat(
                self._machine, self._client.clock, self._settings.lease_ms, purpose
            )
            try:
                self._append_opened(heartbeat, how, dict(epochs))
            except BaseException:
                heartbeat.stop()
                raise
            # Not before `Opened` is durable: a follower that failed here goes on as one.
            followed, self._heartbeat, self._role = self._heartbeat, heartbeat, "holder"
            heartbeat.start()
            if followed is not None:
                # What is taken stays taken, also if the store does not answer this.
                with suppress(ShardError):
                    followed.stop()

    def renew_lease(self) -> None:
        with self._lock:
            if self._heartbeat is None or not self._heartbeat.is_lost:
                return
            self._check_held()
            # Before the position of `HolderLease` is taken: an unresolved append may stand there.
            self._resolve()
            purpose = f"the runtime '{self._holder.application}'"
            heartbeat = HolderHeartbeat(
                self._machine, self._client.clock, self._settings.lease_ms, purpose
            )
            self._holder = msgspec.structs.replace(self._holder, lease=heartbeat.reader)
            hold = Submission(LANE, self._state.next_sequence(LANE), HolderLease(self._holder))
            try:
                self._commit(self._append_of([hold]))
            except ShardError:
                heartbeat.stop()
                raise
            self._heartbeat = heartbeat
            heartbeat.start()

    def close(self) -> None:
        with self._lock:
            heartbeat, self._heartbeat = self._heartbeat, None
            self._is_closed = True
        # Outside of the lock: it waits for a heartbeat that is under way.
        if heartbeat is not None:
            heartbeat.stop()

    # -- looking -----------------------------------------------------------------------------

    def poll(self) -> None:
        with self._lock:
            assert self._role == "follower", self._role
            self._show_presence()
            if self._machine.state().upper != Frontier(self._state.next_index):
                self._load()

    def _show_presence(self) -> None:
        """Keep a lease by which others see that this process follows."""
        # A lane that did not rest in time polls on: a lease that it took now nobody would give up.
        if self._is_closed or (self._heartbeat is not None and not self._heartbeat.is_lost):
            return
        try:
            self._heartbeat = HolderHeartbeat(
                self._machine,
                self._client.clock,
                self._settings.lease_ms,
                follower_purpose(self._holder),
            )
        except ShardError as error:
            # To follow does not depend on being seen; the next poll tries again.
            _log.info("a follower is not seen", extra={"context": {"error": str(error)}})
        else:
            self._heartbeat.start()

    def check_fence(self) -> None:
        # Every object looks before each of its commits; together they cost one read of the store.
        if self._role == "holder":
            self._fence_look.fresh()

    def _read_fence(self) -> None:
        # Under the lock: an append of our own between the read and the comparison would look like
        # somebody else's. For the same reason an unresolved append is resolved first.
        with self._lock:
            self._check_held()
            self._resolve()
            upper = self._machine.state().upper
            if upper != Frontier(self._state.next_index):
                raise self._fence_error(
                    f"the upper of its lane is {upper}, not [{self._state.next_index}]"
                )

    # -- inside ------------------------------------------------------------------------------

    def _check_held(self) -> None:
        assert self._role == "holder", self._role
        if self._fence is not None:
            # The same each time, and each raise would add its frames to those of the one before.
            raise self._fence.with_traceback(None)

    def _fence_error(self, why: str) -> Fenced:
        """The error of a holder that was replaced; kept, since a fence is final."""
        self._fence = Fenced(
            f"another runtime has taken over {self._client.location.url}: {why}",
            code="RUNTIME_FENCED",
            hint="`status` says which one; this one can only stop",
        )
        return self._fence

    def _refuse_if_held(self, how: Takeover) -> None:
        """Raise if another holder lives, unless it is to be replaced by force."""
        holder, now_ms = self._state.holder, self._client.clock.now_ms()
        ours = holder is not None and holder.token == self._holder.token
        if holder is None or ours or how == "by-force":
            return
        if judge_liveness(holder, self._machine.state(), now_ms) == "alive":
            raise held_error(holder, self._client.location.url, now_ms)

    def _append_opened(
        self, heartbeat: HolderHeartbeat, how: Takeover, epochs: dict[str, int]
    ) -> None:
        """Append `Opened`; if others append first, read again and try at the next position."""
        for _ in range(_TAKEOVERS_MAX):
            former = self._state.holder
            self._holder = msgspec.structs.replace(
                self._holder, lease=heartbeat.reader, since_ms=self._client.clock.now_ms()
            )
            opened = Opened(self._holder, epochs)
            submission = Submission(LANE, self._state.next_sequence(LANE), opened)
            try:
                self._commit(self._append_of([submission], self._state.epoch + 1))
            except Fenced:
                # Refused, but not fenced: this process does not hold the lane yet. Somebody who has
                # taken it meanwhile lives, so that is asked again.
                self._fence = None
                self._load()
                self._refuse_if_held(how)
                continue
            if former is not None:
                # Its lease would hold back the lane's past for as long as it is believed to live.
                # Only after `Opened`: in a race that we lose it would be a living holder's. What is
                # taken stays taken, also if the store does not take this: it ends by itself.
                with suppress(ShardError):
                    self._machine.apply(partial(expire_leased, reader=former.lease))
            return
        raise Determinate(
            f"the lane of {self._client.location.url} could not be taken: somebody was always "
            f"faster, {_TAKEOVERS_MAX} times",
            code="CONTENTION",
            hint="stop the other runtimes, then try again",
        )

    def _append_of(self, submissions: Sequence[Submission], epoch: int | None = None) -> _Append:
        """An append of `submissions` at the next positions; nothing is written yet.

        Raises:
            InvalidUsage: `NOT_RECORDABLE`.
        """
        # Again, whoever has made it: once it is durable, it is too late.
        for submission in submissions:
            check_recordable(submission.command)
        now_ms = self._client.clock.now_ms()
        rows = tuple(
            Row(
                self._state.next_index + i,
                s.producer,
                s.sequence,
                self._state.epoch if epoch is None else epoch,
                now_ms,
                command_kind(s.command),
                msgspec.json.encode(s.command).decode(),
            )
            for i, s in enumerate(submissions)
        )
        self._attempts += 1
        return _Append(rows, (), self._attempts)

    def _snapshot_due(self) -> bool:
        last = next((r.index for r in reversed(self._kept) if r.kind == _SNAPSHOT), -1)
        return self._state.next_index - last > self._settings.snapshot_every

    def _snapshot_append(self) -> _Append:
        """An append of the whole state, which retracts what nobody needs after it.

        Both in one append: between the two the order would have two states, or a gap.
        """
        state, index = self._state, self._state.next_index
        oldest = index - self._settings.keep_records
        text = msgspec.json.encode(state).decode()
        now_ms = self._client.clock.now_ms()
        row = Row(index, LANE, 0, state.epoch, now_ms, _SNAPSHOT, text)
        gone = tuple(r for r in self._kept if r.kind == _SNAPSHOT or r.index < oldest)
        self._attempts += 1
        return _Append((row,), gone, self._attempts)

    def _commit(self, attempt: _Append) -> None:
        """Make `attempt` durable, and fold it.

        Raises:
            Fenced: Somebody else has appended at its position; it is not in the order.
            Determinate: It is not in the order.
            Indeterminate: It may be; kept as `_unresolved`, for `_resolve`.
        """
        lower, upper = Frontier(attempt.lower), Frontier(attempt.upper)
        try:
            outcome = self._writer.compare_and_append(
                _table(attempt), lower, upper, sequence=attempt.sequence
            )
            # A mismatch alone does not prove a fence: the upper may have been moved by an earlier
            # try of this very append, whose answer was lost.
            if isinstance(outcome, UpperMismatch) and not self._is_durable(attempt):
                self._unresolved = None
                raise self._fence_error(f"the upper of its lane is {outcome.current}, not {lower}")
        except Indeterminate:
            # Kept whole: another append at this position could be a second copy of its commands, or
            # take the success of this one for a fence.
            self._unresolved = attempt
            raise
        self._unresolved = None
        # Nothing is folded above this line: effects follow the state, and must not come before the
        # record that they follow from.
        gone = set(attempt.retracted)
        self._kept = deque(row for row in [*self._kept, *attempt.added] if row not in gone)
        state = self._state
        for row in attempt.added:
            if row.kind != _SNAPSHOT:
                state = apply(state, _record(row))
        # A state takes a position of its own.
        self._state = msgspec.structs.replace(state, next_index=attempt.upper)

    def _resolve(self) -> None:
        """Resolve an append whose outcome is unknown: repeat it, which changes nothing if done."""
        if self._unresolved is not None:
            self._commit(self._unresolved)

    def _is_durable(self, attempt: _Append) -> bool:
        """True if exactly these rows are in the shard.

        The shard recognises a repeated append by its number only for a while; after that the rows
        themselves are the proof.
        """
        # An attempt that was never in doubt has been refused; no need to read the whole lane.
        if self._unresolved is None:
            return False
        found = {row.index: row for row in _rows(self._client)}
        return all(found.get(row.index) == row for row in attempt.added)

    def _load(self) -> None:
        """Replace what is known by what the shard has."""
        rows = _rows(self._client)
        self._state, _ = _fold(rows)
        self._kept = deque(rows)


def _rows(client: ShardClient) -> list[Row]:
    """All rows of the lane's shard, by their positions."""
    if client.state(LANE_SHARD).upper == Frontier(0):
        return []
    with client.reader(LANE_SHARD, purpose="reads the lane") as reader:
        table = reader.snapshot()
    return sorted((Row(**row) for row in table.to_pylist()), key=lambda row: row.index)


def _fold(rows: Sequence[Row]) -> tuple[LaneState, list[Record]]:
    """The state after `rows`, and the records among them.

    Raises:
        Corrupt: There is a gap after the newest state, or a row that cannot be read.
    """
    start = max((i for i, row in enumerate(rows) if row.kind == _SNAPSHOT), default=None)
    state = EMPTY_STATE
    if start is not None:
        state = msgspec.json.decode(rows[start].command, type=LaneState)
        state = msgspec.structs.replace(state, next_index=rows[start].index + 1)
    for row in rows if start is None else rows[start + 1 :]:
        if row.index != state.next_index:
            raise Corrupt(
                f"the lane has no record {state.next_index}: the next one is {row.index}",
                code="LANE_GAP",
                hint="nothing but the runtime may write its shard",
            )
        state = apply(state, _record(row))
    return state, [_record(row) for row in rows if row.kind != _SNAPSHOT]


def _record(row: Row) -> Record:
    """The record of a row.

    Raises:
        Corrupt: `LANE_RECORD`: its command cannot be read.
    """
    try:
        command = msgspec.convert(_bounded(msgspec.json.decode(row.command)), type=LaneCommand)
    except msgspec.MsgspecError as error:
        raise Corrupt(
            f"record {row.index} of the lane, a '{row.kind}' of {row.producer}, cannot be read: "
            f"{error}",
            code="LANE_RECORD",
            hint="if a newer version has recorded it, start that version; nothing but the runtime "
            f"may write the shard {LANE_SHARD}",
        ) from error
    return Record(
        index=row.index,
        producer=row.producer,
        sequence=row.sequence,
        epoch=row.epoch,
        at_ms=row.at_ms,
        command=command,
    )


def _bounded(command: Any) -> Any:
    """A command as decoded, the end of a subscription no later than a time can be.

    Former versions recorded `UP TO` of any number, and could read none of those that are later than
    any time. Such an end and the greatest time say the same: everything.
    """
    match command:
        case {"description": {"type": "subscribe", "up_to": int(up_to)}} if up_to > _LAST_END:
            command["description"]["up_to"] = _LAST_END
    return command


def _table(attempt: _Append) -> pa.Table:
    """The updates of an append, retractions included."""
    rows = [(row, row.index, 1) for row in attempt.added]
    # At the append's own time, not at that of the row: that time is below the upper.
    rows += [(row, attempt.lower, -1) for row in attempt.retracted]
    columns: dict[str, list[Any]] = {
        name: [getattr(row, name) for row, _, _ in rows] for name in _COLUMNS.names
    }
    columns[TS] = [ts for _, ts, _ in rows]
    columns[DIFF] = [diff for _, _, diff in rows]
    schema = _COLUMNS.append(pa.field(TS, pa.int64())).append(pa.field(DIFF, pa.int64()))
    return pa.Table.from_pydict(columns, schema=schema)

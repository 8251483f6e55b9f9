"""Replay rebuilds states of a shard from the stored records and rollups of its log.

Most records hold only a difference, so a state must be put together. A whole state is in a rollup,
in the first record of a shard and in a tombstone. Every other state is one of those with the
records after it applied.

Nothing here changes or remembers anything. The state found may be behind the shard, and an object
that is not found may have been collected meanwhile or lost. Of the newest state that is settled
here; of others callers decide, as only they know what must still be there
(`shardline.datasource.shard.state_history`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from shardline.datasource.errors import Corrupt, MissingBlob
from shardline.datasource.shard.codec import Record, apply_diff, decode_record, decode_rollup
from shardline.datasource.shard.state import RollupRef, ShardState
from shardline.datasource.stores.location import Location, VersionedData
from shardline.datasource.stores.shard_names import shard_directory

__all__ = ["SCAN_MAX", "LogReader"]

SCAN_MAX: Final = 4096
"""The most records that one scan of the log reads."""

_RELOADS_MAX: Final = 8
"""How many cold reads in a row may find their rollup gone. Each one means that the shard moved on
by `rollup_every` records meanwhile, so more than a few mean that the state is damaged."""


@dataclass(frozen=True, slots=True)
class LogReader:
    """Reads the log and the rollups of one shard.

    Attributes:
        name: The shard's name, for errors.
        location: Where the shard is stored.
        directory: The shard's directory below the location.
    """

    name: str
    location: Location
    directory: str

    def decode(self, data: VersionedData) -> Record:
        """The record in an entry of the log.

        Raises:
            Corrupt: It is damaged, or its number is not that of its place in the log.
            InvalidUsage: It was written by a version that is too new for this code.
        """
        what = f"record {data.seqno} of shard '{self.name}'"
        record = decode_record(data.data, what)
        if record.seqno != data.seqno:
            raise Corrupt(
                f"{what} says that it is record {record.seqno}",
                code="CORRUPT_STATE",
                hint="the log was changed by something else than a shard's writers",
            )
        return record

    def record(self, seqno: int) -> Record | None:
        """The record with this number; None if it is not written yet, or was truncated."""
        found = self.location.consensus.scan(self.directory, seqno, 1)
        return self.decode(found[0]) if found and found[0].seqno == seqno else None

    def rollup(self, seqno: int, ref: RollupRef) -> ShardState | None:
        """The state at `seqno`, read from its rollup; None if the blob is not there.

        Raises:
            Corrupt: The blob is damaged, or holds the state at another seqno.
        """
        data = self.location.blob.get(ref.key)
        if data is None:
            return None
        state = decode_rollup(data, f"rollup '{ref.key}'")
        if state.seqno != seqno:
            raise Corrupt(
                f"rollup '{ref.key}' holds the state at seqno {state.seqno}, not {seqno}",
                code="CORRUPT_STATE",
                hint="another file was put in its place: restore it from a backup",
            )
        return state

    def starting_state(self, record: Record) -> ShardState | None:
        """The whole state that `record` names as its start; None if it is not there any more.

        Raises:
            Corrupt: It is damaged; or the log is that of another shard (`NAME_MISMATCH`).
        """
        if record.state is not None:
            return self._checked_name(record.state)
        if record.rollup is not None:
            seqno, ref = record.rollup
            # Before it is read: of a directory that was moved it is not there, and the error would
            # say that it is lost.
            if not ref.key.startswith(f"{self.directory}/"):
                raise self._name_mismatch(ref.key.partition("/")[0])
            state = self.rollup(seqno, ref)
            return None if state is None else self._checked_name(state)
        base = self.record(record.base)
        return None if base is None or base.state is None else self._checked_name(base.state)

    def states_after(self, state: ShardState, until: int | None = None) -> Iterator[ShardState]:
        """The states that follow `state`, one for each record.

        Args:
            state: A state of the shard.
            until: Seqno of the last state wanted; None for all there are.

        Returns:
            States without gaps. Ends early where a record is missing: a caller that needs `until`
            compares it with the seqno of the last state.
        """
        return (after for after, _ in self.steps_after(state, until))

    def steps_after(
        self, state: ShardState, until: int | None = None
    ) -> Iterator[tuple[ShardState, Record]]:
        """As `states_after`, each state with the record that makes it."""
        while until is None or state.seqno < until:
            wanted = SCAN_MAX if until is None else min(SCAN_MAX, until - state.seqno)
            records = self.location.consensus.scan(self.directory, state.seqno + 1, wanted)
            if records and records[0].seqno != state.seqno + 1:
                return
            for data in records:
                record = self.decode(data)
                state = apply_diff(state, record)
                yield state, record
            if len(records) < wanted:
                return

    def replay_from(self, state: ShardState, until: int | None = None) -> ShardState:
        """The last of `states_after`, or `state` itself if there is none."""
        for after in self.states_after(state, until):
            state = after
        return state

    def newest(self) -> tuple[ShardState, str] | None:
        """The newest state and the token of its record; None if the log is empty.

        Raises:
            MissingBlob: A rollup or a record that must be there is not: the store lost it.
        """
        missing = ""
        for _ in range(_RELOADS_MAX):
            # A collector may delete between any two of these reads. It deletes a rollup only after
            # a record names a newer one, so a fresh head leads to objects that are still there;
            # missing objects are an error only if that fails again and again.
            head = self.location.consensus.head(self.directory)
            if head is None:
                return None
            record = self.decode(head)
            state = self.starting_state(record)
            if state is None:
                missing = record.rollup[1].key if record.rollup else f"record {record.base}"
                continue
            # May go beyond the head, by records written meanwhile. If it ends before the head, a
            # record between is missing.
            token = record.token
            for after, last in self.steps_after(state):
                state, token = after, last.token
            if state.seqno >= head.seqno:
                return state, token
            missing = f"the record after seqno {state.seqno}"
        raise MissingBlob(
            f"the state of shard '{self.name}' needs {missing}, which is not there",
            code="MISSING_STATE",
            hint="run inspect and restore it from a backup; nothing was changed",
        )

    def _checked_name(self, state: ShardState) -> ShardState:
        # A copy of a shard's directory has a log that can be read, and its states name the blobs of
        # the original. Opened as a shard, its garbage would be the original's rows; and its own
        # blobs, which no state names, would be orphans.
        if state.name != self.name:
            raise self._name_mismatch(shard_directory(state.name))
        return state

    def _name_mismatch(self, directory: str) -> Corrupt:
        return Corrupt(
            f"directory '{self.directory}' at {self.location.url} is not that of a shard "
            f"'{self.name}': its log is that of the shard in '{directory}'",
            code="NAME_MISMATCH",
            hint=f"a copy or a backup has its place outside of the location: move the directory "
            f"there; if it was renamed, name it '{directory}' again",
        )

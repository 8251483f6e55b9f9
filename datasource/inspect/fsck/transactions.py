"""Checks registered shards: their transactions shard, and updates that are not applied yet.

Updates that were committed for a shard and are not applied yet are named by a row of its
transactions shard only: their parts are in the shard's own directory, and none of its states names
them. Without this check, their loss would be found only when every reader of the shard fails. So
it is with the rows of the transactions shard: each new reader of a registered shard needs them all.

Where one of the two was restored from a copy and the other was not, both are whole, and what was
committed since that copy is lost all the same: so they are compared. And a data shard that is gone
has no directory that could be checked: only the rows of its transactions shard tell of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec

from shardline.datasource.errors import Corrupt, InvalidUsage, MissingBlob, ShardError
from shardline.datasource.frontier import Frontier
from shardline.datasource.inspect.fsck.findings import Findings, ShardCheck
from shardline.datasource.inspect.fsck.log import ShardObjects
from shardline.datasource.inspect.fsck.parts import check_exists, examine_parts, stored_sizes
from shardline.datasource.inspect.fsck.shard import CheckedShard, check_shard
from shardline.datasource.inspect.fsck.states import schemas_of
from shardline.datasource.read import contents_in
from shardline.datasource.shard.batch import Part, stamp_time
from shardline.datasource.shard.state import Registration, ShardState, is_tombstone
from shardline.datasource.stores.blob import ObjectBlob
from shardline.datasource.stores.entry import may_have_entries
from shardline.datasource.stores.objects import Objects
from shardline.datasource.stores.shard_names import shard_directory
from shardline.datasource.transactions.ledger import Ledger, live_and_retracted
from shardline.datasource.transactions.loss import is_lost
from shardline.datasource.transactions.rows import Row
from shardline.datasource.types.schema import ShardSchema

__all__ = ["TransactionsCheck"]

_LOOKS_MAX: Final = 16
"""Reads of the rows in a row during which parts of the transactions shard may be collected."""

_GONE: Final = frozenset({"TXNS_PART_MISSING", "PART_MISSING"})
"""Findings of a part that is not there, before or while it is read."""


@dataclass(frozen=True, slots=True)
class TransactionsCheck:
    """Completes the checks of shards of one location.

    Attributes:
        objects: The store.
        states: Newest states of the shards that were checked, by name.
        deep: Decode the parts that are not applied yet and compare their rows with the row that
            describes them.
    """

    objects: Objects
    states: Mapping[str, ShardState]
    deep: bool
    _ledgers: dict[str, Ledger | ShardError] = field(default_factory=dict)
    _retracted: dict[str, Ledger] = field(default_factory=dict)

    def with_transactions(self, checked: CheckedShard) -> ShardCheck:
        """The check of a shard, with findings about its transactions added.

        Raises:
            Determinate: The store did not answer.
        """
        state = checked.state
        mark = None if state is None else state.registered
        if state is None or mark is None or is_tombstone(state):
            return checked.check
        found = Findings({(f.code, f.subject): f for f in checked.check.findings})
        if mark.shard == state.shard:
            self._check_registered(state, found)
        else:
            self._check_mark(state, mark, found)
        return msgspec.structs.replace(checked.check, findings=found.sorted())

    def _check_mark(self, state: ShardState, mark: Registration, found: Findings) -> None:
        """Check a data shard by the transactions shard that it is registered with."""
        txns = self.states.get(mark.txns)
        if txns is None or is_lost(mark, txns):
            # Not part of this check, or not readable, or made since it was looked at.
            looked = self._look(mark.txns)
            txns = looked.state
            if txns is None:
                _add_unknown(mark, looked, found)
                return
        if is_lost(mark, txns):
            found.add("TXNS_OTHER", mark.txns, _other(mark, txns))
        elif txns.shard == mark.shard and not is_tombstone(txns):
            self._check_ledger(state, txns, found)
        # Otherwise registering was interrupted, and that one was dropped: nothing was committed
        # for the shard, and who registers it again, or forgets it, takes the mark away.

    def _check_registered(self, txns: ShardState, found: Findings) -> None:
        """Check a transactions shard by the data shards that it has rows for."""
        ledger = self._ledger_of(txns)
        if isinstance(ledger, ShardError):
            return  # what is wrong with it is found by its own parts
        rows = [row for row in ledger.rows.values() if self._is_amiss(row, self.states)]
        if not rows:
            return
        # What was looked at may be hours old. A row that is there before a look at its shard and
        # after it is of a shard that must have been there.
        seen = {name: self._state(name) for name in {row.name for row in rows}}
        now = self._state(txns.name)
        later = None if now is None else self._ledger(now)
        if not isinstance(later, Ledger):
            return
        for row in rows:
            if row.id not in later.rows or not self._is_amiss(row, seen):
                continue
            state = seen[row.name]
            if state is not None and state.shard == row.shard:
                detail = f"shard '{row.name}' is registered since {row.at}, and does not say so"
                found.add("SHARD_BEHIND_TXNS", row.name, detail)
            else:
                detail = f"shard '{row.name}', for which it has a row of {row.at}, is not there"
                found.add("REGISTERED_SHARD_MISSING", row.name, detail)

    def _is_amiss(self, row: Row, states: Mapping[str, ShardState | None]) -> bool:
        """True if the shard of `row` is not there; or registered, and unmarked or another one."""
        state = states.get(row.name)
        if state is not None:
            is_it = state.shard == row.shard and state.registered is not None
            return row.kind == "register" and not is_it
        return not may_have_entries(self.objects, f"{shard_directory(row.name)}/log/")

    def _check_ledger(self, state: ShardState, txns: ShardState, found: Findings) -> None:
        ledger = self._ledger_of(txns)
        if isinstance(ledger, ShardError):
            # Said of this shard and not only of that one: it may be the only one that is checked.
            detail = f"it is registered with '{txns.name}', whose rows cannot be read"
            found.add("TXNS_UNREADABLE", txns.name, f"{detail}: {ledger.detail}")
            return
        self._check_upper(state, ledger, txns.name, found)
        self._check_pending(state, ledger.pending(state.shard), found)
        self._check_retracted(state, txns.name, found)

    def _check_retracted(self, state: ShardState, name: str, found: Findings) -> None:
        """Find rows that were applied to the shard, so retracted, and that it does not have."""
        retracted = self._retracted[name].pending(state.shard)
        lacks = [row for row in retracted if not state.upper.is_beyond(row.at)]
        # The shard may have been read before the newest row was applied to it.
        if lacks and not self._is_applied(lacks[-1]):
            detail = (
                f"{len(lacks)} rows of '{name}', of {lacks[0].at} to {lacks[-1].at}, were applied "
                f"to the shard, and it has only what was committed before {state.upper.time}"
            )
            found.add("SHARD_BEHIND_TXNS", name, detail)

    def _check_upper(self, state: ShardState, ledger: Ledger, name: str, found: Findings) -> None:
        """Find a transactions shard that has forgotten what was committed for the shard."""
        if state.upper <= Frontier(ledger.upper):
            return
        # The ledger may have been read before the state: one that is read now counts.
        txns = self._state(name)
        now = None if txns is None else self._ledger(txns)
        if not isinstance(now, Ledger) or state.shard not in now.registered:
            return
        if state.upper > Frontier(now.upper):
            detail = (
                f"it is registered with '{name}', which is complete up to {now.upper}, and has "
                f"itself what was committed before {state.upper.time}"
            )
            found.add("TXNS_BEHIND", name, detail)

    def _check_pending(self, state: ShardState, pending: Sequence[Row], found: Findings) -> None:
        for row in pending:
            if row.data is None or state.upper.is_beyond(row.at):
                continue
            try:
                runs = stamp_time(row.commit().runs, row.at)
            except Corrupt as error:
                found.add("TXNS_ROW_DAMAGED", row.id, error.detail)
                continue
            wrong = self._check_parts(state, row, [part for run in runs for part in run.parts])
            # The row may have been applied, and the part merged and collected, since the state was
            # read: only a state that still lacks the row makes the part a missing one. Nothing else
            # that is wrong with a part is a matter of the moment.
            if any(code in _GONE for code, _ in wrong.found) and self._is_applied(row):
                wrong = wrong.without(_GONE)
            found.take(wrong)

    def _check_parts(self, state: ShardState, row: Row, parts: Sequence[Part]) -> Findings:
        """Findings about the parts of a row, as it would be applied."""
        found = Findings()
        sizes = stored_sizes(self.objects, parts)
        there = []
        with found.note_with(f"committed at {row.at} and not applied"):
            for part in parts:
                if part.inline is None and part.key not in sizes:
                    detail = f"part '{part.key}' ({part.rows} rows) is not there"
                    found.add("TXNS_PART_MISSING", part.key, detail)
                elif check_exists(part, sizes, found):
                    there.append(part)
            if self.deep:
                schemas = self._schemas(state, there)
                for facts in examine_parts(ObjectBlob(self.objects), there, schemas, state.key):
                    found.take(facts.found)
        return found

    def _schemas(self, state: ShardState, parts: Sequence[Part]) -> Mapping[int, ShardSchema]:
        """Schemas of the data shard: with those of `parts`, which may be newer than its state."""
        if any(part.schema not in state.schemas for part in parts):
            state = self._state(state.name) or state
        return schemas_of(state, Findings())

    def _is_applied(self, row: Row) -> bool:
        """True if the data shard has the row by now, or is another one."""
        now = self._state(row.name)
        return now is not None and (now.shard != row.shard or now.upper.is_beyond(row.at))

    def _ledger_of(self, txns: ShardState) -> Ledger | ShardError:
        """As `_ledger`, once for all shards of a check."""
        if txns.name not in self._ledgers:
            self._ledgers[txns.name] = self._ledger(txns)
        return self._ledgers[txns.name]

    def _ledger(self, txns: ShardState) -> Ledger | ShardError:
        """The ledger of `txns`; or why no reader can read it."""
        failure: ShardError | None = None
        for _ in range(_LOOKS_MAX):
            try:
                contents = contents_in(ObjectBlob(self.objects), txns)
                live, retracted = live_and_retracted(contents, txns, 0, {})
                upper = txns.upper.time or 0
                self._retracted[txns.name] = Ledger.of(txns.shard, upper, retracted)
                return Ledger.of(txns.shard, upper, live)
            except MissingBlob as error:
                # Where the shard has moved since its state was read, which may be hours ago, the
                # part may have been merged and collected.
                failure = error
                now = self._state(txns.name)
                if now is None or now.shard != txns.shard or now.seqno == txns.seqno:
                    break
                txns = now
            except (Corrupt, InvalidUsage) as error:
                return error
        assert failure is not None
        return failure

    def _state(self, name: str) -> ShardState | None:
        return self._look(name).state

    def _look(self, name: str) -> CheckedShard:
        return check_shard(ShardObjects(self.objects, shard_directory(name)), deep=False)


def _add_unknown(mark: Registration, looked: CheckedShard, found: Findings) -> None:
    """Say why there is no state of a transactions shard: it need not be lost."""
    detail = f"it is registered with '{mark.txns}'"
    codes = {finding.code for finding in looked.check.findings}
    if not looked.head:
        found.add("TXNS_MISSING", mark.txns, f"{detail}, which is not there")
    elif "NEWER_VERSION" in codes:
        found.add("TXNS_NEWER_VERSION", mark.txns, f"{detail}, which newer code has written to")
    else:
        wrong = ", ".join(sorted(codes))
        found.add("TXNS_UNREADABLE", mark.txns, f"{detail}, whose state cannot be made: {wrong}")


def _other(mark: Registration, txns: ShardState) -> str:
    return f"it is registered with '{mark.txns}' {mark.shard}, and that is now {txns.shard}"

"""Bugs planted on purpose: what the simulation must find, or it is worth nothing.

Each one is a change to the real code while a run lasts: a check left out, an order turned round, a
boundary moved by one. Most of them have happened, to us or to those that we learn from.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from shardline.datasource.errors import ShardError
from shardline.datasource.frontier import Frontier
from shardline.datasource.lease import Lease
from shardline.datasource.maintenance import orphan_sweep as sweep
from shardline.datasource.parts import stage
from shardline.datasource.shard import group_commit, state
from shardline.datasource.shard.commands import append, garbage_collection, readers, rollups
from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.machine import Machine
from shardline.datasource.shard.trace import downgrade
from shardline.datasource.shard_source import choose_end
from shardline.datasource.shard_source.descs import first_time
from shardline.datasource.shard_source.holds import StreamHolds
from shardline.datasource.stores.log import NumberedLog
from shardline.datasource.transactions import applier
from shardline.datasource.transactions.ledger import LedgerReader
from shardline.datasource.transactions.transaction import Transaction

__all__ = ["BUGS", "Bug", "planted"]


@dataclass(frozen=True)
class Bug:
    """One way to be wrong.

    Attributes:
        name: What is wrong.
        changes: Pairs of where and what: an attribute of a class or module, or a name that is
            replaced in every module that has imported it.
        theme: The kind of world that it is looked for in.
        seeds: Within how many seeds it must be found: several times what it takes.
        first: The seed to begin with: one that has found it saves the way there. Those before it
            come last.
    """

    name: str
    changes: Callable[[], list[tuple[Any, str, Any]]]
    theme: str
    seeds: int
    first: int = 0

    def order(self) -> list[int]:
        """All its seeds, in the order in which they are to be tried."""
        return [*range(self.first, self.seeds), *range(self.first)]


@contextlib.contextmanager
def planted(bug: Bug) -> Iterator[None]:
    """The code has `bug`."""
    changes = bug.changes()
    before = [getattr(where, name) for where, name, _ in changes]
    for where, name, value in changes:
        setattr(where, name, value)
    try:
        yield
    finally:
        for (where, name, _), value in zip(changes, before, strict=True):
            setattr(where, name, value)


def everywhere(original: Callable[..., Any], changed: Any) -> list[tuple[Any, str, Any]]:
    """Replaces a function in its module and wherever it was imported by name."""
    name = original.__name__
    return [
        (module, name, changed)
        for key, module in list(sys.modules.items())
        if key.startswith("shardline.datasource") and getattr(module, name, None) is original
    ]


def edited(where: type, name: str, old: str, new: str) -> list[tuple[Any, str, Any]]:
    """Changes one place in the text of a method."""
    original = getattr(where, name)
    text = textwrap.dedent(inspect.getsource(original))
    assert text.count(old) == 1, f"{where.__name__}.{name} says '{old}' {text.count(old)} times"
    names = dict(vars(sys.modules[where.__module__]))
    exec(text.replace(old, new), names)  # noqa: S102 - our own text, but for a word
    return [(where, name, names[name])]


# --- the log -------------------------------------------------------------------------------------


def _floor_unchecked() -> list[tuple[Any, str, Any]]:
    return [(NumberedLog, "_is_above_floor", lambda _self, _shard, _seqno: True)]


def _grace_unwaited() -> list[tuple[Any, str, Any]]:
    def delete(self: NumberedLog, shard: str) -> int:
        grace, self._grace_ms = self._grace_ms, -1.0
        try:
            return original(self, shard)
        finally:
            self._grace_ms = grace

    original = NumberedLog._delete_below_floor
    return [(NumberedLog, "_delete_below_floor", delete)]


def _refusals_stale() -> list[tuple[Any, str, Any]]:
    def run(group: Any, old: state.ShardState, now_ms: int) -> Any:
        new, answers, _ = original(group, old, now_ms)
        return new, answers, False  # as if nobody had been refused anything

    original = group_commit.run_all
    return everywhere(original, run)


def _refusal_as_proof() -> list[tuple[Any, str, Any]]:
    counted = "refusals = refusals + 1 if refusal is not None else 0"
    return edited(
        NumberedLog,
        "_create_and_resolve",
        counted,
        "if refusal is not None:\n            raise refusal",
    )


def _damage_escapes() -> list[tuple[Any, str, Any]]:
    caught = "except ShardError as error"
    return edited(
        NumberedLog, "_create_and_resolve", caught, "except (Determinate, InvalidUsage) as error"
    )


# --- appends -------------------------------------------------------------------------------------


def _writers_forgotten() -> list[tuple[Any, str, Any]]:
    def expire(old: state.ShardState, now_ms: int) -> state.ShardState:
        new = original(old, now_ms)
        known = {
            name: writer
            for name, writer in new.writers.items()
            if writer.heartbeat_ms + 10_000 >= now_ms
        }
        return (
            new if len(known) == len(new.writers) else msgspec.structs.replace(new, writers=known)
        )

    original = state.expire_leases
    return everywhere(original, expire)


def _upper_before_identity() -> list[tuple[Any, str, Any]]:
    def compare(old: state.ShardState, now_ms: int, *, append: Any) -> Transition[Any]:
        if append.lower is not None and append.lower != old.upper:
            return Transition(None, UpperMismatch(append.lower, old.upper))
        return original(old, now_ms, append=append)

    original, UpperMismatch = append.compare_and_append, append.UpperMismatch  # noqa: N806
    return everywhere(original, compare)


# --- holds ---------------------------------------------------------------------------------------


def _hold_at_frontier() -> list[tuple[Any, str, Any]]:
    def advance(self: StreamHolds, time: int) -> None:
        original(self, time + 1)

    original = StreamHolds.advance
    return [(StreamHolds, "advance", advance)]


def _listen_at_frontier() -> list[tuple[Any, str, Any]]:
    def lower(self: Lease, since: Frontier, seqno: int) -> None:
        original(self, since if since.time is None else Frontier(since.time + 1), seqno)

    original = Lease.downgrade
    return [(Lease, "downgrade", lower)]


def _plan_before_lease() -> list[tuple[Any, str, Any]]:
    def protect(self: StreamHolds, since: int) -> state.ShardState:
        planned = self.machine.state()
        original(self, since)
        return planned

    original = StreamHolds.protect
    return [(StreamHolds, "protect", protect)]


def _owners_unfenced() -> list[tuple[Any, str, Any]]:
    def owned(old: state.ShardState, reader: str, epoch: str) -> Any:
        del epoch
        return old.critical.get(reader) or readers.HoldMissing()

    return [(readers, "_owned", owned)]


def _since_beyond_critical() -> list[tuple[Any, str, Any]]:
    def recompute(old: state.ShardState) -> state.ShardState:
        held = [Frontier(reader.since) for reader in old.leased.values()]
        if not held or state.is_tombstone(old):
            return old
        return msgspec.structs.replace(old, trace=downgrade(old.trace, min(held)))

    return [(readers, "_recompute_since", recompute)]


# --- garbage -------------------------------------------------------------------------------------


def _holder_forgotten() -> list[tuple[Any, str, Any]]:
    def seqno_since(old: state.ShardState) -> int:
        holds = sorted(reader.seqno for reader in old.leased.values())
        return holds[1] if len(holds) > 1 else original(old)

    original = state.seqno_since
    return everywhere(original, seqno_since)


def _pins_forgotten() -> list[tuple[Any, str, Any]]:
    def seqno_since(old: state.ShardState) -> int:
        return min((reader.seqno for reader in old.leased.values()), default=old.seqno)

    return everywhere(state.seqno_since, seqno_since)


def _deleted_before_given_up() -> list[tuple[Any, str, Any]]:
    def give_up(old: state.ShardState, now_ms: int, *, seqno: int) -> Transition[int]:
        del now_ms
        return Transition(None, max(seqno, old.gc_seqno))

    return everywhere(garbage_collection.give_up_states, give_up)


def _rollups_revived() -> list[tuple[Any, str, Any]]:
    def add(
        old: state.ShardState, now_ms: int, *, seqno: int, rollup: Any, **_: Any
    ) -> Transition[bool]:
        del now_ms
        if seqno in old.rollups:
            return Transition(None, result=False)
        known = {**old.rollups, seqno: rollup}
        return Transition(msgspec.structs.replace(old, rollups=known), result=True)

    return everywhere(rollups.add_rollup, add)


def _age_ignored() -> list[tuple[Any, str, Any]]:
    return [(sweep, "_is_old", lambda _entry, _before_ms: True)]


def _applied_newest_first() -> list[tuple[Any, str, Any]]:
    def apply(machine: Machine, shard: str, txns: str, commits: list[Any]) -> None:
        original(machine, shard, txns, commits[::-1])

    original = applier._apply
    return [(applier, "_apply", apply)]


def _neighbours_unseen() -> list[tuple[Any, str, Any]]:
    return edited(Transaction, "_judge", "is_beyond(time + 1)", "is_beyond(time + 2)")


def _ledger_read_on() -> list[tuple[Any, str, Any]]:
    return edited(LedgerReader, "_bring_up_to", "if state.since < Frontier(known.upper)", "if True")


# --- merges --------------------------------------------------------------------------------------


def _unknown_parts_deleted() -> list[tuple[Any, str, Any]]:
    return [(stage, "Determinate", ShardError)]


# --- streams -------------------------------------------------------------------------------------


def _freeze_by_arrival() -> list[tuple[Any, str, Any]]:
    def stop_before(planned: Any, unreadable: Any) -> int | None:
        seen = None
        for part in planned:
            if part.part.key in unreadable:
                return first_time(part) if seen is None else max(seen, first_time(part))
            bounds = part.part.time_bounds
            seen = max(seen or 0, bounds[1] + 1)
        return None

    return [(choose_end, "stop_before", stop_before)]


BUGS: Final = (
    Bug("floor check off", _floor_unchecked, "stalls", 400, 10),
    Bug("records deleted without grace", _grace_unwaited, "stalls", 400),
    Bug("refusals on a stale state", _refusals_stale, "any", 400),
    Bug("a refusal taken for a proof", _refusal_as_proof, "any", 400),
    Bug("damage of a read-back escapes", _damage_escapes, "any", 400),
    Bug("a writer forgotten on expiry", _writers_forgotten, "any", 400, 51),
    Bug("the upper looked at before the writer", _upper_before_identity, "outages", 400, 118),
    Bug("a stream's hold at its frontier", _hold_at_frontier, "pieces", 400),
    Bug("a listener's hold at its frontier", _listen_at_frontier, "any", 400, 39),
    Bug("planned before the lease is taken", _plan_before_lease, "any", 400, 246),
    Bug("owners of a hold not fenced", _owners_unfenced, "any", 400, 27),
    Bug("since moved beyond critical holds", _since_beyond_critical, "any", 400),
    Bug("a leased reader forgotten by gc", _holder_forgotten, "pieces", 400),
    Bug("pins forgotten by gc", _pins_forgotten, "pieces", 400),
    Bug("deleted before given up", _deleted_before_given_up, "pieces", 400),
    Bug("forgotten rollups recorded again", _rollups_revived, "stalls", 400),
    Bug("parts of an unknown outcome deleted", _unknown_parts_deleted, "outages", 400, 20),
    Bug("frozen by order of arrival", _freeze_by_arrival, "losses", 400),
    Bug("a sweep that ignores age", _age_ignored, "outages", 400),
    Bug("transactions applied out of order", _applied_newest_first, "transactions", 400),
    Bug("a change at the next time unseen", _neighbours_unseen, "transactions", 400, 102),
    Bug("a ledger read on beyond since", _ledger_read_on, "transactions", 1000, 417),
)

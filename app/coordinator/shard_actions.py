"""Shard actions do the upkeep of a location for a person in front of a running application.

    actions.compact("orders", commit=False)                what it would do, in sentences
    actions.compact("orders", commit=True)                 done
    actions.expire_hold("orders/reports", commit=False)    a hold is named by its shard and its name

They are the verbs of `admin`, which are safe beside running writers, carried out by the process
that holds the location. It knows more than `admin` does: which holds its own objects live from.
Those are refused, since their owner would fail and might have to begin anew.

Invariants:
    Without `commit` nothing is written, deleted or leased.
    What may have happened is never reported as an error that says it has not.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from shardline.app.admin.plans import CompactPlan
from shardline.app.admin.readers import ExpireReaders
from shardline.app.admin.sentences import DescribedPlan, describe_plan
from shardline.app.admin.upkeep import CollectGarbage, Compact, Sweep
from shardline.app.admin.verb import ChangingVerb, carry_out
from shardline.app.compute.holds import hold_place
from shardline.app.coordinator.change_steps import steps_of
from shardline.app.coordinator.objects import Objects, read_only_error
from shardline.app.execution.hold_owners import HoldOwner, find_hold_owner
from shardline.app.introspection.verdicts.wording import amount, name_of, sentence
from shardline.app.runtime.runtime import Runtime
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.maintainer import MERGE_BYTES
from shardline.datasource.state import ShardState, is_tombstone

__all__ = ["ActionResult", "ShardActions"]

_log = logging.getLogger(__name__)

_MERGES_MAX: Final = MERGE_BYTES
"""Bytes that one action merges: as much as a round of maintenance, beside which objects run."""


@dataclass(frozen=True, slots=True)
class ActionResult:
    """The outcome of an action.

    Attributes:
        says: What it would do, or what it has done, in sentences.
        done: True if it was carried out.
    """

    says: tuple[str, ...]
    done: bool


@dataclass(frozen=True, slots=True)
class ShardActions:
    """See the module. Safe to use from any thread.

    Attributes:
        client: Of the location.
        runtime: Its lane says which objects run.
        objects: Those of the application.
        checkpoints: Folder of the runtime's checkpoints, after which its holds are named.
    """

    client: ShardClient
    runtime: Runtime
    objects: Objects
    checkpoints: Path

    def compact(self, shard: str, *, commit: bool) -> ActionResult:
        """Merge the batches of a shard that are due.

        Raises:
            InvalidUsage: There is no such shard; or, with `commit`, this runtime only follows
                another one.
            Determinate: The store did not answer; without `commit`.
            Indeterminate: It is not known whether it was done, all or in part, or will be.
            ShardError: It failed; or another runtime has taken over.
        """
        verb = Compact(shard, force=False, most_bytes=_MERGES_MAX)
        return self._carry_out(verb, commit=commit, more=_left_merges)

    def collect(self, shard: str, *, commit: bool) -> ActionResult:
        """Delete what nobody can ask for any more; errors as of `compact`."""
        return self._carry_out(CollectGarbage(shard), commit=commit)

    def sweep(self, shard: str, *, commit: bool) -> ActionResult:
        """Delete what crashes have left; errors as of `compact`."""
        return self._carry_out(Sweep(shard), commit=commit)

    def expire_hold(self, target: str, *, commit: bool) -> ActionResult:
        """Give up a hold, whoever owns it.

        Args:
            target: `shard/hold`.
            commit: True to do it.

        Raises:
            InvalidUsage: As of `compact`; or there is no such hold, or `HOLD_IN_USE`: an object of
                this application needs it, or `LEASE_ENDS_ITSELF`: it is a lease.
            Indeterminate: As of `compact`.
            ShardError: As of `compact`.
        """
        shard, hold = self._find_hold(target)
        note = self._check_expirable(hold)
        return self._carry_out(
            ExpireReaders(shard, (hold,)), commit=commit, more=lambda _: [note] if note else []
        )

    def _carry_out(
        self,
        verb: ChangingVerb[Any],
        *,
        commit: bool,
        more: Callable[[Any], list[str]] = lambda _: [],
    ) -> ActionResult:
        if commit:
            self.objects.check_in_charge()
            if self.objects.follows:
                raise read_only_error("it looks after the shards")
        if not commit:
            outcome = carry_out(verb, self.client, commit=False)
            plan = cast("DescribedPlan", outcome.plan)
            return ActionResult((*describe_plan(plan), *more(plan)), done=False)
        hint = "look at the shard, or ask again: to do it twice does no harm"
        with steps_of(f"{verb.name} of '{verb.shard}'", hint):
            outcome = carry_out(verb, self.client, commit=True)
        context = {"action": verb.name, "shard": verb.shard, "result": outcome.result}
        _log.info("a person had an action carried out", extra={"context": context})
        return ActionResult((sentence(f"Done: {outcome.result}"),), done=True)

    # -- holds -----------------------------------------------------------------------------------

    def _find_hold(self, target: str) -> tuple[str, str]:
        """The shard and the hold that a target names; either name may have slashes.

        Raises:
            InvalidUsage: There is none, or more than one; or it is a lease.
        """
        pieces = target.split("/")
        splits = ["/".join(pieces[:at]) for at in range(1, len(pieces))]
        states = {shard: state for shard in splits if (state := self._state(shard)) is not None}
        holds = {shard: target.removeprefix(f"{shard}/") for shard in states}
        found = [shard for shard in states if holds[shard] in states[shard].critical]
        if len(found) == 1:
            return found[0], holds[found[0]]
        for shard, state in states.items():
            if holds[shard] in state.leased:
                raise InvalidUsage(
                    f"'{holds[shard]}' is a lease, of {state.leased[holds[shard]].purpose}",
                    code="LEASE_ENDS_ITSELF",
                    hint="it ends by itself once its owner is silent; `admin LOCATION "
                    "expire-reader` ends one at once",
                )
        if found:
            raise InvalidUsage(
                f"'{target}' names holds of several shards: {', '.join(sorted(found))}",
                code="HOLD_NOT_FOUND",
                hint="use `admin LOCATION expire-reader`, which is given both names",
            )
        known = sorted({hold for state in states.values() for hold in state.critical})
        raise InvalidUsage(
            f"'{target}' names no hold",
            code="HOLD_NOT_FOUND",
            hint=f"write SHARD/HOLD; holds there: {', '.join(known) or 'none'}",
        )

    def _state(self, shard: str) -> ShardState | None:
        try:
            state = self.client.machine(shard).refresh()
        except InvalidUsage:
            return None
        return None if state is None or is_tombstone(state) else state

    def _check_expirable(self, hold: str) -> str:
        """Refuse a hold that an object of this application needs.

        Returns:
            What is known of its owner, as a sentence; "" if nothing is.

        Raises:
            InvalidUsage: `HOLD_IN_USE`: names the object, and what to do.
        """
        owner = find_hold_owner(hold)
        if owner is None or not self._is_ours(owner):
            return "" if owner is None else self._foreign(owner)
        # Read after the hold was seen: an object that has come since then is in it.
        if owner.id in self.runtime.lane.state.paused:
            return (
                f"It belongs to {name_of(owner.id)}, which is paused: resumed, it can go on only "
                "if the history that it needs is still there."
            )
        raise InvalidUsage(
            f"hold '{hold}' belongs to '{owner.id}', which this application keeps running",
            code="HOLD_IN_USE",
            hint=f"pause '{owner.id}' first, or drop it, which gives the hold up",
        )

    def _is_ours(self, owner: HoldOwner) -> bool:
        """True if an object that runs here, or waits to be created, has taken such a hold."""
        if owner.place and owner.place != hold_place(self.checkpoints):
            return False  # of another runtime that runs the same object, or did
        if owner.location not in {"", self.client.location.id}:
            return False
        return owner.id in self._known_objects()

    def _known_objects(self) -> Mapping[str, object]:
        """The objects that run or wait to be created, by name; subscriptions as well."""
        return {**self.runtime.lane.state.objects, **self.objects.waiting()}

    def _foreign(self, owner: HoldOwner) -> str:
        if owner.location not in {"", self.client.location.id}:
            return f"Source {name_of(owner.id)} of another location has taken it."
        if owner.id in self._known_objects():
            return (
                f"Another runtime has taken it for its {name_of(owner.id)}; this one has its own."
            )
        return f"No object {name_of(owner.id)} runs here any more."


def _left_merges(plan: CompactPlan) -> list[str]:
    if sum(step.work_bytes for step in plan.merges) <= _MERGES_MAX:
        return []
    most = f"{amount(_MERGES_MAX)}, with 16 bytes for each row at least,"
    return [f"What is more than {most} stays due: the command `compact` merges it by Spark."]

"""Claims tell maintainers which batches are being merged, so that they merge others.

Without them several processes would spend hours on the same large merge, and all but one of the
results would be thrown away. A claim covers the interval of the batches that are merged. It saves
work and proves nothing: a merge is applied because its inputs are still there (`commands/merge`),
never because of a claim, and a claim that was lost, taken over because of a wrong clock, or never
taken costs at most the work.

All that may be concluded from a claim: its owner was at work less than the claim's lease ago, as
far as clocks agree. One that is not renewed runs out, and its batches are free; so are those of one
that lies further in the future than its lease, by a clock that was wrong.

Invariants:
    When a claim is taken its inputs are in the trace, and no other live claim covers any of them.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from shardline.datasource.shard.batch import Batch
from shardline.datasource.shard.commands.merge import find_batches
from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.description import Description
from shardline.datasource.shard.state import Claim, ShardState, expire_leases

__all__ = [
    "ClaimResult",
    "Claimed",
    "InputsGone",
    "Taken",
    "live_claims",
    "release_claim",
    "take_claim",
]


@dataclass(frozen=True, slots=True)
class Claimed:
    """The range is the caller's, until its lease is over."""


@dataclass(frozen=True, slots=True)
class Taken:
    """Some of the batches are claimed by another merge; `by` is that claim."""

    by: Claim


@dataclass(frozen=True, slots=True)
class InputsGone:
    """The batches are not in the trace any more: there is nothing to merge."""


ClaimResult = Claimed | Taken | InputsGone


def take_claim(
    state: ShardState,
    now_ms: int,
    *,
    name: str,
    inputs: tuple[Batch, ...],
    lease_ms: int,
    purpose: str,
) -> Transition[ClaimResult]:
    """Claim the range of `inputs` as `name`, or renew the claim `name` on it.

    A claim that ran out while its owner was busy is taken again, unless another one was taken.

    Args:
        name: Name of the claim.
        inputs: Neighbouring batches, at least one.
        lease_ms: The claim ends this long after it was last renewed.
        purpose: Who is merging, for people.
    """
    alive = expire_leases(state, now_ms)
    if find_batches(alive, inputs) is None:
        return Transition(None, InputsGone())
    lower, upper = inputs[0].desc.lower, inputs[-1].desc.upper
    for other, held in alive.claims.items():
        if other != name and Description(lower, upper).overlaps(held.lower, held.upper):
            return Transition(None, Taken(held))
    mine = Claim(lower, upper, now_ms, lease_ms, purpose)
    claims = {**alive.claims, name: mine}
    return Transition(msgspec.structs.replace(alive, claims=claims), Claimed())


def release_claim(state: ShardState, now_ms: int, *, name: str) -> Transition[bool]:
    """Give up the claim `name`; False if there is none."""
    del now_ms
    if name not in state.claims:
        return Transition(None, result=False)
    claims = {other: held for other, held in state.claims.items() if other != name}
    return Transition(msgspec.structs.replace(state, claims=claims), result=True)


def live_claims(state: ShardState, now_ms: int) -> tuple[Claim, ...]:
    """The claims that have not run out."""
    return tuple(expire_leases(state, now_ms).claims.values())

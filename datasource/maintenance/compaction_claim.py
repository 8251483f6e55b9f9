"""The claim of a merge under way, as its merger holds it.

    with MergeClaim.on(machine, inputs) as claim:     taken here, given up at the end
        if claim.held:
            … claim.keep() …                          from time to time, as the work goes on

The work renews its own claim. So a merger that hangs, is suspended or was killed loses it, and
another one takes its work up; one that comes back later finds out at its next `keep`, and stops.

Invariants:
    Nothing here can fail a merge: a store that does not answer costs at most the claim. Only
    `Superseded` ends one, when its result could not be applied or somebody else is at it.
    The time of a claim is read inside each attempt to commit it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Final, Self

from shardline.datasource.errors import ShardError
from shardline.datasource.shard.batch import Batch
from shardline.datasource.shard.commands.claims import Claimed, ClaimResult, claim, release
from shardline.datasource.shard.machine import Machine

__all__ = ["CLAIM_LEASE_MS", "MergeClaim", "Superseded"]

_log = logging.getLogger(__name__)

CLAIM_LEASE_MS: Final = 5 * 60 * 1000
"""How long a claim lives without a sign of progress. The longest step of a merge is to write one
part of `part_buffer_bytes`: seconds. What a dead merger left is free after this long."""

_BEATS: Final = 4
"""A claim is renewed this often in its lease."""


class Superseded(Exception):
    """The merge is not worth going on with: its inputs are gone, or somebody else merges them."""


@dataclass(slots=True)
class MergeClaim:
    """A claim on neighbouring batches.

    Attributes:
        name: The claim's in the shard's state.
        held: Whether it was had when last looked at.
    """

    machine: Machine
    inputs: tuple[Batch, ...]
    name: str
    purpose: str
    lease_ms: int = CLAIM_LEASE_MS
    held: bool = False
    _next_ms: float = field(default=0.0)

    @classmethod
    def on(cls, machine: Machine, inputs: tuple[Batch, ...], purpose: str) -> MergeClaim:
        """A claim on `inputs`, to be entered.

        Args:
            purpose: Who merges, for people.
        """
        return cls(machine, inputs, machine.ids.token().hex(), purpose)

    def __enter__(self) -> Self:
        """Try to take it; `held` says whether it worked.

        Raises:
            ShardError: The store did not answer: there is no point in beginning.
        """
        self.held = isinstance(self._claim(), Claimed)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give it up, unless the merge that was applied has done so."""
        if not self.held:
            return
        self.held = False
        try:
            self.machine.apply(partial(release, name=self.name))
        except ShardError:
            _log.info("claim left to run out", exc_info=True, extra=self._context())

    def keep(self) -> None:
        """Renew the claim if a quarter of its lease is over.

        Raises:
            Superseded: The inputs are gone, or somebody else has claimed them.
        """
        if self.machine.clock.elapsed_ms() < self._next_ms:
            return
        try:
            outcome = self._claim()
        except ShardError:
            _log.info("claim not renewed", exc_info=True, extra=self._context())
            return
        if not isinstance(outcome, Claimed):
            self.held = False
            raise Superseded(str(outcome))

    def _claim(self) -> ClaimResult:
        # Also after a failure: a store in trouble is not asked at every table that is merged.
        self._next_ms = self.machine.clock.elapsed_ms() + self.lease_ms / _BEATS
        return self.machine.apply(
            partial(
                claim,
                name=self.name,
                inputs=self.inputs,
                lease_ms=self.lease_ms,
                purpose=self.purpose,
            )
        )

    def _context(self) -> dict[str, object]:
        return {"context": {"shard": self.machine.name, "claim": self.name}}

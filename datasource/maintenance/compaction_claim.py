"""A merge claim keeps other processes from making a merge that is under way.

    with MergeClaim.on(machine, inputs) as claim:     taken here, given up at the end
        if claim.held:
            … claim.keep() …                          from time to time, as the work goes on

It is renewed by the work itself, not by a timer as a lease is: for each table that a merge reads,
and for a Spark job as long as tasks finish (`spark_compaction.job_watch`). A merge that hangs, is
suspended or was killed loses its claim, and another process makes it. One that comes back later
finds out at its next `keep`, and stops.

Invariants:
    No error of the store fails a merge here: it costs at most the claim. Only `Superseded` ends a
    merge, when its result could not be applied or another process is making it.
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
from shardline.datasource.shard.commands.claims import (
    Claimed,
    ClaimResult,
    release_claim,
    take_claim,
)
from shardline.datasource.shard.machine import Machine

__all__ = ["CLAIM_LEASE_MS", "MergeClaim", "Superseded"]

_log = logging.getLogger(__name__)

CLAIM_LEASE_MS: Final = 5 * 60 * 1000
"""Time that a claim lasts without a sign of progress. The longest step of a merge is to sort and
write one part, of `part_buffer_bytes` or, of what was in no order, half of `compact_memory_bytes`:
seconds. The batches of a merge that died are free after this long."""

_BEATS: Final = 4
"""How many times a claim is renewed in the length of its lease."""


class Superseded(Exception):
    """The merge is to be given up: its inputs are gone, or others merge them; or it is stopped."""


@dataclass(slots=True)
class MergeClaim:
    """A claim on neighbouring batches. Losing it costs at most a merge that is made twice.

    Attributes:
        machine: The shard's machine.
        inputs: The batches to be merged.
        name: Name of the claim in the shard's state.
        purpose: Who merges, for people.
        lease_ms: The claim ends this long after it was last renewed.
        held: True if the claim was there when it was last taken or renewed.
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
        """A claim on `inputs`, not taken yet: enter it to take it.

        Args:
            machine: The shard's machine.
            inputs: Neighbouring batches, at least one.
            purpose: Who merges, for people.
        """
        return cls(machine, inputs, machine.ids.token().hex(), purpose)

    def __enter__(self) -> Self:
        """Try to take the claim; `held` is True if that succeeded.

        Raises:
            ShardError: The store did not answer: the merge would not get far either.
        """
        self.held = isinstance(self._claim(), Claimed)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Give up the claim, unless the record that applied the merge has done so."""
        if not self.held:
            return
        self.held = False
        try:
            self.machine.apply(partial(release_claim, name=self.name))
        except ShardError:
            _log.info("claim left to run out", exc_info=True, extra=self._context())

    def keep(self, *, renew: bool = True) -> None:
        """Renew the claim if a quarter of its lease is over.

        Args:
            renew: False only finds out if the merge is to be given up: for one that hangs, as far
                as can be seen.

        Raises:
            Superseded: The inputs are gone, or another process has claimed some of them.
        """
        if self.machine.clock.elapsed_ms() < self._next_ms:
            return
        try:
            outcome = self._claim(renew=renew)
        except ShardError:
            _log.info("claim not renewed", exc_info=True, extra=self._context())
            return
        if not isinstance(outcome, Claimed):
            self.held = False
            raise Superseded(str(outcome))

    def _claim(self, *, renew: bool = True) -> ClaimResult:
        # Set before the request, and so after a failure, too: `keep` is called for every table that
        # is merged, and a store in trouble should not be asked each time.
        self._next_ms = self.machine.clock.elapsed_ms() + self.lease_ms / _BEATS
        take = partial(
            take_claim,
            name=self.name,
            inputs=self.inputs,
            lease_ms=self.lease_ms,
            purpose=self.purpose,
        )
        if not renew:
            return take(self.machine.state(), self.machine.clock.now_ms()).result
        return self.machine.apply(take)

    def _context(self) -> dict[str, object]:
        return {"context": {"shard": self.machine.name, "claim": self.name}}

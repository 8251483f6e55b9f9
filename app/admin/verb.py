"""A verb that changes a shard is one class: its plan, and its deed.

    outcome = carry_out(CollectGarbage("orders"), client, commit=False)      the plan alone
    outcome = carry_out(CollectGarbage("orders"), client, commit=True)       and what became of it

The deeds are the client's own commands, which read the shard again and are safe to repeat, to race
and to interrupt: a plan that is out of date does no harm.

Invariants:
    `plan` writes and deletes nothing, and takes no lease.
    A shard that newer code has written to is refused, by a dry run too.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar

from shardline.app.admin.plans import Outcome, Plan
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import Frontier, meet
from shardline.datasource.state import CODE_VERSION, ShardState, since_bound

__all__ = [
    "ChangingVerb",
    "carry_out",
    "count_text",
    "reachable_since",
    "read_state",
]

P = TypeVar("P", bound=Plan)


class ChangingVerb(ABC, Generic[P]):
    """A verb with its arguments, about one shard.

    Attributes:
        name: Its name on the command line.
        shard: Name of the shard; None for directories that are no shard's.
    """

    name: ClassVar[str]
    shard: str | None

    @abstractmethod
    def plan(self, client: ShardClient) -> P:
        """Find out what the verb would do.

        Raises:
            InvalidUsage: It cannot be done: there is no such shard, or newer code has written to
                it; or an argument is wrong.
        """

    @abstractmethod
    def has_work(self, plan: P) -> bool:
        """True if the plan changes anything."""

    @abstractmethod
    def do(self, client: ShardClient, plan: P) -> str:
        """Do it, and return the result in words.

        Args:
            client: Of the location.
            plan: As it was made right before.

        Raises:
            ShardError: It failed, or was refused.
        """

    def refusal(self, plan: P) -> str:
        """The reason why `do` would be refused, in words; "" if it would not."""
        del plan
        return ""


def carry_out(verb: ChangingVerb[P], client: ShardClient, *, commit: bool) -> Outcome:
    """Make the plan of a verb and, with `commit`, do it.

    Raises:
        ShardError: It failed, or was refused.
    """
    plan = verb.plan(client)
    return Outcome(
        verb=verb.name,
        location=client.location.url,
        shard=verb.shard,
        todo=verb.has_work(plan),
        committed=commit,
        result=verb.do(client, plan) if commit else "",
        plan=plan,
    )


# --- for the verbs -------------------------------------------------------------------------------


def read_state(client: ShardClient, shard: str) -> ShardState:
    """Read a shard's state.

    Raises:
        InvalidUsage: There is no such shard, or newer code has written to it (`NEWER_VERSION`),
            even if its state can be read.
    """
    state = client.machine(shard).state()
    if state.version > CODE_VERSION:
        theirs, ours = (f"{major}.{minor}" for major, minor in (state.version, CODE_VERSION))
        raise InvalidUsage(
            f"shard '{state.name}' was written by state version {theirs}, this code is {ours}",
            code="NEWER_VERSION",
            hint="use the admin command of that version; nothing was changed",
        )
    return state


def reachable_since(state: ShardState) -> int | None:
    """The frontier that a shard's since can move to; None if nobody moves it."""
    bound = since_bound(state)
    if bound is None:
        return None
    upper = state.upper.time
    last = bound if upper is None else Frontier(max(upper - 1, 0))
    return max(state.since, meet((bound, last))).time


def count_text(number: int, one: str, many: str = "") -> str:
    """A number of things: `2 batches`; `many` is their plural if it is not `one` with an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"

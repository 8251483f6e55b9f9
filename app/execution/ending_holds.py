"""Ending holds: a hold ends only while it is the one that was seen, with the owner it had then.

A hold's name says which object it is for, not which process took it: the next holder of the lane
takes the hold over under the same name, when it runs the object again. A runtime that was replaced
without noticing must not end it. A look at the fence alone does not prevent that, since the process
may rest for minutes between the look and the write. So the owners are read before that look, and
the write is refused where one has changed:

    the holds are read with their owners    who takes one over later has another owner's token
    the fence is looked at                  until then nobody else had taken the lane over
    those holds are ended                   one compare-and-set at each shard; others stay

Invariants:
    A shard that is damaged keeps no hold on the others from its end.
    To end a hold again, or one that is gone, changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Final

from shardline.datasource.client import ShardClient
from shardline.datasource.errors import Determinate, Fenced, Indeterminate, ShardError
from shardline.datasource.state import expire_owned, is_tombstone

__all__ = ["TRIED_AGAIN", "allow_any", "do_all", "end_found_holds", "end_holds", "find_holds"]


TRIED_AGAIN: Final = (Fenced, Determinate, Indeterminate)
"""Errors of a store after which the whole is tried again, by this runtime or by another one. After
any other, as of a damaged shard, nobody looks again."""


def allow_any() -> None:
    """A look at the fence for callers that hold what nobody else can take over, or need none."""


def end_holds(
    client: ShardClient,
    shards: Iterable[str],
    ended: Callable[[str], bool],
    check_fence: Callable[[], None] = allow_any,
) -> None:
    """End the holds on `shards` that `ended` is true for, by name, if their owners stay the same.

    Args:
        client: Of the location.
        shards: Those that are gone are left out.
        ended: True for the name of a hold that is to end.
        check_fence: Raises if another runtime may have taken over what the holds are for.

    Raises:
        Fenced: It has: nothing more was ended.
        Determinate: A shard did not answer: the end of the holds is to be tried again.
        Indeterminate: The same.
        ShardError: A shard is damaged, or of a newer version; on the others the holds have ended.
    """

    def end(shard: str) -> None:
        owners = {name: epoch for name, epoch in find_holds(client, shard).items() if ended(name)}
        if owners:
            # After the read, for every shard again: see the module.
            check_fence()
            end_found_holds(client, shard, owners)

    do_all(partial(end, shard) for shard in shards)


def do_all(acts: Iterable[Callable[[], None]]) -> None:
    """Do all of `acts`, each also where one before it has met something that is damaged for good.

    Raises:
        Fenced: At once; nothing more was done.
        Determinate: At once: all of it is to be tried again.
        Indeterminate: The same.
        ShardError: The first other error, after all that could be done.
        OSError: The same.
    """
    errors: list[ShardError | OSError] = []
    for act in acts:
        try:
            act()
        except TRIED_AGAIN:
            # A store that does not answer would be waited for once for each of them, and the whole
            # is repeated anyway.
            raise
        except (ShardError, OSError) as error:
            errors.append(error)
    if errors:
        raise errors[0]


def find_holds(client: ShardClient, shard: str) -> dict[str, str]:
    """The holds on a shard by name, each with the token of its owner; none if it is gone."""
    state = client.machine(shard).refresh()
    if state is None or is_tombstone(state):
        return {}
    return {name: held.epoch for name, held in state.critical.items()}


def end_found_holds(client: ShardClient, shard: str, owners: Mapping[str, str]) -> None:
    """End holds that were found, but for those that another owner has by now."""
    client.machine(shard).apply(partial(expire_owned, owners=owners))

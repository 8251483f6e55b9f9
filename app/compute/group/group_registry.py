"""The group registry knows which view steps in which group; views join when they have caught up.

    groups = get_groups(host)
    groups.ask_to_join(member)       by a view over little data, or that follows its inputs easily
    groups.remove(member)            it has failed, or is too slow
    groups.remove_stopped(member)    it stops

A view belongs to the group of its inputs; a view of views to the group of these, if that depends on
all that it reads. Where it does not, it has a group of its own inputs, in which others may join it.

    flights -> by_carrier -> worst        group (flights):          by_carrier, worst
    flights, planes -> busiest            group (flights, planes):  busiest
    busiest, by_carrier -> both           group (busiest, by_carrier)

A view is brought to where its inputs are before it is a member, by itself: what hydrates or fails
delays nobody. Views over large inputs, and those that call Python, begin with a streaming query of
their own, and come when they follow easily, or never. When a view leaves a group those of its
members that read it belong to another one, since the group no longer waits for it. They ask to move
when that has lasted some seconds: where all views stop one after the other none needs to.

Everything that takes long, such as ending a streaming query, is done by one thread, so that two
moves of a view are never under way at once.

Invariants:
    A view is a member of at most one group.
    A group has a streaming query exactly while it has members, but for the moment of a move.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Final, Protocol
from weakref import WeakKeyDictionary, finalize, ref

from shardline.app.compute.group.view_group import GroupMember, ViewGroup
from shardline.app.execution.host import Host
from shardline.datasource.background import DaemonPool
from shardline.datasource.client import ShardClient

__all__ = ["GroupRegistry", "JoiningMember", "get_groups", "home_of"]

_log = logging.getLogger(__name__)

_registries: WeakKeyDictionary[ShardClient, ref[GroupRegistry]] = WeakKeyDictionary()
"""The registry of each client; its views hold it. Both weakly, as for advancers."""

_registering = threading.Lock()

_ENTER_AT_ONCE: Final = 3
"""Views that are brought to where their inputs are at a time, before they are members. When all
views start, those that are done follow their inputs while the next ones are brought in: of 32 at
once on two cores none was done within a minute."""

_ENTER_PATIENCE_S: Final = 5.0
"""A view waits no longer for those before it, which may take for ever."""

_ENTER_MOST: Final = 16


class JoiningMember(GroupMember, Protocol):
    """A view that may join a group, and leave it."""

    def leave_own_query(self, group: ViewGroup) -> bool:
        """End its own streaming query; False if it cannot be in a group now."""
        ...

    def moved_to(self, group: ViewGroup) -> None:
        """Step in another group from now on."""
        ...

    def start_own_query(self) -> None:
        """Go on by a streaming query of its own; never raises."""
        ...

    def stay(self) -> None:
        """Go on by its own streaming query: no group can take it in now."""
        ...

    @property
    def is_stopped(self) -> bool:
        """True if no step of it will be taken any more."""
        ...


def get_groups(host: Host) -> GroupRegistry:
    """The registry of a runtime, which is identified by its client; the caller keeps it alive."""
    with _registering:
        known = _registries.get(host.client)
        found = None if known is None else known()
        if found is None:
            found = GroupRegistry(host)
            _registries[host.client] = ref(found)
        return found


def home_of(inputs: Sequence[str], members: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The inputs of the group that a view belongs to.

    Args:
        inputs: What the view reads.
        members: The inputs of the group of each view that is in one.
    """
    for home in sorted({members[name] for name in inputs if name in members}):
        if all(name in home or members.get(name) == home for name in inputs):
            return home
    return tuple(sorted(inputs))


class GroupRegistry:
    """The groups of one runtime. May be shared between threads."""

    def __init__(self, host: Host) -> None:
        """There is no group yet.

        Raises:
            RuntimeError: No thread can be started.
        """
        self._host = host
        self._lock = threading.Lock()
        self._groups: dict[tuple[str, ...], ViewGroup] = {}
        self._members: dict[str, tuple[JoiningMember, ViewGroup]] = {}
        self._mover = DaemonPool("view-groups", 1)
        self._enterers = DaemonPool("view-groups-enter", _ENTER_MOST)
        self._entering = threading.BoundedSemaphore(_ENTER_AT_ONCE)
        self._move_lock = threading.Lock()
        self._numbers = count(1)
        # Its threads wait for work for ever, and hold the pools, not the registry.
        for pool in (self._mover, self._enterers):
            finalize(self, pool.close)
            # Not later: who asks to join or has left its own query could not be answered. Here it
            # is the view that starts which fails, and is started again.
            pool.begin()

    def group_of(self, name: str) -> ViewGroup | None:
        """The group of a view; None if it is in none."""
        with self._lock:
            found = self._members.get(name)
            return None if found is None else found[1]

    def ask_to_join(self, member: JoiningMember) -> None:
        """Let a view join its group soon; it goes on by its own query until then."""
        self._mover.run(lambda: self._join(member))

    def remove(self, member: JoiningMember) -> None:
        """Let no step of a view begin any more; does nothing if it is in no group."""
        with self._lock:
            found = self._members.get(member.name)
            # Of the same name may be the next incarnation.
            if found is None or found[0] is not member:
                return
            del self._members[member.name]
        found[1].remove(member)
        self._mover.run(lambda: self._end_if_empty(found[1]))

    def remove_stopped(self, member: JoiningMember) -> None:
        """As `remove`, by a view that stops: its group has ended on return if that was its last.

        What holds an input back must be gone when the last view of it is: it may be dropped next.
        """
        group = self.group_of(member.name)
        self.remove(member)
        if group is not None:
            self._end_if_empty(group)

    def is_misplaced(self, member: JoiningMember) -> bool:
        """True if a view belongs to another group than the one that it is in."""
        with self._lock:
            found = self._members.get(member.name)
            return found is not None and self._inputs_of_group(member) != found[1].inputs

    def ask_to_move(self, member: JoiningMember) -> None:
        """Let a view move to where it belongs, soon."""
        self._mover.run(lambda: self._move(member))

    def ask_to_step(self, member: JoiningMember) -> None:
        """Let a view's group step soon, as its rows come or go by themselves; nothing in none."""
        group = self.group_of(member.name)
        if group is not None:
            self._enterers.run(group.step_by_time)

    def part(self, member: JoiningMember) -> None:
        """Take a view out of its group; it goes on by a streaming query of its own."""
        self.remove(member)
        self._mover.run(member.start_own_query)

    def dissolve(self, group: ViewGroup) -> None:
        """Take all views out of a group whose streaming query has ended; may be repeated."""
        with self._lock:
            left = [member for member, of in self._members.values() if of is group]
        for member in left:
            self.part(member)

    # -- by the mover's thread ---------------------------------------------------------------

    def _join(self, member: JoiningMember) -> None:
        if member.is_stopped:
            return  # or a query would be started for nobody
        with self._move_lock:
            with self._lock:
                home = self._inputs_of_group(member)
                group = self._groups.get(home)
            if group is None or not group.is_active():
                group = self._started(home)
            if group is not None and member.leave_own_query(group):
                self._enter(member, group)
        if group is None:
            member.stay()
        else:
            self._end_if_empty(group)

    def _enter(self, member: JoiningMember, group: ViewGroup) -> None:
        with self._lock:
            self._members[member.name] = member, group
        if member.is_stopped:
            # It has stopped after it said that it would come: nobody else removes it.
            self.remove(member)
        else:
            self._enterers.run(lambda: self._bring_in(member, group))

    def _bring_in(self, member: JoiningMember, group: ViewGroup) -> None:
        try:
            self._add(member, group)
        except Exception:
            # Else it would be a member that never steps: its own query has ended.
            if self._is_member(member, group):
                self.part(member)
            raise

    def _add(self, member: JoiningMember, group: ViewGroup) -> None:
        """Bring a view to where its inputs are, and then into the group, unless it has left."""
        # What it has to do first may be much, which no other view waits for; or may fail.
        taken = self._entering.acquire(timeout=_ENTER_PATIENCE_S)
        try:
            group.catch_up(member)
        finally:
            if taken:
                self._entering.release()
        if self._is_member(member, group):
            group.add(member, lambda: self._is_member(member, group))

    def _is_member(self, member: JoiningMember, group: ViewGroup) -> bool:
        with self._lock:
            return self._members.get(member.name) == (member, group)

    def _started(self, home: tuple[str, ...]) -> ViewGroup | None:
        with self._lock:
            ended = self._groups.pop(home, None)
        if ended is not None:
            # It has ended by itself, or nobody would have asked for another one. Before that one
            # starts: groups of the same inputs have one name for their hold, so the end of this
            # one would take the hold of the next away.
            ended.stop()
        group = ViewGroup(self._host, home, next(self._numbers))
        try:
            group.start()
        except Exception as error:  # noqa: BLE001 - its views go on by queries of their own
            _log.warning("a group did not start", exc_info=error)
            group.stop()
            return None
        with self._lock:
            self._groups[home] = group
        return group

    def _move(self, member: JoiningMember) -> None:
        """Move a member to where it belongs now."""
        with self._move_lock:
            with self._lock:
                found = self._members.get(member.name)
                if found is None or found[0] is not member:
                    return
                left, home = found[1], self._inputs_of_group(member)
                if home == left.inputs:
                    return
                del self._members[member.name]
                target = self._groups.get(home)
            left.remove(member)
            if target is None or not target.is_active():
                target = self._started(home)
            if target is not None:
                member.moved_to(target)
                self._enter(member, target)
        if target is None:
            member.start_own_query()
        self._end_if_empty(left)

    def _inputs_of_group(self, member: JoiningMember) -> tuple[str, ...]:
        """The inputs of the group that a view belongs to; under the lock."""
        homes = {name: group.inputs for name, (_, group) in self._members.items()}
        return home_of(member.inputs, homes)

    def _end_if_empty(self, group: ViewGroup) -> None:
        # Under the lock of moves: a view that is on its way to the group is no member yet.
        with self._move_lock:
            with self._lock:
                if any(of is group for _, of in self._members.values()):
                    return
                if self._groups.get(group.inputs) is group:
                    del self._groups[group.inputs]
            group.stop()

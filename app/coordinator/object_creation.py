"""Object creation passes each object to its controller once its inputs have begun.

A view over a source that has written nothing has no time to begin at: its as_of would be chosen
before the source's first snapshot, and the view would show an empty world. So objects wait for
their inputs, and are tried again. What runs already waits for nothing: it has begun, or has been
promised its beginning, and goes on until what replaces it can begin.

    creator = ObjectCreator(client, compute, storage, start_holds, check_fence)
    creator.adopt(running, wanted)     names what the last start has left running
    creator.run(descriptions)          creates what can be created; the rest waits
    creator.retry()                    tries again what waits

Invariants:
    One object that cannot be created keeps no other one from it.
    No object that runs is dropped because it, or its successor, cannot be created now.
    Of each name at most one controller is asked for an object.
    Holds on an input that a view reads no more end after its new definition reads by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from shardline.app.compute.holds import end_view_holds
from shardline.app.controller.compute import ComputeController
from shardline.app.controller.storage import StorageController
from shardline.app.coordinator.start_holds import StartHolds
from shardline.app.execution.spark_errors import describe_failure
from shardline.app.introspection.events import WantedObject
from shardline.app.lane.commands import kind_of
from shardline.app.lane.state import LaneObject
from shardline.app.project.statements import ObjectDescription
from shardline.app.protocol.objects import (
    Dataflow,
    Description,
    IndexDescription,
    SinkDescription,
    SourceDescription,
    ViewDescription,
    inputs_of,
)
from shardline.datasource.client import ShardClient

__all__ = ["ObjectCreator"]

_log = logging.getLogger(__name__)

_Reader: TypeAlias = ViewDescription | IndexDescription | SinkDescription


@dataclass(slots=True)
class _WaitingObject:
    """An object that is not created yet; `error` is None while its inputs have not begun."""

    reader: _Reader
    error: Exception | None = None


class ObjectCreator:
    """See the module. For one thread at a time."""

    def __init__(
        self,
        client: ShardClient,
        compute: ComputeController,
        storage: StorageController,
        start_holds: StartHolds,
        check_fence: Callable[[], None],
    ) -> None:
        """Make one without objects; `check_fence` raises if another runtime has taken over."""
        self._client = client
        self._compute = compute
        self._storage = storage
        self._start_holds = start_holds
        self._check_fence = check_fence
        self._waiting: dict[str, _WaitingObject] = {}
        self._former_inputs: dict[str, set[str]] = {}

    def waiting(self) -> dict[str, str]:
        """The objects that are not created yet, with the error; "" if inputs have not begun."""
        return {name: str(one.error or "") for name, one in self._waiting.items()}

    def uncreated(self) -> list[WantedObject]:
        """The objects that are not created yet, for introspection."""
        found = []
        for name, one in self._waiting.items():
            error, hint = ("", "") if one.error is None else describe_failure(one.error)
            found.append(WantedObject(id=name, description=one.reader, error=error, hint=hint))
        return found

    def awaited(self) -> frozenset[str]:
        """The inputs of all that waits for its inputs to begin."""
        waiting = (one.reader for one in self._waiting.values() if one.error is None)
        return frozenset(name for reader in waiting for name in inputs_of(reader))

    def has_left(self) -> bool:
        """True if inputs of former definitions could not be let go yet."""
        return bool(self._former_inputs)

    def readers(self) -> Mapping[str, ObjectDescription]:
        """The objects that are not created yet, by name."""
        return {name: one.reader for name, one in self._waiting.items()}

    def keep_only(self, wanted: Mapping[str, Description]) -> None:
        """Drop all but these objects, and give up those that wait.

        Each controller drops what is now the other one's, too: it would keep its own alive for as
        long as it names it.
        """
        self._waiting.clear()
        storage = {name for name, one in wanted.items() if kind_of(one) == "storage"}
        self._storage.drop(self._storage.desired().keys() - storage)
        self._compute.drop(self._compute.desired().keys() - (wanted.keys() - storage))

    def drop(self, names: Iterable[str]) -> None:
        """Drop objects; those that are not there are left out."""
        for name in (given := list(names)):
            self._waiting.pop(name, None)
        self._storage.drop(given)
        self._compute.drop(given)

    def adopt(
        self,
        running: Mapping[str, LaneObject],
        wanted: Mapping[str, ObjectDescription],
        *,
        follows: bool = False,
    ) -> None:
        """Name to the controllers what the lane keeps running, as it is, and is still wanted.

        A controller that connects drops what it does not name, and of a sink the accounts with it.
        Creating the objects anew would not do: an input may be away, or not have begun again since
        it was replaced. So nothing of them is looked at here. One that has changed goes on as it
        was until `run` can replace it.

        Args:
            running: The objects of the lane, by name.
            wanted: The objects that are to run, by name.
            follows: True if another runtime decides what runs: then its start holds are its own.
        """
        for name, known in running.items():
            described = known.description
            # What was dropped for a successor waits for it, and has its accounts until then.
            is_there = known.life == "live" or known.replaced
            if not is_there or type(described) is not type(wanted.get(name)):
                continue
            if isinstance(described, SinkDescription):
                self._storage.adopt(described, known.as_of or 0)
            elif isinstance(described, ViewDescription | IndexDescription):
                self._compute.adopt(described, known.as_of or 0, takes_hold=not follows)

    def run(self, wanted: Iterable[ObjectDescription]) -> None:
        """Create objects, inputs first, or change them; those that are the same stay untouched."""
        for description in wanted:
            if isinstance(description, SourceDescription):
                self._storage.run(description)
                continue
            known = {**self._compute.desired(), **self._storage.desired()}
            if known.get(description.name) != description:
                self._waiting[description.name] = _WaitingObject(description)
                self._try(description.name)

    def retry(self) -> None:
        """Try again what could not be created, and what could not be given up."""
        for name in list(self._waiting):
            self._try(name)
        self._release_inputs()

    def _try(self, name: str) -> None:
        waits = self._waiting[name]
        try:
            if not self._start_holds.has_begun(waits.reader):
                return
            # A hold goes by the object's name: a successor's would be taken from it.
            self._check_fence()
            if isinstance(waits.reader, SinkDescription):
                # Not of one that is changed: its former definition runs, and has hold and accounts.
                if name not in self._storage.desired():
                    self._start_holds.keep_changes(waits.reader)
                self._storage.run(waits.reader)
            else:
                as_of = self._start_holds.as_of(waits.reader)
                # Before the change: after it, nobody knows the former definition.
                was = self._compute.desired().get(name)
                self._compute.run(waits.reader, as_of)
                # After it: one that has failed leaves the former definition running.
                self._note_former_inputs(was, waits.reader)
        except Exception as error:  # noqa: BLE001 - any error of one must not keep back the others
            before, waits.error = waits.error, error
            # It is tried again several times a second: the same error is logged once.
            if repr(before) != repr(error):
                _log.warning("not created yet", exc_info=True, extra={"context": {"id": name}})
        else:
            del self._waiting[name]

    def _note_former_inputs(
        self, was: Dataflow | None, now: ViewDescription | IndexDescription
    ) -> None:
        """Note which inputs the definition before read, and `now` does not.

        A changed view takes holds on its new inputs; nobody else knows of those on the old ones,
        and they would keep history for ever.
        """
        former = set() if was is None else set(inputs_of(was))
        # Those of a change before this one may not have been given up yet.
        former |= self._former_inputs.pop(now.name, set())
        former -= set(inputs_of(now))
        if former:
            self._former_inputs[now.name] = former

    def _release_inputs(self) -> None:
        for view, left in list(self._former_inputs.items()):
            # Until then the former definition may still run, and need them.
            if not self._compute.reads_by_itself(view):
                continue
            try:
                there = sorted(filter(self._client.exists, left))
                end_view_holds(self._client, view, there, self._check_fence)
            except Exception:  # noqa: BLE001 - as above
                context = {"id": view}
                _log.warning("inputs not let go yet", exc_info=True, extra={"context": context})
            else:
                del self._former_inputs[view]

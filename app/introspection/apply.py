"""Applying an event changes the facts: one function for each kind of event.

    apply(facts, event, now_ms)

Events come by several ways (lane, objects, Spark's listener), so those of an incarnation that was
replaced may arrive after the first ones of its successor. An event of an incarnation, or of a run,
that is not the current one changes nothing and is counted.

An incarnation becomes known by its first event, be it the lane's phase or an object's own report.
Spark's listener may miss the start of a query, and its events of a query that ends have no name: a
run belongs to the object whose query name it has, or that has reported its id.

Invariants:
    Frontiers of a dataflow never go back.
    After `Dropped` nothing about the object is left but its histories.
"""

from __future__ import annotations

from typing import Final, TypeAlias, assert_never

from msgspec import UNSET
from msgspec.structs import replace

from shardline.app.execution.causes import without_run_ids
from shardline.app.execution.observations import (
    GROUP,
    Doubted,
    Ended,
    Failed,
    GroupStepped,
    Health,
    Hydrated,
    Measured,
    Progress,
    Started,
    Stepped,
)
from shardline.app.introspection.definitions import (
    note_dropped,
    note_installed,
    note_wanted,
)
from shardline.app.introspection.events import (
    Acted,
    ClientsSeen,
    Dropped,
    Event,
    Following,
    Harvested,
    Installed,
    LaneOpened,
    PeekDecided,
    PeekEnded,
    PeekStarted,
    Phase,
    Polled,
    ProcessStarted,
    QueryIdle,
    QueryProgress,
    QueryStarted,
    QueryTerminated,
    Recorded,
    Remembered,
    RuntimeSeen,
    ServerSeen,
    SparkSeen,
    TakenOver,
    Wanted,
)
from shardline.app.introspection.facts import (
    Condition,
    Facts,
    MicroBatch,
    ObjectFacts,
    Observed,
    ProcessFacts,
    histogram_bucket_ns,
)
from shardline.app.introspection.lane_history import note_command
from shardline.app.introspection.location_histories import apply_to_histories, status_row
from shardline.app.introspection.shard_events import ShardEvent, apply_shard_event
from shardline.app.introspection.spark_plan.operators import operators_of
from shardline.app.protocol.compute import PeekResponse, SubscribeDropped, SubscribeResponse
from shardline.app.protocol.object_state import Status
from shardline.app.protocol.objects import SourceDescription, ViewDescription
from shardline.app.protocol.storage import StatisticsUpdates, StatusUpdate

__all__ = ["PEEKS_MAX", "apply", "note_status"]

PEEKS_MAX: Final = 10_000
"""Most peeks under way that are remembered: so many at once means that ends of peeks were lost."""

_Report: TypeAlias = (
    Started | Progress | Hydrated | Health | Measured | Stepped | Doubted | Failed | Ended
)

_GOES_ON: Final = (Progress, Measured, Stepped, Doubted)
"""Reports of which a status says nothing, but for that an object works again (`_works_again`)."""

_OfProcess: TypeAlias = ProcessStarted | SparkSeen | ServerSeen | RuntimeSeen | ClientsSeen

_Other: TypeAlias = Recorded | Acted | Polled | ShardEvent | Following | TakenOver | Remembered

_OfQuery: TypeAlias = QueryStarted | QueryProgress | QueryIdle | QueryTerminated

_WHOLE: Final = "triggerExecution"
"""Spark's name for the whole of a micro-batch, among those of its phases."""

_ROWS: Final = ("updates_committed", "updates_out", "messages_committed")
"""Counters of rows that have come into an object's output, or gone from it."""

_PROVEN_MS: Final = 60_000
"""An object that runs for so long works again, also if nothing that it does is heard of: as long as
the lane waits before a failure is no longer "in a row"."""

_WORST: Final[tuple[Status, ...]] = ("ceased", "frozen", "stalled")


def apply(facts: Facts, event: Event, now_ms: int) -> None:
    """Apply one event to the facts.

    Args:
        facts: Changed in place.
        event: Taken from the inbox.
        now_ms: Now, ms since the epoch.
    """
    facts.received.applied += 1
    facts.revision += 1
    match event:
        case LaneOpened() | Installed() | Dropped() | Phase():
            _lane(facts, event, now_ms)
        case QueryStarted() | QueryProgress() | QueryIdle() | QueryTerminated():
            _query(facts, event, now_ms)
        case StatusUpdate() | StatisticsUpdates():
            _storage(facts, event, now_ms)
        case Harvested():
            _harvested(facts, event)
        case PeekStarted() | PeekDecided() | PeekEnded():
            _peek(facts, event)
        case PeekResponse() | SubscribeResponse() | SubscribeDropped() | GroupStepped():
            pass  # answers to clients say nothing of an object; a step comes as progress of a query
        case (
            Started()
            | Progress()
            | Hydrated()
            | Health()
            | Measured()
            | Stepped()
            | Doubted()
            | Failed()
            | Ended()
        ):
            _observed(facts, event, now_ms)
        case Wanted():
            facts.desired = {one.id: one for one in event.objects}
            note_wanted(facts, event.at_ms)
        case ProcessStarted() | SparkSeen() | ServerSeen() | RuntimeSeen() | ClientsSeen():
            _process(facts.process, event)
        case _:
            _noted(facts, event)


def note_status(facts: Facts, found: ObjectFacts, now_ms: int) -> None:
    """Note an object's present status, and add it to the history if it has changed.

    An error that comes again with another run's ids is the same one, and so is the status of an
    object that is started again after it: a retry is no news, until it works or fails otherwise.
    """
    condition = _condition(found, now_ms)
    if found.condition_ms and _without_run_ids(condition) == _without_run_ids(found.condition):
        return
    # Never two at one time: ordered by time they are in the order in which they came.
    changed_ms = max(_changed_ms(found, now_ms), found.condition_ms + 1)
    found.condition, found.condition_ms = condition, changed_ms
    if not found.is_subscription:
        facts.statuses.add(found.condition_ms, status_row(found))


# --- the lane ------------------------------------------------------------------------------------


def _lane(facts: Facts, event: LaneOpened | Installed | Dropped | Phase, now_ms: int) -> None:
    if isinstance(event, LaneOpened):
        facts.runs.add(event.at_ms, ("start", event.objects))
        return
    if isinstance(event, Installed):
        _installed(facts, event)
        note_installed(facts, event)
    elif isinstance(event, Dropped):
        _dropped(facts, event)
        return
    else:
        known = facts.objects.get(event.id)
        if known is None:
            facts.received.foreign += 1
            return
        if event.epoch and not _is_current(facts, known, event.epoch):
            return
        known.phase, known.phase_ms = event.phase, event.at_ms
        if event.phase == "paused":
            known.failure = known.failure_hint = ""
        known.failures, known.retry_at_ms = event.failures, event.retry_at_ms
    note_status(facts, facts.objects[event.id], now_ms)


def _dropped(facts: Facts, event: Dropped) -> None:
    found = facts.objects.get(event.id)
    if found is None or event.global_id not in {"", found.installed.global_id}:
        facts.received.foreign += 1
        return
    del facts.objects[event.id]
    # One that is made of that name before the next look has a verdict of its own.
    facts.verdicts.pop(event.id, None)
    facts.run_owners.pop(found.run, None)
    note_dropped(facts, found, event.at_ms)
    if found.condition.status != "dropped" and not found.is_subscription:
        row = (found.id, found.kind, "dropped", "", (), ())
        facts.statuses.add(max(event.at_ms, found.condition_ms + 1), row)


def _installed(facts: Facts, event: Installed) -> None:
    found = facts.objects.get(event.id)
    if found is not None and found.installed.dataflow == event.dataflow:
        if event.epoch >= found.epoch:
            found.installed = event
            _begin(facts, found, event.epoch)
        return
    if found is not None:
        facts.run_owners.pop(found.run, None)
    since: Observed = UNSET
    if not _has_shard(event) and event.as_of is not None:
        since = event.as_of
    facts.objects[event.id] = ObjectFacts(
        event,
        operators_of(event.description),
        phase_ms=event.at_ms,
        epoch=event.epoch,
        since=since,
    )


def _has_shard(event: Installed) -> bool:
    return isinstance(event.description, SourceDescription | ViewDescription)


def _is_current(facts: Facts, found: ObjectFacts, epoch: int) -> bool:
    """True if `epoch` is the current incarnation; one later than known begins here."""
    if epoch < found.epoch:
        facts.received.stale += 1
        return False
    _begin(facts, found, epoch)
    return True


def _begin(facts: Facts, found: ObjectFacts, epoch: int) -> None:
    if epoch == found.epoch:
        return
    facts.run_owners.pop(found.run, None)
    found.epoch = epoch
    found.query = found.run = found.group = ""
    found.heard = found.hydrated = False
    found.health.clear()
    found.states = ()
    # Of a view in a group they are numbered anew: the newest number would be an earlier one's.
    found.steps.clear()
    if not _has_shard(found.installed):
        # The output of an object without a shard was in memory, and is gone with its incarnation.
        found.write = found.read = UNSET
        found.inputs.clear()


# --- running objects -----------------------------------------------------------------------------


def _observed(facts: Facts, event: _Report, now_ms: int) -> None:
    found = facts.objects.get(event.id)
    if found is None:
        facts.received.foreign += 1
        return
    if _is_current(facts, found, event.epoch):
        failing = bool(found.failure)
        _reported(facts, found, event)
        if isinstance(event, Measured) and any(event.added.get(name) for name in _ROWS):
            found.changed_ms = now_ms
        # Nearly all reports are that an object which works goes on: these leave its status alone.
        if failing or not isinstance(event, _GOES_ON):
            note_status(facts, found, now_ms)


def _reported(facts: Facts, found: ObjectFacts, event: _Report) -> None:
    match event:
        case Started():
            found.query, found.group = event.query, event.group
            if event.query:
                _runs(facts, found, event.run)
        case Progress():
            _moved(found, event.write)
            found.read = _later(found.read, event.read)
            found.inputs.update(event.inputs)
        case Hydrated():
            found.hydrated, found.hydration_ms = True, event.took_ms
        case Health():
            found.health[event.namespace] = event
        case Measured():
            _measured(found, event)
        case Stepped() | Doubted():
            _noted_by_view(facts, found, event)
        case Failed():
            _fails(found, event.error, event.hint)
        case Ended():
            found.hydrated = True
            _works_again(found)
        case _:
            assert_never(event)


def _measured(found: ObjectFacts, event: Measured) -> None:
    for name, more in event.added.items():
        found.counters[name] = found.counters.get(name, 0) + more
    found.gauges.update(event.now)


def _noted_by_view(facts: Facts, found: ObjectFacts, event: Stepped | Doubted) -> None:
    if isinstance(event, Stepped):
        found.view_steps.append(event)
    else:
        row = (event.id, event.finding, event.shard, event.detail)
        facts.self_checks.add(event.at_ms, row)


def _moved(found: ObjectFacts, write: Observed) -> None:
    """Note how far an object says that it is; one that moves works."""
    later = _later(found.write, write)
    if later != found.write:
        _works_again(found)
    found.write = later


def _fails(found: ObjectFacts, error: str, hint: str) -> None:
    found.failure, found.failure_hint, found.failed_epoch = error, hint, found.epoch


def _works_again(found: ObjectFacts) -> None:
    """Forget the error of the incarnation before: this one has done what that one could not.

    What the failed one has done itself is no sign of that: Spark's listener tells of it late.
    """
    if found.epoch > found.failed_epoch:
        found.failure = found.failure_hint = ""


def _later(known: Observed, reported: Observed) -> Observed:
    """The later of two frontiers; UNSET is before all, None after all."""
    if reported is UNSET or known is None:
        return known
    if known is UNSET or reported is None:
        return reported
    return max(known, reported)


def _runs(facts: Facts, found: ObjectFacts, run: str) -> None:
    if run and run != found.run:
        facts.run_owners.pop(found.run, None)
        found.run, found.heard = run, False
        facts.run_owners[run] = found.id


def _polled(facts: Facts, event: Polled) -> None:
    found = facts.objects.get(event.id)
    if found is None:
        facts.received.foreign += 1
        return
    if event.dataflow not in (0, found.installed.dataflow):
        facts.received.stale += 1  # its object was dropped, and this one made, while it was read
        return
    found.since = _later(found.since, event.since)
    found.write = _later(found.write, event.upper)
    found.rows, found.size_bytes = event.rows, event.size_bytes
    found.columns = event.columns
    if event.errors is not UNSET:
        found.errors = event.errors


def _peek(facts: Facts, event: PeekStarted | PeekDecided | PeekEnded) -> None:
    if isinstance(event, PeekStarted):
        if len(facts.peeks) < PEEKS_MAX:
            facts.peeks[event.uuid] = event
        return
    if isinstance(event, PeekDecided):
        if event.uuid in facts.peeks:
            facts.peeks[event.uuid] = replace(facts.peeks[event.uuid], path=event.path)
        return
    started = facts.peeks.pop(event.uuid, None)
    if started is not None and started.path is not None:
        facts.peek_durations[started.path, histogram_bucket_ns(event.took_ms)] += 1


def _noted(facts: Facts, event: _Other) -> None:
    match event:
        case Acted():
            row = (event.action, event.target or None, event.outcome, event.message or None)
            facts.actions.add(event.at_ms, row)
        case Recorded():
            note_command(facts, event)
        case Polled():
            _polled(facts, event)
        case Following() | TakenOver() | Remembered():
            apply_to_histories(facts, event)
        case _:
            apply_shard_event(facts, event)


def _process(process: ProcessFacts, event: _OfProcess) -> None:
    match event:
        case ProcessStarted():
            process.started = event
        case SparkSeen(ui):
            process.spark_ui = ui
        case ServerSeen(address):
            process.address = address
        case RuntimeSeen():
            process.runtime = event
            process.controllers = {
                one.name: process.controllers.get(one.name, event.at_ms)
                for one in event.controllers
            }
        case ClientsSeen(clients):
            process.clients = clients
        case _:
            assert_never(event)


# --- Spark's listener ----------------------------------------------------------------------------


def _query(facts: Facts, event: _OfQuery, now_ms: int) -> None:
    found = _owner(facts, event)
    if found is None:
        return
    found.heard = True
    match event:
        case QueryStarted():
            found.query = found.query or event.query
        case QueryProgress():
            _progress(found, event)
            _works_again(found)
        case QueryIdle():
            _works_again(found)
        case QueryTerminated():
            facts.run_owners.pop(event.run, None)
            found.run = ""
            if event.error:
                _fails(found, event.error, found.failure_hint)
        case _:
            assert_never(event)
    note_status(facts, found, now_ms)


def _owner(facts: Facts, event: _OfQuery) -> ObjectFacts | None:
    """The object whose current run an event is of; None, and counted, if there is none."""
    if event.run in facts.run_owners:
        return facts.objects[facts.run_owners[event.run]]
    name = event.name if isinstance(event, QueryStarted | QueryProgress) else ""
    found = facts.objects.get(name.split(":")[0])
    # An object may be called like the first part of a group's name; its query is not, as a whole.
    is_its = found is not None and found.query_name == name
    if not is_its and (event.run in facts.group_runs or name.startswith(GROUP)):
        if isinstance(event, QueryStarted):
            facts.group_runs.add(event.run)
        elif isinstance(event, QueryTerminated):
            facts.group_runs.discard(event.run)
        return None  # of what it does for a view, the view's own report tells
    if found is None:
        facts.received.foreign += 1
        return None
    if not is_its or found.run:
        facts.received.stale += 1
        return None
    _runs(facts, found, event.run)
    return found


def _progress(found: ObjectFacts, event: QueryProgress) -> None:
    found.progress_ms = event.at_ms
    found.micro_batches += 1
    found.states = event.states
    found.step_phases_ms = {n: ms for n, ms in event.phases_ms.items() if n != _WHOLE}
    found.step_ms = event.phases_ms.get(_WHOLE)
    found.steps.append(
        MicroBatch(event.micro_batch, event.at_ms, found.step_ms, found.step_phases_ms)
    )
    for phase, took_ms in event.phases_ms.items():
        found.elapsed_ms[phase] += took_ms
        found.durations[phase, histogram_bucket_ns(took_ms)] += 1


def _harvested(facts: Facts, event: Harvested) -> None:
    found = facts.objects.get(event.name.split(":")[0])
    # By name and not by run: plans come later, when the run may have ended, as that of a source's
    # snapshot has. Its work counts all the same.
    if found is None or found.query_name != event.name:
        facts.received.stale += 1
        return
    found.harvested += 1
    for place, took_ms in event.took_ms:
        found.worked_ms[place] += round(took_ms)
        found.worked[place, histogram_bucket_ns(took_ms)] += 1
    for receiver, port, rows in event.rows:
        before, micro_batches = found.moved.get((receiver, port), (0, 0))
        found.moved[receiver, port] = (before + rows, micro_batches + 1)


# --- statuses ------------------------------------------------------------------------------------


def _storage(facts: Facts, event: StatusUpdate | StatisticsUpdates, now_ms: int) -> None:
    if isinstance(event, StatusUpdate):
        found = facts.objects.get(event.id)
        if found is None:
            facts.received.foreign += 1
            return
        found.storage_status = event
        note_status(facts, found, now_ms)
        return
    for name, values in {**event.sources, **event.sinks}.items():
        if name in facts.objects:
            facts.objects[name].statistics = values


def _condition(found: ObjectFacts, now_ms: int) -> Condition:
    reported = found.storage_status
    if reported is not None:
        spaces = tuple(sorted(reported.namespaced.items()))
        return Condition(reported.status, reported.error, reported.hints, spaces)
    if found.phase == "running" and now_ms - found.phase_ms >= _PROVEN_MS:
        _works_again(found)
    return (_retried(found) if found.failure else None) or _in_phase(found)


def _retried(found: ObjectFacts) -> Condition | None:
    """The condition of an object whose last incarnation has failed; None for that of its phase.

    As a storage worker does for its sources and sinks: that an object is started again does not
    mean that it works. Shown as running in between, it would flap with every retry.
    """
    if found.phase in ("stopping", "stopped", "suspended"):
        return _suspended(found)
    return found.condition if found.condition.status in ("stalled", "frozen") else None


def _in_phase(found: ObjectFacts) -> Condition:
    match found.phase:
        case "created" | "waiting":
            return Condition("created")
        case "starting":
            return Condition("starting")
        case "stopping" | "stopped" | "paused":
            return Condition("paused")
        case "suspended":
            return _suspended(found)
        case "running":
            return _healthy(found)


def _suspended(found: ObjectFacts) -> Condition:
    if any(health.status == "frozen" for health in found.health.values()):
        return _healthy(found)
    hints = (found.failure_hint,) if found.failure_hint else ()
    return Condition("stalled", found.failure, hints)


def _healthy(found: ObjectFacts) -> Condition:
    """The condition of the worst of its parts."""
    spaces = tuple(sorted((h.namespace, h.error) for h in found.health.values() if h.error))
    for status in _WORST:
        for health in found.health.values():
            if health.status == status:
                return Condition(
                    status, health.error, (health.hint,) if health.hint else (), spaces
                )
    return Condition("running", namespaced=spaces)


def _without_run_ids(condition: Condition) -> Condition:
    if not condition.error and not condition.namespaced:
        return condition  # nearly always, and this is asked at each report of each object
    return Condition(
        condition.status,
        without_run_ids(condition.error),
        condition.hints,
        tuple((space, without_run_ids(error)) for space, error in condition.namespaced),
    )


def _changed_ms(found: ObjectFacts, now_ms: int) -> int:
    reported = found.storage_status
    return now_ms if reported is None else reported.at_ms

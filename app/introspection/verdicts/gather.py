"""Gathers facts of introspection into one situation for each object.

    situations(facts, now_ms)      for `rules.judge`

Here, and nowhere else, is known which fact means what: that a `decode` report of a source stands
for live errors until the shard's state shows them, or after which lag a sink counts as late.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Final

from msgspec import UNSET

from shardline.app.execution.observations import Health
from shardline.app.introspection.events import WantedObject
from shardline.app.introspection.facts import (
    Condition,
    Facts,
    MicroBatch,
    ObjectFacts,
    lag_ms,
    object_kind,
)
from shardline.app.introspection.input_lag import behind_ms, slowest
from shardline.app.introspection.verdicts.situation import FRESH_MS, Backlog, Situation
from shardline.app.protocol.objects import (
    SinkDescription,
    SourceDescription,
    inputs_of,
    shards_of,
    state_shards,
)
from shardline.app.settings.durations import parse_duration_ms
from shardline.datasource.errors import ShardError

__all__ = ["backlog_size", "situations"]

_SINK_REPORT_MS: Final = 15_000
"""Lag up to which a sink counts as fresh, besides its interval: one without rows to write reports
its progress every ten seconds only."""

_QUIET_MS: Final = 30_000
_QUIET_FRESH_MS: Final = 3_000
"""Lag up to which an object counts as fresh, besides the usual one, if no rows have come or gone
for so long, or since its start: where nothing happens, uppers move every five seconds only
(`rest_pace`)."""

_LIVE_ERRORS: Final = frozenset({"decode", "compute"})
"""Parts of objects whose report of an error means that the errors shard has it."""


def situations(facts: Facts, now_ms: int) -> dict[str, Situation]:
    """The situation of every object, created or not.

    Args:
        facts: Not changed.
        now_ms: Now, ms since the epoch.
    """
    ahead = tuple(o.id for o in facts.objects.values() if _hydrates(o))
    lost = {name: seen.lost for name, seen in facts.shards.items() if seen.lost}
    found = {one.id: _situation(facts, one, now_ms, ahead) for one in facts.objects.values()}
    if lost:
        for name, one in found.items():
            found[name] = replace(one, lost=_lost(facts.objects[name], lost))
    return found | {
        name: _uncreated(one) for name, one in facts.desired.items() if name not in facts.objects
    }


def backlog_size(found: ObjectFacts) -> float | None:
    """The backlog outside of a source, as one number; None if the source cannot tell."""
    files = found.statistics.get("files_waiting")
    return files if files is not None else _offsets_behind(found)


def _hydrates(found: ObjectFacts) -> bool:
    domain = found.installed.domain
    return domain == "compute" and found.phase == "running" and not found.is_hydrated()


def _uncreated(one: WantedObject) -> Situation:
    return Situation(
        one.id,
        object_kind(one.description),
        inputs=inputs_of(one.description),
        created=False,
        phase="created",
        status="created",
        error=one.error,
        hint=one.hint,
        written=False,
        hydrated=False,
        lag_ms=None,
    )


def _situation(facts: Facts, found: ObjectFacts, now_ms: int, ahead: tuple[str, ...]) -> Situation:
    inputs = inputs_of(found.installed.description)
    blamed = slowest(facts, inputs)
    condition = found.condition
    retry_at_ms = found.retry_at_ms if found.phase == "suspended" else None
    lag = lag_ms(found.reached, now_ms)
    step = _blamed_step(found, lag, now_ms)
    phases = {} if step is None else step.phases_ms
    error = "" if _is_about_retries(found) else _without_part(condition)
    hint = "; ".join(condition.hints)
    if found.phase == "paused" and not error and (live := _live_report(found)) is not None:
        # Its status says no more than that; what its incarnation has found is in its contents.
        error, hint = live.error, live.hint
    if found.phase == "suspended" and not error:
        # Its status comes by another way than its phase, and may come behind it.
        error, hint = found.failure or "it has failed, and why is not known yet", found.failure_hint
    return Situation(
        found.id,
        found.kind,
        inputs=inputs,
        phase=found.phase,
        status=condition.status,
        error=error,
        hint=hint,
        failures=found.failures,
        retry_in_ms=None if retry_at_ms is None else max(0, retry_at_ms - now_ms),
        errors=_errors(found),
        finished=found.reached is None,
        written=found.reached is not UNSET and found.reached != 0,
        hydrated=found.is_hydrated(),
        lag_ms=lag,
        behind_ms=behind_ms(facts, found.reached, blamed),
        slowest_input=blamed,
        lag_direction=found.lag_trend.direction(),
        lag_remaining_ms=found.lag_trend.remaining_ms(),
        fresh_ms=_fresh_ms(found, now_ms),
        backlog=_backlog(found),
        quiet_ms=_quiet_ms(found, now_ms),
        step_ms=None if step is None else step.took_ms,
        slowest_phase=max(phases, key=lambda name: phases[name], default=""),
        ahead=tuple(name for name in ahead if name != found.id),
        # A follower's own reads of shards tell how far all else is; of a target it reads nothing.
        written_elsewhere=found.kind == "sink" and facts.follows,
    )


def _lost(found: ObjectFacts, lost: Mapping[str, tuple[str, ...]]) -> str:
    """The parts that a shard of an object has lost, in words; "" if none.

    Not those of a view's states: it notices by itself, and makes a state anew.
    """
    description = found.installed.description
    for name in reversed(shards_of(description)):
        if name in lost and name not in state_shards(description.name):
            first, *more = lost[name]
            others = f" and {len(more):,} more" if more else ""
            has = "have" if more else "has"
            return f"part '{first}'{others} of shard '{name}' {has} gone, or {has} another size"
    return ""


def _quiet_ms(found: ObjectFacts, now_ms: int) -> int | None:
    """Since when no rows have come or gone, in ms; None if that is not known.

    A feed may have been dead before this process began: then it counts from when it runs.
    """
    since_ms = found.changed_ms
    if since_ms is None and found.phase == "running":
        since_ms = found.phase_ms
    return None if since_ms is None else max(0, now_ms - since_ms)


def _blamed_step(found: ObjectFacts, lag: int | None, now_ms: int) -> MicroBatch | None:
    """Its last micro-batch; None if that had ended before the time up to which the object is.

    Such a one is not why it is late. A view at rest takes none for hours, however late it is.
    """
    if lag is None or not found.steps:
        return None
    last = found.steps[-1]
    return last if last.at_ms + (last.took_ms or 0) >= now_ms - lag else None


def _is_about_retries(found: ObjectFacts) -> bool:
    """True if the error of a view is that of its last incarnation, and not of its contents."""
    between = found.storage_status is None and bool(found.failure) and found.phase != "suspended"
    return between and _errors(found) > 0


def _without_part(condition: Condition) -> str:
    """The error without the name of the part that has reported it, which a status begins with."""
    part, _, text = condition.error.partition(": ")
    return text if part in dict(condition.namespaced) else condition.error


def _errors(found: ObjectFacts) -> int:
    """Live errors: those of the shard, or one if a part has reported them and it was not read.

    What freezes is an input that cannot be read, and no error of the contents.
    """
    if found.phase == "paused" and found.errors is not None:
        # No part of it runs that could report that they are gone.
        return found.errors
    reported = _live_report(found) is not None or (
        found.condition.status != "frozen"
        and any(namespace in _LIVE_ERRORS for namespace, _ in found.condition.namespaced)
    )
    return max(found.errors or 0, int(reported))


def _live_report(found: ObjectFacts) -> Health | None:
    """The report of a part that there are live errors; None if there is none."""
    reports = (
        health
        for health in found.health.values()
        if health.namespace in _LIVE_ERRORS and health.error and health.status != "frozen"
    )
    return next(reports, None)


def _fresh_ms(found: ObjectFacts, now_ms: int) -> int:
    """The lag up to which the object counts as fresh."""
    # Not `_quiet_ms`: what begins while all else rests reads uppers that rest.
    changed_ms = found.changed_ms
    is_quiet = changed_ms is None or now_ms - changed_ms >= _QUIET_MS
    allowed_ms = _QUIET_FRESH_MS if is_quiet else 0
    description = found.installed.description
    if not isinstance(description, SinkDescription):
        return allowed_ms + FRESH_MS
    options = {name.lower(): text for name, text in description.options.items()}
    with suppress(ShardError):
        allowed_ms += parse_duration_ms(options.get("interval", "0s"))
    return allowed_ms + _SINK_REPORT_MS


def _backlog(found: ObjectFacts) -> Backlog:
    values = found.statistics
    files, size_bytes = values.get("files_waiting"), values.get("bytes_waiting")
    offsets = _offsets_behind(found)
    return Backlog(
        files=None if files is None else int(files),
        size_bytes=None if size_bytes is None else int(size_bytes),
        offsets=None if offsets is None else int(offsets),
        direction=found.backlog_trend.direction(),
        remaining_ms=found.backlog_trend.remaining_ms(),
    )


def _offsets_behind(found: ObjectFacts) -> float | None:
    """Messages of Kafka that wait; other sources have offsets that count something else."""
    described, values = found.installed.description, found.statistics
    if not isinstance(described, SourceDescription) or described.format.lower() != "kafka":
        return None
    known, committed = values.get("offset_known"), values.get("offset_committed")
    return None if known is None or committed is None else max(0.0, known - committed)

"""Relations of the process show where it runs, who holds its location, and who is connected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from shardline.app.introspection.facts import Facts
from shardline.app.introspection.lane_history import holder_at, project_at
from shardline.app.introspection.relation import (
    AT,
    FLAG,
    NUMBER,
    TEXT,
    Column,
    Metric,
    Past,
    Relation,
    Row,
    instant,
)
from shardline.app.lane.holder import find_follower, name_process
from shardline.app.lane.log import LANE_SHARD
from shardline.app.protocol.objects import SubscribeDescription

__all__ = ["PROCESS"]


def _location(facts: Facts, _now_ms: int) -> Iterator[Row]:
    process = facts.process
    started, runtime = process.started, process.runtime
    # One row or none: half of it would look like a location that nobody holds.
    if started is None or runtime is None:
        return
    yield (
        started.location,
        runtime.project or None,
        runtime.holder or None,
        instant(runtime.held_since_ms),
        runtime.epoch,
        started.version,
        runtime.read_only,
        instant(started.at_ms),
        started.data_folder,
        process.address or None,
        runtime.queue,
    )


def _location_then(facts: Facts, _at_ms: int) -> Iterator[Row]:
    """Whose the location was, by the commands of until then; nothing else of it is recorded."""
    holder, project = holder_at(facts), project_at(facts)
    if holder is None:
        return
    named = None if project is None else project.name or project.folder
    yield (None, named, name_process(holder), instant(holder.since_ms), *(None,) * 7)


def _connections(facts: Facts, _now_ms: int) -> Iterator[Row]:
    process = facts.process
    if process.runtime is not None:
        for one in process.runtime.controllers:
            state = "connected" if one.is_reconciled else "connecting"
            yield ("controller", one.name, instant(process.controllers[one.name]), state)
    for client in process.clients:
        yield (client.kind, client.name, instant(client.since_ms), "connected")
    lane = facts.shards.get(LANE_SHARD)
    for holder in () if lane is None else lane.report.holders:
        name = find_follower(holder.owner)
        if holder.kind == "lease" and name is not None:
            yield ("follower", name, None, "silent" if holder.overdue else "connected")
    for found in facts.objects.values():
        if isinstance(found.installed.description, SubscribeDescription):
            since = instant(found.installed.at_ms)
            yield ("subscriber", found.id, since, found.condition.status)


PROCESS: Final = (
    Relation(
        "location",
        "The location, who holds it, and this process: one row",
        (
            Column("location", TEXT, "its URL, without secrets"),
            Column("project", TEXT, "whose objects run: name of the project, or its folder"),
            Column("holder", TEXT, "the process that holds it"),
            Column("held_since", AT, "since when"),
            Column(
                "epoch",
                NUMBER,
                "how often it was taken so far; the last to take it holds it",
                Metric("location_epoch", "How often the location was taken so far."),
            ),
            Column("version", TEXT, "of this program"),
            Column("read_only", FLAG, "true while this process only follows the holder"),
            Column("started_at", AT, "when this process has started"),
            Column("data_folder", TEXT, "folder of this process for what is not in the location"),
            Column("address", TEXT, "where this process is served; NULL: nowhere"),
            Column(
                "queue",
                NUMBER,
                "commands that wait for their place in the order",
                Metric("lane_queue_depth", "Commands that wait for their place in the order."),
            ),
        ),
        _location,
        labels=(),
        past=Past(_location_then, ("command_history",)),
    ),
    Relation(
        "connections",
        "Somebody who is connected to this process, or follows the holder of the location",
        (
            Column(
                "kind",
                TEXT,
                "controller: says what should run; follower: a runtime that may take over; page: "
                "in a browser; subscriber: another client that follows relations or an object",
            ),
            Column("name", TEXT, "protocol, process, address, or id of the subscription"),
            Column("since", AT, "since when; NULL: not known"),
            Column("state", TEXT, "connecting, connected, silent; of a subscription its status"),
        ),
        _connections,
    ),
)

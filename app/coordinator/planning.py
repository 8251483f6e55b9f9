"""Plans a project for a location: its objects, those that run, and the shards that are there.

`plan` in a process of its own and a running application must say the same of a project: both ask
here.
"""

from __future__ import annotations

from dataclasses import replace

from shardline.app.coordinator.desired_state import desired_objects, live_objects, other_owner
from shardline.app.coordinator.existing_shards import read_existing_shards
from shardline.app.lane.log import LANE_SHARD, read_lane
from shardline.app.lane.state import EMPTY_STATE, LaneState
from shardline.app.project.permission import Permissions, refuse_unreachable
from shardline.app.project.plan import Plan, make_plan
from shardline.app.project.project import CheckedProject
from shardline.app.protocol.objects import SourceDescription, ViewDescription
from shardline.app.settings.config import RuntimeSettings
from shardline.app.settings.durations import parse_duration_ms
from shardline.datasource.client import ShardClient

__all__ = ["objects_to_replace", "plan_project", "planned"]


def plan_project(
    client: ShardClient, resolved: CheckedProject, state: LaneState, retain_ms: int
) -> Plan:
    """The plan of a project for a location; writes nothing.

    Args:
        client: Of the location.
        resolved: The project.
        state: Of the location's lane.
        retain_ms: History of objects that do not say how much they keep.

    Raises:
        InvalidProject: A source that is new or changed cannot be opened where it is.
    """
    wanted, running = desired_objects(resolved, retain_ms), live_objects(state)
    shards = read_existing_shards(client, wanted, running)
    plan = make_plan(wanted, running, columns=resolved.columns, shards=shards)
    refuse_unreachable(plan, resolved)
    return replace(plan, owner=other_owner(state, resolved))


def planned(client: ShardClient, settings: RuntimeSettings, resolved: CheckedProject) -> Plan:
    """The plan of a project for a location, made from its lane by another process.

    Raises:
        InvalidProject: As of `plan_project`.
    """
    state = read_lane(client)[0] if client.exists(LANE_SHARD) else EMPTY_STATE
    return plan_project(client, resolved, state, parse_duration_ms(settings.retain_history))


def objects_to_replace(
    plan: Plan, allowed: Permissions
) -> dict[str, SourceDescription | ViewDescription]:
    """The sources that get a new shard, and views that come after a source.

    Any other view makes its own shard anew: it alone writes it.
    """
    found: dict[str, SourceDescription | ViewDescription] = {}
    for one in plan.replaced:
        wanted = plan.wanted[one.name]
        # What a change loses was agreed to, or the plan was refused. One that is stalled may wait.
        if one.stalled and one.loses_history and not allowed.replace:
            continue
        if isinstance(wanted, SourceDescription) or (
            isinstance(wanted, ViewDescription) and one.of_source
        ):
            found[one.name] = wanted
    return found

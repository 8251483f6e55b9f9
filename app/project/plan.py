"""A plan is the list of steps from the objects that run to those of a project, as a value.

As a value it can be shown before it is carried out, sent as JSON, and tested without a runtime.

    plan = make_plan(resolved.descriptions, running)
    for step in plan.steps: ...      in an order that can be applied
    plan_from_json(plan_json(plan))  the same plan, after a way through JSON

Invariants:
    Applying the steps in order to `running` gives `wanted`; from `wanted` to itself there are none.
    Nothing is dropped while an object that reads it exists, and nothing is made before its inputs.
    So drops come first, outputs before inputs; then objects that are made or changed, inputs before
    outputs; and last the drops of objects that were still read by those.
    Equal descriptions are never touched, but for a source whose shard is not what it makes: an
    earlier change has left it stalled, and only a new shard lets it go on.
    Subscriptions are never part of a plan.
    A plan's JSON has no secrets: `shardline.app.protocol.redaction` takes them out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, TypeAlias

import msgspec

from shardline.app.project.replacement import (
    ExistingShard,
    Replacement,
    StoppedSink,
    find_misfits,
    find_replacements,
    find_stopped_sinks,
)
from shardline.app.project.shortening import ShortenedHistory, find_shortened
from shardline.app.project.statements import ObjectDescription, kind_of
from shardline.app.protocol.graph import Graph
from shardline.app.protocol.objects import (
    Description,
    SubscribeDescription,
    inputs_of,
    shards_of,
)
from shardline.app.protocol.redaction import redact_description, redact_option
from shardline.app.protocol.view_plan import ViewPlan
from shardline.datasource.errors import InvalidUsage

__all__ = ["Change", "Plan", "Step", "StepKind", "make_plan", "plan_from_json", "plan_json"]

StepKind: TypeAlias = Literal["create", "change", "drop"]

_NOT_CONTENTS: Final = frozenset({"retain_ms", "strategy", "reason"})
"""Fields that decide how contents are computed or how long they stay, but not the contents."""

_WORDS: Final = {"on": "of", "retain_ms": "retained ms"}


@dataclass(frozen=True, slots=True)
class Change:
    """A field of a description that changes.

    Attributes:
        what: The field in words: "query", "option 'path'".
        before: Its present value as text; "" for none.
        after: Its new value as text; "" for none.
    """

    what: str
    before: str
    after: str


_NEW_SHARD: Final = Change("shard", "of an earlier definition", "of this one")


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a plan, about one object.

    Attributes:
        act: Kind of the step.
        description: The wanted description; in a drop, the present one.
        changes: The fields that differ; of a change only.
    """

    act: StepKind
    description: ObjectDescription
    changes: tuple[Change, ...] = ()

    @property
    def name(self) -> str:
        """The object's name."""
        return self.description.name


@dataclass(frozen=True, slots=True)
class Plan:
    """The difference between the objects that are wanted and those that run.

    Attributes:
        steps: The steps, in order.
        unchanged: Names of objects that stay as they are, inputs first.
        affected: For each object that runs and has changed inputs, direct or indirect: their names.
        wanted: All objects that are to exist, inputs first.
        replaced: Objects of these steps whose shard is dropped and made anew.
        stopped: Sinks that this stops for good.
        shortened: Objects of these steps that keep their shard, and lose times by their retention.
        owner: The other project whose objects run, for a sentence; "" if this one's do, or none.
        views: How views that are made or changed will be kept, where that was asked for.
    """

    steps: tuple[Step, ...]
    unchanged: tuple[str, ...]
    affected: dict[str, tuple[str, ...]]
    wanted: dict[str, ObjectDescription]
    replaced: tuple[Replacement, ...] = ()
    stopped: tuple[StoppedSink, ...] = ()
    shortened: tuple[ShortenedHistory, ...] = ()
    owner: str = ""
    views: tuple[ViewPlan, ...] = ()

    @property
    def is_empty(self) -> bool:
        """True if there is nothing to do."""
        return not self.steps


def make_plan(
    wanted: Mapping[str, ObjectDescription],
    running: Mapping[str, Description],
    *,
    columns: Mapping[str, str] | None = None,
    shards: Mapping[str, ExistingShard] | None = None,
) -> Plan:
    """The plan that turns `running` into `wanted`.

    Args:
        wanted: Descriptions by name, as of `Project.check`.
        running: Descriptions by name, in any order.
        columns: Columns of wanted contents by name, in Spark's JSON.
        shards: The shards of wanted objects that are there, by name.
    """
    there: dict[str, ObjectDescription] = {
        n: d for n, d in running.items() if not isinstance(d, SubscribeDescription)
    }
    gone = _names_to_drop(wanted, there)
    graph = _graph(there)
    drops = [name for name in reversed(_order(there)) if name in gone]
    # Objects that go, but that one which stays still reads: its change must come first, and takes
    # away the reference.
    late = [name for name in drops if graph.downstream(name) - gone]
    order = _order(wanted)
    stays = [wanted[name] for name in order if name not in gone and wanted[name] == there.get(name)]
    misfits = find_misfits(stays, columns or {}, shards or {})
    unfit = {one.name for one in misfits}
    steps = [Step("drop", there[name]) for name in drops if name not in late]
    for name in order:
        if name not in there or name in gone:
            steps.append(Step("create", wanted[name]))
        elif wanted[name] != there[name]:
            changes = tuple(_changes(there[name], wanted[name]))
            steps.append(Step("change", wanted[name], changes))
        elif name in unfit:
            steps.append(Step("change", wanted[name], (_NEW_SHARD,)))
    steps += [Step("drop", there[name]) for name in late]
    touched = {step.name for step in steps}
    made = [one.description for one in steps if one.act != "drop" and one.name not in unfit]
    replaced = (*find_replacements(made, columns or {}, shards or {}), *misfits)
    names = {one.name for one in replaced}
    return Plan(
        steps=tuple(steps),
        unchanged=tuple(name for name in order if name not in touched),
        affected=_affected(wanted, there),
        wanted={name: wanted[name] for name in order},
        replaced=replaced,
        stopped=find_stopped_sinks(wanted.values(), there, names, shards or {}),
        shortened=find_shortened([one for one in made if one.name not in names], shards or {}),
    )


def plan_json(plan: Plan) -> dict[str, Any]:
    """A plan as values of JSON, without secrets."""
    planned = replace(
        plan,
        steps=tuple(
            replace(step, description=redact_description(step.description)) for step in plan.steps
        ),
        wanted={name: redact_description(description) for name, description in plan.wanted.items()},
    )
    found: dict[str, Any] = msgspec.to_builtins(planned)
    return found


def plan_from_json(value: Any) -> Plan:
    """Read a plan that `plan_json` has written.

    Raises:
        InvalidUsage: It is none: another version has sent it.
    """
    try:
        return msgspec.convert(value, Plan)
    except msgspec.ValidationError as error:
        raise InvalidUsage(
            f"this is no plan: {error}",
            code="MALFORMED_MESSAGE",
            hint="use the version of the application that was asked",
        ) from error


def _names_to_drop(
    wanted: Mapping[str, ObjectDescription], running: Mapping[str, ObjectDescription]
) -> set[str]:
    """Names of running objects to drop: they are not wanted, or have to make room for others.

    An object of another kind makes room for its namesake, and a source or view for an object with
    the name of one of its shards. Readers of an object that makes room are made again after it.
    """
    gone = set(running) - set(wanted)
    room = {n for n in wanted if n in running and type(wanted[n]) is not type(running[n])}
    room |= {n for n in gone if {*shards_of(running[n])} & set(wanted)}
    graph = _graph(running)
    return gone | room | {below for name in room for below in graph.downstream(name)}


def _order(objects: Mapping[str, ObjectDescription]) -> list[str]:
    order = _graph(objects).order()
    assert len(order) == len(objects), f"a cycle among {sorted(set(objects) - set(order))}"
    return order


def _graph(objects: Mapping[str, ObjectDescription]) -> Graph:
    return Graph({name: inputs_of(description) for name, description in objects.items()})


def _affected(
    wanted: Mapping[str, ObjectDescription], running: Mapping[str, ObjectDescription]
) -> dict[str, tuple[str, ...]]:
    """For each object that runs and stays, its inputs whose contents change."""
    graph = _graph(wanted)
    changed = [n for n in wanted if n in running and _contents_differ(wanted[n], running[n])]
    return {
        name: above
        for name in graph.order()
        if name in running
        and (above := tuple(other for other in changed if other in graph.upstream(name)))
    }


def _contents_differ(one: ObjectDescription, other: ObjectDescription) -> bool:
    if type(one) is not type(other):
        return True
    fields = msgspec.structs.asdict(one)
    others = msgspec.structs.asdict(other)
    return any(fields[name] != others[name] for name in fields if name not in _NOT_CONTENTS)


def _changes(before: ObjectDescription, after: ObjectDescription) -> Iterator[Change]:
    """The fields in which two descriptions of a kind differ."""
    assert kind_of(before) == kind_of(after), (before, after)
    fields = msgspec.structs.asdict(before)
    for name, new in msgspec.structs.asdict(after).items():
        old = fields[name]
        if old == new:
            continue
        if isinstance(old, dict):
            yield from _option_changes(old, new)
        else:
            yield Change(_WORDS.get(name, name), _shown(old), _shown(new))


def _option_changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Change]:
    for key in dict.fromkeys((*before, *after)):
        old, new = before.get(key, ""), after.get(key, "")
        if before.get(key) != after.get(key):
            yield Change(f"option '{key}'", redact_option(key, old), redact_option(key, new))


def _shown(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, tuple):
        return ", ".join(value)
    return str(value).lower() if isinstance(value, bool) else str(value)

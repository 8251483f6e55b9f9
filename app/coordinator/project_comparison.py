"""The project comparison shows what a project's files say now against what runs.

    ProjectComparison(spark, client, runtime, objects, retain_ms, ids).compare()

It is the plan that a run of the project would carry out, object by object, with both definitions.
A project that cannot be read or checked is an answer as well: its problems, and no changes.

Invariants:
    Nothing is changed: neither what runs, nor the location, nor the session.
    No secret is in an answer.
    Spark is asked of what has changed since the project was applied, or compared: to ask of all of
    three hundred objects, which run beside that, takes minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from shardline.app.coordinator.desired_state import live_objects
from shardline.app.coordinator.objects import Objects
from shardline.app.coordinator.planning import plan_project
from shardline.app.introspection.verdicts.wording import names_of, sentence, span
from shardline.app.project.definition_text import write_definition
from shardline.app.project.origin import ProjectOrigin
from shardline.app.project.permission import Permissions, find_refusal
from shardline.app.project.plan import Change, Plan
from shardline.app.project.project import CheckedProject, Project
from shardline.app.project.replacement import Replacement
from shardline.app.project.statements import ObjectDescription
from shardline.app.protocol.redaction import redact_description, redact_text
from shardline.app.runtime.runtime import Runtime
from shardline.app.sql.problems import InvalidProject, Place, Problem
from shardline.datasource.client import ShardClient
from shardline.datasource.clock import IdGenerator
from shardline.datasource.errors import InvalidUsage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["ComparedObject", "ComparedProject", "ProjectComparison", "ProjectProblem"]

ObjectChange: TypeAlias = Literal["create", "change", "replace", "drop", "none"]
"""Replace: its shard is dropped, with its history, and made anew."""


@dataclass(frozen=True, slots=True)
class ComparedObject:
    """An object of the project, or one that runs.

    Attributes:
        object: Its name.
        change: What a run of the project would do with it.
        now: The definition that runs, without secrets; None if none does.
        wanted: The definition of the project, without secrets; None if it has none.
        why: What differs, and what follows from that, in sentences.
        file: The file that it stands in; "" if it stands in none.
        line: Its line there, from 1; 0 if it stands in none.
    """

    object: str
    change: ObjectChange
    now: str | None
    wanted: str | None
    why: tuple[str, ...] = ()
    file: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class ProjectProblem:
    """What is wrong with the project as it is now.

    Attributes:
        file: The file; "" if it is no file's problem.
        line: Its line there, from 1; 0 if there is none.
        column: The character in it; as above.
        code: Stable name of the condition.
        message: A sentence about it.
        hint: Advice for a repair; "" for none.
    """

    file: str
    line: int
    column: int
    code: str
    message: str
    hint: str


@dataclass(frozen=True, slots=True)
class ComparedProject:
    """A project as it is now against what runs.

    Attributes:
        name: Of the project; "" if it has none.
        folder: The folder that it is read from; "" if its texts were sent without one.
        changes: Objects of the project, inputs first, then those that it does not have; none if
            it has problems.
        problems: What is wrong with it.
        refused: Why a run of it would be refused, as a sentence; "" if it would not.
    """

    name: str
    folder: str
    changes: tuple[ComparedObject, ...] = ()
    problems: tuple[ProjectProblem, ...] = ()
    refused: str = ""


@dataclass(frozen=True, slots=True)
class ProjectComparison:
    """See the module. Safe to use from any thread.

    Attributes:
        spark: Checks the project.
        client: Of the location.
        runtime: Its lane says what runs.
        objects: They know the project that was applied last.
        retain_ms: History of objects that do not say how much they keep.
        ids: Source of names of temporary views.
        checked: The project as it was compared last, for what has not changed since; at most one.
    """

    spark: SparkSession
    client: ShardClient
    runtime: Runtime
    objects: Objects
    retain_ms: int
    ids: IdGenerator
    checked: list[CheckedProject] = field(default_factory=list)

    def compare(self) -> ComparedProject:
        """Read the project again, and compare it.

        Raises:
            InvalidUsage: `NO_PROJECT`: none was applied that has texts.
            ShardError: The location could not be read.
        """
        applied = self.objects.applied
        origin = None if applied is None else applied.origin
        if applied is None or origin is None:
            raise InvalidUsage(
                "no project with files was applied here",
                code="NO_PROJECT",
                hint="`run` a folder, or send a project",
            )
        try:
            return self._compare(Project.read(origin), origin, applied)
        except InvalidProject as error:
            problems = tuple(map(_problem, error.problems))
        except InvalidUsage as error:
            problems = (ProjectProblem("", 0, 0, error.code, error.detail, error.hint),)
        return ComparedProject(*_identity(origin, None), problems=problems)

    def _compare(
        self, project: Project, origin: ProjectOrigin, applied: CheckedProject
    ) -> ComparedProject:
        checked = project.check(self.spark, self.ids, [*self.checked, applied])
        self.checked[:] = [checked]
        # Once: a plan and definitions of two states of the lane would contradict each other.
        state = self.runtime.lane.state
        plan = plan_project(self.client, checked, state, self.retain_ms)
        refusal = find_refusal(plan, Permissions())
        return ComparedProject(
            *_identity(origin, checked),
            changes=tuple(compare_objects(plan, live_objects(state), checked.places)),
            refused="" if refusal is None else f"{sentence(refusal.detail)} {refusal.hint}",
        )


def compare_objects(
    plan: Plan, running: Mapping[str, ObjectDescription], places: Mapping[str, Place]
) -> Iterator[ComparedObject]:
    """Say of each object what a plan does with it, and why.

    Args:
        plan: For a project.
        running: What runs, as the plan was made for it.
        places: Of the project's objects in its texts.
    """
    for name in [*plan.wanted, *(name for name in running if name not in plan.wanted)]:
        place = places.get(name)
        yield ComparedObject(
            name,
            _change(plan, name),
            _definition(running.get(name)),
            _definition(plan.wanted.get(name)),
            tuple(_reasons(plan, name)),
            file="" if place is None else place.file,
            line=0 if place is None else place.line,
        )


def _change(plan: Plan, name: str) -> ObjectChange:
    acts = {step.act for step in plan.steps if step.name == name}
    if any(one.name == name for one in plan.replaced):
        return "replace"
    if name not in plan.wanted:
        return "drop"
    # Dropped to make room, or since what it reads does: it is another object of the same name.
    if "change" in acts or acts == {"drop", "create"}:
        return "change"
    return "create" if "create" in acts else "none"


def _reasons(plan: Plan, name: str) -> Iterator[str]:
    steps = [step for step in plan.steps if step.name == name]
    for step in steps:
        yield from (_difference(change) for change in step.changes)
    if len(steps) > 1:
        yield "It is stopped and created anew, since it, or what it reads, is of another kind."
    if name not in plan.wanted:
        yield "The project does not have it any more; its shards stay until they are dropped."
    yield from _losses(plan, name)
    for sink in plan.stopped:
        if sink.name == name:
            yield f"It stops for good, as `{sink.on}` is replaced: {sentence(sink.hint)}"
    if name in plan.affected:
        yield f"What it reads changes: {names_of(plan.affected[name])}."


def _difference(change: Change) -> str:
    if "\n" in change.before + change.after or change.what == "query":
        return f"Its {change.what} differs."
    before, after = change.before or "(nothing)", change.after or "(nothing)"
    return f"Its {change.what}: {before} → {after}."


def _losses(plan: Plan, name: str) -> Iterator[str]:
    for one in plan.replaced:
        if one.name == name:
            yield from _loss(one)
    for shortened in plan.shortened:
        if shortened.name == name:
            yield f"Lost: the first {span(shortened.until - shortened.since)} of its history."


def _loss(one: Replacement) -> Iterator[str]:
    yield f"Its shard cannot be kept: {sentence(one.why)}"
    if one.stalled:
        yield "It is stalled already, and stays so unless its history may be lost."
    if one.loses_history:
        rows = "1 row" if one.rows == 1 else f"{one.rows:,} rows"
        yield f"Lost: {rows}, and their history."
    else:
        yield "Nothing was written yet, so nothing is lost."


def _definition(description: ObjectDescription | None) -> str | None:
    return None if description is None else write_definition(redact_description(description))


def _problem(problem: Problem) -> ProjectProblem:
    place = problem.place or Place("", 0, 0)
    message, hint = redact_text(problem.message), redact_text(problem.hint)
    return ProjectProblem(place.file, place.line, place.column, problem.code, message, hint)


def _identity(origin: ProjectOrigin, checked: CheckedProject | None) -> tuple[str, str]:
    """Name and folder of a project; of one that cannot be read as far as that is known."""
    identity = origin.identity if checked is None else checked.identity
    name = "" if identity is None else identity.name
    if origin.folder is not None:
        return name, str(origin.folder)
    return name, "" if identity is None else identity.folder

"""Some plans need permission: those that lose history, or that drop what another project runs.

A plan that is right by its text can still be a mistake: a type that was changed in passing drops a
shard with a year of history, a start with another settings file leaves five minutes of it, a
project that was run in the wrong folder drops another one's objects. Such a plan is shown and
refused, until somebody says that it is meant.

    error = find_refusal(plan, Permissions())
    refuse_unreachable(plan, resolved)

Invariants:
    A plan of the project that runs here, or of none that says which it is, is refused only if it
    loses history.
"""

from __future__ import annotations

from dataclasses import dataclass

from shardline.app.project.plan import Plan
from shardline.app.project.project import CheckedProject
from shardline.app.sql.problems import InvalidProject
from shardline.datasource.errors import InvalidUsage

__all__ = ["Permissions", "find_refusal", "refuse_unreachable"]


@dataclass(frozen=True, slots=True)
class Permissions:
    """Permissions that the person who applies a project has given.

    Attributes:
        replace: True if shards may be dropped with their history (`--allow-replace`).
        shorten: True if shards that stay may lose history by a shorter retention
            (`--allow-shorten`).
        adopt: True if the objects of another project are this one's from now on (`--adopt`).
    """

    replace: bool = False
    shorten: bool = False
    adopt: bool = False


def find_refusal(plan: Plan, allowed: Permissions) -> InvalidUsage | None:
    """The error for a plan that needs a permission which was not given; None if it needs none."""
    if plan.owner and not allowed.adopt:
        return InvalidUsage(
            f"the project {plan.owner} runs here, and this one would drop or change its objects",
            code="OTHER_PROJECT",
            hint="give this one a folder and a location of its own with --data and --location; or, "
            "if it is the same project, moved or renamed, say so with --adopt",
        )
    # Not one that is stalled already: a start of everything else must not depend on it.
    lost = [one.name for one in plan.replaced if one.loses_history and not one.stalled]
    if lost and not allowed.replace:
        stopped = [one.name for one in plan.stopped]
        more = f", and stop {_names('sink', stopped)} for good" if stopped else ""
        return InvalidUsage(
            f"this would drop the history of {_names('', lost)}{more}",
            code="REPLACEMENT_REFUSED",
            hint="take the change back, or give the object another name, which keeps the old one's "
            "shard; --allow-replace does it all the same",
        )
    shortened = [one.name for one in plan.shortened]
    if shortened and not allowed.shorten:
        return InvalidUsage(
            f"this would shorten the history of {_names('', shortened)}",
            code="RETENTION_REFUSED",
            hint="take the change of RETAIN HISTORY, or of the setting `runtime.retain_history`, "
            "back; --allow-shorten does it all the same",
        )
    return None


def refuse_unreachable(plan: Plan, resolved: CheckedProject) -> None:
    """Refuse sources that are new or changed and cannot be opened where they are.

    One that runs as it is was opened before, and waits for what it reads to come back: a start of
    everything else must not depend on it.

    Raises:
        InvalidProject: With the problem of each.
    """
    touched = [step.name for step in plan.steps if step.act != "drop"]
    problems = [resolved.unreachable[name] for name in touched if name in resolved.unreachable]
    if problems:
        raise InvalidProject(problems)


def _names(kind: str, names: list[str]) -> str:
    quoted = ", ".join(f"'{name}'" for name in names)
    return f"{kind}{'s' if kind and len(names) > 1 else ''} {quoted}".strip()

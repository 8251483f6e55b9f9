"""Sentences say what a verb would do, for people who see no table.

describe_plan(plan)    ["3 merges are due, of 40 batches; they read 4.2 MiB. …", …]
"""

from __future__ import annotations

from typing import TypeAlias, assert_never

from shardline.app.admin.plans import CompactPlan, ExpiredReader, ExpirePlan, GcPlan, SweepPlan
from shardline.app.admin.verb import count_text
from shardline.app.introspection.verdicts.wording import amount, sentence, span
from shardline.datasource.state import Amount

__all__ = ["DescribedPlan", "describe_plan"]

DescribedPlan: TypeAlias = ExpirePlan | CompactPlan | GcPlan | SweepPlan


def describe_plan(plan: DescribedPlan) -> list[str]:
    """Say in sentences what carrying a plan out would do."""
    match plan:
        case ExpirePlan():
            return _expiry(plan)
        case CompactPlan():
            return _merges(plan)
        case GcPlan():
            return _garbage(plan)
        case SweepPlan():
            return _orphans(plan)
        case _:
            assert_never(plan)


def _expiry(plan: ExpirePlan) -> list[str]:
    said = [line for reader in plan.readers for line in _reader(reader)]
    if plan.since_after is None:
        said.append("The since stays: no reader and no policy is left to move it.")
    elif plan.since is None or plan.since_after <= plan.since:
        said.append("The since stays: others hold it as well.")
    else:
        said.append(f"The since can then move on by {span(plan.since_after - plan.since)}.")
    become = "becomes" if plan.freed.count == 1 else "become"
    freed = f"{_objects(plan.freed)} {become} garbage, for a collection to delete."
    said.append(freed if plan.freed.count else "No object becomes garbage by that.")
    return said


def _reader(reader: ExpiredReader) -> list[str]:
    owner = f" of {reader.owner}" if reader.owner else ""
    heard = f"it was heard of {span(reader.silent_ms)} ago"
    return [
        f"The {reader.kind} '{reader.name}'{owner} is given up; {heard}.",
        sentence(f"What that breaks: {reader.breaks}"),
    ]


def _merges(plan: CompactPlan) -> list[str]:
    batches = count_text(plan.batches, "batch", "batches")
    said = [f"No merge is due: the shard has {batches}."]
    if plan.merges:
        read = amount(sum(step.size_bytes for step in plan.merges))
        due = count_text(len(plan.merges), "merge")
        is_due, reads = ("is", "it reads") if len(plan.merges) == 1 else ("are", "they read")
        said = [f"{due} {is_due} due, of {batches}; {reads} {read}. Readers see no difference."]
    if plan.claimed:
        said.append(f"{count_text(plan.claimed, 'range')} left alone: others merge there.")
    return said


def _garbage(plan: GcPlan) -> list[str]:
    said = [f"{_objects(plan.garbage)} that nobody can ask for any more: deleted."]
    if not plan.garbage.count:
        said = ["There is nothing to collect."]
    if plan.held.count:
        stay = "stays: readers hold it" if plan.held.count == 1 else "stay: readers hold them"
        said.append(f"{_objects(plan.held)} of older states {stay}.")
    return said


def _orphans(plan: SweepPlan) -> list[str]:
    count = plan.parts.count + plan.rollups.count
    said = ["There is nothing that nothing refers to."]
    if count:
        both = Amount(count, plan.parts.size_bytes + plan.rollups.size_bytes)
        said = [f"{_objects(both)} that nothing refers to, left by crashes: deleted."]
    if plan.reopens:
        said.append("A clock was ahead at an earlier sweep: the shard can be written again.")
    return said


def _objects(found: Amount) -> str:
    return f"{count_text(found.count, 'object')} of {amount(found.size_bytes)}"

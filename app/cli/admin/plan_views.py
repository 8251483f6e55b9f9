"""Plan views lay out the plans of the verbs that change a shard for a person, in 80 columns.

outcome_view(verb, outcome)    the plan, and its result if it was carried out
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, assert_never

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from shardline.app.admin.plans import (
    CompactPlan,
    ExpirePlan,
    FinalisePlan,
    GcPlan,
    Outcome,
    Plan,
    RetentionPlan,
    SweepPlan,
)
from shardline.app.admin.verb import ChangingVerb
from shardline.app.cli.tables import age, facts_table, plain_table, size, utc
from shardline.datasource.shard.references import Amount

__all__ = ["outcome_view"]

_MERGES_MAX: Final = 20
_KEYS_MAX: Final = 20


def outcome_view(verb: ChangingVerb[Any], outcome: Outcome) -> RenderableType:
    """Lay out a plan, and its result if it was carried out."""
    plan = outcome.plan
    views = [*_plan(plan)]
    if outcome.committed:
        views.append(Text(f"\n{outcome.result}", style="green"))
    elif refusal := verb.refusal(plan):
        said = f"\ndry run: nothing was changed, and --commit would be refused:\n{refusal}"
        views.append(Text(said, style="red"))
    elif outcome.todo:
        views.append(Text("\ndry run: nothing was changed; --commit does it", style="yellow"))
    else:
        views.append(Text("\nnothing to do"))
    return Group(*views)


def _plan(plan: Plan) -> Iterable[RenderableType]:
    match plan:
        case ExpirePlan():
            return _expiry(plan)
        case CompactPlan():
            return _merges(plan)
        case GcPlan():
            return _garbage(plan)
        case SweepPlan():
            return _orphans(plan)
        case FinalisePlan():
            return _end(plan)
        case RetentionPlan():
            return _retention(plan)
        case _:
            assert_never(plan)


def _expiry(plan: ExpirePlan) -> Iterable[RenderableType]:
    """Readers that are expired, what that breaks, and what it frees."""
    for reader in plan.readers:
        yield Text.assemble("expires ", (f"{reader.kind} ", "bold"), (reader.name, "cyan"))
        facts = {
            "owner": reader.owner,
            "heard of": f"{age(reader.silent_ms)} ago{', overdue' if reader.overdue else ''}",
            "holds since": _time(reader.since, "nothing"),
            "holds seqno": "none" if reader.seqno is None else f"{reader.seqno:,}",
            "breaks": reader.breaks,
        }
        yield Padding(facts_table(facts), (0, 0, 0, 4), expand=False)
    moves = "stays: no reader and no policy is left to move it"
    if plan.since_after is not None:
        moves = f"can move to {_time(plan.since_after)}, at the next downgrade of a reader"
        if plan.since_after == plan.since:
            moves = "stays: others hold it as well"
    freed = _amount(plan.freed) if plan.freed.count else "no blobs"
    yield facts_table({"since": f"{_time(plan.since)}; {moves}", "frees": f"{freed}, for gc"})


def _merges(plan: CompactPlan) -> Iterable[RenderableType]:
    """Merges that are due."""
    merged = sum(step.size_bytes for step in plan.merges)
    yield facts_table(
        {
            "batches": f"{plan.batches:,}",
            "merges due": f"{len(plan.merges):,}, which read {size(merged)}"
            if plan.merges
            else "none",
            "left alone": f"{plan.claimed:,} ranges that others merge" if plan.claimed else "",
        }
    )
    if plan.merges:
        numbers = ("batches", "parts", "updates", "size")
        table = plain_table("from", "to", *numbers, right=numbers)
        for step in plan.merges[:_MERGES_MAX]:
            table.add_row(
                str(step.lower),
                "the end" if step.upper is None else str(step.upper),
                f"{step.batches:,}",
                f"{step.parts:,}",
                f"{step.rows:,}",
                size(step.size_bytes),
            )
        yield Text()
        yield table
        yield from _more(len(plan.merges) - _MERGES_MAX, "merges")


def _garbage(plan: GcPlan) -> Iterable[RenderableType]:
    """What is garbage, and what readers hold."""
    given_up = max(plan.seqno, plan.gc_seqno)
    yield facts_table(
        {
            "garbage": _amount(plan.garbage),
            "held by readers": _amount(plan.held),
            # Without garbage nothing is written, and the states stay.
            "gives up": f"states before seqno {given_up:,}; now those before {plan.gc_seqno:,}"
            if plan.garbage.count
            else "",
        }
    )


def _orphans(plan: SweepPlan) -> Iterable[RenderableType]:
    """Blobs that nothing refers to."""
    yield facts_table({"parts": _amount(plan.parts), "rollups": _amount(plan.rollups)})
    if plan.reopens:
        yield Text("lets it be written again: a clock was ahead at an earlier sweep")
    if plan.keys:
        yield Text()
        yield Group(*(Text(f"  {key}", overflow="fold") for key in plan.keys[:_KEYS_MAX]))
    total = plan.parts.count + plan.rollups.count
    yield from _more(total - _KEYS_MAX, "blobs")


def _end(plan: FinalisePlan) -> Iterable[RenderableType]:
    """What is dropped, and who is in the way."""
    yield facts_table(
        {
            "shard": "dropped already" if plan.dropped else "is dropped for good",
            "contents": f"{plan.rows:,} rows are gone",
            "objects": f"{_amount(plan.total)}; one record of them stays",
            "written through": plan.registered or "",
            "cut off": ", ".join(plan.cut_off),
            "in the way": ", ".join(plan.in_the_way),
        }
    )


def _retention(plan: RetentionPlan) -> Iterable[RenderableType]:
    """The policy, and where the since goes."""
    moves = "stays: no reader and no policy moves it"
    if plan.since_after is not None:
        moves = f"can move to {_time(plan.since_after)}; reads before that get [HISTORY_GONE]"
        if plan.since_after == plan.since:
            moves = "stays for now"
    yield facts_table(
        {
            "policy": f"{_policy(plan.before_ms)} now, {_policy(plan.after_ms)} then",
            "since": f"{_time(plan.since)}; {moves}",
        }
    )


def _policy(retain_ms: int | None) -> str:
    return "left to readers" if retain_ms is None else age(retain_ms)


def _amount(amount: Amount) -> str:
    """An amount of objects: `3 objects of 6.1 MiB`."""
    objects = "1 object" if amount.count == 1 else f"{amount.count:,} objects"
    return f"{objects} of {size(amount.size_bytes)}" if amount.count else "none"


def _time(ms: int | None, none: str = "none") -> str:
    """A time as a number and in UTC; `none` for the empty frontier."""
    if ms is None:
        return none
    return f"{ms} ({utc(ms)} UTC)" if ms and utc(ms) else str(ms)


def _more(count: int, what: str) -> Iterable[Text]:
    """A line that counts what a list leaves out; none if it leaves out nothing."""
    return [Text(f"  and {count:,} more {what}")] if count > 0 else []

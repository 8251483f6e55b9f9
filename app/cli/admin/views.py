"""Views show the findings, plans and outcomes of the admin's verbs to people, in 80 columns.

outcome_view(outcome)     a plan, and its result
fsck_view(report)         the shards that were checked, then findings, damage first
holders_view(report)      the readers of all shards, and what they hold back
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shardline.app.cli.admin.acts import Outcome
from shardline.app.cli.admin.plans import (
    CompactPlan,
    ExpirePlan,
    FinalisePlan,
    GcPlan,
    Plan,
    RetentionPlan,
    SweepPlan,
)
from shardline.app.cli.tables import age, plain_table, size, utc
from shardline.datasource.inspect.fsck import Finding, FsckReport, ShardCheck
from shardline.datasource.inspect.report import LocationReport
from shardline.datasource.shard.references import Amount

__all__ = ["fsck_view", "holders_view", "outcome_view"]

_SUBJECTS_MAX: Final = 10
"""Most objects that are listed for one code; `--json` has all."""

_KEYS_MAX: Final = 20
_MERGES_MAX: Final = 20


# --- outcomes ------------------------------------------------------------------------------------


def outcome_view(outcome: Outcome) -> RenderableType:
    """Lay out a plan, and its result if it was carried out."""
    views = [*_plan_views(outcome.plan)]
    if outcome.committed:
        views.append(Text(f"\n{outcome.result}", style="green"))
    elif isinstance(outcome.plan, FinalisePlan) and (refusal := _refusal(outcome.plan)):
        said = f"\ndry run: nothing was changed, and --commit would be refused:\n{refusal}"
        views.append(Text(said, style="red"))
    elif outcome.todo:
        views.append(Text("\ndry run: nothing was changed; --commit does it", style="yellow"))
    else:
        views.append(Text("\nnothing to do"))
    return Group(*views)


def _plan_views(plan: Plan) -> Iterable[RenderableType]:
    match plan:
        case ExpirePlan():
            return _expire_views(plan)
        case CompactPlan():
            return _compact_views(plan)
        case GcPlan():
            return _gc_views(plan)
        case SweepPlan():
            return _sweep_views(plan)
        case FinalisePlan():
            return _finalise_views(plan)
        case RetentionPlan():
            return _retention_views(plan)


def _expire_views(plan: ExpirePlan) -> Iterable[RenderableType]:
    for reader in plan.readers:
        yield Text.assemble("expires ", (f"{reader.kind} ", "bold"), (reader.name, "cyan"))
        facts = {
            "owner": reader.owner,
            "heard of": f"{age(reader.silent_ms)} ago{', overdue' if reader.overdue else ''}",
            "holds since": _time(reader.since, "nothing"),
            "holds seqno": "none" if reader.seqno is None else f"{reader.seqno:,}",
            "breaks": reader.breaks,
        }
        yield Padding(_facts(facts), (0, 0, 0, 4), expand=False)
    moves = "stays: no reader and no policy is left to move it"
    if plan.since_after is not None:
        moves = f"can move to {_time(plan.since_after)}, at the next downgrade of a reader"
        if plan.since_after == plan.since:
            moves = "stays: others hold it as well"
    freed = _amount(plan.freed) if plan.freed.count else "no blobs"
    yield _facts({"since": f"{_time(plan.since)}; {moves}", "frees": f"{freed}, for gc"})


def _compact_views(plan: CompactPlan) -> Iterable[RenderableType]:
    merged = sum(step.size_bytes for step in plan.merges)
    yield _facts(
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


def _gc_views(plan: GcPlan) -> Iterable[RenderableType]:
    yield _facts(
        {
            "garbage": _amount(plan.garbage),
            "held by readers": _amount(plan.held),
            "gives up": f"states before seqno {max(plan.seqno, plan.gc_seqno):,}; "
            f"now those before {plan.gc_seqno:,}",
        }
    )


def _sweep_views(plan: SweepPlan) -> Iterable[RenderableType]:
    yield _facts({"parts": _amount(plan.parts), "rollups": _amount(plan.rollups)})
    if plan.keys:
        yield Text()
        yield Group(*(Text(f"  {key}", overflow="fold") for key in plan.keys[:_KEYS_MAX]))
    total = plan.parts.count + plan.rollups.count
    yield from _more(total - _KEYS_MAX, "blobs")


def _finalise_views(plan: FinalisePlan) -> Iterable[RenderableType]:
    yield _facts(
        {
            "shard": "dropped already" if plan.dropped else "is dropped for good",
            "contents": f"{plan.rows:,} rows are gone",
            "objects": f"{_amount(plan.total)}; one record of them stays",
            "written through": plan.registered or "",
            "cut off": ", ".join(plan.cut_off),
            "in the way": ", ".join(plan.in_the_way),
        }
    )


def _refusal(plan: FinalisePlan) -> str:
    """The reason for which a shard cannot be dropped yet; empty if it can."""
    if plan.registered is not None:
        return f"it is written through '{plan.registered}', which has to forget it first"
    return "somebody reads it, and --despite NAME cuts one off" if plan.in_the_way else ""


def _retention_views(plan: RetentionPlan) -> Iterable[RenderableType]:
    moves = "stays: no reader and no policy moves it"
    if plan.since_after is not None:
        moves = f"can move to {_time(plan.since_after)}; reads before that get [HISTORY_GONE]"
        if plan.since_after == plan.since:
            moves = "stays for now"
    yield _facts(
        {
            "policy": f"{_policy(plan.before_ms)} now, {_policy(plan.after_ms)} then",
            "since": f"{_time(plan.since)}; {moves}",
        }
    )


def _policy(retain_ms: int | None) -> str:
    return "left to readers" if retain_ms is None else age(retain_ms)


# --- fsck ----------------------------------------------------------------------------------------


def fsck_view(report: FsckReport) -> RenderableType:
    """Lay out the shards that were checked, then the findings."""
    numbers = ("seqno", "records", "rollups", "parts", "updates", "size", "found")
    table = plain_table("shard", *numbers, right=numbers)
    table.columns[0].overflow = "fold"
    for shard in report.shards:
        table.add_row(
            Text(shard.shard),
            "?" if shard.seqno is None else f"{shard.seqno:,}",
            f"{shard.records:,}",
            f"{shard.rollups:,}",
            f"{shard.parts:,}",
            f"{shard.rows:,}" if report.deep else "not read",
            size(shard.size_bytes),
            _found(shard),
        )
    looked = "every row was read" if report.deep else "shallow: parts were not read"
    head = f"{report.location}\nlooked at {utc(report.at_ms)} UTC; {looked}\n"
    views: list[RenderableType] = [Text(head), table]
    views += _findings("the location", report.findings)
    for shard in report.shards:
        views += _findings(shard.shard, shard.findings)
    spare = sum(shard.unreferenced for shard in report.shards)
    if spare:
        spare_bytes = sum(shard.unreferenced_bytes for shard in report.shards)
        views.append(
            Text(
                f"\n{spare:,} blobs of {size(spare_bytes)} are in no state: appends under way, or "
                "leavings of a crash (see usage, sweep)"
            )
        )
    if report.clean:
        views.append(Text("\nno findings", style="green"))
    return Group(*views)


def _found(shard: ShardCheck) -> Text:
    damage = sum(finding.severity == "damage" for finding in shard.findings)
    warnings = len(shard.findings) - damage
    style = "red" if damage else "yellow" if warnings else ""
    return Text(f"{len(shard.findings):,}" if shard.findings else "-", style=style)


def _findings(name: str, findings: Sequence[Finding]) -> list[RenderableType]:
    if not findings:
        return []
    views: list[RenderableType] = [Text(f"\n{name}", style="bold")]
    by_code: dict[str, list[Finding]] = {}
    for finding in findings:
        by_code.setdefault(finding.code, []).append(finding)
    for code, some in by_code.items():
        severity = some[0].severity
        style = "red" if severity == "damage" else "yellow"
        views.append(Text.assemble(("  " + code, style), f"  {severity}, {len(some):,}"))
        views += [_indented(one.detail, 4) for one in some[:_SUBJECTS_MAX]]
        if len(some) > _SUBJECTS_MAX:
            views.append(_indented(f"and {len(some) - _SUBJECTS_MAX:,} more: see --json", 4))
        views.append(_indented(f"hint: {some[0].hint}", 4))
    return views


# --- holders -------------------------------------------------------------------------------------


def holders_view(report: LocationReport) -> RenderableType:
    """Lay out the readers of all shards, those that hold back most history first."""
    found = [(shard.name, one) for shard in report.shards for one in shard.holders]
    if not found:
        return Text("nobody reads any shard, and nobody holds anything")
    found.sort(key=lambda pair: (-pair[1].behind_ms, -pair[1].behind_seqnos, pair[0]))
    views: list[RenderableType] = []
    for name, one in found:
        lasts = "never expires" if one.lease_ms is None else f"lease of {age(one.lease_ms)}"
        if one.overdue:
            lasts += ", over"
        keeps = "no blobs"
        if one.seqno is not None:
            keeps = f"blobs since seqno {one.seqno:,}, {size(one.only_bytes)} for it alone"
        behind = "all history there is" if one.since == 0 else f"{age(one.behind_ms)} of history"
        views += [
            Text.assemble((name, "bold"), f"  {one.kind} ", (one.name, "cyan"), overflow="fold"),
            _indented(one.owner, 4),
            _indented(f"{lasts}, heard of {age(one.silent_ms)} ago", 4),
            _indented(f"holds {behind}; keeps {keeps}", 4),
        ]
    return Group(*views)


# --- how -----------------------------------------------------------------------------------------


def _facts(facts: Mapping[str, str]) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, fact in facts.items():
        if fact:
            table.add_row(name, Text(fact))
    return table


def _amount(amount: Amount) -> str:
    objects = "1 object" if amount.count == 1 else f"{amount.count:,} objects"
    return f"{objects} of {size(amount.size_bytes)}" if amount.count else "none"


def _time(ms: int | None, none: str = "none") -> str:
    if ms is None:
        return none
    return f"{ms} ({utc(ms)} UTC)" if ms and utc(ms) else str(ms)


def _indented(text: str, by: int) -> Padding:
    return Padding(Text(text, overflow="fold"), (0, 0, 0, by), expand=False)


def _more(count: int, what: str) -> Iterable[Text]:
    return [Text(f"  and {count:,} more {what}")] if count > 0 else []

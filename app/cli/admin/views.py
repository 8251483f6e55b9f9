"""Views show the findings of the admin's verbs that look to people, in 80 columns.

fsck_view(report)         the shards that were checked, then findings, damage first
holders_view(report)      the readers of all shards, and what they hold back
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from shardline.app.cli.tables import NOT_BEGUN, age, plain_table, size, utc
from shardline.datasource.inspect.fsck import Finding, FsckReport, ShardCheck
from shardline.datasource.inspect.report import LocationReport

__all__ = ["fsck_view", "holders_view"]

_SUBJECTS_MAX: Final = 10
"""Most objects that are listed for one code; `--json` has all."""


def fsck_view(report: FsckReport) -> RenderableType:
    """Lay out the shards that were checked, then the findings."""
    numbers = ("seqno", "records", "rollups", "parts", "updates", "size", "found")
    table = plain_table("shard", *numbers, right=numbers, fold=("shard",))
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
    if report.is_clean:
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
        if not one.confirmed:
            views.append(_indented(NOT_BEGUN, 4))
    return Group(*views)


def _indented(text: str, by: int) -> Padding:
    return Padding(Text(text, overflow="fold"), (0, 0, 0, by), expand=False)

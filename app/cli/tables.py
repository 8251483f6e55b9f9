"""Tables show reports of shards to people, in 80 columns.

    location_view(report)     one line per shard, then the shards that could not be read
    shard_view(shard, at)     all facts about one shard
    plain_table, facts_table  the two forms of every table that is printed
    moment(ms), size(n)       times and sizes as they are written everywhere

Times are shown as the number that options take and, below it, as UTC. Neither Spark nor a store is
imported, so commands that only print start fast.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from shardline.app.introspection.verdicts.wording import amount, span
from shardline.app.protocol.objects import is_runtime_shard
from shardline.datasource.frontier import clock_date, utc
from shardline.datasource.report import HolderReport, LocationReport, ShardReport

__all__ = [
    "COLUMN_GAP",
    "NAME_WIDTH",
    "NOT_BEGUN",
    "age",
    "facts_table",
    "is_helper",
    "local_time",
    "location_view",
    "moment",
    "number_or_time",
    "plain_table",
    "shard_view",
    "size",
    "utc",
]

_KIB = 1024
_SECOND_MS = 1000

_TIMES_FROM_MS = 1_000_000_000_000
"""From September 2001 on: nobody has counted as many appends."""

NOT_BEGUN: Final = (
    "its stream has not run a micro-batch: if it has not just been started, it was killed before "
    "its first one, and begins with another hold"
)
"""Of a hold that is not confirmed (`HolderReport`): nobody else can say what it is for."""

_HELPERS = ("_progress", "_errors", "_skipped")


def local_time(ms: int) -> str:
    """A time in ms as the time of day in this machine's zone: `14:03:22`."""
    return datetime.fromtimestamp(ms / 1000, UTC).astimezone().strftime("%H:%M:%S")


def moment(ms: int | None, none: str = "none") -> str:
    """A time on two lines: the number, and the UTC date-time; `none` for the empty frontier."""
    if ms is None:
        return none
    shown = clock_date(ms)
    return f"{ms}\n{shown}" if shown else str(ms)


def size(count: int | None) -> str:
    """A number of bytes with a unit: `6.1 MiB`; `?` if it is not known."""
    if count is None:
        return "?"
    return f"{count} B" if count < _KIB else amount(count)


def age(ms: int) -> str:
    """A duration in its two largest units: `3 min 20 s`; `412 ms` below a second."""
    return f"{ms} ms" if ms < _SECOND_MS else span(ms)


COLUMN_GAP: Final = 2
"""Blanks between two columns of a table."""

NAME_WIDTH: Final = 8
"""Characters of a name on one line, at least, where a table has many columns of numbers."""


def plain_table(
    *columns: str,
    right: Iterable[str] = (),
    fold: Iterable[str] = (),
    least: int | None = None,
    title: str | None = None,
) -> Table:
    """An empty table in the style of all output.

    Args:
        columns: Their heads.
        right: Columns that hold numbers.
        fold: Columns of names, which are folded where they do not fit, and never cut.
        least: Characters of a name that are on one line at least, also on a narrow terminal; None
            for any.
        title: Above the table; None for none.
    """
    table = Table(box=None, title=title, title_justify="left", title_style="bold", pad_edge=False)
    numbers, folded = set(right), set(fold)
    for column in columns:
        table.add_column(
            column,
            justify="right" if column in numbers else "left",
            no_wrap=column in numbers,
            overflow="fold" if column in folded else "ellipsis",
            # Else numbers, which are never broken, would take all of a narrow terminal.
            min_width=least if column in folded else None,
        )
    return table


def facts_table(facts: Mapping[str, str]) -> Table:
    """Facts by name, a line each; those without a text are left out."""
    table = Table.grid(padding=(0, COLUMN_GAP))
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    for name, fact in facts.items():
        if fact:
            table.add_row(name, Text(fact))
    return table


def is_helper(name: str, names: Container[str]) -> bool:
    """True if a shard is one that the runtime keeps beside the object of another one of `names`.

    Those that begin with `_` belong to the runtime itself.
    """
    beside = next((name.removesuffix(end) for end in _HELPERS if name.endswith(end)), None)
    return is_runtime_shard(name) or (beside is not None and beside in names)


def location_view(report: LocationReport, *, helpers: bool = True) -> RenderableType:
    """All shards of a location, one line each; without `helpers` their number instead."""
    names = {shard.name for shard in report.shards}
    shards = [one for one in report.shards if helpers or not is_helper(one.name, names)]
    left = len(report.shards) - len(shards)
    many = "1 shard" if len(shards) == 1 else f"{len(shards)} shards"
    if left:
        many += f" and {left} that the runtime keeps for itself (--all shows them)"
    head = Text(f"{report.location}\n{many}, looked at {utc(report.at_ms)} UTC\n")
    numbers = ("rows", "parts", "size", "holders")
    table = plain_table(
        "shard", *numbers, "since", "upper", right=numbers, fold=("shard",), least=NAME_WIDTH
    )
    for shard in shards:
        if shard.dropped:
            table.add_row(escape(shard.name), *[""] * 4, "dropped", "")
            continue
        table.add_row(
            escape(shard.name),
            f"{shard.diff_sum:,}",
            f"{shard.part_count:,}",
            size(shard.size_bytes),
            str(len(shard.holders)),
            moment(shard.since),
            moment(shard.upper, "finished"),
        )
    views: list[RenderableType] = [head, table]
    views += [Text(f"\n{p.shard}: {p.message}", style="red") for p in report.problems]
    return Group(*views)


def shard_view(shard: ShardReport, at_ms: int) -> RenderableType:
    """All facts about one shard, in sections.

    Args:
        shard: Its report.
        at_ms: When the report was made, ms since the epoch.
    """
    views: list[RenderableType] = [_facts(shard, at_ms)]
    if shard.levels:
        views += [Text(), _levels(shard)]
    if shard.holders:
        views += [Text(), Text("what holds it back", style="bold")]
        views += [_holder(shard, holder) for holder in shard.holders]
    if shard.writers:
        views += [Text(), _writers(shard)]
    if shard.parts:
        views += [Text(), _parts(shard)]
    return Group(*views)


def _facts(shard: ShardReport, at_ms: int) -> Table:
    facts = {
        "shard": f"{shard.name}{'  (dropped)' if shard.dropped else ''}",
        "id": shard.id,
        "comment": shard.comment,
        "schema": f"{shard.schema}  (number {shard.schema_id})",
        "key": ", ".join(shard.key) or "none: ordered by all columns",
        "since": _one_line(shard.since, "none: nothing can be read"),
        "upper": _one_line(shard.upper, "finished: nothing more can come") + _of_leader(shard),
        "contents": f"{shard.diff_sum:,} rows from {shard.rows:,} updates",
        "parts": _part_summary(shard),
        "batches": f"{shard.batches:,}, {shard.empty_batches:,} of them idle time",
        "only old seqnos need": size(shard.dropped_bytes),
        "retention": _retention(shard.retain_ms),
        "swept": _one_line(shard.swept_ms) if shard.swept_ms else "never",
        "seqno": f"{shard.seqno:,}, written {_one_line(shard.walltime_ms)}",
        "made": f"{_one_line(shard.created_ms)}, {age(max(at_ms - shard.created_ms, 0))} ago",
        "rollups": ", ".join(f"{r.seqno:,} ({size(r.size_bytes)})" for r in shard.rollups)
        or "none yet",
        "state version": shard.version,
    }
    return facts_table(facts)


def _one_line(ms: int | None, none: str = "none") -> str:
    if ms is None:
        return none
    shown = clock_date(ms)
    return f"{ms}  {shown} UTC" if shown else str(ms)


def _of_leader(shard: ShardReport) -> str:
    return f", or that of '{shard.follows}', if it is later" if shard.follows else ""


def _retention(retain_ms: int | None) -> str:
    if retain_ms is None:
        return "none: since moves with readers"
    return f"{age(retain_ms)} before upper, whoever reads"


def _part_summary(shard: ShardReport) -> str:
    inline = f", {shard.inline_parts:,} of them inside the state" if shard.inline_parts else ""
    retracting = f", {shard.retracting_parts:,} take rows away" if shard.retracting_parts else ""
    return f"{shard.part_count:,} of {size(shard.size_bytes)} together{inline}{retracting}"


def _levels(shard: ShardReport) -> Table:
    names = ("level", "batches", "parts", "updates", "size")
    table = plain_table(*names, right=names, title="batches by size")
    for level in shard.levels:
        table.add_row(
            str(level.level),
            f"{level.batches:,}",
            f"{level.parts:,}",
            f"{level.rows:,}",
            size(level.size_bytes),
        )
    return table


def _holder(shard: ShardReport, holder: HolderReport) -> RenderableType:
    lasts = "never expires"
    if holder.lease_ms is not None:
        lasts = f"expires after {age(holder.lease_ms)} of silence"
    if holder.overdue:
        lasts += ", which is over"
    if holder.made_ms is not None:
        lasts += f", made {age(max(holder.heard_ms + holder.silent_ms - holder.made_ms, 0))} ago"
    blobs = "no blobs of earlier states"
    if holder.seqno is not None:
        blobs = f"blobs since seqno {holder.seqno:,}, {holder.behind_seqnos:,} back; "
        blobs += f"{size(holder.only_bytes)} for it alone"
    history = "all there is" if holder.since == 0 else f"{age(holder.behind_ms)} behind upper"
    if holder.gain_ms:
        # This one alone stands at the shard's since.
        could_be = (shard.since or 0) + holder.gain_ms
        history += f"; without it since could be {could_be}"
    lines = [
        holder.owner,
        f"{lasts}, heard of {age(holder.silent_ms)} ago",
        f"since  {_one_line(holder.since, 'nothing')}",
        f"history  {history}",
        f"keeps  {blobs}",
        *([] if holder.confirmed else [NOT_BEGUN]),
    ]
    title = Text.assemble((f"{holder.kind} ", "bold"), (holder.name, "cyan"))
    return Group(title, *[Padding(Text(line), (0, 0, 0, 4)) for line in lines])


def _writers(shard: ShardReport) -> Table:
    table = plain_table(
        "writer",
        "last",
        "silent for",
        "remembered",
        right=("last",),
        title="writers",
        fold=("writer",),
    )
    for writer in shard.writers:
        table.add_row(
            Text(writer.name),
            number_or_time(writer.last),
            age(writer.silent_ms),
            "for ever" if writer.lease_ms is None else age(writer.lease_ms),
        )
    return table


def number_or_time(last: int) -> str:
    """The number of an append: of some writers, such as the ingestion of a source, a time."""
    return moment(last) if last >= _TIMES_FROM_MS and utc(last) else f"{last:,}"


def _parts(shard: ShardReport) -> Table:
    numbers = ("updates", "size", "diffs")
    table = plain_table(
        "part, its times", *numbers, right=numbers, title="parts", fold=("part, its times",)
    )
    for part in shard.parts or ():
        place = "inside the state" if part.inline else part.key.rpartition("/")[2]
        table.add_row(
            Text(f"{place}\n{part.ts_min} to {part.ts_max}"),
            f"{part.rows:,}",
            size(part.size_bytes),
            f"{part.diff_min:+d} to {part.diff_max:+d}",
        )
    return table

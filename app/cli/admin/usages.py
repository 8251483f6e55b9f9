"""Usage views show the purpose of every byte of a location or a shard, as text for people.

    usage_view(usage, width=…)  a location, one line per shard; by kind where that is too wide
    shard_usage_view(usage)     a shard, and the bytes that each reader keeps

No client is imported, so that `inspect` starts fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from shardline.app.cli.tables import COLUMN_GAP, NAME_WIDTH, plain_table, size, utc
from shardline.datasource.inspect.usage import LocationUsage, OrphanUsage, ShardUsage
from shardline.datasource.shard.references import Amount

__all__ = ["shard_usage_view", "usage_view"]


def usage_view(usage: LocationUsage, *, width: int) -> RenderableType:
    """Lay out the bytes of a location by purpose, one line per shard if the terminal is wide."""
    total = size(usage.total.size_bytes)
    head = f"{usage.location}\n{total} in {usage.total.count:,} objects, {utc(usage.at_ms)} UTC\n"
    views: list[RenderableType] = [Text(head), *_shards(usage.shards, width)]
    if usage.orphans:
        views += [Text(), _orphans(usage.orphans)]
    views += [Text(f"\n{one.shard}: {one.message}", style="red") for one in usage.problems]
    views.append(Text("\nnow: needed; held: only for readers; garbage: gc; leaked: sweep"))
    return Group(*views)


def _shards(shards: Sequence[ShardUsage], width: int) -> Iterable[RenderableType]:
    """A table, or each shard's name and below it what it has: a number is never cut."""
    rows = [[size(amount.size_bytes) for amount in _amounts(shard)] for shard in shards]
    widths = (max(map(len, column)) for column in zip(_KINDS, *rows, strict=True))
    if NAME_WIDTH + sum(COLUMN_GAP + one for one in widths) <= width:
        table = plain_table("shard", *_KINDS, right=_KINDS, fold=("shard",), least=NAME_WIDTH)
        for shard, row in zip(shards, rows, strict=True):
            table.add_row(Text(shard.name), *row)
        yield table
        return
    for shard in shards:
        yield Text(shard.name, overflow="fold")
        for kind, amount in zip(_KINDS, _amounts(shard), strict=True):
            if amount.count or kind == "total":
                yield Text(f"  {kind}: {size(amount.size_bytes)}")


_KINDS: Final = ("now", "held", "garbage", "staged", "leaked", "not ours", "total")


def _amounts(shard: ShardUsage) -> tuple[Amount, ...]:
    """By `_KINDS`."""
    return (
        shard.now, shard.held, shard.garbage, shard.staged, shard.leaked, shard.unattributed,
        shard.total,
    )  # fmt: skip


def _orphans(orphans: Sequence[OrphanUsage]) -> Table:
    numbers = ("objects", "size", "to sweep")
    table = plain_table("no shard's", *numbers, right=numbers, fold=("no shard's",))
    for orphan in orphans:
        table.add_row(
            Text(orphan.directory),
            f"{orphan.total.count:,}",
            size(orphan.total.size_bytes),
            size(orphan.sweepable.size_bytes),
        )
    return table


_WHY: Final[Mapping[str, str]] = {
    "parts": "rows of the newest state",
    "rollups": "newest whole state",
    "records": "log since then",
    "floors": "how far the log was cut",
    "held": "only for readers of older states",
    "garbage": "gc takes it, records after a grace",
    "staged": "appends under way, or of a recent crash",
    "leaked": "sweep takes it",
    "unattributed": "not Shardline's",
    "total": "",
}


def shard_usage_view(usage: ShardUsage) -> RenderableType:
    """Lay out the bytes of one shard by purpose, and those that each reader keeps."""
    numbers = ("objects", "size")
    table = plain_table("usage", *numbers, "what it is", right=numbers)
    for name, why in _WHY.items():
        amount: Amount = getattr(usage, name)
        if amount.count or name == "total":
            table.add_row(name, f"{amount.count:,}", size(amount.size_bytes), why)
    views: list[RenderableType] = [table]
    keeping = [one for one in usage.holders if one.kept.count]
    if keeping:
        kept = plain_table(
            "kept by",
            "since seqno",
            "all",
            "alone",
            right=("since seqno", "all", "alone"),
            fold=("kept by",),
        )
        for one in keeping:
            kept.add_row(
                Text(f"{one.kind} {one.name}"),
                f"{one.seqno:,}",
                size(one.kept.size_bytes),
                size(one.alone.size_bytes),
            )
        views += [Text(), kept]
    return Group(*views)

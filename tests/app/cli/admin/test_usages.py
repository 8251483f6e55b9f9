"""Usage is shown on a terminal of any width, and its numbers are whole."""

from __future__ import annotations

import pytest
from rich.console import Console

from shardline.app.cli.admin.usages import shard_usage_view, usage_view
from shardline.datasource.inspect.usage import (
    HolderUsage,
    LocationUsage,
    OrphanUsage,
    ShardUsage,
)
from shardline.datasource.shard.references import Amount

SHARDS = ("orders", "deliveries_of_the_last_year_by_the_hour")
SOME = Amount(123_456, (1 << 30) - 104_858)
"""1023.9 MiB: the widest size."""


def shard(name: str) -> ShardUsage:
    holder = HolderUsage(name="maintainer-of-orders", kind="hold", seqno=7, kept=SOME, alone=SOME)
    return ShardUsage(
        id=name,
        name=name,
        dropped=False,
        seqno=123_456,
        parts=SOME,
        held=SOME,
        garbage=SOME,
        staged=SOME,
        leaked=SOME,
        unattributed=SOME,
        holders=(holder,),
    )


def location() -> LocationUsage:
    orphan = OrphanUsage(directory="s9-of-nobody-at-all", total=SOME, sweepable=SOME)
    shards = tuple(map(shard, SHARDS))
    return LocationUsage(location="file:///lake", at_ms=0, shards=shards, orphans=(orphan,))


def shown(width: int) -> tuple[str, str]:
    """A location and a shard."""
    console = Console(width=width)
    with console.capture() as whole:
        console.print(usage_view(location(), width=width))
    with console.capture() as one:
        console.print(shard_usage_view(shard("orders")))
    return whole.get(), one.get()


@pytest.mark.parametrize("width", [40, 60, 80, 90, 120])
def test_no_number_is_cut(width: int) -> None:
    """Whatever has no room is a name, which is folded, or a text."""
    whole, one = shown(width)
    # Six kinds of each of two shards, and two of the directory; those of a shard, and its reader's.
    assert whole.count("1023.9 MiB") == 2 * 6 + 2
    assert whole.count("6.0 GiB") == 2
    assert one.count("1023.9 MiB") == 6 + 2


def test_a_wide_terminal_has_a_line_for_each_shard() -> None:
    """A narrow one has one for each kind of which there is something."""
    wide = [line.split() for line in shown(140)[0].splitlines()]
    assert [words[0] for words in wide if words[-2:] == ["6.0", "GiB"]] == [*SHARDS]
    lines = shown(40)[0].splitlines()
    place = lines.index("orders")
    assert lines[place + 1 : place + 3] == ["  now: 1023.9 MiB", "  held: 1023.9 MiB"]

"""Look into a persist location: its shards, their state, parts, readers and holds.

    ./spark-submit.sh inspect LOCATION [SHARD] [--json] [--parts] [--option NAME=VALUE …]

Reads only, takes no lease and starts no JVM. Status 0: everything was readable; 1: some shard of
the location was not; 2: the request cannot be answered, for the reason on stderr.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import msgspec
from rich.console import Console

from app.storage_options import add_option_argument, storage_options
from app.tables import location_view, shard_view
from datasource.clock import SystemClock, SystemIds
from datasource.errors import ShardError
from datasource.inspection import inspect_location, inspect_shard
from datasource.report import LocationReport
from datasource.stores.open import open_location

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with `arguments` (those of the process by default); the exit status."""
    given = _parser().parse_args(arguments)
    try:
        report = _look(
            given.location, given.shard, storage_options(given.option), with_parts=given.parts
        )
    except ShardError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if given.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(report), indent=2).decode() + "\n")
    else:
        _show(report, one=given.shard is not None or given.parts)
    return 1 if report.problems else 0


def _look(
    url: str, shard: str | None, options: dict[str, str], *, with_parts: bool
) -> LocationReport:
    clock = SystemClock()
    location = open_location(url, options, clock=clock, ids=SystemIds())
    if shard is None:
        return inspect_location(location, clock, with_parts=with_parts)
    return inspect_shard(location, clock, shard, with_parts=with_parts)


def _show(report: LocationReport, *, one: bool) -> None:
    console = Console(highlight=False)
    if not one:
        console.print(location_view(report))
        return
    for position, shard in enumerate(report.shards):
        if position:
            console.print()
        console.print(shard_view(shard, report.at_ms))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="spark-submit.sh inspect",
        description="Shows the shards of a persist location: state, parts, readers and holds. "
        "Reads only.",
    )
    parser.add_argument("location", help="file:///path, a plain path, s3://bucket/prefix, …")
    parser.add_argument("shard", nargs="?", help="one shard in full; without it one line for each")
    parser.add_argument("--json", action="store_true", help="JSON with stable names")
    parser.add_argument("--parts", action="store_true", help="list every part")
    add_option_argument(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())

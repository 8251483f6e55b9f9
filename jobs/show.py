"""Show a persist location: its shards, their state, parts, readers and holds.

    ./spark-submit.sh inspect LOCATION [SHARD] [--all] [--json] [--parts] [--usage] [--option …]

Reads only, takes no lease and starts no JVM. Status 0: everything was readable; 1: some shard of
the location was not; 2: the request failed, for the reason on stderr.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import msgspec

from shardline.app.cli.admin.usages import shard_usage_view, usage_view
from shardline.app.cli.storage_options import (
    add_location_argument,
    add_option_argument,
    storage_options,
)
from shardline.app.cli.tables import location_view, shard_view
from shardline.app.cli.terminal import open_console
from shardline.datasource.clock import Clock, SystemClock, SystemIds
from shardline.datasource.errors import ShardError
from shardline.datasource.inspect.inspection import inspect_location, inspect_shard
from shardline.datasource.inspect.report import LocationReport
from shardline.datasource.inspect.usage import (
    LocationUsage,
    ShardUsage,
    location_usage,
    shard_usage,
)
from shardline.datasource.settings import ShardSettings
from shardline.datasource.shard.machine import Machine
from shardline.datasource.stores.location import Location
from shardline.datasource.stores.open import open_location
from shardline.installation import PROGRAM

__all__ = ["main"]

Usage = LocationUsage | ShardUsage


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with `arguments` (those of the process by default) and return the exit status."""
    given = _parser().parse_args(arguments)
    clock, options = SystemClock(), given.option
    try:
        location = open_location(
            given.location, storage_options(options), clock=clock, ids=SystemIds()
        )
        report = _look(location, clock, given.shard, with_parts=given.parts)
        usage = _usage(location, clock, given.shard) if given.usage else None
    except KeyboardInterrupt:
        return 130
    except ShardError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if given.json:
        _write(report, usage)
    else:
        one = given.shard is not None or given.parts
        _show(report, usage, one=one, helpers=given.all)
    # Usage reads older states than the report: it may find a shard unreadable that this has shown.
    unread = usage.problems if isinstance(usage, LocationUsage) else ()
    return 1 if report.problems or unread else 0


def _look(
    location: Location, clock: Clock, shard: str | None, *, with_parts: bool
) -> LocationReport:
    if shard is None:
        return inspect_location(location, clock, with_parts=with_parts)
    return inspect_shard(location, clock, shard, with_parts=with_parts)


def _usage(location: Location, clock: Clock, shard: str | None) -> Usage:
    if shard is None:
        return location_usage(location, clock)
    return shard_usage(Machine(shard, location, clock, SystemIds(), ShardSettings()))


def _write(report: LocationReport, usage: Usage | None) -> None:
    """Print the report as JSON, with the usage as one more field if it was asked for."""
    fields = msgspec.to_builtins(report)
    if usage is not None:
        fields["usage"] = usage
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(fields), indent=2).decode() + "\n")


def _show(report: LocationReport, usage: Usage | None, *, one: bool, helpers: bool) -> None:
    console = open_console()
    if not one:
        console.print(location_view(report, helpers=helpers))
    for position, shard in enumerate(report.shards if one else ()):
        if position:
            console.print()
        console.print(shard_view(shard, report.at_ms))
    if usage is not None:
        console.print()
    match usage:
        case ShardUsage():
            console.print(shard_usage_view(usage))
        case LocationUsage():
            console.print(usage_view(usage, width=console.width))
        case None:
            pass


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"{PROGRAM} inspect",
        description="Shows the shards of a persist location: state, parts, readers and holds. "
        "Reads only.",
    )
    add_location_argument(parser)
    parser.add_argument(
        "shard", nargs="?", metavar="SHARD", help="one shard in full; without it one line for each"
    )
    parser.add_argument(
        "--all", action="store_true", help="also what the runtime keeps beside its objects"
    )
    parser.add_argument("--json", action="store_true", help="JSON with stable names")
    parser.add_argument("--parts", action="store_true", help="list every part")
    parser.add_argument(
        "--usage", action="store_true", help="what every byte is there for; lists all objects"
    )
    add_option_argument(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())

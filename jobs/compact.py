"""Merge the batches of shards, large ones by Spark jobs.

    ./spark-submit.sh compact LOCATION [SHARD …] [--force] [--option NAME=VALUE …]

Without names: all shards of the location. Prints its progress. Safe to run, to kill and to run
again at any time, beside writers, readers and maintenance; ranges that another process is merging
are left to it. Status 0: no merge is due any more, but for those of other processes; 1: some shard
failed, or its merges were lost to other processes again and again, for the reason on stderr; 2: the
request cannot be carried out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from shardline.app.cli.storage_options import (
    add_location_argument,
    add_option_argument,
    storage_options,
)
from shardline.app.cli.terminal import open_console
from shardline.app.spark_session import open_session, stop_session
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage, ShardError
from shardline.datasource.shard.state import is_tombstone
from shardline.datasource.spark_compaction.driver import RANGE_BYTES, compact_on_spark
from shardline.installation import PROGRAM

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from rich.console import Console

__all__ = ["main", "merge_shards"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with `arguments` (those of the process by default) and return the exit status."""
    given = _parser().parse_args(arguments)
    try:
        spark = open_session("shardline compact", {"spark.ui.showConsoleProgress": "false"})
    except InvalidUsage as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        return merge_shards(spark, given, open_console(markup=False))
    except KeyboardInterrupt:
        # What was merged is, and the rest is as it was: nothing of a merge is seen before its end.
        return 130
    finally:
        stop_session(spark)


def merge_shards(spark: SparkSession, given: argparse.Namespace, console: Console) -> int:
    """Merge the shards that the arguments name; returns the exit status."""
    try:
        options = storage_options(given.option)
        client = ShardClient.open(given.location, options, create=False)
        names = given.shards or client.shards()
        # Of those that were named only: one that cannot be read is no reason to leave all others.
        for name in given.shards:
            client.state(name)
    except ShardError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    status = 0
    for name in names:
        try:
            if not given.shards and is_tombstone(client.machine(name).state()):
                continue
            merges = compact_on_spark(
                spark,
                client,
                name,
                storage=options,
                force=given.force,
                range_bytes=given.range_bytes,
                report=console.print,
            )
            summary = _size_summary(client, name)
        except ShardError as error:
            print(f"error: {name}: {error}", file=sys.stderr)
            status = 1
            continue
        console.print(f"{name}: {merges} merges, {summary}")
    return status


def _size_summary(client: ShardClient, name: str) -> str:
    batches = client.state(name).trace.batches
    parts = [part for batch in batches for part in batch.parts]
    size = sum(part.size_bytes for part in parts) / (1 << 20)
    return f"now {len(batches)} batches, {len(parts)} parts, {size:,.1f} MiB"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"{PROGRAM} compact",
        description="Merges the batches of shards, large ones by Spark jobs. Invisible to readers.",
    )
    add_location_argument(parser)
    # Without a default, argparse names it among the arguments that are missing.
    parser.add_argument(
        "shards", nargs="*", default=[], metavar="SHARD", help="which; default: all"
    )
    parser.add_argument("--force", action="store_true", help="leave one batch, whatever it costs")
    parser.add_argument(
        "--range-bytes",
        type=int,
        default=RANGE_BYTES,
        metavar="N",
        help="encoded bytes that one task reads, about (default: 128 MiB)",
    )
    add_option_argument(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())

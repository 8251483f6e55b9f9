"""Maintain the shards of a location, round after round, until stopped.

    ./spark-submit.sh maintain LOCATION [SHARD …] [--every 60s] [--rounds N] [--option …]

A round moves the since of shards that have a retention, merges batches, deletes garbage, and now
and then deletes parts that crashed writers have left (docs/design.md, "Maintenance"). A line is
printed for each shard that was changed, and to stderr one for each step that fails. Any number of
these jobs may run on one location, beside writers and readers, and be killed at any time. Starts no
JVM.

Status 0: stopped by SIGINT or SIGTERM, after the step under way (a merge is given up), or all
rounds are done; 1: all rounds are done, and something failed in the last one; 2: it cannot start.
"""

from __future__ import annotations

import argparse
import signal
import sys
import threading
from collections.abc import Sequence
from queue import SimpleQueue

from shardline.app.cli.storage_options import (
    add_location_argument,
    add_option_argument,
    storage_options,
)
from shardline.app.cli.tables import size, utc
from shardline.app.cli.terminal import open_console, warnings_on_stderr
from shardline.app.settings.durations import parse_duration_ms
from shardline.datasource.background import BackgroundThread
from shardline.datasource.client import ShardClient
from shardline.datasource.errors import InvalidUsage, ShardError
from shardline.datasource.maintainer import WHOLE_LOCATION, Maintainer, RoundResult
from shardline.installation import PROGRAM

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with `arguments` (those of the process by default) and return the exit status."""
    given = _parser().parse_args(arguments)
    try:
        period_ms = parse_duration_ms(given.every)
        if period_ms < 1 or (given.rounds is not None and given.rounds < 1):
            raise InvalidUsage(
                f"a round every {given.every}, {given.rounds} rounds",
                code="INVALID_ARGUMENT",
                hint="both are at least 1",
            )
        client = ShardClient.open(given.location, storage_options(given.option), create=False)
        for name in given.shards:
            client.machine(name).state()
    except ShardError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    with warnings_on_stderr():
        return _rounds(client, given.shards or None, period_ms, given.rounds)


def _rounds(
    client: ShardClient, shards: Sequence[str] | None, period_ms: int, rounds: int | None
) -> int:
    console = open_console(markup=False)
    keeper = Maintainer(client, shards, period_ms=period_ms)
    stopped = threading.Event()
    signals: SimpleQueue[int] = SimpleQueue()

    def stop() -> None:
        signals.get()
        stopped.set()
        keeper.cancel()

    # By another thread: a handler runs in the main thread, between any two instructions, also while
    # that holds the lock of an event that it waits for; to set the event there would wait for ever.
    BackgroundThread("signals", stop).start()
    before = {
        kind: signal.signal(kind, lambda kind, _: signals.put(kind))
        for kind in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        console.print(f"maintaining {client.location.url}, about every {period_ms / 1000:g} s")
        done = 0
        while not stopped.is_set():
            maintained = keeper.round()
            said = {name: _round_summary(one) for name, one in sorted(maintained.items())}
            for name, words in said.items():
                if words:
                    what = "all shards" if name == WHOLE_LOCATION else name
                    console.print(f"{utc(client.clock.now_ms())}  {what}: {words}")
            # Of rounds that are counted somebody keeps a log; one that goes on would fill it.
            if rounds is not None and not any(said.values()):
                console.print(f"{utc(client.clock.now_ms())}  nothing to do")
            done += 1
            if rounds is not None and done >= rounds:
                return 1 if any(one.failed for one in maintained.values()) else 0
            client.clock.wait(stopped, keeper.pause_ms())
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler)
    return 0


def _round_summary(done: RoundResult) -> str:
    """The work of a round on one shard, in words; "" if there was nothing to do."""
    words = []
    if done.retained:
        words.append("since moved along")
    if done.merges:
        words.append(f"{done.merges} merge{'' if done.merges == 1 else 's'}")
    if done.collected:
        words.append(f"{_blobs(done.collected, '')} of garbage deleted")
    if done.swept is not None and done.swept.total.count:
        total = done.swept.total
        words.append(f"{_blobs(total.count, 'leaked ')} swept ({size(total.size_bytes)})")
    if done.failed:
        words.append(f"failed: {', '.join(done.failed)}")
    return ", ".join(words)


def _blobs(count: int, what: str) -> str:
    return f"{count:,} {what}blob{'' if count == 1 else 's'}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"{PROGRAM} maintain",
        description="Merges batches, deletes garbage and sweeps leaks, round after round.",
    )
    add_location_argument(parser)
    # Without a default, argparse names it among the arguments that are missing.
    parser.add_argument(
        "shards", nargs="*", default=[], metavar="SHARD", help="which; default: all"
    )
    parser.add_argument("--every", default="60s", help="between two rounds, about (default: 60s)")
    parser.add_argument("--rounds", type=int, metavar="N", help="end after so many")
    add_option_argument(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())

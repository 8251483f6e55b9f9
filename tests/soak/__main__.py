"""Soak: real processes on one location, killed at random; contents must equal what is known.

    ./spark-submit.sh soak                                  200 rounds on a local folder
    ./spark-submit.sh soak --rounds 2000 --minutes 60 --seed 7
    ./spark-submit.sh soak --no-spark                       writers and maintenance only; fast
    ./spark-submit.sh soak --faults 5                       5 of 100 requests go wrong
    ./spark-submit.sh soak --location s3://bucket/empty --option s3.endpoint=http://127.0.0.1:9000

Writers append known rows, two streaming queries copy them, a keeper merges, collects and truncates.
Each round kills a writer and, as chance has it, the driver's JVM or Python, a planner, a worker, an
executor or the keeper. With faults, requests of writers and the keeper fail before and after their
effect, happen late, are refused though they happened, and what is read back of them is damaged.
Prints what the store and the processes take at every comparison.

Status 0: all shards were always right, and every bound held; 1: not so; 2: it cannot run as asked.
"""

from __future__ import annotations

import argparse
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from shardline.app.cli.storage_options import add_option_argument, storage_options
from shardline.app.cli.tables import plain_table
from shardline.datasource.errors import ShardError
from soak.known import SHARDS
from soak.measured import Sample
from soak.plan import MASTERS, FailedError, Plan, Result
from soak.rounds import soak

__all__ = ["main"]

_FAULTS_MAX = 25
"""Of 100. One request in so many comes through six attempts often enough for a soak to go on."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with `arguments` (those of the process by default); the exit status."""
    given = _parser().parse_args(arguments)
    folder = Path(given.folder).resolve()
    console = Console(highlight=False)
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    plan = Plan(
        url=given.location or str(folder / "lake"),
        storage=storage_options(given.option),
        folder=folder,
        rounds=given.rounds,
        minutes=given.minutes,
        seed=given.seed,
        writers=given.writers,
        pause_ms=given.pause_ms,
        compare_every=given.compare_every,
        masters=() if given.no_spark else given.master or MASTERS,
        patience_ms=given.patience * 1000,
        faults=given.faults / 100,
    )
    console.print(f"./spark-submit.sh soak {shlex.join(arguments or sys.argv[1:])}")
    try:
        result = soak(plan, lambda sample, result: _tell(console, sample, result))
    except ShardError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except FailedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    console.print("\nAfter each comparison; bytes and memory in MiB:")
    console.print(_table(result))
    _conclude(console, result)
    return 1 if result.broken else 0


def _tell(console: Console, sample: Sample, result: Result) -> None:
    kills = ", ".join(f"{n} {kind}" for kind, n in sorted(result.kills.items()))
    console.print(
        f"{sample.elapsed_ms / 1000:7.0f} s  round {sample.round:4}  {sample.appended:6} appends "
        f"equal the oracle; killed: {kills or 'nobody'}"
    )


def _table(result: Result) -> object:
    """Sums and greatest values over all shards; bytes in MiB."""
    numbers = ("round", "appends", "live", "stored", "log", "batches", "leases")
    kinds = sorted({kind for sample in result.samples for kind in sample.memory})
    table = plain_table(*numbers, *kinds, right=(*numbers, *kinds))
    for sample in result.samples:
        prints = [sample.shards[name] for name in SHARDS]
        table.add_row(
            str(sample.round),
            str(sample.appended),
            _mib(sum(one.live_bytes for one in prints)),
            _mib(sum(one.stored_bytes for one in prints)),
            str(max(one.log for one in prints)),
            str(max(one.batches for one in prints)),
            str(max(one.leased for one in prints)),
            *(_mib(sample.memory.get(kind, 0)) for kind in kinds),
        )
    return table


def _mib(count: int) -> str:
    return f"{count / (1 << 20):.1f}" if count < 100 << 20 else f"{count >> 20}"


def _conclude(console: Console, result: Result) -> None:
    kills = ", ".join(f"{n} {kind}" for kind, n in sorted(result.kills.items()))
    console.print(f"\n{result.rounds} rounds, {result.appended} appends; killed: {kills}")
    console.print(f"queries started again: {result.restarts}; orphans: {result.orphans}")
    troubles = ", ".join(f"{n} {code}" for code, n in sorted(result.troubles.items()))
    console.print(f"errors that a repetition cured: {troubles or 'none'}")
    stored, live = result.left
    console.print(
        f"on the next day, merged, collected and swept ({result.swept} blobs): {_mib(stored)} MiB "
        f"stored, {_mib(live)} MiB referred to"
    )
    console.print("every bound held" if not result.broken else "bounds that did not hold:")
    for line in result.broken:
        console.print(f"  {line}")


def _percent(text: str) -> float:
    value = float(text)
    if not 0 <= value <= _FAULTS_MAX:
        raise argparse.ArgumentTypeError(f"{text} is not in 0 to {_FAULTS_MAX}")
    return value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="spark-submit.sh soak",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--rounds", type=int, default=200, help="how many")
    parser.add_argument("--minutes", type=float, help="stop after so long, even before that")
    parser.add_argument("--seed", type=int, default=0, help="of all chance")
    parser.add_argument("--writers", type=int, default=3, help="writer processes")
    parser.add_argument("--pause-ms", type=int, default=100, help="between two appends of one")
    parser.add_argument("--compare-every", type=int, default=5, help="rounds between comparisons")
    parser.add_argument("--master", action="append", help="of sessions; may be repeated")
    parser.add_argument("--no-spark", action="store_true", help="no session and no queries")
    parser.add_argument("--patience", type=float, default=240.0, help="seconds without progress")
    parser.add_argument("--faults", type=_percent, default=0.0, help="of 100 requests go wrong")
    parser.add_argument("--folder", default="data/soak", help="working folder; is emptied first")
    parser.add_argument("--location", help="an empty place; default: in the working folder")
    add_option_argument(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())

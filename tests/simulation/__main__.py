"""Runs the simulation from the command line.

    ./spark-submit.sh python -m tests.simulation --seeds 10000            any number of seeds
    ./spark-submit.sh python -m tests.simulation --seeds 500 --from 7000  from another one on
    ./spark-submit.sh python -m tests.simulation --seed 42 --trace        one, and all that happens

A run that fails is made as small as can be, and printed with the command that repeats it. Ends with
status 1 then, and looks no further.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from simulation.knobs import THEMES
from simulation.report import parse_plan, told
from simulation.run import simulate
from simulation.shrink import shrink


def main(arguments: list[str]) -> int:
    """The exit status: 0 if no run has failed."""
    given = _parser().parse_args(arguments)
    first = given.seed if given.seed is not None else given.from_seed
    count = 1 if given.seed is not None else given.seeds
    events = 0
    for seed in range(first, first + count):
        plan = parse_plan(seed, given.without, given.actions, given.theme)
        outcome = simulate(plan, traced=given.trace)
        events += outcome.events
        if outcome.failure is not None:
            _say(f"seed {seed} fails: {outcome.failure}")
            smallest = outcome if given.as_it_is else shrink(outcome)
            _say(told(simulate(smallest.plan, traced=True)))
            return 1
        if given.trace:
            _say(told(outcome))
        if (seed + 1 - first) % 500 == 0:
            _say(f"{seed + 1 - first} seeds, {events} events, no failure")
    _say(f"{count} seeds from {first}: {events} events, no failure")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tests.simulation", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seeds", type=int, default=1000, help="how many")
    parser.add_argument("--from", type=int, default=0, dest="from_seed", help="the first one")
    parser.add_argument("--seed", type=int, help="this one only")
    parser.add_argument("--trace", action="store_true", help="print everything that happens")
    parser.add_argument("--without", default="", help="actors and faults to leave out, by ','")
    parser.add_argument("--actions", default="", help="at most so many: 'gc-1=2,now-1=0'")
    parser.add_argument("--theme", default="", choices=["", *THEMES], help="one kind of world")
    parser.add_argument("--as-it-is", action="store_true", help="do not make a failing run smaller")
    return parser


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Run the demo: a year of real flights as a stream, and SQL views that are kept up to date.

    ./spark-submit.sh                                      on a local folder, data/
    ./spark-submit.sh -- --location s3://bucket/prefix     on S3 (keys: conf/app.toml, [storage])
    ./spark-submit.sh -- --days 30                         fewer days
    ./spark-submit.sh -- --fresh                           start over
    ./spark-submit.sh -- --stay                            go on running afterwards, for queries

Status 0: all flights are in, and the shards agree with plain Spark over the raw files; 1: they do
not, or an object failed; 2: the arguments or settings are invalid; 130: stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from shardline.app.cli.stderr_capture import StderrCapture
from shardline.app.cli.storage_options import add_option_argument, storage_options
from shardline.app.cli.terminal import LOG_HELP, exit_on_sigterm, open_console, open_log
from shardline.app.execution.spark_errors import print_job_error
from shardline.app.settings.config import load
from shardline.datasource.clock import SystemClock
from shardline.installation import DATA_FOLDER, PROGRAM

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with `arguments` (those of the process by default) and return the exit status."""
    given = _parser().parse_args(arguments)
    console = open_console()
    try:
        settings = load(given.config, _overrides(given))
        log = open_log(settings)
        with exit_on_sigterm(), StderrCapture(log, SystemClock()) as capture:
            # Imported after the settings were checked: Spark takes a second, and a wrong setting
            # none.
            from shardline.app.demo.story import run_demo  # noqa: PLC0415

            holds = run_demo(settings, console, capture, fresh=given.fresh, stay=given.stay)
            return 0 if holds else 1
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - whatever it was, a newcomer gets a sentence
        return print_job_error(error)


def _overrides(given: argparse.Namespace) -> dict[str, dict[str, Any]]:
    names = ("data", "location", "days", "days_per_second")
    demo = {name: getattr(given, name) for name in names}
    chosen = {name: value for name, value in demo.items() if value is not None}
    return {"demo": chosen, "storage": storage_options(given.option)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=f"{PROGRAM} demo",
        description="The main job: a year of flights as a stream, and views that keep up with "
        "it. Every setting is explained in conf/app.toml.",
        epilog=LOG_HELP,
    )
    parser.add_argument("--location", help="folder or URL of the shards; default: in the folder")
    parser.add_argument("--data", help=f"folder for everything else; default: {DATA_FOLDER}")
    parser.add_argument("--days", type=int, help="days that arrive, 1 to 365")
    parser.add_argument("--days-per-second", type=float, help="how fast they arrive")
    parser.add_argument("--stay", action="store_true", help="go on running after the check")
    parser.add_argument("--fresh", action="store_true", help="drop what earlier runs have made")
    parser.add_argument("--config", type=Path, help="settings file; default: conf/app.toml")
    add_option_argument(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())

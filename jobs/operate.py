"""Operate single objects of the running application: pause, resume, restart, mend; no JVM.

    ./spark-submit.sh pause delays
    ./spark-submit.sh resume delays
    ./spark-submit.sh restart flights
    ./spark-submit.sh errors flights
    ./spark-submit.sh errors flights --retract
    ./spark-submit.sh errors flights --skip 3f9c2a1b --commit

A paused object is stopped, also over restarts of the application, until it is resumed. It keeps
what it has, its holds included: what it reads keeps its history for it meanwhile.

`errors` shows the rows of a source that could not be decoded. Reads of the source, and of all that
is made of it, fail while there are any. `--retract` takes them away, `--skip` does so and notes
them as skipped; each shows what it would do, and does it with `--commit`. Where no application
runs, the location itself is asked and changed.

Status 0: done; 1: it failed, or there are errors, or something is to be done; 2: the request is
invalid, or no application runs; 130: Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from rich.console import Console

from shardline.app.cli.application_address import add_command, application_address
from shardline.app.cli.bad_rows import bad_row_lines
from shardline.app.cli.terminal import open_console, report_error
from shardline.app.server.client import ask_errors, run_action
from shardline.app.settings.config import load
from shardline.datasource.errors import InvalidUsage, ShardError
from shardline.installation import PROGRAM

__all__ = ["main"]

_DONE = {
    "pause": ("paused {}: `resume {}` lets it go on", "{} was paused already"),
    "resume": ("resumed {}", "{} was not paused"),
    "restart": ("restarted {}", ""),
}
"""The sentence for each verb, and that for an object that was so already."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with `arguments` (those of the process by default) and return the exit status."""
    given = _parser().parse_args(arguments)
    console = open_console()
    try:
        if given.verb == "errors":
            return _errors(given, console)
        return _operate(given, console)
    except KeyboardInterrupt:
        return 130
    except ShardError as error:
        return report_error(error)


def _operate(given: argparse.Namespace, console: Console) -> int:
    """Act on each of the objects; the exit status.

    One that is refused, such as a name that is misspelt, keeps nobody else from it.
    """
    where = application_address(given)
    refused: dict[str, ShardError] = {}
    for name in given.names:
        try:
            done = run_action(where, given.verb, name)
        except InvalidUsage as error:
            refused.setdefault(str(error), error)
            continue
        said = _DONE[given.verb][0 if done["changed"] else 1]
        console.print(said.format(name, name), markup=False, highlight=False)
    return max((report_error(error) for error in refused.values()), default=0)


def _errors(given: argparse.Namespace, console: Console) -> int:
    """Show the bad rows of an object, or what is done about them; the exit status."""
    act = "retract" if given.retract is not None else "skip" if given.skip is not None else "show"
    wanted = {"show": None, "retract": given.retract, "skip": given.skip}[act]
    request = {"id": given.name, "act": act, "errors": wanted or [], "commit": given.commit}
    try:
        found = ask_errors(application_address(given), request)
    except InvalidUsage as error:
        if error.code != "NOT_RUNNING" or given.url:
            raise
        found = _answer_offline(given, request)
    if given.json:
        print(json.dumps(found, ensure_ascii=False))
    else:
        for line in bad_row_lines(found):
            console.print(line, markup=False, highlight=False, soft_wrap=True)
    if act != "show" and given.commit:
        return 0
    return 1 if found["live"] else 0


def _answer_offline(given: argparse.Namespace, request: Mapping[str, object]) -> Mapping[str, Any]:
    """The answer of the location itself, where no application runs."""
    # Only here: the other commands of this module need none of it.
    from shardline.app.coordinator.offline_repairs import OfflineRepairs  # noqa: PLC0415
    from shardline.app.server.errors_route import ErrorsRequest, answer_errors  # noqa: PLC0415
    from shardline.datasource.client import ShardClient  # noqa: PLC0415

    # As `run` does it: a folder on the command line leaves the location of the settings as it is.
    demo = {"data": given.data, "location": given.location}
    chosen = {name: value for name, value in demo.items() if value is not None}
    settings = load(given.config, {"demo": chosen})
    repairs = OfflineRepairs(ShardClient.open(settings.demo.url, settings.storage, create=False))
    return answer_errors(repairs, msgspec.convert(request, ErrorsRequest))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Operate objects that run.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    for verb, what in (
        ("pause", "stop objects until they are resumed"),
        ("resume", "let paused objects go on"),
        ("restart", "start objects anew, at once"),
    ):
        add_command(verbs, verb, what).add_argument(
            "names", nargs="+", metavar="NAME", help="objects"
        )
    errors = add_command(
        verbs, "errors", "show rows that could not be decoded, retract or skip them"
    )
    errors.add_argument("name", metavar="NAME", help="a source, or what is made of one")
    act = errors.add_mutually_exclusive_group()
    act.add_argument("--retract", nargs="*", metavar="ID", help="take these away; default: all")
    act.add_argument("--skip", nargs="*", metavar="ID", help="the same, noted as skipped")
    errors.add_argument("--commit", action="store_true", help="do it, and not only show it")
    errors.add_argument("--location", help="where the shards are, if no application runs")
    errors.add_argument("--json", action="store_true", help="print the same as JSON")
    return parser


if __name__ == "__main__":
    sys.exit(main())

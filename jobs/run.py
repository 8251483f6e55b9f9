"""Run a project, that is its sources, views, indexes and sinks, until Ctrl-C; or only plan it.

    ./spark-submit.sh run  PROJECT --set landing=data/in         run it, or continue to
    ./spark-submit.sh plan PROJECT --set landing=data/in         print the changes of that

A project is a folder of SQL files. `run` makes the running objects equal to it: new ones are
created, those that differ are changed, all others are dropped (their shards stay until `drop` names
them). While it runs it answers `sql`, `subscribe` and `status`. If an application of this folder
and location runs already, the project is sent to that one, which plans or applies it and goes on;
this process ends.

What would drop or shorten history, or drop the objects of another project, is shown and refused,
by `plan` too, unless `--allow-replace`, `--allow-shorten` or `--adopt` says that it is meant.

Status 0: planned or changed, or another runtime took over in an orderly way; 1: it failed; 2: the
project or the location cannot be used, or the change was refused; 130: stopped by Ctrl-C.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from shardline.app.cli.start_progress import StartProgress
from shardline.app.cli.stderr_capture import StderrCapture
from shardline.app.cli.storage_options import add_option_argument, storage_options
from shardline.app.cli.tables import local_time
from shardline.app.cli.terminal import LOG_HELP, exit_on_sigterm, open_console, open_log
from shardline.app.cli.verdict_lines import VerdictLines, describe_change, read_conditions
from shardline.app.execution.spark_errors import print_job_error
from shardline.app.server.start_mark import start_mark
from shardline.app.settings.config import Settings, load
from shardline.app.settings.durations import parse_duration_ms
from shardline.datasource.clock import SystemClock
from shardline.datasource.errors import Fenced, InvalidUsage
from shardline.installation import DATA_FOLDER, PROGRAM

if TYPE_CHECKING:
    from rich.console import Console

    from shardline.app.coordinator.application import Application
    from shardline.app.project.permission import Permissions
    from shardline.app.project.plan import Plan
    from shardline.datasource.clock import Clock

__all__ = ["main"]

_LOOK_MS: Final = 500.0

_REFUSALS: Final = frozenset({"OTHER_PROJECT", "REPLACEMENT_REFUSED", "RETENTION_REFUSED"})
"""Codes of plans that need a permission, which is an option of this command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with `arguments` (those of the process by default) and return the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    # `plan` is called with this option first; its help is about itself.
    given = _parser(plans=words[:1] == ["--plan"]).parse_args(words)
    console = open_console()
    try:
        settings = load(given.config, _overrides(given))
        log = open_log(settings)
        _check_variables(given)
        if given.plan or not (given.take_over or given.read_only):
            status = _ask(given, settings, console)
            if status is not None:
                return status
        # Before anything is imported that writes to stderr when it pleases.
        with exit_on_sigterm(), StderrCapture(log, SystemClock()) as capture:
            run = _plan if given.plan else _serve
            return run(given, settings, console, capture)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - whatever it was, a newcomer gets a sentence
        return print_job_error(error)


def _check_variables(given: argparse.Namespace) -> None:
    """Refuse a value that no file of the project asks for: its name may be misspelt."""
    from shardline.app.project.project import check_variables  # noqa: PLC0415 - takes a moment to import
    from shardline.app.project.variables import parse_variables  # noqa: PLC0415

    check_variables(given.project, parse_variables(given.set))


def _ask(given: argparse.Namespace, settings: Settings, console: Console) -> int | None:
    """Send the project to the running application; returns the status, None if none runs."""
    from shardline.app.cli.explain_plan import plan_view  # noqa: PLC0415
    from shardline.app.project.identity import read_identity  # noqa: PLC0415
    from shardline.app.project.plan import plan_from_json  # noqa: PLC0415
    from shardline.app.project.project import read_texts  # noqa: PLC0415
    from shardline.app.project.variables import parse_variables  # noqa: PLC0415
    from shardline.app.server.client import answers, send_project  # noqa: PLC0415 - Spark takes a second to import
    from shardline.app.server.discovery import find  # noqa: PLC0415
    from shardline.datasource.client import ShardClient  # noqa: PLC0415

    files = read_texts(given.project, parse_variables(given.set))
    identity, allowed = read_identity(given.project), _permissions(given)

    def send(*, dry_run: bool) -> Plan:
        answer = send_project(
            where,
            files,
            identity=identity,
            dry_run=dry_run,
            allowed=allowed,
            timeout_ms=float(parse_duration_ms(settings.runtime.query_timeout)),
        )
        return plan_from_json(answer["plan"])

    try:
        where = find(settings.demo.data)
        if where.location != ShardClient.open(settings.demo.url, settings.storage).location.id:
            return None
        # Before it gets the token and the project. One that was killed leaves its file.
        if not answers(where):
            return None
        if given.plan:
            return _show_plan(send(dry_run=True), allowed, console)
        try:
            plan = send(dry_run=False)
        except InvalidUsage as error:
            if error.code not in _REFUSALS:
                raise
            # It has changed nothing, and the reason is in the difference: show that as well.
            return _show_plan(send(dry_run=True), allowed, console)
    except InvalidUsage as error:
        if error.code == "NOT_RUNNING":
            return None
        raise
    console.print(plan_view(plan))
    # Else a first user waits for a link, or takes the end for that of what was to be started.
    console.print(
        f"\nthe application that runs here (process {where.pid}) has taken it, and goes on"
    )
    return 0


def _plan(
    given: argparse.Namespace, settings: Settings, console: Console, capture: StderrCapture
) -> int:
    with StartProgress(console) as progress, contextlib.ExitStack() as open_:
        progress.step("starting Spark")
        from shardline.app import spark_session  # noqa: PLC0415
        from shardline.app.coordinator.planning import planned  # noqa: PLC0415 - Spark takes a second to import
        from shardline.app.coordinator.view_explanation import with_view_plans  # noqa: PLC0415
        from shardline.app.project.project import Project  # noqa: PLC0415
        from shardline.app.project.variables import parse_variables  # noqa: PLC0415
        from shardline.datasource.client import ShardClient  # noqa: PLC0415

        project = Project.load(given.project, parse_variables(given.set))
        client = ShardClient.open(settings.demo.url, settings.storage)
        allowed = _permissions(given)
        within = spark_session.settings_within(settings.demo.data)
        spark = capture.start_spark(lambda: spark_session.open_session("shardline plan", within))
        open_.callback(spark_session.stop_session, spark)
        progress.step("checking the project")
        resolved = project.check(spark)
        plan = planned(client, settings.runtime, resolved)
        progress.step("planning its views")
        plan = with_view_plans(spark, plan, resolved, allowed)
    return _show_plan(plan, allowed, console)


def _show_plan(plan: Plan, allowed: Permissions, console: Console) -> int:
    """Print a plan; 0, the exit status.

    Raises:
        InvalidUsage: The plan needs a permission that is not given.
    """
    from shardline.app.cli.explain_plan import plan_view  # noqa: PLC0415
    from shardline.app.project.permission import find_refusal  # noqa: PLC0415

    console.print(plan_view(plan))
    refusal = find_refusal(plan, allowed)
    if refusal is not None:
        # Not printed here: what is written to stderr goes to the log until the start has ended.
        raise refusal
    return 0


def _permissions(given: argparse.Namespace) -> Permissions:
    from shardline.app.project.permission import Permissions  # noqa: PLC0415

    return Permissions(replace=given.allow_replace, shorten=given.allow_shorten, adopt=given.adopt)


def _serve(
    given: argparse.Namespace, settings: Settings, console: Console, capture: StderrCapture
) -> int:
    with contextlib.ExitStack() as open_:
        with start_mark(settings.demo.data), StartProgress(console) as progress:
            progress.step("starting Spark")
            from shardline.app import spark_session  # noqa: PLC0415
            from shardline.app.cli.explain_plan import plan_summary  # noqa: PLC0415
            from shardline.app.coordinator.application import Application  # noqa: PLC0415 - as above
            from shardline.app.coordinator.planning import planned  # noqa: PLC0415
            from shardline.app.project.permission import find_refusal  # noqa: PLC0415
            from shardline.app.project.project import Project  # noqa: PLC0415
            from shardline.app.project.variables import parse_variables  # noqa: PLC0415
            from shardline.app.server.application_server import serve_application  # noqa: PLC0415
            from shardline.app.server.introspection_needed import (  # noqa: PLC0415
                check_introspection,
            )
            from shardline.app.server.listening import (  # noqa: PLC0415
                reserve_address,
                wait_for_address,
            )
            from shardline.datasource.client import ShardClient  # noqa: PLC0415

            check_introspection(settings.runtime)
            project = Project.load(given.project, parse_variables(given.set))
            client = ShardClient.open(settings.demo.url, settings.storage)
            allowed = _permissions(given)
            within = spark_session.settings_within(settings.demo.data)
            spark = capture.start_spark(lambda: spark_session.open_session("shardline", within))
            open_.callback(spark_session.stop_session, spark)
            progress.step("checking the project")
            resolved = project.check(spark)
            # Before the location is taken: a start that is refused must not run anything, not even
            # what the last one has left running.
            plan = planned(client, settings.runtime, resolved)
            if find_refusal(plan, allowed) is not None:
                progress.stop()
                return _show_plan(plan, allowed, console)
            progress.step("starting the runtime")
            data = settings.demo.data
            # Before the location is taken, too: to take it over ends what runs, and an end of this
            # start for want of an address would leave nothing running.
            pushed_aside = client.location.id if given.take_over else ""
            listening = reserve_address(settings.runtime, data, takes_over=pushed_aside)
            if listening is not None:
                open_.enter_context(listening)
            application = Application(
                spark,
                client,
                settings.runtime,
                data=data,
                storage=settings.storage,
                take_over=given.take_over,
                read_only=given.read_only,
            )
            open_.enter_context(application)
            if listening is None:
                progress.step("waiting for the address of the runtime that was pushed aside")
                listening = wait_for_address(settings.runtime, client.clock)
            where = open_.enter_context(
                serve_application(application, settings.runtime, data, listening)
            )
            progress.step("starting the objects")
            plan = application.apply(resolved, allowed)
        for line in (
            f"{plan_summary(plan)}; log: {capture.log_file}",
            f"running; {where.page_link()}; Ctrl-C stops it",
        ):
            console.print(line, markup=False, soft_wrap=True)
        _follow(application, client.clock, console)
    return 0


def _follow(application: Application, clock: Clock, console: Console) -> None:
    """Print a line for each object that becomes bad or well, until another runtime takes over.

    Raises:
        Exception: Everything was stopped for another reason: the lane has failed.
    """

    def print_line(line: str) -> None:
        # A terminal that is gone, or a full disk behind it, must not end what runs.
        with contextlib.suppress(OSError):
            console.print(f"{local_time(clock.now_ms())}  {line}", markup=False, soft_wrap=True)

    lines = VerdictLines(describe_change, print_line)
    never = threading.Event()
    while application.lost is None:
        if application.feeds is not None:
            lines.show(read_conditions(application.feeds.relations, clock.now_ms()))
        clock.wait(never, _LOOK_MS)
    # Only a takeover is an end that somebody has wanted. After any other nothing runs here or
    # elsewhere, and whoever starts this process again looks at its status.
    if not isinstance(application.lost, Fenced):
        raise application.lost
    print_line(f"stopped: {application.lost}")


def _overrides(given: argparse.Namespace) -> dict[str, Mapping[str, object]]:
    demo: dict[str, object] = {}
    if given.location is not None:
        demo["location"] = given.location
    if given.data is not None:
        demo["data"] = given.data
    runtime: dict[str, object] = {}
    if given.listen is not None:
        runtime["listen"] = given.listen
    if given.no_unified_runtime:
        runtime["unified"] = False
    return {"demo": demo, "runtime": runtime, "storage": storage_options(given.option)}


def _parser(*, plans: bool) -> argparse.ArgumentParser:
    """The command line of `run`, or of `plan`, whose help leaves out what is for running alone."""

    def for_running(text: str) -> str:
        return argparse.SUPPRESS if plans else text

    parser = argparse.ArgumentParser(
        prog=f"{PROGRAM} {'plan' if plans else 'run'}",
        description="Show what a run of a project would change." if plans else "Run a project.",
        epilog=LOG_HELP,
    )
    parser.add_argument("project", type=Path, metavar="PROJECT", help="folder of SQL files")
    parser.add_argument("--plan", action="store_true", help=for_running("only show the changes"))
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE for ${NAME}")
    parser.add_argument("--location", help="folder or URL of the shards; default: in the folder")
    parser.add_argument("--data", help=f"folder for everything else; default: {DATA_FOLDER}")
    parser.add_argument("--listen", help=for_running("address and port of the HTTP server"))
    parser.add_argument(
        "--take-over",
        action="store_true",
        help=for_running("take the location from another runtime"),
    )
    parser.add_argument(
        "--read-only",
        action="store_true",
        help=for_running(
            "follow the runtime that holds the location, and write nothing until allowed"
        ),
    )
    parser.add_argument(
        "--no-unified-runtime",
        action="store_true",
        help=for_running("a session each for compute and storage: to see what one is good for"),
    )
    parser.add_argument(
        "--allow-replace",
        action="store_true",
        help="drop shards that the project cannot keep, with their history, and make them anew",
    )
    parser.add_argument(
        "--allow-shorten",
        action="store_true",
        help="lose history that the project does not keep any more, by a shorter retention",
    )
    parser.add_argument(
        "--adopt",
        action="store_true",
        help="the objects of the project that runs there are this project's from now on",
    )
    parser.add_argument("--config", type=Path, help="settings file; default: conf/app.toml")
    add_option_argument(parser)
    return parser


if __name__ == "__main__":
    sys.exit(main())

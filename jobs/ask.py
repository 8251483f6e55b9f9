"""Send requests to the running application: `sql`, `subscribe`, `status`, `set`, `drop`; no JVM.

    ./spark-submit.sh sql "SELECT * FROM carrier_ranking ORDER BY place"
    ./spark-submit.sh sql "SELECT count(*) FROM flights AS OF 1700000000000" --format json
    ./spark-submit.sh subscribe carrier_ranking
    ./spark-submit.sh subscribe introspection.verdicts
    ./spark-submit.sh status
    ./spark-submit.sh set index_limit=1g
    ./spark-submit.sh drop very_late --commit

`drop` shows what goes for good, and does it with `--commit`.

Status 0: answered, or the subscription has reached its end; 1: it failed, also a subscription by an
error or a drop, `status` shows something that needs a person or waits for what does, or `drop` has
only shown what there is to drop; 2: the request is invalid, also a name that no object has, or no
application runs, or no more; 130: Ctrl-C.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from typing import Final

from rich.console import Console

from shardline.app.cli.application_address import add_command, application_address
from shardline.app.cli.explain_drop import drop_view
from shardline.app.cli.result_table import result_table
from shardline.app.cli.status import (
    SystemStatus,
    fetch_status,
    filter_status,
    status_json,
    status_view,
    watch_status,
)
from shardline.app.cli.subscription_lines import SubscriptionLines
from shardline.app.cli.terminal import open_console, report_error
from shardline.app.cli.view_plan_table import view_plan_table
from shardline.app.compute.results import as_csv, as_json
from shardline.app.project.dropping import drop_plan_from_json
from shardline.app.protocol.object_state import VERDICTS
from shardline.app.protocol.view_plan import PlanRow
from shardline.app.server.client import (
    drop_objects,
    follow_subscription,
    has_failed,
    run_action,
    run_query,
)
from shardline.app.server.discovery import ApplicationAddress
from shardline.app.server.relation_client import follow_relation
from shardline.app.settings.durations import parse_duration_ms
from shardline.datasource.clock import SystemClock
from shardline.datasource.errors import ShardError
from shardline.installation import PROGRAM

__all__ = ["main", "subscribe_text"]

_RELATION: Final = re.compile(
    r"\s*SUBSCRIBE\s+(TO\s+)?introspection\.(?P<name>\w+)\s*;?\s*", re.IGNORECASE
)
"""A subscription to a relation of introspection, which is no object."""

_VALUES: Final = frozenset({"AS OF", "UP TO", "OF SHARD"})
"""Words of a subscription behind which a time or an id comes."""

_KINDS: Final = ("source", "view", "index", "sink", "subscribe")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with `arguments` (those of the process by default) and return the exit status."""
    given = _parser().parse_args(arguments)
    console = open_console()
    try:
        where = application_address(given)
        match given.verb:
            case "sql":
                _sql(where, given, console)
            case "subscribe":
                return _subscribe(where, given, console)
            case "status":
                return _status(where, given, console)
            case "set":
                for setting in given.settings:
                    run_action(where, "configure", setting)
                    console.print(f"{setting}, until the next start", markup=False)
            case "drop":
                return _drop(where, given, console)
    except KeyboardInterrupt:
        return 130
    except ShardError as error:
        return report_error(error)
    return 0


def _sql(where: ApplicationAddress, given: argparse.Namespace, console: Console) -> None:
    table = run_query(where, given.query, parse_duration_ms(given.timeout))
    match given.format:
        case "table" if table.column_names == list(PlanRow._fields):
            rows = (tuple(map(str, row.values())) for row in table.to_pylist())
            console.print(view_plan_table(rows))
        case "table":
            console.print(result_table(table))
        case "json":
            for line in as_json(table):
                print(line)
        case "csv":
            print(as_csv(table), end="")


def subscribe_text(words: Sequence[str]) -> str:
    """The text of a subscription; times and ids in it are quoted again where the shell took that.

    One word is the text as it is.
    """
    if len(words) == 1:
        return words[0]
    quoted = list(words)
    for n in range(2, len(words)):
        clause, word = f"{words[n - 2]} {words[n - 1]}".upper(), words[n]
        if clause in _VALUES and not word.rstrip(";").isdigit() and not word.startswith("'"):
            quoted[n] = "'" + word.replace("'", "''") + "'"
    return " ".join(quoted)


def _subscribe(where: ApplicationAddress, given: argparse.Namespace, console: Console) -> int:
    """Print batches up to the last one; the exit status, 1 if that is an error or a drop."""
    text = subscribe_text(given.object)
    query = text if re.match(r"\s*subscribe\b", text, re.IGNORECASE) else f"SUBSCRIBE {text}"
    relation = _RELATION.fullmatch(query)
    batches = (
        follow_subscription(where, query)
        if relation is None
        else follow_relation(where, relation["name"].lower())
    )
    chosen = given.format or ("table" if console.is_terminal else "json")
    lines = SubscriptionLines(lambda line: print(line, flush=True))
    for batch in batches:
        if chosen == "table":
            lines.show(batch)
        else:
            print(json.dumps(batch, ensure_ascii=False), flush=True)
        if has_failed(batch):
            return 1
    return 0


def _drop(where: ApplicationAddress, given: argparse.Namespace, console: Console) -> int:
    """Show what a drop deletes and, if that was asked for, do it; the exit status."""
    answer = drop_objects(where, given.names, commit=given.commit)
    console.print(drop_view(drop_plan_from_json(answer["plan"])))
    if not given.commit:
        console.print("\nnothing was dropped; with --commit it is")
        return 1
    console.print(f"\ndropped; shards: {', '.join(answer['dropped']) or 'none'}", markup=False)
    return 0


def _status(where: ApplicationAddress, given: argparse.Namespace, console: Console) -> int:
    clock = SystemClock()

    def look() -> SystemStatus:
        return filter_status(
            fetch_status(where, clock.now_ms()),
            given.names,
            kinds=given.kind,
            verdicts=given.verdict,
            only_bad=given.bad,
            may_lack=given.watch,
        )

    if given.watch:
        watch_status(console, look, clock)
        return 0
    seen = look()
    if given.json:
        print(json.dumps(status_json(seen), ensure_ascii=False, indent=2))
    else:
        console.print(status_view(seen, width=console.width))
    return 1 if seen.needs_a_person else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description="Ask the running application.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    sql = add_command(verbs, "sql", "run a query once")
    sql.add_argument(
        "query",
        metavar="QUERY",
        help="SELECT … [AS OF t], over objects and introspection.<relation>",
    )
    sql.add_argument("--format", choices=("table", "json", "csv"), default="table")
    sql.add_argument(
        "--timeout",
        default="60s",
        help="how long to wait; default: 60s. The application ends a query after its query_timeout",
    )
    subscribe = add_command(verbs, "subscribe", "follow the changes of an object")
    subscribe.add_argument(
        "object",
        nargs="+",
        metavar="OBJECT",
        help="NAME [WITHOUT SNAPSHOT] [AS OF t] [UP TO t] [OF SHARD id]; or introspection.RELATION",
    )
    subscribe.add_argument(
        "--format", choices=("table", "json"), help="default: table on a terminal, else JSON lines"
    )
    status = add_command(
        verbs,
        "status",
        "show all objects, how they are, why, and what to do. Status 0: nothing needs a person; 1: "
        "something does, or what it waits for; 2: nothing answers, or no object has that name",
    )
    status.add_argument(
        "names", nargs="*", metavar="NAME", help="only these; patterns such as 'orders*'"
    )
    status.add_argument("--kind", action="append", default=[], choices=_KINDS, help="of this kind")
    status.add_argument(
        "--verdict",
        action="append",
        default=[],
        choices=[verdict.replace(" ", "-") for verdict in VERDICTS],
        help="with this verdict",
    )
    status.add_argument("--bad", action="store_true", help="only what needs a person")
    how = status.add_mutually_exclusive_group()
    how.add_argument("--watch", action="store_true", help="refresh it each second, until Ctrl-C")
    how.add_argument("--json", action="store_true", help="JSON with stable names")
    change = add_command(verbs, "set", "change settings until the next start")
    change.add_argument(
        "settings", nargs="+", metavar="NAME=VALUE", help="as marked (live) in conf/app.toml"
    )
    drop = add_command(
        verbs,
        "drop",
        "say what a drop of objects deletes for good and, with --commit, do it",
    )
    drop.add_argument(
        "names", nargs="+", metavar="NAME", help="objects; those that read them among them"
    )
    drop.add_argument("--commit", action="store_true", help="do it, and not only say so")
    return parser


if __name__ == "__main__":
    sys.exit(main())

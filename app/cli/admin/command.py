"""The admin's command line parses its words and carries out the verb that they name.

    spark-submit.sh admin LOCATION VERB [SHARD] [ARGUMENTS] [--commit] [--json] [--option …]

Exit status 0: all is well, or the change was made. 1: there is something to do, or something was
found. 2: it failed or was refused; stderr says why. A scheduled dry run can thus raise an alarm.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Final, NoReturn

import msgspec
from rich.console import Console, RenderableType
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn
from rich.text import Text
from typing_extensions import override

from shardline.app.admin.lifetime import Finalise, SetRetention
from shardline.app.admin.readers import ExpireReaders
from shardline.app.admin.upkeep import CollectGarbage, Compact, Sweep
from shardline.app.admin.verb import ChangingVerb, carry_out
from shardline.app.cli.admin.plan_views import outcome_view
from shardline.app.cli.admin.usages import shard_usage_view, usage_view
from shardline.app.cli.admin.views import fsck_view, holders_view
from shardline.app.cli.storage_options import (
    add_location_argument,
    add_option_argument,
    storage_options,
)
from shardline.app.cli.terminal import sentence
from shardline.app.execution.causes import encodable
from shardline.app.settings.durations import parse_retention_ms
from shardline.datasource.client import ShardClient
from shardline.datasource.clock import SystemClock, SystemIds
from shardline.datasource.errors import InvalidUsage, unknown_name
from shardline.datasource.inspect.fsck import check_location
from shardline.datasource.inspect.inspection import inspect_location, inspect_shard
from shardline.datasource.inspect.usage import location_usage
from shardline.datasource.shard.state_history import state_at
from shardline.datasource.stores.open import open_objects
from shardline.datasource.stores.retry import Retrying
from shardline.installation import PROGRAM

__all__ = ["VERBS", "parse", "run"]

CommandArguments = argparse.Namespace


class _Parser(argparse.ArgumentParser):
    """Raises `InvalidUsage` with a code and a hint, where argparse would exit."""

    @override
    def error(self, message: str) -> NoReturn:
        verb = re.search(r"invalid choice: '([^']*)'", message)
        if verb is not None:
            raise unknown_name("verb", verb[1], VERBS)
        raise InvalidUsage(
            message, code="BAD_ARGUMENTS", hint=f"{self.prog} --help shows what it takes"
        )


def parse(arguments: Sequence[str] | None) -> CommandArguments:
    """Parse the arguments of the command, for `run`.

    Args:
        arguments: Without the name of the command; None for those of this process.

    Raises:
        InvalidUsage: An argument is unknown, missing or invalid.
    """
    parser = _Parser(
        prog=f"{PROGRAM} admin",
        description="Looks after the shards of a persist location. A verb that changes something "
        "says what it would do, and does it with --commit.",
        epilog="A merge too large for one machine is a job of Spark's: see jobs/compact.py.",
    )
    add_location_argument(parser)
    verbs = parser.add_subparsers(
        dest="verb", metavar="VERB", required=True, prog=f"{parser.prog} LOCATION"
    )
    for name, verb in VERBS.items():
        one = verbs.add_parser(name, help=verb.help, description=sentence(verb.help))
        for add in verb.arguments:
            add(one)
        if verb.changes:
            one.add_argument("--commit", action="store_true", help="do it, and not only say so")
        one.add_argument("--json", action="store_true", help="JSON with stable names")
        add_option_argument(one)
    return parser.parse_args(arguments)


def run(given: CommandArguments, console: Console) -> int:
    """Carry out a command, print its outcome, and return the exit status, 0 or 1.

    Raises:
        ShardError: It failed, or was refused.
    """
    return VERBS[given.verb].run(given, console)


# --- what the verbs share ------------------------------------------------------------------------


def _client(given: CommandArguments) -> ShardClient:
    return ShardClient.open(given.location, storage_options(given.option), create=False)


def _print(
    given: CommandArguments, console: Console, value: Any, view: Callable[[], RenderableType]
) -> None:
    if given.json:
        console.file.write(_json(value))
    else:
        console.print(view())


def _json(value: Any) -> str:
    try:
        encoded = msgspec.json.encode(value)
    except UnicodeEncodeError:
        # It has the name of a file that is no UTF-8, which JSON cannot have.
        encoded = msgspec.json.encode(_with_encodable_texts(value))
    return msgspec.json.format(encoded, indent=2).decode() + "\n"


def _with_encodable_texts(value: Any) -> Any:
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.asdict(value)
        return msgspec.structs.replace(value, **_with_encodable_texts(fields))
    if isinstance(value, Mapping):
        return {_with_encodable_texts(k): _with_encodable_texts(v) for k, v in value.items()}
    return [*map(_with_encodable_texts, value)] if isinstance(value, list | tuple) else value


# --- looking -------------------------------------------------------------------------------------


def _usage(given: CommandArguments, console: Console) -> int:
    client = _client(given)
    if given.shard is not None:
        one = client.usage(given.shard)
        _print(given, console, one, lambda: shard_usage_view(one))
        return 0
    every = location_usage(client.location, client.clock)
    _print(given, console, every, lambda: usage_view(every, width=console.width))
    return 1 if every.problems else 0


def _fsck(given: CommandArguments, console: Console) -> int:
    clock, ids = SystemClock(), SystemIds()
    bare = open_objects(given.location, storage_options(given.option), clock=clock, ids=ids)
    objects = Retrying(bare, clock=clock, ids=ids)
    with _progress() as progress:
        task = progress.add_task("", total=None, shard="", looked=0)
        looked = 0

        def advance(shard: str, count: int) -> None:
            nonlocal looked
            looked += count
            progress.update(task, shard=shard, looked=looked)

        report = check_location(
            objects, clock, shard=given.shard, deep=not given.shallow, progress=advance
        )
    _print(given, console, report, lambda: fsck_view(report))
    return 0 if report.is_clean else 1


def _progress() -> Progress:
    """A progress bar on stderr, shown only if that is a terminal."""
    console = Console(stderr=True, highlight=False)
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.fields[looked]:,} records and parts, {task.fields[shard]}", markup=False),
        BarColumn(pulse_style="dim"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


def _holders(given: CommandArguments, console: Console) -> int:
    client = _client(given)
    if given.shard is None:
        report = inspect_location(client.location, client.clock)
    else:
        report = inspect_shard(client.location, client.clock, given.shard)
    _print(given, console, report, lambda: holders_view(report))
    return 1 if report.problems else 0


def _state(given: CommandArguments, console: Console) -> int:
    machine = _client(given).machine(given.shard)
    state = machine.state() if given.seqno is None else state_at(machine, given.seqno)
    console.file.write(_json(state))
    return 0


def _diff(given: CommandArguments, console: Console) -> int:
    machine = _client(given).machine(given.shard)
    newest = machine.state().seqno
    record = machine.log.record(given.seqno)
    if record is None:
        raise InvalidUsage(
            f"record {given.seqno} of shard '{given.shard}' is not there; it is at {newest}",
            code="SEQNO_UNKNOWN" if given.seqno > newest else "SEQNO_GONE",
            hint="records before the oldest state that somebody needs are truncated",
        )
    console.file.write(_json(record))
    return 0


# --- changing ------------------------------------------------------------------------------------


def _change(
    verb_of: Callable[[CommandArguments], ChangingVerb[Any]], doing: str = ""
) -> Callable[[CommandArguments, Console], int]:
    """Make what carries out a verb that changes something.

    Args:
        verb_of: Makes the verb from the arguments.
        doing: What takes long, for a line that moves; "" for nothing.
    """

    def run(given: CommandArguments, console: Console) -> int:
        verb, client = verb_of(given), _client(given)
        with _status(doing, given) if doing else nullcontext():
            outcome = carry_out(verb, client, commit=given.commit)
        _print(given, console, outcome, lambda: outcome_view(verb, outcome))
        return int(outcome.todo and not outcome.committed)

    return run


def _sweep(given: CommandArguments) -> Sweep:
    if (given.shard is None) != given.orphans:
        raise InvalidUsage(
            "sweep takes one shard, or --orphans for directories that are no shard's",
            code="BAD_ARGUMENTS",
            hint="usage shows where leaked blobs are",
        )
    return Sweep(given.shard)


def _retention(given: CommandArguments) -> SetRetention:
    said = given.duration.strip().lower()
    retain_ms = None if said == "none" else parse_retention_ms(said, "none")
    return SetRetention(given.shard, retain_ms)


def _status(doing: str, given: CommandArguments) -> Any:
    console = Console(stderr=True, highlight=False)
    said = f"{doing} '{given.shard}'" if given.shard else doing
    # As text: a name in brackets is no markup.
    return console.status(Text(said))


# --- the verbs -----------------------------------------------------------------------------------


Add = Callable[[argparse.ArgumentParser], object]


def _shard(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shard", metavar="SHARD", help="name of the shard")


def _any_shard(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "shard", nargs="?", metavar="SHARD", help="one shard; all of the location without it"
    )


def _flag(name: str, help_: str) -> Add:
    return lambda parser: parser.add_argument(name, action="store_true", help=help_)


class _Verb(msgspec.Struct, frozen=True):
    run: Callable[[CommandArguments, Console], int]
    help: str
    arguments: tuple[Add, ...]
    changes: bool = False


VERBS: Final[Mapping[str, _Verb]] = {
    "holders": _Verb(_holders, "who holds back history and blobs, and for how long", (_any_shard,)),
    "usage": _Verb(_usage, "what every byte is there for", (_any_shard,)),
    "fsck": _Verb(
        _fsck,
        "compare all that is there with all that is said of it; status 1 if anything is wrong",
        (_any_shard, _flag("--shallow", "do not read the parts: only look whether they are there")),
    ),
    "state": _Verb(
        _state,
        "the whole state of a shard as JSON",
        (
            _shard,
            lambda p: p.add_argument("--seqno", type=int, help="an older state, as long as kept"),
        ),
    ),
    "diff": _Verb(
        _diff,
        "one record of a shard's log as JSON: what it changed",
        (
            _shard,
            lambda p: p.add_argument(
                "seqno", type=int, metavar="SEQNO", help="number of the record"
            ),
        ),
    ),
    "expire-reader": _Verb(
        _change(lambda given: ExpireReaders(given.shard, tuple(given.reader))),
        "forget leases and holds, whoever owns them",
        (
            _shard,
            lambda p: p.add_argument(
                "reader",
                nargs="+",
                metavar="READER",
                help="id of a lease or name of a hold; see holders",
            ),
        ),
        changes=True,
    ),
    "compact": _Verb(
        _change(lambda given: Compact(given.shard, given.force), "merging"),
        "merge batches, invisibly to readers",
        (_shard, _flag("--force", "leave one batch, whatever it costs")),
        changes=True,
    ),
    "gc": _Verb(
        _change(lambda given: CollectGarbage(given.shard), "collecting"),
        "delete what nobody can ask for any more",
        (_shard,),
        changes=True,
    ),
    "sweep": _Verb(
        _change(_sweep, "sweeping"),
        "delete blobs older than 25 hours that nothing refers to: leavings of crashes",
        (_any_shard, _flag("--orphans", "in directories of shards whose log is lost")),
        changes=True,
    ),
    "set-retention": _Verb(
        _change(_retention),
        "how far back a shard stays readable, whoever reads it",
        (
            _shard,
            lambda p: p.add_argument(
                "duration",
                metavar="DURATION",
                help="such as 7d, 36h, 90min; none leaves it to readers",
            ),
        ),
        changes=True,
    ),
    "finalise": _Verb(
        _change(lambda given: Finalise(given.shard, tuple(given.despite))),
        "drop a shard for good: its contents, readers and writers",
        (
            _shard,
            lambda p: p.add_argument(
                "--despite",
                action="append",
                default=[],
                metavar="HOLDER",
                help="a lease or hold to cut off; may be repeated",
            ),
        ),
        changes=True,
    ),
}
"""Every verb by its name on the command line."""

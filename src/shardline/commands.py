"""The commands of `shardline`: one table, from which help, dispatch and the script's list follow.

    shardline [OPTIONS OF SPARK] COMMAND …
    shardline help [COMMAND]
    shardline --version

`spark-submit.sh` of a clone hands the commands that start no JVM to this table, and starts the
others by Spark's own launcher, which it becomes. Here a command that needs Spark starts its JVM
from this process, with the same settings (`shardline.app.spark_session`).

A command's module is imported when it is called: one that starts no JVM does not pay for pyspark.
"""

from __future__ import annotations

import importlib
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from shardline.datasource.errors import InvalidUsage, nearest_name, unknown_name
from shardline.extras import MissingPackage, check_extras, needed_for
from shardline.installation import PROGRAM, program_version
from shardline.unread_output import ends_when_unread

__all__ = ["COMMANDS", "SPARK_OPTIONS", "Command", "main"]


@dataclass(frozen=True, slots=True)
class Command:
    """A command.

    Attributes:
        module: Has `main(arguments) -> status`.
        usage: What follows the name.
        summary: What it does, in a line.
        arguments: What `main` gets before the arguments of the command line.
        extras: Without which it does not begin.
    """

    module: str
    usage: str
    summary: str
    arguments: tuple[str, ...] = ()
    extras: tuple[str, ...] = ("runtime",)

    @property
    def spark(self) -> bool:
        """Whether it starts a JVM."""
        return "spark" in self.extras


COMMANDS: Final = {
    "demo": Command(
        "shardline.jobs.demo",
        "[--days N]",
        "a year of flights, and views that keep up with it",
        extras=("spark", "runtime", "demo"),
    ),
    "run": Command(
        "shardline.jobs.run",
        "PROJECT",
        "a project: sources, views, sinks",
        extras=("spark", "runtime"),
    ),
    "plan": Command(
        "shardline.jobs.run",
        "PROJECT",
        "what `run` would change, and how",
        arguments=("--plan",),
        extras=("spark", "runtime"),
    ),
    "sql": Command("shardline.jobs.ask", "'SELECT …'", "ask what runs", arguments=("sql",)),
    "subscribe": Command(
        "shardline.jobs.ask", "NAME", "follow an object's changes", arguments=("subscribe",)
    ),
    "status": Command("shardline.jobs.ask", "", "is everything fresh?", arguments=("status",)),
    "set": Command(
        "shardline.jobs.ask", "NAME=VALUE", "change settings of what runs", arguments=("set",)
    ),
    "drop": Command("shardline.jobs.ask", "NAME …", "drop objects for good", arguments=("drop",)),
    "pause": Command(
        "shardline.jobs.operate", "NAME …", "stop objects until `resume`", arguments=("pause",)
    ),
    "resume": Command(
        "shardline.jobs.operate", "NAME …", "let paused objects go on", arguments=("resume",)
    ),
    "restart": Command(
        "shardline.jobs.operate", "NAME …", "start objects anew, at once", arguments=("restart",)
    ),
    "errors": Command(
        "shardline.jobs.operate",
        "NAME",
        "rows that could not be decoded; retract or skip them",
        arguments=("errors",),
    ),
    "inspect": Command(
        "shardline.jobs.show", "LOCATION [SHARD]", "look into shards", extras=("cli",)
    ),
    "admin": Command(
        "shardline.jobs.admin", "LOCATION VERB [SHARD]", "look after them", extras=("cli",)
    ),
    "maintain": Command(
        "shardline.jobs.maintain", "LOCATION [SHARD …]", "keep them small", extras=("cli",)
    ),
    "compact": Command(
        "shardline.jobs.compact",
        "LOCATION [SHARD …]",
        "merge large ones by Spark",
        extras=("spark", "cli"),
    ),
}
"""By name, in the order of the help."""

SPARK_OPTIONS: Final = frozenset(
    {
        "--archives", "--class", "--conf", "-c", "--deploy-mode", "--driver-class-path",
        "--driver-cores", "--driver-default-class-path", "--driver-java-options",
        "--driver-library-path", "--driver-memory", "--exclude-packages", "--executor-cores",
        "--executor-memory", "--extra-properties-file", "--files", "--jars", "--keytab", "--kill",
        "--master", "--name", "--num-executors", "--packages", "--principal", "--properties-file",
        "--proxy-user", "--py-files", "--queue", "--remote", "--repositories", "--status",
        "--total-executor-cores",
    }
)  # fmt: skip
"""Options of Spark that take a value (`SparkSubmitOptionParser`)."""

_SUBMIT_ARGUMENTS: Final = "PYSPARK_SUBMIT_ARGS"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with `arguments` (those of the process by default).

    Returns:
        The exit status: the command's, or 2 for a command line that cannot be understood, a
        package that is not installed, or no Java; 130 for Ctrl-C before the command has begun.

    Raises:
        SystemExit: By the command itself, or because nobody reads its output any more.
    """
    with ends_when_unread():
        return _run(list(sys.argv[1:] if arguments is None else arguments))


def _run(words: list[str]) -> int:
    """Run with the words of a command line; the exit status."""
    if words[:1] == ["help"] and words[1:]:
        words = [*words[1:], "--help"]
    if words in ([], ["help"], ["help", "--help"]) or words[:1] in (["-h"], ["--help"]):
        print(_help())
        return 0
    if words == ["--version"]:
        print(f"shardline {program_version()}")
        return 0
    try:
        options, name, rest = _split(words)
        run = _prepared(name, options)
    except (InvalidUsage, MissingPackage) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        # Most of a short command's time goes into its imports, and it has done nothing yet.
        return 130
    return run([*COMMANDS[name].arguments, *rest])


def _prepared(name: str, options: Sequence[str]) -> Callable[[Sequence[str]], int]:
    """The `main` of a command, once everything that it needs is there."""
    command = COMMANDS[name]
    # All of them: some modules are imported only when work has begun.
    check_extras(f"'{name}'", command.extras)
    with needed_for(f"'{name}'"):
        program: Callable[[Sequence[str]], int] = importlib.import_module(command.module).main
    if command.spark:
        _prepare_spark(options)
    elif options:
        raise InvalidUsage(
            f"'{name}' starts no Spark, and takes none of its options: {' '.join(options)}",
            code="UNKNOWN_OPTION",
            hint=f"options of '{name}' follow its name",
        )
    return program


def _split(words: Sequence[str]) -> tuple[list[str], str, list[str]]:
    """Options of Spark, the command, and its own arguments."""
    left = list(words)
    options: list[str] = []
    while left and left[0].startswith("-"):
        name, equals, _ = left[0].partition("=")
        if name not in SPARK_OPTIONS:
            near = nearest_name(name, SPARK_OPTIONS)
            meant = f"did you mean '{near}'? " if near else ""
            raise InvalidUsage(
                f"unknown option of Spark '{name}'",
                code="UNKNOWN_OPTION_OF_SPARK",
                # Not all of Spark's: an option of the command was meant more often.
                hint=f"{meant}options of a command follow its name: {PROGRAM} COMMAND {name} …",
            )
        taken = 1 if equals else 2
        if len(left) < taken:
            raise InvalidUsage(
                f"option '{name}' of Spark has no value",
                code="INVALID_ARGUMENT",
                hint="write it behind the option, and the command behind that",
            )
        options += left[:taken]
        del left[:taken]
    if not left:
        raise InvalidUsage("no command", code="INVALID_ARGUMENT", hint=f"{PROGRAM} help")
    if left[0] not in COMMANDS:
        raise unknown_name("command", left[0], COMMANDS)
    return options, left[0], left[1:]


def _prepare_spark(options: Sequence[str]) -> None:
    """Say to the JVM that will be started what `spark-submit.sh` says to its own."""
    if any(option.partition("=")[0] == "--remote" for option in options):
        raise InvalidUsage(
            "option '--remote' is for clients of Spark Connect, and this command starts a Spark of "
            "its own",
            code="CLASSIC_SESSION_NEEDED",
            hint="leave it out; --master names a cluster",
        )
    if not os.environ.get("JAVA_HOME") and shutil.which("java") is None:
        raise InvalidUsage(
            "no Java, which Spark runs on",
            code="JAVA_MISSING",
            hint="install Java 17 or newer, or set JAVA_HOME",
        )
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    if options:
        further = os.environ.get(_SUBMIT_ARGUMENTS, "pyspark-shell")
        os.environ[_SUBMIT_ARGUMENTS] = f"{shlex.join(options)} {further}"


def _help() -> str:
    lines = [
        f"shardline {program_version()}: time-varying tables on object storage, and views of them",
        "",
    ]
    calls = {
        name: f"  shardline {'[OPTIONS OF SPARK] ' if command.spark else ''}{name} {command.usage}"
        for name, command in COMMANDS.items()
    }
    width = max(map(len, calls.values())) + 2
    lines += [f"{call:{width}}{COMMANDS[name].summary}" for name, call in calls.items()]
    lines += ["", "`shardline COMMAND --help` shows a command's options."]
    return "\n".join(lines)

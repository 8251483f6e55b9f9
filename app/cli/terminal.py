"""The console of a job is the user's terminal, also below `spark-submit`.

`spark-submit` reads the output of its Python process and prints it itself, so that process never
has a terminal of its own, and would never show colours or live tables. So below `spark-submit` the
parent's standard output decides, and only there: any other parent may be a shell with a terminal
that has sent this output to a file.

What is printed on it may be of data, with escape sequences that were meant for the reader's
terminal: of such texts it prints no control characters.

The terminal is for what a person must read; everything else is in the log, which `open_log` opens
where the settings say. A job that has none writes its warnings to stderr (`warnings_on_stderr`).
"""

from __future__ import annotations

import logging
import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from typing_extensions import override

from shardline.app.logs import LogFile, start_log
from shardline.app.printable import printable, without_controls
from shardline.app.protocol.redaction import redact_option
from shardline.app.settings.config import Settings
from shardline.app.settings.live import parse_size_bytes
from shardline.datasource.errors import InvalidUsage, ShardError
from shardline.unread_output import end_unread

__all__ = [
    "LOG_HELP",
    "exit_on_sigterm",
    "open_console",
    "open_log",
    "report_error",
    "sentence",
    "warnings_on_stderr",
]

_log = logging.getLogger(__name__)

_PIPE_COLUMNS: Final = 200
_UNKNOWN_COLUMNS: Final = 80

_BELOW_SUBMIT: Final = "PYSPARK_GATEWAY_PORT"
"""`spark-submit` sets it for its Python process."""

_LINES: Final = "\n\t"
_PADDING: Final = re.compile(" +\n")

_TERMINATED: Final = 128 + signal.SIGTERM

LOG_HELP: Final = (
    "Warnings and errors, Spark's too, are in the log: log.jsonl in the folder of --data, or where "
    "conf/app.toml, [log] says. The terminal shows the start, and objects that fail or recover."
)
"""The end of the help of jobs that have a log."""


class _DataConsole(Console):
    """A console on which texts of data cannot command the terminal; styles and its own codes do."""

    @override
    def on_broken_pipe(self) -> None:
        # Not the error itself: what a command does about errors of the system is not meant for it.
        self.quiet = True
        end_unread()

    @override
    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        segments = super().render(renderable, options)
        # Tables are padded to the width of the terminal, which is none of a file's or a pipe's.
        for segment in segments if self.is_terminal else _without_padding(segments):
            if segment.control:
                yield segment
            else:
                yield segment._replace(text=without_controls(segment.text))


def _without_padding(segments: Iterable[Segment]) -> Iterator[Segment]:
    """The segments without the blanks that are at the ends of lines."""
    blanks: list[Segment] = []
    for segment in segments:
        text = _PADDING.sub("\n", segment.text)
        if text.startswith("\n"):
            blanks.clear()
        shown = text.rstrip(" ")
        if shown:
            yield from blanks
            blanks = []
            yield segment._replace(text=shown)
        if shown != text:
            blanks.append(segment._replace(text=text[len(shown) :]))
    # No line ends here: of a piece of a line, which others follow.
    yield from blanks


@contextmanager
def exit_on_sigterm() -> Iterator[None]:
    """Let SIGTERM end this process in order within the block, with status 143.

    By default it ends at once: everything is durable, but others find it dead and not gone. An
    error of the end is logged, and the status stays: the signal may have interrupted a call to the
    JVM, whose answer is then taken for that of the next call.
    """
    came = False

    def stop(*_: object) -> None:
        nonlocal came
        came = True
        raise SystemExit(_TERMINATED)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except Exception:
        if not came:
            raise
        _log.warning("the end was not in order", exc_info=True)
        raise SystemExit(_TERMINATED) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def report_error(error: ShardError) -> int:
    """Write an error to stderr; the exit status: 2 for a request that is wrong, else 1."""
    sys.stderr.write(f"error: {printable(str(error), keep=_LINES)}\n")
    return 2 if isinstance(error, InvalidUsage) else 1


def open_log(settings: Settings) -> LogFile:
    """Start the log where the settings say, without secrets, and return it.

    Raises:
        InvalidUsage: `FOLDER_NOT_WRITABLE`: the log cannot be written.
    """
    log = settings.log
    size = parse_size_bytes(log.max_size)
    return start_log(
        log.file,
        settings.demo.data,
        log.level,
        size=size,
        files=log.files,
        redact=partial(redact_option, ""),
    )


def sentence(text: str) -> str:
    """The words for a command in the list of commands, as a sentence for its own help."""
    return f"{text[0].upper()}{text[1:]}."


class _SentenceFormatter(logging.Formatter):
    """One line for a warning; only of an error that is none of ours, a bug, the stack trace."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        context = getattr(record, "context", {})
        about = ", ".join(f"{name} '{value}'" for name, value in context.items())
        said = f"warning: {record.getMessage()}{f' ({about})' if about else ''}"
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, ShardError):
            said += f": {error}"
        elif record.exc_info:
            said += f"\n{self.formatException(record.exc_info)}"
        return printable(said, keep=_LINES)


@contextmanager
def warnings_on_stderr() -> Iterator[None]:
    """Write warnings to stderr as lines for a person: for a job that has no log.

    Without a handler Python writes them there itself, with the stack trace of what was expected.
    """
    handler, logger = logging.StreamHandler(), logging.getLogger("shardline")
    handler.setLevel(logging.WARNING)
    handler.setFormatter(_SentenceFormatter())
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def open_console(*, markup: bool = True) -> Console:
    """Open a console on standard output: as wide as the terminal.

    Without a terminal it is so wide that nothing is cut, as who reads a pipe cannot widen it.

    Args:
        markup: Whether tags in brackets are styles, and no text.
    """
    if isinstance(sys.stdout, TextIOWrapper):
        # Into a pipe, Python would otherwise write blocks, and lines would come late. The name of a
        # file may be no UTF-8, and have no encoding.
        sys.stdout.reconfigure(line_buffering=True, errors="backslashreplace")
    if sys.stdout.isatty():
        return _DataConsole(highlight=False, markup=markup)
    columns = _parent_columns() if _BELOW_SUBMIT in os.environ else None
    width = _PIPE_COLUMNS if columns is None else columns
    is_terminal = columns is not None
    return _DataConsole(highlight=False, markup=markup, force_terminal=is_terminal, width=width)


def _parent_columns() -> int | None:
    """Width of the parent's terminal; None if it has none, or that cannot be found out."""
    output = Path(f"/proc/{os.getppid()}/fd/1")
    try:
        file = os.open(output, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        # Some terminals do not say how wide they are, which is 0; a console of no width is mute.
        return (os.get_terminal_size(file).columns or _UNKNOWN_COLUMNS) if os.isatty(file) else None
    except OSError:
        return None
    finally:
        os.close(file)

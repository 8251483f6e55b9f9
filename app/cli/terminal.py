"""Where a job prints: the terminal, also when Spark stands in between.

`spark-submit` reads what its Python process prints and prints it itself, so that process never has
a terminal of its own. Whether its parent has one decides whether colours and live tables make
sense.
"""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from pathlib import Path

from rich.console import Console

__all__ = ["open_console"]


def open_console() -> Console:
    """A console on standard output: of the terminal's width on a terminal, else 80 wide."""
    if isinstance(sys.stdout, TextIOWrapper):
        # Through a pipe, lines would otherwise come in blocks.
        sys.stdout.reconfigure(line_buffering=True)
    if sys.stdout.isatty():
        return Console(highlight=False)
    columns = _parent_columns()
    if columns is None:
        return Console(highlight=False, force_terminal=False, width=80)
    return Console(highlight=False, force_terminal=True, width=columns)


def _parent_columns() -> int | None:
    """Width of the terminal that the parent prints to; None if it has none, or none is known."""
    output = Path(f"/proc/{os.getppid()}/fd/1")
    try:
        file = os.open(output, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        return os.get_terminal_size(file).columns if os.isatty(file) else None
    except OSError:
        return None
    finally:
        os.close(file)

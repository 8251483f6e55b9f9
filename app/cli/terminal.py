"""The console of a job is the user's terminal, also below `spark-submit`.

`spark-submit` reads the output of its Python process and prints it itself, so that process never
has a terminal of its own, and would never show colours or live tables. So the parent's standard
output decides.
"""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper
from pathlib import Path

from rich.console import Console

__all__ = ["open_console"]


def open_console() -> Console:
    """Open a console on standard output: as wide as the terminal, or 80 if there is none."""
    if isinstance(sys.stdout, TextIOWrapper):
        # Into a pipe, Python would otherwise write blocks, and lines would come late.
        sys.stdout.reconfigure(line_buffering=True)
    if sys.stdout.isatty():
        return Console(highlight=False)
    columns = _parent_columns()
    if columns is None:
        return Console(highlight=False, force_terminal=False, width=80)
    return Console(highlight=False, force_terminal=True, width=columns)


def _parent_columns() -> int | None:
    """Width of the parent's terminal; None if it has none, or that cannot be found out."""
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

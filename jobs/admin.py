"""Look after a persist location: usage, fsck, readers, maintenance, retention, the end of a shard.

    ./spark-submit.sh admin LOCATION VERB [SHARD] [ARGUMENTS] [--commit] [--json] [--option …]

What changes something says what it would do, and does it with `--commit`. Starts no JVM. Status 0:
all is well, or it was done; 1: something was found, or is to be done; 2: it cannot be answered or
was refused, for the reason on stderr. docs/operations.md says when to use which verb.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console

from shardline.app.cli.admin.command import parse, run
from shardline.datasource.errors import ShardError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with `arguments` (those of the process by default); the exit status."""
    try:
        return run(parse(arguments), Console(highlight=False))
    except ShardError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

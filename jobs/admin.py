"""Inspect and repair a persist location: usage, fsck, readers, maintenance, retention, drops.

    ./spark-submit.sh admin LOCATION VERB [SHARD] [ARGUMENTS] [--commit] [--json] [--option …]

A verb that changes something prints its plan, and carries it out with `--commit`. Starts no JVM.
Status 0: all is well, or the change was made; 1: something was found, or is to be done; 2: it
failed or was refused, for the reason on stderr; 130: it was interrupted. docs/operations.md says
when to use which verb.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from shardline.app.cli.admin.command import parse, run
from shardline.app.cli.terminal import open_console
from shardline.datasource.errors import ShardError

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with `arguments` (those of the process by default) and return the exit status."""
    try:
        return run(parse(arguments), open_console())
    except KeyboardInterrupt:
        print(
            "interrupted: a change that was under way may have been made; "
            "the same command without --commit says what is left to do",
            file=sys.stderr,
        )
        return 130
    except ShardError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())

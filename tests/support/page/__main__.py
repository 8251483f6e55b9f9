"""Serve a made world for people to look at, until it is stopped, or take its pictures.

    cd tests && ../spark-submit.sh python -m support.page world --situation demo --port 4200
    cd tests && ../spark-submit.sh python -m support.page pictures --situation demo /object/flights
    cd tests && ../spark-submit.sh python -m support.page situations

The address that is printed gives the page its token by a code, as the application's own does. While
it runs, lines on standard input change it: `flights frozen`, `flights well`, `server stop`,
`server start`; the words are those of `Mode`. Pictures of a path are taken in each of `LOOKS`.
"""

from __future__ import annotations

import argparse
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from support.page.browser import LOOKS, browsing, take_pictures
from support.page.life import Mode
from support.page.world import SITUATIONS, ServedWorld

__all__ = ["main"]


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run with `arguments` (those of the process by default); the exit status."""
    given = _parser().parse_args(arguments)
    if given.command == "situations":
        for name, situation in SITUATIONS.items():
            wrong = ", ".join(f"{k[:30]} {v}" for k, v in situation.modes.items())
            say(f"{name:16} {situation.project:8} {wrong}")
        return 0
    with ServedWorld(given.situation, port=given.port, pace_ms=1000) as world:
        say(f"{world.url}/#code={world.codes.issue()}  token: {world.token}")
        if given.command == "pictures":
            with browsing() as browser:
                for path in given.path or ["/"]:
                    for taken in take_pictures(browser, world, path, Path(given.folder), LOOKS):
                        say(str(taken))
            return 0
        _obey(world)
    return 0


def _obey(world: ServedWorld) -> None:
    """Do what standard input says; with its end, or without one, serve on until interrupted."""
    try:
        for line in sys.stdin:
            name, _, word = line.strip().partition(" ")
            if name == "server":
                (world.start_server if word == "start" else world.stop_server)()
            elif name in world.life.objects and word in get_args(Mode):
                world.become(name, word)  # type: ignore[arg-type]  # it is one of its words
            elif name:
                say(f"'{line.strip()}' is no object and one of {', '.join(get_args(Mode))}")
        threading.Event().wait()
    except KeyboardInterrupt:
        pass


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="support.page", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("world", "pictures"):
        command = commands.add_parser(name)
        command.add_argument("--situation", choices=sorted(SITUATIONS), default="demo")
        command.add_argument("--port", type=int, default=0, help="0: any that is free")
        if name == "pictures":
            command.add_argument("--folder", default="pictures", help="for the pictures")
            command.add_argument("path", nargs="*", help="of screens, such as /object/flights")
    commands.add_parser("situations")
    return parser


if __name__ == "__main__":
    sys.exit(main())

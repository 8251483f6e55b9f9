"""Measures what people who watch an application cost it: nobody, one open page, twenty.

Each is a connection that follows what the page's first screen follows, from a process of its own,
while an application with nothing to do tells each second how far it is. CPU is that of the driver's
Python, which serves the page; the JVM has no part in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

from websockets.sync.client import connect

from bench.processes import cpu_seconds, processes
from bench.rounds import Measured
from bench.runtime import Bench, resting_load
from shardline.app.server.application_server import serve_application
from shardline.app.settings.config import RuntimeSettings

__all__ = ["FOLLOWED", "measure_pages", "watching"]

_OBJECTS: Final = 10
"""As the demo has."""

_PAGES: Final = {1: 2.0, 20: 15.0}
"""Numbers of open pages, and the most per cent of a core that they may cost."""

FOLLOWED: Final = (
    "verdict_summary",
    "verdicts",
    "objects",
    "object_dependencies",
    "wallclock_lag",
    "materialization_lag",
    "lir_mapping",
    "dataflow_channel_operators",
    "message_counts",
)
"""The relations that the first screen follows."""


def measure_pages(bench: Bench, rounds: int) -> list[Measured]:
    """Per cent of a core that open pages cost, against the same application without, in turns."""
    used: dict[int, list[float]] = {number: [] for number in (0, *_PAGES)}
    with (
        bench.folder() as folder,
        bench.running(resting_load(folder, _OBJECTS), folder) as running,
        serve_application(running.application, RuntimeSettings(), folder / "data") as where,
    ):
        bench.wait(bench.warm_ms)
        for number in [n for _ in range(rounds) for n in used]:
            with watching(where.url, where.token, number):
                used[number].append(_share(bench))
    alone = min(used[0])
    return [
        Measured("no page: the driver's Python", alone, "% of a core"),
        *(
            Measured(
                f"{number} open page{'s' * (number > 1)}: more of it",
                max(min(used[number]) - alone, 0.0),
                "% of a core",
                most=most,
            )
            for number, most in _PAGES.items()
        ),
    ]


def _share(bench: Bench) -> float:
    before, began = processes(), bench.clock.elapsed_ms()
    bench.wait(bench.window_ms)
    after, seconds = processes(), (bench.clock.elapsed_ms() - began) / 1000.0
    own = {os.getpid()}
    return 100.0 * (cpu_seconds(after, own) - cpu_seconds(before, own)) / seconds


@contextmanager
def watching(url: str, token: str, number: int) -> Iterator[set[int]]:
    """Have `number` pages open, once each has its first rows; yields the process that has them."""
    if not number:
        yield set()
        return
    command = [sys.executable, "-m", "bench.pages", url, str(number)]
    with subprocess.Popen(
        command,
        env={**os.environ, "SHARDLINE_TOKEN": token},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        yield {process.pid}
        process.stdin.close()


def main(arguments: Sequence[str]) -> None:
    """Watch an application at an address by a number of connections, until stdin is closed."""
    url, number = arguments[0], int(arguments[1])
    headers = {"Authorization": f"Bearer {os.environ['SHARDLINE_TOKEN']}"}
    address = f"{url.replace('http', 'ws', 1)}/api/v1/subscriptions"
    with ExitStack() as open_:
        pages = [
            open_.enter_context(
                connect(address, additional_headers=headers, max_size=None, max_queue=None)
            )
            for _ in range(number)
        ]
        for page in pages:
            for relation in FOLLOWED:
                page.send(json.dumps({"subscribe": {"id": relation, "relation": relation}}))
        for page in pages:
            while "moment" not in json.loads(page.recv()):
                pass
        print("all have their first rows", flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1:])

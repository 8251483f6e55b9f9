"""Transcripts of connections: what controllers say, and what it comes to, one JSON value a line.

    {"about": "…"}                 a sentence for the reader
    {"protocol": "compute"}        which protocol the rest is of
    {"connects": "n1"}             a controller
    {"says": {"type": …}}          a command of it
    {"leaves": "n1"}               it is gone
    {"todo": […], "kept": […], …}  what the runtime makes of its initialization; or …
    {"refused": "[CODE] …"}        … why it does not
    {"takes": "…"}                 a command that the runtime takes after that
    {"history": […]}               all that the runtime has been told, reduced

Lines that are said are input, in the JSON of the protocol; the others are what comes of it, with
each command in a few words. `told` makes a whole transcript of
the input of one, through an endpoint, the codec, `reconcile` and `history`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec

from shardline.app.protocol.codec import COMPUTE, STORAGE
from shardline.app.protocol.history import ComputeHistory, StorageHistory
from shardline.app.protocol.reconcile import reconcile_compute, reconcile_storage
from shardline.app.transport.endpoint import Endpoint
from shardline.app.transport.session import CloseCode, Closed, Reconcile, Session
from shardline.datasource.errors import InvalidUsage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["told"]

Line = dict[str, Any]

SPOKEN = ("about", "protocol", "connects", "says", "leaves")


class _Runtime:
    """The least of a runtime: it takes, reconciles and remembers."""

    def __init__(self, protocol: str) -> None:
        self.codec: Any = COMPUTE if protocol == "compute" else STORAGE
        self.history_of: Any = ComputeHistory if protocol == "compute" else StorageHistory
        self.reconcile: Any = reconcile_compute if protocol == "compute" else reconcile_storage
        self.endpoint: Endpoint[Any, Any] = Endpoint(lambda: None)
        self.session: Session[Any, Any] = self.endpoint.connect("nobody")
        self.history: Any = self.history_of()

    def hear(self, line: Line) -> None:
        """A line that is said."""
        if "connects" in line:
            self.session = self.endpoint.connect(line["connects"])
        elif "says" in line:
            data = json.dumps(line["says"]).encode()
            self.session.push(self.codec.decode_command(data))
        elif "leaves" in line:
            self.session.close(Closed(CloseCode.LOST, "it has left"))

    def act(self) -> Iterator[Line]:
        """All that is to be done now."""
        while (step := self.endpoint.take()) is not None:
            try:
                if isinstance(step, Reconcile):
                    yield self._reconciled(step.commands)
                else:
                    self.history.append(step.command)
                    yield {"takes": in_words(step.command)}
                    continue
            except InvalidUsage as error:
                self.endpoint.refuse(str(error))
                yield {"refused": str(error)}
            yield {"history": [in_words(c) for c in self.history.commands()]}

    def _reconciled(self, commands: tuple[Any, ...]) -> Line:
        done = self.reconcile(self.history.commands(), commands)
        self.history = self.history_of(commands, gone=done.dropped)
        line: Line = {
            name: list(value) if isinstance(value, tuple) else value
            for name in done.__dataclass_fields__
            if (value := getattr(done, name))
        }
        return {"todo": []} | line | {"todo": [in_words(command) for command in done.todo]}


def in_words(command: Any) -> str:
    """A command for a reader: its type, what it is about, and what decides."""
    plain = msgspec.to_builtins(command)
    words = [plain.pop("type")]
    for field, value in plain.items():
        if field in ("dataflow", "ingestion", "sink"):
            rest = ("query", "on", "options")
            words += [value["name"], *(f"{k}={value[k]}" for k in rest if value.get(k))]
        elif field in ("id", "uuid"):
            words.append(value)
        elif field in ("as_of", "frontier", "settings"):
            words.append(f"{field}={value}")
    return " ".join(words)


def told(lines: Iterable[Line]) -> list[Line]:
    """The lines that are said, with what comes of them after each."""
    out: list[Line] = []
    runtime = _Runtime("compute")
    for line in lines:
        if not any(word in line for word in SPOKEN):
            continue
        out.append(line)
        if "protocol" in line:
            runtime = _Runtime(line["protocol"])
        runtime.hear(line)
        out += runtime.act()
    return out

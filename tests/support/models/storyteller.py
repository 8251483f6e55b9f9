"""Carries out the directives of a shard's stories. Rows are written `id value @time diff`.

    create | drop | evolve            client=a, despite=reader,hold; input of evolve: `name type`
    compare-and-append                writer=w sequence=n lower=t upper=t; input: rows
    append | append-now | overwrite   the same
    reader | downgrade | heartbeat    name=r, since=t, lease=ms
    release                           name=r
    hold | downgrade-hold             name=h owner=o since=t
    expire-hold                       name=h, owner=o or an admin without
    snapshot                          as_of=t, reader=r or a passing one
    listen                            as_of=t until=t reader=r
    state                             everything, with the names of the story for readers
    compact | collect-garbage         force=true
    advance | restart | rollup        milliseconds=n; client=a; whole state now
    fail | deliver                    operation=create effect=after, of client=a; what is late
    overtake                          client=a loses its next `times=` races, each taking
                                      `milliseconds=`, to appends of others

Every directive takes `client=`; clients share the store and nothing else.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Final

import pyarrow as pa
from typing_extensions import override

from shardline.datasource.errors import ShardError
from shardline.datasource.frontier import EMPTY, Frontier
from shardline.datasource.overwrite import overwrite
from shardline.datasource.settings import ShardSettings
from shardline.datasource.shard.commands.append import AlreadyCommitted, Appended, UpperMismatch
from shardline.datasource.shard.state import is_tombstone
from shardline.datasource.stores.faulty import Fault, Faulty, Operation
from shardline.datasource.types.schema import ShardSchema
from support.models.shards import SETTINGS, World

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from shardline.datasource.client import ShardClient
    from shardline.datasource.lease import Lease
    from shardline.datasource.read import ReadHandle
    from shardline.datasource.shard.batch import Batch
    from shardline.datasource.since_hold import SinceHandle
    from shardline.datasource.stores.objects import CreateOutcome
    from shardline.datasource.write import WriteHandle
    from support.models.datadriven import Directive

__all__ = ["Storyteller"]

_SHARD: Final = "orders"
_OPERATIONS: Final[Mapping[str, Operation]] = {
    "create": "create",
    "put": "put",
    "get": "get",
    "delete": "delete",
}
_BASE: Final = pa.schema([pa.field("id", pa.int64()), pa.field("v", pa.string())])
_TYPES: Final[Mapping[str, pa.DataType]] = {
    "int": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
}


class _Overtaken(Faulty):
    """A store on which others act right before this client's creates."""

    def __init__(self, world: World) -> None:
        super().__init__(world.objects(), clock=world.clock, ids=world.ids)
        self.rivals: list[Callable[[], object]] = []

    @override
    def create(self, key: str, value: bytes) -> CreateOutcome:
        if self.rivals:
            self.rivals.pop()()
        return super().create(key, value)


class Storyteller:
    """Answers the directives of one story."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._settings = SETTINGS
        self._stores: dict[str, _Overtaken] = {}
        self._clients: dict[str, ShardClient] = {}
        self._writers: dict[tuple[str, str], WriteHandle] = {}
        self._readers: dict[str, ReadHandle] = {}
        self._holds: dict[tuple[str, str], SinceHandle] = {}

    def answer(self, directive: Directive) -> str:
        """What a directive says; an error says its code."""
        method: Callable[[Directive], str] = getattr(self, f"_{directive.name.replace('-', '_')}")
        try:
            return method(directive)
        except ShardError as error:
            return f"{type(error).__name__} [{error.code}]"

    def close(self) -> None:
        """Give up what is still open."""
        for reader in self._readers.values():
            reader.close()

    # -- shards ---------------------------------------------------------------------------------

    def _client(self, step: Directive) -> ShardClient:
        name = step.text("client", "a")
        if name not in self._clients:
            self._stores[name] = _Overtaken(self._world)
            self._clients[name] = self._world.client(self._settings, self._stores[name])
        return self._clients[name]

    def _configure(self, step: Directive) -> str:
        self._settings = dataclasses.replace(
            ShardSettings.parse(step.arguments), validate=SETTINGS.validate
        )
        return ""

    def _create(self, step: Directive) -> str:
        key = tuple(step.text("key").split()) if step.text("key") else ()
        self._client(step).create(_SHARD, ShardSchema.from_arrow(_BASE), key=key)
        return ""

    def _drop(self, step: Directive) -> str:
        names = [name for name in step.text("despite").split(",") if name]
        ids = [self._readers[n].lease.reader if n in self._readers else n for n in names]
        self._client(step).drop(_SHARD, despite_holders=ids)
        return ""

    def _evolve(self, step: Directive) -> str:
        added = [line.split() for line in step.lines]
        fields = [pa.field(name, _TYPES[kind]) for name, kind in added]
        known = {field.name: field for field in (*_BASE, *fields)}
        schema = ShardSchema.from_arrow(pa.schema(list(known.values())))
        return f"schema {self._client(step).evolve(_SHARD, schema)}"

    def _advance(self, step: Directive) -> str:
        self._world.clock.advance(step.number("milliseconds") or 0)
        return ""

    def _restart(self, step: Directive) -> str:
        name = step.text("client", "a")
        self._clients.pop(name, None)
        self._writers = {k: w for k, w in self._writers.items() if k[0] != name}
        return ""

    def _rollup(self, step: Directive) -> str:
        machine = self._client(step).machine(_SHARD)
        return "written" if machine.write_rollup(machine.state()) else "there already"

    def _compact(self, step: Directive) -> str:
        merges = self._client(step).compact(_SHARD, force=step.text("force") == "true")
        return f"{merges} merged"

    def _collect_garbage(self, step: Directive) -> str:
        return f"{self._client(step).collect_garbage(_SHARD)} deleted"

    def _fail(self, step: Directive) -> str:
        self._client(step)
        operation, fault = _OPERATIONS[step.text("operation")], Fault(step.text("effect"))
        times = step.number("times") or 1
        self._stores[step.text("client", "a")].fail(operation, *[fault] * times)
        return ""

    def _overtake(self, step: Directive) -> str:
        self._client(step)
        rival = self._world.client(self._settings).writer(_SHARD)

        def act() -> None:
            self._world.clock.advance(step.number("milliseconds") or 0)
            rival.append_now(None)

        self._stores[step.text("client", "a")].rivals += [act] * (step.number("times") or 1)
        return ""

    def _deliver(self, step: Directive) -> str:
        return f"{self._stores[step.text('client', 'a')].deliver()} delivered"

    # -- writing --------------------------------------------------------------------------------

    def _writer(self, step: Directive) -> WriteHandle:
        key = (step.text("client", "a"), step.text("writer"))
        client = self._client(step)
        if key not in self._writers:
            self._writers[key] = client.writer(_SHARD, key[1] or None)
        return self._writers[key]

    def _rows(self, step: Directive, schema: ShardSchema) -> pa.Table | None:
        if not step.lines:
            return None
        parsed = [_row(line, schema) for line in step.lines]
        names = [n for n in (*schema.names, "_ts", "_diff") if any(n in row for row in parsed)]
        kinds = {field.name: field.type for field in schema.arrow}
        absent = {"_diff": 1}
        columns = {
            name: pa.array(
                [row.get(name, absent.get(name)) for row in parsed], kinds.get(name, pa.int64())
            )
            for name in {*schema.names, *names}
        }
        return pa.table(columns).select([*schema.names, *names[len(schema.names) :]])

    def _compare_and_append(self, step: Directive) -> str:
        writer = self._writer(step)
        lower, upper = _bound(step.text("lower")), _bound(step.text("upper"))
        rows = self._rows(step, writer.schema)
        sequence = step.number("sequence")
        return _said(writer.compare_and_append(rows, lower, upper, sequence=sequence))

    def _append(self, step: Directive) -> str:
        writer = self._writer(step)
        lower, upper = _bound(step.text("lower")), _bound(step.text("upper"))
        return _said(writer.append(self._rows(step, writer.schema), lower, upper))

    def _append_now(self, step: Directive) -> str:
        writer = self._writer(step)
        sequence = step.number("sequence")
        return _said(writer.append_now(self._rows(step, writer.schema), sequence=sequence))

    def _overwrite(self, step: Directive) -> str:
        writer = self._writer(step)
        staged = writer.stager().stage([self._rows(step, writer.schema) or _BASE.empty_table()])
        sequence = step.number("sequence") or 1
        return _said(overwrite(writer, staged, sequence=sequence, attempt=f"t{sequence}"))

    # -- reading --------------------------------------------------------------------------------

    def _reader(self, step: Directive) -> str:
        reader = self._client(step).reader(
            _SHARD, since=step.number("since"), lease_ms=step.number("lease")
        )
        self._readers[step.text("name")] = reader
        return f"since {reader.lease.since}"

    def _lease(self, step: Directive) -> Lease:
        return self._readers[step.text("name")].lease

    def _downgrade(self, step: Directive) -> str:
        lease = self._lease(step)
        lease.downgrade(_bound(step.text("since")), step.number("seqno") or lease.seqno)
        return f"since {lease.since}"

    def _heartbeat(self, step: Directive) -> str:
        self._lease(step).renew()
        return ""

    def _release(self, step: Directive) -> str:
        self._readers.pop(step.text("name")).close()
        return ""

    def _hold(self, step: Directive) -> str:
        name = step.text("name")
        hold = self._client(step).hold(_SHARD, name, since=step.number("since"))
        self._holds[name, step.text("owner")] = hold
        return f"since {hold.since}"

    def _downgrade_hold(self, step: Directive) -> str:
        hold = self._holds[step.text("name"), step.text("owner")]
        return f"since {hold.downgrade(_bound(step.text('since')))}"

    def _expire_hold(self, step: Directive) -> str:
        hold = self._holds[step.text("name"), step.text("owner")]
        return "expired" if hold.expire() else "was not there"

    def _snapshot(self, step: Directive) -> str:
        if step.text("reader"):
            reader = self._readers[step.text("reader")]
            return _shown(reader.snapshot(step.number("as_of"), timeout_ms=10))
        with self._client(step).reader(_SHARD) as reader:
            return _shown(reader.snapshot(step.number("as_of"), timeout_ms=10))

    def _listen(self, step: Directive) -> str:
        reader = self._readers[step.text("reader")]
        until = _bound(step.text("until", "end"))
        said = []
        for found in reader.listen(step.number("as_of") or 0, until=until, timeout_ms=10):
            said += [f"[{found.lower}, {_time(found.upper)})", _shown(found.updates)]
        return "\n".join(line for line in said if line)

    def _state(self, step: Directive) -> str:
        state = self._client(step).machine(_SHARD).state()
        names = {reader.lease.reader: name for name, reader in self._readers.items()}
        lines = [f"since {state.since} upper {state.upper}"]
        lines += [_batch_text(batch) for batch in state.trace.batches]
        if len(state.schemas) > 1:
            lines.append(f"schemas {sorted(state.schemas)}")
        lines += [
            f"reader {names.get(key, 'passing')} since {Frontier(leased.since)}"
            for key, leased in sorted(state.leased.items(), key=lambda i: names.get(i[0], ""))
        ]
        lines += [f"hold {k} since {Frontier(c.since)}" for k, c in state.critical.items()]
        durable = {k: w for k, w in state.writers.items() if w.lease_ms is None}
        lines += [f"writer {k} sequence {w.last}" for k, w in durable.items()]
        anonymous = len(state.writers) - len(durable)
        lines += [f"anonymous writers {anonymous}"] if anonymous else []
        lines += [f"rollups {sorted(state.rollups)}"] if state.rollups else []
        if "seqno" in step.arguments:
            lines.append(f"seqno {state.seqno}")
        return "\n".join([*lines, *(["tombstone"] if is_tombstone(state) else [])])


def _batch_text(batch: Batch) -> str:
    upper = "end" if batch.desc.upper is None else batch.desc.upper
    parts = list(batch.parts)
    inline = sum(part.inline is not None for part in parts)
    text = f"[{batch.desc.lower}, {upper}) rows {batch.rows}"
    return text + (f" inline {inline} blobs {len(parts) - inline}" if parts else "")


def _row(line: str, schema: ShardSchema) -> dict[str, object]:
    words = line.split()
    row: dict[str, object] = {}
    for name, word in zip(schema.names, words, strict=False):
        if word.startswith("@") or word[0] in "+-":
            break
        kind = schema.arrow.field(name).type
        convert = int if pa.types.is_integer(kind) else float if pa.types.is_floating(kind) else str
        row[name] = None if word == "null" else convert(word)
    for word in words:
        if word.startswith("@"):
            row["_ts"] = int(word[1:])
        elif word[0] in "+-":
            row["_diff"] = int(word)
    return row


def _shown(table: pa.Table) -> str:
    """Rows in order, updates with `@time` and diff."""
    columns = [column.to_pylist() for column in table.columns]
    return "\n".join(
        " ".join(
            f"@{value}" if name == "_ts" else f"{value:+d}" if name == "_diff" else f"{value}"
            for name, value in zip(table.column_names, row, strict=True)
        )
        for row in sorted(zip(*columns, strict=True), key=str)
    )


def _said(outcome: Appended | AlreadyCommitted | UpperMismatch) -> str:
    match outcome:
        case Appended(lower, upper):
            return f"appended [{lower}, {_time(upper)})"
        case AlreadyCommitted(upper):
            return f"already committed, upper {upper}"
        case UpperMismatch(expected, current):
            return f"upper mismatch: expected {expected}, current {current}"


def _bound(text: str) -> Frontier:
    return EMPTY if text == "end" else Frontier(int(text))


def _time(frontier: Frontier) -> str:
    return "end" if frontier.time is None else str(frontier.time)

"""Made rows for the screens of shards, the lane and the project, in each situation of them.

made_rows("many")       shards of all sizes, a busy lane
made_rows("none")       nothing of anything
made_rows("hostile")    names and texts that a page must not obey
made_rows("following")  a process that only reads
"""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

import msgspec

from shardline.app.lane.command_words import describe_command
from shardline.app.lane.commands import (
    AllowWrites,
    CreateDataflow,
    Holder,
    LaneCommand,
    Opened,
    PauseDataflow,
    ResumeDataflow,
    SuspendAndRestart,
    UpdateConfiguration,
    UseProject,
    command_kind,
)
from shardline.app.protocol.objects import SourceDescription, ViewDescription
from shardline.app.protocol.project_identity import ProjectIdentity
from support.page.made_tables import MadeRows

__all__ = ["HOSTILE", "PLANS", "made_rows"]

_Row: TypeAlias = dict[str, Any]

_SECOND: Final = 1_000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE
_DAY: Final = 24 * _HOUR

HOSTILE: Final = '<img src=x onerror="document.title=1">\u202egnp.exe\u0000 ' + "z" * 10_000
"""Markup, a change of direction, a character that cannot be seen, and ten thousand more."""

_SHARDS: Final = (
    "flights",
    "airlines",
    "planes",
    "weather",
    "delays_by_carrier",
    "busiest_planes",
    "carrier_ranking",
    "x_progress.flights",
    "x_errors.flights",
    "_introspection",
)


def made_rows(kind: str) -> dict[str, MadeRows]:
    """Made relations: `many`, `none`, `hostile`, or `following` for a process that only reads."""
    if kind == "none":
        return {name: _none(make) for name, make in _MANY.items()}
    if kind == "hostile":
        return {**_MANY, **_HOSTILE}
    if kind == "following":
        return {**_MANY, "location": lambda now: _location(now, read_only=True)}
    return dict(_MANY)


def _none(make: MadeRows) -> MadeRows:
    # The first call asks for the columns.
    return lambda now_ms: make(0) if now_ms == 0 else ()


def _shards(now: int) -> Iterator[_Row]:
    for name in _SHARDS:
        batches = list(_batches_of(name, now))
        seed = zlib.crc32(name.encode())
        holds = [one for one in _holds(now) if one["shard"] == name]
        most = max(holds, key=lambda one: one["gain"], default={"gain": 0})
        yield {
            "name": name,
            "shard_id": f"s{seed:08x}",
            "since": _since(name, now),
            "upper": _upper(now),
            "seqno": 40_000 + seed % 9_000,
            "batches": len(batches),
            "empty_batches": sum(not one["parts"] for one in batches),
            "parts": sum(one["parts"] for one in batches),
            "updates": sum(one["updates"] for one in batches),
            "size": sum(one["size"] for one in batches),
            "records": sum(one["records"] for one in batches),
            "dropped_size": seed % (40 << 20),
            "lost_parts": 0,
            "retain": 30 * _DAY if name == "flights" else None,
            "holds": len(holds),
            "held_back_by": most["owner"] if most["gain"] else None,
            "held_back": most["gain"],
            "seen_at": now // 5_000 * 5_000,
        }


def _upper(now: int) -> int:
    return now // _SECOND * _SECOND


def _since(name: str, now: int) -> int:
    days = {"flights": 30, "airlines": 2}.get(name, 1)
    return now // _HOUR * _HOUR - days * _DAY


def _batches_of(name: str, now: int) -> Iterator[_Row]:
    """A few large batches of old, and many small ones of the last seconds, as merges leave them."""
    upper, since = _upper(now), _since(name, now)
    seed = zlib.crc32(name.encode())
    cuts = [0, since + (upper - since) * 2 // 3, upper - _DAY // 2, upper - 3 * _HOUR]
    cuts += [upper - back * _MINUTE for back in (55, 18, 6, 2)]
    cuts += [upper - back * _SECOND for back in (41, 23, 15, 9, 6, 4, 3, 2, 1, 0)]
    cuts = sorted({cut for cut in cuts if cut == 0 or since <= cut <= upper} | {upper})
    for at, (lower, end) in enumerate(itertools.pairwise(cuts)):
        long = end - max(lower, since)
        empty = at % 7 == 5
        updates = 0 if empty else max(1, (long // 40) * (1 + seed % 5))
        yield {
            "shard": name,
            "lower": lower,
            "upper": end,
            "since": since if lower == 0 else lower,
            "level": None if empty else max(0, len(str(updates)) - 1),
            "parts": 0 if empty else 1 + updates // 400_000,
            "records": updates * 9 // 10,
            "updates": updates,
            "size": updates * 61,
        }


def _batches(now: int) -> Iterator[_Row]:
    for name in _SHARDS:
        yield from _batches_of(name, now)


def _levels(now: int) -> Iterator[_Row]:
    for name in _SHARDS:
        by_level = itertools.groupby(
            sorted(
                (one for one in _batches_of(name, now) if one["parts"]),
                key=lambda one: one["level"],
            ),
            key=lambda one: one["level"],
        )
        for level, found in by_level:
            batches = list(found)
            sums = {key: sum(one[key] for one in batches) for key in ("parts", "updates", "size")}
            yield {"shard": name, "level": level, "batches": len(batches), **sums}


def _holds(now: int) -> Iterator[_Row]:
    upper = _upper(now)
    since = _since("flights", now)
    yield _hold(
        "flights", "query:5b3c", "query 'orders to report' on host-b:812", since, gain=21 * _DAY,
        kind="hold", age=41 * _DAY, silent=9 * _DAY, only=121 << 20,
    )  # fmt: skip
    yield _hold(
        "flights", "view:delays_by_carrier", "view delays_by_carrier", upper - 3 * _HOUR,
        kind="hold", age=3 * _DAY, silent=2 * _SECOND,
    )  # fmt: skip
    yield _hold(
        "flights", "r507f767a4d53b5e648866f996ccc6f7a", "peek of host-a:4711", upper - 6 * _SECOND,
        silent=3 * _SECOND, only=4 << 20,
    )  # fmt: skip
    yield _hold(
        "flights", "r8a0e2f", "snapshot for sql of host-a:4711", upper - 40 * _MINUTE,
        silent=14 * _MINUTE, overdue=True,
    )  # fmt: skip
    for name in _SHARDS[1:6]:
        yield _hold(
            name, f"view:{name}", f"view {name}", upper - 4 * _SECOND, kind="hold", age=_DAY
        )


def _hold(
    shard: str,
    name: str,
    owner: str,
    since: int,
    *,
    kind: str = "lease",
    gain: int = 0,
    age: int | None = None,
    silent: int = 800,
    only: int = 0,
    overdue: bool = False,
) -> _Row:
    return {
        "shard": shard,
        "name": name,
        "kind": kind,
        "owner": owner,
        "since": since,
        "seqno": 41_700 if only else None,
        "age": age,
        "silent": silent,
        "behind": 0,
        "behind_seqnos": 12 if only else 0,
        "gain": gain,
        "only_size": only,
        "overdue": overdue,
    }


def _maintenance(now: int) -> Iterator[_Row]:
    for name in _SHARDS[:3]:
        for back in range(120):
            at = now // _HOUR * _HOUR - back * 5 * _HOUR
            yield {
                "occurred_at": at if back else now // _MINUTE * _MINUTE - 4 * _MINUTE,
                "shard": name,
                "took": 90.0 + back * 7 % 400,
                "merges": 1 + back % 3,
                "collected": 14 + back if back % 3 == 0 else None,
                "swept": 2 if back % 20 == 7 else None,
                "failed": ["collect: the store does not answer"] if back == 12 else [],
            }


def _location(now: int, *, read_only: bool = False) -> Iterator[_Row]:
    yield {
        "location": "s3://lake/shardline/prod",
        "project": "flights",
        "holder": "process 4711 on host-a" if not read_only else "process 812 on host-b",
        "epoch": 17,
        "version": "1.4.0",
        "read_only": read_only,
        "started_at": now // _DAY * _DAY - 5 * _HOUR,
        "data_folder": "/srv/shardline/data",
        "address": "http://127.0.0.1:4200",
        "queue": 3 if read_only else 0,
    }


def _connections(now: int) -> Iterator[_Row]:
    day = now // _DAY * _DAY
    yield _connection("controller", "compute", day - 5 * _HOUR)
    yield _connection("controller", "storage", day - 5 * _HOUR)
    yield _connection("follower", "host-c:7781", day - 2 * _HOUR, "connecting")
    for at in range(4):
        yield _connection("page", f"127.0.0.1:{50_000 + at}", now // _HOUR * _HOUR - at * _MINUTE)
    yield _connection("subscriber", "sub-7f3a", now // _HOUR * _HOUR, "running")


def _connection(kind: str, name: str, since: int, state: str = "connected") -> _Row:
    return {"kind": kind, "name": name, "since": since, "state": state}


def _peeks(now: int) -> Iterator[_Row]:
    for name in ("flights", "airlines"):
        yield {
            "id": "peek-81",
            "object_id": name,
            "type": "persist",
            "time": now - 2_000,
            "started_at": now // 30_000 * 30_000,
        }


def _subscriptions(now: int) -> Iterator[_Row]:
    yield {
        "id": "sub-7f3a",
        "created_at": now // _HOUR * _HOUR,
        "referenced_object_ids": ["delays_by_carrier"],
    }


_VIEW: Final = "SELECT carrier, avg(dep_delay) AS delay\nFROM flights\nGROUP BY carrier"


def _commands(now: int) -> Iterator[_Row]:
    holder = Holder(
        token="", host="host-a", boot="b", pid=4711, started=1, application="a", since_ms=0
    )
    source = SourceDescription(name="flights", format="csv", schema="carrier STRING")
    view = ViewDescription(
        name="delays_by_carrier", query=_VIEW, inputs=("flights",), schema="carrier STRING"
    )
    begin: list[tuple[str | None, LaneCommand]] = [
        (None, Opened(holder)),
        (None, UseProject(ProjectIdentity(name="flights", folder="/srv/flights"))),
        ("flights", CreateDataflow(description=source)),
        ("delays_by_carrier", CreateDataflow(description=view, as_of=now // _DAY * _DAY)),
        (None, AllowWrites("compute")),
        (None, UpdateConfiguration({"index_limit": "1g"})),
        ("weather", PauseDataflow("weather")),
        ("weather", ResumeDataflow("weather")),
    ]
    failed = SuspendAndRestart("busiest_planes", 3, "[DIVIDE_BY_ZERO] Division by zero")
    later = [("busiest_planes", failed)] * 300
    for index, (name, command) in enumerate([*begin, *later]):
        yield {
            "index": index,
            "producer": "lane" if index >= len(begin) else "project",
            "occurred_at": now // _DAY * _DAY - _DAY + index * 4 * _MINUTE,
            "kind": command_kind(command),
            "object_id": name,
            "says": describe_command(command),
            "command": msgspec.json.encode(command).decode(),
        }


_MANY: Final[Mapping[str, MadeRows]] = {
    "shards": _shards,
    "shard_batches": _batches,
    "shard_levels": _levels,
    "shard_holds": _holds,
    "maintenance": _maintenance,
    "location": _location,
    "connections": _connections,
    "active_peeks": _peeks,
    "subscriptions": _subscriptions,
    "command_history": _commands,
}


def _renamed(make: MadeRows, key: str, before: str = "flights") -> MadeRows:
    def rows(now: int) -> Iterator[_Row]:
        for row in make(now):
            yield {**row, key: HOSTILE} if row[key] == before else dict(row)

    return rows


def _everywhere(make: MadeRows, *keys: str) -> MadeRows:
    return lambda now: ({**row, **dict.fromkeys(keys, HOSTILE)} for row in make(now))


_HOSTILE: Final[Mapping[str, MadeRows]] = {
    "shards": _everywhere(_renamed(_shards, "name"), "held_back_by"),
    "shard_batches": _renamed(_batches, "shard"),
    "shard_levels": _renamed(_levels, "shard"),
    "shard_holds": _everywhere(_renamed(_holds, "shard"), "owner"),
    "maintenance": _renamed(_maintenance, "shard"),
    "location": _everywhere(_location, "location", "project", "holder", "data_folder"),
    "connections": _everywhere(_connections, "name"),
    "active_peeks": _everywhere(_peeks, "object_id"),
    "command_history": _everywhere(_commands, "object_id", "producer", "kind", "says", "command"),
}


def _change(
    name: str, change: str, now: str | None, wanted: str | None, why: list[str]
) -> dict[str, Any]:
    place = ("views.sql", 12) if wanted and change != "none" else ("", 0)
    file, line = place
    return {"object": name, "change": change, "now": now, "wanted": wanted, "why": why,
            "file": file, "line": line}  # fmt: skip


_CREATED: Final = "CREATE VIEW ontime AS\nSELECT carrier\nFROM flights\nWHERE arr_delay < 15\n"
_BEFORE: Final = f"CREATE VIEW delays_by_carrier AS\n{_VIEW}\n"
_AFTER: Final = _BEFORE.replace("avg(dep_delay)", "percentile(dep_delay, 0.5)").replace(
    "FROM flights\n", "FROM flights\nWHERE dep_delay IS NOT NULL\n"
)
_DROPPED: Final = "CREATE SOURCE weather (\n  origin STRING,\n  temp DOUBLE\n) FROM csv 'weather'\n"

PLANS: Final[Mapping[str, dict[str, Any] | None]] = {
    "many": {
        "name": "flights",
        "folder": "/srv/flights",
        "changes": [
            _change("ontime", "create", None, _CREATED, []),
            _change("delays_by_carrier", "change", _BEFORE, _AFTER, ["Its query differs."]),
            _change(
                "busiest_planes", "replace", _BEFORE, _AFTER.replace("carrier", "tailnum"),
                ["Its shard cannot be kept: column 'carrier' is gone.",
                 "Lost: 1,204 rows, and their history."],
            ),
            _change("weather", "drop", _DROPPED, None,
                    ["The project does not have it any more; its shards stay until dropped."]),
            *(_change(name, "none", "x", "x", []) for name in ("flights", "airlines", "planes")),
        ],
        "problems": [],
        "refused": "`busiest_planes` would lose its history. Allow it with --allow-replace.",
    },
    "broken": {
        "name": "flights",
        "folder": "/srv/flights",
        "changes": [],
        "problems": [
            {"file": "views.sql", "line": 3, "column": 8, "code": "UNRESOLVED_COLUMN",
             "message": "no column 'carier'", "hint": "did you mean 'carrier'?"},
            {"file": "", "line": 0, "column": 0, "code": "NO_SOURCE",
             "message": "the project reads nothing", "hint": ""},
        ],
        "refused": "",
    },
    "none": None,
    "following": {
        "name": "flights", "folder": "/srv/flights",
        "changes": [_change("flights", "none", "x", "x", [])],
    },
    "hostile": {
        "name": HOSTILE, "folder": HOSTILE,
        "changes": [_change(HOSTILE, "change", f"SELECT 1\n{HOSTILE}", f"{HOSTILE}\n2", [HOSTILE])],
    },
}  # fmt: skip
"""What `GET /api/v1/project` answers, by situation; None: the application has no project."""

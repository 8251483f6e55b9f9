"""A past for made objects: histories of a day, shards with batches and holds, and commands."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from shardline.app.introspection.definitions import note_installed
from shardline.app.introspection.events import (
    Event,
    Installed,
    Maintenance,
    PeekStarted,
    Recorded,
    Remembered,
    ShardSeen,
)
from shardline.app.introspection.facts import Facts
from shardline.app.lane.command_words import describe_command
from shardline.app.lane.commands import (
    CreateDataflow,
    Holder,
    LaneCommand,
    Opened,
    PauseDataflow,
    ResumeDataflow,
    SuspendAndRestart,
    UseProject,
    command_kind,
)
from shardline.app.protocol.project_identity import ProjectIdentity
from shardline.datasource.inspect.report import (
    HolderReport,
    LevelReport,
    PartReport,
    RollupReport,
    ShardReport,
    WriterReport,
)
from support.page.life import ERRORS, Living

__all__ = ["past_of", "shard_report"]

_MINUTE_MS: Final = 60_000
_HOUR_MS: Final = 3_600_000
_KIB: Final = 1 << 10


def past_of(objects: Sequence[Living], now_ms: int, *, hours: int = 24) -> Iterator[Event]:
    """All events of a day: histories, shards, maintenance, commands and reads under way."""
    yield Remembered(relation="wallclock_lag_history", rows=tuple(_lags(objects, now_ms, hours)))
    yield Remembered(relation="verdict_history", rows=tuple(_verdicts(objects, now_ms, hours)))
    yield Remembered(relation="status_history", rows=tuple(_statuses(objects, now_ms, hours)))
    begun = now_ms - hours * _HOUR_MS
    yield Remembered(relation="run_history", rows=((begun - 1_000, ("start", ())),))
    yield Remembered(relation="definition_history", rows=tuple(_definitions(objects, begun)))
    yield from _commands(objects, now_ms, hours)
    for number, one in enumerate(objects):
        if one.has_shard:
            yield ShardSeen(report=shard_report(one, now_ms), at_ms=now_ms - 700 * (number % 9))
            yield from _rounds(one, now_ms, hours)
    if objects:
        yield PeekStarted(
            uuid="7d0f5a2c-5e7c-4d57-9f51-3a2f2f6f1d11",
            inputs=(objects[0].name,),
            time=now_ms - 800,
            at_ms=now_ms - 4_200,
            path="persist",
        )


def shard_report(one: Living, now_ms: int) -> ShardReport:
    """A shard with batches of three levels, a lease and two holds, one of which keeps history."""
    upper = one.upper or now_ms
    parts = tuple(_parts(one, upper))
    levels = [[p for p in parts if p.level == level] for level in range(3)]
    return ShardReport(
        id=f"s{one.seed:08x}",
        name=one.name,
        dropped=False,
        schema=getattr(one.description, "schema", ""),
        schema_id=0,
        key=(),
        comment="",
        since=upper - 2 * _HOUR_MS,
        upper=upper,
        seqno=4_000 + one.seed % 900,
        walltime_ms=now_ms - 300,
        created_ms=now_ms - 30 * 24 * _HOUR_MS,
        version="0.9.0",
        rows=sum(p.rows for p in parts),
        size_bytes=sum(p.size_bytes for p in parts),
        diff_sum=one.rows,
        batches=len({(p.lower, p.upper) for p in parts}) + 2,
        empty_batches=2,
        levels=tuple(
            LevelReport(
                level,
                len({(p.lower, p.upper) for p in found}),
                len(found),
                sum(p.rows for p in found),
                sum(p.size_bytes for p in found),
            )
            for level, found in enumerate(levels)
        ),
        part_count=len(parts),
        inline_parts=2,
        inline_bytes=900,
        retracting_parts=3,
        dropped_bytes=7 * 1024 * _KIB,
        retain_ms=24 * _HOUR_MS,
        swept_ms=now_ms - 5 * _HOUR_MS,
        rollups=(RollupReport(4_000, "rollup/4000", 18 * _KIB),),
        holders=_holders(upper, now_ms),
        writers=(WriterReport("runtime", one.micro_batch, upper, now_ms - 300, 300, None, 0),),
        parts=parts,
    )


def _parts(one: Living, upper: int) -> Iterator[PartReport]:
    lower = upper - 2 * _HOUR_MS
    for level, count in ((2, 3), (1, 6), (0, 9)):
        width = (upper - lower) * (6, 4, 1)[2 - level] // (10 if level else 1)
        for number in range(count):
            begin = lower + width * number // count
            end = lower + width * (number + 1) // count
            rows = (one.seed % 900 + 40) * (60, 8, 1)[2 - level]
            yield PartReport(
                key=f"p{one.seed:06x}{level}{number:02d}",
                lower=begin,
                upper=end,
                level=level,
                rows=rows,
                size_bytes=rows * 61,
                inline=level == 0 and number > count - 3,
                schema_id=0,
                sorted=True,
                ts_min=begin,
                ts_max=end - 1,
                diff_sum=rows,
                diff_min=1,
                diff_max=1,
            )
        lower += width


def _holders(upper: int, now_ms: int) -> tuple[HolderReport, ...]:
    def holder(name: str, kind: str, owner: str, behind_ms: int, **more: object) -> HolderReport:
        given: dict[str, object] = {
            "seqno": 3_990,
            "heard_ms": now_ms - 900,
            "silent_ms": 900,
            "made_ms": None if kind == "lease" else now_ms - 26 * _HOUR_MS,
            "lease_ms": 900_000 if kind == "lease" else None,
            "overdue": False,
            "behind_seqnos": 10,
            "gain_ms": 0,
            "only_bytes": 0,
            "kept_bytes": 0,
        }
        given |= {"name": name, "kind": kind, "owner": owner, "behind_ms": behind_ms}
        return HolderReport(since=upper - behind_ms, **(given | more))  # type: ignore[arg-type]

    return (
        holder(
            "audit",
            "hold",
            "monthly audit of the finance team",
            2 * _HOUR_MS,
            gain_ms=_HOUR_MS,
            only_bytes=5 * 1024 * _KIB,
            silent_ms=26 * _HOUR_MS,
        ),
        holder("controller", "hold", "the application keeps what its views read", _HOUR_MS),
        holder("c-91fe02", "lease", "reader: spark planner of `delays_by_carrier`", 4_000),
    )


def _lags(
    objects: Sequence[Living], now_ms: int, hours: int
) -> Iterator[tuple[int, tuple[object, ...]]]:
    minutes = hours * 60
    # At most as many rows as the history keeps.
    stride = max(1, len(objects) * minutes // 90_000 + 1)
    for back in range(minutes, 1, -stride):
        at_ms = (now_ms // _MINUTE_MS - back) * _MINUTE_MS
        for one in objects:
            wave = 1 + math.sin(back / 97 + one.seed % 7)
            lag = 400 + one.seed % 900 + wave * 350
            if back % 613 in range(140, 155):
                lag += 8_000 * (back % 613 - 139)
            yield at_ms, (one.name, round(lag))


def _lives(
    objects: Sequence[Living], now_ms: int, hours: int
) -> Iterator[tuple[str, str, int, int | None]]:
    """Name and kind of each object, when it was started, and when it failed: one of five has."""
    begun = now_ms - hours * _HOUR_MS
    for number, one in enumerate(objects):
        kind = str(one.description.__struct_config__.tag)
        # However many there are: none of them fails in times to come.
        failed = begun + hours * _HOUR_MS // 3 + number % (hours * 30) * _MINUTE_MS
        yield one.name, kind, begun + 10 * number, failed if number % 5 == 1 else None


def _verdicts(
    objects: Sequence[Living], now_ms: int, hours: int
) -> Iterator[tuple[int, tuple[object, ...]]]:
    error, hint = ERRORS["stalled"]
    found: list[tuple[int, tuple[object, ...]]] = []
    for name, kind, begun, failed in _lives(objects, now_ms, hours):
        found += [
            (begun, (name, kind, "starting", "its query is being started", "")),
            (begun + 9_000, (name, kind, "healthy", "", "")),
        ]
        if failed is not None:
            found += [
                (failed, (name, kind, "stalled", error, hint)),
                (failed + 7 * _MINUTE_MS, (name, kind, "catching up", "6 min behind", "")),
                (failed + 11 * _MINUTE_MS, (name, kind, "healthy", "", "")),
            ]
    return iter(sorted(found, key=lambda row: row[0]))


def _statuses(
    objects: Sequence[Living], now_ms: int, hours: int
) -> Iterator[tuple[int, tuple[object, ...]]]:
    error, hint = ERRORS["stalled"]
    found: list[tuple[int, tuple[object, ...]]] = []
    for name, kind, begun, failed in _lives(objects, now_ms, hours):
        found += [
            (begun, (name, kind, "starting", "", (), ())),
            (begun + 3_000, (name, kind, "running", "", (), ())),
        ]
        if failed is not None:
            found += [
                (failed, (name, kind, "stalled", error, (hint,), (("internal", error),))),
                (failed + 7 * _MINUTE_MS, (name, kind, "running", "", (), ())),
            ]
    return iter(sorted(found, key=lambda row: row[0]))


def _definitions(objects: Sequence[Living], begun: int) -> Iterator[tuple[int, tuple[object, ...]]]:
    """All of them created at the beginning, as they are now."""
    facts = Facts()
    for number, one in enumerate(objects):
        stored = one.is_stored
        event = Installed(
            id=one.name,
            global_id=f"u{number + 1}",
            domain="storage" if stored else "compute",
            description=one.description,
            dataflow=number + 1,
            operators=(1, 0),
            at_ms=begun + 10 * number,
        )
        note_installed(facts, event)
    return iter(facts.definitions.rows)


def _commands(objects: Sequence[Living], now_ms: int, hours: int) -> Iterator[Event]:
    """The lane from its first record on: all is created, some fails, another process takes over."""
    begun, half = now_ms - hours * _HOUR_MS, now_ms - hours * _HOUR_MS // 2
    project = ProjectIdentity(name="flights", folder="/srv/flights")
    given: list[tuple[int, str, LaneCommand]] = [
        (begun - 1_000, "", Opened(_process("host-a", 4711, begun - 1_000))),
        (begun - 900, "", UseProject(project)),
        (half, "", Opened(_process("host-b", 812, half))),
    ]
    lives = _lives(objects, now_ms, hours)
    for one, (name, _, at_ms, failed) in zip(objects, lives, strict=True):
        given.append((at_ms, name, CreateDataflow(description=one.description)))
        if failed is not None:
            given.append((failed, name, SuspendAndRestart(name, 1, ERRORS["stalled"][0])))
    for name in (one.name for one in objects[:1]):
        given.append((now_ms - 10 * _MINUTE_MS, name, PauseDataflow(name)))
        given.append((now_ms - 5 * _MINUTE_MS, name, ResumeDataflow(name)))
    for index, (at_ms, name, command) in enumerate(sorted(given, key=lambda one: one[0])):
        yield Recorded(
            index=index,
            producer="project" if isinstance(command, CreateDataflow) else "lane",
            at_ms=at_ms,
            kind=command_kind(command),
            object_id=name,
            command=msgspec.json.encode(command).decode(),
            says=describe_command(command),
        )


def _process(host: str, pid: int, since_ms: int) -> Holder:
    return Holder(
        token=host,
        host=host,
        boot="b",
        pid=pid,
        started=1,
        application="shardline",
        since_ms=since_ms,
    )


def _rounds(one: Living, now_ms: int, hours: int) -> Iterator[Event]:
    for back in range(hours, 0, -3):
        yield Maintenance(
            shard=one.name,
            at_ms=now_ms - back * _HOUR_MS + one.seed % 900_000,
            took_ms=120.0 + one.seed % 300,
            merges=1 + back % 3,
            collected=14 if back % 2 else None,
            swept=2 if back % 9 == 0 else None,
            failed=("collect",) if back == 12 and one.seed % 3 == 0 else (),
        )

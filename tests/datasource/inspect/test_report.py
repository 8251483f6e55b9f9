"""Reports of states: what holders keep, what only old seqnos need, and schemas as text."""

from __future__ import annotations

import json

import msgspec
import pytest

from shardline.datasource.inspect.report import (
    DroppedPart,
    dropped_parts,
    report_shard,
    schema_text,
)
from shardline.datasource.shard.batch import Batch, Part, Run
from shardline.datasource.shard.description import Description
from shardline.datasource.shard.state import CriticalReader, LeasedReader, ShardState, Writer
from shardline.datasource.shard.trace import Trace

NOW_MS = 1_000_000

SCHEMA = json.dumps(
    {"type": "struct", "fields": [{"name": "n", "type": "long", "nullable": True, "metadata": {}}]}
)


def part(key: str, size: int) -> Part:
    return Part(key=key, rows=10, size_bytes=size, schema=0, ts=1, diff_sum=10)


def batch(lower: int, upper: int, *parts: Part, level: int = 4) -> Batch:
    return Batch(Description(lower, upper), (Run(parts),) if parts else (), level)


def state(seqno: int, *batches: Batch, since: int | None = 0, **more: object) -> ShardState:
    base = ShardState(
        shard="s" + "0" * 32, name="flights", seqno=seqno, walltime_ms=NOW_MS - 10, version=(1, 0),
        created_ms=5, schemas={0: SCHEMA}, trace=Trace(since=since, batches=batches),
    )  # fmt: skip
    return msgspec.structs.replace(base, **more)


def lease(since: int | None, seqno: int, heartbeat_ms: int = NOW_MS - 100) -> LeasedReader:
    return LeasedReader(since, seqno, heartbeat_ms, lease_ms=1000, purpose="a reader")


def hold(since: int | None, seqno: int | None = None) -> CriticalReader:
    return CriticalReader(since, "e", 100, 600, "a query", seqno)


def test_a_part_is_dropped_when_no_later_state_names_it() -> None:
    """A merge drops its inputs; a part that comes back, or stays, is not dropped."""
    a, b, merged = part("a", 10), part("b", 20), part("ab", 25)
    states = [
        state(1, batch(0, 5, a)),
        state(2, batch(0, 5, a), batch(5, 9, b)),
        state(3, batch(0, 9, merged)),
        state(4, batch(0, 9, merged), batch(9, 12, part("c", 7))),
    ]
    assert dropped_parts(states) == (DroppedPart("a", 10, 2), DroppedPart("b", 20, 2))
    assert dropped_parts(states[2:]) == ()
    back_again = [states[1], states[2], states[1]]
    assert dropped_parts(back_again) == (DroppedPart("ab", 25, 3),)
    assert dropped_parts([]) == ()


def test_inline_parts_are_never_kept_by_old_seqnos() -> None:
    """What lives in the state is no blob, so nothing has to keep it."""
    inline = msgspec.structs.replace(part("i", 9), inline=b"rows")
    assert dropped_parts([state(1, batch(0, 5, inline)), state(2, batch(0, 5))]) == ()


def test_only_the_oldest_seqno_hold_keeps_what_the_others_do_not_need() -> None:
    """Bytes count for the one reader whose departure would free them, and for nobody otherwise."""
    dropped = (DroppedPart("a", 10, 3), DroppedPart("b", 200, 6))
    shard = state(
        9, batch(0, 50, part("c", 1)), leased={"r1": lease(40, 3), "r2": lease(40, 5)},
        critical={"q": hold(40)},
    )  # fmt: skip
    kept = {h.name: h.only_bytes for h in report_shard(shard, NOW_MS, dropped=dropped).holders}
    assert kept == {"r1": 10, "r2": 0, "q": 0}, "b is needed by r1 and by r2"
    alone = msgspec.structs.replace(shard, leased={"r1": lease(40, 3)})
    kept = {h.name: h.only_bytes for h in report_shard(alone, NOW_MS, dropped=dropped).holders}
    assert kept == {"r1": 210, "q": 0}
    unknown = report_shard(shard, NOW_MS, dropped=None)
    assert unknown.dropped_bytes is None
    assert {h.only_bytes for h in unknown.holders} == {None}


def test_a_holder_says_how_far_since_could_move_without_it() -> None:
    """Only the one that stands alone at since gains anything; never past the last readable time."""
    shard = state(
        9, batch(0, 100, part("c", 1)), since=20,
        critical={"slow": hold(20), "quick": hold(70), "done": hold(None)},
    )  # fmt: skip
    reports = {h.name: h for h in report_shard(shard, NOW_MS).holders}
    assert {n: (h.behind_ms, h.gain_ms) for n, h in reports.items()} == {
        "slow": (80, 50), "quick": (30, 0), "done": (0, 0),
    }  # fmt: skip
    only = msgspec.structs.replace(shard, critical={"slow": hold(20)})
    assert report_shard(only, NOW_MS).holders[0].gain_ms == 79, "to 99, the last time before upper"
    assert list(reports) == ["slow", "quick", "done"], "the one that holds back most is first"


def test_what_the_policy_keeps_is_not_kept_for_a_reader() -> None:
    """Nor what lies between the since and the reader: the next round frees that with him there."""
    ahead = state(
        9, batch(0, 100, part("c", 1)), since=20, critical={"slow": hold(40), "quick": hold(70)}
    )
    gains = {h.name: h.gain_ms for h in report_shard(ahead, NOW_MS).holders}
    assert gains == {"slow": 30, "quick": 0}
    for retain_ms, gain in ((50, 9), (10, 30), (90, 0)):
        kept = msgspec.structs.replace(ahead, retain_ms=retain_ms)
        gains = {h.name: h.gain_ms for h in report_shard(kept, NOW_MS).holders}
        assert gains == {"slow": gain, "quick": 0}, retain_ms


@pytest.mark.parametrize(("silent_ms", "overdue"), [(1000, False), (1001, True)])
def test_a_lease_is_overdue_after_its_silence(silent_ms: int, overdue: bool) -> None:
    """The report uses the same bound as the shard itself, which keeps it at exactly the lease."""
    shard = state(3, batch(0, 9), leased={"r": lease(1, 2, NOW_MS - silent_ms)})
    (holder,) = report_shard(shard, NOW_MS).holders
    assert (holder.silent_ms, holder.overdue, holder.behind_seqnos) == (silent_ms, overdue, 1)


def test_a_clock_that_is_behind_gives_no_negative_ages() -> None:
    """Ages of readers and writers stop at 0 when the looker's clock is behind."""
    shard = state(
        3,
        batch(0, 9),
        leased={"r": lease(1, 2, NOW_MS + 500)},
        writers={"w": Writer(1, 9, NOW_MS + 1)},
    )
    report = report_shard(shard, NOW_MS)
    assert report.holders[0].silent_ms == 0
    assert report.writers[0].silent_ms == 0


def test_sums_are_over_all_parts() -> None:
    """Rows, bytes, diffs and levels add up; idle intervals and retractions are counted apart."""
    back = msgspec.structs.replace(part("d", 5), diff_sum=-10, diff_min=-1, diff_max=-1)
    shard = state(
        3, batch(0, 5, part("a", 100), part("b", 50)), batch(5, 7), batch(7, 9, back, level=2)
    )
    report = report_shard(shard, NOW_MS, with_parts=True)
    assert (report.rows, report.size_bytes, report.diff_sum) == (30, 155, 10)
    assert (report.batches, report.empty_batches, report.part_count) == (3, 1, 3)
    assert report.retracting_parts == 1
    levels = [
        (one.level, one.batches, one.parts, one.rows, one.size_bytes) for one in report.levels
    ]
    assert levels == [(2, 1, 1, 10, 5), (4, 1, 2, 20, 150)]
    assert [p.key for p in report.parts or ()] == ["a", "b", "d"]


def test_a_schema_reads_like_sql() -> None:
    """Types have SQL's names at every depth, odd names are quoted."""
    fields = [
        {"name": "id", "type": "long", "nullable": False},
        {"name": "a b", "type": "decimal(10,2)", "nullable": True},
        {
            "name": "tags", "nullable": True,
            "type": {"type": "array", "elementType": "short", "containsNull": True},
        },
        {
            "name": "m", "nullable": True,
            "type": {
                "type": "map", "keyType": "string", "valueContainsNull": True,
                "valueType": {
                    "type": "struct",
                    "fields": [{"name": "x`y", "type": "timestamp_ntz", "nullable": False}],
                },
            },
        },
    ]  # fmt: skip
    for field in fields:
        field["metadata"] = {}
    fields[3]["type"]["valueType"]["fields"][0]["metadata"] = {}  # type: ignore[index]
    assert schema_text(json.dumps({"type": "struct", "fields": fields})) == (
        "id BIGINT NOT NULL, `a b` DECIMAL(10,2), tags ARRAY<SMALLINT>, "
        "m MAP<STRING, STRUCT<`x``y`: TIMESTAMP_NTZ NOT NULL>>"
    )

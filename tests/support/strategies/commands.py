"""Random sequences of commands, applied to states as the machine applies them, without a store."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from hypothesis import strategies as st

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.frontier import EMPTY, Frontier
from shardline.datasource.shard.batch import Batch, Part, Run
from shardline.datasource.shard.codec import CODE_VERSION
from shardline.datasource.shard.commands.append import (
    Abandon,
    Append,
    abandon,
    compare_and_append,
)
from shardline.datasource.shard.commands.evolve import evolve_schema
from shardline.datasource.shard.commands.garbage_collection import give_up_states, note_cleaned
from shardline.datasource.shard.commands.lifecycle import finalise, initial_state, reinitialise
from shardline.datasource.shard.commands.merge import apply_merge
from shardline.datasource.shard.commands.readers import (
    confirm_critical,
    downgrade_critical,
    downgrade_leased,
    expire_critical,
    expire_leased,
    heartbeat,
    pin_critical,
    register_critical,
    register_leased,
)
from shardline.datasource.shard.commands.rollups import add_rollup
from shardline.datasource.shard.commands.transition import Transition
from shardline.datasource.shard.description import Description
from shardline.datasource.shard.state import (
    RollupRef,
    ShardState,
    check_invariants,
    expire_leases,
    is_tombstone,
)
from shardline.datasource.types.schema import ShardSchema
from shardline.datasource.types.stats import ColumnStats, PartStats, encode_stats

__all__ = ["SCHEMAS", "advance", "first_state", "histories", "part", "steps"]

Step = Callable[[ShardState, int], Transition[Any]]

_FIELD = '{{"metadata":{{}},"name":"{}","nullable":true,"type":"long"}}'

SCHEMAS = [
    ShardSchema.parse(
        '{"type":"struct","fields":[' + ",".join(_FIELD.format(name) for name in names) + "]}"
    )
    for names in ("a", "ab", "abc")
]
"""Three schemas, each an evolution of the one before."""

_NAMES = st.sampled_from(["x", 'zürich \u2028 "\\'])
_TIMES = st.integers(0, 40)
_STATS = st.none() | st.builds(
    PartStats,
    st.integers(1, 9),
    st.dictionaries(
        st.sampled_from(["a", "`b.c`"]),
        st.builds(ColumnStats, st.integers(0, 3), st.just("str"), st.text(), st.text())
        | st.builds(ColumnStats, st.integers(0, 3), st.just("float"), st.just("-inf"), st.none())
        | st.builds(ColumnStats, st.integers(0, 3)),
    ),
)


def part(key: str = "s/part/p", **changes: Any) -> Part:
    """A part with the least that it must have."""
    return msgspec.structs.replace(Part(key=key, rows=1, size_bytes=10, schema=0), **changes)


def first_state(now_ms: int = 1000, number: int = 0) -> ShardState:
    """A shard right after its creation, the `number`-th of its name."""
    return initial_state(
        shard=f"s{number:032x}",
        name="örders",
        schema=SCHEMAS[0],
        key=("a",),
        comment="",
        version=CODE_VERSION,
        now_ms=now_ms,
    )


def advance(state: ShardState, step: Step, now_ms: int) -> ShardState:
    """The state that the machine makes of a step: see `Machine`."""
    try:
        new = step(state, now_ms).state
    except InvalidUsage:
        return state
    if new is None:
        return state
    new = msgspec.structs.replace(
        expire_leases(new, now_ms),
        seqno=state.seqno + 1,
        walltime_ms=max(now_ms, state.walltime_ms + 1),
    )
    if is_tombstone(new) or new.shard != state.shard:
        new = msgspec.structs.replace(new, base=new.seqno)
    check_invariants(new)
    return new


@st.composite
def _parts(draw: st.DrawFn) -> Part:
    made = part(
        key=draw(st.text(st.characters(codec="utf-8"), min_size=1, max_size=5)),
        diff_min=draw(st.integers(-(2**63), 2**63 - 1)),
        encoded_stats=encode_stats(draw(_STATS)),
        crc32=draw(st.none() | st.integers(0, 2**32 - 1)),
        inline=draw(st.none() | st.binary(max_size=5)),
        schema=draw(st.sampled_from([0, 0, 0, 1, 2])),
    )
    times = draw(st.none() | st.lists(_TIMES, min_size=2, max_size=2).map(sorted))
    return (
        made if times is None else msgspec.structs.replace(made, ts_min=times[0], ts_max=times[1])
    )


@st.composite
def _append(draw: st.DrawFn) -> Step:
    """An append that mostly fits: intervals and times count from the upper that it meets."""
    parts, back = draw(st.lists(_parts(), max_size=2)), draw(st.sampled_from([0, 0, 0, 2, -1]))
    length, number = draw(st.sampled_from([3, 9, 3, 9, 0, None])), draw(st.sampled_from([1, 1, 0]))
    name, attempt, durable = draw(_NAMES), draw(_NAMES), draw(st.booleans())
    timed, trimmed = draw(st.booleans()), draw(st.booleans())

    def step(state: ShardState, now_ms: int) -> Transition[Any]:
        upper = state.upper.time or 0
        lower = max(0, upper - back)
        shifted = [
            one if one.ts_min is None else _shifted(one, lower if trimmed else upper)
            for one in parts
        ]
        entry = state.writers.get(name)
        append = Append(
            shard=state.shard,
            runs=tuple(Run((one,)) for one in shifted),
            writer=name,
            sequence=(entry.last if entry else 0) + number,
            durable=durable,
            lease_ms=50,
            attempt=attempt,
            lower=Frontier(upper if trimmed else lower) if timed else None,
            upper=(EMPTY if length is None else Frontier(upper + length)) if timed else None,
            earliest=lower if trimmed else None,
        )
        return compare_and_append(state, now_ms, append=append)

    return step


def _shifted(one: Part, by: int) -> Part:
    return msgspec.structs.replace(one, ts_min=by, ts_max=by + ((one.ts_max or 0) % 5))


@st.composite
def _merge(draw: st.DrawFn) -> Step:
    """A merge of some neighbours into one batch, with what is left of their rows."""
    first, count, left = draw(st.integers(0, 4)), draw(st.integers(1, 3)), draw(st.booleans())

    def step(state: ShardState, now_ms: int) -> Transition[Any]:
        inputs = state.trace.batches[first : first + count]
        if not inputs or any(one.is_empty or one.is_trimmed for one in (inputs[0], inputs[-1])):
            return Transition(None, None)
        if len(inputs) == 1:
            return Transition(None, None)
        runs = tuple(run for batch in inputs for run in batch.runs) if left else ()
        desc = Description(inputs[0].desc.lower, inputs[-1].desc.upper, state.trace.since)
        if any(part.diff_sum for batch in inputs for part in batch.parts):
            return Transition(None, None)
        return apply_merge(state, now_ms, inputs=inputs, output=Batch(desc, runs, level=3))

    return step


def _frontiers() -> st.SearchStrategy[Frontier]:
    return _TIMES.map(Frontier)


def steps() -> st.SearchStrategy[Step]:
    """Any command with any arguments."""
    refs = st.builds(RollupRef, st.text(max_size=3), st.integers(0, 9))
    numbers = st.integers(1, 30)
    leases = st.integers(1, 60)

    def made(command: Callable[..., Transition[Any]], **arguments: Any) -> st.SearchStrategy[Step]:
        return st.builds(partial, st.just(command), **arguments)

    def rollup(seqno: int, ref: RollupRef) -> Step:
        return lambda state, now: add_rollup(state, now, seqno=min(seqno, state.seqno), rollup=ref)

    return st.one_of(
        *[_append()] * 12,
        *[_merge()] * 3,
        made(
            abandon,
            request=st.builds(
                Abandon,
                writer=_NAMES,
                sequence=st.integers(0, 9),
                attempt=_NAMES,
                lease_ms=st.none() | leases,
                parts=st.frozensets(_NAMES, max_size=2),
                staged_ms=st.integers(0, 90),
                was_asked=st.booleans(),
            ),
        ),
        made(evolve_schema, expected=st.integers(0, 2), schema=st.sampled_from(SCHEMAS)),
        made(
            register_leased,
            reader=_NAMES,
            since=st.none() | _TIMES,
            lease_ms=leases,
            purpose=_NAMES,
        ),
        made(heartbeat, reader=_NAMES),
        made(downgrade_leased, reader=_NAMES, since=_frontiers(), seqno=numbers),
        made(expire_leased, reader=_NAMES),
        made(
            register_critical,
            reader=_NAMES,
            epoch=_NAMES,
            since=st.none() | _TIMES,
            purpose=_NAMES,
            confirmed=st.booleans(),
        ),
        made(
            downgrade_critical,
            reader=_NAMES,
            expected_epoch=_NAMES,
            epoch=_NAMES,
            since=_frontiers(),
        ),
        made(confirm_critical, reader=_NAMES, epoch=_NAMES),
        made(expire_critical, reader=_NAMES, epoch=st.none() | _NAMES),
        st.builds(rollup, numbers, refs),
        made(give_up_states, seqno=numbers),
        made(note_cleaned, seqno=numbers),
        made(pin_critical, reader=_NAMES, epoch=_NAMES, seqno=st.none() | numbers),
        st.builds(_dropped, st.integers(0, 9)),
    )


def _dropped(often: int) -> Step:
    """Drops the shard, or makes it again, once in a while."""

    def step(state: ShardState, now_ms: int) -> Transition[Any]:
        if is_tombstone(state):
            return reinitialise(state, now_ms, fresh=first_state(now_ms, state.seqno))
        if often:
            return Transition(None, None)
        holders = frozenset([*state.leased, *state.critical])
        return finalise(state, now_ms, shard=state.shard, despite_holders=holders)

    return step


def histories(most: int = 25) -> st.SearchStrategy[list[ShardState]]:
    """The states of a shard, one after the other; each differs from the one before."""

    def play(moves: list[tuple[Step, int]]) -> list[ShardState]:
        states, now_ms = [first_state()], 1000
        for step, pause_ms in moves:
            now_ms += pause_ms
            new = advance(states[-1], step, now_ms)
            if new is not states[-1]:
                states.append(new)
        return states

    moves = st.lists(st.tuples(steps(), st.integers(-5, 40)), min_size=10, max_size=most)
    return moves.map(play)

"""Truncation: the floor, the grace, and writers that sleep through both."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from shardline.datasource.errors import Indeterminate
from shardline.datasource.stores.entry import encode_entry, entry_key
from shardline.datasource.stores.faulty import Fault, Faulty
from shardline.datasource.stores.location import Committed, ExpectationMismatch, VersionedData
from shardline.datasource.stores.log import CLOCK_DIFFERENCE_MS, NumberedLog
from shardline.datasource.stores.objects import CREATED, Unresolved
from support.fakes.clock import ManualClock, SeededIds, SkewedClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardline.datasource.stores.location import BlobEntry
    from shardline.datasource.stores.objects import CreateOutcome, Objects
    from support.processes.places import Place

_GRACE_MS = 10_000

SLEEPS = ["suspended", "paused", "frozen"]
"""A suspended machine's clocks go on; of one that its hypervisor paused, only the wall clock; and
if that is not set right either, the store alone knows the time."""


class Stalling(Faulty):
    """Calls `meanwhile` once, just before a create of the log reaches the store."""

    meanwhile: Callable[[], None] | None = None
    after: Callable[[], None] | None = None

    @override
    def create(self, key: str, value: bytes) -> CreateOutcome:
        if "/log/" in key and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        outcome = super().create(key, value)
        if "/log/" in key and self.after is not None:
            after, self.after = self.after, None
            after()
        return outcome


class Paused(ManualClock):
    """The clocks of a machine that is paused from now on: only its wall clock is set right."""

    def __init__(self, other: ManualClock) -> None:
        super().__init__()
        self._other, self._stopped_ms = other, other.elapsed_ms()

    @override
    def now_ms(self) -> int:
        return self._other.now_ms()

    @override
    def elapsed_ms(self) -> float:
        return self._stopped_ms


class Frozen(Paused):
    """The clocks of a machine that is paused from now on: all of them stand still."""

    @override
    def now_ms(self) -> int:
        return int(self._stopped_ms)


class Telling(Faulty):
    """A store that tells its time with each answer to this process, as S3 does."""

    told_ms = 0.0

    @override
    def latest_ms(self) -> float:
        return self.told_ms

    def _tell(self) -> None:
        self.told_ms = float(self._clock.now_ms())

    @override
    def create(self, key: str, value: bytes) -> CreateOutcome:
        outcome = super().create(key, value)
        if not isinstance(outcome, Unresolved):
            self._tell()
        return outcome

    @override
    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes | None:
        value = super().get(key, start, end)
        self._tell()
        return value

    @override
    def entries(
        self, prefix: str, start_after: str = "", limit: int | None = None
    ) -> Iterator[BlobEntry]:
        yield from super().entries(prefix, start_after, limit)
        self._tell()


class World:
    """One store and one clock, seen by any number of handles."""

    def __init__(self, place: Place) -> None:
        self.clock = ManualClock()
        self.ids = SeededIds()
        self._place = place
        self.raw = place.objects(self.clock, self.ids)

    def log(self, grace_ms: float = _GRACE_MS, objects: Objects | None = None) -> NumberedLog:
        store = objects or self._place.objects(self.clock, self.ids)
        return NumberedLog(store, clock=self.clock, ids=self.ids, grace_ms=grace_ms)

    def skewed(self, ahead_ms: int) -> NumberedLog:
        """A process whose wall clock is ahead of the store's."""
        store = self._place.objects(self.clock, self.ids)
        clock = SkewedClock(self.clock, ahead_ms)
        return NumberedLog(store, clock=clock, ids=self.ids, grace_ms=_GRACE_MS)

    def sleeper(self, how: str, objects: Objects | None = None) -> NumberedLog:
        """A process that is going to be suspended or paused with its machine: one of `SLEEPS`."""
        store = objects or self._place.objects(self.clock, self.ids)
        clock = {"paused": Paused, "frozen": Frozen}.get(how, _same)(self.clock)
        if how == "frozen":
            store = Telling(store, clock=self.clock, ids=self.ids)
        return NumberedLog(store, clock=clock, ids=self.ids, grace_ms=_GRACE_MS)

    def stalling(self) -> Stalling:
        return Stalling(self.raw, clock=self.clock, ids=self.ids)

    def seqnos(self) -> list[int]:
        """What is physically there."""
        keys = [entry.key for entry in self.raw.entries("s/log/")]
        return [seqno for seqno in range(1, 100) if entry_key("s/log/", seqno) in keys]


def _same(clock: ManualClock) -> ManualClock:
    return clock


@pytest.fixture(params=["memory", "file"])
def world(request: pytest.FixtureRequest) -> World:
    return World(request.getfixturevalue(f"{request.param}_place"))


@pytest.fixture
def any_world(place: Place) -> World:
    return World(place)


def _fill(log: NumberedLog, first: int, last: int) -> None:
    for seqno in range(first, last + 1):
        assert log.compare_and_set("s", seqno - 1 or None, b"%d" % seqno) == Committed(seqno)


def _record(seqno: int) -> VersionedData:
    return VersionedData(seqno, b"%d" % seqno)


# ------------------------------------------------------------------------------------------- laws


def test_records_are_deleted_only_after_the_grace(any_world: World) -> None:
    """The first call announces; a call after the grace deletes, and says how much."""
    log = any_world.log()
    _fill(log, 1, 9)

    assert log.truncate("s", 5) == 0
    any_world.clock.advance(_GRACE_MS - 1)
    assert log.truncate("s", 5) == 0
    assert any_world.seqnos() == list(range(1, 10))
    any_world.clock.advance(1)
    assert log.truncate("s", 5) == 4
    assert log.truncate("s", 5) == 0
    assert any_world.seqnos() == [5, 6, 7, 8, 9]
    for reader in (log, any_world.log()):
        assert reader.head("s") == _record(9)
        assert reader.scan("s", 1, 2) == [_record(5), _record(6)]


def test_the_head_is_never_deleted(world: World) -> None:
    """Whatever is asked for, the head stays, and the log goes on behind it."""
    log = world.log()
    _fill(log, 1, 4)

    log.truncate("s", 1_000)
    world.clock.advance(_GRACE_MS)

    assert log.truncate("s", 1_000) == 3
    assert world.seqnos() == [4]
    assert world.log().head("s") == _record(4)
    _fill(world.log(), 5, 6)


def test_no_log_is_begun_below_a_floor_that_is_left(world: World) -> None:
    """A log that was lost: its first record would be taken for one that was truncated, and be lost.

    Also if it has just been seen that there is no head, which otherwise speaks for all records.
    """
    log = world.log()
    _fill(log, 1, 9)
    log.truncate("s", 5)
    for seqno in world.seqnos():
        world.raw.delete(entry_key("s/log/", seqno))

    for handle in (world.log(), fresh := world.log(), fresh):
        assert handle.head("s") is None
        assert handle.compare_and_set("s", None, b"x") == ExpectationMismatch(None)
    assert world.seqnos() == []


def test_without_a_grace_one_call_deletes(world: World) -> None:
    """A grace of zero relies on no observation, so nothing has to be waited for."""
    log = world.log(grace_ms=0)
    _fill(log, 1, 6)

    assert log.truncate("s", 4) == 3
    assert log.truncate("s", 6) == 2
    assert log.scan("s", 1, 9) == [_record(6)]
    _fill(log, 7, 8)


def test_records_below_the_floor_are_gone_though_still_there(world: World) -> None:
    """A fresh reader is not shown what may vanish under it."""
    log = world.log()
    _fill(log, 1, 9)
    log.truncate("s", 5)

    assert world.log().scan("s", 1, 2) == [_record(5), _record(6)]
    assert world.log().scan("s", 9, 2) == [_record(9)]


def test_one_floor_is_announced_at_a_time(world: World) -> None:
    """Floors are kept for ever, so frequent truncation does not publish one each."""
    log = world.log()
    _fill(log, 1, 9)
    for before in range(2, 9):
        log.truncate("s", before)

    assert len(list(world.raw.entries("s/floor/"))) == 1
    world.clock.advance(_GRACE_MS)
    log.truncate("s", 8)  # deletes what the first call announced, and announces 8
    assert len(list(world.raw.entries("s/floor/"))) == 2
    world.clock.advance(_GRACE_MS)
    assert log.truncate("s", 8) == 6
    assert world.seqnos() == [8, 9]


def test_another_handle_finishes_what_a_crashed_one_announced(world: World) -> None:
    """It counts the grace from when it first saw the floor: it cannot know the other's clock."""
    _fill(world.log(), 1, 9)
    world.log().truncate("s", 5)
    successor = world.log()

    world.clock.advance(_GRACE_MS)
    assert successor.truncate("s", 5) == 0
    world.clock.advance(_GRACE_MS)
    assert successor.truncate("s", 5) == 4


@pytest.fixture
def stamped_world(memory_place: Place) -> World:
    """A store that stamps objects with the test's clock."""
    return World(memory_place)


def test_processes_that_live_for_a_moment_finish_what_others_announced(
    stamped_world: World,
) -> None:
    """By the store's time stamp of the floor, and an hour more for the clocks."""
    world = stamped_world
    _fill(world.log(), 1, 9)
    world.log().truncate("s", 5)
    world.clock.advance(_GRACE_MS + CLOCK_DIFFERENCE_MS - 1)
    assert world.log().truncate("s", 5) == 0
    world.clock.advance(1)
    assert world.log().truncate("s", 8) == 4
    assert len(list(world.raw.entries("s/floor/"))) == 2, "and the next one is announced"
    assert world.log().truncate("s", 8) == 0
    world.clock.advance(_GRACE_MS + CLOCK_DIFFERENCE_MS)
    assert world.log().truncate("s", 8) == 3
    assert world.seqnos() == [8, 9]


def test_without_time_stamps_only_a_process_that_waits_deletes(stamped_world: World) -> None:
    """Nothing is concluded from a time that the store does not tell."""

    class Timeless(Faulty):
        @override
        def entries(
            self, prefix: str, start_after: str = "", limit: int | None = None
        ) -> Iterator[BlobEntry]:
            found = super().entries(prefix, start_after, limit)
            return (replace(entry, modified_ms=0) for entry in found)

    world = stamped_world
    _fill(world.log(), 1, 9)
    world.log().truncate("s", 5)
    world.clock.advance(100 * CLOCK_DIFFERENCE_MS)
    store = Timeless(world.raw, clock=world.clock, ids=world.ids)
    log = world.log(objects=store)
    assert log.truncate("s", 5) == 0
    world.clock.advance(_GRACE_MS)
    assert log.truncate("s", 5) == 4


def test_truncation_leaves_foreign_objects_alone(world: World) -> None:
    """What is no entry is not ours to delete."""
    log = world.log(grace_ms=0)
    _fill(log, 1, 5)
    world.raw.put("s/log/zzz", b"x")

    assert log.truncate("s", 5) == 4
    assert world.raw.get("s/log/zzz") == b"x"


# -------------------------------------------------------------------- the regression, and its kin


def _truncate_past(world: World, log: NumberedLog) -> None:
    """Others append up to 9, truncate below 8 and wait; seqnos 1 to 7 are deleted."""
    _fill(log, 2, 9)
    log.truncate("s", 8)
    world.clock.advance(_GRACE_MS)
    assert log.truncate("s", 8) == 7
    assert world.seqnos() == [8, 9]


def _stalled_append(world: World, grace_ms: float) -> Committed | ExpectationMismatch:
    """The schedule: a writer stalls inside its create while its seqno is written and deleted."""
    other = world.log()
    _fill(other, 1, 1)
    store = world.stalling()
    sleeper = world.log(grace_ms, store)
    assert sleeper.head("s") == _record(1)
    store.meanwhile = lambda: _truncate_past(world, other)

    return sleeper.compare_and_set("s", 1, b"zombie")


def test_regression_a_stalled_writer_recreates_a_deleted_seqno(any_world: World) -> None:
    """Its create succeeds, and yet it must not believe that it committed."""
    with pytest.raises(Indeterminate, match="truncated beyond it"):
        _stalled_append(any_world, _GRACE_MS)

    assert any_world.seqnos() == [2, 8, 9]
    for reader in (any_world.log(), any_world.log()):
        assert reader.scan("s", 1, 9) == [_record(8), _record(9)]
        assert reader.head("s") == _record(9)
    _fill(any_world.log(), 10, 10)


def test_the_regression_bites_without_the_floor_check(any_world: World) -> None:
    """Test of the test: a writer that never looks at the floor does believe that it committed."""
    outcome = _stalled_append(any_world, grace_ms=1e15)

    assert outcome == Committed(2)
    assert b"zombie" not in {record.data for record in any_world.log().scan("s", 1, 99)}


def _overtaken_in_a_moment(world: World, ahead_ms: int) -> Committed | ExpectationMismatch:
    """A writer stalls in its create; processes of a moment truncate, as soon as they dare."""
    _fill(world.log(), 1, 1)
    store = world.stalling()
    sleeper = world.log(objects=store)
    assert sleeper.head("s") == _record(1)

    def meanwhile() -> None:
        _fill(world.log(), 2, 9)
        world.log().truncate("s", 8)
        while world.skewed(ahead_ms).truncate("s", 8) == 0:
            world.clock.advance(_GRACE_MS / 20)

    store.meanwhile = meanwhile
    return sleeper.compare_and_set("s", 1, b"zombie")


@pytest.mark.parametrize(
    "ahead_ms", [pytest.param(-CLOCK_DIFFERENCE_MS, marks=pytest.mark.slow), 0, CLOCK_DIFFERENCE_MS]
)
def test_a_stalled_writer_is_safe_from_processes_of_a_moment(
    stamped_world: World, ahead_ms: int
) -> None:
    """The same schedule, with a wall clock an hour off: deleting comes late enough."""
    with pytest.raises(Indeterminate, match="truncated beyond it"):
        _overtaken_in_a_moment(stamped_world, ahead_ms)
    assert stamped_world.log().head("s") == _record(9)


def test_clocks_that_are_further_off_than_allowed_do_break_it(stamped_world: World) -> None:
    """Test of the test, and what the hour is for."""
    outcome = _overtaken_in_a_moment(stamped_world, int(CLOCK_DIFFERENCE_MS + _GRACE_MS))
    assert outcome == Committed(2)


def test_what_a_stalled_writer_left_behind_is_cleared_by_the_next_truncation(world: World) -> None:
    """Its object below the floor is nobody's record, and does not stay for ever."""
    with pytest.raises(Indeterminate):
        _stalled_append(world, _GRACE_MS)
    log = world.log()
    log.truncate("s", 9)
    world.clock.advance(_GRACE_MS)
    log.truncate("s", 9)
    world.clock.advance(_GRACE_MS)
    log.truncate("s", 9)

    assert world.seqnos() == [9]


@pytest.mark.parametrize("how", SLEEPS[:2])
def test_a_writer_that_slept_before_its_create_is_refused_cleanly(world: World, how: str) -> None:
    """It sees the floor first, so nothing is created and the answer is certain."""
    other, sleeper = world.log(), world.sleeper(how)
    _fill(other, 1, 1)
    assert sleeper.head("s") == _record(1)
    _truncate_past(world, other)

    assert sleeper.compare_and_set("s", 1, b"zombie") == ExpectationMismatch(None)
    assert world.seqnos() == [8, 9]
    assert sleeper.head("s") == _record(9)
    assert sleeper.compare_and_set("s", 9, b"10") == Committed(10)


def test_a_writer_whose_clocks_stood_still_learns_the_time_from_its_create(world: World) -> None:
    """It creates what was deleted, and does not believe that it has committed."""
    other, sleeper = world.log(), world.sleeper("frozen")
    _fill(other, 1, 1)
    # Twice: what was asked before the store's first answer counts as old.
    assert [sleeper.head("s") for _ in range(2)] == [_record(1)] * 2
    _truncate_past(world, other)

    with pytest.raises(Indeterminate, match="truncated beyond it"):
        sleeper.compare_and_set("s", 1, b"zombie")
    assert sleeper.head("s") == _record(9)
    assert sleeper.compare_and_set("s", 9, b"10") == Committed(10)


def _build_upon_second(world: World, other: NumberedLog) -> None:
    """Whoever finds record 2 commits after it, and truncates past it for good."""
    other.head("s")
    _fill(other, 3, 9)
    other.truncate("s", 8)
    world.clock.advance(_GRACE_MS)
    other.truncate("s", 8)


@pytest.mark.parametrize("how", SLEEPS[:2])
def test_a_late_answer_to_a_genuine_commit_is_not_trusted_either(world: World, how: str) -> None:
    """The record was committed, built upon and truncated before its writer woke: it must look.

    (Where the store tells the time, the answer is as old as the commit, and to be trusted.)
    """
    other = world.log()
    _fill(other, 1, 1)
    store = world.stalling()
    sleeper = world.sleeper(how, store)
    sleeper.head("s")

    store.after = lambda: _build_upon_second(world, other)
    with pytest.raises(Indeterminate, match="truncated beyond it"):
        sleeper.compare_and_set("s", 1, b"2")


@pytest.mark.parametrize("how", SLEEPS)
def test_anothers_record_below_the_floor_is_no_proof_of_a_lost_race(world: World, how: str) -> None:
    """Ours was committed, built upon and truncated; then a stalled writer put its own there.

    Who took that for "lost" would delete what its own record had named, or append it again.
    """
    other = world.log()
    _fill(other, 1, 1)
    store = world.stalling()
    sleeper = world.sleeper(how, store)
    sleeper.head("s")

    def later() -> None:
        _build_upon_second(world, other)
        key = entry_key("s/log/", 2)
        assert world.raw.create(key, encode_entry(key, b"t" * 16, b"zombie")) is CREATED

    store.after = later
    store.fail("create", Fault.AFTER)
    with pytest.raises(Indeterminate, match="truncated beyond it"):
        sleeper.compare_and_set("s", 1, b"2")


@pytest.mark.parametrize("how", SLEEPS)
def test_a_reader_that_slept_does_not_take_a_hole_for_the_head(world: World, how: str) -> None:
    """The seqno after its head was deleted long ago: absence proves nothing then."""
    other, sleeper = world.log(), world.sleeper(how)
    _fill(other, 1, 1)
    assert sleeper.head("s") == _record(1)
    _truncate_past(world, other)

    assert sleeper.head("s") == _record(9)
    late_scanner = world.log()
    assert late_scanner.scan("s", 2, 9) == [_record(8), _record(9)]


def test_a_stalled_writer_within_the_grace_commits_or_loses(world: World) -> None:
    """Short stalls cost nothing: the create itself decides."""
    other = world.log()
    _fill(other, 1, 1)
    store = world.stalling()
    writer = world.log(objects=store)
    writer.head("s")
    store.meanwhile = lambda: world.clock.advance(_GRACE_MS / 2 - 1)
    assert writer.compare_and_set("s", 1, b"2") == Committed(2)

    def race() -> None:
        other.head("s")
        _fill(other, 3, 4)

    store.meanwhile = race
    assert writer.compare_and_set("s", 2, b"lost") == ExpectationMismatch(_record(3))

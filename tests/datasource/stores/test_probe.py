"""Creating locations: the probe, the marker, and stores that cannot be trusted."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from shardline.datasource.clock import SystemIds
from shardline.datasource.errors import Corrupt, Determinate, InvalidUsage
from shardline.datasource.stores.faulty import Fault, Faulty
from shardline.datasource.stores.memory import MemoryObjects
from shardline.datasource.stores.objects import CREATED, EXISTS, CreateOutcome, Objects
from shardline.datasource.stores.open import compose_location, open_location
from support.fakes.clock import SeededIds, SharedClock

if TYPE_CHECKING:
    from shardline.datasource.stores.location import Location
    from shardline.datasource.stores.probe import IfMissing
    from support.processes.places import Place

pytestmark = pytest.mark.usefixtures("probed_anew")


def _memory(kind: type[MemoryObjects] = MemoryObjects) -> MemoryObjects:
    return kind(f"probe-{SystemIds().token().hex()}", SharedClock())


def _compose(objects: Objects, if_missing: IfMissing = "create", grace_ms: int = 5) -> Location:
    return compose_location(
        objects, clock=SharedClock(), ids=SeededIds(), if_missing=if_missing, grace_ms=grace_ms
    )


class IgnoresConditions(MemoryObjects):
    """As servers do that do not know the header: every create succeeds."""

    @override
    def create(self, key: str, value: bytes) -> CreateOutcome:
        self.put(key, value)
        return CREATED


class ReportsAndOverwrites(MemoryObjects):
    """Says that the key exists, and stores the value all the same."""

    @override
    def create(self, key: str, value: bytes) -> CreateOutcome:
        existed = self.get(key) is not None
        self.put(key, value)
        return EXISTS if existed else CREATED


class LooksThenWrites(MemoryObjects):
    """Honours the condition for one caller, and not for several at once."""

    _together = threading.Barrier(8)

    @override
    def create(self, key: str, value: bytes) -> CreateOutcome:
        if self.get(key) is not None:
            return EXISTS
        if threading.current_thread() is not threading.main_thread():
            self._together.wait(10)
        self.put(key, value)
        return CREATED


class DamagesOnce(MemoryObjects):
    """What is read for the `at`-th time, of what is there, has a byte changed on its way."""

    at = -1
    reads = 0

    @override
    def get(self, key: str, start: int = 0, end: int | None = None) -> bytes | None:
        value = super().get(key, start, end)
        if value is None:
            return None
        self.reads += 1
        return value if self.reads - 1 != self.at else value[:40] + b"\xff" + value[41:]


@pytest.mark.parametrize("kind", [IgnoresConditions, ReportsAndOverwrites, LooksThenWrites])
def test_a_store_that_does_not_honour_conditions_is_refused(kind: type[MemoryObjects]) -> None:
    """Two writers could both believe that they committed: nothing may be written there."""
    objects = _memory(kind)

    with pytest.raises(InvalidUsage, match=r"\[STORE_NOT_ATOMIC\].*does not honour conditional"):
        _compose(objects)
    assert list(objects.entries("")) == []


def test_a_location_is_probed_once_and_leaves_only_its_marker(place: Place) -> None:
    """The first opener probes and marks; later ones read the marker and write nothing."""
    first = place.open(grace_ms=1234)
    second = place.open(grace_ms=99)

    assert first.id == second.id
    assert first.url == second.url == place.url
    assert [entry.key for entry in place.objects().entries("")] == ["_shardline"]
    written = {o.operation: o.calls for o in second.statistics().operations}
    assert (written["create"], written["put"], written["delete"], written["get"]) == (0, 0, 0, 1)
    stored = place.objects().get("_shardline")
    assert stored is not None
    assert json.loads(stored) == {"format_version": 1, "location_id": first.id, "grace_ms": 1234}


def test_a_reader_never_creates_a_location(place: Place) -> None:
    """Where there is none it is told so, and nothing appears."""
    for _ in range(2):
        with pytest.raises(InvalidUsage, match=r"\[LOCATION_NOT_FOUND\] there is no location at"):
            open_location(place.url, place.options, clock=SharedClock(), ids=SystemIds())
    assert list(place.objects().entries("")) == []


def test_a_reader_is_led_to_the_location_further_down(shared_place: Place) -> None:
    """The path of a shard has its name behind that of the location, which is easily left out."""
    below = replace(shared_place, url=f"{shared_place.url}/shards").open().url
    with pytest.raises(InvalidUsage, match="LOCATION_NOT_FOUND") as refused:
        open_location(shared_place.url, shared_place.options, clock=SharedClock(), ids=SystemIds())
    assert refused.value.hint == f"'{below}' is a location; the path of a shard is '{below}/SHARD'"


def test_creators_that_race_agree_on_one_location(memory_place: Place) -> None:
    """Whoever loses the race for the marker adopts the winner's."""
    found: list[str] = []
    threads = [
        threading.Thread(target=lambda: found.append(memory_place.open().id)) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(found) == 6
    assert len(set(found)) == 1


@pytest.mark.parametrize("seed", range(6))
def test_a_location_is_created_through_faults(seed: int) -> None:
    """Lost acknowledgements during the probe neither refuse a good store nor leave anything."""
    raw = _memory()
    faulty = Faulty(raw, clock=SharedClock(), ids=SeededIds(seed), probability=0.2)
    try:
        location = _compose(faulty)
    except Determinate:
        return  # the store was not available for long enough; that is no accusation
    except (Corrupt, InvalidUsage):
        # What is read back of a probe has no checksum: a store that damages it is not served.
        assert {Fault.DAMAGED, Fault.UNREADABLE} & set(faulty.injected())
        assert _compose(raw).id == _compose(raw, "refuse").id
        return
    faulty.probability = 0.0
    assert location.id == _compose(raw, "refuse").id


@pytest.mark.parametrize("lost", [False, True])
def test_damage_on_the_way_refuses_no_good_store(*, lost: bool) -> None:
    """Neither of a probe nor of the marker, whichever of them is read back damaged."""
    at, reads = 0, 1
    while at < reads:
        raw = _memory(DamagesOnce)
        assert isinstance(raw, DamagesOnce)
        raw.at = at
        faulty = Faulty(raw, clock=SharedClock(), ids=SeededIds())
        faulty.fail("create", *[Fault.AFTER] * 99 * lost)
        location = _compose(faulty)
        at, reads = at + 1, raw.reads
        raw.at = -1
        assert location.id == _compose(raw, "refuse").id
    assert reads > 1


def test_a_bad_store_is_found_through_lost_acknowledgements() -> None:
    """A lie is a lie also when some answers get lost."""
    faulty = Faulty(_memory(IgnoresConditions), clock=SharedClock(), ids=SeededIds())
    faulty.fail("create", Fault.AFTER, Fault.AFTER)

    with pytest.raises(InvalidUsage, match="STORE_NOT_ATOMIC"):
        _compose(faulty)


def test_a_location_of_a_newer_format_is_refused() -> None:
    """Its layout may mean something else; say which version it needs."""
    objects = _memory()
    marker = {"format_version": 2, "anything": "else"}
    objects.put("_shardline", json.dumps(marker).encode())

    for if_missing in ("refuse", "create"):
        with pytest.raises(InvalidUsage, match=r"\[LOCATION_TOO_NEW\].*format version 2"):
            _compose(objects, if_missing)


@pytest.mark.parametrize(
    "stored",
    [
        b"",
        b"{}",
        b"[]",
        b"null",
        b"\xff\xfe",
        b'{"format_version": 1',
        b'{"format_version": "1", "location_id": "l", "grace_ms": 1}',
        b'{"format_version": 1, "location_id": "x", "grace_ms": 1}',
        b'{"format_version": 1, "location_id": "l0123456789abcdef0123456789abcdef"}',
    ],
)
def test_a_marker_that_is_none_of_ours_is_corrupt(stored: bytes) -> None:
    """Truncated or foreign: stop, and do not write over it."""
    objects = _memory()
    objects.put("_shardline", stored)

    with pytest.raises(Corrupt, match="is not the marker of a location"):
        _compose(objects)
    assert objects.get("_shardline") == stored


def test_a_lost_marker_is_not_replaced_where_shards_are(place: Place) -> None:
    """Under another id no sink and no checkpoint would be known as its own any more."""
    location = place.open()
    location.consensus.compare_and_set("orders", None, b"x")
    objects = place.objects()
    stored = objects.get("_shardline")
    assert stored is not None
    objects.delete("_shardline")

    # Readers as well: "there is no location" would have them look elsewhere.
    read = partial(open_location, place.url, place.options, clock=SharedClock(), ids=SystemIds())
    for look in (place.open, read, place.open):
        with pytest.raises(Corrupt, match=r"\[MARKER_MISSING\].*'orders'.*restore it"):
            look()
    assert objects.get("_shardline") is None
    objects.put("_shardline", stored)
    assert place.open().id == location.id


def test_what_is_no_log_does_not_keep_a_location_from_being_made(place: Place) -> None:
    """A bucket has directories of others, and a folder files that have landed there."""
    for key in ("landing/2024/a.csv", "landing/log/readme", "orders/part/x", "_other/log/x"):
        place.objects().put(key, b"x")

    assert place.open().id == place.open().id


class MadeMeanwhile(MemoryObjects):
    """Another process makes the location, and a shard, right before the look at directories."""

    made: Location | None = None

    @override
    def directories(self) -> list[str]:
        if self.made is None:
            raw = MemoryObjects(self.url.removeprefix("memory://"), SharedClock())
            self.made = _compose(raw)
            self.made.consensus.compare_and_set("orders", None, b"x")
        return super().directories()


def test_a_location_that_is_made_meanwhile_is_taken_as_it_is() -> None:
    """Its marker was missing at the first look only."""
    objects = _memory(MadeMeanwhile)
    assert isinstance(objects, MadeMeanwhile)

    location = _compose(objects)

    assert objects.made is not None
    assert location.id == objects.made.id


def test_no_thread_of_the_probe_waits_for_one_that_was_not_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process at its limit of threads: those of each try would stay for ever."""
    made: list[threading.Thread] = []

    class Limited(threading.Thread):
        @override
        def start(self) -> None:
            if len(made) == 3:
                raise RuntimeError("can't start new thread")
            made.append(self)
            super().start()

    monkeypatch.setattr(threading, "Thread", Limited)
    objects = _memory()
    with pytest.raises(RuntimeError, match="new thread"):
        _compose(objects)
    for thread in made:
        thread.join(60)
    assert [thread.is_alive() for thread in made] == [False] * 3

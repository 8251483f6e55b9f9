"""Laws of the log, on every backend alike: sequential, under threads, under processes, kill -9."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING

import pytest

from shardline.datasource.clock import SystemClock
from shardline.datasource.errors import Corrupt, InvalidUsage
from shardline.datasource.stores.entry import entry_key
from shardline.datasource.stores.location import Committed, ExpectationMismatch, VersionedData
from support.models.check_log import Ack, HeadRead, check_log
from support.processes.log_worker import append_many

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    from shardline.datasource.stores.location import Consensus
    from support.processes.places import Place

_PROCESS_S = 60


def _fill(consensus: Consensus, shard: str, count: int) -> None:
    for seqno in range(1, count + 1):
        outcome = consensus.compare_and_set(shard, seqno - 1 or None, b"record %d" % seqno)
        assert outcome == Committed(seqno)


def _records(*seqnos: int) -> list[VersionedData]:
    return [VersionedData(seqno, b"record %d" % seqno) for seqno in seqnos]


def _everything(consensus: Consensus, shard: str) -> dict[int, bytes]:
    return {record.seqno: record.data for record in consensus.scan(shard, 1, 1 << 30)}


# ------------------------------------------------------------------------------------- sequential


def test_an_empty_log_has_no_head(place: Place) -> None:
    """Nothing was appended: no head, nothing to scan or to truncate, no shard."""
    consensus = place.open().consensus

    assert consensus.head("s") is None
    assert consensus.scan("s", 1, 10) == []
    assert consensus.truncate("s", 5) == 0
    assert consensus.list_shards() == []


def test_records_are_numbered_from_one(place: Place) -> None:
    """Each append takes the next seqno and is the head for every handle."""
    writer, reader = place.open().consensus, place.open().consensus

    for seqno in range(1, 8):
        outcome = writer.compare_and_set("s", seqno - 1 or None, b"record %d" % seqno)

        assert outcome == Committed(seqno)
        assert [writer.head("s")] == [reader.head("s")] == _records(seqno)


def test_an_append_that_expects_another_head_is_refused(place: Place) -> None:
    """A head too old or one that never was changes nothing, on warm handles and on fresh ones."""
    writer, other = place.open().consensus, place.open().consensus
    _fill(writer, "s", 3)

    for consensus in (writer, other, place.open().consensus):
        for expected in (None, 1, 2, 4, 9):
            outcome = consensus.compare_and_set("s", expected, b"lost")
            assert isinstance(outcome, ExpectationMismatch)
            if outcome.current is not None:
                assert [outcome.current] == _records((expected or 0) + 1)
    assert writer.compare_and_set("s", 3, b"record 4") == Committed(4)
    # This one believes that 3 is the head, and learns the winner from its own lost create.
    assert other.compare_and_set("s", 3, b"lost") == ExpectationMismatch(*_records(4))
    assert _everything(other, "s") == {r.seqno: r.data for r in _records(1, 2, 3, 4)}


def test_a_scan_is_ascending_and_limited(place: Place) -> None:
    """A scan starts where it is told, stops at its limit, and is empty beyond the head."""
    writer = place.open().consensus
    _fill(writer, "s", 21)
    for consensus in (writer, place.open().consensus):
        assert consensus.scan("s", 1, 3) == _records(1, 2, 3)
        assert consensus.scan("s", 0, 1) == _records(1)
        assert consensus.scan("s", 5, 100) == _records(*range(5, 22))
        assert consensus.scan("s", 21, 100) == _records(21)
        assert consensus.scan("s", 22, 100) == []
        assert consensus.scan("s", 1000, 100) == []
        assert consensus.scan("s", 1, 0) == []


@pytest.mark.parametrize("size", [0, 10 << 10, 5 << 20])
def test_a_record_of_any_size_is_kept(place: Place, size: int) -> None:
    """A record may be empty or megabytes long."""
    value = bytes(range(256)) * (size // 256)

    assert place.open().consensus.compare_and_set("s", None, value) == Committed(1)
    assert place.open().consensus.head("s") == VersionedData(1, value)


def test_a_record_that_needs_two_requests_is_refused(memory_place: Place) -> None:
    """A client that splits a value loses the condition, so the size of a record is bounded."""
    with pytest.raises(InvalidUsage, match=r"\[RECORD_TOO_LARGE\]"):
        memory_place.open().consensus.compare_and_set("s", None, bytes((64 << 20) + 1))


def test_shards_are_apart_and_listed(place: Place) -> None:
    """Logs of shards do not touch; a directory without a log is no shard."""
    location = place.open()
    names = ["b", "a.1", "%C3%BCml%20aut"]
    for name in names:
        _fill(location.consensus, name, 2)
    location.blob.set("nolog/part/p", b"x")

    assert location.consensus.list_shards() == sorted(names)
    assert place.open().consensus.list_shards() == sorted(names)
    assert place.open().consensus.head("a") is None


@pytest.mark.parametrize("shard", ["", "..", "_probe", "a/b", "a b", "ü", "a%2fb", "%41", "a\n"])
def test_what_is_no_shards_directory_is_refused(memory_place: Place, shard: str) -> None:
    """A log is addressed by its encoded directory name only; anything else is a caller's slip."""
    consensus = memory_place.open().consensus

    calls: list[Callable[[], object]] = [
        lambda: consensus.head(shard),
        lambda: consensus.scan(shard, 1, 1),
        lambda: consensus.compare_and_set(shard, None, b""),
        lambda: consensus.truncate(shard, 2),
    ]
    for call in calls:
        with pytest.raises(InvalidUsage, match=r"\[INVALID_NAME\]"):
            call()


def test_an_append_after_an_append_costs_one_request(memory_place: Place) -> None:
    """The hot path is one create; a warm look at the head is one get."""
    location = memory_place.open()
    location.consensus.compare_and_set("s", None, b"x")

    def requests() -> dict[str, int]:
        found = {o.operation: o.calls for o in location.statistics().operations if o.calls}
        found.pop("settle", None)
        return found

    before = requests()
    location.consensus.compare_and_set("s", 1, b"y")
    after = requests()
    assert {k: after[k] - before[k] for k in after if after[k] != before[k]} == {"create": 1}
    location.consensus.head("s")
    last = requests()
    assert {k: last[k] - after[k] for k in last if last[k] != after[k]} == {"get": 1}


def test_waiting_for_a_record_costs_one_request_a_look(memory_place: Place) -> None:
    """A reader at the end of a log asks for the next record and for nothing else."""
    consensus = memory_place.open().consensus
    _fill(consensus, "s", 3)
    location = memory_place.open()
    assert [r.seqno for r in location.consensus.scan("s", 1, 100)] == [1, 2, 3]
    assert location.consensus.scan("s", 4, 100) == []

    def gets() -> int:
        return sum(o.calls for o in location.statistics().operations if o.operation == "get")

    before = gets()
    for _ in range(10):
        assert location.consensus.scan("s", 4, 100) == []
    assert gets() - before == 10

    for seqno in range(4, 20):
        consensus.compare_and_set("s", seqno - 1, b"x")
    assert [r.seqno for r in location.consensus.scan("s", 4, 100)] == list(range(4, 20))


def test_a_cold_head_costs_one_list_and_one_get(memory_place: Place) -> None:
    """However long the log is."""
    _fill(memory_place.open().consensus, "s", 40)
    location = memory_place.open()
    before = {o.operation: o.calls for o in location.statistics().operations}
    location.consensus.head("s")
    after = {o.operation: o.calls for o in location.statistics().operations}

    assert {k: after[k] - before[k] for k in after if after[k] != before[k]} == {
        "list": 1,
        "get": 1,
        "settle": 1,
    }


# -------------------------------------------------------------------------------------- corruption


_DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "one byte short": lambda value: value[:-1],
    "one bit flipped": lambda value: value[:-1] + bytes([value[-1] ^ 1]),
    "empty": lambda _: b"",
    "header cut": lambda value: value[:10],
    "foreign magic": lambda value: b"PAR1" + value[4:],
    "newer version": lambda value: value[:4] + b"\x02" + value[5:],
    "foreign": lambda _: b"<html>not a log</html>" * 3,
}


@pytest.mark.parametrize("damage", _DAMAGES)
def test_a_damaged_entry_stops_every_reader(memory_place: Place, damage: str) -> None:
    """Truncated, altered, foreign or of a newer version: an error that names the key."""
    _fill(memory_place.open().consensus, "s", 3)
    objects = memory_place.objects()
    key = entry_key("s/log/", 3)
    stored = objects.get(key)
    assert stored is not None
    objects.put(key, _DAMAGES[damage](stored))
    consensus = memory_place.open().consensus

    calls: list[Callable[[], object]] = [
        lambda: consensus.head("s"),
        lambda: consensus.scan("s", 1, 9),
        lambda: consensus.compare_and_set("s", 2, b"x"),
    ]
    for call in calls:
        with pytest.raises(Corrupt, match=key):
            call()
    assert consensus.scan("s", 1, 2) == _records(1, 2)


def test_an_entry_in_another_place_is_foreign(memory_place: Place) -> None:
    """An entry copied over another seqno is recognised, though it is intact."""
    _fill(memory_place.open().consensus, "s", 3)
    objects = memory_place.objects()
    objects.put(entry_key("s/log/", 3), objects.get(entry_key("s/log/", 2)) or b"")

    with pytest.raises(Corrupt, match="its checksum does not match its content and place"):
        memory_place.open().consensus.head("s")


@pytest.mark.parametrize("left", ["s/log/", "s/log/.DS_Store", "s/log/$folder$"])
def test_what_other_tools_leave_most_often_costs_a_cold_head_nothing(
    memory_place: Place, left: str
) -> None:
    """One key of one LIST finds the head, as without it."""
    _fill(memory_place.open().consensus, "s", 1)
    memory_place.objects().put(left, b"")
    consensus = memory_place.open().consensus
    objects = consensus._objects  # type: ignore[attr-defined]
    listed, limits = objects.entries, []

    def counted(prefix: str, start_after: str = "", limit: int | None = None) -> object:
        limits.append(limit)
        return listed(prefix, start_after, limit)

    objects.entries = counted
    assert consensus.head("s") is not None
    assert limits == [1]


@pytest.mark.parametrize("kind", ["log", "floor"])
@pytest.mark.parametrize("name", [".DS_Store", "2024.tar", "README", "2024/{}", "{}.bak", "/{}"])
def test_what_is_no_entry_is_passed_over(memory_place: Place, kind: str, name: str) -> None:
    """Wherever it sorts: a hidden file, a file, a copy of an entry beside it or in a folder."""
    first = memory_place.open(grace_ms=0).consensus
    _fill(first, "s", 5)
    first.truncate("s", 3)
    objects = memory_place.objects()
    old = entry_key("", 1)
    objects.put(f"s/{kind}/{name.format(old)}", b"x")
    objects.put("t/log/.DS_Store", b"x")

    cold = memory_place.open(grace_ms=0).consensus
    assert [cold.head("s")] == _records(5)
    assert cold.list_shards() == ["s"]
    assert cold.head("t") is None
    assert cold.compare_and_set("s", 5, b"record 6") == Committed(6)
    assert cold.truncate("s", 5) == 2
    assert objects.get(f"s/{kind}/{name.format(old)}") == b"x"


# ------------------------------------------------------------------------- threads and processes


@pytest.mark.slow
@pytest.mark.parametrize("shared_handle", [True, False])
def test_racing_threads_append_each_record_once(place: Place, shared_handle: bool) -> None:
    """Six threads on one handle or on six: acknowledged == stored, in real-time order."""
    first = place.open().consensus
    handles = [first if shared_handle else place.open().consensus for _ in range(6)]
    acks: list[Ack] = []
    heads: list[HeadRead] = []
    done = threading.Event()

    def write(number: int) -> None:
        acks.extend(append_many(handles[number], "s", f"w{number}", 12))

    def read() -> None:
        clock, consensus = SystemClock(), place.open().consensus
        while not done.is_set():
            began_ms = clock.elapsed_ms()
            head = consensus.head("s")
            seqno = 0 if head is None else head.seqno
            heads.append(HeadRead(seqno, began_ms, clock.elapsed_ms()))

    writers = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    reader = threading.Thread(target=read)
    reader.start()
    for thread in writers:
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    reader.join()

    assert len(acks) == 72
    assert check_log(acks, _everything(place.open().consensus, "s"), heads) == []


@pytest.mark.process
def test_racing_processes_append_each_record_once(shared_place: Place) -> None:
    """Three processes at once: acknowledged == stored, in real-time order."""
    consensus = shared_place.open().consensus
    workers = [shared_place.worker("s", f"p{number}", 12) for number in range(3)]
    acks = []
    for worker in workers:
        _go(worker)
    for worker in workers:
        out, _ = worker.communicate(timeout=_PROCESS_S)
        assert worker.returncode == 0
        for line in out.splitlines():
            seqno, data, began_ms, ended_ms = json.loads(line)
            acks.append(Ack(seqno, data.encode(), began_ms, ended_ms))

    assert len(acks) == 36
    assert check_log(acks, _everything(consensus, "s")) == []


@pytest.mark.process
def test_what_a_killed_process_acknowledged_is_there(shared_place: Place) -> None:
    """After kill -9 in the middle of writing, the log is whole and goes on."""
    consensus = shared_place.open().consensus
    worker = shared_place.worker("s", "doomed", None, repeat=5000)
    _go(worker)
    assert worker.stdout is not None
    acknowledged = [json.loads(worker.stdout.readline())[0] for _ in range(25)]
    worker.kill()
    # By the same reader: `communicate` would not see what it has read ahead.
    rest = worker.stdout.read()
    worker.communicate(timeout=_PROCESS_S)
    acknowledged += [json.loads(line)[0] for line in rest.splitlines() if line.endswith("]")]

    stored = _everything(consensus, "s")

    assert acknowledged == list(range(1, len(acknowledged) + 1))
    assert list(stored) == list(range(1, len(stored) + 1))
    assert len(acknowledged) <= len(stored) <= len(acknowledged) + 1
    for seqno, data in stored.items():
        assert data == f"doomed-{seqno - 1 or None}".encode() * 5000
    assert consensus.compare_and_set("s", len(stored), b"next") == Committed(len(stored) + 1)
    # Nothing half-written is left, visible or not.
    keys = [entry.key for entry in shared_place.objects().entries("")]
    assert keys == [
        "_shardline",
        *sorted(entry_key("s/log/", n + 1) for n in range(len(stored) + 1)),
    ]


def _go(worker: subprocess.Popen[str]) -> None:
    assert worker.stdin is not None
    worker.stdin.write("go\n")
    worker.stdin.flush()


def test_the_checker_finds_what_it_is_for() -> None:
    """A history with a lost, doubled or reordered append, or a stale head, is reported."""
    good = [Ack(1, b"a", 0, 1), Ack(2, b"b", 2, 3)]
    final = {1: b"a", 2: b"b"}

    assert check_log(good, final, [HeadRead(1, 1, 2), HeadRead(2, 4, 5)]) == []
    assert check_log([*good, Ack(2, b"c", 2, 3)], final)
    assert check_log([Ack(1, b"a", 2, 3), Ack(2, b"b", 0, 1)], final)
    assert check_log(good, {1: b"a"})
    assert check_log(good, {1: b"a", 2: b"b", 4: b"d"})
    assert check_log(good, {1: b"a", 2: b"b", 3: b"b"})
    assert check_log(good, final, [HeadRead(1, 4, 5)])
    assert check_log(good, final, [HeadRead(2, 0, 1)])

"""Lost acknowledgements, late effects, self-made conflicts, dead connections: nothing twice."""

from __future__ import annotations

import threading
from http import HTTPStatus
from typing import TYPE_CHECKING, Self

import fsspec.asyn
import pytest
from typing_extensions import override

from shardline.datasource.clock import SystemClock, SystemIds
from shardline.datasource.errors import Corrupt, Determinate, Indeterminate, ShardError
from shardline.datasource.stores import s3 as s3_module
from shardline.datasource.stores.entry import entry_key
from shardline.datasource.stores.faulty import Fault, Faulty
from shardline.datasource.stores.location import Committed, ExpectationMismatch, VersionedData
from shardline.datasource.stores.log import GRACE_MS, NumberedLog
from shardline.datasource.stores.memory import MemoryObjects
from shardline.datasource.stores.objects import CREATED, Unresolved
from shardline.datasource.stores.open import compose_location, open_location, open_objects
from shardline.datasource.stores.retry import Retrying
from support.fakes.clock import ManualClock, SeededIds
from support.faults.fault_proxy import FAULTS, FAULTS_OF_GET, FaultProxy, fault_proxy
from support.models.check_log import Ack, check_log
from support.processes.log_worker import append_many
from support.processes.s3_server import S3Server, free_port, options_for
from support.profiles import one_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardline.datasource.stores.location import Location
    from support.processes.places import Place

_CREATE_FAULTS = [
    Fault.BEFORE,
    Fault.AFTER,
    Fault.LATE,
    Fault.SELF_RETRY,
    Fault.PHANTOM,
    Fault.REFUSED,
    Fault.SLOW,
]
_DAMAGE = [Fault.DAMAGED, Fault.UNREADABLE]


class Rig:
    """One log over a faulty memory store, in manual time."""

    def __init__(self, place: Place) -> None:
        self.clock, self.ids = ManualClock(), SeededIds()
        self.raw = place.objects(self.clock)
        self.faulty = Faulty(self.raw, clock=self.clock, ids=self.ids)
        self.log = self.over(Retrying(self.faulty, clock=self.clock, ids=self.ids))

    def over(self, objects: Retrying | MemoryObjects | Faulty) -> NumberedLog:
        return NumberedLog(objects, clock=self.clock, ids=self.ids)

    def stored(self) -> list[bytes]:
        clean = NumberedLog(self.raw, clock=self.clock, ids=self.ids)
        return [record.data for record in clean.scan("s", 1, 99)]


@pytest.fixture
def rig(memory_place: Place) -> Rig:
    return Rig(memory_place)


@pytest.mark.parametrize("fault", _CREATE_FAULTS)
def test_one_fault_does_not_show(rig: Rig, fault: Fault) -> None:
    """Whatever happens to one create, the append succeeds, once."""
    rig.log.compare_and_set("s", None, b"1")
    rig.faulty.fail("create", fault)

    assert rig.log.compare_and_set("s", 1, b"2") == Committed(2)
    rig.faulty.deliver()
    assert rig.log.compare_and_set("s", 2, b"3") == Committed(3)
    assert rig.stored() == [b"1", b"2", b"3"]
    assert rig.faulty.injected() == {fault: 1}


@pytest.mark.parametrize("fault", _CREATE_FAULTS)
def test_one_fault_does_not_hide_a_conflict(rig: Rig, fault: Fault) -> None:
    """If another writer got the seqno, the answer is its record, and ours never appears."""
    rig.log.compare_and_set("s", None, b"1")
    NumberedLog(rig.raw, clock=rig.clock, ids=rig.ids).compare_and_set("s", 1, b"theirs")
    rig.faulty.fail("create", fault)

    outcome = rig.log.compare_and_set("s", 1, b"ours")

    assert outcome == ExpectationMismatch(VersionedData(2, b"theirs"))
    rig.faulty.deliver()
    assert rig.stored() == [b"1", b"theirs"]


@pytest.mark.parametrize("fault", [Fault.BEFORE, Fault.LATE, Fault.PHANTOM])
def test_an_outcome_that_stays_unknown_is_said_to_be(rig: Rig, fault: Fault) -> None:
    """At the deadline the caller is told that it may have happened; with LATE, it then does."""
    rig.log.compare_and_set("s", None, b"1")
    rig.faulty.fail("create", *[fault] * 1000)

    with pytest.raises(Indeterminate, match="record 2 of shard 's'"):
        rig.log.compare_and_set("s", 1, b"2")

    assert rig.stored() == [b"1"]
    rig.faulty.deliver()
    assert rig.stored() == ([b"1", b"2"] if fault is Fault.LATE else [b"1"])


def test_a_read_back_that_fails_leaves_the_outcome_unknown(rig: Rig) -> None:
    """A lost acknowledgement followed by a dead store is not a failure that certainly happened."""
    rig.log.compare_and_set("s", None, b"1")
    rig.faulty.fail("create", Fault.AFTER)
    rig.faulty.fail("get", *[Fault.BEFORE] * 100)

    with pytest.raises(Indeterminate):
        rig.log.compare_and_set("s", 1, b"2")
    assert rig.stored() == [b"1", b"2"]


@pytest.mark.parametrize("fault", _DAMAGE)
def test_a_read_back_that_is_damaged_leaves_the_outcome_unknown(rig: Rig, fault: Fault) -> None:
    """It is neither "did not happen" nor a damaged log: what is stored is whole."""
    rig.log.compare_and_set("s", None, b"1")
    rig.faulty.fail("create", fault)

    with pytest.raises(Indeterminate, match="record 2 of shard 's'"):
        rig.log.compare_and_set("s", 1, b"2")
    assert rig.log.scan("s", 2, 9) == [VersionedData(2, b"2")]
    assert rig.faulty.injected() == {fault: 1}


def test_one_damaged_answer_does_not_show(rig: Rig) -> None:
    """Of the head, of many records, or of the floor: what is stored is whole, and is read again."""
    rig.log.compare_and_set("s", None, b"1")
    rig.log.compare_and_set("s", 1, b"2")
    rig.log.truncate("s", 2)
    newest = VersionedData(2, b"2")

    rig.faulty.fail("get", Fault.DAMAGED)
    assert rig.over(rig.faulty).head("s") == newest
    rig.faulty.fail("get", Fault.DAMAGED)
    assert rig.over(rig.faulty).scan("s", 2, 9) == [newest]
    # The records are whole this time, and the floor is read after them.
    rig.faulty.fail("get", Fault.SLOW, Fault.DAMAGED)
    assert rig.over(rig.faulty).scan("s", 2, 9) == [newest]
    assert rig.faulty.injected() == {Fault.DAMAGED: 3, Fault.SLOW: 1}


def test_a_record_that_is_deleted_before_it_is_read_again_is_no_end_of_the_log(
    memory_place: Place,
) -> None:
    """The floor was looked at while the record was still there, and is looked at once more."""
    clock, ids = ManualClock(), SeededIds()
    writer = NumberedLog(memory_place.objects(clock), clock=clock, ids=ids)
    for seqno in range(3):
        writer.compare_and_set("s", seqno or None, b"%d" % (seqno + 1))
    first = entry_key("s/log/", 1)

    class Truncated(Faulty):
        """Deletes the first record before it is read by itself."""

        @override
        def get(self, key: str, start: int = 0, end: int | None = None) -> bytes | None:
            if key == first:
                writer.truncate("s", 3)
                clock.advance(2 * GRACE_MS)
                writer.truncate("s", 3)
            return super().get(key, start, end)

    store = Truncated(memory_place.objects(clock), clock=clock, ids=ids)
    store.fail("get", Fault.DAMAGED)

    assert NumberedLog(store, clock=clock, ids=ids).scan("s", 1, 9) == [VersionedData(3, b"3")]
    assert store.injected() == {Fault.DAMAGED: 1}


@pytest.mark.parametrize("faults", [[Fault.DAMAGED, Fault.DAMAGED], [Fault.UNREADABLE]])
def test_an_entry_that_is_read_damaged_twice_is_an_error(rig: Rig, faults: list[Fault]) -> None:
    """Or once, where the store itself says so: of one entry, and of many."""
    rig.log.compare_and_set("s", None, b"1")
    for read in (lambda: rig.log.scan("s", 1, 9), lambda: rig.over(rig.faulty).head("s")):
        rig.faulty.fail("get", *faults)
        with pytest.raises(Corrupt):
            read()
        assert read()
    assert rig.faulty.injected() == {faults[0]: 2 * len(faults)}


@pytest.mark.parametrize("fault", _DAMAGE)
def test_a_blob_that_cannot_be_read_is_an_error(rig: Rig, fault: Fault) -> None:
    """Where it is opened: parts have checksums of their own, and damage of reads is never drawn."""
    rig.log.compare_and_set("s", None, b"1")
    rig.faulty.fail("get", fault)
    with pytest.raises(Corrupt):
        rig.faulty.open(next(rig.raw.entries("s/log/")).key)
    assert rig.faulty.injected() == {fault: 1}


def test_reads_survive_a_few_faults_and_then_give_up(rig: Rig) -> None:
    """A read is repeated a bounded number of times; then it says that it learnt nothing."""
    rig.log.compare_and_set("s", None, b"1")
    rig.faulty.fail("get", Fault.BEFORE, Fault.TRUNCATED, Fault.SLOW, Fault.BEFORE)
    assert rig.log.head("s") == VersionedData(1, b"1")

    rig.faulty.fail("get", *[Fault.BEFORE] * 6)
    with pytest.raises(Determinate):
        rig.log.head("s")
    assert rig.log.head("s") == VersionedData(1, b"1")


def test_a_listing_that_breaks_off_goes_on(rig: Rig) -> None:
    """Nothing is left out or given twice, and the limit still counts from the start."""
    patient = Retrying(rig.faulty, clock=rig.clock, ids=rig.ids)
    keys = [f"k{number}" for number in range(9)]
    for key in keys:
        patient.put(key, b"x")
    for limit in (None, 1, 2, 5):
        rig.faulty.fail("list", Fault.TRUNCATED, Fault.BEFORE, Fault.TRUNCATED)
        assert [entry.key for entry in patient.entries("", limit=limit)] == keys[:limit]
        list(patient.entries(""))


def test_a_blob_is_written_and_deleted_through_faults(rig: Rig) -> None:
    """Plain writes are repeated, because repeating them is harmless."""
    patient = Retrying(rig.faulty, clock=rig.clock, ids=rig.ids)
    rig.faulty.fail("put", Fault.BEFORE, Fault.AFTER, Fault.LATE)
    patient.put("a", memoryview(b"value"))
    rig.faulty.deliver()
    assert rig.raw.get("a") == b"value"

    rig.faulty.fail("delete", Fault.AFTER)
    assert patient.delete("a") is True
    rig.faulty.fail("put", *[Fault.BEFORE] * 6)
    with pytest.raises(Indeterminate):
        patient.put("a", b"value")


def test_equal_seeds_give_equal_faults(memory_place: Place) -> None:
    """A run with faults can be replayed."""

    def run() -> tuple[dict[Fault, int], list[int]]:
        clock, ids = ManualClock(), SeededIds(7)
        raw = MemoryObjects(f"replay-{SystemIds().token().hex()}", clock)
        faulty = Faulty(raw, clock=clock, ids=ids, probability=0.4)
        log = NumberedLog(
            Retrying(faulty, clock=clock, ids=ids), clock=clock, ids=ids, grace_ms=60_000
        )
        waits = []
        for seqno in range(1, 60):
            try:
                assert log.compare_and_set("s", seqno - 1 or None, b"x") == Committed(seqno)
            except Indeterminate:
                assert log.scan("s", seqno, 1) == [VersionedData(seqno, b"x")]
            waits.append(int(clock.elapsed_ms()))
        return faulty.injected(), waits

    del memory_place
    assert run() == run()
    assert set(run()[0]) >= {*_CREATE_FAULTS, *_DAMAGE}


@pytest.mark.parametrize("seed", range(3))
def test_racing_writers_over_an_unreliable_store(memory_place: Place, seed: int) -> None:
    """Four writers, each with faults in one call of four: nothing lost, nothing twice."""
    clock, ids = ManualClock(), SeededIds(seed)
    raw = memory_place.objects(clock)
    location = compose_location(raw, clock=clock, ids=ids, if_missing="create")
    faulties = [
        Faulty(raw, clock=clock, ids=SeededIds(seed * 10 + n), probability=0.25) for n in range(4)
    ]
    acks: list[Ack] = []
    start = threading.Barrier(4)

    def write(number: int) -> None:
        start.wait()
        patient = Retrying(faulties[number], clock=clock, ids=ids, attempts_max=30)
        log = NumberedLog(patient, clock=clock, ids=ids, deadline_ms=1e9)
        acks.extend(append_many(log, "s", f"w{number}", 40))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for faulty in faulties:
        faulty.deliver()

    final = {r.seqno: r.data for r in location.consensus.scan("s", 1, 1 << 20)}
    assert len(acks) == len(final) == 160
    assert check_log(acks, final) == []
    assert sum(sum(faulty.injected().values()) for faulty in faulties) > 25


# ------------------------------------------------------------------------------------ over a wire


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[FaultProxy]:
    with fault_proxy(s3.host, s3.port, seed=3) as running:
        yield running


def _open(place: Place, endpoint: str) -> Location:
    options = {**options_for(endpoint), "s3.read-timeout-ms": "3000"}
    return open_location(
        place.url, options, clock=SystemClock(), ids=SystemIds(), if_missing="create"
    )


@pytest.mark.s3
@pytest.mark.parametrize("fault", one_of(2, sorted({*FAULTS} - {*FAULTS_OF_GET, "damage_back"})))
def test_one_fault_of_a_put_on_the_wire_does_not_show(
    s3_place: Place, proxy: FaultProxy, fault: str
) -> None:
    """However one request or answer is lost, repeated or refused: appended once."""
    consensus = _open(s3_place, proxy.endpoint).consensus
    consensus.compare_and_set("s", None, b"1")
    proxy.fail_next("PUT", fault)

    assert consensus.compare_and_set("s", 1, b"2") == Committed(2)
    assert consensus.compare_and_set("s", 2, b"3") == Committed(3)
    assert [record.data for record in consensus.scan("s", 1, 9)] == [b"1", b"2", b"3"]
    assert proxy.injected == {fault: 1}


@pytest.mark.s3
def test_a_value_cut_short_on_the_wire_is_never_returned(
    s3_place: Place, proxy: FaultProxy
) -> None:
    """A GET that breaks off is asked again."""
    blob = _open(s3_place, proxy.endpoint).blob
    value = bytes(range(256)) * 4000
    blob.set("s/part/p", value)
    proxy.fail_next("GET", "truncate_get", "truncate_get", "e503", "reset_before")

    assert blob.get("s/part/p") == value
    assert proxy.injected["truncate_get"] == 2


@pytest.mark.s3
def test_a_damaged_read_back_on_the_wire_leaves_the_outcome_unknown(
    s3_place: Place, proxy: FaultProxy
) -> None:
    """The answer is lost, and what is read back is not what is stored."""
    consensus = _open(s3_place, proxy.endpoint).consensus
    consensus.compare_and_set("s", None, b"1")
    proxy.fail_next("PUT", "damage_back")

    with pytest.raises(Indeterminate, match="record 2 of shard 's'"):
        consensus.compare_and_set("s", 1, b"2")
    assert [record.data for record in consensus.scan("s", 1, 9)] == [b"1", b"2"]
    assert proxy.injected == {"damage_back": 1}


class ShortBody:
    """A body that ends too early, of which the client has not noticed that."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def read(self) -> bytes:
        return b"half"


class ShortAnswers:
    """An S3 client that gets such a body for every object."""

    loop = fsspec.asyn.get_loop()

    async def _call_s3(self, method: str, **_: object) -> dict[str, object]:
        assert method == "get_object"
        return {"ContentLength": 8, "Body": ShortBody()}


def test_a_body_shorter_than_announced_is_an_error_by_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client notices as of today (`truncate_get`); nothing here relies on that it always will.

    Over a wire the client cannot be made to miss it, so it is replaced.
    """
    monkeypatch.setattr(s3_module, "_connect", lambda _options: ShortAnswers())
    options = options_for("http://127.0.0.1:1")
    objects = open_objects("s3://bucket/x", options, clock=ManualClock(), ids=SeededIds())
    opened = objects.open("a", 8)
    assert opened is not None
    reads: list[Callable[[], object]] = [
        lambda: objects.get("a"),
        lambda: objects.get("a", 0, 8),
        lambda: objects.get_many(["a", "b"]),
        lambda: opened.read(8),
    ]
    for read in reads:
        with pytest.raises(Determinate, match="4 of 8 bytes arrived"):
            read()


@pytest.mark.s3
def test_racing_writers_over_an_unreliable_wire(s3_place: Place, proxy: FaultProxy) -> None:
    """15 of 100 requests go wrong, three writers: acknowledged == head, nothing twice."""
    location = s3_place.open()
    handles = [_open(s3_place, proxy.endpoint) for _ in range(3)]
    proxy.storm_requests = 1  # a request is given up after six attempts, which is not meant here
    proxy.probability = 0.15
    acks: list[Ack] = []
    start = threading.Barrier(3)

    def write(number: int) -> None:
        start.wait()
        acks.extend(append_many(handles[number].consensus, "s", f"w{number}", 20))

    threads = [threading.Thread(target=write, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    proxy.probability = 0.0

    final = {r.seqno: r.data for r in location.consensus.scan("s", 1, 1 << 20)}
    assert len(acks) == len(final) == 60
    assert check_log(acks, final) == []
    assert sum(proxy.injected.values()) > 3


@pytest.mark.s3
@pytest.mark.parametrize("if_missing", ["refuse", "create"])
def test_an_endpoint_that_does_not_answer_is_named(s3: S3Server, if_missing: str) -> None:
    """Nothing listens there: a bounded number of attempts, then an error that says what to do."""
    endpoint = f"http://{s3.host}:{free_port()}"

    with pytest.raises(Determinate, match=f"(?s)STORE_UNAVAILABLE.*check that '{endpoint}' is up"):
        open_location(
            "s3://bucket/x",
            options_for(endpoint),
            clock=ManualClock(),
            ids=SystemIds(),
            if_missing=if_missing,  # type: ignore[arg-type]
        )


@pytest.mark.s3
@pytest.mark.parametrize(
    ("status", "code", "expected"),
    [
        (403, "InvalidAccessKeyId", "ACCESS_DENIED"),
        (403, "SignatureDoesNotMatch", "ACCESS_DENIED"),
        (400, "ExpiredToken", "ACCESS_DENIED"),
        (404, "NoSuchBucket", "BUCKET_NOT_FOUND"),
        (403, "AccessDenied", "ACCESS_DENIED"),
        (403, "InvalidObjectState", "OBJECT_ARCHIVED"),
        (400, "InvalidRequest", "REQUEST_REFUSED"),
        (501, "NotImplemented", "STORE_NOT_ATOMIC"),
    ],
)
def test_what_no_retry_can_cure_is_named_and_proves_nothing(
    s3_place: Place, proxy: FaultProxy, status: int, code: str, expected: str
) -> None:
    """Credentials, bucket, region, dialect: the user's to fix, and no secret is shown.

    Of a create it is no outcome all the same: who says it may be answering a repetition.
    """
    options = options_for(proxy.endpoint)
    objects = open_objects(s3_place.url, options, clock=SystemClock(), ids=SystemIds())
    proxy.refuse_with = (status, code)

    outcome = objects.create("s/log/x", b"x")
    assert isinstance(outcome, Unresolved)
    assert outcome.refusal is not None
    assert outcome.refusal.code == expected
    with pytest.raises(ShardError) as caught:
        open_location(
            s3_place.url, options, clock=SystemClock(), ids=SystemIds(), if_missing="create"
        )
    assert status == HTTPStatus.NOT_IMPLEMENTED or caught.value.code == expected
    assert "not-a-secret" not in f"{outcome.refusal} {caught.value}"
    with pytest.raises(ShardError):
        objects.put("s/part/x", b"x")
    proxy.refuse_with = None
    assert list(objects.entries("")) == []


@pytest.mark.s3
@pytest.mark.parametrize("code", ["default backend - 404", "NotFound"])
def test_a_404_that_does_not_name_a_key_is_no_absence(
    s3_place: Place, proxy: FaultProxy, code: str
) -> None:
    """An ingress without a backend says it too: nothing is lost, and a retry may help."""
    options = options_for(proxy.endpoint)
    objects = open_objects(s3_place.url, options, clock=SystemClock(), ids=SystemIds())
    objects.put("s/part/x", b"x")
    proxy.refuse_with = (404, code)

    requests: list[Callable[[], object]] = [
        lambda: objects.get("s/part/x"),
        lambda: objects.get("s/part/x", 0, 0),
        lambda: objects.get_many(["s/part/x", "s/part/y"]),
        lambda: objects.open("s/part/x"),
        lambda: objects.delete("s/part/x"),
        lambda: list(objects.entries("s/")),
        objects.directories,
    ]
    for request in requests:
        with pytest.raises(Determinate, match=r"STORE_UNAVAILABLE.*check s3\.endpoint"):
            request()
    with pytest.raises(Indeterminate, match="STORE_UNAVAILABLE"):
        objects.put("s/part/y", b"y")
    outcome = objects.create("s/log/x", b"x")
    assert isinstance(outcome, Unresolved)
    assert outcome.refusal is None
    proxy.refuse_with = (404, "NoSuchKey")
    assert [objects.get("s/part/x"), objects.open("s/part/x")] == [None, None]
    objects.delete_many(["s/part/x"])  # some servers say it of this as well
    proxy.refuse_with = None
    assert objects.get("s/part/x") == b"x"
    assert [objects.get("s/part/y"), objects.open("s/part/y")] == [None, None]


@pytest.mark.s3
def test_a_request_is_sent_once(s3_place: Place, proxy: FaultProxy) -> None:
    """A repetition on the way would be answered about itself, and its original be forgotten."""
    options = options_for(proxy.endpoint)
    objects = open_objects(s3_place.url, options, clock=SystemClock(), ids=SystemIds())
    assert objects.create("s/log/warm", b"x") is CREATED
    before = proxy.requests["PUT"]
    proxy.fail_next("PUT", "lost_response")

    outcome = objects.create("s/log/x", b"x")

    assert isinstance(outcome, Unresolved)
    assert outcome.refusal is None
    assert proxy.requests["PUT"] - before == 1
    assert objects.get("s/log/x") == b"x"

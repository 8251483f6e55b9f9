"""Statuses, statistics and histories: what they say, and for how long."""

from __future__ import annotations

import pytest
from msgspec import structs

from shardline.app.execution.observations import (
    Failed,
    Health,
    Hydrated,
    Measured,
    Progress,
    Started,
)
from shardline.app.introspection.events import (
    Dropped,
    Following,
    Phase,
    Polled,
    QueryIdle,
    TakenOver,
)
from shardline.app.protocol.objects import SinkDescription, SubscribeDescription
from shardline.app.protocol.storage import StatisticsUpdates, StatusUpdate
from shardline.app.server.metrics import encode_metrics
from support.fakes.introspection import DELAYS, FLIGHTS, OUT, World, progress


@pytest.fixture
def world() -> World:
    return World()


def test_a_suspended_object_says_why_and_what_to_do(world: World) -> None:
    """The error that ended its query is its status until it runs again."""
    world.run(DELAYS)
    world.tell(
        Failed(id="delays", epoch=1, error="disk full", hint="make room"),
        Phase(id="delays", epoch=1, phase="suspended", at_ms=0),
    )
    (row,) = world.rows("objects")
    assert (row["status"], row["error"], row["hint"]) == ("stalled", "disk full", "make room")
    world.tell(
        Phase(id="delays", epoch=2, phase="running", at_ms=0),
        Started(id="delays", epoch=2, run="r2"),
        Progress(id="delays", epoch=2, write=world.clock.now_ms()),
    )
    (row,) = world.rows("objects")
    assert (row["status"], row["error"]) == ("running", None)


@pytest.mark.parametrize("told", [True, False])
def test_a_suspended_object_has_a_reason_before_its_status_has(world: World, told: bool) -> None:
    """A storage worker's status comes by another way than the phase, and may come behind it."""
    world.run(FLIGHTS)
    world.tell(StatusUpdate(id="flights", status="running", at_ms=world.clock.now_ms()))
    if told:
        world.tell(Failed(id="flights", epoch=1, error="disk full", hint="make room"))
    phase = Phase(id="flights", epoch=1, phase="suspended", at_ms=0, failures=1)
    world.tell(phase)
    (row,) = world.rows("verdicts")
    reason = "disk full" if told else "it has failed, and why is not known yet"
    assert row["verdict"] == "stalled"
    assert row["because"] == f"{reason}. It has failed once"
    assert row["to_do"] == ("make room" if told else None)


def fail(world: World, epoch: int, error: str = "disk full") -> None:
    """An incarnation of the view starts and fails, and the lane leads it to its next start."""
    world.tell(
        Phase(id="delays", epoch=epoch, phase="starting", at_ms=world.clock.now_ms()),
        Phase(id="delays", epoch=epoch, phase="running", at_ms=world.clock.now_ms()),
        Started(id="delays", epoch=epoch, run=f"r{epoch}"),
    )
    world.clock.advance(5_000)
    world.tell(Failed(id="delays", epoch=epoch, error=error, hint="make room"))
    for phase in ("stopping", "stopped", "suspended"):
        world.tell(
            Phase(id="delays", epoch=epoch, phase=phase, at_ms=world.clock.now_ms(), failures=epoch)
        )
    world.clock.advance(5_000)


def history(world: World) -> list[object]:
    """The statuses of the view, as a person reads them."""
    return [(row["status"], row["error"]) for row in world.rows("status_history")]


def test_a_view_that_is_tried_again_is_stalled_all_the_time(world: World) -> None:
    """A retry that fails alike is no news: no line for its start, its end, or the pause after it.

    That it works, or fails otherwise, is.
    """
    world.run(DELAYS)
    before = history(world)
    fail(world, 2)
    assert history(world)[len(before) :] == [
        ("starting", None), ("running", None), ("stalled", "disk full")
    ]  # fmt: skip
    before = history(world)
    fail(world, 3)
    fail(world, 4)
    assert history(world) == before
    fail(world, 5, "no such file")
    assert history(world)[len(before) :] == [("stalled", "no such file")]
    world.tell(
        Phase(id="delays", epoch=6, phase="running", at_ms=world.clock.now_ms()),
        Progress(id="delays", epoch=6, write=world.clock.now_ms()),
    )
    assert history(world)[len(before) + 1 :] == [("running", None)]


def test_what_is_heard_late_of_a_failed_incarnation_is_no_sign_of_life(world: World) -> None:
    """Spark's listener tells of its last micro-batch after it has failed."""
    world.run(DELAYS)
    said = Failed(id="delays", epoch=1, error="disk full", hint="make room")
    late = Progress(id="delays", epoch=1, write=world.clock.now_ms())
    phase = Phase(id="delays", epoch=1, phase="suspended", at_ms=world.clock.now_ms())
    world.tell(said, progress("delays:u1:1", "r-delays-1"), late, phase)
    (row,) = world.rows("objects")
    assert (row["status"], row["error"]) == ("stalled", "disk full")
    assert [row["status"] for row in world.rows("status_history")][-2:] == ["running", "stalled"]


def test_an_error_of_a_retry_is_not_told_as_one_of_the_contents(world: World) -> None:
    """A view whose contents have errors, and whose query fails besides."""
    world.run(DELAYS)
    world.tell(Polled(id="delays", since=0, upper=world.clock.now_ms(), errors=1))
    fail(world, 2)
    world.tell(Phase(id="delays", epoch=3, phase="running", at_ms=world.clock.now_ms()))
    (row,) = world.rows("verdicts")
    assert (row["verdict"], row["because"]) == ("unreadable", "its contents have 1 error")


@pytest.mark.parametrize(
    ("heard", "waited_ms", "status"),
    [
        ("nothing", 59_000, "stalled"),
        ("nothing", 60_000, "running"),
        ("a micro-batch", 0, "running"),
        ("no data", 0, "running"),
        ("a pause", 0, "paused"),
    ],
)
def test_a_view_works_again_when_that_shows(
    world: World, heard: str, waited_ms: int, status: str
) -> None:
    """By a micro-batch, by a look without data, or by time; a pause ends the matter."""
    world.run(DELAYS)
    fail(world, 1)
    now_ms = world.clock.now_ms()
    world.tell(
        Phase(id="delays", epoch=2, phase="running", at_ms=now_ms),
        Started(id="delays", epoch=2, query="q", run="r2"),
    )
    assert world.rows("objects")[0]["status"] == "stalled"
    world.clock.advance(waited_ms)
    match heard:
        case "a micro-batch":
            world.tell(progress("delays:u1:2", "r2"))
        case "no data":
            world.tell(QueryIdle(query="q", run="r2", at_ms=now_ms))
        case "a pause":
            world.tell(Phase(id="delays", epoch=2, phase="paused", at_ms=now_ms))
        case _:
            world.tell()
    assert world.rows("objects")[0]["status"] == status


def test_an_object_without_an_incarnation_has_a_phase_all_the_same(world: World) -> None:
    """The lane's word is never old news: an object may wait between two incarnations."""
    world.run(DELAYS)
    world.tell(Phase(id="delays", epoch=0, phase="waiting", at_ms=0))
    (row,) = world.rows("objects")
    assert (row["phase"], row["status"], row["epoch"]) == ("waiting", "created", 1)


def test_the_worst_part_of_an_object_decides(world: World) -> None:
    """Each part speaks for itself; the details name all of them."""
    world.run(DELAYS)
    for namespace, status in (("compute", "stalled"), ("sink", "frozen"), ("decode", "running")):
        world.tell(
            Health(
                id="delays",
                epoch=1,
                namespace=namespace,
                status=status,  # type: ignore[arg-type]
                error=f"{namespace} is {status}",
            )
        )
    (row,) = world.rows("objects")
    assert (row["status"], row["error"]) == ("frozen", "sink is frozen")


def test_what_is_frozen_stays_so_between_two_lives(world: World) -> None:
    """A view that waits to be started again says why, if it is a part that cannot be read."""
    world.run(DELAYS)
    said = Health(
        id="delays", epoch=1, namespace="compute", status="frozen", error="part p is not there"
    )
    world.tell(said, Failed(id="delays", epoch=1, error="STREAM_FAILED"))
    world.tell(Phase(id="delays", epoch=1, phase="suspended", at_ms=0))
    (row,) = world.rows("objects")
    assert (row["status"], row["error"]) == ("frozen", "part p is not there")


def test_a_frozen_view_says_which_part_it_waits_for_in_each_phase(world: World) -> None:
    """Its contents have no errors, and those who read it wait for it: they are not unreadable."""
    world.run(DELAYS)
    world.run(OUT)
    said = Health(
        id="delays", epoch=1, namespace="compute", status="frozen", error="part p is not there"
    )
    world.tell(said, Failed(id="delays", epoch=1, error="part p is not there"))
    for phase in ("stopping", "stopped", "suspended", "starting", "running"):
        epoch = 2 if phase in ("starting", "running") else 1
        world.tell(Phase(id="delays", epoch=epoch, phase=phase, at_ms=world.clock.now_ms()))
        rows = {row["object_id"]: row for row in world.rows("verdicts")}
        view = rows["delays"]
        assert (view["verdict"], view["because"]) == ("frozen", "part p is not there"), phase
        assert (rows["out"]["verdict"], rows["out"]["blame_id"]) == ("waiting", "delays"), phase


def test_only_a_micro_batch_of_meanwhile_is_why_a_view_is_late(world: World) -> None:
    """One that had ended before the time up to which the view is has nothing to do with it."""
    world.run(DELAYS)
    now = world.clock.now_ms()
    step = progress("delays:u1:1", "r-delays-1", addBatch=3_900, triggerExecution=4_000)
    world.tell(
        Hydrated(id="delays", epoch=1, took_ms=1),
        structs.replace(step, at_ms=now),
        Progress(id="delays", epoch=1, write=now + 1_000),
    )
    world.clock.advance(60_000)
    (late,) = world.rows("verdicts", "delays")
    assert "its last micro-batch took 4 s, most of it for computing" in str(late["because"])

    world.tell(Progress(id="delays", epoch=1, write=now + 30_000))
    (late,) = world.rows("verdicts", "delays")
    assert late["because"] == "30 s behind the clock"


def test_what_the_storage_worker_says_of_a_status_is_so(world: World) -> None:
    """Its status machine has seen more than one observation; each change is in the history once."""
    world.run(FLIGHTS)
    update = StatusUpdate(
        id="flights",
        status="stalled",
        at_ms=1_700_000_000_500,
        error="no file",
        hints=("look", "again"),
        namespaced={"decode": "no file"},
    )
    world.tell(update, update)
    (row,) = world.rows("source_statuses")
    assert row == {
        "id": "flights",
        "name": "flights",
        "type": "csv",
        "last_status_change_at": "2023-11-14T22:13:20.500Z",
        "status": "stalled",
        "error": "no file",
        "details": '{"hints":["look","again"],"namespaced":{"decode":"no file"}}',
    }
    statuses = [row["status"] for row in world.rows("source_status_history")]
    assert statuses == ["created", "running", "stalled"]
    assert world.rows("sink_statuses") == []


def test_a_retry_that_fails_alike_is_no_change(world: World) -> None:
    """Another run's ids, tasks and addresses make no new row; another error does."""

    def stall(run: str, task: str, error: str = "no such file") -> None:
        said = (
            f"Query flights [id = 3b5c8a5e-1111-4b5f-9f6e-0d1a2b3c4d5e, runId = {run}] failed: "
            f"task {task} (TID {task[-1]}), reader@{run[:8]}: {error}"
        )
        world.tell(
            StatusUpdate(
                id="flights", status="stalled", at_ms=world.clock.now_ms(), error=said, hints=(),
                namespaced={"decode": said},
            )
        )  # fmt: skip
        world.clock.advance(1000)

    world.run(FLIGHTS)
    stall("00000000-aaaa-4bbb-8ccc-dddddddddddd", "0.0 in stage 3.0")
    stall("11111111-aaaa-4bbb-8ccc-dddddddddddd", "0.3 in stage 17.0")
    rows = world.rows("source_status_history")
    assert [row["status"] for row in rows] == ["created", "running", "stalled"]
    stall("22222222-aaaa-4bbb-8ccc-dddddddddddd", "0.0 in stage 3.0", "disk full")
    rows = world.rows("source_status_history")
    assert [row["status"] for row in rows] == ["created", "running", "stalled", "stalled"]
    assert str(rows[-1]["error"]).endswith("disk full")


def test_statistics_are_null_where_nothing_is_known(world: World) -> None:
    """Missing is not zero."""
    world.run(FLIGHTS)
    world.run(OUT)
    world.tell(
        StatisticsUpdates(
            sources={"flights": {"messages_received": 0.0}}, sinks={"out": {"bytes_staged": 7.0}}
        )
    )
    (source,) = world.rows("source_statistics")
    assert (source["messages_received"], source["offset_known"]) == (0.0, None)
    (sink,) = world.rows("sink_statistics")
    assert (sink["bytes_staged"], sink["messages_staged"]) == (7.0, None)


def test_the_history_of_lag_has_one_row_a_minute(world: World) -> None:
    """It is the largest lag of the minute, also of one in which nothing happened."""
    world.run(DELAYS)
    begin = world.clock.now_ms()
    world.clock.advance(60_000 - begin % 60_000)
    world.tell()
    minute = world.clock.now_ms()
    world.tell(Polled(id="delays", since=0, upper=minute))
    for _ in range(120):
        world.clock.advance(1000)
        world.tell()
    # In the third minute it catches up half way: what counts is how late it has been.
    world.tell(Polled(id="delays", since=0, upper=world.clock.now_ms() + 20_000))
    for _ in range(60):
        world.clock.advance(1000)
        world.tell()
    rows = [row for row in world.rows("wallclock_lag_history") if row["object_id"] == "delays"]
    assert [row["lag"] for row in rows] == [59_000, 119_000, 120_000]


def test_histories_are_kept_for_their_time_and_while_they_hold(world: World) -> None:
    """A row older than the retention is forgotten, unless it still says how the object is."""
    world.run(DELAYS)
    assert len(world.rows("status_history")) == 2
    world.clock.advance(31 * 24 * 3_600_000)
    world.tell()
    assert [row["status"] for row in world.rows("status_history")] == ["running"]
    world.tell(Dropped(id="delays", at_ms=world.clock.now_ms()))
    world.clock.advance(31 * 24 * 3_600_000)
    world.tell()
    assert world.rows("status_history") == []
    assert world.rows("verdict_history") == []


def test_a_subscription_is_judged_by_what_it_has_read(world: World) -> None:
    """It has no output; fresh with its object, and late by itself if its client takes nothing."""
    for one in (FLIGHTS, DELAYS, SubscribeDescription(name="s1", on="delays")):
        world.run(one)
        world.tell(Hydrated(id=one.name, epoch=1, took_ms=1))

    def second(*, reads: bool) -> None:
        world.clock.advance(1000)
        now_ms = world.clock.now_ms()
        world.tell(*(Polled(id=name, since=0, upper=now_ms) for name in ("flights", "delays")))
        if reads:
            world.tell(Progress(id="s1", epoch=1, read=now_ms, inputs={"delays": now_ms}))

    second(reads=True)
    (whole,) = world.rows("verdict_summary")
    assert whole["summary"] == "All 3 objects are fresh."
    assert {"export_id": "s1", "time": world.clock.now_ms()} in world.rows("compute_frontiers")
    for _ in range(30):
        second(reads=False)
    (row,) = world.rows("verdicts", "s1")
    assert (row["verdict"], row["because"]) == ("falling behind", "30 s behind the clock")
    assert "client" in str(row["to_do"])
    world.tell(Progress(id="s1", epoch=1, read=None, inputs={"delays": None}))
    (row,) = world.rows("verdicts", "s1")
    assert row["verdict"] == "finished"


def test_each_object_has_the_lag_that_is_allowed_to_it(world: World) -> None:
    """As verdicts have it, so that alerts on lags are about what is not well; none while paused."""
    slow = SinkDescription(
        name="slow", on="delays", format="parquet", options={"interval": "5 min"}
    )
    for one in (FLIGHTS, DELAYS, OUT, slow):
        world.run(one)
    world.tell(Phase(id="delays", epoch=1, phase="paused", at_ms=world.clock.now_ms()))
    allowed = {row["object_id"]: row["allowed_lag"] for row in world.rows("verdicts")}
    assert allowed == {"flights": 8_000, "delays": None, "out": 18_000, "slow": 318_000}
    for name, rows in (("flights", "updates_committed"), ("slow", "messages_committed")):
        world.tell(Measured(id=name, epoch=1, added={rows: 1}))
    world.clock.advance(29_999)
    allowed = {row["object_id"]: row["allowed_lag"] for row in world.rows("verdicts")}
    assert allowed == {"flights": 5_000, "delays": None, "out": 18_000, "slow": 315_000}
    text = encode_metrics(world.relations).decode()
    name = "shardline_object_allowed_lag_seconds"
    assert f'{name}{{kind="sink",object="slow"}} 315.0' in text
    assert f'{name}{{kind="view"' not in text


def test_a_follower_does_not_wait_for_its_sinks(world: World) -> None:
    """They write nothing until it takes the location over, however long that is."""
    world.tell(Following())
    world.run(DELAYS)
    world.run(OUT)
    found = {row["object_id"]: row["verdict"] for row in world.rows("verdicts")}
    assert found == {"delays": "starting", "out": "idle"}
    world.tell(TakenOver(objects=("delays", "out"), at_ms=world.clock.now_ms()))
    found = {row["object_id"]: row["verdict"] for row in world.rows("verdicts")}
    assert found == {"delays": "starting", "out": "waiting"}


def test_a_paused_source_does_not_hide_its_errors(world: World) -> None:
    """Reads of it fail as before; once its errors are taken away, it is no more than paused."""
    world.run(FLIGHTS)
    now_ms = world.clock.now_ms()
    world.tell(
        Health(
            id="flights",
            epoch=1,
            namespace="decode",
            status="stalled",
            error="a bad row",
            hint="mend it",
        ),
        Polled(id="flights", since=0, upper=now_ms, errors=3),
        Phase(id="flights", epoch=1, phase="paused", at_ms=now_ms),
    )
    (row,) = world.rows("verdicts")
    assert (row["verdict"], row["bad"]) == ("unreadable", True)
    assert row["because"] == "its contents have 3 errors: a bad row; it was stopped on request"
    assert row["to_do"] == "mend it; `resume flights` goes on with it"
    (whole,) = world.rows("verdict_summary")
    assert whole["bad"] == 1
    world.tell(Polled(id="flights", since=0, upper=now_ms, errors=0))
    (row,) = world.rows("verdicts")
    assert (row["verdict"], row["to_do"]) == ("paused", "`resume flights` goes on with it")

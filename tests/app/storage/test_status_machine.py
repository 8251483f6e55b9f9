"""Statuses: the worst part decides, changes only, and nothing after a drop."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from shardline.app.execution.observations import Failed, Health
from shardline.app.protocol.object_state import Status
from shardline.app.protocol.storage import StatusUpdate
from shardline.app.storage.status_machine import NAMESPACES, HealthMachine

WORSE = ("running", "frozen", "stalled", "ceased")


def said(
    status: Status, namespace: str = "sink", *, epoch: int = 1, error: str = "", hint: str = ""
) -> Health:
    error = error or ("" if status == "running" else f"{namespace} is {status}")
    return Health(id="a", epoch=epoch, namespace=namespace, status=status, error=error, hint=hint)


def statuses(updates: list[StatusUpdate]) -> list[Status]:
    return [update.status for update in updates]


def started() -> HealthMachine:
    machine = HealthMachine()
    machine.start("a", 1, 10)
    return machine


def test_the_life_of_an_object() -> None:
    """Created, starting, running, stalled, running, paused, starting, ceased, dropped."""
    machine = HealthMachine()
    updates = machine.create("a", 1)
    updates += machine.start("a", 1, 2)
    updates += machine.observe([said("running")], 3)
    updates += machine.observe([said("stalled")], 4)
    updates += machine.observe([said("running")], 5)
    updates += machine.pause("a", 6)
    updates += machine.pause("a", 7)
    updates += machine.start("a", 2, 8)
    updates += machine.cease("a", 9)
    updates += machine.drop("a", 10)

    assert [(u.status, u.at_ms) for u in updates] == [
        ("created", 1),
        ("starting", 2),
        ("running", 3),
        ("stalled", 4),
        ("running", 5),
        ("paused", 6),
        ("starting", 8),
        ("ceased", 9),
        ("dropped", 10),
    ]


reports = st.lists(
    st.builds(
        said,
        st.sampled_from(WORSE),
        st.sampled_from([*NAMESPACES, "other"]),
        epoch=st.sampled_from([1, 1, 1, 2]),
        error=st.sampled_from(["", "x"]),
    ),
    max_size=4,
)


@given(st.lists(reports, max_size=8))
def test_the_worst_part_decides(rounds: list[list[Health]]) -> None:
    """After any rounds the status is the worst of what each part said in its last round."""
    machine = started()
    parts: dict[str, str] = {}
    for number, round_ in enumerate(rounds):
        machine.observe(round_, 20 + number)
        heard = [r for r in round_ if r.epoch == 1]
        for namespace in {r.namespace for r in heard}:
            mine = [r.status for r in heard if r.namespace == namespace]
            parts[namespace] = max(mine, key=WORSE.index)
    worst = max(parts.values(), key=WORSE.index, default="running")
    main = any(namespace != "internal" for namespace in parts)
    expected = worst if worst != "running" or main else "starting"

    latest = machine.latest("a")
    assert latest is not None
    assert latest.status == expected
    assert set(latest.namespaced) == {n for n, s in parts.items() if s != "running"}


@given(st.lists(st.one_of(reports, st.sampled_from(["start", "pause", "fail"])), max_size=12))
def test_only_changes_are_told(steps: list[list[Health] | str]) -> None:
    """No two updates in a row say the same, and their times never go back."""
    machine = HealthMachine()
    updates = machine.start("a", 1, 100)
    for number, step in enumerate(steps):
        at = 100 - number  # a clock that goes back
        match step:
            case "start":
                updates += machine.start("a", number + 2, at)
            case "pause":
                updates += machine.pause("a", at)
            case "fail":
                updates += machine.failed(Failed(id="a", epoch=1, error="boom"), at)
            case list():
                updates += machine.observe(step, at)
    meanings = [(u.status, u.error, u.hints, u.namespaced) for u in updates]

    assert all(a != b for a, b in pairwise(meanings))
    assert [u.at_ms for u in updates] == sorted(u.at_ms for u in updates)


def test_the_highest_namespace_is_told() -> None:
    """Of several errors the highest namespace's is the message; all hints and errors are kept."""
    machine = started()
    (update,) = machine.observe(
        [
            said("stalled", "kafka", error="no broker", hint="start one"),
            said("stalled", "decode", error="bad row", hint="retract it"),
            said("frozen", "internal", error="part missing", hint="start one"),
        ],
        20,
    )

    assert update.error == "decode: bad row"
    assert update.hints == ("start one", "retract it")
    assert update.namespaced == {
        "kafka": "no broker",
        "decode": "bad row",
        "internal": "part missing",
    }


def test_a_side_channel_does_not_make_an_object_run() -> None:
    """That housekeeping works says nothing of the data; that it fails stalls the object."""
    machine = started()

    assert machine.observe([said("running", "internal")], 20) == []
    assert statuses(machine.observe([said("stalled", "internal")], 21)) == ["stalled"]
    assert statuses(machine.observe([said("running", "internal")], 22)) == ["starting"]


def test_an_error_that_comes_back_is_one_entry() -> None:
    """An object that fails again and again is stalled once; that it runs ends it."""
    machine = started()
    updates = []
    for epoch in range(1, 5):
        updates += machine.start("a", epoch, 20)
        updates += machine.observe([said("running", "internal", epoch=epoch)], 21)
        updates += machine.failed(Failed(id="a", epoch=epoch, error="boom", hint="look"), 22)
    assert [(u.status, u.error, u.hints) for u in updates] == [
        ("stalled", "internal: boom", ("look",))
    ]
    machine.start("a", 5, 30)

    assert statuses(machine.observe([said("running", epoch=5)], 31)) == ["running"]


def test_a_part_that_knows_the_cause_is_believed() -> None:
    """The failure of a query does not hide what a part has said of it before."""
    machine = started()
    machine.observe([said("stalled", error="a row was retracted")], 20)

    assert machine.failed(Failed(id="a", epoch=1, error="[STREAM_FAILED] …"), 21) == []


def test_errors_of_rows_do_not_hide_what_has_ended_a_query() -> None:
    """A source with a row that cannot be decoded goes on: it is none of that row's if it fails."""
    machine = started()
    machine.observe([said("running", "generator"), said("stalled", "decode", error="1 row")], 20)
    machine.observe([said("stalled", "internal", error="no answer, once")], 20)

    (update,) = machine.failed(Failed(id="a", epoch=1, error="no such file", hint="look"), 21)

    assert (update.error, update.hints) == ("internal: no such file", ("look",))
    assert update.namespaced == {"internal": "no such file", "decode": "1 row"}
    assert machine.start("a", 2, 22) == []


def test_a_part_that_cannot_be_read_freezes() -> None:
    """Frozen, not stalled, while the object is started again and again; then it runs."""
    machine = started()
    updates = []
    for epoch in range(1, 4):
        updates += machine.start("a", epoch, 20)
        updates += machine.observe([said("frozen", epoch=epoch, error="part p is gone")], 21)
        updates += machine.failed(Failed(id="a", epoch=epoch, error="[STREAM_FAILED] …"), 22)
    assert [(u.status, u.error) for u in updates] == [("frozen", "sink: part p is gone")]
    machine.start("a", 4, 30)

    assert statuses(machine.observe([said("running", epoch=4)], 31)) == ["running"]


def test_other_incarnations_are_not_heard() -> None:
    """What an earlier incarnation says, or one that was never started, changes nothing."""
    machine = started()
    machine.start("a", 3, 11)

    assert machine.observe([said("stalled", epoch=1), said("stalled", epoch=4)], 20) == []
    assert machine.failed(Failed(id="a", epoch=1, error="late"), 21) == []
    assert machine.start("a", 2, 22) == []


def test_nothing_comes_after_a_drop() -> None:
    """Reports about a dropped object, and a second drop, say nothing; a new one may be made."""
    machine = started()
    machine.drop("a", 20)

    assert machine.observe([said("running")], 21) == []
    assert machine.failed(Failed(id="a", epoch=1, error="late"), 22) == []
    assert machine.pause("a", 23) == machine.cease("a", 24) == machine.drop("a", 25) == []
    assert machine.latest("a") is None
    assert machine.restamped(26) == []
    assert statuses(machine.start("a", 1, 27)) == ["created", "starting"]


def test_a_new_controller_hears_of_all() -> None:
    """On reconnection every object's status is told again, at the time of now."""
    machine = started()
    machine.observe([said("stalled", hint="h")], 20)
    machine.create("b", 21)
    told = {u.id: u for u in machine.restamped(50)}

    assert [(u.status, u.at_ms) for u in told.values()] == [("stalled", 50), ("created", 50)]
    assert told["a"].hints == ("h",)
    assert machine.observe([said("stalled", hint="h")], 60) == []

"""The endpoint: any interleaving of controllers, transports and the runtime, against a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from shardline.app.protocol.compute import InitializationComplete, Schedule
from shardline.app.protocol.storage import DroppedId
from shardline.app.transport.endpoint import Endpoint
from shardline.app.transport.in_process import InProcessClient
from shardline.app.transport.session import CloseCode, Closed, Limits, Received, Reconcile, Session
from support.fakes.clock import ManualClock
from support.fakes.replicas import thorough

BOUND = 3


@dataclass
class Model:
    """What one session has said and been told, as plain lists."""

    said: list[str] = field(default_factory=list)
    complete: int | None = None
    taken: int | None = None
    told: list[str] = field(default_factory=list)
    open: bool = True


WEIGHTS = {"say": 6, "take": 5, "respond": 3, "complete": 3, "pull": 1, "connect": 1, "leave": 1}

STEPS = st.lists(
    st.tuples(
        st.sampled_from([step for step, weight in WEIGHTS.items() for _ in range(weight)]),
        st.sampled_from((0, 0, 0, 0, 1, 2)),
    ),
    max_size=40,
).map(lambda steps: [("connect", 0), *steps])


@given(STEPS)
@thorough
def test_any_interleaving(steps: list[tuple[str, int]]) -> None:
    """Whoever comes, speaks and leaves when: taken is what the model says, and so is told."""
    woken: list[None] = []
    endpoint: Endpoint[Any, Any] = Endpoint(
        lambda: woken.append(None), Limits(commands=BOUND, responses=BOUND)
    )
    sessions: list[Session[Any, Any]] = []
    models: list[Model] = []
    for number, (step, back) in enumerate(steps):
        if step == "connect":
            for model in models:
                model.open = False
            sessions.append(endpoint.connect(f"n{len(sessions)}"))
            models.append(Model())
        elif step == "take":
            check_take(endpoint.take(), models)
        elif step == "respond":
            check_respond(endpoint.respond(DroppedId(str(number))), str(number), models)
        elif sessions:
            at = max(0, len(sessions) - 1 - back)
            one(step, str(number), sessions[at], models[at])
        waits = models and models[-1].complete is not None and todo(models[-1])
        assert not waits or woken, "there is something to take, and nobody was woken"
        for session, model in zip(sessions, models, strict=True):
            assert (session.closed is None) == model.open


def todo(model: Model) -> bool:
    """Whether something of a completed session is not taken."""
    return model.taken is None or model.taken < len(model.said)


def check_take(step: Any, models: list[Model]) -> None:
    model = models[-1] if models else Model()
    if model.complete is None or not todo(model):
        assert step is None
    elif model.taken is None:
        expected = tuple(map(Schedule, model.said[: model.complete]))
        assert step == Reconcile(f"n{len(models) - 1}", expected)
        model.taken = model.complete
    else:
        assert step == Received(Schedule(model.said[model.taken]))
        model.taken += 1


def check_respond(told: bool, text: str, models: list[Model]) -> None:
    model = models[-1] if models else Model(open=False)
    if not model.open or model.taken is None:
        assert not told
    elif len(model.told) == BOUND:
        assert not told
        model.open = False
    else:
        assert told
        model.told.append(text)


def one(step: str, text: str, session: Session[Any, Any], model: Model) -> None:
    """A step of one transport."""
    if step == "say":
        waiting = len(model.said) - (model.complete or 0 if model.taken is None else model.taken)
        fits = model.open and waiting < BOUND
        assert session.push(Schedule(text)) == fits
        model.open = fits
        if fits:
            model.said.append(text)
    elif step == "complete":
        first = model.open and model.complete is None
        assert session.push(InitializationComplete()) == first
        model.open = first
        if first:
            model.complete = len(model.said)
    elif step == "pull":
        assert session.pull() == (DroppedId(model.told.pop(0)) if model.told else None)
    else:
        session.close(Closed(CloseCode.DONE, "it leaves"))
        model.open = False


def test_wakes_only_for_what_can_be_taken() -> None:
    """A controller that says half of what it wants does not wake the runtime."""
    woken: list[None] = []
    endpoint: Endpoint[Any, Any] = Endpoint(lambda: woken.append(None))
    session = endpoint.connect("n")
    session.push(Schedule("a"))
    assert not woken
    session.push(InitializationComplete())
    assert len(woken) == 1
    session.push(Schedule("b"))
    assert len(woken) == 2


def test_a_transport_is_notified_of_responses_and_of_the_end() -> None:
    """A transport needs not ask again and again."""
    notified: list[str] = []
    endpoint: Endpoint[Any, Any] = Endpoint(lambda: None)
    session = endpoint.connect("old", lambda: notified.append("old"))
    session.push(InitializationComplete())
    endpoint.take()
    endpoint.respond(DroppedId("a"))
    assert notified == ["old"]
    endpoint.connect("new")
    assert notified == ["old", "old"]


def test_the_session_is_that_of_the_controller_that_is_connected() -> None:
    """Not one that has ended, nor one that was replaced."""
    endpoint: Endpoint[Any, Any] = Endpoint(lambda: None)
    seen = [(endpoint.session, endpoint.is_vacant)]
    old = endpoint.connect("old")
    seen.append((endpoint.session, endpoint.is_vacant))
    new = endpoint.connect("new")
    seen.append((endpoint.session, endpoint.is_vacant))
    new.close(Closed(CloseCode.REFUSED, "enough"))
    seen.append((endpoint.session, endpoint.is_vacant))
    assert seen == [(None, True), (old, False), (new, False), (None, True)]


def test_the_first_reason_to_end_stays() -> None:
    """What ends a connection is told, not what follows from it."""
    session = Endpoint[Any, Any](lambda: None).connect("n")
    session.close(Closed(CloseCode.LOST, "first"))
    session.close(Closed(CloseCode.DONE, "second"))
    assert session.closed == Closed(CloseCode.LOST, "first")


def test_receiving_waits_on_the_clock() -> None:
    """A client in process waits as long as it is told to, by the clock that it was given."""
    clock = ManualClock()
    endpoint: Endpoint[Any, Any] = Endpoint(lambda: None)
    client = InProcessClient(endpoint, "n", clock)
    client.send(InitializationComplete())
    endpoint.take()
    assert client.receive(250) is None
    assert clock.elapsed_ms() == 250
    endpoint.respond(DroppedId("a"))
    assert client.receive(250) == DroppedId("a")
    client.close()
    assert client.receive(250) is None
    assert clock.elapsed_ms() == 250

"""An application as its users have it, without Spark: started, asked, followed, pushed aside."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from shardline.app.compute.results import from_ipc
from shardline.app.compute.worker import ComputeWorker
from shardline.app.coordinator.application import Application
from shardline.app.coordinator.objects import Objects
from shardline.app.coordinator.start_holds import StartHolds
from shardline.app.lane.lane import Lane
from shardline.app.lane.log import LaneLog
from shardline.app.lane.state import LaneObject
from shardline.app.protocol.compute import (
    AllowCompaction,
    AllowWrites,
    ComputeCommand,
    CreateDataflow,
    CreateInstance,
    InitializationComplete,
    Peek,
    PeekResponse,
    Schedule,
    SubscribeDropped,
    SubscribeResponse,
)
from shardline.app.protocol.objects import SubscribeDescription
from shardline.app.protocol.project_identity import ProjectIdentity
from shardline.app.runtime.cleanup import forget
from shardline.app.transport.in_process import InProcessClient
from shardline.app.transport.session import CloseCode
from shardline.datasource.background import BackgroundThread
from shardline.datasource.clock import SystemClock, SystemIds
from shardline.datasource.errors import (
    Corrupt,
    Determinate,
    Indeterminate,
    InvalidUsage,
    ShardError,
)
from shardline.datasource.maintainer import Maintainer
from shardline.datasource.stores.open import open_objects
from support.fakes.sites import Site, index, project, source

TOKEN = "0123456789abcdef" * 2


def test_maintenance_is_cancelled_first_and_waited_for_in_any_case(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its merge of minutes ends while all else stops, also if that fails."""
    application = site.application(maintenance=True)
    noted: list[str] = []
    cancel, stop, end = Maintainer.cancel, Maintainer.stop, application.runtime.stop

    def cancelling(self: Maintainer) -> None:
        noted.append("cancelled")
        cancel(self)

    def stopping(self: Maintainer) -> None:
        noted.append("stopped")
        stop(self)

    def failing() -> None:
        noted.append("runtime")
        end()
        raise Determinate("it does not stop")

    monkeypatch.setattr(Maintainer, "cancel", cancelling)
    monkeypatch.setattr(Maintainer, "stop", stopping)
    monkeypatch.setattr(application.runtime, "stop", failing)
    with pytest.raises(Determinate, match="does not stop"), application:
        assert noted == []
    assert noted[:3] == ["cancelled", "runtime", "stopped"]
    assert not any(t.name == "maintenance" for t in threading.enumerate())


def test_the_location_is_let_go_whatever_does_not_stop(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a second Ctrl-C: its lease would keep the next application waiting."""

    def interrupted(_: Objects) -> None:
        raise KeyboardInterrupt

    first = site.application().__enter__()
    with monkeypatch.context() as broken:
        broken.setattr(Objects, "stop", interrupted)
        with pytest.raises(KeyboardInterrupt):
            first.__exit__(None, None, None)
    first._objects.stop()
    with site.application() as second:
        second.check_in_charge()


def begins(site: Site) -> list[str]:
    return [hold for hold in site.holds() if hold.endswith(":begin")]


def connect(application: Application, *commands: ComputeCommand) -> Any:
    """Another controller takes the place of the application's own."""
    endpoint = application.runtime.compute
    Site.wait("its own is connected", lambda: getattr(endpoint.session, "is_reconciled", False))
    client: Any = InProcessClient(application.runtime.compute, "other", SystemClock())
    for command in (CreateInstance(), *commands, InitializationComplete(), AllowWrites()):
        client.send(command)
    return client


def received(client: Any, kind: type[Any]) -> Any:
    """The next response of a kind."""
    while True:
        found = client.receive(60_000)
        assert found is not None, client.closed
        if isinstance(found, kind):
            return found


# -- subscriptions ---------------------------------------------------------------------------------


def test_texts_of_sql_mean_what_they_say(site: Site) -> None:
    """Also in a session of the user's own: by default Spark puts its environment into them."""
    with site.application() as application:
        session: Any = application._spark
        session.conf.set.assert_any_call("spark.sql.variable.substitute", "false")


def test_a_subscription_leaves_no_hold(site: Site) -> None:
    """Its beginning is held until it reads under a hold of its own, and not for ever."""
    with site.application() as application:
        application.apply(project(source()))
        site.wait("the source is there", lambda: "t" in application.running())
        subscription = application.subscribe("SUBSCRIBE t")
        assert subscription.take(60_000) is not None
        site.wait("nothing is held", lambda: not begins(site))
        subscription.close()


def test_an_interval_that_has_passed_is_refused(site: Site) -> None:
    """Without AS OF it would begin now; its client would wait for batches that never come."""
    with site.application() as application:
        application.apply(project(source()))
        site.wait("the source is there", lambda: "t" in application.running())
        for up_to in (5, 9):
            with pytest.raises(InvalidUsage, match=r"INVALID_INTERVAL.* begin, 9"):
                application.subscribe(f"SUBSCRIBE t UP TO {up_to}")
        with closing(application.subscribe("SUBSCRIBE t UP TO 10")) as whole:
            assert [batch.upper for batch in whole] == [None]
    assert begins(site) == []


def test_a_subscription_does_not_go_on_in_a_source_that_was_made_again(site: Site) -> None:
    """It would get the new rows in addition to the old ones, which nobody takes back."""
    site.put([((1, "a"), 10, 1)], 11)
    with site.application() as application:
        application.apply(project(source()))
        site.wait("the source is there", lambda: "t" in application.running())
        with closing(application.subscribe("SUBSCRIBE t")) as first:
            batch = first.take(60_000)
            assert isinstance(batch, SubscribeResponse)
            reached = batch.upper
            assert reached == 11
            application.drop(["t"])
            site.wait("it is told", lambda: first.ended)
        again = f"SUBSCRIBE t WITHOUT SNAPSHOT AS OF {reached - 1}"
        application.apply(project(source()))
        # Before the new source has written anything, and after it.
        for rows in (0, 1):
            site.wait("the source is there", lambda: "t" in application.running())
            with pytest.raises(InvalidUsage, match="HISTORY_GONE"):
                application.subscribe(again)
            site.put([((2 + rows, "b"), 12 + rows, 1)], 13 + rows)
        with closing(application.subscribe("SUBSCRIBE t")) as anew:
            batch = anew.take(60_000)
            assert isinstance(batch, SubscribeResponse)
            assert from_ipc(batch.updates or b"")["k"].to_pylist() == [2, 3]
    assert begins(site) == []


def test_a_subscription_that_cannot_begin_says_so(site: Site) -> None:
    """Whatever its controller has not checked: it gets one batch, with the error, and no other."""
    described = SubscribeDescription(name="s", on="t", up_to=2)
    with site.application() as application:
        application.apply(project(source()))
        client = connect(application, CreateDataflow(dataflow=described, as_of=5), Schedule("s"))
        told = received(client, SubscribeResponse)
        assert (told.upper, told.error[:19]) == (None, "[INVALID_INTERVAL] ")
        client.close()


def test_a_subscription_that_nobody_began_is_swept_at_the_next_start(site: Site) -> None:
    """A process that was killed before its subscription was in order has left only the hold."""
    for hold in (f"view:t{TOKEN}:0:begin", "view:t:0:begin", "view:v:0:begin"):
        site.client().hold("t", hold, since=9)
    with site.application():
        site.wait("one is gone", lambda: begins(site) == ["view:t:0:begin", "view:v:0:begin"])


def test_what_a_dropped_subscription_held_is_let_go(site: Site, tmp_path: Path) -> None:
    """Also when its controller never did: it was killed with the runtime."""
    name = f"t{TOKEN}"
    site.client().hold("t", f"view:{name}:0:begin", since=9)
    dropped = LaneObject(
        description=SubscribeDescription(name=name, on="t"),
        as_of=9,
        global_id="t1",
        dataflow=1,
        operators=(1, 1),
        epoch=1,
        created=1,
    )
    forget(site.client(), tmp_path, dropped, lambda: None)
    assert begins(site) == []


def test_a_subscription_waits_for_what_its_controller_has_taken(site: Site) -> None:
    """One that reads its connection and takes nothing is dropped; its word is an upper."""
    described = SubscribeDescription(name="s", on="t")
    with site.application(subscribe_patience="100ms") as application:
        application.apply(project(source()))
        client = connect(application, CreateDataflow(dataflow=described, as_of=5), Schedule("s"))
        for time in range(10, 18):
            batch = received(client, SubscribeResponse)
            assert batch.upper == time
            client.send(AllowCompaction("s", batch.upper))
            site.put([((time, "x"), time, 1)], time + 1)
        for time in range(18, 26):
            assert received(client, SubscribeResponse).upper == time
            site.put([((time, "x"), time, 1)], time + 1)
        assert received(client, SubscribeDropped) == SubscribeDropped("s", 25)


# -- connections -----------------------------------------------------------------------------------


def test_a_query_that_is_asked_again_by_a_later_connection_is_answered(site: Site) -> None:
    """The end of the former one is no answer to it."""
    peek = Peek(uuid="p", query="SELECT k FROM t", inputs=("t",), as_of=12, limit_bytes=1 << 20)
    with site.application() as application:
        application.apply(project(source()))
        connect(application, peek)
        site.wait("it waits", lambda: site.place.client.state("t").leased)
        client = connect(application, peek)
        site.put([((2, "b"), 12, 1)], 13)
        rows = from_ipc(received(client, PeekResponse).rows)
        assert sorted(rows.column("k").to_pylist()) == [1, 2]


def test_a_step_that_fails_is_done_again(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a connection that begins anew; wherever it broke, nothing that was said is lost."""
    broken = list[str]()

    def once(name: str, real: Callable[..., Any], is_it: Callable[..., bool]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            if is_it(*given) and name not in broken:
                broken.append(name)
                raise RuntimeError(name)
            return real(*given, **named)

        return call

    def creates(_self: object, command: object) -> bool:
        return isinstance(command, CreateDataflow)

    def offers(_self: object, _producer: str, command: object) -> bool:
        return getattr(command, "id", "") == "j"

    worker = once("worker", ComputeWorker.on_command, creates)
    monkeypatch.setattr(ComputeWorker, "on_command", worker)
    monkeypatch.setattr(Lane, "offer", once("lane", Lane.offer, offers))
    with site.application() as application:
        application.apply(project(source()))
        site.wait("connected", lambda: not application.runtime.compute.is_vacant)
        for wanted in ("i", "j"):
            application.apply(project(source(), index("i"), *[index("j")] * (wanted == "j")))
            site.wait(f"{wanted} is there", lambda wanted=wanted: wanted in application.running())
        assert broken == ["worker", "lane"]


def test_an_application_that_was_pushed_aside_says_so(site: Site) -> None:
    """Its queries, its changes and its readiness, for as long as the other one is there."""
    with site.application() as application:
        application.apply(project(source()))
        site.wait("the source is there", lambda: "t" in application.running())
        assert application.not_ready == ""
        other = connect(application)
        site.wait("it is not ready", lambda: "CONTROLLER_REPLACED" in application.not_ready)
        for act in (
            lambda: application.sql("SELECT k FROM t"),
            lambda: application.apply(project()),
            lambda: application.drop(["t"]),
        ):
            with pytest.raises(Determinate, match="CONTROLLER_REPLACED"):
                act()
        assert other.closed is None or other.closed.code is CloseCode.REFUSED


@pytest.mark.slow
def test_a_date_before_an_object_began_is_refused(site: Site) -> None:
    """Its empty answer would be taken for one; a number is any time, and empty then."""
    with site.application() as application:
        application.apply(project(source()))
        site.wait("the source is there", lambda: "t" in application.running())
        with pytest.raises(InvalidUsage, match=r"BEFORE_FIRST_CHANGE.*'t' began at 1970"):
            application.sql("SELECT k FROM t AS OF '1970-01-01 00:00:00'")
        assert application.sql("SELECT k FROM t AS OF 0").to_pylist() == []
        assert application.sql("SELECT k FROM t AS OF '0'").to_pylist() == []
        began = application.sql("SELECT k FROM t AS OF '1970-01-01 00:00:00.001'")
        assert began.to_pylist() == [{"k": 1}]


def test_a_query_at_a_time_that_its_timeout_does_not_reach_is_refused(site: Site) -> None:
    """Nothing is asked of the runtime, which would wait for all of the timeout."""
    with site.application(query_timeout="20s") as application:
        application.apply(project(source()))
        site.wait("the source is there", lambda: "t" in application.running())
        with pytest.raises(Determinate, match=r"NOT_YET_READABLE.*to come.*`runtime.query_timeout"):
            application.sql("SELECT k FROM t AS OF '2999-01-01'")


def test_the_time_of_a_query_holds_for_relations_too(site: Site) -> None:
    """The present in the place of what was asked for would be a wrong answer, and look right."""
    with site.application(introspection=True) as application:
        application.apply(project(source()))
        site.wait("the source is there", lambda: "t" in application.running())
        for relation in ("command_history", "verdicts"):
            with pytest.raises(InvalidUsage, match=f"BEFORE_HISTORY.*'{relation}' begins at"):
                application.sql(f"SELECT * FROM introspection.{relation} AS OF '2001-01-01'")  # noqa: S608
        with pytest.raises(InvalidUsage, match=r"NO_HISTORY.*'frontiers' has no history"):
            application.sql("SELECT k FROM t, introspection.frontiers AS OF 9")
        with pytest.raises(InvalidUsage, match="NOT_YET"):
            application.sql("SELECT * FROM introspection.command_history AS OF '2999-01-01'")


# -- starts ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["settings", "parts", "first reads", "objects"])
def test_a_start_that_fails_lets_the_location_go(
    site: Site, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Its process lives on, in a notebook: what is corrected must not be refused by it."""
    with site.application() as application:
        application.apply(project(source()))
        site.wait("the source is there", lambda: "t" in application.running())

    def fail(*_: object, **_named: object) -> None:
        raise Determinate("no answer")

    wrong: dict[str, Any] = {"result_limit": "lots"} if when == "settings" else {}
    with monkeypatch.context() as broken, ExitStack() as stack:
        if when == "parts":
            broken.setattr(Application, "_reading", fail)
        if when == "first reads":
            broken.setattr(StartHolds, "latest", fail)
        if when == "objects":
            broken.setattr(Objects, "start", fail)
        with pytest.raises((Determinate, InvalidUsage)):
            stack.enter_context(site.application(**wrong))
    with site.application() as application:
        site.wait("it goes on", lambda: "t" in application.running())


def test_one_object_that_cannot_be_created_keeps_no_other_from_it(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the error; it is told, and tried again. What runs is asked nothing at a start."""
    errors: dict[str, Exception] = {}
    real = StartHolds.has_begun

    def has_begun(self: StartHolds, reader: Any) -> bool:
        if reader.name in errors:
            raise errors[reader.name]
        return real(self, reader)

    monkeypatch.setattr(StartHolds, "has_begun", has_begun)
    wanted = project(source(), index("a"), index("b"), index("c"))
    with site.application() as application:
        errors |= {"a": ValueError("one of ours"), "b": Determinate("no answer")}
        application.apply(wanted)
        site.wait("the others are there", lambda: set(application.running()) == {"t", "c"})
        assert application.waiting() == {"a": "one of ours", "b": str(errors["b"])}
        errors.clear()
        site.wait("all are there", lambda: len(application.running()) == 4)
        ids = {n: known.global_id for n, known in application.runtime.lane.state.objects.items()}
    errors["a"] = Determinate("no answer")
    with site.application() as application:
        # The error never passes: an input that cannot be read keeps nothing else from changes.
        application.apply(project(source(), *map(index, "abcd")))
        site.wait("one more is there", lambda: "d" in application.running())
        assert application.waiting() == {}
        objects = application.runtime.lane.state.objects
        assert {name: objects[name].global_id for name in ids} == ids


def test_an_object_that_is_changed_is_shown_all_the_time(site: Site) -> None:
    """A change drops and creates: in between the lane has nothing of it, and relations do."""
    shown: list[set[str]] = []
    with site.application() as application:
        application._objects._observer = lambda wanted: shown.append({one.id for one in wanted})
        for path in ("p", "q"):
            application.apply(project(source(path=path), index()))
            site.wait(
                "it runs",
                lambda path=path: (
                    getattr(application.running().get("t"), "options", {}).get("path") == path
                ),
            )
            site.wait("all runs", lambda: not application.waiting())
            application._objects._look()
    assert shown
    assert all(names == {"t", "i"} for names in shown)


def test_what_runs_is_not_dropped_before_a_project_is_applied(site: Site) -> None:
    """It says why, and drops it afterwards; what waits for its inputs is a reader too."""
    with site.application() as application:
        application.apply(project(source()))
        site.wait("the source is there", lambda: "t" in application.running())
    with site.application() as application:
        with pytest.raises(InvalidUsage, match="NOTHING_APPLIED"):
            application.drop(["t"])
        application.apply(project(source(), source("u"), index("i", "u")))
        assert application.waiting() == {"i": ""}
        with pytest.raises(InvalidUsage, match=r"STILL_READ.*'i' reads 'u'"):
            application.drop(["u"])
        assert "t" in application.drop(["t"])


def hold_back(store: pytest.MonkeyPatch) -> None:
    """Nothing is recorded any more."""

    def refuse(_self: object, _attempt: object) -> None:
        raise Determinate("no answer")

    store.setattr(LaneLog, "_commit", refuse)


def drops(application: Application, name: str) -> bool:
    """Drop an object; False if it is too early."""
    try:
        application.drop([name])
    except Determinate:
        return False
    return True


def test_what_was_applied_is_known_before_it_is_recorded(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unknown name would be the user's mistake; this one is there in a moment."""
    with site.application(query_timeout="300ms") as application:
        application.apply(project(source()))
        site.wait("the source is there", lambda: "t" in application.running())
        with monkeypatch.context() as store:
            hold_back(store)
            application.apply(project(source(), source("u")))
            with pytest.raises(Determinate, match=r"NOT_CREATED.*'u'.*being recorded"):
                application.sql("SELECT k FROM u")
            with pytest.raises(InvalidUsage, match=r"NOT_CREATED.*'u'"):
                application.control.pause("u")
            with pytest.raises(InvalidUsage, match="UNKNOWN_OBJECT"):
                application.sql("SELECT k FROM w")
        site.wait("it is recorded", lambda: "u" in application.running())


def test_what_has_no_contents_says_whose_can_be_read(site: Site) -> None:
    """It is known by its name, and none of those that a hint proposes."""
    with site.application() as application:
        application.apply(project(source(), index()))
        site.wait("both are there", lambda: len(application.running()) == 2)
        with pytest.raises(InvalidUsage, match=r"NOT_READABLE.*'i' is an index of 't'.*read 't'"):
            application.sql("SELECT k FROM i")
        with pytest.raises(InvalidUsage, match=r"UNKNOWN_OBJECT.*known names: t$"):
            application.sql("SELECT k FROM unheard_of")
        with pytest.raises(InvalidUsage, match=r"UNKNOWN_OBJECT.*a shard in which 't' notes"):
            application.sql("SELECT lower FROM t_progress")
        with pytest.raises(InvalidUsage, match=r"UNKNOWN_OBJECT.*unknown object 'i_progress'"):
            application.sql("SELECT lower FROM i_progress")


def test_what_is_on_its_way_to_the_lane_is_there(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it reads is not dropped; its own shard stays until nothing can begin to write it."""
    with site.application(query_timeout="500ms") as application:
        application.apply(project(source()))
        site.wait("the source is there", lambda: "t" in application.running())
        with monkeypatch.context() as store:
            hold_back(store)
            application.apply(project(source(), index(), source("x")))
            with pytest.raises(InvalidUsage, match="STILL_READ"):
                application.drop(["t"])
            with pytest.raises(Indeterminate, match="NOT_RECORDED"):
                application.drop(["x"])
            assert site.client().exists("x")
        site.wait("it can be dropped", lambda: drops(application, "x"))
        site.wait("the index is there", lambda: "i" in application.running())
        assert "x" not in application.running()
        assert not site.client().exists("x")


def test_what_runs_until_its_new_definition_can_begin_keeps_what_it_reads(site: Site) -> None:
    """The new one reads another source, which has not begun."""
    with site.application() as application:
        application.apply(project(source(), index()))
        site.wait("both are there", lambda: len(application.running()) == 2)
        application.apply(project(source("u"), index("i", "u")))
        assert application.waiting() == {"i": ""}
        for name in "tu":
            with pytest.raises(InvalidUsage, match=f"STILL_READ.*'i' reads '{name}'"):
                application.drop([name])
        assert site.client().exists("t")


def test_a_store_that_takes_nothing_keeps_nobody_for_ever(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither who asks for what is to be recorded, nor who waits behind it, nor the end."""
    caught = list[BaseException]()
    identity = ProjectIdentity(name="mine", folder="here")
    mine = dataclasses.replace(project(source()), identity=identity)
    with site.application(query_timeout="500ms") as application, monkeypatch.context() as store:
        hold_back(store)

        def ask() -> None:
            application.apply(mine)

        asks = BackgroundThread("asks", ask, on_error=caught.append)
        asks.start()
        assert asks.join(30_000), "it waits for the store"
        with pytest.raises(Indeterminate, match="NOT_RECORDED"):
            raise caught[0]
        assert application.waiting() == {}


def test_a_copy_of_a_shard_in_the_location_does_not_keep_objects(site: Site) -> None:
    """To drop the copy itself says what is to be done with it."""
    objects = open_objects(site.place.url, {}, clock=SystemClock(), ids=SystemIds())
    for entry in list(objects.entries("t/")):
        objects.put(entry.key.replace("t/", "a_copy/", 1), objects.get(entry.key) or b"")
    with site.application() as application:
        application.apply(project(source("u")))
        site.wait("the source is there", lambda: "u" in application.running())
        assert "t" in application.drop(["t"])
        with pytest.raises(Corrupt, match=r"NAME_MISMATCH.*'a_copy'.*outside of the location"):
            application.drop(["a_copy"])


def test_no_read_goes_back_behind_one_before_a_restart(site: Site) -> None:
    """What a strict read of one source has seen at a time holds for the next one of another."""
    site.put([((1, "a"), 3, 1)], 5, "u")
    with site.application() as application:
        application.apply(project(source(), source("u")))
        site.wait("both are there", lambda: len(application.running()) == 2)
        assert application.sql("SELECT k FROM t").num_rows == 1
    with site.application() as application:
        application.apply(project(source(), source("u")))
        site.wait("both are there", lambda: len(application.running()) == 2)
        with pytest.raises(ShardError, match="PEEK_TIMEOUT"):
            application.sql("SELECT k FROM u", timeout_ms=200)
        site.put([], 10, "u")
        assert application.sql("SELECT k FROM u").num_rows == 1


def test_a_reader_is_told_when_the_application_ends(site: Site) -> None:
    """It does not wait for a batch that never comes."""
    ended = threading.Event()
    with site.application() as application:
        application.apply(project(source()))
        site.wait("the source is there", lambda: "t" in application.running())
        subscription = application.subscribe("SUBSCRIBE t")

        def read() -> None:
            assert isinstance(list(subscription)[-1], SubscribeDropped)
            ended.set()

        threading.Thread(target=read, daemon=True).start()
        site.wait("it has begun", lambda: not begins(site))
    assert ended.wait(60)

"""Bounds of a runtime: from the settings, and changed while it runs."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from shardline.app.controller.compute import ComputeController
from shardline.app.controller.storage import StorageController
from shardline.app.lane.holder import describe_process
from shardline.app.lane.log import LaneLog
from shardline.app.protocol.compute import (
    ComputeCommand,
    CreateInstance,
    InitializationComplete,
    SubscribeResponse,
    UpdateConfiguration,
)
from shardline.app.protocol.objects import IndexDescription
from shardline.app.runtime.runtime import Runtime
from shardline.app.runtime.settings import (
    CHANGEABLE,
    PartSettings,
    RuntimeOptions,
    changeable_values,
    part_settings_of,
    with_checked_values,
)
from shardline.app.settings.config import DEFAULT_FILE, RuntimeSettings
from shardline.app.transport.in_process import InProcessClient
from shardline.app.transport.session import CloseCode
from shardline.datasource.errors import InvalidUsage
from support.fakes.reads import Place
from support.waiting import wait_until

SCHEMA = pa.schema([("k", pa.int64()), ("s", pa.string())])


def test_settings_and_code_have_the_same_defaults() -> None:
    """What `[runtime]` says without a file is what each part does that is told nothing."""
    assert part_settings_of(RuntimeSettings()) == PartSettings()


def test_what_may_change_is_a_setting_and_says_so() -> None:
    """Each is a key of `[runtime]` whose explanation has (live), and no other key's has."""
    lines = DEFAULT_FILE.read_text(encoding="utf-8").partition("[runtime]")[2].splitlines()
    live, told = set(), False
    for line in lines[4:]:
        if line.startswith("#"):
            told = told or "(live)" in line
        elif "=" in line:
            live |= {line.split(" =")[0]} if told else set()
        else:
            told = False
    assert live == set(CHANGEABLE)
    assert changeable_values(RuntimeSettings()).keys() == set(CHANGEABLE)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"index_limt": "1g"}, "did you mean 'index_limit'?"),
        ({"lease": "20s"}, "setting 'lease' is read when an application starts"),
        ({"retain_history": "1d"}, "section [runtime] of the settings file"),
        ({"level": "DEBUG"}, "section [log] of the settings file"),
        ({"index_limit": "much"}, "setting 'runtime.index_limit' is 'much' — hint: write a size"),
        ({"subscribe_patience": "0"}, "use at least 1ms"),
        ({"queries_waiting": "-1"}, "use a whole number from 1"),
        (
            {"restart_pause": "40s"},
            "'runtime.restart_pause_max' is 30000ms, less than 'runtime.restart_pause'",
        ),
    ],
)
def test_what_cannot_be_taken_over_is_refused_by_name(given: dict[str, str], said: str) -> None:
    """Unknown names, names that need a new start, values that are none or do not fit others."""
    with pytest.raises(InvalidUsage) as refused:
        with_checked_values(given, PartSettings())
    assert said in str(refused.value)


class Site:
    """A runtime over a location in memory, that runs nothing that needs Spark."""

    def __init__(self, folder: Path) -> None:
        self.place = Place()
        self.place.put("t", [((1, "a"), 1, 1)], 10, SCHEMA)
        client, self.clock, self.ids = (
            self.place.client,
            self.place.client.clock,
            self.place.client.ids,
        )
        journal = LaneLog.open(client, describe_process("test", self.clock, self.ids))
        session: Any = SimpleNamespace()
        self.runtime = Runtime(
            {"compute": session, "storage": session},
            client,
            journal,
            RuntimeOptions(checkpoints=folder),
            clock=self.clock,
            ids=self.ids,
        )
        self.compute = ComputeController(
            lambda: InProcessClient(self.runtime.compute, "c", self.clock),
            self.clock,
            self.ids,
            hold=lambda _dataflow, _as_of: [],
        )
        self.storage = StorageController(
            lambda: InProcessClient(self.runtime.storage, "s", self.clock),
            self.clock,
            as_of=lambda _: 0,
        )

    def wait(self, what: str, happened: Any) -> None:
        wait_until(what, happened, 60)


@contextmanager
def running(folder: Path) -> Iterator[Site]:
    site = Site(folder)
    site.runtime.start()
    site.compute.start()
    site.storage.start()
    try:
        yield site
    finally:
        site.compute.stop()
        site.storage.stop()
        site.runtime.stop()
        site.place.close()


def test_a_changed_bound_holds_for_what_runs_already(tmp_path: Path) -> None:
    """An index and a subscription that run; both controllers may say it, and the order keeps it."""
    with running(tmp_path) as site:
        site.compute.run(IndexDescription(name="i", on="t"), 5)
        site.wait("the index has caught up", lambda: site.compute.hydrated.get("i"))
        subscription = site.compute.subscribe("t", 5)
        assert subscription.take(60_000) is not None
        site.storage.configure({"index_limit": "1"})
        site.compute.configure({"subscribe_batch_limit": "1"})
        wanted = {"index_limit": "1", "subscribe_batch_limit": "1"}
        site.wait("the order has it", lambda: site.runtime.lane.state.settings == wanted)
        site.place.put("t", [((2, "b"), 10, 1)], 20, SCHEMA)
        assert subscription.take(60_000) is not None
        site.place.put("t", [((3, "c"), 20, 1)], 30, SCHEMA)
        last = subscription.take(60_000)
        assert isinstance(last, SubscribeResponse)
        assert last.error.startswith("[SUBSCRIBE_TOO_LARGE] what happens in 't' at 20")
        site.wait(
            "the index has failed, and goes on failing",
            lambda: site.runtime.lane.state.objects["i"].epoch > 1,
        )
        site.compute.configure({"index_limit": "1g"})
        frontiers = site.compute.frontiers
        # Hydration and frontiers are reported each by itself: there may be no frontier yet.
        site.wait("the index goes on", lambda: "i" in frontiers and frontiers["i"].write == 30)


def test_a_controller_that_says_what_cannot_be_is_refused(tmp_path: Path) -> None:
    """At its connection, with the reason; nothing of it is recorded."""
    with running(tmp_path) as site:
        wrong, ready = UpdateConfiguration({"x": "1"}), InitializationComplete()
        ways: list[list[ComputeCommand]] = [
            [CreateInstance(), wrong, ready],
            [CreateInstance(), ready, wrong],
        ]
        for commands in ways:
            client = InProcessClient(site.runtime.compute, "other", site.clock)
            for command in commands:
                client.send(command)
            never = threading.Event()
            while client.closed is None:
                site.clock.wait(never, 5)
            assert client.closed.code is CloseCode.REFUSED
            assert "unknown changeable setting 'x'" in client.closed.detail
        assert site.runtime.lane.state.settings == {}

"""Sources of change events in Debezium's form: what each event does, and those without images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from shardline.app.protocol.objects import SinkDescription, SourceDescription
from shardline.app.storage.errors import retract_errors
from support.spark.ingestions import Runtime, drop, running
from support.spark.sinks import Input
from support.spark.sinks import running as running_sink

pytestmark = pytest.mark.spark

EVENTS = (
    "before STRUCT<id: INT, s: STRING>, after STRUCT<id: INT, s: STRING>, op STRING, ts_ms BIGINT"
)


def events(inbox: Path, **chosen: Any) -> SourceDescription:
    options = {"path": str(inbox), "maxFilesPerTrigger": "1"}
    given: dict[str, Any] = {"options": options, "schema": EVENTS, "key": ("id",)} | chosen
    return SourceDescription(name="flights", format="json", envelope="debezium", **given)


def event(
    ts_ms: int, *, before: tuple[int, str] | None = None, after: tuple[int, str] | None = None
) -> str:
    """A change in Debezium's form, as JSON."""
    images = [row and dict(zip(("id", "s"), row, strict=True)) for row in (before, after)]
    op = {(False, True): "c", (True, True): "u", (True, False): "d"}[bool(before), bool(after)]
    return json.dumps({"before": images[0], "after": images[1], "op": op, "ts_ms": ts_ms})


def test_debezium_events(runtime: Runtime, inbox: Path) -> None:
    """`after` replaces `before`; a changed key leaves its old row; a delete deletes."""
    description = events(inbox)
    drop(
        inbox,
        "0.json",
        '{"after": {"id": 1, "s": "a"}, "op": "c"}',
        '{"after": {"id": 2, "s": "b"}, "op": "c"}',
        '{"before": {"id": 1, "s": "a"}, "after": {"id": 1, "s": "c"}, "op": "u"}',
    )
    with running(runtime, description) as source:
        source.wait_for_rows((1, "c"), (2, "b"))
        drop(
            inbox,
            "1.json",
            '{"before": {"id": 2, "s": "b"}, "after": {"id": 3, "s": "b"}, "op": "u"}',
            '{"before": {"id": 1, "s": "c"}, "op": "d"}',
            "{nonsense",
        )
        source.wait_for_rows((3, "b"))
        assert [raw for _, raw, _ in source.errors] == ["{nonsense"]


def test_a_debezium_topic_in_files(runtime: Runtime, inbox: Path) -> None:
    """Events of every kind, tombstones among them; a bad one is an error until it is retracted."""
    description = events(inbox)
    drop(
        inbox,
        "0.json",
        '{"before": null, "after": {"id": 1, "s": "a"}, "op": "r", "ts_ms": 1}',
        '{"before": null, "after": {"id": 2, "s": "b"}, "op": "r", "ts_ms": 1}',
        '{"before": null, "after": {"id": 3, "s": "c"}, "op": "c", "ts_ms": 2}',
    )
    with running(runtime, description) as source:
        source.wait_for_rows((1, "a"), (2, "b"), (3, "c"))
        drop(
            inbox,
            "1.json",
            '{"before": {"id": 1, "s": "a"}, "after": {"id": 1, "s": "A"}, "op": "u", "ts_ms": 3}',
            '{"before": {"id": 2, "s": "b"}, "after": null, "op": "d", "ts_ms": 4}',
            "null",
            '{"before": null, "after": {"id": "four", "s": "d"}, "op": "c", "ts_ms": 5}',
        )
        source.wait_for_rows((1, "A"), (3, "c"))
        ((_, raw, _),) = source.errors
        assert json.loads(raw)["after"]["id"] == "four"
        assert retract_errors(runtime.client, "flights") == 1
        drop(inbox, "2.json", '{"after": {"id": 4, "s": "d"}, "op": "c", "ts_ms": 6}')
        source.wait_for_rows((1, "A"), (3, "c"), (4, "d"))
        assert not source.errors


def test_among_equal_orders_the_later_event_counts(runtime: Runtime, inbox: Path) -> None:
    """A clock of milliseconds has ties, and the source has its own order of them.

    Within a micro-batch the place in the file decides, and between two the later one.
    """
    options = {"path": str(inbox), "maxFilesPerTrigger": "1", "orderingColumn": "ts_ms"}
    description = events(inbox, options=options)
    given = [
        event(5, after=(1, "a")),
        event(5, before=(1, "a")),
        event(5, after=(2, "z")),
        event(5, before=(2, "z"), after=(2, "b")),
        event(6, after=(3, "late")),
        event(5, after=(3, "z")),
        event(5, after=(4, "c")),
    ]
    drop(inbox, "0.json", *given)
    with running(runtime, description) as source:
        source.wait_for_rows((2, "b"), (3, "late"), (4, "c"))
        drop(inbox, "1.json", event(5, before=(4, "c")), event(5, after=(2, "a")))
        source.wait_for_rows((2, "a"), (3, "late"))


def test_events_that_a_sink_has_written(runtime: Runtime, tmp_path: Path) -> None:
    """A sink's debezium in JSON, taken in again, is what the sink's input is."""
    client = runtime.client
    given, out = Input(client), tmp_path / "out"
    out.mkdir()
    sink = SinkDescription(
        name="out",
        on="in",
        format="json",
        options={"path": str(out)},
        envelope="debezium",
        key=("k",),
    )
    columns = "STRUCT<k: BIGINT, v: STRING>"
    source = SourceDescription(
        name="back",
        format="json",
        options={"path": str(out / "_upper=*"), "orderingColumn": "ts_ms"},
        schema=f"before {columns}, after {columns}, op STRING, ts_ms BIGINT",
        envelope="debezium",
        key=("k",),
    )
    given.step(10, (1, "a", 1), (2, "b", 1), (3, "c", 1))
    with running_sink(runtime.host, sink) as reports, running(runtime, source) as back:
        reports.reached(11)
        back.wait_for_rows((1, "a"), (2, "b"), (3, "c"))
        given.step(20, (1, "a", -1), (1, "A", 1), (2, "b", -1))
        given.step(30, (2, "B", 1), (3, "c", -1))
        reports.reached(31)
        back.wait_for_rows((1, "A"), (2, "B"))


def test_an_event_that_moves_a_row_takes_back_the_error_of_its_old_key(
    runtime: Runtime, inbox: Path
) -> None:
    """As a later delete of that key does; one that came before the error leaves it."""
    bad = [event(2, after=(n, "?")).replace('"ts_ms": 2', '"ts_ms": "soon"') for n in (1, 2)]
    drop(inbox, "0.json", event(1, after=(1, "a")), event(1, after=(2, "b")))
    with running(runtime, events(inbox)) as source:
        source.wait_for_rows((1, "a"), (2, "b"))
        move = event(3, before=(2, "b"), after=(4, "b"))
        drop(inbox, "1.json", bad[0], move, bad[1])
        source.wait_for("two errors", lambda: len(source.errors) == 2)
        drop(inbox, "2.json", event(4, before=(1, "a"), after=(3, "a")))
        source.wait_for_rows((3, "a"), (4, "b"))
        assert [key for _, _, key in source.errors] == ['{"id":2}']


@pytest.mark.parametrize("key", [("id",), ()], ids=["keyed", "keyless"])
def test_events_without_images_are_errors(
    runtime: Runtime, inbox: Path, key: tuple[str, ...]
) -> None:
    """Above all those that a connector wraps in a payload: read as they are, they say nothing."""
    wrapped = {"schema": {"type": "struct"}, "payload": {"after": {"id": 1, "s": "a"}, "op": "c"}}
    nothing = ['{"op": "c"}', '{"before": {"id": 1, "s": "a"}, "op": "u"}', json.dumps(wrapped)]
    drop(inbox, "0.json", "null", '{"op": "m"}', *nothing, event(1, after=(2, "b")))
    with running(runtime, events(inbox, key=key)) as source:
        source.wait_for_rows((2, "b"))
        assert len(source.errors) == len(nothing)
        assert all(error.endswith("needs") for error, _, _ in source.errors)

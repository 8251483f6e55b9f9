"""The status: its summary and table, filters, JSON, and the live view."""

from __future__ import annotations

import io
import json
import re
import threading
from dataclasses import replace
from datetime import timedelta, timezone

import pytest
from rich.console import Console
from typing_extensions import override

from shardline.app.cli.status import (
    ObjectStatus,
    SystemStatus,
    filter_status,
    status_json,
    status_view,
    watch_status,
)
from shardline.datasource.errors import InvalidUsage
from support.fakes.clock import ManualClock

NOW_MS = 1_700_000_000_000
"""2023-11-14 22:13:20 UTC."""

FRESH = ObjectStatus("delays", "view", lag_ms=800, rows=1_234, size_bytes=5 << 20)
BROKEN = ObjectStatus(
    "orders",
    "source",
    verdict="stalled",
    tone="bad",
    because="disk full. It has failed 3 times in a row",
    to_do="make room",
    needs_a_person=True,
    lag_ms=90_000,
    errors=2,
    restarts=3,
    retry_at="2023-11-14T22:13:32.000Z",
    changed_at="2023-11-14T22:12:20.000Z",
)
LATER = ObjectStatus(
    "flights",
    "source",
    verdict="catching up",
    tone="wait",
    because="230 files wait outside",
    ready_at="2023-11-14T22:17:20.000Z",
    lag_ms=400,
)


SLOW = ObjectStatus(
    "busiest_planes",
    "view",
    verdict="falling behind",
    tone="bad",
    because="22 s behind the clock: its last micro-batch took 9.3 s, most of it for reading",
    to_do="EXPLAIN VIEW says how it is kept; introspection.scheduling_elapsed which step is slow",
    needs_a_person=True,
    lag_ms=22_000,
)


def seen_with(*objects: ObjectStatus) -> SystemStatus:
    return SystemStatus("2 of 3 objects are fresh.", NOW_MS, objects)


def text_of(seen: SystemStatus, width: int = 140, height: int | None = None) -> str:
    """The view on a console of that width, and at most that height."""
    console = Console(file=io.StringIO(), width=width)
    zone = timezone(timedelta(hours=2), "EET")
    console.print(status_view(seen, width=width, height=height, zone=zone))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_what_is_ill_says_why_and_what_to_do() -> None:
    """The summary first; reasons only below what is not well."""
    text = text_of(seen_with(FRESH, BROKEN, LATER))
    assert text.splitlines()[0] == "2 of 3 objects are fresh.  2023-11-15 00:13:20 EET"
    for words in (
        "disk full. It has failed 3 times in a row",
        "→ make room",
        "in 4 min",
        "230 files wait outside",
        "in 12 s",
        "1 min ago",
        "1,234",
        "5.0 MiB",
    ):
        assert words in text
    healthy = text_of(seen_with(replace(FRESH, because="never shown")))
    assert "never shown" not in healthy
    assert "errors" not in healthy, "a column without values is left out"
    assert "retry" not in healthy


def test_reasons_have_the_width_of_the_terminal() -> None:
    """A column of the table would break them into many lines, and break long words."""
    text = text_of(seen_with(FRESH, SLOW, BROKEN), 110)
    lines = [line.strip() for line in text.splitlines()]
    assert SLOW.because in lines
    assert f"→ {SLOW.to_do}" in lines
    assert f"{BROKEN.because} → {BROKEN.to_do}" in lines, "one line, where both fit"
    assert len(lines) == 2 + 1 + 3 + 3


def test_names_are_whole_where_other_columns_can_give_way() -> None:
    """What tells of trouble is the last to go."""
    words = text_of(seen_with(FRESH, SLOW, BROKEN), 80).split()
    assert {"busiest_planes", "errors", "retry"} <= set(words)
    assert not {"size", "changed", "restarts"} & set(words)


@pytest.mark.parametrize(("width", "height"), [(110, 40), (80, 24)])
def test_every_object_is_on_a_screen_that_has_a_line_for_each(width: int, height: int) -> None:
    """However many are in trouble: the worst of them alone says why, and what to do."""
    many = [replace(SLOW, name=f"view_{n}") for n in range(height - 6)]
    text = text_of(seen_with(*many, BROKEN), width, height)
    assert len(text.splitlines()) <= height
    for one in (*many, BROKEN):
        assert re.search(rf"^{one.name} ", text, re.MULTILINE)
    assert BROKEN.because in text
    assert SLOW.because not in text


def test_the_worst_stay_where_there_is_no_room_for_all() -> None:
    """The others are counted by their verdicts."""
    many = [replace(FRESH, name=f"view_{n}") for n in range(20)]
    lines = text_of(seen_with(*many[:10], LATER, *many[10:], BROKEN), 80, 10).splitlines()
    shown = [line.split()[0] for line in lines[3:]]
    assert shown == ["view_0", "view_1", "view_2", "view_3", "flights", "orders", "and"]
    assert lines[-1] == "and 16 more: all healthy"
    ill = replace(SLOW, name="slow")
    few = text_of(seen_with(*many, LATER, BROKEN, ill), 80, 6).splitlines()
    assert [line.split()[0] for line in few[3:]] == ["orders", "slow", "and"]
    assert few[-1] == "and 21 more: 20 healthy, 1 catching up"


def test_a_narrow_terminal_has_fewer_columns() -> None:
    """Nothing is cut in 80 columns: names and reasons fold."""
    text = text_of(seen_with(FRESH, replace(BROKEN, name="a" * 60)), 80)
    assert "size" not in text
    assert text.count("a") >= 60
    assert "row" in text
    assert max(len(line) for line in text.splitlines()) <= 80


@pytest.mark.parametrize("width", [40, 60])
def test_a_very_narrow_terminal_has_what_matters(width: int) -> None:
    """Names, verdicts, reasons and remedies, whole; numbers give way."""
    cause = replace(BROKEN, because="its since is 1795907357000", to_do="make room at /var/lib")
    seen = seen_with(FRESH, replace(cause, name="a_rather_long_name_of_a_view"))
    text = text_of(seen, width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "…" not in text
    words = "".join(text.split())
    for whole in ("delays", "stalled", "1795907357000"):
        assert whole in words
    shown = iter(words)
    assert all(letter in shown for letter in "a_rather_long_name_of_a_view")
    assert "errors" not in text
    assert "lag" in text


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ({}, ["delays", "orders", "flights"]),
        ({"names": ["o*"]}, ["orders"]),
        ({"names": ["delays", "fl*"]}, ["delays", "flights"]),
        ({"kinds": ["source"]}, ["orders", "flights"]),
        ({"verdicts": ["catching-up", "healthy"]}, ["delays", "flights"]),
        ({"only_bad": True}, ["orders"]),
        ({"kinds": ["view"], "only_bad": True}, []),
    ],
)
def test_filters(filters: dict[str, object], names: list[str]) -> None:
    """An object is shown if it passes all of them."""
    found = filter_status(seen_with(FRESH, BROKEN, LATER), **filters)  # type: ignore[arg-type]
    assert [one.name for one in found.objects] == names
    assert found.needs_a_person == ("orders" in names)
    assert "nothing to show" in text_of(found) or names


ABOVE = ObjectStatus(
    "totals",
    "view",
    verdict="waiting",
    tone="wait",
    because="`orders` is stalled: disk full",
    blame="orders",
    needs_a_person=True,
)


@pytest.mark.parametrize(
    ("filters", "names"),
    [
        ({"names": ["totals"]}, ["totals"]),
        ({"names": ["totals"], "only_bad": True}, ["totals"]),
        ({"only_bad": True}, ["orders"]),
        ({"names": ["totals", "orders"], "only_bad": True}, ["orders"]),
        ({"names": ["d*", "t*"]}, ["delays", "totals"]),
    ],
)
def test_what_waits_for_what_is_bad_needs_a_person(
    filters: dict[str, object], names: list[str]
) -> None:
    """It does not become well by itself, whether the one to blame is shown or not."""
    found = filter_status(seen_with(FRESH, BROKEN, ABOVE), **filters)  # type: ignore[arg-type]
    assert [one.name for one in found.objects] == names
    assert found.needs_a_person


@pytest.mark.parametrize("name", ["order", "o*x", "ORDERS"])
def test_a_name_that_no_object_has_is_refused(name: str) -> None:
    """Also beside one that there is: nothing shown would be nothing that needs a person."""
    with pytest.raises(InvalidUsage, match="UNKNOWN_OBJECT"):
        filter_status(seen_with(FRESH, BROKEN), [name])
    with pytest.raises(InvalidUsage, match=re.escape(name)):
        filter_status(seen_with(FRESH, BROKEN), ["orders", name], verdicts=["healthy"])
    assert not filter_status(seen_with(FRESH, BROKEN), [name], may_lack=True).objects


def test_all_names_that_no_object_has_are_told() -> None:
    """In one error, each once, with what may have been meant."""
    with pytest.raises(InvalidUsage) as error:
        filter_status(seen_with(FRESH, BROKEN), ["order", "delays", "x*", "dlays", "x*"])
    assert error.value.detail == "unknown objects 'order', 'x*', 'dlays'"
    assert error.value.hint == "did you mean 'orders' for 'order', 'delays' for 'dlays'?"


def test_json_has_every_field() -> None:
    """With the names of the fields, which scripts rely on."""
    found = json.loads(json.dumps(status_json(seen_with(BROKEN))))
    assert found["summary"] == "2 of 3 objects are fresh."
    (one,) = found["objects"]
    assert ObjectStatus(**one) == BROKEN


@pytest.mark.parametrize("terminal", [True, False])
def test_it_is_refreshed_until_it_is_ended(terminal: bool) -> None:
    """Rows per second are those since the last look; elsewhere each look is one more table."""

    class Ended(ManualClock):
        waits = 0

        @override
        def wait(self, signal: threading.Event, timeout_ms: float) -> bool:
            self.waits += 1
            return self.waits > 2 or super().wait(signal, timeout_ms)

    console = Console(file=io.StringIO(), width=120, force_terminal=terminal)
    looks = iter(
        replace(seen_with(replace(LATER, received=rows)), at_ms=NOW_MS + 1000 * number)
        for number, rows in enumerate((1000.0, 1000.0, 3500.0))
    )
    watch_status(console, lambda: next(looks), Ended())
    assert isinstance(console.file, io.StringIO)
    text = console.file.getvalue()
    assert "2,500" in text
    assert text.count("2 of 3 objects") >= 3

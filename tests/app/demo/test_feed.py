"""Daily files: what is in them, how they arrive, and that a crash in between changes nothing."""

from __future__ import annotations

import csv
import io
import threading
from collections import Counter
from pathlib import Path

import pytest
from typing_extensions import override

from shardline.app.demo.data import FLIGHTS, unpack
from shardline.app.demo.feed import Day, Feed, land, landed, split
from shardline.app.demo.place import Place
from shardline.datasource.clock import SystemClock
from support.waiting import wait_until


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path, "l0")
    place.make()
    return place


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real data."""
    folder = tmp_path_factory.mktemp("source")
    unpack(folder)
    return folder


class Still(SystemClock):
    """A clock whose waits are over at once."""

    @override
    def wait(self, signal: threading.Event, timeout_ms: float) -> bool:
        return signal.is_set()


DAYS = [Day(f"2013-01-0{n}", b"h\n" + b"x\n" * n, n) for n in (1, 2, 3)]


@pytest.mark.slow
def test_days_are_dates_in_order_with_all_lines(source: Path) -> None:
    """Every flight of the year is in the file of its day, by another CSV reader's count."""
    days = split(source / f"{FLIGHTS}.csv", 365)
    assert [days[0].name, days[58].name, days[-1].name] == [
        "2013-01-01",
        "2013-02-28",
        "2013-12-31",
    ]
    with (source / f"{FLIGHTS}.csv").open(newline="") as file:
        reader = csv.reader(file)
        next(reader)
        expected = Counter("{}-{:0>2}-{:0>2}".format(*row[:3]) for row in reader)
    assert {day.name: day.rows for day in days} == expected
    assert sum(day.rows for day in days) == 336_776, "what the package says of itself"
    first = list(csv.DictReader(io.StringIO(days[0].content.decode())))
    assert {(row["year"], row["month"], row["day"]) for row in first} == {("2013", "1", "1")}
    assert len(first) == days[0].rows


def test_fewer_days_are_the_first_ones(source: Path) -> None:
    """A slice begins on 1 January, so that a later run with more goes on from it."""
    assert [day.name for day in split(source / f"{FLIGHTS}.csv", 2)] == ["2013-01-01", "2013-01-02"]


def test_unpacking_again_repairs_what_was_cut_off(tmp_path: Path) -> None:
    """A file is there whole or not at all: what a crash left beside it is not taken for it."""
    (tmp_path / "airlines.csv.new").write_text("carrier,na")
    unpack(tmp_path)
    assert len((tmp_path / "airlines.csv").read_text().splitlines()) == 17
    assert not (tmp_path / "airlines.csv.new").exists()


def test_a_day_arrives_once(place: Place) -> None:
    """Landing again is harmless and says so; the content is what it was."""
    assert land(DAYS[0], place) is True
    assert land(DAYS[0], place) is False
    assert landed(place) == ["2013-01-01"]
    assert (place.landing / "2013-01-01.csv").read_bytes() == DAYS[0].content


def test_what_a_crash_left_half_written_is_never_seen(place: Place) -> None:
    """A torn file stays outside the watched folder, and the next run replaces it."""
    (place.staging / "2013-01-01.csv").write_bytes(b"h\n")
    assert landed(place) == []
    land(DAYS[0], place)
    assert (place.landing / "2013-01-01.csv").read_bytes() == DAYS[0].content
    assert list(place.staging.iterdir()) == []


def test_the_feed_goes_on_where_it_stopped(place: Place) -> None:
    """It counts what is there already and lands the rest, in order of date."""
    land(DAYS[0], place)
    feed = Feed(DAYS, place, 1000.0, SystemClock())
    assert (feed.landed_days, feed.landed_rows, feed.finished) == (1, 1, False)
    with feed:
        feed.go_on()
        assert feed.wait(30_000) is True
    assert landed(place) == [day.name for day in DAYS]
    assert (feed.landed_days, feed.landed_rows) == (3, 6)
    assert (feed.had_to_land, Feed(DAYS, place, 1.0, SystemClock()).had_to_land) == (True, False)


def test_the_first_days_arrive_while_objects_start(place: Place) -> None:
    """Half of them at most, so that there is something to follow; then the others, at the pace."""
    with Feed(DAYS, place, 1000.0, Still()) as feed:
        wait_until("the first days are there", lambda: feed.landed_days == 2, 30)
        assert feed.wait(1) is False
        assert landed(place) == ["2013-01-01", "2013-01-02"]
        feed.go_on()
        assert feed.wait(30_000) is True
    assert (feed.landed_days, feed.landed_rows, feed.rows) == (3, 6, 6)


def test_a_stopped_feed_lands_no_more(place: Place) -> None:
    """Stopping wakes it from its pause; what has arrived stays."""
    with Feed(DAYS, place, 0.001, SystemClock()) as feed:
        while not landed(place):
            assert feed.wait(1) is False
    assert landed(place) == ["2013-01-01"]
    assert feed.finished is False


def test_a_folder_that_cannot_be_written_is_an_error_of_the_feed(place: Place) -> None:
    """What went wrong in the thread is raised where somebody waits for it."""
    place.staging.rmdir()
    with Feed(DAYS, place, 1000.0, SystemClock()) as feed, pytest.raises(FileNotFoundError):
        feed.wait(30_000)

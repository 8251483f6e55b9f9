"""Owners of holds are found by the very names that objects give their holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardline.app.compute.holds import hold_name, start_hold_name
from shardline.app.execution.hold_owners import HoldOwner, find_hold_owner, find_lease_owner
from shardline.app.execution.host import Incarnation
from shardline.app.storage.sink_holds import hold_name as sink_hold_name
from shardline.app.storage.source_holds import hold_name as source_hold_name

NAMES = ("delays", "a:b", "view:x:1:0a", "näme mit raum", "t0123:0:begin")


@pytest.mark.parametrize("name", NAMES)
def test_names_that_objects_make_are_taken_apart(tmp_path: Path, name: str) -> None:
    """Of views before and after their beginning, sinks and sources; whatever the name is."""
    me = Incarnation(id=name, global_id="u1", dataflow=7, epoch=3, operators=(1, 2))
    own = hold_name(me, tmp_path)
    place = own.rsplit(":", 1)[1]
    assert place
    assert find_hold_owner(own) == HoldOwner(name, 7, place)
    assert find_hold_owner(f"{own}:begin") == HoldOwner(name, 7, place)
    assert find_hold_owner(start_hold_name(name)) == HoldOwner(name, 0)
    assert find_hold_owner(sink_hold_name(name)) == HoldOwner(name)
    location = "l" + 32 * "0"
    assert find_hold_owner(source_hold_name(name, location)) == HoldOwner(name, location=location)
    assert find_lease_owner(f"index {name}") == name


@pytest.mark.parametrize("place", ["68736216", "00000000", "deadbeef"])
@pytest.mark.parametrize("name", [*NAMES, "a:7:12345678"])
def test_a_place_of_digits_is_no_number_of_a_dataflow(name: str, place: str) -> None:
    """A hash of machine and folder may be anything: one in fifty has digits only."""
    for hold in (f"view:{name}:7:{place}", f"view:{name}:7:{place}:begin"):
        assert find_hold_owner(hold) == HoldOwner(name, 7, place)
    assert find_hold_owner(start_hold_name(name)) == HoldOwner(name, 0)


@pytest.mark.parametrize(
    "hold",
    [
        "",
        "begin",
        "view",
        "view:delays",
        "view:delays:x:0a",
        "sink:",
        "stream-5f",
        "sinks:a",
        "source:a",
    ],
)
def test_other_names_are_nobodys(hold: str) -> None:
    """Everybody may choose a name for a hold."""
    assert find_hold_owner(hold) is None
    assert find_lease_owner(hold) is None

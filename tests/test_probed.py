"""Tests trust the stores that their process has probed, and no store of a test's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from shardline.datasource.stores.memory import MemoryObjects
from shardline.datasource.stores.open import compose_location, open_location
from support.fakes.clock import ManualClock, SeededIds

if TYPE_CHECKING:
    from pathlib import Path

    from shardline.datasource.stores.location import Location

pytestmark = pytest.mark.usefixtures("probed_anew")


def test_a_disk_is_probed_once(tmp_path: Path) -> None:
    made = [
        open_location(
            str(tmp_path / name), {}, clock=ManualClock(), ids=SeededIds(), if_missing="create"
        )
        for name in ("first", "second")
    ]
    assert [was_probed(one) for one in made] == [True, False]


def test_what_is_derived_from_a_store_is_probed_each_time() -> None:
    class Derived(MemoryObjects):
        pass

    clock = ManualClock()
    stores = [kind(f"probed by {kind}", clock) for kind in (MemoryObjects, Derived)]
    stores.append(Derived("probed once more", clock))
    made = [
        compose_location(one, clock=clock, ids=SeededIds(), if_missing="create") for one in stores
    ]
    assert [was_probed(one) for one in made] == [True, True, True]


def was_probed(location: Location) -> bool:
    """More was created than the marker."""
    return any(o.calls > 1 for o in location.statistics().operations if o.operation == "create")

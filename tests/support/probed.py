"""The stores of a local disk and of memory are probed once in each process of a run.

A new location creates keys twice, and by 32 threads at once, before it trusts its store: 6 ms of
the processor and, on a busy machine, 30 ms of time. Tests make a thousand locations in two stores
that are the same in each of them, so the second one and all others of a process are trusted. What a
test has wrapped or derived from them is another store, and is probed; a test that is about the
probe itself asks for `probed_anew`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from shardline.datasource.clock import Clock, IdGenerator
    from shardline.datasource.stores.objects import Objects

__all__ = ["probed_anew"]

_PROBED: Final = set[type]()
"""Stores that this process trusts."""


@pytest.fixture(scope="session", autouse=True)
def _probed_once() -> Iterator[None]:
    """Trust what was probed before, from the first test on: fixtures of modules make locations."""
    from shardline.datasource.stores import probe
    from shardline.datasource.stores.file import FileObjects
    from shardline.datasource.stores.memory import MemoryObjects
    from shardline.datasource.stores.metered import Metered
    from shardline.datasource.stores.retry import Retrying

    real = probe._probe

    def probe_once(objects: Objects, ids: IdGenerator, clock: Clock) -> None:
        store = objects
        while isinstance(store, Metered | Retrying):
            store = store._inner
        if type(store) in _PROBED:
            return
        real(objects, ids, clock)
        # No other: a class of a test's own may behave in another way at the next object.
        if type(store) in {FileObjects, MemoryObjects}:
            _PROBED.add(type(store))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "_probe", probe_once)
        yield


@pytest.fixture
def probed_anew() -> Iterator[None]:
    """Nothing is trusted at the beginning of a test of the probe."""
    known = frozenset(_PROBED)
    _PROBED.clear()
    yield
    _PROBED.update(known)

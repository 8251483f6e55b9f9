"""The garbage collector leaves alone all that lives as long as the run."""

from __future__ import annotations

import gc

import pytest


def test_no_collection_goes_through_what_was_imported(request: pytest.FixtureRequest) -> None:
    """Neither the tests nor their modules; what tests make is collected as ever."""
    seen = {id(found) for found in gc.get_objects()}
    assert id(request.module.__dict__) not in seen
    assert id(pytest.__dict__) not in seen
    assert gc.isenabled()
    made = {"by": ["a test"]}
    assert gc.is_tracked(made)
    assert any(found is made for found in gc.get_objects())

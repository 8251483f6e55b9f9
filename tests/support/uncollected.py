"""All that the collection of tests makes is out of the garbage collector's sight.

All tests live to the end of a run, and so do the modules that they import: a million objects, of
which none is ever garbage. Each full collection goes through all that it sees, 0.1 to 0.2 s of the
processor, and imports alone cause a dozen of them.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from typing import Any

import pytest

__all__ = ["pytest_collection"]


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Leave what is imported to no collector, while it is imported and afterwards."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()

"""Profiles say how many examples a property gets; every property derives its number from them.

    ./spark-submit.sh test                                   few: the same ones in every run
    ./spark-submit.sh test --hypothesis-profile=night        many: others in every run

The environment variable `HYPOTHESIS_PROFILE` chooses one, too. A test that needs more or fewer than
others takes a share of the profile's number and never a number of its own: `@examples(2)`.

`default` is derandomised, so that a test which turns red does so because of the change at hand and
is red again for whoever repeats it; it neither reads nor writes Hypothesis's database of failures.
New examples are what `night` is for: it keeps its failures in the database, and prints what repeats
one without it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

if TYPE_CHECKING:
    import pytest

__all__ = ["PROFILES", "examples", "wide_examples"]

PROFILES: Final = {"default": 9, "night": 1000}
"""Examples of a property that asks for no other share, by profile."""

# No deadline, and no complaint of slowness: both would measure how busy the machine is.
_COMMON: Final = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)

settings.register_profile(
    "default", _COMMON, max_examples=PROFILES["default"], derandomize=True, database=None
)
# Everything is set here and nothing left to Hypothesis's defaults: where the variable `CI` is set,
# these are others (derandomised, without a database), and `night` would find nothing new there.
settings.register_profile(
    "night",
    _COMMON,
    max_examples=PROFILES["night"],
    derandomize=False,
    database=DirectoryBasedExampleDatabase(".hypothesis/examples"),
)


def pytest_addoption(pluginmanager: pytest.PytestPluginManager) -> None:
    """Load the profile, before any module of tests is imported: those derive their numbers."""
    config: Any = pluginmanager.get_plugin("pytestconfig")
    asked: str | None = config.known_args_namespace.hypothesis_profile
    settings.load_profile(asked or os.environ.get("HYPOTHESIS_PROFILE", "default"))


def examples(share: float = 1, **changed: Any) -> settings:
    """Settings with `share` times as many examples as the profile has, at least one."""
    current = settings.get_profile(settings.get_current_profile_name())
    return settings(current, max_examples=max(1, round(current.max_examples * share)), **changed)


def wide_examples(share: float = 1, **changed: Any) -> settings:
    """Like `examples`, for strategies so wide that a health check would complain by chance."""
    return examples(share, suppress_health_check=list(HealthCheck), **changed)

"""Profiles say how many examples a property gets; every property derives its number from them.

    ./spark-submit.sh test                                   few: the same ones in every run
    ./spark-submit.sh test --hypothesis-profile=night        many: others in every run
    ./spark-submit.sh test -m night                          the cases that other runs leave out

The environment variable `HYPOTHESIS_PROFILE` chooses one, too. A test that needs more or fewer than
others takes a share of the profile's number and never a number of its own: `@examples(2)`.

Cases that are written down follow the same rule: `some_of(cases, few)` names the few of each run,
and marks the others with `night`. They are deselected, and counted as such at the end of a run,
unless the profile is `night`, or they are asked for: by the marker, or by their ids.

`default` is derandomised, so that a test which turns red does so because of the change at hand and
is red again for whoever repeats it; it neither reads nor writes Hypothesis's database of failures.
New examples are what `night` is for: it keeps its failures in the database, and prints what repeats
one without it.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from typing import Any, Final, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.database import DirectoryBasedExampleDatabase

__all__ = ["PROFILES", "examples", "is_night", "one_of", "some_of", "wide_examples"]

Case = TypeVar("Case")

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


def is_night() -> bool:
    """True if this run is to find what others have not."""
    return settings.get_current_profile_name() == "night"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what is for the night."""
    is_asked = "night" in config.option.markexpr or any("::" in arg for arg in config.args)
    if is_night() or is_asked:
        return
    left_out = [item for item in items if item.get_closest_marker("night") is not None]
    items[:] = [item for item in items if item.get_closest_marker("night") is None]
    config.hook.pytest_deselected(items=left_out)


def some_of(cases: Iterable[Case], few: Collection[object]) -> list[Any]:
    """Values for `parametrize`: all cases, of which only `few` are in each run.

    Args:
        cases: Values of one parameter, or tuples of several.
        few: Some of them; or, of tuples that begin with a name, the names of some.

    Raises:
        ValueError: Nothing is named by one of the few: it was renamed.
    """
    names = [(case, case[0] if isinstance(case, tuple) else case) for case in cases]
    unknown = [one for one in few if not any(one in pair for pair in names)]
    if unknown:
        raise ValueError(f"no case is {unknown[0]!r}")
    return [case if case in few or name in few else _at_night(case) for case, name in names]


def one_of(n: int, cases: Iterable[Case]) -> list[Any]:
    """Values for `parametrize`: the first case in each run and every `n`th after it.

    For cases that are alike, as numbers of steps and seeds are.
    """
    return [_at_night(case) if i % n else case for i, case in enumerate(cases)]


def _at_night(case: object) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    if isinstance(case, tuple) and len(case) < 2:
        raise ValueError(f"{case!r} would be taken for the values of {len(case)} parameters")
    return pytest.param(*values, marks=pytest.mark.night)


def examples(share: float = 1, **changed: Any) -> settings:
    """Settings with `share` times as many examples as the profile has, at least one."""
    current = settings.get_profile(settings.get_current_profile_name())
    return settings(current, max_examples=max(1, round(current.max_examples * share)), **changed)


def wide_examples(share: float = 1, **changed: Any) -> settings:
    """Like `examples`, for strategies so wide that a health check would complain by chance."""
    return examples(share, suppress_health_check=list(HealthCheck), **changed)

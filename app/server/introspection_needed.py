"""Serving an application needs introspection, and is refused without it.

The page, the metrics and the commands for people ask for its relations.

    check_introspection(settings)    before anything starts
    no_introspection_error()         for an application that has none

A start checks this before it takes the location, which ends what runs there.
"""

from __future__ import annotations

from shardline.app.settings.config import RuntimeSettings
from shardline.datasource.errors import InvalidUsage

__all__ = ["check_introspection", "no_introspection_error"]


def check_introspection(settings: RuntimeSettings) -> None:
    """Refuse settings by which an application has no introspection.

    Raises:
        InvalidUsage: `NO_INTROSPECTION`: there would be nothing to answer with.
    """
    if not settings.introspection:
        raise no_introspection_error()


def no_introspection_error() -> InvalidUsage:
    """The error of an application that was to be served without introspection."""
    return InvalidUsage(
        "without introspection there is nothing to answer with",
        code="NO_INTROSPECTION",
        hint="turn runtime.introspection on; without it an application runs from Python only",
    )

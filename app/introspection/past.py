"""Refuses to look back where it is not known what was, with the nearest moment that is known.

    require_recorded(facts, "verdicts", ("verdict_history",), at_ms, now_ms)

An answer that is made up is worse than none: the last verdicts before the application was killed
are not those of the night in which it was down.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from shardline.app.introspection.facts import Facts
from shardline.app.introspection.histories import gaps
from shardline.app.introspection.verdicts.wording import span
from shardline.datasource.errors import InvalidUsage

__all__ = ["require_recorded"]


def require_recorded(
    facts: Facts, name: str, histories: Sequence[str], at_ms: int, now_ms: int
) -> None:
    """Check that it is known what a relation was at a moment.

    Args:
        facts: With the histories.
        name: Of the relation.
        histories: Names of the histories that it is made of.
        at_ms: The moment.
        now_ms: Now.

    Raises:
        InvalidUsage: It is not; the message says since when, or until when, it is.
    """
    if at_ms > now_ms:
        raise InvalidUsage(
            f"{_iso(at_ms)} has not come yet: it is {_iso(now_ms)}",
            code="NOT_YET",
            hint="leave 'as_of' out for the present",
        )
    began_ms = next((at for at, row in facts.runs.rows if row[0] == "start"), None)
    since = [one.since_ms(now_ms, began_ms) for one in facts.histories() if one.name in histories]
    known = [one for one in since if one is not None]
    if len(known) < len(histories):
        raise InvalidUsage(
            f"there is no history of relation '{name}' yet",
            code="BEFORE_HISTORY",
            hint="leave 'as_of' out for the present",
        )
    if at_ms < max(known):
        raise InvalidUsage(
            f"the history of relation '{name}' begins at {_iso(max(known))}, "
            f"{span(max(known) - at_ms)} after {_iso(at_ms)}",
            code="BEFORE_HISTORY",
            hint=f"as_of={max(known)} is the first moment that is known",
        )
    for from_ms, to_ms in gaps(facts.runs):
        if from_ms < at_ms < to_ms:
            raise InvalidUsage(
                f"nothing is known of {_iso(at_ms)}: no application ran, or it stood still, from "
                f"{_iso(from_ms)} to {_iso(to_ms)}",
                code="NOT_RECORDED",
                hint=f"as_of={from_ms} is the last moment before, as_of={to_ms} the first after",
            )


def _iso(at_ms: int) -> str:
    """A moment as people and relations write it, in UTC."""
    try:
        moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=at_ms)
    except OverflowError:
        return f"{at_ms} ms since the epoch"  # a year that no calendar here has
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

"""Stalls of a sink: what its input and its target have does not fit, and a person has to decide.

To go on would leave rows out, or bring them twice, and nothing later would show it. To try again
would change nothing.

    input_replaced        the input was dropped and made again
    history_forgotten     the input no longer has the changes that the target lacks
    beginning_forgotten   nor those that a new sink without snapshot begins with
    input_went_back       the input is an older copy than the target
    target_went_back      the target is an older copy than the accounts, or another target
    target_came_back      it was only away: the sink is started again
"""

from __future__ import annotations

from typing import Final

from shardline.app.protocol.objects import SinkDescription
from shardline.app.storage.formats import path_option
from shardline.datasource.errors import Determinate, InvalidUsage
from shardline.datasource.frontier import Frontier, with_date

__all__ = [
    "TARGET_WENT_BACK",
    "SinkStalled",
    "beginning_forgotten",
    "history_forgotten",
    "input_replaced",
    "input_went_back",
    "target_came_back",
    "target_went_back",
]

TARGET_WENT_BACK: Final = "TARGET_WENT_BACK"
"""Code of the one that may end by itself."""


class SinkStalled(InvalidUsage):
    """A sink cannot go on until a person has put its input or its target right."""


def input_replaced(sink: SinkDescription) -> SinkStalled:
    """The error of a sink whose target has the rows of an input that is gone."""
    return SinkStalled(
        f"'{sink.on}' was dropped and made again: what sink '{sink.name}' has written is of the "
        "old one, whose rows nobody can take back any more",
        code="INPUT_REPLACED",
        hint="drop the sink, empty its target and create it again, or give it another one; "
        f"{_not_again(sink)}",
    )


def input_went_back(sink: SinkDescription, there: Frontier, upper: Frontier) -> SinkStalled:
    """The error of a sink whose target has changes that its input has not had yet.

    Args:
        sink: The sink.
        there: How far its target is.
        upper: How far its input is.
    """
    return SinkStalled(
        f"the target of sink '{sink.name}' has everything up to {with_date(there)}, and "
        f"'{sink.on}' is at {with_date(upper)}: it was restored from a copy, and what it is "
        "given now may be there already",
        code="INPUT_WENT_BACK",
        hint="restore the target to the same moment; or drop the sink, empty its target and "
        f"create it again; {_not_again(sink)}",
    )


def history_forgotten(sink: SinkDescription, committed: Frontier, since: Frontier) -> SinkStalled:
    """The error of a sink that was away for longer than its input keeps history.

    Args:
        sink: The sink.
        committed: How far its target is.
        since: Where the input's history begins.
    """
    return SinkStalled(
        f"the target of sink '{sink.name}' has everything up to {with_date(committed)}, and "
        f"'{sink.on}' knows its changes from {with_date(since)} on only: the sink was dropped, or "
        "its hold ended, for longer than that keeps its history",
        code="HISTORY_GONE",
        hint="drop the sink, empty its target and create it again, or give it another one; a sink "
        f"that is paused keeps its hold, and RETAIN HISTORY of '{sink.on}' says for how long one "
        f"may be dropped; {_not_again(sink)}",
    )


def beginning_forgotten(sink: SinkDescription, wanted: int, since: Frontier) -> SinkStalled:
    """The error of a sink without snapshot that could not begin while its input kept history.

    Args:
        sink: The sink, whose target has nothing yet.
        wanted: When it was to begin.
        since: Where the input's history begins.
    """
    return SinkStalled(
        f"sink '{sink.name}' was to begin with the changes after {with_date(wanted)}, and "
        f"'{sink.on}' knows its changes from {with_date(since)} on only: the sink had not begun, "
        "and had no hold on it, for longer than that keeps its history",
        code="HISTORY_GONE",
        hint="drop the sink and create it again: it then begins with what changes from that moment "
        f"on; {_not_again(sink)}",
    )


def target_went_back(sink: SinkDescription, given: Frontier) -> SinkStalled:
    """The error of a sink whose target does not have what it was given.

    Args:
        sink: The sink.
        given: Up to where it was given rows.
    """
    return SinkStalled(
        f"sink '{sink.name}' has given its target{_named(sink)} rows of times up to "
        f"{with_date(given)}, and it has them no more: it was emptied or restored from a copy, or "
        "it is another one, since a relative path counts from the folder in which the application "
        "was started",
        code=TARGET_WENT_BACK,
        hint="bring the target back, and it goes on; or drop the sink, empty its target and create "
        "it again",
    )


def target_came_back(sink: SinkDescription) -> Determinate:
    """The error by which a sink is started again whose target was away for a while."""
    return Determinate(
        f"the target of sink '{sink.name}' has again what it was given",
        code="TARGET_CAME_BACK",
        hint="nothing is to be done: the sink goes on",
    )


def _named(sink: SinkDescription) -> str:
    """The path or the shard of a target, as its user wrote it; "" if it has neither."""
    shards = (text for name, text in sink.options.items() if name.lower() == "shard")
    name = path_option(sink.options) or next(shards, None)
    return "" if name is None else f" '{name}'"


def _not_again(sink: SinkDescription) -> str:
    return f"it is not tried again by itself: `restart {sink.name}` does"

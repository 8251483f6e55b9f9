"""The action log records what a person has asked a running application to do, and what came of it.

    with recorded_action(observe, clock, "restart", "delays"):
        …                                                        done, or raises

The introspection sink keeps it as a history. What only says what it would do is no action.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shardline.app.introspection.events import Acted, ActionOutcome
from shardline.datasource.clock import Clock
from shardline.datasource.errors import Determinate, InvalidUsage

__all__ = ["Observe", "recorded_action"]

Observe = Callable[[Acted], None]
"""Takes what was done; returns at once."""


@contextmanager
def recorded_action(observe: Observe, clock: Clock, action: str, target: str) -> Iterator[None]:
    """Record an action when it has ended.

    Args:
        observe: Takes the record.
        clock: The time of the record.
        action: Name of the action.
        target: What it is about: an object, a shard, a hold, a setting with its value.
    """
    # An error of any other class says nothing of what was done before it.
    outcome: ActionOutcome = "unknown"
    message = ""
    try:
        yield
        outcome = "done"
    except (Determinate, InvalidUsage) as error:
        outcome, message = "refused", str(error)
        raise
    except BaseException as error:
        message = str(error) or type(error).__name__
        raise
    finally:
        observe(
            Acted(
                at_ms=clock.now_ms(),
                action=action,
                target=target,
                outcome=outcome,
                message=message,
            )
        )

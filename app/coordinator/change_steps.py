"""A change of several steps that fails may have been done in part: its error says so.

    with steps_of("the drop of `delays`", "look with `status`"):
        …                        several requests, to the lane and to the store

`Determinate` is true of the request that failed, and says that asking again is safe. Of a change
that has made other requests before it would say that nothing was done.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from shardline.datasource.errors import Determinate, Indeterminate

__all__ = ["steps_of"]


@contextmanager
def steps_of(change: str, hint: str) -> Iterator[None]:
    """Make the steps of a change in this block.

    Args:
        change: What it is, within a sentence.
        hint: What to do if its outcome is not known, and the error does not say it.

    Raises:
        Indeterminate: A step has failed, or its outcome is not known; with the code of its error.
    """
    try:
        yield
    except (Determinate, Indeterminate) as error:
        raise Indeterminate(
            f"it is not known whether {change} was done, or how much of it: {error.detail}",
            code=error.code,
            hint=error.hint or hint,
        ) from error

"""Sentences by which a runtime refuses what it is asked for, whatever that is."""

from __future__ import annotations

from typing import Final

__all__ = ["STOPPING", "no_thread"]

STOPPING: Final = "[STOPPED] the runtime is stopping — hint: ask again when it runs"


def no_thread(error: RuntimeError) -> str:
    """The refusal of what needs a thread that could not be started."""
    return f"[NO_THREAD] {error} — hint: end other programs on this machine, and ask again"

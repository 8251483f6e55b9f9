"""The progress of a start names the step under way and how long the start has taken so far.

A JVM, a project that Spark checks and a runtime take from ten seconds to a minute before there is
anything to ask. On a terminal the steps pass on one line that goes away in the end; elsewhere each
is a line.

    with StartProgress(console) as progress:
        progress.step("starting Spark")
        progress.follow(lambda: f"{feed.landed_days} days have arrived")
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from rich.console import Console
from rich.progress import (
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text
from typing_extensions import override

__all__ = ["StartProgress"]

_REFRESHES_PER_S: Final = 4.0


class StartProgress:
    """The step under way of a start. Use it as a context manager."""

    def __init__(self, console: Console) -> None:
        """Prepare to show steps on `console`."""
        self._console = console
        self._news = _News()
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
            self._news,
            console=console,
            transient=True,
            refresh_per_second=_REFRESHES_PER_S,
            # What is written meanwhile is somebody's result or an error: it must stay.
            redirect_stdout=False,
            redirect_stderr=False,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task("starting", total=None)

    def __enter__(self) -> Self:
        """Begin to show."""
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Clear the line."""
        self.stop()

    def stop(self) -> None:
        """Clear the line before the end, for what is to be printed without it; idempotent."""
        self._progress.stop()

    def step(self, words: str) -> None:
        """Show that a step has begun, such as `checking the project`."""
        if self._console.is_terminal:
            self._progress.update(self._task, description=words)
        else:
            self._console.print(f"{words} …", markup=False)

    def follow(self, news: Callable[[], str]) -> None:
        """Show, behind the step under way, what `news` returns at each moment; on a terminal only.

        Args:
            news: Called a few times a second by a thread of the display.
        """
        self._news.read = news


class _News(ProgressColumn):
    """What happens beside the steps."""

    read: Callable[[], str] = staticmethod(lambda: "")

    @override
    def render(self, task: Task) -> Text:
        """Return what is to be shown now."""
        return Text(self.read(), style="dim")

"""The rest pace lets uppers follow the clock less often while nothing happens in an application.

While nothing arrives, each source moves its uppers with the clock all the same, and each view
follows with an append without rows. With a hundred objects that is more than a hundred records a
second, of which nobody learns anything but the time. So when nothing has come to any object for a
minute, all sources move their uppers at the same moments further apart; and with the first news of
anything they move them at each interval again.

    rest = RestPace(clock, interval_ms=1000, rest_ms=5000)
    rest.note_news()          a micro-batch has rows, a step was taken
    rest.note_time(time_ms)   the upper of a source has passed a time
    rest.moment(now_ms)       the time that uppers should have reached by now

All at once, and not each source by itself: a view over two sources would else wait for the one that
rests when rows of the other are there. A source whose upper moves in between without news takes all
others along at their next tick: a strict read is never made before a time that an earlier one has
seen, and would wait for what rests.

What a caller relies on:
    Rows are never delayed: they are committed as they come, and are news before they are visible.
    With `rest_ms` not greater than `interval_ms` nothing ever changes.
"""

from __future__ import annotations

from typing import Final

from shardline.datasource.clock import Clock

__all__ = ["RestPace"]

_QUIET_MS: Final = 60_000.0
"""An application rests when it has had no news for so long."""


class RestPace:
    """How often the sources of one runtime move their uppers. May be shared between threads."""

    def __init__(self, clock: Clock, interval_ms: int, rest_ms: int) -> None:
        """Begin awake.

        Args:
            clock: The driver's clock.
            interval_ms: Distance of the moments while there is news.
            rest_ms: Their distance at rest, at most; a multiple of `interval_ms` is taken.
        """
        self._clock = clock
        self._interval_ms = interval_ms
        # A multiple: sources tick at multiples of the interval, and would else come long after some
        # moments. With 3 s and 5 s uppers would be up to 9 s behind, and called late.
        self._rest_ms = max(rest_ms // interval_ms, 1) * interval_ms
        self._news_ms = clock.elapsed_ms()
        self._time_ms = 0

    @property
    def rest_ms(self) -> int:
        """The distance of the moments at rest."""
        return self._rest_ms

    @property
    def is_resting(self) -> bool:
        """True if there was no news for a minute."""
        return self._clock.elapsed_ms() - self._news_ms >= _QUIET_MS

    def note_news(self) -> None:
        """Move uppers at each interval, for a minute from now on."""
        self._news_ms = self._clock.elapsed_ms()

    def note_time(self, time_ms: int) -> None:
        """Note that the upper of a source has passed this time."""
        # Unlocked: of two at once the earlier one may win, and one source then moves a moment late.
        self._time_ms = max(self._time_ms, time_ms)

    def moment(self, now_ms: int) -> int:
        """The last moment at or before `now_ms` to which uppers should move; ms since the epoch."""
        moment_ms = now_ms // self._interval_ms * self._interval_ms
        # As of that moment, and not of now: a source that asks a little later than another, when
        # the rest has just begun, would stay seconds behind it, and what reads both as well.
        since_news_ms = self._clock.elapsed_ms() - (now_ms - moment_ms) - self._news_ms
        if since_news_ms < _QUIET_MS:
            return moment_ms
        # Not beyond the clock: the time of a commit is rounded up, and the clock may be set back.
        return max(now_ms // self._rest_ms * self._rest_ms, min(self._time_ms, moment_ms))

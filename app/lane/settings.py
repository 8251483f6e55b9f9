"""The lane's settings are one frozen value: bounds and pauses.

Those that `LANE_KNOBS` names are settings of section `[runtime]` and may change while it runs;
`start_threads` and `lease_ms` are settings too. The others are constants: they follow from how the
lane is built, and no load makes another value better.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Final

from shardline.app.settings.live import (
    LiveSetting,
    LiveSettings,
    parse_positive_count,
    parse_positive_ms,
)
from shardline.datasource.errors import InvalidUsage

__all__ = ["LANE_KNOBS", "LaneSettings"]


@dataclass(frozen=True, slots=True)
class LaneSettings:
    """Settings of the lane. All times are milliseconds.

    Attributes:
        start_threads: How many objects are rendered at a time. More start a large project sooner
            and load the driver more. 4: rendering is mostly waiting for the driver's one JVM.
        stop_threads: How many stops are waited for at a time. A stop that hangs keeps its thread,
            so this is how many may hang before others wait. 32.
        queue_max: Commands that wait for their position; beyond it a producer waits. 10,000.
        group_max: Most commands in one append. Larger groups go faster and are lost together. 256.
        hydration_concurrency: How many compute objects hydrate at a time. More hydrate a few small
            views sooner; many large ones only take memory from each other. 4.
        hydration_patience_ms: An object that has not hydrated by then frees its slot for the next
            one and goes on: its input may be what waits for a slot. 60 s.
        restart_base_ms: Pause before an object that has failed is started again; doubles with each
            failure in a row, give or take half. 1 s.
        restart_max_ms: The longest such pause. 30 s, as Materialize.
        healthy_ms: An object that ran for so long has not failed "in a row". 60 s.
        stuck_ms: A start or a stop that takes longer is logged as an error, once. 60 s.
        tick_ms: The lane looks at its timers, and a read-only one at the log, so often. 200 ms.
        lease_ms: The holder is believed to live for so long after its last heartbeat; a heartbeat
            is one commit, twice per lease. Longer survives longer pauses, shorter lets another
            runtime take over sooner after a crash of the machine. 15 s.
        snapshot_every: A whole state is recorded after so many records: what opening the lane
            folds at most. 256.
        keep_records: So many records stay for `command_history`. 1,000.
    """

    start_threads: int = 4
    stop_threads: int = 32
    queue_max: int = 10_000
    group_max: int = 256
    hydration_concurrency: int = 4
    hydration_patience_ms: int = 60_000
    restart_base_ms: int = 1_000
    restart_max_ms: int = 30_000
    healthy_ms: int = 60_000
    stuck_ms: int = 60_000
    tick_ms: int = 200
    lease_ms: int = 15_000
    snapshot_every: int = 256
    keep_records: int = 1_000

    def __post_init__(self) -> None:
        """Refuse values that cannot work.

        Raises:
            InvalidUsage: A number is not at least 1, or the longest pause is shorter than the
                first one.
        """
        for field in dataclasses.fields(self):
            if getattr(self, field.name) < 1:
                raise InvalidUsage(
                    f"setting '{field.name}' is {getattr(self, field.name)}",
                    code="INVALID_SETTING",
                    hint="use a whole number of at least 1",
                )
        if self.restart_max_ms < self.restart_base_ms:
            raise InvalidUsage(
                # By the names that people write: both, as one of them may be a default.
                f"setting 'runtime.restart_pause_max' is {self.restart_max_ms}ms, less than "
                f"'runtime.restart_pause', which is {self.restart_base_ms}ms",
                code="INVALID_SETTING",
                hint=f"let restart_pause_max be at least {self.restart_base_ms}ms",
            )


LANE_KNOBS: Final[LiveSettings] = {
    "hydration_concurrency": LiveSetting("hydration_concurrency", parse_positive_count),
    "hydration_patience": LiveSetting("hydration_patience_ms", parse_positive_ms),
    "restart_pause": LiveSetting("restart_base_ms", parse_positive_ms),
    "restart_pause_max": LiveSetting("restart_max_ms", parse_positive_ms),
    "restart_healthy": LiveSetting("healthy_ms", parse_positive_ms),
}
"""The settings that may change while the lane runs, by name; the order records their values."""

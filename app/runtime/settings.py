"""The runtime's settings gather the bounds and pauses of its parts, and say which may change.

A setting can be written in section `[runtime]`, sent by a controller, and be recorded in the lane's
order, where the next runtime reads it. A value that cannot be applied has to be refused before it
is recorded: afterwards every start would meet it again.

    parts = part_settings_of(settings)           from section `[runtime]`
    parts.changed({"index_limit": "1g"})         with other values
    check_commands(commands, recorded, parts)    refuses values that cannot be applied

Invariants:
    A name means the same in `[runtime]`, in `UpdateConfiguration` and in the lane's order.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from shardline.app.compute.index.index import INDEX_KNOBS, IndexSettings
from shardline.app.compute.peek.answer import PEEK_KNOBS, PeekSettings
from shardline.app.compute.subscribe.subscription import SUBSCRIBE_KNOBS, SubscribeSettings
from shardline.app.lane.settings import LANE_KNOBS, LaneSettings
from shardline.app.protocol.compute import UpdateConfiguration
from shardline.app.settings.config import DemoSettings, LogSettings, RuntimeSettings
from shardline.app.settings.live import parse_positive_ms, with_live_values
from shardline.app.transport.session import Limits
from shardline.datasource.errors import InvalidUsage, unknown_name

__all__ = [
    "CHANGEABLE",
    "PartSettings",
    "RuntimeOptions",
    "changeable_values",
    "check_commands",
    "part_settings_of",
    "with_checked_values",
]

_log = logging.getLogger(__name__)

CHANGEABLE: Final = (*LANE_KNOBS, *PEEK_KNOBS, *SUBSCRIBE_KNOBS, *INDEX_KNOBS)
"""Names of the settings that may change while a runtime runs."""

_FIXED: Final = {
    name: section
    for section, settings in (
        ("log", LogSettings),
        ("demo", DemoSettings),
        ("runtime", RuntimeSettings),
    )
    for name in settings.__struct_fields__
    if name not in CHANGEABLE
}
"""The sections of the settings that may not change, by their names."""

_ANSWERED_WITHIN_MS: Final = 2000
"""At most so much of a query's time is kept for its error to arrive: it takes milliseconds."""

_HEARTBEATS: Final = 3
"""Heartbeats of a connection per `controller_silence`: so many are missed before it is closed."""


@dataclass(frozen=True, slots=True)
class PartSettings:
    """The settings of one runtime.

    Attributes:
        lane: Settings of starts, stops, restarts and hydration.
        peeks: Settings of queries.
        subscribes: Settings of each subscription.
        indexes: Settings of each index.
        connections: Bounds of each controller's connection; cannot change while it runs.
    """

    lane: LaneSettings = field(default_factory=LaneSettings)
    peeks: PeekSettings = field(default_factory=PeekSettings)
    subscribes: SubscribeSettings = field(default_factory=SubscribeSettings)
    indexes: IndexSettings = field(default_factory=IndexSettings)
    connections: Limits = field(default_factory=Limits)

    def changed(self, given: Mapping[str, str]) -> PartSettings:
        """A copy with other values; names that are not `CHANGEABLE` are ignored.

        Raises:
            InvalidUsage: A value cannot be parsed, or does not go with the others.
        """
        return PartSettings(
            lane=with_live_values(self.lane, LANE_KNOBS, given),
            peeks=with_live_values(self.peeks, PEEK_KNOBS, given),
            subscribes=with_live_values(self.subscribes, SUBSCRIBE_KNOBS, given),
            indexes=with_live_values(self.indexes, INDEX_KNOBS, given),
            connections=self.connections,
        )

    def with_recorded(self, recorded: Mapping[str, str]) -> PartSettings:
        """A copy with the values of the lane's order; `self` if they cannot be applied.

        Another version may have recorded them. To fail would stop this runtime at each start.
        """
        try:
            return self.changed(recorded)
        except InvalidUsage as error:
            _log.warning("settings not taken", extra={"context": {"error": str(error)}})
            return self


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """Everything that a runtime is made with.

    Attributes:
        checkpoints: Folder of the checkpoints, of this location alone.
        storage: Options of the location's store.
        interval_ms: As of `Host`.
        interval_max_ms: The most that sources wait between two commits when views cannot follow.
        rest_interval_ms: Distance of the times that uppers move to while nothing happens.
        self_check_every: As of `Host`.
        part_settings: As configured; values that the lane's order has recorded replace them.
    """

    checkpoints: Path
    storage: Mapping[str, str] = field(default_factory=dict)
    interval_ms: int = 1000
    interval_max_ms: int = 10_000
    rest_interval_ms: int = 5000
    self_check_every: int = 1000
    part_settings: PartSettings = field(default_factory=PartSettings)


def check_commands(
    commands: Iterable[object], recorded: Mapping[str, str], parts: PartSettings
) -> None:
    """Refuse `UpdateConfiguration`s that cannot be applied, before any of them is recorded.

    Args:
        commands: Commands of a controller; others than `UpdateConfiguration` pass.
        recorded: The settings that the lane's order has recorded so far.
        parts: The settings of the runtime's parts, without those.

    Raises:
        InvalidUsage: A setting is unknown, may not change, or has no such value; it is named.
    """
    # With what the order has recorded: two values may be right alone and not go together.
    for command in commands:
        if isinstance(command, UpdateConfiguration):
            with_checked_values(command.settings, parts.changed({**recorded, **command.settings}))


def part_settings_of(settings: RuntimeSettings) -> PartSettings:
    """The settings of section `[runtime]`.

    Raises:
        InvalidUsage: Values do not go together.
    """
    silence_ms = parse_positive_ms(settings.controller_silence)
    fixed = PartSettings(
        lane=LaneSettings(
            start_threads=settings.start_concurrency, lease_ms=parse_positive_ms(settings.lease)
        ),
        peeks=PeekSettings(
            threads=settings.query_concurrency,
            settle_ms=_settle_ms(parse_positive_ms(settings.query_timeout)),
        ),
        connections=Limits(silence_ms=silence_ms, heartbeat_ms=max(silence_ms // _HEARTBEATS, 1)),
    )
    return fixed.changed(changeable_values(settings))


def _settle_ms(query_timeout_ms: int) -> int:
    """How long a query waits for its objects: less than for its answer.

    The one who gives up first gives the reason: here it is the object that is behind, and
    everywhere further out only the time that is over.
    """
    return query_timeout_ms - min(query_timeout_ms // 10, _ANSWERED_WITHIN_MS)


def changeable_values(settings: RuntimeSettings) -> dict[str, str]:
    """The values of all settings that may change, as `UpdateConfiguration` carries them."""
    return {name: str(getattr(settings, name)) for name in CHANGEABLE}


def with_checked_values(given: Mapping[str, str], parts: PartSettings) -> PartSettings:
    """Return `parts` with the values of `given`, all of which must be changeable settings.

    Raises:
        InvalidUsage: There is no such setting, it may not change, or it cannot have this value.
    """
    for name in given:
        if name in _FIXED:
            raise InvalidUsage(
                f"setting '{name}' is read when an application starts, and cannot change later",
                code="SETTING_NEEDS_START",
                hint=f"write it into section [{_FIXED[name]}] of the settings file (conf/app.toml, "
                "or that of --config), and start the application again",
            )
        if name not in CHANGEABLE:
            raise unknown_name("changeable setting", name, CHANGEABLE)
    return parts.changed(given)

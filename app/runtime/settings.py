"""Bounds and pauses of all that a runtime does, and which of them may change while it runs.

    bounds = bounds_of(settings)                          as section `[runtime]` says
    bounds.changed({"index_limit": "1g"})                 with other values
    check_configuration({"index_limit": "1g"}, bounds)    refuses what no runtime would take over

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
from shardline.app.settings.config import RuntimeSettings
from shardline.app.settings.live import positive_ms, tuned
from shardline.app.transport.session import Limits
from shardline.datasource.errors import InvalidUsage, unknown_name

__all__ = [
    "CHANGEABLE",
    "Bounds",
    "RuntimeOptions",
    "bounds_of",
    "check_commands",
    "check_configuration",
    "configuration_of",
]

_log = logging.getLogger(__name__)

CHANGEABLE: Final = (*LANE_KNOBS, *PEEK_KNOBS, *SUBSCRIBE_KNOBS, *INDEX_KNOBS)
"""Names of the settings that may change while a runtime runs."""

_HEARTBEATS: Final = 3
"""How often a controller's silence is asked about before it is taken to be gone."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of one runtime.

    Attributes:
        lane: Of starts, stops, restarts and hydration.
        peeks: Of queries.
        subscribes: Of each subscription.
        indexes: Of each index.
        connections: Of each controller's connection.
    """

    lane: LaneSettings = field(default_factory=LaneSettings)
    peeks: PeekSettings = field(default_factory=PeekSettings)
    subscribes: SubscribeSettings = field(default_factory=SubscribeSettings)
    indexes: IndexSettings = field(default_factory=IndexSettings)
    connections: Limits = field(default_factory=Limits)

    def changed(self, given: Mapping[str, str]) -> Bounds:
        """These with other values; names that are not `CHANGEABLE` are passed over.

        Raises:
            InvalidUsage: A value is none, or does not go with the others.
        """
        return Bounds(
            lane=tuned(self.lane, LANE_KNOBS, given),
            peeks=tuned(self.peeks, PEEK_KNOBS, given),
            subscribes=tuned(self.subscribes, SUBSCRIBE_KNOBS, given),
            indexes=tuned(self.indexes, INDEX_KNOBS, given),
            connections=self.connections,
        )

    def heeding(self, said: Mapping[str, str]) -> Bounds:
        """As `changed`, of what the lane's order says; these, if another version has said it."""
        try:
            return self.changed(said)
        except InvalidUsage as error:
            _log.warning("settings not taken", extra={"context": {"error": str(error)}})
            return self


@dataclass(frozen=True, slots=True)
class RuntimeOptions:
    """What a runtime is made with.

    Attributes:
        checkpoints: Folder of the checkpoints, of this location alone.
        storage: Options of the location's store.
        interval_ms: As of `Host`.
        interval_max_ms: The most that sources wait between two commits when views cannot follow.
        bounds: Of all that it does; what the lane's order says of them comes on top.
    """

    checkpoints: Path
    storage: Mapping[str, str] = field(default_factory=dict)
    interval_ms: int = 1000
    interval_max_ms: int = 10_000
    bounds: Bounds = field(default_factory=Bounds)


def check_commands(commands: Iterable[object], said: Mapping[str, str], bounds: Bounds) -> None:
    """Refuse settings of `UpdateConfiguration`s that cannot be taken over, before any is recorded.

    Args:
        commands: Of a controller.
        said: What the lane's order says so far.
        bounds: What a runtime does without that.

    Raises:
        InvalidUsage: Names the setting.
    """
    for command in commands:
        if isinstance(command, UpdateConfiguration):
            check_configuration(command.settings, bounds.changed({**said, **command.settings}))


def bounds_of(settings: RuntimeSettings) -> Bounds:
    """What section `[runtime]` says.

    Raises:
        InvalidUsage: Values do not go together.
    """
    silence_ms = positive_ms(settings.controller_silence)
    fixed = Bounds(
        lane=LaneSettings(
            start_threads=settings.start_concurrency, lease_ms=positive_ms(settings.lease)
        ),
        peeks=PeekSettings(
            threads=settings.query_concurrency, settle_ms=positive_ms(settings.query_timeout)
        ),
        connections=Limits(silence_ms=silence_ms, heartbeat_ms=max(silence_ms // _HEARTBEATS, 1)),
    )
    return fixed.changed(configuration_of(settings))


def configuration_of(settings: RuntimeSettings) -> dict[str, str]:
    """The values of all settings that may change, as `UpdateConfiguration` carries them."""
    return {name: str(getattr(settings, name)) for name in CHANGEABLE}


def check_configuration(given: Mapping[str, str], bounds: Bounds) -> Bounds:
    """What `bounds` become by `given`.

    Raises:
        InvalidUsage: There is no such setting that may change, or a value cannot be.
    """
    for name in given:
        if name not in CHANGEABLE:
            raise unknown_name("changeable setting", name, CHANGEABLE)
    return bounds.changed(given)

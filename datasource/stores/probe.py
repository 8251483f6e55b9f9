"""Creates a location after a test that its store honours conditions, and reads its marker.

Several servers that speak S3 ignore `If-None-Match`, and some check it with a race: on such a store
two writers would both get the answer that they committed. So before anything else is written, one
key is created twice, and several threads create the same few fresh keys at once. A store that fails
this is refused.

The marker `_shardline` at the root shows that the location exists and was probed. It holds the
format, the location's id, and the grace that all writers and truncators must agree on.

Invariants:
    a reader never probes and never writes;
    a marker never changes once it exists;
    a location that has shards and has lost its marker is never given another id.
"""

from __future__ import annotations

import json
import re
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from shardline.datasource.errors import Corrupt, Determinate, InvalidUsage, ShardError
from shardline.datasource.ids import is_id, new_id
from shardline.datasource.stores.entry import newest_entry
from shardline.datasource.stores.location import MARKER
from shardline.datasource.stores.objects import CREATED, Unresolved
from shardline.datasource.stores.shard_names import is_shard_directory, shard_name
from shardline.datasource.waiting import RetryPolicy

if TYPE_CHECKING:
    from shardline.datasource.clock import Clock, IdGenerator
    from shardline.datasource.stores.location import Location
    from shardline.datasource.stores.objects import CreateOutcome, Objects

__all__ = [
    "FORMAT_VERSION",
    "IfMissing",
    "Marker",
    "ensure_location",
    "ensure_same_location",
    "find_leftover",
    "has_objects_of_shard",
    "lost_log",
    "refuse_location",
]

FORMAT_VERSION: Final = 1
"""Version of the layout below a location: which objects there are and how logs are read."""

IfMissing: TypeAlias = Literal["refuse", "create"]

_OF_A_LOG: Final = re.compile(r"floor/[0-7][0-9a-f]{15}|rollup/[0-7][0-9a-f]{15}-.+")
"""Objects below a shard's directory that are only written where its log is."""

_KINDS: Final = ("log", "part", "floor", "rollup")
"""Directories of a shard."""

_LOOKED_AT_MAX: Final = 50
"""Directories in which a location is looked for where there is none."""

_RECORD: Final = re.compile(r"log/[0-7][0-9a-f]{15}")
"""A record of a shard's log, below the shard's directory."""

_RACERS: Final = 8
_RACES: Final = 4
_RETRIES: Final = RetryPolicy(first_ms=50, longest_ms=50, attempts_max=8)


@dataclass(frozen=True, slots=True)
class Marker:
    """The contents of a location's marker.

    Attributes:
        format_version: Version of the layout; one greater than ours is refused.
        location_id: A random id, made with the location.
        grace_ms: Grace period of all its logs: see `shardline.datasource.stores.log`.
    """

    format_version: int
    location_id: str
    grace_ms: int


def ensure_location(
    objects: Objects, *, clock: Clock, ids: IdGenerator, if_missing: IfMissing, grace_ms: int
) -> Marker:
    """Read the location's marker; if there is none, refuse, or probe the store and write one.

    Args:
        objects: The store, with retries.
        clock: Waits between attempts.
        ids: Makes the location's id and the probe's keys.
        if_missing: `refuse` raises where there is no location; `create` makes one.
        grace_ms: Grace of a new location, ms; an existing one keeps its own.

    Raises:
        InvalidUsage: There is no location (`LOCATION_NOT_FOUND`), its store does not honour
            conditions (`STORE_NOT_ATOMIC`), or it was made by a newer version
            (`LOCATION_TOO_NEW`).
        Corrupt: The marker is not one of ours, or it is lost (`MARKER_MISSING`).
    """
    stored = objects.get(MARKER)
    if stored is None and (shard := _find_shard(objects, if_missing)) is not None:
        # Another process makes the location and a shard at this moment, the marker first; or the
        # marker is lost.
        stored = objects.get(MARKER)
        if stored is None:
            raise _marker_missing(objects.url, shard)
    if stored is None and if_missing == "refuse":
        raise _not_found(objects)
    if stored is None:
        _probe(objects, ids, clock)
        marker = Marker(FORMAT_VERSION, new_id("l", ids), grace_ms)
        stored = _create_or_read(objects, MARKER, _encode(marker), ids, clock)
    return _decode_twice(stored, objects)


def ensure_same_location(
    objects: Objects, marker: Marker, *, clock: Clock, ids: IdGenerator, if_missing: IfMissing
) -> None:
    """Refuse to make anything in a location that is another one by now; a lost marker is put back.

    Args:
        objects: The store, with retries.
        marker: Of the location that was opened.
        clock: Waits between attempts.
        ids: Makes tokens.
        if_missing: As the location was opened: `refuse` puts nothing back.

    Raises:
        InvalidUsage: The location was deleted (`LOCATION_NOT_FOUND`), or another one was made at
            its URL (`LOCATION_REPLACED`).
        Corrupt: The marker is not one of ours.
    """
    stored = objects.get(MARKER)
    if stored is None and if_missing == "refuse":
        raise _not_found(objects)
    if stored is None:
        stored = _create_or_read(objects, MARKER, _encode(marker), ids, clock)
    found = _decode_twice(stored, objects)
    if found.location_id != marker.location_id:
        raise InvalidUsage(
            f"the location at '{objects.url}' is another one than this process has opened: that "
            "one was deleted, or a copy of another one was put in its place",
            code="LOCATION_REPLACED",
            hint="open it again: in a session of Spark, start that again",
        )


def refuse_location(location: Location, directory: str) -> None:
    """Refuse to make a shard in a folder that is a location: two sorts of things in one.

    It happens where the last part of a path is forgotten, and neither could be deleted or repaired
    without the other.

    Raises:
        InvalidUsage: There is the marker of a location.
    """
    if location.blob.get(f"{directory}/{MARKER}") is not None:
        raise InvalidUsage(
            f"'{location.url}/{directory}' is a location, and cannot be a shard as well",
            code="IS_LOCATION",
            hint="name the shard behind it: LOCATION/SHARD",
        )


def has_objects_of_shard(objects: Objects, directory: str) -> bool:
    """True if there is something where a shard has it: what any folder with folders has not.

    Args:
        objects: The store, from the root of a location.
        directory: Below it.
    """
    places = (f"{directory}/{kind}/" for kind in _KINDS)
    return any(True for place in places for _ in objects.entries(place, limit=1))


def find_leftover(location: Location, directory: str, before_ms: int) -> str | None:
    """The key of an object that was written for a shard which had a log; None if there is none.

    Args:
        location: The location.
        directory: Of a shard without a log.
        before_ms: Parts older than this count. A younger one may be staged for the very shard that
            is to be made, or be a probe; and writers whose shard was deleted leave some.
    """
    for entry in location.entries(f"{directory}/"):
        below = entry.key.removeprefix(f"{directory}/")
        is_old = 0 < entry.modified_ms < before_ms and entry.size_bytes > 0
        if _OF_A_LOG.fullmatch(below) or (is_old and below.startswith("part/")):
            return entry.key
    return None


def lost_log(location: Location, directory: str, leftover: str) -> Corrupt:
    """The error for a shard that cannot be made, because an earlier one has lost its log there.

    Its parts are the last copy of its rows: they would become orphans of the new shard, and be
    swept. Of the new log, records would be created below the floor that is left, and be lost.
    """
    return Corrupt(
        f"'{directory}' at '{location.url}' has objects of a shard, such as '{leftover}', and no "
        "record of its log",
        code="SHARD_WITHOUT_LOG",
        hint="restore its log/ and floor/ from a backup; if the shard is not coming back, delete "
        "the directory",
    )


def _find_shard(objects: Objects, if_missing: IfMissing) -> str | None:
    """The directory of a shard that has a log; None if there is none that may be read."""
    try:
        directories = objects.directories()
    except ShardError:
        # Of what is not to be found, nothing else that goes wrong is of interest.
        if if_missing == "create":
            raise
        return None
    for directory in filter(is_shard_directory, directories):
        # Somebody else's directory, where a location is to be made beside it, may be closed to us.
        with suppress(InvalidUsage):
            if newest_entry(objects, f"{directory}/log/") is not None:
                return directory
    return None


def _marker_missing(url: str, shard: str) -> Corrupt:
    return Corrupt(
        f"'{MARKER}' at '{url}' is not there, and shards are, such as '{shard_name(shard)}'",
        code="MARKER_MISSING",
        hint="restore it from a backup, with the location's id: checkpoints and sinks go by that",
    )


def _not_found(objects: Objects) -> InvalidUsage:
    return InvalidUsage(
        f"there is no location at '{objects.url}'",
        code="LOCATION_NOT_FOUND",
        hint=_shard_hint(objects)
        or _location_hint(objects)
        or "check the URL; the first writer creates a location, a reader never does",
    )


def _shard_hint(objects: Objects) -> str:
    """The hint where the folder is that of a shard: reads and writes of Spark take its path."""
    above, _, directory = objects.url.rpartition("/")
    if not is_shard_directory(directory):
        return ""
    # Of what is not to be found, nothing else that goes wrong is of interest.
    with suppress(ShardError):
        if any(_RECORD.fullmatch(entry.key) for entry in objects.entries("log/", limit=1)):
            name = shard_name(directory)
            return f"it is a shard's folder: the location is '{above}', the shard '{name}'"
    return ""


def _decode_twice(stored: bytes, objects: Objects) -> Marker:
    try:
        return _decode(stored, objects.url)
    except Corrupt:
        # It has no checksum, so damage on the way looks like damage in the store: read it again.
        return _decode(objects.get(MARKER) or b"", objects.url)


def _encode(marker: Marker) -> bytes:
    fields = {
        "format_version": marker.format_version,
        "location_id": marker.location_id,
        "grace_ms": marker.grace_ms,
    }
    return json.dumps(fields, indent=2).encode() + b"\n"


def _decode(stored: bytes, url: str) -> Marker:
    try:
        fields: dict[str, Any] = json.loads(stored)
        version = fields["format_version"]
        if isinstance(version, int) and version > FORMAT_VERSION:
            raise InvalidUsage(
                f"the location at '{url}' has format version {version}, this program reads "
                f"{FORMAT_VERSION}",
                code="LOCATION_TOO_NEW",
                hint="install a newer version",
            )
        location_id, grace_ms = fields["location_id"], fields["grace_ms"]
        if (
            version == FORMAT_VERSION
            and is_id(location_id, "l")
            and isinstance(grace_ms, int)
            and grace_ms >= 0
        ):
            return Marker(version, location_id, grace_ms)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise Corrupt(
        f"'{MARKER}' at '{url}' is not the marker of a location",
        hint="restore it from a backup, or choose another URL",
    )


# ------------------------------------------------------------------------------------------ probe


def _probe(objects: Objects, ids: IdGenerator, clock: Clock) -> None:
    keys = [f"_probe/{ids.token().hex()}" for _ in range(1 + _RACES)]
    try:
        _create_twice(objects, keys[0], ids, clock)
        for key in keys[1:]:
            _race(objects, key, ids)
    finally:
        objects.delete_many(keys)


def _create_twice(objects: Objects, key: str, ids: IdGenerator, clock: Clock) -> None:
    first, second = ids.token(), ids.token()
    _create_or_read(objects, key, first, ids, clock)
    if objects.create(key, second) is CREATED or not _is_stored(objects, key, first):
        raise _not_atomic(objects, "it stored a second object over an existing one")


def _race(objects: Objects, key: str, ids: IdGenerator) -> None:
    values = [ids.token() for _ in range(_RACERS)]
    outcomes: dict[bytes, CreateOutcome | Exception] = {}
    start = threading.Barrier(_RACERS)

    def run(value: bytes) -> None:
        try:
            start.wait()
            outcomes[value] = objects.create(key, value)
        except Exception as error:  # noqa: BLE001 - handed to the caller's thread
            outcomes[value] = error

    threads = [threading.Thread(target=run, args=(value,), daemon=True) for value in values]
    try:
        for thread in threads:
            thread.start()
    except BaseException:
        start.abort()  # those that have started would wait for the others for ever
        raise
    for thread in threads:
        thread.join()
    for outcome in outcomes.values():
        if isinstance(outcome, Exception):
            raise outcome
    winners = [value for value, outcome in outcomes.items() if outcome is CREATED]
    # Lost acknowledgements may leave no winner. Two winners prove that the store is not atomic,
    # and so does a winner whose object was replaced.
    if len(winners) > 1 or (winners and not _is_stored(objects, key, winners[0])):
        raise _not_atomic(objects, f"{len(winners)} of {_RACERS} racing creates were acknowledged")


def _is_stored(objects: Objects, key: str, value: bytes) -> bool:
    """True if `value` is at `key`; read twice, because one read may be damaged on its way."""
    return any(objects.get(key) == value for _ in range(2))


def _create_or_read(
    objects: Objects, key: str, value: bytes, ids: IdGenerator, clock: Clock
) -> bytes:
    """Create `key` unless it exists; the value that is stored there afterwards."""
    for _ in _RETRIES.begin(clock, ids).attempts():
        outcome = objects.create(key, value)
        if outcome is CREATED:
            return value
        stored = objects.get(key)
        if stored is not None:
            return stored
        if isinstance(outcome, Unresolved) and outcome.refusal is not None:
            # Unlike a commit, this may be reported as failed although it may yet take effect: the
            # next process to open the location finds the marker or probe that appears late.
            raise outcome.refusal
    raise Determinate(
        f"cannot create '{key}' at '{objects.url}' in {_RETRIES.attempts_max} attempts",
        hint="is the store available?",
    )


def _not_atomic(objects: Objects, observed: str) -> InvalidUsage:
    return InvalidUsage(
        f"the store at '{objects.url}' does not honour conditional writes: {observed}",
        code="STORE_NOT_ATOMIC",
        hint="two writers could both believe that they committed; use a local disk, AWS S3, or a "
        "server that implements If-None-Match",
    )


def _location_hint(objects: Objects) -> str:
    """The hint where a location is one folder further down: the shard's name was left out."""
    with suppress(ShardError):
        for directory in objects.directories()[:_LOOKED_AT_MAX]:
            if directory and objects.get(f"{directory}/{MARKER}") is not None:
                below = f"{objects.url}/{directory}"
                return f"'{below}' is a location; the path of a shard is '{below}/SHARD'"
    return ""

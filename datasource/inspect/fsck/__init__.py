"""Checks a location: compares all its objects with the states, logs and parts that describe them.

    check_location(objects, clock)               every shard, and the location itself
    check_location(objects, clock, shard="orders")

Owns the checks, and every finding with its code, severity and hint.

    findings      codes, severities and hints
    shard         all checks of one shard: start here
    listing       the objects of a shard, by kind
    log           replays records and rollups
    states        invariants of a state
    parts         bytes and rows of parts
    transactions  registered shards, and updates that are committed and not applied yet

May use: `stores`, `shard`, `parts`, `rows`, `types`, `read` and `transactions`.

A read fails at the first damage that it meets. An admin who restores a backup, or suspects a store,
needs to know all of it, before reads fail. There is no finding for a shard that only Shardline
has written to, however it was used, killed or raced with; and a finding names the object, so that
it can be restored. A shallow check replays the log and compares the sizes of all blobs; a deep one
reads every row of every part and compares it with the part's description.

Not detected: a forged record that fits in its place, with the same times and sizes. A location has
checksums, but no signatures.

A shard whose objects the store does not let this process list or read is a finding of the location,
and the others are checked all the same. Where it is the only one that was asked for, that is the
error.

Never: writes, deletes or leases anything.

Invariants:
    Works on bare objects: also where the location cannot be opened any more.
    Memory is bounded by the shard's state, the descriptions of parts, and a few record batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from shardline.datasource.clock import Clock, SystemIds
from shardline.datasource.errors import Corrupt, InvalidUsage
from shardline.datasource.inspect.fsck.findings import (
    KINDS,
    Finding,
    Findings,
    FsckReport,
    Kind,
    Severity,
    ShardCheck,
)
from shardline.datasource.inspect.fsck.listing import is_directory_marker
from shardline.datasource.inspect.fsck.log import ShardObjects
from shardline.datasource.inspect.fsck.shard import CheckedShard, check_shard
from shardline.datasource.inspect.fsck.transactions import TransactionsCheck
from shardline.datasource.stores.objects import Objects
from shardline.datasource.stores.probe import ensure_location, has_objects_of_shard
from shardline.datasource.stores.shard_names import (
    is_shard_directory,
    names_hint,
    shard_directory,
    shard_name,
)

__all__ = [
    "KINDS",
    "Finding",
    "FsckReport",
    "Kind",
    "Severity",
    "ShardCheck",
    "check_location",
]

Progress = Callable[[str, int], None]
"""Called with a shard's name and the number of its records or parts checked since the last call."""


def check_location(
    objects: Objects,
    clock: Clock,
    *,
    shard: str | None = None,
    deep: bool = True,
    progress: Progress = lambda _shard, _count: None,
) -> FsckReport:
    """Check every shard at `objects`, or only `shard`.

    Args:
        objects: The store, with retries.
        clock: For the time of the report.
        shard: Name of one shard; None for all shards and everything else.
        deep: Decode every part and compare its rows with its description in the state.
        progress: Called as the check goes on.

    Raises:
        InvalidUsage: There is no such shard, or no location at all; or the location was made by
            newer code; or `shard` may not be read.
        Determinate: The store did not answer.
    """
    at_ms = clock.now_ms()
    found = Findings()
    directories = _directories(objects)
    _check_marker(objects, clock, directories, found)
    wanted = _select_directories(objects, directories, shard, found)
    looked: list[CheckedShard] = []
    for directory in wanted:
        name = shard_name(directory)

        def advance(count: int, name: str = name) -> None:
            progress(name, count)

        with _past_refusals(name, found, alone=shard is not None):
            looked.append(check_shard(ShardObjects(objects, directory, advance), deep=deep))
    states = {one.state.name: one.state for one in looked if one.state is not None}
    transactions = TransactionsCheck(objects, states, deep)
    checks: list[ShardCheck] = []
    for one in looked:
        checks.append(one.check)
        with _past_refusals(one.check.shard, found, alone=shard is not None):
            checks[-1] = transactions.with_transactions(one)
    return FsckReport(
        location=objects.url,
        at_ms=at_ms,
        deep=deep,
        findings=found.sorted(),
        shards=tuple(sorted(checks, key=lambda check: check.shard)),
    )


@contextmanager
def _past_refusals(shard: str, found: Findings, *, alone: bool) -> Iterator[None]:
    """Turn a refusal by the store into a finding about `shard`, unless that is all there is."""
    try:
        yield
    except InvalidUsage as error:
        if alone or error.code != "ACCESS_DENIED":
            raise
        found.add("SHARD_NOT_CHECKED", shard, f"{error.detail}: {error.hint}")


def _directories(objects: Objects) -> list[str]:
    """All directories that are not empty, but the location's own."""
    return [
        name
        for name in objects.directories()
        # The empty name is that of keys with a slash too many: `s3://bucket/prefix//x`.
        if not name.startswith(("_", ".")) and _is_in_use(objects, name)
    ]


def _is_in_use(objects: Objects, directory: str) -> bool:
    """True if there is an object in a directory, or this process may not look."""
    try:
        # More than the first object: other tools mark directories by empty objects, such as `a/`.
        return any(not is_directory_marker(entry) for entry in objects.entries(f"{directory}/"))
    except InvalidUsage as error:
        if error.code != "ACCESS_DENIED":
            raise
        return True


def _check_marker(objects: Objects, clock: Clock, directories: list[str], found: Findings) -> None:
    try:
        # With `refuse` nothing is written, so no ids are drawn.
        ensure_location(objects, clock=clock, ids=SystemIds(), if_missing="refuse", grace_ms=0)
    except Corrupt as error:
        lost = error.code == "MARKER_MISSING"
        found.add("MARKER_MISSING" if lost else "MARKER_DAMAGED", "_shardline", error.detail)
    except InvalidUsage as error:
        # Any folder has folders. Of a location without its marker shards are left.
        shards = filter(is_shard_directory, directories)
        if error.code != "LOCATION_NOT_FOUND" or not any(
            has_objects_of_shard(objects, directory) for directory in shards
        ):
            raise
        found.add("MARKER_MISSING", "_shardline", f"'_shardline' at '{objects.url}' is not there")


def _select_directories(
    objects: Objects, directories: list[str], shard: str | None, found: Findings
) -> list[str]:
    """The directories to check."""
    if shard is not None:
        directory = shard_directory(shard)
        if directory in directories:
            return [directory]
        names = [shard_name(name) for name in directories if is_shard_directory(name)]
        raise InvalidUsage(
            f"no shard '{shard}' at {objects.url}",
            code="SHARD_NOT_FOUND",
            hint=names_hint(shard, names),
        )
    for name in directories:
        if not is_shard_directory(name):
            found.add("FOREIGN_DIRECTORY", name or "/", f"directory '{name}' cannot be a shard's")
    return [name for name in directories if is_shard_directory(name)]

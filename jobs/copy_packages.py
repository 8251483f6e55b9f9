"""Copies the packages of a lock out of this environment into the folder of another one.

    python -m shardline.jobs.copy_packages LOCK SITE_PACKAGES

`spark-submit.sh package` makes the environment of an archive so. To install the packages anew would
take three times as long, and would ask the network for what is here.

What is copied is what the lock says, whatever has been done to the environment since it was made:
versions are compared with the lock, and files with the hashes that were noted when they were
installed. Left out is what no worker imports: Spark's jars and scripts (nine tenths of all; a
cluster has its own), programs, and the packages' own tests. Each executor unpacks the rest before
its first task. Bytecode comes with its source where there is some.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, PackageNotFoundError, PackagePath, distribution
from pathlib import Path
from typing import Final

__all__ = ["copy_packages", "main"]

_PIN: Final = re.compile(r"^([\w.-]+)(?:\[[^\]]*\])?==([^\s;]+) *(;?)", re.MULTILINE)
"""Name, version, and the beginning of a marker; hashes follow."""

_NOT_FOR_WORKERS: Final = re.compile(
    r"\.\./|pyspark/(jars|examples|licenses|bin|sbin)/|.*/tests/|.*/__pycache__/"
)
"""Begins of files that are left out; of a path outside of the packages' own folder, too."""


def copy_packages(lock: str, target: Path) -> None:
    """Copy all packages that a lock names into `target`, a folder that has none.

    Args:
        lock: The text of a requirements file. A name may be in it more than once, with markers for
            several platforms; one with markers only need not be installed.

    Raises:
        ValueError: What is installed is not what the lock says, or has been changed.
    """
    pins: dict[str, set[str]] = {}
    everywhere = set()
    for name, version, marker in _PIN.findall(lock):
        pins.setdefault(name, set()).add(version)
        if not marker:
            everywhere.add(name)
    for name, versions in pins.items():
        try:
            package = distribution(name)
        except PackageNotFoundError:
            if name not in everywhere:
                continue
            raise ValueError(f"'{name}' is not installed") from None
        if package.version not in versions:
            raise ValueError(f"'{name}' is {package.version}, not {' or '.join(sorted(versions))}")
        for file in _files_for_workers(package.files or ()):
            _copy(package, file, target / file)


def _files_for_workers(files: Iterable[PackagePath]) -> Iterator[PackagePath]:
    return (file for file in files if not _NOT_FOR_WORKERS.match(file.as_posix()))


def _copy(package: Distribution, file: PackagePath, place: Path) -> None:
    source = Path(str(package.locate_file(file)))
    try:
        content = source.read_bytes()
    except FileNotFoundError:
        raise ValueError(f"'{source}' is missing") from None
    # The list of files has no hash of itself.
    if file.hash is not None:
        digest = hashlib.new(file.hash.mode, content).digest()
        if base64.urlsafe_b64encode(digest).rstrip(b"=").decode() != file.hash.value:
            raise ValueError(f"'{source}' is not as it was installed")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content)
    # Bytecode counts only for a source of that time.
    shutil.copystat(source, place)
    if file.suffix == ".py":
        compiled, there = (Path(importlib.util.cache_from_source(str(p))) for p in (source, place))
        if compiled.is_file():
            there.parent.mkdir(exist_ok=True)
            shutil.copy2(compiled, there)


def main(arguments: list[str]) -> int:
    """Copy what the lock at the first path names into the folder at the second; the exit status."""
    lock, target = map(Path, arguments)
    try:
        copy_packages(lock.read_text(encoding="utf-8"), target)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

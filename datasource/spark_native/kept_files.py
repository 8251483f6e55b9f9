"""Keeps what was found out about this installation in a file, for the processes that follow.

The files are in `__pycache__`, beside what Python keeps of its own work there. Where that folder
cannot be written, or Python was told to keep nothing there, nothing is kept.

Invariants:
    Bytes are given back whole or not at all: a file that was cut or changed is as good as none.
    Of two processes that write at the same time one wins; nobody ever sees half a file.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import sys
import tempfile
from pathlib import Path

__all__ = ["kept_file", "read_kept", "store_kept"]


def kept_file(name: str) -> Path | None:
    """The file `name` of this installation; None where none may be kept."""
    if sys.dont_write_bytecode:
        return None
    with contextlib.suppress(NotImplementedError):
        return Path(importlib.util.cache_from_source(__file__)).parent / name
    return None


def read_kept(path: Path | None) -> bytes | None:
    """The bytes that were kept; None if there are none, or not all of them."""
    if path is None:
        return None
    try:
        digest, _, data = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    return data if hashlib.sha256(data).hexdigest().encode() == digest else None


def store_kept(path: Path | None, data: bytes) -> None:
    """Keep bytes, in the place of what was kept before; not where that is impossible."""
    if path is None:
        return
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, made = tempfile.mkstemp(dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(hashlib.sha256(data).hexdigest().encode() + b"\n" + data)
            os.chmod(made, 0o644)  # noqa: PTH101 - as Python's own files there
            os.replace(made, path)  # noqa: PTH105 - two processes may keep it at the same time
        except BaseException:
            os.unlink(made)  # noqa: PTH108 - on a full disk, one more at each start
            raise

"""Paths of the repository's own files, for tests that read them."""

from pathlib import Path
from typing import Final

__all__ = ["GOLDEN", "ROOT", "TESTS"]

ROOT: Final = Path(__file__).resolve().parents[2]
"""The repository: `conf/`, `docs/`, the packages."""

TESTS: Final = ROOT / "tests"

GOLDEN: Final = TESTS / "golden"
"""Bytes as every version has written them, a folder for each."""
